//! Requests that a program or an upstream answers (CGI, FastCGI, SCGI, proxy, direct, pipe): the
//! event loop's part.
//!
//! Such a request becomes an *exchange*, which its connection owns
//! ([`headway_connection::Exchange`]). A step of an exchange is an `ExchangeStep`: `?` leaves it when
//! the exchange ends. [`Gateway::apply_step`] makes a `Next` of it for the worker. In the order of a
//! request:
//!
//! - `buffer_body` receives the body, `admission` gives the request a slot or queues it, and
//!   `address_slots` limits those of one address;
//! - `launch` starts a CGI program, `direct` and `piped` choose a running process;
//! - `upstream` is the way of a proxied request. `upstream_conn` opens connections,
//!   `upstream_pool` keeps them, `upstream_faults` has what goes wrong, `upstream_abort` cancels a
//!   request, `upgrade` passes WebSocket traffic;
//! - `upload` and `download` pass the body and the response, `response_buffer` spools a response
//!   for a slow client;
//! - `finish` ends the exchange, `internal_redirect` makes another request of it.
//!
//! This file has what all exchanges share: running programs, the queues, and the connection to the
//! spawner.
//!
//! The loop never creates a process (except with `fork-in-server`, for measurements), never waits
//! for one, and never keeps more of a body or a response in memory than a bounded buffer holds.

mod address_slots;
mod admission;
mod buffer_body;
mod direct;
mod direct_processes;
mod download;
mod finish;
mod fork_in_server;
mod handed_off;
mod internal_redirect;
mod launch;
pub(crate) mod piped;
mod response_buffer;
mod spawner;
mod upgrade;
mod upload;
mod upstream;
mod upstream_abort;
mod upstream_conn;
mod upstream_faults;
mod upstream_pool;

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::ops::ControlFlow::{self, Break, Continue};
use std::os::fd::AsFd;

use headway_config::ErrorLevel;
use headway_connection::{CONNECTION, Channel, Connection, Exchange, Next, Phase, Stage};
use headway_event::{Interest, Ready, Slots, Token};
use headway_http::Status;
use headway_metrics::calls::Call;
use headway_respond::handlers::Routes;
use headway_spawner::process_tag::ProcessTags;

use super::context::LoopContext;
use super::deliver::Delivery;
use super::{PROGRAM, UPSTREAM_CONN};
use crate::extensions::{OwnProgram, Research};
use address_slots::AddressSlots;
use direct_processes::Direct;
use internal_redirect::InternalRedirect;
use spawner::Spawner;
use upstream_abort::AbortedRequest;
use upstream_conn::ConnUse;
use upstream_pool::UpstreamPool;

/// Size of the buffer that programs and upstreams are read into.
const READ_BUFFER_BYTES: usize = 64 * 1024;

/// A program that has been requested and has not ended.
struct Program {
    client: Token,
    route: usize,
    /// The server has killed it.
    killed: bool,
    /// The process, if the worker forked it itself (`fork-in-server`).
    forked: Option<Box<dyn OwnProgram>>,
}

/// State that all exchanges share.
pub(super) struct Gateway {
    spawner: Option<Spawner>,
    programs: HashMap<u64, Program>,
    /// Programs or upstream requests in progress, by location.
    running: Vec<u32>,
    /// Clients whose requests wait for a free slot, by location.
    queues: Vec<VecDeque<(Token, IpAddr)>>,
    /// The long-running processes of direct and pipe locations.
    direct: Direct,
    /// The upstream pools, by location.
    pools: Vec<Option<UpstreamPool>>,
    /// All upstream connections and what each is used for.
    /// The use of each upstream connection, by its token.
    upstream_conns: Slots<ConnUse>,
    /// Number of the current loop iteration.
    iteration: u64,
    /// The last wait returned every ready event, so silence of a watched socket is certain.
    events_complete: bool,
    /// Cancelled upstream requests whose connections are still in use.
    aborts: Vec<AbortedRequest>,
    /// Upgraded connections, by location.
    upgrades: Vec<u32>,
    /// Requests that each location answers, by client address.
    addresses: Vec<AddressSlots>,
    /// Locations with a slot that has just become free.
    freed: Vec<usize>,
    /// ID of the last exchange.
    next_id: u64,
    /// Tags that mark programs and all their descendants.
    process_tags: ProcessTags,
    /// Programs whose spawner has died. The next spawner kills their descendants.
    orphans: Vec<u64>,
    /// Read buffer for programs and upstreams.
    buffer: Vec<u8>,
    /// How programs are started and answer otherwise, in a research server.
    research: Option<&'static Research>,
    /// `/dev/null`, the input of such processes without a request body.
    null: Option<File>,
}

