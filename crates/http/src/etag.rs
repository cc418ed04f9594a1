//! Entity tags: making a tag from numbers that stand for a version, and parsing the tags of a client.
//!
//! A tag made here is strong until it is [weakened](Etag::weakened): it must be another one for every
//! other content. Which numbers promise that, and when, is the caller's knowledge.
//!
//! Source: RFC 9110 section 8.8.3.

use std::fmt;

/// Numbers in a tag.
const NUMBERS_MAX: usize = 3;

/// `W/`, quotes, numbers of 16 digits with a hyphen before all but the first, a coding such as `-zstd`.
const TAG_BYTES_MAX: usize = 2 + 2 + 17 * NUMBERS_MAX - 1 + 5;

/// What marks a weak tag. It is always stored, and shown if the tag is weak.
const WEAK: &[u8] = b"W/";

/// An entity tag with its quotes, stored inline.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Etag {
    bytes: [u8; TAG_BYTES_MAX],
    length: u8,
    weak: bool,
}

impl Etag {
    /// The strong tag of a version: at most three numbers in hexadecimal, and the content coding, since
    /// a coded form of a resource needs a tag of its own.
    ///
    /// ```
    /// use headway_http::etag::Etag;
    /// assert_eq!(Etag::new(&[0xabc, 500], None).as_bytes(), b"\"abc-1f4\"");
    /// assert_eq!(Etag::new(&[0xabc, 500], Some("br")).as_bytes(), b"\"abc-1f4-br\"");
    /// ```
    ///
    /// # Panics
    /// With more numbers, or a coding of more than four bytes.
    pub fn new(numbers: &[u64], coding: Option<&str>) -> Etag {
        let mut tag = Etag {
            bytes: [0; TAG_BYTES_MAX],
            length: 0,
            weak: false,
        };
        tag.push(WEAK);
        tag.push(b"\"");
        for (at, number) in numbers.iter().enumerate() {
            if at > 0 {
                tag.push(b"-");
            }
            tag.push_hex(*number);
        }
        if let Some(coding) = coding {
            tag.push(b"-");
            tag.push(coding.as_bytes());
        }
        tag.push(b"\"");
        tag
    }

    /// The tag as a weak one: the content may change without it.
    ///
    /// ```
    /// use headway_http::etag::Etag;
    /// assert_eq!(Etag::new(&[0xabc, 500], None).weakened().as_bytes(), b"W/\"abc-1f4\"");
    /// ```
    pub fn weakened(self) -> Etag {
        Etag { weak: true, ..self }
    }

    /// The tag as written in an ETag field.
    pub fn as_bytes(&self) -> &[u8] {
        let start = if self.weak { 0 } else { WEAK.len() };
        &self.bytes[start..usize::from(self.length)]
    }

    /// The tag for comparisons with those of a client.
    pub fn tag(&self) -> Tag<'_> {
        Tag {
            weak: self.weak,
            opaque: &self.bytes[WEAK.len()..usize::from(self.length)],
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        let start = usize::from(self.length);
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len() as u8;
    }

    fn push_hex(&mut self, number: u64) {
        let digits = (64 - number.leading_zeros()).div_ceil(4).max(1);
        for digit in (0..digits).rev() {
            let value = (number >> (4 * digit)) as usize & 0xf;
            self.push(&b"0123456789abcdef"[value..=value]);
        }
    }
}

impl AsRef<[u8]> for Etag {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl fmt::Debug for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Etag({})", String::from_utf8_lossy(self.as_bytes()))
    }
}

/// A tag: ours, or one from a client's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag<'b> {
    /// Whether the tag was marked `W/`.
    pub weak: bool,
    /// The opaque part with its quotes.
    pub opaque: &'b [u8],
}

impl Tag<'_> {
    /// Strong comparison: neither may be weak.
    pub fn matches_strongly(&self, other: &Tag<'_>) -> bool {
        !self.weak && !other.weak && self.opaque == other.opaque
    }

    /// Weak comparison: either may be weak.
    pub fn matches_weakly(&self, other: &Tag<'_>) -> bool {
        self.opaque == other.opaque
    }
}

