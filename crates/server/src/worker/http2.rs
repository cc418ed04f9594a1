//! HTTP/2 in the worker. The session of a client's connection has the frames. Each request is a [`Connection`] of its
//! own, so handlers serve it like any other request.
//!
//! A stream has no socket. The session is served after frames were received, and after streams have sent something.
//! Then new requests begin, and streams with input or room continue, the most urgent first. The resulting frames are
//! sent with one call. Clients that send many bytes without effect are served last (`suspects`).

use headway_connection::{Connection, Multiplexed, Order, Phase, ReadyStreams, SessionWait};
use headway_event::{Interest, Ready, Token};
use headway_http2::{PREFACE, Priority, Session, Settings};
use rustix::io::Errno;

pub(super) mod shares;
pub(super) mod suspects;

use super::context::LoopContext;
use super::receiving::LINGER_TIMEOUT_MS;
use super::{Disposition, Worker};

/// The most rounds in which a session is served at a time, before other connections get their turn.
const ROUNDS_MAX: usize = 4;
/// The first line of the preface. No request of HTTP/1 begins with it.
const PREFACE_LINE_BYTES: usize = 16;

impl LoopContext {
    /// Makes a connection speak HTTP/2.
    pub(super) fn prepare_http2(&mut self, connection: &mut Connection) {
        let settings = Settings {
            streams_max: self.config.http2_streams_max,
            header_bytes_max: self.config.max_header_bytes as u32,
            // A proxy in front may use plain HTTP for a request that it has received over HTTPS.
            scheme: match connection.is_secure {
                _ if connection.has_trusted_sender() => None,
                true => Some("https"),
                false => Some("http"),
            },
        };
        let mut session = Session::new(settings);
        if self.has_flooded(connection) {
            session.distrust();
        }
        connection.http2 = Some(Box::new(Multiplexed {
            session,
            streams: Vec::new(),
            ready: ReadyStreams::default(),
            share: self.http2_shares.of(connection.counted_address()),
            waits_for: None,
        }));
        self.counters.http2_connections += 1;
        // The client gets GOAWAY at once. A client of HTTP/1 gets `Connection: close` with its first response.
        if self.draining_until_ms.is_some()
            && let Some(multiplexed) = &mut connection.http2
        {
            multiplexed.session.shut_down();
        }
    }

    /// Sets the deadline of a session. Only progress of what the session waits for extends the deadline, so a client
    /// cannot extend it with other frames.
    fn set_session_timeout(
        &mut self,
        connection: &mut Connection,
        waits_for: SessionWait,
        has_progressed: bool,
    ) {
        let Some(multiplexed) = &mut connection.http2 else {
            return;
        };
        let before = multiplexed.waits_for.replace(waits_for);
        if before == Some(waits_for) && !has_progressed {
            return;
        }
        let config = &self.config;
        match waits_for {
            SessionWait::FirstRequest => self.set_timeout(connection, config.header_timeout_ms),
            SessionWait::NextRequest => self.set_timeout(connection, config.idle_timeout_ms),
            SessionWait::Room => self.set_timeout(connection, config.send_timeout_ms),
            SessionWait::Requests => self.deadlines.clear(connection.slot()),
        }
    }

    /// Whether a client of the same address has sent a flood lately.
    pub(super) fn has_flooded(&self, connection: &Connection) -> bool {
        let address = connection.counted_address();
        address.is_some_and(|address| self.suspects.has_flooded(address, self.now_ms))
    }

    /// Lets a suspect wait for its turn. Its socket is not watched meanwhile.
    pub(super) fn defer_suspect(&mut self, connection: &mut Connection) -> Disposition {
        if !std::mem::replace(&mut connection.is_queued, true) {
            self.suspects.waiting.push_back(connection.token);
        }
        match connection.interest {
            Some(_) => self.watch_only(connection, Interest::NONE),
            None => Disposition::Keep,
        }
    }

