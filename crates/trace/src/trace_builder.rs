//! Builds a [`Trace`] from the files of traced programs.
//!
//! Call sites of several processes are added up if they are the same location of the same file. So
//! a pipeline of a hundred `cat` has one row, wherever the loader put the program.

use std::collections::{BTreeSet, HashMap};

use headway_debox::collect::{
    CallSite, Collection, Histogram, KeptRecord, NoteKind, Process, SiteSleep,
};
use headway_debox::{KernelLines, Label, Symbols, TraceLevel};

use crate::call_sites::CallSites;
use crate::model::{
    Bucket, CodeLocation, KeptCall, LocationTotals, Program, SCHEMA, SleepAt, Trace, TraceMethod,
};
use crate::units::{counted, grouped};
use crate::waiters::{Merged, WaiterCounts};

/// What makes two call sites one.
type SiteKey = (usize, u32);

/// Puts a trace together.
pub struct TraceBuilder<'a> {
    symbols: Option<&'a Symbols>,
    lines: Option<&'a KernelLines>,
    locations: &'a mut CallSites,
    waits: Option<WaiterCounts>,
    location_index: HashMap<CodeLocation, usize>,
    kernel_index: HashMap<Vec<u64>, usize>,
    site_index: HashMap<SiteKey, usize>,
    site_pids: HashMap<usize, BTreeSet<u32>>,
    /// How much of each kind in [`LOSSES`] was lost, and in how many programs.
    lost: [(u64, u64); LOSSES.len()],
    trace: Trace,
}

/// What programs can lose, in the order of `headway_debox::collect::Losses`.
const LOSSES: [&str; 8] = [
    "calls of threads beyond the room for threads are missing",
    "calls at sites beyond the room for sites are missing",
    "calls inside the tracer are missing",
    "calls of vfork children, which live in their parent's memory until they exec, are missing; --attach counts them",
    "sleeps are counted but not told apart",
    "records of the kernel were lost, so sleeps may be missing",
    "chosen records found no room; give more with --log-size or choose fewer",
    "remarks found no room",
];

