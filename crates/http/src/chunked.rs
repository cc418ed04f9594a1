//! Reading past a request body nobody wants.
//!
//! A static file has no use for a body, but the next request on the connection starts after it.
//! Both drains are fed what arrives, in any pieces, and say where the body ends. They keep no
//! bytes. A client that does want the content of a reply takes it as it passes
//! ([`ChunkedDrain::feed_body`]).
//!
//! Strict on purpose, since a body that two parties end at different places is how requests are
//! smuggled: sizes are hexadecimal digits only, lines end in CR LF, control bytes, bare CR and
//! folded trailer lines are refused. Everything is bounded: body, chunk extensions and trailer,
//! each in total, so that a stream of one-byte chunks with long extensions ends too.
//!
//! Source: RFC 9112 section 7.1.

use crate::response::TOKEN;

/// How much of a body is read before we give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainLimits {
    /// Body bytes, without the framing.
    pub body_bytes_max: u64,
    /// Bytes of all chunk extensions together.
    pub extension_bytes_max: u32,
    /// Bytes of the trailer section, line ends not counted.
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

/// How far a drain has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All bytes fed belong to the body; more are to come.
    More,
    /// The body ended after so many of the bytes just fed.
    Done(usize),
    /// Malformed: 400 and close.
    Bad,
    /// Beyond a limit: 413 and close.
    TooLarge,
}

/// Drains a body of known length.
#[derive(Clone, Copy, Debug)]
pub struct LengthDrain {
    left_bytes: u64,
}

impl LengthDrain {
    /// For a body of so many bytes; the caller has compared it with its limit.
    pub fn new(body_bytes: u64) -> LengthDrain {
        LengthDrain {
            left_bytes: body_bytes,
        }
    }

    /// Takes the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) -> Progress {
        let arrived = bytes.len() as u64;
        if arrived < self.left_bytes {
            self.left_bytes -= arrived;
            return Progress::More;
        }
        let consumed = self.left_bytes as usize;
        self.left_bytes = 0;
        Progress::Done(consumed)
    }
}

/// Where in the chunked framing the next byte stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first digit of a chunk size.
    SizeStart,
    /// After a digit.
    Size,
    /// After a space between size and `;`, which senders may not write and recipients must accept.
    SizeSpace,
    Extension,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Bad,
    TooLarge,
}

/// Drains a chunked body.
#[derive(Clone, Debug)]
pub struct ChunkedDrain {
    limits: DrainLimits,
    state: State,
    /// Size of the chunk while its digits arrive, then what is left of it.
    chunk_bytes: u64,
    size_digits: u8,
    body_bytes: u64,
    extension_bytes: u32,
    trailer_bytes: u32,
}

impl ChunkedDrain {
    /// At the start of a body.
    pub fn new(limits: DrainLimits) -> ChunkedDrain {
        ChunkedDrain {
            limits,
            state: State::SizeStart,
            chunk_bytes: 0,
            size_digits: 0,
            body_bytes: 0,
            extension_bytes: 0,
            trailer_bytes: 0,
        }
    }

    /// Takes the next bytes. After anything but [`Progress::More`] the drain is spent: it repeats a
    /// failure, and takes nothing more after the end.
    pub fn feed(&mut self, bytes: &[u8]) -> Progress {
        self.feed_body(bytes, |_| {})
    }

    /// Takes the next bytes, and shows those of the body, without the framing, piece by piece.
    pub fn feed_body(&mut self, bytes: &[u8], mut body: impl FnMut(&[u8])) -> Progress {
        let mut rest = bytes;
        while let Some(piece) = self.next_piece(&mut rest) {
            body(piece);
        }
        match self.state {
            State::Ended => Progress::Done(bytes.len() - rest.len()),
            State::Failed(Failure::Bad) => Progress::Bad,
            State::Failed(Failure::TooLarge) => Progress::TooLarge,
            _ => Progress::More,
        }
    }

    /// The next piece of the body in `bytes`, which moves past it: for a caller that passes the
    /// body on and may have to stop between two pieces. `None` when `bytes` is used up, or nothing
    /// more is taken; feeding nothing says which.
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
                _ => {
                    self.state = self.step(byte).unwrap_or_else(State::Failed);
                    *bytes = after;
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
            (State::Size | State::SizeSpace, b';') => self.extension(),
            (State::Size | State::SizeSpace, b' ' | b'\t') => {
                self.extension().map(|_| State::SizeSpace)
            }
            (State::Extension, b'\r') => Ok(State::SizeLf),
            (State::Extension, b'\t' | b' '..=b'~' | 0x80..) => self.extension(),
            (State::SizeLf, b'\n') => self.chunk_start(),
            (State::DataCr, b'\r') => Ok(State::DataLf),
            (State::DataLf, b'\n') => Ok(State::SizeStart),
            (State::TrailerStart, b'\r') => Ok(State::FinalLf),
            (State::TrailerStart | State::TrailerName, _) if TOKEN[usize::from(byte)] => {
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

    /// At most 16 digits: leading zeros must not be an endless stream either.
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

    fn extension(&mut self) -> Result<State, Failure> {
        self.extension_bytes += 1;
        match self.extension_bytes > self.limits.extension_bytes_max {
            true => Err(Failure::TooLarge),
            false => Ok(State::Extension),
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
