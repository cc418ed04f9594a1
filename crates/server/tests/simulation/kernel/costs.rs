//! What the loop must not spend: closes that may wait for a disk, and lookups of what it knows.

use std::collections::{BTreeMap, BTreeSet};

use super::State;
use super::layout::{OpenHow, make, read};
use crate::clock;
use crate::setup::Setup;
use crate::site::Site;
use crate::trap::Arguments;

/// How much earlier than promised something may be looked up again: times are whole milliseconds of
/// an iteration's begin.
const SLACK_NS: u64 = 50_000_000;

/// What the worker has spent since the site last changed.
#[derive(Default)]
pub struct Costs {
    /// How long an answer is valid, if nothing else takes it away: no limit of a cache, no fault.
    pub valid_ns: Option<u64>,
    /// The file system of the site.
    pub device: u64,
    /// The two last times at which each name was looked up.
    lookups: BTreeMap<Name, [u64; 2]>,
    /// The files that were opened.
    opened: BTreeSet<Name>,
    /// Descriptors that the loop may close: a helper has them as well, or the file has no status.
    pub closable: BTreeSet<i32>,
    /// A file that the loop has closed, while it did not end.
    pub closed: Option<String>,
}

/// A directory's descriptor, and a path in it.
type Name = (i32, Vec<u8>);

impl Costs {
    /// The site has changed, so everything may be looked up and opened again.
    pub fn forget(&mut self) {
        self.lookups.clear();
        self.opened.clear();
    }
}

impl State {
    /// Takes what a seed allows. Returns whether processes are stopped before calls.
    pub fn expect(&mut self, site: &Site, setup: &Setup) -> bool {
        let faults = &self.faults;
        let takes_away = [
            faults.exhausted,
            faults.no_memory,
            faults.disk,
            faults.cold,
            faults.helper_death,
            faults.preempted,
        ];
        let knows_all =
            self.remembers_missing && !setup.evicts && takes_away.iter().all(|rate| *rate == 0);
        self.costs.valid_ns = knows_all.then_some(setup.revalidate_ms * 1_000_000);
        self.costs.device = site.device();
        self.is_link_new = site.release().is_some();
        self.faults.preempted > 0
    }

    /// The worker has looked up a name, or opened it. One without the right to read cannot be cached
    /// open, so it is opened again after each lookup.
    pub(super) fn note_lookup(&mut self, arguments: Arguments, opened: i64) {
        let Some(valid_ns) = self.costs.valid_ns else {
            return;
        };
        let path = text(arguments[1]);
        // Others are looked up for several paths: as an index file, as a variant.
        if !path.starts_with(b"file") || !path.ends_with(b".txt") {
            return;
        }
        let shown = String::from_utf8_lossy(&path).into_owned();
        let name = (arguments[0] as i32, path);
        let how: OpenHow = read(arguments[2]);
        if how.flags & libc::O_PATH as u64 == 0 {
            if opened >= 0 && !self.costs.opened.insert(name) {
                self.violation(format!("{shown} is opened again, and was cached"));
            }
            return;
        }
        let now = clock::now_ns();
        let [before, last] = self
            .costs
            .lookups
            .insert(name.clone(), [0, 0])
            .unwrap_or_default();
        self.costs.lookups.insert(name, [last, now]);
        // A check that finds a change is followed by a lookup.
        if before > 0 && now + SLACK_NS < before + valid_ns {
            self.violation(format!("{shown} is looked up again, and was valid"));
        }
    }

    /// The worker sends descriptors to a helper.
    pub(super) fn note_passed(&mut self, message: u64) {
        let passed = super::calls::passed_descriptors(message);
        self.costs.closable.extend(passed);
    }

    /// The worker closes a descriptor. It may not be the last one of a file, since that can wait.
    pub(super) fn note_close(&mut self, descriptor: u64) {
        if self.costs.closable.remove(&(descriptor as i32)) {
            return;
        }
        let mut status = std::mem::MaybeUninit::<libc::stat>::zeroed();
        let pointer = status.as_mut_ptr() as u64;
        if make(libc::SYS_fstat, [descriptor, pointer, 0, 0, 0, 0]) != 0 {
            return;
        }
        let status: libc::stat = read(pointer);
        let is_file = status.st_mode & libc::S_IFMT == libc::S_IFREG;
        if !is_file || status.st_dev != self.costs.device {
            return;
        }
        let flags = make(
            libc::SYS_fcntl,
            [descriptor, libc::F_GETFL as u64, 0, 0, 0, 0],
        );
        // One without the right to read was opened to see what there is. The loop has seen that it has a name.
        // So it has before it opens one to read, and closes that at once if there is no memory for its status.
        let may_be_closed = flags & i64::from(libc::O_PATH) != 0 || self.faults.no_memory > 0;
        let was_seen = may_be_closed && (status.st_nlink > 0 || self.faults.preempted > 0);
        if !was_seen {
            self.costs.closed = Some(format!(
                "the loop closes a file with {} links itself (descriptor {descriptor})",
                status.st_nlink
            ));
        }
    }

    /// Takes the right to read a file that has none: this program may read everything.
    pub(super) fn check_rights(&self, opened: i64, how: OpenHow) -> i64 {
        if opened < 0 || how.flags & libc::O_PATH as u64 != 0 {
            return opened;
        }
        let mut status = std::mem::MaybeUninit::<libc::stat>::zeroed();
        let pointer = status.as_mut_ptr() as u64;
        make(libc::SYS_fstat, [opened as u64, pointer, 0, 0, 0, 0]);
        let status: libc::stat = read(pointer);
        if status.st_mode & 0o444 != 0 {
            return opened;
        }
        make(libc::SYS_close, [opened as u64, 0, 0, 0, 0, 0]);
        -i64::from(libc::EACCES)
    }
}

/// The text that a call points to.
fn text(pointer: u64) -> Vec<u8> {
    (0..)
        .map(|at| read::<u8>(pointer + at))
        .take_while(|byte| *byte != 0)
        .collect()
}
