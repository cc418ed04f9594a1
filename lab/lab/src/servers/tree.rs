//! A server's processes: which they are, how much time and memory they have taken, and their end.
//!
//! A process is known by its number and its start, since numbers are used again: nothing is
//! signalled or counted that the server did not start. Sources: proc(5),
//! Documentation/filesystems/proc.rst (`stat`, `schedstat`, `smaps_rollup`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

/// A process, told apart from a later one of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Process {
    /// The process ID.
    pub pid: i32,
    /// Clock ticks since boot, field 22 of `stat`.
    pub started: u64,
}

/// What a server's processes have used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Processes there are now.
    pub processes: usize,
    /// Threads of the processes, counting a process without more threads as one.
    pub tasks: usize,
    /// CPU time, user and system, in milliseconds: of the processes there are, and of the
    /// children they have waited for.
    pub cpu_ms: f64,
    /// Resident memory, each process counted for itself: shared pages count as often as they are
    /// mapped.
    pub resident_bytes: u64,
    /// Resident memory, each page divided among the processes that map it. 0 where the kernel does
    /// not say.
    pub proportional_bytes: u64,
}

/// The fields of `/proc/PID/stat` that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub state: u8,
    pub parent: i32,
    pub group: i32,
    /// Ticks of this process and of those it has waited for.
    pub own_ticks: u64,
    pub reaped_ticks: u64,
    pub tasks: usize,
    pub started: u64,
}

impl Stat {
    /// Reads a line of `stat`. The command's name may hold spaces and parentheses, so it ends at
    /// the last one.
    pub fn parse(line: &str) -> Option<Stat> {
        let (_, rest) = line.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Stat {
            state: *fields.first()?.as_bytes().first()?,
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            own_ticks: number(11)? + number(12)?,
            reaped_ticks: number(13)? + number(14)?,
            tasks: number(17)? as usize,
            started: number(19)?,
        })
    }

    pub fn of(pid: i32) -> Option<Stat> {
        Stat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Ended, and not yet waited for.
    fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// A process that leads a group, its descendants, and what else is in its group: a child whose
/// parent has ended has no ancestor in the tree, but stays in the group. The leader comes first, if
/// it lives.
///
/// The number of a group is not given to a new process while the group has members, so the group is
/// the leader's as long as the caller has not waited for it.
pub(crate) fn tree(leader: Process) -> Vec<Process> {
    let mut children: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    let mut found = Vec::new();
    for pid in numbers("/proc") {
        // A process that ends between the listing and the reading is no error.
        let Some(stat) = Stat::of(pid).filter(|stat| !stat.is_dead()) else {
            continue;
        };
        let process = Process {
            pid,
            started: stat.started,
        };
        match process == leader {
            true => found.insert(0, process),
            false if stat.group == leader.pid => found.push(process),
            false => children.entry(stat.parent).or_default().push(process),
        }
    }
    let mut next = 0;
    while let Some(parent) = found.get(next) {
        let more = children.remove(&parent.pid).unwrap_or_default();
        found.extend(more);
        next += 1;
    }
    found
}

/// The processes that come from one, without itself, whatever groups they have gone into.
pub fn descendants(pid: i32) -> Vec<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for child in numbers("/proc") {
        if let Some(stat) = Stat::of(child).filter(|stat| !stat.is_dead()) {
            children.entry(stat.parent).or_default().push(child);
        }
    }
    let mut found = children.remove(&pid).unwrap_or_default();
    let mut next = 0;
    while let Some(parent) = found.get(next) {
        let more = children.remove(parent).unwrap_or_default();
        found.extend(more);
        next += 1;
    }
    found
}

/// The entries of a folder of `/proc` that are numbers.
pub(crate) fn numbers(folder: &str) -> Vec<i32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// What these processes have used.
pub(crate) fn usage(processes: &[Process]) -> Usage {
    let tick_ms = 1000.0 / rustix::param::clock_ticks_per_second() as f64;
    let mut usage = Usage::default();
    for process in processes {
        let Some(stat) = Stat::of(process.pid).filter(|stat| stat.started == process.started)
        else {
            continue;
        };
        usage.processes += 1;
        usage.tasks += stat.tasks;
        usage.cpu_ms += own_ms(process.pid).max(stat.own_ticks as f64 * tick_ms);
        usage.cpu_ms += stat.reaped_ticks as f64 * tick_ms;
        let (resident, proportional) = memory_bytes(process.pid);
        usage.resident_bytes += resident;
        usage.proportional_bytes += proportional;
    }
    usage
}