impl Gateway {
    /// Creates the state for these locations.
    pub(super) fn new(
        routes: &Routes,
        research: Option<&'static Research>,
    ) -> io::Result<Box<Gateway>> {
        let buffer_bytes = match routes.is_empty() {
            true => 0,
            false => READ_BUFFER_BYTES,
        };
        let mut options = File::options();
        Ok(Box::new(Gateway {
            spawner: None,
            programs: HashMap::new(),
            running: vec![0; routes.len()],
            queues: (0..routes.len()).map(|_| VecDeque::new()).collect(),
            direct: Direct::new(routes.len()),
            pools: UpstreamPool::all(routes),
            upstream_conns: Slots::new(UPSTREAM_CONN),
            iteration: 0,
            events_complete: false,
            aborts: Vec::new(),
            upgrades: vec![0; routes.len()],
            addresses: AddressSlots::all(routes),
            freed: Vec::new(),
            next_id: 1,
            process_tags: ProcessTags::draw(),
            orphans: Vec::new(),
            buffer: vec![0; buffer_bytes],
            research,
            null: match research.filter(|_| !routes.is_empty()) {
                None => None,
                Some(_) => Some(options.read(true).write(true).open("/dev/null")?),
            },
        }))
    }

    /// Sets the gauges that describe this moment.
    pub(super) fn gauges(&self, counters: &mut headway_metrics::Counters) {
        counters.cgi_processes = self.programs.len() as u64;
        (counters.direct_processes, counters.direct_processes_busy) = self.direct.gauges();
        counters.upstream_connections_idle = self.idle_connections();
        counters.connections_upgraded = self.upgrades.iter().map(|open| u64::from(*open)).sum();
        counters.handler_queue_length = self.queues.iter().map(|queue| queue.len() as u64).sum();
    }
}

/// How a step ends an exchange.
enum ExchangeEnd {
    /// The response has been sent.
    Done,
    /// The request is answered with an error; nothing of the response has been sent yet.
    Fail(Status),
    /// The response cannot be completed, and part of it has been sent.
    Abort,
    /// The client has disconnected.
    ClientGone,
    /// The handler asks for an internal redirect.
    InternalRedirect(Box<InternalRedirect>),
}

/// A step of an exchange. `Continue`: the exchange goes on, or waits for the next event. `Break`: it
/// ends. It is not a `Next`, because the request lies in the exchange meanwhile.
type ExchangeStep<T = ()> = ControlFlow<ExchangeEnd, T>;

/// One of a program's two descriptors.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Input,
    Output,
}

/// The event token of a program's descriptor: the slot and generation of the client's connection.
fn program_token(client: Token, side: Side) -> Token {
    let side = u32::from(side == Side::Output);
    Token::new(PROGRAM, client.slot() << 1 | side, client.generation())
}

impl Gateway {
    /// Handles an event on a program's descriptor.
    pub(super) fn on_program(&mut self, context: &mut LoopContext, event: &Ready) {
        let token = event.token;
        let client = Token::new(CONNECTION, token.slot() >> 1, token.generation());
        let is_output = token.slot() & 1 == 1;
        self.step_client(
            context,
            client,
            |gateway, context, connection, exchange| match is_output {
                true => gateway.on_output(context, connection, exchange),
                false => gateway.write_program(context, connection, exchange),
            },
        );
    }

