//! The backing store of a disk: anonymous memory, or a file.
//!
//! Memory is the default, since then nothing but the model delays a request. It belongs to the disk
//! process and is counted against its control group, which is not that of the server under test. It
//! is sparse: what was never written costs nothing, and what the file system discards is given
//! back.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};

/// A sparse file of fixed size.
#[derive(Debug)]
pub(crate) struct BackingStore {
    file: File,
    size_bytes: u64,
}

impl BackingStore {
    /// All zeros. What has that name already stays as it is, and is an error. The new file has its
    /// name for a moment only, so that it goes with its process, also with one that is killed.
    pub(crate) fn new(backing: Option<&Path>, size_bytes: u64) -> io::Result<BackingStore> {
        let file = match backing {
            Some(path) => {
                let mut options = File::options();
                let file = options.read(true).write(true).create_new(true).open(path)?;
                std::fs::remove_file(path)?;
                file
            }
            None => File::from(memfd_create("headway-lab-disk", MemfdFlags::CLOEXEC)?),
        };
        file.set_len(size_bytes)?;
        Ok(BackingStore { file, size_bytes })
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// What lies there; short at the end of the disk.
    pub(crate) fn read(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<Vec<u8>> {
        let length = length_bytes.min(self.size_bytes.saturating_sub(offset_bytes));
        let mut bytes = vec![0; length as usize];
        self.file.read_exact_at(&mut bytes, offset_bytes)?;
        Ok(bytes)
    }

    /// A range beyond the end is an error.
    pub(crate) fn write(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        if offset_bytes.saturating_add(bytes.len() as u64) > self.size_bytes {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.write_all_at(bytes, offset_bytes)
    }

    /// Discards a range: it reads as zeros from then on.
    pub(crate) fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.file, flags, offset_bytes, length_bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backing_store_returns_written_bytes() {
        let backing = BackingStore::new(None, 8192).expect("memory");
        backing.write(100, b"abc").expect("room");
        assert_eq!(backing.read(99, 5).expect("there"), b"\0abc\0");
        assert_eq!(backing.read(8190, 10).expect("there").len(), 2);
        assert_eq!(backing.read(9000, 10).expect("there").len(), 0);
        assert!(backing.write(8190, b"abc").is_err());
    }

    #[test]
    fn existing_file_is_not_touched() {
        let folder = tempfile::tempdir().expect("a place for files");
        let name = folder.path().join("precious");
        std::fs::write(&name, "words").expect("room");
        assert!(BackingStore::new(Some(&name), 8192).is_err());
        assert_eq!(std::fs::read(&name).expect("it is there"), b"words");
    }

    #[test]
    fn discarded_range_reads_as_zeros() {
        let folder = tempfile::tempdir().expect("a place for files");
        let name = folder.path().join("disk");
        let backing = BackingStore::new(Some(&name), 8192).expect("room");
        assert!(!name.exists(), "the file is already unlinked");
        backing.write(0, &[7; 8192]).expect("room");
        backing.discard(4096, 4096).expect("a file with holes");
        let bytes = backing.read(0, 8192).expect("there");
        assert_eq!((bytes[4095], bytes[4096]), (7, 0));
    }
}
