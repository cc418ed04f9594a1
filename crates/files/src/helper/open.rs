//! Opening cold files: the path walk of a helper, in which every step may wait for the disk.
//!
//! The walk is that of [`crate::resolve`]; this is its opener for helpers. A worker comes here
//! through [`crate::Pool::submit_lookup`], when the kernel's caches do not have the path; the open-file
//! service does as well.

use super::symlinks::{open_followed, stat_followed};
use crate::answer::Failure;
use crate::resolve::{Opener, RACES_MAX, RawAnswer, RawFile, WalkError, is_same_file, resolve};
use crate::root::{Root, RootId, Roots};
use headway_os::open::Status;
use rustix::fd::OwnedFd;
use rustix::fs::FileType;
use rustix::io::Errno;
use std::time::Duration;

/// Resolves `path` beneath `root`, blocking as long as it takes; for helpers only.
pub fn resolve_blocking(roots: &Roots, root: RootId, path: &[u8]) -> RawAnswer<RawFile> {
    resolve_with(BlockingOpener { alone: false }, roots, root, path)
}

/// As [`resolve_blocking`], without precompressed siblings.
pub(super) fn resolve_alone(roots: &Roots, root: RootId, path: &[u8]) -> RawAnswer<RawFile> {
    resolve_with(BlockingOpener { alone: true }, roots, root, path)
}

fn resolve_with(
    opener: BlockingOpener,
    roots: &Roots,
    root: RootId,
    path: &[u8],
) -> RawAnswer<RawFile> {
    // The blocking opener never stops with WouldBlock; if it did, the client would see an error.
    resolve(&opener, roots.get(root).as_deref(), path).unwrap_or(RawAnswer::Failed(Failure::Io))
}

/// The opener of a helper: everything may block.
struct BlockingOpener {
    /// Siblings are not looked for.
    alone: bool,
}

impl Opener for BlockingOpener {
    type File = RawFile;

    fn stat_path(&self, root: &Root, path: &[u8]) -> Result<Status, WalkError> {
        let (_, status) = retry(|| stat_followed(root, path))?;
        Ok(status)
    }

    fn skips_sibling(&self, _: usize) -> bool {
        self.alone
    }

    fn open(&self, root: &Root, path: &[u8], seen: &Status) -> Result<RawFile, WalkError> {
        let mut expected = *seen;
        for _ in 0..RACES_MAX {
            let (descriptor, status) = open_without_atime(root, path)?;
            if is_same_file(&expected, &status) {
                return Ok(RawFile {
                    descriptor,
                    meta: status.into(),
                });
            }
            expected = self.stat_path(root, path)?;
            if expected.kind != FileType::RegularFile {
                return Err(WalkError::Failed(Failure::NotRegular));
            }
        }
        Err(WalkError::Failed(Failure::Io))
    }
}

/// Open without access times if that is allowed; else read one byte here, so that a due update of
/// the access time waits in this process and not in the loop.
fn open_without_atime(root: &Root, path: &[u8]) -> Result<(OwnedFd, Status), WalkError> {
    match retry(|| open_followed(root, path, true)) {
        Err(Errno::PERM) => {
            let (descriptor, status) = retry(|| open_followed(root, path, false))?;
            if status.kind == FileType::RegularFile {
                // A failing read is found again, and reported, when the contents are read in.
                let _ = rustix::io::pread(&descriptor, &mut [0_u8; 1], 0);
            }
            Ok((descriptor, status))
        }
        other => Ok(other?),
    }
}

/// Repeat on `EAGAIN`: a rename raced with the walk, or a lease is being broken; and on `EINTR`, with
/// which a file system in user space or a network file system may answer a signal. Pauses grow to
/// 64 ms; together they stay below a quarter of a second.
pub(crate) fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    for pause in [0, 1, 4, 16, 64, 64, 64] {
        match call() {
            Err(Errno::AGAIN | Errno::INTR) => std::thread::sleep(Duration::from_millis(pause)),
            other => return other,
        }
    }
    call()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_is_repeated_when_it_was_interrupted_or_raced_and_not_when_it_failed() {
        for passing in [Errno::AGAIN, Errno::INTR] {
            let mut answers = vec![Ok(3), Err(passing), Err(passing)];
            assert_eq!(retry(|| answers.pop().unwrap()), Ok(3), "{passing}");
        }
        let mut calls = 0;
        let failed: rustix::io::Result<()> = retry(|| {
            calls += 1;
            Err(Errno::IO)
        });
        assert_eq!((failed, calls), (Err(Errno::IO), 1));
    }
}
