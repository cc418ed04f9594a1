//! What the server says where the system forbids what it is asked for: a filter of system calls,
//! such as containers have.

use std::os::unix::process::CommandExt;
use std::process::Command;

use headway_test_support::server::Server;

use crate::clients::{contents, counter, get, program, root, skip};

/// The command in a process in which this system call fails with this error.
fn without_call(mut command: Command, call: libc::c_long, error: libc::c_int) -> Command {
    let code = |operation: u32, value: u32, no: u8| libc::sock_filter {
        code: operation as u16,
        jt: 0,
        jf: no,
        k: value,
    };
    let refused = libc::SECCOMP_RET_ERRNO | error as u32;
    // The number of the call is the first word of what a filter sees (seccomp(2)).
    let mut filter = [
        code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 1),
        code(libc::BPF_RET | libc::BPF_K, refused, 0),
        code(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let install = move || {
        let program = libc::sock_fprog {
            len: filter.len() as libc::c_ushort,
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: a flag of this process; no memory is named.
        let flagged = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        // SAFETY: the program and its instructions are live and as long as they say; the kernel
        // copies both.
        let filtered =
            unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
        match flagged == 0 && filtered == 0 {
            true => Ok(()),
            false => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec it makes two system calls, and neither allocates nor locks.
    unsafe { command.pre_exec(install) };
    command
}

#[test]
fn error_names_what_forbids_io_uring_and_the_alternative() {
    const NAME: &str = "error_names_what_forbids_io_uring_and_the_alternative";
    let setting = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    for (error, why) in [
        (libc::EPERM, "profile) or another policy forbids it"),
        (libc::ENOSYS, "profile) hides it"),
    ] {
        if error == libc::EPERM && setting.as_ref().is_ok_and(|value| value.trim() != "0") {
            skip(NAME, "kernel.io_uring_disabled forbids it already");
            continue;
        }
        for (option, instead) in [("--events", "use epoll"), ("--helpers", "use processes")] {
            let mut command = without_call(program(), libc::SYS_io_uring_setup, error);
            let output = command.args(["serve", option, "io_uring", "--check"]);
            let output = output.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{option}: {said}");
            for word in [option.trim_start_matches('-'), "seccomp", why, instead] {
                assert!(said.contains(word), "{option}: {word:?} is not in {said}");
            }
        }
        // Nothing else is refused for it.
        let mut command = without_call(program(), libc::SYS_io_uring_setup, error);
        let output = command.args(["serve", "--check"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn files_are_served_without_the_store_when_memfds_are_forbidden() {
    const BYTES: usize = 300_000;
    for error in [libc::EPERM, libc::ENOSYS] {
        let root = root();
        std::fs::write(root.path().join("file"), contents(1, BYTES)).unwrap();
        let command = without_call(program(), libc::SYS_memfd_create, error);
        let server = Server::start(command, root.path(), &[]);
        for _ in 0..20 {
            assert!(get(&server.address, "/file") == (200, contents(1, BYTES)));
        }
        let status = server.status();
        assert!(status["master"]["stored"].is_null());
        let counters = [
            "helper_jobs_copy",
            "content_store_insertions",
            "responses_aborted",
        ];
        assert_eq!(counters.map(|name| counter(&status, name)), [0; 3]);
        let said = server.stop();
        let lines = said.lines().filter(|line| line.contains("memfd_create"));
        let lines: Vec<&str> = lines.collect();
        assert_eq!(lines.len(), 1, "{said}");
        assert!(lines[0].contains("no content store"), "{said}");
    }
}

/// With a shared listener they share the numbers of their connections.
#[test]
fn error_names_the_call_and_the_settings_when_memory_that_workers_share_is_forbidden() {
    for error in [libc::EPERM, libc::ENOSYS] {
        let root = root();
        let mut command = without_call(program(), libc::SYS_memfd_create, error);
        command.args(["serve", "--workers", "2"]).arg(root.path());
        let output = command.args(["--listen", "127.0.0.1:0", "--listeners", "shared"]);
        let output = output.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        for word in ["memfd_create", "seccomp", "listeners", "workers = 1"] {
            assert!(said.contains(word), "{word:?} is not in {said}");
        }
    }
}

#[test]
fn auto_copies_and_says_so_once_when_cachestat_is_missing() {
    const BYTES: usize = 300_000;
    let root = root();
    std::fs::write(root.path().join("file"), contents(1, BYTES)).unwrap();
    // libc does not name it everywhere.
    let command = without_call(program(), 451, libc::ENOSYS);
    let options = ["--send", "auto", "--content-store-max", "0"];
    let server = Server::start(command, root.path(), &options);
    for _ in 0..20 {
        assert!(get(&server.address, "/file") == (200, contents(1, BYTES)));
    }
    assert!(counter(&server.status(), "chunks_buffered") > 0);
    let said = server.stop();
    assert_eq!(said.matches("cachestat").count(), 1, "{said}");
}

/// Needs: Landlock of version 6 (Linux 6.12), and seccomp
#[test]
fn server_says_what_is_not_confined_when_the_kernel_lacks_a_layer() {
    const NAME: &str = "server_says_what_is_not_confined_when_the_kernel_lacks_a_layer";
    let lacks = headway_sandbox::Support::probe().lacks();
    if !lacks.is_empty() {
        return skip(NAME, &lacks.join("; "));
    }
    for (call, lack) in [
        (libc::SYS_landlock_create_ruleset, "sandbox: no Landlock"),
        (libc::SYS_seccomp, "sandbox: no seccomp"),
    ] {
        for error in [libc::ENOSYS, libc::EPERM] {
            let server =
                Server::start_hello(without_call(program(), call, error), &["--sandbox", "on"]);
            assert_eq!(get(&server.address, "/"), (200, b"hello".to_vec()));
            let said = server.stop();
            assert_eq!(said.matches(lack).count(), 1, "{said}");
            assert_eq!(said.matches("sandbox:").count(), 1, "{said}");
            let root = root();
            let mut command = without_call(program(), call, error);
            command.arg("serve").arg(root.path());
            command.args(["--listen", "127.0.0.1:0", "--sandbox", "required"]);
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains(lack), "{said}");
            assert!(said.contains("sandbox = \"on\""), "{said}");
        }
    }
}