impl<'a> TraceBuilder<'a> {
    /// Creates an empty trace. `symbols` are those of the running kernel; without them sleeps have
    /// no label.
    pub fn new(
        method: TraceMethod,
        symbols: Option<&'a Symbols>,
        locations: &'a mut CallSites,
    ) -> TraceBuilder<'a> {
        TraceBuilder {
            symbols,
            lines: None,
            locations,
            waits: None,
            location_index: HashMap::new(),
            kernel_index: HashMap::new(),
            site_index: HashMap::new(),
            site_pids: HashMap::new(),
            lost: [(0, 0); LOSSES.len()],
            trace: Trace {
                schema: SCHEMA,
                headway: env!("CARGO_PKG_VERSION").to_owned(),
                method,
                ..Trace::default()
            },
        }
    }

    /// Gives the sleeps of programs that are added from now on their waiters.
    pub fn waits(&mut self, waits: WaiterCounts) {
        self.waits = Some(waits);
    }

    /// Gives the sleeps of programs that are added from now on the lines of the kernel's sources.
    pub fn lines(&mut self, lines: &'a KernelLines) {
        self.lines = Some(lines);
    }

    /// Adds all of a directory.
    pub fn collection(&mut self, collection: &Collection) {
        for damaged in &collection.damaged {
            let text = format!(
                "{} could not be read: {}.",
                damaged.path.display(),
                damaged.why
            );
            self.trace.missing.push(text);
        }
        for process in &collection.processes {
            self.process(process);
        }
    }

    /// Adds a process.
    pub fn process(&mut self, process: &Process) {
        let symbols = self.symbols.filter(|_| of_this_boot(process));
        if self.symbols.is_some() && symbols.is_none() {
            self.add_missing("the traces are from another boot, so kernel addresses have no names and sleeps no labels.");
        }
        let program = self.trace.programs.len();
        self.program(process);
        let waits = self.waits.as_ref();
        let waiters = waits.map_or_else(Merged::default, |waits| waits.of(process, symbols));
        for site in &process.sites {
            self.site(process, site, symbols, &waiters);
        }
        for (index, record) in process.kept.iter().enumerate() {
            let mut kept = self.kept(process, program, record, symbols);
            for (number, sleep) in kept.sleeps.iter_mut().enumerate() {
                waiters.add_to_kept(index, number, sleep);
            }
            self.trace.kept.push(kept);
        }
        self.losses(process);
    }

    /// The finished trace.
    pub fn finish(mut self) -> Trace {
        for (site, pids) in &self.site_pids {
            self.trace.sites[*site].processes = pids.len() as u64;
        }
        let trace = &mut self.trace;
        for site in &mut trace.sites {
            site.sleeps
                .sort_by_key(|sleep| std::cmp::Reverse(sleep.total_ns));
            site.histogram.sort_by_key(|bucket| bucket.from_ns);
        }
        trace
            .sites
            .sort_by_key(|site| std::cmp::Reverse(site.wall_ns));
        trace.kept.sort_by_key(|kept| kept.start_ns);
        for ((count, programs), what) in self.lost.iter().zip(LOSSES) {
            if *count > 0 {
                let programs = counted(*programs, "program", "programs");
                trace
                    .missing
                    .push(format!("{} {what} (in {programs}).", grouped(*count)));
            }
        }
        let used = |file: &&str| {
            trace
                .locations
                .iter()
                .any(|location| location.module == **file)
        };
        let without_symbols: Vec<&str> = self
            .locations
            .without_symbols()
            .filter(used)
            .map(crate::model::file_name)
            .collect();
        if !without_symbols.is_empty() {
            trace.missing.push(format!(
                "Call sites are offsets where a file has no symbols: {}. Its debug symbols (Debian: debuginfod or a -dbgsym \
                 package), or a build with -g, give them names.",
                without_symbols.join(", ")
            ));
        }
        let mut seen = BTreeSet::new();
        trace.missing.retain(|text| seen.insert(text.clone()));
        self.trace
    }

    /// Adds a sentence about what the trace does not show.
    pub fn add_missing(&mut self, text: &str) {
        self.trace.missing.push(text.to_owned());
    }

    fn program(&mut self, process: &Process) {
        let trace = &mut self.trace;
        if trace.started_ns == 0 || process.started_ns < trace.started_ns {
            trace.started_ns = process.started_ns;
            trace.started_unix_ns = process.started_unix_ns;
        }
        let last_kept = process.kept.iter().map(|kept| kept.start_ns + kept.wall_ns);
        let last = last_kept.chain(process.ended_ns).max();
        trace.ended_ns = trace.ended_ns.max(last.unwrap_or(process.started_ns));
        trace.policy.clone_from(&process.policy);
        trace.programs.push(Program {
            pid: process.pid,
            ppid: process.ppid,
            image: process.image,
            exe: process.exe.clone(),
            command: process.command.clone(),
            started_ns: process.started_ns,
            ended_ns: process.ended_ns,
            level: process.level.clone(),
            sees_faults: process.sees_faults,
            calls: process.calls(),
        });
    }

    fn site(
        &mut self,
        process: &Process,
        site: &CallSite,
        symbols: Option<&Symbols>,
        waiters: &Merged,
    ) {
        let location = self.location(process, site.address);
        let sites = &mut self.trace.sites;
        let index = *self
            .site_index
            .entry((location, site.call))
            .or_insert_with(|| {
                sites.push(empty_site(location, process, site));
                sites.len() - 1
            });
        self.site_pids.entry(index).or_default().insert(process.pid);
        add_site(&mut self.trace.sites[index], site);
        for sleep in &site.sleeps {
            let mut at = self.sleep(sleep, symbols);
            waiters.add_to_site(site, sleep, symbols, &mut at);
            merge_sleep(&mut self.trace.sites[index].sleeps, at);
        }
        let listed: u64 = site.sleeps.iter().map(|sleep| sleep.count).sum();
        let total_ns: u64 = site.sleeps.iter().map(|sleep| sleep.total_ns).sum();
        // Sleeps without an entry are sleeps all the same.
        if site.slept.count > listed {
            let rest = SleepAt {
                label: Label::Unknown,
                symbol: None,
                stack: None,
                count: site.slept.count - listed,
                total_ns: site.slept.total_ns.saturating_sub(total_ns),
                max_ns: 0,
                ..SleepAt::default()
            };
            merge_sleep(&mut self.trace.sites[index].sleeps, rest);
        }
    }

    fn kept(
        &mut self,
        process: &Process,
        program: usize,
        record: &KeptRecord,
        symbols: Option<&Symbols>,
    ) -> KeptCall {
        let sleeps = record
            .sleeps
            .iter()
            .map(|sleep| self.sleep(sleep, symbols))
            .collect();
        let stack = record
            .user_stack
            .iter()
            // The outermost return address of a thread is none.
            .filter(|address| **address != 0)
            .map(|address| self.location(process, *address))
            .collect();
        KeptCall {
            program,
            thread: record.thread,
            call: record.name.clone(),
            location: self.location(process, record.site),
            result: Some(record.result),
            start_ns: record.start_ns,
            wall_ns: record.wall_ns,
            faults_minor: record.faults_minor,
            faults_major: record.faults_major,
            preemptions: record.preemptions,
            wakeup_ns: record.wakeup_ns,
            sleeps,
            lost: u64::from(record.sleeps_dropped) + record.lost,
            stack,
            functions: Vec::new(),
            functions_dropped: 0,
        }
    }

    fn sleep(&mut self, sleep: &SiteSleep, symbols: Option<&Symbols>) -> SleepAt {
        let mut at = SleepAt {
            label: symbols.map_or(sleep.label, |symbols| symbols.label(&sleep.stack)),
            symbol: symbols.map_or(sleep.symbol.clone(), |symbols| {
                symbols.waiting_site(&sleep.stack)
            }),
            stack: symbols.and_then(|symbols| self.kernel_stack(&sleep.stack, symbols)),
            count: sleep.count,
            total_ns: sleep.total_ns,
            max_ns: sleep.max_ns,
            ..SleepAt::default()
        };
        at.find_line(&sleep.stack, symbols, self.lines);
        at
    }

    /// The index of a kernel stack (innermost address first), named.
    fn kernel_stack(&mut self, stack: &[u64], symbols: &Symbols) -> Option<usize> {
        if stack.is_empty() {
            return None;
        }
        if let Some(index) = self.kernel_index.get(stack) {
            return Some(*index);
        }
        let stacks = &mut self.trace.kernel_stacks;
        stacks.push(kernel_names(stack, symbols));
        self.kernel_index.insert(stack.to_vec(), stacks.len() - 1);
        Some(stacks.len() - 1)
    }

    fn location(&mut self, process: &Process, address: u64) -> usize {
        let location = match process.locate(address) {
            Some((module, offset)) => self.locations.find(&module.path, offset),
            None => self.locations.find("", address),
        };
        let locations = &mut self.trace.locations;
        *self
            .location_index
            .entry(location.clone())
            .or_insert_with(|| {
                locations.push(location);
                locations.len() - 1
            })
    }

    fn losses(&mut self, process: &Process) {
        let losses = &process.losses;
        let counts = [
            losses.calls_without_lane,
            losses.calls_without_site,
            losses.calls_passed,
            losses.calls_of_vfork,
            losses.sleeps_merged,
            losses.kernel_records,
            losses.kept_records,
            losses.remarks,
        ];
        for ((sum, processes), count) in self.lost.iter_mut().zip(counts) {
            *sum += count;
            *processes += u64::from(count > 0);
        }
        for note in &process.notes {
            let path = &note.text;
            self.add_missing(&match note.kind {
                NoteKind::Privileged => format!(
                    "{path} gets rights from its file (set-user-ID or capabilities), so the loader ignores preloaded \
                     libraries: it was not traced. Trace it as root with -p PID or --attach."
                ),
                NoteKind::Static => format!(
                    "{path} is statically linked (as Go programs are), so nothing can be preloaded: it was not traced. \
                     Use -p PID or --attach."
                ),
                NoteKind::Environment => format!(
                    "{path} was started with an environment of its own, without the library: it was not traced. \
                     Use --follow-all or --attach."
                ),
                NoteKind::SharedMemory => format!(
                    "{} ({}): a thread made a child that shares its memory, and is not traced from then on. Use \
                     --attach.",
                    process.pid,
                    crate::model::file_name(&process.exe)
                ),
                NoteKind::Confined => format!(
                    "{} ({}) gave up system calls (seccomp), and with them the library's: threads and children it made later \
                     are not traced. Use --attach.",
                    process.pid,
                    crate::model::file_name(&process.exe)
                ),
                NoteKind::Clockless => format!(
                    "{} ({}) gave up the CPU's counter (PR_SET_TSC, or seccomp's strict mode): its calls from then on are \
                     not traced, nor are the threads and processes it started. Use --attach.",
                    process.pid,
                    crate::model::file_name(&process.exe)
                ),
                NoteKind::Unreachable => format!(
                    "{path} was started where the preload library's file or the trace directory cannot be reached (chroot, \
                     mount namespace or another user): neither it nor what it started was traced. Use --attach."
                ),
                NoteKind::Architecture => format!(
                    "{path} is for another architecture than the preload library: it was not traced. Use --attach."
                ),
            });
        }
        match &process.level {
            TraceLevel::Stacks => {}
            level => self.add_missing(&format!("{}.", capital(&level.to_string()))),
        }
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

/// Whether kernel addresses of a process mean something now.
fn of_this_boot(process: &Process) -> bool {
    let current = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let current: String = current.chars().filter(char::is_ascii_hexdigit).collect();
    let unknown = process.boot_id.chars().all(|digit| digit == '0');
    unknown || current.is_empty() || process.boot_id == current
}

fn empty_site(location: usize, process: &Process, site: &CallSite) -> LocationTotals {
    LocationTotals {
        location,
        exe: process.exe.clone(),
        call: site.name.clone(),
        processes: 0,
        count: 0,
        errors: 0,
        wall_ns: 0,
        wall_min_ns: None,
        wall_max_ns: 0,
        in_band_min_ns: None,
        in_band_max_ns: None,
        faults_minor: 0,
        faults_major: 0,
        preemptions: headway_debox::Wait::default(),
        slept: headway_debox::Wait::default(),
        wakeup_ns: 0,
        histogram: Vec::new(),
        sleeps: Vec::new(),
    }
}

fn add_site(sum: &mut LocationTotals, site: &CallSite) {
    sum.count += site.count;
    sum.errors += site.errors;
    sum.wall_ns += site.wall_ns;
    sum.wall_min_ns = min_known(sum.wall_min_ns, Some(site.wall_min_ns));
    sum.wall_max_ns = sum.wall_max_ns.max(site.wall_max_ns);
    sum.in_band_min_ns = min_known(sum.in_band_min_ns, Some(site.in_band_min_ns));
    sum.in_band_max_ns = sum.in_band_max_ns.max(Some(site.in_band_max_ns));
    sum.faults_minor += site.faults_minor;
    sum.faults_major += site.faults_major;
    sum.preemptions.count += site.preemptions.count;
    sum.preemptions.total_ns += site.preemptions.total_ns;
    sum.slept.count += site.slept.count;
    sum.slept.total_ns += site.slept.total_ns;
    sum.wakeup_ns += site.wakeup_ns;
    add_buckets(&mut sum.histogram, &site.histogram);
}

/// The functions of a kernel stack (innermost address first), outermost first.
pub(crate) fn kernel_names(stack: &[u64], symbols: &Symbols) -> Vec<String> {
    let name = |address: &u64| {
        let found = symbols.name(address.saturating_sub(1));
        found.map_or_else(|| format!("{address:#x}"), |(name, _)| name.to_owned())
    };
    stack.iter().rev().map(name).collect()
}

/// The smaller of the known values.
pub(crate) fn min_known(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    [one, other].into_iter().flatten().min()
}

/// The sum of the known values; `None` if both are unknown.
pub(crate) fn sum_of(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (None, None) => None,
        _ => Some(one.unwrap_or(0) + other.unwrap_or(0)),
    }
}

