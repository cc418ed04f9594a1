//! Finds the placeholders for an advertisement in a file, piece by piece, without keeping the file.
//!
//! The name of the advertisement replaces the name in the placeholder, and has the same length. So a
//! scanned file keeps its length, and a response can declare it before a byte has been read. The
//! scanner remembers what it needs if a placeholder is split across two pieces.

use std::io::Write;

use memchr::memchr;

use crate::file::FileName;
use crate::placeholder::{BEGIN, PATH_BYTES};

/// What a range of bytes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanPart {
    /// Text that stays unchanged.
    Text,
    /// A part of a name, starting at this offset in it.
    Name(usize),
}

/// State of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scanner {
    /// How many bytes of [`BEGIN`] the last bytes match.
    matched: usize,
    /// Within a name: how much of it has passed.
    inside: Option<usize>,
}

impl Scanner {
    /// A scanner at the start of a file.
    pub fn new() -> Scanner {
        Scanner::default()
    }

    /// What the first of these bytes are, and how many of them: at least one unless there are none.
    pub fn next(&mut self, bytes: &[u8]) -> (ScanPart, usize) {
        if let Some(at) = self.inside {
            let count = (PATH_BYTES - at).min(bytes.len());
            self.inside = Some(at + count).filter(|&passed| passed < PATH_BYTES);
            return (ScanPart::Name(at), count);
        }
        let mut at = 0;
        while at < bytes.len() {
            if self.matched == 0 {
                let Some(skipped) = memchr(BEGIN[0], &bytes[at..]) else {
                    return (ScanPart::Text, bytes.len());
                };
                at += skipped;
            }
            let byte = bytes[at];
            self.matched = match byte == BEGIN[self.matched] {
                true => self.matched + 1,
                false => usize::from(byte == BEGIN[0]),
            };
            at += 1;
            if self.matched == BEGIN.len() {
                (self.matched, self.inside) = (0, Some(0));
                return (ScanPart::Text, at);
            }
        }
        (ScanPart::Text, at)
    }

    /// Writes the name of an advertisement over every placeholder in the next piece of a file.
    pub fn replace(&mut self, piece: &mut [u8], name: &[u8; PATH_BYTES]) {
        let mut at = 0;
        while at < piece.len() {
            let (part, count) = self.next(&piece[at..]);
            if let ScanPart::Name(from) = part {
                piece[at..at + count].copy_from_slice(&name[from..from + count]);
            }
            at += count;
        }
    }
}

/// The name of an advertisement: each of the 360 is a file of the first ten directories.
///
/// # Panics
/// From 3,600,000 on, because the name would be longer.
pub fn ad_name(ad: u32) -> [u8; PATH_BYTES] {
    let inside = ad % 36;
    let name = FileName::new(ad / 36, (inside / 9) as u8, (inside % 9 + 1) as u8);
    let mut bytes = [0; PATH_BYTES];
    let written = name.map(|name| write!(&mut bytes[..], "{name}"));
    assert!(matches!(written, Some(Ok(()))), "{ad} is no advertisement");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placeholder::{END, PLACEHOLDER};
    use proptest::prelude::*;

    fn placed(name: &[u8]) -> Vec<u8> {
        [BEGIN, name, END].concat()
    }

    fn replaced(text: &[u8], cuts: &[usize]) -> Vec<u8> {
        let (mut scanner, mut out) = (Scanner::new(), Vec::new());
        let mut rest = text;
        for &cut in cuts.iter().chain([&text.len()]) {
            let (piece, behind) = rest.split_at(cut.min(rest.len()));
            let mut piece = piece.to_vec();
            scanner.replace(&mut piece, &ad_name(47));
            out.extend(piece);
            rest = behind;
        }
        out
    }

    #[test]
    fn advertisement_name_replaces_the_placeholder() {
        assert_eq!(&ad_name(47), b"/dir00001/class1_3");
        let text = [
            b"abc<",
            placed(&PLACEHOLDER).as_slice(),
            b"<img <im",
            &placed(&PLACEHOLDER),
            b".",
        ]
        .concat();
        let wanted = [
            b"abc<",
            placed(b"/dir00001/class1_3").as_slice(),
            b"<img <im",
            &placed(b"/dir00001/class1_3"),
            b".",
        ]
        .concat();
        assert_eq!(replaced(&text, &[]), wanted);
    }

    #[test]
    fn text_that_resembles_a_placeholder_is_unchanged() {
        let text =
            b"<img src=\"/dir00000/class0_0\"> <img ad src='/dir00000/class0_0'> <img ad src=";
        assert_eq!(replaced(text, &[]), text);
    }

    proptest! {
        #[test]
        fn placeholder_across_pieces_is_replaced(
            cuts in proptest::collection::vec(0_usize..40, 0..20),
            between in "[<a-z]{0,20}",
        ) {
            let text = [between.as_bytes(), &placed(&PLACEHOLDER), between.as_bytes(), &placed(&PLACEHOLDER)].concat();
            prop_assert_eq!(replaced(&text, &cuts), replaced(&text, &[]));
        }
    }
}
