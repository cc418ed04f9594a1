//! Which jobs may start, so that one slow directory or file system does not take all helpers.
//!
//! Any job may take one of the `max` helpers. Where these are busy there are a few more, in two steps of
//! a quarter each: some for jobs of other directories than the one that holds most helpers, then some
//! for jobs of other file systems. So nothing is lost while all is well, and when a directory or a
//! file server stalls, the others go on. Each of them gets only a part of such a step, since it may
//! be the next one to stall.

use super::jobs::JobKey;
use crate::root::{RootId, Roots};
use std::hash::{DefaultHasher, Hash, Hasher};

/// What a job waits for: numbers which differ where the thing differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Origin {
    filesystem: u64,
    /// The directory at the top of the root: it may be another file system.
    top: u64,
    directory: u64,
}

impl Origin {
    pub(super) fn of(key: &JobKey, roots: &Roots) -> Origin {
        match key {
            JobKey::Lookup(root, _, path, _) | JobKey::List(root, _, path) => {
                Origin::of_path(roots, *root, path)
            }
            JobKey::ReadIn(piece)
            | JobKey::Copy(piece)
            | JobKey::CopyChecked { next: piece, .. }
            | JobKey::Fetch(piece) => {
                // Its directory is not known.
                let file = number(&(piece.device, piece.inode));
                Origin::in_directory(number(&piece.device), file)
            }
            JobKey::Spool { directory, .. } => {
                let directory = number(directory);
                Origin::in_directory(directory, directory)
            }
            JobKey::Custom { .. } => Origin::in_directory(0, 0),
        }
    }

    fn of_path(roots: &Roots, root: RootId, path: &[u8]) -> Origin {
        let slashes = || (0..path.len()).filter(|at| path[*at] == b'/');
        let above = |end: Option<usize>| number(&(root, &path[..end.unwrap_or(0)]));
        Origin {
            filesystem: number(&roots.device(root)),
            top: above(slashes().next()),
            directory: above(slashes().next_back()),
        }
    }

    fn in_directory(filesystem: u64, directory: u64) -> Origin {
        Origin {
            filesystem,
            top: directory,
            directory,
        }
    }
}

fn number(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// How many helpers there may be beyond `max`.
pub(super) fn extra_helpers(max: usize) -> usize {
    2 * step(max)
}

/// Fewer than four helpers are too few to be divided.
fn step(max: usize) -> usize {
    max / 4
}

/// What the helpers are busy with.
#[derive(Debug)]
pub(super) struct Shares {
    max: usize,
    /// With helpers whose work has no origin.
    busy: usize,
    /// File systems that get no more helpers while all are busy.
    filesystems: Vec<u64>,
    /// Directories of one level that may not, and the level; `None` if no directory holds most helpers.
    directories: Option<(Level, Vec<u64>)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Level {
    Top,
    Lowest,
}

impl Shares {
    /// `busy` helpers, of which some run jobs.
    pub(super) fn new(max: usize, busy: usize, running: &[Origin]) -> Shares {
        let mut shares = Shares {
            max,
            busy,
            filesystems: Vec::new(),
            directories: None,
        };
        if shares.is_full() {
            let part = step(max).div_ceil(2);
            shares.filesystems = with_many(running, part, |job| job.filesystem);
            let levels = [Level::Lowest, Level::Top];
            let is_held = |level: &Level| {
                !with_many(running, max.div_ceil(2), |job| level.of(job)).is_empty()
            };
            shares.directories = levels
                .into_iter()
                .find(is_held)
                .map(|level| (level, with_many(running, part, |job| level.of(job))));
        }
        shares
    }

    /// Whether all helpers that any job may take are busy.
    pub(super) fn is_full(&self) -> bool {
        self.busy >= self.max
    }

    /// Whether a job may have a helper now.
    pub(super) fn allow(&self, job: &Origin) -> bool {
        if !self.is_full() {
            return true;
        }
        if self.busy < self.max + step(self.max)
            && let Some((level, directories)) = &self.directories
            && !directories.contains(&level.of(job))
        {
            return true;
        }
        self.busy < self.max + extra_helpers(self.max)
            && !self.filesystems.contains(&job.filesystem)
    }
}

impl Level {
    /// The directory of a job on this level.
    fn of(self, job: &Origin) -> u64 {
        match self {
            Level::Top => job.top,
            Level::Lowest => job.directory,
        }
    }
}

/// The values that at least `count` of the jobs have.
fn with_many(running: &[Origin], count: usize, of: impl Fn(&Origin) -> u64) -> Vec<u64> {
    let mut values: Vec<u64> = running.iter().map(of).collect();
    values.sort_unstable();
    let groups = values.chunk_by(|one, other| one == other);
    let many = groups.filter(|group| group.len() >= count);
    many.filter_map(|group| group.first().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(filesystem: u64, top: u64, directory: u64) -> Origin {
        Origin {
            filesystem,
            top,
            directory,
        }
    }

    /// Starts such jobs until no more may start. Returns how many are running.
    fn fill(running: &mut Vec<Origin>, next: impl Fn(u64) -> Origin) -> usize {
        for number in 0.. {
            let job = next(number);
            if !Shares::new(16, running.len(), running).allow(&job) {
                break;
            }
            running.push(job);
        }
        running.len()
    }

    #[test]
    fn other_directories_and_file_systems_find_helpers_when_one_directory_took_all() {
        let mut running = Vec::new();
        assert_eq!(fill(&mut running, |_| job(1, 1, 1)), 16);
        assert_eq!(
            fill(&mut running, |_| job(1, 1, 2)),
            18,
            "a directory beside it"
        );
        assert_eq!(fill(&mut running, |_| job(1, 3, 3)), 20, "another one");
        assert_eq!(fill(&mut running, |_| job(1, 4, 4)), 20);
        assert_eq!(
            fill(&mut running, |_| job(2, 5, 5)),
            22,
            "another file system"
        );
        assert_eq!(fill(&mut running, |_| job(3, 6, 6)), 24, "and the last");
        assert_eq!(fill(&mut running, |_| job(4, 7, 7)), 24);
    }

    #[test]
    fn other_file_systems_find_helpers_when_many_directories_of_one_took_all() {
        let mut running = Vec::new();
        assert_eq!(fill(&mut running, |n| job(1, n, n)), 16);
        assert_eq!(fill(&mut running, |_| job(2, 90, 90)), 18);
        assert_eq!(fill(&mut running, |n| job(1, n, n)), 18);
    }

    #[test]
    fn directory_at_the_top_counts_as_one_when_its_directories_took_all() {
        let mut running = Vec::new();
        assert_eq!(fill(&mut running, |n| job(1, 1, n)), 16);
        assert_eq!(fill(&mut running, |n| job(1, 1, 100 + n)), 16);
        assert_eq!(fill(&mut running, |_| job(1, 2, 200)), 18);
    }

    #[test]
    fn few_helpers_are_not_divided() {
        assert!(!Shares::new(3, 3, &[job(1, 1, 1); 3]).allow(&job(2, 2, 2)));
    }
}
