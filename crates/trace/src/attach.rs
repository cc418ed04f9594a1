//! From what an observer outside saw ([`headway_debox_bpf`]) to a [`Trace`].
//!
//! An observer knows less of some things than the programs themselves (no shortest call, no
//! histogram, no exit code) and more of others: the waiters on the same resource, and sleeps in
//! page faults outside any call.

use std::collections::{BTreeMap, HashMap};

use headway_debox::{KernelLines, Symbols, TraceLevel, Wait};
use headway_debox_bpf::{Attach, AttachError, KeptRecord, SiteTotals, SleepTotals};

use crate::call_sites::CallSites;
use crate::model::{
    CodeLocation, KeptCall, LocationTotals, Program, SCHEMA, SleepAt, Trace, TraceMethod,
};

/// An observation under way.
pub struct Observation {
    attach: Attach,
    kept: Vec<KeptRecord>,
    started_ns: u64,
    started_unix_ns: u64,
    names: BTreeMap<u32, (String, Vec<String>)>,
    gate: Option<u32>,
}

impl Observation {
    /// Of processes that `attach` watches from now on. What the process `gate` does before its exec
    /// is left out: it is our own, waiting to become the command.
    pub fn new(attach: Attach, gate: Option<u32>) -> Observation {
        let mut observation = Observation {
            attach,
            kept: Vec::new(),
            started_ns: now_ns(rustix::time::ClockId::Monotonic),
            started_unix_ns: now_ns(rustix::time::ClockId::Realtime),
            names: BTreeMap::new(),
            gate,
        };
        observation.poll();
        observation
    }

    /// Takes what has come; call it several times per second. False once every process has ended.
    pub fn poll(&mut self) -> bool {
        self.attach.poll();
        self.kept.extend(self.attach.records());
        let living: Vec<u32> = self.attach.living().collect();
        for pid in &living {
            // A name is read while the process lives; an exec changes it.
            if let Some(name) = name_of(*pid) {
                self.names.insert(*pid, name);
            }
        }
        !living.is_empty()
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
        for (pid, (exe, command)) in &self.names {
            builder
                .trace
                .programs
                .push(program(*pid, exe, command, self.started_ns));
        }
        let ours = |pid, execs| execs == 0 && self.gate == Some(pid);
        for totals in self
            .attach
            .snapshot()?
            .iter()
            .filter(|totals| !ours(totals.pid, totals.execs))
        {
            builder.site(totals, &self.names);
        }
        for kept in self.kept.iter().filter(|kept| !ours(kept.pid, kept.execs)) {
            builder.kept(kept, self.attach.mappings());
        }
        builder.trace.missing.extend(
            self.attach
                .visibility()
                .missing
                .iter()
                .map(|text| format!("{text}.")),
        );
        let lost = self.attach.lost();
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

fn name_of(pid: u32) -> Option<(String, Vec<String>)> {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let arguments = command
        .split(|&byte| byte == 0)
        .filter(|argument| !argument.is_empty());
    let arguments = arguments
        .map(|argument| String::from_utf8_lossy(argument).into_owned())
        .collect();
    Some((exe.to_string_lossy().into_owned(), arguments))
}

fn program(pid: u32, exe: &str, command: &[String], started_ns: u64) -> Program {
    Program {
        pid,
        ppid: 0,
        image: 0,
        exe: exe.to_owned(),
        command: command.to_vec(),
        started_ns,
        ended_ns: None,
        level: TraceLevel::Stacks,
        sees_faults: true,
        calls: 0,
    }
}

struct Builder<'a> {
    symbols: Option<&'a Symbols>,
    lines: Option<&'a KernelLines>,
    locations: &'a mut CallSites,
    location_index: HashMap<CodeLocation, usize>,
    stack_index: HashMap<Vec<u64>, usize>,
    site_index: HashMap<(usize, String), usize>,
    trace: Trace,
}

impl Builder<'_> {
    fn site(&mut self, totals: &SiteTotals, names: &BTreeMap<u32, (String, Vec<String>)>) {
        let location = match &totals.location {
            Some(location) => self.location(&location.file, location.offset),
            None => self.location("", totals.site),
        };
        if let Some(program) = self
            .trace
            .programs
            .iter_mut()
            .find(|program| program.pid == totals.pid)
        {
            program.calls += totals.count;
        }
        let exe = names
            .get(&totals.pid)
            .map_or_else(String::new, |(exe, _)| exe.clone());
        let sites = &mut self.trace.sites;
        let key = (location, totals.name.clone());
        let index = *self.site_index.entry(key).or_insert_with(|| {
            sites.push(empty(location, exe, &totals.name));
            sites.len() - 1
        });
        let site = &mut sites[index];
        site.processes += 1;
        site.count += totals.count;
        site.wall_ns += totals.wall_ns;
        site.wall_max_ns = site.wall_max_ns.max(totals.max_ns);
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
        let programs = &mut self.trace.programs;
        let known = programs.iter().position(|program| program.pid == kept.pid);
        let program = known.unwrap_or_else(|| {
            // It ended before its name was read.
            programs.push(program(
                kept.pid,
                &kept.comm,
                std::slice::from_ref(&kept.comm),
                record.start_ns,
            ));
            programs.len() - 1
        });
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
