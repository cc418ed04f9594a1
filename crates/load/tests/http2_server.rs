//! A server of HTTP/2 that does what a function says, with one thread per connection.

use std::io::Read;
use std::net::TcpListener;
use std::sync::Arc;

use headway_load::engine::{Address, Target};
use headway_test_support::http2::{self, Frame};

use crate::support::Stream;
use crate::tls_server::{Accept, Authority, Settings, TlsServer};

pub const NAME: &str = "test.example";

/// The other end of a connection.
pub struct Peer {
    stream: Box<dyn Stream>,
    /// Counted from 0 over the server's life.
    pub connection: usize,
}

/// Serves in the clear.
pub fn serve(conversation: impl Fn(&mut Peer) + Send + Sync + 'static) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Inet(listener.local_addr().unwrap());
    let accept: Accept = Box::new(move || {
        let (client, from) = listener.accept().ok()?;
        client.set_nodelay(true).unwrap();
        Some((Box::new(client), Some(from.ip())))
    });
    run(accept, conversation);
    Target::new(address, NAME)
}

/// Serves through TLS, with a choice of these protocols; the client offers HTTP/2.
pub fn serve_tls(
    protocols: Option<&'static [&'static str]>,
    conversation: impl Fn(&mut Peer) + Send + Sync + 'static,
) -> Target {
    let authority = Authority::new();
    let settings = Settings {
        protocols,
        ..Settings::default()
    };
    let (address, accept, _) = TlsServer::listen(authority.certify(NAME, |_| {}), &settings);
    run(accept, conversation);
    let mut options = authority.trusted();
    options.http2 = true;
    Target {
        tls: Some(options.client(NAME).unwrap()),
        ..Target::new(address, NAME)
    }
}

fn run(accept: Accept, conversation: impl Fn(&mut Peer) + Send + Sync + 'static) {
    let conversation = Arc::new(conversation);
    std::thread::spawn(move || {
        for connection in 0.. {
            let Some((stream, _)) = accept() else { return };
            let conversation = Arc::clone(&conversation);
            std::thread::spawn(move || conversation(&mut Peer { stream, connection }));
        }
    });
}

impl Peer {
    /// Takes the preface and answers with these settings. False if the client has gone.
    pub fn greet(&mut self, settings: &[(u16, u32)]) -> bool {
        let mut preface = [0; http2::PREFACE.len()];
        let came = self.stream.read_exact(&mut preface).is_ok();
        assert!(!came || preface == http2::PREFACE);
        came && self.send(&http2::settings(settings))
    }

    /// False if the client has gone.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok() && self.stream.flush().is_ok()
    }

    /// Each byte in a segment of its own.
    pub fn dribble(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.send(&[*byte]);
            std::thread::yield_now();
        }
    }

    /// The next frame of a kind; others are passed over.
    pub fn next(&mut self, kind: u8) -> Option<Frame> {
        loop {
            let frame = Frame::read(&mut self.stream)?;
            if frame.kind == kind && (kind != http2::SETTINGS || frame.flags & http2::ACK == 0) {
                return Some(frame);
            }
        }
    }

    /// The stream of the next request.
    pub fn request(&mut self) -> Option<u32> {
        self.next(http2::HEADERS).map(|frame| frame.stream)
    }

    /// The streams of this number of requests.
    pub fn requests(&mut self, count: usize) -> Vec<u32> {
        (0..count).map_while(|_| self.request()).collect()
    }

    pub fn answer(&mut self, stream: u32, body: &str) -> bool {
        self.send(&response(stream, body))
    }

    /// Answers every request with this body, until the client leaves.
    pub fn answer_all(&mut self, body: &str) {
        while let Some(stream) = self.request() {
            self.answer(stream, body);
        }
    }

    /// Reads until the client leaves.
    pub fn wait(&mut self) {
        while Frame::read(&mut self.stream).is_some() {}
    }
}

/// A header with a status and a length.
pub fn header(stream: u32, length: usize) -> Vec<u8> {
    let length = length.to_string();
    let block = http2::block(&[
        (":status", "200"),
        ("server", "scripted/2"),
        ("content-length", &length),
    ]);
    http2::frame(http2::HEADERS, http2::END_HEADERS, stream, &block)
}

/// A whole response.
pub fn response(stream: u32, body: &str) -> Vec<u8> {
    let mut bytes = header(stream, body.len());
    let pieces: Vec<&[u8]> = body.as_bytes().chunks(16_384).collect();
    for (at, piece) in pieces.iter().enumerate() {
        let flags = if at + 1 == pieces.len() {
            http2::END_STREAM
        } else {
            0
        };
        bytes.extend(http2::frame(http2::DATA, flags, stream, piece));
    }
    bytes
}
