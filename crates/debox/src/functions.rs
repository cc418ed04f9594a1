//! Kernel functions of a call, each with its time: the paper's `CallTrace`, on kernels that have
//! the tracer `function_graph`.
//!
//! The kernel writes every function of the followed threads into its own rings, out of band. Here
//! they are read and assigned to calls by thread and time. A followed thread takes several times as
//! long in the kernel, so this is for examining a program and never switched on by itself. Without
//! it the call trace of a [`Record`](crate::Record) is the stack at each sleep.
//!
//! `instance` creates and removes the trace instance; `rings`, `page` and `format` read it; `trees`
//! stores the functions.
//!
//! Source: Documentation/trace/ftrace.rst of the kernel, "function graph tracer".

use std::io;
use std::path::{Path, PathBuf};

use headway_os::ticks::monotonic_ns;

use crate::record::TraceEntry;
use crate::recorder::Debox;

mod format;
mod instance;
mod page;
mod rings;
mod trees;

use instance::Instance;
use rings::Rings;
use trees::Trees;

pub use instance::remove as remove_instance;
pub use trees::{Function, Functions};

pub(crate) use instance::is_offered;

/// Functions of all calls together: some 32 MB.
const FUNCTIONS_TOTAL_MAX: usize = 1 << 20;

/// Events older than this can be read: a CPU takes far less time from the time stamp of an event to
/// its commit.
const COMMIT_AGE_NS: u64 = 1_000_000;

/// Why kernel functions are not timed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FunctionsError {
    /// There is no tracefs to be seen.
    #[error(
        "tracefs is not mounted; `mount -t tracefs nodev /sys/kernel/tracing` mounts it, if the kernel has it"
    )]
    NoTracefs,
    /// The tracer is there, but a privilege is missing.
    #[error(
        "/sys/kernel/tracing is closed to this user; run as root (and not under kernel lockdown)"
    )]
    NotPermitted,
    /// The kernel was built without the tracer.
    #[error("this kernel has no function_graph tracer (CONFIG_FUNCTION_GRAPH_TRACER)")]
    NoTracer,
    /// The tracer works for the global buffer only, which others may use.
    #[error(
        "this kernel gives function_graph to its one global buffer only, which is not ours to take; Linux 6.11 and later \
         have it in instances"
    )]
    NoInstances,
    /// The event lacks a field.
    #[error(
        "the event funcgraph_exit of this kernel lacks a field that it has in Linux 6.12, so no function can be read"
    )]
    Format,
    /// Something failed on a file of tracefs.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// Making, writing, …
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why the call failed.
        source: io::Error,
    },
}

impl FunctionsError {
    fn io(what: &'static str, path: &Path, source: io::Error) -> FunctionsError {
        match source.kind() {
            io::ErrorKind::PermissionDenied => FunctionsError::NotPermitted,
            _ => FunctionsError::Io {
                what,
                path: path.to_owned(),
                source,
            },
        }
    }
}

/// Times the kernel functions in the calls of some threads.
///
/// Needs root and Linux 6.11 with `CONFIG_FUNCTION_GRAPH_TRACER`. A call of a followed thread takes
/// several times as long in the kernel. Calls of other threads are a little slower too, since every
/// kernel function checks whether it is traced. Dropping the value ends that. There can be one per
/// process. A process that is killed leaves its instance behind, until [`remove_instance`] or the
/// next [`FunctionTimes::start`] of any process removes it.
///
/// ```
/// use headway_debox::{Debox, FunctionTimes, Limits};
///
/// let debox = Debox::enable(Limits { trace_max: 200, ..Limits::default() });
/// match FunctionTimes::start(200) {
///     Ok(mut times) => {
///         times.follow(&[rustix::thread::gettid().as_raw_nonzero().get() as u32])?;
///         debox.call(libc::SYS_getpid as u32, std::process::id);
///         times.merge(&debox);
///         for entry in debox.last().expect("records are on").trace() {
///             let indent = usize::from(entry.depth);
///             println!("{:indent$}{:#x} {} ns", "", entry.address, entry.length_ns);
///         }
///     }
///     // The privilege or the kernel's tracer is missing; the error says which.
///     Err(error) => println!("kernel functions are not timed: {error}"),
/// }
/// # Ok::<(), headway_debox::FunctionsError>(())
/// ```
#[derive(Debug)]
pub struct FunctionTimes {
    // Closed before the instance goes, which the kernel keeps as long as they are open. Opened
    // after the tracer is set, which the kernel leaves alone as long.
    rings: Rings,
    instance: Instance,
    trees: Trees,
}

