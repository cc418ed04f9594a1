//! Counts the waiters of sleeps of processes that record their own calls. The counts are matched
//! with the records later.

use std::collections::HashMap as Stacks;

use aya::Ebpf;
use aya::maps::{HashMap, MapData, RingBuf};

use crate::error::AttachError;
use crate::layout::{CHILDREN_ONLY, Event, SleepEvent};
use crate::load::{self, Limits, Visibility};
use crate::lost::Lost;
use crate::maps::{load_error, lost_of, stack_of};
use crate::target::Pids;
use crate::totals::Resource;

/// Counts the waiters at each sleep of the descendants of the calling process.
///
/// The observer is cheaper than [`Attach`](crate::Attach), since system calls are not observed: a
/// call that does not sleep costs nothing more. Every sleep and wakeup of the whole system costs
/// some map operations, and a traced sleep a kernel stack in addition.
///
/// ```no_run
/// use headway_debox_bpf::{WaiterObserver, Limits};
///
/// let mut observer = WaiterObserver::children(&Limits::default())?;
/// std::process::Command::new("true").status().unwrap();
/// observer.poll();
/// for sleep in observer.sleeps() {
///     println!("{:?}: {} others waited", sleep.call, sleep.waiters_entry);
/// }
/// # Ok::<(), headway_debox_bpf::AttachError>(())
/// ```
pub struct WaiterObserver {
    ebpf: Ebpf,
    events: RingBuf<MapData>,
    visibility: Visibility,
    sleeps_max: usize,
    sleeps: Vec<ObservedSleep>,
    stacks: Stacks<u64, Vec<u64>>,
    dropped: u64,
}

/// One sleep of a thread, as an observer saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedSleep {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Number of the call it slept in; `None` in a page fault of the program's own code.
    pub call: Option<u32>,
    /// When the thread left the CPU, on `CLOCK_MONOTONIC`.
    pub start_ns: u64,
    /// When the thread came back; when it was woken, if the kernel did not report its return
    /// ([`Lost::events`]).
    pub end_ns: u64,
    /// The kernel stack, for [`WaiterObserver::stack`].
    pub stack: u64,
    /// What the others are counted by.
    pub resource: Resource,
    /// Other tasks asleep on the same resource when this sleep began.
    pub waiters_entry: u64,
    /// Other tasks asleep on the same resource at the wakeup.
    pub waiters_exit: u64,
}

impl WaiterObserver {
    /// Starts counting, for processes that are created from now on. Of `limits`, those of records
    /// and call sites are ignored; [`Limits::records_max`] limits the sleeps that are stored.
    ///
    /// # Errors
    ///
    /// As [`Attach::start`](crate::Attach::start).
    pub fn children(limits: &Limits) -> Result<WaiterObserver, AttachError> {
        let own = std::process::id();
        Pids::one(own).check(limits.processes_max)?;
        let mut ebpf = load::load_waiters(limits)?;
        let events = ebpf.take_map("events").expect("the object has this map");
        let events = RingBuf::try_from(events).map_err(load_error)?;
        let visibility = load::attach(&mut ebpf, load::WAITERS)?;
        let map = ebpf.map_mut("targets").expect("the object has this map");
        let mut targets: HashMap<_, u32, u64> = HashMap::try_from(map).map_err(load_error)?;
        targets.insert(own, CHILDREN_ONLY, 0).map_err(load_error)?;
        Ok(WaiterObserver {
            ebpf,
            events,
            visibility,
            sleeps_max: limits.records_max,
            sleeps: Vec::new(),
            stacks: Stacks::new(),
            dropped: 0,
        })
    }

    /// Takes what has come since the last time. Never waits; call it several times per second, lest
    /// the ring buffer overflow.
    pub fn poll(&mut self) {
        while let Some(event) = self.events.next().map(|item| Event::of(&item)) {
            let Some(Event::Sleep(waited)) = event else {
                continue;
            };
            if self.sleeps.len() >= self.sleeps_max {
                self.dropped += 1;
                continue;
            }
            let ebpf = &self.ebpf;
            let stack = waited.stack;
            (self.stacks.entry(stack)).or_insert_with(|| stack_of(ebpf, stack));
            self.sleeps.push(seen(&waited));
        }
    }

    /// Every sleep so far, in the order they ended.
    pub fn sleeps(&self) -> &[ObservedSleep] {
        &self.sleeps
    }

    /// The addresses of a kernel stack, innermost first; empty if they are not known.
    pub fn stack(&self, number: u64) -> &[u64] {
        self.stacks.get(&number).map_or(&[], Vec::as_slice)
    }

    /// What this kernel keeps from the observer.
    pub fn visibility(&self) -> &Visibility {
        &self.visibility
    }

    /// What could not be counted or kept up to now.
    pub fn lost(&self) -> Lost {
        let mut lost = lost_of(&self.ebpf);
        lost.records += self.dropped;
        lost
    }
}

fn seen(waited: &SleepEvent) -> ObservedSleep {
    ObservedSleep {
        pid: waited.pid,
        tid: waited.tid,
        call: waited.call,
        start_ns: waited.start_ns,
        end_ns: waited.end_ns,
        stack: waited.stack,
        resource: Resource::of(waited.resource),
        waiters_entry: waited.entry,
        waiters_exit: waited.exit,
    }
}

impl std::fmt::Debug for WaiterObserver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (f.debug_struct("WaiterObserver"))
            .field("visibility", &self.visibility)
            .field("sleeps", &self.sleeps.len())
            .finish_non_exhaustive()
    }
}
