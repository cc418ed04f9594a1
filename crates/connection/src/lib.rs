//! One client connection: its socket, unconsumed input and pending output. The worker
//! moves it from phase to phase; nothing is decided here.
//!
//! An idle connection owns no buffer: requests are received into the worker's scratch buffer, and
//! only input that cannot be processed at once is copied here. This keeps 10,000 idle keep-alive
//! connections cheap.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![deny(clippy::unused_self)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

mod application_request;
mod body;
mod exchange;
mod idle_order;
mod pace;
mod ready;
mod table;

use std::cell::{Cell, OnceCell};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use headway_event::{Interest, Token};
use headway_files::Waiter;
use headway_gateway::client_address::UNIX_CLIENT;
use headway_http2::{Session, Stream};
use headway_metrics::StageClock;
use headway_request::{Charge, Entry, Outgoing, Request};
use headway_tls::{Client, Summary};

pub use application_request::{ApplicationRequest, ApplicationStage, PendingResponse};
pub use body::Body;
pub use exchange::{
    BufferCharges, Channel, Download, Exchange, Reader, Stage, UpgradedConn, Upload, UpstreamConn,
    UpstreamRequest,
};
pub use pace::Pace;
pub use ready::{Order, ReadyStreams};
pub use table::{CONNECTION, ConnectionTable};

/// What a connection waits for, and with what it continues then. A phase owns the request.
pub enum Phase {
    /// The rest of the handshake of TLS.
    Handshake,
    /// Frames of HTTP/2. Each of its requests is a connection of its own.
    Http2,
    /// The next request header.
    AwaitHead,
    /// The rest of a request body that is received before the request is answered.
    AwaitBody(Box<Request>, Body, BodyUse),
    /// A helper that looks up a path, and reads the file if it is small.
    AwaitLookup(Box<Request>, LookupFor),
    /// A helper that renders the listing of the requested directory.
    AwaitListing(Box<Request>),
    /// A helper that reads a small file whose entry has no content (any more).
    AwaitContent(Box<Request>, Rc<Entry>, LookupFor),
    /// A helper that runs a job of an embedded application.
    AwaitJob(Box<Request>, Box<ApplicationRequest>),
    /// A helper that reads the next chunk of the file being sent.
    AwaitChunk(Box<Request>),
    /// Room in the socket's send buffer, or the connection's turn in the run queue.
    AwaitSend(Box<Request>),
    /// The connection's turn in the run queue, because many pipelined requests have been answered.
    AwaitTurn,
    /// A handler that answers the request; body and response are passed on meanwhile.
    Exchange(Box<Exchange>),
    /// The end of the client's stream, so that the last response is not lost to a reset (RFC 9112,
    /// 9.6).
    Linger,
}

/// What a body is received for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyUse {
    /// The handler of files does not want it.
    Discard,
    /// The embedded application at this location reads it.
    Application(usize),
}

/// What a file is looked up for.
pub enum LookupFor {
    /// The file is the response.
    File,
    /// The file may be the program that answers: the part of the path with this number.
    Program(u16),
    /// An embedded application needs it.
    Application(Box<ApplicationRequest>),
}

impl Phase {
    /// Whether the connection waits for a helper.
    pub fn waits_for_a_helper(&self) -> bool {
        matches!(
            self,
            Self::AwaitLookup(..)
                | Self::AwaitListing(_)
                | Self::AwaitContent(..)
                | Self::AwaitJob(..)
                | Self::AwaitChunk(_)
        )
    }

    /// The request in progress.
    pub fn request(&self) -> Option<&Request> {
        match self {
            Self::Handshake | Self::Http2 | Self::AwaitHead | Self::AwaitTurn | Self::Linger => {
                None
            }
            Self::Exchange(exchange) => Some(&exchange.request),
            Self::AwaitBody(request, ..)
            | Self::AwaitLookup(request, _)
            | Self::AwaitListing(request)
            | Self::AwaitContent(request, ..)
            | Self::AwaitJob(request, _)
            | Self::AwaitChunk(request)
            | Self::AwaitSend(request) => Some(request),
        }
    }

