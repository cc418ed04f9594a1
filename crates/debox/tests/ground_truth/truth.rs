//! Blocking a call on purpose, and comparing its record with what was done to it.
//!
//! The truth is the injector's own clock: the call slept from some moment between its start and the
//! moment it was seen asleep until some moment around its release. On a busy machine those moments
//! lie apart by more than the 5 % (or 50 µs) a record may be wrong; such an attempt proves nothing
//! about the time and is made again. Labels and counts have to be right in every attempt.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use headway_debox::{Debox, Label, Limits, Record, Symbols, TraceLevel};
use headway_os::ticks::monotonic_ns;
use rustix::mm::{MlockAllFlags, mlockall};

use crate::evidence::{self, Counts};
use headway_test_support::skip;

/// How long calls are made to wait.
pub const DELAY: Duration = Duration::from_millis(20);

/// How often an attempt may be too imprecise for a verdict.
const ATTEMPTS_MAX: usize = 100;

/// How often a record may have less than was injected. A task's state says that it sleeps a moment
/// before it is switched out, and where the host takes the CPU away in that moment (0.7 ms
/// were seen) the sleep begins later than it was seen.
const SHORT_MAX: usize = 5;

/// An injected block, by the injector's clock.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// The earliest and the latest time at which the sleep began.
    pub begin_ns: (u64, u64),
    /// The earliest and the latest time at which the sleep ended.
    pub end_ns: (u64, u64),
}

/// What one attempt injected and saw: the labels and counts expected of the record, and the blocks.
pub struct Attempt {
    pub sleeps: Vec<(Label, u32)>,
    pub blocks: Vec<Block>,
}

/// Why an attempt injected nothing: the machine was too busy for what had to happen at one time.
pub struct InvalidAttempt(pub String);

/// Tests of this program take turns: a block of one must not be taken for another's, and threads of
/// one process share a memory map and its lock.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the program's own pages, if it may: one that the kernel has taken back would be read from
/// the disk in the middle of a call, which then sleeps once more than was injected.
fn keep_program_in_memory() {
    static KEPT: Once = Once::new();
    KEPT.call_once(|| {
        // Refused where more memory is mapped than an unprivileged program may lock.
        let _ = mlockall(MlockAllFlags::CURRENT);
    });
}

/// Records with stacks and names, or a word why there are none.
pub fn debox_or_skip(test: &str) -> Option<Debox> {
    keep_program_in_memory();
    let debox = Debox::enable(Limits {
        sleeps_max: 16,
        ..Limits::default()
    });
    if *debox.level() != TraceLevel::Stacks {
        skip(test, &debox.level().to_string());
        return None;
    }
    match Symbols::load() {
        Ok(symbols) if !symbols.hidden() => Some(debox),
        Ok(_) => {
            skip(test, "kernel.kptr_restrict hides the addresses");
            None
        }
        Err(error) => {
            skip(test, &error.to_string());
            None
        }
    }
}

/// Makes attempts until one is precise enough to check the times.
pub fn prove(test: &str, mut attempt: impl FnMut(&Debox) -> Attempt) {
    prove_in_turn(&alone(), test, |debox| Ok(attempt(debox)));
}

/// Repeats attempts as [`prove`] does, for a test whose turn has begun: making ready what it needs,
/// a mount perhaps, forks and maps memory, which must not happen in another one's turn. An attempt
/// that missed its moment proves nothing at all and is made again.
pub fn prove_in_turn(
    _turn: &MutexGuard<'static, ()>,
    test: &str,
    mut attempt: impl FnMut(&Debox) -> Result<Attempt, InvalidAttempt>,
) {
    let Some(debox) = debox_or_skip(test) else {
        return;
    };
    let mut errors = Vec::new();
    let mut short = 0;
    for _ in 0..ATTEMPTS_MAX {
        let truth = match attempt(&debox) {
            Ok(truth) => truth,
            Err(InvalidAttempt(why)) => {
                errors.push(why);
                continue;
            }
        };
        let record = debox.last().expect("a record");
        check_blocks(&record, &truth.sleeps, &truth.blocks);
        match compare(&record, &truth.blocks) {
            Ok(()) => return,
            Err(Disagree::Short(error)) if short == SHORT_MAX => panic!("{error}: {record:#?}"),
            Err(Disagree::Short(error)) => {
                short += 1;
                errors.push(error);
            }
            Err(Disagree::Otherwise(error)) => errors.push(error),
        }
    }
    panic!("no attempt agreed with the injector's clock: {errors:#?}");
}

/// Every injected block and no other, with its label.
pub fn check_sleeps(record: &Record, expected: &[(Label, u32)]) {
    check_blocks(record, expected, &[]);
}

