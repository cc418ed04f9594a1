//! What is in a directory, for a listing page. Helpers only: it waits.

use crate::answer::Failure;
use crate::root::{RootId, Roots};
use os::open::{Names, look};
use rustix::fd::AsFd;
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, openat2};

/// No listing has more entries; what is beyond is left out and [`Directory::truncated`] says so.
pub const ENTRIES_MAX: usize = 10_000;

/// A directory's entries, sorted by name with directories first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Directory {
    /// The root it is in.
    pub root: RootId,
    /// Its path beneath the root, with the trailing slash unless it is the root itself.
    pub path: Vec<u8>,
    /// What is in it. Names that begin with a dot, and everything that could not be sent (FIFOs,
    /// devices, links out of the root), are left out.
    pub entries: Vec<DirectoryEntry>,
    /// There were more than [`ENTRIES_MAX`] entries.
    pub truncated: bool,
}

/// One name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryEntry {
    /// The name as the file system has it: any bytes but NUL and slash.
    pub name: Vec<u8>,
    /// What a request for it would find, symbolic links followed.
    pub kind: EntryKind,
    /// Length in bytes; of no meaning for directories.
    pub size: u64,
    /// Last change of the contents: seconds since 1970.
    pub modified: i64,
}

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
}

/// Read the directory `path` beneath its root.
pub(crate) fn read_directory(
    roots: &Roots,
    root: RootId,
    path: &[u8],
) -> Result<Directory, Failure> {
    let known = roots.get(root).ok_or(Failure::NotFound)?;
    let name = if path.is_empty() { b"." } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let confined = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let descriptor = openat2(known.as_fd(), name, flags, Mode::empty(), confined)
        .map_err(Failure::from_errno)?;
    let mut directory = Directory {
        root,
        path: path.to_vec(),
        entries: Vec::new(),
        truncated: false,
    };
    let mut whole = path.to_vec();
    for entry in Dir::read_from(&descriptor).map_err(Failure::from_errno)? {
        let entry = entry.map_err(Failure::from_errno)?;
        let name = entry.file_name().to_bytes();
        if name.starts_with(b".") {
            continue;
        }
        if directory.entries.len() == ENTRIES_MAX {
            directory.truncated = true;
            break;
        }
        // Looked up from the root, like a request for it: a link out of the root must not show what
        // it leads to.
        whole.truncate(path.len());
        whole.extend(name);
        let Ok(Some((_, status))) = look(known.as_fd(), &whole, Names::All) else {
            continue;
        };
        let kind = match status.kind {
            FileType::Directory => EntryKind::Directory,
            FileType::RegularFile => EntryKind::File,
            _ => continue,
        };
        let modified = status.modified.0;
        directory.entries.push(DirectoryEntry {
            name: name.to_vec(),
            kind,
            size: status.size,
            modified,
        });
    }
    directory
        .entries
        .sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
    Ok(directory)
}
