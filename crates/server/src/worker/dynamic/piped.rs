//! Programs that stay and send their replies back through the worker: the old interface, beside
//! which the direct one is to be seen.
//!
//! The process, its protocol and what happens to one that does wrong are those of `direct`. But the
//! client's socket stays here, and the reply comes in messages of at most 64 KiB, as a CGI program
//! would write it; from here on it goes the way of every program's reply. A process whose client
//! takes nothing is not read from, so that it waits in its own write. One whose client has gone may
//! finish its reply, which nobody gets, for `timeout`; then it is killed.
//!
//! Source: dissertation 2.4 and 2.5.5: persistent programs behind pipes, whose replies the server
//! copies.

use headway_debox::Call;
use headway_event::{Interest, Token};
use headway_http::Status;
use std::os::fd::AsFd;

use super::Step;
use super::processes::{Process, State, token};
use crate::connection::{Connection, Exchange};
use crate::worker::Worker;

impl Worker {
    /// More of a reply.
    pub(super) fn take_piped(&mut self, client: Token, id: u64, bytes: &[u8]) {
        self.counters.dynamic_sent_bytes += bytes.len() as u64;
        self.step_lent(client, id, |worker, connection, exchange| {
            worker.note_word(connection, exchange);
            // It has taken the request.
            exchange.upload.throw_away();
            let mut body = Vec::new();
            match worker.understand(connection, exchange, bytes, &mut body) {
                Step::Go => worker.deliver(connection, exchange, body),
                other => other,
            }
        });
    }

    /// The process says that its reply is over.
    pub(super) fn end_piped(&mut self, client: Token, id: u64, complete: bool) {
        self.step_lent(client, id, |worker, connection, exchange| {
            exchange.process = None;
            exchange.upload.throw_away();
            if !complete {
                return worker.refuse_reply(exchange, "the program has not finished its reply");
            }
            exchange.download.ended = true;
            worker.deliver(connection, exchange, Vec::new())
        });
    }

    fn deliver(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
        body: Vec<u8>,
    ) -> Step {
        let judged = self.judge(exchange, body.len() as u64);
        let step = judged.unwrap_or_else(|| self.pass_on(connection, exchange, body));
        match step {
            Step::Go if self.sends_at_once(exchange) => self.send_reply(connection, exchange),
            other => other,
        }
    }

    /// The process of an exchange is listened to while its client takes what it says.
    pub(super) fn watch_piped(&mut self, exchange: &Exchange) {
        if let Some(slot) = exchange.process {
            self.watch_process(slot, exchange.download.wanted);
        }
    }

    fn watch_process(&mut self, slot: usize, wanted: bool) {
        let Some(dynamic) = &mut self.dynamic else {
            return;
        };
        let Some(process) = dynamic.direct.get_mut(slot) else {
            return;
        };
        if process.watched == wanted {
            return;
        }
        let (socket, token) = (process.socket.as_fd(), token(slot, process.id));
        let told = self.tracer.call(Call::EventControl, || match wanted {
            true => self.events.add(socket, token, Interest::READ),
            // A hang-up would be told at every wait.
            false => self.events.remove(socket),
        });
        match told {
            Ok(()) => process.watched = wanted,
            // Out of memory or watches: the deadline will end this exchange, nobody else's.
            Err(error) => self.notice(format!("watching a program: {error}")),
        }
    }

    /// The exchange has nothing more to do with its process, which may not be done with it.
    pub(super) fn leave_process(&mut self, exchange: &mut Exchange) {
        let Some(slot) = exchange.process.take() else {
            return;
        };
        let patience_ms = self.places.get(exchange.program.place).location.timeout_ms;
        let due_ms = self.now_ms + patience_ms;
        let process = self
            .dynamic
            .as_mut()
            .and_then(|all| all.direct.get_mut(slot));
        // One that has been killed has nothing more to say.
        let answers = |one: &&mut Process| !matches!(one.state, State::Dying(..));
        if let Some(process) = process.filter(answers) {
            process.state = State::Draining(exchange.id, due_ms);
        }
        self.watch_process(slot, true);
    }

    /// The process has kept its client waiting for too long: it ends.
    pub(super) fn give_process_up(&mut self, exchange: &mut Exchange) -> Step {
        if let Some(slot) = exchange.process.take() {
            self.remove_process(slot);
        }
        Step::Fail(Status::GATEWAY_TIMEOUT)
    }
}
