//! Upstreams that are down, slow or silent or violate the protocol, and how often a request is
//! tried.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::site::*;

/// An upstream that handles every connection with a function. Its thread ends with the test
/// process.
pub struct FakeUpstream {
    pub address: String,
    connections: Arc<AtomicUsize>,
}

impl FakeUpstream {
    pub fn new(treat: impl Fn(TcpStream) + Send + Sync + 'static) -> FakeUpstream {
        FakeUpstream::listening(TcpListener::bind("127.0.0.1:0").unwrap(), treat)
    }

    pub fn listening(
        listener: TcpListener,
        treat: impl Fn(TcpStream) + Send + Sync + 'static,
    ) -> FakeUpstream {
        let address = listener.local_addr().unwrap().to_string();
        let connections = Arc::new(AtomicUsize::new(0));
        let (count, treat) = (connections.clone(), Arc::new(treat));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                count.fetch_add(1, Ordering::SeqCst);
                let treat = treat.clone();
                thread::spawn(move || treat(stream));
            }
        });
        FakeUpstream {
            address,
            connections,
        }
    }

    /// An upstream that reads the head of a request, sends this response, and closes.
    pub fn sending(raw: &'static str) -> FakeUpstream {
        FakeUpstream::new(move |mut stream| {
            if read_head(&mut stream).is_some() {
                let _ = stream.write_all(raw.as_bytes());
                let _ = stream.shutdown(Shutdown::Write);
                let _ = stream.read_to_end(&mut Vec::new());
            }
        })
    }

    pub fn count(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// The head of the next request; `None` if the connection ends before it is complete.
pub fn read_head(stream: &mut TcpStream) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    String::from_utf8(head).ok()
}

/// An address that refuses connections.
pub fn refused_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

pub fn proxy(site: &Site, addresses: &[&str], more: &str) -> Server {
    site.serve_configured(&format!(
        "[[location]]\nprefix = \"/app/\"\nproxy = {addresses:?}\n{more}\n"
    ))
}

pub const GOOD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood";

#[test]
fn upstream_failures_become_502_503_or_504() {
    let site = Site::new();
    for (raw, expected) in [
        ("", 502),
        ("HTTP/1.1 200 OK\r\nContent-Le", 502),
        ("SSH-2.0-OpenSSH\r\n", 502),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            502,
        ),
        (
            "HTTP/1.1 200 OK\r\nA: b\rC: d\r\nContent-Length: 0\r\n\r\n",
            502,
        ),
        ("HTTP/1.1 101 No\r\nUpgrade: x\r\n\r\n", 502),
        ("HTTP/1.0 404 No\r\n\r\nnothing", 404),
        (GOOD, 200),
    ] {
        let upstream = FakeUpstream::sending(raw);
        let server = proxy(&site, &[&upstream.address], "");
        assert_eq!(get(&server, "/app/x").status, expected, "{raw:?}");
        is_well(&server);
    }
    let server = proxy(&site, &[&refused_address()], "");
    assert_eq!(
        get(&server, "/app/x").status,
        502,
        "refused_address listens"
    );
    assert!(counter(&server, "upstream_failures") > 0);
    is_well(&server);
}

#[test]
fn long_response_header_passes_when_its_limit_allows() {
    let site = Site::new();
    let header = format!("A: {}\r\n", "a".repeat(9_000)).repeat(5);
    let words = format!("HTTP/1.1 200 OK\r\n{header}Content-Length: 4\r\n\r\ngood");
    let upstream = FakeUpstream::sending(words.leak());
    for (setting, expected) in [
        ("", 502),
        ("max-response-header-size = \"46KiB\"", 200),
        ("max-response-header-size = \"40KiB\"", 502),
    ] {
        let server = proxy(&site, &[&upstream.address], setting);
        assert_eq!(get(&server, "/app/x").status, expected, "{setting}");
        is_well(&server);
    }
}

/// An upstream that responds with the request line which it got.
fn echoing() -> FakeUpstream {
    FakeUpstream::new(|mut stream| {
        while let Some(head) = read_head(&mut stream) {
            let line = head.lines().next().unwrap_or_default();
            let length = line.len();
            let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{line}");
            let _ = stream.write_all(response.as_bytes());
        }
    })
}

