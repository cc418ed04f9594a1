//! What HTTP/2 costs without sockets, for `bench/http2-framing`: a client's requests go through one of these, in memory.
//!
//!     framing session|h2|minimal STREAMS REQUESTS
//!
//! - `session`: our session, with its limits and its translation from and to HTTP/1.1;
//! - `h2`: the crate h2, without either;
//! - `minimal`: frames and HPACK by hand, as little as this client needs. It checks nothing and limits nothing, so it
//!   shows the floor.
//!
//! A client asks as a browser does: 11 headers which its table has after the first request, and a path of its own. Each
//! response has 7 headers and 500 bytes. `bench/http2-framing.c` does the same with nghttp2.

use std::cell::RefCell;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::server::{Builder, Connection};
use headway_http2::{Session, Settings};
use headway_test_support::http2::*;
use http::Response;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const USAGE: &str = "framing session|h2|minimal STREAMS REQUESTS";
const BODY_BYTES: usize = 500;
/// What the client's table has after its first request, the last one first.
const KEPT: &[(&str, &str)] = &[
    (":authority", "localhost:8443"),
    (
        "sec-ch-ua",
        "\"Chromium\";v=\"142\", \"Not_A Brand\";v=\"99\"",
    ),
    ("sec-ch-ua-mobile", "?0"),
    ("sec-ch-ua-platform", "\"Linux\""),
    (
        "user-agent",
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36",
    ),
    ("accept", "text/css,*/*;q=0.1"),
    ("sec-fetch-site", "same-origin"),
    ("sec-fetch-mode", "no-cors"),
    ("sec-fetch-dest", "style"),
    ("accept-encoding", "gzip, deflate, br, zstd"),
    ("accept-language", "en-GB,en;q=0.9"),
    ("priority", "u=0"),
];
const RESPONSE: &[(&str, &str)] = &[
    ("server", "headway"),
    ("date", "Sat, 28 Nov 2026 12:00:00 GMT"),
    ("content-type", "application/octet-stream"),
    ("content-length", "500"),
    ("last-modified", "Sat, 28 Nov 2026 10:00:00 GMT"),
    ("etag", "\"6929a1b0-1f4\""),
    ("accept-ranges", "bytes"),
];

fn main() -> Result<(), &'static str> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [kind, streams, requests] = words[..] else {
        return Err(USAGE);
    };
    let number = |text: &str| text.parse::<u32>().map_err(|_| USAGE);
    let mut server: Box<dyn Server> = match kind {
        "session" => Box::new(OurSession::new()),
        "h2" => Box::new(H2::new()),
        "minimal" => Box::new(Minimal::default()),
        _ => return Err(USAGE),
    };
    let (streams, requests) = (number(streams)?.max(1), number(requests)?);
    let mut client = Client::default();
    let (mut answered, mut sent) = (0, 0);
    server.answer(&client.hello());
    while answered < requests {
        let (count, bytes) = server.answer(client.ask(streams));
        if count != streams {
            return Err("not all requests were answered");
        }
        (answered, sent) = (answered + count, sent + bytes as u64);
    }
    println!("{}", sent / u64::from(answered.max(1)));
    Ok(())
}

/// Takes bytes of the client, and answers all requests in them. How many there were, and the bytes of their responses.
trait Server {
    fn answer(&mut self, bytes: &[u8]) -> (u32, usize);
}

// ---- the client -------------------------------------------------------------------------------------

#[derive(Default)]
struct Client {
    stream: u32,
    requests: u32,
    bytes: Vec<u8>,
}

impl Client {
    fn hello(&self) -> Vec<u8> {
        hello(&[(INITIAL_WINDOW_SIZE, 6 << 20)])
    }