impl FunctionTimes {
    /// Prepares the tracer; [`FunctionTimes::follow`] begins. Of each call up to `functions_max`
    /// functions are kept, the longest.
    ///
    /// # Errors
    ///
    /// What [`FunctionsError`] lists; each text says what to do.
    pub fn start(functions_max: usize) -> Result<FunctionTimes, FunctionsError> {
        let instance = Instance::create()?;
        Ok(FunctionTimes {
            rings: Rings::new(instance.format()?, instance.page_bytes()?),
            instance,
            trees: Trees::new(functions_max, FUNCTIONS_TOTAL_MAX),
        })
    }

    /// The path of the instance that [`FunctionTimes::start`] of this process creates, for a guard
    /// that removes it if the process is killed.
    ///
    /// # Errors
    ///
    /// This user has no access to tracefs.
    pub fn instance() -> Result<PathBuf, FunctionsError> {
        Instance::own_path()
    }

    /// Follows these threads, and the threads and processes they start from now on. The numbers are
    /// those of gettid(2) in the initial PID namespace.
    ///
    /// # Errors
    ///
    /// The kernel refused.
    pub fn follow(&mut self, threads: &[u32]) -> Result<(), FunctionsError> {
        self.instance.follow(threads)?;
        if !self.rings.are_open() && !threads.is_empty() {
            self.rings.open(self.instance.rings()?);
        }
        Ok(())
    }

    /// Reads what the kernel has written up to a millisecond ago. Call it a hundred times per
    /// second: a ring holds no more of a busy CPU.
    pub fn poll(&mut self) {
        self.read_until(monotonic_ns().saturating_sub(COMMIT_AGE_NS));
    }

    /// Ends the tracing, and takes all that the kernel has written.
    ///
    /// # Errors
    ///
    /// The tracer could not be stopped.
    pub fn finish(&mut self) -> Result<(), FunctionsError> {
        self.instance.stop()?;
        // Nothing is written any more, so there is an end to it.
        while !self.read_until(u64::MAX) {}
        Ok(())
    }

    /// Whether the rings are empty now.
    fn read_until(&mut self, until_ns: u64) -> bool {
        let trees = &mut self.trees;
        (self.rings).read_until(until_ns, |exit, returned_ns| trees.add(exit, returned_ns))
    }

    /// The functions of one call. They are assigned by time, and the clock of in-band records is
    /// accurate to 5 µs. If calls follow each other more closely, a function at the edge may be
    /// assigned to the neighbour.
    pub fn of_call(&self, thread: u32, start_ns: u64, wall_ns: u64) -> Functions {
        self.trees.of_call(thread, start_ns, wall_ns)
    }

    /// Like [`FunctionTimes::of_call`], with everything that the kernel has written by now. Records
    /// that were overwritten during the call count as dropped, and so do those overwritten since
    /// the last read. Functions of earlier calls of this thread are discarded.
    ///
    /// # Errors
    ///
    /// The tracer could not be stopped for reading, or not be restarted.
    pub fn read_call(
        &mut self,
        thread: u32,
        start_ns: u64,
        wall_ns: u64,
    ) -> Result<Functions, FunctionsError> {
        // If this thread is traced, reading would be traced too, and each read would produce more
        // than it consumes.
        self.finish()?;
        let mut found = self.of_call(thread, start_ns, wall_ns);
        found.dropped += self.rings.lost_after(start_ns);
        self.trees.forget(thread);
        self.instance.resume()?;
        Ok(found)
    }

