//! A body whose length has to be known before its program starts.
//!
//! It is gathered in memory up to a bound; what goes beyond is written by a helper into a file
//! without a name, a piece at a time. While a helper writes, the client is not read from: no
//! request has more than a piece in memory, and the loop never writes to a disk. The program then
//! has that file as its input.
//!
//! A small body stays in memory and goes to the program like any other.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

use headway_debox::Call;
use headway_files::{Failure, OpenFile};
use headway_http::Status;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;

use super::Step;
use crate::connection::{Connection, Exchange, Stage};
use crate::worker::Worker;
use crate::worker::request_handling::status_of;

/// What is gathered in memory, but for what one more read brings.
pub(super) const PIECE_BYTES: usize = 256 * 1024;

impl Worker {
    /// The first part of the body is here, the rest is waited for.
    pub(super) fn gather(&mut self, connection: &mut Connection, exchange: &mut Exchange) -> Step {
        match self.invite(connection, exchange) {
            Step::Go => {
                self.renew(connection, exchange);
                Step::Go
            }
            other => other,
        }
    }

    /// More of it has come.
    pub(super) fn gather_more(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> Step {
        self.renew(connection, exchange);
        match exchange.upload.waiting.len() >= PIECE_BYTES {
            true => self.spill(connection, exchange),
            false => Step::Go,
        }
    }

    /// All of it has come: the program may start, when what has been spilled is whole.
    pub(super) fn gathered(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> Step {
        match exchange.upload.spilled {
            Some(_) if !exchange.upload.waiting.is_empty() => self.spill(connection, exchange),
            _ => self.admit(connection, exchange),
        }
    }

    /// Has a helper write what is in memory.
    fn spill(&mut self, connection: &mut Connection, exchange: &mut Exchange) -> Step {
        let upload = &mut exchange.upload;
        let piece = self.tracer.call(Call::Piece, || piece(&upload.waiting));
        let Ok(piece) = piece else {
            return Step::Fail(Status::SERVICE_UNAVAILABLE);
        };
        let directory = self.config.temp_directory.as_os_str().as_bytes();
        let asked = self.pool.spill(
            directory,
            upload.spilled.as_ref(),
            piece,
            upload.spilled_bytes,
            connection.waiter(),
        );
        if asked.is_err() {
            return Step::Fail(Status::SERVICE_UNAVAILABLE);
        }
        self.counters.dynamic_spilled_bytes += upload.waiting.len() as u64;
        upload.spilled_bytes += upload.waiting.len() as u64;
        upload.waiting.clear();
        upload.spilling = true;
        connection.admitted = true;
        self.renew(connection, exchange);
        Step::Go
    }

    /// A helper has written a piece, or could not.
    pub(in crate::worker) fn wake_spiller(
        &mut self,
        waiter: u64,
        file: &Result<Rc<OpenFile>, Failure>,
    ) {
        let Some(slot) = self.connections.find(headway_event::Token(waiter)) else {
            return;
        };
        self.with_connection(slot, |worker, connection| {
            worker.step_exchange(connection, |worker, connection, exchange| {
                if exchange.download.backlog.spilling {
                    return worker.reply_spilled(connection, exchange, file);
                }
                if exchange.stage != Stage::Gathering || !exchange.upload.spilling {
                    return Step::Go;
                }
                exchange.upload.spilling = false;
                match file {
                    Ok(file) => exchange.upload.spilled = Some(file.clone()),
                    Err(failure) => {
                        worker.counters.io_errors += u64::from(*failure == Failure::Io);
                        return Step::Fail(status_of(*failure));
                    }
                }
                match exchange.upload.body.is_some() {
                    true => worker.gather_more(connection, exchange),
                    false => worker.gathered(connection, exchange),
                }
            })
        });
    }
}

/// Memory, its offset at its start, that can be passed to another process, with these bytes.
pub(super) fn piece(bytes: &[u8]) -> io::Result<OwnedFd> {
    let memory = rustix::fs::memfd_create("headway-body", MemfdFlags::CLOEXEC)?;
    let mut written = 0;
    while written < bytes.len() {
        match rustix::io::pwrite(&memory, &bytes[written..], written as u64) {
            Ok(count) => written += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(memory)
}
