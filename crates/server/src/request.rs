//! The vocabulary the stages share: what leaves one folder and enters the next.
//!
//! A request is *held* (its bytes wait with the connection), *looked up* (an [`Entry`] says what
//! the name means), *answered* (an [`Outgoing`] says what to send) and *sent*. Only these types
//! cross from stage to stage; the stages do not import one another.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use headway_files::{OpenFile, RootId};
use headway_http::Head;

pub use crate::tally::Counters;

/// A name the cache knows, with the replies prepared for it.
pub type Entry = headway_files::Entry<Prepared>;

/// The replies kept beside a name: one place for the file itself, one for each precompressed
/// sibling.
#[derive(Default)]
pub struct Prepared {
    /// Content in memory, by [`Variant`].
    pub contents: [std::cell::RefCell<Option<Rc<Content>>>; VARIANTS],
    /// Its file has been offered to be kept for all workers, and nobody had to wait for it since.
    pub offered: std::cell::Cell<bool>,
    /// Asked for since the content shelf last looked (second chance).
    pub used: std::cell::Cell<bool>,
}

impl headway_files::Holdings for Prepared {
    fn holds(&self, variant: Variant) -> bool {
        self.contents[variant].borrow().is_some()
    }
}

/// The file itself and its `br`, `zstd` and `gzip` siblings.
pub const VARIANTS: usize = 4;

/// Which representation of a name is meant: 0 the file itself, 1 to 3 its siblings.
pub type Variant = usize;

/// A small file in memory, behind the head of its plain `200` reply, so that both leave in one
/// write.
///
/// The same bytes serve for a connection that stays and for one that closes: the status line stands
/// either right before the other fields, or further to the front with `Connection: close` behind
/// it.
pub struct Content {
    /// Room for the longer lead, the other fields, the body.
    pub bytes: Box<[u8]>,
    /// Where the reply begins with its present lead.
    pub start: usize,
    /// Where the body begins.
    pub body_at: usize,
    /// Where the 29 bytes of the `Date` value stand in the head.
    pub date_at: usize,
    /// The second that date shows.
    pub date_second: i64,
    /// Counts these bytes for as long as they live.
    #[expect(dead_code, reason = "it acts by being dropped")]
    pub charge: Charge,
}

impl Content {
    const STATUS_LINE: &[u8] = b"HTTP/1.1 200 OK\r\n";
    const CLOSE: &[u8] = b"Connection: close\r\n";

    /// Bytes to leave free before the head, for the longer lead.
    pub const LEAD_BYTES: usize = Self::CLOSE.len();

    /// The present lead says whether the connection stays.
    pub fn says(&self, keep_alive: bool) -> bool {
        (self.start == Self::LEAD_BYTES) == keep_alive
    }

    /// Writes the lead for a connection that stays or one that closes.
    pub fn say(&mut self, keep_alive: bool) {
        self.start = if keep_alive { Self::LEAD_BYTES } else { 0 };
        let (status, rest) = self.bytes[self.start..].split_at_mut(Self::STATUS_LINE.len());
        status.copy_from_slice(Self::STATUS_LINE);
        if !keep_alive {
            rest[..Self::CLOSE.len()].copy_from_slice(Self::CLOSE);
        }
    }

    /// Writes the `Date`.
    pub fn set_date(&mut self, second: i64, text: &[u8; 29]) {
        self.bytes[self.date_at..self.date_at + 29].copy_from_slice(text);
        self.date_second = second;
    }
}

/// A part of the memory that contents share; given back when dropped.
pub struct Charge {
    total: Rc<std::cell::Cell<u64>>,
    bytes: u64,
}

impl Charge {
    /// Takes `bytes` from the shared total.
    pub fn new(total: &Rc<std::cell::Cell<u64>>, bytes: u64) -> Self {
        total.set(total.get() + bytes);
        Self {
            total: total.clone(),
            bytes,
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.total.set(self.total.get() - self.bytes);
    }
}

/// One stretch of a reply.
pub enum Piece {
    /// Bytes made for this reply: its head, an error page, a part's head.
    Bytes(Vec<u8>, usize),
    /// A range of a small file in memory.
    Content(Rc<Content>, Range<usize>),
    /// A range of an open file; only what is resident leaves from here.
    File(Rc<OpenFile>, Range<u64>),
}

impl Piece {
    /// Bytes made for this reply, none of them sent yet.
    pub fn bytes(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes, 0)
    }

