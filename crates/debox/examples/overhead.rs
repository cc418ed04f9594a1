//! What records cost: a call that returns at once, bare and recorded, and one that sleeps.
//!
//! ```text
//! $ cargo run --release -p headway-debox --example overhead
//! ```
//!
//! The variants take turns in short slices; printed are the fastest slice of each, which what else
//! the machine does cannot have touched much, and the median one. All runs on one CPU, since
//! waking an idle one costs several times what is measured here. On a 2-core virtual machine with
//! Linux 6.18:
//!
//! ```text
//! sleeps are counted, timed and located in the kernel
//!                                        fastest      median
//! getppid, bare                          94.9 ns    101.7 ns
//! getppid, tracer disabled               95.3 ns    102.1 ns
//! getppid, tracer enabled                96.0 ns    102.2 ns
//! getppid, record, no buffer            103.5 ns    108.0 ns
//! getppid, record                       115.4 ns    122.7 ns
//! pipe round trip, bare                4174.1 ns   4496.4 ns
//! pipe round trip, tracer              7759.1 ns  16101.0 ns
//! pipe round trip, record              8533.0 ns  20158.0 ns
//! pipe round trip, record, label      13016.2 ns  30062.0 ns
//! ```
//!
//! So a record costs a call that does not sleep some 20 ns, most of it two readings of the
//! time-stamp counter. One that sleeps pays about 4 µs: 1 for switching a thread that has an event,
//! 1 for the records, 1.6 for walking the kernel stack. Names and the wait for a CPU come to
//! another 4.5 µs. Other work ran beside: hence the medians.

use std::cell::RefCell;
use std::hint::black_box;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::time::Instant;

use headway_debox::{Debox, Limits};
use rustix::process::getppid;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

headway_debox::call_kinds! {
    enum Call {
        EventWait = "epoll_wait",
        Send = "sendto",
        Clock = "clock_gettime",
    }
    wait = EventWait
}

type Tracer = headway_debox::Tracer<Call>;

const SLICES: usize = 401;
const CALLS_PER_SLICE: u32 = 10_000;
const SLEEPS_PER_SLICE: u32 = 200;

const GETPPID: u32 = libc::SYS_getppid as u32;
const READ: u32 = libc::SYS_read as u32;
const WRITE: u32 = libc::SYS_write as u32;

/// No run-queue time and no names: the settings of a collector in an unmodified program.
const PLAIN: Limits = Limits {
    sleeps_max: 5,
    trace_max: 0,
    resolve: false,
    wakeup: false,
    own_faults: false,
};

fn main() -> std::io::Result<()> {
    stay_on_one_cpu()?;
    println!("{}", Tracer::enable().level());
    println!("{:<34}{:>12}{:>12}", "", "fastest", "median");
    returning_at_once();
    sleeping()
}

/// Threads started later inherit the choice.
fn stay_on_one_cpu() -> std::io::Result<()> {
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    sched_setaffinity(None, &here)?;
    Ok(())
}

fn returning_at_once() {
    let disabled = Tracer::disabled();
    let enabled = Tracer::enable();
    let off = Debox::enable(PLAIN);
    off.replace(None);
    let on = Debox::enable(PLAIN);
    let call = |work: &dyn Fn()| slice(CALLS_PER_SLICE, work);
    let mut slices: [Vec<f64>; 5] = Default::default();
    for _ in 0..SLICES {
        slices[0].push(call(&|| _ = black_box(getppid())));
        slices[1].push(call(&|| _ = black_box(disabled.call(Call::Clock, getppid))));
        slices[2].push(call(&|| _ = black_box(enabled.call(Call::Clock, getppid))));
        slices[3].push(call(&|| _ = black_box(off.call(GETPPID, getppid))));
        slices[4].push(call(&|| _ = black_box(on.call(GETPPID, getppid))));
    }
    let names = [
        "getppid, bare",
        "getppid, tracer disabled",
        "getppid, tracer enabled",
        "getppid, record, no buffer",
        "getppid, record",
    ];
    names.into_iter().zip(slices).for_each(print_row);
}

/// One byte there and back through two pipes: a sleep and a wakeup on each side. The ring belongs
/// to the thread, so the difference is what the kernel spends on writing records and we on reading
/// them.
fn sleeping() -> std::io::Result<()> {
    let (mut request_end, request) = std::io::pipe()?;
    let (answer, mut answer_end) = std::io::pipe()?;
    let echo = std::thread::spawn(move || {
        let mut byte = [0];
        while request_end.read(&mut byte).is_ok_and(|bytes| bytes == 1) {
            if answer_end.write_all(&byte).is_err() {
                break;
            }
        }
    });
    let peer = RefCell::new((request, answer));
    let send = || peer.borrow_mut().0.write_all(&[7]).expect("the echo reads");
    let receive = || {
        let mut byte = [0];
        let answer: &mut PipeReader = &mut peer.borrow_mut().1;
        answer.read_exact(&mut byte).expect("the echo answers");
    };
    let mut slices: [Vec<f64>; 4] = Default::default();
    // Records cost every sleep of their thread, so those of one variant must be gone while another
    // runs.
    for _ in 0..SLICES {
        slices[0].push(slice(SLEEPS_PER_SLICE, || {
            send();
            receive();
        }));
        let tracer = Tracer::enable();
        slices[1].push(slice(SLEEPS_PER_SLICE, || {
            tracer.call(Call::Send, send);
            tracer.call(Call::EventWait, receive);
        }));
        drop(tracer);
        for (limits, index) in [(PLAIN, 2), (Limits::default(), 3)] {
            let debox = Debox::enable(limits);
            slices[index].push(slice(SLEEPS_PER_SLICE, || {
                debox.call(WRITE, send);
                debox.call(READ, receive);
            }));
        }
    }
    drop::<(PipeWriter, PipeReader)>(peer.into_inner());
    echo.join().expect("the echo does not panic");
    let names = [
        "pipe round trip, bare",
        "pipe round trip, tracer",
        "pipe round trip, record",
        "pipe round trip, record, label",
    ];
    names.into_iter().zip(slices).for_each(print_row);
    Ok(())
}

/// Nanoseconds a repetition.
fn slice(repetitions: u32, work: impl Fn()) -> f64 {
    let start = Instant::now();
    for _ in 0..repetitions {
        work();
    }
    start.elapsed().as_nanos() as f64 / f64::from(repetitions)
}

fn print_row((name, mut slices): (&str, Vec<f64>)) {
    slices.sort_by(f64::total_cmp);
    let (fastest, median) = (slices[0], slices[slices.len() / 2]);
    println!("{name:<34}{fastest:>9.1} ns{median:>9.1} ns");
}
