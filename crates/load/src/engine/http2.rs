//! Requests over HTTP/2: streams, and the connections that carry them.
//!
//! As over HTTP/1.1, a slot is a client with one request. `--streams` neighbouring slots are a group, and the requests
//! of a group share one connection. A connection drains after GOAWAY, after its number of requests, or after a
//! cancelled request. Then the next request of the group opens another connection, and the old one closes after its
//! last stream.
//!
//! A request is sent once more if the server has not processed it (RFC 9113 section 8.7), or if its keep-alive
//! connection was closed before the first byte of the response.
//!
//! The files: `requests` and `hpack` (encoding of requests), `frames` and `session` (the protocol, without I/O),
//! `carrier` (a connection and its socket), `ends` (how requests and connections end).

use headway_event::{Interest, Ready, Token};
use headway_latency::Outcome;
use rustix::io::Errno;

use super::core::Engine;
use super::exchange::RECEIVES_PER_EVENT_MAX;
use super::plan::Plan;
use super::protocol::Protocol;
use super::proxy_header;
use super::slot::{Phase, StreamPlace};
use super::tls_session::TlsSession;

mod carrier;
mod ends;
mod frames;
mod hpack;
mod requests;
mod session;

use carrier::{Carrier, Received, State};
use ends::Loss;
use requests::RequestFrames;
use session::{Receiver, StreamEnd};

pub(super) use requests::{HEADER_BYTES_MAX, header_bytes};

/// The kind of the tokens of these connections. The tokens of slots have the kind 0.
pub(super) const TOKEN_KIND: u8 = 1;

/// The connections of a run.
#[derive(Debug)]
pub(crate) struct Http2 {
    requests: RequestFrames,
    /// Slots per group.
    streams: u32,
    carriers: Vec<Carrier>,
    free: Vec<u32>,
    /// For each group: the connection for its new requests.
    current: Vec<Option<u32>>,
    /// Streams that have ended and must still be recorded. It is empty except while received bytes are processed.
    ended: Vec<(u32, StreamEnd)>,
}

impl Http2 {
    /// `None` if the plan is for HTTP/1.1.
    pub(super) fn of(plan: &Plan) -> Option<Box<Http2>> {
        let Protocol::Http2 { streams } = plan.protocol else {
            return None;
        };
        Some(Box::new(Http2 {
            requests: RequestFrames::new(plan),
            streams,
            carriers: Vec::new(),
            free: Vec::new(),
            current: Vec::new(),
            ended: Vec::new(),
        }))
    }

    fn current(&self, group: u32) -> Option<u32> {
        self.current.get(group as usize).copied().flatten()
    }

    /// Whether a slot's request needs no new connection.
    pub(super) fn has_connection(&self, slot: u32) -> bool {
        self.current(slot / self.streams).is_some()
    }

    /// Inserts a new connection for the requests of its group. Returns its index.
    fn insert(&mut self, mut carrier: Carrier) -> u32 {
        let group = carrier.group as usize;
        let at = match self.free.pop() {
            Some(at) => {
                let place = &mut self.carriers[at as usize];
                carrier.generation = place.generation.wrapping_add(1);
                *place = carrier;
                at
            }
            None => {
                self.carriers.push(carrier);
                self.carriers.len() as u32 - 1
            }
        };
        if self.current.len() <= group {
            self.current.resize(group + 1, None);
        }
        self.current[group] = Some(at);
        at
    }
}

