//! The kernel's functions of this process's own calls, timed by the kernel, where it can.
//!
//! One test: an instance is a process's, and what one test sets another would see.

use std::path::Path;
use std::time::{Duration, Instant};

use headway_debox::{Debox, FunctionTimes, FunctionsError, Limits, Symbols};

/// Longer than anything a call does beside sleeping.
const SLEEP: Duration = Duration::from_millis(50);

const FUNCTIONS_MAX: usize = 100;

/// Needs: root; function_graph in trace instances (Linux 6.11)
#[test]
fn call_trace_holds_the_functions_with_their_times_when_the_kernel_has_function_graph() {
    let test = "call_trace_holds_the_functions_with_their_times_when_the_kernel_has_function_graph";
    let left = match FunctionTimes::instance() {
        Ok(folder) => folder.with_file_name("headway-4194304-1"),
        Err(why) => return headway_test_support::skip(test, &why.to_string()),
    };
    // As a process that was killed leaves it; no process has this number.
    let made = std::fs::create_dir(&left);
    let mut times = match FunctionTimes::start(FUNCTIONS_MAX) {
        Ok(times) => times,
        Err(why @ (FunctionsError::NoInstances | FunctionsError::NotPermitted)) => {
            let _ = std::fs::remove_dir(&left);
            return headway_test_support::skip(test, &why.to_string());
        }
        Err(why) => panic!("{why}"),
    };
    assert!(made.is_ok() && !left.exists(), "{made:?}");
    let instance = FunctionTimes::instance().expect("as before");
    assert!(instance.exists());

    let symbols = Symbols::load().expect("root may");
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    times.follow(&[thread]).expect("this thread is there");
    let debox = Debox::enable(Limits {
        trace_max: FUNCTIONS_MAX,
        ..Limits::default()
    });
    for _ in 0..3 {
        slept(&debox, &mut times, &symbols);
    }
    drop(times);
    assert!(!instance.exists());
}

/// A sleep is in the functions of its call, from the outermost to the scheduler's, and in no
/// other's.
fn slept(debox: &Debox, times: &mut FunctionTimes, symbols: &Symbols) {
    let begun = Instant::now();
    debox.call(libc::SYS_clock_nanosleep as u32, || {
        std::thread::sleep(SLEEP)
    });
    let most_ns = begun.elapsed().as_nanos() as u64;
    assert!(times.merge(debox), "{:?}", times.missing());
    let record = debox.last().expect("records are on");
    let trace = record.trace();
    let long = trace
        .iter()
        .filter(|entry| entry.length_ns >= SLEEP.as_nanos() as u64);
    let names: Vec<&str> = long
        .clone()
        .filter_map(|entry| Some(symbols.name(entry.address)?.0))
        .collect();
    assert!(
        names.iter().any(|name| name.contains("nanosleep")),
        "{names:?}"
    );
    assert!(names.contains(&"schedule"), "{names:?}");
    let depths: Vec<u16> = long.clone().map(|entry| entry.depth).collect();
    assert!(depths.is_sorted() && depths[0] == 0, "{depths:?}");
    assert!(
        long.clone().all(|entry| entry.length_ns <= most_ns),
        "{most_ns} {trace:?}"
    );
    assert_eq!(record.trace_dropped > 0, trace.len() == FUNCTIONS_MAX);
    drop(record);

    debox.call(libc::SYS_getppid as u32, rustix::process::getppid);
    if times.merge(debox) {
        let record = debox.last().expect("records are on");
        let slept = |entry: &headway_debox::TraceEntry| entry.length_ns >= SLEEP.as_nanos() as u64;
        assert!(!record.trace().iter().any(slept), "{:?}", record.trace());
    }
}

#[test]
fn instance_removal_fails_when_the_directory_is_foreign() {
    let folder = tempfile::tempdir().expect("a folder");
    let instance = folder.path().join("headway-1-1");
    std::fs::create_dir(&instance).expect("room");
    assert!(headway_debox::remove_instance(&instance).is_err());
    assert!(instance.exists());
    assert!(headway_debox::remove_instance(Path::new("/")).is_err());
}
