//! A client and a server which exchange bytes in memory. The tests answer the requests.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use headway_http2::{Received, Session, Settings, Stream};
pub use headway_test_support::exchange::Exchange;
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub const LIMITS: Settings = Settings {
    streams_max: 100,
    header_bytes_max: 16 << 10,
    scheme: Some("http"),
};

/// The most output of a session (`OUTPUT_BYTES_MAX`), with frame headers.
pub const OUTPUT_BYTES_MAX: usize = 68 << 10;

#[derive(Default)]
struct Ends {
    to_server: VecDeque<u8>,
    to_client: VecDeque<u8>,
}

struct ClientEnd(Rc<RefCell<Ends>>);

impl AsyncRead for ClientEnd {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut ends = self.0.borrow_mut();
        let count = ends.to_client.len().min(buffer.remaining());
        if count == 0 {
            return Poll::Pending;
        }
        let bytes: Vec<u8> = ends.to_client.drain(..count).collect();
        buffer.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientEnd {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().to_server.extend(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Pseudo-random sizes, which are the same in each run.
pub struct Sizes(u64);

impl Sizes {
    pub fn new(seed: u64) -> Sizes {
        Sizes(seed.wrapping_mul(2) + 1)
    }

    /// From 1 to `most`.
    pub fn next(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        1 + (self.0 >> 33) as usize % most
    }
}

/// The client and the server.
pub struct Peers {
    pub session: Session,
    ends: Rc<RefCell<Ends>>,
    sender: SendRequest<Bytes>,
    client: Option<Connection<ClientEnd>>,
    /// How the client's connection ended.
    pub client_end: Option<Result<(), h2::Error>>,
    pub exchanges: Vec<Exchange>,
    /// The received requests: their headers and their streams.
    pub requests: Vec<(String, Stream)>,
    pub sizes: Sizes,
    /// The most bytes that are passed at a time.
    piece_max: usize,
}

impl Peers {
    pub fn new() -> Peers {
        Peers::with(&mut Builder::new(), 1 << 20, 1)
    }

    /// With a client of these settings. At most this number of bytes is passed at a time.
    pub fn with(builder: &mut Builder, piece_max: usize, seed: u64) -> Peers {
        let ends = Rc::new(RefCell::new(Ends::default()));
        let context = &mut Context::from_waker(Waker::noop());
        let mut handshake = Box::pin(builder.handshake(ClientEnd(ends.clone())));
        let Poll::Ready(made) = handshake.as_mut().poll(context) else {
            panic!("a client waits for nothing");
        };
        let (sender, client) = made.unwrap();
        Peers {
            session: Session::new(LIMITS),
            ends,
            sender,
            client: Some(client),
            client_end: None,
            exchanges: Vec::new(),
            requests: Vec::new(),
            sizes: Sizes::new(seed),
            piece_max,
        }
    }

    /// Begins a request with this body, if it has one, and returns its number.
    pub fn begin(&mut self, request: Request<()>, body: Option<&[u8]>) -> usize {
        let context = &mut Context::from_waker(Waker::noop());
        while self.sender.poll_ready(context).is_pending() {
            self.pass();
        }
        let exchange = Exchange::begin(&mut self.sender, request, body);
        self.exchanges.push(exchange);
        self.exchanges.len() - 1
    }

    pub fn get(&mut self, path: &str) -> usize {
        let uri = format!("http://test{path}");
        self.begin(Request::get(uri).body(()).unwrap(), None)
    }

    /// Passes some bytes in each direction. Returns whether there were any.
    pub fn pass(&mut self) -> bool {
        let context = &mut Context::from_waker(Waker::noop());
        if let Some(client) = &mut self.client
            && let Poll::Ready(end) = Pin::new(client).poll(context)
        {
            self.client_end = Some(end);
            self.client = None;
        }
        self.exchanges.iter_mut().for_each(Exchange::step);
        let mut ends = self.ends.borrow_mut();
        let mut passed = false;
        let count = self.sizes.next(self.piece_max).min(ends.to_server.len());
        if count > 0 && self.session.takes_input() {
            let bytes: Vec<u8> = ends.to_server.drain(..count).collect();
            self.session.feed(&bytes);
            passed = true;
        }
        passed |= self.session.go_on();
        while let Some((head, stream)) = self.session.next_request() {
            self.requests
                .push((String::from_utf8(head).unwrap(), stream));
        }
        let most = self.sizes.next(self.piece_max);
        let output = self.session.with_output(|output| {
            assert!(output.len() <= OUTPUT_BYTES_MAX, "{}", output.len());
            output[..output.len().min(most)].to_vec()
        });
        self.session.sent(output.len());
        ends.to_client.extend(&output);
        passed || !output.is_empty()
    }

    /// Passes all bytes in both directions.
    pub fn settle(&mut self) {
        // The client's answers to the last bytes are passed in the next round.
        for quiet in 0..3 {
            while self.pass() {
                assert!(quiet < 3);
            }
        }
    }

    /// Passes bytes until the next request is complete, and returns it.
    pub fn accept(&mut self) -> (String, Stream) {
        self.settle();
        assert!(!self.requests.is_empty(), "no request has come");
        self.requests.remove(0)
    }

    /// Sends a whole response, and ends it.
    pub fn respond(&mut self, stream: &mut Stream, response: &[u8]) {
        self.give(stream, response);
        stream.end();
        self.settle();
    }

    /// Sends all these bytes.
    pub fn give(&mut self, stream: &mut Stream, bytes: &[u8]) {
        let (mut left, mut idle) = (bytes, 0);
        while !left.is_empty() {
            let count = self.sizes.next(self.piece_max).min(left.len());
            let (front, back) = left[..count].split_at(count / 2);
            let parts = [IoSlice::new(front), IoSlice::new(&[]), IoSlice::new(back)];
            let sent = match stream.can_send() {
                true => stream.send(&parts).expect("the client is there"),
                false => None,
            };
            left = &left[sent.unwrap_or(0)..];
            idle = match self.pass() || sent.is_some() {
                true => 0,
                false => idle + 1,
            };
            assert!(idle < 5, "it takes no more, with {} bytes left", left.len());
        }
    }

    /// Receives what has come of a stream's body, framed as in HTTP/1.1, until all of the client's
    /// bytes have come.
    pub fn receive(&mut self, stream: &mut Stream) -> (Vec<u8>, Received) {
        let (mut body, mut buffer, mut idle) = (Vec::new(), vec![0; 40_000], 0);
        loop {
            let room = 20 + self.sizes.next(self.piece_max).min(buffer.len() - 20);
            match stream.receive(&mut buffer[..room]) {
                Received::Data(count) => {
                    body.extend(&buffer[..count]);
                    idle = 0;
                }
                Received::Nothing if idle < 5 => idle = if self.pass() { 0 } else { idle + 1 },
                end => return (body, end),
            }
        }
    }
}

/// Bytes which differ from their neighbours.
pub fn contents(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at % 251) as u8).collect()
}
