//! The model of a trace, as it is shown, saved and read back: the contents of `trace.json`.
//!
//! Everything is resolved here: call sites have functions and lines, sleeps have labels and kernel
//! symbols. So a saved trace shows the same on another machine and after another boot. Fields are
//! added, but never change their meaning; [`SCHEMA`] grows when an older reader would misread.

mod check;

use std::path::Path;

use headway_debox::{KernelLines, Label, Symbols, TraceLevel, Wait};
use serde::{Deserialize, Serialize};

/// The version of the form.
pub const SCHEMA: u32 = 1;

/// The name of the file in a run directory and in a kept one.
pub const FILE_NAME: &str = "trace.json";

/// What one command, or one set of processes that ran already, did and waited for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// [`SCHEMA`] of the writer.
    pub schema: u32,
    /// Version of the program that wrote it.
    pub headway: String,
    /// How the records were made.
    pub method: TraceMethod,
    /// The command, empty for processes that ran already.
    pub command: Vec<String>,
    /// How the command ended.
    pub outcome: Option<Outcome>,
    /// Beginning of the trace in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// The start on `CLOCK_MONOTONIC`, the clock of all other times here.
    pub started_ns: u64,
    /// The end of the trace, or the last thing that was seen.
    pub ended_ns: u64,
    /// Which records were kept one by one.
    pub policy: String,
    /// Programs, in the order they began; an exec begins another.
    pub programs: Vec<Program>,
    /// Call sites of all programs, longest in total first.
    pub sites: Vec<LocationTotals>,
    /// Records the policy kept, in the order they began.
    pub kept: Vec<KeptCall>,
    /// Call sites in the programs' code, which sites and stacks name by index.
    pub locations: Vec<CodeLocation>,
    /// Kernel stacks, outermost function first, which sleeps name by index.
    pub kernel_stacks: Vec<Vec<String>>,
    /// What the trace does not show, in whole sentences.
    pub missing: Vec<String>,
}

/// How records are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraceMethod {
    /// By the programs themselves: in band.
    #[default]
    Preload,
    /// By programs in the kernel: out of band, with waiters.
    Attach,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The command exited with this code.
    Exit(i32),
    /// This signal killed the command.
    Signal(i32),
}

/// One program in one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// The process.
    pub pid: u32,
    /// Process id of the parent at the start; 0 if not known.
    pub ppid: u32,
    /// 0 for the program the process began with, one more after each exec.
    pub image: u64,
    /// Path of the program.
    pub exe: String,
    /// Arguments of the program.
    pub command: Vec<String>,
    /// When its record began.
    pub started_ns: u64,
    /// When the program ended or became another; `None` if it ran on or was killed.
    pub ended_ns: Option<u64>,
    /// How much was seen, and what grants more.
    pub level: TraceLevel,
    /// Whether page faults were counted.
    pub sees_faults: bool,
    /// How many calls it made.
    pub calls: u64,
}

/// The calls from one location of a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LocationTotals {
    /// Index into [`Trace::locations`].
    pub location: usize,
    /// Path of the program, or of the first one where several share the code.
    pub exe: String,
    /// Name of the call.
    pub call: String,
    /// Processes that made it.
    pub processes: u64,
    /// Number of calls.
    pub count: u64,
    /// Number of calls that failed.
    pub errors: u64,
    /// Nanoseconds in all, as the program could measure it.
    pub wall_ns: u64,
    /// The shortest; `None` if not known.
    pub wall_min_ns: Option<u64>,
    /// Longest wall-clock time of a call.
    pub wall_max_ns: u64,
    /// The shortest time without preemptions, which only in-band measurement knows.
    pub in_band_min_ns: Option<u64>,
    /// The longest of these; `None` if not known.
    pub in_band_max_ns: Option<u64>,
    /// Minor page faults.
    pub faults_minor: u64,
    /// Major page faults.
    pub faults_major: u64,
    /// How often the thread was preempted.
    pub preemptions: Wait,
    /// Sleeps and their time.
    pub slept: Wait,
    /// Nanoseconds runnable without running, if measured.
    pub wakeup_ns: u64,
    /// Lengths of the calls; empty if not known.
    pub histogram: Vec<Bucket>,
    /// Where they slept, longest in total first.
    pub sleeps: Vec<SleepAt>,
}

