//! Bodies and responses wait in the server's buffers and not in a handler: slow clients leave the
//! handlers to others, and all buffers together are limited.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use headway_test_support::WAIT_MAX;

use super::faults::{FakeUpstream, GOOD, read_head};
use crate::site::*;

/// A site with a proxy at `/app/` and a program at `/cgi-bin/echo`, each with `more`.
fn serve_both(site: &Site, upstream: &FakeUpstream, top: &str, more: &str) -> Server {
    site.program("echo", "printf 'Content-Type: a/b\\n\\n'; cat");
    let proxy = format!(
        "[[location]]\nprefix = \"/app/\"\nproxy = {:?}\n{more}\n",
        upstream.address
    );
    let cgi = format!(
        "[[location]]\nprefix = \"/cgi-bin/\"\ncgi = true\nroot = {:?}\n{more}\n",
        site.path("cgi")
    );
    site.serve_configured(&format!("{top}\n{proxy}{cgi}"))
}

/// An upstream that reads whole requests with `Content-Length` and answers each.
fn reading() -> FakeUpstream {
    FakeUpstream::new(|mut stream| {
        while let Some(head) = read_head(&mut stream) {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("Content-Length: "));
            let length = length.map_or(0, |length| length.parse().unwrap());
            let mut body = vec![0; length];
            if stream.read_exact(&mut body).is_err() {
                return;
            }
            let _ = stream.write_all(GOOD.as_bytes());
        }
    })
}

#[test]
fn location_answers_others_while_slow_clients_send_their_bodies() {
    let (site, upstream) = (Site::new(), reading());
    let server = serve_both(&site, &upstream, "", "concurrency = 1\nqueue = 0");
    for path in ["/app/x", "/cgi-bin/echo"] {
        let received = counter(&server, "requests_received");
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
        let mut slow: Vec<TcpStream> = (0..8).map(|_| server.connect()).collect();
        slow.iter_mut().for_each(|client| send(client, &head));
        server.wait_for("the slow clients", |server| {
            counter(server, "requests_received") >= received + 8
        });
        assert_eq!(get(&server, path).status, 200, "{path}");
        for client in &mut slow {
            server.wait_for("the program's end", |server| {
                counter(server, "cgi_processes") == 0
            });
            send(client, "defghij");
            assert_eq!(receive(client).unwrap().status, 200, "{path}");
        }
    }
    is_well(&server);
}

#[test]
fn body_on_disk_reaches_the_handler_whole() {
    let site = Site::new();
    site.program("count", "printf 'Content-Type: a/b\\n\\n'; cksum");
    let upstream = FakeUpstream::new(|mut stream| {
        while read_head(&mut stream).is_some() {
            let mut body = vec![0; 3_000_001];
            stream.read_exact(&mut body).unwrap();
            let same = if body == contents(3_000_001) {
                GOOD
            } else {
                ""
            };
            let _ = stream.write_all(same.as_bytes());
        }
    });
    let server = serve_both(&site, &upstream, "", "max-body-size = \"8MiB\"");
    let body = contents(3_000_001);
    let mut stream = server.connect();
    let response = send_and_receive(&mut stream, post("/app/x", &body));
    assert_eq!(response.text(), "good");
    let response = send_and_receive(&mut stream, post("/cgi-bin/echo", &body));
    assert!(response.body == body);
    assert!(counter(&server, "handler_request_spooled_bytes") > 5_000_000);
    server.wait_for("the end of the files", |server| {
        counter(server, "buffer_disk_bytes") == 0
    });
    is_well(&server);
}

