//! From a path to an answer: one walk, used by the loop without blocking and by helpers with
//! blocking.
//!
//! What it does, for a normalised relative path ("a/b.html", "" for the root, "dir/"): finds out
//! what the path is without opening it, opens regular files, tries index names in directories, and
//! looks for precompressed siblings. The status comes before the open because opening a FIFO or a
//! device has side effects.
//!
//! What it refuses: every walk that leaves the root (the kernel checks, see `headway_os::open`),
//! and to open anything but regular files. [`LoopResolver::resolve_cached`] also refuses to block:
//! an `EAGAIN` at any step is [`Probe::WouldBlock`], and a helper walks the path again from the
//! start.

use crate::answer::{Answer, Failure, FoundFile, KnownFile, Probe};
use crate::deferred_close::DeferredCloses;
use crate::file::{Meta, OpenFile};
use crate::helper::resolve_blocking;
use crate::root::{Root, RootId, Roots};
use headway_os::open::{NameLookup, Status, open_to_read, stat_path};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::FileType;
use rustix::io::Errno;
use std::rc::Rc;

/// Suffixes of precompressed siblings, in the order of [`FoundFile::siblings`].
pub(crate) const SIBLING_SUFFIXES: [&[u8]; 3] = [b".br", b".zst", b".gz"];

/// How often to repeat status and open when the file changes in between, or a rename races.
pub(crate) const RACES_MAX: u32 = 4;

/// An answer whose files are `F`: open files for the loop, plain descriptors in a helper, only
/// their [`Meta`] for a revalidation.
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
        /// How many siblings there are that are not used: see [`FoundFile::unusable`].
        unusable: u8,
    },
    /// A directory requested without its slash.
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
                unusable,
            } => Answer::from(FoundFile {
                file: file.into(),
                index,
                unusable,
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
    /// The file's metadata.
    pub meta: Meta,
}

/// Why a walk stopped early.
#[derive(Debug)]
pub(crate) enum WalkError {
    /// A step would wait.
    WouldBlock,
    /// The name answers with a failure.
    Failed(Failure),
}

impl From<Errno> for WalkError {
    fn from(errno: Errno) -> WalkError {
        WalkError::Failed(Failure::from_errno(errno))
    }
}

/// The two system calls a walk is made of.
pub(crate) trait Opener {
    /// What an opened file is to the caller.
    type File;
    /// Find out what a name is without opening it.
    fn stat_path(&self, root: &Root, path: &[u8]) -> Result<Status, WalkError>;
    /// Open the regular file that `stat_path` has seen.
    fn open(&self, root: &Root, path: &[u8], seen: &Status) -> Result<Self::File, WalkError>;
    /// Whether the sibling of this number is assumed to be missing without a probe.
    fn skips_sibling(&self, _sibling: usize) -> bool {
        false
    }
}

/// Answers for paths on the event loop, from the kernel's own cache.
///
/// # Example
/// ```
/// use headway_files::{Answer, DeferredCloses, LoopResolver, Probe, RootConfig, RootId, Roots};
/// let site = RootConfig { directory: "/proc/self/fdinfo".into(), index: vec![], siblings: false, dotfiles: false, symlinks: Default::default(), rules: vec![] };
/// let roots = Roots::open(&[site])?;
/// let resolver = LoopResolver { roots: &roots, deferred: &DeferredCloses::new() };
/// // A helper is asked where this answers `WouldBlock`.
/// match resolver.resolve_cached(RootId(0), b"") {
///     Probe::Answered(Answer::Directory) | Probe::WouldBlock => {}
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), headway_files::RootError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LoopResolver<'a> {
    /// Where paths begin.
    pub roots: &'a Roots,
    /// Takes descriptors that are not part of an answer.
    pub deferred: &'a DeferredCloses,
}

impl LoopResolver<'_> {
    /// Resolves `path` beneath `root` without ever blocking.
    ///
    /// The kernel never answers some failures from its cache: a file used as a directory, a
    /// directory that may not be entered, `..` out of the root, a path that is too long. They are
    /// `WouldBlock` each time; [`crate::FileCache`] saves the helpers the repetitions.
    pub fn resolve_cached(self, root: RootId, path: &[u8]) -> Probe {
        let root = self.roots.get(root);
        let answer = resolve(&CachedOpener(self), root.as_deref(), path);
        answer.map_or(Probe::WouldBlock, |answer| Probe::Answered(answer.into()))
    }

    /// Resolves `path` beneath `root`, blocking as long as it takes. Flash does that after a helper
    /// has warmed the caches, in the hope that everything is still in memory. Nothing else may call
    /// it on the loop.
    pub fn resolve_on_loop(self, root: RootId, path: &[u8]) -> Answer {
        let open = |file: RawFile| {
            let file = OpenFile::new(file.descriptor, file.meta)
                .with_deferred_close(self.deferred)
                .on_overlay(self.roots.is_overlay(file.meta.device));
            KnownFile::from(Rc::new(file))
        };
        match resolve_blocking(self.roots, root, path) {
            RawAnswer::File {
                file,
                index,
                siblings,
                unusable,
            } => Answer::from(FoundFile {
                file: open(file),
                index,
                unusable,
                siblings: siblings.map(|sibling| sibling.map(open)),
            }),
            RawAnswer::Redirect => Answer::Redirect,
            RawAnswer::Directory => Answer::Directory,
            RawAnswer::Failed(failure) => Answer::Failed(failure),
        }
    }
}

