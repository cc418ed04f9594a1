//! From a path to an answer: one walk, used by the loop without waiting and by helpers with
//! waiting.
//!
//! What it does, for a normalised relative path ("a/b.html", "" for the root, "dir/"): looks what
//! the name is without opening it, opens regular files, tries index names in directories, and looks
//! for precompressed siblings. Looking comes first because opening a FIFO or a device has side
//! effects.
//!
//! What it refuses: every walk that leaves the root (the kernel checks, see `headway_os::open`), and to
//! open anything but regular files. With the loop's [`resolve_cached`], to wait: an `EAGAIN` at any
//! step is [`Probe::WouldBlock`], and a helper walks the path again from the start.

use crate::answer::{Answer, Failure, FoundFile, KnownFile, Probe};
use crate::file::{Meta, OpenFile};
use crate::retire::RetireList;
use crate::root::{Root, RootId, Roots};
use headway_os::open::{Names, Status, look, open_to_read};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::FileType;
use rustix::io::Errno;
use std::rc::Rc;
use std::time::Duration;

/// Suffixes of precompressed siblings, in the order of [`FoundFile::siblings`].
pub(crate) const SIBLING_SUFFIXES: [&[u8]; 3] = [b".br", b".zst", b".gz"];

/// How often to look and open again when the name changes in between, or a rename races.
pub(crate) const RACES_MAX: u32 = 4;

/// An answer whose files are `F`: open files for the loop, plain descriptors in a helper, only
/// their [`Meta`] when an answer is checked again.
#[derive(Debug, PartialEq, Eq)]
pub enum RawAnswer<F> {
    /// A regular file.
    File {
        /// The file.
        file: F,
        /// Which index name was appended.
        index: Option<u16>,
        /// Precompressed siblings: br, zstd, gzip.
        siblings: [Option<F>; 3],
    },
    /// A directory asked for without its slash.
    Redirect,
    /// A directory without an index file.
    Directory,
    /// Nothing to send.
    Failed(Failure),
}

impl From<RawAnswer<Rc<OpenFile>>> for Answer {
    fn from(answer: RawAnswer<Rc<OpenFile>>) -> Answer {
        match answer {
            RawAnswer::File {
                file,
                index,
                siblings,
            } => Answer::from(FoundFile {
                file: file.into(),
                index,
                siblings: siblings.map(|sibling| sibling.map(KnownFile::from)),
            }),
            RawAnswer::Redirect => Answer::Redirect,
            RawAnswer::Directory => Answer::Directory,
            RawAnswer::Failed(failure) => Answer::Failed(failure),
        }
    }
}

/// A file opened by a helper, ready to be passed on.
#[derive(Debug)]
pub struct RawFile {
    /// Opened for reading.
    pub descriptor: OwnedFd,
    /// What it is.
    pub meta: Meta,
}

/// Why a walk stopped early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A step would wait.
    WouldBlock,
    /// The name answers with a failure.
    Failed(Failure),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Failed(Failure::from_errno(errno))
    }
}

/// The two system calls a walk is made of.
pub(crate) trait Opener {
    /// What an opened file is to the caller.
    type File;
    /// Find out what a name is without opening it.
    fn look(&self, root: &Root, path: &[u8]) -> Result<Status, Stop>;
    /// Open the regular file that `look` has seen.
    fn open(&self, root: &Root, path: &[u8], seen: &Status) -> Result<Self::File, Stop>;
    /// Whether this sibling is taken to be absent, unseen.
    fn passes_over(&self, _sibling: usize) -> bool {
        false
    }
}

/// Resolve `path` beneath `root` without ever waiting; for the event loop.
///
/// Some failures the kernel never answers from its cache, whatever has been asked before: a file
/// used as a directory, a directory that may not be entered, `..` out of the root, a name that is
/// too long. They are `WouldBlock` each time; [`crate::Names`] spares the helpers the repeats.
/// Descriptors that are not part of the answer go to `retire`.
///
/// # Example
/// ```
/// use headway_files::{Answer, Probe, RetireList, RootConfig, RootId, Roots, resolve_cached};
/// let site = RootConfig { directory: "/proc/self/fdinfo".into(), index: vec![], siblings: false, dotfiles: false };
/// let roots = Roots::open(&[site])?;
/// // A helper is asked where this answers `WouldBlock`.
/// match resolve_cached(&roots, RootId(0), b"", &RetireList::new()) {
///     Probe::Answered(Answer::Directory) | Probe::WouldBlock => {}
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), headway_files::RootError>(())
/// ```
pub fn resolve_cached(roots: &Roots, root: RootId, path: &[u8], retire: &RetireList) -> Probe {
    let answer = resolve(&CachedOpener { roots, retire }, roots, root, path);
    answer.map_or(Probe::WouldBlock, |answer| Probe::Answered(answer.into()))
}

/// Resolve `path` beneath `root`, waiting as long as it takes; for helpers only.
pub fn resolve_blocking(roots: &Roots, root: RootId, path: &[u8]) -> RawAnswer<RawFile> {
    // The blocking opener never stops with WouldBlock; if it did, the client would see an error.
    resolve(&BlockingOpener, roots, root, path).unwrap_or(RawAnswer::Failed(Failure::Io))
}

