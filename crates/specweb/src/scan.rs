//! Finds the places for an advertisement in a file, piece by piece, without holding the file.
//!
//! A place is `<img ad src="/dir00000/class0_0">`: the name inside is the placeholder, and the
//! advertisement's name, which is as long, goes over it. So a scanned file has the length of the
//! file, and a reply can promise it before a byte was read. The scanner remembers what it needs
//! when a place lies across two pieces.

use std::io::Write;

use memchr::memchr;

use crate::file::FileName;

/// What stands before the name. `<` occurs in it once only, so after a mismatch nothing but that
/// one byte can begin anew.
pub const BEGIN: &[u8] = b"<img ad src=\"";

/// The name in a file as it is on disk.
pub const PLACEHOLDER: [u8; PATH_BYTES] = *b"/dir00000/class0_0";

/// What stands behind the name.
pub const END: &[u8] = b"\">";

/// The length of a name.
pub const PATH_BYTES: usize = 18;

/// The length of a whole place.
pub const PLACE_BYTES: usize = BEGIN.len() + PATH_BYTES + END.len();

/// From the beginning of a file to its first place.
pub const PLACE_FIRST: u64 = 512;

/// From one place to the next.
pub const PLACE_EVERY: u64 = 5120;

/// What a run of bytes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text that stays as it is.
    Text,
    /// A piece of a name, from so many bytes into it.
    Name(usize),
}

/// How far a scan is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scanner {
    /// Bytes of [`BEGIN`] that the last bytes were.
    matched: usize,
    /// Within a name, how much of it has passed.
    inside: Option<usize>,
}

impl Scanner {
    /// At the beginning of a file.
    pub fn new() -> Scanner {
        Scanner::default()
    }

    /// What the first of these bytes are, and how many of them: at least one if there is one.
    pub fn next(&mut self, bytes: &[u8]) -> (Part, usize) {
        if let Some(at) = self.inside {
            let count = (PATH_BYTES - at).min(bytes.len());
            self.inside = Some(at + count).filter(|&passed| passed < PATH_BYTES);
            return (Part::Name(at), count);
        }
        let mut at = 0;
        while at < bytes.len() {
            if self.matched == 0 {
                let Some(skipped) = memchr(BEGIN[0], &bytes[at..]) else {
                    return (Part::Text, bytes.len());
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
                return (Part::Text, at);
            }
        }
        (Part::Text, at)
    }

    /// Puts the name of an advertisement over every placeholder of the next piece of a file.
    pub fn replace(&mut self, piece: &mut [u8], name: &[u8; PATH_BYTES]) {
        let mut at = 0;
        while at < piece.len() {
            let (part, count) = self.next(&piece[at..]);
            if let Part::Name(from) = part {
                piece[at..at + count].copy_from_slice(&name[from..from + count]);
            }
            at += count;
        }
    }
}

/// The name that goes into the places for an advertisement: each of the 360 is a file of the first
/// ten directories.
///
/// # Panics
/// From 3,600,000 on, which are no advertisements: the name would be longer.
pub fn ad_name(ad: u32) -> [u8; PATH_BYTES] {
    let inside = ad % 36;
    let name = FileName::new(ad / 36, (inside / 9) as u8, (inside % 9 + 1) as u8);
    let mut bytes = [0; PATH_BYTES];
    let written = name.map(|name| write!(&mut bytes[..], "{name}"));
    assert!(matches!(written, Some(Ok(()))), "{ad} is no advertisement");
    bytes
}

/// Where the places of a file of this length begin.
pub fn places(size_bytes: u64) -> impl Iterator<Item = u64> {
    let first = (PLACE_FIRST..).step_by(PLACE_EVERY as usize);
    first.take_while(move |at| at + PLACE_BYTES as u64 <= size_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(name: &[u8]) -> Vec<u8> {
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
    fn name_goes_over_the_placeholder_when_there_is_one() {
        assert_eq!(&ad_name(47), b"/dir00001/class1_3");
        let text = [
            b"abc<",
            place(&PLACEHOLDER).as_slice(),
            b"<img <im",
            &place(&PLACEHOLDER),
            b".",
        ]
        .concat();
        let wanted = [
            b"abc<",
            place(b"/dir00001/class1_3").as_slice(),
            b"<img <im",
            &place(b"/dir00001/class1_3"),
            b".",
        ]
        .concat();
        assert_eq!(replaced(&text, &[]), wanted);
    }

    #[test]
    fn text_stays_when_it_only_looks_like_a_place() {
        let text =
            b"<img src=\"/dir00000/class0_0\"> <img ad src='/dir00000/class0_0'> <img ad src=";
        assert_eq!(replaced(text, &[]), text);
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference_when_a_place_lies_across_them(
            cuts in proptest::collection::vec(0_usize..40, 0..20),
            between in "[<a-z]{0,20}",
        ) {
            let text = [between.as_bytes(), &place(&PLACEHOLDER), between.as_bytes(), &place(&PLACEHOLDER)].concat();
            prop_assert_eq!(replaced(&text, &cuts), replaced(&text, &[]));
        }
    }

    #[test]
    fn places_are_within_the_file_when_it_is_short() {
        assert_eq!(places(100).count(), 0);
        assert_eq!(places(512 + PLACE_BYTES as u64).collect::<Vec<_>>(), [512]);
        assert_eq!(places(512 + PLACE_BYTES as u64 - 1).count(), 0);
        assert_eq!(places(9216).collect::<Vec<_>>(), [512, 5632]);
    }
}
