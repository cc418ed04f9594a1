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

/// The command line of a process; empty when it has ended or is a kernel thread.
pub(crate) fn command_line(process: u32) -> String {
    let bytes = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    text.trim_end_matches('\0').replace('\0', " ")
}

/// Process numbers with their command lines.
pub(crate) fn with_command_lines(processes: &[u32]) -> String {
    let listed = processes
        .iter()
        .map(|&process| format!("{process} ({})", command_line(process)));
    listed.collect::<Vec<_>>().join(", ")
}

/// Programs with which labs are made. None of them runs for long.
const TOOLS: [&str; 7] = ["ip", "tc", "unshare", "losetup", "mount", "mkfs.", "chown"];

/// Programs for making labs that are at work on one of these names: of a maker that was killed,
/// they outlive it and would still make their thing.
pub(crate) fn tools_on(names: &[&str]) -> Vec<u32> {
    let at_work = |process: &u32| {
        let program = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        let line = || command_line(*process);
        TOOLS.iter().any(|tool| match tool.strip_suffix('.') {
            Some(family) => program.starts_with(family),
            None => program.trim_end() == *tool,
        }) && names.iter().any(|name| line().contains(name))
    };
    all().into_iter().filter(at_work).collect()
}

/// Polls until a condition is true or the timeout has passed; returns whether it was true.
pub(crate) fn wait_until(timeout: Duration, mut come: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    loop {
        if come() {
            return true;
        }
        if begun.elapsed() > timeout {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Ends processes: SIGTERM first, so that a server removes its own semaphores and files, SIGKILL
/// after a second. Lists them again until none is left, since a server may just be starting a
/// child. Gives up after five seconds and returns the remaining ones.
pub(crate) fn end(who: impl Fn() -> Vec<u32>) -> Vec<u32> {
    let begun = Instant::now();
    let own = std::process::id();
    let mut there = Vec::new();
    wait_until(Duration::from_secs(5), || {
        there = who();
        there.retain(|&process| process != own);
        let signal = match begun.elapsed() < Duration::from_secs(1) {
            true => Signal::TERM,
            false => Signal::KILL,
        };
        for &process in &there {
            if let Some(process) = Pid::from_raw(process as i32) {
                // ESRCH: it has ended meanwhile, which was the aim.
                let _ = kill_process(process, signal);
            }
        }
        there.is_empty()
    });
    there
}
