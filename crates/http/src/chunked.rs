//! Skips message bodies, with Content-Length or chunked.
//!
//! A static file does not need a request body, but the next request on the connection starts after
//! it. Both drains accept input in any pieces and say where the body ends. They buffer nothing, except
//! trailer fields if the caller wants those. A caller that wants the content receives it piece by piece ([`ChunkedDrain::feed_body`]).
//!
//! Parsing is strict, because request smuggling works by making two parties end a body at different
//! places: sizes are hexadecimal digits only, lines end in CR LF, and control bytes, bare CR and
//! folded trailer lines are rejected. Body, chunk extensions and trailer are each limited in total,
//! so that a stream of one-byte chunks with long extensions ends too.
//!
//! ```
//! use headway_http::chunked::{ChunkedDrain, DrainLimits, DrainProgress};
//! let mut drain = ChunkedDrain::new(DrainLimits::default());
//! let mut content = Vec::new();
//! let input = b"3\r\nabc\r\n0\r\n\r\nGET /next";
//! let progress = drain.feed_body(input, |piece| content.extend_from_slice(piece));
//! assert_eq!((progress, &content[..]), (DrainProgress::Done(13), &b"abc"[..]));
//! ```
//!
//! Source: RFC 9112 section 7.1.

use crate::response::IS_TOKEN;

/// Size limits of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainLimits {
    /// Content bytes, without the framing.
    pub body_bytes_max: u64,
    /// Total bytes of all chunk extensions.
    pub extension_bytes_max: u32,
    /// Bytes of the trailer section, without line ends.
    pub trailer_bytes_max: u32,
}

impl Default for DrainLimits {
    fn default() -> Self {
        DrainLimits {
            body_bytes_max: 1024 * 1024,
            extension_bytes_max: 4096,
            trailer_bytes_max: 4096,
        }
    }
}

/// The state of a body after some input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainProgress {
    /// All input so far belongs to the body; more is expected.
    More,
    /// The body ended after this many of the bytes just fed.
    Done(usize),
    /// Malformed: 400 and close.
    Bad,
    /// Beyond a limit: 413 and close.
    TooLarge,
}

/// Skips a body of known length.
///
/// ```
/// use headway_http::chunked::{DrainProgress, LengthDrain};
/// let mut drain = LengthDrain::new(5);
/// assert_eq!(drain.feed(b"abc"), DrainProgress::More);
/// assert_eq!(drain.feed(b"deGET"), DrainProgress::Done(2));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LengthDrain {
    left_bytes: u64,
}

impl LengthDrain {
    /// A drain for a body of this length; the caller has compared it with its limit.
    pub fn new(body_bytes: u64) -> LengthDrain {
        LengthDrain {
            left_bytes: body_bytes,
        }
    }

    /// How much is still to come.
    pub fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    /// Consumes the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) -> DrainProgress {
        let arrived = bytes.len() as u64;
        if arrived < self.left_bytes {
            self.left_bytes -= arrived;
            return DrainProgress::More;
        }
        let consumed = self.left_bytes as usize;
        self.left_bytes = 0;
        DrainProgress::Done(consumed)
    }
}

/// The position of the next byte in the chunked framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first digit of a chunk size.
    SizeStart,
    /// After a digit.
    Size,
    /// After white space before a `;`, which senders must not write and recipients must accept.
    BeforeSemicolon,
    /// After `;`, before the name.
    ExtensionStart,
    ExtensionName,
    /// After white space behind a name: `=` or `;`.
    ExtensionNameSpace,
    /// After `=`.
    ExtensionValueStart,
    ExtensionValue,
    ExtensionQuoted,
    /// After a backslash inside quotes.
    ExtensionEscape,
    /// After the closing quote.
    ExtensionQuotedEnd,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    FinalLf,
    Ended,
    Failed(Failure),
}

