//! FastCGI applications whose clients leave before the reply is complete, over connections that are
//! kept.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::faults::BackEnd;
use crate::serving::Server;
use crate::site::*;

const ABORT_REQUEST: u8 = 2;
const END_REQUEST: u8 = 3;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;

/// The next record's kind and content.
fn hear(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 8];
    stream.read_exact(&mut head).ok()?;
    let length = usize::from(u16::from_be_bytes([head[4], head[5]]));
    let mut content = vec![0; length + usize::from(head[6])];
    stream.read_exact(&mut content).ok()?;
    content.truncate(length);
    Some((head[1], content))
}

fn say(stream: &mut TcpStream, kind: u8, content: &[u8]) {
    let head = [1, kind, 0, 1, 0, content.len() as u8, 0, 0];
    stream.write_all(&[&head, content].concat()).unwrap();
}

/// Reads a whole request; `false` when there is none any more.
fn is_asked(stream: &mut TcpStream) -> bool {
    loop {
        match hear(stream) {
            Some((STDIN, content)) if content.is_empty() => return true,
            Some(_) => {}
            None => return false,
        }
    }
}

fn serve(site: &Site, back_end: &BackEnd) -> Server {
    site.serve_configured(&format!(
        "[[location]]\nprefix = \"/app/\"\nfastcgi = {:?}\nkeepalive = 4\n",
        back_end.address
    ))
}

/// A client that leaves when its reply has begun.
fn leave_early(server: &Server) {
    let mut stream = server.connect();
    send(&mut stream, "GET /app/x HTTP/1.1\r\nHost: x\r\n\r\n");
    stream.read_exact(&mut [0; 20]).unwrap();
}

#[test]
fn connection_is_used_again_when_an_application_gives_up_what_nobody_wants() {
    let site = Site::new();
    let requests = AtomicUsize::new(0);
    let back_end = BackEnd::new(move |mut stream| {
        while is_asked(&mut stream) {
            say(&mut stream, STDOUT, b"Content-Type: a/b\n\n");
            if requests.fetch_add(1, Ordering::SeqCst) == 0 {
                assert_eq!(hear(&mut stream).unwrap().0, ABORT_REQUEST);
                say(&mut stream, STDOUT, b"too late");
            } else {
                say(&mut stream, STDOUT, b"good");
            }
            say(&mut stream, END_REQUEST, &[0; 8]);
        }
    });
    let server = serve(&site, &back_end);
    leave_early(&server);
    server.wait_for("its end", |server| counter(server, "backend_idle") == 1);
    assert_eq!(counter(&server, "backend_aborts"), 1);
    assert_eq!(get(&server, "/app/x").text(), "good");
    assert_eq!(
        (back_end.count(), counter(&server, "backend_reused")),
        (1, 1)
    );
    is_well(&server);
}

#[test]
fn connection_is_closed_when_an_application_does_not_care_that_nobody_listens() {
    let site = Site::new();
    let (told, hears) = channel();
    let told = Mutex::new(told);
    let back_end = BackEnd::new(move |mut stream| {
        if is_asked(&mut stream) {
            say(&mut stream, STDOUT, b"Content-Type: a/b\n\nendless");
            while hear(&mut stream).is_some() {}
            told.lock().unwrap().send(()).unwrap();
        }
    });
    let server = serve(&site, &back_end);
    leave_early(&server);
    hears.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(counter(&server, "backend_aborts"), 1);
    assert_eq!(counter(&server, "backend_idle"), 0);
    is_well(&server);
}
