//! The types that the stages of a request share.
//!
//! A parsed header becomes a [`Request`], a lookup yields an [`Entry`], the response is an
//! [`Outgoing`], and `send` writes it. Only these types cross from stage to stage; the stages do
//! not import one another.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![deny(clippy::unused_self)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

mod cached_response;
mod received;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use headway_files::{OpenFile, RootId, SentPrefix};
use headway_metrics::MethodLabel;

pub use cached_response::{
    CachedResponse, Modified, SharedBody, StoredBody, unsettled_last_modified,
};
pub use received::{Request, Requests};

/// A file cache entry with its cached responses.
pub type Entry = headway_files::Entry<CachedResponses>;

/// The cached responses of a file: one for the file itself, one for each precompressed variant.
#[derive(Default)]
pub struct CachedResponses {
    /// The responses, by [`Variant`].
    pub responses: [std::cell::RefCell<Option<Rc<CachedResponse>>>; VARIANTS],
    /// Whether pinning the file has been requested, and no request has had to wait for it since.
    pub pin_requested: std::cell::Cell<bool>,
    /// Whether a response was used since the response cache last checked (second chance).
    pub recently_used: std::cell::Cell<bool>,
}

impl headway_files::CachedContents for CachedResponses {
    fn has_contents(&self, variant: Variant) -> bool {
        self.responses[variant].borrow().is_some()
    }
}

/// The number of variants: the file itself and its `br`, `zstd` and `gzip` forms.
pub const VARIANTS: usize = 4;

/// A variant of a file: 0 is the file itself, 1 to 3 are its precompressed forms.
pub type Variant = usize;

/// A share of a common memory budget, given back when dropped.
pub struct Charge {
    total: Rc<std::cell::Cell<u64>>,
    bytes: u64,
}

impl Charge {
    /// Adds `bytes` to the shared total.
    pub fn new(total: &Rc<std::cell::Cell<u64>>, bytes: u64) -> Self {
        total.set(total.get() + bytes);
        Self {
            total: total.clone(),
            bytes,
        }
    }

    /// The share.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Changes the share.
    pub fn set(&mut self, bytes: u64) {
        self.total.set(self.total.get() - self.bytes + bytes);
        self.bytes = bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.total.set(self.total.get() - self.bytes);
    }
}

/// A path that has been looked up: its file cache entry, and the content of a small file if a
/// helper has read it.
#[derive(Clone)]
pub struct LookedUp {
    /// The entry of the path.
    pub entry: Rc<Entry>,
    /// The content.
    pub content: Option<LoadedContent>,
}

impl From<Rc<Entry>> for LookedUp {
    /// An entry whose content has not been read.
    fn from(entry: Rc<Entry>) -> Self {
        Self {
            entry,
            content: None,
        }
    }
}

/// The content of a small file that a helper has read.
#[derive(Clone)]
pub enum LoadedContent {
    /// In a memfd.
    File(Rc<OpenFile>),
    /// In the helper's answer.
    Bytes(Rc<[u8]>),
}

impl LoadedContent {
    /// The number of bytes.
    pub fn length(&self) -> u64 {
        match self {
            Self::File(copy) => copy.meta().size,
            Self::Bytes(bytes) => bytes.len() as u64,
        }
    }
}

/// A piece of a response.
pub enum Piece {
    /// Bytes made for this response, such as its header or an error page, and the number already
    /// sent.
    Bytes(Vec<u8>, usize),
    /// A range of the bytes of a cached response.
    Cached(Rc<CachedResponse>, Range<usize>),
    /// A range of a body in the content store.
    Stored(Rc<StoredBody>, Range<u64>),
    /// A range of an open file.
    File(Rc<OpenFile>, Range<u64>),
}

impl Piece {
    /// A piece of bytes made for this response.
    pub fn bytes(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes, 0)
    }

    /// The number of bytes left to send.
    pub fn bytes_left(&self) -> u64 {
        match self {
            Self::File(_, range) | Self::Stored(_, range) => range.end - range.start,
            _ => self.memory().unwrap_or_default().len() as u64,
        }
    }

    /// The bytes left, if they are in the memory of this process; `None` for a file.
    pub fn memory(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes, at) => Some(&bytes[*at..]),
            Self::Cached(content, range) => Some(&content.bytes[range.clone()]),
            Self::Stored(..) | Self::File(..) => None,
        }
    }
}