    /// Takes the request out of a phase.
    pub fn into_request(self) -> Option<Box<Request>> {
        match self {
            Self::Handshake | Self::Http2 | Self::AwaitHead | Self::AwaitTurn | Self::Linger => {
                None
            }
            Self::Exchange(exchange) => Some(exchange.request),
            Self::AwaitBody(request, ..)
            | Self::AwaitLookup(request, _)
            | Self::AwaitListing(request)
            | Self::AwaitContent(request, ..)
            | Self::AwaitJob(request, _)
            | Self::AwaitChunk(request)
            | Self::AwaitSend(request) => Some(request),
        }
    }
}

/// A handler that another one leaves the request to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delegate {
    /// The listing of the directory.
    Listing,
    /// The redirect of a directory to its path with a final slash.
    DirectoryRedirect,
    /// The redirect of a path that ends in `.html` to the one without.
    CleanRedirect,
    /// The redirect of this location.
    LocationRedirect(usize),
    /// The embedded application at this location.
    Application(usize),
}

/// What happens to a connection after a step of its request.
pub enum Next {
    /// The response has been sent; the next request may follow.
    Finished(Box<Request>),
    /// The connection waits.
    Wait(Phase),
    /// A handler has made a new request of this one, or the router must decide again.
    Start(Box<Request>),
    /// Another handler answers: what the path names is not for the one that looked.
    Delegate(Box<Request>, Delegate),
    /// The last response has been sent, but the client may still be sending.
    Linger,
    /// The connection must close. A response that was begun is logged.
    Close(Option<Box<Request>>),
}

/// What is known about a connection that comes from a trusted proxy.
#[derive(Clone, Copy, Debug)]
pub struct BehindProxy {
    /// The sender of the requests: the proxy, or the client that its PROXY header names.
    pub sender: SocketAddr,
    /// Whether the sender is itself a trusted proxy, so that its header names the client.
    pub is_trusted: bool,
    /// Whether the PROXY header has still to come.
    pub awaits_header: bool,
    /// The address that the limit of connections counts, once the PROXY header has named it.
    pub counted: Option<IpAddr>,
}

/// HTTP/2 on a connection.
pub struct Multiplexed {
    /// The frames.
    pub session: Session,
    /// The connections which represent its requests.
    pub streams: Vec<Token>,
    /// Those which can continue.
    pub ready: ReadyStreams,
    /// The number of requests of the client's address, if it has a limit.
    pub share: Option<Rc<Cell<u64>>>,
    /// What its deadline is for.
    pub waits_for: Option<SessionWait>,
}

/// What a connection with HTTP/2 waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionWait {
    /// The first request.
    FirstRequest,
    /// The next request, after responses to all before.
    NextRequest,
    /// Its requests, which have deadlines of their own.
    Requests,
    /// Room for its frames in the socket.
    Room,
}

/// A request of a client that speaks HTTP/2.
pub struct StreamOf {
    /// The client's connection.
    pub parent: Token,
    /// The request and its response.
    pub stream: Stream,
    /// The request's entry in the number of requests of the client's address.
    pub share: Option<Charge>,
}

