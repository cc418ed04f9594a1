//! Is a remembered answer still true? Asked without opening files and without waiting.
//!
//! The same walk as for the first answer, with an opener that only looks: so an index file that has
//! appeared, a sibling that has gone or a symbolic link that points elsewhere is noticed by
//! construction. A plain file costs one openat2, one statx and one close, and one openat2 more for
//! each sibling that it does not have; these are looked for seldom ([`Absent`]).

use crate::answer::{Answer, FoundFile, KnownFile};
use crate::file::Meta;
use crate::resolve::{Opener, RawAnswer, Stop, look_cached, resolve};
use crate::retire::RetireList;
use crate::root::{Root, RootId, Roots};
use headway_os::open::Status;

/// What became of a remembered answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Revalidation {
    /// Resolving again would give the same.
    Same,
    /// Something differs: resolve again.
    Changed,
    /// It cannot be told without waiting: ask a helper to resolve.
    WouldBlock,
}

/// Siblings that a file did not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Absent {
    /// They are looked for.
    Sought,
    /// They are still absent: one that has appeared would only spare bytes, the answer without it
    /// is as right.
    Believed,
}

/// Check a remembered answer without waiting. Device, inode, size and both time stamps must be
/// equal: the inode's change time is included so that a file made unreadable is noticed, at the
/// price of one more opening after a chmod or a new hard link.
pub fn revalidate_cached(
    roots: &Roots,
    root: RootId,
    path: &[u8],
    answer: &Answer,
    absent: Absent,
    retire: &RetireList,
) -> Revalidation {
    let believed = match (absent, answer) {
        (Absent::Believed, Answer::File(found)) => found.siblings.each_ref().map(Option::is_none),
        _ => [false; 3],
    };
    match resolve(&Looker { believed, retire }, roots, root, path) {
        None => Revalidation::WouldBlock,
        Some(now) if is_same(&now, answer) => Revalidation::Same,
        Some(_) => Revalidation::Changed,
    }
}

fn is_same(now: &RawAnswer<Meta>, then: &Answer) -> bool {
    match (now, then) {
        (
            RawAnswer::File {
                file,
                index,
                siblings,
            },
            Answer::File(found),
        ) => {
            let FoundFile {
                file: old,
                index: old_index,
                siblings: old_siblings,
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

/// Looks, and takes the look for the file.
struct Looker<'l> {
    /// Which siblings are not looked for.
    believed: [bool; 3],
    retire: &'l RetireList,
}

impl Opener for Looker<'_> {
    type File = Meta;

    fn look(&self, root: &Root, path: &[u8]) -> Result<Status, Stop> {
        look_cached(root, path, self.retire)
    }

    fn passes_over(&self, sibling: usize) -> bool {
        self.believed[sibling]
    }

    fn open(&self, _: &Root, _: &[u8], seen: &Status) -> Result<Meta, Stop> {
        Ok((*seen).into())
    }
}