#[test]
fn upstream_gets_the_path_that_chose_the_location() {
    let site = Site::new();
    let server = proxy(&site, &[&echoing().address], "");
    for (target, line) in [
        ("/x/../app/20?q=..", "GET /app/20?q=.. HTTP/1.1"),
        ("//app//20", "GET /app/20 HTTP/1.1"),
        ("/app/%2e%2e/app/x", "GET /app/x HTTP/1.1"),
        ("/%61pp/a%3Bb", "GET /app/a%3Bb HTTP/1.1"),
    ] {
        assert_eq!(get(&server, target).text(), line, "{target}");
    }
    // No file can have such a name.
    for name in ["a".repeat(300), "a/".repeat(2500), "a%2F".repeat(900)] {
        let line = format!("GET /app/{name} HTTP/1.1");
        assert_eq!(get(&server, &format!("/app/{name}")).text(), line);
    }
    // Tomcat takes `..;` for `..`, and here it begins with a dot.
    for target in ["/app/../x", "/app/..;/x", "/app/..%3Ba/x"] {
        assert_eq!(get(&server, target).status, 404, "{target}");
    }
    assert_eq!(get(&server, "/app/../../x").status, 403);
    is_well(&server);
}

#[test]
fn escaped_slash_reaches_the_upstream_when_both_readings_belong_to_its_location() {
    let (site, upstream) = (Site::new(), echoing());
    let more = format!(
        "[[location]]\nprefix = \"/app/admin/\"\nproxy = {:?}\n\
         [[location]]\nprefix = \"/app/files/\"\nfiles = true\n\
         [[location]]\nprefix = \"/app/inner/\"\ninternal = true\nproxy = {0:?}\n\
         [[location]]\nprefix = \"/strict/\"\nescaped-slashes = false\nproxy = {0:?}\n",
        upstream.address
    );
    let server = proxy(&site, &[&upstream.address], &more);
    for (target, line) in [
        (
            "/app/group%2Fname/x?q=%2F",
            "GET /app/group%2Fname/x?q=%2F HTTP/1.1",
        ),
        ("/app//@scope%2fname/../a%2Fb", "GET /app/a%2Fb HTTP/1.1"),
        (
            "/app/https:%2F%2Fx%20y",
            "GET /app/https:%2F%2Fx%20y HTTP/1.1",
        ),
        ("/app/admin/a%2Fb", "GET /app/admin/a%2Fb HTTP/1.1"),
    ] {
        assert_eq!(get(&server, target).text(), line, "{target}");
    }
    for target in [
        // An upstream that decodes first would find another path.
        "/app/..%2Fx",
        "/app/x%2F..%2F..%2Fy",
        "/app/a%2F%2e/b",
        // Its location depends on the reading.
        "/app%2Fx",
        "/app/admin%2Fx",
        "/app/admin%2Fx/../y%2Fz/../../app/admin%2Fx",
        "/app/inner%2Fx",
        "/app/inner/x%2Fy",
        "/app/files/x%2Fy",
        "/app/files%2Fy",
        "/app/x%2F.git",
        "/strict/a%2Fb",
        "/file.txt%2F",
    ] {
        assert_eq!(get(&server, target).status, 404, "{target}");
    }
    is_well(&server);
}

