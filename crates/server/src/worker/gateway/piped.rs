//! Long-running programs that send their responses back through the worker: the classic interface,
//! for comparison with the direct one.
//!
//! Process and protocol are those of `direct`. The client's socket stays here, and the response
//! comes in messages of at most 64 KiB in CGI format; from here it is handled like every program's
//! response. If the client does not read, the process is not read from and waits in its own write.
//! If the client has left, the process may finish its response within `timeout`; then it is killed.
//!
//! A research server alone contains it ([`Piped`]).
//!
//! Source: dissertation 2.4 and 2.5.5 on persistent programs behind pipes, whose responses the
//! server copies.

use headway_config::ErrorLevel;
use headway_connection::{Connection, Exchange};
use headway_event::{Interest, Token};
use headway_metrics::calls::Call;
use std::os::fd::AsFd;

use super::direct_processes::{Process, ProcessState, token};
use super::{ExchangeStep, Gateway};
use crate::worker::context::LoopContext;

/// The functions by which the gateway reaches this module. The only one is [`PIPED`].
pub(crate) struct Piped {
    /// Handles a part of a response: the client, the exchange, the bytes.
    pub(super) output: fn(&mut Gateway, &mut LoopContext, Token, u64, &[u8]),
    /// Handles the end of a response, and whether it is complete.
    pub(super) done: fn(&mut Gateway, &mut LoopContext, Token, u64, bool),
    /// Watches the process while its client keeps up.
    pub(super) watch: fn(&mut Gateway, &mut LoopContext, &Exchange),
    /// The exchange releases its process, which may not have finished yet.
    pub(super) release: fn(&mut Gateway, &mut LoopContext, &mut Exchange),
}

/// Names this module among what a research server contains.
pub(crate) static PIPED: Piped = Piped {
    output: Gateway::on_piped_output,
    done: Gateway::on_piped_done,
    watch: Gateway::watch_piped,
    release: Gateway::release_process,
};

impl Gateway {
    fn on_piped_output(&mut self, context: &mut LoopContext, client: Token, id: u64, bytes: &[u8]) {
        context.counters.handler_response_bytes += bytes.len() as u64;
        self.step_process_exchange(
            context,
            client,
            id,
            |gateway, context, connection, exchange| {
                Gateway::note_activity(context, connection, exchange);
                // The process has read the request.
                exchange.upload.discard();
                let mut body = Vec::new();
                gateway.parse_output(context, connection, exchange, bytes, &mut body)?;
                gateway.forward_piped(context, connection, exchange, body)
            },
        );
    }

    fn on_piped_done(&mut self, context: &mut LoopContext, client: Token, id: u64, complete: bool) {
        self.step_process_exchange(
            context,
            client,
            id,
            |gateway, context, connection, exchange| {
                exchange.process = None;
                exchange.upload.discard();
                if !complete {
                    return gateway.reject_response(
                        context,
                        exchange,
                        "the program did not finish its response",
                    );
                }
                exchange.download.ended = true;
                gateway.forward_piped(context, connection, exchange, Vec::new())
            },
        );
    }

    fn forward_piped(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        body: Vec<u8>,
    ) -> ExchangeStep {
        self.check_and_forward(context, connection, exchange, body, 0)?;
        self.send_if_eager(context, connection, exchange)
    }

    fn watch_piped(&mut self, context: &mut LoopContext, exchange: &Exchange) {
        if let Some(slot) = exchange.process {
            self.watch_process(context, slot, exchange.download.wanted);
        }
    }

    fn watch_process(&mut self, context: &mut LoopContext, slot: usize, wanted: bool) {
        let Some(process) = self.direct.get_mut(slot) else {
            return;
        };
        if process.watched == wanted {
            return;
        }
        let (socket, token) = (process.socket.as_fd(), token(slot, process.id));
        let result = context.tracer.call(Call::EventControl, || match wanted {
            true => context.events.add(socket, token, Interest::READ),
            // A hang-up would be reported at every wait.
            false => context.events.remove(socket),
        });
        match result {
            Ok(()) => process.watched = wanted,
            // Out of memory or watches: only this exchange ends, by its timeout.
            Err(error) => context.notice(
                ErrorLevel::Error,
                format!("cannot watch a program: {error}"),
            ),
        }
    }

    fn release_process(&mut self, context: &mut LoopContext, exchange: &mut Exchange) {
        let Some(slot) = exchange.process.take() else {
            return;
        };
        let timeout_ms = context
            .routes
            .get(exchange.program.route)
            .location
            .timeout_ms;
        let due_ms = context.now_ms + timeout_ms;
        let process = self.direct.get_mut(slot);
        // A killed process sends nothing more.
        let answers = |one: &&mut Process| !matches!(one.state, ProcessState::Dying(..));
        if let Some(process) = process.filter(answers) {
            process.state = ProcessState::Draining(exchange.id, due_ms);
        }
        self.watch_process(context, slot, true);
    }
}
