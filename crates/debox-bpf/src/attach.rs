//! The observer: attached while it lives, detached when it is dropped.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};

use aya::Ebpf;
use aya::maps::{HashMap, MapData, RingBuf};
use headway_debox::Symbols;
use headway_debox::policy::{Filter, FilterState};

use crate::error::AttachError;
use crate::kept::KeptRecord;
use crate::layout::{self, CallWords, Event, Process, Site, SiteKey, SleepKey, SleepWords};
use crate::load::{self, Limits, Visibility};
use crate::lost::Lost;
use crate::mappings::Mappings;
use crate::maps::{load_error, lost_of, stack_of};
use crate::target::{Pids, is_alive};
use crate::totals::{Builder, Resource, SiteTotals};

/// Observes the system calls of some processes until it is dropped.
///
/// Nothing is written into the traced processes, and none of them is stopped. Each of their calls
/// takes some hundreds of nanoseconds longer. Processes that are not traced pay a map lookup per
/// call, and at each context switch the cost of [`Limits::waiters_everywhere`].
///
/// ```no_run
/// use headway_debox_bpf::{Attach, Limits, Pids};
///
/// let mut attach = Attach::start(&Pids::one(1234), &Limits::default(), Default::default())?;
/// println!("{}", attach.visibility());
/// std::thread::sleep(std::time::Duration::from_secs(1));
/// attach.poll();
/// for site in attach.snapshot()? {
///     println!("{} × {}: {} ns asleep", site.count, site.name, site.blocked_ns());
/// }
/// println!("{}", attach.lost());
/// # Ok::<(), headway_debox_bpf::AttachError>(())
/// ```
pub struct Attach {
    ebpf: Ebpf,
    events: RingBuf<MapData>,
    visibility: Visibility,
    limits: Limits,
    filter_state: Option<FilterState>,
    living: BTreeSet<u32>,
    mappings: Mappings,
    records: Vec<KeptRecord>,
    records_dropped: u64,
    symbols: OnceCell<Option<Symbols>>,
}

impl Attach {
    /// Starts watching. Calls already under way are not counted, their sleeps from now on are.
    ///
    /// # Errors
    ///
    /// See [`AttachError`]; each says what to do. A tracepoint that can be done without is no
    /// error, see [`Attach::visibility`].
    pub fn start(pids: &Pids, limits: &Limits, filter: Filter) -> Result<Attach, AttachError> {
        Attach::start_keeping_last(pids, limits, filter, false)
    }

    pub(crate) fn start_keeping_last(
        pids: &Pids,
        limits: &Limits,
        filter: Filter,
        keep_last: bool,
    ) -> Result<Attach, AttachError> {
        pids.check(limits.processes_max)?;
        let mut ebpf = load::load(pids, limits, &filter, keep_last)?;
        let events = ebpf.take_map("events").expect("the object has this map");
        let events = RingBuf::try_from(events).map_err(load_error)?;
        let mut attach = Attach {
            ebpf,
            events,
            visibility: Visibility::default(),
            limits: limits.clone(),
            filter_state: load::needs_user_space(&filter).then(|| FilterState::new(filter)),
            living: BTreeSet::new(),
            mappings: Mappings::default(),
            records: Vec::new(),
            records_dropped: 0,
            symbols: OnceCell::new(),
        };
        // Attaching takes a while. No process is a target until all of it is done, so that the
        // first calls are not seen in part.
        attach.visibility = load::attach(&mut attach.ebpf, load::RECORDS)?;
        // Not at the first record: a process that execs meanwhile would be gone before its mappings
        // are read. And not before: our own programs are in every stack and have their names only
        // now.
        attach.symbols();
        pids.pids
            .iter()
            .try_for_each(|pid| attach.add_target(*pid))?;
        // Processes that ended before this point were not seen to end.
        attach.living.retain(|pid| is_alive(*pid));
        Ok(attach)
    }

    /// Makes a process a target.
    fn add_target(&mut self, pid: u32) -> Result<(), AttachError> {
        let map = self
            .ebpf
            .map_mut("targets")
            .expect("the object has this map");
        let mut targets: HashMap<_, u32, u64> = HashMap::try_from(map).map_err(load_error)?;
        targets.insert(pid, 0, 0).map_err(load_error)?;
        self.living.insert(pid);
        self.mappings.read(Process { pid, execs: 0 }, None);
        Ok(())
    }

