//! Requests that programs answer: the loop's part of it.
//!
//! A request of a location becomes an *exchange*, which its connection owns
//! ([`crate::connection::Exchange`]): `find` looks for the program, `begin` lets it in, `gather`
//! keeps a body until its length is known, `start` has its process made, `upload` and `download`
//! pass the body and the reply, `end` says farewell. Here is what all exchanges share: the programs
//! under way, who waits for a place among them, and the fork helper.
//!
//! What the loop never does: make a process (but with `fork-in-server`, to show what that costs),
//! wait for one, or keep more of a body or a reply than a bounded buffer holds.

mod abort;
mod backlog;
mod begin;
mod direct;
mod download;
mod end;
mod find;
mod forked;
mod gather;
mod helper;
mod lent;
mod line;
mod peer;
mod piped;
mod processes;
mod start;
mod talk;
mod tunnel;
mod upload;

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;

use headway_debox::Call;
use headway_event::{Interest, Ready, Token};
use headway_gateway::FieldList;
use headway_http::Status;

use super::{BACKEND, Disposition, Worker};
use crate::connection::{CONNECTION, Channel, Connection, Exchange, Phase, Stage};
use crate::forker::mark::Marks;
use crate::respond::dynamic::Places;
use abort::Abandoned;
pub(super) use find::Found;
use forked::Forked;
use helper::ForkHelper;
use line::Lines;
use peer::Group;
use processes::Direct;

/// What is read from a program at once.
const READ_BYTES: usize = 64 * 1024;

/// A program that has been asked for and has not ended.
struct Program {
    client: Token,
    place: usize,
    /// The server has ended it.
    killed: bool,
    /// Its process, if the worker made it itself.
    forked: Option<Forked>,
}

/// What all exchanges share.
pub(super) struct Dynamic {
    helper: Option<ForkHelper>,
    programs: HashMap<u64, Program>,
    /// How many of them, by location.
    running: Vec<u32>,
    /// Who waits for a place among them, by location.
    queues: Vec<VecDeque<Token>>,
    /// Programs that stay.
    direct: Direct,
    /// The back ends, by location.
    groups: Vec<Option<Group>>,
    /// Connections to them: whom each serves.
    lines: Lines,
    /// The number of this turn.
    turn: u64,
    /// The wait before this turn has told of everybody.
    all_told: bool,
    /// Those whose request has been given up.
    aborts: Vec<Abandoned>,
    /// Connections that speak another protocol, by location.
    tunnels: Vec<u32>,
    /// Replies that wait for their clients in files, by location.
    spills: Vec<Rc<Cell<u64>>>,
    /// Locations that may ask for one more request than before.
    freed: Vec<usize>,
    /// The number of the next exchange.
    next_id: u64,
    /// What programs and all that they start are known by.
    marks: Marks,
    /// Programs whose fork helper has died: the next one looks for what they have started.
    orphans: Vec<u64>,
    /// Programs are read from into this.
    buffer: Vec<u8>,
    /// The input of programs without a body that the worker starts itself.
    null: File,
}

impl Dynamic {
    /// For these locations; nothing if there are none.
    pub(super) fn new(places: &Places) -> io::Result<Option<Box<Dynamic>>> {
        if places.is_empty() {
            return Ok(None);
        }
        let mut options = File::options();
        Ok(Some(Box::new(Dynamic {
            helper: None,
            programs: HashMap::new(),
            running: vec![0; places.len()],
            queues: (0..places.len()).map(|_| VecDeque::new()).collect(),
            direct: Direct::new(places.len()),
            groups: Group::all(places),
            lines: Lines::default(),
            turn: 0,
            all_told: false,
            aborts: Vec::new(),
            tunnels: vec![0; places.len()],
            spills: (0..places.len()).map(|_| Rc::default()).collect(),
            freed: Vec::new(),
            next_id: 1,
            marks: Marks::draw(),
            orphans: Vec::new(),
            buffer: vec![0; READ_BYTES],
            null: options.read(true).write(true).open("/dev/null")?,
        })))
    }