    /// Handles an event on the socket of a client whose request a handler answers.
    pub(super) fn on_client(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        event: &Ready,
    ) -> Next {
        if let Phase::Exchange(exchange) = &connection.phase
            && exchange.stage == Stage::HandedOff
        {
            Gateway::unwatch_client(context, connection);
            return Next::Wait(connection.take_phase());
        }
        let (readable, writable) = (event.readable || event.hangup, event.writable);
        if event.hangup && !event.readable && !writable {
            // poll and epoll report a hang-up at every wait, whatever they watch for.
            return self.step_exchange(context, connection, |_, _, _, _| {
                Break(ExchangeEnd::ClientGone)
            });
        }
        self.step_exchange(
            context,
            connection,
            |gateway, context, connection, exchange| {
                if exchange.upgraded.is_some() {
                    return gateway.on_upgraded_client(context, connection, exchange, event);
                }
                if readable {
                    gateway.read_client(context, connection, exchange)?;
                }
                match writable {
                    true => gateway.send_response(context, connection, exchange),
                    false => Continue(()),
                }
            },
        )
    }

    /// Handles the result of a helper's job for an exchange.
    pub(super) fn deliver(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        result: &Delivery,
    ) -> Next {
        self.step_exchange(
            context,
            connection,
            |gateway, context, connection, exchange| match result {
                Delivery::Copy(copy) => gateway.on_spool_read(context, connection, exchange, copy),
                Delivery::Spooled(file) => {
                    gateway.on_spool_written(context, connection, exchange, file)
                }
                // Not from a job of an exchange.
                _ => Continue(()),
            },
        )
    }

    /// Stops watching a socket that has been handed off: its events belong to the program.
    fn unwatch_client(context: &mut LoopContext, connection: &mut Connection) {
        if connection.interest.take().is_some() {
            let _ = context.tracer.call(Call::EventControl, || {
                context.events.remove(connection.socket.as_fd())
            });
        }
    }

    /// Runs a step of the connection's exchange, if it has one, and applies the result.
    fn step_exchange(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        step: impl FnOnce(
            &mut Gateway,
            &mut LoopContext,
            &mut Connection,
            &mut Exchange,
        ) -> ExchangeStep,
    ) -> Next {
        let mut exchange = match connection.take_phase() {
            Phase::Exchange(exchange) => exchange,
            other => return Next::Wait(other),
        };
        let step = step(self, context, connection, &mut exchange);
        self.apply_step(context, connection, exchange, step)
    }

    /// Runs a step of the exchange of a client that is not at hand, if it still has one. The worker
    /// applies the result before it handles the next event.
    fn step_client(
        &mut self,
        context: &mut LoopContext,
        client: Token,
        step: impl FnOnce(
            &mut Gateway,
            &mut LoopContext,
            &mut Connection,
            &mut Exchange,
        ) -> ExchangeStep,
    ) {
        let slot = context.connections.find(client);
        let Some((slot, mut connection)) =
            slot.and_then(|slot| Some((slot, context.connections.take(slot)?)))
        else {
            return;
        };
        match self.step_exchange(context, &mut connection, step) {
            Next::Wait(phase) => connection.phase = phase,
            next => context.settled.push((client, next)),
        }
        context.put_back(slot, connection);
    }

    fn apply_step(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        mut exchange: Box<Exchange>,
        step: ExchangeStep,
    ) -> Next {
        match step {
            Continue(()) if exchange.stage == Stage::HandedOff => {
                Next::Wait(Phase::Exchange(exchange))
            }
            Continue(()) => {
                exchange.charge_buffers(connection.outgoing.memory_bytes());
                Gateway::watch_client(context, connection, &exchange);
                self.watch_program(context, connection.token, &mut exchange);
                Next::Wait(Phase::Exchange(exchange))
            }
            Break(ExchangeEnd::Done) => self.finish_exchange(context, connection, *exchange),
            Break(ExchangeEnd::Fail(status)) => {
                self.answer_error(context, connection, *exchange, status)
            }
            Break(ExchangeEnd::InternalRedirect(redirect)) => {
                self.redirect(context, connection, *exchange, *redirect)
            }
            Break(ExchangeEnd::Abort) => {
                self.kill_program(context, &mut exchange);
                Gateway::cut_response(context, connection, *exchange)
            }
            Break(ExchangeEnd::ClientGone) => {
                context.counters.handler_abandoned += 1;
                self.kill_program(context, &mut exchange);
                Next::Close(Some(exchange.request))
            }
        }
    }

