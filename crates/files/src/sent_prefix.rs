//! What a response has sent of its file, so that it can go on when the file changes.
//!
//! A log is appended to while it is sent, and a file can be touched. Its size and modification time
//! do not tell that from a rewrite in place. So a response keeps a checksum of what it has sent. When
//! the file changes, a helper compares it with the file ([`crate::Pool::submit_checked_copy`]). It
//! does so after it has copied the bytes that follow: if both are equal, sent bytes and copy are what
//! the file held at the moment between.
//!
//! A log may grow faster than a comparison takes. So after the first comparison the response goes on
//! unchecked until twice as much has been sent, and the end of the body is always checked. All
//! comparisons of a response together read at most about three times its length, and a *complete*
//! body is always what the file held at one moment.

use crate::file::{Meta, Version};
use crate::residency::CHUNK_BYTES;
use std::fmt;
use std::hash::Hasher;
use std::ops::Range;
use twox_hash::xxhash3_64;

/// A checksum of a part of a file: XXH3 with 64 bits. It detects accidents, which is what a rewrite
/// during a download is.
///
/// ```
/// use headway_files::ContentChecksum;
///
/// let (mut whole, mut parts) = (ContentChecksum::new(), ContentChecksum::new());
/// whole.update(b"a log line");
/// parts.update(b"a log ");
/// parts.update(b"line");
/// assert_eq!(parts.value(), whole.value());
/// ```
#[derive(Clone)]
pub struct ContentChecksum(xxhash3_64::Hasher);

impl ContentChecksum {
    /// The checksum of no bytes.
    pub fn new() -> ContentChecksum {
        ContentChecksum(xxhash3_64::Hasher::new())
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// The checksum of all bytes so far.
    pub fn value(&self) -> u64 {
        self.0.finish()
    }
}

impl Default for ContentChecksum {
    fn default() -> ContentChecksum {
        ContentChecksum::new()
    }
}

impl fmt::Debug for ContentChecksum {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ContentChecksum({:#x})", self.value())
    }
}

/// The file is shorter than it was when it was opened, or cannot be compared: the response ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Truncated;

/// The part of its file that a response has sent.
#[derive(Clone, Debug)]
pub struct SentPrefix {
    range: Range<u64>,
    checksum: ContentChecksum,
    /// Device and inode of the file.
    file: (u64, u64),
    /// The version that was opened.
    opened: Version,
    /// The version that was last seen.
    seen: Version,
    /// Bytes of more than one range were sent, so the checksum says nothing.
    has_gap: bool,
    /// Something may differ from what was sent.
    is_unchecked: bool,
    /// The number of bytes that were equal at the last comparison.
    checked_bytes: u64,
    /// A helper is comparing.
    is_being_checked: bool,
}

impl SentPrefix {
    /// Nothing has been sent of a file that was this when it was opened; sending begins at `start`.
    pub fn new(file: &Meta, start: u64) -> SentPrefix {
        let opened = file.version();
        SentPrefix {
            range: start..start,
            checksum: ContentChecksum::new(),
            file: (file.device, file.inode),
            opened,
            seen: opened,
            has_gap: false,
            is_unchecked: false,
            checked_bytes: 0,
            is_being_checked: false,
        }
    }

    /// Whether this is about that file. A response may have parts of several.
    pub fn is_of(&self, file: &Meta) -> bool {
        self.file == (file.device, file.inode) && self.opened == file.version()
    }

    /// Adds bytes that were sent, which stand at `offset` in the file.
    pub fn add(&mut self, offset: u64, bytes: &[u8]) {
        self.has_gap |= offset != self.range.end;
        self.range.end = offset + bytes.len() as u64;
        self.checksum.update(bytes);
    }

    /// Notes the version of the file after bytes were read that will be sent next. Bytes of the
    /// version seen last belong to what was sent; others have to be compared.
    ///
    /// # Errors
    /// [`Truncated`].
    pub fn note(&mut self, version: Version) -> Result<(), Truncated> {
        if version == self.seen {
            return Ok(());
        }
        if version.size < self.opened.size || self.has_gap {
            return Err(Truncated);
        }
        self.is_unchecked = true;
        if version != self.opened {
            self.seen = version;
        }
        Ok(())
    }

    /// Notes that bytes will be sent next of which the version is not known.
    pub fn note_unknown(&mut self) {
        self.is_unchecked |= self.seen != self.opened;
    }

    /// Whether what was sent must be compared before the rest of the body, `left`, goes on.
    pub fn is_due(&self, left: &Range<u64>) -> bool {
        let sent = self.range.end - self.range.start;
        self.is_unchecked
            && (sent >= 2 * self.checked_bytes || left.end - left.start <= CHUNK_BYTES)
    }

    /// How far the body, of which `left` is left, may be sent now. What comes behind is sent only
    /// after a comparison.
    pub fn sendable_end(&self, left: &Range<u64>) -> u64 {
        match self.is_unchecked {
            true => left.start.max(left.end.saturating_sub(CHUNK_BYTES)),
            false => left.end,
        }
    }