impl State {
    /// Whether a line of the trailer section has begun and not ended.
    fn is_in_trailer(self) -> bool {
        matches!(
            self,
            State::TrailerName | State::TrailerValue | State::TrailerLf
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Bad,
    TooLarge,
}

/// Skips a chunked body.
#[derive(Clone, Debug)]
pub struct ChunkedDrain {
    limits: DrainLimits,
    state: State,
    /// The size of the chunk while its digits arrive, then what is left of it.
    chunk_bytes: u64,
    size_digits: u8,
    body_bytes: u64,
    extension_bytes: u32,
    trailer_bytes: u32,
    /// The field lines of the trailer section, if they are kept.
    trailers: Option<Vec<u8>>,
}

impl ChunkedDrain {
    /// A drain at the start of a body.
    pub fn new(limits: DrainLimits) -> ChunkedDrain {
        ChunkedDrain {
            limits,
            state: State::SizeStart,
            chunk_bytes: 0,
            size_digits: 0,
            body_bytes: 0,
            extension_bytes: 0,
            trailer_bytes: 0,
            trailers: None,
        }
    }

    /// Keeps the trailer section, within its limit.
    pub fn keeping_trailers(mut self) -> ChunkedDrain {
        self.trailers = Some(Vec::new());
        self
    }

    /// The field lines of the trailer section as far as it has come, each with its CR LF.
    ///
    /// ```
    /// use headway_http::chunked::{ChunkedDrain, DrainLimits};
    /// let mut drain = ChunkedDrain::new(DrainLimits::default()).keeping_trailers();
    /// drain.feed(b"0\r\nA: b\r\nC: d\r\n\r\n");
    /// assert_eq!(drain.trailers(), b"A: b\r\nC: d\r\n");
    /// ```
    pub fn trailers(&self) -> &[u8] {
        self.trailers.as_deref().unwrap_or_default()
    }

    /// Consumes the next bytes. After a result other than [`DrainProgress::More`] the drain is
    /// finished: it repeats a failure, and consumes nothing after the end.
    pub fn feed(&mut self, bytes: &[u8]) -> DrainProgress {
        self.feed_body(bytes, |_| {})
    }

    /// Consumes the next bytes and passes each piece of content, without the framing, to `body`.
    pub fn feed_body(&mut self, bytes: &[u8], mut body: impl FnMut(&[u8])) -> DrainProgress {
        let mut rest = bytes;
        while let Some(piece) = self.next_piece(&mut rest) {
            body(piece);
        }
        match self.state {
            State::Ended => DrainProgress::Done(bytes.len() - rest.len()),
            State::Failed(Failure::Bad) => DrainProgress::Bad,
            State::Failed(Failure::TooLarge) => DrainProgress::TooLarge,
            _ => DrainProgress::More,
        }
    }

    /// The next piece of content in `bytes`, which advances past it: for a caller that may have to
    /// stop between two pieces. Returns `None` when `bytes` is used up or the body has ended;
    /// `feed(&[])` tells which.
    pub fn next_piece<'b>(&mut self, bytes: &mut &'b [u8]) -> Option<&'b [u8]> {
        while let Some((&byte, after)) = bytes.split_first() {
            match self.state {
                State::Data => {
                    let take = self.chunk_bytes.min(bytes.len() as u64);
                    let (piece, rest) = bytes.split_at(take as usize);
                    self.chunk_bytes -= take;
                    if self.chunk_bytes == 0 {
                        self.state = State::DataCr;
                    }
                    *bytes = rest;
                    return Some(piece);
                }
                State::Ended | State::Failed(_) => return None,
                before => {
                    self.state = self.step(byte).unwrap_or_else(State::Failed);
                    *bytes = after;
                    let is_trailer = self.state == State::TrailerName || before.is_in_trailer();
                    if let Some(trailers) = self.trailers.as_mut().filter(|_| is_trailer) {
                        trailers.push(byte);
                    }
                }
            }
        }
        None
    }

    fn step(&mut self, byte: u8) -> Result<State, Failure> {
        match (self.state, byte) {
            (State::SizeStart | State::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                self.size_digit(byte)
            }
            (State::Size, b'\r') => Ok(State::SizeLf),
            (State::Size | State::BeforeSemicolon, _) => self.extension_ends(byte),
            (
                State::ExtensionStart
                | State::ExtensionName
                | State::ExtensionNameSpace
                | State::ExtensionValueStart
                | State::ExtensionValue
                | State::ExtensionQuoted
                | State::ExtensionEscape
                | State::ExtensionQuotedEnd,
                _,
            ) => self.extension(byte),
            (State::SizeLf, b'\n') => self.chunk_start(),
            (State::DataCr, b'\r') => Ok(State::DataLf),
            (State::DataLf, b'\n') => Ok(State::SizeStart),
            (State::TrailerStart, b'\r') => Ok(State::FinalLf),
            (State::TrailerStart | State::TrailerName, _) if IS_TOKEN[usize::from(byte)] => {
                self.trailer(State::TrailerName)
            }
            (State::TrailerName, b':') => self.trailer(State::TrailerValue),
            (State::TrailerValue, b'\r') => Ok(State::TrailerLf),
            (State::TrailerValue, b'\t' | b' '..=b'~' | 0x80..) => {
                self.trailer(State::TrailerValue)
            }
            (State::TrailerLf, b'\n') => Ok(State::TrailerStart),
            (State::FinalLf, b'\n') => Ok(State::Ended),
            _ => Err(Failure::Bad),
        }
    }