    /// Its length in bytes.
    pub fn bytes_left(&self) -> u64 {
        match self {
            Self::File(_, range) => range.end - range.start,
            _ => self.memory().unwrap_or_default().len() as u64,
        }
    }

    /// What is in memory of this piece; nothing for a file.
    pub fn memory(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes, at) => Some(&bytes[*at..]),
            Self::Content(content, range) => Some(&content.bytes[range.clone()]),
            Self::File(..) => None,
        }
    }
}

/// What is still to be sent of the current reply.
#[derive(Default)]
pub struct Outgoing {
    /// In the order they leave.
    pub pieces: VecDeque<Piece>,
    /// Bytes sent of this reply so far.
    pub sent_bytes: u64,
    /// Length of the head, so that body bytes can be told apart in the log.
    pub head_bytes: u64,
    /// The reply's status.
    pub status: u16,
}

impl Outgoing {
    /// A reply that begins with `head`.
    pub fn new(status: u16, head: Vec<u8>) -> Self {
        let head_bytes = head.len() as u64;
        Self {
            pieces: VecDeque::from([Piece::bytes(head)]),
            sent_bytes: 0,
            head_bytes,
            status,
        }
    }

    /// Nothing is owed any more.
    pub fn clear(&mut self) {
        self.pieces.clear();
        (self.sent_bytes, self.head_bytes, self.status) = (0, 0, 0);
    }

    /// Bytes that have not left yet.
    pub fn bytes_left(&self) -> u64 {
        self.pieces.iter().map(Piece::bytes_left).sum()
    }

    /// Drops the next `sent` bytes, which have left, and pieces of which nothing is left.
    pub fn advance(&mut self, mut sent: u64) {
        self.sent_bytes += sent;
        while let Some(piece) = self.pieces.front_mut() {
            let length = piece.bytes_left();
            if sent < length {
                match piece {
                    Piece::Bytes(_, at) => *at += sent as usize,
                    Piece::Content(_, range) => range.start += sent as usize,
                    Piece::File(_, range) => range.start += sent,
                }
                return;
            }
            sent -= length;
            self.pieces.pop_front();
        }
    }

    /// What is still owed of the file piece that is due.
    pub fn file_range(&self) -> Option<Range<u64>> {
        self.pieces.iter().find_map(|piece| match piece {
            Piece::File(_, range) => Some(range.clone()),
            _ => None,
        })
    }

    /// The file piece that is due.
    pub fn file(&self) -> Option<&Rc<OpenFile>> {
        self.pieces.iter().find_map(|piece| match piece {
            Piece::File(file, _) => Some(file),
            _ => None,
        })
    }

    /// Puts a copy in memory in place of the next bytes of the file piece in front. A copy of
    /// nothing means that the file has become shorter; then the piece stays and is found out.
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

    /// Adds a piece at the end.
    pub fn push(&mut self, piece: Piece) {
        self.pieces.push_back(piece);
    }
}

/// How the end of a reply's body is told to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// There is no body.
    Bodiless,
    /// Its length stands in the head.
    Length,
    /// In chunks; a last one of no bytes ends it.
    Chunked,
    /// The connection ends with it.
    Close,
    /// Never: what follows is another protocol.
    Tunnel,
}

/// The program that answers a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramName {
    /// The location, by its number.
    pub place: usize,
    /// The part of the path that names it, with its slash in front.
    pub script_name: Vec<u8>,
    /// The rest of the path.
    pub path_info: Vec<u8>,
    /// Its file, absolute.
    pub file: Vec<u8>,
    /// The document root of its host, without a slash at its end.
    pub document_root: Vec<u8>,
}

/// One virtual host's rules as the loop needs them.
pub struct Site {
    /// Where its files are.
    pub root: RootId,
    /// Index names, in the order they are tried.
    pub index: Vec<String>,
    /// Answer a directory without an index file with a page of its entries.
    pub listing: bool,
    /// Serve names that begin with a dot.
    pub dotfiles: bool,
    /// Own pages for error statuses, read at start: page and media type.
    pub error_pages: BTreeMap<u16, (Vec<u8>, String)>,
}

