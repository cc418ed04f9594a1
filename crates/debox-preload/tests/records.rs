//! What is recorded is what happened.

use crate::support;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use headway_debox::collect::{Collection, Ended, NoteKind};
use headway_debox::{Label, Symbols, TraceLevel};
use headway_test_support::skip;

use support::{Bench, calls};

/// Starts a program and waits for its first line.
fn start(mut command: Command) -> Child {
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
    let output = child.stdout.as_mut().expect("a pipe");
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    child
}

/// The collection with labels, or none where the kernel shows too little.
fn resolved(bench: &Bench, test: &str) -> Option<Collection> {
    let mut collection = bench.collection();
    if let Some(process) = collection
        .processes
        .iter()
        .find(|p| p.level != TraceLevel::Stacks)
    {
        skip(test, &process.level.to_string());
        return None;
    }
    match Symbols::load() {
        Ok(symbols) if !symbols.hidden() => collection.resolve(&symbols),
        _ => {
            skip(test, "kernel.kptr_restrict hides the kernel's symbols");
            return None;
        }
    }
    Some(collection)
}

#[test]
fn every_call_is_counted_once_when_a_program_makes_known_numbers() {
    let bench = Bench::new();
    let program = bench.compile("counted", &[]);
    let output = bench.traced(&program).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let processes = bench.processes(&program);
    assert_eq!(processes.len(), 1);
    let process = &processes[0];
    for (name, expected) in [
        ("read", (1000, 0)),
        ("write", (500, 0)),
        ("getppid", (300, 0)),
        ("openat", (72, 70)),
        ("mmap", (41, 0)),
        ("munmap", (40, 0)),
        ("newfstatat", (35, 0)),
        ("socketpair", (1, 0)),
        ("sendto", (20, 0)),
        ("recvfrom", (20, 0)),
        ("lseek", (1, 0)),
        ("fadvise64", (3, 3)),
        ("getcwd", (1, 1)),
        ("rt_sigprocmask", (8, 1)),
        ("rt_sigaction", (8, 1)),
        ("getpgrp", (1, 0)),
        ("getgroups", (1, 0)),
    ] {
        assert_eq!(calls(process, name), expected, "{name}");
    }
    for site in &process.sites {
        assert_eq!(site.histogram.count(), site.count, "{site:?}");
        assert!(site.wall_min_ns <= site.wall_max_ns && site.wall_max_ns <= site.wall_ns);
    }
    assert_eq!(process.ended, Some(Ended::Exit));
    assert_eq!(process.command, [program.to_str().expect("a name")]);
    assert_eq!(process.losses.calls_without_site, 0);
}

#[test]
fn program_is_recorded_when_its_first_call_comes_before_libc_has_the_environment() {
    let bench = Bench::new();
    let program = bench.compile("early", &[]);
    let output = bench.traced(&program).output().expect("it runs");
    assert_eq!(output.stdout, b"done\n", "{output:?}");
    let processes = bench.processes(&program);
    assert_eq!(processes.len(), 1);
    assert_eq!(calls(&processes[0], "getppid"), (3, 0));
}

/// Needs: root: changes its root directory
#[test]
fn child_is_named_in_its_parents_file_when_it_cannot_create_one() {
    let test = "child_is_named_in_its_parents_file_when_it_cannot_create_one";
    let bench = Bench::new();
    let program = bench.compile("rooted", &[]);
    let root = bench.path().join("root");
    std::fs::create_dir(&root).expect("a directory");
    let output = bench.traced(&program).arg(&root).output();
    let status = output.expect("it runs").status;
    if status.code() == Some(77) {
        return skip(test, "only root can change its root directory");
    }
    assert_eq!(status.code(), Some(4));
    let processes = bench.processes(&program);
    assert_eq!(processes.len(), 1);
    let kinds: Vec<NoteKind> = processes[0].notes.iter().map(|note| note.kind).collect();
    assert_eq!(kinds, [NoteKind::Unreachable], "{:?}", processes[0].notes);
}

#[test]
fn calls_of_all_threads_are_counted_when_fifty_run_at_a_time() {
    let bench = Bench::new();
    let program = bench.compile("threads", &[]);
    let output = bench.traced(&program).output().expect("it runs");
    assert_eq!(output.stdout, b"joined\n", "{output:?}");
    let processes = bench.processes(&program);
    let process = &processes[0];
    assert_eq!(calls(process, "getppid"), (100 * 1000, 0));
    // All of them from one place, whichever thread.
    let sites = process.sites.iter().filter(|site| site.name == "getppid");
    assert_eq!(sites.count(), 1);
    assert_eq!(process.losses.calls_without_lane, 0);
}

