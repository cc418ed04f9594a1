//! HTTP/2 in the worker. A client's connection has the frames. Each of its requests is a separate connection,
//! so handlers serve it like any other request.
//!
//! A stream reads and writes no socket. Whenever frames have come, or streams have sent something, the
//! session is served: new requests begin, and streams with input or room continue, the most urgent first.
//! The resulting frames are sent with one call.

use headway_connection::{Connection, Multiplexed, Phase, SessionWait};
use headway_event::{Interest, Ready, Token};
use headway_http2::{PREFACE, Priority, Session, Settings};
use rustix::io::Errno;

use super::context::LoopContext;
use super::{Disposition, Worker};

/// Rounds in which a session is served at a time. Others have their turn then.
const ROUNDS_MAX: usize = 4;

impl LoopContext {
    /// Makes a connection speak HTTP/2.
    pub(super) fn prepare_http2(&mut self, connection: &mut Connection) {
        let settings = Settings {
            streams_max: self.config.http2_streams_max,
            header_bytes_max: self.config.max_header_bytes as u32,
        };
        connection.http2 = Some(Box::new(Multiplexed {
            session: Session::new(settings),
            streams: Vec::new(),
            waits_for: None,
        }));
        self.counters.http2_connections += 1;
        // Its client learns it at once, as one of HTTP/1 does from its first response.
        if self.draining_until_ms.is_some()
            && let Some(multiplexed) = &mut connection.http2
        {
            multiplexed.session.shut_down();
        }
    }

    /// Sets the deadline of a session. Only what it waits for extends it: a client that sends something else
    /// gains nothing.
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

    /// Sends what was sealed before.
    fn flush_tls(&self, connection: &mut Connection) -> Result<(), Errno> {
        match &mut connection.tls {
            Some(client) => headway_send::flush(client, &connection.socket, &self.tracer).map(drop),
            None => Ok(()),
        }
    }

    /// Sends the frames of a session, as far as the socket takes them.
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
            output => self.send_now(connection, output, false),
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

/// What was sent of the frames of a session.
struct SentFrames {
    bytes: u64,
    /// The socket has taken some, or some that were sealed before.
    has_progressed: bool,
    /// Nothing is left.
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
        let known = input.len().min(PREFACE.len());
        if !is_first || known < 4 || input[..known] != PREFACE[..known] {
            return None;
        }
        if known < PREFACE.len() {
            return Some(self.context.await_head(connection, input));
        }
        self.context.prepare_http2(connection);
        Some(self.begin_http2(connection, input))
    }

    /// Takes the first bytes of a client that speaks HTTP/2.
    pub(super) fn begin_http2(&mut self, connection: &mut Connection, input: &[u8]) -> Disposition {
        connection.phase = Phase::Http2;
        connection.header_partial = false;
        connection.stash_input(&[]);
        if let Some(multiplexed) = &mut connection.http2 {
            multiplexed.session.feed(input);
        }
        self.serve_session(connection)
    }

    /// Handles an event on the socket of a client that speaks HTTP/2.
    pub(super) fn on_http2_event(
        &mut self,
        connection: &mut Connection,
        event: &Ready,
    ) -> Disposition {
        match event.readable || event.hangup {
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
        }
        self.serve_session(connection)
    }

    /// Serves sessions of which streams have sent something or have ended.
    pub(super) fn serve_sessions(&mut self) {
        while let Some(token) = self.context.sessions_due.pop() {
            if let Some(slot) = self.context.connections.find(token) {
                self.with_connection(slot, Worker::serve_session);
            }
        }
    }

