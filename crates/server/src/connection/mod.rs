//! One client: its socket, what it has sent that is not consumed yet, what it is owed, and the
//! deadline that applies. It refuses to decide anything: `worker.rs` moves it from phase to phase.
//!
//! An idle connection owns no buffer: requests are received into the worker's scratch buffer and
//! only what cannot be answered at once is copied here. That is what keeps ten thousand idle
//! keep-alive clients cheap.

mod body;
mod exchange;
mod slots;
mod turn;

use std::cell::OnceCell;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use crate::request::{Entry, LogRecord, Outgoing};
use headway_event::{Interest, Token};
use headway_files::{RootId, Waiter};
use headway_gateway::FieldList;

pub use body::Body;
pub use exchange::{Channel, Download, Exchange, Line, Peer, Reader, Stage, Tunnel, Upload};
pub use slots::{CONNECTION, Slots};
pub use turn::{Turn, TurnStage};

/// What a connection waits for.
pub enum Phase {
    /// The client's next request head.
    Head,
    /// The rest of a request body that is read and thrown away; the head is held.
    Body(Body),
    /// A helper that resolves the name or makes the directory's page; the head is held.
    Name,
    /// A helper that reads in a small file; the head is held.
    Content(Rc<Entry>),
    /// A helper on an errand of the application that answers; the head is held.
    Errand,
    /// A helper that reads in the next window of the file being sent.
    Window,
    /// Room in the socket, or this connection's next turn.
    Send,
    /// A program that answers the request, while the request's body and the reply pass each other.
    Exchange(Box<Exchange>),
    /// The client's end of stream, so that our last reply is not lost to a reset (RFC 9112, 9.6).
    Linger,
}

impl Phase {
    /// A helper has been asked for what comes next.
    pub fn waits_for_a_helper(&self) -> bool {
        matches!(
            self,
            Self::Name | Self::Content(_) | Self::Errand | Self::Window
        )
    }
}

/// One client.
pub struct Connection {
    /// The socket, non-blocking.
    pub socket: OwnedFd,
    /// The client's address, for the log.
    pub peer: SocketAddr,
    /// Our own, when a program has had to be told it: it stays the same.
    pub local: OnceCell<Box<SocketAddr>>,
    /// How events and helpers name this connection.
    pub token: Token,
    /// What the event mechanism was last told; `None` while it does not know the socket.
    pub interest: Option<Interest>,
    /// What it waits for.
    pub phase: Phase,
    /// Bytes received and not consumed. While a request waits they begin with its head.
    pub held: Vec<u8>,
    /// Part of a head has arrived and its deadline runs.
    pub partial: bool,
    /// The held request's body has been read already.
    pub body_read: bool,
    /// Whose rules hold for the current request: those of the default site until its head is
    /// understood.
    pub site: RootId,
    /// Which part of the path a helper was asked about last, to find out whether it names a
    /// program.
    pub program_part: Option<u16>,
    /// How far the application has come with the current request, while it waits for a helper.
    pub turn: Option<Box<Turn>>,
    /// A program has been given the socket, and may still have it.
    pub lent: bool,
    /// A request of this connection has gone to a program or a back end.
    pub program_asked: bool,
    /// How often in a row a program has sent the current request elsewhere on this server.
    pub redirects: u8,
    /// What the program that did so last says besides the file that is sent in its place.
    pub handed: Option<Rc<FieldList>>,
    /// A helper has worked for the current request, so it keeps its place when it needs one again.
    pub admitted: bool,
    /// What is still owed to the client.
    pub outgoing: Outgoing,
    /// Keep the connection after the current reply.
    pub keep_alive: bool,
    /// It has spent its budget and stands in line for its next turn.
    pub in_line: bool,
    /// The window asked of a helper last for this reply, and how often in a row: memory pressure
    /// may take a window away again before it can be sent.
    pub asked_window: (u64, u8),
    /// What its socket is likely to take at once of a file; 0 while nobody knows.
    pub uptake_bytes: u32,
    /// Requests answered so far.
    pub requests: u32,
    /// Bytes thrown away while lingering.
    pub lingered_bytes: usize,
    /// The log line of a request that could not be answered at once.
    pub record: Option<Box<LogRecord>>,
    /// When the current request's head was complete; kept only if there is a log.
    pub started: Option<Instant>,
}

impl Connection {
    /// A client that has just been accepted.
    pub fn new(socket: OwnedFd, peer: SocketAddr, token: Token) -> Self {
        Self {
            socket,
            peer,
            local: OnceCell::new(),
            token,
            interest: None,
            phase: Phase::Head,
            held: Vec::new(),
            partial: false,
            body_read: false,
            site: RootId(0),
            program_part: None,
            turn: None,
            lent: false,
            program_asked: false,
            redirects: 0,
            handed: None,
            admitted: false,
            outgoing: Outgoing::default(),
            keep_alive: true,
            in_line: false,
            asked_window: (0, 0),
            uptake_bytes: 0,
            requests: 0,
            lingered_bytes: 0,
            record: None,
            started: None,
        }
    }

    /// Its place in the table.
    pub fn slot(&self) -> usize {
        self.token.slot() as usize
    }

    /// How it waits for a helper.
    pub fn waiter(&self) -> Waiter {
        Waiter {
            token: self.token.0,
            admitted: self.admitted || self.outgoing.sent_bytes > 0,
        }
    }

    /// The current request is over.
    pub fn end_request(&mut self) {
        self.outgoing.clear();
        self.asked_window = (0, 0);
        (self.site, self.admitted) = (RootId(0), false);
        (self.program_part, self.turn) = (None, None);
        (self.redirects, self.handed) = (0, None);
        self.requests += 1;
    }

    /// The exchange that is under way, taken out for a step.
    pub fn take_exchange(&mut self) -> Option<Box<Exchange>> {
        match std::mem::replace(&mut self.phase, Phase::Head) {
            Phase::Exchange(exchange) => Some(exchange),
            other => {
                self.phase = other;
                None
            }
        }
    }

    /// Counts that a helper is asked for the window at `offset`; how often in a row is that now?
    pub fn ask_window(&mut self, offset: u64) -> u8 {
        let (last, times) = self.asked_window;
        let times = if last == offset {
            times.saturating_add(1)
        } else {
            1
        };
        self.asked_window = (offset, times);
        times
    }

    /// Keeps `bytes` until they can be consumed; an empty rest gives the memory back.
    pub fn hold(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            self.held = Vec::new();
        } else {
            self.held.clear();
            self.held.extend_from_slice(bytes);
        }
    }
}
