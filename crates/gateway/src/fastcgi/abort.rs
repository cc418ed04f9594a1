//! A request whose answer nobody wants any more, and a connection that may be used again when it is
//! over.
//!
//! The application is told (`FCGI_ABORT_REQUEST`) and may take notice or not: what it still says is
//! passed over until it says that the request has ended. How long to wait for that is the caller's
//! to say; closing the connection is always right.
//!
//! Source: FastCGI Specification, sections 5.4 and 5.5.

use crate::exchange::Outbox;
use crate::fastcgi::exchange::{END_BYTES, ID};
use crate::fastcgi::record::{Garbage, Kind, RecordReader, write_record};

/// A request that has been given up.
#[derive(Debug)]
pub struct Aborted {
    out: Outbox,
    records: RecordReader,
    /// What has arrived of END_REQUEST.
    end: Vec<u8>,
}

impl Aborted {
    /// Goes on where the exchange was: a record that has been begun has to be finished.
    pub(super) fn new(mut out: Outbox, records: RecordReader, end: Vec<u8>) -> Aborted {
        write_record(out.bytes(), Kind::ABORT_REQUEST, ID, b"");
        Aborted { out, records, end }
    }

    /// What is to be written next; empty if nothing is due.
    pub fn unsent(&self) -> &[u8] {
        self.out.unsent()
    }

    /// So many bytes of it have been written.
    pub fn sent(&mut self, bytes: usize) {
        self.out.advance(bytes);
    }

    /// Passes over what the application still says. When its request is over: whether the
    /// connection may be used for another one.
    ///
    /// # Errors
    /// When it breaks the protocol. The connection is to be closed.
    pub fn feed(&mut self, mut input: &[u8]) -> Result<Option<bool>, Garbage> {
        while let Some(fragment) = self.records.next(&mut input)? {
            let kind = fragment.kind;
            if fragment.id != ID {
                return Err(Garbage::Request {
                    found: fragment.id,
                    expected: ID,
                });
            }
            match kind {
                Kind::STDOUT | Kind::STDERR => {}
                Kind::END_REQUEST if usize::from(fragment.record_bytes) == END_BYTES => {
                    self.end.extend_from_slice(fragment.content);
                }
                _ => return Err(Garbage::Kind { kind: kind.0 }),
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