    /// Continues all streams that can continue, and sends their frames.
    fn serve_session(&mut self, connection: &mut Connection) -> Disposition {
        let (mut is_sent, mut has_sent) = (true, false);
        let requests = connection.requests;
        // Takes what has come: it may give streams room.
        self.begin_requests(connection);
        for round in 0.. {
            let served = self.serve_streams(connection);
            // Makes frames of what streams have sent.
            let begun = self.begin_requests(connection);
            let Ok(sent) = self.context.send_frames(connection) else {
                return Disposition::Close;
            };
            is_sent = sent.are_all;
            has_sent |= sent.has_progressed;
            let is_sealed = connection.tls.is_some();
            self.context.sender.count_sent(sent.bytes, is_sealed);
            // What was sent has made room.
            if !is_sent || !(served || begun || sent.bytes > 0) {
                break;
            }
            if round == ROUNDS_MAX || self.context.sender.is_round_full() {
                self.context.queue_turn(connection);
                break;
            }
        }
        // What streams have sent meanwhile has left.
        let token = connection.token;
        self.context.sessions_due.retain(|due| *due != token);
        let Some(multiplexed) = &connection.http2 else {
            return Disposition::Close;
        };
        if multiplexed.session.is_over() && is_sent {
            return self.context.linger_close(connection, true);
        }
        let reads = multiplexed.session.takes_input();
        let is_idle = multiplexed.streams.is_empty();
        self.context.watch(
            connection,
            match (reads, is_sent) {
                (true, true) => Interest::READ,
                (true, false) => Interest::BOTH,
                (false, _) => Interest::WRITE,
            },
        );
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

    /// Begins the requests that have come. Returns whether there were any.
    fn begin_requests(&mut self, connection: &mut Connection) -> bool {
        let mut any = false;
        while let Some(multiplexed) = &mut connection.http2
            && let Some((head, stream)) = multiplexed.session.next_request()
        {
            any = true;
            let context = &mut self.context;
            context.counters.http2_streams += 1;
            if context.connections.streams() >= context.config.max_connections as usize {
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
            }
            self.with_connection(slot, |worker, stream| worker.handle_requests(stream, &head));
        }
        any
    }

    /// Continues streams that have input or room. Returns whether there were any.
    fn serve_streams(&mut self, connection: &mut Connection) -> bool {
        let Some(multiplexed) = &mut connection.http2 else {
            return false;
        };
        let connections = &mut self.context.connections;
        multiplexed
            .streams
            .retain(|token| connections.find(*token).is_some());
        let mut ready: Vec<(Option<Place>, Ready)> = Vec::new();
        for token in &multiplexed.streams {
            let slot = token.slot() as usize;
            if let Some(found) = connections.get(slot).and_then(look) {
                ready.push(found);
            }
        }
        // Input first; then the most urgent, and of these the shortest.
        ready.sort_by_key(|(place, _)| *place);
        let mut any = false;
        for (place, event) in ready {
            let mut turn = Some(place);
            while let Some(place) = turn
                && self.serve_stream(connection, place, &event)
            {
                any = true;
                turn = self.next_turn(place, &event);
            }
        }
        any
    }

    /// Continues a stream. Returns whether it could.
    fn serve_stream(
        &mut self,
        connection: &Connection,
        place: Option<Place>,
        event: &Ready,
    ) -> bool {
        let has_room = |one: &Multiplexed| one.session.has_room();
        if place.is_some() && !connection.http2.as_deref().is_some_and(has_room) {
            return false;
        }
        let Some(slot) = self.context.connections.find(event.token) else {
            return false;
        };
        self.with_connection(slot, |worker, stream| match event.hangup {
            // The client has cancelled it.
            true => Disposition::Close,
            false => worker.on_event(stream, event),
        });
        true
    }

    /// Gives the next turn to the same stream, if its response is of use only when it is complete. Other streams
    /// wait for its end (RFC 9218, 10).
    fn next_turn(&mut self, before: Option<Place>, event: &Ready) -> Option<Option<Place>> {
        let before = before.filter(|before| !before.is_incremental)?;
        let slot = self.context.connections.find(event.token)?;
        let (place, _) = self.context.connections.get(slot).and_then(look)?;
        // Something must be done each time.
        let goes_on = place.is_some_and(|place| place.bytes_left < before.bytes_left);
        goes_on.then_some(place)
    }

    /// The worker ends: no more requests, and the connection closes when those are answered.
    pub(super) fn end_http2(&mut self, connection: &mut Connection) -> Disposition {
        if let Some(multiplexed) = &mut connection.http2 {
            multiplexed.session.shut_down();
        }
        self.serve_session(connection)
    }
}

/// The place of a stream among those that have something to send.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    urgency: u8,
    bytes_left: u64,
    is_incremental: bool,
}

/// What a stream can continue with.
fn look(connection: &mut Connection) -> Option<(Option<Place>, Ready)> {
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
        } = of.stream.priority;
        let place = Place {
            urgency,
            bytes_left: connection.outgoing.bytes_left(),
            is_incremental,
        };
        return Some((Some(place), event(false, true, false)));
    }
    None
}
