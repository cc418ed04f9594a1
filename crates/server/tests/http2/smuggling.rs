//! Requests whose translation to HTTP/1.1 or FastCGI could be read as another request, or as two: an upstream never sees
//! more than the one that was meant, and a header that was not sent never reaches it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use headway_test_support::WAIT_MAX;
use headway_test_support::http2::*;

use crate::site::*;
use crate::upstreams::faults::FakeUpstream;

/// A body that is a request of its own, for a reader that ends the one before too early.
const HIDDEN: &str = "0\r\n\r\nGET /stolen HTTP/1.1\r\nHost: x\r\nInjected: 1\r\n\r\n";

/// What an upstream has read of one request.
#[derive(Debug, Default)]
struct Seen {
    /// Names and values, or lines.
    header: Vec<String>,
    body: Vec<u8>,
    /// The length that was announced.
    length: Option<usize>,
    /// Whether it came to its end.
    is_whole: bool,
    /// What came behind it.
    rest: Vec<u8>,
}

/// All bytes of a connection. The request is answered when it is whole, so that the server sends all of it.
fn read_all(stream: &mut TcpStream, is_whole: impl Fn(&[u8]) -> bool, answer: &[u8]) -> Vec<u8> {
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let (mut bytes, mut part, mut is_answered) = (Vec::new(), [0; 4096], false);
    loop {
        if !is_answered && is_whole(&bytes) {
            is_answered = true;
            if stream.write_all(answer).is_err() {
                return bytes;
            }
        }
        match stream.read(&mut part) {
            Ok(0) | Err(_) => return bytes,
            Ok(count) => bytes.extend(&part[..count]),
        }
    }
}

/// Reads a request as RFC 9112 says.
fn read_http(bytes: &[u8]) -> Seen {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let Some(end) = end else {
        return Seen {
            rest: bytes.to_vec(),
            ..Seen::default()
        };
    };
    let text = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let header: Vec<String> = text.split("\r\n").map(str::to_owned).collect();
    let value = |name: &str| {
        let mut values = header.iter().filter_map(|line| line.strip_prefix(name));
        let first = values.next().map(|value| value.trim().to_owned());
        assert!(values.next().is_none(), "{name} twice: {header:?}");
        first
    };
    let length = value("content-length:").map(|text| text.parse::<usize>().unwrap());
    let is_chunked = value("transfer-encoding:").is_some();
    assert!(!(is_chunked && length.is_some()), "{header:?}");
    let rest = &bytes[end + 4..];
    let (body, rest, is_whole) = match is_chunked {
        true => read_chunks(rest),
        false => {
            let wanted = length.unwrap_or(0);
            let (body, after) = rest.split_at(wanted.min(rest.len()));
            (body.to_vec(), after.to_vec(), body.len() == wanted)
        }
    };
    Seen {
        header,
        body,
        length,
        is_whole,
        rest,
    }
}

