//! Slow clients: upstreams and programs are released early, as far as the response buffer has room.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::faults::{FakeUpstream, proxy, read_head};
use crate::site::*;

/// More than socket buffers hold.
const BYTES: usize = 30_000_000;
const TIMEOUT: Duration = Duration::from_secs(60);

/// An upstream with a long response to each request, which it aborts after half a second without
/// progress; it reports how much was sent.
fn long_winded(framing: &'static str) -> (FakeUpstream, Receiver<usize>) {
    let (sender, receiver) = channel();
    let sender = Mutex::new(sender);
    let upstream = FakeUpstream::new(move |mut stream| {
        while read_head(&mut stream).is_some() {
            let _ = sender.lock().unwrap().send(response(&mut stream, framing));
        }
    });
    (upstream, receiver)
}

fn response(stream: &mut TcpStream, framing: &str) -> usize {
    let timeout = Some(Duration::from_millis(500));
    stream.set_write_timeout(timeout).unwrap();
    let all = contents(BYTES);
    let head = format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut sent = 0;
    for part in all.chunks(70_000) {
        let part = match framing.contains("chunked") {
            true => [format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat(),
            false => part.to_vec(),
        };
        let mut at = 0;
        while at < part.len() {
            match stream.write(&part[at..]) {
                Ok(count) => at += count,
                Err(_) => return sent,
            }
        }
        sent += part.len();
    }
    if framing.contains("chunked") {
        stream.write_all(b"0\r\n\r\n").unwrap();
    }
    sent
}

#[test]
fn upstream_is_released_while_a_slow_client_reads_its_response() {
    let site = Site::new();
    for framing in ["Content-Length: 30000000", "Transfer-Encoding: chunked"] {
        let (upstream, taken) = long_winded(framing);
        let server = proxy(&site, &[&upstream.address], "concurrency = 1\nqueue = 1");
        let mut slow = server.connect();
        send(&mut slow, "GET /app/x HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(taken.recv_timeout(TIMEOUT).unwrap() >= BYTES, "{framing}");
        assert!(counter(&server, "handler_response_spooled_bytes") > 1_000_000);
        // The only slot has been freed.
        let other = get(&server, "/app/y");
        assert!(
            other.body == contents(BYTES),
            "{framing}: {}",
            other.body.len()
        );
        for next in ["GET /file.txt HTTP/1.1\r\nHost: x\r\n\r\n", ""] {
            // The connection stays usable.
            send(&mut slow, next);
        }
        let response = receive(&mut slow).unwrap();
        assert!(
            response.body == contents(BYTES),
            "{framing}: {}",
            response.body.len()
        );
        assert_eq!(receive(&mut slow).unwrap().text(), "a file\n");
        is_well(&server);
    }
}

#[test]
fn location_answers_others_while_many_slow_clients_read_their_responses() {
    let site = Site::new();
    let (upstream, taken) = long_winded("Content-Length: 30000000");
    let server = proxy(&site, &[&upstream.address], "concurrency = 2");
    let mut slow = Vec::new();
    for number in 0..6 {
        let mut client = server.connect();
        send(&mut client, "GET /app/x HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(taken.recv_timeout(TIMEOUT).unwrap() >= BYTES, "{number}");
        slow.push(client);
    }
    assert!(get(&server, "/app/y").body == contents(BYTES));
    let last = slow.last_mut().unwrap();
    assert!(receive(last).unwrap().body == contents(BYTES));
    is_well(&server);
}

#[test]
fn upstream_waits_when_the_response_buffer_is_full() {
    let site = Site::new();
    for more in ["temp-file-max = \"1MiB\"", "temp-file-max = \"0\""] {
        let (listener, taken) = long_winded("Content-Length: 30000000");
        let server = proxy(&site, &[&listener.address], more);
        let mut slow = server.connect();
        send(&mut slow, "GET /app/x HTTP/1.1\r\nHost: x\r\n\r\n");
        let sent = taken.recv_timeout(TIMEOUT).unwrap();
        assert!(sent < BYTES, "{more}: all of it waits somewhere");
        let mut some = vec![0; sent];
        slow.read_exact(&mut some).unwrap();
        let body = some.split_off(head_bytes(&some));
        assert!(body == contents(body.len()), "{more}");
        drop(slow);
        is_well(&server);
    }
}

fn head_bytes(response: &[u8]) -> usize {
    let end = response.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    end.unwrap() + 4
}

#[test]
fn buffered_response_is_freed_when_the_client_disconnects() {
    let site = Site::new();
    let (upstream, taken) = long_winded("Content-Length: 30000000");
    let server = proxy(&site, &[&upstream.address], "concurrency = 1");
    for _ in 0..3 {
        let mut leaving = server.connect();
        send(&mut leaving, "GET /app/x HTTP/1.1\r\nHost: x\r\n\r\n");
        leaving.read_exact(&mut [0; 1000]).unwrap();
        assert!(taken.recv_timeout(TIMEOUT).unwrap() >= BYTES);
        drop(leaving);
        server.wait_for("its end", |server| counter(server, "connections_open") <= 1);
    }
    assert_eq!(counter(&server, "handler_abandoned"), 3);
    is_well(&server);
}

#[test]
fn cgi_program_exits_while_a_slow_client_reads_its_response() {
    let site = Site::new();
    site.program(
        "long",
        "printf 'Content-Type: a/b\\n\\n'; head -c 30000000 /dev/zero; echo $$ > {notes}/done",
    );
    for events in ["epoll", "epoll-edge", "poll", "select"] {
        let _ = std::fs::remove_file(site.note("done"));
        let top = format!("events = {events:?}");
        let server = site.serve_with(&top, "concurrency = 1\nqueue = 1");
        let mut slow = server.connect();
        send(&mut slow, "GET /cgi-bin/long HTTP/1.1\r\nHost: x\r\n\r\n");
        server.wait_for("its end", |_| site.note("done").exists());
        server.wait_for("its slot", |server| counter(server, "cgi_processes") == 0);
        let response = receive(&mut slow).unwrap();
        assert_eq!(response.body.len(), BYTES);
        assert!(response.body.iter().all(|byte| *byte == 0));
        is_well(&server);
    }
}

#[test]
fn requests_wait_while_hundreds_of_long_responses_start() {
    let site = Site::new();
    let (answer, answers) = channel::<()>();
    let answers = Mutex::new(answers);
    // Nothing is answered before all requests have come.
    let upstream = FakeUpstream::new(move |mut stream| {
        while read_head(&mut stream).is_some() {
            let _ = answers.lock().unwrap().recv_timeout(TIMEOUT);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood");
        }
    });
    let server = proxy(&site, &[&upstream.address], "concurrency = 1");
    let mut clients: Vec<TcpStream> = (0..300).map(|_| server.connect()).collect();
    for client in &mut clients {
        send(client, "GET /app/x HTTP/1.1\r\nHost: x\r\n\r\n");
    }
    server.wait_for("the queue", |server| {
        counter(server, "handler_queue_length") + counter(server, "handler_queue_full") == 299
    });
    drop(answer);
    for client in &mut clients {
        let response = receive(client).unwrap();
        assert_eq!((response.status, response.text().as_str()), (200, "good"));
    }
    is_well(&server);
}
