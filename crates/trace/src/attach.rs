//! From what an observer outside saw ([`headway_debox_bpf`]) to a [`Trace`].
//!
//! An observer knows less of some things than the programs themselves (no shortest call, no
//! histogram, no exit code) and more of others: the waiters on the same resource, and sleeps in
//! page faults outside any call.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use headway_debox::{KernelLines, Symbols, TraceLevel, Wait};
use headway_debox_bpf::{Attach, AttachError, KeptRecord, SeenProgram, SiteTotals, SleepTotals};

use crate::call_sites::CallSites;
use crate::model::{
    CodeLocation, KeptCall, LocationTotals, Program, SCHEMA, SleepAt, Trace, TraceMethod, file_name,
};
use crate::units::{counted, time_unpadded};

/// An observation under way.
pub struct Observation {
    attach: Attach,
    kept: Vec<KeptRecord>,
    started_ns: u64,
    started_unix_ns: u64,
    names: Names,
    gate: Option<u32>,
}

/// A process, and how often it had called exec.
type Image = (u32, u32);

/// Paths and arguments of programs, as far as /proc had them.
type Names = BTreeMap<Image, (String, Vec<String>)>;

impl Observation {
    /// Of processes that `attach` watches from now on. What the process `gate` does before its exec
    /// is left out: it is our own, waiting to become the command.
    pub fn new(attach: Attach, gate: Option<u32>) -> Observation {
        let mut observation = Observation {
            attach,
            kept: Vec::new(),
            started_ns: now_ns(rustix::time::ClockId::Monotonic),
            started_unix_ns: now_ns(rustix::time::ClockId::Realtime),
            names: Names::new(),
            gate,
        };
        observation.poll();
        observation
    }

    /// Takes what has come; call it several times per second. False once every process has ended.
    pub fn poll(&mut self) -> bool {
        // A program that was there before the news were taken is what /proc shows now, unless the
        // news say otherwise. A younger one may have become another program since.
        let known_ns = now_ns(rustix::time::ClockId::Monotonic);
        self.attach.poll();
        self.kept.extend(self.attach.records());
        for program in self.attach.programs() {
            let image = (program.pid, program.execs);
            // A forked child is its parent's copy until it becomes another program, perhaps now.
            let named = program.parent.is_some() || self.names.contains_key(&image);
            if named || program.ended_ns.is_some() {
                continue;
            }
            if let Some((comm, name)) = name_of(program.pid)
                && (comm == program.comm || program.started_ns < known_ns)
            {
                self.names.insert(image, name);
            }
        }
        self.attach.living().next().is_some()
    }

    /// Path and arguments of a program. One that ended before /proc was read has what the kernel
    /// told: the name of its parent after a fork, the path after an exec.
    fn name(&self, image: Image, seen: &BTreeMap<Image, &SeenProgram>) -> (String, Vec<String>) {
        let mut image = image;
        // A shell forks a shell that forks; no chain is longer than the table.
        for _ in 0..=seen.len() {
            if let Some(name) = self.names.get(&image) {
                return name.clone();
            }
            let Some(program) = seen.get(&image) else {
                break;
            };
            match program.parent {
                Some(parent) => image = parent,
                None if program.path.is_empty() => {
                    return (program.comm.clone(), vec![program.comm.clone()]);
                }
                None => return (program.path.clone(), vec![program.path.clone()]),
            }
        }
        (String::new(), vec![format!("process {}", image.0)])
    }

    /// Every program that was seen, and those that only their calls tell of.
    fn programs(&self, totals: &[SiteTotals]) -> Vec<Program> {
        let seen: BTreeMap<Image, &SeenProgram> = self
            .attach
            .programs()
            .map(|program| ((program.pid, program.execs), program))
            .collect();
        let called = totals.iter().map(|totals| (totals.pid, totals.execs));
        let kept = self.kept.iter().map(|kept| (kept.pid, kept.execs));
        let images: BTreeSet<Image> = seen.keys().copied().chain(called).chain(kept).collect();
        let mut programs: Vec<Program> = images
            .into_iter()
            .filter(|image| !self.is_gate(*image))
            .map(|image| {
                let (exe, command) = self.name(image, &seen);
                let known = seen.get(&image);
                Program {
                    pid: image.0,
                    ppid: known
                        .and_then(|program| program.parent)
                        .map_or(0, |(pid, _)| pid),
                    image: image.1.into(),
                    exe,
                    command,
                    started_ns: known.map_or(self.started_ns, |program| program.started_ns),
                    ended_ns: known.and_then(|program| program.ended_ns),
                    level: TraceLevel::Stacks,
                    sees_faults: true,
                    calls: 0,
                }
            })
            .collect();
        programs.sort_by_key(|program| (program.started_ns, program.pid, program.image));
        programs
    }

