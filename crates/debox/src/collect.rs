//! The files that traced programs write: one per process in one directory, written by the processes
//! while they run, and readable at any time.
//!
//! The preload library maps `PID-STARTTIME-IMAGE.debox`. For each call site (a return address and a
//! system call) it counts there how often it was called, how long that took and what it slept on.
//! Records that a policy selects are kept one by one. Because the memory is the file, `SIGKILL`
//! loses nothing.
//!
//! The writer is in [`mod@write`]; it takes words, does not allocate and is safe in signal
//! handlers. The reader is [`Collection`]; it trusts no byte of a file. It resolves kernel
//! addresses on request ([`Collection::resolve`]) and finds the module of a user address
//! ([`Process::locate`]). Naming the functions of a module is left to the caller.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::Serialize;

use crate::labels::Label;
use crate::report::{TraceLevel, Wait};

mod format;
mod histogram;
mod read;
pub mod write;

pub use histogram::Histogram;

/// Everything the processes of a directory have left.
///
/// ```
/// use headway_debox::collect::Collection;
///
/// let directory = tempfile::tempdir()?;
/// let collection = Collection::open(directory.path())?;
/// for process in &collection.processes {
///     for site in &process.sites {
///         println!("{} {}: {} × {}, {} ns", process.pid, process.exe, site.count, site.name, site.wall_ns);
///     }
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default, Serialize)]
pub struct Collection {
    /// In the order they began.
    pub processes: Vec<Process>,
    /// Files that could not be read, and why; the others are whole all the same.
    pub damaged: Vec<Damaged>,
}

/// A file that is not what its name promises.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damaged {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

/// One program in one process; an exec begins another.
#[derive(Clone, Debug, Serialize)]
pub struct Process {
    /// The file it was read from.
    pub path: PathBuf,
    /// The process.
    pub pid: u32,
    /// Process id of the parent at the start.
    pub ppid: u32,
    /// When the process began, in clock ticks since boot.
    pub start_ticks: u64,
    /// 0 for the program the process began with, one more after each exec.
    pub image: u64,
    /// Path of the program.
    pub exe: String,
    /// Arguments of the program.
    pub command: Vec<String>,
    /// Working directory at the start.
    pub directory: String,
    /// The policy for kept records, as it was given.
    pub policy: String,
    /// When the record began, on `CLOCK_MONOTONIC`.
    pub started_ns: u64,
    /// The start in nanoseconds since 1970, to join with other logs.
    pub started_unix_ns: u64,
    /// How the process ended; `None` while it runs, and for one that was killed.
    pub ended: Option<Ended>,
    /// When that was, on `CLOCK_MONOTONIC`.
    pub ended_ns: Option<u64>,
    /// How much its threads saw: the one that saw least decides.
    pub level: TraceLevel,
    /// Whether page faults were counted.
    pub sees_faults: bool,
    /// Whether times come from the CPU's counter; otherwise from the clock.
    pub ticks_are_counter: bool,
    /// The boot its kernel addresses belong to, as 32 hexadecimal digits.
    pub boot_id: String,
    /// Mapped code, in the order it was seen.
    pub modules: Vec<Module>,
    /// Longest in total first.
    pub sites: Vec<CallSite>,
    /// Records the policy kept, in the order they began.
    pub kept: Vec<KeptRecord>,
    /// Remarks, such as a program that could not be traced.
    pub notes: Vec<Note>,
    /// What is missing from all this.
    pub losses: Losses,
}

/// How a process's record ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// The program ended by itself.
    Exit,
    /// The process became another program; the next [`Process::image`] has a file of its own, if it
    /// could be traced.
    Exec,
}

impl Ended {
    fn word(self) -> u64 {
        match self {
            Ended::Exit => format::EXITED,
            Ended::Exec => format::REPLACED,
        }
    }
}

/// A piece of mapped code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Module {
    /// First address.
    pub start: u64,
    /// The address behind the last one.
    pub end: u64,
    /// What `start` is in the file.
    pub offset: u64,
    /// The file; `[anon]` where code lies in no file.
    pub path: String,
}

/// The calls one instruction of a program made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CallSite {
    /// The return address in the program.
    pub address: u64,
    /// Number of the call.
    pub call: u32,
    /// Name of the call.
    pub name: String,
    /// Number of calls.
    pub count: u64,
    /// How many of them failed.
    pub errors: u64,
    /// Nanoseconds in all, as the program could measure it.
    pub wall_ns: u64,
    /// The shortest call; 0 if none has returned.
    pub wall_min_ns: u64,
    /// Longest wall-clock time of a call.
    pub wall_max_ns: u64,
    /// The shortest time without preemptions: in-band time, which does not depend on load.
    pub in_band_min_ns: u64,
    /// The longest of these.
    pub in_band_max_ns: u64,
    /// Minor page faults.
    pub faults_minor: u64,
    /// Major page faults.
    pub faults_major: u64,
    /// How often the thread was preempted in a call.
    pub preemptions: Wait,
    /// Sleeps, including those without an entry below.
    pub slept: Wait,
    /// Nanoseconds runnable without running, if measured.
    pub wakeup_ns: u64,
    /// Lengths of the calls.
    pub histogram: Histogram,
    /// Where they slept, longest in total first.
    pub sleeps: Vec<SiteSleep>,
}

impl CallSite {
    /// Nanoseconds without the time the thread was preempted.
    pub fn in_band_ns(&self) -> u64 {
        self.wall_ns.saturating_sub(self.preemptions.total_ns)
    }

    /// Nanoseconds on the CPU.
    pub fn cpu_ns(&self) -> u64 {
        self.in_band_ns().saturating_sub(self.slept.total_ns)
    }
}

