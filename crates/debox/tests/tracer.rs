//! The tracer against the running kernel: what sleeps is seen with its place, and nothing else is.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use headway_debox::{Label, Report, Site, Symbols, TraceLevel};
use rustix::fs::{Advice, fadvise};
use rustix::io::ReadWriteFlags;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use headway_test_support::skip;

/// Tests of this program run one at a time: threads of one process share a memory map and its lock,
/// which is held while pages are locked or a thread starts.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

headway_debox::call_kinds! {
    enum Call {
        EventWait = "epoll_wait",
        Receive = "recvfrom",
        Send = "sendto",
        ReadNowait = "preadv2",
        Close = "close",
        Clock = "clock_gettime",
    }
    wait = EventWait
}

type Tracer = headway_debox::Tracer<Call>;

/// A tracer of this thread, whose code and stack are in memory from here on: a page fault in a call
/// would wait for the lock of the memory map, which other tests of this process change.
fn tracer_or_skip(test: &str) -> Option<Tracer> {
    // Without the privilege it has to go without.
    let _ = mlockall(MlockAllFlags::CURRENT);
    let tracer = Tracer::enable();
    if let TraceLevel::Off { why } = tracer.level() {
        skip(test, why);
        return None;
    }
    Some(tracer)
}

fn tracer_with_stacks_or_skip(test: &str) -> Option<Tracer> {
    let _ = mlockall(MlockAllFlags::CURRENT);
    let tracer = Tracer::enable();
    if *tracer.level() != TraceLevel::Stacks {
        skip(test, &tracer.level().to_string());
        return None;
    }
    Some(tracer)
}

fn symbols_or_skip(test: &str) -> Option<Symbols> {
    match Symbols::load() {
        Ok(symbols) if !symbols.hidden() => return Some(symbols),
        Ok(_) => skip(test, "kernel.kptr_restrict hides the addresses"),
        Err(error) => skip(test, &error.to_string()),
    }
    None
}

/// The sites of one call. Other calls are left out because a page fault may wait for a lock held by
/// another thread's test. So are page faults of this call that waited for it, if the stack shows
/// that.
fn sleeps_of(report: &Report, call: &str) -> Vec<Site> {
    let mut report = report.clone();
    if let Ok(symbols) = Symbols::load()
        && !symbols.hidden()
    {
        report.resolve(&symbols);
    }
    let sleeps = report.sleeps.into_iter();
    sleeps
        .filter(|site| site.call == call && site.label != Label::MmapLock)
        .collect()
}

