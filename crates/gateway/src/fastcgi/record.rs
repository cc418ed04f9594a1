//! Records: the eight bytes in front of everything, and what they announce.
//!
//! A record is at most 64 KiB and is never kept whole: its content is shown as it arrives. Refused
//! are other versions than 1; what a kind means, and whether it may come now, is decided further
//! up.
//!
//! Source: FastCGI Specification, sections 3.3 and 8.

/// A record's kind, as it stands on the wire. Numbers without a name here exist, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind(pub u8);

#[allow(missing_docs)] // The names are the specification's.
impl Kind {
    pub const BEGIN_REQUEST: Kind = Kind(1);
    pub const ABORT_REQUEST: Kind = Kind(2);
    pub const END_REQUEST: Kind = Kind(3);
    pub const PARAMS: Kind = Kind(4);
    pub const STDIN: Kind = Kind(5);
    pub const STDOUT: Kind = Kind(6);
    pub const STDERR: Kind = Kind(7);
    pub const DATA: Kind = Kind(8);
    pub const GET_VALUES: Kind = Kind(9);
    pub const GET_VALUES_RESULT: Kind = Kind(10);
    pub const UNKNOWN_TYPE: Kind = Kind(11);
}

/// Why bytes are no FastCGI, or none that answers what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Garbage {
    /// Another version, or another protocol altogether.
    #[error("a record of version {version}, where 1 is the only one (is this a FastCGI back end?)")]
    Version {
        /// The first byte of the record.
        version: u8,
    },
    /// A record for a request that was not made on this connection.
    #[error("a record for request {found}, where {expected} was asked")]
    Request {
        /// The number on the wire.
        found: u16,
        /// The number that was sent.
        expected: u16,
    },
    /// A kind that an application does not send, or not now.
    #[error("a record of kind {kind} at the wrong time")]
    Kind {
        /// The number on the wire.
        kind: u8,
    },
    /// An END_REQUEST, or an answer about the application, of another size than it has.
    #[error("a record of kind {kind} with {bytes} bytes")]
    Length {
        /// The number on the wire.
        kind: u8,
        /// The announced length.
        bytes: u16,
    },
    /// An END_REQUEST that says something unknown.
    #[error("the request ended with the unknown protocol status {status}")]
    ProtocolStatus {
        /// The number on the wire.
        status: u8,
    },
    /// A name or a value that is longer than the record it stands in.
    #[error("a name or value that goes beyond its record")]
    Pair,
    /// More variables than any request has.
    #[error("a request with more than 256 KiB of variables")]
    Variables,
}

/// Bytes of a record's head.
pub(crate) const HEAD_BYTES: usize = 8;

/// Most bytes put into one record: a multiple of eight below 64 KiB, so that long streams need no
/// padding.
const CONTENT_BYTES_MAX: usize = 0xfff8;

/// Appends one record, padded to a multiple of eight bytes as the specification recommends.
///
/// Content beyond 65,528 bytes is left out; [`write_stream`] is for what may be longer.
pub fn write_record(out: &mut Vec<u8>, kind: Kind, id: u16, content: &[u8]) {
    debug_assert!(
        content.len() <= CONTENT_BYTES_MAX,
        "one record cannot hold that"
    );
    let content = &content[..content.len().min(CONTENT_BYTES_MAX)];
    let padding_bytes = content.len().next_multiple_of(8) - content.len();
    let [id_high, id_low] = id.to_be_bytes();
    let [length_high, length_low] = (content.len() as u16).to_be_bytes();
    out.extend_from_slice(&[
        1,
        kind.0,
        id_high,
        id_low,
        length_high,
        length_low,
        padding_bytes as u8,
        0,
    ]);
    out.extend_from_slice(content);
    out.resize(out.len() + padding_bytes, 0);
}

/// Appends the records of a part of a stream; nothing for no bytes, since an empty record ends it.
pub fn write_stream(out: &mut Vec<u8>, kind: Kind, id: u16, bytes: &[u8]) {
    for content in bytes.chunks(CONTENT_BYTES_MAX) {
        write_record(out, kind, id, content);
    }
}