    /// Adds a digit. At most 16 digits, so that leading zeros cannot go on forever.
    fn size_digit(&mut self, byte: u8) -> Result<State, Failure> {
        if self.size_digits == 16 {
            return Err(Failure::Bad);
        }
        let digit = char::from(byte).to_digit(16).ok_or(Failure::Bad)?;
        self.size_digits += 1;
        self.chunk_bytes = self.chunk_bytes << 4 | u64::from(digit);
        Ok(State::Size)
    }

    /// The size line is complete.
    fn chunk_start(&mut self) -> Result<State, Failure> {
        self.size_digits = 0;
        if self.chunk_bytes == 0 {
            return Ok(State::TrailerStart);
        }
        self.body_bytes = self.body_bytes.saturating_add(self.chunk_bytes);
        match self.body_bytes > self.limits.body_bytes_max {
            true => Err(Failure::TooLarge),
            false => Ok(State::Data),
        }
    }

    /// Reads on in an extension: a name, and perhaps a value (RFC 9112 section 7.1.1). No recipient needs
    /// them, but two parties that disagree about what an invalid one is may disagree about where its
    /// line ends.
    fn extension(&mut self, byte: u8) -> Result<State, Failure> {
        let is_token = IS_TOKEN[usize::from(byte)];
        let next = match (self.state, byte) {
            (State::ExtensionStart, b' ' | b'\t') => State::ExtensionStart,
            (State::ExtensionStart | State::ExtensionName, _) if is_token => State::ExtensionName,
            (State::ExtensionName | State::ExtensionNameSpace, b' ' | b'\t') => {
                State::ExtensionNameSpace
            }
            (State::ExtensionName | State::ExtensionNameSpace, b'=') => State::ExtensionValueStart,
            (State::ExtensionNameSpace, b';') => State::ExtensionStart,
            (State::ExtensionValueStart, b' ' | b'\t') => State::ExtensionValueStart,
            (State::ExtensionValueStart, b'"') => State::ExtensionQuoted,
            (State::ExtensionValueStart | State::ExtensionValue, _) if is_token => {
                State::ExtensionValue
            }
            (State::ExtensionQuoted, b'"') => State::ExtensionQuotedEnd,
            (State::ExtensionQuoted, b'\\') => State::ExtensionEscape,
            (State::ExtensionQuoted | State::ExtensionEscape, b'\t' | b' '..=b'~' | 0x80..) => {
                State::ExtensionQuoted
            }
            (State::ExtensionName | State::ExtensionValue | State::ExtensionQuotedEnd, _) => {
                return self.extension_ends(byte);
            }
            _ => return Err(Failure::Bad),
        };
        self.count_extension(next)
    }

    /// After a size or a whole extension: another extension, or the end of the line.
    fn extension_ends(&mut self, byte: u8) -> Result<State, Failure> {
        match (self.state, byte) {
            (State::BeforeSemicolon, b'\r') => Err(Failure::Bad),
            (_, b'\r') => Ok(State::SizeLf),
            (_, b';') => self.count_extension(State::ExtensionStart),
            (_, b' ' | b'\t') => self.count_extension(State::BeforeSemicolon),
            _ => Err(Failure::Bad),
        }
    }

    fn count_extension(&mut self, next: State) -> Result<State, Failure> {
        self.extension_bytes += 1;
        match self.extension_bytes > self.limits.extension_bytes_max {
            true => Err(Failure::TooLarge),
            false => Ok(next),
        }
    }

    fn trailer(&mut self, next: State) -> Result<State, Failure> {
        self.trailer_bytes += 1;
        match self.trailer_bytes > self.limits.trailer_bytes_max {
            true => Err(Failure::TooLarge),
            false => Ok(next),
        }
    }
}