    /// Sends the TLS records that were encrypted before.
    fn flush_tls(&self, connection: &mut Connection) -> Result<(), Errno> {
        match &mut connection.tls {
            Some(client) => headway_send::flush(client, &connection.socket, &self.tracer).map(drop),
            None => Ok(()),
        }
    }

    /// The event with which a stream can continue, if it can.
    fn next_event(&mut self, stream: Token) -> Option<(Option<Order>, Ready)> {
        let slot = self.connections.find(stream)?;
        self.connections.get(slot).and_then(next_event)
    }

    /// Whether the next turn belongs to the same stream: it is not incremental. Such a response is useful only when it
    /// is complete, so the others wait for its end (RFC 9218, 10).
    fn keeps_turn(&mut self, before: Option<Order>, stream: Token) -> bool {
        let Some(before) = before.filter(|before| !before.is_incremental) else {
            return false;
        };
        let slot = self.connections.find(stream);
        let stream = slot.and_then(|slot| self.connections.get(slot));
        // Only if this turn has sent something, so that the turns end.
        stream.is_some_and(|stream| stream.outgoing.bytes_left() < before.bytes)
    }

    /// Adds a stream to those that can continue, if it can.
    fn add_if_ready(&mut self, connection: &mut Connection, stream: Token) {
        if let Some((order, _)) = self.next_event(stream)
            && let Some(multiplexed) = &mut connection.http2
        {
            multiplexed.ready.insert(order, stream);
        }
    }

    /// Adds the streams of this session that have taken a step of their own.
    fn add_due_streams(&mut self, connection: &mut Connection) {
        let session = connection.token;
        let due = std::mem::take(&mut self.sessions_due);
        for (_, stream) in due.iter().filter(|(parent, _)| *parent == session) {
            self.add_if_ready(connection, *stream);
        }
        self.sessions_due = due;
    }

    /// Asks all streams whether they can continue, if frames may have changed that, if an incremental response should
    /// get another turn, or if no stream is known to. Forgets the streams that have ended.
    fn find_ready_streams(&mut self, connection: &mut Connection) {
        let Some(multiplexed) = &mut connection.http2 else {
            return;
        };
        let has_changed = multiplexed.session.take_changes() || multiplexed.ready.is_stale;
        if !has_changed && multiplexed.ready.next().is_some() {
            return;
        }
        let connections = &mut self.connections;
        multiplexed
            .streams
            .retain(|token| connections.find(*token).is_some());
        let found = multiplexed.streams.iter().filter_map(|token| {
            let stream = connections.get(token.slot() as usize)?;
            let (order, _) = next_event(stream)?;
            Some((order, *token))
        });
        multiplexed.ready.replace(found);
    }

    /// Sends the frames of a session, until the socket is full.
    fn send_frames(&mut self, connection: &mut Connection) -> Result<SentFrames, ()> {
        let Some(mut multiplexed) = connection.http2.take() else {
            return Err(());
        };
        let sealed_bytes = |connection: &Connection| {
            let client = connection.tls.as_ref();
            client.map_or(0, |client| client.unsent().len())
        };
        let sealed_before = sealed_bytes(connection);
        let sent = multiplexed.session.with_output(|output| match output {
            [] => self.flush_tls(connection).map(|()| 0),
            output => self.timed_send(output.len() as u64, |context| {
                context.send_now(connection, output, false)
            }),
        });
        let sent = match sent {
            Ok(bytes) => Ok(bytes),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(_) => Err(()),
        };
        multiplexed.session.sent(sent.unwrap_or(0));
        let has_output = multiplexed.session.has_output();
        connection.http2 = Some(multiplexed);
        let bytes = sent?;
        Ok(SentFrames {
            bytes: bytes as u64,
            has_progressed: bytes > 0 || sealed_bytes(connection) < sealed_before,
            are_all: !has_output && !connection.has_unsent(),
        })
    }
}