/// What the access log says of a request, kept while its reply is under way.
pub struct LogRecord {
    /// The method; empty when the request could not be parsed.
    pub method: &'static str,
    /// The request line as received.
    pub request_line: Vec<u8>,
    /// The version, as on the wire.
    pub version: &'static str,
    /// The Referer field.
    pub referer: Option<Vec<u8>>,
    /// The User-Agent field.
    pub user_agent: Option<Vec<u8>>,
}

impl LogRecord {
    /// Copies what the log needs of `head`.
    pub fn new(head: &Head<'_>) -> Self {
        Self {
            method: head.method.as_str(),
            request_line: head.request_line.to_vec(),
            version: head.version.as_str(),
            referer: head.referer.map(<[u8]>::to_vec),
            user_agent: head.user_agent.map(<[u8]>::to_vec),
        }
    }

    /// The target, which stands between the first and the last space of the request line.
    pub fn target(&self) -> &[u8] {
        let line = &self.request_line;
        let first = line
            .iter()
            .position(|&byte| byte == b' ')
            .map_or(0, |at| at + 1);
        let last = line
            .iter()
            .rposition(|&byte| byte == b' ')
            .unwrap_or(line.len());
        line.get(first..last).unwrap_or_default()
    }
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
    fn lead_says_close_only_while_it_is_told_to() {
        let head = "HTTP/1.1 200 OK\r\nDate: ...\r\n\r\nbody";
        let mut bytes = vec![b' '; Content::LEAD_BYTES];
        bytes.extend_from_slice(head.as_bytes());
        let mut content = Content {
            bytes: bytes.into_boxed_slice(),
            start: Content::LEAD_BYTES,
            body_at: 0,
            date_at: 0,
            date_second: 0,
            charge: Charge::new(&Rc::default(), 0),
        };
        let closing = "HTTP/1.1 200 OK\r\nConnection: close\r\nDate: ...\r\n\r\nbody";
        for (keep_alive, expected) in [
            (false, closing),
            (true, head),
            (true, head),
            (false, closing),
        ] {
            content.say(keep_alive);
            assert!(content.says(keep_alive) && !content.says(!keep_alive));
            let reply = &content.bytes[content.start..];
            assert_eq!(String::from_utf8_lossy(reply), expected);
        }
    }

    #[test]
    fn charge_is_given_back_when_dropped() {
        let total = Rc::new(Cell::new(5));
        let (one, other) = (Charge::new(&total, 10), Charge::new(&total, 100));
        assert_eq!(total.get(), 115);
        drop(one);
        assert_eq!(total.get(), 105);
        drop(other);
        assert_eq!(total.get(), 5);
    }

    #[test]
    fn pieces_that_have_left_are_dropped_and_the_next_one_is_shortened() {
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
    fn copy_takes_the_place_of_the_bytes_it_holds_when_substituted() {
        let mut outgoing = Outgoing::new(200, b"head".to_vec());
        outgoing.push(Piece::File(file(1000), 0..1000));
        outgoing.substitute(file(600));
        assert_eq!(lengths(&outgoing), [4, 600, 400]);
        assert!(matches!(&outgoing.pieces[2], Piece::File(_, range) if *range == (600..1000)));
    }

    #[test]
    fn copy_is_cut_when_it_holds_more_than_is_owed() {
        let mut outgoing = Outgoing::new(206, Vec::new());
        outgoing.push(Piece::File(file(1000), 10..20));
        outgoing.push(Piece::bytes(b"closing".to_vec()));
        outgoing.substitute(file(990));
        assert_eq!(lengths(&outgoing), [0, 10, 0, 7]);
    }

    #[test]
    fn target_is_what_stands_between_the_outer_spaces_of_a_request_line() {
        for (line, expected) in [
            ("GET /a HTTP/1.1", "/a"),
            ("GET /a b HTTP/1.1", "/a b"),
            ("", ""),
            ("GET ", ""),
        ] {
            let record = LogRecord {
                method: "GET",
                request_line: line.as_bytes().to_vec(),
                version: "",
                referer: None,
                user_agent: None,
            };
            assert_eq!(
                String::from_utf8_lossy(record.target()),
                expected,
                "{line:?}"
            );
        }
    }
}
