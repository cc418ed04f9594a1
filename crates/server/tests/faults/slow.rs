//! Tests of slow, silent, half-closed and disconnecting clients.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use super::tools::*;
use crate::support::{Response, Served, TIMEOUT, config};

/// Sends a byte now and then until the server closes; returns what the server sent.
fn trickle(stream: &mut TcpStream, bytes: &mut dyn Iterator<Item = u8>) -> Vec<u8> {
    stream.set_nodelay(true).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    let (begun, mut said, mut buffer) = (Instant::now(), Vec::new(), [0; 4096]);
    while begun.elapsed() < TIMEOUT {
        // A failed write means that the server has closed; its response is still to be read.
        let _ = stream.write_all(&[bytes.next().expect("endless")]);
        match stream.read(&mut buffer) {
            Ok(0) => return said,
            Ok(count) => said.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return said,
        }
    }
    panic!("the server listened to a trickle for {TIMEOUT:?}");
}

#[test]
fn slow_header_returns_408_at_the_header_timeout_when_bytes_keep_arriving() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    for events in mechanisms() {
        let more = format!("header-timeout = '400ms'\n{events}");
        let mut served = Served::start(config(root.path(), &more));
        let mut slow = served.connect();
        let begun = b"GET /a HTTP/1.1\r\nX: ".iter().copied();
        let said = trickle(&mut slow, &mut begun.chain(std::iter::repeat(b'x')));
        assert!(said.starts_with(b"HTTP/1.1 408 "), "{events}: {said:?}");
        assert_eq!(served.get("/a").body, b"hello", "others are served");
        assert_eq!(served.snapshot().counters.timeouts_header, 1, "{events}");
    }
}

#[test]
fn slow_header_returns_408_when_it_follows_a_complete_request() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    let served = Served::start(config(root.path(), "header-timeout = '400ms'"));
    let mut slow = served.connect();
    send_request(&mut slow, "/a");
    assert_eq!(read_response(&mut slow).body, b"hello");
    let begun = b"GET /a HTTP/1.1\r\nX: ".iter().copied();
    let said = trickle(&mut slow, &mut begun.chain(std::iter::repeat(b'x')));
    assert!(said.starts_with(b"HTTP/1.1 408 "), "{said:?}");
}

#[test]
fn slow_body_returns_408_at_the_body_timeout_when_bytes_keep_arriving() {
    let root = root();
    for head in [
        "POST /a HTTP/1.1\r\nHost: test\r\nContent-Length: 100000\r\n\r\n",
        "POST /a HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\nfff0\r\n",
    ] {
        let mut served = Served::start(config(root.path(), "body-timeout = '400ms'"));
        let mut slow = served.connect();
        slow.write_all(head.as_bytes()).unwrap();
        let said = trickle(&mut slow, &mut std::iter::repeat(b'x'));
        assert!(said.starts_with(b"HTTP/1.1 408 "), "{said:?}");
        assert_eq!(served.snapshot().counters.timeouts_body, 1);
    }
}

#[test]
fn connection_closes_when_no_request_arrives_before_the_header_timeout() {
    let root = root();
    let mut served = Served::start(config(root.path(), "header-timeout = '300ms'"));
    let mut silent = served.connect();
    assert_eq!(read_to_close(&mut silent, usize::MAX), b"");
    assert_eq!(served.snapshot().counters.timeouts_header, 1);
}

#[test]
fn idle_connection_closes_without_a_response_at_the_idle_timeout() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    for events in mechanisms() {
        let more = format!("idle-timeout = '300ms'\n{events}");
        let mut served = Served::start(config(root.path(), &more));
        let mut idle = served.connect();
        send_request(&mut idle, "/a");
        assert_eq!(read_response(&mut idle).body, b"hello");
        assert_eq!(read_to_close(&mut idle, usize::MAX), b"", "{events}");
        assert_eq!(served.snapshot().counters.timeouts_idle, 1, "{events}");
    }
}

