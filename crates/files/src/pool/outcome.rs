//! From a helper's reply to the outcome of a job.

use super::Pool;
use super::jobs::{JobKey, VersionedRange};
use crate::answer::{Answer, Failure, FoundFile, KnownFile};
use crate::deferred_close::DeferredCloses;
use crate::file::{Meta, OpenFile};
use crate::protocol::{CustomResult, Reply};
use crate::resolve::RawAnswer;
use crate::revalidate::AbsentSiblings;
use crate::root::{RootId, Roots};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::rc::Rc;
use std::time::Duration;

/// What a helper says of a file that does not hold any more what was sent of it.
const STALE: u32 = Errno::STALE.raw_os_error().unsigned_abs();

/// A finished job.
#[derive(Debug)]
pub struct Done {
    /// The outcome of the job.
    pub outcome: Outcome,
    /// All waiters of the job; empty for a prefetch.
    pub waiters: Vec<u64>,
    /// How long ago the job was started. What it has found may be as old.
    pub age: Duration,
}

/// What came of a job.
#[derive(Debug)]
pub enum Outcome {
    /// Outcome of [`crate::Pool::submit_lookup`].
    LookedUp {
        /// The requested root.
        root: RootId,
        /// The version of the root when the path was requested ([`Roots::version`]).
        version: u32,
        /// The requested path.
        path: Box<[u8]>,
        /// The answer.
        answer: Answer,
        /// What its file holds, if helpers say that ([`crate::protocol::OpenMode::OpenAndRead`]).
        /// It is not as long as the file was if that has become shorter.
        content: Option<Rc<[u8]>>,
        /// Whether siblings that are not in the answer were looked for.
        absent: AbsentSiblings,
    },
    /// Of [`crate::Pool::submit_lookup`] with [`crate::protocol::OpenMode::TouchOnly`]: resolve
    /// again, with [`crate::LoopResolver::resolve_on_loop`].
    Touched {
        /// The requested root.
        root: RootId,
        /// The requested path.
        path: Box<[u8]>,
    },
    /// Of [`crate::Pool::submit_read_in`], and of [`crate::Pool::submit_fetch`] where an answer
    /// cannot be so long.
    ReadIn {
        /// The file's device.
        device: u64,
        /// The file's inode.
        inode: u64,
        /// The requested offset.
        offset: u64,
        /// The bytes are in memory, or why not. A file that has become shorter is not an error
        /// here; [`OpenFile::unchanged`] detects it.
        result: Result<(), Failure>,
    },
    /// Outcome of [`crate::Pool::submit_listing`].
    Listed {
        /// The requested root.
        root: RootId,
        /// The version of the root when the directory was requested.
        version: u32,
        /// The requested directory.
        path: Box<[u8]>,
        /// The rendered page in a sealed memfd; the very one that was given as known if it still
        /// says the same.
        answer: Result<Rc<OpenFile>, Failure>,
    },
    /// Outcome of [`crate::Pool::submit_copy`] and [`crate::Pool::submit_checked_copy`].
    Copied {
        /// The file's device.
        device: u64,
        /// The file's inode.
        inode: u64,
        /// The file's modification time when it was opened.
        modified: (i64, u32),
        /// The requested offset.
        offset: u64,
        /// The bytes from that offset in a sealed memfd, from its start; shorter at the end of the
        /// file.
        content: Result<Rc<OpenFile>, Failure>,
    },
    /// Outcome of [`crate::Pool::submit_fetch`].
    Fetched {
        /// The file's device.
        device: u64,
        /// The file's inode.
        inode: u64,
        /// The contents. They are shorter than requested if the file has become shorter.
        content: Result<Rc<[u8]>, Failure>,
    },
    /// Outcome of [`crate::Pool::submit_spool`].
    Spooled {
        /// The file that the piece is in now, or why it is not.
        file: Result<Rc<OpenFile>, Failure>,
    },
    /// Outcome of [`crate::Pool::submit_custom`].
    Custom {
        /// What the job has brought.
        answer: Result<CustomResult<Rc<OpenFile>>, Failure>,
    },
}