#[test]
fn excess_bytes_after_a_response_are_dropped() {
    let site = Site::new();
    let upstream = FakeUpstream::new(|mut stream| {
        let evil = GOOD.replace("good", "evil");
        while read_head(&mut stream).is_some() {
            let _ = stream.write_all([GOOD, &evil].concat().as_bytes());
        }
    });
    let server = proxy(&site, &[&upstream.address], "concurrency = 1");
    let mut stream = server.connect();
    for _ in 0..5 {
        send(&mut stream, "GET /app/ HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(receive(&mut stream).unwrap().text(), "good");
        assert_eq!(get(&server, "/app/").text(), "good");
    }
    is_well(&server);
}

#[test]
fn control_characters_of_a_path_are_escaped_in_the_log() {
    let site = Site::new();
    let upstream = FakeUpstream::sending("SSH-2.0-OpenSSH\r\n");
    let server = site.serve_configured(&format!(
        "[[location]]\nsuffix = \".app\"\nproxy = {:?}\n",
        upstream.address
    ));
    // To a terminal with C1 control characters this equals ESC [.
    assert_eq!(get(&server, "/%c2%9b2Jx.app").status, 502);
    assert_eq!(get(&server, "/%1b%5b2Jx.app").status, 400, "no path at all");
    is_well(&server);
    let said = server.stop();
    assert!(said.contains("/\\x9b2Jx.app: "), "{said}");
}

/// The connection has ended, and no more is expected.
pub fn is_cut_off(error: &str) -> bool {
    let waited = std::io::Error::from_raw_os_error(rustix::io::Errno::AGAIN.raw_os_error());
    !error.contains(&waited.to_string())
}

#[test]
fn truncated_response_closes_the_client_connection() {
    let site = Site::new();
    for raw in [
        "HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\ngood",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngoodzz",
    ] {
        let upstream = FakeUpstream::sending(raw);
        let server = proxy(&site, &[&upstream.address], "");
        let mut stream = server.connect();
        send(&mut stream, "GET /app/ HTTP/1.1\r\nHost: x\r\n\r\n");
        match receive(&mut stream) {
            Ok(response) => assert_eq!(response.status, 502, "{raw:?}"),
            Err(error) => assert!(is_cut_off(&error), "{raw:?}: {error}"),
        }
        is_well(&server);
    }
}

/// An upstream that sends this response to every request, and then resets the connection instead of
/// closing it.
fn breaking_off(raw: &'static str) -> FakeUpstream {
    FakeUpstream::new(move |mut stream| {
        let _ = stream.read(&mut [0; 5000]);
        let _ = stream.write_all(raw.as_bytes());
        // With a linger time of zero, closing resets the connection.
        let at_once = Some(std::time::Duration::ZERO);
        rustix::net::sockopt::set_socket_linger(&stream, at_once).unwrap();
    })
}

#[test]
fn response_cut_off_by_a_reset_is_not_complete() {
    let site = Site::new();
    let http = "HTTP/1.0 200 OK\r\n\r\nhalf";
    let cgi = "Content-Type: a/b\r\n\r\nhalf";
    for (protocol, raw) in [("proxy", http), ("scgi", cgi)] {
        let upstream = breaking_off(raw);
        let server = site.serve_configured(&format!(
            "[[location]]\nprefix = \"/app/\"\n{protocol} = {:?}\n",
            upstream.address
        ));
        for _ in 0..5 {
            let mut stream = server.connect();
            send(&mut stream, "GET /app/ HTTP/1.1\r\nHost: x\r\n\r\n");
            match receive(&mut stream) {
                Ok(response) => assert_eq!(response.status, 502, "{protocol}: {}", response.text()),
                Err(error) => assert!(is_cut_off(&error), "{protocol}: {error}"),
            }
        }
        is_well(&server);
    }
    // The declared length shows that it is complete.
    let upstream = breaking_off(GOOD);
    let server = proxy(&site, &[&upstream.address], "");
    for _ in 0..5 {
        assert_eq!(get(&server, "/app/x").text(), "good");
    }
}

/// How often one of the two upstreams of `/app/` has been ejected, while neither gets requests.
fn ejections(server: &Server, address: &str) -> u64 {
    let status = server.status();
    let all = status["total"]["upstreams"].as_array().unwrap();
    assert_eq!(all.len(), 2, "{status}");
    let one = all.iter().find(|one| one["address"] == address).unwrap();
    let (location, requests) = (&one["location"], &one["requests_active"]);
    assert_eq!((location, requests), (&"/app/".into(), &0.into()));
    one["ejections"].as_u64().unwrap()
}

#[test]
fn upstream_is_ejected_after_protocol_errors() {
    let site = Site::new();
    for raw in ["SSH-2.0-OpenSSH\r\n", "HTTP/1.1 200 OK\r\nContent-Le"] {
        let (bad, good) = (FakeUpstream::sending(raw), FakeUpstream::sending(GOOD));
        let server = proxy(&site, &[&bad.address, &good.address], "keepalive = 0");
        for _ in 0..12 {
            let status = get(&server, "/app/x").status;
            assert!(matches!(status, 200 | 502), "{status}");
        }
        assert!(ejections(&server, &bad.address) > 0, "{raw:?}");
        assert_eq!(ejections(&server, &good.address), 0, "{raw:?}");
    }
}

#[test]
fn queued_request_precedes_pipelined_requests() {
    let site = Site::new();
    let open = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (may_answer, asked) = (open.clone(), order.clone());
    let upstream = FakeUpstream::new(move |mut stream| {
        let Some(head) = read_head(&mut stream) else {
            return;
        };
        let path = head.split(' ').nth(1).unwrap().to_owned();
        asked.lock().unwrap().push(path);
        while !may_answer.load(Ordering::SeqCst) {
            thread::sleep(std::time::Duration::from_millis(1));
        }
        let _ = stream.write_all(GOOD.as_bytes());
    });
    let server = proxy(
        &site,
        &[&upstream.address],
        "concurrency = 1\nkeepalive = 0",
    );
    let (mut several, mut one) = (server.connect(), server.connect());
    let request = |name: &str| format!("GET /app/{name} HTTP/1.1\r\nHost: x\r\n\r\n");
    send(&mut several, ["a", "b", "c"].map(&request).concat());
    server.wait_for("the first", |_| order.lock().unwrap().len() == 1);
    send(&mut one, request("other"));
    server.wait_for("the queued request", |server| {
        counter(server, "handler_queue_length") == 1
    });
    open.store(true, Ordering::SeqCst);
    for stream in [&mut several, &mut one] {
        assert_eq!(receive(stream).unwrap().text(), "good");
    }
    for _ in 0..2 {
        assert_eq!(receive(&mut several).unwrap().text(), "good");
    }
    let order = order.lock().unwrap();
    assert_eq!(*order, ["/app/a", "/app/other", "/app/b", "/app/c"]);
}

#[test]
fn body_that_cannot_be_repeated_uses_a_new_connection() {
    let site = Site::new();
    // It closes a connection when a second request comes.
    let upstream = FakeUpstream::new(|mut stream| {
        let head = read_head(&mut stream).unwrap_or_default();
        if head.starts_with("PUT") {
            let _ = stream.read_exact(&mut [0; 5]);
        }
        let _ = stream.write_all(GOOD.as_bytes());
        let _ = stream.read(&mut [0; 5000]);
    });
    let server = proxy(&site, &[&upstream.address], "keepalive = 4");
    for _ in 0..5 {
        assert_eq!(get(&server, "/app/x").text(), "good");
        let put = "PUT /app/x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(exchange(&server, put).text(), "good");
    }
    is_well(&server);
}

#[test]
fn proxy_sends_host_and_forwarded_headers_as_configured() {
    let site = Site::new();
    // It answers with the request it got.
    let upstream = FakeUpstream::new(|mut stream| {
        let head = read_head(&mut stream).unwrap_or_default();
        let response = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{head}",
            head.len()
        );
        let _ = stream.write_all(response.as_bytes());
    });
    let address = upstream.address.as_str();
    let (theirs, ours) = ("Host: example.org", format!("Host: {address}"));
    let (one, both) = (
        "X-Forwarded-For: 127.0.0.1",
        "X-Forwarded-For: 192.0.2.7, 127.0.0.1",
    );
    for (more, has, has_not) in [
        ("", [theirs, one], ours.as_str()),
        ("trust-forwarded = true", [theirs, both], one),
        (
            "preserve-host = false",
            [&ours, "X-Forwarded-Host: example.org"],
            theirs,
        ),
    ] {
        let server = proxy(&site, &[address], more);
        let request =
            "GET /app/ HTTP/1.1\r\nHost: example.org\r\nX-Forwarded-For: 192.0.2.7\r\n\r\n";
        let asked = exchange(&server, request).text();
        let lines: Vec<_> = asked.lines().collect();
        for line in has {
            assert!(lines.contains(&line), "{more}: {line}\n{asked}");
        }
        assert!(!lines.contains(&has_not), "{more}: {has_not}\n{asked}");
    }
}