fn check_blocks(record: &Record, expected: &[(Label, u32)], blocks: &[Block]) {
    let mut seen: Vec<(Label, u32)> = Vec::new();
    for sleep in record.sleeps() {
        match seen.iter_mut().find(|(label, _)| *label == sleep.label) {
            Some((_, count)) => *count += sleep.count,
            None => seen.push((sleep.label, sleep.count)),
        }
    }
    seen.sort_unstable();
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    let counts = Counts::of(&expected, &seen);
    evidence::write(record, &expected, counts, blocks);
    assert_eq!(seen, expected, "{}", describe(record));
    assert_eq!((record.lost, record.sleeps_dropped), (0, 0), "{record:#?}");
}

/// The record with the functions of its stacks by name, for a failure's text.
pub fn describe(record: &Record) -> String {
    let symbols = Symbols::load().expect("loaded before");
    let mut text = format!("{} took {} ns\n", record.number, record.wall_ns);
    for sleep in record.sleeps() {
        text += &format!(
            "  {} × {}, {} ns:",
            sleep.count, sleep.label, sleep.blocked_ns
        );
        for address in sleep.stack.frames() {
            let name = symbols.name(address - 1).map_or("?", |(name, _)| name);
            text += &format!(" {name}");
        }
        text += "\n";
    }
    text
}

/// How a record disagrees with the injector's clock.
enum Disagree {
    /// The record has less than was injected.
    Short(String),
    Otherwise(String),
}

/// Whether the time asleep is that of the blocks, to 5 % or 50 µs; the wait for a CPU after
/// the release is no part of what was injected.
fn compare(record: &Record, blocks: &[Block]) -> Result<(), Disagree> {
    let (surely_ns, at_most_ns) = evidence::limits(blocks);
    let blocked_ns = record.blocked_ns();
    assert!(blocked_ns <= record.wall_ns, "{record:#?}");
    // A preemption before the sleep delays it.
    if blocked_ns + record.preemptions.total_ns < surely_ns {
        let why = format!("{blocked_ns} ns recorded, {surely_ns} ns injected");
        return Err(Disagree::Short(why));
    }
    let slept_ns = evidence::asleep_ns(record);
    let tolerance_ns = (at_most_ns / 20).max(50_000);
    let otherwise = |why: String| Err(Disagree::Otherwise(why));
    if at_most_ns - surely_ns > tolerance_ns {
        return otherwise(format!(
            "injected {surely_ns} to {at_most_ns} ns: too blurred"
        ));
    }
    let middle_ns = surely_ns.midpoint(at_most_ns);
    if slept_ns.abs_diff(middle_ns) > tolerance_ns {
        return otherwise(format!("{slept_ns} ns asleep, {middle_ns} ns injected"));
    }
    Ok(())
}

/// Makes `call` under records; once it sleeps, another thread lets [`DELAY`] pass and makes
/// `release`.
pub fn block_until_released<R>(
    debox: &Debox,
    number: i64,
    call: impl FnOnce() -> R,
    release: impl FnOnce() + Send,
) -> (R, Block) {
    let asleep = SleepMonitor::of_this_thread();
    std::thread::scope(|scope| {
        let injector = scope.spawn(|| {
            let seen_ns = asleep.wait();
            std::thread::sleep(DELAY);
            let before_ns = monotonic_ns();
            release();
            (seen_ns, before_ns, monotonic_ns())
        });
        asleep.arm();
        let result = debox.call(number as u32, call);
        let (seen_ns, before_ns, after_ns) = injector.join().expect("no panic");
        let start_ns = debox.last().expect("a record").start_ns;
        // Seen asleep before the call had begun, it slept for another reason: nothing is known of
        // when this sleep began.
        let asleep_ns = if seen_ns < start_ns {
            before_ns
        } else {
            seen_ns
        };
        let block = Block {
            begin_ns: (start_ns, asleep_ns),
            end_ns: (before_ns, after_ns),
        };
        (result, block)
    })
}

/// Lets other threads see when this thread sleeps.
pub struct SleepMonitor {
    stat: String,
    armed: AtomicBool,
}

impl SleepMonitor {
    pub fn of_this_thread() -> SleepMonitor {
        let thread = rustix::thread::gettid().as_raw_nonzero();
        SleepMonitor {
            stat: format!("/proc/self/task/{thread}/stat"),
            armed: AtomicBool::new(false),
        }
    }

    /// From here on the thread makes only the call that is to sleep.
    pub fn arm(&self) {
        self.armed.store(true, Ordering::Release);
    }

    /// Returns a moment at which it slept.
    pub fn wait(&self) -> u64 {
        while !self.armed.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_micros(50));
        }
        loop {
            let stat = std::fs::read_to_string(&self.stat).expect("the thread exists");
            let (_, state) = stat.rsplit_once(") ").expect("the name is in parentheses");
            if state.starts_with(['S', 'D']) {
                return monotonic_ns();
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}