    /// Its numbers of this moment.
    pub(super) fn gauges(&self, counters: &mut crate::tally::Counters) {
        counters.programs_running = self.programs.len() as u64;
        (counters.direct_processes, counters.direct_busy) = self.direct.gauges();
        counters.backend_idle = self.idle_connections();
        counters.tunnels_open = self.tunnels.iter().map(|open| u64::from(*open)).sum();
        counters.dynamic_queue = self.queues.iter().map(|queue| queue.len() as u64).sum();
    }
}

/// What becomes of an exchange after a step.
enum Step {
    /// It goes on.
    Go,
    /// The reply has left.
    Done,
    /// It is answered otherwise: nothing of a reply has left yet.
    Fail(Status),
    /// It cannot be finished, and some of it has left.
    Abort,
    /// The client has gone.
    Gone,
    /// The program sends the request elsewhere on this server.
    Elsewhere(Box<Elsewhere>),
}

impl Step {
    /// Another resource of this server answers instead of the program.
    fn away(location: Box<[u8]>) -> Step {
        Step::Elsewhere(Box::new(Elsewhere {
            location,
            handed: None,
        }))
    }
}

/// Where on this server a program sends a request.
struct Elsewhere {
    /// Path and query.
    location: Box<[u8]>,
    /// Its fields that go with the file there, if it hands one over.
    handed: Option<FieldList>,
}

/// Which of a program's descriptors.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Input,
    Output,
}

/// How events name a program's descriptor: by the client's place, generation included.
fn program_token(client: Token, side: Side) -> Token {
    let side = u32::from(side == Side::Output);
    Token::new(BACKEND, client.slot() << 1 | side, client.generation())
}

impl Worker {
    /// An event on the descriptor of a program.
    pub(super) fn on_program(&mut self, event: &Ready) {
        let token = event.token;
        let client = Token::new(CONNECTION, token.slot() >> 1, token.generation());
        let Some(slot) = self.connections.find(client) else {
            return;
        };
        let is_output = token.slot() & 1 == 1;
        self.with_connection(slot, |worker, connection| {
            worker.step_exchange(connection, |worker, connection, exchange| match is_output {
                true => worker.take_output(connection, exchange),
                false => worker.feed_program(connection, exchange),
            })
        });
    }

    /// An event on the socket of a client whose request a program answers.
    pub(super) fn on_client(&mut self, connection: &mut Connection, event: &Ready) -> Disposition {
        if let Phase::Exchange(exchange) = &connection.phase
            && exchange.stage == Stage::Lent
        {
            return self.ignore(connection);
        }
        let (readable, writable) = (event.readable || event.hangup, event.writable);
        if event.hangup && !event.readable && !writable {
            // poll and epoll tell it at every wait, whatever they were asked.
            return self.step_exchange(connection, |_, _, _| Step::Gone);
        }
        self.step_exchange(connection, |worker, connection, exchange| {
            if exchange.tunnel.is_some() {
                return worker.on_tunnel_client(connection, exchange, event);
            }
            if readable {
                match worker.hear_client(connection, exchange) {
                    Step::Go => {}
                    other => return other,
                }
            }
            match writable {
                true => worker.send_reply(connection, exchange),
                false => Step::Go,
            }
        })
    }

    /// A socket that a program has is not waited for: what is to be heard from it is the program's.
    fn ignore(&mut self, connection: &mut Connection) -> Disposition {
        if connection.interest.take().is_some() {
            let _ = self.tracer.call(Call::EventControl, || {
                self.events.remove(connection.socket.as_fd())
            });
        }
        Disposition::Keep
    }

    /// Takes a step of the connection's exchange, if it has one, and does what follows from it.
    fn step_exchange(
        &mut self,
        connection: &mut Connection,
        step: impl FnOnce(&mut Worker, &mut Connection, &mut Exchange) -> Step,
    ) -> Disposition {
        let Some(mut exchange) = connection.take_exchange() else {
            return Disposition::Keep;
        };
        let step = step(self, connection, &mut exchange);
        self.settle(connection, exchange, step)
    }