/// The walk; `None` if a step would wait.
pub(crate) fn resolve<O: Opener>(
    opener: &O,
    root: Option<&Root>,
    path: &[u8],
) -> Option<RawAnswer<O::File>> {
    let Some(root) = root else {
        return Some(RawAnswer::Failed(Failure::NotFound));
    };
    match (PathWalk { opener, root }).answer(path) {
        Ok(answer) => Some(answer),
        Err(WalkError::Failed(failure)) => Some(RawAnswer::Failed(failure)),
        Err(WalkError::WouldBlock) => None,
    }
}

/// A walk beneath one root.
struct PathWalk<'w, O> {
    opener: &'w O,
    root: &'w Root,
}

impl<O: Opener> PathWalk<'_, O> {
    fn answer(&self, path: &[u8]) -> Result<RawAnswer<O::File>, WalkError> {
        // openat2 has no name for the directory itself but ".".
        let name = if path.is_empty() { b"." } else { path };
        let seen = self.opener.stat_path(self.root, name)?;
        match seen.kind {
            FileType::RegularFile => self.with_siblings(path, &seen, None),
            FileType::Directory if path.is_empty() || path.ends_with(b"/") => self.index_of(path),
            FileType::Directory => Ok(RawAnswer::Redirect),
            _ => Err(WalkError::Failed(Failure::NotRegular)),
        }
    }

    /// The first index name that exists decides; a directory of that name is passed over.
    fn index_of(&self, directory: &[u8]) -> Result<RawAnswer<O::File>, WalkError> {
        for (position, index) in (0_u16..).zip(&self.root.rules.index) {
            let path = [directory, index.as_bytes()].concat();
            let seen = match self.opener.stat_path(self.root, &path) {
                Ok(seen) => seen,
                Err(WalkError::Failed(Failure::NotFound)) => continue,
                Err(stop) => return Err(stop),
            };
            match seen.kind {
                FileType::RegularFile => return self.with_siblings(&path, &seen, Some(position)),
                FileType::Directory => {}
                _ => return Err(WalkError::Failed(Failure::NotRegular)),
            }
        }
        Ok(RawAnswer::Directory)
    }

    fn with_siblings(
        &self,
        path: &[u8],
        seen: &Status,
        index: Option<u16>,
    ) -> Result<RawAnswer<O::File>, WalkError> {
        let file = self.opener.open(self.root, path, seen)?;
        let (mut siblings, mut unusable) = ([None, None, None], 0);
        if self.root.rules.siblings {
            for (at, suffix) in SIBLING_SUFFIXES.iter().enumerate() {
                if self.opener.skips_sibling(at) {
                    continue;
                }
                match self.open_sibling(&[path, suffix].concat(), seen)? {
                    Sibling::Found(file) => siblings[at] = Some(file),
                    Sibling::Unusable => unusable += 1,
                    Sibling::Missing => {}
                }
            }
        }
        Ok(RawAnswer::File {
            file,
            index,
            siblings,
            unusable,
        })
    }

    /// A sibling that is missing or unusable is no sibling: the file itself can still be sent. Only
    /// a shortage of descriptors fails the whole, so that the poorer answer is not remembered.
    fn open_sibling(&self, path: &[u8], original: &Status) -> Result<Sibling<O::File>, WalkError> {
        let opened = self
            .opener
            .stat_path(self.root, path)
            .and_then(|seen| match seen.kind {
                FileType::RegularFile if is_stale(&seen, original) => Ok(Sibling::Unusable),
                FileType::RegularFile => {
                    let file = self.opener.open(self.root, path, &seen)?;
                    Ok(Sibling::Found(file))
                }
                _ => Err(WalkError::Failed(Failure::NotRegular)),
            });
        match opened {
            Ok(sibling) => Ok(sibling),
            Err(stop @ (WalkError::WouldBlock | WalkError::Failed(Failure::Exhausted))) => {
                Err(stop)
            }
            Err(WalkError::Failed(_)) => Ok(Sibling::Missing),
        }
    }
}

