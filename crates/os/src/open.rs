//! Opening a name beneath a directory, with or without waiting for the file system.
//!
//! What it does: [`stat_path`] finds out what a path is without opening it for reading (`O_PATH`),
//! so that a FIFO, a socket or a device in the tree is recognised before it could have a side
//! effect; [`open_to_read`] opens it. With [`NameLookup::CachedOnly`] neither waits for the disk:
//! the kernel answers from its name cache or says `EAGAIN`, which here is the value `None`.
//!
//! What it refuses: leaving the directory, unless [`Links::Anywhere`] is asked. `RESOLVE_BENEATH` makes the kernel fail with `EXDEV` on
//! `..`, absolute lookup and symbolic links that lead out of it, and `RESOLVE_NO_MAGICLINKS` keeps
//! `/proc`-style links shut. String checks can be raced; this cannot.
//!
//! Sources: openat2(2), open(2), statx(2), posix_fadvise(2). Linux 5.12 or newer.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::{
    Advice, AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags, fadvise, openat2, statx,
};
use rustix::io::{DupFlags, Errno, Result};
use std::mem::ManuallyDrop;
use std::path::Path;

/// Flags for finding out what a path is without opening the file.
pub(crate) const STAT_FLAGS: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Which path components a lookup may resolve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameLookup {
    /// Only components that the kernel has cached (`RESOLVE_CACHED`): never blocks.
    CachedOnly,
    /// All: may block on the disk or the network.
    MayBlock,
}

/// Which symbolic links beneath the directory a lookup follows. None of them follows `/proc`-style links.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Links {
    /// Those that do not leave the directory at any step (`RESOLVE_BENEATH`).
    Beneath,
    /// None (`RESOLVE_NO_SYMLINKS`); a path with one fails with `ELOOP`.
    Refused,
    /// All, wherever they lead. The path itself has to be relative and without `..`.
    Anywhere,
}

/// What statx(2) says about an open description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// Regular file, directory, FIFO …
    pub kind: FileType,
    /// Length in bytes.
    pub size: u64,
    /// Last change of the contents: seconds and nanoseconds since 1970.
    pub modified: (i64, u32),
    /// Last change of the inode, which includes permissions and links.
    pub changed: (i64, u32),
    /// The file system's device number.
    pub device: u64,
    /// The inode number, unique on that device while the file lives.
    pub inode: u64,
    /// The user number of the owner.
    pub owner: u32,
    /// Hard links left; 0 means that closing the last descriptor frees the blocks, which can wait.
    pub links: u32,
}

