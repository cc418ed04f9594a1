//! The observer: attached while it lives, detached when it is dropped.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};

use aya::Ebpf;
use aya::maps::{HashMap, MapData, RingBuf};
use headway_debox::Symbols;
use headway_debox::policy::{Filter, FilterState};

use crate::error::AttachError;
use crate::kept::KeptRecord;
use crate::layout::{
    self, CallUnderWay, CallWords, Event, Process, ProcessEvent, Site, SiteKey, SleepKey,
    SleepWords, ThreadWords,
};
use crate::load::{self, Limits, Visibility};
use crate::lost::Lost;
use crate::mappings::Mappings;
use crate::maps::{load_error, lost_of, stack_of};
use crate::target::{Pids, is_alive};
use crate::totals::{Builder, Resource, SiteTotals};

/// A program in a traced process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenProgram {
    /// The process.
    pub pid: u32,
    /// How often the process had called exec since it was traced. One that reuses the number of a
    /// traced process counts on from there.
    pub execs: u32,
    /// The process and the execs of the program that forked it; `None` after an exec, and for
    /// those that were there before.
    pub parent: Option<(u32, u32)>,
    /// When it began or was first observed, on `CLOCK_MONOTONIC`.
    pub started_ns: u64,
    /// When it ended or became another program.
    pub ended_ns: Option<u64>,
    /// The thread's name then, at most 15 bytes.
    pub comm: String,
    /// After an exec, the path that was executed, cut at 127 bytes; empty otherwise.
    pub path: String,
}

impl SeenProgram {
    fn of(process: Process) -> SeenProgram {
        SeenProgram {
            pid: process.pid,
            execs: process.execs,
            ..SeenProgram::default()
        }
    }
}

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
    programs: BTreeMap<Process, SeenProgram>,
    programs_dropped: u64,
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
            programs: BTreeMap::new(),
            programs_dropped: 0,
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
        let process = Process { pid, execs: 0 };
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let program = SeenProgram {
            started_ns: monotonic_ns(),
            comm: comm.trim_end().to_owned(),
            ..SeenProgram::of(process)
        };
        self.seen(process, program);
        self.mappings.read(process, None);
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
                Some(Event::Fork(news)) => {
                    self.living.insert(news.process.pid);
                    self.mappings.read(news.process, Some(news.parent.pid));
                    self.begun(&news, Some(news.parent));
                }
                Some(Event::Exec(news)) => {
                    self.mappings.read(news.process, None);
                    let (pid, execs) = (news.process.pid, news.process.execs - 1);
                    self.ended(Process { pid, execs }, news.time_ns);
                    self.begun(&news, None);
                }
                Some(Event::Exit(news)) => {
                    self.living.remove(&news.process.pid);
                    self.ended(news.process, news.time_ns);
                }
                Some(Event::Sleep(_)) | None => {}
            }
        }
        self.mappings.refresh();
    }

    fn begun(&mut self, news: &ProcessEvent, parent: Option<Process>) {
        let program = SeenProgram {
            parent: parent.map(|parent| (parent.pid, parent.execs)),
            started_ns: news.time_ns,
            comm: news.comm.clone(),
            path: news.path.clone(),
            ..SeenProgram::of(news.process)
        };
        self.seen(news.process, program);
    }

    fn seen(&mut self, process: Process, program: SeenProgram) {
        if self.programs.len() < self.limits.programs_max {
            self.programs.insert(process, program);
        } else {
            self.programs_dropped += 1;
        }
    }

    fn ended(&mut self, process: Process, now_ns: u64) {
        if let Some(program) = self.programs.get_mut(&process) {
            program.ended_ns = Some(now_ns);
        }
    }

    /// Programs that were traced, also those that have ended: one for each process, and one more
    /// for each exec of it.
    pub fn programs(&self) -> impl Iterator<Item = &SeenProgram> {
        self.programs.values()
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
        let now_ns = monotonic_ns();
        for words in self.threads()?.values() {
            if let Some(call) = CallUnderWay::of(words) {
                self.add_under_way(&mut builder, &call, now_ns);
            }
        }
        Ok(builder.finish(|pid, execs, address| self.mappings.location(pid, execs, address)))
    }

    /// The threads that live and have entered a call since the start, or since they began. A call
    /// that another thread is in began before.
    ///
    /// # Errors
    ///
    /// The kernel refused to read a map.
    pub fn calling_threads(&self) -> Result<BTreeSet<u32>, AttachError> {
        let threads = self.threads()?.into_iter();
        let calling = threads.filter(|(_, words)| layout::has_called(words));
        Ok(calling.map(|(tid, _)| tid).collect())
    }

    /// The threads, each once: a walk over the map begins again where a thread ends meanwhile.
    fn threads(&self) -> Result<BTreeMap<u32, ThreadWords>, AttachError> {
        let threads: HashMap<_, u32, ThreadWords> =
            HashMap::try_from(self.map("threads")).map_err(load_error)?;
        threads
            .iter()
            .map(|entry| entry.map_err(load_error))
            .collect()
    }

    fn add_under_way(&self, builder: &mut Builder, call: &CallUnderWay, now_ns: u64) {
        let key = (call.site.process, call.site.call, call.site.address);
        builder.under_way(key, now_ns.saturating_sub(call.start_ns));
        if call.asleep_ns == 0 {
            return;
        }
        let length_ns = now_ns.saturating_sub(call.asleep_ns);
        let sleep = layout::Sleep {
            count: 1,
            blocked_ns: length_ns,
            max_ns: length_ns,
            ..layout::Sleep::default()
        };
        let (resource, stack) = (Resource::of(call.resource), self.stack(call.stack));
        builder.sleep(key, resource, &sleep, stack, self.symbols());
    }

    /// What could not be counted or kept up to now.
    pub fn lost(&self) -> Lost {
        let mut lost = lost_of(&self.ebpf);
        lost.records += self.records_dropped;
        lost.names += self.programs_dropped;
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

/// The clock of all times here.
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
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
