//! Waiter counts for in-band records, which a thread cannot know about its own sleeps. They are
//! added after the call.

use aya::maps::HashMap;
use headway_debox::policy::Filter;
use headway_debox::{Debox, Record};

use crate::attach::Attach;
use crate::error::AttachError;
use crate::kept::KeptRecord;
use crate::layout::{self, RecordWords};
use crate::load::Limits;
use crate::target::Pids;

/// Adds waiter counts to the records of [`Debox`].
///
/// The cost: every call of the process takes some hundreds of nanoseconds longer, as with
/// [`Attach`]. [`Waiters::merge`] makes a few system calls of its own (a microsecond each) if the
/// record has sleeps, and none otherwise. So it is for examining a program, not for a server in
/// production.
///
/// ```no_run
/// use headway_debox::{Debox, Limits};
/// use headway_debox_bpf::Waiters;
///
/// let waiters = Waiters::start()?;
/// let debox = Debox::enable(Limits::default());
/// debox.call(0, || { /* a system call */ });
/// waiters.merge(&debox);
/// for sleep in debox.last().iter().flat_map(|record| record.sleeps().to_vec()) {
///     println!("{}: {:?} others waited", sleep.label, sleep.waiters_entry);
/// }
/// # Ok::<(), headway_debox_bpf::AttachError>(())
/// ```
#[derive(Debug)]
pub struct Waiters {
    attach: Attach,
}

impl Waiters {
    /// Begins to count for the calling process; one for all its threads.
    ///
    /// # Errors
    ///
    /// As [`Attach::start`].
    pub fn start() -> Result<Waiters, AttachError> {
        let limits = Limits {
            records: false,
            ..Limits::default()
        };
        let pids = Pids {
            pids: vec![std::process::id()],
            follow_children: false,
        };
        let attach = Attach::start_keeping_last(&pids, &limits, Filter::default(), true)?;
        Ok(Waiters { attach })
    }

    /// Adds the waiters to the last record of the calling thread. Returns false if the record has
    /// no sleeps, or if the kernel part has none of the same call.
    pub fn merge(&self, debox: &Debox) -> bool {
        // Before any call of ours, so that those are not the last call.
        let mut merged = false;
        debox.amend(|record| {
            if record.slept_count() > 0
                && let Some(seen) = self.last()
                && is_same_call(record, &seen.record)
            {
                merged = add_waiters(record, &seen.record);
            }
        });
        merged
    }

    /// The calling thread's last call that slept.
    fn last(&self) -> Option<KeptRecord> {
        let tid = std::fs::read_link("/proc/thread-self").ok()?;
        let tid: u32 = tid.file_name()?.to_str()?.parse().ok()?;
        let last: HashMap<_, u32, RecordWords> = HashMap::try_from(self.attach.map("last")).ok()?;
        let words = last.get(&tid, 0).ok()?;
        Some(self.attach.kept(&layout::Record::of(&words)))
    }
}

/// The two clocks differ by what calibrating costs, so the beginnings need not be equal.
fn is_same_call(record: &Record, seen: &Record) -> bool {
    record.number == seen.number && record.start_ns.abs_diff(seen.start_ns) <= record.wall_ns
}

fn add_waiters(record: &mut Record, seen: &Record) -> bool {
    let mut any = false;
    for sleep in record.sleeps_mut() {
        let same = seen
            .sleeps()
            .iter()
            .find(|other| match (sleep.site, other.site) {
                (Some(here), Some(there)) => here == there,
                _ => sleep.count == other.count,
            });
        if let Some(other) = same {
            sleep.waiters_entry = other.waiters_entry;
            sleep.waiters_exit = other.waiters_exit;
            any = true;
        }
    }
    any
}