    /// Replaces the call trace of the calling thread's last record by the functions of that call.
    /// False, and the stacks are left as they are, if none is known. What was read of this thread's
    /// earlier calls is forgotten.
    pub fn merge(&mut self, debox: &Debox) -> bool {
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let mut merged = false;
        debox.amend(|record| {
            let Ok(found) = self.read_call(thread, record.start_ns, record.wall_ns) else {
                return;
            };
            let entry = |function: &Function| TraceEntry {
                address: function.address,
                length_ns: function.length_ns,
                depth: function.depth,
            };
            if !found.functions.is_empty() {
                let entries = found.functions.iter().map(entry);
                record.set_trace(entries, found.dropped);
                merged = true;
            }
        });
        merged
    }

    /// What was not recorded, in sentences without a full stop; empty if nothing is missing.
    pub fn missing(&self) -> Vec<String> {
        let mut missing = self.instance.remarks();
        if self.rings.lost() > 0 {
            missing.push(format!(
                "{} records of kernel functions were overwritten before they could be read, so functions are missing",
                self.rings.lost()
            ));
        }
        if self.trees.dropped() > 0 {
            missing.push(format!(
                "the functions of {} shorter calls were dropped for those of longer ones",
                self.trees.dropped()
            ));
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::format::ExitFormat;
    use super::page;
    use super::trees::Trees;

    /// What a ring held as a shell had run `sleep 0.03` under Linux 6.12 (Debian 13), with a filter
    /// for few functions.
    const PAGE: &[u8] = include_bytes!("../tests/data/functions/page");
    const FORMAT: &str = include_str!("../tests/data/functions/format");

    /// Functions of the page that sleeping calls, by what `System.map` of that kernel says.
    const SLEEPING: [(u64, &str); 5] = [
        (0xffff_ffff_8100_82b0, "x64_sys_call"),
        (0xffff_ffff_811a_8460, "__x64_sys_clock_nanosleep"),
        (0xffff_ffff_8119_bab0, "hrtimer_nanosleep"),
        (0xffff_ffff_81cb_e1a0, "do_nanosleep"),
        (0xffff_ffff_81cb_7080, "schedule"),
    ];

    #[test]
    fn functions_of_a_sleep_are_timed_when_a_recorded_ring_is_read() {
        let format = ExitFormat::parse(FORMAT).expect("a kernel wrote it");
        let mut trees = Trees::new(200, 10_000);
        let mut events = 0;
        let lost = page::read(PAGE, |event| {
            events += 1;
            if let Some(exit) = format.read(event.bytes) {
                trees.add(exit, event.time_ns);
            }
        });
        assert_eq!((events, lost), (98, 0));
        // The kernel's own view of the same ring: 36495.31 us for the outermost, 31804.90 us for
        // schedule.
        let found = trees.of_call(150, 4_423_930_000, 36_500_000);
        assert_eq!(found.dropped, 0);
        let functions = &found.functions;
        let outer = functions
            .iter()
            .find(|function| function.length_ns == 36_495_313);
        let at = functions
            .iter()
            .position(|function| Some(function) == outer)
            .expect("it is there");
        let chain = &functions[at..];
        let chain: Vec<_> = chain
            .iter()
            .filter(|function| function.length_ns > 1_000_000)
            .collect();
        let names: Vec<&str> = chain
            .iter()
            .map(|function| name(function.address))
            .collect();
        assert_eq!(names, SLEEPING.map(|(_, name)| name));
        let depths: Vec<u16> = chain.iter().map(|function| function.depth).collect();
        assert_eq!(depths, [0, 1, 2, 3, 4]);
        assert_eq!(chain[4].length_ns, 31_804_906);
        // Each within its caller, to what reading two clocks one after the other can be apart.
        for pair in chain.windows(2) {
            let ends = [pair[0], pair[1]].map(|function| function.start_ns + function.length_ns);
            assert!(
                pair[1].start_ns >= pair[0].start_ns && ends[1] <= ends[0],
                "{pair:?}"
            );
        }
    }

    fn name(address: u64) -> &'static str {
        // The tracer stands behind the landing instruction a function may begin with.
        let known = SLEEPING
            .iter()
            .find(|(start, _)| (*start..start + 8).contains(&address));
        known.map_or("another", |(_, name)| name)
    }
}
