//! A file in memory with its header, as the response cache holds it.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use headway_files::OpenFile;
use headway_http::etag::Etag;

use crate::{Charge, Piece};

/// A body in the content store: one version of a file in a sealed memfd, which nothing can change.
pub struct StoredBody {
    /// The memfd.
    pub file: Rc<OpenFile>,
    /// Accounts for its pages as long as a response may send them.
    pub charge: Charge,
    /// Whether a response has used it since uses were last sent.
    pub was_used: Cell<bool>,
    /// Whether it is for all workers, and not a copy for this one alone.
    pub is_for_all: bool,
    /// Its number in the store that all workers share, once it has one.
    pub shared: RefCell<Option<SharedBody>>,
}

impl StoredBody {
    /// A body that no other worker has yet.
    pub fn new(file: Rc<OpenFile>, charge: Charge, is_for_all: bool) -> StoredBody {
        StoredBody {
            file,
            charge,
            was_used: Cell::new(false),
            is_for_all,
            shared: RefCell::new(None),
        }
    }
}

/// The number of a body in the store that all workers share. When this is dropped, the number is noted as
/// returned.
pub struct SharedBody {
    number: u64,
    returned: Rc<RefCell<Vec<u64>>>,
}

impl SharedBody {
    /// The body with this number, which is pushed to `returned` in the end.
    pub fn new(number: u64, returned: &Rc<RefCell<Vec<u64>>>) -> SharedBody {
        SharedBody {
            number,
            returned: returned.clone(),
        }
    }

    /// The number.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for SharedBody {
    fn drop(&mut self) {
        self.returned.borrow_mut().push(self.number);
    }
}

/// A file in memory with the header of its plain `200` response. The body of a small file stands
/// behind the header, so that both are sent in one call. A larger one is in a sealed memfd, so that it
/// is sent without a copy.
///
/// The same bytes serve connections that stay open and connections that close: the status line
/// stands either right before the other headers, or further to the front with `Connection: close`
/// behind it.
pub struct CachedResponse {
    /// Space for the longer lead, the other headers, the body unless it is stored.
    pub bytes: Box<[u8]>,
    /// The body in the content store.
    pub stored: Option<Rc<StoredBody>>,
    /// The offset of the response's first byte with the current lead.
    pub start: usize,
    /// The offset of the body; the end of the header.
    pub body_at: usize,
    /// The offset of the 29 bytes of the `Date` value.
    pub date_at: usize,
    /// The second that the date shows.
    pub date_second: i64,
    /// The entity tag.
    pub etag: Etag,
    /// Its `Last-Modified`, which follows the date.
    pub modified: Option<Modified>,
    /// Accounts for `bytes` until they are dropped.
    pub charge: Charge,
}

/// The `Last-Modified` of a cached response.
#[derive(Clone, Copy, Debug)]
pub struct Modified {
    /// The offset of the 29 bytes of the value.
    pub at: usize,
    /// The file's time.
    pub second: i64,
    /// Whether that second was over when the file was last checked. If not, the response is built again once the
    /// file has been checked later.
    pub is_settled: bool,
}

impl Modified {
    /// What is shown at this date.
    fn shown(self, date: i64) -> i64 {
        match self.is_settled {
            true => self.second.min(date),
            false => unsettled_last_modified(self.second, date),
        }
    }
}

impl CachedResponse {
    const STATUS_LINE: &[u8] = b"HTTP/1.1 200 OK\r\n";
    const CLOSE: &[u8] = b"Connection: close\r\n";

    /// Bytes to leave free in front, for the longer lead.
    pub const LEAD_BYTES: usize = Self::CLOSE.len();

    /// Whether the current lead fits: with or without `Connection: close`.
    pub fn is_for_keep_alive(&self, keep_alive: bool) -> bool {
        (self.start == Self::LEAD_BYTES) == keep_alive
    }

    /// The memory that it takes.
    pub fn memory_bytes(&self) -> u64 {
        let stored = self.stored.as_ref();
        self.charge.bytes() + stored.map_or(0, |stored| stored.charge.bytes())
    }

    /// Whether a connection sends it now, so that dropping it would free no memory.
    pub fn is_being_sent(self: &Rc<Self>) -> bool {
        let stored = self.stored.as_ref();
        Rc::strong_count(self) > 1 || stored.is_some_and(|stored| Rc::strong_count(stored) > 1)
    }