/// The time of a process's present threads, to the nanosecond. `stat` rounds each process down to a
/// tick, which for 256 processes that have run some milliseconds each is most of it; but it knows
/// the threads that have ended.
fn own_ms(pid: i32) -> f64 {
    let tasks = numbers(&format!("/proc/{pid}/task"));
    let times = tasks.iter().filter_map(|task| {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{task}/schedstat")).ok()?;
        text.split_ascii_whitespace().next()?.parse::<u64>().ok()
    });
    times.sum::<u64>() as f64 / 1e6
}

/// Resident and proportional bytes.
fn memory_bytes(pid: i32) -> (u64, u64) {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        let kibibytes: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
        Some(kibibytes * 1024)
    };
    (field("Rss:").unwrap_or(0), field("Pss:").unwrap_or(0))
}

/// Whether the process is still there, other than as a zombie.
pub(crate) fn is_alive(process: Process) -> bool {
    let stat = Stat::of(process.pid);
    stat.is_some_and(|stat| stat.started == process.started && !stat.is_dead())
}

/// Sends a signal to those that are still what they were.
pub(crate) fn signal(processes: &BTreeSet<Process>, signal: Signal) {
    for process in processes.iter().filter(|process| is_alive(**process)) {
        if let Some(pid) = Pid::from_raw(process.pid) {
            // It may have ended since; then there is nothing to do.
            let _ = kill_process(pid, signal);
        }
    }
}

/// Waits until none is left, up to a time; true when none is.
pub(crate) fn wait_for_end(processes: &BTreeSet<Process>, timeout: Duration) -> bool {
    let begun = std::time::Instant::now();
    loop {
        if !processes.iter().any(|process| is_alive(*process)) {
            return true;
        }
        if begun.elapsed() >= timeout {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::os::unix::process::CommandExt;

    fn own_process() -> Process {
        let pid = std::process::id() as i32;
        let started = Stat::of(pid).expect("our own process").started;
        Process { pid, started }
    }

    #[test]
    fn stat_is_read_when_the_name_holds_parentheses_and_spaces() {
        let line = "7 (a) R (b c) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 9 0 1234 0 0";
        let stat = Stat::parse(line).expect("a line of stat");
        assert_eq!((stat.state, stat.parent, stat.group), (b'S', 1, 7));
        assert_eq!((stat.own_ticks, stat.reaped_ticks), (11, 15));
        assert_eq!((stat.tasks, stat.started), (9, 1234));
        assert_eq!(Stat::parse("7 (a"), None);
    }

    #[test]
    fn process_tree_has_all_living_descendants() {
        let script = "sleep 60 & echo $!; wait";
        let mut shell = std::process::Command::new("sh")
            .args(["-c", script])
            .stdout(std::process::Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("a shell");
        let mut line = String::new();
        let output = shell.stdout.take().expect("its output");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line)
            .expect("the number of its child");
        let sleeper: i32 = line.trim().parse().expect("a number");
        let pid = shell.id() as i32;
        let started = Stat::of(pid).expect("the shell").started;
        let found = tree(Process { pid, started });
        assert_eq!(
            found.iter().map(|process| process.pid).collect::<Vec<_>>(),
            [pid, sleeper]
        );
        // The child stays one of ours when its parent has ended.
        let all = BTreeSet::from_iter(found.iter().copied());
        signal(&BTreeSet::from([found[0]]), Signal::KILL);
        assert!(wait_for_end(
            &BTreeSet::from([found[0]]),
            Duration::from_secs(30)
        ));
        assert_eq!(tree(found[0]), found[1..]);
        // Another process of the same number is none of ours.
        let other = Process {
            pid: sleeper,
            started: found[1].started + 1,
        };
        signal(&BTreeSet::from([other]), Signal::KILL);
        assert!(is_alive(found[1]));
        signal(&all, Signal::KILL);
        shell.wait().expect("its end");
        assert!(wait_for_end(&all, Duration::from_secs(30)));
    }

    #[test]
    fn usage_is_counted_when_a_process_works() {
        let before = usage(&[own_process()]);
        let begun = std::time::Instant::now();
        // The process's own time, so that a busy machine only makes it take longer.
        while usage(&[own_process()]).cpu_ms < before.cpu_ms + 20.0 {
            assert!(
                begun.elapsed() < Duration::from_secs(30),
                "no time is counted"
            );
        }
        assert_eq!(before.processes, 1);
        assert!(
            before.tasks >= 1 && before.resident_bytes > 100_000,
            "{before:?}"
        );
        assert!(
            before.proportional_bytes <= before.resident_bytes,
            "{before:?}"
        );
    }
}
