//! A client of HTTP/2 over a socket of the standard library, which waits for nothing but that.

use std::future::Future;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::Reason;
use h2::client::{Builder, Connection, SendRequest};
use h2::ext::Protocol;
use headway_test_support::WAIT_MAX;
pub use headway_test_support::exchange::Exchange;
use http::Request;
use rustls::ClientConfig;
use rustls::version::TLS13;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::site::*;
use crate::tls::tools::{Secured, TlsStream, shake_hands};

/// A socket that does not block, with TLS or without.
pub struct Wire<S>(S);

fn polled<T>(result: io::Result<T>) -> Poll<io::Result<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Poll::Pending,
        result => Poll::Ready(result),
    }
}

impl<S: Read + Unpin> AsyncRead for Wire<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = vec![0; buffer.remaining().min(64 << 10)];
        polled(
            self.0
                .read(&mut bytes)
                .map(|count| buffer.put_slice(&bytes[..count])),
        )
    }
}

impl<S: Write + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        polled(self.0.write(bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        polled(self.0.flush())
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A connection of a client.
pub struct Client<S: Read + Write + Unpin = TcpStream> {
    sender: SendRequest<Bytes>,
    connection: Option<Connection<Wire<S>>>,
    /// How the connection has ended.
    pub end: Option<Result<(), h2::Error>>,
    socket: TcpStream,
    scheme: &'static str,
    pub exchanges: Vec<Exchange>,
}

impl Client {
    /// Speaks HTTP/2 at once, in the clear.
    pub fn connect(server: &Server) -> Client {
        Client::with(server, &mut Builder::new())
    }

    pub fn with(server: &Server, builder: &mut Builder) -> Client {
        let socket = server.connect();
        Client::over(socket.try_clone().unwrap(), socket, "http", builder)
    }
}

impl Client<TlsStream> {
    /// Agrees on HTTP/2 by ALPN.
    pub fn secured(secured: &Secured) -> Client<TlsStream> {
        Client::secured_as(secured, secured.certified.clients(&TLS13))
    }

    /// The same with these settings.
    pub fn secured_as(secured: &Secured, mut config: ClientConfig) -> Client<TlsStream> {
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let mut stream = secured.connect_as(Arc::new(config));
        shake_hands(&mut stream);
        assert_eq!(stream.conn.alpn_protocol(), Some(&b"h2"[..]));
        let socket = stream.sock.try_clone().unwrap();
        Client::over(stream, socket, "https", &mut Builder::new())
    }
}

impl<S: Read + Write + Unpin> Client<S> {
    pub fn over(
        stream: S,
        socket: TcpStream,
        scheme: &'static str,
        builder: &mut Builder,
    ) -> Client<S> {
        socket.set_nonblocking(true).unwrap();
        let context = &mut Context::from_waker(Waker::noop());
        let mut handshake = Box::pin(builder.handshake(Wire(stream)));
        let Poll::Ready(made) = handshake.as_mut().poll(context) else {
            panic!("a client waits for nothing");
        };
        let (sender, connection) = made.unwrap();
        Client {
            sender,
            connection: Some(connection),
            end: None,
            socket,
            scheme,
            exchanges: Vec::new(),
        }
    }

    /// Takes what has come, sends what is to be sent, and waits a moment for more.
    pub fn step(&mut self) {
        let context = &mut Context::from_waker(Waker::noop());
        if let Some(connection) = &mut self.connection
            && let Poll::Ready(end) = Pin::new(connection).poll(context)
        {
            self.end = Some(end);
            self.connection = None;
        }
        self.exchanges.iter_mut().for_each(Exchange::step);
        // What was read gives room, which the server must be told.
        if let Some(connection) = &mut self.connection
            && let Poll::Ready(end) = Pin::new(connection).poll(context)
        {
            self.end = Some(end);
            self.connection = None;
        }
        let moment = rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: 2_000_000,
        };
        let flags = rustix::event::PollFlags::IN;
        let socket = rustix::event::PollFd::new(&self.socket, flags);
        let _ = rustix::event::poll(&mut [socket], Some(&moment));
    }

    /// Goes on until something has happened.
    pub fn wait_for(&mut self, what: &str, mut met: impl FnMut(&mut Client<S>) -> bool) {
        let begun = Instant::now();
        while !met(self) {
            assert!(begun.elapsed() < WAIT_MAX, "did not happen: {what}");
            self.step();
        }
    }

    /// Goes on for a while in which nothing need happen.
    pub fn pass(&mut self) {
        for _ in 0..20 {
            self.step();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Begins a request with this body, if it has one, and returns its number.
    pub fn begin(&mut self, request: http::request::Builder, body: Option<&[u8]>) -> usize {
        self.begin_request(request.body(()).unwrap(), body)
    }

    pub fn begin_request(&mut self, request: Request<()>, body: Option<&[u8]>) -> usize {
        self.wait_for("a stream", |client| {
            let context = &mut Context::from_waker(Waker::noop());
            client.sender.poll_ready(context).is_ready()
        });
        let exchange = Exchange::begin(&mut self.sender, request, body);
        self.exchanges.push(exchange);
        self.exchanges.len() - 1
    }

    pub fn request(&self, method: &str, path: &str) -> http::request::Builder {
        let uri = format!("{}://test{path}", self.scheme);
        Request::builder().method(method).uri(uri)
    }

    /// Begins a WebSocket (RFC 8441), once the server has said that it may.
    pub fn begin_websocket(&mut self, path: &str) -> usize {
        self.wait_for("extended CONNECT", |client| {
            client.sender.is_extended_connect_protocol_enabled()
        });
        let request = self
            .request("CONNECT", path)
            .extension(Protocol::from_static("websocket"))
            .header("sec-websocket-version", "13");
        let at = self.begin(request, Some(b""));
        self.exchanges[at].is_open = true;
        at
    }

    /// Begins a GET.
    pub fn begin_get(&mut self, path: &str) -> usize {
        self.begin(self.request("GET", path), None)
    }

    /// Waits for the end of a response.
    pub fn finish(&mut self, at: usize) -> &Exchange {
        self.wait_for("a response", |client| client.exchanges[at].end.is_some());
        &self.exchanges[at]
    }

    /// Waits for the header of a response.
    pub fn wait_for_header(&mut self, at: usize) {
        self.wait_for("a header", |client| client.exchanges[at].status != 0);
    }

    pub fn get(&mut self, path: &str) -> &Exchange {
        let at = self.begin_get(path);
        self.finish(at)
    }

    pub fn post(&mut self, path: &str, body: &[u8]) -> &Exchange {
        let at = self.begin(self.request("POST", path), Some(body));
        self.finish(at)
    }

    /// Gives a request up.
    pub fn cancel(&mut self, at: usize) {
        self.exchanges[at].send.send_reset(Reason::CANCEL);
        self.step();
    }
}

/// The lines of an access log, once there is this number of them.
pub fn log_lines(server: &Server, log: &std::path::Path, count: usize) -> Vec<String> {
    let lines = || -> Vec<String> {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    server.wait_for("the lines of the log", |_| lines().len() >= count);
    lines()
}

/// Descriptors that a worker has.
pub fn descriptors(server: &Server) -> usize {
    let worker = server.children("serve-worker")[0];
    std::fs::read_dir(format!("/proc/{worker}/fd"))
        .unwrap()
        .count()
}

/// Waits until all streams have ended.
pub fn wait_until_all_have_ended(server: &Server) {
    server.wait_for("the end of all streams", |server| {
        counter(server, "http2_streams") == counter(server, "http2_streams_closed")
    });
}

/// The memory of a worker.
pub fn resident_bytes(server: &Server) -> u64 {
    let worker = server.children("serve-worker")[0];
    let status = std::fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line
        .and_then(|line| line.split_whitespace().next())
        .unwrap();
    kib.parse::<u64>().unwrap() * 1024
}
