//! Programs that are really started, in every way there is.

use super::*;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

const WAYS: [SpawnMethod; 2] = [SpawnMethod::Vfork, SpawnMethod::Fork];

fn null() -> File {
    let mut options = File::options();
    options.read(true).write(true).open("/dev/null").unwrap()
}

struct Output {
    text: String,
    code: Option<i32>,
    signal: Option<i32>,
}

fn shell(script: &str, limits: Limits, way: SpawnMethod) -> Output {
    let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let arguments = [c"sh".into(), c"-c".into(), CString::new(script).unwrap()];
    let null = null();
    let program = Program {
        domain: None,
        path: c"/bin/sh",
        arguments: &arguments,
        environment: &[c"A=b".into(), c"PATH=/bin:/usr/bin".into()],
        directory: c"/proc",
        input: null.as_fd(),
        output: theirs.as_fd(),
        error: null.as_fd(),
        limits,
    };
    let pid = spawn(&program, way).unwrap();
    drop(theirs);
    let mut text = String::new();
    File::from(ours).read_to_string(&mut text).unwrap();
    let (_, status) = waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap();
    Output {
        text,
        code: status.exit_status(),
        signal: status.terminating_signal(),
    }
}

#[test]
fn program_runs_in_its_directory_and_process_group_when_spawned_by_fork_or_vfork() {
    for way in WAYS {
        let script = "echo $A; pwd; read -r _ _ _ _ group rest </proc/self/stat; [ $group = $$ ] && echo own";
        let ran = shell(script, Limits::default(), way);
        assert_eq!(
            (ran.text.as_str(), ran.code),
            ("b\n/proc\nown\n", Some(0)),
            "{way:?}"
        );
    }
}

#[test]
fn no_descriptor_but_three_is_open_when_the_parent_has_more() {
    // One is close-on-exec, the other is not.
    let more = [null(), null()].map(|file| (file.as_raw_fd(), file));
    rustix::io::fcntl_setfd(&more[1].1, rustix::io::FdFlags::empty()).unwrap();
    let numbers = format!("{} {}", more[0].0, more[1].0);
    for way in WAYS {
        let script =
            format!("for n in {numbers}; do [ -e /proc/self/fd/$n ] && echo $n; done; echo end");
        assert_eq!(
            shell(&script, Limits::default(), way).text,
            "end\n",
            "{way:?}"
        );
    }
}

#[test]
fn program_has_no_capabilities_when_the_parent_has_all() {
    for way in WAYS {
        let script = "grep -E '^Cap(Inh|Prm|Eff|Amb)|^NoNew' /proc/self/status";
        let ran = shell(script, Limits::default(), way);
        let values: Vec<&str> = ran
            .text
            .split_whitespace()
            .filter(|word| !word.ends_with(':'))
            .collect();
        let none = "0000000000000000";
        assert_eq!(values, [none, none, none, none, "1"], "{way:?}");
    }
}

#[test]
fn broken_pipe_ends_the_program_when_the_parent_ignores_it() {
    for way in WAYS {
        let ran = shell("kill -PIPE $$; echo alive", Limits::default(), way);
        assert_eq!(ran.signal, Some(libc::SIGPIPE), "{way:?}: {}", ran.text);
    }
}

#[test]
fn resource_limits_are_set_when_they_are_given() {
    let limits = Limits {
        memory_bytes: 1 << 30,
        cpu_s: 30,
        processes: 4000,
        descriptors: 64,
        process_tag: 0,
    };
    for way in WAYS {
        let ran = shell("ulimit -v; ulimit -t; ulimit -n; ulimit -c", limits, way);
        assert_eq!(ran.text, "1048576\n30\n64\n0\n", "{way:?}");
    }
}

#[test]
fn program_starts_when_the_parent_holds_more_descriptors_than_it_may_have() {
    let limits = Limits {
        descriptors: 64,
        ..Limits::default()
    };
    let held: Vec<File> = (0..limits.descriptors + 8).map(|_| null()).collect();
    let stderr = io::stderr();
    for way in WAYS {
        let null = null();
        let program = Program {
            domain: None,
            path: c"/bin/sh",
            arguments: &[c"sh".into(), c"-c".into(), c"exit 3".into()],
            environment: &[],
            directory: c"/",
            input: null.as_fd(),
            output: null.as_fd(),
            // In the way of what is to become 2.
            error: stderr.as_fd(),
            limits,
        };
        let pid = spawn(&program, way).unwrap();
        let (_, status) = waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(status.exit_status(), Some(3), "{way:?}");
    }
    drop(held);
}

