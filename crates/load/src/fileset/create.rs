//! Writes a file set: decides first whether it may and can, then writes with several threads, and
//! can be interrupted at any moment.
//!
//! The order makes it resumable: the manifest is written first, as *not complete*; then files, each
//! under a name that must not exist yet; then everything is synced to disk; then the manifest says
//! *complete*. Run the same command again to continue an incomplete set: files of the right length
//! are kept, and a shorter file with the right content so far is rewritten.
//!
//! A set for dynamic content gets the application's own files at the end, unless they are there:
//! those change while it is used, so they are none of the set's (`dynamic`).
//!
//! Refused: a directory with anything in it that is not the set (but `lost+found`, which belongs to
//! a file system), a set of other numbers, a file under our name that we did not write, too little
//! room. Nothing is ever overwritten.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::num::NonZeroUsize;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use headway_specweb_files::state_directory::STATE_NAME;
use rustix::fs::{FlockOperation, flock, fstatvfs, syncfs};
use rustix::io::Errno;

use super::amount::Amount;
use super::content::Content;
use super::dynamic::make_state;
use super::manifest::{self, LIST_NAME, MANIFEST_NAME, Manifest, ManifestError, UNFINISHED_NAME};
use super::shape::{FileIndex, Shape};
use super::site::parents;

/// Interval between progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Written by one call: large enough that the calls do not matter.
const BUFFER_BYTES: usize = 256 << 10;

/// Files a thread takes at a time: a SPECweb directory, so that two threads seldom write into the
/// same one.
const FILES_AT_A_TIME: usize = 36;

/// A file system keeps some room for its own tables.
const FREE_MARGIN_BYTES: u64 = 1 << 20;

/// How far the writing is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Written by this call.
    pub bytes_done: u64,
    /// To be written by this call.
    pub bytes_total: u64,
    /// All is written, and the kernel puts it on disk.
    pub syncing: bool,
}

/// The result of creating a file set.
#[derive(Clone, Debug)]
pub struct Created {
    /// The set, complete.
    pub manifest: Manifest,
    /// Files this call has written.
    pub files_written: u64,
    /// Bytes of the written files.
    pub bytes_written: u64,
    /// Whether a set was there already, whole or in part.
    pub resumed: bool,
}

/// Why there is no set.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The path is not a directory.
    #[error("{0} is there and is no directory; give the name of a new one")]
    NotADirectory(PathBuf),
    /// The directory holds files that are not ours.
    #[error(
        "{directory} is not empty and holds no file set ({entry} is there); give a new directory, or an empty one"
    )]
    Occupied {
        /// The directory.
        directory: PathBuf,
        /// One of the things in it.
        entry: String,
    },
    /// A set, but not this one.
    #[error(
        "{directory} holds another file set ({found}; wanted: {wanted}); remove it (rm -r {directory}) or name another directory"
    )]
    Other {
        /// The directory.
        directory: PathBuf,
        /// The profile, number of files and seed of the set.
        found: String,
        /// The ones asked for.
        wanted: String,
    },
    /// A name of the set is taken.
    #[error(
        "{0} is in the way: it is not what this set has there; move it away and give the command again"
    )]
    NotOurs(PathBuf),
    /// Another process holds the lock.
    #[error("another headway is making a file set in {0}")]
    Busy(PathBuf),
    /// Too few bytes.
    #[error(
        "{directory}: {} are needed and its file system has {} free; ask for a smaller set, or give a directory on a larger one", Amount(*needed), Amount(*free)
    )]
    NoSpace {
        /// The directory.
        directory: PathBuf,
        /// Bytes in whole blocks.
        needed: u64,
        /// Bytes for users other than root.
        free: u64,
    },
    /// Too few inodes.
    #[error(
        "{directory}: {needed} inodes are needed and its file system has {free} free (df -i); ask for a smaller set, or give a directory on another one"
    )]
    NoInodes {
        /// The directory.
        directory: PathBuf,
        /// One a file and directory.
        needed: u64,
        /// For users other than root.
        free: u64,
    },
    /// The manifest there cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A call failed.
    #[error("{doing} {path}: {error}{}", advice(error))]
    Io {
        /// A verb: what was tried.
        doing: &'static str,
        /// The set and the file system.
        path: PathBuf,
        /// What the kernel said. Not called `source`, since it is in the words already.
        error: io::Error,
    },
}

/// What to do about the commonest failure in the middle.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "; the set is incomplete: make room and give the same command again to go on"
        }
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => {
            "; give a directory that can be written to"
        }
        _ => "",
    }
}

