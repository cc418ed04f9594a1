//! One client connection: its socket, unconsumed input, pending output and deadline. The worker
//! moves it from phase to phase; nothing is decided here.
//!
//! An idle connection owns no buffer: requests are received into the worker's scratch buffer, and
//! only input that cannot be processed at once is copied here. This keeps 10,000 idle keep-alive
//! connections cheap.

mod application_request;
mod body;
mod exchange;
mod table;

use std::cell::OnceCell;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use crate::request::{Entry, LogRecord, MethodLabel, Outgoing};
use headway_event::{Interest, Token};
use headway_files::{RootId, Waiter};
use headway_gateway::FieldList;

pub use application_request::{ApplicationRequest, ApplicationStage};
pub use body::Body;
pub use exchange::{
    Channel, Download, Exchange, Reader, Stage, UpgradedConn, Upload, UpstreamConn, UpstreamRequest,
};
pub use table::{CONNECTION, ConnectionTable};

/// What a connection is waiting for.
pub enum Phase {
    /// The next request header.
    Head,
    /// The rest of a request body that is discarded; the header is in `rx_buffer`.
    Body(Body),
    /// A helper that looks up the path or renders a listing; the request is in `rx_buffer`.
    Lookup,
    /// A helper that reads a small file; the request is in `rx_buffer`.
    SmallFile(Rc<Entry>),
    /// A helper that runs an application job; the request is in `rx_buffer`.
    ApplicationJob,
    /// A helper that reads the next chunk of the file being sent.
    Chunk,
    /// Room in the socket's send buffer, or the connection's turn in the run queue.
    Send,
    /// A handler that answers the request; body and response are passed on meanwhile.
    Exchange(Box<Exchange>),
    /// The end of the client's stream, so that the last response is not lost to a reset (RFC 9112,
    /// 9.6).
    Linger,
}

impl Phase {
    /// Whether the connection waits for a helper.
    pub fn waits_for_a_helper(&self) -> bool {
        matches!(
            self,
            Self::Lookup | Self::SmallFile(_) | Self::ApplicationJob | Self::Chunk
        )
    }
}

/// One client connection.
pub struct Connection {
    /// The socket, non-blocking.
    pub socket: OwnedFd,
    /// The client's address.
    pub client: SocketAddr,
    /// The local address, looked up once a handler needs it.
    pub local: OnceCell<Box<SocketAddr>>,
    /// Identifies the connection in events and helper answers.
    pub token: Token,
    /// The registered event interest; `None` while the socket is not registered.
    pub interest: Option<Interest>,
    /// What the connection is waiting for.
    pub phase: Phase,
    /// Input that has been received and not consumed. While a request waits it begins with its
    /// header.
    pub rx_buffer: Vec<u8>,
    /// Whether a part of a header has arrived, so that the header timeout runs.
    pub header_partial: bool,
    /// Whether the body of the buffered request has been read already.
    pub body_read: bool,
    /// The virtual host of the current request; the default host until its header is parsed.
    pub virtual_host: RootId,
    /// The part of the path that a helper was last asked about, to find the program.
    pub program_part: Option<u16>,
    /// The state of a request to the built-in application while it waits for a helper.
    pub application: Option<Box<ApplicationRequest>>,
    /// A program has been passed the socket, and may still have it.
    pub handed_off: bool,
    /// A request of this connection has gone to a handler.
    pub program_asked: bool,
    /// How many internal redirects the current request has had.
    pub redirects: u8,
    /// The headers that the handler sent with its last internal redirect.
    pub accel_fields: Option<Rc<FieldList>>,
    /// A helper has already worked for the current request, so its next job is accepted even if the
    /// queue is full.
    pub admitted: bool,
    /// The part of the current response that has not been sent.
    pub outgoing: Outgoing,
    /// Whether the connection stays open after the current response.
    pub keep_alive: bool,
    /// Whether the connection is in the run queue because its write quantum was used up.
    pub is_queued: bool,
    /// The chunk last requested from a helper and the number of requests for it in a row. Memory
    /// pressure may evict a chunk before it can be sent.
    pub requested_chunk: (u64, u8),
    /// How many bytes the socket is likely to accept in one call; 0 if unknown.
    pub write_size_hint: u32,
    /// Method of the current request, for the metrics.
    pub method: MethodLabel,
    /// The number of requests answered.
    pub requests: u32,
    /// Bytes discarded during the lingering close.
    pub lingered_bytes: usize,
    /// What the access log needs of a request that is not answered yet.
    pub record: Option<Box<LogRecord>>,
    /// When the header of the current request was complete; set only if there is an access log.
    pub started: Option<Instant>,
}

impl Connection {
    /// A connection that has just been accepted.
    pub fn new(socket: OwnedFd, client: SocketAddr, token: Token) -> Self {
        Self {
            socket,
            client,
            local: OnceCell::new(),
            token,
            interest: None,
            phase: Phase::Head,
            rx_buffer: Vec::new(),
            header_partial: false,
            body_read: false,
            virtual_host: RootId(0),
            program_part: None,
            application: None,
            handed_off: false,
            program_asked: false,
            redirects: 0,
            accel_fields: None,
            admitted: false,
            outgoing: Outgoing::default(),
            keep_alive: true,
            is_queued: false,
            requested_chunk: (0, 0),
            write_size_hint: 0,
            method: MethodLabel::Other,
            requests: 0,
            lingered_bytes: 0,
            record: None,
            started: None,
        }
    }

    /// Whether the connection is kept alive and waits for its next request.
    pub fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Head) && !self.header_partial && self.requests > 0
    }

    /// The connection's slot in the table.
    pub fn slot(&self) -> usize {
        self.token.slot() as usize
    }

    /// Identifies the connection to the helper pool.
    pub fn waiter(&self) -> Waiter {
        Waiter {
            token: self.token.0,
            admitted: self.admitted || self.outgoing.sent_bytes > 0,
        }
    }

    /// Resets the state of the current request after its response.
    pub fn end_request(&mut self) {
        self.outgoing.clear();
        self.requested_chunk = (0, 0);
        (self.virtual_host, self.admitted) = (RootId(0), false);
        (self.program_part, self.application) = (None, None);
        (self.redirects, self.accel_fields) = (0, None);
        self.requests += 1;
    }

    /// Takes the exchange out of the phase for one step.
    pub fn take_exchange(&mut self) -> Option<Box<Exchange>> {
        match std::mem::replace(&mut self.phase, Phase::Head) {
            Phase::Exchange(exchange) => Some(exchange),
            other => {
                self.phase = other;
                None
            }
        }
    }

    /// Counts a request for the chunk at `offset` and returns the number in a row.
    pub fn count_chunk_request(&mut self, offset: u64) -> u8 {
        let (last, times) = self.requested_chunk;
        let times = if last == offset {
            times.saturating_add(1)
        } else {
            1
        };
        self.requested_chunk = (offset, times);
        times
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
