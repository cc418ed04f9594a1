//! Figures of the server itself, beside those of its requests: in which calls its threads slept, how long a turn of its
//! event loops took, how many of its tasks could run, and which calls failed.

use std::collections::HashMap;

use headway_debox::Label;
use headway_debox_bpf::{FailedCall, OffCpu, RunQueueSample};
use serde::Serialize;

use crate::names::FileNames;

/// Rows of each table.
const ROWS_MAX: usize = 40;

/// How often threads slept in a call for a reason; waits for events and clients are left out (dissertation,
/// Table 2.4).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SleepCount {
    /// What they waited for.
    pub label: Label,
    /// The call.
    pub call: String,
    /// How often.
    pub times: u64,
    /// How long in all.
    pub total_ns: u64,
}

/// Sums of sleeps by call and label.
#[derive(Debug, Default)]
pub(crate) struct Sleeps(HashMap<(Option<u32>, Label), (u64, u64)>);

impl Sleeps {
    pub fn add(&mut self, off: &OffCpu) {
        let Some(woken_ns) = off.woken_ns.filter(|_| off.start_ns != 0) else {
            return;
        };
        if matches!(
            off.label,
            Label::EventWait | Label::SocketAccept | Label::Signal
        ) {
            return;
        }
        let (times, total_ns) = self.0.entry((off.call, off.label)).or_default();
        *times += 1;
        *total_ns += woken_ns.saturating_sub(off.start_ns);
    }

    /// The most frequent first.
    pub fn rows(&self) -> Vec<SleepCount> {
        let row = |(&(call, label), &(times, total_ns)): (&(Option<u32>, Label), &(u64, u64))| {
            SleepCount {
                label,
                call: call
                    .map_or("a page fault".into(), headway_debox::calls::display_name)
                    .into_owned(),
                times,
                total_ns,
            }
        };
        let mut rows: Vec<SleepCount> = self.0.iter().map(row).collect();
        rows.sort_by(|a, b| (b.times, &a.call).cmp(&(a.times, &b.call)));
        rows.truncate(ROWS_MAX);
        rows
    }
}

/// Turns of event loops: the time between two waits for events. What becomes ready meanwhile waits up to this time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LoopTurns {
    /// How many.
    pub turns: u64,
    /// The median in microseconds; each figure is an upper bound, less than twice as large.
    pub p50_us: f64,
    /// The 95th percentile.
    pub p95_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl LoopTurns {
    /// From counts by powers of two of nanoseconds; `None` without a turn.
    pub fn of(counts: &[u64]) -> Option<LoopTurns> {
        let turns: u64 = counts.iter().sum();
        let at = |quantile: f64| {
            let rank = (quantile * turns as f64).ceil() as u64;
            let mut seen = 0;
            let bucket = counts.iter().position(|count| {
                seen += count;
                seen >= rank.max(1)
            });
            bucket.map(|bucket| 2_f64.powi(bucket as i32 + 1) / 1e3)
        };
        Some(LoopTurns {
            turns,
            p50_us: at(0.5)?,
            p95_us: at(0.95)?,
            p99_us: at(0.99)?,
            max_us: at(1.0)?,
        })
    }
}

/// How many tasks of the server could run at once (Ruan and Pai 2006, Figure 2).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunQueueShare {
    /// How often the kernel was asked.
    pub samples: u64,
    /// The most tasks of the server at a time.
    pub tasks_max: u32,
    /// The mean share of them that could run, from 0 to 1.
    pub share_mean: f64,
    /// The median of how many could run.
    pub p50: u32,
    /// The 90th percentile.
    pub p90: u32,
    /// The 99th percentile.
    pub p99: u32,
    /// The most.
    pub max: u32,
}

impl RunQueueShare {
    /// `None` without a sample.
    pub fn of(samples: &[RunQueueSample]) -> Option<RunQueueShare> {
        let mut runnable: Vec<u32> = samples.iter().map(|sample| sample.runnable).collect();
        runnable.sort_unstable();
        let last = runnable.len().checked_sub(1)?;
        let at = |percent: usize| {
            runnable[(runnable.len() * percent).div_ceil(100).clamp(1, last + 1) - 1]
        };
        let share =
            |sample: &RunQueueSample| f64::from(sample.runnable) / f64::from(sample.tasks.max(1));
        Some(RunQueueShare {
            samples: samples.len() as u64,
            tasks_max: samples.iter().map(|sample| sample.tasks).max()?,
            share_mean: samples.iter().map(share).sum::<f64>() / samples.len() as f64,
            p50: at(50),
            p90: at(90),
            p99: at(99),
            max: runnable[last],
        })
    }
}

/// Calls that failed for lack of space, descriptors or memory, or with an error of the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The call.
    pub call: String,
    /// As errno(3) names it.
    pub error: &'static str,
    /// How many.
    pub count: u64,
    /// The file of the first.
    pub file: Option<String>,
}

