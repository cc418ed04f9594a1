//! FastCGI requests over keep-alive connections whose clients disconnect before the response is
//! complete.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use super::faults::FakeUpstream;
use crate::site::*;

const ABORT_REQUEST: u8 = 2;
const END_REQUEST: u8 = 3;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;

/// The type and content of the next record.
fn next_record(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 8];
    stream.read_exact(&mut head).ok()?;
    let length = usize::from(u16::from_be_bytes([head[4], head[5]]));
    let mut content = vec![0; length + usize::from(head[6])];
    stream.read_exact(&mut content).ok()?;
    content.truncate(length);
    Some((head[1], content))
}

fn send_record(stream: &mut TcpStream, kind: u8, content: &[u8]) {
    let head = [1, kind, 0, 1, 0, content.len() as u8, 0, 0];
    stream.write_all(&[&head, content].concat()).unwrap();
}

/// Reads a whole request. Returns `false` at the end of the connection.
fn is_asked(stream: &mut TcpStream) -> bool {
    loop {
        match next_record(stream) {
            Some((STDIN, content)) if content.is_empty() => return true,
            Some(_) => {}
            None => return false,
        }
    }
}

fn serve(site: &Site, upstream: &FakeUpstream) -> Server {
    site.serve_configured(&format!(
        "[[location]]\nprefix = \"/app/\"\nfastcgi = {:?}\nkeepalive = 4\n",
        upstream.address
    ))
}

/// A client that disconnects after the first part of its response.
fn leave_early(server: &Server) {
    let mut stream = server.connect();
    send(&mut stream, "GET /app/x HTTP/1.1\r\nHost: x\r\n\r\n");
    stream.read_exact(&mut [0; 20]).unwrap();
}

#[test]
fn fastcgi_connection_is_reused_after_an_aborted_request() {
    let site = Site::new();
    let requests = AtomicUsize::new(0);
    let upstream = FakeUpstream::new(move |mut stream| {
        while is_asked(&mut stream) {
            send_record(&mut stream, STDOUT, b"Content-Type: a/b\n\n");
            if requests.fetch_add(1, Ordering::SeqCst) == 0 {
                assert_eq!(next_record(&mut stream).unwrap().0, ABORT_REQUEST);
                send_record(&mut stream, STDOUT, b"too late");
            } else {
                send_record(&mut stream, STDOUT, b"good");
            }
            send_record(&mut stream, END_REQUEST, &[0; 8]);
        }
    });
    let server = serve(&site, &upstream);
    leave_early(&server);
    server.wait_for("its end", |server| {
        counter(server, "upstream_connections_idle") == 1
    });
    assert_eq!(counter(&server, "upstream_aborts"), 1);
    assert_eq!(get(&server, "/app/x").text(), "good");
    assert_eq!(
        (
            upstream.count(),
            counter(&server, "upstream_connections_reused")
        ),
        (1, 1)
    );
    is_well(&server);
}

#[test]
fn fastcgi_connection_closes_when_the_abort_is_ignored() {
    let site = Site::new();
    let (sender, receiver) = channel();
    let sender = Mutex::new(sender);
    let upstream = FakeUpstream::new(move |mut stream| {
        if is_asked(&mut stream) {
            send_record(&mut stream, STDOUT, b"Content-Type: a/b\n\nendless");
            while next_record(&mut stream).is_some() {}
            sender.lock().unwrap().send(()).unwrap();
        }
    });
    let server = serve(&site, &upstream);
    leave_early(&server);
    receiver.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(counter(&server, "upstream_aborts"), 1);
    assert_eq!(counter(&server, "upstream_connections_idle"), 0);
    is_well(&server);
}