/// Creates the set in a directory, which is created if missing, or completes it. Calls `progress`
/// from this thread about ten times per second.
///
/// ```
/// use headway_load::fileset::{self, Manifest, Shape};
/// use std::num::NonZeroUsize;
///
/// let directory = tempfile::tempdir()?;
/// let shape = Shape::uniform(3, 100)?;
/// fileset::create(directory.path(), shape, 1, NonZeroUsize::MIN, &mut |_| ())?;
/// let manifest = Manifest::load(directory.path())?;
/// assert_eq!(manifest.path(2), "/dir00000/file002");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn create(
    directory: &Path,
    shape: Shape,
    seed: u64,
    threads: NonZeroUsize,
    progress: &mut dyn FnMut(Progress),
) -> Result<Created, CreateError> {
    let failed = |doing| {
        move |error| CreateError::Io {
            doing,
            path: directory.to_owned(),
            error,
        }
    };
    if directory.exists() && !directory.is_dir() {
        return Err(CreateError::NotADirectory(directory.to_owned()));
    }
    fs::create_dir_all(directory).map_err(failed("creating the directory"))?;
    let root = locked(directory)?;
    let resumed = is_ours(directory, &shape, seed)?;
    // Room is judged before a list of files is held in memory, which for an absurd size would be
    // large.
    if !resumed {
        let (block, _) = room_of(&root).map_err(failed("asking for the free space of"))?;
        let inodes = u64::from(shape.files()) + shape.directories();
        let needed = shape.disk_bytes(block);
        check_room(directory, &root, needed, inodes)?;
    }
    complete(directory, &root, shape, seed, resumed, threads, progress)
}

/// The set's directory, locked against other writers.
pub(super) fn locked(directory: &Path) -> Result<File, CreateError> {
    let root = File::open(directory).map_err(|error| CreateError::Io {
        doing: "opening",
        path: directory.to_owned(),
        error,
    })?;
    // The lock goes with the process, so a killed one leaves none. A file system without locks
    // loses only this check.
    match flock(&root, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(CreateError::Busy(directory.to_owned())),
        _ => Ok(root),
    }
}

/// Writes what is missing of a set that may be written.
pub(super) fn complete(
    directory: &Path,
    root: &File,
    shape: Shape,
    seed: u64,
    resumed: bool,
    threads: NonZeroUsize,
    progress: &mut dyn FnMut(Progress),
) -> Result<Created, CreateError> {
    let manifest = Manifest::new(directory, shape, seed);
    let missing = if resumed {
        let missing = missing_files(&manifest)?;
        let (block, _) = room_of(root).map_err(|error| CreateError::Io {
            doing: "asking for the free space of",
            path: directory.to_owned(),
            error,
        })?;
        let needed = missing
            .iter()
            .map(|&file| manifest.size(file).next_multiple_of(block))
            .sum();
        check_room(directory, root, needed, missing.len() as u64)?;
        missing
    } else {
        (0..manifest.len()).collect()
    };
    let written = write_missing(&manifest, &missing, threads, progress, root)?;
    if let Shape::SpecWeb99Dynamic { .. } = manifest.shape() {
        make_state(&manifest)?;
    }
    let manifest = Manifest::load(directory)?;
    Ok(Created {
        manifest,
        files_written: missing.len() as u64,
        bytes_written: written,
        resumed,
    })
}

/// Whether the directory holds this very set, whole or in part; an error when it holds anything
/// else.
fn is_ours(directory: &Path, shape: &Shape, seed: u64) -> Result<bool, CreateError> {
    match manifest::read(directory) {
        Ok((found, found_seed, _)) if found == *shape && found_seed == seed => Ok(true),
        Ok((found, found_seed, _)) => Err(CreateError::Other {
            directory: directory.to_owned(),
            found: described(&found, found_seed),
            wanted: described(shape, seed),
        }),
        Err(ManifestError::Absent(_)) => match foreign_entry(directory)? {
            Some(entry) => Err(CreateError::Occupied {
                directory: directory.to_owned(),
                entry,
            }),
            None => Ok(false),
        },
        Err(error) => Err(error.into()),
    }
}

fn described(shape: &Shape, seed: u64) -> String {
    let (profile, files, bytes) = (shape.profile(), shape.files(), Amount(shape.bytes()));
    format!("{profile}, {files} files, {bytes}, seed {seed}")
}