/// Finds the directory that `path` leads to now, symbolic links followed; `None` if
/// [`NameLookup::CachedOnly`] was asked and a component is not cached. Only an `O_PATH` descriptor is
/// made, so nothing of the directory is read.
///
/// # Errors
/// As openat2(2).
pub fn find_directory(path: &Path, lookup: NameLookup) -> Result<Option<(OwnedFd, Status)>> {
    let flags = STAT_FLAGS | OFlags::DIRECTORY;
    let resolve = match lookup {
        NameLookup::CachedOnly => ResolveFlags::CACHED,
        NameLookup::MayBlock => ResolveFlags::empty(),
    };
    match openat2(CWD, path, flags, Mode::empty(), resolve) {
        Ok(descriptor) => {
            let status = status(&descriptor)?;
            Ok(Some((descriptor, status)))
        }
        Err(Errno::AGAIN) if lookup == NameLookup::CachedOnly => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Whether a path to a directory leads through a symbolic link; `None` if the kernel does not know without asking
/// a file system.
pub fn has_symlink_cached(path: &Path) -> Option<bool> {
    let flags = STAT_FLAGS | OFlags::DIRECTORY;
    let resolve = ResolveFlags::CACHED | ResolveFlags::NO_SYMLINKS;
    match openat2(CWD, path, flags, Mode::empty(), resolve) {
        Ok(_) => Some(false),
        Err(Errno::LOOP) => Some(true),
        Err(_) => None,
    }
}

/// Find out what `path` beneath `root` is, without opening it for reading. Returns the `O_PATH`
/// descriptor with its status; `None` if [`NameLookup::CachedOnly`] was asked and the answer is not
/// cached.
///
/// The caller decides when to drop the descriptor: with `links` at 0 that may wait for the disk.
///
/// # Errors
/// As openat2(2); `EXDEV` for a path that leads out of `root`, `EAGAIN` with
/// [`NameLookup::MayBlock`] when a rename raced with the walk (try again).
pub fn stat_path(
    root: BorrowedFd<'_>,
    path: &[u8],
    lookup: NameLookup,
    links: Links,
) -> Result<Option<(OwnedFd, Status)>> {
    let resolve = resolve(lookup, links);
    match openat2(root, path, STAT_FLAGS, Mode::empty(), resolve) {
        Ok(descriptor) => {
            let status = status(&descriptor)?;
            Ok(Some((descriptor, status)))
        }
        Err(Errno::AGAIN) if lookup == NameLookup::CachedOnly => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Open `path` beneath `root` for reading, with access-time updates off (`O_NOATIME`) if
/// `no_access_time`; `None` if [`NameLookup::CachedOnly`] was asked and it cannot be done at once.
///
/// `O_NONBLOCK` keeps a FIFO or a leased file from holding the call, `O_NOCTTY` a terminal from
/// becoming ours. Random-access advice switches readahead off for this description: a send on the
/// event loop then never starts disk reads of its own, and a helper reads in exactly what
/// it needs.
///
/// # Errors
/// As openat2(2); `EPERM` when access times cannot be kept because the file is another
/// user's.
pub fn open_to_read(
    root: BorrowedFd<'_>,
    path: &[u8],
    lookup: NameLookup,
    links: Links,
    no_access_time: bool,
) -> Result<Option<(OwnedFd, Status)>> {
    let flags = read_flags(no_access_time);
    match openat2(root, path, flags, Mode::empty(), resolve(lookup, links)) {
        Ok(descriptor) => opened_to_read(descriptor).map(Some),
        Err(Errno::AGAIN) if lookup == NameLookup::CachedOnly => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// How a name is opened for reading.
pub(crate) fn read_flags(no_access_time: bool) -> OFlags {
    let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    flags.set(OFlags::NOATIME, no_access_time);
    flags
}

/// What [`open_to_read`] does once the file is open: its status, and the advice. Neither waits.
///
/// # Errors
/// As statx(2).
pub fn opened_to_read(descriptor: OwnedFd) -> Result<(OwnedFd, Status)> {
    let status = status(&descriptor)?;
    // Only regular files take advice; for anything else this fails and does not matter.
    let _ = fadvise(&descriptor, 0, None, Advice::Random);
    Ok((descriptor, status))
}

/// Has a descriptor lead to what `with` leads to, and closes what it led to before. The number stays, so
/// the borrowed descriptor is valid all the time.
///
/// # Errors
/// As dup3(2); nothing has changed then.
pub fn replace_descriptor(descriptor: BorrowedFd<'_>, with: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: the descriptor is open, and is not closed at the end of this function. dup3 keeps its number
    // open throughout.
    let owned = unsafe { OwnedFd::from_raw_fd(descriptor.as_raw_fd()) };
    let mut owned = ManuallyDrop::new(owned);
    rustix::io::dup3(with, &mut owned, DupFlags::CLOEXEC)
}

/// The status of an open descriptor as the kernel has it in memory: `AT_STATX_DONT_SYNC` keeps a
/// network file system from asking its server.
///
/// # Errors
/// As statx(2).
pub fn status(descriptor: impl AsFd) -> Result<Status> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(descriptor, c"", flags, StatxFlags::BASIC_STATS)?;
    Ok(Status {
        kind: FileType::from_raw_mode(u32::from(found.stx_mode)),
        size: found.stx_size,
        modified: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
        changed: (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec),
        device: rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        owner: found.stx_uid,
        links: found.stx_nlink,
    })
}

pub(crate) fn resolve(lookup: NameLookup, links: Links) -> ResolveFlags {
    let confined = match links {
        Links::Beneath => ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
        Links::Refused => ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
        Links::Anywhere => ResolveFlags::NO_MAGICLINKS,
    };
    match lookup {
        NameLookup::CachedOnly => confined | ResolveFlags::CACHED,
        NameLookup::MayBlock => confined,
    }
}
