//! `--functions`: the kernel's functions, timed by the kernel's function_graph tracer.
//!
//! The tracer belongs to the kernel and outlives this program. So a second process, the guard,
//! waits for this one to end, however that happens, and removes the trace instance.

use anyhow::Context;
use headway_debox::{FunctionTimes, FunctionsError, Symbols};
use headway_trace::Trace;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use super::Failure;
use crate::signals;

/// How often the rings are emptied: they hold what a busy CPU writes in some ten times as
/// long.
pub const POLL: Duration = Duration::from_millis(5);

/// The tracer, if it is wanted and there is one.
#[derive(Default)]
pub struct Functions {
    // Goes before the guard, which then finds nothing to do.
    times: Option<FunctionTimes>,
    _guard: Option<Guard>,
    why_not: Option<FunctionsError>,
}

impl Functions {
    /// Prepares to keep up to this many functions of each call.
    pub fn new(functions_max: Option<u32>) -> Functions {
        let Some(most) = functions_max else {
            return Functions::default();
        };
        // Without the guard the tracer might stay; its absence is a fault of ours and shows as any
        // other.
        let started = FunctionTimes::instance().map(|instance| Guard::start(&instance).ok());
        match started.and_then(|guard| Ok((guard, FunctionTimes::start(most as usize)?))) {
            Ok((guard, times)) => Functions {
                times: Some(times),
                _guard: guard,
                why_not: None,
            },
            Err(why) => Functions {
                why_not: Some(why),
                ..Functions::default()
            },
        }
    }

    /// Whether functions are timed.
    pub fn are_timed(&self) -> bool {
        self.times.is_some()
    }

    /// Does something that starts a process, whose calls are followed from the first one on. What a
    /// followed thread starts is followed too; so a thread of its own does it, and this program is
    /// not traced.
    pub fn start_followed<T: Send>(&mut self, start: impl FnOnce() -> T + Send) -> T {
        if !self.are_timed() {
            return start();
        }
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.follow(&[rustix::thread::gettid().as_raw_nonzero().get() as u32]);
                start()
            });
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Follows all threads of processes.
    pub fn follow_processes(&mut self, pids: &[u32]) {
        let tasks = |pid: &u32| std::fs::read_dir(format!("/proc/{pid}/task"));
        let entries = pids.iter().flat_map(tasks).flatten().flatten();
        let threads: Vec<u32> = entries
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        self.follow(&threads);
    }

    fn follow(&mut self, threads: &[u32]) {
        if let Some(times) = &mut self.times
            && let Err(why) = times.follow(threads)
        {
            self.why_not = Some(why);
            self.times = None;
        }
    }

    /// Empties the rings.
    pub fn poll(&mut self) {
        if let Some(times) = &mut self.times {
            times.poll();
        }
    }

    /// Gives the kept calls their functions, or says why there are none and what there is instead.
    pub fn add(&mut self, trace: &mut Trace, symbols: Option<&Symbols>) {
        if let Some(times) = &mut self.times {
            match times.finish() {
                Ok(()) => trace.add_functions(times, symbols),
                Err(why) => self.why_not = Some(why),
            }
        }
        if let Some(why) = &self.why_not {
            trace.missing.push(format!(
                "Kernel functions are not timed: {why}. The call trace is the kernel stack at each sleep instead \
                 (`kernel_stacks` of --json, --folded)."
            ));
        }
    }
}

/// A process that removes the trace instance once the one end of a pipe is closed, of which we hold
/// the other.
struct Guard(Child);

impl Guard {
    /// In a process group of its own, so that Ctrl-C is not meant for it.
    fn start(instance: &Path) -> anyhow::Result<Guard> {
        let program = std::env::current_exe().context("the path of this program")?;
        let child = Command::new(program)
            .arg("trace-guard")
            .arg(instance)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("starting the guard")?;
        Ok(Guard(child))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // Its word is not needed; it must not be left a zombie.
        let _ = self.0.wait();
    }
}

/// The guard: waits for its parent to end, and removes the trace instance that it left.
pub fn guard(instance: &Path) -> Result<ExitCode, Failure> {
    // What ends its starter is often sent to all processes there are.
    signals::caught(signals::STOP_OR_HANGUP)?;
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    headway_debox::remove_instance(instance).with_context(|| instance.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}