/// The sleeps of a call site in one kernel function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SiteSleep {
    /// The resource, once resolved.
    pub label: Label,
    /// The kernel function, once resolved.
    pub symbol: Option<String>,
    /// The kernel stack, innermost first.
    pub stack: Vec<u64>,
    /// Number of sleeps.
    pub count: u64,
    /// Nanoseconds in all.
    pub total_ns: u64,
    /// Longest sleep.
    pub max_ns: u64,
}

/// A record that was kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeptRecord {
    /// The thread.
    pub thread: u32,
    /// Number of the call.
    pub call: u32,
    /// Name of the call.
    pub name: String,
    /// The return address in the program.
    pub site: u64,
    /// What the call returned.
    pub result: i64,
    /// When the call began, on `CLOCK_MONOTONIC`.
    pub start_ns: u64,
    /// Wall-clock time of the call.
    pub wall_ns: u64,
    /// Minor page faults; `None` if not seen.
    pub faults_minor: Option<u32>,
    /// Major page faults.
    pub faults_major: Option<u32>,
    /// How often the thread was preempted.
    pub preemptions: Wait,
    /// Nanoseconds runnable without running, if measured.
    pub wakeup_ns: Option<u64>,
    /// Sleeps of the call, one entry per kernel function.
    pub sleeps: Vec<SiteSleep>,
    /// Further sleeps, for which there was no entry.
    pub sleeps_dropped: u32,
    /// Records the kernel lost meanwhile.
    pub lost: u64,
    /// The program's stack as return addresses, innermost first; empty if not recorded.
    pub user_stack: Vec<u64>,
}

/// A remark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// Kind of the note.
    pub kind: NoteKind,
    /// When, on `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// A path.
    pub text: String,
}

/// What a remark is about: programs whose record is missing from the directory, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u64)]
pub enum NoteKind {
    /// The program gets rights from its file (set-user-ID, set-group-ID, capabilities): the loader
    /// ignores preloaded libraries there.
    Privileged = 1,
    /// The program is statically linked: there is no loader.
    Static = 2,
    /// The program was given an environment without the library.
    Environment = 3,
    /// A child that shares memory with its parent but not a thread of it (clone with `CLONE_VM`):
    /// the thread that made it is no longer traced.
    SharedMemory = 4,
    /// The program is for another architecture than the library.
    Architecture = 5,
    /// The process gave up system calls (seccomp): threads and children it made later are not
    /// traced.
    Confined = 6,
    /// The process gave up the CPU's counter (`PR_SET_TSC`, seccomp's strict mode): its thread and
    /// what it starts are not traced from then on.
    Clockless = 7,
    /// The program was started where it cannot reach the library's file or the directory: behind a
    /// chroot, in another mount namespace, or as another user.
    Unreachable = 8,
}

impl NoteKind {
    const ALL: [NoteKind; 8] = [
        NoteKind::Privileged,
        NoteKind::Static,
        NoteKind::Environment,
        NoteKind::SharedMemory,
        NoteKind::Architecture,
        NoteKind::Confined,
        NoteKind::Clockless,
        NoteKind::Unreachable,
    ];
}

/// What a file does not show. All zero means that nothing is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Losses {
    /// Calls of threads beyond the number that have a lane.
    pub calls_without_lane: u64,
    /// Calls at further call sites, for which there was no room.
    pub calls_without_site: u64,
    /// Calls made inside the tracer itself, in a signal handler that met it there; not in any
    /// count.
    pub calls_passed: u64,
    /// Calls of vfork children, which share their parent's memory; not in any count.
    pub calls_of_vfork: u64,
    /// Calls made in signal handlers while another call was under way: counted, with their sleeps
    /// in that other call.
    pub calls_nested: u64,
    /// Sleeps that are in the sums of their call site but not kept apart.
    pub sleeps_merged: u64,
    /// Records of the kernel that found its ring full: sleeps may be missing.
    pub kernel_records: u64,
    /// Records the policy chose, but the log was full.
    pub kept_records: u64,
    /// Modules, notes and texts beyond the room for them.
    pub remarks: u64,
}

impl Process {
    /// The module that contains an address, and the offset in its file, for a symbol table of that
    /// file.
    ///
    /// A return address may be the first one after its function; look up the byte before it.
    pub fn locate(&self, address: u64) -> Option<(&Module, u64)> {
        // The newest first: memory may have been used for another module before.
        let inside = |module: &&Module| (module.start..module.end).contains(&address);
        let module = self.modules.iter().rev().find(inside)?;
        Some((
            module,
            (address - module.start).saturating_add(module.offset),
        ))
    }

    /// Calls in all sites.
    pub fn calls(&self) -> u64 {
        (self.sites.iter()).fold(0, |sum, site| sum.saturating_add(site.count))
    }
}

/// The arguments of a command from a text in which each ends with a zero byte.
fn arguments(text: &[u8]) -> Vec<String> {
    let text = text.strip_suffix(&[0]).unwrap_or(text);
    if text.is_empty() {
        return Vec::new();
    }
    text.split(|&byte| byte == 0).map(lossy).collect()
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The name of the file with the kernel's symbols ([`Symbols::image`](crate::Symbols::image)), for
/// processes that need labels at once.
pub const SYMBOLS_FILE: &str = "symbols";

/// Returns the name of the file of a process.
///
/// ```
/// assert_eq!(headway_debox::collect::file_name(42, 7, 0), "42-7-0.debox");
/// ```
pub fn file_name(pid: u32, start_ticks: u64, image: u64) -> OsString {
    format!("{pid}-{start_ticks}-{image}.{}", format::SUFFIX).into()
}

#[cfg(test)]
mod tests;
