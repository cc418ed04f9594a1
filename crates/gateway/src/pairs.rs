//! Ordered pairs of names and values in one allocation: the storage of field lists and variables.
//!
//! Room for the usual header is made at once, because growing step by step costs more than the rest.

use std::fmt::Display;
use std::io::Write;

/// Room that the first pair makes: for the header of most responses, and for the variables of most requests.
const BYTES: usize = 1024;
const PAIRS: usize = 32;

/// Pairs of byte strings. Both are bounded by the heads they come from, far below 4 GiB.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Pairs {
    /// Name, value, name, value…
    bytes: Vec<u8>,
    /// Where each name and each value ends.
    ends: Vec<(u32, u32)>,
}

impl Pairs {
    pub(crate) fn push(&mut self, name: &[u8], value: &[u8]) {
        self.begin(name);
        self.bytes.extend_from_slice(value);
        self.end(value.len());
    }

    /// Adds a pair whose value is a text.
    pub(crate) fn push_text(&mut self, name: &[u8], value: impl Display) {
        self.begin(name);
        let before = self.bytes.len();
        // Writing to a Vec cannot fail.
        let _ = write!(self.bytes, "{value}");
        self.end(self.bytes.len() - before);
    }

    /// Adds a pair; its name is `prefix` and then `name`, whose bytes are mapped by `change`.
    pub(crate) fn push_changed(
        &mut self,
        prefix: &[u8],
        name: &[u8],
        change: impl Fn(u8) -> u8,
        value: &[u8],
    ) {
        self.begin(prefix);
        self.bytes.extend(name.iter().map(|byte| change(*byte)));
        self.bytes.extend_from_slice(value);
        self.end(value.len());
    }

    /// Writes a name.
    fn begin(&mut self, name: &[u8]) {
        if self.ends.capacity() == 0 {
            self.bytes.reserve(BYTES);
            self.ends.reserve(PAIRS);
        }
        self.bytes.extend_from_slice(name);
    }

    /// The value has been written.
    fn end(&mut self, value_bytes: usize) {
        let end = self.bytes.len();
        self.ends.push(((end - value_bytes) as u32, end as u32));
    }

    /// Number of bytes of all names and values.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Appends to the value of the last pair.
    pub(crate) fn extend_last(&mut self, separator: &[u8], value: &[u8]) {
        if let Some((_, value_end)) = self.ends.last_mut() {
            self.bytes.extend_from_slice(separator);
            self.bytes.extend_from_slice(value);
            *value_end = self.bytes.len() as u32;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|(_, value_end)| *value_end));
        starts
            .zip(&self.ends)
            .map(|(start, (name_end, value_end))| {
                (
                    &self.bytes[start as usize..*name_end as usize],
                    &self.bytes[*name_end as usize..*value_end as usize],
                )
            })
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&[u8], &[u8]) -> bool) {
        let (mut start, mut kept, mut kept_bytes) = (0, 0, 0);
        for at in 0..self.ends.len() {
            let (name_end, value_end) = self.ends[at];
            let pair = start..value_end as usize;
            let (name, value) = self.bytes[pair.clone()].split_at(name_end as usize - start);
            start = pair.end;
            if keep(name, value) {
                let moved = (pair.start - kept_bytes) as u32;
                self.ends[kept] = (name_end - moved, value_end - moved);
                kept += 1;
                self.bytes.copy_within(pair.clone(), kept_bytes);
                kept_bytes += pair.len();
            }
        }
        self.ends.truncate(kept);
        self.bytes.truncate(kept_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(names: &[&str]) -> Pairs {
        let mut pairs = Pairs::default();
        for name in names {
            pairs.push(name.as_bytes(), name.repeat(3).as_bytes());
        }
        pairs
    }

    #[test]
    fn pairs_that_are_kept_stay_in_order_whichever_are_removed() {
        const NAMES: [&str; 5] = ["a", "", "ccc", "dd", "e"];
        for mask in 0..1 << NAMES.len() {
            let is_kept = |at: &usize| mask >> at & 1 == 1;
            let kept: Vec<&str> = (0..NAMES.len())
                .filter(is_kept)
                .map(|at| NAMES[at])
                .collect();
            let mut all = pairs(&NAMES);
            all.retain(|name, value| {
                assert_eq!(value, name.repeat(3));
                kept.iter().any(|kept| kept.as_bytes() == name)
            });
            assert!(all == pairs(&kept), "{kept:?}");
            all.push(b"x", b"");
            assert_eq!(all.iter().last(), Some((&b"x"[..], &b""[..])));
        }
    }
}