/// The part of the current response that is still to be sent.
#[derive(Default)]
pub struct Outgoing {
    /// The pieces in sending order.
    pub pieces: VecDeque<Piece>,
    /// Bytes of this response sent so far.
    pub sent_bytes: u64,
    /// The length of the header; the access log counts body bytes only.
    pub head_bytes: u64,
    /// The status code.
    pub status: u16,
    /// The method of the request, for the metrics.
    pub method: MethodLabel,
    /// What was sent of the file, while there is more to send of it.
    pub sent_prefix: Option<Box<SentPrefix>>,
    /// A part left without a record of it, so there is nothing to compare if the file changes.
    pub is_unrecorded: bool,
}

impl Outgoing {
    /// A response that begins with `head`.
    pub fn new(status: u16, head: Vec<u8>) -> Self {
        let head_bytes = head.len() as u64;
        // A body follows, mostly.
        let mut pieces = VecDeque::with_capacity(2);
        pieces.push_back(Piece::bytes(head));
        Self {
            pieces,
            sent_bytes: 0,
            head_bytes,
            status,
            method: MethodLabel::Other,
            sent_prefix: None,
            is_unrecorded: false,
        }
    }

    /// Drops the response.
    pub fn clear(&mut self) {
        self.pieces.clear();
        (self.sent_prefix, self.is_unrecorded) = (None, false);
        (self.sent_bytes, self.head_bytes, self.status) = (0, 0, 0);
    }

    /// Memory of the response's own bytes.
    pub fn memory_bytes(&self) -> u64 {
        let pieces = self.pieces.iter().map(|piece| match piece {
            Piece::Bytes(bytes, _) => bytes.len() as u64,
            Piece::Cached(..) | Piece::Stored(..) | Piece::File(..) => 0,
        });
        pieces.sum()
    }

    /// Bytes that have not been sent yet.
    pub fn bytes_left(&self) -> u64 {
        self.pieces.iter().map(Piece::bytes_left).sum()
    }

    /// Removes the next `sent` bytes, and pieces that are sent completely.
    pub fn advance(&mut self, mut sent: u64) {
        self.sent_bytes += sent;
        while let Some(piece) = self.pieces.front_mut() {
            let length = piece.bytes_left();
            if sent < length {
                match piece {
                    Piece::Bytes(_, at) => *at += sent as usize,
                    Piece::Cached(_, range) => range.start += sent as usize,
                    Piece::Stored(_, range) | Piece::File(_, range) => range.start += sent,
                }
                return;
            }
            sent -= length;
            self.pieces.pop_front();
        }
    }

    /// Bytes of files that have not been sent yet.
    pub fn file_left(&self) -> u64 {
        let files = self.pieces.iter();
        let files = files.filter(|piece| matches!(piece, Piece::File(..)));
        files.map(Piece::bytes_left).sum()
    }

    /// The range left of the next file piece.
    pub fn file_range(&self) -> Option<Range<u64>> {
        self.pieces.iter().find_map(|piece| match piece {
            Piece::File(_, range) => Some(range.clone()),
            _ => None,
        })
    }

    /// The file that the next file piece comes from, and the offset there. A copy in memory stands in
    /// front of the rest of its file ([`Outgoing::substitute`]); other files in memory cannot change.
    pub fn file_position(&self) -> Option<(&Rc<OpenFile>, u64)> {
        let first = |piece: &Piece| matches!(piece, Piece::File(..));
        let at = self.pieces.iter().position(first)?;
        match (self.pieces.get(at), self.pieces.get(at + 1)) {
            (Some(Piece::File(copy, copied)), next) if copy.is_memory() => match next {
                Some(Piece::File(file, rest)) if !file.is_memory() => {
                    Some((file, rest.start.checked_sub(copied.end - copied.start)?))
                }
                _ => None,
            },
            (Some(Piece::File(file, range)), _) => Some((file, range.start)),
            _ => None,
        }
    }

    /// Forgets what was sent of another file than the next one: a response may have parts of several.
    pub fn forget_other_files(&mut self) {
        if let (Some(sent), Some((file, _))) = (&self.sent_prefix, self.file_position())
            && !sent.is_of(file.meta())
        {
            self.sent_prefix = None;
        }
    }

    /// The file of the next file piece.
    pub fn file(&self) -> Option<&Rc<OpenFile>> {
        self.pieces.iter().find_map(|piece| match piece {
            Piece::File(file, _) => Some(file),
            _ => None,
        })
    }

    /// Replaces the next bytes of the first file piece with a copy in memory. An empty copy means
    /// that the file has become shorter; the piece then stays, and the next attempt to send it
    /// detects the change.
    pub fn substitute(&mut self, copy: Rc<OpenFile>) {
        if let Some(Piece::File(_, range)) = self
            .pieces
            .iter_mut()
            .find(|piece| matches!(piece, Piece::File(..)))
        {
            let length = copy.meta().size.min(range.end - range.start);
            range.start += length;
            let at = self
                .pieces
                .iter()
                .position(|piece| matches!(piece, Piece::File(..)));
            self.pieces
                .insert(at.unwrap_or(0), Piece::File(copy, 0..length));
        }
    }

