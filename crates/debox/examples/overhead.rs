//! What a tracer costs: a call that returns at once, bare and traced, and one that sleeps.
//!
//! ```text
//! $ cargo run --release -p headway-debox --example overhead
//! ```
//!
//! The variants take turns in short slices and the median slice of each is printed, so that a change
//! of the machine's speed meets all of them. All runs on one processor, since waking an idle one costs
//! several times what is measured here. On a 2-core virtual machine with Linux 6.18:
//!
//! ```text
//! sleeps are counted, timed and located in the kernel
//! getppid, bare                102.4 ns
//! getppid, tracer disabled      99.5 ns
//! getppid, tracer enabled      105.8 ns
//! pipe round trip, bare       4107.8 ns
//! pipe round trip, traced     7715.6 ns
//! ```
//!
//! So a call that does not sleep pays a few nanoseconds, and one that sleeps 3.6 µs: about 1 for switching
//! a thread that has an event, 1 for the records, 1.6 for walking the kernel stack.

use std::hint::black_box;
use std::io::{Read, Write};
use std::time::Instant;

use headway_debox::{Call, Debox, Limits, Tracer};
use rustix::process::getppid;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

const SLICES: usize = 201;
const CALLS_PER_SLICE: u32 = 20_000;
const SLEEPS_PER_SLICE: u32 = 200;

fn main() -> std::io::Result<()> {
    stay_on_one_processor()?;
    returning_at_once();
    sleeping()
}

/// Threads started later inherit the choice.
fn stay_on_one_processor() -> std::io::Result<()> {
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    sched_setaffinity(None, &here)?;
    Ok(())
}

fn returning_at_once() {
    let mut bare = Vec::new();
    let mut off = Vec::new();
    let mut on = Vec::new();
    let disabled = Tracer::disabled();
    let enabled = Tracer::enable();
    let records = Debox::enable(Limits::default());
    let mut record = Vec::new();
    println!("{}", enabled.rung());
    for _ in 0..SLICES {
        bare.push(slice(CALLS_PER_SLICE, || {
            black_box(getppid());
        }));
        off.push(slice(CALLS_PER_SLICE, || {
            black_box(disabled.call(Call::Clock, getppid));
        }));
        on.push(slice(CALLS_PER_SLICE, || {
            black_box(enabled.call(Call::Clock, getppid));
        }));
        record.push(slice(CALLS_PER_SLICE, || {
            black_box(records.call(110, getppid));
        }));
    }
    println!("getppid, bare              {:7.1} ns", median(bare));
    println!("getppid, tracer disabled   {:7.1} ns", median(off));
    println!("getppid, tracer enabled    {:7.1} ns", median(on));
    println!("getppid, record kept       {:7.1} ns", median(record));
}

/// One byte there and back through two pipes: a sleep and a wake-up on each side. The ring belongs to the
/// thread, so the difference is what the kernel spends on writing records and the tracer on reading.
fn sleeping() -> std::io::Result<()> {
    let (mut ask_end, mut ask) = std::io::pipe()?;
    let (mut answer, mut answer_end) = std::io::pipe()?;
    let echo = std::thread::spawn(move || {
        let mut byte = [0];
        while ask_end.read(&mut byte).is_ok_and(|bytes| bytes == 1) {
            if answer_end.write_all(&byte).is_err() {
                break;
            }
        }
    });
    let mut round_trip = |tracer: &Tracer| {
        let mut byte = [7];
        tracer.call(Call::Send, || ask.write_all(&byte))?;
        tracer.call(Call::EventWait, || answer.read_exact(&mut byte))
    };
    // An enabled tracer costs every sleep of its thread, so it must be gone while bare slices run.
    let mut bare = Vec::new();
    let mut on = Vec::new();
    let disabled = Tracer::disabled();
    for _ in 0..SLICES {
        bare.push(slice(SLEEPS_PER_SLICE, || {
            round_trip(&disabled).expect("the echo answers");
        }));
        let enabled = Tracer::enable();
        on.push(slice(SLEEPS_PER_SLICE, || {
            round_trip(&enabled).expect("the echo answers");
        }));
    }
    drop(ask);
    echo.join().expect("the echo does not panic");
    println!("pipe round trip, bare      {:7.1} ns", median(bare));
    println!("pipe round trip, traced    {:7.1} ns", median(on));
    Ok(())
}

/// Nanoseconds a repetition.
fn slice(repetitions: u32, mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..repetitions {
        work();
    }
    start.elapsed().as_nanos() as f64 / f64::from(repetitions)
}

fn median(mut slices: Vec<f64>) -> f64 {
    slices.sort_by(f64::total_cmp);
    slices[slices.len() / 2]
}
