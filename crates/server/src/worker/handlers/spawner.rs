//! The worker's side of the spawner: sends orders, receives reports, handles its death.
//!
//! Nothing here blocks. An order that the socket does not accept is queued and sent later. The
//! queue is short: a program has at most a few orders, and locations limit the number of programs.

use std::collections::VecDeque;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use headway_debox::Call;
use headway_event::{Interest, Token};
use headway_http::Status;
use headway_os::fd_passing::{Wait, receive_with_descriptors, send_with_descriptors};
use headway_os::spawn::{SpawnError, SpawnStage};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSlice};

use super::{ExchangeStep, Handlers, Program};
use crate::connection::{Connection, Exchange, Stage};
use crate::spawner::escape_control;
use crate::spawner::wire::{self, ExitStatus, SpawnerOrder, SpawnerReport};
use crate::worker::{SPAWNER, Worker};

/// Longest report.
const REPORT_BYTES_MAX: usize = 64;

/// The connection to this worker's spawner.
pub(super) struct Spawner {
    socket: OwnedFd,
    /// Orders that the socket did not accept, with their descriptors.
    outbox: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    /// The socket is watched for room to write.
    watched: bool,
}

impl Handlers {
    pub(super) fn has_spawner(&self) -> bool {
        self.spawner.is_some()
    }
}

impl Spawner {
    /// Sends queued orders as far as the socket accepts them. A dead spawner is detected by
    /// receiving.
    fn flush(&mut self) {
        while let Some((bytes, descriptors)) = self.outbox.front() {
            let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            let parts = [IoSlice::new(bytes)];
            match send_with_descriptors(&self.socket, &parts, &borrowed, Wait::Never) {
                Ok(None) => return,
                Ok(Some(_)) | Err(_) => drop(self.outbox.pop_front()),
            }
        }
    }
}

impl Worker {
    /// Connects a new spawner, at the start or after the previous one died.
    pub(in crate::worker) fn attach_spawner(&mut self, socket: OwnedFd, pid: u32) {
        self.lose_spawner();
        let token = Token::new(SPAWNER, 0, 0);
        let Some(handlers) = &mut self.handlers else {
            return;
        };
        if let Err(error) = self.events.add(socket.as_fd(), token, Interest::READ) {
            return self.notice(format!("cannot watch the spawner {pid}: {error}"));
        }
        handlers.spawner = Some(Spawner {
            socket,
            outbox: VecDeque::new(),
            watched: false,
        });
        // Kill orders first: the old programs use resources that new ones need.
        for id in std::mem::take(&mut handlers.orphans) {
            self.order_kill(id);
        }
        (0..self.routes.len()).for_each(|route| self.start_next(route));
    }

    /// Sends an order to the spawner. Returns `false` if it is too long.
    pub(super) fn send_order(&mut self, order: &SpawnerOrder, descriptors: Vec<OwnedFd>) -> bool {
        let mut bytes = Vec::new();
        if !wire::encode_order(order, &mut bytes) {
            return false;
        }
        if let Some(spawner) = self
            .handlers
            .as_mut()
            .and_then(|handlers| handlers.spawner.as_mut())
        {
            spawner.outbox.push_back((bytes, descriptors));
            self.tracer.call(Call::SpawnerSend, || spawner.flush());
        }
        true
    }

    /// Has a program and all its descendants killed.
    pub(super) fn order_kill(&mut self, id: u64) {
        let Some(handlers) = &mut self.handlers else {
            return;
        };
        if !handlers.has_spawner() {
            return handlers.orphans.push(id);
        }
        let process_tag = handlers.process_tags.of(id);
        self.send_order(&SpawnerOrder::Kill { id, process_tag }, Vec::new());
    }

