//! The worker's side of the fork helper: orders out, reports in, and its death.
//!
//! Nothing here waits. What the socket does not take is kept and sent when it does; there are never
//! more orders than a few for each program, and programs are bounded by their locations.

use std::collections::VecDeque;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use headway_debox::Call;
use headway_event::{Interest, Token};
use headway_http::Status;
use headway_os::rights::{Wait, receive_with_descriptors, send_with_descriptors};
use headway_os::spawn::{SpawnError, Step as SpawnStep};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSlice};

use super::{Dynamic, Program, Step};
use crate::connection::{Connection, Exchange, Stage};
use crate::forker::harmless;
use crate::forker::wire::{self, End, Order, Report};
use crate::worker::{FORK_HELPER, Worker};

/// Reports are short.
const REPORT_BYTES_MAX: usize = 64;

/// The fork helper of this worker.
pub(super) struct ForkHelper {
    socket: OwnedFd,
    /// Orders that the socket did not take, with their descriptors.
    outbox: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    /// The event mechanism tells when it takes more.
    watched: bool,
}

impl Dynamic {
    pub(super) fn has_helper(&self) -> bool {
        self.helper.is_some()
    }
}

impl ForkHelper {
    /// Sends what waits, as far as the socket takes it. One that is gone is found out by receiving.
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
    /// The fork helper has come, or another one in its place.
    pub(in crate::worker) fn attach_fork_helper(&mut self, socket: OwnedFd, pid: u32) {
        self.lose_fork_helper();
        let token = Token::new(FORK_HELPER, 0, 0);
        let Some(dynamic) = &mut self.dynamic else {
            return;
        };
        if let Err(error) = self.events.add(socket.as_fd(), token, Interest::READ) {
            return self.notice(format!("watching the fork helper {pid}: {error}"));
        }
        dynamic.helper = Some(ForkHelper {
            socket,
            outbox: VecDeque::new(),
            watched: false,
        });
        // Before anything else: they take what the next ones need.
        for id in std::mem::take(&mut dynamic.orphans) {
            self.order_end(id);
        }
        (0..self.places.len()).for_each(|place| self.start_next(place));
    }

    /// Gives the fork helper an order. `false`: it is too long for one.
    pub(super) fn order(&mut self, order: &Order, descriptors: Vec<OwnedFd>) -> bool {
        let mut bytes = Vec::new();
        if !wire::encode_order(order, &mut bytes) {
            return false;
        }
        if let Some(helper) = self
            .dynamic
            .as_mut()
            .and_then(|dynamic| dynamic.helper.as_mut())
        {
            helper.outbox.push_back((bytes, descriptors));
            self.tracer.call(Call::ForkHelperSend, || helper.flush());
        }
        true
    }

    /// Has a program and all that it has started end.
    pub(super) fn order_end(&mut self, id: u64) {
        let Some(dynamic) = &mut self.dynamic else {
            return;
        };
        if !dynamic.has_helper() {
            return dynamic.orphans.push(id);
        }
        let mark = dynamic.marks.of(id);
        self.order(&Order::Kill { id, mark }, Vec::new());
    }

    /// Sends orders that waited; asks to be told when the socket takes more.
    pub(super) fn flush_orders(&mut self) {
        let Some(helper) = self
            .dynamic
            .as_mut()
            .and_then(|dynamic| dynamic.helper.as_mut())
        else {
            return;
        };
        if !helper.outbox.is_empty() {
            self.tracer.call(Call::ForkHelperSend, || helper.flush());
        }
        let wanted = !helper.outbox.is_empty();
        if wanted != helper.watched {
            let interest = if wanted {
                Interest::BOTH
            } else {
                Interest::READ
            };
            let token = Token::new(FORK_HELPER, 0, 0);
            let told = self.tracer.call(Call::EventControl, || {
                self.events.modify(helper.socket.as_fd(), token, interest)
            });
            if told.is_ok() {
                helper.watched = wanted;
            }
        }
    }

    /// Says something about a program where its own words go. The text may hold a path that a
    /// client has made up.
    pub(super) fn tell(&mut self, id: u64, text: &str) {
        let text = harmless(text.as_bytes());
        if self
            .dynamic
            .as_ref()
            .is_some_and(|dynamic| dynamic.has_helper())
        {
            let text = CString::new(text).unwrap_or_default();
            self.order(&Order::Note { id, text }, Vec::new());
        } else {
            self.notice(text);
        }
    }

    /// Reports of the fork helper, or its death.
    pub(in crate::worker) fn on_fork_helper(&mut self) {
        loop {
            let mut buffer = [0; REPORT_BYTES_MAX];
            let Some(helper) = self
                .dynamic
                .as_ref()
                .and_then(|dynamic| dynamic.helper.as_ref())
            else {
                return;
            };
            let received = self.tracer.call(Call::ForkHelperReceive, || {
                receive_with_descriptors(&helper.socket, &mut buffer, 0, Wait::Never)
            });
            let report = match received {
                Ok(None) => return,
                Ok(Some(received)) if !received.is_end() => {
                    wire::decode_report(&buffer[..received.length]).ok()
                }
                _ => None,
            };
            match report {
                Some(report) => self.take_report(report),
                None => return self.lose_fork_helper(),
            }
        }
    }

