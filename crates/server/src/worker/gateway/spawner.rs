//! The worker's side of the spawner: sends orders, receives reports, handles its death.
//!
//! Nothing here blocks. An order that the socket does not accept is queued and sent later. The
//! queue is short: a program has at most a few orders, and locations limit the number of programs.

use std::collections::VecDeque;
use std::ffi::CString;
use std::ops::ControlFlow::{Break, Continue};
use std::os::fd::{AsFd, OwnedFd};

use headway_config::ErrorLevel;
use headway_connection::{Connection, Exchange, Stage};
use headway_event::{Interest, Token};
use headway_http::Status;
use headway_metrics::calls::Call;
use headway_os::fd_passing::{Wait, receive_with_descriptors, send_with_descriptors};
use headway_os::spawn::{SpawnError, SpawnStage};
use headway_spawner::escape_control;
use headway_spawner::wire::{self, ExitStatus, SpawnerOrder, SpawnerReport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSlice};

use super::{ExchangeEnd, ExchangeStep, Gateway, Program};
use crate::worker::SPAWNER;
use crate::worker::context::LoopContext;

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

impl Gateway {
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

impl Gateway {
    /// Connects a new spawner, at the start or after the previous one died.
    pub(in crate::worker) fn attach_spawner(
        &mut self,
        context: &mut LoopContext,
        socket: OwnedFd,
        pid: u32,
    ) {
        self.lose_spawner(context);
        let token = Token::new(SPAWNER, 0, 0);
        if let Err(error) = context.events.add(socket.as_fd(), token, Interest::READ) {
            return context.notice(
                ErrorLevel::Error,
                format!("cannot watch the spawner {pid}: {error}"),
            );
        }
        self.spawner = Some(Spawner {
            socket,
            outbox: VecDeque::new(),
            watched: false,
        });
        // Kill orders first: the old programs use resources that new ones need.
        for id in std::mem::take(&mut self.orphans) {
            self.order_kill(context, id);
        }
        (0..context.routes.len()).for_each(|route| self.start_next(context, route));
    }

    /// Sends an order to the spawner. Returns `false` if it is too long.
    pub(super) fn send_order(
        &mut self,
        context: &mut LoopContext,
        order: &SpawnerOrder,
        descriptors: Vec<OwnedFd>,
    ) -> bool {
        let mut bytes = Vec::new();
        if !wire::encode_order(order, &mut bytes) {
            return false;
        }
        if let Some(spawner) = self.spawner.as_mut() {
            spawner.outbox.push_back((bytes, descriptors));
            context.tracer.call(Call::SpawnerSend, || spawner.flush());
        }
        true
    }

    /// Has a program and all its descendants killed.
    pub(super) fn order_kill(&mut self, context: &mut LoopContext, id: u64) {
        if !self.has_spawner() {
            return self.orphans.push(id);
        }
        let process_tag = self.process_tags.of(id);
        self.send_order(context, &SpawnerOrder::Kill { id, process_tag }, Vec::new());
    }

    /// Sends queued orders, and watches the socket for room if some remain.
    pub(super) fn flush_orders(&mut self, context: &mut LoopContext) {
        let Some(spawner) = self.spawner.as_mut() else {
            return;
        };
        if !spawner.outbox.is_empty() {
            context.tracer.call(Call::SpawnerSend, || spawner.flush());
        }
        let wanted = !spawner.outbox.is_empty();
        if wanted != spawner.watched {
            let interest = if wanted {
                Interest::BOTH
            } else {
                Interest::READ
            };
            let token = Token::new(SPAWNER, 0, 0);
            let result = context.tracer.call(Call::EventControl, || {
                context
                    .events
                    .modify(spawner.socket.as_fd(), token, interest)
            });
            if result.is_ok() {
                spawner.watched = wanted;
            }
        }
    }

    /// Logs a message about a program to where its standard error goes. The text may contain a path
    /// that a client has made up.
    pub(super) fn log_program(&mut self, context: &mut LoopContext, id: u64, text: &str) {
        let text = escape_control(text.as_bytes());
        if self.has_spawner() {
            let text = CString::new(text).unwrap_or_default();
            self.send_order(context, &SpawnerOrder::Note { id, text }, Vec::new());
        } else {
            context.notice(ErrorLevel::Error, text);
        }
    }