    /// This number of requests, and room for their responses.
    fn ask(&mut self, count: u32) -> &[u8] {
        self.bytes.clear();
        let room = count * BODY_BYTES as u32;
        self.bytes
            .extend(frame(WINDOW_UPDATE, 0, 0, &room.to_be_bytes()));
        for _ in 0..count {
            // `:method: GET` and `:scheme: https` are in the table of the standard (RFC 7541, A).
            let mut block = vec![0x82, 0x87];
            let path = format!("/asset-{:02}.css", self.requests % 100);
            block.extend([4, path.len() as u8]);
            block.extend(path.as_bytes());
            for (at, (name, value)) in KEPT.iter().enumerate() {
                match self.requests {
                    0 => block.extend(kept(name.as_bytes(), value.as_bytes())),
                    _ => block.push(KEPT_AGAIN + (KEPT.len() - 1 - at) as u8),
                }
            }
            self.stream = if self.requests == 0 {
                1
            } else {
                self.stream + 2
            };
            self.requests += 1;
            let flags = END_STREAM | END_HEADERS;
            self.bytes
                .extend(frame(HEADERS, flags, self.stream, &block));
        }
        &self.bytes
    }
}

// ---- our session ------------------------------------------------------------------------------------

struct OurSession {
    session: Session,
    response: Vec<u8>,
}

impl OurSession {
    fn new() -> OurSession {
        let mut response = b"HTTP/1.1 200 OK\r\n".to_vec();
        for (name, value) in RESPONSE {
            response.extend(format!("{name}: {value}\r\n").as_bytes());
        }
        response.extend(b"\r\n");
        response.extend([b'x'; BODY_BYTES]);
        let session = Session::new(Settings {
            streams_max: 128,
            header_bytes_max: 16 << 10,
            scheme: Some("https"),
        });
        OurSession { session, response }
    }
}

impl Server for OurSession {
    fn answer(&mut self, bytes: &[u8]) -> (u32, usize) {
        self.session.feed(bytes);
        let mut count = 0;
        while let Some((_, mut stream)) = self.session.next_request() {
            let sent = stream.send(&[IoSlice::new(&self.response)]);
            count += u32::from(sent == Ok(Some(self.response.len())));
        }
        let sent = self.session.with_output(<[u8]>::len);
        self.session.sent(sent);
        (count, sent)
    }
}

// ---- the crate h2 -----------------------------------------------------------------------------------

#[derive(Default)]
struct Ends {
    input: Vec<u8>,
    taken: usize,
    output: Vec<u8>,
}

struct Pipe(Rc<RefCell<Ends>>);

