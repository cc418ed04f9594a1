//! Header compression (HPACK, RFC 7541): the dynamic table, which encoder and decoder share.

mod decoder;
pub(crate) mod encoder;
mod huffman;
mod static_table;

pub use decoder::{Decoder, Fault};

/// The largest dynamic table, for both directions.
pub(crate) const TABLE_BYTES_MAX: usize = 4 << 10;
/// The size of an entry in addition to its name and value (RFC 7541, 4.1).
pub(crate) const ENTRY_BYTES: usize = 32;

/// The dynamic table of one direction, the newest entry first (RFC 7541, 2.3.2).
#[derive(Debug, Default)]
struct Table {
    entries: std::collections::VecDeque<Entry>,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct Entry {
    /// The name, followed by the value.
    text: Box<[u8]>,
    name_bytes: usize,
    /// The hash of both, which only the encoder uses.
    hash: u64,
}

impl Entry {
    fn name(&self) -> &[u8] {
        &self.text[..self.name_bytes]
    }

    fn value(&self) -> &[u8] {
        &self.text[self.name_bytes..]
    }
}

impl Table {
    fn new() -> Table {
        Table {
            bytes_max: TABLE_BYTES_MAX,
            ..Table::default()
        }
    }

    /// Inserts an entry and evicts the oldest ones to make room. An entry that is larger than the table empties it.
    fn insert(&mut self, name: &[u8], value: &[u8], hash: u64) {
        let bytes = name.len() + value.len() + ENTRY_BYTES;
        let text = [name, value].concat().into_boxed_slice();
        self.shrink(self.bytes_max.saturating_sub(bytes));
        if bytes <= self.bytes_max {
            self.bytes += bytes;
            self.entries.push_front(Entry {
                text,
                name_bytes: name.len(),
                hash,
            });
        }
    }

    fn resize(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
        self.shrink(bytes_max);
    }

    fn shrink(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max
            && let Some(entry) = self.entries.pop_back()
        {
            self.bytes -= entry.text.len() + ENTRY_BYTES;
        }
    }
}
