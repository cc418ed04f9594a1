//! Programs beside a server which write to its disk: one publishes files, one appends to a log, one
//! makes dirty pages.
//!
//! They share the server's memory and its disk, not its CPUs. What a server may then have to wait
//! for are locks of directories, the file system's journal, and pages which are written before their
//! memory is free. A published file has the bytes that it had before: a temporary file beside it is
//! written, synced and renamed. Files which belong to none of the set are below `written/`.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use headway_load::fileset::{FilePopularity, Manifest, Requests};

use crate::{Lab, LabError};

/// The folder of the log and of the dirty file, on the lab's disk.
pub const FOLDER: &str = "written";

/// The dirty file is at most this large; with a memory limit it is half of that.
pub const DIRTY_FILE_BYTES_MAX: u64 = 1 << 30;

/// Written by one call of the process which makes dirty pages.
const DIRTY_PIECE_BYTES: u64 = 64 << 10;

/// A line of an access log.
const LOG_LINE: [u8; 120] = {
    let mut line = [b'x'; 120];
    line[119] = b'\n';
    line
};

/// Interval at which a thread that waits sees that it shall end.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What is written per second; 0: nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Writers {
    /// The file set whose files are published, relative to the top of the disk.
    pub set: PathBuf,
    /// Files published.
    pub publish_per_s: f64,
    /// Lines appended to the log and synced.
    pub append_per_s: f64,
    /// Bytes written and not synced.
    pub dirty_bytes_per_s: u64,
}

/// What one of them did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Written {
    /// `publish`, `append` or `dirty`.
    pub what: &'static str,
    /// How often.
    pub count: u64,
    /// How long each took on average.
    pub mean_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

/// Writes to the disk of a lab until told to end, or for a time. The calling process joins the lab's
/// memory.
///
/// # Errors
/// The first that one of them has; the others end, too.
pub fn write(
    lab: &Lab,
    writers: &Writers,
    duration: Option<Duration>,
    interrupted: &AtomicBool,
) -> Result<Vec<Written>, LabError> {
    let end = duration.map(|duration| Instant::now() + duration);
    let failed = AtomicBool::new(false);
    let goes_on = || {
        let ended = end.is_some_and(|end| Instant::now() >= end);
        !ended && !interrupted.load(Ordering::Relaxed) && !failed.load(Ordering::Relaxed)
    };
    let tasks = tasks(lab, writers)?;
    // Threads are where the one is that makes them.
    lab.join_memory()?;
    thread::scope(|scope| {
        let (goes_on, failed) = (&goes_on, &failed);
        let start = |mut task: Task| {
            scope.spawn(move || {
                let done = task.repeat(goes_on);
                failed.fetch_or(done.is_err(), Ordering::Relaxed);
                done
            })
        };
        let running: Vec<_> = tasks.into_iter().map(start).collect();
        let ended = running.into_iter().map(|thread| {
            let panicked = |_| Err(LabError::Value("a writer panicked".to_owned()));
            thread.join().unwrap_or_else(panicked)
        });
        ended.collect()
    })
}

/// One thing that is done at a rate.
struct Task {
    what: &'static str,
    per_s: f64,
    act: Box<dyn FnMut() -> Result<(), LabError> + Send>,
}

/// What was asked for, with its files open.
fn tasks(lab: &Lab, writers: &Writers) -> Result<Vec<Task>, LabError> {
    let disk = lab.disk().ok_or_else(|| LabError::NoPart {
        name: lab.spec().name.clone(),
        part: "disk",
    })?;
    if !disk.spec().writable {
        let why = "its disk is mounted read-only; make the lab with `headway-lab up --writable`";
        return Err(LabError::Value(why.to_owned()));
    }
    let folder = disk.mount_point().join(FOLDER);
    fs::create_dir_all(&folder).map_err(LabError::file("making the directory", &folder))?;
    let mut tasks = Vec::new();
    let mut add = |what, per_s, act| tasks.push(Task { what, per_s, act });
    if writers.publish_per_s > 0.0 {
        let mut publisher = Publisher::open(&disk.mount_point().join(&writers.set))?;
        let publish = Box::new(move || publisher.publish());
        add("publish", writers.publish_per_s, publish);
    }
    if writers.append_per_s > 0.0 {
        let path = folder.join("log");
        let log = File::options().create(true).append(true).open(&path);
        let mut log = log.map_err(LabError::file("opening", &path))?;
        let append = Box::new(move || {
            let done = log.write_all(&LOG_LINE).and_then(|()| log.sync_data());
            done.map_err(LabError::file("appending to", &path))
        });
        add("append", writers.append_per_s, append);
    }
    if writers.dirty_bytes_per_s > 0 {
        let bytes = lab.spec().memory_bytes.map_or(u64::MAX, |limit| limit / 2);
        let mut dirty = DirtyFile::create(folder.join("dirty"), bytes)?;
        let per_s = writers.dirty_bytes_per_s as f64 / DIRTY_PIECE_BYTES as f64;
        add("dirty", per_s, Box::new(move || dirty.write_piece()));
    }
    Ok(tasks)
}

