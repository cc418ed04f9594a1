//! Entity tags: making a tag from a file's metadata, and parsing the tags of a client.
//!
//! A tag made here is strong and contains inode, size and modification time in hexadecimal. A file
//! replaced by rename changes its inode even if size and time were copied. The limit of such a tag:
//! a file rewritten in place, to the same size, within one tick of the kernel's file clock (some
//! milliseconds) keeps its tag.
//!
//! Source: RFC 9110 section 8.8.3.

use std::fmt;

const TAG_BYTES_MAX: usize = 2 + 3 * 16 + 2;

/// A strong entity tag with its quotes, stored inline.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Etag {
    bytes: [u8; TAG_BYTES_MAX],
    length: u8,
}

impl Etag {
    /// The tag of a file in one state.
    ///
    /// Use the same `inode` for every file if several machines serve copies of one tree, since
    /// their inodes differ.
    ///
    /// ```
    /// use headway_http::etag::Etag;
    /// let tag = Etag::of_file(0x1f, 500, 0xabc);
    /// assert_eq!(tag.as_bytes(), b"\"1f-1f4-abc\"");
    /// ```
    pub fn of_file(inode: u64, size_bytes: u64, modified_ns: i64) -> Etag {
        let mut tag = Etag {
            bytes: [0; TAG_BYTES_MAX],
            length: 0,
        };
        tag.push(b'"');
        tag.push_hex(inode);
        tag.push(b'-');
        tag.push_hex(size_bytes);
        tag.push(b'-');
        tag.push_hex(modified_ns as u64);
        tag.push(b'"');
        tag
    }

    /// The tag as written in an ETag field.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    fn push(&mut self, byte: u8) {
        self.bytes[usize::from(self.length)] = byte;
        self.length += 1;
    }

    fn push_hex(&mut self, number: u64) {
        let digits = (64 - number.leading_zeros()).div_ceil(4).max(1);
        for digit in (0..digits).rev() {
            let value = (number >> (4 * digit)) as usize & 0xf;
            self.push(b"0123456789abcdef"[value]);
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

/// A tag from a client's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag<'b> {
    /// Whether the tag was marked `W/`.
    pub weak: bool,
    /// The opaque part with its quotes.
    pub opaque: &'b [u8],
}

impl Tag<'_> {
    /// Strong comparison with `strong_etag`, which must be strong.
    pub fn matches_strongly(&self, strong_etag: &[u8]) -> bool {
        !self.weak && self.opaque == strong_etag
    }

    /// Weak comparison with `strong_etag`.
    pub fn matches_weakly(&self, strong_etag: &[u8]) -> bool {
        self.opaque == strong_etag
    }
}

/// Iterates over the tags of a comma-separated list. Ends at the first element that is not a tag:
/// since a comma may be inside quotes, what follows cannot be split reliably.
///
/// ```
/// let tags: Vec<_> = headway_http::etag::tags(b"\"a,b\", W/\"c\"").collect();
/// assert_eq!(tags.len(), 2);
/// assert!(tags[0].matches_strongly(b"\"a,b\"") && tags[1].weak);
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
        assert_eq!(Etag::of_file(0, 0, 0).as_bytes(), b"\"0-0-0\"");
        let longest = Etag::of_file(u64::MAX, u64::MAX, -1);
        assert_eq!(longest.as_bytes().len(), TAG_BYTES_MAX);
        assert_eq!(
            Etag::of_file(0x1f, 500, 0xabc).as_bytes(),
            b"\"1f-1f4-abc\""
        );
    }

    #[test]
    fn etag_differs_when_inode_size_or_time_differ() {
        let tag = Etag::of_file(1, 2, 3);
        for other in [
            Etag::of_file(9, 2, 3),
            Etag::of_file(1, 9, 3),
            Etag::of_file(1, 2, 9),
        ] {
            assert_ne!(tag, other);
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
