//! The content of a file: a function of the set's seed and the file's number. Any byte of any file
//! can be computed without reading it.
//!
//! A file begins with its own path and a line feed, so that a file sent in another's place is seen
//! by eye; then comes pseudo-random text in lines of 64 characters out of 64. It does not repeat,
//! so no compression makes it smaller than three quarters. Text and not bytes of all kinds, so that
//! it can be looked at on a terminal; and no `<`, `&` or quotation mark, so that it means nothing
//! when a server calls it HTML.
//!
//! In a set for dynamic content some files have places for an advertisement in between
//! ([`placeholder`]), which are all the markup there is.
//!
//! The function may never change: sets made by earlier versions have to verify. A test holds it.

use headway_base::random::{SPLIT_MIX_STEP, mixed};
use headway_specweb_files::placeholder;

use crate::checksum::Checksum;

/// How much is computed at once where no buffer is given: it stays in the first-level cache.
const PIECE_BYTES: usize = 4096;

/// The content of one file.
#[derive(Clone, Copy, Debug)]
pub struct Content<'a> {
    path: &'a str,
    key: u64,
    size_bytes: u64,
    placeholders: bool,
}

impl<'a> Content<'a> {
    /// The content of file number `file` of the set with this seed.
    pub(crate) fn new(seed: u64, file: u32, path: &'a str, size_bytes: u64) -> Content<'a> {
        Content {
            path,
            key: mixed(mixed(seed) ^ u64::from(file)),
            size_bytes,
            placeholders: false,
        }
    }

    /// The content with placeholders for advertisements.
    pub(crate) fn with_placeholders(self) -> Content<'a> {
        Content {
            placeholders: true,
            ..self
        }
    }

    /// The length of the file in bytes.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Writes the bytes from an offset on. After the end of the file the text continues.
    pub fn fill(&self, offset: u64, buffer: &mut [u8]) {
        let (mut word, skipped) = (offset / 8, (offset % 8) as usize);
        let mut rest = &mut *buffer;
        if skipped > 0 {
            let bytes = &self.word(word)[skipped..];
            let length = bytes.len().min(rest.len());
            rest[..length].copy_from_slice(&bytes[..length]);
            rest = &mut rest[length..];
            word += 1;
        }
        let mut words = rest.chunks_exact_mut(8);
        for bytes in &mut words {
            bytes.copy_from_slice(&self.word(word));
            word += 1;
        }
        let last = words.into_remainder();
        last.copy_from_slice(&self.word(word)[..last.len()]);
        self.put_head(offset, buffer);
        if self.placeholders {
            self.write_placeholders(offset, buffer);
        }
    }

    /// Whether these bytes stand at this offset.
    pub(crate) fn matches(&self, offset: u64, bytes: &[u8]) -> bool {
        if offset.saturating_add(bytes.len() as u64) > self.size_bytes {
            return false;
        }
        let mut expected = [0; PIECE_BYTES];
        let mut offset = offset;
        bytes.chunks(PIECE_BYTES).all(|piece| {
            let expected = &mut expected[..piece.len()];
            self.fill(offset, expected);
            offset += piece.len() as u64;
            piece == expected
        })
    }

    /// The [`crate::checksum`] of the whole.
    pub(crate) fn checksum(&self) -> u64 {
        let mut checksum = Checksum::new();
        let mut piece = [0; PIECE_BYTES];
        let mut offset = 0;
        while offset < self.size_bytes {
            let length = (self.size_bytes - offset).min(PIECE_BYTES as u64) as usize;
            self.fill(offset, &mut piece[..length]);
            checksum.update(&piece[..length]);
            offset += length as u64;
        }
        checksum.value()
    }

    /// Eight characters between `?` and `~`; every eighth word ends a line. A counter through
    /// SplitMix64's finaliser: any word can be had alone, and neighbours have nothing in common.
    fn word(&self, number: u64) -> [u8; 8] {
        let step = number.wrapping_mul(SPLIT_MIX_STEP);
        let six_bits = mixed(self.key.wrapping_add(step)) & 0x3f3f_3f3f_3f3f_3f3f;
        let mut bytes = (six_bits + 0x3f3f_3f3f_3f3f_3f3f).to_le_bytes();
        if number % 8 == 7 {
            bytes[7] = b'\n';
        }
        bytes
    }

    /// Writes the placeholders over the parts of the buffer they belong to.
    fn write_placeholders(&self, offset: u64, buffer: &mut [u8]) {
        let end = offset + buffer.len() as u64;
        let text = [
            placeholder::BEGIN,
            &placeholder::PLACEHOLDER,
            placeholder::END,
        ];
        for start in placeholder::offsets(self.size_bytes) {
            let end_newholder = start + placeholder::PLACEHOLDER_BYTES as u64;
            if start >= end || end_newholder <= offset {
                continue;
            }
            let (skipped, at) = (offset.saturating_sub(start), start.saturating_sub(offset));
            let bytes = text.iter().copied().flatten().skip(skipped as usize);
            for (byte, new) in buffer[at as usize..].iter_mut().zip(bytes) {
                *byte = *new;
            }
        }
    }