    /// Sends queued orders, and watches the socket for room if some remain.
    pub(super) fn flush_orders(&mut self) {
        let Some(spawner) = self
            .handlers
            .as_mut()
            .and_then(|handlers| handlers.spawner.as_mut())
        else {
            return;
        };
        if !spawner.outbox.is_empty() {
            self.tracer.call(Call::SpawnerSend, || spawner.flush());
        }
        let wanted = !spawner.outbox.is_empty();
        if wanted != spawner.watched {
            let interest = if wanted {
                Interest::BOTH
            } else {
                Interest::READ
            };
            let token = Token::new(SPAWNER, 0, 0);
            let result = self.tracer.call(Call::EventControl, || {
                self.events.modify(spawner.socket.as_fd(), token, interest)
            });
            if result.is_ok() {
                spawner.watched = wanted;
            }
        }
    }

    /// Logs a message about a program to where its standard error goes. The text may contain a path
    /// that a client has made up.
    pub(super) fn log_program(&mut self, id: u64, text: &str) {
        let text = escape_control(text.as_bytes());
        if self
            .handlers
            .as_ref()
            .is_some_and(|handlers| handlers.has_spawner())
        {
            let text = CString::new(text).unwrap_or_default();
            self.send_order(&SpawnerOrder::Note { id, text }, Vec::new());
        } else {
            self.notice(text);
        }
    }

    /// Handles reports of the spawner, or its death.
    pub(in crate::worker) fn on_spawner(&mut self) {
        loop {
            let mut buffer = [0; REPORT_BYTES_MAX];
            let Some(spawner) = self
                .handlers
                .as_ref()
                .and_then(|handlers| handlers.spawner.as_ref())
            else {
                return;
            };
            let received = self.tracer.call(Call::SpawnerReceive, || {
                receive_with_descriptors(&spawner.socket, &mut buffer, 0, Wait::Never)
            });
            let report = match received {
                Ok(None) => return,
                Ok(Some(received)) if !received.is_end() => {
                    wire::decode_report(&buffer[..received.length]).ok()
                }
                _ => None,
            };
            match report {
                Some(report) => self.on_report(report),
                None => return self.lose_spawner(),
            }
        }
    }

    fn on_report(&mut self, report: SpawnerReport) {
        match report {
            SpawnerReport::Spawned { id, spawn_us, .. } => {
                self.counters.handler_processes_started += 1;
                self.counters.handler_spawn_us.record(u64::from(spawn_us));
                self.step_program(id, |_, _, exchange| {
                    // The response may be complete already.
                    if exchange.stage == Stage::Starting {
                        exchange.stage = Stage::Running;
                    }
                    ExchangeStep::Continue
                });
            }
            SpawnerReport::Failed { id, error } => {
                self.counters.handler_process_spawn_failures += 1;
                self.step_program(id, |_, _, exchange| {
                    // There is no process to kill.
                    exchange.stage = Stage::Finished;
                    ExchangeStep::Fail(status_of(error))
                });
                self.forget_program(id);
            }
            SpawnerReport::Ended { id, end } => self.on_program_ended(id, end),
        }
    }

    /// A program has ended, so its slot is free for another one.
    pub(super) fn on_program_ended(&mut self, id: u64, end: ExitStatus) {
        let programs = self.handlers.as_ref().map(|handlers| &handlers.programs);
        // Direct processes are not in this table; their own socket reports the end.
        let ended_itself = programs
            .and_then(|all| all.get(&id))
            .is_some_and(|one| !one.killed);
        if end != ExitStatus::Exit(0) && ended_itself {
            self.counters.handler_processes_failed += 1;
        }
        self.forget_program(id);
    }

    fn forget_program(&mut self, id: u64) {
        let Some(handlers) = &mut self.handlers else {
            return;
        };
        if let Some(Program { route, .. }) = handlers.programs.remove(&id) {
            handlers.running[route] -= 1;
            self.start_next(route);
        }
    }

