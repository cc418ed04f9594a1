//! Kills the processes that a program has left outside its process group, by their process tag.
//!
//! The reaper scans all processes of the machine and kills those with the tag, until a scan finds
//! no new one. Then none is left: a process with a pending SIGKILL creates no child (`fork` checks
//! for signals first), so a new process could only be the child of another new one. A zombie is
//! found as well, and counts as new once.
//!
//! A process ID alone is never trusted: the process is opened first (pidfd), then its tag is
//! checked. If the ID has been reused in between, the signal reaches nothing.
//!
//! The reaper runs in the spawner and never on a loop, because a scan reads every process of the
//! machine. Not found: processes that lowered this limit themselves, that changed to a user out of
//! reach, or that another service started for them (at(1), systemd-run(1)).
//!
//! Sources: proc(5) on `/proc/PID/limits`, prlimit(2), pidfd_open(2), pidfd_send_signal(2).

use std::collections::HashSet;
use std::fs;
use std::io;

use headway_os::spawn::{is_process_tag, process_tag_of};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getuid, pidfd_open, pidfd_send_signal};

use super::stderr_relay::StderrRelay;

/// Most scans before programs are served again. Each finds what the previous one missed.
const SCANS_PER_TICK_MAX: usize = 16;

/// The tags of the processes to kill.
#[derive(Default)]
pub(super) struct OrphanReaper {
    process_tags: HashSet<u64>,
}

impl OrphanReaper {
    pub(super) fn add(&mut self, process_tag: u64) {
        self.process_tags.insert(process_tag);
    }

    /// Whether there are tags to look for.
    pub(super) fn is_active(&self) -> bool {
        !self.process_tags.is_empty()
    }

    /// Kills tagged processes; continues in the next tick if they multiply faster than they are
    /// found.
    pub(super) fn run(&mut self, stderr_relay: &mut StderrRelay) {
        if !self.is_active() {
            return;
        }
        let mut killed = HashSet::new();
        for _ in 0..SCANS_PER_TICK_MAX {
            match self.scan(&mut killed) {
                Ok(0) => return self.process_tags.clear(),
                Ok(_) => {}
                Err(error) => {
                    stderr_relay.log(format!(
                        "cannot read /proc: {error}; processes that left their group are not killed"
                    ));
                    return self.process_tags.clear();
                }
            }
        }
    }

    /// Kills tagged processes, and returns how many had not been killed before.
    fn scan(&self, killed: &mut HashSet<Pid>) -> io::Result<usize> {
        let mut new = 0;
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.parse().ok());
            let Some(pid) = number.and_then(Pid::from_raw) else {
                continue;
            };
            if self.has_target_tag(pid) && self.kill(pid) {
                new += usize::from(killed.insert(pid));
            }
        }
        Ok(new)
    }

    fn kill(&self, pid: Pid) -> bool {
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
            return false;
        };
        self.has_target_tag(pid) && pidfd_send_signal(&process, Signal::KILL).is_ok()
    }

    fn has_target_tag(&self, pid: Pid) -> bool {
        let process_tag = match process_tag_of(pid) {
            Ok(process_tag) => process_tag,
            // Root may kill a process that changed its user, but may not read its limits without
            // CAP_SYS_RESOURCE.
            Err(Errno::PERM) if getuid().is_root() => tag_in_limits(pid),
            Err(_) => None,
        };
        process_tag.is_some_and(|process_tag| self.process_tags.contains(&process_tag))
    }
}

/// Like [`process_tag_of`], but from a file that everyone may read. It is slower, because the
/// kernel formats it for each reader.
fn tag_in_limits(pid: Pid) -> Option<u64> {
    let file = format!("/proc/{}/limits", pid.as_raw_nonzero());
    let text = fs::read_to_string(file).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Max realtime timeout"))?;
    let hard = line.split_whitespace().nth(1)?.parse().ok()?;
    is_process_tag(hard).then_some(hard)
}