/// Resolve `path` beneath `root` on the event loop, waiting as long as it takes: what Flash does
/// when a helper has touched the name, in the hope that everything it needs is still in memory.
/// Nothing else may call it there.
pub fn resolve_here(roots: &Roots, root: RootId, path: &[u8], retire: &RetireList) -> Answer {
    let open = |file: RawFile| {
        let file = OpenFile::new(file.descriptor, file.meta)
            .retiring_to(retire)
            .on_overlay(roots.is_overlay(file.meta.device));
        KnownFile::from(Rc::new(file))
    };
    match resolve_blocking(roots, root, path) {
        RawAnswer::File {
            file,
            index,
            siblings,
        } => Answer::from(FoundFile {
            file: open(file),
            index,
            siblings: siblings.map(|sibling| sibling.map(open)),
        }),
        RawAnswer::Redirect => Answer::Redirect,
        RawAnswer::Directory => Answer::Directory,
        RawAnswer::Failed(failure) => Answer::Failed(failure),
    }
}

/// The walk; `None` if a step would wait.
pub(crate) fn resolve<O: Opener>(
    opener: &O,
    roots: &Roots,
    root: RootId,
    path: &[u8],
) -> Option<RawAnswer<O::File>> {
    let Some(root) = roots.get(root) else {
        return Some(RawAnswer::Failed(Failure::NotFound));
    };
    match walk(opener, root, path) {
        Ok(answer) => Some(answer),
        Err(Stop::Failed(failure)) => Some(RawAnswer::Failed(failure)),
        Err(Stop::WouldBlock) => None,
    }
}

fn walk<O: Opener>(opener: &O, root: &Root, path: &[u8]) -> Result<RawAnswer<O::File>, Stop> {
    // openat2 has no name for the directory itself but ".".
    let name = if path.is_empty() { b"." } else { path };
    let seen = opener.look(root, name)?;
    match seen.kind {
        FileType::RegularFile => with_siblings(opener, root, path, &seen, None),
        FileType::Directory if path.is_empty() || path.ends_with(b"/") => {
            index_of(opener, root, path)
        }
        FileType::Directory => Ok(RawAnswer::Redirect),
        _ => Err(Stop::Failed(Failure::NotRegular)),
    }
}

/// The first index name that exists decides; a directory of that name is passed over.
fn index_of<O: Opener>(
    opener: &O,
    root: &Root,
    directory: &[u8],
) -> Result<RawAnswer<O::File>, Stop> {
    for (position, index) in (0_u16..).zip(&root.index) {
        let path = [directory, index.as_bytes()].concat();
        let seen = match opener.look(root, &path) {
            Ok(seen) => seen,
            Err(Stop::Failed(Failure::NotFound)) => continue,
            Err(stop) => return Err(stop),
        };
        match seen.kind {
            FileType::RegularFile => {
                return with_siblings(opener, root, &path, &seen, Some(position));
            }
            FileType::Directory => {}
            _ => return Err(Stop::Failed(Failure::NotRegular)),
        }
    }
    Ok(RawAnswer::Directory)
}

fn with_siblings<O: Opener>(
    opener: &O,
    root: &Root,
    path: &[u8],
    seen: &Status,
    index: Option<u16>,
) -> Result<RawAnswer<O::File>, Stop> {
    let file = opener.open(root, path, seen)?;
    let mut siblings = [None, None, None];
    if root.siblings {
        for (at, suffix) in SIBLING_SUFFIXES.iter().enumerate() {
            if !opener.passes_over(at) {
                siblings[at] = open_sibling(opener, root, &[path, suffix].concat())?;
            }
        }
    }
    Ok(RawAnswer::File {
        file,
        index,
        siblings,
    })
}

/// A sibling that is missing or unusable is no sibling: the file itself can still be sent. Only a
/// shortage of descriptors fails the whole, so that the poorer answer is not remembered.
fn open_sibling<O: Opener>(opener: &O, root: &Root, path: &[u8]) -> Result<Option<O::File>, Stop> {
    let opened = opener.look(root, path).and_then(|seen| match seen.kind {
        FileType::RegularFile => opener.open(root, path, &seen),
        _ => Err(Stop::Failed(Failure::NotRegular)),
    });
    match opened {
        Ok(file) => Ok(Some(file)),
        Err(stop @ (Stop::WouldBlock | Stop::Failed(Failure::Exhausted))) => Err(stop),
        Err(Stop::Failed(_)) => Ok(None),
    }
}

/// What the name is, from the kernel's cache alone; shared with revalidation.
pub(crate) fn look_cached(root: &Root, path: &[u8], retire: &RetireList) -> Result<Status, Stop> {
    let Some((descriptor, status)) = look(root.as_fd(), path, Names::Cached)? else {
        return Err(Stop::WouldBlock);
    };
    // Unlinked since: ours may be the last reference, and dropping it frees the blocks.
    if status.links == 0 {
        retire.push(descriptor);
    }
    Ok(status)
}

