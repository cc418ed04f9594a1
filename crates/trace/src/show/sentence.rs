//! The sentence that says what a program blocked on: the first line that a reader wants.
//!
//! There are three kinds of sleep. *Voluntary* waits (for events, clients, a child process, a
//! timer or a signal) are not blocking. *Others* are sleeps on other threads or processes, at the
//! other end of a pipe, a socket or a lock. All else is *kernel*: a disk, a lock of the kernel or
//! memory. It comes first, because a pool of idle threads easily sleeps longer. Sleeps whose kernel
//! stack could not be read have unknown reasons.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use headway_debox::{Label, TraceLevel};

use crate::model::{SleepAt, Trace};
use crate::units::{counted, percent, time_unpadded};

#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitKind {
    Voluntary,
    Others,
    Kernel,
    Unseen,
}

fn kind(label: Label) -> WaitKind {
    match label {
        Label::EventWait | Label::SocketAccept | Label::Child | Label::Timer | Label::Signal => {
            WaitKind::Voluntary
        }
        Label::Futex
        | Label::Pipe
        | Label::SocketSend
        | Label::SocketRecv
        | Label::SocketConnect
        | Label::FileLock
        | Label::Ipc
        | Label::Terminal
        | Label::EventRead
        | Label::Exit
        | Label::Stopped => WaitKind::Others,
        Label::Unknown => WaitKind::Unseen,
        _ => WaitKind::Kernel,
    }
}

/// A resource of [`WaitKind::Others`] in words.
fn resource(label: Label) -> &'static str {
    match label {
        Label::Futex => "a futex",
        Label::Pipe => "a pipe",
        Label::SocketSend | Label::SocketRecv | Label::SocketConnect => "a socket",
        Label::FileLock => "a file lock",
        Label::Ipc => "an IPC object",
        Label::Terminal => "a terminal",
        Label::EventRead => "an event descriptor",
        Label::Exit => "the end of a thread",
        Label::Stopped => "a stop signal",
        other => other.name(),
    }
}

/// Sleeps on one label: how many, how long, the longest, and the time by call.
#[derive(Default)]
struct LabelSum<'t> {
    count: u64,
    total_ns: u64,
    max_ns: u64,
    calls: BTreeMap<&'t str, u64>,
}

impl<'t> LabelSum<'t> {
    fn add(&mut self, call: &'t str, sleep: &SleepAt) {
        self.count += sleep.count;
        self.total_ns += sleep.total_ns;
        self.max_ns = self.max_ns.max(sleep.max_ns);
        *self.calls.entry(call).or_default() += sleep.total_ns;
    }

    /// The call with most of the time.
    fn call(&self) -> &'t str {
        let most = self.calls.iter().max_by_key(|(_, ns)| **ns);
        most.map_or("", |(call, _)| call)
    }
}

/// The sentence, made of the numbers alone.
pub fn sentence(trace: &Trace) -> String {
    let blind = |level: &TraceLevel| matches!(level, TraceLevel::Off { .. });
    if trace.programs.iter().any(|program| blind(&program.level)) {
        return "Unknown whether it blocked: sleeps could not be observed.".to_owned();
    }
    let kernel = sums(trace, WaitKind::Kernel);
    let others = sums(trace, WaitKind::Others);
    let voluntary = total(&sums(trace, WaitKind::Voluntary));
    let mut parts = Vec::new();
    if !kernel.is_empty() {
        parts.push(in_the_kernel(&kernel));
    }
    if let Some((label, sum)) = others.first() {
        let all = total(&others);
        parts.push(format!(
            "{} on other threads or processes, mostly in {}() on {}",
            time_unpadded(all.total_ns),
            sum.call(),
            resource(*label)
        ));
    }
    let unseen = total(&sums(trace, WaitKind::Unseen));
    if unseen.count > 0 {
        let unseen = time_unpadded(unseen.total_ns);
        parts.push(format!("{unseen} for unknown reasons"));
    }
    let start = match (trace.sites.is_empty(), parts.is_empty()) {
        (true, _) => return "No kernel call was recorded.".to_owned(),
        (_, true) => "It did not block".to_owned(),
        (_, false) => format!("Blocked {}", parts.join("; blocked ")),
    };
    match voluntary.total_ns {
        0 => format!("{start}."),
        ns if parts.is_empty() => {
            format!("{start}; it waited {} voluntarily.", time_unpadded(ns))
        }
        ns => format!(
            "{start}; another {} were voluntary waits.",
            time_unpadded(ns)
        ),
    }
}

