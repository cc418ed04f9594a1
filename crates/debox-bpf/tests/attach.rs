//! The observer and a process with known sleeps: counts and waiters are exact under any load.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::common;
use headway_debox::policy::Filter;
use headway_debox::{Label, calls};
use headway_debox_bpf::{Attach, Limits, Lost, Pids, Resource, SleepTotals};

use common::{Sleeper, attach, of_call};

fn start(test: &str, sleeper: &Sleeper) -> Option<Attach> {
    let pids = Pids::one(sleeper.pid());
    attach(
        test,
        Attach::start(&pids, &Limits::default(), Filter::default()),
    )
}

/// The only location where a call slept.
fn only_sleep<'a>(totals: &'a [headway_debox_bpf::SiteTotals], name: &'a str) -> &'a SleepTotals {
    let sleeps: Vec<_> = of_call(totals, None, name)
        .flat_map(|site| &site.sleeps)
        .collect();
    let [sleep] = sleeps[..] else {
        panic!("one location where {name} sleeps: {sleeps:#?}");
    };
    sleep
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn pipe_reads_are_counted_one_by_one_when_each_of_them_sleeps() {
    let test = "pipe_reads_are_counted_one_by_one_when_each_of_them_sleeps";
    let mut sleeper = Sleeper::start("pipe", 20);
    let Some(attach) = start(test, &sleeper) else {
        return;
    };
    sleeper.run();
    let totals = attach.snapshot().expect("the maps");
    let site = of_call(&totals, Some(sleeper.pid()), "readv")
        .next()
        .expect("the reads");
    assert_eq!(
        (site.count, site.slept, site.unfinished),
        (20, 20, 0),
        "{site:#?}"
    );
    let sleep = only_sleep(&totals, "readv");
    assert_eq!((sleep.count, sleep.label), (20, Label::Pipe), "{sleep:#?}");
    assert_eq!(
        (sleep.resource, sleep.waiters.entry_max),
        (Resource::File, 0),
        "{sleep:#?}"
    );
    assert!(
        sleep.total_ns <= site.wall_ns && sleep.max_ns <= site.max_ns,
        "{site:#?}"
    );
    assert!(sleep.wakeup_ns < sleep.total_ns, "{sleep:#?}");
    let location = site.location.as_ref().expect("the program's mappings");
    assert!(
        location.file.ends_with("/sleeper") && location.offset > 0,
        "{location:?}"
    );
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn waiters_are_exact_when_threads_sleep_on_one_futex() {
    let test = "waiters_are_exact_when_threads_sleep_on_one_futex";
    for threads in 1..=3 {
        let mut sleeper = Sleeper::start("futex", threads);
        let Some(attach) = start(test, &sleeper) else {
            return;
        };
        sleeper.run();
        let totals = attach.snapshot().expect("the maps");
        // Joining a thread waits on a futex as well, but on another one and from another location.
        let sleeps = of_call(&totals, None, "futex").flat_map(|site| &site.sleeps);
        let sleep = sleeps.max_by_key(|sleep| {
            sleep.waiters.entry_max + 1000 * u64::from(sleep.count == u64::from(threads))
        });
        let sleep = sleep.expect("the waits");
        let expected = u64::from(threads * (threads - 1) / 2);
        let most = u64::from(threads - 1);
        let waiters = sleep.waiters;
        assert_eq!(
            (sleep.resource, sleep.label),
            (Resource::Futex, Label::Futex),
            "{sleep:#?}"
        );
        assert_eq!(sleep.count, u64::from(threads), "{totals:#?}");
        assert_eq!(
            (waiters.entry_sum, waiters.entry_max),
            (expected, most),
            "{threads} threads: {sleep:#?}"
        );
        assert_eq!(
            (waiters.exit_sum, waiters.exit_max),
            (expected, most),
            "{threads} threads: {sleep:#?}"
        );
    }
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn lock_is_distinguished_from_the_wait_under_it_when_readers_queue_at_a_terminal() {
    let test = "lock_is_distinguished_from_the_wait_under_it_when_readers_queue_at_a_terminal";
    let mut sleeper = Sleeper::start("terminal", 3);
    let Some(attach) = start(test, &sleeper) else {
        return;
    };
    if !attach.visibility().missing.is_empty() {
        return headway_test_support::skip(test, &attach.visibility().to_string());
    }
    sleeper.run();
    let totals = attach.snapshot().expect("the maps");
    let sleeps: Vec<_> = of_call(&totals, None, "readv")
        .flat_map(|site| &site.sleeps)
        .collect();
    let lock = sleeps
        .iter()
        .find(|sleep| sleep.resource == Resource::Lock)
        .expect("the lock");
    assert!(
        lock.count >= 2,
        "the second and the third reader: {lock:#?}"
    );
    assert_eq!(
        lock.waiters.entry_max, 1,
        "the third finds the second: {lock:#?}"
    );
    let line = sleeps
        .iter()
        .find(|sleep| sleep.label == Label::Terminal && sleep.resource == Resource::File);
    assert!(line.expect("the wait for a line").count >= 1, "{sleeps:#?}");
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn waiters_of_other_processes_count_when_they_want_one_file_lock() {
    let test = "waiters_of_other_processes_count_when_they_want_one_file_lock";
    let mut sleeper = Sleeper::start("flock", 3);
    let Some(attach) = start(test, &sleeper) else {
        return;
    };
    sleeper.run();
    let totals = attach.snapshot().expect("the maps");
    let sites: Vec<_> = of_call(&totals, None, "flock")
        .filter(|site| site.slept > 0)
        .collect();
    assert_eq!(sites.len(), 3, "one a child: {sites:#?}");
    let sleeps = || sites.iter().flat_map(|site| &site.sleeps);
    assert!(
        sleeps().all(|sleep| sleep.label == Label::FileLock && sleep.resource == Resource::File)
    );
    let mut found: Vec<u64> = sleeps().map(|sleep| sleep.waiters.entry_max).collect();
    found.sort_unstable();
    assert_eq!(found, [0, 1, 2], "{sites:#?}");
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn timer_sleeps_are_exact_when_a_process_only_waits() {
    let test = "timer_sleeps_are_exact_when_a_process_only_waits";
    let mut sleeper = Sleeper::start("timer", 50);
    let Some(mut attach) = start(test, &sleeper) else {
        return;
    };
    sleeper.run();
    let totals = attach.snapshot().expect("the maps");
    let site = of_call(&totals, None, "clock_nanosleep")
        .next()
        .expect("the sleeps");
    let sleep = only_sleep(&totals, "clock_nanosleep");
    assert_eq!(
        (site.count, sleep.count, sleep.label),
        (50, site.slept, Label::Timer),
        "{site:#?}"
    );
    // No sleep is needed if the timer has expired before; a hypervisor may take that long.
    assert!((45..=50).contains(&sleep.count), "{site:#?}");
    // Each of them takes a millisecond or more under any load.
    assert!(
        site.wall_ns >= 50_000_000 && site.cpu_ns <= site.wall_ns,
        "{site:#?}"
    );
    attach.poll();
    let number = calls::number("clock_nanosleep").expect("a call");
    let kept: Vec<_> = attach
        .records()
        .into_iter()
        .filter(|kept| kept.record.number == number)
        .collect();
    assert_eq!(kept.len(), 50);
    let slept = kept.iter().flat_map(|call| call.record.sleeps());
    assert_eq!(slept.count() as u64, site.slept);
    for call in kept {
        let sleeps = call.record.sleeps();
        assert!(
            sleeps.len() <= 1 && sleeps.iter().all(|sleep| sleep.label == Label::Timer),
            "{call:?}"
        );
        assert!(
            call.record.wall_ns >= 1_000_000 && call.site == site.site,
            "{call:?}"
        );
        assert_eq!((call.pid, call.comm.as_str()), (sleeper.pid(), "sleeper"));
    }
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn children_are_followed_when_they_fork_and_exec() {
    let test = "children_are_followed_when_they_fork_and_exec";
    let mut sleeper = Sleeper::start("children", 3);
    let Some(mut attach) = start(test, &sleeper) else {
        return;
    };
    sleeper.run();
    attach.poll();
    let totals = attach.snapshot().expect("the maps");
    let sites: Vec<_> = of_call(&totals, None, "getpgid").collect();
    let mut counts: Vec<_> = sites.iter().map(|site| (site.execs, site.count)).collect();
    counts.sort_unstable();
    assert_eq!(counts, [(0, 7), (0, 7), (1, 7)], "{sites:#?}");
    assert!(sites.iter().all(|site| site.pid != sleeper.pid()));
    // Each child ended by exit_group, a call that does not return.
    let ends: Vec<_> = of_call(&totals, None, "exit_group").collect();
    assert_eq!(
        ends.iter().map(|site| site.unfinished).sum::<u64>(),
        3,
        "{ends:#?}"
    );
    assert_eq!(attach.living().collect::<Vec<_>>(), [sleeper.pid()]);
    assert_eq!(
        attach.lost().begun_before,
        1,
        "the read for the word: {:?}",
        attach.lost()
    );
    sleeper.finish();
    attach.poll();
    assert_eq!(attach.living().count(), 0);
}

/// Has a shell start two programs one after the other with one process number, which it prints.
/// Another process may take the number, so it tries again.
const SAME_NUMBER: &str = "read word
while :; do
    /bin/true & first=$!
    wait $first
    echo $((first - 1)) >/proc/sys/kernel/ns_last_pid || exit
    /bin/false & second=$!
    wait $second
    [ $first = $second ] && break
done
echo $first";

/// Needs: root; BTF (Linux 5.18); clang at build; /proc/sys/kernel/ns_last_pid
#[test]
fn processes_are_two_when_the_second_reuses_the_number_of_the_first() {
    let test = "processes_are_two_when_the_second_reuses_the_number_of_the_first";
    let last = std::fs::File::options()
        .write(true)
        .open("/proc/sys/kernel/ns_last_pid");
    if let Err(error) = last {
        return headway_test_support::skip(test, &format!("ns_last_pid: {error}"));
    }
    let mut shell = Command::new("sh")
        .args(["-c", SAME_NUMBER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a shell");
    let pids = Pids::one(shell.id());
    let started = Attach::start(&pids, &Limits::default(), Filter::default());
    let attached = attach(test, started);
    let word = shell.stdin.take().expect("a pipe").write_all(b"go\n");
    word.expect("the shell waits for it");
    let printed = shell.wait_with_output().expect("the shell ends").stdout;
    let Some(mut attach) = attached else {
        return;
    };
    let printed = String::from_utf8(printed).expect("a number");
    let number: u32 = printed.trim().parse().expect("a number");
    attach.poll();
    let programs = attach.programs().filter(|program| program.pid == number);
    let mut programs: Vec<_> = programs
        .map(|program| (program.started_ns, program.execs, program.path.as_str()))
        .collect();
    programs.sort_unstable();
    let [
        ..,
        (_, 0, ""),
        (_, 1, "/bin/true"),
        (_, 2, ""),
        (_, 3, "/bin/false"),
    ] = programs[..]
    else {
        panic!("{programs:?}");
    };
    let totals = attach.snapshot().expect("the maps");
    let ends = of_call(&totals, Some(number), "exit_group");
    let mut ends: Vec<_> = ends.map(|site| (site.execs, site.unfinished)).collect();
    ends.sort_unstable();
    assert_eq!(ends, [(1, 1), (3, 1)]);
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn exec_has_ended_when_a_thread_made_it_that_was_not_the_main_one() {
    let test = "exec_has_ended_when_a_thread_made_it_that_was_not_the_main_one";
    let mut sleeper = Sleeper::start("exec", 1);
    let Some(attach) = start(test, &sleeper) else {
        return;
    };
    sleeper.run();
    let totals = attach.snapshot().expect("the maps");
    let execs: Vec<_> = of_call(&totals, Some(sleeper.pid()), "execve").collect();
    let counts: Vec<_> = (execs.iter())
        .map(|site| (site.count, site.under_way))
        .collect();
    assert_eq!(counts, [(1, 0)], "{execs:#?}");
    let calling = attach.calling_threads().expect("the map");
    assert_eq!(calling.into_iter().collect::<Vec<_>>(), [sleeper.pid()]);
    sleeper.finish();
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn children_are_not_observed_when_following_is_off() {
    let test = "children_are_not_observed_when_following_is_off";
    let mut sleeper = Sleeper::start("children", 2);
    let pids = Pids {
        pids: vec![sleeper.pid()],
        follow_children: false,
    };
    let Some(attach) = attach(
        test,
        Attach::start(&pids, &Limits::default(), Filter::default()),
    ) else {
        return;
    };
    sleeper.run();
    let totals = attach.snapshot().expect("the maps");
    assert!(
        totals.iter().all(|site| site.pid == sleeper.pid()),
        "{totals:#?}"
    );
    assert!(
        of_call(&totals, None, "wait4").next().is_some(),
        "{totals:#?}"
    );
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn sleep_is_counted_when_the_process_is_killed_in_mid_call() {
    let test = "sleep_is_counted_when_the_process_is_killed_in_mid_call";
    let mut sleeper = Sleeper::start("die", 1);
    let Some(mut attach) = start(test, &sleeper) else {
        return;
    };
    sleeper.run();
    attach.poll();
    let totals = attach.snapshot().expect("the maps");
    let site = of_call(&totals, None, "readv").next().expect("the read");
    assert_eq!((site.count, site.sleep_count()), (1, 1), "{site:#?}");
    assert_eq!(attach.living().collect::<Vec<_>>(), [sleeper.pid()]);
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn calls_are_exact_and_unknown_ones_keep_their_number_when_nothing_sleeps() {
    let test = "calls_are_exact_and_unknown_ones_keep_their_number_when_nothing_sleeps";
    let mut sleeper = Sleeper::start("calls", 1000);
    let Some(attach) = start(test, &sleeper) else {
        return;
    };
    sleeper.run();
    let totals = attach.snapshot().expect("the maps");
    for (name, count) in [("getpgid", 1000), ("getsid", 1), ("call 9999", 1)] {
        let sites: Vec<_> = of_call(&totals, None, name).collect();
        assert_eq!(
            sites.iter().map(|site| site.count).sum::<u64>(),
            count,
            "{name}: {sites:#?}"
        );
        assert_eq!(
            sites.len(),
            1,
            "{name} is called from one location: {sites:#?}"
        );
        assert!(sites[0].sleeps.is_empty());
        // Only the call that does not exist fails.
        assert_eq!(sites[0].errors, u64::from(name == "call 9999"));
        assert!(sites[0].min_ns <= sites[0].max_ns && sites[0].in_band_min_ns <= sites[0].min_ns);
    }
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn calls_that_seccomp_refuses_are_counted_as_failed_when_no_beginning_was_reported() {
    let test = "calls_that_seccomp_refuses_are_counted_as_failed_when_no_beginning_was_reported";
    let mut sleeper = Sleeper::start("refused", 20);
    let Some(attach) = start(test, &sleeper) else {
        return;
    };
    sleeper.run();
    let totals = attach.snapshot().expect("the maps");
    let refused: Vec<_> = of_call(&totals, None, "getpgid").collect();
    let calls: u64 = refused.iter().map(|site| site.count).sum();
    let errors: u64 = refused.iter().map(|site| site.errors).sum();
    assert_eq!((calls, errors), (20, 20), "{refused:#?}");
    assert!(
        refused
            .iter()
            .all(|site| site.wall_ns == 0 && site.pid != sleeper.pid())
    );
    // Only the read in which the process waited for its start.
    assert!(attach.lost().begun_before <= 1, "{}", attach.lost());
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn call_site_is_in_the_function_that_calls_when_libraries_are_shared_and_when_they_are_not() {
    let test =
        "call_site_is_in_the_function_that_calls_when_libraries_are_shared_and_when_they_are_not";
    for statically in [true, false] {
        // The reads are made by threads, by which libc's wrapper is on its longer way.
        for (role, call, function) in [("calls", "getpgid", 0), ("pipe", "readv", 1)] {
            let mut sleeper = Sleeper::linked(role, 3, statically);
            let Some(attach) = start(test, &sleeper) else {
                return;
            };
            sleeper.run();
            let totals = attach.snapshot().expect("the maps");
            let site = of_call(&totals, None, call).next().expect("the calls");
            let offset = site.site.wrapping_sub(sleeper.functions[function]);
            assert!(
                offset < 512,
                "{call}, static: {statically}, {:x?}: {site:#x?}",
                sleeper.functions
            );
        }
    }
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn records_follow_the_policy_when_there_is_one() {
    let test = "records_follow_the_policy_when_there_is_one";
    let mut sleeper = Sleeper::start("calls", 1000);
    let filter = Filter {
        one_in: 100,
        calls: vec![calls::number("getpgid").expect("a call")],
        ..Filter::default()
    };
    let pids = Pids::one(sleeper.pid());
    let Some(mut attach) = attach(test, Attach::start(&pids, &Limits::default(), filter)) else {
        return;
    };
    sleeper.run();
    attach.poll();
    assert_eq!(attach.records().len(), 10);
    // The call under way at the start, and returns that the kernel does not report.
    let others = Lost {
        begun_before: attach.lost().begun_before.saturating_sub(1),
        events: 0,
        ..attach.lost()
    };
    assert!(others.is_none(), "{others}");
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn only_calls_that_slept_are_kept_when_the_label_decides() {
    let test = "only_calls_that_slept_are_kept_when_the_label_decides";
    let mut sleeper = Sleeper::start("pipe", 10);
    let filter = Filter {
        one_in: 2,
        labels: vec![Label::Pipe],
        calls: vec![calls::number("readv").expect("a call")],
        ..Filter::default()
    };
    let pids = Pids::one(sleeper.pid());
    let Some(mut attach) = attach(test, Attach::start(&pids, &Limits::default(), filter)) else {
        return;
    };
    sleeper.run();
    attach.poll();
    assert_eq!(attach.records().len(), 5);
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn losses_are_counted_when_the_maps_are_full() {
    let test = "losses_are_counted_when_the_maps_are_full";
    let mut sleeper = Sleeper::start("calls", 1000);
    let limits = Limits {
        sites_max: 1,
        records_max: 4,
        ring_bytes: 4096,
        ..Limits::default()
    };
    let pids = Pids::one(sleeper.pid());
    let Some(mut attach) = attach(test, Attach::start(&pids, &limits, Filter::default())) else {
        return;
    };
    sleeper.run();
    attach.poll();
    let lost = attach.lost();
    let totals = attach.snapshot().expect("the maps");
    // Everything is either in a total or counted as lost: a thousand, three more, and what the
    // process says.
    let seen: u64 = totals.iter().map(|site| site.count).sum();
    assert!(totals.len() < 4, "{totals:#?}");
    assert!(
        lost.calls >= 3 && seen + lost.calls >= 1003,
        "{seen} seen, {lost:?}"
    );
    let kept = attach.records().len() as u64;
    assert_eq!(kept, 4);
    assert!(kept + lost.records >= 1003, "{lost:?}");
    assert!(
        lost.to_string().contains("calls at sites beyond the limit"),
        "{lost}"
    );
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn threads_beyond_the_limit_are_counted_when_there_are_more() {
    let test = "threads_beyond_the_limit_are_counted_when_there_are_more";
    let mut sleeper = Sleeper::start("futex", 8);
    let limits = Limits {
        threads_max: 2,
        ..Limits::default()
    };
    let pids = Pids::one(sleeper.pid());
    let Some(attach) = attach(test, Attach::start(&pids, &limits, Filter::default())) else {
        return;
    };
    sleeper.run();
    assert!(attach.lost().threads > 0, "{:?}", attach.lost());
}
