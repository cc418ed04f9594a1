//! An open regular file and what it was when it was opened.

use crate::deferred_close::DeferredCloses;
use headway_os::open::{Status, replace_descriptor, status};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::cell::Cell;
use std::io;

/// The metadata of a file that a response is built from. Two equal `Meta`s mean the same file with
/// the same contents, as far as the file system's time stamps show.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Meta {
    /// Length in bytes.
    pub size: u64,
    /// Last change of the contents: seconds and nanoseconds since 1970.
    pub modified: (i64, u32),
    /// Last change of the inode: contents, permissions, links.
    pub changed: (i64, u32),
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
}

impl From<Status> for Meta {
    fn from(status: Status) -> Meta {
        Meta {
            size: status.size,
            modified: status.modified,
            changed: status.changed,
            device: status.device,
            inode: status.inode,
        }
    }
}

impl Meta {
    /// The version of the contents.
    pub fn version(&self) -> Version {
        Version {
            size: self.size,
            modified: self.modified,
        }
    }
}

/// A version of a file's contents, as far as size and modification time show it.
///
/// The inode's change time is left out on purpose: a rename over the file, an unlink or a chmod
/// changes it, but not the contents.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Version {
    /// Length in bytes.
    pub size: u64,
    /// Last change of the contents: seconds and nanoseconds since 1970.
    pub modified: (i64, u32),
}

/// What is known of a file's answer to `RWF_NOWAIT`; it belongs to the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Nowait {
    /// Not probed yet.
    Unknown,
    /// The file answers from memory or says that it would have to wait.
    Answers,
    /// The file refuses the flag, but has no disk to wait for (tmpfs): cached pages can be read at
    /// once.
    InMemory,
    /// A memfd that a helper has just written, which needs no probe.
    Memfd,
    /// The file refuses the flag, and its cached pages belong to another file, which mincore sees
    /// through a mapping (overlay).
    Layered,
    /// The file refuses the flag and may wait even for cached pages (network file systems, FUSE).
    Refuses,
}

/// Whether the descriptor of an [`OpenFile`] is that of its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hold {
    Held,
    /// It was closed on purpose, and its name is known.
    LetGo,
    /// It was closed, and the name must be looked up again.
    Outdated,
}

/// An open regular file, shared as `Rc<OpenFile>`.
///
/// Dropping the last one does not close it on the spot if it has a [`DeferredCloses`]: see there.
///
/// # Example
/// ```
/// use headway_files::{DeferredCloses, Meta, OpenFile};
///
/// let file = std::fs::File::open("/proc/self/status")?;
/// let meta = Meta { size: 0, modified: (0, 0), changed: (0, 0), device: 0, inode: 1 };
/// let list = DeferredCloses::new();
/// drop(OpenFile::new(file.into(), meta).with_deferred_close(&list));
/// assert_eq!(list.len(), 1, "a helper closes it");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct OpenFile {
    /// Present until dropped.
    descriptor: Option<OwnedFd>,
    meta: Meta,
    nowait: Cell<Nowait>,
    hold: Cell<Hold>,
    overlay: bool,
    deferred: Option<DeferredCloses>,
}

impl OpenFile {
    /// An open file that is closed on the spot when dropped.
    pub fn new(descriptor: OwnedFd, meta: Meta) -> OpenFile {
        OpenFile {
            descriptor: Some(descriptor),
            meta,
            nowait: Cell::new(Nowait::Unknown),
            hold: Cell::new(Hold::Held),
            overlay: false,
            deferred: None,
        }
    }

    /// The file, whose descriptor is moved to `list` when dropped, instead of being closed.
    pub fn with_deferred_close(mut self, list: &DeferredCloses) -> OpenFile {
        self.deferred = Some(list.clone());
        self
    }

    /// The file, with the knowledge whether it is on an overlay.
    pub(crate) fn on_overlay(mut self, overlay: bool) -> OpenFile {
        self.overlay = overlay;
        self
    }

    pub(crate) fn is_on_overlay(&self) -> bool {
        self.overlay
    }

    /// The file, known to be a memfd: it is always in memory, so no probe is needed.
    pub(crate) fn memfd(self) -> OpenFile {
        self.nowait.set(Nowait::Memfd);
        self
    }

    /// Whether the file is memory that a helper has filled: there is no disk to wait for.
    pub fn is_memory(&self) -> bool {
        self.nowait.get() == Nowait::Memfd
    }

    /// What the file was when it was opened.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The version that the file has now. The loop compares it between two chunks of a body, so that
    /// a file rewritten in place is never sent as a mix of two versions.
    ///
    /// # Errors
    /// As statx(2); does not block (`AT_STATX_DONT_SYNC`).
    pub fn version(&self) -> io::Result<Version> {
        let now = status(self)?;
        Ok(Version {
            size: now.size,
            modified: now.modified,
        })
    }

    /// Whether the file has been deleted, or replaced by another one: no name leads to it, and its
    /// disk space becomes free when it is closed.
    ///
    /// # Errors
    /// As [`OpenFile::version`].
    pub fn is_deleted(&self) -> io::Result<bool> {
        Ok(self.hold.get() == Hold::Held && status(self)?.links == 0)
    }

    /// Whether the contents are still those of the time of opening.
    ///
    /// # Errors
    /// As [`OpenFile::version`].
    pub fn unchanged(&self) -> io::Result<bool> {
        match self.hold.get() {
            Hold::Held => Ok(self.version()? == self.meta.version()),
            hold => Ok(hold == Hold::LetGo),
        }
    }

    /// Closes the file; its descriptor leads to `instead` from here on. Until
    /// [`OpenFile::take_back`] the file counts as unchanged and must not be read. Only servers of the
    /// papers do this, which close a file when they have mapped it. May wait, as any last close.
    ///
    /// # Errors
    /// As dup3(2); the file then stays open.
    pub fn let_go(&self, instead: BorrowedFd<'_>) -> io::Result<()> {
        replace_descriptor(self.as_fd(), instead)?;
        self.hold.set(Hold::LetGo);
        Ok(())
    }

    /// Gives a file that was let go a descriptor again.
    ///
    /// # Errors
    /// As dup3(2).
    pub fn take_back(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        replace_descriptor(self.as_fd(), descriptor)?;
        self.hold.set(Hold::Held);
        Ok(())
    }

    /// Whether [`OpenFile::let_go`] has closed the file.
    pub fn is_let_go(&self) -> bool {
        self.hold.get() != Hold::Held
    }

    /// Has a file that was let go count as changed, so that its name is looked up again.
    pub fn outdate(&self) {
        self.hold.set(Hold::Outdated);
    }

    pub(crate) fn nowait(&self) -> Nowait {
        self.nowait.get()
    }

    pub(crate) fn set_nowait(&self, known: Nowait) {
        self.nowait.set(known);
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.descriptor {
            Some(descriptor) => descriptor.as_fd(),
            None => unreachable!("the descriptor is taken only by drop"),
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if let (Some(descriptor), Some(list)) = (self.descriptor.take(), &self.deferred) {
            list.push(descriptor);
        }
    }
}