/// Waits until the thread sleeps in the kernel, so that no test depends on how long anything takes.
fn wait_until_asleep(thread: rustix::thread::Pid, armed: &AtomicBool) {
    let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    loop {
        if armed.load(Ordering::Acquire) {
            let stat = std::fs::read_to_string(&path).expect("the thread exists");
            let (_, state) = stat.rsplit_once(") ").expect("the name is in parentheses");
            if state.starts_with('S') {
                return;
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Reads a byte under `call` from a pipe that gets it only once the reader is asleep.
fn sleep_in_a_pipe(tracer: &Tracer, call: Call) {
    let (mut reader, mut writer) = std::io::pipe().expect("a pipe can be made");
    let armed = Arc::new(AtomicBool::new(false));
    let reader_thread = rustix::thread::gettid();
    let writing = thread::spawn({
        let armed = Arc::clone(&armed);
        move || {
            wait_until_asleep(reader_thread, &armed);
            writer.write_all(b"x").expect("the reader is there");
        }
    });
    let mut byte = [0];
    armed.store(true, Ordering::Release);
    tracer
        .call(call, || reader.read(&mut byte))
        .expect("the writer is there");
    writing.join().expect("the writer does not panic");
}

#[test]
fn one_sleep_in_the_pipe_when_a_read_blocks() {
    let _turn = alone();
    let test = "one_sleep_in_the_pipe_when_a_read_blocks";
    let Some(tracer) = tracer_with_stacks_or_skip(test) else {
        return;
    };
    let Some(symbols) = symbols_or_skip(test) else {
        return;
    };
    sleep_in_a_pipe(&tracer, Call::Receive);
    let mut report = tracer.report();
    report.resolve(&symbols);

    let sites = sleeps_of(&report, Call::Receive.name());
    assert_eq!(sites.len(), 1, "{report:#?}");
    let site = &sites[0];
    assert_eq!(site.count, 1);
    assert!(site.total_ns > 0);
    assert_eq!(site.max_ns, site.total_ns);
    let symbol = site.symbol.as_deref().expect("the stack has names");
    assert!(symbol.contains("pipe"), "{symbol}");
    assert_eq!(report.calls["recvfrom"], 1);
    assert_eq!(report.lost_records, 0);
}

#[test]
fn sleep_is_a_wait_when_the_call_is_the_event_wait() {
    let _turn = alone();
    let Some(tracer) = tracer_or_skip("sleep_is_a_wait_when_the_call_is_the_event_wait") else {
        return;
    };
    sleep_in_a_pipe(&tracer, Call::EventWait);
    let report = tracer.report();
    // On a busy machine the reader may also sleep for the lock of the pipe.
    assert!(report.waits.count >= 1);
    assert!(report.waits.total_ns > 0);
    assert!(sleeps_of(&report, Call::EventWait.name()).is_empty());
}

#[test]
fn sleep_between_calls_is_elsewhere_when_the_next_call_does_not_sleep() {
    let _turn = alone();
    let test = "sleep_between_calls_is_elsewhere_when_the_next_call_does_not_sleep";
    let Some(tracer) = tracer_or_skip(test) else {
        return;
    };
    // The code of the call is in memory after this: a fault on it would wait for the lock of a
    // memory map that other tests of this process change.
    tracer.call(Call::Close, rustix::process::getpid);
    thread::sleep(Duration::from_millis(1));
    tracer.call(Call::Clock, rustix::process::getpid);
    let report = tracer.report();
    assert!(sleeps_of(&report, Call::Clock.name()).is_empty());
    assert!(!sleeps_of(&report, "elsewhere").is_empty());
    assert!(!report.calls.contains_key("elsewhere"));
}

#[test]
fn calls_are_counted_and_nothing_sleeps_when_calls_return_at_once() {
    let _turn = alone();
    let test = "calls_are_counted_and_nothing_sleeps_when_calls_return_at_once";
    let Some(tracer) = tracer_or_skip(test) else {
        return;
    };
    for _ in 0..10_000 {
        tracer.call(Call::Clock, rustix::process::getpid);
    }
    tracer.call(Call::Close, rustix::process::getpid);
    let report = tracer.report();
    assert_eq!(report.calls["clock_gettime"], 10_000);
    assert_eq!(report.calls["close"], 1);
    assert_eq!(report.calls.len(), 2);
    assert!(
        sleeps_of(&report, Call::Clock.name()).is_empty(),
        "{report:#?}"
    );
    assert_eq!(report.waits.count, 0);
}

#[test]
fn calls_are_counted_and_results_returned_when_disabled() {
    let _turn = alone();
    let tracer = Tracer::disabled();
    assert!(matches!(tracer.level(), TraceLevel::Off { .. }));
    assert_eq!(tracer.call(Call::Send, || 42), 42);
    thread::sleep(Duration::from_millis(1));
    let report = tracer.report();
    assert_eq!(report.calls["sendto"], 1);
    assert_eq!(report.blocked_count(), 0);
}

/// A file of 4 MiB whose pages were dropped, or the reason why there is none.
fn cold_file(directory: &Path) -> Result<File, String> {
    let mut file = tempfile::tempfile_in(directory).map_err(|error| error.to_string())?;
    file.write_all(&vec![1; 4 << 20])
        .and_then(|()| file.sync_all())
        .map_err(|error| error.to_string())?;
    let advise = |advice| fadvise(&file, 0, None, advice).map_err(|error| error.to_string());
    // No readahead, so that the probe below does not warm what the test is going to read.
    advise(Advice::Random)?;
    for _ in 0..100 {
        advise(Advice::DontNeed)?;
        let mut probe = [0; 1];
        let far = 3 << 20;
        let buffers = &mut [std::io::IoSliceMut::new(&mut probe)];
        match rustix::io::preadv2(&file, buffers, far, ReadWriteFlags::NOWAIT) {
            Err(rustix::io::Errno::AGAIN) => return Ok(file),
            // Another CPU may still have the pages in a list of its own.
            Ok(_) => thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(format!("preadv2(RWF_NOWAIT): {error}")),
        }
    }
    Err("the file system keeps the pages in spite of POSIX_FADV_DONTNEED".to_owned())
}

#[test]
fn sleep_names_the_page_when_a_read_is_cold() {
    let _turn = alone();
    let test = "sleep_names_the_page_when_a_read_is_cold";
    let Some(tracer) = tracer_with_stacks_or_skip(test) else {
        return;
    };
    let Some(symbols) = symbols_or_skip(test) else {
        return;
    };
    let file = match cold_file(Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        Ok(file) => file,
        Err(reason) => return skip(test, &reason),
    };
    let mut bytes = [0; 512];
    tracer
        .call(Call::ReadNowait, || file.read_exact_at(&mut bytes, 0))
        .expect("the file is long enough");
    let mut report = tracer.report();
    report.resolve(&symbols);
    let sites = sleeps_of(&report, Call::ReadNowait.name());
    let named = sites.iter().filter_map(|site| site.symbol.as_deref());
    assert!(
        named
            .clone()
            .any(|symbol| symbol.contains("folio") || symbol.contains("page")),
        "{report:#?}"
    );
}

/// Confines the calling thread to one of the CPUs it may use.
fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).expect("a subset of the allowed CPUs");
}

#[test]
fn preemption_is_not_a_sleep_when_two_threads_share_a_cpu() {
    let _turn = alone();
    let test = "preemption_is_not_a_sleep_when_two_threads_share_a_cpu";
    let allowed = sched_getaffinity(None).expect("the thread exists");
    let cpu = (0..CpuSet::MAX_CPU)
        .find(|cpu| allowed.is_set(*cpu))
        .expect("some CPU is allowed");
    let Some(tracer) = tracer_or_skip(test) else {
        return;
    };
    pin(cpu);
    let [begun, stop] = [false, false].map(|flag| Arc::new(AtomicBool::new(flag)));
    let rival = thread::spawn({
        let (begun, stop) = (Arc::clone(&begun), Arc::clone(&stop));
        move || {
            pin(cpu);
            begun.store(true, Ordering::Release);
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        }
    });
    // A thread that begins has the lock of the memory map now and then, for which a page fault of
    // ours would wait.
    while !begun.load(Ordering::Acquire) {
        thread::yield_now();
    }
    // Until the kernel has switched between the two a few times; each turn takes milliseconds.
    let mut turns = 0;
    let report = loop {
        tracer.call(Call::Clock, || {
            for _ in 0..1_000_000 {
                std::hint::spin_loop();
            }
        });
        let report = tracer.report();
        turns += 1;
        if report.preemptions.count >= 3 || turns == 500 {
            break report;
        }
    };
    stop.store(true, Ordering::Relaxed);
    rival.join().expect("the rival does not panic");
    assert!(report.preemptions.count >= 3, "{report:#?}");
    assert!(report.preemptions.total_ns > 0);
    assert!(
        sleeps_of(&report, Call::Clock.name()).is_empty(),
        "{report:#?}"
    );
}

#[test]
fn report_is_the_same_when_read_back_from_json() {
    let _turn = alone();
    let tracer = Tracer::enable();
    sleep_in_a_pipe(&tracer, Call::Receive);
    let mut report = tracer.report();
    for site in &mut report.sleeps {
        site.symbol = Some("anon_pipe_read".to_owned());
    }
    let text = serde_json::to_string(&report).expect("a report has only string keys");
    let back: Report = serde_json::from_str(&text).expect("what was written can be read");
    assert_eq!(back, report);
}
