//! Watches the threads of an event loop: how long a turn takes, how late timers run, and in which
//! system calls the loop sleeps.
//!
//! The program says where a turn begins and ends: around its wait for events. What the thread slept
//! in between is in its own perf ring, with the kernel stack, and the stack names the system call.
//! So no call needs a wrapper, and the loop pays two clock readings per turn.
//!
//! It refuses to observe threads that do not ask for it, and it never waits for a reader: sums which
//! a reader holds stay with the thread until its next turn.
//!
//! The metrics are those which `headway serve` has about its own loops.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use headway_os::fork::ForkGuard;
use headway_os::perf::Ring;

use crate::aggregator::Aggregator;
use crate::privilege;
use crate::recorder::{is_confined, kernel_symbols};
use crate::report::{Report, TraceLevel, Wait};
use crate::symbols::Symbols;
use durations::Durations;

mod durations;
mod text;

/// How often [`LoopWatch::measure_lag`] sets its timer.
const LAG_PERIOD: Duration = Duration::from_millis(100);

crate::call_kinds! {
    enum Phase {
        Wait = "wait",
        Turn = "turn",
    }
    wait = Wait
}

/// Starts a watch. Its threads join with their first turn.
///
/// The first watch of a process loads the kernel's symbols, which takes tens of milliseconds and
/// several megabytes: start it before the loop.
///
/// ```
/// use std::io::Read;
/// use std::time::Duration;
///
/// let watch = headway_debox::watch_loop();
/// let (mut events, sender) = std::io::pipe()?;
/// drop(sender);
/// for _ in 0..3 {
///     watch.end_turn();
///     let _ = events.read(&mut [0])?; // The wait for events.
///     watch.begin_turn();
///     std::thread::sleep(Duration::from_millis(1)); // A handler that blocks.
/// }
/// watch.end_turn();
/// // headway_loop_blocked_total{call="clock_nanosleep",resource="timer",site="do_nanosleep"} 3
/// println!("{}", watch.metrics());
/// # assert!(watch.metrics().contains("headway_loop_turn_seconds_count 3\n"));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// tokio calls both from its hooks:
///
/// ```no_run
/// let watch = headway_debox::watch_loop();
/// let (begin, end) = (watch.clone(), watch.clone());
/// let runtime = tokio::runtime::Builder::new_current_thread()
///     .enable_all()
///     .on_thread_unpark(move || begin.begin_turn())
///     .on_thread_park(move || end.end_turn())
///     .build()?;
/// runtime.spawn(watch.clone().measure_lag(tokio::time::sleep));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn watch_loop() -> LoopWatch {
    kernel_symbols();
    LoopWatch {
        shared: Arc::new(Shared {
            turns: Durations::new(),
            lag: Durations::new(),
            seen: Mutex::new(None),
        }),
    }
}

/// A watch over the threads of an event loop; see [`watch_loop`]. A clone is the same watch.
///
/// A thread belongs to one watch at a time. A forked child is not observed until it starts a watch
/// of its own.
#[derive(Clone)]
pub struct LoopWatch {
    shared: Arc<Shared>,
}

struct Shared {
    turns: Durations,
    lag: Durations,
    /// What the threads have published; `None` before the first turn.
    seen: Mutex<Option<Report>>,
}

impl LoopWatch {
    /// The calling thread has come back from its wait for events.
    pub fn begin_turn(&self) {
        self.with_thread(|thread| {
            thread.drain(Phase::Wait);
            thread.began = Some(Instant::now());
        });
    }

    /// The calling thread is about to wait for events.
    pub fn end_turn(&self) {
        self.with_thread(|thread| {
            thread.drain(Phase::Turn);
            if let Some(began) = thread.began.take() {
                self.shared.turns.record(began.elapsed());
            }
            if let Ok(mut seen) = self.shared.seen.try_lock() {
                thread.publish(&mut seen);
            }
        });
    }

    /// A timer of the loop ran this much later than it was due.
    pub fn observe_lag(&self, late: Duration) {
        self.shared.lag.record(late);
    }

    /// Measures the lag ten times per second, with the timer of the loop that runs this future. It
    /// does not end.
    pub async fn measure_lag<S: Future<Output = ()>>(self, sleep: impl Fn(Duration) -> S) {
        loop {
            let due = Instant::now() + LAG_PERIOD;
            sleep(LAG_PERIOD).await;
            self.observe_lag(due.elapsed());
        }
    }

    /// What the threads slept in, up to the last turn of each. [`Site::call`](crate::Site::call) is
    /// the system call, `page-fault`, or `unknown` without kernel stacks.
    pub fn report(&self) -> Report {
        let mut report = self.seen().clone().unwrap_or_else(|| {
            empty(TraceLevel::Off {
                why: "no thread has begun a turn".to_owned(),
            })
        });
        let symbols = kernel_symbols();
        for site in &mut report.sleeps {
            let call = symbols.and_then(|symbols| symbols.system_call(&site.stack));
            site.call = call.unwrap_or("unknown").to_owned();
        }
        if let Some(symbols) = symbols {
            report.resolve(symbols);
        }
        report
    }

    /// The metrics in the Prometheus text format, version 0.0.4.
    pub fn metrics(&self) -> String {
        text::render(&self.report(), &self.shared.turns, &self.shared.lag)
    }

