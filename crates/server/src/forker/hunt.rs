//! The end of all who bear a mark: what a program has left behind outside its process group.
//!
//! The kernel is asked for every process there is, and whoever bears the mark is killed, round
//! after round until a round finds nobody new. Then nobody is left: a process to which SIGKILL has
//! been sent makes no other (`fork` looks for signals before it lets a child go), so a new one
//! could only be a child of one that was new itself. A zombie is found, too, and is new once.
//!
//! What it refuses: to take a number for a process. It is taken hold of first (pidfd), then asked
//! for its mark; if the number has changed hands between, the signal finds nobody.
//!
//! Where it stands: in the fork helper, beside its programs, and never on a loop: a round asks
//! about every process of the machine. Its limit: who has lowered this limit himself, has become
//! another user out of our reach, or has asked a service for work (at(1), systemd-run(1)) is not
//! found.
//!
//! Sources: proc(5) on `/proc/PID/limits`, prlimit(2), pidfd_open(2), pidfd_send_signal(2).

use std::collections::HashSet;
use std::fs;
use std::io;

use headway_os::spawn::{is_mark, mark_of};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getuid, pidfd_open, pidfd_send_signal};

use super::words::Words;

/// Rounds before the programs have their turn. Each finds whoever the one before has missed.
const ROUNDS_A_TURN: usize = 16;

/// The marks whose bearers are to end.
#[derive(Default)]
pub(super) struct Hunt {
    marks: HashSet<u64>,
}

impl Hunt {
    pub(super) fn add(&mut self, mark: u64) {
        self.marks.insert(mark);
    }

    /// There is somebody to look for.
    pub(super) fn is_on(&self) -> bool {
        !self.marks.is_empty()
    }

    /// Kills those who bear a mark; goes on in the next turn if they become more faster than that.
    pub(super) fn run(&mut self, words: &mut Words) {
        if !self.is_on() {
            return;
        }
        let mut killed = HashSet::new();
        for _ in 0..ROUNDS_A_TURN {
            match self.round(&mut killed) {
                Ok(0) => return self.marks.clear(),
                Ok(_) => {}
                Err(error) => {
                    words.say(format!(
                        "reading /proc: {error}; what a program has left outside its group goes on"
                    ));
                    return self.marks.clear();
                }
            }
        }
    }

    /// How many were found that are not among those killed before.
    fn round(&self, killed: &mut HashSet<Pid>) -> io::Result<usize> {
        let mut new = 0;
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.parse().ok());
            let Some(pid) = number.and_then(Pid::from_raw) else {
                continue;
            };
            if self.is_sought(pid) && self.kill(pid) {
                new += usize::from(killed.insert(pid));
            }
        }
        Ok(new)
    }

    fn kill(&self, pid: Pid) -> bool {
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
            return false;
        };
        self.is_sought(pid) && pidfd_send_signal(&process, Signal::KILL).is_ok()
    }

    fn is_sought(&self, pid: Pid) -> bool {
        let mark = match mark_of(pid) {
            Ok(mark) => mark,
            // Root may kill those who have changed their user, but may not ask them so without
            // CAP_SYS_RESOURCE.
            Err(Errno::PERM) if getuid().is_root() => mark_in_limits(pid),
            Err(_) => None,
        };
        mark.is_some_and(|mark| self.marks.contains(&mark))
    }
}

/// The same as [`mark_of`] from a file that everybody may read, and that is written for each
/// reader.
fn mark_in_limits(pid: Pid) -> Option<u64> {
    let file = format!("/proc/{}/limits", pid.as_raw_nonzero());
    let text = fs::read_to_string(file).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Max realtime timeout"))?;
    let hard = line.split_whitespace().nth(1)?.parse().ok()?;
    is_mark(hard).then_some(hard)
}
