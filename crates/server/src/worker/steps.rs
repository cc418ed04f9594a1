//! The steps of a connection, in one place: an event, a helper's result or a deadline continues what
//! the phase waits for, and the [`Next`] that comes of it is applied.
//!
//! Requests of a connection are answered strictly in order. A header is parsed once, into a
//! [`Request`] which the steps pass on. A step ends in a [`Next`]: the response is finished and the
//! next request follows, or the connection waits, and its phase owns the request. What a step does
//! stands in the handlers; here stands only which step is taken.

use headway_connection::{Connection, Next, Phase};
use headway_event::{Interest, Ready, Token};
use headway_files::Done;
use headway_gateway::client_address::ProxyPreface;
use headway_http::{Parsed, Status, may_be_decided};
use headway_request::Request;

use super::context::LoopContext;
use super::receiving::client_address::{NO_PROXY_HEADER, NO_TLS};
use super::router::Router;
use super::{Disposition, Worker};

/// The most pipelined requests answered per connection and iteration.
const REQUESTS_PER_TICK_MAX: usize = 64;
/// The most reads in a row from one connection with `full_read`; then other connections run.
const READS_PER_EVENT_MAX: usize = 64;

/// What leads to a step.
impl Worker {
    /// Runs `step` with a connection, and closes the connection if the step says so.
    pub(super) fn with_connection(
        &mut self,
        slot: usize,
        step: impl FnOnce(&mut Worker, &mut Connection) -> Disposition,
    ) {
        let Some(mut connection) = self.context.connections.take(slot) else {
            return;
        };
        let disposition = step(self, &mut connection);
        self.context.put_back(slot, connection);
        if disposition == Disposition::Close {
            self.close(slot);
        }
    }

    /// A connection has just been accepted: reads from it at once, unless eager reads are off. The
    /// request has usually arrived with it, and then the event mechanism need not know the socket.
    pub(super) fn on_accepted(&mut self, connection: &mut Connection) -> Disposition {
        if !self.context.config.research.eager_read {
            self.context.watch(connection, Interest::READ);
            return Disposition::Keep;
        }
        match self.context.has_flooded(connection) {
            true => self.context.defer_suspect(connection),
            false => self.begin(connection),
        }
    }

    /// Reads from a connection for the first time.
    fn begin(&mut self, connection: &mut Connection) -> Disposition {
        match connection.phase {
            Phase::Handshake => self.receive_handshake(connection),
            _ => self.receive(connection),
        }
    }

    /// Handles an event on a connection's socket.
    pub(super) fn on_event(&mut self, connection: &mut Connection, event: &Ready) -> Disposition {
        let readable = event.readable || event.hangup;
        match &connection.phase {
            Phase::AwaitHead if readable => self.receive(connection),
            Phase::Handshake => self.on_handshake_event(connection, event),
            Phase::Http2 => self.on_http2_event(connection, event),
            Phase::AwaitBody(..) if readable => {
                let next = self.context.receive_body(connection);
                self.advance(connection, next)
            }
            Phase::Linger if readable => self.context.discard_lingering(connection),
            Phase::Exchange(_) => {
                let gateway = &mut self.router.gateway;
                let next = gateway.on_client(&mut self.context, connection, event);
                self.advance(connection, next)
            }
            // The connection is in the run queue and continues from there.
            Phase::AwaitSend(_) if connection.is_queued && !event.readable => Disposition::Keep,
            Phase::AwaitSend(_) if !connection.is_queued && (event.writable || event.hangup) => {
                self.take_turn(connection)
            }
            Phase::AwaitSend(_) => self.context.watch_only(connection, Interest::WRITE),
            waiting if waiting.waits_for_a_helper() => {
                if event.hangup || (readable && self.context.is_reset(connection)) {
                    self.context.counters.connections_reset += 1;
                    return Disposition::Close;
                }
                self.context.watch_only(connection, Interest::NONE)
            }
            _ => Disposition::Keep,
        }
    }

