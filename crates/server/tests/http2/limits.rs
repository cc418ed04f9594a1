//! Limits that are set: of streams, of headers, of time, of requests; and HTTP/2 switched off.

use std::io::{Read, Write};
use std::sync::Arc;

use headway_test_support::http2::get;
use headway_test_support::http2::*;
use headway_test_support::wait_until;
use rustls::version::TLS13;

use super::client::*;
use crate::site::*;
use crate::tls::tools::{Secured, ask, shake_hands};

fn slow_site() -> Site {
    let site = Site::new();
    site.program("slow", "printf 'Content-Type: a/b\\n\\n'; until [ -e {notes}/go ]; do sleep 0.01; done; printf ended");
    site
}

/// The frames of a connection until it closes.
fn frames_until_close(stream: &mut impl Read) -> Vec<Frame> {
    std::iter::from_fn(|| Frame::read(stream)).collect()
}

#[test]
fn requests_over_the_limit_of_streams_are_refused_and_others_wait() {
    let site = slow_site();
    let server = site.serve_with("http2-max-concurrent-streams = 3", "");
    let mut socket = server.connect();
    let mut bytes = hello(&[]);
    for stream in [1, 3, 5, 7, 9] {
        bytes.extend(get(stream, "/cgi-bin/slow"));
    }
    send(&mut socket, &bytes);
    let mut refused = Vec::new();
    while refused.len() < 2 {
        let frame = Frame::read(&mut socket).unwrap();
        if frame.kind == RST_STREAM {
            refused.push((frame.stream, frame.error()));
        }
    }
    assert_eq!(refused, [(7, 7), (9, 7)]);
    drop(socket);
    // A client that knows the limit waits by itself.
    std::fs::write(site.note("go"), "").unwrap();
    let mut client = Client::connect(&server);
    client.get("/file.txt");
    let begun: Vec<usize> = (0..10).map(|_| client.begin_get("/cgi-bin/slow")).collect();
    for at in begun {
        assert_eq!(client.finish(at).text(), "ended");
    }
    wait_until_all_have_ended(&server);
    is_well(&server);
}

#[test]
fn requests_over_the_share_of_an_address_are_refused() {
    let site = slow_site();
    let server = site.serve_with("max-connections = 10", "");
    let mut client = Client::connect(&server);
    let begun: Vec<usize> = (0..20).map(|_| client.begin_get("/cgi-bin/slow")).collect();
    client.wait_for("refusals", |client| {
        let ended = |at: &&usize| client.exchanges[**at].end.is_some();
        begun.iter().filter(ended).count() >= 15
    });
    // Another address still has room.
    let mut socket = connect_from(std::net::Ipv4Addr::new(127, 0, 0, 77), &server);
    send(&mut socket, [hello(&[]), get(1, "/file.txt")].concat());
    while !Frame::read(&mut socket).unwrap().is_last() {}
    let refused = counter(&server, "http2_streams_refused");
    std::fs::write(site.note("go"), "").unwrap();
    let mut served = 0;
    for at in begun {
        let seen = client.finish(at);
        match seen.end {
            Some(Ok(())) => served += 1,
            end => assert_eq!(end, Some(Err(h2::Reason::REFUSED_STREAM))),
        }
    }
    assert_eq!(served + refused, 20);
    assert_eq!(served, 5, "half of them");
    assert_eq!(client.get("/file.txt").text(), "a file\n");
    is_well(&server);
}

#[test]
fn scheme_is_that_of_the_connection() {
    let other = |scheme: &str| {
        let block = block(&[
            (":method", "GET"),
            (":scheme", scheme),
            (":authority", "test"),
            (":path", "/file.txt"),
        ]);
        [
            hello(&[]),
            frame(HEADERS, END_STREAM | END_HEADERS, 1, &block),
        ]
        .concat()
    };
    for (settings, scheme, expected) in [
        ("", "http", "200"),
        ("", "https", "421"),
        ("", "ftp", "400"),
        // A proxy in front may have ended TLS.
        ("trusted-proxies = \"127.0.0.0/8\"", "https", "200"),
    ] {
        let site = Site::new();
        let log = site.path("access.log");
        let server = site.serve_configured(&format!("log = {log:?}\n{settings}"));
        let mut socket = server.connect();
        send(&mut socket, other(scheme));
        while !Frame::read(&mut socket).unwrap().is_last() {}
        let line = &log_lines(&server, &log, 1)[0];
        assert!(
            line.contains(&format!("\" {expected} ")),
            "{scheme}: {line}"
        );
        is_well(&server);
    }
}