/// Calls of similar duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// The shortest length that belongs here.
    pub from_ns: u64,
    /// The shortest that does not any more; the last bucket has no end.
    pub to_ns: Option<u64>,
    /// Number of calls.
    pub count: u64,
}

/// Sleeps at one location of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SleepAt {
    /// The resource.
    pub label: Label,
    /// The kernel function.
    pub symbol: Option<String>,
    /// The source file of the kernel function, if the kernel's debug file was requested and found.
    #[serde(default)]
    pub file: Option<String>,
    /// The line in it.
    #[serde(default)]
    pub line: Option<u32>,
    /// Index into [`Trace::kernel_stacks`].
    pub stack: Option<usize>,
    /// Number of sleeps.
    pub count: u64,
    /// Nanoseconds in all.
    pub total_ns: u64,
    /// Longest sleep.
    pub max_ns: u64,
    /// The largest number of other tasks asleep on the same resource at the beginning of a sleep,
    /// if an observer counted them.
    pub waiters_entry_max: Option<u64>,
    /// The largest number of other tasks at a wakeup.
    pub waiters_exit_max: Option<u64>,
    /// Other tasks found at the beginnings of all these sleeps together; divided by `count`, the
    /// mean. `None` for a single kept call.
    #[serde(default)]
    pub waiters_entry_total: Option<u64>,
    /// Other tasks found at the wakeups of all these sleeps together.
    #[serde(default)]
    pub waiters_exit_total: Option<u64>,
}

/// One call that was kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptCall {
    /// Index into [`Trace::programs`].
    pub program: usize,
    /// The thread.
    pub thread: u32,
    /// Name of the call.
    pub call: String,
    /// Index into [`Trace::locations`].
    pub location: usize,
    /// What the call returned; `None` if not known.
    pub result: Option<i64>,
    /// When the call began.
    pub start_ns: u64,
    /// Wall-clock time of the call.
    pub wall_ns: u64,
    /// Minor page faults.
    pub faults_minor: Option<u32>,
    /// Major page faults.
    pub faults_major: Option<u32>,
    /// How often the thread was preempted.
    pub preemptions: Wait,
    /// Nanoseconds runnable without running, if measured.
    pub wakeup_ns: Option<u64>,
    /// Sleeps of the call, one for each location of the kernel.
    pub sleeps: Vec<SleepAt>,
    /// Further sleeps, and records that the kernel lost: there may be more sleeps.
    pub lost: u64,
    /// The program's stack, innermost first, as indices into [`Trace::locations`]; empty if it was
    /// not recorded.
    pub stack: Vec<usize>,
    /// The kernel's functions it ran, in the order they were called; empty where they were not
    /// timed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<FunctionAt>,
    /// Shorter ones, for which there was no room.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub functions_dropped: u64,
}

/// A function of the kernel, timed from its call to its return.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionAt {
    /// Name of the function; its address where the kernel's symbols are hidden.
    pub name: String,
    /// How many of the functions before it are around it.
    pub depth: u16,
    /// When the function was called.
    pub start_ns: u64,
    /// Sleeps included.
    pub length_ns: u64,
}

/// A location in a program's code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CodeLocation {
    /// The file of the code; empty if not known.
    pub module: String,
    /// The offset in it; the address itself if the module is not known.
    pub offset: u64,
    /// The function, `None` without symbols.
    pub function: Option<String>,
    /// The function it is inlined into.
    pub within: Option<String>,
    /// Source file.
    pub file: Option<String>,
    /// Number of the line.
    pub line: Option<u32>,
}