#[test]
fn calls_of_threads_beyond_the_limit_are_counted_when_it_is_small() {
    let bench = Bench::new();
    let program = bench.compile("threads", &[]);
    let output = bench
        .traced(&program)
        .env("HEADWAY_TRACE_THREADS", "1")
        .output()
        .expect("it runs");
    assert_eq!(output.stdout, b"joined\n", "{output:?}");
    let processes = bench.processes(&program);
    // The one lane is the main thread's; the threads' exits are no calls of theirs.
    assert_eq!(calls(&processes[0], "getppid"), (0, 0));
    assert!(processes[0].losses.calls_without_lane >= 100_000);
}

/// Needs: tracing with stacks and kernel symbols
#[test]
fn record_is_there_and_labelled_when_the_process_was_killed() {
    let test = "record_is_there_and_labelled_when_the_process_was_killed";
    let bench = Bench::new();
    let program = bench.compile("sleeper", &[]);
    let mut command = bench.traced(&program);
    command.env("HEADWAY_TRACE_STACKS", "1");
    let mut child = start(command);
    child.kill().expect("it is there");
    child.wait().expect("it is ours");
    let processes = bench.processes(&program);
    let parent = |process: &&headway_debox::collect::Process| process.pid == child.id();
    let process = processes.iter().find(parent).expect("it was traced");
    assert_eq!(process.ended, None);
    assert_eq!(calls(process, "getppid"), (123, 0));
    assert_eq!(calls(process, "read"), (5, 0));

    let Some(collection) = resolved(&bench, test) else {
        return;
    };
    let process = collection.processes.iter().find(parent).expect("as before");
    let site = process.sites.iter().find(|site| site.name == "read");
    let site = site.expect("it read");
    let pipe: u64 = site
        .sleeps
        .iter()
        .filter(|sleep| sleep.label == Label::Pipe)
        .map(|sleep| sleep.count)
        .sum();
    assert_eq!(pipe, 5, "{site:#?}");
    assert!(site.slept.total_ns > 5 * 15_000_000, "{site:#?}");
    assert!(site.slept.total_ns <= site.wall_ns);
    // The policy kept those that slept, with the way through the program that led there.
    let kept: Vec<_> = process
        .kept
        .iter()
        .filter(|kept| kept.name == "read")
        .collect();
    assert_eq!(kept.len(), 5);
    assert_eq!(kept[0].result, 1);
    assert_eq!(kept[0].user_stack[0], site.address, "{kept:#?}");
    assert!(kept[0].user_stack.len() >= 2, "{kept:#?}");
    assert!(kept[0].start_ns > process.started_ns);
}

/// Needs: tracing with stacks and kernel symbols
#[test]
fn overflow_is_counted_when_one_call_sleeps_more_often_than_the_ring_holds() {
    let test = "overflow_is_counted_when_one_call_sleeps_more_often_than_the_ring_holds";
    let bench = Bench::new();
    let program = bench.compile("sleeper", &[]);
    let mut command = bench.traced(&program);
    command.arg("much");
    let mut child = start(command);
    child.kill().expect("it is there");
    child.wait().expect("it is ours");
    if resolved(&bench, test).is_none() {
        return;
    }
    let processes = bench.processes(&program);
    let process = processes
        .iter()
        .find(|process| process.pid == child.id())
        .expect("it was traced");
    let write = process.sites.iter().find(|site| site.name == "write");
    let write = write.expect("it wrote");
    // A thousand times the pipe's length; the ring has room for some 250 sleeps.
    assert!(write.slept.count > 100, "{write:#?}");
    assert!(process.losses.kernel_records > 0, "{write:#?}");
}

#[test]
fn records_are_dropped_and_counted_when_the_log_is_full() {
    let bench = Bench::new();
    let program = bench.compile("counted", &[]);
    let output = bench
        .traced(&program)
        .env("HEADWAY_TRACE_KEEP", "call=read+write")
        .env("HEADWAY_TRACE_LOG_BYTES", "12800")
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let processes = bench.processes(&program);
    let process = &processes[0];
    let kept = process.kept.len() as u64;
    assert!((1..=100).contains(&kept), "{kept}");
    // stdio's own write is made inside libc.
    assert_eq!(kept + process.losses.kept_records, 1500);
    assert!(process.kept.iter().all(|kept| kept.name == "read"));
}

