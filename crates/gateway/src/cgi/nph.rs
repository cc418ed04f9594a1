//! Programs that write their own HTTP response (non-parsed headers).
//!
//! The bytes of such a program go to the client unchanged, including its mistakes. Two rules are
//! enforced. The first line must be a status line, because the access log needs the status and the
//! output of an ordinary program would be garbage. And the connection closes afterwards, because
//! the end of such a response is not known otherwise.
//!
//! Source: RFC 3875 section 5.

use memchr::memchr;

use crate::invalid_response::{InvalidResponse, excerpt};

/// Most bytes of the first line.
const LINE_BYTES_MAX: usize = 1024;

/// Parses the first line and passes everything else on.
#[derive(Debug, Default)]
pub struct NphReader {
    line: Vec<u8>,
    is_raw: bool,
}

/// Output of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NphEvent<'i> {
    /// The status line.
    Begin {
        /// The status, for the access log.
        status: u16,
        /// The first line, to be sent unchanged.
        line: Vec<u8>,
    },
    /// Bytes to be sent unchanged.
    Raw(&'i [u8]),
}

impl NphReader {
    /// Returns the next event in `input` and advances it; `None` when it is used up.
    ///
    /// # Errors
    /// When the first line is not an HTTP/1 status line; the program's output must not be read
    /// further.
    pub fn feed<'i>(
        &mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<NphEvent<'i>>, InvalidResponse> {
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
        let status = status(&line).ok_or_else(|| InvalidResponse::NoStatusLine {
            text: excerpt(line.trim_ascii_end()),
        })?;
        self.is_raw = true;
        Ok(Some(NphEvent::Begin { status, line }))
    }

    /// The program has closed its output.
    ///
    /// # Errors
    /// When the first line is incomplete.
    pub fn finish(&self) -> Result<(), InvalidResponse> {
        match (self.is_raw, self.line.is_empty()) {
            (true, _) => Ok(()),
            (false, true) => Err(InvalidResponse::Empty),
            (false, false) => Err(InvalidResponse::HeadCut { lines: 0 }),
        }
    }
}

/// Parses `HTTP/1.x NNN` with a line ending. An interim status is accepted; the final one follows.
fn status(line: &[u8]) -> Option<u16> {
    let line = line.strip_suffix(b"\n")?;
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if crate::header_lines::control_byte(line).is_some() {
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
