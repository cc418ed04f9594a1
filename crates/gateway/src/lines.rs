//! The lines of a reply head, out of pieces of any size.
//!
//! Each byte is looked at once, however the head is cut: a back end that sends single bytes costs
//! no more than one that sends its head at once. What is kept is one line, within the head's limit.

use memchr::memchr;

use headway_http::response::is_field_name;

use crate::refusal::{Refusal, excerpt};
use crate::reply::HeadLimits;

/// Which line ends are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineEnds {
    /// LF, with or without CR before it: programs print what their platform calls a new line
    /// (RFC 3875 section 6.2 has both).
    Any,
    /// CR LF: between HTTP servers every leniency is one more way to read a head differently.
    CrLf,
}

/// Cuts a head into lines.
#[derive(Debug)]
pub(crate) struct Lines {
    ends: LineEnds,
    bytes_max: usize,
    line: Vec<u8>,
    is_whole: bool,
    bytes: usize,
    number: u32,
}

impl Lines {
    pub(crate) fn new(ends: LineEnds, limits: &HeadLimits) -> Lines {
        Lines {
            ends,
            bytes_max: limits.head_bytes_max,
            line: Vec::new(),
            is_whole: false,
            bytes: 0,
            number: 0,
        }
    }

    /// The next line without its end, and its number from 1; `None` when the input is used up.
    pub(crate) fn next(&mut self, input: &mut &[u8]) -> Result<Option<(u32, &[u8])>, Refusal> {
        if self.is_whole {
            self.line.clear();
            self.is_whole = false;
        }
        let visible = &input[..input.len().min(self.bytes_max - self.bytes)];
        let end = memchr(b'\n', visible);
        let taken = end.map_or(visible.len(), |at| at + 1);
        self.line.extend_from_slice(&visible[..taken]);
        self.bytes += taken;
        *input = &input[taken..];
        match end {
            Some(_) => self.whole().map(Some),
            None if input.is_empty() => Ok(None),
            None => Err(Refusal::HeadTooLong {
                bytes_max: self.bytes_max,
            }),
        }
    }

    fn whole(&mut self) -> Result<(u32, &[u8]), Refusal> {
        self.is_whole = true;
        self.number += 1;
        match (self.line.as_slice(), self.ends) {
            ([line @ .., b'\r', b'\n'], _) | ([line @ .., b'\n'], LineEnds::Any) => {
                Ok((self.number, line))
            }
            _ => Err(Refusal::BareLf { line: self.number }),
        }
    }

    /// What it means that the stream ends here.
    pub(crate) fn cut(&self) -> Refusal {
        match self.bytes {
            0 => Refusal::Empty,
            _ => Refusal::HeadCut { lines: self.number },
        }
    }
}

/// What may stand between a field's name and its colon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BeforeColon {
    /// Nothing.
    Nothing,
    /// White space, which a proxy has to remove from a reply (RFC 9112 section 5.1).
    WhiteSpace,
}

/// Name and value of a field line.
pub(crate) fn field(
    number: u32,
    line: &[u8],
    before_colon: BeforeColon,
) -> Result<(&[u8], &[u8]), Refusal> {
    if let Some(byte) = control_byte(line) {
        return Err(Refusal::ControlByte { line: number, byte });
    }
    if let [b' ' | b'\t', ..] = line {
        return Err(Refusal::Folded { line: number });
    }
    let no_field = || Refusal::NotAField {
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

/// The first byte that no field value and no reason phrase may hold (RFC 9110 section 5.5).
pub(crate) fn control_byte(line: &[u8]) -> Option<u8> {
    line.iter()
        .copied()
        .find(|byte| byte.is_ascii_control() && *byte != b'\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HeadLimits = HeadLimits {
        head_bytes_max: 12,
        fields_max: 2,
    };

    fn lines(ends: LineEnds, pieces: &[&[u8]]) -> Result<Vec<Vec<u8>>, Refusal> {
        let mut lines = Lines::new(ends, &LIMITS);
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
    fn lines_are_the_same_when_cut_anywhere() {
        let bytes = b"a\r\n\nb\r\r\ncd\n";
        let whole = lines(LineEnds::Any, &[bytes]).unwrap();
        assert_eq!(whole, [&b"a"[..], b"", b"b\r", b"cd"]);
        for cut in 0..bytes.len() {
            let (front, back) = bytes.split_at(cut);
            assert_eq!(
                lines(LineEnds::Any, &[front, back]).unwrap(),
                whole,
                "{cut}"
            );
        }
    }

    #[test]
    fn head_is_refused_when_it_has_one_byte_too_many() {
        assert_eq!(lines(LineEnds::Any, &[b"0123456789a\n"]).unwrap().len(), 1);
        let too_long = Err(Refusal::HeadTooLong { bytes_max: 12 });
        assert_eq!(lines(LineEnds::Any, &[b"0123456789ab\n"]), too_long);
        assert_eq!(lines(LineEnds::Any, &[b"0123456789a\n", b"b"]), too_long);
        assert_eq!(lines(LineEnds::Any, &[b"0123456789ab"]).unwrap().len(), 0);
    }

    #[test]
    fn bare_lf_is_refused_when_cr_lf_is_required() {
        assert_eq!(
            lines(LineEnds::CrLf, &[b"a\r\nb\n"]),
            Err(Refusal::BareLf { line: 2 })
        );
    }
}
