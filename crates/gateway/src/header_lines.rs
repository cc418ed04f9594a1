//! Splits a response head into lines, from pieces of any size.
//!
//! Each byte is examined once, however the head is split: an upstream that sends single bytes costs
//! no more than one that sends its head at once. Only a line that came in parts is kept, within the
//! limit of the head.

use memchr::memchr;

use headway_http::response::is_field_name;

use crate::invalid_response::{InvalidResponse, excerpt};
use crate::response::HeadLimits;

/// Accepted line endings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineEnding {
    /// LF, with or without CR: programs print the newline of their platform (RFC 3875 section 6.2
    /// has both).
    Any,
    /// CR LF only: between HTTP servers, leniency is one more way to read a head differently.
    CrLf,
}

/// Splits a head into lines.
#[derive(Debug)]
pub(crate) struct HeaderLines {
    ends: LineEnding,
    bytes_max: usize,
    /// A line whose beginning was in an earlier piece.
    line: Vec<u8>,
    is_whole: bool,
    bytes: usize,
    number: u32,
}

impl HeaderLines {
    pub(crate) fn new(ends: LineEnding, limits: &HeadLimits) -> HeaderLines {
        HeaderLines {
            ends,
            bytes_max: limits.head_bytes_max,
            line: Vec::new(),
            is_whole: false,
            bytes: 0,
            number: 0,
        }
    }

    /// The next line without its ending, and its number from 1; `None` when the input is used up.
    pub(crate) fn next<'l, 'i: 'l>(
        &'l mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<(u32, &'l [u8])>, InvalidResponse> {
        if self.is_whole {
            self.line.clear();
            self.is_whole = false;
        }
        let visible = &input[..input.len().min(self.bytes_max - self.bytes)];
        let end = memchr(b'\n', visible);
        let taken = end.map_or(visible.len(), |at| at + 1);
        let (piece, rest) = input.split_at(taken);
        self.bytes += taken;
        *input = rest;
        if end.is_none() {
            self.line.extend_from_slice(piece);
            return match rest.is_empty() {
                true => Ok(None),
                false => Err(InvalidResponse::HeadTooLong {
                    bytes_max: self.bytes_max,
                }),
            };
        }
        self.number += 1;
        let line = match self.line.is_empty() {
            true => piece,
            false => {
                self.line.extend_from_slice(piece);
                self.is_whole = true;
                &self.line
            }
        };
        match (line, self.ends) {
            ([line @ .., b'\r', b'\n'], _) | ([line @ .., b'\n'], LineEnding::Any) => {
                Ok(Some((self.number, line)))
            }
            _ => Err(InvalidResponse::BareLf { line: self.number }),
        }
    }

    /// The error if the stream ends here.
    pub(crate) fn cut(&self) -> InvalidResponse {
        match self.bytes {
            0 => InvalidResponse::Empty,
            _ => InvalidResponse::HeadCut { lines: self.number },
        }
    }
}

/// What is accepted between a field's name and its colon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BeforeColon {
    /// The colon must follow the name at once.
    Nothing,
    /// White space, which a proxy must remove from a response (RFC 9112 section 5.1).
    WhiteSpace,
}

/// Parses the name and value of a field line.
pub(crate) fn field(
    number: u32,
    line: &[u8],
    before_colon: BeforeColon,
) -> Result<(&[u8], &[u8]), InvalidResponse> {
    if let Some(byte) = control_byte(line) {
        return Err(InvalidResponse::ControlByte { line: number, byte });
    }
    if let [b' ' | b'\t', ..] = line {
        return Err(InvalidResponse::Folded { line: number });
    }
    let no_field = || InvalidResponse::NotAField {
        line: number,
        text: excerpt(line),
    };
    let colon = memchr(b':', line).ok_or_else(no_field)?;
    let name = match before_colon {
        BeforeColon::Nothing => &line[..colon],
        BeforeColon::WhiteSpace => line[..colon].trim_ascii_end(),
    };
    match is_field_name(name) {
        true => Ok((name, line[colon + 1..].trim_ascii())),
        false => Err(no_field()),
    }
}

/// The first byte that is not allowed in a field value or reason phrase (RFC 9110 section 5.5).
pub(crate) fn control_byte(line: &[u8]) -> Option<u8> {
    let is_wrong = |byte: &u8| byte.is_ascii_control() && *byte != b'\t';
    // Without an early end many bytes are compared at once.
    let has_wrong = line.iter().fold(false, |any, byte| any | is_wrong(byte));
    has_wrong
        .then(|| line.iter().copied().find(is_wrong))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HeadLimits = HeadLimits {
        head_bytes_max: 12,
        fields_max: 2,
    };

    fn lines(ends: LineEnding, pieces: &[&[u8]]) -> Result<Vec<Vec<u8>>, InvalidResponse> {
        let mut lines = HeaderLines::new(ends, &LIMITS);
        let mut found = Vec::new();
        for piece in pieces {
            let mut input = *piece;
            while let Some((_, line)) = lines.next(&mut input)? {
                found.push(line.to_vec());
            }
        }
        Ok(found)
    }

    #[test]
    fn header_lines_are_identical_however_they_are_split() {
        let bytes = b"a\r\n\nb\r\r\ncd\n";
        let whole = lines(LineEnding::Any, &[bytes]).unwrap();
        assert_eq!(whole, [&b"a"[..], b"", b"b\r", b"cd"]);
        for cut in 0..bytes.len() {
            let (front, back) = bytes.split_at(cut);
            assert_eq!(
                lines(LineEnding::Any, &[front, back]).unwrap(),
                whole,
                "{cut}"
            );
        }
    }

    #[test]
    fn response_header_is_rejected_one_byte_above_its_limit() {
        assert_eq!(
            lines(LineEnding::Any, &[b"0123456789a\n"]).unwrap().len(),
            1
        );
        let too_long = Err(InvalidResponse::HeadTooLong { bytes_max: 12 });
        assert_eq!(lines(LineEnding::Any, &[b"0123456789ab\n"]), too_long);
        assert_eq!(lines(LineEnding::Any, &[b"0123456789a\n", b"b"]), too_long);
        assert_eq!(lines(LineEnding::Any, &[b"0123456789ab"]).unwrap().len(), 0);
    }

    #[test]
    fn bare_lf_is_rejected_when_cr_lf_is_required() {
        assert_eq!(
            lines(LineEnding::CrLf, &[b"a\r\nb\n"]),
            Err(InvalidResponse::BareLf { line: 2 })
        );
    }
}
