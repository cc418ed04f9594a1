//! Compares a set on disk with its manifest: every file is there, has its length and its content,
//! and nothing else is there.
//!
//! Contents are computed and compared piece by piece, so nothing but the disk's speed limits it,
//! and no memory grows with the files. Nothing is changed. A symbolic link is never followed.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rustix::fs::OFlags;
use serde::Serialize;

use super::create::{Progress, is_set_aside};
use super::manifest::Manifest;
use super::shape::FileIndex;
use super::site::decoded;

const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
const BUFFER_BYTES: usize = 256 << 10;

/// Names kept per kind of finding; all are counted.
const EXAMPLES_MAX: usize = 20;

/// The result of verifying a file set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Files of the manifest.
    pub files: u64,
    /// Bytes of the checked files.
    pub bytes: u64,
    /// Lengths only.
    pub quick: bool,
    /// Whether the set was written to its end, by its manifest.
    pub complete: bool,
    /// Files that are missing.
    pub missing: Findings,
    /// Too long or too short.
    pub wrong_size: Findings,
    /// Files of the right length with other content.
    pub wrong_content: Findings,
    /// Not readable, or no regular file.
    pub unreadable: Findings,
    /// Files of the set that are not in the manifest.
    pub extra: Findings,
}

/// The number of findings of one kind, and the first names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// The number of findings.
    pub count: u64,
    /// Up to 20 names, in the order of the alphabet, with a word on why where it is needed.
    pub examples: Vec<String>,
}

impl Verified {
    /// Whether the set is what its manifest says.
    pub fn is_same(&self) -> bool {
        self.kinds().iter().all(|(_, found)| found.count == 0)
    }

    /// Every kind of finding with its name.
    pub fn kinds(&self) -> [(&'static str, &Findings); 5] {
        [
            ("missing", &self.missing),
            ("wrong size", &self.wrong_size),
            ("wrong content", &self.wrong_content),
            ("unreadable", &self.unreadable),
            ("extra", &self.extra),
        ]
    }

    fn absorb(&mut self, other: Verified) {
        for (mine, theirs) in [
            (&mut self.missing, other.missing),
            (&mut self.wrong_size, other.wrong_size),
            (&mut self.wrong_content, other.wrong_content),
            (&mut self.unreadable, other.unreadable),
            (&mut self.extra, other.extra),
        ] {
            mine.count += theirs.count;
            mine.examples.extend(theirs.examples);
            mine.examples.sort();
            mine.examples.truncate(EXAMPLES_MAX);
        }
    }
}

impl Findings {
    fn add(&mut self, example: impl FnOnce() -> String) {
        self.count += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(example());
        }
    }
}

/// Compares the files with the manifest; with `quick`, only their lengths. Fails only if the set's
/// own directory cannot be read. Calls `progress` from this thread about ten times per second.
pub fn verify(
    manifest: &Manifest,
    quick: bool,
    threads: NonZeroUsize,
    progress: &mut dyn FnMut(Progress),
) -> io::Result<Verified> {
    fs::read_dir(manifest.root())?;
    let mut verified = Verified {
        files: manifest.len().into(),
        bytes: manifest.bytes(),
        quick,
        complete: manifest.complete(),
        ..Verified::default()
    };
    let verifier = Verifier {
        manifest,
        quick,
        next: AtomicU32::new(0),
        bytes_done: AtomicU64::new(0),
    };
    for part in verifier.run(threads, progress) {
        verified.absorb(part);
    }
    let mut extra = Verified::default();
    Walk::new(manifest).find_extra(manifest.root(), &mut extra);
    verified.absorb(extra);
    Ok(verified)
}

/// What the threads share.
struct Verifier<'a> {
    manifest: &'a Manifest,
    quick: bool,
    next: AtomicU32,
    bytes_done: AtomicU64,
}