#[test]
fn client_that_sends_a_byte_now_and_then_gets_408() {
    let (site, upstream) = (Site::new(), reading());
    for more in ["", "request-buffering = false"] {
        let server = serve_both(&site, &upstream, "body-timeout = \"500ms\"", more);
        let mut client = server.connect();
        let head = "POST /app/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n";
        send(&mut client, head);
        let begun = Instant::now();
        while counter(&server, "timeouts_body") == 0 {
            assert!(begun.elapsed() < WAIT_MAX, "each byte renews its time");
            let _ = client.write_all(b"a");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(receive(&mut client).unwrap().status, 408, "{more}");
        is_well(&server);
    }
}

/// Clients that send a part of a chunked body and then nothing.
fn silent_clients(server: &Server, count: usize, bytes: usize) -> Vec<TcpStream> {
    let head = "POST /app/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    let part = [head, &format!("{bytes:x}\r\n"), &"a".repeat(bytes), "\r\n"].concat();
    let clients = (0..count).map(|_| {
        let mut client = server.connect();
        let writing = client.try_clone().unwrap();
        let part = part.clone();
        // A client that is held is not read from.
        std::thread::spawn(move || (&writing).write_all(part.as_bytes()));
        client.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let _ = client.flush();
        client
    });
    clients.collect()
}

#[test]
fn silent_bodies_go_to_disk_when_memory_is_scarce() {
    let (site, upstream) = (Site::new(), reading());
    let top = "buffer-memory-max = \"8MiB\"\nbody-timeout = \"60s\"";
    let server = serve_both(&site, &upstream, top, "max-body-size = \"8MiB\"");
    let silent = silent_clients(&server, 60, 200_000);
    server.wait_for("the bodies", |server| {
        let total = counter(server, "buffer_memory_bytes") + counter(server, "buffer_disk_bytes");
        assert!(counter(server, "buffer_memory_bytes") < 9_000_000);
        total >= 60 * 200_000
    });
    // There is room for others.
    let body = contents(600_000);
    let mut client = server.connect();
    assert_eq!(
        send_and_receive(&mut client, post("/app/x", &body)).status,
        200
    );
    drop(silent);
    server.wait_for("room", |server| {
        counter(server, "buffer_memory_bytes") + counter(server, "buffer_disk_bytes") == 0
    });
    is_well(&server);
}

#[test]
fn clients_are_held_and_get_503_when_memory_and_disk_are_full() {
    let (site, upstream) = (Site::new(), reading());
    let top = "buffer-memory-max = \"1MiB\"\nbuffer-disk-max = \"2MiB\"\nbody-timeout = \"2s\"";
    let server = serve_both(&site, &upstream, top, "max-body-size = \"8MiB\"");
    let silent = silent_clients(&server, 40, 200_000);
    server.wait_for("held clients", |server| {
        counter(server, "buffer_bodies_held") > 0
    });
    assert!(counter(&server, "buffer_memory_bytes") < 1_500_000);
    assert!(counter(&server, "buffer_disk_bytes") <= 2 << 20);
    // A request that comes whole needs no room.
    assert_eq!(exchange(&server, post("/app/x", b"abc")).status, 200);
    let mut statuses = Vec::new();
    for mut client in silent {
        // One that has sent its part is late, and one that was held has found no room.
        statuses.extend(receive(&mut client).map(|response| response.status));
    }
    assert!(statuses.contains(&503), "{statuses:?}");
    assert!(
        statuses.iter().all(|status| matches!(status, 408 | 503)),
        "{statuses:?}"
    );
    assert!(counter(&server, "buffers_full") > 0);
    server.wait_for("room", |server| {
        counter(server, "buffer_memory_bytes") + counter(server, "buffer_disk_bytes") == 0
    });
    assert_eq!(counter(&server, "buffer_bodies_held"), 0);
    let mut client = server.connect();
    let body = contents(600_000);
    assert_eq!(
        send_and_receive(&mut client, post("/app/x", &body)).status,
        200
    );
    is_well(&server);
}

#[test]
fn held_client_is_let_go_when_it_disconnects_before_it_has_sent_its_body() {
    let (site, upstream) = (Site::new(), reading());
    let top = "buffer-memory-max = \"2MiB\"\nbuffer-disk-max = 0\nbody-timeout = \"10m\"\n\
               min-transfer-rate = 0";
    let more = "max-body-size = \"8MiB\"\nhalf-close = true";
    let server = serve_both(&site, &upstream, top, more);
    let holders = silent_clients(&server, 12, 200_000);
    server.wait_for("held clients", |server| {
        counter(server, "buffer_bodies_held") > 0 && counter(server, "connections_open") == 12
    });
    let begin = |length: usize| {
        let mut client = server.connect();
        let head = format!("POST /app/x HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
        send(&mut client, head);
        client
    };
    // What this one has sent is whole, although the server has not read it all.
    let mut whole = begin(10);
    // The header alone, and a part of the body.
    let mut leaving = [begin(10), begin(10)];
    server.wait_for("three more", |server| {
        counter(server, "connections_open") == 15
    });
    send(&mut whole, "0123456789");
    whole.shutdown(std::net::Shutdown::Write).unwrap();
    send(&mut leaving[1], "012");
    drop(leaving);
    server.wait_for("their departure", |server| {
        counter(server, "connections_open") == 13
    });
    whole.set_nonblocking(true).unwrap();
    let still_open = whole.peek(&mut [0]).unwrap_err().kind();
    assert_eq!(still_open, std::io::ErrorKind::WouldBlock);
    drop(holders);
    is_well(&server);
}

#[test]
fn one_address_leaves_slots_to_others_at_its_limit() {
    let site = Site::new();
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let upstream = FakeUpstream::new(move |mut stream| {
        while let Some(head) = read_head(&mut stream) {
            if head.contains("/slow") {
                let _ = released.lock().unwrap().recv();
            }
            let _ = stream.write_all(GOOD.as_bytes());
        }
    });
    let more = "concurrency = 4\nconcurrency-per-address = 1";
    let server = serve_both(&site, &upstream, "", more);
    let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    let mut first = server.connect();
    send(&mut first, request("/app/slow"));
    server.wait_for("the slow request", |_| upstream.count() == 1);
    let mut second = server.connect();
    send(&mut second, request("/app/x"));
    server.wait_for("the queue", |server| {
        counter(server, "handler_queue_length") == 1
    });
    let mut other = connect_from(Ipv4Addr::new(127, 0, 0, 2), &server);
    send(&mut other, request("/app/x"));
    assert_eq!(receive(&mut other).unwrap().status, 200);
    assert_eq!(counter(&server, "handler_queue_length"), 1);
    release.send(()).unwrap();
    assert_eq!(receive(&mut first).unwrap().status, 200);
    assert_eq!(receive(&mut second).unwrap().status, 200);
    is_well(&server);
}
