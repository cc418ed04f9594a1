//! The kernel's workers in place of helper processes: io_uring resolves paths, reads chunks into
//! memory and closes files.
//!
//! A path is resolved by the same walk as everywhere ([`crate::resolve`]). The walk is replayed
//! from the start after each completion, with the results so far, until no result is missing. So
//! the meaning of a path cannot differ between the loop, a helper process and this.
//!
//! What it refuses: listings, and copies into a memfd; io_uring has no operations for them, so a
//! process does them. It also refuses to block: operations are submitted, and completions are read
//! when the ring's descriptor is readable.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::time::Instant;

use headway_os::open::{Status, opened_to_read, status};
use headway_os::uring_files::{FileRing, READ_BYTES_MAX, WorkAnswer};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::FileType;
use rustix::io::Errno;

use super::jobs::{Job, JobKey, VersionedRange};
use super::outcome::{Outcome, failed};
use crate::answer::{Answer, Failure};
use crate::deferred_close::DeferredCloses;
use crate::file::OpenFile;
use crate::helper::prefetch_length;
use crate::protocol::OpenMode;
use crate::residency::PREFETCH_BYTES;
use crate::resolve::{Opener, RACES_MAX, RawAnswer, WalkError, is_same_file, resolve};
use crate::revalidate::AbsentSiblings;
use crate::root::{Root, RootId, Roots};

/// How often in a row an operation is retried after EAGAIN: a rename that races with a walk, or a
/// lease that is being broken.
const RETRIES_MAX: u32 = 16;

/// Requests at once at least: a job has one at a time, and files that are being closed have theirs.
const DEPTH_LEAST: u32 = 64;

/// The ring of a pool.
#[derive(Debug)]
pub(super) struct Ring {
    work: FileRing,
    roots: Rc<Roots>,
    deferred: DeferredCloses,
    jobs_max: usize,
    tasks: HashMap<u64, Task>,
}

/// A job that is done, one way or the other.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) id: u64,
    /// `None` if a helper process has to do it.
    pub(super) outcome: Option<Outcome>,
    pub(super) started: Instant,
}

#[derive(Debug)]
struct Task {
    started: Instant,
    again: u32,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// A name on its way to an answer.
    Walking(Walk),
    /// The name's answer is known, and the beginnings of its files are being read in.
    Beginnings(Walk, RawAnswer<Rc<OpenFile>>, VecDeque<Reading>),
    /// A window.
    Chunk(VersionedRange, Reading),
}

#[derive(Debug)]
struct Walk {
    id: RootId,
    version: u32,
    /// The root when the walk began: all its steps are beneath one directory.
    root: Option<Rc<Root>>,
    path: Box<[u8]>,
    want: OpenMode,
    memo: RefCell<Memo>,
    /// What the ring is doing for the walk.
    call: Option<Call>,
    races: u32,
}

/// What is left to read of a file.
#[derive(Debug)]
struct Reading {
    file: Rc<OpenFile>,
    at: u64,
    end: u64,
}

/// A system call of the walk.
#[derive(Clone, Debug)]
enum Call {
    Stat(Box<[u8]>),
    Open(Box<[u8]>, NoAccessTime),
    /// Read a byte of a file whose access time cannot be suppressed, so that its update blocks here
    /// and not on the loop.
    Touch(Box<[u8]>, Rc<OpenFile>, Status),
}

type NoAccessTime = bool;

/// What has become of names.
type Known<T> = Vec<(Box<[u8]>, Result<T, Failure>)>;

/// Answers so far.
#[derive(Debug, Default)]
struct Memo {
    looked: Known<Status>,
    opened: Known<(Rc<OpenFile>, Status)>,
    /// The first call that has no answer yet.
    wanted: Option<Call>,
    /// Another file took a name between the stat_path and the open.
    raced: bool,
}

/// Plays the walk from what is known.
struct Replay<'w>(&'w RefCell<Memo>);