#[test]
fn silent_upstream_is_answered_504() {
    let site = Site::new();
    let silent = FakeUpstream::new(|mut stream| drop(stream.read_to_end(&mut Vec::new())));
    let server = proxy(&site, &[&silent.address], "timeout = \"300ms\"");
    assert_eq!(get(&server, "/app/x").status, 504);
    assert_eq!(counter(&server, "handler_timeouts"), 1);
    is_well(&server);
}

#[test]
fn proxy_request_is_retried_when_an_upstream_is_down() {
    let site = Site::new();
    let good = FakeUpstream::sending(GOOD);
    let server = proxy(
        &site,
        &[&refused_address(), &good.address, &refused_address()],
        "attempts = 3",
    );
    for _ in 0..6 {
        assert_eq!(get(&server, "/app/x").text(), "good");
    }
    // Nothing was sent to the upstream that is down, so even a POST may be retried.
    assert_eq!(exchange(&server, post("/app/x", b"hello")).text(), "good");
    assert!(counter(&server, "upstream_retries") > 0);
    is_well(&server);
}

#[test]
fn status_shows_the_health_of_each_upstream() {
    let site = Site::new();
    let (down, good) = (refused_address(), FakeUpstream::sending(GOOD));
    let server = proxy(&site, &[&down, &good.address], "keepalive = 0");
    for _ in 0..12 {
        assert_eq!(get(&server, "/app/x").text(), "good");
    }
    assert_eq!(ejections(&server, &good.address), 0);
    assert!(ejections(&server, &down) > 0);
    let page = |path: &str| headway_test_support::server::get(&server.status, path).2;
    let series = format!("headway_upstream_ejections{{location=\"/app/\",upstream=\"{down}\"}} ");
    let metrics = page("/metrics");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&series));
    assert!(line.is_some_and(|value| value != "0"), "{metrics}");
    assert!(page("/status").contains(&down));
}