/// One client connection.
pub struct Connection {
    /// The socket, non-blocking.
    pub socket: Rc<OwnedFd>,
    /// TLS, if the connection speaks it.
    pub tls: Option<Box<Client>>,
    /// Whether the client's requests come by TLS.
    pub is_secure: bool,
    /// The result of the handshake, for programs, upstreams and logs.
    pub tls_summary: Option<Rc<Summary>>,
    /// HTTP/2, if the client speaks it.
    pub http2: Option<Box<Multiplexed>>,
    /// One request of a client that speaks HTTP/2, which this connection represents.
    pub stream: Option<Box<StreamOf>>,
    /// The address of the client, as far as it is known. From request to request it may be another one
    /// when they come from a trusted proxy; its port is then 0.
    pub client: SocketAddr,
    /// The number of the address at which the client has connected, among those of the configuration.
    pub listener: u32,
    /// The stages of the current request.
    pub stages: StageClock,
    /// `None` for a connection that does not come from a trusted proxy.
    pub behind_proxy: Option<Box<BehindProxy>>,
    /// The origin of the current request, if its response has to name it.
    pub origin: Option<Rc<[u8]>>,
    /// The local address, looked up once a handler needs it.
    pub local: OnceCell<Box<SocketAddr>>,
    /// Identifies the connection in events and helper answers.
    pub token: Token,
    /// The registered event interest; `None` while the socket is not registered.
    pub interest: Option<Interest>,
    /// What the connection is waiting for.
    pub phase: Phase,
    /// Input that has been received and not consumed.
    pub rx_buffer: Vec<u8>,
    /// Whether a part of a header has arrived, so that the header timeout runs.
    pub header_partial: bool,
    /// When its first byte arrived, in microseconds of the loop's clock.
    pub header_since_us: u64,
    /// How many bytes of that part were there when it was last parsed.
    pub parsed_bytes: u32,
    /// A program has been passed the socket, and may still have it.
    pub handed_off: bool,
    /// A program has had the socket, and may have changed its flags.
    pub was_passed: bool,
    /// More input may have come than was read: the connection has waited for something else.
    pub may_have_input: bool,
    /// The part of the current response that has not been sent.
    pub outgoing: Outgoing,
    /// Whether the connection stays open after the current response.
    pub keep_alive: bool,
    /// Whether the connection is in the run queue because its write quantum was used up.
    pub is_queued: bool,
    /// How many bytes the socket is likely to accept in one call; 0 if unknown.
    pub write_size_hint: u32,
    /// The number of requests answered.
    pub requests: u32,
    /// Bytes discarded during the lingering close.
    pub lingered_bytes: usize,
}

impl Connection {
    /// A connection that has just been accepted.
    pub fn new(socket: OwnedFd, client: SocketAddr, token: Token) -> Self {
        Connection::of_socket(Rc::new(socket), client, token)
    }

    fn of_socket(socket: Rc<OwnedFd>, client: SocketAddr, token: Token) -> Self {
        Self {
            socket,
            tls: None,
            is_secure: false,
            tls_summary: None,
            http2: None,
            stream: None,
            client,
            listener: 0,
            stages: StageClock::default(),
            behind_proxy: None,
            origin: None,
            local: OnceCell::new(),
            token,
            interest: None,
            phase: Phase::AwaitHead,
            rx_buffer: Vec::new(),
            header_partial: false,
            header_since_us: 0,
            parsed_bytes: 0,
            handed_off: false,
            was_passed: false,
            may_have_input: false,
            outgoing: Outgoing::default(),
            keep_alive: true,
            is_queued: false,
            write_size_hint: 0,
            requests: 0,
            lingered_bytes: 0,
        }
    }

    /// A connection which represents one request of a client that speaks HTTP/2.
    pub fn of_stream(parent: &Connection, stream: Stream, token: Token) -> Self {
        let mut connection = Connection::of_socket(parent.socket.clone(), parent.client, token);
        connection.behind_proxy = parent.behind_proxy.clone();
        connection.listener = parent.listener;
        connection.is_secure = parent.is_secure;
        connection.tls_summary = parent.tls_summary.clone();
        connection.stream = Some(Box::new(StreamOf {
            parent: parent.token,
            stream,
            share: parent
                .http2
                .as_ref()
                .and_then(|one| Some(Charge::new(one.share.as_ref()?, 1))),
        }));
        connection
    }

    /// Whether the client is an HTTP/2 suspect: it sends many bytes without effect, so others are served first.
    pub fn is_suspect(&self) -> bool {
        let session = self.http2.as_ref().map(|one| &one.session);
        session.is_some_and(Session::is_suspect)
    }

    /// Has the connection speak TLS.
    pub fn begin_tls(&mut self) {
        self.tls = Some(Box::default());
        self.is_secure = true;
        self.phase = Phase::Handshake;
    }