    /// Continues a connection whose turn in the run queue has come, or whose socket has room.
    pub(super) fn take_turn(&mut self, connection: &mut Connection) -> Disposition {
        connection.is_queued = false;
        match connection.take_phase() {
            Phase::AwaitSend(request) => {
                let next = self.context.continue_sending(connection, request);
                self.advance(connection, next)
            }
            Phase::AwaitTurn => {
                connection.may_have_input = true;
                let buffered = std::mem::take(&mut connection.rx_buffer);
                self.handle_requests(connection, &buffered)
            }
            Phase::Http2 => {
                connection.phase = Phase::Http2;
                self.receive_frames(connection)
            }
            // A client of this address has sent a flood lately.
            phase @ (Phase::AwaitHead | Phase::Handshake) if connection.interest.is_none() => {
                connection.phase = phase;
                self.begin(connection)
            }
            other => {
                connection.phase = other;
                match connection.has_unread() {
                    true => self.on_event(connection, &Ready::readable(connection.token)),
                    false => Disposition::Keep,
                }
            }
        }
    }

    /// Delivers the result of a helper's job to the connections that wait for it.
    pub(super) fn on_job_done(&mut self, done: Done) {
        let result = self.router.store(&mut self.context, done.outcome, done.age);
        for waiter in done.waiters {
            let Some(slot) = self.context.connections.find(Token(waiter)) else {
                continue;
            };
            self.with_connection(slot, |worker, connection| {
                match connection.take_phase() {
                    // An exchange uses what the connection has received itself.
                    phase @ Phase::Exchange(_) => {
                        connection.phase = phase;
                        let gateway = &mut worker.router.gateway;
                        let next = gateway.deliver(&mut worker.context, connection, &result);
                        worker.advance(connection, next)
                    }
                    phase => worker.resume(connection, |router, context, connection, input| {
                        router.deliver(context, connection, phase, input, &result)
                    }),
                }
            });
        }
    }

    /// Applies what the gateway has decided about connections that were not at hand.
    pub(super) fn apply_settled(&mut self) {
        while !self.context.settled.is_empty() {
            let mut settled = std::mem::take(&mut self.context.settled);
            for (token, next) in settled.drain(..) {
                if let Some(slot) = self.context.connections.find(token) {
                    self.with_connection(slot, |worker, connection| {
                        worker.advance(connection, next)
                    });
                }
            }
            // Its memory is used again.
            if self.context.settled.is_empty() {
                self.context.settled = settled;
                break;
            }
        }
    }

    /// Continues the connections in the run queue.
    pub(super) fn run_queued(&mut self) {
        self.context.sender.begin_queue_round();
        let mut queued = std::mem::take(&mut self.context.run_queue);
        if self.context.sender.sorts() {
            let connections = &self.context.connections;
            let left = |token: &Token| {
                connections
                    .of_token(*token)
                    .map(|of| of.outgoing.bytes_left())
            };
            queued.sort_by_cached_key(left);
        }
        for token in queued {
            if let Some(slot) = self.context.connections.find(token) {
                self.with_connection(slot, Worker::take_turn);
            }
        }
    }

    /// Handles connections whose deadline has passed.
    pub(super) fn expire_deadlines(&mut self) {
        let mut expired = Vec::new();
        let now_ms = self.context.now_ms;
        self.context.deadlines.expire(now_ms, &mut expired);
        for slot in expired {
            self.with_connection(slot, |worker, connection| {
                if connection.waits_for_request()
                    && let Some(disposition) = worker.receive_late(connection)
                {
                    return disposition;
                }
                let next = worker.router.time_out(&mut worker.context, connection);
                worker.advance(connection, next)
            });
        }
    }
}

