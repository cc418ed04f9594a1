//! The privilege ladder: with less privilege there is less in the record, never something wrong,
//! and a text that says what is missing and what would grant it.

use std::os::unix::process::CommandExt;
use std::time::Duration;

use headway_debox::{Debox, Label, Limits, TraceLevel};

use crate::truth::alone;
use headway_test_support::skip;

/// Runs as another user, started by the test below.
#[test]
fn level_is_printed_in_the_child_when_it_has_no_privilege() {
    if std::env::var_os("HEADWAY_GROUND_TRUTH_LEVEL").is_none() {
        return;
    }
    let debox = Debox::enable(Limits::default());
    println!("level: {}", debox.level());
    debox.call(libc::SYS_nanosleep as u32, || {
        std::thread::sleep(Duration::from_millis(5));
    });
    let record = debox.last().expect("a record");
    for sleep in record.sleeps() {
        let long = sleep.blocked_ns >= 4_000_000;
        println!("slept: {} × {} long {long}", sleep.count, sleep.label);
    }
    println!("faults: {:?}", record.faults_minor);
    println!("wall: {}", record.wall_ns >= 5_000_000);
}

/// Needs: root, to become another user; perf_event_paranoid 2
#[test]
fn sleeps_are_timed_and_the_sysctl_is_named_when_the_user_has_no_privilege() {
    let test = "sleeps_are_timed_and_the_sysctl_is_named_when_the_user_has_no_privilege";
    let _alone = alone();
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    if paranoid.as_deref().map_or("", str::trim) != "2" {
        return skip(
            test,
            &format!("kernel.perf_event_paranoid is not 2: {paranoid:?}"),
        );
    }
    const UNPRIVILEGED_USER: u32 = 65534;
    let output = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "--nocapture"])
        .arg("trace_levels::level_is_printed_in_the_child_when_it_has_no_privilege")
        .env("HEADWAY_GROUND_TRUTH_LEVEL", "1")
        .gid(UNPRIVILEGED_USER)
        .uid(UNPRIVILEGED_USER)
        .current_dir("/")
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => return skip(test, &format!("becoming another user: {error}")),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:#?}");
    assert!(
        text.contains("level: sleeps are counted and timed, but not located"),
        "{text}"
    );
    assert!(text.contains("kernel.perf_event_paranoid=1"), "{text}");
    assert!(text.contains("CAP_PERFMON"), "{text}");
    assert!(text.contains("slept: 1 × unknown long true"), "{text}");
    assert!(text.contains("faults: None"), "{text}");
    assert!(text.contains("wall: true"), "{text}");
}

/// Lets the calling thread make every call but `perf_event_open`, as container runtimes do.
fn forbid_perf_event_open() -> std::io::Result<()> {
    const LOAD_NUMBER: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        step(LOAD_NUMBER, 0, 0, 0),
        step(JUMP_IF_EQUAL, 0, 1, libc::SYS_perf_event_open as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: sets a flag of the calling thread.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: the program and its steps are in this frame, and the kernel copies them.
    let answer = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) };
    if answer == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

#[test]
fn calls_are_timed_and_the_filter_is_named_when_a_container_forbids_the_event() {
    let test = "calls_are_timed_and_the_filter_is_named_when_a_container_forbids_the_event";
    let _alone = alone();
    // The filter cannot be removed from this thread again.
    let confined = std::thread::spawn(|| {
        forbid_perf_event_open().map_err(|error| error.to_string())?;
        let debox = Debox::enable(Limits::default());
        debox.call(libc::SYS_nanosleep as u32, || {
            std::thread::sleep(Duration::from_millis(5));
        });
        let record = debox.last().expect("a record");
        assert!(record.wall_ns >= 5_000_000);
        assert!(record.sleeps().is_empty() && record.faults_minor.is_none());
        Ok::<TraceLevel, String>(debox.level().clone())
    });
    match confined.join().expect("no panic") {
        Ok(TraceLevel::Off { why }) => assert!(why.contains("seccomp"), "{why}"),
        Ok(level) => panic!("{level}"),
        Err(why) => skip(test, &why),
    }
    // Other threads are as free as before.
    let debox = Debox::enable(Limits::default());
    debox.call(0, || ());
    assert_eq!(debox.last().map(|record| record.slept_count()), Some(0));
    assert!(
        !debox
            .last()
            .is_some_and(|r| r.sleeps().iter().any(|s| s.label == Label::Timer))
    );
}