    /// Runs a step of the exchange that a program belongs to, if that exchange still exists.
    fn step_program(
        &mut self,
        id: u64,
        step: impl FnOnce(&mut Worker, &mut Connection, &mut Exchange) -> ExchangeStep,
    ) {
        let programs = self.handlers.as_ref().map(|handlers| &handlers.programs);
        let Some(client) = programs.and_then(|all| all.get(&id)).map(|one| one.client) else {
            return;
        };
        let Some(slot) = self.connections.find(client) else {
            return;
        };
        self.with_connection(slot, |worker, connection| {
            worker.step_exchange(connection, |worker, connection, exchange| {
                match exchange.id == id {
                    true => step(worker, connection, exchange),
                    // The client's connection serves another request by now.
                    false => ExchangeStep::Continue,
                }
            })
        });
    }

    /// Whether a program's output ended because the spawner died, which means that the response is
    /// incomplete. The kernel closes a process's sockets before it kills its children, so the
    /// hang-up is visible by now, even if its event has not been delivered yet.
    pub(super) fn was_killed_with_spawner(&self, exchange: &Exchange) -> bool {
        let Some(handlers) = &self.handlers else {
            return false;
        };
        let program = handlers.programs.get(&exchange.id);
        let Some(spawner) = handlers
            .spawner
            .as_ref()
            .filter(|_| program.is_some_and(|program| program.forked.is_none()))
        else {
            return false;
        };
        let mut looked = [PollFd::new(&spawner.socket, PollFlags::RDHUP)];
        let ready = self.tracer.call(Call::SpawnerPoll, || {
            poll(&mut looked, Some(&Timespec::default()))
        });
        ready.is_ok_and(|count| count > 0)
    }

    /// Handles the death of the spawner: its programs are dead, too. Requests without a complete
    /// response get 502 or are cut off; queued requests wait for the next spawner.
    fn lose_spawner(&mut self) {
        let Some(handlers) = &mut self.handlers else {
            return;
        };
        let Some(spawner) = handlers.spawner.take() else {
            return;
        };
        // The descriptor number is free from here on; select and poll must know.
        let _ = self.events.remove(spawner.socket.as_fd());
        let programs = handlers.programs.iter();
        let lost: Vec<u64> = programs
            .filter(|(_, program)| program.forked.is_none())
            .map(|(id, _)| *id)
            .collect();
        // The kernel killed only the spawner's own children. Their descendants are left to the next
        // spawner.
        let orphans = lost.iter().copied().chain(handlers.direct.ids());
        handlers.orphans.extend(orphans);
        for id in lost {
            self.step_program(id, |_, _, exchange| match exchange.download.ended {
                true => ExchangeStep::Continue,
                false => ExchangeStep::Fail(Status::BAD_GATEWAY),
            });
            self.forget_program(id);
        }
    }
}

/// The status for a program that could not be started.
fn status_of(error: SpawnError) -> Status {
    match (error.step, error.errno) {
        (SpawnStage::Execute, Errno::ACCESS | Errno::PERM) => Status::FORBIDDEN,
        (SpawnStage::Execute, Errno::TOOBIG) => Status::REQUEST_HEADER_FIELDS_TOO_LARGE,
        (SpawnStage::Create | SpawnStage::Descriptors, _)
        | (_, Errno::NOMEM | Errno::AGAIN | Errno::NFILE) => Status::SERVICE_UNAVAILABLE,
        _ => Status::BAD_GATEWAY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spawn_failure_has_a_matching_status() {
        for (step, errno, status) in [
            (SpawnStage::Execute, Errno::ACCESS, Status::FORBIDDEN),
            (SpawnStage::Execute, Errno::NOENT, Status::BAD_GATEWAY),
            (SpawnStage::Execute, Errno::NOEXEC, Status::BAD_GATEWAY),
            (
                SpawnStage::Create,
                Errno::AGAIN,
                Status::SERVICE_UNAVAILABLE,
            ),
            (
                SpawnStage::Descriptors,
                Errno::MFILE,
                Status::SERVICE_UNAVAILABLE,
            ),
            (SpawnStage::Directory, Errno::NOENT, Status::BAD_GATEWAY),
        ] {
            assert_eq!(
                status_of(SpawnError { step, errno }),
                status,
                "{step:?} {errno}"
            );
        }
    }
}