    /// What is seen and what is missing: the level of the privilege ladder.
    pub fn visibility(&self) -> &Visibility {
        &self.visibility
    }

    /// Takes what has come since the last time: kept records, and news of processes. Never waits;
    /// call it several times per second, or when [`Attach::as_fd`] is readable, lest the ring
    /// buffer overflow.
    pub fn poll(&mut self) {
        // Each item is given back to the ring before it is worked on, so that the kernel has room
        // meanwhile.
        while let Some(event) = self.events.next().map(|item| Event::of(&item)) {
            match event {
                Some(Event::Record(raw)) => self.keep_record(&raw),
                Some(Event::Fork { child, parent }) => {
                    self.living.insert(child.pid);
                    self.mappings.read(child, Some(parent));
                }
                Some(Event::Exec(process)) => self.mappings.read(process, None),
                Some(Event::Exit(process)) => {
                    self.living.remove(&process.pid);
                }
                Some(Event::Sleep(_)) | None => {}
            }
        }
        self.mappings.refresh();
    }

    fn keep_record(&mut self, raw: &layout::Record) {
        if self.records.len() >= self.limits.records_max {
            self.records_dropped += 1;
            return;
        }
        let kept = KeptRecord::new(raw, |stack| self.stack(stack), self.symbols());
        let keeps = |filter_state: &mut FilterState| filter_state.keeps(&kept.record, kept.site);
        if self.filter_state.as_mut().is_none_or(keeps) {
            self.records.push(kept);
        }
    }

    /// Processes that are traced and had not ended at the last [`Attach::poll`].
    pub fn living(&self) -> impl Iterator<Item = u32> {
        self.living.iter().copied()
    }

    /// The kept records that have come since the last time, oldest first.
    pub fn records(&mut self) -> Vec<KeptRecord> {
        std::mem::take(&mut self.records)
    }

    /// Everything since the start, by call site. It copies the maps, milliseconds for thousands of
    /// sites.
    ///
    /// # Errors
    ///
    /// The kernel refused to read a map.
    pub fn snapshot(&self) -> Result<Vec<SiteTotals>, AttachError> {
        let mut builder = Builder::default();
        let calls: HashMap<_, SiteKey, CallWords> =
            HashMap::try_from(self.map("calls")).map_err(load_error)?;
        for entry in calls.iter() {
            let (key, words) = entry.map_err(load_error)?;
            let site = Site::of(&key);
            builder.call((site.process, site.call, site.address), &words);
        }
        let sleeps: HashMap<_, SleepKey, SleepWords> =
            HashMap::try_from(self.map("sleeps")).map_err(load_error)?;
        for entry in sleeps.iter() {
            let (key, words) = entry.map_err(load_error)?;
            let (site, stack) = (Site::of(&key), self.stack(key[3]));
            let sleep = layout::Sleep::of(&words);
            let key_of = (site.process, site.call, site.address);
            builder.sleep(key_of, Resource::of(key[4]), &sleep, stack, self.symbols());
        }
        Ok(builder.finish(|pid, execs, address| self.mappings.location(pid, execs, address)))
    }

    /// What could not be counted or kept up to now.
    pub fn lost(&self) -> Lost {
        let mut lost = lost_of(&self.ebpf);
        lost.records += self.records_dropped;
        lost
    }

    /// The files that user addresses of records lie in.
    pub fn mappings(&self) -> &Mappings {
        &self.mappings
    }

    fn stack(&self, number: u64) -> Vec<u64> {
        stack_of(&self.ebpf, number)
    }

    pub(crate) fn map(&self, name: &str) -> &aya::maps::Map {
        self.ebpf.map(name).expect("the object has this map")
    }

    pub(crate) fn kept(&self, raw: &layout::Record) -> KeptRecord {
        KeptRecord::new(raw, |stack| self.stack(stack), self.symbols())
    }

    /// The kernel's functions, loaded when the first stack needs a name; the BPF programs are among
    /// them then.
    fn symbols(&self) -> Option<&Symbols> {
        let load = || Symbols::load().ok().filter(|symbols| !symbols.hidden());
        self.symbols.get_or_init(load).as_ref()
    }
}

impl AsFd for Attach {
    /// Readable when [`Attach::poll`] would find something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl std::fmt::Debug for Attach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (f.debug_struct("Attach"))
            .field("visibility", &self.visibility)
            .field("living", &self.living)
            .finish_non_exhaustive()
    }
}
