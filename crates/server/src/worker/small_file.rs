//! Gets the response of a small file: from the response cache, or by a read that cannot block. A
//! file that is not in the page cache is left to a helper.

use std::io::ErrorKind;
use std::rc::Rc;

use headway_debox::Call;
use headway_files::{Full, OpenFile};

use super::Worker;
use super::connection_io::{HELPER_REQUESTS_MAX, READ_INS_MAX};
use crate::connection::Connection;
use crate::request::{CachedResponse, Entry, Request};
use crate::respond::{self, Representation, ResponseContext};

/// Why a small file could not be read without blocking.
pub(super) enum CacheMiss {
    NotResident,
    ResidencyUnknown,
    /// The file differs from its file cache entry, or was closed and its cached response is gone.
    /// It must be looked up again.
    Changed,
    Unreadable,
}

/// The content of a small file that a helper has read.
#[derive(Clone)]
pub(super) enum LoadedContent {
    /// In a memfd.
    File(Rc<OpenFile>),
    /// In the helper's answer.
    Bytes(Rc<[u8]>),
}

impl LoadedContent {
    fn length(&self) -> u64 {
        match self {
            LoadedContent::File(copy) => copy.meta().size,
            LoadedContent::Bytes(bytes) => bytes.len() as u64,
        }
    }
}

impl From<&std::io::Error> for CacheMiss {
    fn from(error: &std::io::Error) -> CacheMiss {
        match error.kind() {
            ErrorKind::Unsupported => CacheMiss::ResidencyUnknown,
            _ => CacheMiss::Unreadable,
        }
    }
}

impl Worker {
    /// The response of a small file, from the cache or read without blocking.
    pub(super) fn small_file(
        &mut self,
        entry: &Rc<Entry>,
        representation: &Representation<'_>,
        copy: Option<&LoadedContent>,
    ) -> Result<Rc<CachedResponse>, CacheMiss> {
        let variant = representation.variant;
        if let Some(content) = &*entry.prepared.responses[variant].borrow() {
            self.counters.response_cache_hits += 1;
            return Ok(content.clone());
        }
        let file = representation.file.open().ok_or(CacheMiss::Changed)?;
        let content = match copy {
            Some(LoadedContent::Bytes(bytes)) => {
                self.expect_unchanged(bytes.len() as u64, &file)?;
                self.build_cached(representation, bytes)
            }
            _ => {
                let size = file.meta().size as usize;
                // The buffer only grows, so that bytes are not cleared before a read overwrites
                // them.
                let mut body = std::mem::take(&mut self.body);
                if body.len() < size {
                    body.resize(size, 0);
                }
                let read = self.read_small_file(copy, &file, &mut body[..size]);
                let content = read.map(|()| self.build_cached(representation, &body[..size]));
                self.body = body;
                content?
            }
        };
        self.counters.response_cache_insertions += 1;
        self.offer_for_pinning(entry, &file);
        self.response_cache.insert(entry, variant, &content);
        Ok(content)
    }

    /// Offers a file that this worker has cached for pinning, which serves all workers.
    fn offer_for_pinning(&self, entry: &Entry, file: &OpenFile) {
        let offered = &entry.prepared.pin_requested;
        if let Some(pinner) = &self.pinner
            && !offered.get()
        {
            offered.set(self.tracer.call(Call::Offer, || pinner.submit(file)));
        }
    }

    fn build_cached(&self, representation: &Representation<'_>, body: &[u8]) -> Rc<CachedResponse> {
        let plain = ResponseContext {
            keep_alive: true,
            ..ResponseContext::for_unparsed(&self.response_settings, &self.date, false)
        };
        let total = self.response_cache.used_bytes();
        Rc::new(respond::build_cached(&plain, representation, body, total))
    }

    /// Fails unless `length` is still the size of `file`. A rewrite since the read shows in the
    /// size or the modification time.
    fn expect_unchanged(&self, length: u64, file: &OpenFile) -> Result<(), CacheMiss> {
        match length == file.meta().size && self.is_unchanged(file) {
            true => Ok(()),
            false => Err(CacheMiss::Changed),
        }
    }

    /// Reads all of `file`, or of a helper's copy, into `body`, which has its size.
    pub(super) fn read_small_file(
        &self,
        copy: Option<&LoadedContent>,
        file: &OpenFile,
        body: &mut [u8],
    ) -> Result<(), CacheMiss> {
        if copy.is_some_and(|copy| copy.length() != file.meta().size) {
            return Err(CacheMiss::Changed);
        }
        match copy {
            Some(LoadedContent::Bytes(bytes)) => body.copy_from_slice(bytes),
            Some(LoadedContent::File(copy)) => self.read_all(copy, body)?,
            None => self.read_all(file, body)?,
        }
        self.expect_unchanged(body.len() as u64, file)
    }

    pub(super) fn is_unchanged(&self, file: &OpenFile) -> bool {
        // If fstat fails, reading the file will report the error.
        self.tracer
            .call(Call::Status, || file.unchanged())
            .unwrap_or(true)
    }

    /// Fills `body` from `source`.
    fn read_all(&self, source: &OpenFile, body: &mut [u8]) -> Result<(), CacheMiss> {
        self.expect_resident(source)?;
        let mut at = 0;
        while at < body.len() {
            let read = self.tracer.call(Call::ReadNowait, || {
                headway_files::read_nowait(source, &mut body[at..], at as u64)
            });
            match read {
                Ok(Some(0)) => return Err(CacheMiss::Changed),
                Ok(Some(count)) => at += count,
                Ok(None) => return Err(CacheMiss::NotResident),
                Err(error) => return Err(CacheMiss::from(&error)),
            }
        }
        Ok(())
    }

    /// Fails if a page of `source` is certainly not cached. A non-blocking read would also find
    /// that out, but it starts to read the page in first, which can block when the disk's queue is
    /// full.
    fn expect_resident(&self, source: &OpenFile) -> Result<(), CacheMiss> {
        let size = source.meta().size;
        let cached = self
            .tracer
            .call(Call::Residency, || self.residency.cached(source, 0, size));
        match cached {
            Ok(true) => Ok(()),
            Ok(false) => Err(CacheMiss::NotResident),
            Err(error) => Err(CacheMiss::from(&error)),
        }
    }

    /// Has a helper read a file that is not resident or whose residency is unknown. Returns `Full`
    /// also when too many attempts have failed. The file may be offered for pinning again
    /// afterwards.
    pub(super) fn request_content(
        &mut self,
        connection: &Connection,
        request: &mut Request,
        entry: &Entry,
        file: &Rc<OpenFile>,
        miss: &CacheMiss,
    ) -> Result<(), Full> {
        entry.prepared.pin_requested.set(false);
        let size = file.meta().size;
        let waiter = connection.waiter(request);
        let asks = request.count_chunk_request(0);
        match miss {
            _ if asks <= READ_INS_MAX && self.pool.fetches(size) => {
                self.pool.fetch(file, size, waiter)
            }
            CacheMiss::NotResident if asks <= READ_INS_MAX => {
                self.pool.read_in(file, 0, size, Some(waiter))
            }
            // A hole in a tmpfs file never becomes resident, so a helper must copy it.
            _ if asks <= HELPER_REQUESTS_MAX => self.pool.read(file, 0, size, waiter),
            _ => Err(Full),
        }
    }
}