impl Opener for Replay<'_> {
    type File = Rc<OpenFile>;

    fn stat_path(&self, _root: &Root, path: &[u8]) -> Result<Status, WalkError> {
        let mut memo = self.0.borrow_mut();
        let known = memo.looked.iter().find(|(name, _)| **name == *path);
        if let Some((_, found)) = known {
            return found.map_err(WalkError::Failed);
        }
        memo.wanted = Some(Call::Stat(path.into()));
        Err(WalkError::WouldBlock)
    }

    fn open(&self, _root: &Root, path: &[u8], seen: &Status) -> Result<Rc<OpenFile>, WalkError> {
        let mut memo = self.0.borrow_mut();
        let known = memo.opened.iter().find(|(name, _)| **name == *path);
        match known {
            Some((_, Ok((file, status)))) if is_same_file(seen, status) => Ok(file.clone()),
            Some((_, Ok(_))) => {
                memo.raced = true;
                Err(WalkError::WouldBlock)
            }
            Some((_, Err(failure))) => Err(WalkError::Failed(*failure)),
            None => {
                memo.wanted = Some(Call::Open(path.into(), true));
                Err(WalkError::WouldBlock)
            }
        }
    }
}

impl Ring {
    /// Creates a ring with at most `workers` workers. It starts no more jobs than that, so that the
    /// others count as waiting.
    pub(super) fn new(
        workers: usize,
        roots: Rc<Roots>,
        deferred: DeferredCloses,
    ) -> io::Result<Ring> {
        let most = u32::try_from(workers).unwrap_or(u32::MAX);
        let depth = most.saturating_mul(2).max(DEPTH_LEAST);
        Ok(Ring {
            work: FileRing::new(depth, most)?,
            roots,
            deferred,
            jobs_max: workers.max(1),
            tasks: HashMap::new(),
        })
    }

    /// Enlarges the table of descriptors as [`FileRing::grow_table`] does.
    pub(super) fn grow_table(&self, descriptors: u32) -> io::Result<()> {
        self.work.grow_table(descriptors)
    }

