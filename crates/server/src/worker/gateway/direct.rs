//! The direct interface: long-running programs that write to clients themselves. (`piped` handles
//! the same programs when they send responses back through the worker.)
//!
//! A complete request goes to an idle process of its location, together with its variables, its
//! body and the *client's socket*. While the socket is handed off, the worker neither reads nor
//! writes it. When the process reports that it is done, the connection continues as after any
//! response. The response is copied once, from the program into the socket, and never through the
//! worker (dissertation 2.5.5: reading responses took 20 % of kernel time).
//!
//! A faulty process affects only the client whose socket it has. A process that exits, violates the
//! protocol or exceeds its timeout is killed and replaced. Its client gets an error response if
//! nothing had been written, otherwise the connection is cut off with `shutdown`, which affects
//! every copy of the socket. A shared socket cannot block the loop either: the worker passes
//! `MSG_DONTWAIT` to every call, and makes no call while a program may hold the socket's lock (see
//! `handed_off`).
//!
//! A process may fail after it has reported one request as done and been sent the next one. If it
//! had not read that request, another process gets it, including the body. The kernel tells:
//! reading from a socket whose peer closed it with unread data fails with `ECONNRESET`.

use std::ops::ControlFlow::{Break, Continue};
use std::os::fd::{AsFd, OwnedFd};

use headway_config::{ErrorLevel, HandlerConfig};
use headway_connection::{Connection, Exchange, Stage};
use headway_event::{Interest, Token};
use headway_http::{Method, Status, Version};
use headway_metrics::calls::Call;
use headway_os::fd_passing::{ReceiveError, Wait, receive_with_descriptors, send_with_descriptors};
use headway_request::Request;
use headway_respond::handlers::direct_protocol::{
    DirectDone, DirectMessage, DirectRequest, INLINE_BYTES_MAX, decode, encode,
};
use headway_respond::handlers::{Route, launch_direct};
use headway_spawner::wire::SpawnerOrder;
use rustix::io::{Errno, IoSlice};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::buffer_body::body_memfd;
use super::direct_processes::{Process, ProcessState, RESTART_DELAY_MS_MIN, token};
use super::{ExchangeEnd, ExchangeStep, Gateway};
use crate::worker::context::LoopContext;

/// A process that exits sooner than this after its start, without having answered a request, failed
/// early.
const EARLY_FAILURE_MS: u64 = 5_000;
/// Longest delay before a process is restarted. The delay doubles with every early failure.
const RESTART_DELAY_MS_MAX: u64 = 5_000;

/// Whether a process had read its last request when it ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestTaken {
    /// The process may have read the request.
    Maybe,
    /// The process had not read the request, or there was none.
    No,
}

impl Gateway {
    /// When the next process may be started, or an existing one times out.
    pub(super) fn direct_next_ms(&self, context: &LoopContext) -> Option<u64> {
        let waiting = self.queues.iter().enumerate();
        let retry = waiting
            .filter(|(_, queue)| !queue.is_empty())
            .map(|(route, _)| self.direct.retry_ms[route]);
        let processes = self.direct.processes.iter().flatten();
        let late = processes.filter_map(|one| Gateway::process_deadline_ms(context, one));
        retry.chain(late).filter(|at| *at > context.now_ms).min()
    }

    /// When a process times out that does not become ready, or does not finish a request whose
    /// client has left.
    fn process_deadline_ms(context: &LoopContext, process: &Process) -> Option<u64> {
        match process.state {
            ProcessState::Starting => {
                let timeout_ms = context.routes.get(process.route).location.timeout_ms;
                Some(process.born_ms + timeout_ms)
            }
            ProcessState::Draining(_, until_ms) => Some(until_ms),
            ProcessState::Idle | ProcessState::Busy(..) | ProcessState::Dying(..) => None,
        }
    }

    /// Whether a process of this location is idle. If none is, starts one more if allowed.
    pub(super) fn has_idle_process(&mut self, context: &mut LoopContext, route: &Route) -> bool {
        if self.direct.idle(route.number).is_some() {
            return true;
        }
        self.start_process(context, route);
        false
    }