/// The first thing in a directory that is neither a trace of ours nor the file system's own.
fn foreign_entry(directory: &Path) -> Result<Option<String>, CreateError> {
    let failed = |error| CreateError::Io {
        doing: "reading the directory",
        path: directory.to_owned(),
        error,
    };
    for entry in fs::read_dir(directory).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if !is_set_aside(&name) {
            return Ok(Some(name.to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}

/// What may lie in the set's own directory beside its files.
pub(super) fn is_set_aside(name: &std::ffi::OsStr) -> bool {
    [
        MANIFEST_NAME,
        LIST_NAME,
        UNFINISHED_NAME,
        STATE_NAME,
        "lost+found",
    ]
    .iter()
    .any(|known| name == *known)
}

/// The size of a block, and free bytes and inodes; no inodes where the file system makes them as
/// needed.
fn room_of(root: &File) -> io::Result<(u64, (u64, Option<u64>))> {
    let room = fstatvfs(root)?;
    let block = room.f_frsize.max(512);
    let inodes = (room.f_files > 0).then_some(room.f_favail);
    Ok((block, (room.f_bavail.saturating_mul(block), inodes)))
}

fn check_room(
    directory: &Path,
    root: &File,
    needed: u64,
    inodes_needed: u64,
) -> Result<(), CreateError> {
    let (_, (free, inodes)) = room_of(root).map_err(|error| CreateError::Io {
        doing: "asking for the free space of",
        path: directory.to_owned(),
        error,
    })?;
    if needed > 0 && needed.saturating_add(FREE_MARGIN_BYTES) > free {
        return Err(CreateError::NoSpace {
            directory: directory.to_owned(),
            needed,
            free,
        });
    }
    match inodes {
        Some(free) if inodes_needed > free => Err(CreateError::NoInodes {
            directory: directory.to_owned(),
            needed: inodes_needed,
            free,
        }),
        _ => Ok(()),
    }
}

/// The files that are not there or were interrupted; the latter are removed.
fn missing_files(manifest: &Manifest) -> Result<Vec<FileIndex>, CreateError> {
    let mut missing = Vec::new();
    for file in 0..manifest.len() {
        let path = manifest.disk_path(file);
        let found = match fs::symlink_metadata(&path) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                missing.push(file);
                continue;
            }
            Err(error) => {
                return Err(CreateError::Io {
                    doing: "looking for",
                    path,
                    error,
                });
            }
        };
        if found.is_file() && found.len() == manifest.size(file) {
            continue;
        }
        if !found.is_file() || !is_interrupted(&path, &manifest.content(file))? {
            return Err(CreateError::NotOurs(path));
        }
        fs::remove_file(&path).map_err(|error| CreateError::Io {
            doing: "removing",
            path,
            error,
        })?;
        missing.push(file);
    }
    Ok(missing)
}

/// Whether a file is the beginning of what it should be.
fn is_interrupted(path: &Path, content: &Content<'_>) -> Result<bool, CreateError> {
    let failed = |error| CreateError::Io {
        doing: "reading",
        path: path.to_owned(),
        error,
    };
    let mut file = File::open(path).map_err(failed)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut offset = 0;
    loop {
        let length = file.read(&mut buffer).map_err(failed)?;
        if length == 0 {
            return Ok(offset < content.size_bytes());
        }
        if !content.matches(offset, &buffer[..length]) {
            return Ok(false);
        }
        offset += length as u64;
    }
}

/// Writes manifest, directories and files, and ends with a complete manifest. The bytes written.
fn write_missing(
    manifest: &Manifest,
    missing: &[FileIndex],
    threads: NonZeroUsize,
    progress: &mut dyn FnMut(Progress),
    root: &File,
) -> Result<u64, CreateError> {
    let write_manifest = |complete| {
        manifest::write(manifest.root(), manifest.shape(), manifest.seed(), complete).map_err(
            |error| CreateError::Io {
                doing: "writing",
                path: manifest.root().join(MANIFEST_NAME),
                error,
            },
        )
    };
    if missing.is_empty() {
        write_manifest(true)?;
        return Ok(0);
    }
    write_manifest(false)?;
    make_directories(manifest, missing)?;
    let bytes_total = missing.iter().map(|&file| manifest.size(file)).sum();
    let writer = FileWriter {
        manifest,
        missing,
        next: AtomicUsize::new(0),
        bytes_done: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        error: Mutex::new(None),
    };
    writer.run(threads, bytes_total, progress);
    if let Some(error) = writer
        .error
        .into_inner()
        .unwrap_or_else(|held| held.into_inner())
    {
        return Err(error);
    }
    progress(Progress {
        bytes_done: bytes_total,
        bytes_total,
        syncing: true,
    });
    // A measurement that begins now would otherwise share the disk with the kernel's write-back.
    syncfs(root).map_err(|error| CreateError::Io {
        doing: "putting on disk",
        path: manifest.root().to_owned(),
        error: error.into(),
    })?;
    write_manifest(true)?;
    Ok(bytes_total)
}

fn make_directories(manifest: &Manifest, missing: &[FileIndex]) -> Result<(), CreateError> {
    let mut last = "";
    for &file in missing {
        let Some(parent) = parents(manifest.path(file)).next() else {
            continue;
        };
        // Files of a directory mostly follow one another, so the kernel is asked once for each
        // directory.
        if parent == last {
            continue;
        }
        last = parent;
        let path = manifest::disk_path(manifest.root(), parent);
        fs::create_dir_all(&path).map_err(|error| CreateError::Io {
            doing: "creating the directory",
            path,
            error,
        })?;
    }
    Ok(())
}

/// What the threads share.
struct FileWriter<'a> {
    manifest: &'a Manifest,
    missing: &'a [FileIndex],
    next: AtomicUsize,
    bytes_done: AtomicU64,
    stop: AtomicBool,
    /// The first one counts; the others follow from it.
    error: Mutex<Option<CreateError>>,
}