    /// Appends bytes made for this response. Few of them are copied behind those before, so that one buffer leaves
    /// instead of two.
    pub fn push_bytes(&mut self, bytes: Vec<u8>) {
        match self.pieces.back_mut() {
            Some(Piece::Bytes(last, _)) if bytes.len() <= last.capacity() - last.len() => {
                last.extend_from_slice(&bytes);
            }
            _ => self.push(Piece::bytes(bytes)),
        }
    }

    /// Appends a piece.
    pub fn push(&mut self, piece: Piece) {
        self.pieces.push_back(piece);
    }
}

/// How the client recognises the end of a response's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// There is no body.
    Bodiless,
    /// The length stands in the head.
    Length,
    /// In chunks; a last one of no bytes ends it.
    Chunked,
    /// The connection ends with it.
    Close,
    /// Never: what follows is another protocol.
    Upgraded,
}

/// The program that answers a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramName {
    /// The location, by its number.
    pub route: usize,
    /// The part of the path that names it, with its slash in front.
    pub script_name: Vec<u8>,
    /// The rest of the path.
    pub path_info: Vec<u8>,
    /// The file of the program, absolute.
    pub file: Vec<u8>,
}

/// The rules of a virtual host.
pub struct VirtualHost {
    /// The document root.
    pub root: RootId,
    /// Index file names in the order in which they are tried.
    pub index: Vec<String>,
    /// Whether a directory without an index file gets a listing.
    pub listing: bool,
    /// Whether names that begin with a dot are served.
    pub dotfiles: bool,
    /// Custom error pages by status, read at start: content and media type.
    pub error_pages: BTreeMap<u16, (Vec<u8>, String)>,
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use headway_files::Meta;

    use super::*;

    fn file(size: u64) -> Rc<OpenFile> {
        let descriptor = std::fs::File::open("/dev/null").unwrap().into();
        let meta = Meta {
            size,
            modified: (0, 0),
            changed: (0, 0),
            device: 0,
            inode: 0,
        };
        Rc::new(OpenFile::new(descriptor, meta))
    }

    fn lengths(outgoing: &Outgoing) -> Vec<u64> {
        outgoing.pieces.iter().map(Piece::bytes_left).collect()
    }

    #[test]
    fn charge_is_released_when_dropped() {
        let total = Rc::new(Cell::new(5));
        let (one, other) = (Charge::new(&total, 10), Charge::new(&total, 100));
        assert_eq!(total.get(), 115);
        drop(one);
        assert_eq!(total.get(), 105);
        drop(other);
        assert_eq!(total.get(), 5);
    }

    #[test]
    fn sent_pieces_are_dropped_and_the_next_one_is_shortened() {
        for (sent, expected) in [
            (0, vec![4, 1000, 3]),
            (1, vec![3, 1000, 3]),
            (4, vec![1000, 3]),
            (1003, vec![1, 3]),
            (1005, vec![2]),
            (1007, vec![]),
        ] {
            let mut outgoing = Outgoing::new(200, b"head".to_vec());
            outgoing.push(Piece::File(file(1000), 0..1000));
            outgoing.push(Piece::bytes(b"end".to_vec()));
            outgoing.advance(sent);
            assert_eq!(lengths(&outgoing), expected, "{sent}");
            assert_eq!(outgoing.sent_bytes, sent);
            assert_eq!(outgoing.bytes_left(), 1007 - sent);
        }
    }

    #[test]
    fn copy_replaces_the_same_bytes_of_the_file_piece() {
        let mut outgoing = Outgoing::new(200, b"head".to_vec());
        outgoing.push(Piece::File(file(1000), 0..1000));
        outgoing.substitute(file(600));
        assert_eq!(lengths(&outgoing), [4, 600, 400]);
        assert!(matches!(&outgoing.pieces[2], Piece::File(_, range) if *range == (600..1000)));
    }

    #[test]
    fn copy_is_truncated_when_it_is_longer_than_the_range() {
        let mut outgoing = Outgoing::new(206, Vec::new());
        outgoing.push(Piece::File(file(1000), 10..20));
        outgoing.push(Piece::bytes(b"closing".to_vec()));
        outgoing.substitute(file(990));
        assert_eq!(lengths(&outgoing), [0, 10, 0, 7]);
    }
}
