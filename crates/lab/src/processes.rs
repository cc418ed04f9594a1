//! The processes of a lab: found by where they are, ended politely and then not.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Every process there is, by number.
pub(crate) fn all() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Its words, for a person; empty when it is gone or a thread of the kernel.
pub(crate) fn command_line(process: u32) -> String {
    let bytes = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    text.trim_end_matches('\0').replace('\0', " ")
}

/// Ends processes: asked first, so that a server removes its own semaphores and files, and killed after a second. Asks anew who is there until nobody
/// is, since a server may just be starting a child. Gives up after five seconds and returns who is left.
pub(crate) fn end(who: impl Fn() -> Vec<u32>) -> Vec<u32> {
    let begun = Instant::now();
    let own = std::process::id();
    loop {
        let mut there = who();
        there.retain(|&process| process != own);
        let waited = begun.elapsed();
        if there.is_empty() || waited > Duration::from_secs(5) {
            return there;
        }
        let signal = match waited < Duration::from_secs(1) {
            true => Signal::TERM,
            false => Signal::KILL,
        };
        for process in there {
            if let Some(process) = Pid::from_raw(process as i32) {
                // ESRCH: it has ended meanwhile, which was the aim.
                let _ = kill_process(process, signal);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