/// What there is of a precompressed sibling.
enum Sibling<F> {
    Found(F),
    Unusable,
    Missing,
}

/// Whether a sibling cannot be a coded form of this original: no coding makes nothing of something, and an
/// older one is of an earlier version. A tool may have cut its time to a second.
fn is_stale(sibling: &Status, original: &Status) -> bool {
    let original_time = match sibling.modified.1 {
        0 => (original.modified.0, 0),
        _ => original.modified,
    };
    sibling.size == 0 || sibling.modified < original_time
}

/// What the name is, from the kernel's cache alone; shared with revalidation.
pub(crate) fn stat_cached(
    root: &Root,
    path: &[u8],
    deferred: &DeferredCloses,
) -> Result<Status, WalkError> {
    let symlinks = root.rules.symlinks;
    let found = stat_path(root.as_fd(), path, NameLookup::CachedOnly, symlinks.links());
    let (descriptor, status) = match found {
        Ok(Some(found)) => found,
        Ok(None) => return Err(WalkError::WouldBlock),
        Err(errno) if symlinks.needs_helper(errno) => return Err(WalkError::WouldBlock),
        Err(errno) => return Err(errno.into()),
    };
    // Unlinked since: ours may be the last reference, and dropping it frees the blocks.
    if status.links == 0 {
        deferred.push(descriptor);
    }
    Ok(status)
}

pub(crate) fn is_same_file(seen: &Status, opened: &Status) -> bool {
    opened.kind == FileType::RegularFile
        && (opened.device, opened.inode) == (seen.device, seen.inode)
}

/// The loop's opener: nothing waits.
struct CachedOpener<'l>(LoopResolver<'l>);

impl Opener for CachedOpener<'_> {
    type File = Rc<OpenFile>;

    fn stat_path(&self, root: &Root, path: &[u8]) -> Result<Status, WalkError> {
        stat_cached(root, path, self.0.deferred)
    }

    fn open(&self, root: &Root, path: &[u8], seen: &Status) -> Result<Rc<OpenFile>, WalkError> {
        if !self.0.roots.opens_at_once(seen.device) {
            return Err(WalkError::WouldBlock);
        }
        // Opening with access times could write the inode when the file is read, which blocks.
        // EPERM says that they cannot be suppressed: then a helper opens the file, reads a byte,
        // and takes that wait.
        let (lookup, symlinks) = (NameLookup::CachedOnly, root.rules.symlinks);
        let opened = match open_to_read(root.as_fd(), path, lookup, symlinks.links(), true) {
            Ok(Some(opened)) => opened,
            Ok(None) | Err(Errno::PERM) => return Err(WalkError::WouldBlock),
            Err(errno) if symlinks.needs_helper(errno) => return Err(WalkError::WouldBlock),
            Err(Errno::ACCESS) if self.0.roots.may_be_closed() => {
                return Err(WalkError::WouldBlock);
            }
            Err(errno) => return Err(errno.into()),
        };
        let (descriptor, status) = opened;
        let file = OpenFile::new(descriptor, status.into())
            .with_deferred_close(self.0.deferred)
            .on_overlay(self.0.roots.is_overlay(status.device));
        // Another file took the name in between. A helper can try as often as it likes.
        if is_same_file(seen, &status) {
            Ok(Rc::new(file))
        } else {
            Err(WalkError::WouldBlock)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::{RootConfig, RootRules};

    #[test]
    fn helper_opens_a_file_when_its_device_may_block() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a"), "x").unwrap();
        let config = RootConfig {
            directory: directory.path().into(),
            index: vec![],
            siblings: false,
            dotfiles: false,
            symlinks: Default::default(),
            rules: Vec::new(),
        };
        let roots = Roots::open(&[config]).unwrap();
        // Roots put together by hand, as in a helper, know of no harmless devices.
        let mut unknown = Roots::default();
        let known = roots.get(RootId(0)).unwrap();
        let copy = known.as_fd().try_clone_to_owned().unwrap();
        unknown.put(RootId(0), Root::new(copy, RootRules::default()));
        let deferred = DeferredCloses::new();
        let resolve = |roots, path: &[u8]| {
            let deferred = &deferred;
            LoopResolver { roots, deferred }.resolve_cached(RootId(0), path)
        };
        assert!(matches!(resolve(&unknown, b"a"), Probe::WouldBlock));
        // What needs no opening is answered all the same.
        let probe = resolve(&unknown, b"");
        assert!(
            matches!(probe, Probe::Answered(Answer::Directory)),
            "{probe:?}"
        );
        assert!(matches!(
            resolve(&roots, b"a"),
            Probe::Answered(Answer::File(_))
        ));
    }
}