/// The errors that are counted (`bpf/failures.h`).
const ERRORS: &[(i32, &str)] = &[
    (5, "EIO"),
    (12, "ENOMEM"),
    (23, "ENFILE"),
    (24, "EMFILE"),
    (28, "ENOSPC"),
    (30, "EROFS"),
    (122, "EDQUOT"),
];

impl Failure {
    pub(crate) fn of(failed: &FailedCall, names: &mut FileNames) -> Failure {
        let known = ERRORS.iter().find(|(number, _)| *number == failed.error);
        let file = failed.file.as_ref();
        Failure {
            call: headway_debox::calls::display_name(failed.call).into_owned(),
            error: known.map_or("an error", |(_, name)| *name),
            count: failed.count,
            file: file.and_then(|file| names.shown_file(failed.thread.pid, file)),
        }
    }

    /// Whether the file system has no space for what the call wrote.
    pub(crate) fn is_full_disk(&self) -> bool {
        const WRITE: &[&str] = &[
            "write",
            "open",
            "mkdir",
            "rename",
            "link",
            "fallocate",
            "truncate",
            "sync",
            "sendfile",
            "splice",
            "copy",
        ];
        matches!(self.error, "ENOSPC" | "EDQUOT")
            && WRITE.iter().any(|part| self.call.contains(part))
    }

    /// Whether the process or the system has no descriptor left.
    pub(crate) fn is_without_descriptors(&self) -> bool {
        matches!(self.error, "EMFILE" | "ENFILE")
    }
}

#[cfg(test)]
mod tests {
    use headway_debox::Label;
    use headway_debox_bpf::{FailedCall, OffCpu, RunQueueSample, SleepFile, Thread};

    use super::{Failure, LoopTurns, RunQueueShare, Sleeps};
    use crate::names::FileNames;

    fn off(call: &str, label: Label, woken_ns: Option<u64>) -> OffCpu {
        OffCpu {
            thread: Thread::default(),
            call: headway_debox::calls::number(call),
            start_ns: 100,
            woken_ns,
            end_ns: 500,
            label,
            ..OffCpu::default()
        }
    }

    #[test]
    fn sleeps_are_counted_by_call_and_label() {
        let mut sleeps = Sleeps::default();
        for _ in 0..3 {
            sleeps.add(&off("openat", Label::InodeLock, Some(300)));
        }
        sleeps.add(&off("read", Label::PageIo, Some(200)));
        // Preempted, and idle.
        sleeps.add(&off("read", Label::Unknown, None));
        sleeps.add(&off("epoll_wait", Label::EventWait, Some(300)));
        let rows = sleeps.rows();
        assert_eq!(rows.len(), 2, "{rows:?}");
        assert_eq!(
            (rows[0].call.as_str(), rows[0].times, rows[0].total_ns),
            ("openat", 3, 600)
        );
        assert_eq!((rows[1].label, rows[1].total_ns), (Label::PageIo, 100));
    }

    #[test]
    fn percentiles_of_turns_are_upper_bounds() {
        assert_eq!(LoopTurns::of(&[0; 64]), None);
        let mut counts = [0; 64];
        (counts[10], counts[20]) = (98, 2);
        let turns = LoopTurns::of(&counts).expect("some");
        assert_eq!(
            (turns.turns, turns.p50_us, turns.p95_us),
            (100, 2.048, 2.048)
        );
        assert_eq!((turns.p99_us, turns.max_us), (2097.152, 2097.152));
    }

    #[test]
    fn run_queue_has_percentiles_of_its_samples() {
        assert_eq!(RunQueueShare::of(&[]), None);
        let samples: Vec<RunQueueSample> = (1..=10)
            .map(|runnable| RunQueueSample {
                tasks: 10,
                runnable,
                blocked: 0,
            })
            .collect();
        let share = RunQueueShare::of(&samples).expect("some");
        assert_eq!((share.p50, share.p90, share.p99, share.max), (5, 9, 10, 10));
        assert!((share.share_mean - 0.55).abs() < 1e-9 && share.tasks_max == 10);
    }

    #[test]
    fn failure_is_a_full_disk_only_if_the_call_writes() {
        let failure = |call: &str, error| {
            let failed = FailedCall {
                call: headway_debox::calls::number(call).expect("a call"),
                error,
                count: 2,
                thread: Thread::default(),
                file: Some(SleepFile::Path("/a/access.log".to_owned())),
            };
            Failure::of(&failed, &mut FileNames::default())
        };
        let full = failure("write", 28);
        assert_eq!((full.error, full.count), ("ENOSPC", 2));
        assert_eq!(full.file.as_deref(), Some("/a/access.log"));
        assert!(full.is_full_disk() && !full.is_without_descriptors());
        assert!(failure("openat", 122).is_full_disk());
        assert!(!failure("inotify_add_watch", 28).is_full_disk());
        assert!(failure("accept4", 24).is_without_descriptors());
        assert!(!failure("read", 5).is_full_disk());
    }
}
