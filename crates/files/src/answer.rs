//! What resolving a name can answer.

use crate::file::{Meta, OpenFile};
use rustix::io::Errno;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;

/// The answer to "what is this path?".
#[derive(Clone, Debug)]
pub enum Answer {
    /// A regular file, open.
    File(Box<FoundFile>),
    /// A directory requested without its trailing slash: redirect the client.
    Redirect,
    /// A directory without an index file: send a listing, if listings are enabled.
    Directory,
    /// Nothing to send, and why.
    Failed(Failure),
}

impl Answer {
    /// The answer may be remembered. What came from a shortage or a fault may not: it says nothing
    /// about the name.
    pub fn cacheable(&self) -> bool {
        !matches!(self, Answer::Failed(failure) if !failure.cacheable())
    }

    /// Descriptors that the answer holds open.
    pub fn descriptors(&self) -> usize {
        match self {
            Answer::File(found) => found.files().filter(|(_, file)| file.is_open()).count(),
            _ => 0,
        }
    }
}

/// A file that was found.
#[derive(Clone, Debug)]
pub struct FoundFile {
    /// The file itself.
    pub file: KnownFile,
    /// Which of the root's index names was appended to the path.
    pub index: Option<u16>,
    /// Precompressed siblings: br, zstd, gzip.
    pub siblings: [Option<KnownFile>; 3],
    /// How many siblings there are that are not used, because they are empty or older than the file.
    pub unusable: u8,
}

impl FoundFile {
    /// Each file with its number: 0 the file itself, then its siblings.
    pub(crate) fn files(&self) -> impl Iterator<Item = (usize, &KnownFile)> {
        let siblings = self.siblings.iter().enumerate();
        let siblings = siblings.filter_map(|(at, file)| Some((at + 1, file.as_ref()?)));
        std::iter::once((0, &self.file)).chain(siblings)
    }
}

impl From<FoundFile> for Answer {
    fn from(found: FoundFile) -> Answer {
        Answer::File(Box::new(found))
    }
}

/// A file that was found. It stays open as long as that is useful: if its contents are in memory,
/// the file cache may close it to stay within its limit ([`crate::FileCache`]).
#[derive(Clone, Debug)]
pub struct KnownFile {
    meta: Meta,
    open: RefCell<Option<Rc<OpenFile>>>,
}

impl KnownFile {
    /// Metadata of the file when it was found.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The file; `None` once it has been closed.
    pub fn open(&self) -> Option<Rc<OpenFile>> {
        self.open.borrow().clone()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.borrow().is_some()
    }

    /// Whether the file is also open elsewhere, or in use.
    pub(crate) fn is_in_use(&self) -> bool {
        let open = self.open.borrow();
        open.as_ref().is_some_and(|file| Rc::strong_count(file) > 1)
    }

    pub(crate) fn close(&self) {
        self.open.replace(None);
    }
}

impl From<Rc<OpenFile>> for KnownFile {
    fn from(file: Rc<OpenFile>) -> KnownFile {
        KnownFile {
            meta: *file.meta(),
            open: RefCell::new(Some(file)),
        }
    }
}

/// Why there is no file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Failure {
    /// The path does not exist, or a file was requested with a trailing slash.
    NotFound,
    /// A component, or the whole path, is longer than the file system allows.
    NameTooLong,
    /// The path is not readable, leads out of the root, or leads in a circle.
    Forbidden,
    /// A FIFO, a socket or a device; it has not been opened.
    NotRegular,
    /// The process or the system is out of descriptors or memory, or the disk of spooled data is
    /// full.
    Exhausted,
    /// The disk.
    Io,
    /// Too much is waiting already.
    Overloaded,
    /// Helper after helper died on the request.
    GivenUp,
    /// The file does not hold any more what was sent of it.
    Changed,
    /// The file server does not know the open file any more (`ESTALE`): look the name up again.
    Stale,
}

impl Failure {
    /// Whether the failure says something about the name and may be remembered.
    pub fn cacheable(self) -> bool {
        match self {
            Failure::NotFound | Failure::NameTooLong | Failure::Forbidden | Failure::NotRegular => {
                true
            }
            Failure::Exhausted
            | Failure::Io
            | Failure::Overloaded
            | Failure::GivenUp
            | Failure::Changed
            | Failure::Stale => false,
        }
    }

    /// What an errno of openat2(2) or statx(2) means for a request.
    pub(crate) fn from_errno(errno: Errno) -> Failure {
        match errno {
            // EINVAL: a NUL in the path, which no file name can contain.
            Errno::NOENT | Errno::NOTDIR | Errno::INVAL => Failure::NotFound,
            Errno::NAMETOOLONG => Failure::NameTooLong,
            // EXDEV is RESOLVE_BENEATH's answer to a path that leads out of the root.
            Errno::ACCESS | Errno::PERM | Errno::XDEV | Errno::LOOP => Failure::Forbidden,
            Errno::NXIO | Errno::NODEV => Failure::NotRegular,
            Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::TOOMANYREFS | Errno::NOBUFS => {
                Failure::Exhausted
            }
            Errno::NOSPC | Errno::DQUOT => Failure::Exhausted,
            _ => Failure::Io,
        }
    }

    /// What an error of read(2), fstat(2), mincore(2) or memfd_create(2) means: a shortage passes,
    /// a stale file may have a successor, anything else is the disk's.
    ///
    /// ```
    /// use headway_files::Failure;
    ///
    /// let error = |code| std::io::Error::from_raw_os_error(code);
    /// assert_eq!(Failure::of_read(&error(12)), Failure::Exhausted, "ENOMEM");
    /// assert_eq!(Failure::of_read(&error(5)), Failure::Io, "EIO");
    /// ```
    pub fn of_read(error: &io::Error) -> Failure {
        Errno::from_io_error(error).map_or(Failure::Io, Failure::of_read_errno)
    }

    pub(crate) fn of_read_errno(errno: Errno) -> Failure {
        match (errno, Failure::from_errno(errno)) {
            (Errno::STALE, _) => Failure::Stale,
            (_, Failure::Exhausted) => Failure::Exhausted,
            _ => Failure::Io,
        }
    }
}

/// The answer of a probe, which never waits.
#[derive(Clone, Debug)]
pub enum Probe {
    /// Known at once.
    Answered(Answer),
    /// The call would block: use a helper.
    WouldBlock,
}