/// The content, what follows, and whether the last chunk came.
fn read_chunks(mut bytes: &[u8]) -> (Vec<u8>, Vec<u8>, bool) {
    let mut body = Vec::new();
    loop {
        let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") else {
            return (body, Vec::new(), false);
        };
        let size = std::str::from_utf8(&bytes[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        bytes = &bytes[end + 2..];
        if size == 0 {
            // Trailers, up to an empty line.
            let end = bytes.windows(2).position(|two| two == b"\r\n");
            let is_whole = end == Some(0) || bytes.windows(4).any(|four| four == b"\r\n\r\n");
            let trailers = bytes.windows(4).position(|four| four == b"\r\n\r\n");
            let skipped = if end == Some(0) {
                2
            } else {
                trailers.map_or(bytes.len(), |at| at + 4)
            };
            return (body, bytes[skipped.min(bytes.len())..].to_vec(), is_whole);
        }
        let Some((chunk, rest)) = bytes.split_at_checked(size + 2) else {
            return (body, Vec::new(), false);
        };
        body.extend(&chunk[..size]);
        bytes = rest;
    }
}

/// Reads the records of one FastCGI request (its specification, 3.3 and 3.4).
fn read_fastcgi(mut bytes: &[u8]) -> Seen {
    let (mut seen, mut params) = (Seen::default(), Vec::new());
    while let Some((record, rest)) = bytes.split_at_checked(8) {
        let length = usize::from(u16::from_be_bytes([record[4], record[5]]));
        let Some((content, rest)) = rest.split_at_checked(length + usize::from(record[6])) else {
            break;
        };
        match (record[1], &content[..length]) {
            (4, part) => params.extend(part),
            (5, []) => seen.is_whole = true,
            (5, part) if !seen.is_whole => seen.body.extend(part),
            (5, part) => seen.rest.extend(part),
            _ => {}
        }
        bytes = rest;
    }
    let mut params = &params[..];
    let number = |params: &mut &[u8]| {
        let (first, rest) = params.split_first().unwrap();
        if *first < 128 {
            *params = rest;
            return usize::from(*first);
        }
        let (four, rest) = params.split_first_chunk::<4>().unwrap();
        *params = rest;
        (u32::from_be_bytes(*four) & (u32::MAX >> 1)) as usize
    };
    while !params.is_empty() {
        let (name, value) = (number(&mut params), number(&mut params));
        let (pair, rest) = params.split_at(name + value);
        let [name, value] = [&pair[..name], &pair[name..]]
            .map(|text| String::from_utf8_lossy(text).to_ascii_lowercase());
        if name == "content_length" && !value.is_empty() {
            seen.length = Some(value.parse().unwrap());
        }
        seen.header.push(format!("{name}:{value}"));
        params = rest;
    }
    seen
}

/// An upstream of each protocol, and what they read.
fn upstreams() -> ([FakeUpstream; 2], Receiver<Seen>) {
    let (seen, all) = channel::<Seen>();
    let upstream = |read: fn(&[u8]) -> Seen, answer: &'static [u8]| {
        let sender: Arc<Mutex<Sender<Seen>>> = Arc::new(Mutex::new(seen.clone()));
        FakeUpstream::new(move |mut stream| {
            let bytes = read_all(&mut stream, |bytes| read(bytes).is_whole, answer);
            // A connection without a byte was made in advance.
            if !bytes.is_empty() {
                let _ = sender.lock().unwrap().send(read(&bytes));
            }
        })
    };
    let http = upstream(
        read_http,
        b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n",
    );
    // STDOUT with a header, and END_REQUEST.
    let fastcgi = upstream(
        read_fastcgi,
        b"\x01\x06\0\x01\0\x0f\0\0Status: 204\r\n\r\n\x01\x03\0\x01\0\x08\0\0\0\0\0\0\0\0\0\0",
    );
    ([http, fastcgi], all)
}

fn head(path: &str, changes: &[(&str, &str)]) -> Vec<u8> {
    let mut headers = vec![
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "test"),
        (":path", path),
    ];
    for (name, value) in changes {
        let known = headers.iter_mut().find(|(known, _)| known == name);
        match known {
            Some(known) => known.1 = value,
            None => headers.push((name, value)),
        }
    }
    block(&headers)
}

/// Sends a request with the hidden one as its body, and trailers; returns when the server has answered or refused it.
fn send_request(server: &Server, path: &str, changes: &[(&str, &str)], trailers: &[(&str, &str)]) {
    let mut stream = server.connect();
    let mut bytes = [
        hello(&[]),
        frame(HEADERS, END_HEADERS, 1, &head(path, changes)),
    ]
    .concat();
    let last = if trailers.is_empty() { END_STREAM } else { 0 };
    bytes.extend(frame(DATA, last, 1, HIDDEN.as_bytes()));
    if !trailers.is_empty() {
        bytes.extend(frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            1,
            &block(trailers),
        ));
    }
    send(&mut stream, bytes);
    while let Some(frame) = Frame::read(&mut stream) {
        if frame.is_last() || matches!(frame.kind, RST_STREAM | GOAWAY) {
            return;
        }
    }
}

type Headers = &'static [(&'static str, &'static str)];