impl FileWriter<'_> {
    fn run(&self, threads: NonZeroUsize, bytes_total: u64, progress: &mut dyn FnMut(Progress)) {
        std::thread::scope(|scope| {
            let (alive, ended) = mpsc::channel::<()>();
            for _ in 0..threads.get() {
                let alive = alive.clone();
                scope.spawn(move || {
                    self.write_some();
                    drop(alive);
                });
            }
            drop(alive);
            // Nothing is ever sent: the channel ends when the last thread does.
            while ended.recv_timeout(PROGRESS_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                progress(Progress {
                    bytes_done: self.bytes_done.load(Ordering::Relaxed),
                    bytes_total,
                    syncing: false,
                });
            }
        });
    }

    fn write_some(&self) {
        let mut buffer = vec![0; BUFFER_BYTES];
        while !self.stop.load(Ordering::Relaxed) {
            let start = self.next.fetch_add(FILES_AT_A_TIME, Ordering::Relaxed);
            let end = self
                .missing
                .len()
                .min(start.saturating_add(FILES_AT_A_TIME));
            let Some(files) = self
                .missing
                .get(start..end)
                .filter(|files| !files.is_empty())
            else {
                return;
            };
            for &file in files {
                if let Err(error) = self.write_file(file, &mut buffer) {
                    self.stop.store(true, Ordering::Relaxed);
                    let mut held = self.error.lock().unwrap_or_else(|held| held.into_inner());
                    held.get_or_insert(error);
                    return;
                }
            }
        }
    }

    fn write_file(&self, file: FileIndex, buffer: &mut [u8]) -> Result<(), CreateError> {
        let path = self.manifest.disk_path(file);
        let content = self.manifest.content(file);
        let mut write = || -> io::Result<()> {
            let mut out = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o644)
                .open(&path)?;
            let mut offset = 0;
            while offset < content.size_bytes() {
                let length = (content.size_bytes() - offset).min(buffer.len() as u64) as usize;
                content.fill(offset, &mut buffer[..length]);
                out.write_all(&buffer[..length])?;
                offset += length as u64;
                self.bytes_done.fetch_add(length as u64, Ordering::Relaxed);
            }
            Ok(())
        };
        write().map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => CreateError::NotOurs(path),
            _ => CreateError::Io {
                doing: "writing",
                path,
                error,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_not_overwritten_when_it_appears_after_the_search() {
        let directory = tempfile::tempdir().unwrap();
        let shape = Shape::uniform(3, 10).unwrap();
        let manifest = Manifest::new(directory.path(), shape, 1);
        let late = manifest.disk_path(1);
        fs::create_dir(directory.path().join("dir00000")).unwrap();
        fs::write(&late, "mine").unwrap();
        let root = File::open(directory.path()).unwrap();
        let all = [0, 1, 2];
        let found = write_missing(&manifest, &all, NonZeroUsize::MIN, &mut |_| (), &root);
        assert!(matches!(found, Err(CreateError::NotOurs(path)) if path == late));
        assert_eq!(fs::read_to_string(&late).unwrap(), "mine");
        assert!(!Manifest::load(directory.path()).unwrap().complete());
    }
}