/// The result of sending the frames of a session.
struct SentFrames {
    bytes: u64,
    /// Frames were sent, or TLS records that were encrypted before.
    has_progressed: bool,
    /// Nothing is left to send.
    are_all: bool,
}

impl Worker {
    /// Begins HTTP/2 if the client does (RFC 9113, 3.3): its first bytes are not an HTTP/1 request.
    pub(super) fn begin_if_http2(
        &mut self,
        connection: &mut Connection,
        input: &[u8],
    ) -> Option<Disposition> {
        let is_off = self.context.config.http2_streams_max == 0;
        let is_first = connection.requests == 0 && connection.stream.is_none() && !is_off;
        let agrees =
            |bytes: usize| input[..input.len().min(bytes)] == PREFACE[..input.len().min(bytes)];
        if !is_first || input.len() < 4 || !agrees(PREFACE_LINE_BYTES) {
            return None;
        }
        // If the rest of the preface differs, the session reports the error (RFC 9113, 3.4).
        if input.len() < PREFACE.len() && agrees(PREFACE.len()) {
            return Some(self.context.await_head(connection, input));
        }
        self.context.prepare_http2(connection);
        Some(self.begin_http2(connection, input))
    }

    /// Begins HTTP/2 with the first bytes of a client.
    pub(super) fn begin_http2(&mut self, connection: &mut Connection, input: &[u8]) -> Disposition {
        connection.phase = Phase::Http2;
        connection.header_partial = false;
        connection.stash_input(&[]);
        if let Some(multiplexed) = &mut connection.http2 {
            multiplexed.session.feed(input);
        }
        match connection.is_suspect() {
            true => self.context.defer_suspect(connection),
            false => self.serve_session(connection),
        }
    }

    /// Handles an event on the socket of a client that speaks HTTP/2.
    pub(super) fn on_http2_event(
        &mut self,
        connection: &mut Connection,
        event: &Ready,
    ) -> Disposition {
        match event.readable || event.hangup {
            true if connection.is_suspect() => self.context.defer_suspect(connection),
            true => self.receive_frames(connection),
            false => self.serve_session(connection),
        }
    }

    /// Receives frames.
    pub(super) fn receive_frames(&mut self, connection: &mut Connection) -> Disposition {
        let takes_input = |one: &Multiplexed| one.session.takes_input();
        if connection.http2.as_deref().is_some_and(takes_input) {
            let mut scratch = std::mem::take(&mut self.context.scratch);
            let received = self.context.receive_into(connection, &mut scratch);
            if let (Ok(Some(count)), Some(multiplexed)) = (received, &mut connection.http2) {
                multiplexed.session.feed(&scratch[..count]);
            }
            self.context.scratch = scratch;
            if received.is_err() {
                return Disposition::Close;
            }
            if let (true, Some(multiplexed)) = (connection.must_end(), &mut connection.http2) {
                multiplexed.session.shut_down();
            }
        } else if let Some(multiplexed) = &mut connection.http2 {
            multiplexed.session.go_on();
        }
        self.serve_session(connection)
    }

    /// Serves some of the waiting suspects.
    pub(super) fn run_suspects(&mut self) {
        let end_us = self.context.clock.now_us() + suspects::TURN_US_MAX;
        for _ in 0..self.context.suspects.waiting.len() {
            let Some(token) = self.context.suspects.waiting.pop_front() else {
                return;
            };
            if let Some(slot) = self.context.connections.find(token) {
                self.with_connection(slot, Worker::take_turn);
            }
            if self.context.clock.now_us() >= end_us {
                return;
            }
        }
    }

    /// Serves the sessions whose streams have sent something or have ended.
    pub(super) fn serve_sessions(&mut self) {
        while let Some((session, stream)) = self.context.sessions_due.pop() {
            if let Some(slot) = self.context.connections.find(session) {
                self.with_connection(slot, |worker, connection| {
                    worker.context.add_if_ready(connection, stream);
                    worker.serve_session(connection)
                });
            }
        }
    }