    /// Whether the byte at `offset` is the next one. The next of several ranges begins elsewhere.
    pub fn ends_at(&self, offset: u64) -> bool {
        self.range.end == offset
    }

    /// Begins a comparison: the range that was sent, and its checksum.
    pub fn begin_check(&mut self) -> (Range<u64>, u64) {
        self.is_being_checked = true;
        (self.range.clone(), self.checksum.value())
    }

    /// Whether a comparison was begun; it has ended now.
    pub fn end_check(&mut self) -> bool {
        let was_checked = std::mem::take(&mut self.is_being_checked);
        if was_checked {
            self.is_unchecked = false;
            self.checked_bytes = self.range.end - self.range.start;
        }
        was_checked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(size: u64, second: i64) -> Version {
        Version {
            size,
            modified: (second, 0),
        }
    }

    const CHUNK: u64 = CHUNK_BYTES;
    const OPENED: u64 = 100 * CHUNK;

    /// A file of that inode.
    fn file(inode: u64) -> Meta {
        let Version { size, modified } = version(OPENED, 1);
        Meta {
            size,
            modified,
            changed: modified,
            device: 1,
            inode,
        }
    }

    #[test]
    fn prefix_is_of_the_file_that_was_sent_and_of_no_other() {
        let sent = SentPrefix::new(&file(7), 0);
        assert!(sent.is_of(&file(7)));
        assert!(!sent.is_of(&file(8)));
    }

    fn sent(bytes: u64) -> SentPrefix {
        let mut sent = SentPrefix::new(&file(7), 0);
        sent.add(0, &vec![0; bytes as usize]);
        sent
    }

    #[test]
    fn nothing_is_compared_while_the_file_is_the_same() {
        let mut sent = sent(10);
        assert_eq!(sent.note(version(OPENED, 1)), Ok(()));
        sent.note_unknown();
        assert!(!sent.is_due(&(10..OPENED)));
        assert_eq!(sent.sendable_end(&(10..OPENED)), OPENED);
    }

    #[test]
    fn first_change_is_compared_at_once_and_later_ones_after_twice_as_much() {
        let mut sent = sent(CHUNK);
        assert_eq!(sent.note(version(OPENED + 1, 2)), Ok(()));
        assert!(sent.is_due(&(CHUNK..OPENED)));
        assert!(!sent.end_check(), "none was begun");
        assert_eq!(sent.begin_check().0, 0..CHUNK);
        assert!(sent.end_check() && !sent.is_due(&(CHUNK..OPENED)));
        // The version that was compared.
        assert_eq!(sent.note(version(OPENED + 1, 2)), Ok(()));
        assert!(!sent.is_due(&(CHUNK..OPENED)));
        sent.note(version(OPENED + 2, 3)).unwrap();
        assert!(!sent.is_due(&(CHUNK..OPENED)));
        sent.add(CHUNK, &vec![0; CHUNK as usize]);
        assert!(sent.is_due(&(2 * CHUNK..OPENED)));
    }

    #[test]
    fn end_of_the_body_is_always_compared() {
        let mut sent = sent(CHUNK);
        sent.note(version(OPENED, 2)).unwrap();
        sent.begin_check();
        sent.end_check();
        sent.note(version(OPENED, 3)).unwrap();
        let left = CHUNK..3 * CHUNK;
        assert!(!sent.is_due(&left));
        assert_eq!(sent.sendable_end(&left), 2 * CHUNK);
        assert!(sent.is_due(&(2 * CHUNK..3 * CHUNK)));
    }

    #[test]
    fn bytes_of_the_opened_version_are_compared_after_a_newer_one() {
        let mut sent = sent(CHUNK);
        sent.note(version(OPENED, 2)).unwrap();
        sent.begin_check();
        sent.end_check();
        for note in [
            |sent: &mut SentPrefix| sent.note(version(OPENED, 1)).unwrap(),
            |sent: &mut SentPrefix| sent.note_unknown(),
        ] {
            let mut sent = sent.clone();
            note(&mut sent);
            assert!(sent.is_due(&(CHUNK..2 * CHUNK)));
            // The newer version is still the one to compare with.
            sent.begin_check();
            sent.end_check();
            sent.note(version(OPENED, 2)).unwrap();
            assert!(!sent.is_due(&(CHUNK..2 * CHUNK)));
        }
    }

    #[test]
    fn change_ends_the_response_when_the_file_is_shorter_or_several_ranges_were_sent() {
        let mut one = sent(CHUNK);
        assert_eq!(one.note(version(OPENED - 1, 2)), Err(Truncated));
        let mut several = sent(CHUNK);
        several.add(CHUNK + 1, b"second");
        assert_eq!(several.note(version(OPENED, 1)), Ok(()));
        assert_eq!(several.note(version(OPENED + 1, 2)), Err(Truncated));
        assert!(!several.ends_at(CHUNK));
    }
}
