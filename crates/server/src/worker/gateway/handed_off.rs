//! Recovery of a client's socket that a program does not return: the program timed out, violated
//! the protocol, or died.
//!
//! A living program may be in the middle of a write to that socket, during which the kernel holds
//! the socket's lock. If the program writes from a mapped file, that lasts as long as reading the
//! file from disk, and every other call on the socket blocks meanwhile. So the program is killed
//! first. When its own socket reports its end, the worker checks how much was written, and answers
//! the client or closes the connection.

use super::Gateway;
use std::os::fd::AsFd;

use headway_connection::{Connection, Exchange, Next, Phase, Stage};
use headway_http::Status;

use super::direct_processes::ProcessState;
use crate::worker::context::LoopContext;

/// How long to wait for a killed process. It takes longer only if the kernel itself waits for a
/// disk.
const KILL_TIMEOUT_MS: u64 = 10_000;

impl Gateway {
    /// Answers with an error in place of the program's response, or closes the connection if part
    /// of the response has been sent.
    pub(super) fn answer_handed_off(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        mut exchange: Exchange,
        status: Status,
    ) -> Next {
        if self.kill_socket_owner(context, &exchange, status) {
            context
                .deadlines
                .set(connection.slot(), context.now_ms + KILL_TIMEOUT_MS);
            return Next::Wait(Phase::Exchange(Box::new(exchange)));
        }
        exchange.stage = Stage::Finished;
        let written = headway_os::socket::written_bytes(connection.socket.as_fd()).ok();
        if written.is_some() && written == exchange.written_before {
            return context.close_with_error(connection, exchange.request, status);
        }
        context.counters.responses_aborted += 1;
        match context.has_input(connection) {
            // The responses before this one must reach the client.
            true => Next::Linger,
            false => Next::Close(Some(exchange.request)),
        }
    }

    /// Kills the process that has the client's socket; the client gets `status` when it has gone.
    /// Returns `false` if no process has the socket any more.
    fn kill_socket_owner(
        &mut self,
        context: &mut LoopContext,
        exchange: &Exchange,
        status: Status,
    ) -> bool {
        let (client, id) = (exchange.client, exchange.id);
        let Some(slot) = self.direct.socket_owner(client, id) else {
            return false;
        };
        self.kill_process(context, slot, client, id, status);
        true
    }

    /// Whether the process has been killed and has not gone yet.
    pub(super) fn waits_for_kill(&self, exchange: &Exchange) -> bool {
        let owner = self.direct.socket_owner(exchange.client, exchange.id);
        let process = owner.and_then(|slot| self.direct.get(slot));
        let state = process.map(|process| process.state);
        matches!(state, Some(ProcessState::Dying(..)))
    }

    /// The response is not wanted any more: removes the process that has the client's socket.
    pub(super) fn abandon_handed_off(
        &mut self,
        context: &mut LoopContext,
        exchange: &mut Exchange,
    ) {
        if let Some(slot) = self.direct.socket_owner(exchange.client, exchange.id) {
            self.remove_process(context, slot);
        }
        exchange.stage = Stage::Finished;
    }
}