impl Outcome {
    /// What a small file holds is in it.
    pub(super) fn has_contents(&self) -> bool {
        matches!(
            self,
            Outcome::LookedUp {
                content: Some(_),
                ..
            } | Outcome::Fetched { content: Ok(_), .. }
        )
    }
}

/// The helper has ended, or says what no helper says.
#[derive(Debug)]
pub(super) struct Broken;

/// An answer's files on their way into the outcome.
pub(super) struct Arrived<'p> {
    pub(super) deferred: &'p DeferredCloses,
    pub(super) roots: &'p Roots,
    pub(super) files: Vec<OwnedFd>,
}

impl Arrived<'_> {
    /// The outcome of the job `key` about `file`, if the reply belongs to such a job and its
    /// descriptors have arrived.
    pub(super) fn outcome(
        self,
        key: JobKey,
        file: Option<Rc<OpenFile>>,
        reply: Reply,
    ) -> Result<Outcome, Broken> {
        if self.files.len() != reply.descriptors() {
            return Err(Broken);
        }
        match (key, reply) {
            (
                JobKey::Lookup(root, version, path, want),
                Reply::LookedUp {
                    answer, content, ..
                },
            ) => Ok(Outcome::LookedUp {
                root,
                version,
                path,
                answer: self.answer(answer)?,
                content,
                absent: want.absent_siblings(),
            }),
            (JobKey::Lookup(root, _, path, _), Reply::Touched { .. }) => {
                Ok(Outcome::Touched { root, path })
            }
            (JobKey::List(root, version, path), Reply::Listed { answer, .. }) => {
                let answer = self.listed(file, answer)?;
                Ok(Outcome::Listed {
                    root,
                    version,
                    path,
                    answer,
                })
            }
            // A helper whose send buffer is too small has read the file into memory instead.
            (JobKey::ReadIn(piece) | JobKey::Fetch(piece), Reply::ReadIn { errno, .. }) => {
                Ok(read_in(&piece, errno))
            }
            (JobKey::Copy(piece), Reply::Copy { content, .. }) => {
                let content = self.memory(content.map_err(failure_of))?;
                Ok(copied(&piece, content))
            }
            (JobKey::CopyChecked { next, .. }, Reply::Copy { content, .. }) => {
                let content = self.memory(content.map_err(failure_of_check))?;
                Ok(copied(&next, content))
            }
            (
                JobKey::Fetch(VersionedRange { device, inode, .. }),
                Reply::Fetched { content, .. },
            ) => Ok(Outcome::Fetched {
                device,
                inode,
                content: content.map_err(failure_of),
            }),
            (JobKey::Spool { .. }, Reply::Spooled { made, errno, .. }) => {
                self.spooled(file, made, errno)
            }
            (JobKey::Custom { .. }, Reply::Custom { answer, .. }) => Ok(Outcome::Custom {
                answer: match answer {
                    Ok(CustomResult::Inline(payload)) => Ok(CustomResult::Inline(payload)),
                    Ok(CustomResult::File(meta)) => self.memory(Ok(meta))?.map(CustomResult::File),
                    Err(failure) => Err(failure),
                },
            }),
            _ => Err(Broken),
        }
    }

    fn listed(
        self,
        known: Option<Rc<OpenFile>>,
        answer: Result<Option<Meta>, Failure>,
    ) -> Result<Result<Rc<OpenFile>, Failure>, Broken> {
        match answer {
            Ok(None) => Ok(Ok(known.ok_or(Broken)?)),
            Ok(Some(meta)) => self.memory(Ok(meta)),
            Err(failure) => Ok(Err(failure)),
        }
    }

    fn spooled(
        self,
        file: Option<Rc<OpenFile>>,
        made: bool,
        errno: u32,
    ) -> Result<Outcome, Broken> {
        let file = match (errno, made) {
            (0, true) => {
                let made = self.files.into_iter().next().ok_or(Broken)?;
                Ok(Pool::spooled(self.deferred, made))
            }
            (0, false) => Ok(file.ok_or(Broken)?),
            (errno, _) => Err(failure_of(errno)),
        };
        Ok(Outcome::Spooled { file })
    }

    fn answer(self, answer: RawAnswer<Meta>) -> Result<Answer, Broken> {
        let RawAnswer::File {
            file,
            index,
            siblings,
            unusable,
        } = answer
        else {
            return Ok(match answer {
                RawAnswer::Redirect => Answer::Redirect,
                RawAnswer::Directory => Answer::Directory,
                RawAnswer::Failed(failure) => Answer::Failed(failure),
                RawAnswer::File { .. } => return Err(Broken),
            });
        };
        let mut files = self.files.into_iter();
        let mut open = |meta: Meta| {
            let file = OpenFile::new(files.next().ok_or(Broken)?, meta)
                .with_deferred_close(self.deferred)
                .on_overlay(self.roots.is_overlay(meta.device));
            Ok(KnownFile::from(Rc::new(file)))
        };
        let file = open(file)?;
        let mut found = FoundFile {
            file,
            index,
            siblings: [None, None, None],
            unusable,
        };
        for (sibling, meta) in found.siblings.iter_mut().zip(siblings) {
            *sibling = meta.map(&mut open).transpose()?;
        }
        Ok(found.into())
    }

    fn memory<E>(self, answer: Result<Meta, E>) -> Result<Result<Rc<OpenFile>, E>, Broken> {
        let meta = match answer {
            Ok(meta) => meta,
            Err(error) => return Ok(Err(error)),
        };
        let descriptor = self.files.into_iter().next().ok_or(Broken)?;
        let file = OpenFile::new(descriptor, meta).with_deferred_close(self.deferred);
        Ok(Ok(Rc::new(file.memfd())))
    }
}