    fn settle(
        &mut self,
        connection: &mut Connection,
        mut exchange: Box<Exchange>,
        step: Step,
    ) -> Disposition {
        match step {
            Step::Go if exchange.stage == Stage::Lent => {
                connection.phase = Phase::Exchange(exchange);
                Disposition::Keep
            }
            Step::Go => {
                self.watch_client(connection, &exchange);
                self.watch_program(connection.token, &mut exchange);
                connection.phase = Phase::Exchange(exchange);
                Disposition::Keep
            }
            Step::Done => self.end_well(connection, *exchange),
            Step::Fail(status) => self.answer_failure(connection, *exchange, status),
            Step::Elsewhere(there) => self.send_elsewhere(connection, *exchange, *there),
            Step::Abort => {
                self.counters.aborted += 1;
                self.kill_program(&mut exchange);
                Disposition::Close
            }
            Step::Gone => {
                self.counters.dynamic_abandoned += 1;
                self.kill_program(&mut exchange);
                Disposition::Close
            }
        }
    }

    /// What the client's socket is waited for: more of the body while there is room for it, else
    /// the client's departure; and room for the reply.
    fn watch_client(&mut self, connection: &mut Connection, exchange: &Exchange) {
        let reads = match &exchange.upload.body {
            _ if exchange.tunnel.is_some() => self.hears_tunnel_client(exchange),
            Some(_) => self.takes_body(exchange),
            None => !exchange.deaf,
        };
        let writes = !connection.outgoing.pieces.is_empty();
        let interest = match (reads, writes) {
            (true, true) => Interest::BOTH,
            (true, false) => Interest::READ,
            (false, true) => Interest::WRITE,
            (false, false) => Interest::NONE,
        };
        self.watch(connection, interest);
    }

    /// What the program's descriptors are waited for: its output while the last of it has left, its
    /// input while there is something for it. A hang-up would be told at every wait, so what is not
    /// waited for is not registered at all.
    fn watch_program(&mut self, client: Token, exchange: &mut Exchange) {
        self.watch_peer(exchange);
        self.watch_tunnel(exchange);
        self.watch_piped(exchange);
        let runs = exchange.stage == Stage::Running;
        let (hears, speaks) = (exchange.download.wanted, !exchange.upload.left().is_empty());
        if let Some(source) = &mut exchange.download.source {
            let token = program_token(client, Side::Output);
            self.watch_channel(source, token, Interest::READ, runs && hears);
        }
        if let Some(sink) = &mut exchange.upload.sink {
            let token = program_token(client, Side::Input);
            self.watch_channel(sink, token, Interest::WRITE, speaks);
        }
    }

    fn watch_channel(&mut self, channel: &mut Channel, token: Token, what: Interest, wanted: bool) {
        if channel.watched == wanted {
            return;
        }
        let told = self.tracer.call(Call::EventControl, || match wanted {
            true => self.events.add(channel.as_fd(), token, what),
            false => self.events.remove(channel.as_fd()),
        });
        match told {
            Ok(()) => channel.watched = wanted,
            // Out of memory or watches: the deadline will end this exchange, nobody else's.
            Err(error) => self.notice(format!("watching a program: {error}")),
        }
    }

    /// Closes an end of a program's input or output.
    fn close_channel(&mut self, channel: Option<Channel>) {
        let Some(channel) = channel else { return };
        if channel.watched {
            // Not `forget`: a process that the worker has just forked holds it until it executes
            // its program.
            let _ = self
                .tracer
                .call(Call::EventControl, || self.events.remove(channel.as_fd()));
        }
        self.tracer.call(Call::Close, || drop(channel));
    }

    /// Once a turn: orders to the fork helper that did not fit, and programs of the worker's own
    /// that have ended.
    pub(super) fn maintain_dynamic(&mut self) {
        if self.dynamic.is_some() {
            self.maintain_direct();
            self.flush_orders();
            self.reap_forked();
            self.maintain_peers();
            self.maintain_aborts();
        }
    }

    /// When [`Worker::maintain_dynamic`] has something to do at the latest.
    pub(super) fn dynamic_next_ms(&self) -> Option<u64> {
        let dynamic = self.dynamic.as_ref()?;
        // A place that has become free since then, at a time-out.
        let freed = (!dynamic.freed.is_empty()).then_some(self.now_ms);
        let due = [
            freed,
            self.direct_next_ms(dynamic),
            dynamic.forked_next_ms(self.now_ms),
            dynamic.idle_next_ms(),
            dynamic.aborts_next_ms(),
        ];
        due.into_iter().flatten().min()
    }
}
