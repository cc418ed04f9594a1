//! Control groups of a test (cgroups(7)). They need root and a hierarchy with the controller; a
//! machine without them says why not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::server::in_group;
use crate::{WAIT_MAX, is_running, wait_until};

/// Numbers the groups of this process.
static GROUPS: AtomicU32 = AtomicU32::new(0);

/// A control group; removed when dropped, with the processes in it.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    is_version_1: bool,
}

impl Group {
    /// A group of this controller without a limit.
    pub fn new(controller: &str) -> Result<Group, String> {
        let version_1 = Path::new("/sys/fs/cgroup").join(controller);
        let is_version_1 = version_1.is_dir();
        let hierarchy = match is_version_1 {
            true => version_1,
            false => PathBuf::from("/sys/fs/cgroup"),
        };
        let number = GROUPS.fetch_add(1, Ordering::Relaxed);
        let path = hierarchy.join(format!("headway-test-{}-{number}", std::process::id()));
        fs::create_dir(&path)
            .map_err(|error| format!("a control group ({controller}): {error}"))?;
        Ok(Group { path, is_version_1 })
    }

    /// The list of its processes, to be written to by one that enters.
    pub fn procs(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Moves processes into it.
    pub fn add(&self, pids: &[i32]) {
        for pid in pids {
            fs::write(self.procs(), pid.to_string()).expect("a process enters the group");
        }
    }

    /// Sets a limit, whose name depends on the version of control groups.
    pub fn limit(&self, version_1: &str, version_2: &str, value: &str) -> Result<(), String> {
        let name = match self.is_version_1 {
            true => version_1,
            false => version_2,
        };
        fs::write(self.path.join(name), value).map_err(|error| format!("{name}: {error}"))
    }

    /// Freezes its processes so that not even SIGKILL ends them, like a process which waits for a
    /// dead disk. Only groups of version 1 do this.
    pub fn freeze(&self) -> Result<(), String> {
        let state = self.path.join("freezer.state");
        fs::write(&state, "FROZEN").map_err(|error| format!("freezer.state: {error}"))?;
        wait_until("the group freezes", || {
            fs::read_to_string(&state).is_ok_and(|state| state.trim() == "FROZEN")
        });
        Ok(())
    }

    fn processes(&self) -> Vec<i32> {
        let list = fs::read_to_string(self.procs()).unwrap_or_default();
        list.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Frozen processes end only when they continue. Other groups have no such file.
        let _ = fs::write(self.path.join("freezer.state"), "THAWED");
        let begun = Instant::now();
        // A process which has just ended is counted for a moment longer.
        while fs::remove_dir(&self.path).is_err() && begun.elapsed() < WAIT_MAX {
            for pid in self.processes() {
                let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A file system in memory.
const IN_MEMORY: &str = "/dev/shm";

/// A group with little memory, and why there is none.
pub fn little_memory() -> Result<Group, String> {
    let group = Group::new("memory")?;
    let bytes = (256 << 20).to_string();
    group.limit("memory.limit_in_bytes", "memory.max", &bytes)?;
    match Path::new(IN_MEMORY).is_dir() {
        true => Ok(group),
        false => Err(format!("no {IN_MEMORY}")),
    }
}

/// Fills the memory of a group until the kernel has killed a process, which it prefers.
pub fn fill_until_killed(group: &Group, victim: i32) {
    fs::write(format!("/proc/{victim}/oom_score_adj"), "1000").unwrap();
    // On a file system in memory, so nothing but killing makes room.
    let filler = tempfile::NamedTempFile::new_in(IN_MEMORY).unwrap();
    wait_until("the kernel kills the process", || {
        let mut command = Command::new("sh");
        let script = "head -c 2M /dev/zero >>\"$0\"";
        command.args(["-c", script]).arg(filler.path());
        let status = in_group(command, &group.procs()).status().unwrap();
        assert!(
            status.success() || !is_running(victim),
            "another was killed"
        );
        !is_running(victim)
    });
}
