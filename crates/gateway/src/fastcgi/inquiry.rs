//! Asking an application what it can do (GET_VALUES), and the pairs such records consist of.
//!
//! An application need not know the question; many answer with UNKNOWN_TYPE, some with an empty
//! list. Both mean that nothing is known, which is not an error.
//!
//! Source: FastCGI Specification, sections 3.4, 4.1, 4.2.

use crate::cgi::Variables;
use crate::fastcgi::record::{Fragment, Garbage, Kind, RecordReader, write_record};

/// Appends a name with its value: lengths below 128 in one byte, others in four.
pub(super) fn write_pair(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for bytes in [name.len(), value.len()] {
        match bytes {
            0..128 => out.push(bytes as u8),
            _ => out.extend_from_slice(&(bytes as u32 | 1 << 31).to_be_bytes()),
        }
    }
    out.extend_from_slice(name);
    out.extend_from_slice(value);
}

pub(super) fn write_pairs(out: &mut Vec<u8>, variables: &Variables) {
    for (name, value) in variables.iter() {
        write_pair(out, name, value);
    }
}

/// The first pair of `bytes`, which moves past it.
pub(super) fn read_pair<'b>(bytes: &mut &'b [u8]) -> Result<(&'b [u8], &'b [u8]), Garbage> {
    let name_bytes = read_length(bytes)?;
    let value_bytes = read_length(bytes)?;
    let (name, rest) = bytes.split_at_checked(name_bytes).ok_or(Garbage::Pair)?;
    let (value, rest) = rest.split_at_checked(value_bytes).ok_or(Garbage::Pair)?;
    *bytes = rest;
    Ok((name, value))
}

fn read_length(bytes: &mut &[u8]) -> Result<usize, Garbage> {
    let (length, rest) = match **bytes {
        [short @ 0..128, ref rest @ ..] => (usize::from(short), rest),
        [a, b, c, d, ref rest @ ..] => {
            let long = u32::from_be_bytes([a & 0x7f, b, c, d]);
            (long as usize, rest)
        }
        _ => return Err(Garbage::Pair),
    };
    *bytes = rest;
    Ok(length)
}

/// What an application says of itself; `None` where it says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// `FCGI_MAX_CONNS`: connections it takes at the same time.
    pub connections_max: Option<u64>,
    /// `FCGI_MAX_REQS`: requests it takes at the same time.
    pub requests_max: Option<u64>,
    /// `FCGI_MPXS_CONNS`: whether requests may share a connection.
    pub multiplexes: Option<bool>,
}

/// One question and its answer, on a connection without a request.
#[derive(Debug, Default)]
pub struct Inquiry {
    records: RecordReader,
    answer: Vec<u8>,
}

impl Inquiry {
    /// Longest answer in bytes: three known pairs take less than a tenth of it.
    const ANSWER_BYTES_MAX: u16 = 1024;

    /// Appends the question.
    pub fn write(out: &mut Vec<u8>) {
        let mut names = Vec::new();
        for name in ["FCGI_MAX_CONNS", "FCGI_MAX_REQS", "FCGI_MPXS_CONNS"] {
            write_pair(&mut names, name.as_bytes(), b"");
        }
        write_record(out, Kind::GET_VALUES, 0, &names);
    }

    /// The answer, once it is complete.
    ///
    /// # Errors
    /// When something else comes than an answer.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<Abilities>, Garbage> {
        while let Some(fragment) = self.records.next(input)? {
            self.check(&fragment)?;
            self.answer.extend_from_slice(fragment.content);
            if !fragment.content.is_empty() {
                self.records.take(input, fragment.content.len());
            }
            if self.answer.len() == usize::from(fragment.record_bytes) {
                return match fragment.kind {
                    Kind::UNKNOWN_TYPE => Ok(Some(Abilities::default())),
                    _ => Abilities::read(&self.answer).map(Some),
                };
            }
        }
        Ok(None)
    }

    fn check(&self, fragment: &Fragment<'_>) -> Result<(), Garbage> {
        let (kind, bytes) = (fragment.kind.0, fragment.record_bytes);
        match fragment.kind {
            _ if fragment.id != 0 => Err(Garbage::Request {
                found: fragment.id,
                expected: 0,
            }),
            Kind::GET_VALUES_RESULT if bytes <= Self::ANSWER_BYTES_MAX => Ok(()),
            Kind::UNKNOWN_TYPE if bytes == 8 => Ok(()),
            Kind::GET_VALUES_RESULT | Kind::UNKNOWN_TYPE => Err(Garbage::Length { kind, bytes }),
            _ => Err(Garbage::Kind { kind }),
        }
    }
}

impl Abilities {
    /// Unknown names are passed over, as are values that are no numbers.
    fn read(mut answer: &[u8]) -> Result<Abilities, Garbage> {
        let mut abilities = Abilities::default();
        while !answer.is_empty() {
            let (name, value) = read_pair(&mut answer)?;
            let number = headway_http::decimal(value);
            match name {
                b"FCGI_MAX_CONNS" => abilities.connections_max = number,
                b"FCGI_MAX_REQS" => abilities.requests_max = number,
                b"FCGI_MPXS_CONNS" => abilities.multiplexes = number.map(|number| number != 0),
                _ => {}
            }
        }
        Ok(abilities)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_read_back_when_lengths_need_one_byte_or_four() {
        for name_bytes in [0, 1, 127, 128, 70_000] {
            for value_bytes in [0, 127, 128, 300] {
                let (name, value) = (vec![b'n'; name_bytes], vec![b'v'; value_bytes]);
                let mut bytes = Vec::new();
                write_pair(&mut bytes, &name, &value);
                let mut rest = &bytes[..];
                assert_eq!(read_pair(&mut rest), Ok((&name[..], &value[..])));
                assert!(rest.is_empty());
                for cut in 0..bytes.len().min(200) {
                    assert_eq!(read_pair(&mut &bytes[..cut]), Err(Garbage::Pair), "{cut}");
                }
            }
        }
    }
}