    /// Puts the path and its line feed over the part of the buffer they belong to.
    fn put_head(&self, offset: u64, buffer: &mut [u8]) {
        let head = self.path.len() as u64 + 1;
        if offset >= head {
            return;
        }
        let wanted = self.path.bytes().chain([b'\n']).skip(offset as usize);
        for (byte, head) in buffer.iter_mut().zip(wanted) {
            *byte = head;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum;
    use proptest::prelude::*;

    fn whole(content: &Content) -> Vec<u8> {
        let mut bytes = vec![0; content.size_bytes() as usize];
        content.fill(0, &mut bytes);
        bytes
    }

    #[test]
    fn content_does_not_change_between_versions() {
        let content = Content::new(1, 13, "/dir00000/class1_5", 160);
        let expected = "/dir00000/class1_5\n\
            uVddVk?WEsehsqmUisEzUL{DGTc[Shk[LUwnQ@MdzGf[\n\
            oc`DPaRAdCwTWKf`eKyb?J]R^rQXHJp_}`[LTRoaaZY^ZjbZ}vgGH?KqSIwqxKB\n\
            aPxyohN~nMN~yY^QCJRlHxUcM}y~L?Ai";
        assert_eq!(String::from_utf8(whole(&content)).unwrap(), expected);
        let large = Content::new(1, 35, "/dir00000/class3_9", 921_600);
        assert_eq!(large.checksum(), 0x4370_c454_1e56_a684);
    }

    #[test]
    fn file_begins_with_its_name_cut_to_its_length() {
        for size in [0, 1, 5, 6, 7, 20] {
            let bytes = whole(&Content::new(1, 0, "/abcd", size));
            let head = b"/abcd\n";
            let length = bytes.len().min(head.len());
            assert_eq!(bytes[..length], head[..length]);
        }
    }

    #[test]
    fn contents_differ_when_the_seed_or_the_number_does() {
        let one = whole(&Content::new(1, 1, "/a", 4096));
        assert_ne!(one, whole(&Content::new(2, 1, "/a", 4096)));
        assert_ne!(one, whole(&Content::new(1, 2, "/a", 4096)));
    }

    #[test]
    fn text_is_printable_and_does_not_repeat_when_it_is_long() {
        let bytes = whole(&Content::new(7, 0, "/x", 1 << 20));
        assert!(
            bytes[3..]
                .iter()
                .all(|&byte| byte == b'\n' || (b'?'..=b'~').contains(&byte))
        );
        let mut words: Vec<&[u8]> = bytes.chunks(8).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(
            words.len(),
            (1 << 20) / 8,
            "48 random bits repeat once in 2^48 / 2^34"
        );
    }

    proptest! {
        #[test]
        fn piece_computed_alone_equals_that_of_the_whole_file(
            size in 0_u64..9000, from in 0_u64..9000, length in 0_usize..9000, path in "/[a-z]{0,20}", placeholders in any::<bool>()
        ) {
            let plain = Content::new(3, 5, &path, size);
            let content = if placeholders { plain.with_placeholders() } else { plain };
            let bytes = whole(&content);
            let from = from.min(size);
            let to = (from as usize + length).min(bytes.len());
            let expected = &bytes[from as usize..to];
            let mut piece = vec![0; expected.len()];
            content.fill(from, &mut piece);
            prop_assert_eq!(&piece, expected);
            prop_assert!(content.matches(from, expected));
            prop_assert_eq!(content.checksum(), checksum::of(&bytes));
            if let Some(last) = piece.last_mut() {
                *last ^= 1;
                prop_assert!(!content.matches(from, &piece));
            }
        }
    }

    #[test]
    fn placeholders_are_where_the_application_expects_them() {
        let plain = whole(&Content::new(1, 13, "/dir00000/class1_9", 9216));
        let mut text = whole(&Content::new(1, 13, "/dir00000/class1_9", 9216).with_placeholders());
        let placeholder = "<img ad src=\"/dir00000/class0_0\">";
        for at in [512, 5632] {
            assert_eq!(&text[at..at + 33], placeholder.as_bytes());
            text[at..at + 33].copy_from_slice(&plain[at..at + 33]);
        }
        assert_eq!(text, plain, "nothing else differs");
    }

    #[test]
    fn bytes_beyond_the_end_do_not_match() {
        let content = Content::new(1, 1, "/a", 10);
        let mut bytes = [0; 11];
        content.fill(0, &mut bytes);
        assert!(content.matches(0, &bytes[..10]));
        assert!(!content.matches(0, &bytes));
    }
}
