//! Cancels a FastCGI request so that its connection can be reused.
//!
//! The application gets `FCGI_ABORT_REQUEST` and may ignore it; its remaining output is discarded
//! until the request has ended. The caller decides how long to wait; closing the connection is
//! always correct.
//!
//! Source: FastCGI Specification, sections 5.4 and 5.5.

use crate::codec::Outbox;
use crate::fastcgi::codec::{END_BYTES, ID};
use crate::fastcgi::record::{InvalidRecord, RecordKind, RecordReader, write_record};

/// A cancelled request.
#[derive(Debug)]
pub struct Aborted {
    out: Outbox,
    records: RecordReader,
    /// The part of END_REQUEST that has arrived.
    end: Vec<u8>,
}

impl Aborted {
    /// Continues where the codec was: a record that has been started must be finished.
    pub(super) fn new(mut out: Outbox, records: RecordReader, end: Vec<u8>) -> Aborted {
        write_record(out.bytes(), RecordKind::ABORT_REQUEST, ID, b"");
        Aborted { out, records, end }
    }

    /// The bytes to write next; empty if there are none.
    pub fn unsent(&self) -> &[u8] {
        self.out.unsent()
    }

    /// Marks this many of them as written.
    pub fn sent(&mut self, bytes: usize) {
        self.out.advance(bytes);
    }

    /// Discards the application's remaining output. At the end of the request, returns whether the
    /// connection can be reused.
    ///
    /// # Errors
    /// When the application violates the protocol. The connection must be closed.
    pub fn feed(&mut self, mut input: &[u8]) -> Result<Option<bool>, InvalidRecord> {
        while let Some(fragment) = self.records.next(&mut input)? {
            let kind = fragment.kind;
            if fragment.id != ID {
                return Err(InvalidRecord::Request {
                    found: fragment.id,
                    expected: ID,
                });
            }
            match kind {
                RecordKind::STDOUT | RecordKind::STDERR => {}
                RecordKind::END_REQUEST if usize::from(fragment.record_bytes) == END_BYTES => {
                    self.end.extend_from_slice(fragment.content);
                }
                _ => return Err(InvalidRecord::Kind { kind: kind.0 }),
            }
            let used = fragment.content.len();
            if used > 0 {
                self.records.take(&mut input, used);
            }
            if self.end.len() == END_BYTES {
                let is_clean = self.records.is_between(&mut input) && input.is_empty();
                return Ok(Some(is_clean && self.out.unsent().is_empty()));
            }
        }
        Ok(None)
    }
}
