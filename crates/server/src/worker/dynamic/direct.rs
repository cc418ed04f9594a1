//! Programs that stay and write to clients themselves: the direct interface. (`piped` has those
//! that send their replies back; the processes are the same.)
//!
//! A request that is complete goes to an idle process of its location, with its variables, its body
//! and the *client's socket*. While it is lent the worker neither reads nor writes it. When the
//! process says that it is done the connection goes on as after any reply. So a reply is copied
//! once, from the program into the socket, and never through the worker (dissertation 2.5.5:
//! reading replies had been 20 % of all kernel time).
//!
//! What a process can do wrong harms nobody but the client whose socket it had. One that ends, says
//! what makes no sense, or takes too long is killed and replaced. Its client is answered by an
//! error if nothing had been written, else cut off: by `shutdown`, which holds for every copy of
//! the socket that may still be around. Nobody can make the loop wait through a shared socket
//! either: the worker asks not to wait call by call (`MSG_DONTWAIT`), and makes no call while a
//! program may hold the socket's lock (`lent`).
//!
//! A process may go wrong when it has said that it is done and has been sent the next request
//! already. Whoever has asked that is not to pay for it: a request that its process had not taken
//! goes to another one, body and all. The kernel says whether it was taken: reading from a socket
//! whose other end was closed with something unread in it fails with `ECONNRESET`.

use std::os::fd::{AsFd, OwnedFd};

use headway_debox::Call;
use headway_event::{Interest, Token};
use headway_http::{Head, Method, Parsed, Status, Version};
use headway_os::rights::{ReceiveError, Wait, receive_with_descriptors, send_with_descriptors};
use rustix::io::{Errno, IoSlice};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::gather::piece;
use super::processes::{FIRST_DELAY_MS, Process, State, token};
use super::{Dynamic, Step};
use crate::config::{Handler, SendMethod};
use crate::connection::{Connection, Exchange, Stage};
use crate::forker::wire::Order;
use crate::respond::dynamic::direct::{Asked, Done, INLINE_BYTES_MAX, Said, decode, encode};
use crate::respond::dynamic::{Place, launch_direct};
use crate::worker::Worker;

/// A process that ended sooner than this after its start, and has answered nothing, ended young.
const YOUNG_MS: u64 = 5_000;
/// After one that ended young the next one waits, longer each time.
const LONGEST_DELAY_MS: u64 = 5_000;

/// What of its last request a process had taken when it ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Took {
    /// It may have read it.
    It,
    /// It has not, or there was none.
    Nothing,
}

impl Worker {
    /// When a process that is waited for may be started, or is not waited for any longer.
    pub(super) fn direct_next_ms(&self, dynamic: &Dynamic) -> Option<u64> {
        let waiting = dynamic.queues.iter().enumerate();
        let retry = waiting
            .filter(|(_, queue)| !queue.is_empty())
            .map(|(place, _)| dynamic.direct.retry_ms[place]);
        let processes = dynamic.direct.processes.iter().flatten();
        let late = processes.filter_map(|one| self.late_ms(one));
        retry.chain(late).filter(|at| *at > self.now_ms).min()
    }

    /// A process that is not ready by then, or not done with what nobody waits for, is not waited
    /// for any longer.
    fn late_ms(&self, process: &Process) -> Option<u64> {
        match process.state {
            State::Starting => {
                let patience_ms = self.places.get(process.place).location.timeout_ms;
                Some(process.born_ms + patience_ms)
            }
            State::Draining(_, until_ms) => Some(until_ms),
            State::Idle | State::Busy(..) | State::Dying(..) => None,
        }
    }

    /// Whether a process of this location waits for a request. If none does one more may be
    /// started.
    pub(super) fn may_lend(&mut self, place: &Place) -> bool {
        let is_idle = |dynamic: &Dynamic| dynamic.direct.idle(place.number).is_some();
        if self.dynamic.as_deref().is_some_and(is_idle) {
            return true;
        }
        self.grow(place);
        false
    }

