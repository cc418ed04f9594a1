//! The record of the last call, on real calls of this kernel.

use std::io::{Read, Write};
use std::time::Duration;

use headway_debox::{Debox, Label, Limits, Record, TraceLevel};

use headway_test_support::skip;

#[path = "../examples/two_reads.rs"]
mod two_reads;

#[test]
fn example_two_reads_runs() {
    two_reads::main().expect("the example");
}

/// A pipe whose other end is written after a while.
fn late_pipe() -> (std::io::PipeReader, std::thread::JoinHandle<()>) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        writer.write_all(b"late").expect("the reader is there");
    });
    (reader, late)
}

fn sees_stacks(debox: &Debox, test: &str) -> bool {
    if *debox.level() != TraceLevel::Stacks {
        skip(test, &debox.level().to_string());
        return false;
    }
    true
}

#[test]
fn sleep_has_label_and_length_when_a_read_waits_for_a_pipe() {
    let debox = Debox::enable(Limits::default());
    if !sees_stacks(
        &debox,
        "sleep_has_label_and_length_when_a_read_waits_for_a_pipe",
    ) {
        return;
    }
    let (mut reader, late) = late_pipe();
    let mut bytes = [0; 4];
    debox
        .call(libc::SYS_read as u32, || reader.read_exact(&mut bytes))
        .expect("four bytes");
    late.join().expect("no panic");
    let record = debox.last().expect("a record");
    assert_eq!(record.number, libc::SYS_read as u32);
    // Other tests' threads share this process's memory map, so a fault may wait for that lock too.
    let sleep = record
        .sleeps()
        .iter()
        .find(|sleep| sleep.label == Label::Pipe);
    let sleep = sleep.unwrap_or_else(|| panic!("no sleep in the pipe: {record:#?}"));
    assert_eq!(sleep.count, 1);
    assert!(sleep.site.is_some());
    assert!(
        sleep.blocked_ns <= record.wall_ns && sleep.blocked_ns > record.wall_ns / 2,
        "{record:#?}"
    );
    assert!(
        record
            .wakeup_ns
            .is_some_and(|waited| waited <= record.wall_ns)
    );
}

#[test]
fn record_is_empty_when_a_call_returns_at_once_after_one_that_slept() {
    let debox = Debox::enable(Limits::default());
    let (mut reader, late) = late_pipe();
    let mut bytes = [0; 4];
    debox
        .call(0, || reader.read_exact(&mut bytes))
        .expect("four bytes");
    late.join().expect("no panic");
    // A preemption may hit any single call, a sleep none of these.
    for _ in 0..100 {
        debox.call(39, rustix::process::getpid);
        let record = debox.last().expect("a record");
        assert_eq!(
            (record.number, record.slept_count(), record.sleeps().len()),
            (39, 0, 0)
        );
    }
}

#[test]
fn sleeps_at_one_site_share_an_entry_and_others_are_counted_when_the_record_is_full() {
    let debox = Debox::enable(Limits {
        sleeps_max: 1,
        ..Limits::default()
    });
    let test = "sleeps_at_one_site_share_an_entry_and_others_are_counted_when_the_record_is_full";
    if !sees_stacks(&debox, test) {
        return;
    }
    let (mut reader, late) = late_pipe();
    let mut bytes = [0; 4];
    debox
        .call(0, || {
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(2));
            }
            reader.read_exact(&mut bytes)
        })
        .expect("four bytes");
    late.join().expect("no panic");
    let record = debox.last().expect("a record");
    assert_eq!(record.sleeps().len(), 1);
    assert_eq!(
        (record.sleeps()[0].label, record.sleeps()[0].count),
        (Label::Timer, 3)
    );
    assert_eq!(record.sleeps_dropped, 1, "{record:#?}");
}

/// Needs: stacks (perf_event_paranoid, CAP_PERFMON)
#[test]
fn off_cpu_interval_is_not_in_the_record_when_it_is_longer_than_the_call() {
    let test = "off_cpu_interval_is_not_in_the_record_when_it_is_longer_than_the_call";
    let debox = Debox::enable(Limits::default());
    if !sees_stacks(&debox, test) {
        return;
    }
    // Nested halves do not read the ring before the call. Its contents here represent a preemption
    // between that point and the first reading of the clock.
    std::thread::sleep(Duration::from_millis(5));
    let mark = debox.begin_nested();
    debox.end(libc::SYS_getpid as u32, mark);
    let record = debox.last().expect("a record");
    assert!(record.wall_ns < 5_000_000, "{record:#?}");
    assert_eq!(
        (record.slept_count(), record.blocked_ns()),
        (0, 0),
        "{record:#?}"
    );
}

#[test]
fn nothing_is_recorded_when_the_buffer_is_removed() {
    let debox = Debox::enable(Limits::default());
    debox.call(1, || ());
    let buffer = debox.replace(None).expect("the first buffer");
    assert_eq!(buffer.number, 1);
    debox.call(2, || ());
    assert!(debox.last().is_none());
    assert!(
        debox
            .replace(Some(Record::new(Limits::default())))
            .is_none()
    );
    debox.call(3, || ());
    assert_eq!(debox.last().map(|record| record.number), Some(3));
    assert_eq!(buffer.number, 1);
}

#[test]
fn stack_is_the_trace_when_the_kernel_has_no_function_tracer() {
    let debox = Debox::enable(Limits {
        trace_max: 200,
        ..Limits::default()
    });
    if !sees_stacks(
        &debox,
        "stack_is_the_trace_when_the_kernel_has_no_function_tracer",
    ) {
        return;
    }
    debox.call(230, || std::thread::sleep(Duration::from_millis(1)));
    let record = debox.last().expect("a record");
    assert!(record.trace().len() > 3, "{record:#?}");
    assert_eq!(record.trace()[0].depth, 0);
    let deepest = record.trace().last().expect("checked above");
    assert_eq!(deepest.address, record.sleeps()[0].stack.frames()[0]);
}

/// Needs: tracing with stacks
#[test]
fn losses_are_in_the_record_of_the_call_when_it_sleeps_more_often_than_the_ring_holds() {
    let debox = Debox::enable(Limits::default());
    let test = "losses_are_in_the_record_of_the_call_when_it_sleeps_more_often_than_the_ring_holds";
    if !sees_stacks(&debox, test) {
        return;
    }
    let doze = || std::thread::sleep(Duration::from_micros(20));
    debox.call(230, || (0..3000).for_each(|_| doze()));
    let first = debox.last().expect("a record");
    assert!(first.lost > 0, "{first:#?}");
    assert!(
        first.slept_count() > 100 && first.slept_count() < 3000,
        "{first:#?}"
    );
    drop(first);
    debox.call(230, doze);
    assert_eq!(debox.last().map(|record| record.lost), Some(0));
}