    fn take_report(&mut self, report: Report) {
        match report {
            Report::Spawned { id, spawn_us, .. } => {
                self.counters.programs_started += 1;
                self.counters.program_spawn_us.record(u64::from(spawn_us));
                self.step_program(id, |_, _, exchange| {
                    // Its reply may be complete already.
                    if exchange.stage == Stage::Starting {
                        exchange.stage = Stage::Running;
                    }
                    Step::Go
                });
            }
            Report::Failed { id, error } => {
                self.counters.programs_not_started += 1;
                self.step_program(id, |_, _, exchange| {
                    // There is nobody to kill.
                    exchange.stage = Stage::Over;
                    Step::Fail(status_of(error))
                });
                self.forget_program(id);
            }
            Report::Ended { id, end } => self.note_end(id, end),
        }
    }

    /// A program has ended; another one may take its place.
    pub(super) fn note_end(&mut self, id: u64, end: End) {
        let programs = self.dynamic.as_ref().map(|dynamic| &dynamic.programs);
        // One of a direct location is not among them; its socket has told.
        let ended_itself = programs
            .and_then(|all| all.get(&id))
            .is_some_and(|one| !one.killed);
        if end != End::Exit(0) && ended_itself {
            self.counters.programs_failed += 1;
        }
        self.forget_program(id);
    }

    fn forget_program(&mut self, id: u64) {
        let Some(dynamic) = &mut self.dynamic else {
            return;
        };
        if let Some(Program { place, .. }) = dynamic.programs.remove(&id) {
            dynamic.running[place] -= 1;
            self.start_next(place);
        }
    }

    /// A step of the exchange that a program belongs to, if it still has one.
    fn step_program(
        &mut self,
        id: u64,
        step: impl FnOnce(&mut Worker, &mut Connection, &mut Exchange) -> Step,
    ) {
        let programs = self.dynamic.as_ref().map(|dynamic| &dynamic.programs);
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
                    // Its client has another request answered by now.
                    false => Step::Go,
                }
            })
        });
    }

    /// Whether a program whose output has ended was killed because the fork helper is gone: what
    /// came of its reply is not all of it. The kernel closes a process's sockets before it kills
    /// those that die with it, so this is known by now, though the loop may hear of it only later.
    pub(super) fn was_killed_with_helper(&self, exchange: &Exchange) -> bool {
        let Some(dynamic) = &self.dynamic else {
            return false;
        };
        let program = dynamic.programs.get(&exchange.id);
        let Some(helper) = dynamic
            .helper
            .as_ref()
            .filter(|_| program.is_some_and(|program| program.forked.is_none()))
        else {
            return false;
        };
        let mut looked = [PollFd::new(&helper.socket, PollFlags::RDHUP)];
        let ready = self.tracer.call(Call::ForkHelperLook, || {
            poll(&mut looked, Some(&Timespec::default()))
        });
        ready.is_ok_and(|count| count > 0)
    }

    /// Without the fork helper its programs are gone. Requests that have not got all of their reply
    /// are answered 502, or cut off; the others wait for the next fork helper.
    fn lose_fork_helper(&mut self) {
        let Some(dynamic) = &mut self.dynamic else {
            return;
        };
        let Some(helper) = dynamic.helper.take() else {
            return;
        };
        // The number of the descriptor is free from here on; select and poll must know.
        let _ = self.events.remove(helper.socket.as_fd());
        let programs = dynamic.programs.iter();
        let lost: Vec<u64> = programs
            .filter(|(_, program)| program.forked.is_none())
            .map(|(id, _)| *id)
            .collect();
        // Those that the kernel has killed with the fork helper were its own children, and no more.
        let orphans = lost.iter().copied().chain(dynamic.direct.ids());
        dynamic.orphans.extend(orphans);
        for id in lost {
            self.step_program(id, |_, _, exchange| match exchange.download.ended {
                true => Step::Go,
                false => Step::Fail(Status::BAD_GATEWAY),
            });
            self.forget_program(id);
        }
    }
}

/// What a client is told about a program that could not be started.
fn status_of(error: SpawnError) -> Status {
    match (error.step, error.errno) {
        (SpawnStep::Execute, Errno::ACCESS | Errno::PERM) => Status::FORBIDDEN,
        (SpawnStep::Execute, Errno::TOOBIG) => Status::REQUEST_HEADER_FIELDS_TOO_LARGE,
        (SpawnStep::Create | SpawnStep::Descriptors, _)
        | (_, Errno::NOMEM | Errno::AGAIN | Errno::NFILE) => Status::SERVICE_UNAVAILABLE,
        _ => Status::BAD_GATEWAY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_is_told_whose_fault_it_is_when_a_program_cannot_be_started() {
        for (step, errno, status) in [
            (SpawnStep::Execute, Errno::ACCESS, Status::FORBIDDEN),
            (SpawnStep::Execute, Errno::NOENT, Status::BAD_GATEWAY),
            (SpawnStep::Execute, Errno::NOEXEC, Status::BAD_GATEWAY),
            (SpawnStep::Create, Errno::AGAIN, Status::SERVICE_UNAVAILABLE),
            (
                SpawnStep::Descriptors,
                Errno::MFILE,
                Status::SERVICE_UNAVAILABLE,
            ),
            (SpawnStep::Directory, Errno::NOENT, Status::BAD_GATEWAY),
        ] {
            assert_eq!(
                status_of(SpawnError { step, errno }),
                status,
                "{step:?} {errno}"
            );
        }
    }
}