impl Engine<'_> {
    fn http2(&mut self) -> &mut Http2 {
        self.http2.as_mut().expect("the plan asks for HTTP/2")
    }

    fn carrier(&mut self, at: u32) -> &mut Carrier {
        &mut self.http2().carriers[at as usize]
    }

    /// Starts a stream for the slot's request, now or as soon as the connection allows one.
    pub(super) fn join(&mut self, index: u32) {
        let http2 = self.http2();
        let group = index / http2.streams;
        match http2.current(group) {
            Some(at) => {
                self.wait_on(index, at);
                self.advance_unless_corked(at);
            }
            None => self.open(index, group),
        }
    }

    /// Queues the slot's request on a connection.
    fn wait_on(&mut self, index: u32, at: u32) {
        let carrier = self.carrier(at);
        carrier.session.waiting.push_back(index);
        let (number, is_open) = (carrier.number, carrier.state == State::Open);
        let slot = self.slot(index);
        slot.stream = Some(StreamPlace {
            connection: at,
            id: 0,
            is_kept: false,
        });
        slot.connection = number;
        slot.ordinal = 0;
        slot.phase = match is_open {
            true => Phase::Sending,
            false => Phase::Connecting,
        };
    }

    /// Opens a connection for the slot's request.
    fn open(&mut self, index: u32, group: u32) {
        self.slot(index).ordinal = 0;
        let Some(socket) = self.connect(index) else {
            return;
        };
        let target = usize::from(self.slot(index).request.target);
        let is_local = self.dialers[target].is_local();
        let number = self.part.number(self.counters.connections_opened);
        self.counters.opened();
        let tls = self.plan.targets[target].tls.as_ref();
        let (version, peer) = (self.plan.proxy_version, &self.plan.targets[target].address);
        let before = version.map(|version| proxy_header::of_socket(version, &socket, peer));
        let mut before = before.unwrap_or_default();
        let tls = tls.map(|client| Box::new(TlsSession::new(client, std::mem::take(&mut before))));
        let carries = self.plan.requests_per_connection;
        let mut carrier = Carrier::new(socket, tls, carries, group, number, index);
        carrier.session.begin_with(before);
        let at = self.http2().insert(carrier);
        self.wait_on(index, at);
        match is_local {
            true => self.advance(at),
            false => self.poll_carrier(at, Interest::WRITE),
        }
    }

    /// Handles an event on a connection.
    pub(super) fn on_carrier_event(&mut self, event: Ready) {
        let at = event.token.slot();
        let carrier = self.carrier(at);
        let same = Token::new(TOKEN_KIND, at, carrier.generation) == event.token;
        if !same || carrier.socket.is_none() {
            return;
        }
        match carrier.state {
            State::Connecting => self.advance(at),
            _ if event.readable || event.hangup => self.receive_frames(at),
            _ => self.advance(at),
        }
    }

    fn poll_carrier(&mut self, at: u32, interest: Interest) {
        let Some(http2) = &mut self.http2 else { return };
        let carrier = &mut http2.carriers[at as usize];
        if !carrier.poll_for(&mut self.events, at, interest) {
            self.lose(at, Loss::Unpolled);
        }
    }

    fn advance_unless_corked(&mut self, at: u32) {
        if !self.carrier(at).is_corked {
            self.advance(at);
        }
    }

    /// Sends what can be sent: the handshake, the preface, requests.
    fn advance(&mut self, at: u32) {
        let now_ns = self.now_ns;
        let carrier = self.carrier(at);
        let is_connecting = carrier.state == State::Connecting;
        if let (true, Some(tls)) = (is_connecting, &mut carrier.tls) {
            carrier.state = State::Handshaking;
            if let Err(error) = tls.begin(now_ns) {
                return self.lose(at, Loss::Tls(crate::tls::explain(&error)));
            }
        }
        loop {
            if self.carrier(at).state == State::Open {
                self.start_streams(at);
            }
            let carrier = self.carrier(at);
            match carrier.flush() {
                Ok(true) => {}
                Ok(false) if carrier.state == State::Connecting => {
                    return self.poll_carrier(at, Interest::WRITE);
                }
                Ok(false) => return self.poll_carrier(at, Interest::BOTH),
                // The server has closed the connection. Its GOAWAY may still be in the receive buffer.
                Err(carrier::FlushError::Socket(Errno::PIPE)) if carrier.state == State::Open => {
                    return self.poll_carrier(at, Interest::READ);
                }
                Err(carrier::FlushError::Socket(error)) => {
                    if is_connecting {
                        carrier.state = State::Connecting;
                    }
                    return self.lose(at, Loss::Failed(error));
                }
                Err(carrier::FlushError::Tls(error)) => {
                    return self.lose(at, Loss::Tls(crate::tls::explain(&error)));
                }
            }
            match carrier.state {
                State::Connecting => self.set_open(at),
                State::Handshaking => return self.poll_carrier(at, Interest::READ),
                State::Open => {
                    let Some(http2) = &mut self.http2 else { return };
                    let session = &mut http2.carriers[at as usize].session;
                    let (slots, common) = (&self.pool.slots, &http2.requests.body);
                    session.put_bodies(|index| match &slots[index as usize].client {
                        Some(client) => client.parts().and_then(|one| one.body).unwrap_or(&[]),
                        None => common,
                    });
                    if session.output().is_empty() {
                        return self.poll_carrier(at, Interest::READ);
                    }
                }
            }
        }
    }

    /// Starts streams for the waiting requests, as many as the server allows.
    fn start_streams(&mut self, at: u32) {
        let Some(http2) = &mut self.http2 else { return };
        let carrier = &mut http2.carriers[at as usize];
        let slots = &mut self.pool.slots;
        loop {
            let is_kept = carrier.session.has_answered;
            let requests = &http2.requests;
            let put = |index: u32, id: u32, out: &mut Vec<u8>| {
                let slot = &slots[index as usize];
                match slot.client.as_ref().and_then(|client| client.parts()) {
                    Some(parts) => requests.put_parts(out, &parts, id),
                    None => requests.put(out, slot.request.document, id),
                }
            };
            let Some((index, id)) = carrier.session.start(put) else {
                break;
            };
            let slot = &mut slots[index as usize];
            slot.phase = Phase::Receiving;
            slot.ordinal = carrier.session.started - 1;
            slot.stream = Some(StreamPlace {
                connection: at,
                id,
                is_kept,
            });
        }
        if carrier.session.is_draining {
            self.retire(at);
        }
    }

    fn receive_frames(&mut self, at: u32) {
        let generation = self.carrier(at).generation;
        for _ in 0..RECEIVES_PER_EVENT_MAX {
            let Some(http2) = &mut self.http2 else { return };
            let received = http2.carriers[at as usize].receive(&mut self.buffer);
            self.update_clock();
            let more = match received {
                Received::Bytes { kept, bytes, more } => {
                    self.counters.bytes += bytes as u64;
                    self.on_bytes(at, kept + bytes);
                    more
                }
                Received::End => return self.lose(at, Loss::End),
                Received::Nothing => return,
                Received::Failed(error) => return self.lose(at, Loss::Failed(error)),
            };
            let carrier = self.carrier(at);
            if !more || carrier.generation != generation || carrier.socket.is_none() {
                return;
            }
        }
    }

    /// Processes the received bytes, records the requests that have ended, and sends more.
    fn on_bytes(&mut self, at: u32, bytes: usize) {
        let Some(http2) = &mut self.http2 else { return };
        let carrier = &mut http2.carriers[at as usize];
        let mut to = Receiver {
            slots: &mut self.pool.slots,
            server: &mut self.counters.server,
            ended: &mut http2.ended,
            now_ns: self.now_ns,
        };
        let (opened, fed) = carrier.feed(&mut self.buffer[..bytes], &mut to);
        let is_closed = carrier.tls.as_ref().is_some_and(|tls| tls.closed);
        let (generation, is_established) = (carrier.generation, carrier.is_established());
        if let Some(code) = carrier.session.goaway.take() {
            let name = frames::error_name(code);
            let why = format!("the server ended the connection with {name}");
            self.http2_failed(Outcome::ClosedEarly, &why);
        }
        if self.carrier(at).session.is_draining {
            self.retire(at);
        }
        self.end_streams(at);
        let carrier = self.carrier(at);
        if carrier.generation != generation || carrier.socket.is_none() {
            return;
        }
        match (opened, fed) {
            (Err(error), _) => self.lose(at, Loss::Tls(crate::tls::explain(&error))),
            (_, Err(broken)) => self.lose(at, Loss::Broken(broken)),
            _ if is_closed => self.lose(at, Loss::End),
            _ if is_established => self.end_carrier_handshake(at),
            _ => self.continue_sending(at),
        }
    }

    fn continue_sending(&mut self, at: u32) {
        self.advance(at);
        self.close_if_done(at);
    }

    /// The TLS handshake is complete. Checks whether the server has chosen HTTP/2.
    fn end_carrier_handshake(&mut self, at: u32) {
        let now_ns = self.now_ns;
        let Some(http2) = &mut self.http2 else { return };
        let carrier = &mut http2.carriers[at as usize];
        let Some(tls) = &carrier.tls else { return };
        if let Err(why) = tls.check_http2() {
            return self.lose(at, Loss::Tls(why));
        }
        let opener = &mut self.pool.slots[carrier.opener as usize];
        // Its request may have timed out meanwhile.
        if opener.stream.is_some_and(|place| place.connection == at) {
            opener.request.handshake_ns = now_ns.saturating_sub(tls.begun_ns).max(1);
        }
        self.counters.count_handshake(tls);
        self.set_open(at);
        self.continue_sending(at);
    }

    /// Allows requests to be sent.
    fn set_open(&mut self, at: u32) {
        let Some(http2) = &mut self.http2 else { return };
        let carrier = &mut http2.carriers[at as usize];
        carrier.state = State::Open;
        for &index in &carrier.session.waiting {
            self.pool.slots[index as usize].phase = Phase::Sending;
        }
    }
}