/// A listener that accepts no connection: its backlog is full and stays so.
fn full() -> (TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = listener.local_addr().unwrap();
    let timeout = std::time::Duration::from_millis(200);
    let attempts = (0..64).map_while(|_| TcpStream::connect_timeout(&address, timeout).ok());
    let queue: Vec<TcpStream> = attempts.collect();
    assert!(queue.len() < 64, "the accept queue is never full");
    (listener, queue)
}

#[test]
fn request_is_retried_after_the_connect_timeout() {
    let site = Site::new();
    let (full, _queue) = full();
    let full = full.local_addr().unwrap().to_string();
    let good = FakeUpstream::sending(GOOD);
    let more = "connect-timeout = \"100ms\"";
    let server = proxy(&site, &[&full, &good.address], more);
    for _ in 0..3 {
        assert_eq!(get(&server, "/app/x").text(), "good");
        assert_eq!(exchange(&server, post("/app/x", b"hello")).text(), "good");
    }
    assert!(counter(&server, "upstream_retries") > 0);
    let server = proxy(&site, &[&full], more);
    assert_eq!(get(&server, "/app/x").status, 504);
    assert_eq!(counter(&server, "handler_timeouts"), 1);
    is_well(&server);
}

#[test]
fn unsafe_request_is_not_retried_after_it_was_sent() {
    let site = Site::new();
    let dying = FakeUpstream::sending("");
    let server = proxy(&site, &[&dying.address, &dying.address], "");
    assert_eq!(exchange(&server, post("/app/x", b"hello")).status, 502);
    assert_eq!(dying.count(), 1);
    assert_eq!(get(&server, "/app/x").status, 502);
    assert_eq!(dying.count(), 3, "a GET may be repeated");
    is_well(&server);
}

#[test]
fn closed_idle_connection_is_replaced() {
    let site = Site::new();
    // It promises keep-alive and closes after the first response.
    let fickle = FakeUpstream::new(|mut stream| {
        if read_head(&mut stream).is_some() {
            let _ = stream.write_all(GOOD.as_bytes());
        }
    });
    let server = proxy(&site, &[&fickle.address], "");
    for _ in 0..5 {
        assert_eq!(get(&server, "/app/x").text(), "good");
    }
    assert_eq!(counter(&server, "handler_invalid_responses"), 0);
    is_well(&server);
}

#[test]
fn response_is_forwarded_when_the_upstream_ignores_the_body() {
    let site = Site::new();
    let refusing = FakeUpstream::sending("HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno");
    let server = proxy(&site, &[&refusing.address], "max-body-size = \"8MiB\"");
    let mut stream = server.connect();
    let mut sender = stream.try_clone().unwrap();
    let sending = thread::spawn(move || {
        let _ = sender.write_all(&post("/app/x", &contents(4_000_000)));
    });
    let response = receive(&mut stream).unwrap();
    assert_eq!((response.status, response.text().as_str()), (413, "no"));
    drop(stream);
    let _ = sending.join();
    is_well(&server);
}

#[test]
fn requests_queue_or_get_503_above_the_concurrency_limit() {
    let site = Site::new();
    let slow = FakeUpstream::new(|mut stream| {
        if read_head(&mut stream).is_some() {
            thread::sleep(std::time::Duration::from_millis(200));
            let _ = stream.write_all(GOOD.as_bytes());
        }
    });
    let server = proxy(&site, &[&slow.address], "concurrency = 1\nqueue = 1");
    let mut streams: Vec<TcpStream> = (0..3).map(|_| server.connect()).collect();
    for stream in &mut streams {
        send(stream, "GET /app/ HTTP/1.1\r\nHost: x\r\n\r\n");
        thread::sleep(std::time::Duration::from_millis(20));
    }
    let mut statuses: Vec<u16> = streams
        .iter_mut()
        .map(|stream| receive(stream).unwrap().status)
        .collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 503]);
    is_well(&server);
}
