//! A client's socket that a program does not give back: the program has taken too long, said what
//! makes no sense, or died.
//!
//! As long as the program lives it may be in the middle of a write to that socket, and the kernel
//! holds the socket's lock meanwhile: for as long as it takes to read what is written, if that is a
//! mapped file on a disk. Whoever asks anything about the socket then waits with it. So the program
//! is killed first. What has left through the socket is asked, and the client answered or cut off,
//! when the program's own socket tells that it is gone.

use std::os::fd::AsFd;

use headway_http::Status;

use super::processes::State;
use crate::connection::{Connection, Exchange, Phase, Stage};
use crate::worker::{Disposition, Worker};

/// One that has been killed is waited for so long. It takes longer only while the kernel itself
/// waits for a disk in its name.
const DYING_MS: u64 = 10_000;

impl Worker {
    /// An error in place of a reply that was a program's to write, or the end of the connection
    /// where some of it has left.
    pub(super) fn answer_lent(
        &mut self,
        connection: &mut Connection,
        mut exchange: Exchange,
        status: Status,
    ) -> Disposition {
        if self.kill_borrower(&exchange, status) {
            self.deadlines
                .set(connection.slot(), self.now_ms + DYING_MS);
            connection.phase = Phase::Exchange(Box::new(exchange));
            return Disposition::Keep;
        }
        exchange.stage = Stage::Over;
        let written = headway_os::socket::written_bytes(connection.socket.as_fd()).ok();
        if written.is_some() && written == exchange.written_before {
            return self.close_with_error(connection, &exchange.head, status);
        }
        self.counters.aborted += 1;
        Disposition::Close
    }

    /// Kills whoever has the client's socket, whose client is answered with this in the end.
    /// `false`: nobody has it any more.
    fn kill_borrower(&mut self, exchange: &Exchange, status: Status) -> bool {
        let (client, id) = (exchange.client, exchange.id);
        let dynamic = self.dynamic.as_ref();
        let Some(slot) = dynamic.and_then(|all| all.direct.borrower(client, id)) else {
            return false;
        };
        self.kill_process(slot, client, id, status);
        true
    }

    /// Whether the program has been killed already, and is not gone yet.
    pub(super) fn waits_for_death(&self, exchange: &Exchange) -> bool {
        let dynamic = self.dynamic.as_ref();
        let state = dynamic.and_then(|all| {
            let slot = all.direct.borrower(exchange.client, exchange.id)?;
            all.direct.get(slot).map(|process| process.state)
        });
        matches!(state, Some(State::Dying(..)))
    }

    /// Nobody waits for the program that has this client's socket.
    pub(super) fn reclaim(&mut self, exchange: &mut Exchange) {
        let direct = self.dynamic.as_ref().map(|dynamic| &dynamic.direct);
        let slot = direct.and_then(|direct| direct.borrower(exchange.client, exchange.id));
        if let Some(slot) = slot {
            self.remove_process(slot);
        }
        exchange.stage = Stage::Over;
    }
}
