//! What the tests of this crate share: trees to resolve in, helpers in threads, and honest skips.

#![allow(dead_code, reason = "each test file uses its part of it")]

use headway_files::protocol::OpenMode;
use headway_files::{
    Answer, Directory, Done, Failure, HelperSlot, OpenFile, Outcome, Pool, PoolLimits, RawAnswer,
    RawFile, RootConfig, RootId, Roots, SlotState, Symlinks, Tasks, Waiter, helper_main_with,
};
use headway_os::fd_passing::pair;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tempfile::TempDir;

/// A turn of a test which locks memory: what the process has locked is looked at by some of them.
pub fn turn_to_lock_memory() -> MutexGuard<'static, ()> {
    static LOCKED: Mutex<()> = Mutex::new(());
    LOCKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The root of every test tree.
pub const ROOT: RootId = RootId(0);

/// A directory on a disk file system, where there is one: beside the build's other files.
pub fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Write a file, with the directories above it.
pub fn put(root: &Path, name: &str, contents: &[u8]) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, contents).unwrap();
}

pub fn roots(directory: &Path, index: &[&str], siblings: bool) -> Rc<Roots> {
    roots_with(directory, index, siblings, false)
}

pub fn roots_with(directory: &Path, index: &[&str], siblings: bool, dotfiles: bool) -> Rc<Roots> {
    let index = index.iter().map(|name| name.to_string()).collect();
    let config = RootConfig {
        directory: directory.into(),
        index,
        siblings,
        dotfiles,
        symlinks: Symlinks::default(),
        rules: Vec::new(),
    };
    Rc::new(Roots::open(&[config]).unwrap())
}

/// An answer in words, the same for the loop's and the helper's: which inodes, or why not.
pub fn answer_text(answer: &Answer) -> String {
    match answer {
        Answer::File(found) => {
            let siblings = found.siblings.each_ref();
            let siblings = siblings.map(|file| file.as_ref().map(|file| file.meta().inode));
            format!(
                "file {} {:?} {siblings:?}",
                found.file.meta().inode,
                found.index
            )
        }
        Answer::Redirect => "redirect".into(),
        Answer::Directory => "directory".into(),
        Answer::Failed(failure) => format!("{failure:?}"),
    }
}

pub fn raw_answer_text(answer: &RawAnswer<RawFile>) -> String {
    match answer {
        RawAnswer::File {
            file,
            index,
            siblings,
            ..
        } => {
            let siblings = siblings.each_ref();
            let siblings = siblings.map(|file| file.as_ref().map(|file| file.meta.inode));
            format!("file {} {index:?} {siblings:?}", file.meta.inode)
        }
        RawAnswer::Redirect => "redirect".into(),
        RawAnswer::Directory => "directory".into(),
        RawAnswer::Failed(failure) => format!("{failure:?}"),
    }
}

/// A file opened as the server has it: through a resolve.
pub fn open(directory: &Path, name: &str) -> Rc<OpenFile> {
    let roots = roots(directory, &[], false);
    match headway_files::resolve_blocking(&roots, ROOT, name.as_bytes()) {
        RawAnswer::File { file, .. } => Rc::new(OpenFile::new(file.descriptor, file.meta)),
        other => panic!("{name}: {other:?}"),
    }
}

pub fn limits() -> PoolLimits {
    PoolLimits {
        queue_max: 64,
        ..PoolLimits::default()
    }
}

/// A pool with one helper, which is a thread here.
pub struct Served {
    pub pool: Pool,
    pub slot: HelperSlot,
    helper: Option<JoinHandle<std::io::Result<()>>>,
}

impl Served {
    pub fn new(roots: &Rc<Roots>) -> Served {
        Served::with(limits(), roots)
    }

    pub fn with(limits: PoolLimits, roots: &Rc<Roots>) -> Served {
        let (worker, socket) = pair().unwrap();
        Served::over(worker, socket, limits, roots)
    }

    /// Over the two ends of a socket.
    pub fn over(worker: OwnedFd, socket: OwnedFd, limits: PoolLimits, roots: &Rc<Roots>) -> Served {
        let mut pool = Pool::new(limits, Rc::clone(roots));
        let helper = std::thread::spawn(move || {
            let render = &|directory: &Directory| {
                let names = directory.entries.iter().map(|entry| {
                    let name = String::from_utf8_lossy(&entry.name);
                    format!("{:?} {name} {}\n", entry.kind, entry.size)
                });
                names.collect::<String>().into_bytes()
            };
            // Repeats its words as often as they are long; what is empty fails.
            let custom_job = &|payload: &[u8]| match payload {
                [] => Err(Failure::Forbidden),
                payload => Ok(payload.repeat(payload.len())),
            };
            helper_main_with(
                socket,
                Tasks {
                    render,
                    custom_job,
                    confined_to: None,
                },
            )
        });
        let slot = pool.attach(worker, 1);
        Served {
            pool,
            slot,
            helper: Some(helper),
        }
    }

    /// Turn the loop until `count` jobs are done.
    pub fn until_done(&mut self, count: usize) -> Vec<Done> {
        let mut done = Vec::new();
        while done.len() < count {
            self.pool.flush(0);
            self.wait();
            assert_eq!(
                self.pool.on_ready(self.slot, 0, &mut done),
                SlotState::Alive
            );
        }
        done
    }

    /// Turn the loop until the helper rests, at a time when every deferred close is due.
    pub fn until_rested(&mut self, now_ms: u64) {
        self.pool.flush(now_ms);
        while self.pool.statistics().busy > 0 {
            self.wait();
            self.pool.on_ready(self.slot, now_ms, &mut Vec::new());
        }
    }

    fn wait(&self) {
        wait(&self.pool, self.slot);
    }
}

/// Waits for a message of the helper, or its end.
pub fn wait(pool: &Pool, slot: HelperSlot) {
    let socket = pool.socket(slot);
    let mut watched = [PollFd::new(&socket, PollFlags::IN)];
    let timeout = Timespec {
        tv_sec: 30,
        tv_nsec: 0,
    };
    assert_eq!(
        poll(&mut watched, Some(&timeout)),
        Ok(1),
        "the helper does not answer"
    );
}

impl Drop for Served {
    fn drop(&mut self) {
        self.pool.detach(self.slot);
        let ended = self.helper.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

/// Resolves in a helper with this mode.
pub fn resolved_with(want: OpenMode, roots: &Rc<Roots>, path: &[u8]) -> Outcome {
    let limits = PoolLimits { want, ..limits() };
    let mut served = Served::with(limits, roots);
    served
        .pool
        .submit_lookup(ROOT, path, Waiter::new(1))
        .unwrap();
    served.until_done(1).pop().unwrap().outcome
}

/// Run as a user without privileges: the system call changes one thread only, and this one is new.
pub fn as_nobody(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            if headway_test_support::is_root() {
                let nobody = rustix::process::Uid::from_raw(65534);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            }
            work();
        });
        run.join().unwrap();
    });
}