#[test]
fn process_tag_is_found_when_a_descendant_has_left_group_and_parent() {
    let limits = Limits {
        process_tag: PROCESS_TAG_MIN + 77,
        ..Limits::default()
    };
    // The inner one prints its number and stays; its parent has ended by then, or ends soon.
    let script = "(setsid sh -c 'echo $$; sleep 10' >&3 3>&- &) 3>&1 >/dev/null; sleep 0.1; exit 0";
    let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let null = null();
    for way in WAYS {
        let program = Program {
            domain: None,
            path: c"/bin/sh",
            arguments: &[c"sh".into(), c"-c".into(), CString::new(script).unwrap()],
            environment: &[c"PATH=/bin:/usr/bin".into()],
            directory: c"/",
            input: null.as_fd(),
            output: theirs.as_fd(),
            error: null.as_fd(),
            limits,
        };
        let pid = spawn(&program, way).unwrap();
        let (mut text, mut byte) = (String::new(), [0]);
        while !text.ends_with('\n') {
            rustix::io::read(&ours, &mut byte).unwrap();
            text.push(char::from(byte[0]));
        }
        assert_eq!(process_tag_of(pid), Ok(Some(limits.process_tag)), "{way:?}");
        waitpid(Some(pid), WaitOptions::empty()).unwrap();
        let left = Pid::from_raw(text.trim().parse().unwrap()).unwrap();
        assert_eq!(
            process_tag_of(left),
            Ok(Some(limits.process_tag)),
            "{way:?}"
        );
        rustix::process::kill_process_group(left, rustix::process::Signal::KILL).unwrap();
    }
    assert_eq!(process_tag_of(rustix::process::getpid()), Ok(None));
}

#[test]
fn error_names_the_reason_and_no_process_is_left_when_exec_fails() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str, mode: u32| {
        let path = directory.path().join(name);
        // By another process: what another test's child still holds open for writing cannot be
        // executed.
        let arguments = [
            "-c",
            "printf %s \"$2\" > \"$1\" && chmod \"$3\" \"$1\"",
            "sh",
        ];
        let mut shell = std::process::Command::new("sh");
        shell
            .args(arguments)
            .arg(&path)
            .args([text, &format!("{mode:o}")]);
        assert!(shell.status().unwrap().success());
        CString::new(path.to_str().unwrap()).unwrap()
    };
    let cases = [
        (c"/nowhere/at/all".to_owned(), Errno::NOENT),
        (file("plain", "#!/bin/sh\n", 0o644), Errno::ACCESS),
        (
            file("lost", "#!/nowhere/interpreter\n", 0o755),
            Errno::NOENT,
        ),
        (file("nothing", "\x01\x02\x03", 0o755), Errno::NOEXEC),
    ];
    let null = null();
    for (path, errno) in cases {
        let program = Program {
            domain: None,
            path: &path,
            arguments: &[c"x".into()],
            environment: &[],
            directory: c"/",
            input: null.as_fd(),
            output: null.as_fd(),
            error: null.as_fd(),
            limits: Limits::default(),
        };
        let error = spawn(&program, SpawnMethod::Vfork).unwrap_err();
        assert_eq!(
            (error.step, error.errno),
            (SpawnStage::Execute, errno),
            "{path:?}"
        );
        let elsewhere = Program {
            directory: c"/nowhere",
            ..program
        };
        let error = spawn(&elsewhere, SpawnMethod::Vfork).unwrap_err();
        assert_eq!(error.step, SpawnStage::Directory);
        assert_eq!(
            error.to_string(),
            "chdir: No such file or directory (os error 2)"
        );
    }
}

#[test]
fn descriptors_are_placed_when_they_have_the_numbers_of_others() {
    // In a child, so that the test program keeps its own.
    let null: OwnedFd = null().into();
    let plan_descriptors = [2, 1, null.as_raw_fd()];
    // SAFETY: the child makes async-signal-safe calls only and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let plan = Plan {
            domain: None,
            path: ptr::null(),
            arguments: ptr::null(),
            environment: ptr::null(),
            directory: ptr::null(),
            descriptors: plan_descriptors,
            limits: Limits::default(),
            parent: 0,
            step: AtomicU8::new(0),
            errno: AtomicI32::new(0),
        };
        let inode = |fd: RawFd| {
            // SAFETY: a structure of integers, for which zero is a value.
            let mut status: libc::stat = unsafe { std::mem::zeroed() };
            // SAFETY: the pointer is to a structure of this frame.
            unsafe { libc::fstat(fd, &raw mut status) };
            (status.st_dev, status.st_ino)
        };
        let expected = plan_descriptors.map(inode);
        let placed = place_descriptors(&plan).is_ok() && [0, 1, 2].map(inode) == expected;
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!placed)) };
    }
    let child = Pid::from_raw(child).unwrap();
    let (_, status) = waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(0));
}

#[test]
fn spawn_stage_is_the_same_when_converted_to_a_number_and_back() {
    for step in SpawnStage::ALL {
        assert_eq!(SpawnStage::from_number(step.number()), Some(step));
    }
    assert_eq!(SpawnStage::from_number(0), None);
    assert_eq!(SpawnStage::from_number(8), None);
}