    /// Continues all streams that can continue, and sends their frames.
    fn serve_session(&mut self, connection: &mut Connection) -> Disposition {
        // A stream may have ended after its session.
        if !matches!(connection.phase, Phase::Http2) {
            return Disposition::Keep;
        }
        let (mut is_sent, mut has_sent) = (true, false);
        let requests = connection.requests;
        self.context.add_due_streams(connection);
        // Processes the input first, because WINDOW_UPDATE may give streams room.
        self.begin_requests(connection);
        for round in 0.. {
            let served = self.serve_streams(connection);
            // Processes the rest of the input, and begins the requests in it.
            let begun = self.begin_requests(connection);
            let Ok(sent) = self.context.send_frames(connection) else {
                return Disposition::Close;
            };
            is_sent = sent.are_all;
            has_sent |= sent.has_progressed;
            let is_sealed = connection.tls.is_some();
            self.context.sender.count_sent(sent.bytes, is_sealed);
            // Continues while the sent frames have made room.
            if !is_sent || !(served || begun || sent.bytes > 0) {
                break;
            }
            if round == ROUNDS_MAX || self.context.sender.is_round_full() {
                self.context.queue_turn(connection);
                break;
            }
        }
        // The streams need no other round for what they have sent meanwhile.
        let token = connection.token;
        self.context.sessions_due.retain(|(due, _)| *due != token);
        let Some(multiplexed) = &connection.http2 else {
            return Disposition::Close;
        };
        let session = &multiplexed.session;
        // A flooding client does not have to receive its GOAWAY.
        if session.is_over() && is_sent || session.has_flooded() {
            return self.end_session(connection);
        }
        let withholds = multiplexed.session.withholds();
        let reads = multiplexed.session.takes_input();
        let is_idle = multiplexed.streams.is_empty();
        self.context.watch(
            connection,
            match (reads, is_sent) {
                (true, true) => Interest::READ,
                (true, false) => Interest::BOTH,
                (false, true) if withholds => Interest::NONE,
                (false, _) => Interest::WRITE,
            },
        );
        if withholds {
            self.context.queue_turn(connection);
        }
        let (waits_for, has_progressed) = match (is_sent, is_idle, connection.requests) {
            (false, ..) => (SessionWait::Room, has_sent),
            (true, false, _) => (SessionWait::Requests, false),
            (true, true, 0) => (SessionWait::FirstRequest, false),
            (true, true, now) => (SessionWait::NextRequest, now > requests),
        };
        self.context
            .set_session_timeout(connection, waits_for, has_progressed);
        Disposition::Keep
    }

    /// Closes a connection whose session is over, or puts it into the tarpit after a flood. The session is freed
    /// at once.
    fn end_session(&mut self, connection: &mut Connection) -> Disposition {
        let Some(multiplexed) = connection.http2.take() else {
            return Disposition::Close;
        };
        for stream in &multiplexed.streams {
            if let Some(slot) = self.context.connections.find(*stream) {
                self.close(slot);
            }
        }
        if !multiplexed.session.has_flooded() {
            return self.context.linger_close(connection, true);
        }
        let context = &mut self.context;
        context.counters.http2_connections_flooded += 1;
        if let Some(address) = connection.counted_address() {
            context.suspects.note(address, context.now_ms);
        }
        connection.phase = Phase::Linger;
        context.set_timeout(connection, LINGER_TIMEOUT_MS);
        let most = context.config.max_connections;
        match context.suspects.hold(connection.token, most) {
            Some(oldest) if oldest == connection.token => return Disposition::Close,
            Some(oldest) => {
                if let Some(slot) = context.connections.find(oldest) {
                    self.close(slot);
                }
            }
            None => {}
        }
        self.context.watch_only(connection, Interest::NONE)
    }