    fn is_gate(&self, (pid, execs): Image) -> bool {
        execs == 0 && self.gate == Some(pid)
    }

    /// Calls of the traced processes that began before the trace and have not ended, by process.
    fn under_way_since_before(&self) -> Result<Vec<(u32, String)>, AttachError> {
        let living = self.attach.living().filter(|pid| Some(*pid) != self.gate);
        let waiting: Vec<(u32, (u32, String))> = living
            .flat_map(|pid| {
                let calls = waiting_calls(pid).into_iter();
                calls.map(move |(tid, call)| (tid, (pid, call)))
            })
            .collect();
        // Asked afterwards: a thread that was seen to enter no call is still in the one it waits in.
        let calling = self.attach.calling_threads()?;
        let before = waiting
            .into_iter()
            .filter(|(tid, _)| !calling.contains(tid));
        Ok(before.map(|(_, call)| call).collect())
    }

    /// Everything so far, with the lines of the kernel's sources if there are `lines`.
    ///
    /// # Errors
    ///
    /// The kernel refused to read a map.
    pub fn trace(
        &self,
        symbols: Option<&Symbols>,
        lines: Option<&KernelLines>,
        locations: &mut CallSites,
    ) -> Result<Trace, AttachError> {
        let mut builder = Builder {
            symbols,
            lines,
            locations,
            location_index: HashMap::new(),
            stack_index: HashMap::new(),
            site_index: HashMap::new(),
            program_index: HashMap::new(),
            trace: Trace {
                schema: SCHEMA,
                headway: env!("CARGO_PKG_VERSION").to_owned(),
                method: TraceMethod::Attach,
                started_ns: self.started_ns,
                started_unix_ns: self.started_unix_ns,
                ended_ns: now_ns(rustix::time::ClockId::Monotonic),
                ..Trace::default()
            },
        };
        let mut snapshot = self.attach.snapshot()?;
        snapshot.retain(|totals| !self.is_gate((totals.pid, totals.execs)));
        builder.trace.programs = self.programs(&snapshot);
        for (index, program) in builder.trace.programs.iter().enumerate() {
            let image = (program.pid, program.image as u32);
            builder.program_index.insert(image, index);
        }
        snapshot.iter().for_each(|totals| builder.site(totals));
        let kept = (self.kept.iter()).filter(|kept| !self.is_gate((kept.pid, kept.execs)));
        kept.for_each(|kept| builder.kept(kept, self.attach.mappings()));
        let under_way = under_way(&snapshot, &builder.trace);
        builder.trace.missing.extend(under_way);
        let before = self.under_way_since_before()?;
        builder.trace.missing.extend(begun_before(&before));
        builder.trace.missing.extend(
            self.attach
                .visibility()
                .missing
                .iter()
                .map(|text| format!("{text}.")),
        );
        let mut lost = self.attach.lost();
        if self.gate.is_some() {
            // The gate's own: it waits for the word to begin.
            lost.begun_before = 0;
        }
        if !lost.is_none() {
            builder.trace.missing.push(format!("{lost}."));
        }
        let mut trace = builder.trace;
        trace
            .sites
            .sort_by_key(|site| std::cmp::Reverse(site.wall_ns));
        trace.kept.sort_by_key(|kept| kept.start_ns);
        Ok(trace)
    }
}

