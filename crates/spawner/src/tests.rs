//! A spawner in a thread of the test, which plays the worker.
//!
//! Programs are killed when the thread that started them ends; here that is the spawner's thread.

use std::io::Read;
use std::thread::JoinHandle;

use headway_os::codec::Version;
use headway_test_support::{is_running, wait_until};
use rustix::pipe::{PipeFlags, pipe_with};

use super::process_tag::ProcessTags;
use super::wire::{ExitStatus, decode_report, encode_order};
use super::*;

struct TestSpawner {
    process_tags: ProcessTags,
    socket: Option<OwnedFd>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl TestSpawner {
    fn start() -> TestSpawner {
        let (ours, theirs) = headway_os::fd_passing::pair().unwrap();
        let spawner = TestSpawner {
            process_tags: ProcessTags::draw(),
            socket: Some(ours),
            thread: Some(std::thread::spawn(|| spawner_main(theirs))),
        };
        spawner.order(
            &SpawnerOrder::Start {
                version: Version,
                json: false,
                user: None,
            },
            &[],
        );
        spawner
    }

    fn order(&self, order: &SpawnerOrder, descriptors: &[BorrowedFd<'_>]) {
        let mut bytes = Vec::new();
        assert!(encode_order(order, &mut bytes));
        let socket = self.socket.as_ref().unwrap();
        send_with_descriptors(socket, &[IoSlice::new(&bytes)], descriptors, Wait::Block).unwrap();
    }

    /// Starts a shell script and returns its output.
    fn shell(&self, id: u64, script: &str) -> File {
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let launch = Launch {
            process_tag: self.process_tags.of(id),
            directory: c"/".into(),
            path: c"/bin/sh".into(),
            arguments: vec![
                c"sh".into(),
                c"-c".into(),
                std::ffi::CString::new(script).unwrap(),
            ],
            environment: vec![c"PATH=/bin:/usr/bin".into()],
            ..Launch::default()
        };
        self.order(&SpawnerOrder::Spawn { id, launch }, &[theirs.as_fd()]);
        ours.into()
    }

    fn report(&self) -> SpawnerReport {
        let mut buffer = [0; 256];
        let socket = self.socket.as_ref().unwrap();
        let received = receive_with_descriptors(socket, &mut buffer, 0, Wait::Block).unwrap();
        decode_report(&buffer[..received.unwrap().length]).unwrap()
    }

    fn spawned(&self) -> u32 {
        match self.report() {
            SpawnerReport::Spawned { pid, .. } => pid,
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for TestSpawner {
    fn drop(&mut self) {
        self.socket = None;
        let ended = self.thread.take().unwrap().join().unwrap();
        assert!(ended.is_ok() || std::thread::panicking(), "{ended:?}");
    }
}

/// Reads `count` numbers, one per line.
fn numbers(output: &mut File, count: usize) -> Vec<u32> {
    let (mut text, mut byte) = (String::new(), [0]);
    while text.lines().count() < count || !text.ends_with('\n') {
        assert_eq!(output.read(&mut byte).unwrap(), 1, "{text:?}");
        text.push(char::from(byte[0]));
    }
    text.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn program_exit_is_reported_once() {
    let spawner = TestSpawner::start();
    for (id, script, end) in [
        (1, "exit 0", ExitStatus::Exit(0)),
        (2, "exit 3", ExitStatus::Exit(3)),
        (3, "kill -9 $$", ExitStatus::Signal(9)),
    ] {
        let _output = spawner.shell(id, script);
        spawner.spawned();
        assert_eq!(spawner.report(), SpawnerReport::Ended { id, end });
        spawner.order(&SpawnerOrder::Release { id, timeout_ms: 0 }, &[]);
    }
}

#[test]
fn killed_group_ends_even_if_it_ignores_sigterm() {
    let spawner = TestSpawner::start();
    let script = "trap '' TERM; (trap '' TERM; echo $$; while :; do sleep 1; done) & echo $!; while :; do sleep 1; done";
    let mut output = spawner.shell(1, script);
    let leader = spawner.spawned();
    let child = *numbers(&mut output, 2)
        .iter()
        .find(|pid| **pid != leader)
        .unwrap();
    assert!(is_running(leader) && is_running(child));
    spawner.order(
        &SpawnerOrder::Kill {
            id: 1,
            process_tag: 0,
        },
        &[],
    );
    let end = ExitStatus::Signal(9);
    assert_eq!(spawner.report(), SpawnerReport::Ended { id: 1, end });
    wait_until("the end of the group", || {
        !is_running(child) && !is_running(leader)
    });
}

/// Prints the PID of a process that has left its group, session and parent, and keeps the output
/// open.
const ORPHAN_SCRIPT: &str =
    "(setsid sh -c \"trap '' TERM; echo \\$\\$; while :; do sleep 1; done\" &)";

#[test]
fn orphan_is_killed_when_the_response_is_cancelled() {
    let spawner = TestSpawner::start();
    // The program runs; has exited; ignores SIGTERM.
    for (id, then) in [
        (1, "exec sleep 1000"),
        (2, "exit 0"),
        (3, "trap '' TERM; while :; do sleep 1; done"),
    ] {
        let mut output = spawner.shell(id, &format!("{ORPHAN_SCRIPT}; {then}"));
        spawner.spawned();
        let runaway = numbers(&mut output, 1)[0];
        if id == 2 {
            let end = ExitStatus::Exit(0);
            assert_eq!(spawner.report(), SpawnerReport::Ended { id, end });
        }
        assert!(is_running(runaway));
        spawner.order(&SpawnerOrder::Kill { id, process_tag: 0 }, &[]);
        if id != 2 {
            assert!(matches!(spawner.report(), SpawnerReport::Ended { .. }));
        }
        wait_until("the end of the process that left its group", || {
            !is_running(runaway)
        });
    }
}

#[test]
fn orphan_survives_a_complete_response() {
    let spawner = TestSpawner::start();
    let mut output = spawner.shell(1, &format!("{ORPHAN_SCRIPT}; exit 0"));
    spawner.spawned();
    let runaway = numbers(&mut output, 1)[0];
    let end = ExitStatus::Exit(0);
    assert_eq!(spawner.report(), SpawnerReport::Ended { id: 1, end });
    let timeout_ms = 0;
    spawner.order(&SpawnerOrder::Release { id: 1, timeout_ms }, &[]);
    // When this one has ended, the first one has been released.
    let mut other = spawner.shell(2, &format!("{ORPHAN_SCRIPT}; exec sleep 1000"));
    spawner.spawned();
    let others = numbers(&mut other, 1)[0];
    spawner.order(
        &SpawnerOrder::Kill {
            id: 2,
            process_tag: 0,
        },
        &[],
    );
    assert!(matches!(
        spawner.report(),
        SpawnerReport::Ended { id: 2, .. }
    ));
    wait_until("the end of the other's", || !is_running(others));
    assert!(is_running(runaway), "it is on its own");
    let process_tags = spawner.process_tags;
    drop(spawner);
    assert!(is_running(runaway), "and stays so");
    // As the next spawner does for a program whose spawner has died.
    let next = TestSpawner::start();
    let process_tag = process_tags.of(1);
    next.order(&SpawnerOrder::Kill { id: 1, process_tag }, &[]);
    wait_until("its end", || !is_running(runaway));
}

#[test]
fn orphan_is_killed_when_the_worker_exits() {
    let spawner = TestSpawner::start();
    let mut output = spawner.shell(1, &format!("{ORPHAN_SCRIPT}; exec sleep 1000"));
    spawner.spawned();
    let runaway = numbers(&mut output, 1)[0];
    drop(spawner);
    wait_until("its end", || !is_running(runaway));
}

#[test]
fn orphans_that_keep_forking_are_all_killed() {
    let spawner = TestSpawner::start();
    // Each prints its PID, starts two more in sessions of their own, and stays; six generations.
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("bomb");
    let text = "trap '' TERM; echo $$\n[ $1 -lt 6 ] && for n in 1 2; do (setsid sh $0 $(($1 + 1)) &); done\n\
        while :; do sleep 1; done\n";
    std::fs::write(&script, text).unwrap();
    let mut output = spawner.shell(1, &format!("exec sh {} 0", script.display()));
    spawner.spawned();
    // Some exist, others are being created.
    let mut pids = numbers(&mut output, 10);
    spawner.order(
        &SpawnerOrder::Kill {
            id: 1,
            process_tag: 0,
        },
        &[],
    );
    assert!(matches!(
        spawner.report(),
        SpawnerReport::Ended { id: 1, .. }
    ));
    let mut rest = String::new();
    // The end of the output: no process has it open any more.
    output.read_to_string(&mut rest).unwrap();
    pids.extend(rest.lines().map(|line| line.parse::<u32>().unwrap()));
    assert!(pids.len() > 10);
    // A process closes its output first and is a zombie after that.
    wait_until("the end of all", || {
        pids.iter().all(|pid| !is_running(*pid))
    });
}

#[test]
fn killed_program_has_time_to_clean_up_on_sigterm() {
    let spawner = TestSpawner::start();
    let mut output = spawner.shell(
        1,
        "trap 'echo bye; exit 4' TERM; echo 1; while :; do sleep 0.01; done",
    );
    spawner.spawned();
    numbers(&mut output, 1);
    spawner.order(
        &SpawnerOrder::Kill {
            id: 1,
            process_tag: 0,
        },
        &[],
    );
    let end = ExitStatus::Exit(4);
    assert_eq!(spawner.report(), SpawnerReport::Ended { id: 1, end });
    let mut message = String::new();
    output.read_to_string(&mut message).unwrap();
    assert_eq!(message, "bye\n");
}

#[test]
fn process_group_is_killed_when_its_response_is_complete() {
    let spawner = TestSpawner::start();
    let mut output = spawner.shell(1, "sleep 1000 & echo $!; exit 0");
    spawner.spawned();
    let left = numbers(&mut output, 1)[0];
    let end = ExitStatus::Exit(0);
    assert_eq!(spawner.report(), SpawnerReport::Ended { id: 1, end });
    assert!(is_running(left), "as long as the response is under way");
    spawner.order(
        &SpawnerOrder::Release {
            id: 1,
            timeout_ms: 60_000,
        },
        &[],
    );
    wait_until("the end of the rest", || !is_running(left));
}

#[test]
fn released_program_is_killed_after_its_timeout() {
    let spawner = TestSpawner::start();
    let _output = spawner.shell(1, "while :; do sleep 1; done");
    spawner.spawned();
    spawner.order(
        &SpawnerOrder::Release {
            id: 1,
            timeout_ms: 1,
        },
        &[],
    );
    assert!(matches!(
        spawner.report(),
        SpawnerReport::Ended {
            id: 1,
            end: ExitStatus::Signal(_)
        }
    ));
}

#[test]
fn programs_are_killed_when_the_worker_exits() {
    let spawner = TestSpawner::start();
    let mut outputs: Vec<File> = Vec::new();
    let mut running = Vec::new();
    for id in 0..3 {
        let mut output = spawner.shell(id, "trap '' TERM; sleep 1000 & echo $!; wait");
        running.push(spawner.spawned());
        running.extend(numbers(&mut output, 1));
        outputs.push(output);
    }
    drop(spawner);
    wait_until("the end of all", || {
        running.iter().all(|pid| !is_running(*pid))
    });
}

#[test]
fn spawn_failure_is_reported_with_its_reason() {
    let spawner = TestSpawner::start();
    let (_ours, theirs) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let launch = Launch {
        directory: c"/".into(),
        path: c"/nowhere".into(),
        ..Launch::default()
    };
    spawner.order(
        &SpawnerOrder::Spawn {
            id: 5,
            launch: launch.clone(),
        },
        &[theirs.as_fd()],
    );
    let error = headway_os::spawn::SpawnError {
        step: headway_os::spawn::SpawnStage::Execute,
        errno: Errno::NOENT,
    };
    assert_eq!(spawner.report(), SpawnerReport::Failed { id: 5, error });
    spawner.order(&SpawnerOrder::Spawn { id: 6, launch }, &[]);
    assert!(
        matches!(spawner.report(), SpawnerReport::Failed { id: 6, .. }),
        "it has no output"
    );
    // Orders for programs that do not exist are ignored: they may have exited meanwhile.
    spawner.order(
        &SpawnerOrder::Kill {
            id: 5,
            process_tag: 0,
        },
        &[],
    );
    spawner.order(
        &SpawnerOrder::Release {
            id: 99,
            timeout_ms: 0,
        },
        &[],
    );
}
