//! A reply that comes faster than its client takes it: what waits for the client, so that its
//! program need not.
//!
//! A piece waits in memory, and what goes beyond is written by a helper into a file without a name,
//! and read back by a helper when its turn has come; the loop touches no disk. With `temp-file-max`
//! bytes waiting the program is held back after all, and so it is when as many replies of its
//! location are in files as may be. When the last byte has come the program is let go: a slow
//! client occupies a file, and no process of an application.

use headway_debox::Call;
use headway_files::{Failure, OpenFile, read_nowait};
use headway_http::Status;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

use super::Step;
use super::gather::{PIECE_BYTES, piece};
use super::talk::identified;
use crate::connection::{Connection, Exchange};
use crate::request::{Charge, Piece};
use crate::worker::Worker;
use crate::worker::request_handling::status_of;

/// How much of a file a helper reads back at once.
pub(super) const RESTORE_BYTES: u64 = 256 * 1024;

impl Worker {
    /// Says whether more of the reply may come.
    pub(super) fn note_room(&mut self, connection: &Connection, exchange: &mut Exchange) {
        let backlog = &exchange.download.backlog;
        let idle = connection.outgoing.pieces.is_empty() && backlog.is_empty();
        exchange.download.wanted = idle || self.has_room(exchange);
    }

    fn has_room(&self, exchange: &Exchange) -> bool {
        let location = &self.places.get(exchange.program.place).location;
        let backlog = &exchange.download.backlog;
        let waiting = backlog.written_bytes + backlog.tail.len() as u64;
        // Another protocol's answers are worth nothing when they come late.
        exchange.tunnel.is_none()
            && waiting < location.temp_file_max_bytes
            && backlog.tail.len() < PIECE_BYTES
    }

    /// Has a helper write what waits in memory, if that is enough.
    pub(super) fn spill_reply(&mut self, connection: &mut Connection, exchange: &mut Exchange) {
        let place = self.places.get(exchange.program.place).clone();
        let Some(dynamic) = &self.dynamic else { return };
        let backlog = &mut exchange.download.backlog;
        let spills = &dynamic.spills[place.number];
        let may = backlog.charge.is_some() || spills.get() < u64::from(place.location.concurrency);
        if backlog.tail.len() < PIECE_BYTES || backlog.is_busy() || !may {
            return;
        }
        // Where no helper can be asked it stays in memory, and the program is held back.
        let Ok(piece) = self.tracer.call(Call::Piece, || piece(&backlog.tail)) else {
            return;
        };
        let asked = self.pool.spill(
            self.config.temp_directory.as_os_str().as_bytes(),
            backlog.file.as_ref(),
            piece,
            backlog.written_bytes,
            connection.waiter(),
        );
        if asked.is_ok() {
            backlog.charge.get_or_insert_with(|| Charge::new(spills, 1));
            let bytes = std::mem::take(&mut backlog.tail).len() as u64;
            backlog.written_bytes += bytes;
            backlog.spilling = true;
            self.counters.dynamic_reply_spilled_bytes += bytes;
            connection.admitted = true;
        }
    }

    /// A helper has written a piece of the reply, or could not.
    pub(super) fn reply_spilled(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
        file: &Result<Rc<OpenFile>, Failure>,
    ) -> Step {
        exchange.download.backlog.spilling = false;
        match file {
            Ok(file) => exchange.download.backlog.file = Some(file.clone()),
            Err(failure) => {
                self.counters.io_errors += u64::from(*failure == Failure::Io);
                return Step::Fail(status_of(*failure));
            }
        }
        if connection.outgoing.pieces.is_empty() {
            return self.send_reply(connection, exchange);
        }
        self.spill_reply(connection, exchange);
        self.note_room(connection, exchange);
        Step::Go
    }

    /// All that was in front of the client has left: what has waited longest comes next.
    pub(super) fn refill(&mut self, connection: &mut Connection, exchange: &mut Exchange) -> Step {
        // One helper reads for a connection at a time: which answer is whose could not be told.
        let elsewhere = exchange.upload.restoring;
        let backlog = &mut exchange.download.backlog;
        if backlog.is_busy() {
            return Step::Go;
        }
        if backlog.restored_bytes == backlog.written_bytes {
            (backlog.written_bytes, backlog.restored_bytes) = (0, 0);
            (backlog.file, backlog.charge) = (None, None);
            if !backlog.tail.is_empty() {
                let tail = std::mem::take(&mut backlog.tail);
                connection.outgoing.push(Piece::bytes(tail));
            }
            return Step::Go;
        }
        let Some(file) = backlog.file.as_ref().filter(|_| !elsewhere) else {
            return Step::Go;
        };
        let Ok(file) = identified(file, &self.pool.retire_list()) else {
            return Step::Fail(Status::INTERNAL_SERVER_ERROR);
        };
        let length = RESTORE_BYTES.min(backlog.written_bytes - backlog.restored_bytes);
        let waiter = connection.waiter();
        let asked = self
            .pool
            .read(&file, backlog.restored_bytes, length, waiter);
        if asked.is_err() {
            return Step::Fail(Status::SERVICE_UNAVAILABLE);
        }
        backlog.restoring = true;
        connection.admitted = true;
        self.renew(connection, exchange);
        Step::Go
    }

    /// A helper has read the next part of the reply, or could not.
    pub(super) fn reply_restored(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
        copy: &Result<Rc<OpenFile>, Failure>,
    ) -> Step {
        exchange.download.backlog.restoring = false;
        let bytes = match self.copied(copy) {
            Ok(bytes) => bytes,
            Err(status) => return Step::Fail(status),
        };
        exchange.download.backlog.restored_bytes += bytes.len() as u64;
        connection.outgoing.push(Piece::bytes(bytes));
        self.renew(connection, exchange);
        match self.send_reply(connection, exchange) {
            // A body on its way to a back end may have had to wait for this.
            Step::Go => self.feed_program(connection, exchange),
            other => other,
        }
    }

    /// What a helper has read.
    pub(super) fn copied(&self, copy: &Result<Rc<OpenFile>, Failure>) -> Result<Vec<u8>, Status> {
        let file = copy.as_ref().map_err(|failure| status_of(*failure))?;
        let mut bytes = vec![0; RESTORE_BYTES as usize];
        let read = self
            .tracer
            .call(Call::ReadNowait, || read_nowait(file, &mut bytes, 0));
        match read {
            Ok(Some(count @ 1..)) => {
                bytes.truncate(count);
                Ok(bytes)
            }
            // Shorter than what was written, or not memory after all: there is nothing to go on
            // with.
            _ => Err(Status::INTERNAL_SERVER_ERROR),
        }
    }
}