    fn seen(&self) -> MutexGuard<'_, Option<Report>> {
        let seen = self.shared.seen.lock();
        seen.unwrap_or_else(PoisonError::into_inner)
    }

    fn with_thread(&self, act: impl FnOnce(&mut Watched)) {
        // A thread which ends has no turns any more.
        let _ = WATCHED.try_with(|watched| {
            let Ok(mut watched) = watched.try_borrow_mut() else {
                return;
            };
            let is_of_this = |thread: &Watched| Arc::ptr_eq(&thread.shared, &self.shared);
            if !watched.as_ref().is_some_and(is_of_this) {
                *watched = Some(Watched::start(self.shared.clone()));
            }
            if let Some(thread) = watched.as_mut()
                && thread.fork_guard.is_same_process()
            {
                act(thread);
            }
        });
    }
}

impl fmt::Debug for LoopWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopWatch").finish_non_exhaustive()
    }
}

thread_local! {
    static WATCHED: RefCell<Option<Watched>> = const { RefCell::new(None) };
}

/// A thread of a loop.
struct Watched {
    shared: Arc<Shared>,
    ring: Option<Ring>,
    level: TraceLevel,
    fork_guard: ForkGuard,
    /// What is not published yet.
    aggregator: Aggregator<Phase>,
    began: Option<Instant>,
}

impl Watched {
    fn start(shared: Arc<Shared>) -> Watched {
        let (ring, level) = match is_confined() {
            false => privilege::best_ring(),
            true => {
                let why = "seccomp(2) had confined the process before its first turn".to_owned();
                (None, TraceLevel::Off { why })
            }
        };
        Watched {
            shared,
            ring,
            level,
            fork_guard: ForkGuard::current(),
            aggregator: Aggregator::new(),
            began: None,
        }
    }

    /// Reads what is new in the ring, which happened in this phase.
    fn drain(&mut self, phase: Phase) {
        let Watched {
            ring, aggregator, ..
        } = self;
        if let Some(ring) = ring
            && ring.head() != ring.tail()
        {
            ring.drain(|record| aggregator.record(Some(phase), record));
            aggregator.end_drain(Some(phase));
        }
    }

    fn publish(&mut self, seen: &mut Option<Report>) {
        let mut report = empty(self.level.clone());
        self.aggregator.fill(&mut report, None);
        self.aggregator = Aggregator::new();
        match seen {
            Some(seen) => seen.merge(&report),
            None => *seen = Some(report),
        }
    }
}

fn empty(level: TraceLevel) -> Report {
    Report {
        level,
        calls: BTreeMap::new(),
        waits: Wait::default(),
        sleeps: Vec::new(),
        preemptions: Wait::default(),
        lost_records: 0,
        sites_dropped: 0,
    }
}

/// What the kernel calls differently from the manual pages.
const ALIASES: &[(&str, &str)] = &[
    ("newstat", "stat"),
    ("newfstat", "fstat"),
    ("newlstat", "lstat"),
    ("sendfile64", "sendfile"),
    ("newuname", "uname"),
    ("umount", "umount2"),
];

/// Prefixes of functions which are a system call's.
const ENTRIES: &[&str] = &["__x64_sys_", "__se_sys_", "__do_sys_", "ksys_", "__sys_"];

impl Symbols {
    /// The system call in which a thread with this kernel stack is (innermost first), or
    /// `page-fault`. `None` where the stack does not reach so far out.
    pub fn system_call(&self, stack: &[u64]) -> Option<&'static str> {
        // The outermost decides: a call may be made of others.
        let names = stack.iter().rev();
        let mut names = names.filter_map(|address| self.name(address.saturating_sub(1)));
        names.find_map(|(name, _)| {
            if name == "asm_exc_page_fault" || name == "exc_page_fault" {
                return Some("page-fault");
            }
            let call = ENTRIES.iter().find_map(|entry| name.strip_prefix(entry))?;
            let call = ALIASES
                .iter()
                .find(|(kernels, _)| *kernels == call)
                .map_or(call, |(_, ours)| ours);
            crate::calls::number(call).map(crate::calls::name)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Symbols;

    #[test]
    fn call_is_that_of_the_outermost_entry_when_a_stack_reaches_it() {
        let text = "\
ffffffff81000000 T _stext
ffffffff81000100 T ksys_read
ffffffff81000200 T __x64_sys_sendfile64
ffffffff81000300 T do_syscall_64
ffffffff81000400 T asm_exc_page_fault
ffffffff81000500 T filemap_read
ffffffff81000600 T __x64_sys_call_of_no_kernel
";
        let symbols = Symbols::parse(text);
        let at = |numbers: &[u64]| {
            let stack = numbers
                .iter()
                .map(|number| 0xffff_ffff_8100_0010 + number * 0x100);
            symbols.system_call(&stack.collect::<Vec<_>>())
        };
        assert_eq!(at(&[5, 1, 3]), Some("read"));
        assert_eq!(at(&[5, 1, 2, 3]), Some("sendfile"));
        assert_eq!(at(&[5, 4]), Some("page-fault"));
        assert_eq!(at(&[5, 6, 3]), None);
        assert_eq!(at(&[]), None);
    }
}