#[test]
fn connection_closes_when_the_client_reads_nothing_until_the_send_timeout() {
    let root = root();
    fs::write(root.path().join("large"), contents(0, large())).unwrap();
    for events in mechanisms() {
        let more = format!("send-timeout = '400ms'\n{events}");
        let mut served = Served::start(config(root.path(), &more));
        let mut deaf = tiny_client(&served);
        send_request(&mut deaf, "/large");
        let counters = served.wait_for("the send deadline", |now| {
            now.counters.timeouts_send == 1 && now.counters.connections_open == 0
        });
        assert_eq!(
            counters.counters.responses_aborted, 1,
            "{events}: a short body is counted"
        );
        assert!(read_to_close(&mut deaf, usize::MAX).len() < large());
    }
}

#[test]
fn slow_reader_receives_the_whole_file_when_it_reads_occasionally() {
    let root = root();
    let expected = contents(0, large());
    fs::write(root.path().join("large"), &expected).unwrap();
    let mut served = Served::start(config(root.path(), "send-timeout = '2s'"));
    let mut slow = tiny_client(&served);
    send_request(&mut slow, "/large");
    read_head(&mut slow);
    let mut body = Vec::new();
    while body.len() < expected.len() {
        let part = read_to_close(&mut slow, (expected.len() - body.len()).min(4 << 20));
        assert!(!part.is_empty(), "closed after {} bytes", body.len());
        body.extend(part);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(body == expected);
    assert_eq!(served.snapshot().counters.timeouts_send, 0);
}

#[test]
fn response_is_complete_when_the_client_has_closed_its_sending_side() {
    let root = root();
    fs::create_dir(root.path().join("d")).unwrap();
    fs::write(root.path().join("small"), "hello").unwrap();
    let expected = contents(0, large());
    fs::write(root.path().join("large"), &expected).unwrap();
    make_cold(&root.path().join("large"));
    for events in mechanisms() {
        let served = Served::start(config(root.path(), &format!("listing = true\n{events}")));
        for (path, length) in [("/small", 5), ("/d/", 0), ("/large", expected.len())] {
            let mut client = tiny_client(&served);
            send_request(&mut client, path);
            client.shutdown(Shutdown::Write).unwrap();
            let response = read_response(&mut client);
            assert_eq!(response.status, 200, "{events} {path}");
            assert!(
                length == 0 || response.body.len() == length,
                "{events} {path}"
            );
            assert_eq!(read_to_close(&mut client, 1), b"", "{events} {path}");
        }
    }
}

#[test]
fn other_connections_are_unaffected_when_a_client_resets_during_a_response() {
    let root = root();
    let expected = contents(0, large());
    fs::write(root.path().join("large"), &expected).unwrap();
    for events in mechanisms() {
        let mut served = Served::start(config(root.path(), events));
        let mut other = tiny_client(&served);
        send_request(&mut other, "/large");
        read_head(&mut other);
        for _ in 0..5 {
            let mut rude = tiny_client(&served);
            send_request(&mut rude, "/large");
            read_head(&mut rude);
            reset(rude);
        }
        served.wait_for("five resets", |now| {
            now.counters.connections_reset == 5 && now.counters.connections_open == 1
        });
        let rest = read_to_close(&mut other, expected.len());
        assert!(rest == expected, "{events}: {} bytes", rest.len());
    }
}

#[test]
fn helper_answer_is_dropped_when_its_connection_slot_was_reused() {
    let root = root();
    for name in ["gone", "here"] {
        fs::create_dir(root.path().join(name)).unwrap();
        fs::write(root.path().join(name).join(format!("{name}.txt")), name).unwrap();
    }
    for events in mechanisms() {
        let more = format!("listing = true\n{events}");
        let mut served = Served::start_holding_helpers(config(root.path(), &more));
        let mut gone = served.connect();
        send_request(&mut gone, "/gone/");
        served.wait_for("the first request", |now| {
            now.counters.requests_received == 1
        });
        reset(gone);
        let mut here = served.connect();
        send_request(&mut here, "/here/");
        served.wait_for("the second request", |now| {
            now.counters.requests_received == 2
        });
        served.release_helpers();
        let page = String::from_utf8(read_response(&mut here).body).unwrap();
        assert!(
            page.contains("here.txt") && !page.contains("gone.txt"),
            "{events}: {page}"
        );
    }
}

/// The number of bytes that a connection accepts while its client does not read.
fn room_of_a_socket(served: &mut Served, path: &str) -> usize {
    let before = served.snapshot().counters.sent_bytes;
    let mut client = tiny_client(served);
    send_request(&mut client, path);
    let mut last = before;
    loop {
        std::thread::sleep(Duration::from_millis(30));
        let now = served.snapshot().counters.sent_bytes;
        if now == last && now > before {
            return (now - before) as usize;
        }
        last = now;
    }
}

#[test]
fn connection_closes_when_the_socket_takes_only_a_part_of_100_continue() {
    const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
    let root = root();
    fs::write(root.path().join("all"), contents(0, large().min(16 << 20))).unwrap();
    let more = "small-file-max = '16MiB'\ncontent-store-max = 0\nprecompressed = false";
    let mut served = Served::start(config(root.path(), more));
    let head = served.get("/all").head.len() + "\r\n".len();
    let room = room_of_a_socket(&mut served, "/all");
    let mut parts = 0;
    // The kernel fills a started segment before it asks whether there is room for another, so a
    // response may leave room for any number of bytes.
    for left in 1..=8 {
        let path = format!("{left}");
        fs::write(root.path().join(&path), contents(0, room - head - left)).unwrap();
        // The response is cached, so the response is sent in the same way as when the room was
        // measured.
        let first = served.get(&format!("/{path}")).body;
        let mut client = tiny_client(&served);
        let before = served.snapshot().counters;
        let expecting = "GET /1 HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\
                         Expect: 100-continue\r\nContent-Length: 4\r\n\r\n";
        let both = format!("GET /{path} HTTP/1.1\r\nHost: test\r\n\r\n{expecting}");
        client.write_all(both.as_bytes()).unwrap();
        served.wait_for("both requests", |now| {
            now.counters.requests_received == before.requests_received + 2
        });
        let closed = served.snapshot().counters.responses_aborted > before.responses_aborted;
        parts += usize::from(closed);
        assert!(read_response(&mut client).body == first, "{left}");
        // A server that has closed accepts no body.
        let _ = client.write_all(b"body");
        let rest = read_to_close(&mut client, usize::MAX);
        if closed {
            assert!(INTERIM.starts_with(&rest), "{left}: {rest:?}");
        } else {
            let response = rest.strip_prefix(INTERIM).unwrap_or(&rest);
            assert_eq!(Response::parse(response).status, 200, "{left}");
        }
    }
    // How much room is left depends on the kernel.
    println!("{parts} interim responses were cut short");
}

#[test]
fn last_response_arrives_whole_when_another_request_follows_it() {
    let root = root();
    let body = contents(0, large());
    fs::write(root.path().join("large"), &body).unwrap();
    for events in mechanisms() {
        let more = format!("max-requests-per-connection = 1\n{events}");
        let served = Served::start(config(root.path(), &more));
        let mut client = tiny_client(&served);
        send_request(&mut client, "/large");
        let head = read_head(&mut client);
        assert_eq!(head.field("connection"), Some("close"));
        // The server does not read it: it still sends.
        send_request(&mut client, "/large");
        let mut received = Vec::new();
        let end = client.read_to_end(&mut received);
        assert_eq!(
            (end.ok(), received.len()),
            (Some(body.len()), body.len()),
            "{events}"
        );
        assert!(received == body);
    }
}