impl Trace {
    /// Reads a saved trace.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is no trace, is damaged, or a later version wrote it.
    pub fn read(path: &Path) -> std::io::Result<Trace> {
        let bad = |why: String| {
            let text = format!("{}: {why}", path.display());
            std::io::Error::new(std::io::ErrorKind::InvalidData, text)
        };
        let text = std::fs::read(path).map_err(|error| {
            std::io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
        let schema: SchemaOnly =
            serde_json::from_slice(&text).map_err(|error| bad(format!("no trace: {error}")))?;
        if schema.schema != SCHEMA {
            return Err(bad(format!(
                "schema {}, this program reads schema {SCHEMA}; use the release it was made with",
                schema.schema
            )));
        }
        let trace: Trace =
            serde_json::from_slice(&text).map_err(|error| bad(format!("no trace: {error}")))?;
        if !trace.adds_up() {
            return Err(bad(
                "damaged: its numbers are too large to be added up".into()
            ));
        }
        Ok(trace)
    }

    /// The trace as JSON, one line.
    pub fn json(&self) -> String {
        // Strings, numbers and lists only: nothing that could not be written.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Leaves only kept calls made at one of these locations; see [`CodeLocation::is_named`].
    pub fn keep_sites(&mut self, names: &[String]) {
        let locations = &self.locations;
        self.kept.retain(|kept| {
            let location = locations.get(kept.location);
            location.is_some_and(|location| names.iter().any(|name| location.is_named(name)))
        });
    }

    /// Whether an observer counted the waiters of some sleep.
    pub fn has_waiters(&self) -> bool {
        let mut sleeps = self.sites.iter().flat_map(|site| &site.sleeps);
        sleeps.any(|sleep| sleep.waiters_entry_max.is_some())
    }

    /// Whether the kernel's functions were timed in some call.
    pub fn has_functions(&self) -> bool {
        self.kept.iter().any(|kept| !kept.functions.is_empty())
    }

    /// Length of the trace.
    pub fn length_ns(&self) -> u64 {
        self.ended_ns.saturating_sub(self.started_ns)
    }

    /// Calls in all.
    pub fn calls(&self) -> u64 {
        self.sites.iter().map(|site| site.count).sum()
    }

    /// Distinct processes.
    pub fn processes(&self) -> usize {
        let pids: std::collections::BTreeSet<u32> =
            self.programs.iter().map(|program| program.pid).collect();
        pids.len()
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[derive(Deserialize)]
struct SchemaOnly {
    schema: u32,
}

impl LocationTotals {
    /// Time in all without preemptions.
    pub fn in_band_ns(&self) -> u64 {
        self.wall_ns.saturating_sub(self.preemptions.total_ns)
    }
}

impl KeptCall {
    /// Time in all without preemptions.
    pub fn in_band_ns(&self) -> u64 {
        self.wall_ns.saturating_sub(self.preemptions.total_ns)
    }

    /// Time asleep.
    pub fn blocked_ns(&self) -> u64 {
        self.sleeps.iter().map(|sleep| sleep.total_ns).sum()
    }

    /// The label it slept on longest.
    pub fn label(&self) -> Option<Label> {
        let longest = self.sleeps.iter().max_by_key(|sleep| sleep.total_ns);
        longest.map(|sleep| sleep.label)
    }

    /// The largest number of other tasks asleep on the same resource at the beginning of one of its
    /// sleeps; `None` if it was not counted.
    pub fn waiters_entry_max(&self) -> Option<u64> {
        let counted = self
            .sleeps
            .iter()
            .filter_map(|sleep| sleep.waiters_entry_max);
        counted.max()
    }

    /// The largest number of other tasks at the end of one of its sleeps; `None` if it was not
    /// counted.
    pub fn waiters_exit_max(&self) -> Option<u64> {
        let counted = self
            .sleeps
            .iter()
            .filter_map(|sleep| sleep.waiters_exit_max);
        counted.max()
    }
}

impl SleepAt {
    /// Names the line of the function that slept; `stack` has the innermost address first.
    pub(crate) fn find_line(
        &mut self,
        stack: &[u64],
        symbols: Option<&Symbols>,
        lines: Option<&KernelLines>,
    ) {
        let Some((symbols, lines)) = symbols.zip(lines) else {
            return;
        };
        let site = symbols.site(stack);
        // The offset is that of a return address, which may already be the next line's.
        let inside = site.map(|site| site.function + u64::from(site.offset) - 1);
        if let Some(line) = inside.and_then(|address| lines.line(address)) {
            self.file = Some(line.file);
            self.line = Some(line.line).filter(|line| *line > 0);
        }
    }

    /// `file:line` as far as it is known.
    pub fn source_line(&self) -> Option<String> {
        let file = self.file.as_ref()?;
        Some(match self.line {
            Some(line) => format!("{file}:{line}"),
            None => file.clone(),
        })
    }
}

impl CodeLocation {
    /// Whether a user means this location by `function` or `file:line`. The last part of a
    /// qualified name (`flush` of `store::flush`) and of a path (`a.c:12` of `src/a.c:12`) will do.
    pub fn is_named(&self, name: &str) -> bool {
        let is = |known: &str, separator: &str| {
            known == name
                || (known.strip_suffix(name)).is_some_and(|rest| rest.ends_with(separator))
        };
        let functions = [&self.function, &self.within].into_iter().flatten();
        let mut functions = functions.map(|function| is(function, "::"));
        let line = match (&self.file, self.line) {
            (Some(file), Some(line)) => is(&format!("{file}:{line}"), "/"),
            _ => false,
        };
        line || functions.any(|found| found)
    }

    /// `function (file:line)` as far as they are known, else `module+0xoffset`.
    pub fn description(&self) -> String {
        let location = match (&self.file, self.line) {
            (Some(file), Some(line)) => Some(format!("{}:{line}", short_path(file))),
            _ => None,
        };
        match (&self.function, location) {
            (Some(function), Some(location)) => format!("{function} ({location})"),
            (None, Some(location)) => location,
            (Some(function), None) => match self.module_name() {
                "" => function.clone(),
                module => format!("{function} ({module})"),
            },
            (None, None) => self.module_offset(),
        }
    }

    /// A name without spaces and semicolons, for formats that use them.
    pub fn frame(&self) -> String {
        let name = self
            .function
            .clone()
            .unwrap_or_else(|| self.module_offset());
        let name = name.replace(';', ":").replace(char::is_whitespace, "_");
        headway_base::format::printable(&name).into_owned()
    }

    fn module_offset(&self) -> String {
        match self.module_name() {
            "" => format!("{:#x}", self.offset),
            module => format!("{module}+{:#x}", self.offset),
        }
    }

    fn module_name(&self) -> &str {
        file_name(&self.module)
    }
}

/// The last part of a path.
pub fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The last two components of a long path, which are the most useful.
fn short_path(path: &str) -> &str {
    let mut slashes = path.rmatch_indices('/').map(|(at, _)| at);
    match (slashes.next(), slashes.next()) {
        (Some(_), Some(second)) if path.len() > 32 => &path[second + 1..],
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::{CodeLocation, LocationTotals, Trace};

    #[test]
    fn trace_is_damaged_when_its_numbers_cannot_be_added_up() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("trace.json");
        let mut trace = Trace {
            schema: super::SCHEMA,
            ..Trace::default()
        };
        for (wall_ns, reads) in [(u64::MAX / 4, true), (u64::MAX / 2, false)] {
            trace.sites = vec![
                LocationTotals {
                    wall_ns,
                    ..LocationTotals::default()
                };
                3
            ];
            std::fs::write(&path, trace.json()).expect("a file");
            assert_eq!(Trace::read(&path).is_ok(), reads, "{wall_ns}");
        }
    }

    #[test]
    fn call_site_matches_when_the_last_part_of_function_or_line_is_given() {
        let location = CodeLocation {
            function: Some("store::Log::flush".into()),
            file: Some("/home/me/src/log.rs".into()),
            line: Some(12),
            ..CodeLocation::default()
        };
        for name in [
            "flush",
            "Log::flush",
            "store::Log::flush",
            "log.rs:12",
            "src/log.rs:12",
        ] {
            assert!(location.is_named(name), "{name}");
        }
        for name in ["lush", "og.rs:12", "log.rs:1", "log.rs", "store", ""] {
            assert!(!location.is_named(name), "{name}");
        }
    }
}
