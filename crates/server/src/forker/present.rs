//! How many processes a program may make where nobody has said it.
//!
//! `RLIMIT_NPROC` counts processes and threads of a user, whoever has started them. So the bound is
//! what the server's user has when the fork helper begins, and some more: enough for every honest
//! program and too little to stop a machine. It does not hold for root.
//!
//! Sources: getrlimit(2), proc(5) on `Threads` in `/proc/PID/status`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::getuid;

use super::wire::PROCESSES_UNSAID;

/// Processes that all programs together may add to those the user has.
const MORE: u64 = 4096;

/// Processes and threads of this process's user; 0 for root, whom no bound holds.
pub(super) fn of_user() -> u64 {
    let user = getuid();
    if user.is_root() {
        return 0;
    }
    let Ok(entries) = fs::read_dir("/proc") else {
        return 0;
    };
    let own = entries.flatten().filter(|entry| {
        let is_own = |owner: fs::Metadata| owner.uid() == user.as_raw();
        entry.metadata().is_ok_and(is_own)
    });
    own.filter_map(|entry| threads(&entry.path())).sum()
}

/// `None` for what is no process.
fn threads(directory: &Path) -> Option<u64> {
    let status = fs::read_to_string(directory.join("status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Threads:"))?;
    line.trim().parse().ok()
}

/// The limit of a program, of which the configuration says `said`: 0 is none.
pub(super) fn bound(said: u64, present: u64) -> u64 {
    match (said, present) {
        (PROCESSES_UNSAID, 0) => 0,
        (PROCESSES_UNSAID, present) => present + MORE,
        (said, _) => said,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_leaves_room_beside_what_is_there_when_nobody_has_said_one() {
        assert_eq!(bound(PROCESSES_UNSAID, 100), 100 + MORE);
        assert_eq!(bound(PROCESSES_UNSAID, 0), 0, "no bound holds for root");
        assert_eq!([bound(0, 100), bound(7, 100)], [0, 7]);
    }

    #[test]
    fn threads_are_counted_when_a_process_has_some() {
        let before = threads(Path::new("/proc/self")).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let waits = std::thread::spawn(move || receiver.recv());
        assert!(threads(Path::new("/proc/self")).unwrap() > 1, "{before}");
        drop(sender);
        assert!(waits.join().unwrap().is_err());
        assert_eq!(threads(Path::new("/proc")), None);
    }
}
