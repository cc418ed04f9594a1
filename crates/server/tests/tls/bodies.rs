//! Bodies in both directions, upgrades, and what programs and upstreams learn of TLS.

use std::io::{Read, Write};
use std::sync::Mutex;
use std::sync::mpsc::channel;

use headway_test_support::wait_until;
use rustls::version::TLS13;

use super::tools::*;
use crate::site::*;
use crate::upstreams::faults::{FakeUpstream, GOOD, read_head};

const UPLOAD: usize = 1 << 20;

/// A server with the programs of a site.
fn with_programs(site: Site, more: &str) -> Secured {
    let cgi = site.path("cgi");
    let location = format!(
        "{more}\n[[location]]\nprefix = \"/cgi-bin/\"\ncgi = true\nroot = {cgi:?}\nmax-body-size = \"8MiB\"\n"
    );
    Secured::start_with(site, 1, &location)
}

fn proxy(upstream: &FakeUpstream) -> String {
    let address = &upstream.address;
    format!("[[location]]\nprefix = \"/app/\"\nproxy = {address:?}")
}

fn chunked(path: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes =
        format!("POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            .into_bytes();
    for chunk in body.chunks(50_000) {
        bytes.extend(format!("{:x}\r\n", chunk.len()).as_bytes());
        bytes.extend(chunk);
        bytes.extend(b"\r\n");
    }
    bytes.extend(b"0\r\n\r\n");
    bytes
}

#[test]
fn uploads_reach_a_program_and_come_back() {
    let site = Site::new();
    site.program("echo", "printf 'Content-Type: text/plain\\n\\n'; cat");
    let secured = with_programs(site, "");
    let body = contents(UPLOAD);
    for version in VERSIONS {
        let mut stream = secured.connect(version);
        for request in [
            post("/cgi-bin/echo", &body),
            chunked("/cgi-bin/echo", &body),
        ] {
            send(&mut stream, &request);
            let response = receive(&mut stream).unwrap();
            assert_eq!(response.status, 200);
            assert!(response.body == body);
        }
        // A record that ends in the middle of the next request.
        let two = [post("/cgi-bin/echo", b"one"), post("/cgi-bin/echo", b"two")].concat();
        let (before, after) = two.split_at(two.len() - 30);
        send(&mut stream, before);
        send(&mut stream, after);
        for text in ["one", "two"] {
            assert_eq!(receive(&mut stream).unwrap().text(), text);
        }
    }
    is_well_over_tls(&secured);
}

#[test]
fn client_that_waits_for_100_continue_gets_it() {
    let site = Site::new();
    site.program("echo", "printf 'Content-Type: text/plain\\n\\n'; cat");
    let secured = with_programs(site, "");
    let mut stream = secured.connect(&TLS13);
    for path in ["/cgi-bin/echo", "/file.txt"] {
        send(
            &mut stream,
            format!(
                "GET {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
            ),
        );
        assert_eq!(receive_head(&mut stream).unwrap().status, 100);
        send(&mut stream, "hello");
        assert_eq!(receive(&mut stream).unwrap().status, 200);
    }
    is_well_over_tls(&secured);
}

#[test]
fn programs_and_upstreams_get_the_scheme_over_tls() {
    let upstream = FakeUpstream::new(|mut stream| {
        let Some(head) = read_head(&mut stream) else {
            return;
        };
        let proto = head.lines().filter(|line| line.contains("roto"));
        let proto: Vec<_> = proto.collect();
        let text = proto.join("\n");
        let length = text.len();
        let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{text}");
        stream.write_all(response.as_bytes()).unwrap();
    });
    let site = Site::new();
    site.program(
        "show",
        "printf 'Content-Type: text/plain\\n\\n'; echo $HTTPS $REQUEST_SCHEME $SERVER_PORT",
    );
    let secured = with_programs(site, &proxy(&upstream));
    let port = secured.address().rsplit(':').next().unwrap();
    assert_eq!(
        secured.get("/cgi-bin/show").text(),
        format!("on https {port}\n")
    );
    let shown = secured.get("/app/").text();
    assert!(shown.contains("X-Forwarded-Proto: https"), "{shown}");
    assert!(shown.contains("proto=https"), "{shown}");
    // The same server in the clear.
    let port = secured.server.address.rsplit(':').next().unwrap();
    assert_eq!(
        get(&secured.server, "/cgi-bin/show").text(),
        format!("http {port}\n")
    );
    let shown = get(&secured.server, "/app/").text();
    assert!(shown.contains("proto=http\n"), "{shown}");
    is_well_over_tls(&secured);
}

const UPGRADE: &str = "GET /app/socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Key: abc\r\nSec-WebSocket-Version: 13\r\n\r\n";

#[test]
fn upgraded_connection_passes_bytes_and_ends_both_ways() {
    let upstream = FakeUpstream::new(|mut stream| {
        let Some(head) = read_head(&mut stream) else {
            return;
        };
        if !head.contains("Upgrade: websocket") {
            return stream.write_all(GOOD.as_bytes()).unwrap();
        }
        let agreed =
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
        stream.write_all(agreed.as_bytes()).unwrap();
        let mut buffer = [0; 65_536];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            stream.write_all(&buffer[..count]).unwrap();
        }
        let _ = stream.write_all(b"bye");
    });
    let secured = with_programs(Site::new(), &proxy(&upstream));
    for version in VERSIONS {
        let mut stream = secured.connect(version);
        // What comes behind the request in the same record is the other protocol's.
        send(&mut stream, format!("{UPGRADE}first"));
        assert_eq!(receive_head(&mut stream).unwrap().status, 101);
        let mut echoed = [0; 5];
        stream.read_exact(&mut echoed).unwrap();
        assert_eq!(&echoed, b"first");
        let data = contents(UPLOAD);
        for part in data.chunks(40_000) {
            send(&mut stream, part);
            let mut echoed = vec![0; part.len()];
            stream.read_exact(&mut echoed).unwrap();
            assert!(echoed == part);
        }
        stream.conn.send_close_notify();
        stream.flush().unwrap();
        assert_eq!(rest(&mut stream), (b"bye".to_vec(), true));
    }
    is_well_over_tls(&secured);
}