    /// Starts one more process of a location, unless the limit is reached or the last one failed
    /// too recently.
    fn start_process(&mut self, context: &mut LoopContext, route: &Route) {
        let (HandlerConfig::Direct(command) | HandlerConfig::Pipe(command)) =
            &route.location.handler
        else {
            return;
        };
        let many = self.direct.count(route.number) >= route.location.concurrency as usize;
        if many || !self.has_spawner() || context.now_ms < self.direct.retry_ms[route.number] {
            return;
        }
        let pair = context.tracer.call(Call::ProgramPair, || {
            let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
            rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)
        });
        let (ours, theirs) = match pair {
            Ok(pair) => pair,
            Err(error) => {
                return context.notice(
                    ErrorLevel::Error,
                    format!("cannot create a socket pair for a program: {error}"),
                );
            }
        };
        self.next_id += 1;
        let id = self.next_id;
        let process_tag = self.process_tags.of(id);
        let slot = self.direct.insert(Process {
            id,
            route: route.number,
            socket: ours,
            state: ProcessState::Starting,
            piped: matches!(route.location.handler, HandlerConfig::Pipe(_)),
            watched: true,
            born_ms: context.now_ms,
            served: false,
        });
        if let Some(Some(process)) = self.direct.processes.get(slot) {
            let watched =
                context
                    .events
                    .add(process.socket.as_fd(), token(slot, id), Interest::READ);
            if let Err(error) = watched {
                context.notice(
                    ErrorLevel::Error,
                    format!("cannot watch a program: {error}"),
                );
                return self.process_ended(context, slot, RequestTaken::No);
            }
        }
        let launch = launch_direct(route, command, process_tag);
        self.send_order(context, &SpawnerOrder::Spawn { id, launch }, vec![theirs]);
    }

    /// Sends a request to an idle process, together with the client's socket if the process writes
    /// the response itself.
    pub(super) fn hand_off(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        route: &Route,
    ) -> ExchangeStep {
        let slot = loop {
            let Some(slot) = self.direct.idle(route.number) else {
                return self.requeue_first(context, connection, exchange, route);
            };
            match self.send_to_process(context, connection, exchange, slot) {
                Ok(true) => break slot,
                Ok(false) => {}
                Err(status) => return Break(ExchangeEnd::Fail(status)),
            }
        };
        let mut piped = false;
        if let Some(process) = self.process(slot) {
            process.state = ProcessState::Busy(connection.token, exchange.id);
            piped = process.piped;
        }
        if piped {
            exchange.stage = Stage::Running;
            exchange.process = Some(slot);
            context.counters.pipe_requests_dispatched += 1;
        } else {
            exchange.stage = Stage::HandedOff;
            connection.handed_off = true;
            connection.was_passed = true;
            context.counters.direct_requests_handed_off += 1;
        }
        Gateway::renew_deadline(context, connection, exchange);
        Continue(())
    }

    /// The assigned process has gone. Puts the request back at the front of the queue unless it has
    /// timed out.
    fn requeue_first(
        &mut self,
        context: &mut LoopContext,
        connection: &Connection,
        exchange: &mut Exchange,
        route: &Route,
    ) -> ExchangeStep {
        let waited_ms = exchange.admitted.elapsed().as_millis() as u64;
        if waited_ms >= route.location.timeout_ms {
            return Break(ExchangeEnd::Fail(Status::SERVICE_UNAVAILABLE));
        }
        self.queues[route.number].push_front((connection.token, connection.client.ip()));
        let is_idle = self.direct.idle(route.number).is_some();
        (exchange.stage, exchange.address_slot) = (Stage::Queued, None);
        Gateway::renew_deadline(context, connection, exchange);
        if !is_idle {
            self.start_process(context, route);
        }
        Continue(())
    }

    fn process(&mut self, slot: usize) -> Option<&mut Process> {
        self.direct.get_mut(slot)
    }

    /// Sends the request to a process. Returns `false` if the process has gone and knows nothing of
    /// the request.
    fn send_to_process(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        slot: usize,
    ) -> Result<bool, Status> {
        // There is no socket that carries its response alone.
        if connection.stream.is_some() && self.direct.get(slot).is_some_and(|one| !one.piped) {
            return Err(Status::NOT_IMPLEMENTED);
        }
        let head = exchange.request.head.head();
        let variables = Gateway::describe(context, connection, exchange);
        let variables = variables.ok_or(Status::INTERNAL_SERVER_ERROR)?;
        let mut environment = Vec::new();
        variables.write_environment(&mut environment);
        let file = Gateway::body_file(context, exchange)?;
        let Some(process) = self.direct.get(slot) else {
            return Err(Status::SERVICE_UNAVAILABLE);
        };
        let piped = process.piped;
        let upload = &exchange.upload;
        let (in_file, body) = match file {
            Some(_) => (true, &[][..]),
            None => (false, upload.remaining()),
        };
        let message = encode(&DirectRequest {
            id: exchange.id as u32,
            // A process that sends its response back has nothing to do with the client's
            // connection.
            keep_alive: piped
                || Gateway::keeps_after_handoff(context, connection, &exchange.request),
            head_only: head.method == Method::Head,
            old: !piped && head.version == Version::Http10,
            back: piped,
            body_bytes: upload.bytes,
            in_file,
            variables: &environment,
            body,
        });
        let message = message.ok_or(Status::REQUEST_HEADER_FIELDS_TOO_LARGE)?;
        let client = (!piped).then(|| connection.socket.as_fd());
        exchange.written_before =
            client.and_then(|socket| headway_os::socket::written_bytes(socket).ok());
        let descriptors: Vec<_> = client
            .into_iter()
            .chain(file.iter().map(AsFd::as_fd))
            .collect();
        let call = match piped {
            true => Call::ProgramWrite,
            false => Call::HandOff,
        };
        let sent = context.tracer.call(call, || {
            send_with_descriptors(
                &process.socket,
                &[IoSlice::new(&message)],
                &descriptors,
                Wait::Never,
            )
        });
        match sent {
            Ok(Some(_)) => {
                context.counters.handler_request_bytes += exchange.upload.bytes;
                Ok(true)
            }
            // An idle process that accepts no message has gone.
            _ => {
                self.remove_process(context, slot);
                Ok(false)
            }
        }
    }

    /// The body as a file, if it is too long to be sent with its request.
    fn body_file(
        context: &mut LoopContext,
        exchange: &Exchange,
    ) -> Result<Option<OwnedFd>, Status> {
        let unavailable = Status::SERVICE_UNAVAILABLE;
        if let Some(file) = &exchange.upload.spooled {
            let copy = rustix::io::fcntl_dupfd_cloexec(file, 0).map_err(|_| unavailable)?;
            return Ok(Some(copy));
        }
        let left = exchange.upload.remaining();
        if left.len() <= INLINE_BYTES_MAX {
            return Ok(None);
        }
        let made = context.tracer.call(Call::BodyMemfd, || body_memfd(left));
        made.map(Some).map_err(|_| unavailable)
    }

    /// Where `send` is not `copy`, files are sent by calls that may block on a socket shared with
    /// another process, so the connection is not reused.
    fn keeps_after_handoff(
        context: &LoopContext,
        connection: &Connection,
        request: &Request,
    ) -> bool {
        context.config.copies_files() && context.keeps_alive(connection, request)
    }

    /// Handles an event on a process's socket: a message, or its end.
    pub(in crate::worker) fn on_direct(&mut self, context: &mut LoopContext, event: Token) {
        let mut buffer = std::mem::take(&mut self.buffer);
        while self.read_process(context, event, &mut buffer) {}
        self.buffer = buffer;
        let process = self.process(event.slot() as usize);
        if let Some(process) = process.filter(|one| one.state == ProcessState::Idle) {
            let route = process.route;
            self.start_next(context, route);
        }
    }

    /// Handles one message of a process. Returns `false` if there is none now or none may come.
    fn read_process(&mut self, context: &mut LoopContext, event: Token, buffer: &mut [u8]) -> bool {
        let slot = event.slot() as usize;
        let Some(process) = self.direct.get(slot) else {
            return false;
        };
        if token(slot, process.id) != event || !process.watched {
            return false;
        }
        let call = match process.piped {
            true => Call::ProgramRead,
            false => Call::Reclaim,
        };
        let received = context.tracer.call(call, || {
            receive_with_descriptors(&process.socket, buffer, 0, Wait::Never)
        });
        let (state, piped) = (process.state, process.piped);
        let mut took = RequestTaken::Maybe;
        let (message, has_ended) = match received {
            Ok(None) => return false,
            Ok(Some(received)) => (decode(&buffer[..received.length]), received.is_end()),
            Err(ReceiveError::TooLong | ReceiveError::DescriptorsLost { .. }) => (None, false),
            Err(ReceiveError::Os(error)) => {
                if error == Errno::CONNRESET {
                    took = RequestTaken::No;
                }
                (None, true)
            }
        };
        match (message, state) {
            // One message per loop iteration, however many a dying process sends.
            (_, ProcessState::Dying(..)) if !has_ended => return false,
            (Some(DirectMessage::Ready), ProcessState::Starting) => {
                return self.set_idle(slot);
            }
            (Some(DirectMessage::Output { id, bytes }), ProcessState::Busy(client, exchange))
                if piped && id == exchange as u32 =>
            {
                if let Some(research) = self.research {
                    (research.piped.output)(self, context, client, exchange, bytes);
                }
            }
            (Some(DirectMessage::Output { id, .. }), ProcessState::Draining(exchange, _))
                if id == exchange as u32 => {}
            (Some(DirectMessage::Done(done)), ProcessState::Busy(client, exchange))
                if done.id == exchange as u32 =>
            {
                match self.research.filter(|_| piped) {
                    Some(own) => (own.piped.done)(self, context, client, exchange, done.keep),
                    None => self.reclaim_client(context, client, exchange, &done),
                }
                // The process must stay silent until it gets the next request. If it sends more, it
                // gets no request from the queue.
                return self.set_idle(slot);
            }
            (Some(DirectMessage::Done(done)), ProcessState::Draining(exchange, _))
                if done.id == exchange as u32 =>
            {
                return self.set_idle(slot);
            }
            (_, ProcessState::Busy(client, exchange)) if !has_ended => {
                self.on_invalid_message(context, slot, client, exchange, piped);
            }
            _ => {
                self.process_ended(context, slot, took);
                return false;
            }
        }
        true
    }

    /// Answers the request of a process whose message is not valid for it with 502.
    fn on_invalid_message(
        &mut self,
        context: &mut LoopContext,
        slot: usize,
        client: Token,
        exchange: u64,
        piped: bool,
    ) {
        match piped {
            true => self.kill_process(context, slot, client, exchange, Status::BAD_GATEWAY),
            false => self.step_process_exchange(context, client, exchange, |_, _, _, _| {
                Break(ExchangeEnd::Fail(Status::BAD_GATEWAY))
            }),
        }
    }

    /// Kills a process that has a client. The client is answered with `status` once the process has
    /// gone: only then is it certain what the process has read and written.
    pub(super) fn kill_process(
        &mut self,
        context: &mut LoopContext,
        slot: usize,
        client: Token,
        exchange: u64,
        status: Status,
    ) {
        if let Some(process) = self.process(slot) {
            process.state = ProcessState::Dying(client, exchange, status);
            let id = process.id;
            self.order_kill(context, id);
        }
    }

    /// Marks a process as idle. Returns whether a request is queued for it.
    fn set_idle(&mut self, slot: usize) -> bool {
        let Some(process) = self.direct.get_mut(slot) else {
            return false;
        };
        process.served |= process.state != ProcessState::Starting;
        process.state = ProcessState::Idle;
        !self.queues[process.route].is_empty()
    }

    /// The process has finished: the worker owns the client's socket again.
    fn reclaim_client(
        &mut self,
        context: &mut LoopContext,
        client: Token,
        exchange: u64,
        done: &DirectDone,
    ) {
        let DirectDone {
            status,
            bytes,
            keep,
            ..
        } = *done;
        self.step_process_exchange(
            context,
            client,
            exchange,
            |_, context, connection, exchange| {
                let waited_us = exchange.begun.elapsed().as_micros() as u64;
                context.counters.direct_response_us.record(waited_us);
                context
                    .counters
                    .http_requests
                    .record(status, exchange.request.method);
                context.counters.sent_bytes += bytes;
                connection.outgoing.status = status;
                connection.outgoing.sent_bytes = bytes;
                connection.keep_alive =
                    keep && Gateway::keeps_reclaimed(context, connection, exchange);
                exchange.stage = Stage::Finished;
                Break(ExchangeEnd::Done)
            },
        );
    }

    fn keeps_reclaimed(
        context: &LoopContext,
        connection: &Connection,
        exchange: &Exchange,
    ) -> bool {
        Gateway::keeps_after_handoff(context, connection, &exchange.request)
    }

    /// Runs a step of the exchange that a process was given, if that exchange still exists.
    pub(super) fn step_process_exchange(
        &mut self,
        context: &mut LoopContext,
        client: Token,
        id: u64,
        step: impl FnOnce(
            &mut Gateway,
            &mut LoopContext,
            &mut Connection,
            &mut Exchange,
        ) -> ExchangeStep,
    ) {
        self.step_client(context, client, |gateway, context, connection, exchange| {
            let has_process = exchange.stage == Stage::HandedOff || exchange.process.is_some();
            match exchange.id == id && has_process {
                true => step(gateway, context, connection, exchange),
                false => Continue(()),
            }
        });
    }

    /// A process has ended or violated the protocol. Its client gets an error response, or another
    /// process if this one had not read the request.
    fn process_ended(&mut self, context: &mut LoopContext, slot: usize, took: RequestTaken) {
        let Some(process) = self.remove_process(context, slot) else {
            return;
        };
        let owed = match process.state {
            ProcessState::Busy(client, exchange) => Some((client, exchange, Status::BAD_GATEWAY)),
            ProcessState::Dying(client, exchange, status) => Some((client, exchange, status)),
            ProcessState::Starting | ProcessState::Idle | ProcessState::Draining(..) => None,
        };
        let route = context.routes.get(process.route).clone();
        if let Some((client, exchange, status)) = owed {
            // A request that has timed out is not retried. A process that has never answered is
            // probably broken, so its requests are not retried either.
            let again = took == RequestTaken::No && process.served && status == Status::BAD_GATEWAY;
            self.step_process_exchange(
                context,
                client,
                exchange,
                |gateway, context, connection, exchange| {
                    exchange.process = None;
                    match again {
                        true => gateway.requeue_first(context, connection, exchange, &route),
                        false => Break(ExchangeEnd::Fail(status)),
                    }
                },
            );
        }
        let waits = !self.queues[route.number].is_empty();
        if waits {
            self.start_next(context, route.number);
        }
    }

    /// Removes a process, kills it if it still runs, and computes when the next one may start.
    pub(super) fn remove_process(
        &mut self,
        context: &mut LoopContext,
        slot: usize,
    ) -> Option<Process> {
        let now_ms = context.now_ms;
        let direct = &mut self.direct;
        let process = direct.processes.get_mut(slot)?.take()?;
        let failed_early = !process.served && now_ms < process.born_ms + EARLY_FAILURE_MS;
        let delay_ms = &mut direct.delay_ms[process.route];
        direct.retry_ms[process.route] = if failed_early {
            now_ms + *delay_ms
        } else {
            now_ms
        };
        *delay_ms = match failed_early {
            true => (*delay_ms * 2).min(RESTART_DELAY_MS_MAX),
            false => RESTART_DELAY_MS_MIN,
        };
        context.counters.direct_processes_ended += 1;
        let _ = context.events.remove(process.socket.as_fd());
        self.order_kill(context, process.id);
        Some(process)
    }

    /// Removes processes that have timed out, and serves queues whose restart delay is over.
    pub(super) fn maintain_direct(&mut self, context: &mut LoopContext) {
        let now_ms = context.now_ms;
        let late = |one: &Process| {
            Gateway::process_deadline_ms(context, one)
                .is_some_and(|process_deadline_ms| now_ms >= process_deadline_ms)
        };
        let processes = self.direct.processes.iter();
        let late: Vec<usize> = processes
            .enumerate()
            .filter(|(_, one)| one.as_ref().is_some_and(late))
            .map(|(slot, _)| slot)
            .collect();
        let queues = self.queues.iter().enumerate();
        let waiting: Vec<usize> = queues
            .filter(|(_, queue)| !queue.is_empty())
            .map(|(route, _)| route)
            .collect();
        for slot in late {
            self.process_ended(context, slot, RequestTaken::No);
        }
        for number in waiting {
            let route = context.routes.get(number).clone();
            if route.location.stays() && !self.has_idle_process(context, &route) {
                continue;
            }
            self.start_next(context, number);
        }
    }
}