fn now_ns(clock: rustix::time::ClockId) -> u64 {
    let now = rustix::time::clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The name of the main thread, and the path and arguments of the program.
fn name_of(pid: u32) -> Option<(String, (String, Vec<String>))> {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    let arguments = command
        .split(|&byte| byte == 0)
        .filter(|argument| !argument.is_empty());
    let arguments = arguments.map(|argument| String::from_utf8_lossy(argument).into_owned());
    let arguments: Vec<String> = arguments.collect();
    // A process that ends has none left.
    let name = (exe.to_string_lossy().into_owned(), arguments);
    (!name.1.is_empty()).then(|| (comm.trim_end().to_owned(), name))
}

/// The threads of a process that wait in a call, with its name.
///
/// Source: proc(5), /proc/PID/syscall.
fn waiting_calls(pid: u32) -> Vec<(u32, String)> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let call = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("syscall")).ok()?;
        // "running", or -1 outside a call.
        let number: u32 = text.split_whitespace().next()?.parse().ok()?;
        let tid = thread.file_name().to_str()?.parse().ok()?;
        Some((tid, headway_debox::calls::display_name(number).into_owned()))
    };
    threads
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(call)
        .collect()
}

/// How many calls a sentence names.
const NAMED_MAX: usize = 3;

/// A sentence about the calls that had not ended, longest first.
fn under_way(snapshot: &[SiteTotals], trace: &Trace) -> Option<String> {
    let mut longest: Vec<&SiteTotals> = (snapshot.iter())
        .filter(|totals| totals.under_way > 0)
        .collect();
    longest.sort_by_key(|totals| std::cmp::Reverse(totals.under_way_ns));
    let calls: u64 = longest.iter().map(|totals| totals.under_way).sum();
    let named = longest.iter().take(NAMED_MAX).map(|totals| {
        let program = (trace.programs.iter())
            .find(|one| (one.pid, one.image) == (totals.pid, totals.execs.into()));
        let exe = program.map_or("", |program| file_name(&program.exe));
        format!(
            "{} in process {} ({exe}) for {}",
            totals.name,
            totals.pid,
            time_unpadded(totals.under_way_ns)
        )
    });
    let named: Vec<String> = named.collect();
    let had = if calls == 1 { "has" } else { "have" };
    (calls > 0).then(|| {
        format!(
            "{} {had} not ended: {}{}. The time up to now is in the tables.",
            counted(calls, "call", "calls"),
            named.join(", "),
            more(longest.len())
        )
    })
}

/// A sentence about calls of which only the present is known.
fn begun_before(calls: &[(u32, String)]) -> Option<String> {
    let named = calls.iter().take(NAMED_MAX);
    let named: Vec<String> = named
        .map(|(pid, call)| format!("{call} in process {pid}"))
        .collect();
    let had = if calls.len() == 1 { "has" } else { "have" };
    (!calls.is_empty()).then(|| {
        format!(
            "{} from before the trace {had} not ended and is in no table: {}{}.",
            counted(calls.len() as u64, "call", "calls"),
            named.join(", "),
            more(calls.len())
        )
    })
}

fn more(calls: usize) -> &'static str {
    if calls > NAMED_MAX { " and others" } else { "" }
}

struct Builder<'a> {
    symbols: Option<&'a Symbols>,
    lines: Option<&'a KernelLines>,
    locations: &'a mut CallSites,
    location_index: HashMap<CodeLocation, usize>,
    stack_index: HashMap<Vec<u64>, usize>,
    site_index: HashMap<(usize, String), usize>,
    program_index: HashMap<Image, usize>,
    trace: Trace,
}