pub(crate) fn is_same_file(seen: &Status, opened: &Status) -> bool {
    opened.kind == FileType::RegularFile
        && (opened.device, opened.inode) == (seen.device, seen.inode)
}

/// The loop's opener: nothing waits.
struct CachedOpener<'l> {
    roots: &'l Roots,
    retire: &'l RetireList,
}

impl Opener for CachedOpener<'_> {
    type File = Rc<OpenFile>;

    fn look(&self, root: &Root, path: &[u8]) -> Result<Status, Stop> {
        look_cached(root, path, self.retire)
    }

    fn open(&self, root: &Root, path: &[u8], seen: &Status) -> Result<Rc<OpenFile>, Stop> {
        if !self.roots.opens_at_once(seen.device) {
            return Err(Stop::WouldBlock);
        }
        // Reading with access times on could write the inode, which waits. EPERM says that they
        // cannot be left alone: the helper opens such a file and reads a byte, and pays that wait.
        let opened = match open_to_read(root.as_fd(), path, Names::Cached, true) {
            Ok(Some(opened)) => opened,
            Ok(None) | Err(Errno::PERM) => return Err(Stop::WouldBlock),
            Err(errno) => return Err(errno.into()),
        };
        let (descriptor, status) = opened;
        let file = OpenFile::new(descriptor, status.into())
            .retiring_to(self.retire)
            .on_overlay(self.roots.is_overlay(status.device));
        // Another file took the name in between. A helper can try as often as it likes.
        if is_same_file(seen, &status) {
            Ok(Rc::new(file))
        } else {
            Err(Stop::WouldBlock)
        }
    }
}

/// The helper's opener: everything may wait.
struct BlockingOpener;

impl Opener for BlockingOpener {
    type File = RawFile;

    fn look(&self, root: &Root, path: &[u8]) -> Result<Status, Stop> {
        let found = patiently(|| look(root.as_fd(), path, Names::All))?;
        found
            .map(|(_, status)| status)
            .ok_or(Stop::Failed(Failure::Io))
    }

    fn open(&self, root: &Root, path: &[u8], seen: &Status) -> Result<RawFile, Stop> {
        let mut expected = *seen;
        for _ in 0..RACES_MAX {
            let (descriptor, status) = open_touching(root, path)?;
            if is_same_file(&expected, &status) {
                return Ok(RawFile {
                    descriptor,
                    meta: status.into(),
                });
            }
            expected = self.look(root, path)?;
            if expected.kind != FileType::RegularFile {
                return Err(Stop::Failed(Failure::NotRegular));
            }
        }
        Err(Stop::Failed(Failure::Io))
    }
}

/// Open without access times if that is allowed; else read one byte here, so that a due update of
/// the access time waits in this process and not in the loop.
fn open_touching(root: &Root, path: &[u8]) -> Result<(OwnedFd, Status), Stop> {
    let opened = match patiently(|| open_to_read(root.as_fd(), path, Names::All, true)) {
        Err(Errno::PERM) => {
            let opened = patiently(|| open_to_read(root.as_fd(), path, Names::All, false))?;
            if let Some((descriptor, status)) = &opened
                && status.kind == FileType::RegularFile
            {
                // A failing read is found again, and reported, when the contents are read in.
                let _ = rustix::io::pread(descriptor, &mut [0_u8; 1], 0);
            }
            opened
        }
        other => other?,
    };
    opened.ok_or(Stop::Failed(Failure::Io))
}

/// Repeat on `EAGAIN`: a rename raced with the walk, or a lease is being broken. Pauses grow to
/// 64 ms; together they stay below a quarter of a second.
fn patiently<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    for pause in [0, 1, 4, 16, 64, 64, 64] {
        match call() {
            Err(Errno::AGAIN) => std::thread::sleep(Duration::from_millis(pause)),
            other => return other,
        }
    }
    call()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::RootConfig;

    #[test]
    fn helper_is_asked_when_opening_may_wait_on_this_device() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a"), "x").unwrap();
        let config = RootConfig {
            directory: directory.path().into(),
            index: vec![],
            siblings: false,
            dotfiles: false,
        };
        let roots = Roots::open(&[config]).unwrap();
        // Roots put together by hand, as in a helper, know of no harmless devices.
        let mut unknown = Roots::default();
        let copy = roots.all()[0].directory.try_clone().unwrap();
        unknown.push(Root {
            directory: copy,
            index: vec![],
            siblings: false,
            dotfiles: false,
        });
        let ask = |roots| resolve_cached(roots, RootId(0), b"a", &RetireList::new());
        assert!(matches!(ask(&unknown), Probe::WouldBlock));
        // What needs no opening is answered all the same.
        let probe = resolve_cached(&unknown, RootId(0), b"", &RetireList::new());
        assert!(
            matches!(probe, Probe::Answered(Answer::Directory)),
            "{probe:?}"
        );
        assert!(matches!(ask(&roots), Probe::Answered(Answer::File(_))));
    }
}
