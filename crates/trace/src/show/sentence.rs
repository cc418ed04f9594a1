//! What it blocked on, in one sentence: the first thing a reader wants, and what a collection of
//! traces is compared by.
//!
//! Three kinds of sleep are told apart. What a program *asked for* (events, clients, a child, a
//! time, a signal) is no blocking. *Others*, its own threads or programs at the other end of a pipe
//! or socket, kept it waiting. All else is *the system*: a disk, a lock of the kernel, memory; it
//! stands first, since a pool of idle threads easily sleeps longer. Sleeps whose kernel stack could
//! not be seen are said to be just that.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use headway_debox::{Label, Rung};

use crate::model::{SleepAt, Trace};
use crate::units::{percent, plural, time_words};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    AskedFor,
    Others,
    System,
    Unseen,
}

fn kind(label: Label) -> Kind {
    match label {
        Label::EventWait | Label::SocketAccept | Label::Child | Label::Timer | Label::Signal => {
            Kind::AskedFor
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
        | Label::Stopped => Kind::Others,
        Label::Unknown => Kind::Unseen,
        _ => Kind::System,
    }
}

/// Sleeps on one label: how many, how long, the longest, and the time by call.
#[derive(Default)]
struct Sum<'t> {
    count: u64,
    total_ns: u64,
    max_ns: u64,
    calls: BTreeMap<&'t str, u64>,
}

impl<'t> Sum<'t> {
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
    let blind = |rung: &Rung| matches!(rung, Rung::Off { .. });
    if trace.programs.iter().any(|program| blind(&program.rung)) {
        return "What it blocked on is not known: sleeps could not be seen.".to_owned();
    }
    let system = sums(trace, Kind::System);
    let others = sums(trace, Kind::Others);
    let asked_for = total(&sums(trace, Kind::AskedFor));
    let mut parts = Vec::new();
    if !system.is_empty() {
        parts.push(in_the_system(&system));
    }
    if let Some((label, sum)) = others.first() {
        let all = total(&others);
        parts.push(format!(
            "{} on its own threads or other programs, mostly {label} in {}",
            time_words(all.total_ns),
            sum.call()
        ));
    }
    let unseen = total(&sums(trace, Kind::Unseen));
    if unseen.count > 0 {
        let unseen = time_words(unseen.total_ns);
        parts.push(format!("{unseen} on what could not be seen"));
    }
    let start = match (trace.sites.is_empty(), parts.is_empty()) {
        (true, _) => return "It made no call that was seen.".to_owned(),
        (_, true) => "It blocked on nothing".to_owned(),
        (_, false) => format!("It blocked for {}", parts.join("; for ")),
    };
    match asked_for.total_ns {
        0 => format!("{start}."),
        ns if parts.is_empty() => {
            format!("{start}, and slept {} as it asked to.", time_words(ns))
        }
        ns => format!("{start}; {} more were waits it asked for.", time_words(ns)),
    }
}

/// The time, and the one or two labels that explain most of it.
fn in_the_system(sums: &[(Label, Sum<'_>)]) -> String {
    let all = total(sums);
    let named: Vec<String> = sums
        .iter()
        .take(2)
        .filter(|(_, sum)| sum.total_ns * 20 >= all.total_ns)
        .map(|(label, sum)| {
            format!(
                "{} on {label} in {} (longest {})",
                percent(sum.total_ns, all.total_ns),
                sum.call(),
                time_words(sum.max_ns)
            )
        })
        .collect();
    format!(
        "{} in the system, {}: {}",
        time_words(all.total_ns),
        plural(all.count, "sleep", "sleeps"),
        named.join(", ")
    )
}

/// By label, longest in total first.
fn sums(trace: &Trace, wanted: Kind) -> Vec<(Label, Sum<'_>)> {
    let mut sums: BTreeMap<Label, Sum<'_>> = BTreeMap::new();
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

fn total<'t>(sums: &[(Label, Sum<'t>)]) -> Sum<'t> {
    let mut all = Sum::default();
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
    use crate::model::{Site, SleepAt, Trace};

    fn site(call: &str, sleeps: &[(Label, u64, u64)]) -> Site {
        let sleep = |&(label, count, total_ns): &(Label, u64, u64)| SleepAt {
            label,
            count,
            total_ns,
            max_ns: total_ns / count,
            ..SleepAt::default()
        };
        Site {
            call: call.to_owned(),
            sleeps: sleeps.iter().map(sleep).collect(),
            ..Site::default()
        }
    }

    fn of(sites: Vec<Site>) -> String {
        sentence(&Trace {
            sites,
            ..Trace::default()
        })
    }

    #[test]
    fn system_stands_first_when_idle_threads_slept_longer() {
        let text = of(vec![
            site("futex", &[(Label::Futex, 2, 9_000_000)]),
            site("read", &[(Label::PageIo, 4, 800_000)]),
            site("openat", &[(Label::InodeLock, 1, 200_000)]),
            site("epoll_wait", &[(Label::EventWait, 3, 5_000_000)]),
        ]);
        assert_eq!(
            text,
            "It blocked for 1.00 ms in the system, 5 sleeps: 80.0 % on page-io in read (longest 200 µs), 20.0 % on \
             inode-lock in openat (longest 200 µs); for 9.00 ms on its own threads or other programs, mostly futex in \
             futex; 5.00 ms more were waits it asked for."
        );
    }

    #[test]
    fn only_what_is_known_is_said_when_nothing_blocked_in_the_system() {
        assert_eq!(of(vec![site("read", &[])]), "It blocked on nothing.");
        assert_eq!(
            of(vec![site("wait4", &[(Label::Child, 1, 3_000_000)])]),
            "It blocked on nothing, and slept 3.00 ms as it asked to."
        );
        assert_eq!(
            of(vec![site("read", &[(Label::Unknown, 1, 2_000)])]),
            "It blocked for 2.00 µs on what could not be seen."
        );
        assert_eq!(of(vec![]), "It made no call that was seen.");
    }

    #[test]
    fn ignorance_is_admitted_when_sleeps_were_not_seen() {
        let mut trace = Trace::default();
        trace.programs.push(crate::model::Program {
            pid: 1,
            ppid: 0,
            image: 0,
            exe: String::new(),
            command: Vec::new(),
            started_ns: 0,
            ended_ns: None,
            rung: headway_debox::Rung::Off { why: "no".into() },
            sees_faults: false,
            calls: 0,
        });
        assert!(sentence(&trace).contains("not known"));
    }
}