#[test]
fn program_of_a_client_that_has_gone_is_ended() {
    let site = Site::new();
    let script = "echo $$ >>{notes}/begun; exec sleep 1000";
    site.program("sleep", script);
    let noted = site.note("begun");
    let secured = with_programs(site, "");
    for (at, version) in VERSIONS.into_iter().enumerate() {
        let mut stream = secured.connect(version);
        send(&mut stream, request("/cgi-bin/sleep"));
        wait_until("the program runs", || numbers(&noted).len() > at);
        // As browsers end connections: orderly.
        stream.conn.send_close_notify();
        stream.flush().unwrap();
        drop(stream);
        let program = numbers(&noted)[at];
        wait_until("the program is ended", || {
            !headway_test_support::is_running(program)
        });
    }
    assert_eq!(secured.counter("handler_abandoned"), 2);
    is_well_over_tls(&secured);
}

#[test]
fn cut_response_has_no_marked_end() {
    let (sender, has_begun) = channel();
    let has_begun = Mutex::new(has_begun);
    let upstream = FakeUpstream::new(move |mut stream| {
        let head = read_head(&mut stream).unwrap_or_default();
        let framing = match head.contains("/length") {
            true => "Content-Length: 100\r\n\r\nbegun",
            false => "Transfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n",
        };
        stream
            .write_all(format!("HTTP/1.1 200 OK\r\n{framing}").as_bytes())
            .unwrap();
        if head.contains("/whole") {
            stream.write_all(b"0\r\n\r\n").unwrap();
        }
        let _ = has_begun.lock().unwrap().recv();
    });
    let secured = with_programs(Site::new(), &proxy(&upstream));
    for (path, is_marked) in [("whole", true), ("cut", false), ("length", false)] {
        // In HTTP/1.0 only the end of the connection ends a response without a length.
        for version in ["1.0", "1.1"] {
            let mut stream = secured.connect(&TLS13);
            send(
                &mut stream,
                format!("GET /app/{path} HTTP/{version}\r\nHost: x\r\nConnection: close\r\n\r\n"),
            );
            assert_eq!(receive_head(&mut stream).unwrap().status, 200);
            sender.send(()).unwrap();
            let (body, is_end_marked) = rest(&mut stream);
            assert!(String::from_utf8(body).unwrap().contains("begun"));
            assert_eq!(is_end_marked, is_marked, "{path} {version}");
        }
    }
    is_well_over_tls(&secured);
}
