//! Decodes the header blocks of a client.

use super::static_table::ENTRIES;
use super::{TABLE_BYTES_MAX, Table, huffman};

/// The most bytes of an integer after its first one. No valid index or length needs more.
const NUMBER_BYTES_MAX: u32 = 4;

/// Why a block cannot be decoded any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is not a valid header block, so the state of the dynamic table is lost (RFC 7541, 4.2 and 5).
    Invalid,
    /// The caller has stopped the decoding.
    Refused,
}

/// A decoder with its dynamic table.
#[derive(Debug)]
pub struct Decoder {
    pub(super) table: Table,
    name: Vec<u8>,
    value: Vec<u8>,
}

/// A decoder before the first block.
impl Default for Decoder {
    fn default() -> Decoder {
        Decoder {
            table: Table::new(),
            name: Vec::new(),
            value: Vec::new(),
        }
    }
}

impl Decoder {
    /// Decodes a block and calls `take` with the name and value of each header. `take` returns whether to continue.
    pub fn decode(
        &mut self,
        mut block: &[u8],
        mut take: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Fault> {
        let mut is_begun = false;
        while let Some(first) = block.first().copied() {
            let goes_on = match first {
                0x80.. => {
                    let index = number(&mut block, 7)?;
                    let (name, value) = self.entry(index)?;
                    take(name, value)
                }
                0x20..=0x3f => {
                    // A size update is allowed only at the beginning of a block (RFC 7541, 4.2).
                    let bytes_max = number(&mut block, 5)?;
                    if is_begun || bytes_max > TABLE_BYTES_MAX {
                        return Err(Fault::Invalid);
                    }
                    self.table.resize(bytes_max);
                    continue;
                }
                _ => self.literal(&mut block, first, &mut take)?,
            };
            is_begun = true;
            if !goes_on {
                return Err(Fault::Refused);
            }
        }
        Ok(())
    }

    /// Decodes a literal header, whose name may be an index (RFC 7541, 6.2).
    fn literal(
        &mut self,
        block: &mut &[u8],
        first: u8,
        take: &mut impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<bool, Fault> {
        let is_kept = first >= 0x40;
        let index = number(block, if is_kept { 6 } else { 4 })?;
        let mut name = std::mem::take(&mut self.name);
        name.clear();
        match index {
            0 => string(block, &mut name)?,
            _ => name.extend_from_slice(self.entry(index)?.0),
        }
        self.value.clear();
        string(block, &mut self.value)?;
        let goes_on = take(&name, &self.value);
        if is_kept {
            self.table.insert(&name, &self.value, 0);
        }
        self.name = name;
        // The memory of a long string is freed.
        for buffer in [&mut self.name, &mut self.value] {
            if buffer.capacity() > TABLE_BYTES_MAX {
                *buffer = Vec::new();
            }
        }
        Ok(goes_on)
    }

    fn entry(&self, index: usize) -> Result<(&[u8], &[u8]), Fault> {
        let at = index.checked_sub(1).ok_or(Fault::Invalid)?;
        if let Some((name, value)) = ENTRIES.get(at) {
            return Ok((name.as_bytes(), value.as_bytes()));
        }
        let entry = self.table.entries.get(at - ENTRIES.len());
        entry
            .map(|entry| (entry.name(), entry.value()))
            .ok_or(Fault::Invalid)
    }
}

/// Decodes an integer with a prefix of this many bits (RFC 7541, 5.1).
fn number(block: &mut &[u8], bits: u32) -> Result<usize, Fault> {
    let most = (1_usize << bits) - 1;
    let (first, mut rest) = block.split_first().ok_or(Fault::Invalid)?;
    let mut value = usize::from(*first) & most;
    if value == most {
        for at in 0.. {
            let (byte, others) = rest.split_first().ok_or(Fault::Invalid)?;
            rest = others;
            if at == NUMBER_BYTES_MAX {
                return Err(Fault::Invalid);
            }
            value += usize::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *block = rest;
    Ok(value)
}

/// Decodes a string (RFC 7541, 5.2).
fn string(block: &mut &[u8], text: &mut Vec<u8>) -> Result<(), Fault> {
    let is_huffman = block.first().is_some_and(|first| first & 0x80 != 0);
    let length = number(block, 7)?;
    let (bytes, rest) = block.split_at_checked(length).ok_or(Fault::Invalid)?;
    *block = rest;
    match is_huffman {
        true => huffman::decode(bytes, text).map_err(|()| Fault::Invalid),
        false => {
            text.extend_from_slice(bytes);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<String>, Fault> {
        let mut headers = Vec::new();
        decoder.decode(block, |name, value| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            headers.push(format!("{}: {}", text(name), text(value)));
            true
        })?;
        Ok(headers)
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    #[test]
    fn requests_of_the_standard_are_decoded() {
        // RFC 7541, C.3 without and C.4 with the Huffman code.
        for blocks in [
            [
                "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
                "8286 84be 5808 6e6f 2d63 6163 6865",
                "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
            ],
            [
                "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
                "8286 84be 5886 a8eb 1064 9cbf",
                "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
            ],
        ] {
            let mut decoder = Decoder::default();
            let host = ":authority: www.example.com";
            for (block, expected) in blocks.iter().zip([
                &[":method: GET", ":scheme: http", ":path: /", host][..],
                &[
                    ":method: GET",
                    ":scheme: http",
                    ":path: /",
                    host,
                    "cache-control: no-cache",
                ],
                &[
                    ":method: GET",
                    ":scheme: https",
                    ":path: /index.html",
                    host,
                    "custom-key: custom-value",
                ],
            ]) {
                assert_eq!(decoded(&mut decoder, &bytes(block)).unwrap(), expected);
            }
            assert_eq!(decoder.table.bytes, 164);
        }
    }

    #[test]
    fn entries_are_evicted_when_the_table_is_full_or_made_smaller() {
        let mut decoder = Decoder::default();
        let kept = |value: &str| [&[0x40, 1, b'a', value.len() as u8], value.as_bytes()].concat();
        for _ in 0..200 {
            decoded(&mut decoder, &kept("0123456789")).unwrap();
            assert!(decoder.table.bytes <= TABLE_BYTES_MAX);
        }
        assert_eq!(decoder.table.entries.len(), TABLE_BYTES_MAX / 43);
        // A size update to 50 bytes, which is room for one entry.
        assert_eq!(
            decoded(&mut decoder, &[0x3f, 19, 0xbe]).unwrap(),
            ["a: 0123456789"]
        );
        assert_eq!(decoded(&mut decoder, &[0xbf]), Err(Fault::Invalid));
        // A header larger than the table is decoded, and empties the table.
        let long = decoded(&mut decoder, &kept(&"b".repeat(60))).unwrap();
        assert_eq!((long.len(), decoder.table.entries.len()), (1, 0));
    }

    #[test]
    fn invalid_blocks_are_errors() {
        for block in [
            &[0x80][..],
            // No such entry.
            &[0xbe],
            &[0xff, 0xff],
            &[0xff, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01],
            // A small number in more bytes than any number needs.
            &[0x3f, 0x80, 0x80, 0x80, 0x80, 0x00, 0x82],
            // A size update after a header, and one that is too large.
            &[0x82, 0x20],
            &[0x3f, 0xe2, 0x1f],
            // A string that is too short, a missing string, and invalid Huffman code.
            &[0x00, 0x01, b'a', 0x05, b'b'],
            &[0x00, 0x01],
            &[0x00, 0x81, 0x00, 0x00],
        ] {
            assert_eq!(
                decoded(&mut Decoder::default(), block),
                Err(Fault::Invalid),
                "{block:?}"
            );
        }
        assert_eq!(
            decoded(&mut Decoder::default(), &[0x20, 0x3f, 0xe1, 0x1f, 0x82]).unwrap(),
            [":method: GET"]
        );
    }
}
