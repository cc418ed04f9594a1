//! Encodes the header blocks of responses.

use twox_hash::XxHash3_64;

use super::static_table::{ENTRIES, index_of_name};
use super::{TABLE_BYTES_MAX, Table, huffman};

/// An encoder with its dynamic table.
pub(crate) struct Encoder {
    table: Table,
    /// The smallest table size that the client has set since the last block. The next block begins with it.
    announced: Option<usize>,
    name: Vec<u8>,
}

impl Encoder {
    pub(crate) fn new() -> Encoder {
        Encoder {
            table: Table::new(),
            announced: None,
            name: Vec::new(),
        }
    }

    /// Applies the client's SETTINGS_HEADER_TABLE_SIZE (RFC 9113, 6.5.2).
    pub(crate) fn set_table_bytes_max(&mut self, bytes_max: usize) {
        let bytes_max = bytes_max.min(TABLE_BYTES_MAX);
        if bytes_max != self.table.bytes_max {
            self.announced = Some(
                self.announced
                    .map_or(bytes_max, |least| least.min(bytes_max)),
            );
            self.table.resize(bytes_max);
        }
    }

    /// Begins a block, with size updates if the table size has changed.
    pub(crate) fn begin(&mut self, block: &mut Vec<u8>) {
        // The smallest size comes first, because the client has evicted entries for it (RFC 7541, 4.2).
        if let Some(least) = self.announced.take() {
            number(block, 0x20, 5, least);
            if least != self.table.bytes_max {
                number(block, 0x20, 5, self.table.bytes_max);
            }
        }
    }

    /// Appends the status.
    pub(crate) fn status(block: &mut Vec<u8>, status: u16) {
        const FIRST: usize = 8;
        let known = [200, 204, 206, 304, 400, 404, 500];
        match known.iter().position(|one| *one == status) {
            Some(at) => block.push(0x80 | (FIRST + at) as u8),
            None => {
                let text =
                    [status / 100, status / 10 % 10, status % 10].map(|digit| b'0' + digit as u8);
                number(block, 0, 4, FIRST);
                string(block, &text);
            }
        }
    }

    /// Appends a header, with its name in lower case.
    pub(crate) fn header(&mut self, block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        let mut lower = std::mem::take(&mut self.name);
        lower.clear();
        lower.extend_from_slice(name);
        lower.make_ascii_lowercase();
        self.append(block, &lower, value);
        self.name = lower;
    }

    fn append(&mut self, block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        let bytes = name.len() + value.len();
        let index = index_of_name(name);
        // Values that change with each response would only evict others. A secret in the table could be guessed
        // (RFC 7541, 7.1).
        let is_kept = bytes < self.table.bytes_max / 2
            && !matches!(
                name,
                b"age"
                    | b"content-length"
                    | b"content-range"
                    | b"etag"
                    | b"location"
                    | b"set-cookie"
            );
        if !is_kept {
            number(block, 0, 4, index.unwrap_or(0));
        } else {
            let hash = XxHash3_64::oneshot(name) ^ XxHash3_64::oneshot(value).rotate_left(1);
            let is_it = |entry: &super::Entry| {
                entry.hash == hash && entry.name() == name && entry.value() == value
            };
            if let Some(at) = self.table.entries.iter().position(is_it) {
                return number(block, 0x80, 7, ENTRIES.len() + 1 + at);
            }
            self.table.insert(name, value, hash);
            number(block, 0x40, 6, index.unwrap_or(0));
        }
        if index.is_none() {
            string(block, name);
        }
        string(block, value);
    }
}

fn number(block: &mut Vec<u8>, first: u8, bits: u32, value: usize) {
    let most = (1 << bits) - 1;
    if value < most {
        return block.push(first | value as u8);
    }
    block.push(first | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        block.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    block.push(rest as u8);
}

fn string(block: &mut Vec<u8>, text: &[u8]) {
    let encoded_bytes = huffman::encoded_bytes(text);
    if encoded_bytes < text.len() {
        number(block, 0x80, 7, encoded_bytes);
        huffman::encode(text, block);
    } else {
        number(block, 0, 7, text.len());
        block.extend_from_slice(text);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::decoder::Decoder;
    use super::*;

    fn encoded(encoder: &mut Encoder, headers: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Vec::new();
        encoder.begin(&mut block);
        Encoder::status(&mut block, 200);
        for (name, value) in headers {
            encoder.header(&mut block, name.as_bytes(), value.as_bytes());
        }
        block
    }

    fn decoded(decoder: &mut Decoder, block: &[u8]) -> Vec<(String, String)> {
        let mut headers = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        decoder
            .decode(block, |name, value| {
                headers.push((text(name), text(value)));
                true
            })
            .unwrap();
        headers
    }

    #[test]
    fn repeated_header_is_one_byte_and_a_secret_is_not_indexed() {
        let mut encoder = Encoder::new();
        let headers = [
            ("server", "headway"),
            ("x-new", "a"),
            ("set-cookie", "secret"),
        ];
        let first = encoded(&mut encoder, &headers[..2]);
        assert!(first.len() > 10);
        assert_eq!(
            encoded(&mut encoder, &headers[..2]),
            [0x88, 0x80 | 63, 0x80 | 62]
        );
        let again = [0; 2].map(|_| encoded(&mut encoder, &headers));
        assert_eq!(again[0], again[1]);
        assert_eq!(encoder.table.entries.len(), 2);
    }

    #[test]
    fn headers_that_differ_each_time_or_are_long_are_not_kept() {
        let mut encoder = Encoder::new();
        for name in [
            "age",
            "content-length",
            "content-range",
            "etag",
            "location",
            "set-cookie",
            "Set-Cookie",
        ] {
            encoded(&mut encoder, &[(name, "1")]);
            assert_eq!(encoder.table.entries.len(), 0, "{name}");
        }
        let long = "a".repeat(TABLE_BYTES_MAX / 2);
        encoded(&mut encoder, &[("x", &long)]);
        assert_eq!(encoder.table.entries.len(), 0);
        encoded(&mut encoder, &[("x", &long[5..])]);
        assert_eq!(encoder.table.entries.len(), 1);
    }

    #[test]
    fn status_is_three_digits() {
        let mut decoder = Decoder::default();
        for status in [200, 204, 206, 304, 400, 404, 500, 431, 503, 599] {
            let mut block = Vec::new();
            Encoder::status(&mut block, status);
            let expected = (":status".to_owned(), status.to_string());
            assert_eq!(decoded(&mut decoder, &block), [expected]);
        }
    }

    proptest! {
        #[test]
        fn any_headers_are_the_same_when_they_were_encoded(
            blocks in prop::collection::vec(
                (
                    prop::option::of(0_usize..6_000),
                    prop::collection::vec(("[a-e]{1,2}|etag|date", "[ -~]{0,60}"), 0..12),
                ),
                0..40,
            ),
        ) {
            let (mut encoder, mut decoder) = (Encoder::new(), Decoder::default());
            for (size, headers) in blocks {
                if let Some(size) = size {
                    encoder.set_table_bytes_max(size);
                    encoder.set_table_bytes_max(size / 2);
                    encoder.set_table_bytes_max(size);
                }
                let headers: Vec<(&str, &str)> =
                    headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                let seen = decoded(&mut decoder, &encoded(&mut encoder, &headers));
                let seen: Vec<(&str, &str)> =
                    seen.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                prop_assert_eq!(&seen[1..], &headers[..]);
                prop_assert_eq!(encoder.table.bytes, decoder.table.bytes);
            }
        }
    }
}