/// The time, and the one or two labels that explain most of it.
fn in_the_kernel(sums: &[(Label, LabelSum<'_>)]) -> String {
    let all = total(sums);
    let named: Vec<String> = sums
        .iter()
        .take(2)
        .filter(|(_, sum)| sum.total_ns * 20 >= all.total_ns)
        .map(|(label, sum)| {
            format!(
                "{} on {label} in {}() (longest {})",
                percent(sum.total_ns, all.total_ns),
                sum.call(),
                time_unpadded(sum.max_ns)
            )
        })
        .collect();
    format!(
        "{} in the kernel ({}): {}",
        time_unpadded(all.total_ns),
        counted(all.count, "sleep", "sleeps"),
        named.join(", ")
    )
}

/// By label, longest in total first.
fn sums(trace: &Trace, wanted: WaitKind) -> Vec<(Label, LabelSum<'_>)> {
    let mut sums: BTreeMap<Label, LabelSum<'_>> = BTreeMap::new();
    for site in &trace.sites {
        for sleep in site
            .sleeps
            .iter()
            .filter(|sleep| kind(sleep.label) == wanted)
        {
            sums.entry(sleep.label).or_default().add(&site.call, sleep);
        }
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, sum)| Reverse(sum.total_ns));
    sums
}

fn total<'t>(sums: &[(Label, LabelSum<'t>)]) -> LabelSum<'t> {
    let mut all = LabelSum::default();
    for (_, sum) in sums {
        all.count += sum.count;
        all.total_ns += sum.total_ns;
        all.max_ns = all.max_ns.max(sum.max_ns);
    }
    all
}

#[cfg(test)]
mod tests {
    use headway_debox::Label;

    use super::sentence;
    use crate::model::{LocationTotals, SleepAt, Trace};

    fn site(call: &str, sleeps: &[(Label, u64, u64)]) -> LocationTotals {
        let sleep = |&(label, count, total_ns): &(Label, u64, u64)| SleepAt {
            label,
            count,
            total_ns,
            max_ns: total_ns / count,
            ..SleepAt::default()
        };
        LocationTotals {
            call: call.to_owned(),
            sleeps: sleeps.iter().map(sleep).collect(),
            ..LocationTotals::default()
        }
    }

    fn of(sites: Vec<LocationTotals>) -> String {
        sentence(&Trace {
            sites,
            ..Trace::default()
        })
    }

    #[test]
    fn kernel_waits_come_first_when_idle_threads_slept_longer() {
        let text = of(vec![
            site("futex", &[(Label::Futex, 2, 9_000_000)]),
            site("read", &[(Label::PageIo, 4, 800_000)]),
            site("openat", &[(Label::InodeLock, 1, 200_000)]),
            site("epoll_wait", &[(Label::EventWait, 3, 5_000_000)]),
        ]);
        assert_eq!(
            text,
            "Blocked 1.00 ms in the kernel (5 sleeps): 80.0 % on page-io in read() (longest 200 µs), 20.0 % on \
             inode-lock in openat() (longest 200 µs); blocked 9.00 ms on other threads or processes, mostly in \
             futex() on a futex; another 5.00 ms were voluntary waits."
        );
    }

    #[test]
    fn sentence_has_only_known_waits_when_nothing_blocked_in_the_kernel() {
        assert_eq!(of(vec![site("read", &[])]), "It did not block.");
        assert_eq!(
            of(vec![site("wait4", &[(Label::Child, 1, 3_000_000)])]),
            "It did not block; it waited 3.00 ms voluntarily."
        );
        assert_eq!(
            of(vec![site("read", &[(Label::Unknown, 1, 2_000)])]),
            "Blocked 2.00 µs for unknown reasons."
        );
        assert_eq!(of(vec![]), "No kernel call was recorded.");
    }

    #[test]
    fn sentence_names_unknown_waits_when_sleeps_were_not_seen() {
        let mut trace = Trace::default();
        trace.programs.push(crate::model::Program {
            pid: 1,
            ppid: 0,
            image: 0,
            exe: String::new(),
            command: Vec::new(),
            started_ns: 0,
            ended_ns: None,
            level: headway_debox::TraceLevel::Off { why: "no".into() },
            sees_faults: false,
            calls: 0,
        });
        assert!(sentence(&trace).starts_with("Unknown"));
    }
}