impl Builder<'_> {
    fn site(&mut self, totals: &SiteTotals) {
        let location = match &totals.location {
            Some(location) => self.location(&location.file, location.offset),
            None => self.location("", totals.site),
        };
        // A call that has not ended is one, with the time up to now.
        let (count, wall_ns) = (
            totals.count + totals.under_way,
            totals.wall_ns + totals.under_way_ns,
        );
        let program = self.program_index.get(&(totals.pid, totals.execs));
        let program = program.map(|index| &mut self.trace.programs[*index]);
        let exe = program.map_or_else(String::new, |program| {
            program.calls += count;
            program.exe.clone()
        });
        let sites = &mut self.trace.sites;
        let key = (location, totals.name.clone());
        let index = *self.site_index.entry(key).or_insert_with(|| {
            sites.push(empty(location, exe, &totals.name));
            sites.len() - 1
        });
        let site = &mut sites[index];
        site.processes += 1;
        site.count += count;
        site.wall_ns += wall_ns;
        let longest_ns = totals
            .max_ns
            .max(totals.under_way_ns / totals.under_way.max(1));
        site.wall_max_ns = site.wall_max_ns.max(longest_ns);
        site.faults_minor += totals.faults_minor;
        site.faults_major += totals.faults_major;
        site.preemptions.count += totals.preemptions.count;
        site.preemptions.total_ns += totals.preemptions.total_ns;
        site.slept.count += totals.sleep_count();
        site.slept.total_ns += totals.blocked_ns();
        site.wakeup_ns += totals.wakeup_ns;
        for sleep in &totals.sleeps {
            let sleep = self.sleep(sleep);
            crate::trace_builder::merge_sleep(&mut self.trace.sites[index].sleeps, sleep);
        }
    }

    fn sleep(&mut self, sleep: &SleepTotals) -> SleepAt {
        let counted = sleep.resource != headway_debox_bpf::Resource::None;
        let mut at = SleepAt {
            label: sleep.label,
            symbol: sleep.symbol.clone(),
            stack: self.kernel_stack(&sleep.stack),
            count: sleep.count,
            total_ns: sleep.total_ns,
            max_ns: sleep.max_ns,
            waiters_entry_max: counted.then_some(sleep.waiters.entry_max),
            waiters_exit_max: counted.then_some(sleep.waiters.exit_max),
            waiters_entry_total: counted.then_some(sleep.waiters.entry_sum),
            waiters_exit_total: counted.then_some(sleep.waiters.exit_sum),
            ..SleepAt::default()
        };
        at.find_line(&sleep.stack, self.symbols, self.lines);
        at
    }

    fn kept_sleep(&mut self, sleep: &headway_debox::Sleep) -> SleepAt {
        let frames = sleep.stack.frames();
        let mut at = SleepAt {
            label: sleep.label,
            symbol: (self.symbols).and_then(|symbols| symbols.waiting_site(frames)),
            stack: self.kernel_stack(frames),
            count: u64::from(sleep.count),
            total_ns: sleep.blocked_ns,
            max_ns: sleep.max_ns,
            waiters_entry_max: sleep.waiters_entry.map(u64::from),
            waiters_exit_max: sleep.waiters_exit.map(u64::from),
            ..SleepAt::default()
        };
        at.find_line(frames, self.symbols, self.lines);
        at
    }

    fn kept(&mut self, kept: &KeptRecord, mappings: &headway_debox_bpf::Mappings) {
        let record = &kept.record;
        let sleeps = record
            .sleeps()
            .iter()
            .map(|sleep| self.kept_sleep(sleep))
            .collect();
        let mut location_of = |address| match mappings.location(kept.pid, kept.execs, address) {
            Some(location) => self.location(&location.file, location.offset),
            None => self.location("", address),
        };
        let location = location_of(kept.site);
        let stack = kept
            .user_stack
            .iter()
            .map(|address| location_of(*address))
            .collect();
        let program = self.program_index.get(&(kept.pid, kept.execs));
        let program = program.copied().unwrap_or(0);
        self.trace.kept.push(KeptCall {
            program,
            thread: kept.tid,
            call: headway_debox::calls::display_name(record.number).into_owned(),
            location,
            result: None,
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
        });
    }

    fn location(&mut self, module: &str, offset: u64) -> usize {
        let location = self.locations.find(module, offset);
        let locations = &mut self.trace.locations;
        *self
            .location_index
            .entry(location.clone())
            .or_insert_with(|| {
                locations.push(location);
                locations.len() - 1
            })
    }

    fn kernel_stack(&mut self, stack: &[u64]) -> Option<usize> {
        let symbols = self.symbols.filter(|_| !stack.is_empty())?;
        if let Some(index) = self.stack_index.get(stack) {
            return Some(*index);
        }
        let stacks = &mut self.trace.kernel_stacks;
        stacks.push(crate::trace_builder::kernel_names(stack, symbols));
        self.stack_index.insert(stack.to_vec(), stacks.len() - 1);
        Some(stacks.len() - 1)
    }
}

fn empty(location: usize, exe: String, call: &str) -> LocationTotals {
    LocationTotals {
        location,
        exe,
        call: call.to_owned(),
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
        preemptions: Wait::default(),
        slept: Wait::default(),
        wakeup_ns: 0,
        histogram: Vec::new(),
        sleeps: Vec::new(),
    }
}
