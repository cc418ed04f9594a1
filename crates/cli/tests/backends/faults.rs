//! Back ends that are down, slow, silent or talk nonsense, and how often they are asked.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::serving::Server;
use crate::site::*;

/// A back end that treats every connection in this way; the thread ends with the test's process.
pub struct BackEnd {
    pub address: String,
    connections: Arc<AtomicUsize>,
}

impl BackEnd {
    pub fn new(treat: impl Fn(TcpStream) + Send + Sync + 'static) -> BackEnd {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
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
        BackEnd {
            address,
            connections,
        }
    }

    /// One that reads a request's head, says this, and closes.
    pub fn saying(words: &'static str) -> BackEnd {
        BackEnd::new(move |mut stream| {
            if read_head(&mut stream).is_some() {
                let _ = stream.write_all(words.as_bytes());
                let _ = stream.shutdown(Shutdown::Write);
                let _ = stream.read_to_end(&mut Vec::new());
            }
        })
    }

    pub fn count(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// The next request's head; none if the connection ends before its end.
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

/// An address that nobody listens on.
pub fn nobody() -> String {
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
fn client_is_told_whose_fault_it_is_when_a_back_end_fails() {
    let site = Site::new();
    for (words, expected) in [
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
        let back_end = BackEnd::saying(words);
        let server = proxy(&site, &[&back_end.address], "");
        assert_eq!(get(&server, "/app/x").status, expected, "{words:?}");
        is_well(&server);
    }
    let server = proxy(&site, &[&nobody()], "");
    assert_eq!(get(&server, "/app/x").status, 502, "nobody listens");
    assert!(counter(&server, "backend_failures") > 0);
    is_well(&server);
}

#[test]
fn excess_is_nobodys_reply_when_a_back_end_sends_more_than_it_says() {
    let site = Site::new();
    let back_end = BackEnd::new(|mut stream| {
        let evil = GOOD.replace("good", "evil");
        while read_head(&mut stream).is_some() {
            let _ = stream.write_all([GOOD, &evil].concat().as_bytes());
        }
    });
    let server = proxy(&site, &[&back_end.address], "concurrency = 1");
    let mut stream = server.connect();
    for _ in 0..5 {
        send(&mut stream, "GET /app/ HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(receive(&mut stream).unwrap().text(), "good");
        assert_eq!(get(&server, "/app/").text(), "good");
    }
    is_well(&server);
}

#[test]
fn line_is_harmless_when_the_path_in_it_is_not() {
    let site = Site::new();
    let back_end = BackEnd::saying("SSH-2.0-OpenSSH\r\n");
    let server = site.serve_configured(&format!(
        "[[location]]\nsuffix = \".app\"\nproxy = {:?}\n",
        back_end.address
    ));
    // The same as ESC [ to a terminal that takes control characters in UTF-8.
    assert_eq!(get(&server, "/%c2%9b2Jx.app").status, 502);
    assert_eq!(get(&server, "/%1b%5b2Jx.app").status, 400, "no path at all");
    is_well(&server);
    let said = server.stop();
    assert!(said.contains("/\\x9b2Jx.app: "), "{said}");
}

/// The connection has ended; nobody is left waiting for more.
pub fn is_cut_off(error: &str) -> bool {
    let waited = std::io::Error::from_raw_os_error(rustix::io::Errno::AGAIN.raw_os_error());
    !error.contains(&waited.to_string())
}

#[test]
fn connection_ends_early_when_a_reply_is_shorter_than_it_says() {
    let site = Site::new();
    for words in [
        "HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\ngood",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngoodzz",
    ] {
        let back_end = BackEnd::saying(words);
        let server = proxy(&site, &[&back_end.address], "");
        let mut stream = server.connect();
        send(&mut stream, "GET /app/ HTTP/1.1\r\nHost: x\r\n\r\n");
        match receive(&mut stream) {
            Ok(reply) => assert_eq!(reply.status, 502, "{words:?}"),
            Err(error) => assert!(is_cut_off(&error), "{words:?}: {error}"),
        }
        is_well(&server);
    }
}

/// One that says this to whoever asks, and then breaks the connection off instead of closing it.
fn breaking_off(words: &'static str) -> BackEnd {
    BackEnd::new(move |mut stream| {
        let _ = stream.read(&mut [0; 5000]);
        let _ = stream.write_all(words.as_bytes());
        // Without waiting, so that it ends by a reset.
        let at_once = Some(std::time::Duration::ZERO);
        rustix::net::sockopt::set_socket_linger(&stream, at_once).unwrap();
    })
}

#[test]
fn reply_is_not_taken_for_a_whole_one_when_its_back_end_breaks_off() {
    let site = Site::new();
    let http = "HTTP/1.0 200 OK\r\n\r\nhalf";
    let cgi = "Content-Type: a/b\r\n\r\nhalf";
    for (protocol, words) in [("proxy", http), ("scgi", cgi)] {
        let back_end = breaking_off(words);
        let server = site.serve_configured(&format!(
            "[[location]]\nprefix = \"/app/\"\n{protocol} = {:?}\n",
            back_end.address
        ));
        for _ in 0..5 {
            let mut stream = server.connect();
            send(&mut stream, "GET /app/ HTTP/1.1\r\nHost: x\r\n\r\n");
            match receive(&mut stream) {
                Ok(reply) => assert_eq!(reply.status, 502, "{protocol}: {}", reply.text()),
                Err(error) => assert!(is_cut_off(&error), "{protocol}: {error}"),
            }
        }
        is_well(&server);
    }
    // Its length says that it is whole.
    let back_end = breaking_off(GOOD);
    let server = proxy(&site, &[&back_end.address], "");
    for _ in 0..5 {
        assert_eq!(get(&server, "/app/x").text(), "good");
    }
}

/// How often one of the two back ends of `/app/`, which nobody asks at the moment, has been left
/// alone.
fn ejections(server: &Server, address: &str) -> u64 {
    let status = server.status();
    let all = status["total"]["back_ends"].as_array().unwrap();
    assert_eq!(all.len(), 2, "{status}");
    let one = all.iter().find(|one| one["address"] == address).unwrap();
    let (location, requests) = (&one["location"], &one["requests"]);
    assert_eq!((location, requests), (&"/app/".into(), &0.into()));
    one["ejections"].as_u64().unwrap()
}

#[test]
fn back_end_is_left_alone_when_it_breaks_its_protocol() {
    let site = Site::new();
    for words in ["SSH-2.0-OpenSSH\r\n", "HTTP/1.1 200 OK\r\nContent-Le"] {
        let (bad, good) = (BackEnd::saying(words), BackEnd::saying(GOOD));
        let server = proxy(&site, &[&bad.address, &good.address], "keepalive = 0");
        for _ in 0..12 {
            let status = get(&server, "/app/x").status;
            assert!(matches!(status, 200 | 502), "{status}");
        }
        assert!(ejections(&server, &bad.address) > 0, "{words:?}");
        assert_eq!(ejections(&server, &good.address), 0, "{words:?}");
    }
}

#[test]
fn request_that_waits_is_next_when_another_client_has_sent_several() {
    let site = Site::new();
    let open = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (may_answer, asked) = (open.clone(), order.clone());
    let back_end = BackEnd::new(move |mut stream| {
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
        &[&back_end.address],
        "concurrency = 1\nkeepalive = 0",
    );
    let (mut several, mut one) = (server.connect(), server.connect());
    let request = |name: &str| format!("GET /app/{name} HTTP/1.1\r\nHost: x\r\n\r\n");
    send(&mut several, ["a", "b", "c"].map(&request).concat());
    server.wait_for("the first", |_| order.lock().unwrap().len() == 1);
    send(&mut one, request("other"));
    server.wait_for("who waits", |server| counter(server, "dynamic_queue") == 1);
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
fn body_goes_over_a_new_connection_when_it_could_not_be_sent_again() {
    let site = Site::new();
    // It closes a connection that it has answered on, when it is asked again there.
    let back_end = BackEnd::new(|mut stream| {
        let head = read_head(&mut stream).unwrap_or_default();
        if head.starts_with("PUT") {
            let _ = stream.read_exact(&mut [0; 5]);
        }
        let _ = stream.write_all(GOOD.as_bytes());
        let _ = stream.read(&mut [0; 5000]);
    });
    let server = proxy(&site, &[&back_end.address], "keepalive = 4");
    for _ in 0..5 {
        assert_eq!(get(&server, "/app/x").text(), "good");
        let put = "PUT /app/x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(ask(&server, put).text(), "good");
    }
    is_well(&server);
}

#[test]
fn back_end_is_told_of_host_and_hops_as_its_location_says() {
    let site = Site::new();
    // It answers with what it was asked.
    let back_end = BackEnd::new(|mut stream| {
        let head = read_head(&mut stream).unwrap_or_default();
        let reply = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{head}",
            head.len()
        );
        let _ = stream.write_all(reply.as_bytes());
    });
    let address = back_end.address.as_str();
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
        let asked = ask(&server, request).text();
        let lines: Vec<_> = asked.lines().collect();
        for line in has {
            assert!(lines.contains(&line), "{more}: {line}\n{asked}");
        }
        assert!(!lines.contains(&has_not), "{more}: {has_not}\n{asked}");
    }
}

#[test]
fn time_runs_out_when_a_back_end_says_nothing() {
    let site = Site::new();
    let silent = BackEnd::new(|mut stream| drop(stream.read_to_end(&mut Vec::new())));
    let server = proxy(&site, &[&silent.address], "timeout = \"300ms\"");
    assert_eq!(get(&server, "/app/x").status, 504);
    assert_eq!(counter(&server, "dynamic_timeouts"), 1);
    is_well(&server);
}

#[test]
fn another_back_end_is_asked_when_one_is_down() {
    let site = Site::new();
    let good = BackEnd::saying(GOOD);
    let server = proxy(
        &site,
        &[&nobody(), &good.address, &nobody()],
        "attempts = 3",
    );
    for _ in 0..6 {
        assert_eq!(get(&server, "/app/x").text(), "good");
    }
    // Nothing had been sent to the one that is down, so a POST may go elsewhere, too.
    assert_eq!(ask(&server, post("/app/x", b"hello")).text(), "good");
    assert!(counter(&server, "backend_retries") > 0);
    is_well(&server);
}

#[test]
fn health_of_each_back_end_is_told_when_one_is_down() {
    let site = Site::new();
    let (down, good) = (nobody(), BackEnd::saying(GOOD));
    let server = proxy(&site, &[&down, &good.address], "keepalive = 0");
    for _ in 0..12 {
        assert_eq!(get(&server, "/app/x").text(), "good");
    }
    assert_eq!(ejections(&server, &good.address), 0);
    assert!(ejections(&server, &down) > 0);
    let page = |path: &str| crate::serving::get(&server.status, path).2;
    let series = format!("headway_upstream_ejections{{location=\"/app/\",back_end=\"{down}\"}} ");
    let metrics = page("/metrics");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&series));
    assert!(line.is_some_and(|value| value != "0"), "{metrics}");
    assert!(page("/status").contains(&down));
}

/// A listener that takes no connection: its queue is full, and what is in there keeps it so.
fn full() -> (TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = listener.local_addr().unwrap();
    let patience = std::time::Duration::from_millis(200);
    let attempts = (0..64).map_while(|_| TcpStream::connect_timeout(&address, patience).ok());
    let queue: Vec<TcpStream> = attempts.collect();
    assert!(queue.len() < 64, "it takes everybody");
    (listener, queue)
}

#[test]
fn another_back_end_is_asked_when_one_does_not_accept_in_time() {
    let site = Site::new();
    let (full, _queue) = full();
    let full = full.local_addr().unwrap().to_string();
    let good = BackEnd::saying(GOOD);
    let more = "connect-timeout = \"100ms\"";
    let server = proxy(&site, &[&full, &good.address], more);
    for _ in 0..3 {
        assert_eq!(get(&server, "/app/x").text(), "good");
        assert_eq!(ask(&server, post("/app/x", b"hello")).text(), "good");
    }
    assert!(counter(&server, "backend_retries") > 0);
    let server = proxy(&site, &[&full], more);
    assert_eq!(get(&server, "/app/x").status, 504);
    assert_eq!(counter(&server, "dynamic_timeouts"), 1);
    is_well(&server);
}

#[test]
fn request_is_not_repeated_when_the_back_end_may_have_done_it() {
    let site = Site::new();
    let dying = BackEnd::saying("");
    let server = proxy(&site, &[&dying.address, &dying.address], "");
    assert_eq!(ask(&server, post("/app/x", b"hello")).status, 502);
    assert_eq!(dying.count(), 1);
    assert_eq!(get(&server, "/app/x").status, 502);
    assert_eq!(dying.count(), 3, "a GET may be repeated");
    is_well(&server);
}

#[test]
fn kept_connection_is_replaced_when_the_back_end_has_closed_it() {
    let site = Site::new();
    // Promises to stay, and goes after the first reply.
    let fickle = BackEnd::new(|mut stream| {
        if read_head(&mut stream).is_some() {
            let _ = stream.write_all(GOOD.as_bytes());
        }
    });
    let server = proxy(&site, &[&fickle.address], "");
    for _ in 0..5 {
        assert_eq!(get(&server, "/app/x").text(), "good");
    }
    assert_eq!(counter(&server, "dynamic_bad_replies"), 0);
    is_well(&server);
}

#[test]
fn reply_is_passed_on_when_the_back_end_does_not_want_the_body() {
    let site = Site::new();
    let refusing = BackEnd::saying("HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno");
    let server = proxy(&site, &[&refusing.address], "max-body-size = \"8MiB\"");
    let mut stream = server.connect();
    let mut sender = stream.try_clone().unwrap();
    let sending = thread::spawn(move || {
        let _ = sender.write_all(&post("/app/x", &contents(4_000_000)));
    });
    let reply = receive(&mut stream).unwrap();
    assert_eq!((reply.status, reply.text().as_str()), (413, "no"));
    drop(stream);
    let _ = sending.join();
    is_well(&server);
}

#[test]
fn requests_wait_or_are_refused_when_back_ends_have_enough_to_do() {
    let site = Site::new();
    let slow = BackEnd::new(|mut stream| {
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