impl Verifier<'_> {
    fn run(&self, threads: NonZeroUsize, progress: &mut dyn FnMut(Progress)) -> Vec<Verified> {
        std::thread::scope(|scope| {
            let (done, parts) = mpsc::channel();
            for _ in 0..threads.get() {
                let done = done.clone();
                // The receiver lives until the last sender has gone, so sending cannot fail.
                scope.spawn(move || drop(done.send(self.check_some())));
            }
            drop(done);
            let mut found = Vec::new();
            loop {
                match parts.recv_timeout(PROGRESS_INTERVAL) {
                    Ok(part) => found.push(part),
                    Err(RecvTimeoutError::Disconnected) => return found,
                    Err(RecvTimeoutError::Timeout) => progress(Progress {
                        bytes_done: self.bytes_done.load(Ordering::Relaxed),
                        bytes_total: self.manifest.bytes(),
                        syncing: false,
                    }),
                }
            }
        })
    }

    fn check_some(&self) -> Verified {
        let mut found = Verified::default();
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let file = self.next.fetch_add(1, Ordering::Relaxed);
            if file >= self.manifest.len() {
                return found;
            }
            self.check(file, &mut buffer, &mut found);
            self.bytes_done
                .fetch_add(self.manifest.size(file), Ordering::Relaxed);
        }
    }

    fn check(&self, file: FileIndex, buffer: &mut [u8], found: &mut Verified) {
        let name = self.manifest.path(file);
        let path = self.manifest.disk_path(file);
        let metadata = match fs::symlink_metadata(&path) {
            Ok(metadata) => metadata,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return found.missing.add(|| name.to_owned());
            }
            Err(error) => return found.unreadable.add(|| format!("{name}: {error}")),
        };
        let size = self.manifest.size(file);
        if !metadata.is_file() {
            found
                .unreadable
                .add(|| format!("{name}: not a regular file"));
        } else if metadata.len() != size {
            let has = metadata.len();
            found
                .wrong_size
                .add(|| format!("{name}: {has} bytes instead of {size}"));
        } else if !self.quick {
            match self.has_its_content(file, &path, buffer) {
                Ok(true) => {}
                Ok(false) => found.wrong_content.add(|| name.to_owned()),
                Err(error) => found.unreadable.add(|| format!("{name}: {error}")),
            }
        }
    }

    fn has_its_content(&self, file: FileIndex, path: &Path, buffer: &mut [u8]) -> io::Result<bool> {
        let content = self.manifest.content(file);
        let mut input: File = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32)
            .open(path)?;
        let mut offset = 0;
        loop {
            let length = match input.read(buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                length => length?,
            };
            if length == 0 {
                return Ok(offset == content.size_bytes());
            }
            if !content.matches(offset, &buffer[..length]) {
                return Ok(false);
            }
            offset += length as u64;
        }
    }
}

/// The search for what does not belong to the set.
struct Walk<'a> {
    manifest: &'a Manifest,
    files: HashSet<Vec<u8>>,
    directories: HashSet<Vec<u8>>,
}

impl<'a> Walk<'a> {
    fn new(manifest: &'a Manifest) -> Walk<'a> {
        let mut directories: HashSet<Vec<u8>> = HashSet::new();
        let mut last = "";
        for file in manifest.files() {
            let parent = super::site::parents(file.path).next().unwrap_or("");
            if parent != last {
                directories.extend(super::site::parents(file.path).map(decoded));
                last = parent;
            }
        }
        Walk {
            files: manifest.files().map(|file| decoded(file.path)).collect(),
            directories,
            manifest,
        }
    }

    /// Searches a directory; one that does not belong to the set is listed once and not entered.
    fn find_extra(&self, directory: &Path, found: &mut Verified) {
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) => {
                return found
                    .unreadable
                    .add(|| format!("{}: {error}", directory.display()));
            }
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let inside = path.strip_prefix(self.manifest.root()).unwrap_or(&path);
            if inside.parent() == Some(Path::new("")) && is_set_aside(&entry.file_name()) {
                continue;
            }
            let name = inside.as_os_str().as_bytes();
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_directory && self.directories.contains(name) {
                self.find_extra(&path, found);
            } else if is_directory || !self.files.contains(name) {
                let slash = if is_directory { "/" } else { "" };
                found
                    .extra
                    .add(|| format!("/{}{slash}", inside.to_string_lossy()));
            }
        }
    }
}