    /// Processes the input and begins the new requests. Returns whether there were any.
    fn begin_requests(&mut self, connection: &mut Connection) -> bool {
        let mut any = false;
        while let Some(multiplexed) = &mut connection.http2
            && let Some((head, stream)) = multiplexed.session.next_request()
        {
            any = true;
            let context = &mut self.context;
            context.counters.http2_streams += 1;
            let answered = context.connections.streams();
            if !context
                .http2_shares
                .has_room(multiplexed.share.as_ref(), answered)
            {
                stream.refuse();
                context.counters.http2_streams_refused += 1;
                continue;
            }
            connection.requests = connection.requests.saturating_add(1);
            if context.config.max_requests_per_connection == connection.requests {
                multiplexed.session.shut_down();
            }
            let slot = self
                .context
                .connections
                .insert(|token| Connection::of_stream(connection, stream, token));
            if let Some(of_stream) = self.context.connections.get(slot) {
                let token = of_stream.token;
                if let Some(multiplexed) = &mut connection.http2 {
                    multiplexed.streams.push(token);
                }
                self.with_connection(slot, |worker, stream| worker.handle_requests(stream, &head));
                self.context.add_if_ready(connection, token);
            }
        }
        any
    }

    /// Continues streams that have input or room, until the session has no more room. Returns whether there were any.
    fn serve_streams(&mut self, connection: &mut Connection) -> bool {
        self.context.find_ready_streams(connection);
        let mut any = false;
        while let Some(multiplexed) = &mut connection.http2
            && let Some((order, token)) = multiplexed.ready.next()
            && (order.is_none() || multiplexed.session.has_room())
        {
            let Some((order, event)) = self.context.next_event(token) else {
                multiplexed.ready.remove_next();
                continue;
            };
            self.serve_stream(&event);
            any = true;
            if !self.context.keeps_turn(order, token) {
                multiplexed.ready.remove_next();
                multiplexed.ready.is_stale |= order.is_some_and(|order| order.is_incremental);
            }
        }
        any
    }

    /// Continues a stream.
    fn serve_stream(&mut self, event: &Ready) {
        if let Some(slot) = self.context.connections.find(event.token) {
            self.with_connection(slot, |worker, stream| match event.hangup {
                // The client has cancelled it.
                true => Disposition::Close,
                false => worker.on_event(stream, event),
            });
        }
    }

    /// Called when the worker ends. Sends GOAWAY; the connection closes when its requests are answered.
    pub(super) fn end_http2(&mut self, connection: &mut Connection) -> Disposition {
        if let Some(multiplexed) = &mut connection.http2 {
            multiplexed.session.shut_down();
        }
        self.serve_session(connection)
    }
}

/// The event with which a stream can continue. If it can send, also its sort key.
fn next_event(connection: &mut Connection) -> Option<(Option<Order>, Ready)> {
    let of = connection.stream.as_mut()?;
    let token: Token = connection.token;
    let event = |readable, writable, hangup| Ready {
        token,
        readable,
        writable,
        hangup,
    };
    if of.stream.is_reset() {
        return Some((None, event(false, false, true)));
    }
    let interest = connection.interest?;
    let reads = matches!(interest, Interest::READ | Interest::BOTH);
    if reads && of.stream.has_input() {
        return Some((None, event(true, false, false)));
    }
    let writes = matches!(interest, Interest::WRITE | Interest::BOTH);
    if writes && of.stream.can_send() {
        let Priority {
            urgency,
            is_incremental,
        } = of.stream.priority();
        let order = Order {
            urgency,
            bytes: match is_incremental {
                // Otherwise the one that is ahead would be the next one again.
                true => connection.outgoing.sent_bytes,
                false => connection.outgoing.bytes_left(),
            },
            is_incremental,
        };
        return Some((Some(order), event(false, true, false)));
    }
    None
}
