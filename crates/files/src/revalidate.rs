//! Whether a cached answer is still true, without opening files and without blocking.
//!
//! This is the same walk as for the first answer, with an opener that only calls statx. So a new
//! index file, a removed sibling or a changed symbolic link is detected by construction. A plain
//! file costs one openat2, one statx and one close, plus one openat2 for each sibling that it does
//! not have; those are probed rarely ([`AbsentSiblings`]).

use crate::answer::{Answer, FoundFile, KnownFile};
use crate::deferred_close::DeferredCloses;
use crate::file::Meta;
use crate::resolve::{LoopResolver, Opener, RawAnswer, WalkError, resolve, stat_cached};
use crate::root::{Root, RootId};
use headway_os::open::Status;

/// Outcome of a remembered answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Revalidation {
    /// Resolving again would give the same answer.
    Same,
    /// Something differs: resolve again.
    Changed,
    /// Checking would block: have a helper resolve the path.
    WouldBlock,
}

/// Siblings that a file did not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AbsentSiblings {
    /// Absent siblings are probed.
    Probe,
    /// Absent siblings are taken to be still absent: one that has appeared would only spare bytes,
    /// the answer without it is as right.
    AssumeAbsent,
}

impl LoopResolver<'_> {
    /// Checks a remembered answer without waiting. Device, inode, size and both time stamps must be
    /// equal: the inode's change time is included so that a file made unreadable is noticed, at the
    /// price of one more opening after a chmod or a new hard link.
    pub fn revalidate_cached(
        self,
        root: RootId,
        path: &[u8],
        answer: &Answer,
        absent: AbsentSiblings,
    ) -> Revalidation {
        let believed = match (absent, answer) {
            (AbsentSiblings::AssumeAbsent, Answer::File(found)) => {
                found.siblings.each_ref().map(Option::is_none)
            }
            _ => [false; 3],
        };
        let deferred = self.deferred;
        let root = self.roots.get(root);
        match resolve(&StatOnly { believed, deferred }, root.as_deref(), path) {
            None => Revalidation::WouldBlock,
            Some(now) if is_same(&now, answer) => Revalidation::Same,
            Some(_) => Revalidation::Changed,
        }
    }
}

fn is_same(now: &RawAnswer<Meta>, then: &Answer) -> bool {
    match (now, then) {
        (
            RawAnswer::File {
                file,
                index,
                siblings,
                ..
            },
            Answer::File(found),
        ) => {
            let FoundFile {
                file: old,
                index: old_index,
                siblings: old_siblings,
                ..
            } = &**found;
            file == old.meta()
                && index == old_index
                && siblings
                    .iter()
                    .zip(old_siblings)
                    .all(|(new, old)| is_same_sibling(new, old))
        }
        (RawAnswer::Redirect, Answer::Redirect) | (RawAnswer::Directory, Answer::Directory) => true,
        (RawAnswer::Failed(now), Answer::Failed(then)) => now == then,
        _ => false,
    }
}

fn is_same_sibling(now: &Option<Meta>, then: &Option<KnownFile>) -> bool {
    now.as_ref() == then.as_ref().map(KnownFile::meta)
}

/// An opener that returns the metadata instead of a file.
struct StatOnly<'l> {
    /// Siblings that are not probed.
    believed: [bool; 3],
    deferred: &'l DeferredCloses,
}

impl Opener for StatOnly<'_> {
    type File = Meta;

    fn stat_path(&self, root: &Root, path: &[u8]) -> Result<Status, WalkError> {
        stat_cached(root, path, self.deferred)
    }

    fn skips_sibling(&self, sibling: usize) -> bool {
        self.believed[sibling]
    }

    fn open(&self, _: &Root, _: &[u8], seen: &Status) -> Result<Meta, WalkError> {
        Ok((*seen).into())
    }
}