/// The requests that have been received.
impl Worker {
    /// Receives input and handles complete requests: once, or with `full_read` until there is
    /// nothing left to read or a request must wait.
    pub(super) fn receive(&mut self, connection: &mut Connection) -> Disposition {
        let reads = match self.context.config.research.full_read {
            true => READS_PER_EVENT_MAX,
            false => 1,
        };
        for _ in 0..reads {
            let before = self.context.counters.receives_would_block;
            let disposition = self.receive_once(connection);
            let nothing = self.context.counters.receives_would_block > before;
            let waits = !matches!(connection.phase, Phase::AwaitHead);
            if nothing || disposition == Disposition::Close || waits {
                return disposition;
            }
        }
        Disposition::Keep
    }

    fn receive_once(&mut self, connection: &mut Connection) -> Disposition {
        let mut scratch = std::mem::take(&mut self.context.scratch);
        let buffered = connection.rx_buffer.len();
        scratch[..buffered].copy_from_slice(&connection.rx_buffer);
        if matches!(connection.phase, Phase::Http2) {
            self.context.scratch = scratch;
            return self.receive_frames(connection);
        }
        let (context, acceptor) = (&mut self.context, &mut self.acceptor);
        let disposition = match context.receive_into(connection, &mut scratch[buffered..]) {
            Ok(Some(_)) if acceptor.client_has_abandoned(context, connection) => Disposition::Close,
            Ok(Some(count)) => {
                connection.rx_buffer.clear();
                connection.may_have_input = false;
                self.handle_requests(connection, &scratch[..buffered + count])
            }
            Ok(None) if connection.must_end() && !connection.header_partial => {
                context.linger_close(connection, true)
            }
            Ok(None) => {
                context.watch(connection, Interest::READ);
                Disposition::Keep
            }
            Err(()) => Disposition::Close,
        };
        self.context.scratch = scratch;
        disposition
    }

    /// Takes the PROXY header of a connection from a trusted proxy, and returns what follows it.
    fn take_proxy_header<'i>(
        &mut self,
        connection: &mut Connection,
        input: &'i [u8],
    ) -> Result<&'i [u8], Disposition> {
        let next = match self.context.read_preface(connection, input) {
            ProxyPreface::Partial => return Err(self.context.await_head(connection, input)),
            ProxyPreface::Invalid => self
                .context
                .reject_input(connection, input, &NO_PROXY_HEADER),
            ProxyPreface::Complete { length, .. } => {
                if self.acceptor.enter_behind_proxy(connection) {
                    return Ok(&input[length..]);
                }
                self.context.counters.connections_rejected_per_address += 1;
                let started_us = self.context.first_byte_us(connection);
                let request = Box::new(Request::unparsed(&input[length..], started_us));
                let unavailable = Status::SERVICE_UNAVAILABLE;
                self.context
                    .close_with_error(connection, request, unavailable)
            }
        };
        Err(self.advance(connection, next))
    }

    /// Tells a client that speaks no TLS so, if it seems to speak HTTP.
    pub(super) fn answer_in_the_clear(
        &mut self,
        connection: &mut Connection,
        input: &[u8],
    ) -> Disposition {
        if !input.first().is_some_and(u8::is_ascii_uppercase) {
            return Disposition::Close;
        }
        connection.tls = None;
        let next = self.context.reject_input(connection, input, &NO_TLS);
        self.advance(connection, next)
    }

    /// Answers the requests in `input` in order, until one has to wait.
    pub(super) fn handle_requests(
        &mut self,
        connection: &mut Connection,
        mut input: &[u8],
    ) -> Disposition {
        if connection.awaits_proxy_header() {
            match self.take_proxy_header(connection, input) {
                Ok(rest) => input = rest,
                Err(disposition) => return disposition,
            }
        }
        for _ in 0..REQUESTS_PER_TICK_MAX {
            if input.is_empty() {
                return self.context.await_head(connection, input);
            }
            if let Some(disposition) = self.begin_if_http2(connection, input) {
                return disposition;
            }
            connection.forget_client();
            let parsed_bytes = connection.parsed_bytes as usize;
            let limits = &self.context.limits_of(connection);
            if connection.header_partial && !may_be_decided(input, parsed_bytes, limits) {
                return self.context.await_head(connection, input);
            }
            let head = match headway_http::parse(input, limits) {
                Parsed::Complete(head) => head,
                Parsed::Partial => {
                    connection.parsed_bytes = input.len() as u32;
                    return self.context.await_head(connection, input);
                }
                Parsed::Reject(reject) => {
                    let next = self.context.reject_input(connection, input, &reject);
                    return self.advance(connection, next);
                }
            };
            let started_us = self.context.first_byte_us(connection);
            connection.header_partial = false;
            self.context.find_client(connection, &head, input);
            let mut request =
                self.context
                    .make_request(&head, input, (connection.listener, started_us));
            request.trace = self.context.trace_of(connection, &head, input);
            connection.stages.begin(self.context.now_us);
            self.context.stall_if_due();
            input = &input[head.length..];
            let (router, context) = (&mut self.router, &mut self.context);
            let next = router.start(context, connection, request, &mut input);
            if let Some(disposition) = self.apply_next(connection, next, &mut input) {
                return disposition;
            }
        }
        connection.stash_input(input);
        connection.phase = Phase::AwaitTurn;
        self.context.queue_turn(connection);
        Disposition::Keep
    }
}

