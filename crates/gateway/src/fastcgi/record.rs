//! Parses and writes FastCGI records: a header of eight bytes, the content, the padding.
//!
//! A record has at most 64 KiB and is never kept whole: its content is shown as it arrives.
//! Versions other than 1 are rejected; the codec decides which record types may come when.
//!
//! Source: FastCGI Specification, sections 3.3 and 8.

/// The type of a record, as on the wire. Other numbers may occur as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordKind(pub u8);

#[allow(missing_docs)] // The names are the specification's.
impl RecordKind {
    pub const BEGIN_REQUEST: RecordKind = RecordKind(1);
    pub const ABORT_REQUEST: RecordKind = RecordKind(2);
    pub const END_REQUEST: RecordKind = RecordKind(3);
    pub const PARAMS: RecordKind = RecordKind(4);
    pub const STDIN: RecordKind = RecordKind(5);
    pub const STDOUT: RecordKind = RecordKind(6);
    pub const STDERR: RecordKind = RecordKind(7);
    pub const DATA: RecordKind = RecordKind(8);
    pub const GET_VALUES: RecordKind = RecordKind(9);
    pub const GET_VALUES_RESULT: RecordKind = RecordKind(10);
    pub const UNKNOWN_TYPE: RecordKind = RecordKind(11);
}

/// Why bytes are not valid FastCGI, or not an answer to this request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRecord {
    /// Another version, or a different protocol.
    #[error("a record of version {version} instead of 1 (is this a FastCGI upstream?)")]
    Version {
        /// The first byte of the record.
        version: u8,
    },
    /// A record with a request ID that is not in use on this connection.
    #[error("a record for request {found} instead of {expected}")]
    Request {
        /// The ID on the wire.
        found: u16,
        /// The ID that was sent.
        expected: u16,
    },
    /// A record type that an application does not send, or not now.
    #[error("an unexpected record of type {kind}")]
    Kind {
        /// The type on the wire.
        kind: u8,
    },
    /// An END_REQUEST, or a management record, of the wrong length.
    #[error("a record of type {kind} with {bytes} bytes")]
    Length {
        /// The type on the wire.
        kind: u8,
        /// The announced length.
        bytes: u16,
    },
    /// An END_REQUEST with an unknown status.
    #[error("the request ended with the unknown protocol status {status}")]
    ProtocolStatus {
        /// The status on the wire.
        status: u8,
    },
    /// A name or value that is longer than its record.
    #[error("a name or value exceeds its record")]
    Pair,
    /// More variables than any request has.
    #[error("a request with more than 256 KiB of variables")]
    Variables,
}

/// Length of a record header.
pub(crate) const HEAD_BYTES: usize = 8;

/// Most content bytes written into one record: a multiple of eight below 64 KiB, so that long
/// streams need no padding.
const CONTENT_BYTES_MAX: usize = 0xfff8;

/// Appends one record, padded to a multiple of eight bytes as the specification recommends.
///
/// Content beyond 65,528 bytes is left out; use [`write_stream`] for more.
pub fn write_record(out: &mut Vec<u8>, kind: RecordKind, id: u16, content: &[u8]) {
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

/// Appends a part of a stream as records. Empty input writes nothing, because an empty record ends
/// the stream.
pub fn write_stream(out: &mut Vec<u8>, kind: RecordKind, id: u16, bytes: &[u8]) {
    for content in bytes.chunks(CONTENT_BYTES_MAX) {
        write_record(out, kind, id, content);
    }
}

/// The part of a record that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment<'i> {
    /// The record's type.
    pub kind: RecordKind,
    /// The request ID; 0 for management records.
    pub id: u16,
    /// Length of the record's whole content.
    pub record_bytes: u16,
    /// The next bytes of the content, at the front of the input.
    pub content: &'i [u8],
}

/// Parses records from pieces of any size.
#[derive(Clone, Debug, Default)]
pub struct RecordReader {
    state: RecordState,
    head: [u8; HEAD_BYTES],
    /// Remaining bytes of the header, then of the content, then of the padding.
    left: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RecordState {
    /// At the first byte of a record.
    #[default]
    Start,
    Head,
    /// The header is complete, and the record has not been shown.
    Begun,
    Content,
    Padding,
}

impl RecordReader {
    /// The record at the front of `input`, with as much of its content as has arrived. Header and
    /// padding are skipped; the content stays until [`take`](RecordReader::take) reports it as
    /// used. A record without content is shown once. `None` if more bytes are needed.
    pub fn next<'i>(
        &mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Fragment<'i>>, InvalidRecord> {
        loop {
            match self.state {
                RecordState::Start if input.is_empty() => return Ok(None),
                RecordState::Start => self.enter(RecordState::Head, HEAD_BYTES),
                RecordState::Head => {
                    let have = HEAD_BYTES - self.left;
                    let taken = self.skip(input);
                    self.head[have..have + taken.len()].copy_from_slice(taken);
                    if self.head[0] != 1 {
                        return Err(InvalidRecord::Version {
                            version: self.head[0],
                        });
                    }
                    if self.left > 0 {
                        return Ok(None);
                    }
                    self.enter(RecordState::Begun, usize::from(self.record_bytes()));
                }
                RecordState::Begun if self.left == 0 => {
                    self.enter(RecordState::Padding, self.padding_bytes());
                    return Ok(Some(self.fragment(&[])));
                }
                RecordState::Begun | RecordState::Content if input.is_empty() => return Ok(None),
                RecordState::Begun | RecordState::Content => {
                    self.state = RecordState::Content;
                    let content = &input[..input.len().min(self.left)];
                    return Ok(Some(self.fragment(content)));
                }
                RecordState::Padding => {
                    self.skip(input);
                    if self.left > 0 {
                        return Ok(None);
                    }
                    self.state = RecordState::Start;
                }
            }
        }
    }

    /// Reports this many bytes of the last shown content as used.
    pub fn take(&mut self, input: &mut &[u8], bytes: usize) {
        debug_assert!(self.state == RecordState::Content && bytes <= self.left.min(input.len()));
        let bytes = bytes.min(self.left).min(input.len());
        *input = &input[bytes..];
        self.left -= bytes;
        if self.left == 0 {
            self.enter(RecordState::Padding, self.padding_bytes());
        }
    }

    /// Whether the stream is between two records, after skipping padding that has arrived.
    pub fn is_between(&mut self, input: &mut &[u8]) -> bool {
        if self.state == RecordState::Padding {
            self.skip(input);
            if self.left == 0 {
                self.state = RecordState::Start;
            }
        }
        self.state == RecordState::Start
    }

    fn enter(&mut self, state: RecordState, left: usize) {
        (self.state, self.left) = (state, left);
    }

    /// Skips the rest of the current part, as far as it has arrived.
    fn skip<'i>(&mut self, input: &mut &'i [u8]) -> &'i [u8] {
        let (taken, rest) = input.split_at(input.len().min(self.left));
        *input = rest;
        self.left -= taken.len();
        taken
    }

    fn fragment<'i>(&self, content: &'i [u8]) -> Fragment<'i> {
        Fragment {
            kind: RecordKind(self.head[1]),
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