    /// Watches the client's socket: for more of the body while there is room, otherwise for a
    /// disconnect, and for room to send the response.
    fn watch_client(context: &mut LoopContext, connection: &mut Connection, exchange: &Exchange) {
        let reads = match &exchange.upload.body {
            _ if exchange.upgraded.is_some() => Gateway::reads_upgraded_client(exchange),
            Some(_) => Gateway::takes_body(exchange),
            None => !exchange.read_closed,
        };
        let writes = connection.has_unsent();
        let interest = match (reads, writes) {
            (true, true) => Interest::BOTH,
            (true, false) => Interest::READ,
            (false, true) => Interest::WRITE,
            (false, false) => Interest::NONE,
        };
        context.watch(connection, interest);
    }

    /// Watches the program's descriptors: the output while the client keeps up, the input while
    /// there is something to write. A descriptor that is not needed is not registered, because a
    /// hang-up would be reported at every wait.
    fn watch_program(&mut self, context: &mut LoopContext, client: Token, exchange: &mut Exchange) {
        Gateway::watch_upstream(context, exchange);
        Gateway::watch_upgraded(context, exchange);
        if let Some(research) = self.research {
            (research.piped.watch)(self, context, exchange);
        }
        let runs = exchange.stage == Stage::Running;
        let (hears, speaks) = (
            exchange.download.wanted,
            !exchange.upload.remaining().is_empty(),
        );
        if let Some(source) = &mut exchange.download.source {
            let token = program_token(client, Side::Output);
            Gateway::watch_channel(context, source, token, Interest::READ, runs && hears);
        }
        if let Some(sink) = &mut exchange.upload.sink {
            let token = program_token(client, Side::Input);
            Gateway::watch_channel(context, sink, token, Interest::WRITE, speaks);
        }
    }

    fn watch_channel(
        context: &mut LoopContext,
        channel: &mut Channel,
        token: Token,
        what: Interest,
        wanted: bool,
    ) {
        if channel.watched == wanted {
            return;
        }
        let result = context.tracer.call(Call::EventControl, || match wanted {
            true => context.events.add(channel.as_fd(), token, what),
            false => context.events.remove(channel.as_fd()),
        });
        match result {
            Ok(()) => channel.watched = wanted,
            // Out of memory or watches: only this exchange ends, by its timeout.
            Err(error) => context.notice(
                ErrorLevel::Error,
                format!("cannot watch a program: {error}"),
            ),
        }
    }

    /// Closes an end of a program's input or output.
    fn close_channel(context: &mut LoopContext, channel: Option<Channel>) {
        let Some(channel) = channel else { return };
        if channel.watched {
            // Not `forget`: a process that the worker has just forked keeps a copy until it
            // executes its program.
            let _ = context.tracer.call(Call::EventControl, || {
                context.events.remove(channel.as_fd())
            });
        }
        context.tracer.call(Call::Close, || drop(channel));
    }

    /// Runs once per loop iteration: sends delayed orders to the spawner, reaps forked programs,
    /// and expires processes and connections.
    pub(super) fn maintain(&mut self, context: &mut LoopContext) {
        self.maintain_direct(context);
        self.flush_orders(context);
        self.reap_forked(context);
        self.maintain_upstreams(context);
        self.maintain_aborted(context);
        self.maintain_buffers(context);
    }

    /// The latest time at which [`Gateway::maintain`] has something to do.
    pub(super) fn next_ms(&self, context: &LoopContext) -> Option<u64> {
        // A slot that a timeout has freed since the last tick.
        let freed = (!self.freed.is_empty()).then_some(context.now_ms);
        let due = [
            freed,
            self.direct_next_ms(context),
            self.forked_next_ms(context.now_ms),
            self.idle_next_ms(),
            self.aborts_next_ms(),
            Gateway::buffers_next_ms(context),
        ];
        due.into_iter().flatten().min()
    }
}