const ATTACKS: &[Headers] = &[
    &[("x", "a\r\nInjected: 1")],
    &[(
        "x",
        "a\r\n\r\nGET /stolen HTTP/1.1\r\nHost: x\r\nInjected: 1\r\n\r\n",
    )],
    &[("x", "a\nInjected: 1")],
    &[("x: y\r\ninjected", "1")],
    &[("x y: 1\r\ninjected", "1")],
    &[("transfer-encoding", "chunked")],
    &[("transfer-encoding", "identity")],
    &[("content-length", "5")],
    &[("content-length", "5"), ("transfer-encoding", "chunked")],
    &[("content-length", "5000")],
    &[("content-length", "0")],
    &[("content-length", "+64")],
    &[("content-length", "64, 5")],
    &[("connection", "content-length")],
    &[("host", "other")],
    &[(":authority", "test\r\nInjected: 1")],
    &[(":authority", "test/stolen"), ("host", "test/stolen")],
    &[(":method", "GET /stolen HTTP/1.1\r\nInjected: 1\r\n\r\nPOST")],
    &[(":scheme", "http://x/stolen HTTP/1.1\r\nInjected: 1\r\n\r\n")],
    &[(
        ":path",
        "/proxy/ HTTP/1.1\r\nInjected: 1\r\n\r\nGET /stolen",
    )],
    &[(":path", "/fastcgi/\r\nInjected: 1")],
    &[(":path", "/fastcgi/\nInjected: 1")],
];

/// Well-formed, and still not for upstreams under these names: programs of CGI take `_` for `-`.
const DISGUISED: Headers = &[
    ("content_length", "5"),
    ("transfer_encoding", "chunked"),
    ("proxy", "http://injected"),
    ("te", "trailers"),
];

const TRAILERS: &[Headers] = &[
    &[("content-length", "5"), ("x-sum", "1")],
    &[("transfer-encoding", "chunked")],
    &[("host", "other"), ("authorization", "injected")],
    &[("x", "a\r\nInjected: 1")],
];

fn check(seen: &Seen, attack: &str) {
    assert!(seen.rest.is_empty(), "{attack}: a second request: {seen:?}");
    for line in &seen.header {
        let is_evil = [
            "injected",
            "http_injected",
            "http_proxy",
            "transfer-encoding: i",
        ]
        .iter()
        .any(|name| line.starts_with(name));
        let is_first = line.starts_with("get /stolen") || line.contains(":/stolen");
        assert!(!is_evil && !is_first, "{attack}: {seen:?}");
        let is_disguised =
            line.starts_with("http_content_length") || line.starts_with("http_transfer_encoding");
        assert!(!is_disguised, "{attack}: {seen:?}");
    }
    if seen.is_whole {
        // A body that is longer than announced is refused, maybe after a part of it was passed on.
        assert!(
            HIDDEN.as_bytes().starts_with(&seen.body),
            "{attack}: {seen:?}"
        );
        let length = seen.length.unwrap_or(seen.body.len());
        assert_eq!(length, seen.body.len(), "{attack}");
    }
}

#[test]
fn upstream_sees_at_most_the_request_that_was_meant() {
    for buffering in [true, false] {
        let ([http, fastcgi], all) = upstreams();
        let site = Site::new();
        let server = site.serve_configured(&format!(
            "[[location]]\nprefix = \"/proxy/\"\nproxy = {:?}\nrequest-buffering = {buffering}\n\
             [[location]]\nprefix = \"/fastcgi/\"\nfastcgi = {:?}\nrequest-buffering = {buffering}",
            http.address, fastcgi.address
        ));
        for path in ["/proxy/x", "/fastcgi/x"] {
            // That they read what is well-formed shows that they would see more.
            send_request(&server, path, &[("x-own", "yes")], &[]);
            let seen = loop {
                let seen = all.recv_timeout(WAIT_MAX).unwrap();
                check(&seen, path);
                if seen
                    .header
                    .iter()
                    .any(|line| line.contains("own") && line.contains("yes"))
                {
                    break seen;
                }
            };
            assert!(
                seen.is_whole && seen.body == HIDDEN.as_bytes(),
                "{path}: {seen:?}"
            );
            for attack in ATTACKS.iter().chain([&DISGUISED]) {
                send_request(&server, path, attack, &[]);
            }
            for trailers in TRAILERS {
                send_request(&server, path, &[("te", "trailers")], trailers);
            }
        }
        is_well(&server);
        // All connections to upstreams end with the server.
        server.stop();
        drop((http, fastcgi));
        let mut count = 0;
        while let Ok(seen) = all.recv_timeout(std::time::Duration::from_millis(500)) {
            check(&seen, "an attack");
            count += 1;
        }
        // At least the disguised ones are requests.
        assert!(count >= 2, "{count}");
    }
}