    /// Writes the lead for a connection that stays open or for one that closes.
    pub fn set_keep_alive(&mut self, keep_alive: bool) {
        self.start = if keep_alive { Self::LEAD_BYTES } else { 0 };
        let (status, rest) = self.bytes[self.start..].split_at_mut(Self::STATUS_LINE.len());
        status.copy_from_slice(Self::STATUS_LINE);
        if !keep_alive {
            rest[..Self::CLOSE.len()].copy_from_slice(Self::CLOSE);
        }
    }

    /// A range of the body.
    pub fn piece(self: &Rc<Self>, range: Range<u64>) -> Piece {
        match &self.stored {
            Some(stored) => Piece::Stored(stored.clone(), range),
            None => {
                let (start, end) = (range.start as usize, range.end as usize);
                Piece::Cached(self.clone(), self.body_at + start..self.body_at + end)
            }
        }
    }

    /// Sets the `Date`.
    pub fn set_date(&mut self, second: i64, text: &[u8; 29]) {
        self.bytes[self.date_at..self.date_at + 29].copy_from_slice(text);
        let before = std::mem::replace(&mut self.date_second, second);
        // A clock may be set back to a time before that of the file.
        if let Some(modified) = self.modified
            && modified.shown(second) != modified.shown(before)
        {
            let (at, shown) = (modified.at, modified.shown(second));
            self.bytes[at..at + 29].copy_from_slice(&headway_http::date::format(shown));
        }
    }

    /// Whether it was built before the second of its file was over.
    pub fn is_unsettled(&self) -> bool {
        self.modified.is_some_and(|modified| !modified.is_settled)
    }
}

/// The `Last-Modified` of a file whose second may not be over, so that it may be written once more
/// with the same time: a second less. So the date of this version is never that of a later one.
/// A time in the future is shown as now (RFC 9110 section 8.8.2.1).
pub fn unsettled_last_modified(modified: i64, second: i64) -> i64 {
    match modified > second {
        true => second,
        false => modified - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_header_contains_close_only_when_set() {
        let head = "HTTP/1.1 200 OK\r\nDate: ...\r\n\r\nbody";
        let mut bytes = vec![b' '; CachedResponse::LEAD_BYTES];
        bytes.extend_from_slice(head.as_bytes());
        let mut content = CachedResponse {
            bytes: bytes.into_boxed_slice(),
            stored: None,
            start: CachedResponse::LEAD_BYTES,
            body_at: 0,
            date_at: 0,
            date_second: 0,
            etag: Etag::new(&[1], None),
            modified: None,
            charge: Charge::new(&Rc::default(), 0),
        };
        let closing = "HTTP/1.1 200 OK\r\nConnection: close\r\nDate: ...\r\n\r\nbody";
        for (keep_alive, expected) in [
            (false, closing),
            (true, head),
            (true, head),
            (false, closing),
        ] {
            content.set_keep_alive(keep_alive);
            assert!(
                content.is_for_keep_alive(keep_alive) && !content.is_for_keep_alive(!keep_alive)
            );
            let response = &content.bytes[content.start..];
            assert_eq!(String::from_utf8_lossy(response), expected);
        }
    }

    #[test]
    fn cached_last_modified_follows_the_date_while_the_file_is_newer() {
        let date = |second| headway_http::date::format(second);
        let unsettled = [(98, 98), (100, 99), (101, 99), (99, 99)];
        let settled = [(101, 100), (98, 98), (100, 100), (99, 99)];
        for (is_settled, expected) in [(false, unsettled), (true, settled)] {
            let mut content = CachedResponse {
                bytes: [date(0), date(0)].concat().into_boxed_slice(),
                stored: None,
                start: 0,
                body_at: 58,
                date_at: 0,
                date_second: 0,
                etag: Etag::new(&[1], None),
                modified: Some(Modified {
                    at: 29,
                    second: 100,
                    is_settled,
                }),
                charge: Charge::new(&Rc::default(), 0),
            };
            for (second, modified) in expected {
                content.set_date(second, &date(second));
                assert_eq!(content.bytes[..], [date(second), date(modified)].concat());
            }
        }
    }
}
