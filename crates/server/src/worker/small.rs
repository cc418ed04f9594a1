//! A small file's content: from memory, or read without waiting.
//!
//! What it refuses: to read a page that is not there; a helper brings it in.

use std::io::ErrorKind;
use std::rc::Rc;

use debox::Call;
use files::OpenFile;

use super::Worker;
use crate::request::{Content, Entry};
use crate::respond::{self, Context, Representation};

/// Why a small file is not in memory.
pub(super) enum Missing {
    Cold,
    Opaque,
    Changed,
    Unreadable,
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
        copy: Option<&OpenFile>,
    ) -> Result<Rc<Content>, Missing> {
        let variant = representation.variant;
        if let Some(content) = &*entry.prepared.contents[variant].borrow() {
            self.counters.content_hit += 1;
            return Ok(content.clone());
        }
        if copy.is_some_and(|copy| copy.meta().size != representation.file.meta().size) {
            return Err(Missing::Changed);
        }
        let source = copy.unwrap_or(representation.file);
        let size = source.meta().size as usize;
        // It only grows, so that bytes that a read overwrites are not cleared first.
        let mut body = std::mem::take(&mut self.body);
        if body.len() < size {
            body.resize(size, 0);
        }
        let read = self.read_small(source, representation.file, &mut body[..size]);
        let content = read.map(|()| {
            let plain = Context {
                keep_alive: true,
                ..Context::unread(&self.rules, &self.date, false)
            };
            Rc::new(respond::prepare(
                &plain,
                representation,
                &body[..size],
                self.shelf.total(),
            ))
        });
        self.body = body;
        let content = content?;
        self.counters.content_loaded += 1;
        self.shelf.put(entry, variant, &content);
        Ok(content)
    }

    /// Reads all of `source`, which is `file` or a copy of it, into a `body` of its size.
    pub(super) fn read_small(
        &self,
        source: &OpenFile,
        file: &OpenFile,
        body: &mut [u8],
    ) -> Result<(), Missing> {
        self.expect_cached(source)?;
        let mut at = 0;
        while at < body.len() {
            let read = self.tracer.call(Call::ReadNowait, || {
                files::read_nowait(source, &mut body[at..], at as u64)
            });
            match read {
                Ok(Some(0)) => return Err(Missing::Changed),
                Ok(Some(count)) => at += count,
                Ok(None) => return Err(Missing::Cold),
                Err(error) => return Err(Missing::from(&error)),
            }
        }
        // Read or copied first, compared after: a rewrite in between shows in size or time.
        if self.is_unchanged(file) {
            Ok(())
        } else {
            Err(Missing::Changed)
        }
    }

    /// An error if a page of it is surely missing. A read that may not wait would find that out as well, but it begins to
    /// read the page in first, and beginning waits when the disk's queue is full.
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
}