    /// Handles reports of the spawner, or its death.
    pub(in crate::worker) fn on_spawner(&mut self, context: &mut LoopContext) {
        loop {
            let mut buffer = [0; REPORT_BYTES_MAX];
            let Some(spawner) = self.spawner.as_ref() else {
                return;
            };
            let received = context.tracer.call(Call::SpawnerReceive, || {
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
                Some(report) => self.on_report(context, report),
                None => return self.lose_spawner(context),
            }
        }
    }

    fn on_report(&mut self, context: &mut LoopContext, report: SpawnerReport) {
        match report {
            SpawnerReport::Spawned { id, spawn_us, .. } => {
                context.counters.handler_processes_started += 1;
                context
                    .counters
                    .handler_spawn_us
                    .record(u64::from(spawn_us));
                self.step_program(context, id, |_, _, _, exchange| {
                    // The response may be complete already.
                    if exchange.stage == Stage::Starting {
                        exchange.stage = Stage::Running;
                    }
                    Continue(())
                });
            }
            SpawnerReport::Failed { id, error } => {
                context.counters.handler_process_spawn_failures += 1;
                self.step_program(context, id, |_, _, _, exchange| {
                    // There is no process to kill.
                    exchange.stage = Stage::Finished;
                    Break(ExchangeEnd::Fail(status_of(error)))
                });
                self.forget_program(context, id);
            }
            SpawnerReport::Ended { id, end } => self.on_program_ended(context, id, end),
        }
    }

    /// A program has ended, so its slot is free for another one.
    pub(super) fn on_program_ended(&mut self, context: &mut LoopContext, id: u64, end: ExitStatus) {
        // Direct processes are not in this table; their own socket reports the end.
        let ended_itself = self.programs.get(&id).is_some_and(|one| !one.killed);
        if end != ExitStatus::Exit(0) && ended_itself {
            context.counters.handler_processes_failed += 1;
        }
        self.forget_program(context, id);
    }

    fn forget_program(&mut self, context: &mut LoopContext, id: u64) {
        if let Some(Program { route, .. }) = self.programs.remove(&id) {
            self.running[route] -= 1;
            self.start_next(context, route);
        }
    }

    /// Runs a step of the exchange that a program belongs to, if that exchange still exists.
    fn step_program(
        &mut self,
        context: &mut LoopContext,
        id: u64,
        step: impl FnOnce(
            &mut Gateway,
            &mut LoopContext,
            &mut Connection,
            &mut Exchange,
        ) -> ExchangeStep,
    ) {
        let Some(client) = self.programs.get(&id).map(|one| one.client) else {
            return;
        };
        self.step_client(context, client, |gateway, context, connection, exchange| {
            match exchange.id == id {
                true => step(gateway, context, connection, exchange),
                // The client's connection serves another request by now.
                false => Continue(()),
            }
        });
    }

    /// Whether a program's output ended because the spawner died, which means that the response is
    /// incomplete. The kernel closes a process's sockets before it kills its children, so the
    /// hang-up is visible by now, even if its event has not been delivered yet.
    pub(super) fn was_killed_with_spawner(
        &self,
        context: &LoopContext,
        exchange: &Exchange,
    ) -> bool {
        let program = self.programs.get(&exchange.id);
        let Some(spawner) = self
            .spawner
            .as_ref()
            .filter(|_| program.is_some_and(|program| program.forked.is_none()))
        else {
            return false;
        };
        let mut looked = [PollFd::new(&spawner.socket, PollFlags::RDHUP)];
        let ready = context.tracer.call(Call::SpawnerPoll, || {
            poll(&mut looked, Some(&Timespec::default()))
        });
        ready.is_ok_and(|count| count > 0)
    }

    /// Handles the death of the spawner: its programs are dead, too. Requests without a complete
    /// response get 502 or are cut off; queued requests wait for the next spawner.
    fn lose_spawner(&mut self, context: &mut LoopContext) {
        let Some(spawner) = self.spawner.take() else {
            return;
        };
        // The descriptor number is free from here on; select and poll must know.
        let _ = context.events.remove(spawner.socket.as_fd());
        let programs = self.programs.iter();
        let lost: Vec<u64> = programs
            .filter(|(_, program)| program.forked.is_none())
            .map(|(id, _)| *id)
            .collect();
        // The kernel killed only the spawner's own children. Their descendants are left to the next
        // spawner.
        let orphans = lost.iter().copied().chain(self.direct.ids());
        self.orphans.extend(orphans);
        for id in lost {
            self.step_program(context, id, |_, _, _, exchange| {
                match exchange.download.ended {
                    true => Continue(()),
                    false => Break(ExchangeEnd::Fail(Status::BAD_GATEWAY)),
                }
            });
            self.forget_program(context, id);
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