    /// Readable when there are answers.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.work.as_fd()
    }

    /// Whether the ring can do the job.
    pub(super) fn takes(job: &Job) -> bool {
        !job.needs_process && matches!(job.key, JobKey::Lookup(..) | JobKey::ReadIn(_))
    }

    /// Whether the ring can start one more job now.
    pub(super) fn has_room(&self) -> bool {
        self.tasks.len() < self.jobs_max && self.work.room() > 0
    }

    /// Jobs under way.
    pub(super) fn busy(&self) -> usize {
        self.tasks.len()
    }

    /// Their numbers.
    pub(super) fn jobs(&self) -> impl Iterator<Item = u64> {
        self.tasks.keys().copied()
    }

    /// Begins a job; one that needs nothing of the kernel is done at once.
    pub(super) fn start(
        &mut self,
        id: u64,
        key: &JobKey,
        file: Option<&Rc<OpenFile>>,
    ) -> Option<Finished> {
        let stage = match (key, file) {
            (JobKey::Lookup(root, version, path, want), _) => Stage::Walking(Walk {
                id: *root,
                version: *version,
                root: self.roots.get(*root),
                path: path.clone(),
                want: *want,
                memo: RefCell::default(),
                call: None,
                races: 0,
            }),
            (JobKey::ReadIn(piece), Some(file)) => {
                let reading = Reading {
                    file: file.clone(),
                    at: piece.offset,
                    end: piece.offset.saturating_add(piece.length),
                };
                Stage::Chunk(*piece, reading)
            }
            _ => {
                return Some(Finished {
                    id,
                    outcome: Some(failed(key.clone(), Failure::Io)),
                    started: Instant::now(),
                });
            }
        };
        let task = Task {
            started: Instant::now(),
            again: 0,
            stage,
        };
        self.tasks.insert(id, task);
        self.advance(id)
    }

    /// Closes files; returns those for which there is no room.
    pub(super) fn close(&mut self, files: Vec<OwnedFd>) -> Vec<OwnedFd> {
        let mut left = Vec::new();
        for file in files {
            match left.is_empty() && self.may_close() {
                true => left.extend(self.work.close(file).err()),
                false => left.push(file),
            }
        }
        left
    }

    /// Whether one more file can be closed without taking the room of a job: jobs under way must
    /// always be able to continue.
    fn may_close(&self) -> bool {
        let (room, under_way) = (self.work.room(), self.work.under_way());
        let closing = under_way.saturating_sub(self.tasks.len());
        closing + self.jobs_max < room + under_way
    }

    /// Hands over what was begun. A ring that cannot be entered any more fails what it has.
    pub(super) fn submit(&mut self, done: &mut Vec<Finished>) {
        if self.work.submit().is_err() {
            let all: Vec<u64> = self.tasks.keys().copied().collect();
            done.extend(
                all.into_iter()
                    .filter_map(|id| self.fail(id, Failure::Exhausted)),
            );
        }
    }

    /// Takes all answers.
    pub(super) fn take(&mut self, done: &mut Vec<Finished>) {
        while let Some(answer) = self.work.answer() {
            let finished = match answer {
                WorkAnswer::Opened { key, descriptor } => self.opened(key, descriptor),
                WorkAnswer::Read { key, bytes } => self.read(key, bytes),
            };
            done.extend(finished);
        }
        self.submit(done);
    }

    fn opened(&mut self, id: u64, descriptor: Result<OwnedFd, Errno>) -> Option<Finished> {
        let task = self.tasks.get_mut(&id)?;
        let Stage::Walking(walk) = &mut task.stage else {
            return None;
        };
        let call = walk.call.take()?;
        match (call, descriptor) {
            (call, Err(Errno::AGAIN | Errno::INTR)) if task.again < RETRIES_MAX => {
                task.again += 1;
                walk.memo.get_mut().wanted = Some(call);
                return self.submit_next(id);
            }
            // Where a symbolic link leads takes more than one call.
            (_, Err(errno))
                if walk.needs_process(errno)
                    || errno == Errno::ACCESS && self.roots.may_be_closed() =>
            {
                let Task { started, .. } = self.tasks.remove(&id)?;
                let outcome = None;
                return Some(Finished {
                    id,
                    outcome,
                    started,
                });
            }
            (Call::Open(path, true), Err(Errno::PERM)) => {
                walk.memo.get_mut().wanted = Some(Call::Open(path, false));
                return self.submit_next(id);
            }
            (Call::Stat(path), descriptor) => {
                let found = descriptor.and_then(|descriptor| {
                    let status = status(&descriptor)?;
                    // Unlinked since: ours may be the last reference, and dropping it frees the
                    // blocks.
                    if status.links == 0 {
                        self.deferred.push(descriptor);
                    }
                    Ok(status)
                });
                let found = found.map_err(Failure::from_errno);
                walk.memo.get_mut().looked.push((path, found));
            }
            (Call::Open(path, no_access_time), descriptor) => {
                let opened = descriptor.and_then(opened_to_read).map(|(file, status)| {
                    let file = OpenFile::new(file, status.into())
                        .with_deferred_close(&self.deferred)
                        .on_overlay(self.roots.is_overlay(status.device));
                    (Rc::new(file), status)
                });
                if let (Ok((file, status)), false) = (&opened, no_access_time)
                    && status.kind == FileType::RegularFile
                {
                    let touch = Call::Touch(path, file.clone(), *status);
                    walk.memo.get_mut().wanted = Some(touch);
                    return self.submit_next(id);
                }
                let opened = opened.map_err(Failure::from_errno);
                walk.memo.get_mut().opened.push((path, opened));
            }
            // Answered by a read.
            (Call::Touch(..), _) => return self.fail(id, Failure::Io),
        }
        self.advance(id)
    }

    fn read(&mut self, id: u64, bytes: Result<usize, Errno>) -> Option<Finished> {
        let task = self.tasks.get_mut(&id)?;
        if let Err(Errno::AGAIN | Errno::INTR) = bytes
            && task.again < RETRIES_MAX
        {
            task.again += 1;
            let walks = matches!(task.stage, Stage::Walking(_));
            return match walks {
                true => self.resubmit_touch(id),
                false => self.advance(id),
            };
        }
        match &mut task.stage {
            Stage::Walking(walk) => {
                // A failing read is found again, and reported, when the contents are read in.
                if let Some(Call::Touch(path, file, status)) = walk.call.take() {
                    let opened = Ok((file, status));
                    walk.memo.get_mut().opened.push((path, opened));
                }
            }
            Stage::Beginnings(_, _, readings) => {
                let over = match (readings.front_mut(), bytes) {
                    (Some(reading), Ok(bytes)) => reading.advance(bytes),
                    // As above.
                    _ => true,
                };
                if over {
                    readings.pop_front();
                }
            }
            Stage::Chunk(_, reading) => match bytes {
                Ok(bytes) => {
                    if reading.advance(bytes) {
                        reading.at = reading.end;
                    }
                }
                Err(errno) => return self.fail(id, Failure::of_read_errno(errno)),
            },
        }
        self.advance(id)
    }

    /// The next step of a job, or its end.
    fn advance(&mut self, id: u64) -> Option<Finished> {
        let task = self.tasks.get_mut(&id)?;
        match &mut task.stage {
            Stage::Walking(walk) => {
                let answer = loop {
                    let replay = Replay(&walk.memo);
                    let answer = resolve(&replay, walk.root.as_deref(), &walk.path);
                    let memo = walk.memo.get_mut();
                    match answer {
                        Some(answer) => break answer,
                        None if !memo.raced => return self.submit_next(id),
                        None if walk.races >= RACES_MAX => {
                            break RawAnswer::Failed(Failure::Io);
                        }
                        None => {
                            walk.races += 1;
                            *memo = Memo::default();
                        }
                    }
                };
                self.answered(id, answer)
            }
            Stage::Beginnings(_, _, readings) => match readings.front() {
                Some(_) => self.read_next(id),
                None => self.finish(id),
            },
            Stage::Chunk(_, reading) if reading.at < reading.end => self.read_next(id),
            Stage::Chunk(..) => self.finish(id),
        }
    }

    /// A name's answer is known. Files that are found are also read in, as helper processes do it.
    fn answered(&mut self, id: u64, answer: RawAnswer<Rc<OpenFile>>) -> Option<Finished> {
        let task = self.tasks.get_mut(&id)?;
        let Stage::Walking(walk) = &mut task.stage else {
            return None;
        };
        let mut readings = VecDeque::new();
        let most = match walk.want {
            OpenMode::OpenAndPrefetch(most) => most,
            OpenMode::OpenAndRead | OpenMode::OpenAndReadAlone => PREFETCH_BYTES,
            OpenMode::TouchOnly | OpenMode::Open => 0,
        };
        if let RawAnswer::File { file, siblings, .. } = &answer {
            let files = std::iter::once(file).chain(siblings.iter().flatten());
            for (position, file) in files.enumerate() {
                let end = prefetch_length(file.meta().size, position, most);
                if let Some(end) = end {
                    readings.push_back(Reading {
                        file: file.clone(),
                        at: 0,
                        end,
                    });
                }
            }
        }
        let walk = Walk {
            id: walk.id,
            version: walk.version,
            root: walk.root.take(),
            path: std::mem::take(&mut walk.path),
            want: walk.want,
            memo: RefCell::default(),
            call: None,
            races: 0,
        };
        task.stage = Stage::Beginnings(walk, answer, readings);
        self.advance(id)
    }

    /// Submits the operation that the walk needs next.
    fn submit_next(&mut self, id: u64) -> Option<Finished> {
        let task = self.tasks.get_mut(&id)?;
        let Stage::Walking(walk) = &mut task.stage else {
            return None;
        };
        walk.call = walk.memo.get_mut().wanted.take();
        let root = walk.root.as_deref()?;
        let (root, links) = (root.as_fd(), root.rules.symlinks.links());
        let submitted = match &walk.call {
            Some(Call::Stat(path)) => self.work.stat_path(id, root, path, links),
            Some(Call::Open(path, quietly)) => {
                self.work.open_to_read(id, root, path, links, *quietly)
            }
            Some(Call::Touch(_, file, _)) => self.work.read(id, file.as_fd(), 0, 1),
            None => Err(Errno::IO),
        };
        match submitted {
            Ok(()) => None,
            Err(errno) => self.fail(id, Failure::from_errno(errno)),
        }
    }

    /// Retries the read of a touch.
    fn resubmit_touch(&mut self, id: u64) -> Option<Finished> {
        let task = self.tasks.get_mut(&id)?;
        if let Stage::Walking(walk) = &mut task.stage {
            let call = walk.call.take();
            walk.memo.get_mut().wanted = call;
        }
        self.submit_next(id)
    }

    fn read_next(&mut self, id: u64) -> Option<Finished> {
        let reading = match &self.tasks.get(&id)?.stage {
            Stage::Beginnings(_, _, readings) => readings.front()?,
            Stage::Chunk(_, reading) => reading,
            Stage::Walking(_) => return None,
        };
        let length = (reading.end - reading.at).min(READ_BYTES_MAX as u64) as usize;
        let file = reading.file.clone();
        match self.work.read(id, file.as_fd(), reading.at, length) {
            Ok(()) => None,
            Err(_) => self.fail(id, Failure::Exhausted),
        }
    }

    fn finish(&mut self, id: u64) -> Option<Finished> {
        let task = self.tasks.remove(&id)?;
        let outcome = match task.stage {
            Stage::Beginnings(walk, answer, _) => named(walk, answer),
            Stage::Chunk(piece, _) => Outcome::ReadIn {
                device: piece.device,
                inode: piece.inode,
                offset: piece.offset,
                result: Ok(()),
            },
            Stage::Walking(walk) => named(walk, RawAnswer::Failed(Failure::Io)),
        };
        Some(Finished {
            id,
            outcome: Some(outcome),
            started: task.started,
        })
    }

    fn fail(&mut self, id: u64, failure: Failure) -> Option<Finished> {
        let task = self.tasks.remove(&id)?;
        let key = match task.stage {
            Stage::Walking(walk) | Stage::Beginnings(walk, ..) => {
                JobKey::Lookup(walk.id, walk.version, walk.path, walk.want)
            }
            Stage::Chunk(piece, _) => JobKey::ReadIn(piece),
        };
        Some(Finished {
            id,
            outcome: Some(failed(key, failure)),
            started: task.started,
        })
    }
}

impl Walk {
    fn needs_process(&self, errno: Errno) -> bool {
        let root = self.root.as_deref();
        root.is_some_and(|root| root.rules.symlinks.needs_helper(errno))
    }
}

impl Reading {
    /// Counts bytes that have arrived; whether the job is finished.
    fn advance(&mut self, bytes: usize) -> bool {
        self.at += bytes as u64;
        // A file that ends early is no error.
        bytes == 0 || self.at >= self.end
    }
}

fn named(walk: Walk, answer: RawAnswer<Rc<OpenFile>>) -> Outcome {
    let Walk {
        id: root,
        version,
        path,
        want,
        ..
    } = walk;
    match want {
        OpenMode::TouchOnly => Outcome::Touched { root, path },
        OpenMode::Open
        | OpenMode::OpenAndPrefetch(_)
        | OpenMode::OpenAndRead
        | OpenMode::OpenAndReadAlone => Outcome::LookedUp {
            root,
            version,
            path,
            answer: Answer::from(answer),
            content: None,
            // The kernel's workers always look for them.
            absent: AbsentSiblings::Probe,
        },
    }
}