    /// Starts one more process of a location, if there may be one more, and not too soon after one
    /// has failed.
    fn grow(&mut self, place: &Place) {
        let (Handler::Direct(command) | Handler::Pipe(command)) = &place.location.handler else {
            return;
        };
        let Some(dynamic) = &mut self.dynamic else {
            return;
        };
        let many = dynamic.direct.count(place.number) >= place.location.concurrency as usize;
        if many || !dynamic.has_helper() || self.now_ms < dynamic.direct.retry_ms[place.number] {
            return;
        }
        let pair = self.tracer.call(Call::ProgramPair, || {
            let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
            rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)
        });
        let (ours, theirs) = match pair {
            Ok(pair) => pair,
            Err(error) => return self.notice(format!("socketpair for a program: {error}")),
        };
        dynamic.next_id += 1;
        let id = dynamic.next_id;
        let mark = dynamic.marks.of(id);
        let slot = dynamic.direct.insert(Process {
            id,
            place: place.number,
            socket: ours,
            state: State::Starting,
            piped: matches!(place.location.handler, Handler::Pipe(_)),
            watched: true,
            born_ms: self.now_ms,
            served: false,
        });
        if let Some(Some(process)) = dynamic.direct.processes.get(slot) {
            let watched = self
                .events
                .add(process.socket.as_fd(), token(slot, id), Interest::READ);
            if let Err(error) = watched {
                self.notice(format!("watching a program: {error}"));
                return self.bury(slot, Took::Nothing);
            }
        }
        let launch = launch_direct(place, command, mark);
        self.order(&Order::Spawn { id, launch }, vec![theirs]);
    }

    /// Gives a process a request, and its client's socket if it is to write there itself.
    pub(super) fn lend(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
        place: &Place,
    ) -> Step {
        let slot = loop {
            let direct = self.dynamic.as_ref().map(|dynamic| &dynamic.direct);
            let Some(slot) = direct.and_then(|direct| direct.idle(place.number)) else {
                return self.wait_for_another(connection, exchange, place);
            };
            let bytes = std::mem::take(&mut exchange.head);
            let sent = self.send_request(connection, exchange, &bytes, slot);
            exchange.head = bytes;
            match sent {
                Ok(true) => break slot,
                Ok(false) => {}
                Err(status) => return Step::Fail(status),
            }
        };
        let mut piped = false;
        if let Some(process) = self.process(slot) {
            process.state = State::Busy(connection.token, exchange.id);
            piped = process.piped;
        }
        if piped {
            exchange.stage = Stage::Running;
            exchange.process = Some(slot);
            self.counters.piped_requests += 1;
        } else {
            exchange.stage = Stage::Lent;
            connection.lent = true;
            self.counters.direct_lent += 1;
        }
        self.renew(connection, exchange);
        Step::Go
    }

    /// The process that it was to have is gone: it is the next one for whoever comes in its place,
    /// unless it has waited its time already.
    fn wait_for_another(
        &mut self,
        connection: &Connection,
        exchange: &mut Exchange,
        place: &Place,
    ) -> Step {
        let waited_ms = exchange.admitted.elapsed().as_millis() as u64;
        let dynamic = self.dynamic.as_mut();
        let Some(dynamic) = dynamic.filter(|_| waited_ms < place.location.timeout_ms) else {
            return Step::Fail(Status::SERVICE_UNAVAILABLE);
        };
        dynamic.queues[place.number].push_front(connection.token);
        let is_idle = dynamic.direct.idle(place.number).is_some();
        exchange.stage = Stage::Queued;
        self.renew(connection, exchange);
        if !is_idle {
            self.grow(place);
        }
        Step::Go
    }

    fn process(&mut self, slot: usize) -> Option<&mut Process> {
        self.dynamic.as_mut()?.direct.get_mut(slot)
    }

    /// Sends it the request; `false`: it is gone, and knows nothing of it.
    fn send_request(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
        bytes: &[u8],
        slot: usize,
    ) -> Result<bool, Status> {
        let Parsed::Complete(head) = headway_http::parse(bytes, &self.limits) else {
            return Err(Status::INTERNAL_SERVER_ERROR);
        };
        let variables = self.describe(connection, exchange, &head, bytes);
        let variables = variables.ok_or(Status::INTERNAL_SERVER_ERROR)?;
        let mut environment = Vec::new();
        variables.write_environment(&mut environment);
        let file = self.body_file(exchange)?;
        let direct = self.dynamic.as_ref().map(|dynamic| &dynamic.direct);
        let Some(process) = direct.and_then(|direct| direct.get(slot)) else {
            return Err(Status::SERVICE_UNAVAILABLE);
        };
        let piped = process.piped;
        let upload = &exchange.upload;
        let message = encode(&Asked {
            id: exchange.id as u32,
            // The connection of one who sends its reply back is no matter of the program's.
            keep_alive: piped || self.keeps_lent(connection, &head),
            head_only: head.method == Method::Head,
            old: !piped && head.version == Version::Http10,
            back: piped,
            body_bytes: upload.bytes,
            in_file: file.is_some(),
            variables: &environment,
            body: if file.is_some() { &[] } else { upload.left() },
        });
        let message = message.ok_or(Status::REQUEST_HEADER_FIELDS_TOO_LARGE)?;
        let client = (!piped).then(|| connection.socket.as_fd());
        exchange.written_before =
            client.and_then(|socket| headway_os::socket::written_bytes(socket).ok());
        let descriptors: Vec<_> = client
            .into_iter()
            .chain(file.iter().map(AsFd::as_fd))
            .collect();
        let call = if piped {
            Call::ProgramWrite
        } else {
            Call::Lend
        };
        let sent = self.tracer.call(call, || {
            send_with_descriptors(
                &process.socket,
                &[IoSlice::new(&message)],
                &descriptors,
                Wait::Never,
            )
        });
        match sent {
            Ok(Some(_)) => {
                self.counters.dynamic_received_bytes += exchange.upload.bytes;
                Ok(true)
            }
            // One that is idle and takes no message is gone.
            _ => {
                self.remove_process(slot);
                Ok(false)
            }
        }
    }

    /// The body as a file, if it is too long to go with its request.
    fn body_file(&mut self, exchange: &Exchange) -> Result<Option<OwnedFd>, Status> {
        let unavailable = Status::SERVICE_UNAVAILABLE;
        if let Some(file) = &exchange.upload.spilled {
            let copy = rustix::io::fcntl_dupfd_cloexec(file, 0).map_err(|_| unavailable)?;
            return Ok(Some(copy));
        }
        let left = exchange.upload.left();
        if left.len() <= INLINE_BYTES_MAX {
            return Ok(None);
        }
        let made = self.tracer.call(Call::Piece, || piece(left));
        made.map(Some).map_err(|_| unavailable)
    }

    /// Where files leave by calls that cannot be asked not to wait, a socket that others may still
    /// have is not used again.
    fn keeps_lent(&self, connection: &Connection, head: &Head<'_>) -> bool {
        self.config.send == SendMethod::Copy && self.keeps_alive(connection, head)
    }

    /// A process has something to say, or has ended.
    pub(in crate::worker) fn on_direct(&mut self, event: Token) {
        let buffer = self
            .dynamic
            .as_mut()
            .map(|all| std::mem::take(&mut all.buffer));
        let mut buffer = buffer.unwrap_or_default();
        while self.hear_process(event, &mut buffer) {}
        if let Some(dynamic) = &mut self.dynamic {
            dynamic.buffer = buffer;
        }
        let heard = self.process(event.slot() as usize);
        if let Some(process) = heard.filter(|one| one.state == State::Idle) {
            let place = process.place;
            self.start_next(place);
        }
    }

    /// Takes one message of a process. `false`: there is none now, none is wanted, or none is due.
    fn hear_process(&mut self, event: Token, buffer: &mut [u8]) -> bool {
        let slot = event.slot() as usize;
        let direct = self.dynamic.as_ref().map(|dynamic| &dynamic.direct);
        let Some(process) = direct.and_then(|direct| direct.get(slot)) else {
            return false;
        };
        if token(slot, process.id) != event || !process.watched {
            return false;
        }
        let call = match process.piped {
            true => Call::ProgramRead,
            false => Call::TakeBack,
        };
        let received = self.tracer.call(call, || {
            receive_with_descriptors(&process.socket, buffer, 0, Wait::Never)
        });
        let (state, piped) = (process.state, process.piped);
        let mut took = Took::It;
        let (said, has_ended) = match received {
            Ok(None) => return false,
            Ok(Some(received)) => (decode(&buffer[..received.length]), received.is_end()),
            Err(ReceiveError::TooLong | ReceiveError::DescriptorsLost { .. }) => (None, false),
            Err(ReceiveError::Os(error)) => {
                if error == Errno::CONNRESET {
                    took = Took::Nothing;
                }
                (None, true)
            }
        };
        match (said, state) {
            // However much it says: the next turn hears the next word.
            (_, State::Dying(..)) if !has_ended => return false,
            (Some(Said::Ready), State::Starting) => return self.rest(slot),
            (Some(Said::Output { id, bytes }), State::Busy(client, exchange))
                if piped && id == exchange as u32 =>
            {
                self.take_piped(client, exchange, bytes);
            }
            (Some(Said::Output { id, .. }), State::Draining(exchange, _))
                if id == exchange as u32 => {}
            (Some(Said::Done(done)), State::Busy(client, exchange))
                if done.id == exchange as u32 =>
            {
                match piped {
                    true => self.end_piped(client, exchange, done.keep),
                    false => self.take_back(client, exchange, &done),
                }
                // It has nothing to say until it is asked again. One that says more is given nobody
                // who waits.
                return self.rest(slot);
            }
            (Some(Said::Done(done)), State::Draining(exchange, _))
                if done.id == exchange as u32 =>
            {
                return self.rest(slot);
            }
            (_, State::Busy(client, exchange)) if !has_ended => match piped {
                true => self.kill_process(slot, client, exchange, Status::BAD_GATEWAY),
                false => {
                    self.step_lent(client, exchange, |_, _, _| Step::Fail(Status::BAD_GATEWAY));
                }
            },
            _ => {
                self.bury(slot, took);
                return false;
            }
        }
        true
    }

    /// Kills one that has a client, who is answered with this when it is gone: only then is it
    /// certain what it has taken, and what it has written.
    pub(super) fn kill_process(
        &mut self,
        slot: usize,
        client: Token,
        exchange: u64,
        status: Status,
    ) {
        if let Some(process) = self.process(slot) {
            process.state = State::Dying(client, exchange, status);
            let id = process.id;
            self.order_end(id);
        }
    }

    /// It waits for a request. Says whether one waits for it.
    fn rest(&mut self, slot: usize) -> bool {
        let Some(dynamic) = &mut self.dynamic else {
            return false;
        };
        let Some(process) = dynamic.direct.get_mut(slot) else {
            return false;
        };
        process.served |= process.state != State::Starting;
        process.state = State::Idle;
        !dynamic.queues[process.place].is_empty()
    }

    /// The client's socket is ours again.
    fn take_back(&mut self, client: Token, exchange: u64, done: &Done) {
        let Done {
            status,
            bytes,
            keep,
            ..
        } = *done;
        self.step_lent(client, exchange, |worker, connection, exchange| {
            let waited_us = exchange.begun.elapsed().as_micros() as u64;
            worker.counters.direct_us.record(waited_us);
            worker.counters.record_response(status);
            worker.counters.bytes_sent += bytes;
            connection.outgoing.status = status;
            connection.outgoing.sent_bytes = bytes;
            connection.keep_alive = keep && worker.keeps_after(connection, exchange);
            exchange.stage = Stage::Over;
            Step::Done
        });
    }

    fn keeps_after(&self, connection: &Connection, exchange: &Exchange) -> bool {
        match headway_http::parse(&exchange.head, &self.limits) {
            Parsed::Complete(head) => self.keeps_lent(connection, &head),
            _ => false,
        }
    }

    /// A step of the exchange that a process has been given, if it still has one.
    pub(super) fn step_lent(
        &mut self,
        client: Token,
        id: u64,
        step: impl FnOnce(&mut Worker, &mut Connection, &mut Exchange) -> Step,
    ) {
        let Some(slot) = self.connections.find(client) else {
            return;
        };
        self.with_connection(slot, |worker, connection| {
            worker.step_exchange(connection, |worker, connection, exchange| {
                let asked = exchange.stage == Stage::Lent || exchange.process.is_some();
                match exchange.id == id && asked {
                    true => step(worker, connection, exchange),
                    false => Step::Go,
                }
            })
        });
    }

    /// A process has ended, or is to: it has said what makes no sense. Its client is answered
    /// otherwise, by another process if this one has not even taken the request.
    fn bury(&mut self, slot: usize, took: Took) {
        let Some(process) = self.remove_process(slot) else {
            return;
        };
        let owed = match process.state {
            State::Busy(client, exchange) => Some((client, exchange, Status::BAD_GATEWAY)),
            State::Dying(client, exchange, status) => Some((client, exchange, status)),
            State::Starting | State::Idle | State::Draining(..) => None,
        };
        let place = self.places.get(process.place).clone();
        if let Some((client, exchange, status)) = owed {
            // Who was kept waiting until it was too late is not asked to wait again.
            // One that has never answered would only be the first of many that do not.
            let again = took == Took::Nothing && process.served && status == Status::BAD_GATEWAY;
            self.step_lent(client, exchange, |worker, connection, exchange| {
                exchange.process = None;
                match again {
                    true => worker.wait_for_another(connection, exchange, &place),
                    false => Step::Fail(status),
                }
            });
        }
        let waits = self
            .dynamic
            .as_ref()
            .is_some_and(|dynamic| !dynamic.queues[place.number].is_empty());
        if waits {
            self.start_next(place.number);
        }
    }

    /// Forgets a process, kills it if it still runs, and says when the next one may start.
    pub(super) fn remove_process(&mut self, slot: usize) -> Option<Process> {
        let now_ms = self.now_ms;
        let direct = &mut self.dynamic.as_mut()?.direct;
        let process = direct.processes.get_mut(slot)?.take()?;
        let young = !process.served && now_ms < process.born_ms + YOUNG_MS;
        let delay_ms = &mut direct.delay_ms[process.place];
        direct.retry_ms[process.place] = if young { now_ms + *delay_ms } else { now_ms };
        *delay_ms = match young {
            true => (*delay_ms * 2).min(LONGEST_DELAY_MS),
            false => FIRST_DELAY_MS,
        };
        self.counters.direct_ended += 1;
        let _ = self.events.remove(process.socket.as_fd());
        self.order_end(process.id);
        Some(process)
    }

    /// Processes that do not become ready in time, and those that may be tried again.
    pub(super) fn maintain_direct(&mut self) {
        let now_ms = self.now_ms;
        let Some(dynamic) = &self.dynamic else { return };
        let late = |one: &Process| self.late_ms(one).is_some_and(|late_ms| now_ms >= late_ms);
        let processes = dynamic.direct.processes.iter();
        let late: Vec<usize> = processes
            .enumerate()
            .filter(|(_, one)| one.as_ref().is_some_and(late))
            .map(|(slot, _)| slot)
            .collect();
        let queues = dynamic.queues.iter().enumerate();
        let waiting: Vec<usize> = queues
            .filter(|(_, queue)| !queue.is_empty())
            .map(|(place, _)| place)
            .collect();
        for slot in late {
            self.bury(slot, Took::Nothing);
        }
        for number in waiting {
            let place = self.places.get(number).clone();
            if place.location.stays() && !self.may_lend(&place) {
                continue;
            }
            self.start_next(number);
        }
    }
}
