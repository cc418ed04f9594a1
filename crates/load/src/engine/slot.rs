//! A slot holds one connection: a client of a closed loop, or a connection of an open one.

use std::os::fd::OwnedFd;

use headway_event::Interest;

use super::bandwidth::Bucket;
use super::conversation::Client;
use super::response::Response;
use super::tls_session::TlsSession;

/// What a slot is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing, and it has no connection.
    Free,
    /// A closed-loop client between requests, without a connection; a timer starts its next
    /// request.
    Paused,
    /// An open connection without a request. In a closed loop a timer starts the next request.
    Idle,
    /// A request waits for its connection (without a socket: for the timer that dials again).
    Connecting,
    /// The TLS handshake of its connection.
    Handshaking,
    /// The connection is established, and its first request waits for a timer.
    FirstPause,
    /// A part of a request has left.
    Sending,
    /// The request has left.
    Receiving,
}

/// A request on its way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request {
    pub intended_ns: u64,
    pub start_ns: u64,
    /// 0 until a byte came.
    pub first_byte_ns: u64,
    /// How long the TLS handshake of its connection took; 0 without one.
    pub handshake_ns: u64,
    pub document: u32,
    pub target: u8,
    /// The request is sent for the second time, over HTTP/2.
    pub is_retried: bool,
}

/// The connection and the stream of a slot's request, over HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamPlace {
    /// The index of the connection.
    pub connection: u32,
    /// 0 while it waits for a stream.
    pub id: u32,
    /// Whether the connection had completed a response when the request was sent.
    pub is_kept: bool,
}

/// A request of an open loop that waits for a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub intended_ns: u64,
    pub document: u32,
    pub target: u8,
}

#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    pub phase: Phase,
    pub socket: Option<OwnedFd>,
    /// The stream over HTTP/2. There connections are shared, so this slot does not use its own connection.
    pub stream: Option<StreamPlace>,
    /// TLS, if its connection has it.
    pub tls: Option<Box<TlsSession>>,
    /// What the events are asked for; `None`: it is not registered.
    pub interest: Option<Interest>,
    /// Incremented with every connection, so that a late event of an old connection is ignored.
    pub generation: u32,
    /// The target of its connection.
    pub target: u8,
    /// The connection's number in the run.
    pub connection: u32,
    /// The request's number on its connection, from 0.
    pub ordinal: u32,
    /// Requests that its connection carries; `None` is as many as the server lets it.
    pub carries: Option<u32>,
    /// Bytes of the request that have left, or have been sealed.
    pub sent_bytes: usize,
    /// Index among the idle slots of the target.
    pub idle_at: u32,
    /// Its client pauses in the middle of a flow, so the slot is not for other requests.
    pub pauses_in_flow: bool,
    /// Connections that could not be opened, one after the other.
    pub failures: u32,
    pub request: Request,
    pub response: Response,
    pub bucket: Bucket,
    /// The client that chooses requests and judges responses; `None` if all clients are alike.
    pub client: Option<Box<dyn Client>>,
}

impl ConnectionSlot {
    pub(super) fn new() -> ConnectionSlot {
        ConnectionSlot::of(None)
    }

    /// The slot of a client that judges its responses, or of one like all others.
    pub(super) fn of(client: Option<Box<dyn Client>>) -> ConnectionSlot {
        let mut response = Response::new();
        response.has_reader = client.is_some();
        ConnectionSlot {
            phase: Phase::Free,
            socket: None,
            stream: None,
            tls: None,
            interest: None,
            generation: 0,
            target: 0,
            connection: u32::MAX,
            ordinal: 0,
            carries: None,
            sent_bytes: 0,
            idle_at: 0,
            pauses_in_flow: false,
            failures: 0,
            request: Request::default(),
            response,
            bucket: Bucket::default(),
            client,
        }
    }

    /// Whether its request is the last one of its connection.
    pub(super) fn is_last(&self) -> bool {
        self.carries.is_some_and(|most| self.ordinal + 1 >= most)
    }

    /// Whether a request is on its way.
    pub(super) fn is_busy(&self) -> bool {
        matches!(
            self.phase,
            Phase::Connecting
                | Phase::Handshaking
                | Phase::FirstPause
                | Phase::Sending
                | Phase::Receiving
        )
    }

    /// Whether its connection is not established yet.
    pub(super) fn is_opening(&self) -> bool {
        matches!(self.phase, Phase::Connecting | Phase::Handshaking)
    }
}
