//! What the run needs of the machine: namespaces of its own, a control group, and the processes in
//! them. Everything but the control group ends with the first process of the namespace.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use headway_test_support::{is_root, skip};
use rustix::process::{Pid, Signal, kill_process};

/// Set in the process which is inside.
pub const INSIDE: &str = "HEADWAY_SOAK_INSIDE";

const UNSHARE: [&str; 6] = [
    "--net",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child=KILL",
    "--mount-proc",
];

/// Runs this test again in namespaces of its own, with a directory and a control group that are
/// removed afterwards.
pub fn run_inside(test: &str) {
    if !is_root() {
        return skip(test, "needs root");
    }
    let probe = Command::new("unshare").args(UNSHARE).arg("true").output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        return skip(test, "namespaces are not allowed here");
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let groups = Groups::create(&format!("headway-soak-{}", std::process::id()));
    let mut inside = Command::new("unshare")
        .args(UNSHARE)
        .arg(std::env::current_exe().expect("this program"))
        .args([test, "--exact", "--nocapture"])
        .env(INSIDE, directory.path())
        .env("HEADWAY_SOAK_MEMORY", &groups.memory)
        .env("HEADWAY_SOAK_PIDS", &groups.pids)
        // The end of this stream says that this process has ended.
        .stdin(Stdio::piped())
        .spawn()
        .expect("unshare");
    // Waiting would close it.
    let stream = inside.stdin.take();
    let status = inside.wait().expect("the process inside");
    drop(stream);
    drop(groups);
    assert!(status.success(), "the run inside failed: {status}");
}

/// Ends this process, and with it the namespace, when the process outside has ended.
pub fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
    // A signal of the terminal has no effect on the first process of a namespace by itself.
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let always = Arc::new(AtomicBool::new(true));
        signal_hook::flag::register_conditional_shutdown(signal, 1, always).expect("a handler");
    }
}

/// Runs a command; an error is what it said.
pub fn run(program: &str, arguments: &str) -> Result<(), String> {
    let output = Command::new(program)
        .args(arguments.split_whitespace())
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{program} {arguments}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

/// Control groups for memory and for processes; the paths are empty where there are none.
struct Groups {
    memory: PathBuf,
    pids: PathBuf,
}

impl Groups {
    fn create(name: &str) -> Groups {
        let make = |controller: &str, file: &str| {
            let candidates = [
                Path::new("/sys/fs/cgroup").join(controller).join(name),
                Path::new("/sys/fs/cgroup").join(name),
            ];
            for path in candidates {
                let is_new = fs::create_dir(&path).is_ok();
                if path.join(file).exists()
                    || path.join("memory.max").exists() && controller == "memory"
                {
                    return path;
                }
                if is_new {
                    let _ = fs::remove_dir(&path);
                }
            }
            PathBuf::new()
        };
        Groups {
            memory: make("memory", "memory.limit_in_bytes"),
            pids: make("pids", "pids.max"),
        }
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for path in [&self.memory, &self.pids] {
            for _ in 0..50 {
                if path.as_os_str().is_empty() || fs::remove_dir(path).is_ok() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
        }
    }
}

/// A process, as proc(5) has it.
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    pub command_line: String,
    pub is_zombie: bool,
}

/// All processes of the namespace but this one.
pub fn processes() -> Vec<Process> {
    let own = std::process::id() as i32;
    let numbers = fs::read_dir("/proc").expect("proc").flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|pid| *pid != own)
        .filter_map(|pid: i32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            // The name before the last parenthesis may hold anything.
            let mut fields = stat.rsplit_once(") ")?.1.split(' ');
            Some(Process {
                pid,
                is_zombie: fields.next()?.starts_with(['Z', 'X']),
                parent: fields.next()?.parse().ok()?,
                command_line: String::from_utf8_lossy(&line).replace('\0', " "),
            })
        })
        .collect()
}

/// The running processes whose command line contains a text.
pub fn find(kind: &str) -> Vec<i32> {
    let all = processes().into_iter();
    all.filter(|process| !process.is_zombie && process.command_line.contains(kind))
        .map(|process| process.pid)
        .collect()
}

/// Sends a signal, if the process still exists.
pub fn signal(pid: i32, signal: Signal) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| kill_process(pid, signal).is_ok())
}

/// Waits for processes which have ended and whose parent is gone. This is the first process of its
/// namespace, so they are its children now. It returns those that may be next: nothing else has
/// waited for them since the last time.
pub fn reap_orphans(candidates: &[i32], but: i32) -> Vec<i32> {
    let own = std::process::id() as i32;
    let ended = processes().into_iter().filter(|process| process.is_zombie);
    let orphans = ended.filter(|process| process.parent == own && process.pid != but);
    let mut next = Vec::new();
    for process in orphans {
        match candidates.contains(&process.pid) {
            true => {
                let pid = Pid::from_raw(process.pid);
                let _ = rustix::process::waitpid(pid, rustix::process::WaitOptions::NOHANG);
            }
            false => next.push(process.pid),
        }
    }
    next
}