#[test]
fn server_without_it_speaks_http_1_only() {
    let secured = Secured::start("http2-max-concurrent-streams = 0");
    let mut config = secured.certified.clients(&TLS13);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let mut stream = secured.connect_as(Arc::new(config));
    shake_hands(&mut stream);
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    assert_eq!(ask(&mut stream, "/file.txt").text(), "a file\n");
    let refused = exchange(&secured.server, hello(&[]));
    assert_eq!(refused.status, 505);
    assert_eq!(secured.counter("http2_connections"), 0);
}

#[test]
fn preface_in_any_pieces_is_understood_and_another_is_not() {
    let site = Site::new();
    let server = site.serve_configured("");
    let bytes = [hello(&[]), get(1, "/file.txt")].concat();
    for size in [1, 3, 5, 23, 25, 40] {
        let mut socket = server.connect();
        socket.set_nodelay(true).unwrap();
        for piece in bytes.chunks(size) {
            send(&mut socket, piece);
        }
        while !Frame::read(&mut socket).unwrap().is_last() {}
    }
    // The client has said that it speaks HTTP/2, so it gets no answer in HTTP/1.
    for wrong in [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX"[..],
        b"PRI * HTTP/2.0\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nX",
    ] {
        let mut socket = server.connect();
        send(&mut socket, wrong);
        let frames = frames_until_close(&mut socket);
        let kinds: Vec<u8> = frames.iter().map(|frame| frame.kind).collect();
        assert_eq!(kinds, [SETTINGS], "{}", wrong.escape_ascii());
    }
    for wrong in [
        &b"PRI / HTTP/2.0\r\n\r\n"[..],
        b"PRI * HTTP/1.1\r\nHost: x\r\n\r\n",
    ] {
        let status = exchange(&server, wrong).status;
        assert!([400, 501, 505].contains(&status), "{status}");
    }
    // Only the first bytes of a connection are a preface.
    let mut socket = server.connect();
    send(&mut socket, "GET /file.txt HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(receive(&mut socket).unwrap().status, 200);
    send(&mut socket, &bytes);
    assert_eq!(receive(&mut socket).unwrap().status, 505);
    is_well(&server);
}

#[test]
fn long_headers_are_answered_431() {
    let site = Site::new();
    let log = site.path("access.log");
    let server = site.serve_configured(&format!(
        "max-header-size = \"4KiB\"\nmax-target-size = \"2KiB\"\nlog = {log:?}"
    ));
    let mut client = Client::connect(&server);
    client.get("/file.txt");
    for (size, count) in [(3500, 1), (5000, 1), (20, 101), (14_000, 1)] {
        let mut request = client.request("GET", "/file.txt");
        for number in 0..count {
            request = request.header(format!("x-{number}"), "a".repeat(size));
        }
        let at = client.begin(request, None);
        let seen = client.finish(at);
        let expected = if size == 3500 { 200 } else { 431 };
        assert_eq!(seen.status, expected, "{size}: {:?}", seen.end);
    }
    let path = format!("/{}", "a".repeat(3000));
    assert_eq!(client.get(&path).status, 414);
    assert_eq!(client.get("/file.txt").text(), "a file\n");
    wait_until_all_have_ended(&server);
    is_well(&server);
}

#[test]
fn errors_of_requests_leave_the_connection_open() {
    let site = Site::new();
    let server = site.serve_configured("");
    let mut client = Client::connect(&server);
    for (method, path, status) in [
        ("GET", "/%2e%2e/x", 403),
        ("GET", "/%zz", 400),
        ("GET", "/a%00b", 400),
        ("FETCH", "/file.txt", 501),
        ("DELETE", "/file.txt", 405),
        ("OPTIONS", "/file.txt", 204),
    ] {
        let at = client.begin(client.request(method, path), None);
        let seen = client.finish(at);
        assert_eq!(seen.end, Some(Ok(())), "{method} {path}");
        assert!(
            seen.status == status || seen.status == 200,
            "{method} {path}: {}",
            seen.status
        );
    }
    // These contradict themselves.
    for (name, value) in [("host", "other"), ("content-length", "7")] {
        let at = client.begin(client.request("GET", "/file.txt").header(name, value), None);
        assert_eq!(
            client.finish(at).end,
            Some(Err(h2::Reason::PROTOCOL_ERROR)),
            "{name}"
        );
    }
    assert_eq!(client.get("/file.txt").text(), "a file\n");
    assert_eq!(counter(&server, "connections_accepted"), 1);
    is_well(&server);
}

#[test]
fn error_pages_are_those_of_the_site() {
    let site = Site::new();
    std::fs::write(site.path("root/404.html"), "nothing here").unwrap();
    let server = site.serve_configured("error-pages = { 404 = \"root/404.html\" }");
    let mut client = Client::connect(&server);
    let seen = client.get("/missing");
    assert_eq!((seen.status, seen.text().as_str()), (404, "nothing here"));
}

#[test]
fn idle_connections_close_and_busy_ones_do_not() {
    let site = slow_site();
    let server = site.serve_with("idle-timeout = \"300ms\"\nheader-timeout = \"300ms\"", "");
    let mut busy = Client::connect(&server);
    let slow = busy.begin_get("/cgi-bin/slow");
    busy.wait_for_header(slow);
    let mut idle = server.connect();
    send(&mut idle, [hello(&[]), get(1, "/file.txt")].concat());
    frames_until_close(&mut idle);
    let mut silent = server.connect();
    send(&mut silent, hello(&[]));
    frames_until_close(&mut silent);
    assert_eq!(counter(&server, "timeouts_idle"), 1);
    assert_eq!(counter(&server, "timeouts_header"), 1);
    std::fs::write(site.note("go"), "").unwrap();
    assert_eq!(busy.finish(slow).text(), "ended");
    is_well(&server);
}

#[test]
fn pings_and_unfinished_headers_extend_no_timeout() {
    let site = Site::new();
    let server = site.serve_configured("idle-timeout = \"400ms\"\nheader-timeout = \"400ms\"");
    let ping = frame(PING, 0, 0, &[7; 8]);
    let unfinished = frame(HEADERS, 0, 1, &request_block("GET", "/file.txt"));
    let answered = [hello(&[]), get(1, "/file.txt")].concat();
    for (begin, more, timeout) in [
        (hello(&[]), &ping, "timeouts_header"),
        (
            [hello(&[]), unfinished].concat(),
            &Vec::new(),
            "timeouts_header",
        ),
        (answered, &ping, "timeouts_idle"),
    ] {
        let before = counter(&server, timeout);
        let mut socket = server.connect();
        send(&mut socket, &begin);
        wait_until("the timeout", || {
            // The server may have closed it.
            let _ = socket.write(more);
            counter(&server, timeout) > before
        });
    }
    is_well(&server);
}

#[test]
fn client_that_gives_no_window_is_timed_out() {
    let site = Site::new();
    std::fs::write(site.path("root/large"), contents(1 << 20)).unwrap();
    let server = site.serve_configured("send-timeout = \"300ms\"");
    let mut socket = server.connect();
    send(
        &mut socket,
        [hello(&[(INITIAL_WINDOW_SIZE, 0)]), get(1, "/large")].concat(),
    );
    loop {
        let frame = Frame::read(&mut socket).unwrap();
        assert_ne!(frame.kind, DATA);
        if frame.kind == RST_STREAM {
            break;
        }
    }
    assert_eq!(counter(&server, "timeouts_send"), 1);
    // Others of the same client go on.
    send(
        &mut socket,
        [settings(&[(INITIAL_WINDOW_SIZE, 100)]), get(3, "/file.txt")].concat(),
    );
    while !Frame::read(&mut socket).unwrap().is_last() {}
    wait_until_all_have_ended(&server);
    is_well(&server);
}

#[test]
fn connection_ends_after_its_last_request() {
    let site = Site::new();
    let server = site.serve_configured("max-requests-per-connection = 3");
    let mut client = Client::connect(&server);
    for _ in 0..3 {
        assert_eq!(client.get("/file.txt").text(), "a file\n");
    }
    client.wait_for("the end", |client| client.end.is_some());
    assert!(matches!(client.end, Some(Ok(()))), "{:?}", client.end);
    is_well(&server);
}
