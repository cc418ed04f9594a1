//! What is in a directory, for a listing page. Helpers only: it waits.

use crate::answer::Failure;
use crate::helper::open::retry;
use crate::helper::symlinks::{open_followed, stat_followed};
use crate::root::{Root, RootId, Roots};
use rustix::fs::{Dir, FileType, Mode, OFlags, openat};
use rustix::io::Errno;

/// Limit of entries of a listing; [`Directory::truncated`] says that there are more.
pub const ENTRIES_MAX: usize = 10_000;

/// A directory's entries, sorted by name with directories first. The renderer of
/// [`helper_main`](crate::helper_main) makes a page of it.
///
/// # Example
/// ```
/// use headway_files::{Directory, DirectoryEntry, EntryKind, RootId};
///
/// fn page(directory: &Directory) -> Vec<u8> {
///     let names = directory.entries.iter().map(|entry| entry.name.clone());
///     names.collect::<Vec<_>>().join(&b'\n')
/// }
/// let entry = DirectoryEntry { name: b"a.txt".to_vec(), kind: EntryKind::File, size: 1, modified: 0 };
/// let directory = Directory { root: RootId(0), path: b"docs/".to_vec(), entries: vec![entry], truncated: false };
/// assert_eq!(page(&directory), b"a.txt");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Directory {
    /// The root that the directory is in.
    pub root: RootId,
    /// The directory's path beneath the root, with the trailing slash unless it is the root itself.
    pub path: Vec<u8>,
    /// What is in the directory and would be sent. Left out are FIFOs, devices, links out of the
    /// root, what may not be read, what clients may not request, and names that begin with a dot,
    /// unless the root shows them.
    pub entries: Vec<DirectoryEntry>,
    /// Whether there were more than [`ENTRIES_MAX`] entries.
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
    let descriptor = retry(|| stat_followed(&known, name))
        .and_then(|(found, _)| retry(|| openat(&found, c".", flags, Mode::empty())))
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
        if is_hidden(path, name, known.rules.dotfiles) {
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
        let Ok((_, status)) = retry(|| stat_followed(&known, &whole)) else {
            continue;
        };
        let Some(kind) = kind_if_open(&known, &mut whole, status.kind) else {
            continue;
        };
        if kind == EntryKind::Directory {
            whole.truncate(path.len() + name.len());
            whole.push(b'/');
        }
        if known.is_internal(&whole) {
            continue;
        }
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

/// Whether the name is hidden. `.well-known` of the root is public (RFC 8615).
fn is_hidden(directory: &[u8], name: &[u8], dotfiles: bool) -> bool {
    match name {
        b"." | b".." => true,
        b".well-known" if directory.is_empty() => false,
        _ => name.starts_with(b".") && !dotfiles,
    }
}

/// The kind of a directory entry; `None` if it may not be read or entered. It is opened to find
/// out, since the permissions alone do not tell (capabilities, access lists, security modules).
fn kind_if_open(root: &Root, path: &mut Vec<u8>, kind: FileType) -> Option<EntryKind> {
    let (tried, kind) = match kind {
        FileType::Directory => {
            path.extend(b"/.");
            (stat_followed(root, path), EntryKind::Directory)
        }
        FileType::RegularFile => (open_followed(root, path, false), EntryKind::File),
        _ => return None,
    };
    // Any other failure says nothing about permission; a request will find out.
    (!matches!(tried, Err(Errno::ACCESS | Errno::PERM))).then_some(kind)
}