impl Task {
    /// What takes longer than its interval delays the next, and is not made up for.
    fn repeat(&mut self, goes_on: &impl Fn() -> bool) -> Result<Written, LabError> {
        let interval = Duration::from_secs_f64(1.0 / self.per_s);
        let mut written = Written {
            what: self.what,
            ..Written::default()
        };
        let mut total_ms = 0.0;
        let mut next = Instant::now();
        while goes_on() {
            let now = Instant::now();
            if now < next {
                thread::sleep((next - now).min(POLL_INTERVAL));
                continue;
            }
            (self.act)()?;
            let took_ms = now.elapsed().as_secs_f64() * 1e3;
            written.count += 1;
            written.max_ms = written.max_ms.max(took_ms);
            total_ms += took_ms;
            next = (next + interval).max(now);
        }
        written.mean_ms = total_ms / written.count.max(1) as f64;
        Ok(written)
    }
}

/// Publishes files of a set, popular ones more often.
struct Publisher {
    manifest: Manifest,
    requests: Requests,
    bytes: Vec<u8>,
}

impl Publisher {
    fn open(set: &Path) -> Result<Publisher, LabError> {
        let manifest = Manifest::load(set).map_err(|error| LabError::Value(error.to_string()))?;
        Ok(Publisher {
            requests: Requests::new(&FilePopularity::new(&manifest), 1),
            manifest,
            bytes: Vec::new(),
        })
    }

    fn publish(&mut self) -> Result<(), LabError> {
        let file = self.requests.next();
        let path = self.manifest.disk_path(file);
        self.bytes.resize(self.manifest.size(file) as usize, 0);
        self.manifest.content(file).fill(0, &mut self.bytes);
        let replaced = replace(&path, &self.bytes);
        replaced.map_err(LabError::file("publishing", &path))
    }
}

/// As editors and `rsync` do it. The directory is not synced.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("publishing");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

/// A file that is written from the beginning again and again.
struct DirtyFile {
    path: PathBuf,
    file: File,
    piece: Vec<u8>,
    offset: u64,
    size_bytes: u64,
}

impl DirtyFile {
    fn create(path: PathBuf, size_bytes: u64) -> Result<DirtyFile, LabError> {
        let file = File::create(&path).map_err(LabError::file("making", &path))?;
        Ok(DirtyFile {
            path,
            file,
            piece: vec![b'd'; DIRTY_PIECE_BYTES as usize],
            offset: 0,
            size_bytes: size_bytes.clamp(DIRTY_PIECE_BYTES, DIRTY_FILE_BYTES_MAX),
        })
    }

    fn write_piece(&mut self) -> Result<(), LabError> {
        use std::os::unix::fs::FileExt;
        let done = self.file.write_all_at(&self.piece, self.offset);
        self.offset = match self.offset + 2 * DIRTY_PIECE_BYTES > self.size_bytes {
            true => 0,
            false => self.offset + DIRTY_PIECE_BYTES,
        };
        done.map_err(LabError::file("writing", &self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_file_is_another_one_with_the_new_bytes_and_nothing_is_left_beside_it() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("file01");
        fs::write(&path, "old").expect("room");
        let kept = File::open(&path).expect("there");
        replace(&path, b"new").expect("room");
        assert_eq!(fs::read(&path).expect("there"), b"new");
        let inode = |metadata: fs::Metadata| metadata.ino();
        let (old, new) = (kept.metadata(), fs::metadata(&path));
        assert_ne!(inode(old.expect("open")), inode(new.expect("there")));
        assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 1);
    }

    #[test]
    fn dirty_file_does_not_grow_beyond_its_size() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("dirty");
        let mut dirty = DirtyFile::create(path.clone(), 200_000).expect("room");
        for _ in 0..10 {
            dirty.write_piece().expect("room");
        }
        assert_eq!(
            fs::metadata(&path).expect("there").len(),
            3 * DIRTY_PIECE_BYTES
        );
    }
}