/// The outcome of a job that no helper has answered.
pub(super) fn failed(key: JobKey, failure: Failure) -> Outcome {
    match key {
        JobKey::Lookup(root, version, path, _) => Outcome::LookedUp {
            root,
            version,
            path,
            answer: Answer::Failed(failure),
            content: None,
            absent: AbsentSiblings::Probe,
        },
        JobKey::List(root, version, path) => Outcome::Listed {
            root,
            version,
            path,
            answer: Err(failure),
        },
        JobKey::ReadIn(VersionedRange {
            device,
            inode,
            offset,
            ..
        }) => Outcome::ReadIn {
            device,
            inode,
            offset,
            result: Err(failure),
        },
        JobKey::Copy(piece) | JobKey::CopyChecked { next: piece, .. } => {
            copied(&piece, Err(failure))
        }
        JobKey::Fetch(VersionedRange { device, inode, .. }) => Outcome::Fetched {
            device,
            inode,
            content: Err(failure),
        },
        JobKey::Spool { .. } => Outcome::Spooled { file: Err(failure) },
        JobKey::Custom { .. } => Outcome::Custom {
            answer: Err(failure),
        },
    }
}

/// A piece has been copied, or not.
fn copied(piece: &VersionedRange, content: Result<Rc<OpenFile>, Failure>) -> Outcome {
    Outcome::Copied {
        device: piece.device,
        inode: piece.inode,
        modified: piece.modified,
        offset: piece.offset,
        content,
    }
}

/// A piece has been read into memory, or not.
fn read_in(piece: &VersionedRange, errno: u32) -> Outcome {
    let result = match errno {
        0 => Ok(()),
        _ => Err(failure_of(errno)),
    };
    Outcome::ReadIn {
        device: piece.device,
        inode: piece.inode,
        offset: piece.offset,
        result,
    }
}

/// What it means that a copy could not be made whose file was compared first.
fn failure_of_check(errno: u32) -> Failure {
    match errno {
        STALE => Failure::Changed,
        errno => failure_of(errno),
    }
}

fn failure_of(raw: u32) -> Failure {
    // Only 1 to 4095 are error numbers; rustix panics on others in debug builds.
    match i32::try_from(raw) {
        Ok(raw @ 1..4096) => Failure::of_read_errno(Errno::from_raw_os_error(raw)),
        _ => Failure::Io,
    }
}
