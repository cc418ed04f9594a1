//! A small file's content: from memory, or read without waiting.
//!
//! What it refuses: to read a page that is not there; a helper reads the file, or brings it in.

use std::io::ErrorKind;
use std::rc::Rc;

use headway_debox::Call;
use headway_files::{Full, OpenFile};

use super::Worker;
use super::flow::{ASKS_IN_ALL_MAX, ASKS_MAX};
use crate::connection::Connection;
use crate::request::{Content, Entry};
use crate::respond::{self, Context, Representation};

/// Why a small file is not in memory.
pub(super) enum Missing {
    Cold,
    Opaque,
    /// It is not what the name cache believes, or was closed while its content was in memory, which
    /// it is no longer: look again.
    Changed,
    Unreadable,
}

/// A file's content as a helper has read it, where the loop need not or cannot.
#[derive(Clone)]
pub(super) enum Copied {
    /// In a file of its own in memory.
    File(Rc<OpenFile>),
    /// In the helper's answer.
    Bytes(Rc<[u8]>),
}

impl Copied {
    fn length(&self) -> u64 {
        match self {
            Copied::File(copy) => copy.meta().size,
            Copied::Bytes(bytes) => bytes.len() as u64,
        }
    }
}

impl From<&std::io::Error> for Missing {
    fn from(error: &std::io::Error) -> Missing {
        match error.kind() {
            ErrorKind::Unsupported => Missing::Opaque,
            _ => Missing::Unreadable,
        }
    }
}

impl Worker {
    /// The small file's content, from memory or read without waiting.
    pub(super) fn content(
        &mut self,
        entry: &Rc<Entry>,
        representation: &Representation<'_>,
        copy: Option<&Copied>,
    ) -> Result<Rc<Content>, Missing> {
        let variant = representation.variant;
        if let Some(content) = &*entry.prepared.contents[variant].borrow() {
            self.counters.content_hit += 1;
            return Ok(content.clone());
        }
        let file = representation.file.open().ok_or(Missing::Changed)?;
        let content = match copy {
            Some(Copied::Bytes(bytes)) => {
                self.expect_whole(bytes.len() as u64, &file)?;
                self.prepare(representation, bytes)
            }
            _ => {
                let size = file.meta().size as usize;
                // It only grows, so that bytes that a read overwrites are not cleared first.
                let mut body = std::mem::take(&mut self.body);
                if body.len() < size {
                    body.resize(size, 0);
                }
                let read = self.read_small(copy, &file, &mut body[..size]);
                let content = read.map(|()| self.prepare(representation, &body[..size]));
                self.body = body;
                content?
            }
        };
        self.counters.content_loaded += 1;
        self.offer(entry, &file);
        self.shelf.put(entry, variant, &content);
        Ok(content)
    }

    /// What has come into this worker's memory may be kept for all of them.
    fn offer(&self, entry: &Entry, file: &OpenFile) {
        let offered = &entry.prepared.offered;
        if let Some(keeper) = &self.keeper
            && !offered.get()
        {
            offered.set(self.tracer.call(Call::Offer, || keeper.offer(file)));
        }
    }

    fn prepare(&self, representation: &Representation<'_>, body: &[u8]) -> Rc<Content> {
        let plain = Context {
            keep_alive: true,
            ..Context::unread(&self.rules, &self.date, false)
        };
        let total = self.shelf.total();
        Rc::new(respond::prepare(&plain, representation, body, total))
    }

    /// An error unless so many bytes, read or copied before, are all of `file` still: a rewrite in
    /// between shows in size or time.
    fn expect_whole(&self, length: u64, file: &OpenFile) -> Result<(), Missing> {
        match length == file.meta().size && self.is_unchanged(file) {
            true => Ok(()),
            false => Err(Missing::Changed),
        }
    }

    /// Reads all of `file`, or of a copy of it, into a `body` of its size.
    pub(super) fn read_small(
        &self,
        copy: Option<&Copied>,
        file: &OpenFile,
        body: &mut [u8],
    ) -> Result<(), Missing> {
        if copy.is_some_and(|copy| copy.length() != file.meta().size) {
            return Err(Missing::Changed);
        }
        match copy {
            Some(Copied::Bytes(bytes)) => body.copy_from_slice(bytes),
            Some(Copied::File(copy)) => self.read_all(copy, body)?,
            None => self.read_all(file, body)?,
        }
        self.expect_whole(body.len() as u64, file)
    }

    /// Reads as much as there is room for, which is the size of `source`.
    fn read_all(&self, source: &OpenFile, body: &mut [u8]) -> Result<(), Missing> {
        self.expect_cached(source)?;
        let mut at = 0;
        while at < body.len() {
            let read = self.tracer.call(Call::ReadNowait, || {
                headway_files::read_nowait(source, &mut body[at..], at as u64)
            });
            match read {
                Ok(Some(0)) => return Err(Missing::Changed),
                Ok(Some(count)) => at += count,
                Ok(None) => return Err(Missing::Cold),
                Err(error) => return Err(Missing::from(&error)),
            }
        }
        Ok(())
    }

    /// An error if a page of it is surely missing. A read that may not wait would find that out as
    /// well, but it begins to read the page in first, and beginning waits when the disk's queue is
    /// full.
    fn expect_cached(&self, source: &OpenFile) -> Result<(), Missing> {
        let size = source.meta().size;
        let cached = self
            .tracer
            .call(Call::Residency, || self.residency.cached(source, 0, size));
        match cached {
            Ok(true) => Ok(()),
            Ok(false) => Err(Missing::Cold),
            Err(error) => Err(Missing::from(&error)),
        }
    }

    /// Has a helper bring into reach what is `Cold` or `Opaque`; `Full` also when that has been
    /// tried often enough. If it was kept for all workers, it is no longer.
    pub(super) fn ask_for_content(
        &mut self,
        connection: &mut Connection,
        entry: &Entry,
        file: &Rc<OpenFile>,
        missing: &Missing,
    ) -> Result<(), Full> {
        entry.prepared.offered.set(false);
        let size = file.meta().size;
        let waiter = connection.waiter();
        let asks = connection.ask_window(0);
        match missing {
            _ if asks <= ASKS_MAX && self.pool.fetches(size) => self.pool.fetch(file, size, waiter),
            Missing::Cold if asks <= ASKS_MAX => self.pool.read_in(file, 0, size, Some(waiter)),
            // A hole of a tmpfs file is never resident, however often it is read in.
            _ if asks <= ASKS_IN_ALL_MAX => self.pool.read(file, 0, size, waiter),
            _ => Err(Full),
        }
    }
}
