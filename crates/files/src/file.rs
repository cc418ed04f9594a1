//! An open regular file and what it was when it was opened.

use crate::retire::RetireList;
use headway_os::open::{Status, status};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::cell::Cell;
use std::io;

/// The facts about a file that a response is built from. Two equal `Meta`s mean the same file with
/// the same contents, as far as the file system's time stamps can tell.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
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

/// What is known of a file's answer to `RWF_NOWAIT`; it belongs to the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Nowait {
    /// Not asked yet.
    Unknown,
    /// It answers from memory or says that it would have to wait.
    Answers,
    /// It refuses the flag, but has no disk to wait for (tmpfs): cached pages can be read at once.
    InMemory,
    /// A memfd that a helper has just written: there is nothing to ask.
    Memfd,
    /// It refuses the flag, and its cached pages are those of another file, which mincore sees
    /// through a mapping (overlay).
    Layered,
    /// It refuses the flag and may wait even for cached pages (network file systems, FUSE).
    Refuses,
}

/// An open regular file, shared as `Rc<OpenFile>`.
///
/// Dropping the last one does not close it on the spot if it has a [`RetireList`]: see there.
#[derive(Debug)]
pub struct OpenFile {
    /// Present until dropped.
    descriptor: Option<OwnedFd>,
    meta: Meta,
    nowait: Cell<Nowait>,
    overlay: bool,
    retire: Option<RetireList>,
}

impl OpenFile {
    /// An open file that closes in place when dropped.
    pub fn new(descriptor: OwnedFd, meta: Meta) -> OpenFile {
        OpenFile {
            descriptor: Some(descriptor),
            meta,
            nowait: Cell::new(Nowait::Unknown),
            overlay: false,
            retire: None,
        }
    }

    /// The same file, handed to `list` instead of being closed.
    pub fn retiring_to(mut self, list: &RetireList) -> OpenFile {
        self.retire = Some(list.clone());
        self
    }

    /// The same file, known to be on an overlay or not.
    pub(crate) fn on_overlay(mut self, overlay: bool) -> OpenFile {
        self.overlay = overlay;
        self
    }

    pub(crate) fn is_on_overlay(&self) -> bool {
        self.overlay
    }

    /// The same file, known to be a memfd: it is in memory by nature, so nothing needs to be
    /// probed.
    pub(crate) fn memfd(self) -> OpenFile {
        self.nowait.set(Nowait::Memfd);
        self
    }

    /// It is memory that a helper has filled: there is no disk to wait for.
    pub fn is_memory(&self) -> bool {
        self.nowait.get() == Nowait::Memfd
    }

    /// What the file was when it was opened.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The contents are still those it was opened with, by size and modification time. The loop
    /// asks between two windows of a body, so that a file rewritten in place is never sent mixed.
    ///
    /// The inode's change time is left out on purpose: a rename over the file, an unlink or a chmod
    /// change it, but not the bytes.
    ///
    /// # Errors
    /// As statx(2); does not wait (`AT_STATX_DONT_SYNC`).
    pub fn unchanged(&self) -> io::Result<bool> {
        let now = status(self)?;
        Ok(now.size == self.meta.size && now.modified == self.meta.modified)
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
        if let (Some(descriptor), Some(list)) = (self.descriptor.take(), &self.retire) {
            list.push(descriptor);
        }
    }
}
