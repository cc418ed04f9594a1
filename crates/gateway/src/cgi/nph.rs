//! Programs that write their own HTTP reply (non-parsed headers).
//!
//! Such a program's bytes go to the client as they are, which is its purpose; so does every mistake
//! it makes. Two things are held to all the same. The first line must be a status line, since
//! without one nothing could be logged and a program that is no `nph-` program at all would be sent
//! out as garbage. And the connection closes afterwards: where such a reply ends is not known.
//!
//! Source: RFC 3875 section 5.

use memchr::memchr;

use crate::refusal::{Refusal, excerpt};

/// Longest first line in bytes.
const LINE_BYTES_MAX: usize = 1024;

/// Reads the first line, lets everything else pass.
#[derive(Debug, Default)]
pub struct NphReader {
    line: Vec<u8>,
    is_raw: bool,
}

/// What a program wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NphEvent<'i> {
    /// It has begun well.
    Begin {
        /// The status, for the log.
        status: u16,
        /// The first line as it was written, to be sent as it is.
        line: Vec<u8>,
    },
    /// To be sent as it is.
    Raw(&'i [u8]),
}

impl NphReader {
    /// What comes next in `input`, which moves on by as much; `None` when it is used up.
    ///
    /// # Errors
    /// When the first line is no status line of HTTP/1; the program is not to be listened to
    /// further.
    pub fn feed<'i>(&mut self, input: &mut &'i [u8]) -> Result<Option<NphEvent<'i>>, Refusal> {
        if self.is_raw {
            let raw = std::mem::take(input);
            return Ok((!raw.is_empty()).then_some(NphEvent::Raw(raw)));
        }
        let visible = &input[..input.len().min(LINE_BYTES_MAX - self.line.len())];
        let end = memchr(b'\n', visible).map(|at| at + 1);
        self.line
            .extend_from_slice(&visible[..end.unwrap_or(visible.len())]);
        *input = &input[end.unwrap_or(visible.len())..];
        if end.is_none() && self.line.len() < LINE_BYTES_MAX {
            return Ok(None);
        }
        let line = std::mem::take(&mut self.line);
        let status = status(&line).ok_or_else(|| Refusal::NoStatusLine {
            text: excerpt(line.trim_ascii_end()),
        })?;
        self.is_raw = true;
        Ok(Some(NphEvent::Begin { status, line }))
    }

    /// The program has closed its output.
    ///
    /// # Errors
    /// When it has not got past its first line.
    pub fn finish(&self) -> Result<(), Refusal> {
        match (self.is_raw, self.line.is_empty()) {
            (true, _) => Ok(()),
            (false, true) => Err(Refusal::Empty),
            (false, false) => Err(Refusal::HeadCut { lines: 0 }),
        }
    }
}

/// `HTTP/1.x NNN` with a line end. An interim status is let through; the final one follows.
fn status(line: &[u8]) -> Option<u16> {
    let line = line.strip_suffix(b"\n")?;
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if crate::lines::control_byte(line).is_some() {
        return None;
    }
    match line.strip_prefix(b"HTTP/1.")? {
        [b'0' | b'1', b' ', digits @ ..] => {
            let (digits, rest) = digits.split_at_checked(3)?;
            let is_ended = matches!(rest, [] | [b' ', ..]);
            let number = headway_http::decimal(digits).filter(|number| (100..600).contains(number));
            number.filter(|_| is_ended).map(|number| number as u16)
        }
        _ => None,
    }
}
