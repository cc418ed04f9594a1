//! Byte ranges: which parts of a file the client wants.
//!
//! A Range field is ignored (the whole file is sent) if it is malformed, has another unit, or is
//! abusive: more than [`RANGES_MAX`] ranges, or more than one overlapping pair. No honest client
//! needs these, and they would let a short request cause a very long response (RFC 9110 sections
//! 14.2 and 17.15). Two overlapping ranges become one. Otherwise the ranges keep their order.
//!
//! Source: RFC 9110 sections 14.1.2, 14.2, 15.3.7, 15.5.17.

use std::ops::Deref;

use crate::fields::{elements, trim};

/// The most ranges that a request may contain; beyond it the whole file is sent.
pub const RANGES_MAX: usize = 16;

/// A part of a file, never empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The first byte.
    pub start: u64,
    /// The byte after the last one.
    pub end_exclusive: u64,
}

impl Range {
    /// The number of bytes in the range.
    pub const fn length(self) -> u64 {
        self.end_exclusive - self.start
    }

    const fn overlaps(self, other: Range) -> bool {
        self.start < other.end_exclusive && other.start < self.end_exclusive
    }
}

/// Up to [`RANGES_MAX`] ranges, stored inline; dereferences to a slice.
#[derive(Clone, Copy)]
pub struct RangeSet {
    ranges: [Range; RANGES_MAX],
    count: usize,
}

impl RangeSet {
    const EMPTY: RangeSet = RangeSet {
        ranges: [Range {
            start: 0,
            end_exclusive: 0,
        }; RANGES_MAX],
        count: 0,
    };

    fn push(&mut self, range: Range) {
        self.ranges[self.count] = range;
        self.count += 1;
    }
}

impl Deref for RangeSet {
    type Target = [Range];

    fn deref(&self) -> &[Range] {
        &self.ranges[..self.count]
    }
}

impl std::fmt::Debug for RangeSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl PartialEq for RangeSet {
    fn eq(&self, other: &RangeSet) -> bool {
        **self == **other
    }
}

impl Eq for RangeSet {}

/// What a Range field asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// The value lives within one call; boxing it would cost an allocation.
#[allow(clippy::large_enum_variant)]
pub enum Ranges {
    /// Ignore the field: 200 with the whole file.
    Whole,
    /// 416 with `Content-Range: bytes */size`.
    Unsatisfiable,
    /// 206: one range as it is, several as `multipart/byteranges`.
    Satisfiable(RangeSet),
}

/// Parses a Range field for a file of this size.
///
/// ```
/// use headway_http::range::{Ranges, ranges};
/// let Ranges::Satisfiable(set) = ranges(b"bytes=-500", 10_000) else { panic!() };
/// assert_eq!((set[0].start, set[0].end_exclusive), (9_500, 10_000));
/// assert_eq!(ranges(b"bytes=20000-", 10_000), Ranges::Unsatisfiable);
/// ```
pub fn ranges(field: &[u8], size_bytes: u64) -> Ranges {
    let Some(specs) = strip_unit(field) else {
        return Ranges::Whole;
    };
    let mut set = RangeSet::EMPTY;
    let mut requested = 0;
    let mut suffix_of_empty_file = false;
    for element in elements(specs) {
        requested += 1;
        let Some(spec) = RangeSpec::parse(element) else {
            return Ranges::Whole;
        };
        if requested > RANGES_MAX {
            return Ranges::Whole;
        }
        match spec.resolve(size_bytes) {
            Some(range) => set.push(range),
            // The last bytes of an empty file are the empty file, which no Content-Range can
            // express.
            None => {
                suffix_of_empty_file |= size_bytes == 0 && matches!(spec, RangeSpec::Suffix(1..))
            }
        }
    }
    match (requested, set.count) {
        (0, _) => Ranges::Whole,
        (_, 0) if suffix_of_empty_file => Ranges::Whole,
        (_, 0) => Ranges::Unsatisfiable,
        _ => coalesce(set).map_or(Ranges::Whole, Ranges::Satisfiable),
    }
}

fn strip_unit(field: &[u8]) -> Option<&[u8]> {
    let (unit, rest) = field.split_at_checked(6)?;
    unit.eq_ignore_ascii_case(b"bytes=").then_some(rest)
}

/// One element of the list, before the size is known.
enum RangeSpec {
    /// First and last byte, both included; the last is open for `500-`.
    Bytes(u64, u64),
    /// A suffix of this many bytes.
    Suffix(u64),
}

impl RangeSpec {
    fn parse(element: &[u8]) -> Option<RangeSpec> {
        let dash = element.iter().position(|byte| *byte == b'-')?;
        let (first, last) = (&element[..dash], trim(&element[dash + 1..]));
        match (first.is_empty(), last.is_empty()) {
            (true, _) => Some(RangeSpec::Suffix(position(last)?)),
            (false, true) => Some(RangeSpec::Bytes(position(first)?, u64::MAX)),
            (false, false) => {
                let (first, last) = (position(first)?, position(last)?);
                // A last byte before the first makes the field invalid, not unsatisfiable.
                (first <= last).then_some(RangeSpec::Bytes(first, last))
            }
        }
    }

    /// Clamps the range to the size; `None` if nothing is left.
    fn resolve(&self, size_bytes: u64) -> Option<Range> {
        let (start, end_exclusive) = match *self {
            RangeSpec::Bytes(first, last) => (first, last.saturating_add(1).min(size_bytes)),
            RangeSpec::Suffix(length) => (size_bytes.saturating_sub(length), size_bytes),
        };
        (start < end_exclusive).then_some(Range {
            start,
            end_exclusive,
        })
    }
}

/// Parses digits. A number beyond 64 bits is larger than every file, so `u64::MAX` stands for it.
fn position(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(crate::fields::decimal(digits).unwrap_or(u64::MAX))
}

/// Merges one overlapping pair into the position of its first range; `None` if more ranges overlap.
fn coalesce(set: RangeSet) -> Option<RangeSet> {
    let mut out = RangeSet::EMPTY;
    let mut merged = false;
    for range in set.iter().copied() {
        let mut overlapping = out.ranges[..out.count]
            .iter_mut()
            .filter(|earlier| earlier.overlaps(range));
        match (overlapping.next(), overlapping.next()) {
            (None, _) => out.push(range),
            (Some(earlier), None) if !merged => {
                earlier.start = earlier.start.min(range.start);
                earlier.end_exclusive = earlier.end_exclusive.max(range.end_exclusive);
                merged = true;
            }
            _ => return None,
        }
    }
    Some(out)
}