/// The end of each step.
impl Worker {
    /// Takes a step of a request that has waited, and handles the requests behind it if it is
    /// finished.
    fn resume(
        &mut self,
        connection: &mut Connection,
        step: impl FnOnce(&mut Router, &mut LoopContext, &mut Connection, &mut &[u8]) -> Next,
    ) -> Disposition {
        // While input is watched for, an event would have told of it.
        connection.may_have_input |= connection.interest != Some(Interest::READ);
        let buffered = std::mem::take(&mut connection.rx_buffer);
        let mut input = &buffered[..];
        let next = step(&mut self.router, &mut self.context, connection, &mut input);
        match self.apply_next(connection, next, &mut input) {
            Some(disposition) => disposition,
            None => self.handle_requests(connection, input),
        }
    }

    /// Applies the result of a step that took no input.
    fn advance(&mut self, connection: &mut Connection, next: Next) -> Disposition {
        if let Next::Wait(phase) = next {
            connection.phase = phase;
            return Disposition::Keep;
        }
        self.resume(connection, |_, _, _, _| next)
    }

    /// Applies the result of a step. `input` is what the step has left. Returns `None` if the next
    /// request may be handled.
    fn apply_next(
        &mut self,
        connection: &mut Connection,
        mut next: Next,
        input: &mut &[u8],
    ) -> Option<Disposition> {
        let (router, context) = (&mut self.router, &mut self.context);
        loop {
            next = match next {
                Next::Start(request) => router.start(context, connection, request, input),
                Next::Delegate(request, to) => {
                    router.delegate(context, connection, request, input, to)
                }
                Next::Finished(request) => {
                    // If only the server wants to close, more requests may be on their way; after
                    // an internal redirect, the rest of a body that its program did not read.
                    let expects_more = request.head.keeps_alive() || request.redirects > 0;
                    if let Some(of) = &mut connection.stream {
                        of.stream.end();
                        context.finish_response(connection, request);
                        return Some(Disposition::Close);
                    }
                    return match context.finish_response(connection, request) {
                        Disposition::Keep => None,
                        Disposition::Close => {
                            let unread = expects_more
                                || !input.is_empty()
                                || context.has_unread_input(connection);
                            Some(context.linger_close(connection, unread))
                        }
                    };
                }
                Next::Wait(phase) => {
                    connection.stash_input(input);
                    connection.phase = phase;
                    return Some(Disposition::Keep);
                }
                Next::Linger => return Some(context.linger_close(connection, true)),
                Next::Close(request) => {
                    if let Some(request) = request {
                        connection.phase = Phase::AwaitSend(request);
                    }
                    return Some(Disposition::Close);
                }
            };
        }
    }
}
