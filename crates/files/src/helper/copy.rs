//! Copies of pieces of files in memory, of pieces in memory to a spool file, and the comparison of what a
//! response has sent.

use super::bytes::{memfd, read_at, seal, write_all, write_all_at};
use super::{COPY_BYTES_MAX, Helper};
use crate::file::Meta;
use crate::sent_prefix::ContentChecksum;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::ops::Range;

/// The size of the copy buffer of a helper that has spooled: short writes cost a file system more CPU
/// time per byte.
const SPOOL_SCRATCH_BYTES: usize = 128 * 1024;

impl Helper<'_> {
    pub(super) fn copy(
        &mut self,
        file: &OwnedFd,
        offset: u64,
        length: u64,
    ) -> Result<(OwnedFd, Meta), Errno> {
        let end = offset.saturating_add(length.min(COPY_BYTES_MAX));
        let copy = memfd()?;
        let mut at = offset;
        while at < end {
            match read_at(file, &mut self.scratch, at, end)? {
                0 => break,
                count => {
                    write_all(&copy, &self.scratch[..count])?;
                    at += count as u64;
                }
            }
        }
        seal(copy)
    }

    /// Writes a piece into its spool file.
    pub(super) fn append(
        &mut self,
        piece: &OwnedFd,
        length: u64,
        file: &OwnedFd,
        offset: u64,
    ) -> Result<(), Errno> {
        if self.scratch.len() < SPOOL_SCRATCH_BYTES {
            self.scratch.resize(SPOOL_SCRATCH_BYTES, 0);
        }
        let mut at = 0;
        while at < length {
            let count = read_at(piece, &mut self.scratch, at, length)?;
            if count == 0 {
                return Err(Errno::IO);
            }
            write_all_at(file, &self.scratch[..count], offset + at)?;
            at += count as u64;
        }
        Ok(())
    }

    /// Copies `next` if the file still holds what was sent of it before. Everything that is compared
    /// is read after the copy was made. So if all of it is equal, the file held the sent bytes and the
    /// copied ones at one moment: between the last read for the copy and the first one here.
    ///
    /// # Errors
    /// `ESTALE` if something differs.
    pub(super) fn copy_checked(
        &mut self,
        file: &OwnedFd,
        sent: Range<u64>,
        checksum: u64,
        next: Range<u64>,
    ) -> Result<(OwnedFd, Meta), Errno> {
        let (copy, meta) = self.copy(file, next.start, next.end.saturating_sub(next.start))?;
        let copied = next.start..next.start.saturating_add(meta.size);
        let is_same = self.checksum(file, sent)? == checksum
            && self.checksum(file, copied)? == self.checksum(&copy, 0..meta.size)?;
        match is_same {
            true => Ok((copy, meta)),
            false => Err(Errno::STALE),
        }
    }

    /// The checksum of a range, as far as the file has it.
    fn checksum(&mut self, file: &OwnedFd, range: Range<u64>) -> Result<u64, Errno> {
        let mut checksum = ContentChecksum::new();
        let mut at = range.start;
        while at < range.end {
            match read_at(file, &mut self.scratch, at, range.end)? {
                0 => break,
                count => {
                    checksum.update(&self.scratch[..count]);
                    at += count as u64;
                }
            }
        }
        Ok(checksum.value())
    }
}