fn add_buckets(sum: &mut Vec<Bucket>, more: &Histogram) {
    for (from_ns, to_ns, count) in more.buckets() {
        match sum.iter_mut().find(|bucket| bucket.from_ns == from_ns) {
            Some(bucket) => bucket.count += count,
            None => sum.push(Bucket {
                from_ns,
                to_ns,
                count,
            }),
        }
    }
}

/// Adds a sleep to that with the same label, stack and line.
pub(crate) fn merge_sleep(sleeps: &mut Vec<SleepAt>, sleep: SleepAt) {
    let same = |other: &&mut SleepAt| {
        other.stack == sleep.stack && other.label == sleep.label && other.symbol == sleep.symbol
    };
    let Some(sum) = sleeps.iter_mut().find(same) else {
        return sleeps.push(sleep);
    };
    sum.count += sleep.count;
    sum.total_ns += sleep.total_ns;
    sum.max_ns = sum.max_ns.max(sleep.max_ns);
    sum.waiters_entry_max = sum.waiters_entry_max.max(sleep.waiters_entry_max);
    sum.waiters_exit_max = sum.waiters_exit_max.max(sleep.waiters_exit_max);
    sum.waiters_entry_total = sum_of(sum.waiters_entry_total, sleep.waiters_entry_total);
    sum.waiters_exit_total = sum_of(sum.waiters_exit_total, sleep.waiters_exit_total);
}
