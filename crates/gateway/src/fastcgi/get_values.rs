//! FCGI_GET_VALUES: asks an application for its capabilities, and name-value pairs in general.
//!
//! An application need not support it; many answer with UNKNOWN_TYPE, some with an empty list. Both
//! mean that nothing is known, which is not an error.
//!
//! Source: FastCGI Specification, sections 3.4, 4.1, 4.2.

use crate::cgi::Variables;
use crate::fastcgi::record::{Fragment, InvalidRecord, RecordKind, RecordReader, write_record};

/// Appends a name-value pair: lengths below 128 take one byte, others four.
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

/// The most bytes that [`write_pairs`] appends.
pub(super) fn pairs_bytes_max(variables: &Variables) -> usize {
    variables.bytes() + 8 * variables.len()
}

pub(super) fn write_pairs(out: &mut Vec<u8>, variables: &Variables) {
    for (name, value) in variables.iter() {
        write_pair(out, name, value);
    }
}

/// Parses the first pair of `bytes` and advances it.
pub(super) fn read_pair<'b>(bytes: &mut &'b [u8]) -> Result<(&'b [u8], &'b [u8]), InvalidRecord> {
    let name_bytes = read_length(bytes)?;
    let value_bytes = read_length(bytes)?;
    let (name, rest) = bytes
        .split_at_checked(name_bytes)
        .ok_or(InvalidRecord::Pair)?;
    let (value, rest) = rest
        .split_at_checked(value_bytes)
        .ok_or(InvalidRecord::Pair)?;
    *bytes = rest;
    Ok((name, value))
}

fn read_length(bytes: &mut &[u8]) -> Result<usize, InvalidRecord> {
    let (length, rest) = match **bytes {
        [short @ 0..128, ref rest @ ..] => (usize::from(short), rest),
        [a, b, c, d, ref rest @ ..] => {
            let long = u32::from_be_bytes([a & 0x7f, b, c, d]);
            (long as usize, rest)
        }
        _ => return Err(InvalidRecord::Pair),
    };
    *bytes = rest;
    Ok(length)
}

/// Capabilities of an application; `None` where it reports nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// `FCGI_MAX_CONNS`: connections that the application accepts at the same time.
    pub connections_max: Option<u64>,
    /// `FCGI_MAX_REQS`: requests that the application accepts at the same time.
    pub requests_max: Option<u64>,
    /// `FCGI_MPXS_CONNS`: whether requests may share a connection.
    pub multiplexes: Option<bool>,
}

/// One query and its answer, on a connection without a request.
#[derive(Debug, Default)]
pub struct GetValues {
    records: RecordReader,
    answer: Vec<u8>,
}

impl GetValues {
    /// Longest answer in bytes: three known pairs take less than a tenth of it.
    const ANSWER_BYTES_MAX: u16 = 1024;

    /// Appends the query.
    pub fn write(out: &mut Vec<u8>) {
        let mut names = Vec::new();
        for name in ["FCGI_MAX_CONNS", "FCGI_MAX_REQS", "FCGI_MPXS_CONNS"] {
            write_pair(&mut names, name.as_bytes(), b"");
        }
        write_record(out, RecordKind::GET_VALUES, 0, &names);
    }

    /// The capabilities, once the answer is complete.
    ///
    /// # Errors
    /// When something other than an answer comes.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<Capabilities>, InvalidRecord> {
        while let Some(fragment) = self.records.next(input)? {
            self.check(&fragment)?;
            self.answer.extend_from_slice(fragment.content);
            if !fragment.content.is_empty() {
                self.records.take(input, fragment.content.len());
            }
            if self.answer.len() == usize::from(fragment.record_bytes) {
                return match fragment.kind {
                    RecordKind::UNKNOWN_TYPE => Ok(Some(Capabilities::default())),
                    _ => Capabilities::read(&self.answer).map(Some),
                };
            }
        }
        Ok(None)
    }

    fn check(&self, fragment: &Fragment<'_>) -> Result<(), InvalidRecord> {
        let (kind, bytes) = (fragment.kind.0, fragment.record_bytes);
        match fragment.kind {
            _ if fragment.id != 0 => Err(InvalidRecord::Request {
                found: fragment.id,
                expected: 0,
            }),
            RecordKind::GET_VALUES_RESULT if bytes <= Self::ANSWER_BYTES_MAX => Ok(()),
            RecordKind::UNKNOWN_TYPE if bytes == 8 => Ok(()),
            RecordKind::GET_VALUES_RESULT | RecordKind::UNKNOWN_TYPE => {
                Err(InvalidRecord::Length { kind, bytes })
            }
            _ => Err(InvalidRecord::Kind { kind }),
        }
    }
}

impl Capabilities {
    /// Skips unknown names and values that are not numbers.
    fn read(mut answer: &[u8]) -> Result<Capabilities, InvalidRecord> {
        let mut abilities = Capabilities::default();
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
    fn name_value_pairs_read_back_with_short_and_long_lengths() {
        for name_bytes in [0, 1, 127, 128, 70_000] {
            for value_bytes in [0, 127, 128, 300] {
                let (name, value) = (vec![b'n'; name_bytes], vec![b'v'; value_bytes]);
                let mut bytes = Vec::new();
                write_pair(&mut bytes, &name, &value);
                let mut rest = &bytes[..];
                assert_eq!(read_pair(&mut rest), Ok((&name[..], &value[..])));
                assert!(rest.is_empty());
                for cut in 0..bytes.len().min(200) {
                    assert_eq!(
                        read_pair(&mut &bytes[..cut]),
                        Err(InvalidRecord::Pair),
                        "{cut}"
                    );
                }
            }
        }
    }
}
