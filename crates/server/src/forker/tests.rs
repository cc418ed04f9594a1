//! A fork helper in a thread of the test, with the test in the worker's place.
//!
//! Programs are killed when the thread that started them ends, which here is the helper's.

use std::io::Read;
use std::thread::JoinHandle;

use rustix::pipe::{PipeFlags, pipe_with};

use super::mark::Marks;
use super::wire::{End, decode_report, encode_order};
use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

struct Helper {
    marks: Marks,
    socket: Option<OwnedFd>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Helper {
    fn start() -> Helper {
        let (ours, theirs) = headway_os::rights::pair().unwrap();
        Helper {
            marks: Marks::draw(),
            socket: Some(ours),
            thread: Some(std::thread::spawn(|| forker_main(theirs))),
        }
    }

    fn order(&self, order: &Order, descriptors: &[BorrowedFd<'_>]) {
        let mut bytes = Vec::new();
        assert!(encode_order(order, &mut bytes));
        let socket = self.socket.as_ref().unwrap();
        send_with_descriptors(socket, &[IoSlice::new(&bytes)], descriptors, Wait::Block).unwrap();
    }

    /// Starts a shell script and returns what it writes to.
    fn shell(&self, id: u64, script: &str) -> File {
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let launch = Launch {
            mark: self.marks.of(id),
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
        self.order(&Order::Spawn { id, launch }, &[theirs.as_fd()]);
        ours.into()
    }

    fn report(&self) -> Report {
        let mut buffer = [0; 256];
        let socket = self.socket.as_ref().unwrap();
        let received = receive_with_descriptors(socket, &mut buffer, 0, Wait::Block).unwrap();
        decode_report(&buffer[..received.unwrap().length]).unwrap()
    }

    fn spawned(&self) -> u32 {
        match self.report() {
            Report::Spawned { pid, .. } => pid,
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.socket = None;
        let ended = self.thread.take().unwrap().join().unwrap();
        assert!(ended.is_ok() || std::thread::panicking(), "{ended:?}");
    }
}

fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

fn wait_until(what: &str, met: impl Fn() -> bool) {
    let begun = Instant::now();
    while !met() {
        assert!(begun.elapsed() < PATIENCE, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The numbers that a script writes, one a line, until there are so many.
fn numbers(output: &mut File, count: usize) -> Vec<u32> {
    let (mut text, mut byte) = (String::new(), [0]);
    while text.lines().count() < count || !text.ends_with('\n') {
        assert_eq!(output.read(&mut byte).unwrap(), 1, "{text:?}");
        text.push(char::from(byte[0]));
    }
    text.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn end_is_told_once_when_programs_end_by_themselves() {
    let helper = Helper::start();
    for (id, script, end) in [
        (1, "exit 0", End::Exit(0)),
        (2, "exit 3", End::Exit(3)),
        (3, "kill -9 $$", End::Signal(9)),
    ] {
        let _output = helper.shell(id, script);
        helper.spawned();
        assert_eq!(helper.report(), Report::Ended { id, end });
        helper.order(&Order::Release { id, patience_ms: 0 }, &[]);
    }
}

#[test]
fn whole_group_ends_when_it_is_killed_and_does_not_want_to() {
    let helper = Helper::start();
    let script = "trap '' TERM; (trap '' TERM; echo $$; while :; do sleep 1; done) & echo $!; while :; do sleep 1; done";
    let mut output = helper.shell(1, script);
    let leader = helper.spawned();
    let child = *numbers(&mut output, 2)
        .iter()
        .find(|pid| **pid != leader)
        .unwrap();
    assert!(is_running(leader) && is_running(child));
    helper.order(&Order::Kill { id: 1, mark: 0 }, &[]);
    let end = End::Signal(9);
    assert_eq!(helper.report(), Report::Ended { id: 1, end });
    wait_until("the end of the group", || {
        !is_running(child) && !is_running(leader)
    });
}

/// Says the number of a process that has left its group, session and parent, and holds on to the
/// output.
const RUNAWAY: &str = "(setsid sh -c \"trap '' TERM; echo \\$\\$; while :; do sleep 1; done\" &)";

#[test]
fn whoever_has_left_the_group_ends_when_the_reply_is_not_wanted() {
    let helper = Helper::start();
    // Its program runs; has ended; does not want to end.
    for (id, then) in [
        (1, "exec sleep 1000"),
        (2, "exit 0"),
        (3, "trap '' TERM; while :; do sleep 1; done"),
    ] {
        let mut output = helper.shell(id, &format!("{RUNAWAY}; {then}"));
        helper.spawned();
        let runaway = numbers(&mut output, 1)[0];
        if id == 2 {
            let end = End::Exit(0);
            assert_eq!(helper.report(), Report::Ended { id, end });
        }
        assert!(is_running(runaway));
        helper.order(&Order::Kill { id, mark: 0 }, &[]);
        if id != 2 {
            assert!(matches!(helper.report(), Report::Ended { .. }));
        }
        wait_until("the end of who has left", || !is_running(runaway));
    }
}

#[test]
fn whoever_has_left_the_group_lives_on_when_the_reply_was_complete() {
    let helper = Helper::start();
    let mut output = helper.shell(1, &format!("{RUNAWAY}; exit 0"));
    helper.spawned();
    let runaway = numbers(&mut output, 1)[0];
    let end = End::Exit(0);
    assert_eq!(helper.report(), Report::Ended { id: 1, end });
    let patience_ms = 0;
    helper.order(&Order::Release { id: 1, patience_ms }, &[]);
    // When this one has ended, the first one was let go.
    let mut other = helper.shell(2, &format!("{RUNAWAY}; exec sleep 1000"));
    helper.spawned();
    let others = numbers(&mut other, 1)[0];
    helper.order(&Order::Kill { id: 2, mark: 0 }, &[]);
    assert!(matches!(helper.report(), Report::Ended { id: 2, .. }));
    wait_until("the end of the other's", || !is_running(others));
    assert!(is_running(runaway), "it is on its own");
    let marks = helper.marks;
    drop(helper);
    assert!(is_running(runaway), "and stays so");
    // As the next fork helper does for one whose helper has died.
    let next = Helper::start();
    let mark = marks.of(1);
    next.order(&Order::Kill { id: 1, mark }, &[]);
    wait_until("its end", || !is_running(runaway));
}

#[test]
fn whoever_has_left_the_group_ends_when_the_worker_is_gone() {
    let helper = Helper::start();
    let mut output = helper.shell(1, &format!("{RUNAWAY}; exec sleep 1000"));
    helper.spawned();
    let runaway = numbers(&mut output, 1)[0];
    drop(helper);
    wait_until("its end", || !is_running(runaway));
}

#[test]
fn everybody_ends_when_a_program_makes_sessions_without_end() {
    let helper = Helper::start();
    // Each says its number, makes two more in sessions of their own, and stays; six times over.
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("bomb");
    let text = "trap '' TERM; echo $$\n[ $1 -lt 6 ] && for n in 1 2; do (setsid sh $0 $(($1 + 1)) &); done\n\
        while :; do sleep 1; done\n";
    std::fs::write(&script, text).unwrap();
    let mut output = helper.shell(1, &format!("exec sh {} 0", script.display()));
    helper.spawned();
    // Some are there, the others are on their way.
    let mut pids = numbers(&mut output, 10);
    helper.order(&Order::Kill { id: 1, mark: 0 }, &[]);
    assert!(matches!(helper.report(), Report::Ended { id: 1, .. }));
    let mut rest = String::new();
    // The end of the output: nobody has it any more.
    output.read_to_string(&mut rest).unwrap();
    pids.extend(rest.lines().map(|line| line.parse::<u32>().unwrap()));
    assert!(pids.len() > 10);
    // Who dies lets go of the output first and is a zombie after that.
    wait_until("the end of all", || {
        pids.iter().all(|pid| !is_running(*pid))
    });
}

#[test]
fn program_may_clean_up_when_it_is_killed() {
    let helper = Helper::start();
    let mut output = helper.shell(
        1,
        "trap 'echo bye; exit 4' TERM; echo 1; while :; do sleep 0.01; done",
    );
    helper.spawned();
    numbers(&mut output, 1);
    helper.order(&Order::Kill { id: 1, mark: 0 }, &[]);
    let end = End::Exit(4);
    assert_eq!(helper.report(), Report::Ended { id: 1, end });
    let mut said = String::new();
    output.read_to_string(&mut said).unwrap();
    assert_eq!(said, "bye\n");
}

#[test]
fn what_a_program_leaves_in_its_group_ends_with_its_release() {
    let helper = Helper::start();
    let mut output = helper.shell(1, "sleep 1000 & echo $!; exit 0");
    helper.spawned();
    let left = numbers(&mut output, 1)[0];
    let end = End::Exit(0);
    assert_eq!(helper.report(), Report::Ended { id: 1, end });
    assert!(is_running(left), "as long as the reply is under way");
    helper.order(
        &Order::Release {
            id: 1,
            patience_ms: 60_000,
        },
        &[],
    );
    wait_until("the end of the rest", || !is_running(left));
}

#[test]
fn program_is_killed_when_its_patience_after_the_release_is_over() {
    let helper = Helper::start();
    let _output = helper.shell(1, "while :; do sleep 1; done");
    helper.spawned();
    helper.order(
        &Order::Release {
            id: 1,
            patience_ms: 1,
        },
        &[],
    );
    assert!(matches!(
        helper.report(),
        Report::Ended {
            id: 1,
            end: End::Signal(_)
        }
    ));
}

#[test]
fn every_program_ends_when_the_worker_is_gone() {
    let helper = Helper::start();
    let mut outputs: Vec<File> = Vec::new();
    let mut running = Vec::new();
    for id in 0..3 {
        let mut output = helper.shell(id, "trap '' TERM; sleep 1000 & echo $!; wait");
        running.push(helper.spawned());
        running.extend(numbers(&mut output, 1));
        outputs.push(output);
    }
    drop(helper);
    wait_until("the end of all", || {
        running.iter().all(|pid| !is_running(*pid))
    });
}

#[test]
fn reason_is_told_when_a_program_cannot_be_started() {
    let helper = Helper::start();
    let (_ours, theirs) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let launch = Launch {
        directory: c"/".into(),
        path: c"/nowhere".into(),
        ..Launch::default()
    };
    helper.order(
        &Order::Spawn {
            id: 5,
            launch: launch.clone(),
        },
        &[theirs.as_fd()],
    );
    let error = headway_os::spawn::SpawnError {
        step: headway_os::spawn::Step::Execute,
        errno: Errno::NOENT,
    };
    assert_eq!(helper.report(), Report::Failed { id: 5, error });
    helper.order(&Order::Spawn { id: 6, launch }, &[]);
    assert!(
        matches!(helper.report(), Report::Failed { id: 6, .. }),
        "it has no output"
    );
    // Orders for programs that are not there are no mistake: they may have ended meanwhile.
    helper.order(&Order::Kill { id: 5, mark: 0 }, &[]);
    helper.order(
        &Order::Release {
            id: 99,
            patience_ms: 0,
        },
        &[],
    );
}
