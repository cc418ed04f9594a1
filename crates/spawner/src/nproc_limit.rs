//! The default of `processes-max`: the limit of processes for programs (`RLIMIT_NPROC`).
//!
//! The kernel counts all processes and threads of a user. So the limit is the number that the
//! server's user has when the spawner starts, plus a reserve: enough for every honest program, and
//! too little to bring down a machine. The limit has no effect for root.
//!
//! Sources: getrlimit(2), proc(5) on `Threads` in `/proc/PID/status`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::getuid;

use super::wire::PROCESSES_DEFAULT;

/// Processes that all programs together may add to the existing ones.
const EXTRA_PROCESSES: u64 = 4096;

/// Processes and threads of this process's user; 0 for root, for which the limit has no effect.
pub(super) fn processes_of_user() -> u64 {
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

/// Number of threads; `None` if the directory is not a process.
fn threads(directory: &Path) -> Option<u64> {
    let status = fs::read_to_string(directory.join("status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Threads:"))?;
    line.trim().parse().ok()
}

/// The limit for a program. `configured` is the configured value; 0 means no limit.
pub(super) fn limit_for(configured: u64, processes: u64) -> u64 {
    match (configured, processes) {
        (PROCESSES_DEFAULT, 0) => 0,
        (PROCESSES_DEFAULT, processes) => processes + EXTRA_PROCESSES,
        (configured, _) => configured,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_process_limit_exceeds_the_existing_processes() {
        assert_eq!(limit_for(PROCESSES_DEFAULT, 100), 100 + EXTRA_PROCESSES);
        assert_eq!(limit_for(PROCESSES_DEFAULT, 0), 0, "no limit for root");
        assert_eq!([limit_for(0, 100), limit_for(7, 100)], [0, 7]);
    }

    #[test]
    fn threads_of_a_process_are_counted() {
        let before = threads(Path::new("/proc/self")).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let waits = std::thread::spawn(move || receiver.recv());
        assert!(threads(Path::new("/proc/self")).unwrap() > 1, "{before}");
        drop(sender);
        assert!(waits.join().unwrap().is_err());
        assert_eq!(threads(Path::new("/proc")), None);
    }
}