/// What has arrived of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment<'i> {
    /// The record's kind.
    pub kind: Kind,
    /// The request it belongs to; 0 for none.
    pub id: u16,
    /// All of the record's content, also what has not arrived.
    pub record_bytes: u16,
    /// The next of its bytes, at the front of the input.
    pub content: &'i [u8],
}

/// Reads records from any pieces.
#[derive(Clone, Debug, Default)]
pub struct RecordReader {
    state: State,
    head: [u8; HEAD_BYTES],
    /// Bytes of the head while it arrives, then of the content, then of the padding.
    left: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// At the first byte of a record.
    #[default]
    Start,
    Head,
    /// The head is complete, and the record has not been shown.
    Begun,
    Content,
    Padding,
}

impl RecordReader {
    /// The record at the front of `input`, with as much of its content as is there. Head and
    /// padding are passed over; the content stays, until [`take`](RecordReader::take) says that it
    /// was used. A record without content is shown once. `None` when more bytes are needed.
    pub fn next<'i>(&mut self, input: &mut &'i [u8]) -> Result<Option<Fragment<'i>>, Garbage> {
        loop {
            match self.state {
                State::Start if input.is_empty() => return Ok(None),
                State::Start => self.enter(State::Head, HEAD_BYTES),
                State::Head => {
                    let have = HEAD_BYTES - self.left;
                    let taken = self.skip(input);
                    self.head[have..have + taken.len()].copy_from_slice(taken);
                    if self.head[0] != 1 {
                        return Err(Garbage::Version {
                            version: self.head[0],
                        });
                    }
                    if self.left > 0 {
                        return Ok(None);
                    }
                    self.enter(State::Begun, usize::from(self.record_bytes()));
                }
                State::Begun if self.left == 0 => {
                    self.enter(State::Padding, self.padding_bytes());
                    return Ok(Some(self.fragment(&[])));
                }
                State::Begun | State::Content if input.is_empty() => return Ok(None),
                State::Begun | State::Content => {
                    self.state = State::Content;
                    let content = &input[..input.len().min(self.left)];
                    return Ok(Some(self.fragment(content)));
                }
                State::Padding => {
                    self.skip(input);
                    if self.left > 0 {
                        return Ok(None);
                    }
                    self.state = State::Start;
                }
            }
        }
    }

    /// So many bytes of the content shown last have been used.
    pub fn take(&mut self, input: &mut &[u8], bytes: usize) {
        debug_assert!(self.state == State::Content && bytes <= self.left.min(input.len()));
        let bytes = bytes.min(self.left).min(input.len());
        *input = &input[bytes..];
        self.left -= bytes;
        if self.left == 0 {
            self.enter(State::Padding, self.padding_bytes());
        }
    }

    /// Whether the stream stands between two records, padding passed over if it is there.
    pub fn is_between(&mut self, input: &mut &[u8]) -> bool {
        if self.state == State::Padding {
            self.skip(input);
            if self.left == 0 {
                self.state = State::Start;
            }
        }
        self.state == State::Start
    }

    fn enter(&mut self, state: State, left: usize) {
        (self.state, self.left) = (state, left);
    }

    /// Passes over what is left of the present part, as far as it is there.
    fn skip<'i>(&mut self, input: &mut &'i [u8]) -> &'i [u8] {
        let (taken, rest) = input.split_at(input.len().min(self.left));
        *input = rest;
        self.left -= taken.len();
        taken
    }

    fn fragment<'i>(&self, content: &'i [u8]) -> Fragment<'i> {
        Fragment {
            kind: Kind(self.head[1]),
            id: u16::from_be_bytes([self.head[2], self.head[3]]),
            record_bytes: self.record_bytes(),
            content,
        }
    }

    fn record_bytes(&self) -> u16 {
        u16::from_be_bytes([self.head[4], self.head[5]])
    }

    fn padding_bytes(&self) -> usize {
        usize::from(self.head[6])
    }
}