/// Iterates over the tags of a comma-separated list. Ends at the first element that is not a tag:
/// since a comma may be inside quotes, what follows cannot be split reliably.
///
/// ```
/// let tags: Vec<_> = headway_http::etag::tags(b"\"a,b\", W/\"c\"").collect();
/// assert_eq!(tags.len(), 2);
/// assert!(tags[0].opaque == b"\"a,b\"" && tags[1].weak);
/// ```
pub fn tags(list: &[u8]) -> Tags<'_> {
    Tags { rest: list }
}

/// The iterator of [`tags`].
#[derive(Clone, Debug)]
pub struct Tags<'b> {
    rest: &'b [u8],
}

impl<'b> Iterator for Tags<'b> {
    type Item = Tag<'b>;

    fn next(&mut self) -> Option<Tag<'b>> {
        while let [b' ' | b'\t' | b',', rest @ ..] = self.rest {
            self.rest = rest;
        }
        let (tag, rest) = split_tag(self.rest)?;
        let rest = crate::fields::trim(rest);
        self.rest = match rest.first() {
            None | Some(b',') => rest,
            Some(_) => b"",
        };
        Some(tag)
    }
}

fn split_tag(bytes: &[u8]) -> Option<(Tag<'_>, &[u8])> {
    let (weak, quoted) = match bytes.strip_prefix(b"W/") {
        Some(rest) => (true, rest),
        None => (false, bytes),
    };
    let inside = quoted.strip_prefix(b"\"")?;
    let end = inside.iter().position(|byte| *byte == b'"')?;
    // `etagc` of RFC 9110 section 8.8.3: no space and no control byte. Quotes cannot be escaped.
    if !inside[..end]
        .iter()
        .all(|byte| matches!(byte, b'!'..=b'~' | 0x80..))
    {
        return None;
    }
    let (opaque, rest) = quoted.split_at(end + 2);
    Some((Tag { weak, opaque }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etag_fits_its_buffer_for_the_largest_and_smallest_numbers() {
        assert_eq!(Etag::new(&[0], None).as_bytes(), b"\"0\"");
        let longest = Etag::new(&[u64::MAX; NUMBERS_MAX], Some("zstd")).weakened();
        assert_eq!(longest.as_bytes().len(), TAG_BYTES_MAX);
        assert_eq!(
            Etag::new(&[0x1f, 500, 0xabc], None).as_bytes(),
            b"\"1f-1f4-abc\""
        );
    }

    #[test]
    fn etag_differs_when_a_number_or_the_coding_differs() {
        let tag = Etag::new(&[1, 2, 3], None);
        for other in [
            Etag::new(&[9, 2, 3], None),
            Etag::new(&[1, 9, 3], None),
            Etag::new(&[1, 2, 9], None),
            Etag::new(&[1, 2, 3], Some("br")),
            Etag::new(&[1, 23], None),
        ] {
            assert_ne!(tag.as_bytes(), other.as_bytes());
        }
    }

    #[test]
    fn tags_match_strongly_only_when_neither_is_weak() {
        let strong = Etag::new(&[1], None);
        let weak = strong.weakened();
        assert!(strong.tag().matches_strongly(&strong.tag()));
        for (one, other) in [(strong, weak), (weak, strong), (weak, weak)] {
            assert!(!one.tag().matches_strongly(&other.tag()));
            assert!(one.tag().matches_weakly(&other.tag()));
        }
    }

    #[test]
    fn tag_list_is_split_correctly_when_quotes_contain_commas() {
        let found: Vec<_> = tags(br#" "a,b" ,, W/"c","" "#).collect();
        let expected: [(bool, &[u8]); 3] =
            [(false, br#""a,b""#), (true, br#""c""#), (false, br#""""#)];
        assert_eq!(found.len(), 3);
        for (tag, (weak, opaque)) in found.iter().zip(expected) {
            assert_eq!((tag.weak, tag.opaque), (weak, opaque));
        }
    }

    #[test]
    fn tag_list_ends_at_the_first_invalid_tag() {
        for (list, count) in [
            ("a", 0),
            ("\"a", 0),
            ("\"a\" \"b\"", 1),
            ("\"a\"x, \"b\"", 1),
            ("w/\"a\"", 0),
            ("\"a b\"", 0),
            ("", 0),
            ("*", 0),
        ] {
            assert_eq!(tags(list.as_bytes()).count(), count, "{list}");
        }
    }
}
