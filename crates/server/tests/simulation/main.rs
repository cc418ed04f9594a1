//! One seed, the whole server: a worker and its helpers over simulated clocks, sockets that break
//! and disks that fail, with a model that knows every byte that may be answered.
//!
//! Every system call of the worker and of its helpers is caught (`trap`), and one thread runs at a
//! time (`task`), so a seed is always the same run. `HEADWAY_SIMULATION_SEED` runs one seed with its
//! trace, `HEADWAY_SIMULATION_SEEDS` is a number of seeds, from `HEADWAY_SIMULATION_FIRST` on.
//!
//! The models are FoundationDB's simulation and TigerBeetle's VOPR.

mod client;
mod clock;
mod faults;
mod kernel;
mod model;
mod reply;
mod request;
mod setup;
mod site;
mod task;
mod trap;
mod world;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use headway_test_support::skip;
use kernel::CALLS_WITH_MEMORY;
use world::{Outcome, World};

/// Seeds of `make test`.
const SEEDS: u64 = 200;
/// Seeds that run twice, since the same seed must be the same run.
const SEEDS_TWICE: u64 = 5;
/// Seeds that have shown a mistake of the server or of the model, of 100,000.
const SEEDS_FOUND: [u64; 10] = [
    1_019_856, 1_036_604, 1_039_989, 1_043_898, 1_055_326, 1_061_146, 1_087_022, 1_089_581,
    1_093_403, 1_094_048,
];
/// Seeds for each call that may find no memory.
const SEEDS_WITHOUT_MEMORY: u64 = 30;

/// Clocks and descriptors are those of the program, so one simulation runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")),
    )
}

/// Runs a seed; a failure says how to repeat it.
fn run(seed: u64) -> Outcome {
    run_traced(seed, false).0
}

fn run_traced(seed: u64, is_traced: bool) -> (Outcome, Vec<String>) {
    run_world(seed, || World::new(seed, is_traced))
}

fn run_world(seed: u64, world: impl FnOnce() -> World) -> (Outcome, Vec<String>) {
    let before = descriptors();
    let (result, lines) = world().run();
    if result.is_err() {
        lines.iter().for_each(|line| println!("{line}"));
    }
    let outcome = result.unwrap_or_else(|reason| {
        panic!("seed {seed}: {reason}\nrepeat it with HEADWAY_SIMULATION_SEED={seed}")
    });
    let after = descriptors();
    assert_eq!(before, after, "seed {seed}: descriptors are left open");
    (outcome, lines)
}

/// The same seed is the same run, call by call.
fn run_twice(seed: u64) {
    let (one, other) = (run_traced(seed, true), run_traced(seed, true));
    for (first, second) in one.1.iter().zip(&other.1) {
        assert_eq!(first, second, "seed {seed} had two traces");
    }
    assert_eq!(one.0, other.0, "seed {seed} had two outcomes");
}

/// Keeps the memory of ended threads for the next ones, instead of giving it back to the kernel.
fn keep_memory() {
    #[cfg(target_env = "gnu")]
    for (option, value) in [
        (libc::M_ARENA_MAX, 1),
        (libc::M_MMAP_THRESHOLD, 1 << 30),
        (libc::M_TRIM_THRESHOLD, 1 << 30),
    ] {
        // SAFETY: sets options of malloc.
        unsafe { libc::mallopt(option, value) };
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("procfs").count()
}

/// Whether this machine can catch system calls.
fn is_possible(test: &str) -> bool {
    struct Nothing;
    impl trap::Calls for Nothing {
        fn call(&self, number: i64, arguments: trap::Arguments) -> i64 {
            // SAFETY: the call that the program has made.
            unsafe { trap::raw(number, arguments) }
        }
    }
    match trap::with_calls(&Nothing, || ()) {
        Ok(()) => true,
        Err(error) => {
            skip(test, &format!("syscall user dispatch: {error}"));
            false
        }
    }
}

/// Needs: syscall user dispatch (Linux 5.11 on x86-64), which a container may forbid
#[test]
fn every_reply_is_explained_when_everything_is_simulated() {
    if !is_possible("every_reply_is_explained_when_everything_is_simulated") {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    keep_memory();
    // Some things are done once in a program, such as asking for the size of a page.
    run(0);
    if let Some(seed) = variable("HEADWAY_SIMULATION_SEED") {
        let (outcome, lines) = run_traced(seed, true);
        lines.iter().for_each(|line| println!("{line}"));
        println!("{outcome:?}");
        return;
    }
    (0..SEEDS_TWICE).for_each(run_twice);
    let first = variable("HEADWAY_SIMULATION_FIRST");
    if first.is_none() {
        for seed in SEEDS_FOUND {
            run(seed);
        }
    }
    let first = first.unwrap_or(1);
    let count = variable("HEADWAY_SIMULATION_SEEDS").unwrap_or(SEEDS);
    let begun = Instant::now();
    let (mut replies, mut turns) = (0, 0);
    for seed in first..first + count {
        let outcome = run(seed);
        replies += outcome.replies;
        turns += outcome.turns;
    }
    let minutes = begun.elapsed().max(Duration::from_millis(1)).as_secs_f64() / 60.0;
    println!(
        "{count} seeds, {replies} replies, {turns} turns; {:.0} seeds per minute",
        count as f64 / minutes
    );
}

/// Needs: syscall user dispatch (Linux 5.11 on x86-64), which a container may forbid
#[test]
fn request_gets_503_and_the_worker_goes_on_when_the_kernel_has_no_memory() {
    if !is_possible("request_gets_503_and_the_worker_goes_on_when_the_kernel_has_no_memory") {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    run(0);
    for (calls, is_answered) in CALLS_WITH_MEMORY {
        let (mut failures, mut unavailable) = (0, 0);
        for seed in 1..=SEEDS_WITHOUT_MEMORY {
            // The model accepts no other error.
            let world = || World::new(seed, false).without_memory_for(calls);
            let (outcome, _) = run_world(seed, world);
            failures += outcome.without_memory;
            unavailable += outcome.unavailable;
        }
        println!("calls {calls:?}: {failures} failures, {unavailable} replies of 503");
        assert!(failures > 0, "calls {calls:?} are never made");
        assert!(!is_answered || unavailable > 0, "calls {calls:?}");
    }
}