impl AsyncRead for Pipe {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut ends = self.0.borrow_mut();
        let waiting = &ends.input[ends.taken..];
        let count = waiting.len().min(buffer.remaining());
        if count == 0 {
            return Poll::Pending;
        }
        buffer.put_slice(&waiting[..count]);
        ends.taken += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().output.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

type Handshake = Pin<Box<dyn Future<Output = Result<Connection<Pipe, Bytes>, h2::Error>>>>;

struct H2 {
    ends: Rc<RefCell<Ends>>,
    handshake: Handshake,
    connection: Option<Connection<Pipe, Bytes>>,
    response: Response<()>,
    body: Bytes,
}

impl H2 {
    fn new() -> H2 {
        let ends = Rc::new(RefCell::new(Ends::default()));
        let mut builder = Builder::new();
        builder.max_concurrent_streams(128);
        let mut response = Response::builder();
        for (name, value) in RESPONSE {
            response = response.header(*name, *value);
        }
        H2 {
            handshake: Box::pin(builder.handshake(Pipe(ends.clone()))),
            connection: None,
            ends,
            response: response.body(()).unwrap_or_default(),
            body: Bytes::from(vec![b'x'; BODY_BYTES]),
        }
    }
}

impl Server for H2 {
    fn answer(&mut self, bytes: &[u8]) -> (u32, usize) {
        {
            let mut ends = self.ends.borrow_mut();
            (ends.input, ends.taken) = (bytes.to_vec(), 0);
        }
        let context = &mut Context::from_waker(Waker::noop());
        if self.connection.is_none()
            && let Poll::Ready(made) = self.handshake.as_mut().poll(context)
        {
            self.connection = made.ok();
        }
        let mut count = 0;
        if let Some(connection) = &mut self.connection {
            while let Poll::Ready(Some(Ok((_, mut respond)))) = connection.poll_accept(context) {
                let sent = respond.send_response(self.response.clone(), false);
                let sent = sent.and_then(|mut send| send.send_data(self.body.clone(), true));
                count += u32::from(sent.is_ok());
            }
        }
        let mut ends = self.ends.borrow_mut();
        let sent = ends.output.len();
        ends.output.clear();
        (count, sent)
    }
}

// ---- by hand ----------------------------------------------------------------------------------------

#[derive(Default)]
struct Minimal {
    is_greeted: bool,
    /// The table of the client's headers, the last one first.
    table: Vec<[Box<[u8]>; 2]>,
    /// The header of the request, as in HTTP/1.1.
    head: Vec<u8>,
    has_answered: bool,
    output: Vec<u8>,
}

impl Minimal {
    fn request(&mut self, mut block: &[u8]) {
        self.head.clear();
        let text = |block: &mut &[u8]| -> Box<[u8]> {
            let length = usize::from(block[0]);
            let (text, rest) = block[1..].split_at(length);
            *block = rest;
            text.into()
        };
        while let [first, rest @ ..] = block {
            block = rest;
            match first {
                0x82 => self.head.extend_from_slice(b":method: GET\r\n"),
                0x87 => self.head.extend_from_slice(b":scheme: https\r\n"),
                4 => {
                    let (path, rest) = block[1..].split_at(usize::from(block[0]));
                    self.head.extend_from_slice(b":path: ");
                    self.head.extend_from_slice(path);
                    self.head.extend_from_slice(b"\r\n");
                    block = rest;
                }
                64 => {
                    let entry = [text(&mut block), text(&mut block)];
                    self.table.insert(0, entry);
                }
                again => {
                    let [name, value] = &self.table[usize::from(again - KEPT_AGAIN)];
                    self.head.extend_from_slice(name);
                    self.head.extend_from_slice(b": ");
                    self.head.extend_from_slice(value);
                    self.head.extend_from_slice(b"\r\n");
                }
            }
        }
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, length: usize) {
        let [_, high, middle, low] = (length as u32).to_be_bytes();
        self.output
            .extend_from_slice(&[high, middle, low, kind, flags]);
        self.output.extend_from_slice(&stream.to_be_bytes());
    }

    fn respond(&mut self, stream: u32) {
        let at = self.output.len();
        self.frame(HEADERS, END_HEADERS, stream, 0);
        self.output.push(0x88);
        for (number, (name, value)) in RESPONSE.iter().enumerate() {
            match self.has_answered {
                false => self.output.extend(kept(name.as_bytes(), value.as_bytes())),
                true => self
                    .output
                    .push(KEPT_AGAIN + (RESPONSE.len() - 1 - number) as u8),
            }
        }
        self.has_answered = true;
        let length = (self.output.len() - at - 9) as u16;
        self.output[at + 1..at + 3].copy_from_slice(&length.to_be_bytes());
        self.frame(DATA, END_STREAM, stream, BODY_BYTES);
        self.output.extend_from_slice(&[b'x'; BODY_BYTES]);
    }
}

impl Server for Minimal {
    fn answer(&mut self, mut bytes: &[u8]) -> (u32, usize) {
        if !self.is_greeted {
            bytes = &bytes[PREFACE.len()..];
            self.is_greeted = true;
        }
        let mut count = 0;
        while let Some((header, rest)) = bytes.split_first_chunk::<9>() {
            let [high, middle, low, kind, _, stream @ ..] = *header;
            let length = u32::from_be_bytes([0, high, middle, low]) as usize;
            let payload = &rest[..length];
            bytes = &rest[length..];
            if kind == HEADERS {
                self.request(payload);
                self.respond(u32::from_be_bytes(stream));
                count += 1;
            }
        }
        let sent = self.output.len();
        self.output.clear();
        (count, sent)
    }
}