    /// A response is cut off: over TLS its end is not marked.
    pub fn cut_tls(&mut self) {
        if let Some(client) = &mut self.tls {
            client.cut();
        }
    }

    /// Whether the connection must close after the response in progress, because it cannot get new keys.
    pub fn must_end(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.must_end())
    }

    /// Whether something of the response is not in the socket yet.
    pub fn has_unsent(&self) -> bool {
        !self.outgoing.pieces.is_empty() || self.tls.as_ref().is_some_and(|tls| tls.has_unsent())
    }

    /// Whether there is input for which no event will come, because it has been received already.
    pub fn has_received(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_input())
    }

    /// Whether a stream of HTTP/2 has input, or a connection has received some already.
    pub fn has_unread(&mut self) -> bool {
        match &mut self.stream {
            Some(of) => of.stream.has_input(),
            None => self.has_received(),
        }
    }

    /// Has the connection come from a trusted proxy.
    pub fn come_from_proxy(&mut self, awaits_header: bool) {
        self.behind_proxy = Some(Box::new(BehindProxy {
            sender: self.client,
            is_trusted: true,
            awaits_header,
            counted: None,
        }));
    }

    /// Whether the PROXY header has still to come.
    pub fn awaits_proxy_header(&self) -> bool {
        let behind = self.behind_proxy.as_ref();
        behind.is_some_and(|behind| behind.awaits_header)
    }

    /// The sender of the requests: the client, or a proxy between it and the server.
    pub fn sender(&self) -> SocketAddr {
        let behind = self.behind_proxy.as_ref();
        behind.map_or(self.client, |behind| behind.sender)
    }

    /// Forgets whose request the last one was, since the next one may be of another client.
    pub fn forget_client(&mut self) {
        if let Some(behind) = &self.behind_proxy {
            self.client = behind.sender;
        }
    }

    /// Whether the sender is a trusted proxy, so that what it says of its client is believed.
    pub fn has_trusted_sender(&self) -> bool {
        let behind = self.behind_proxy.as_ref();
        behind.is_some_and(|behind| behind.is_trusted)
    }

    /// The address that the limit of connections per address counts. A trusted proxy is not limited, and a
    /// client of a Unix socket has none.
    pub fn counted_address(&self) -> Option<IpAddr> {
        match &self.behind_proxy {
            Some(behind) => behind.counted,
            None => Some(self.client.ip()).filter(|address| *address != UNIX_CLIENT),
        }
    }

    /// Whether the connection waits for a request of which nothing has arrived.
    pub fn waits_for_request(&self) -> bool {
        match &self.phase {
            Phase::AwaitHead => !self.header_partial,
            Phase::Http2 => self
                .http2
                .as_ref()
                .is_some_and(|one| one.streams.is_empty()),
            _ => false,
        }
    }

    /// Whether the connection is kept alive and waits for its next request.
    pub fn is_idle(&self) -> bool {
        self.waits_for_request() && self.requests > 0
    }

    /// The connection's slot in the table.
    pub fn slot(&self) -> usize {
        self.token.slot() as usize
    }

    /// Identifies the connection to the helper pool, for a job of this request.
    pub fn waiter(&self, request: &Request) -> Waiter {
        Waiter {
            token: self.token.0,
            admitted: request.had_helper || self.outgoing.sent_bytes > 0,
        }
    }

    /// Takes the phase out for one step.
    pub fn take_phase(&mut self) -> Phase {
        std::mem::replace(&mut self.phase, Phase::AwaitHead)
    }

    /// Takes the exchange out of the phase for one step.
    pub fn take_exchange(&mut self) -> Option<Box<Exchange>> {
        match self.take_phase() {
            Phase::Exchange(exchange) => Some(exchange),
            other => {
                self.phase = other;
                None
            }
        }
    }

    /// Stores unconsumed input; an empty slice frees the buffer.
    pub fn stash_input(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            self.rx_buffer = Vec::new();
        } else {
            self.rx_buffer.clear();
            self.rx_buffer.extend_from_slice(bytes);
        }
    }
}