#[test]
fn one_in_n_records_is_kept_when_the_policy_has_every_n() {
    let bench = Bench::new();
    let program = bench.compile("counted", &[]);
    let output = bench
        .traced(&program)
        .env("HEADWAY_TRACE_KEEP", "every=100,call=read")
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let processes = bench.processes(&program);
    assert_eq!(processes[0].kept.len(), 10);
    assert_eq!(processes[0].policy, "every=100,call=read");
}

#[test]
fn hook_runs_untraced_at_most_its_limit_when_calls_meet_the_rule() {
    let bench = Bench::new();
    let program = bench.compile("counted", &[]);
    let log = bench.path().join("hook");
    let rule = format!(
        "call=getppid,times=2:hook=echo $HEADWAY_CALL >> {}",
        log.display()
    );
    let output = bench
        .traced(&program)
        .env("HEADWAY_TRACE_REACT", rule)
        .output()
        .expect("it runs");
    assert_eq!(output.stdout, b"done\n", "{output:?}");
    let lines = std::fs::read_to_string(log).expect("the hook ran");
    assert_eq!(lines, "getppid\ngetppid\n");
    assert_eq!(bench.collection().processes.len(), 1);
}

#[test]
fn reaction_runs_at_every_nth_call_when_the_rule_has_every_n() {
    let bench = Bench::new();
    let program = bench.compile("counted", &[]);
    let log = bench.path().join("hook");
    let rule = format!(
        "call=getppid,every=100:hook=echo again >> {}",
        log.display()
    );
    let output = bench
        .traced(&program)
        .env("HEADWAY_TRACE_REACT", rule)
        .output()
        .expect("it runs");
    assert_eq!(output.stdout, b"done\n", "{output:?}");
    let lines = std::fs::read_to_string(log).expect("the hook ran");
    assert_eq!(lines.lines().count(), 3, "{lines}");
}

/// Needs: stacks and names (perf_event_paranoid, CAP_PERFMON, kptr_restrict)
#[test]
fn symbols_are_loaded_from_the_directory_when_labels_are_needed_at_once() {
    let test = "symbols_are_loaded_from_the_directory_when_labels_are_needed_at_once";
    let bench = Bench::new();
    let program = bench.compile("sleeper", &[]);
    let kept = || {
        let mut command = bench.traced(&program);
        command.env("HEADWAY_TRACE_KEEP", "call=read,label=pipe");
        let mut child = start(command);
        child.kill().expect("it is there");
        child.wait().expect("it is ours");
        let processes = bench.processes(&program);
        let process = processes.iter().find(|process| process.pid == child.id());
        process.expect("it was traced").kept.len()
    };
    if resolved(&bench, test).is_none() {
        return;
    }
    assert_eq!(kept(), 5);
    // Left by the first process for the others. Without the name there is no label, so a process
    // without a label has used this file.
    let path = bench.traces().join(headway_debox::collect::SYMBOLS_FILE);
    let mut image = std::fs::read(&path).expect("the first process leaves it");
    let name = b"pipe_read";
    for at in 0..image.len() - name.len() {
        if image[at..].starts_with(name) {
            image[at..at + name.len()].fill(b'x');
        }
    }
    std::fs::write(&path, image).expect("it is ours");
    assert_eq!(kept(), 0);
}

#[test]
fn invalid_policy_is_reported_in_the_record() {
    let bench = Bench::new();
    let program = bench.compile("counted", &[]);
    let output = bench
        .traced(&program)
        .env("HEADWAY_TRACE_KEEP", "slow")
        .output()
        .expect("it runs");
    assert_eq!(output.stdout, b"done\n");
    let processes = bench.processes(&program);
    assert!(
        processes[0].policy.contains("`slow`"),
        "{}",
        processes[0].policy
    );
}

#[test]
fn fortified_functions_are_counted() {
    let bench = Bench::new();
    let program = bench.compile("fortified", &["-O2", "-D_FORTIFY_SOURCE=2"]);
    let output = bench.traced(&program).output().expect("it runs");
    assert_eq!(output.stdout, b"done\n", "{output:?}");
    let processes = bench.processes(&program);
    for name in [
        "readlink",
        "readlinkat",
        "getcwd",
        "read",
        "pread64",
        "poll",
        "recvfrom",
    ] {
        assert_eq!(calls(&processes[0], name), (10, 0), "{name}");
    }
}
