//! What to change, by the causes that were found. Each piece of advice says by what evidence.

use headway_base::format::{counted, percent, time_ns};
use serde::Serialize;

use crate::problem::{Kind, Problem};
use crate::remedies::{finding, finding_of_failure, remedy};
use crate::report::{CauseShare, Report};

/// A kind of causes needs this share, at the p99 or of all, before anything is said.
const SHARE_MIN: f64 = 0.1;
/// If 99 % of the requests are answered sooner, nothing is worth a change.
const FAST_US: f64 = 1000.0;

/// What to change, and why that would help.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// What the requests suffered from.
    pub problem: Problem,
    /// What was found, a sentence without its end.
    pub finding: String,
    /// What to change.
    pub text: String,
    /// The figures behind it.
    pub evidence: String,
    /// The share of the p99 that it could shorten.
    pub share_p99: f64,
}

/// Whether the requests were answered so soon that nothing is worth a change.
pub(crate) fn is_fast(report: &Report) -> bool {
    report.latency.p99_us < FAST_US
}

/// What to change, the most important first.
pub fn advice(report: &Report) -> Vec<Advice> {
    let kind = Kind::of(&report.server);
    let mut problems: Vec<(Problem, Vec<&CauseShare>)> = Vec::new();
    for cause in &report.causes {
        let Some(problem) = Problem::of(cause, kind) else {
            continue;
        };
        let problem = match (problem, report.upstreams.first()) {
            (Problem::Elsewhere, Some(upstream)) if upstream.is_exhausted() => Problem::Upstream,
            (problem, _) => problem,
        };
        match problems.iter_mut().find(|(known, _)| *known == problem) {
            Some((_, causes)) => causes.push(cause),
            None => problems.push((problem, vec![cause])),
        }
    }
    let mut all: Vec<Advice> = problems
        .into_iter()
        .filter(|_| !is_fast(report))
        .filter_map(|(problem, causes)| one(report, problem, &causes, kind))
        .collect();
    all.sort_by(|a, b| b.share_p99.total_cmp(&a.share_p99));
    let overflows = report.listen_overflows.filter(|overflows| *overflows > 0);
    if let Some(overflows) = overflows {
        let connections = counted(overflows, "connection was", "connections were");
        all.push(Advice {
            problem: Problem::Backlog,
            finding: finding(
                Problem::Backlog,
                &report.server,
                &CauseShare::default(),
                None,
            ),
            text: remedy(Problem::Backlog, kind).to_owned(),
            evidence: format!("{connections} not accepted because the accept queue was full"),
            share_p99: 0.0,
        });
    }
    failing(report, kind, &mut all);
    all
}

/// Failed calls: first those that the server cannot do without, last those that it may expect.
fn failing(report: &Report, kind: Kind, all: &mut Vec<Advice>) {
    let mut before = Vec::new();
    for failure in &report.failures {
        let problem = match failure {
            failure if failure.is_full_disk() => Problem::FullDisk,
            failure if failure.is_without_descriptors() => Problem::Descriptors,
            _ => Problem::Failing,
        };
        let list = match problem {
            Problem::Failing => &mut *all,
            _ => &mut before,
        };
        if list.iter().any(|known| known.problem == problem) {
            continue;
        }
        list.push(Advice {
            problem,
            finding: finding_of_failure(problem, &report.server, failure),
            text: remedy(problem, kind).to_owned(),
            evidence: counted(failure.count, "call failed", "calls failed"),
            share_p99: 0.0,
        });
    }
    all.splice(0..0, before);
}

fn one(report: &Report, problem: Problem, causes: &[&CauseShare], kind: Kind) -> Option<Advice> {
    let share_p99: f64 = causes.iter().map(|cause| cause.share.p99).sum();
    let share_all: f64 = causes.iter().map(|cause| cause.share.all).sum();
    if share_p99.max(share_all) < SHARE_MIN {
        return None;
    }
    let total_ns: u64 = causes.iter().map(|cause| cause.total_ns).sum();
    let requests: u64 = causes.iter().map(|cause| cause.requests).max().unwrap_or(0);
    let round = |share: f64| percent((share * 100.0).round() / 100.0);
    Some(Advice {
        problem,
        finding: finding(problem, &report.server, causes[0], report.upstreams.first()),
        text: remedy(problem, kind).to_owned(),
        evidence: format!(
            "{} of the time at the p99, {} of all; {} in {}",
            round(share_p99),
            round(share_all),
            time_ns(total_ns as f64),
            counted(requests, "request", "requests")
        ),
        share_p99,
    })
}

#[cfg(test)]
mod tests {
    use headway_debox::Label;
    use headway_debox_bpf::Within;

    use super::{FAST_US, advice};
    use crate::figures::Failure;
    use crate::parts::Phase;
    use crate::problem::{Kind, Problem};
    use crate::report::{CauseShare, FileShare, Latency, Report, Shares};
    use crate::upstreams::Upstream;

    fn cause(phase: Phase, doing: &'static str, call: &str, label: Label) -> CauseShare {
        CauseShare {
            phase,
            doing,
            call: Some(call.to_owned()),
            label: Some(label),
            share: Shares {
                p99: 0.5,
                ..Shares::default()
            },
            ..CauseShare::default()
        }
    }

    fn slow() -> Latency {
        Latency {
            p99_us: FAST_US,
            ..Latency::default()
        }
    }

    fn first(server: &str, cause: CauseShare) -> (Problem, String) {
        let report = Report {
            server: server.to_owned(),
            causes: vec![cause],
            latency: slow(),
            ..Report::default()
        };
        let advice = advice(&report);
        (advice[0].problem, advice[0].text.clone())
    }

    #[test]
    fn advice_names_the_setting_of_the_server() {
        let open = cause(Phase::ReceiveQueue, "asleep", "openat", Label::Other);
        let (problem, text) = first("nginx", open);
        assert_eq!(problem, Problem::Lookup);
        assert!(text.contains("open_file_cache"), "{text}");
        let accept = cause(Phase::AcceptQueue, "asleep", "poll", Label::EventWait);
        let (problem, text) = first("apache2", accept);
        assert_eq!(problem, Problem::Accept);
        assert!(text.contains("MaxRequestWorkers"), "{text}");
    }

    #[test]
    fn kinds_of_sleeps_are_told_apart() {
        let problem = |call, label| {
            let cause = cause(Phase::Service, "asleep", call, label);
            Problem::of(&cause, Kind::Other).expect("a problem")
        };
        assert_eq!(problem("sendfile", Label::PageIo), Problem::Read);
        assert_eq!(problem("a page fault", Label::PageIo), Problem::Read);
        assert_eq!(problem("newfstatat", Label::BufferIo), Problem::Lookup);
        assert_eq!(problem("write", Label::Journal), Problem::Write);
        assert_eq!(problem("pwrite64", Label::InodeLock), Problem::Write);
        assert_eq!(problem("flock", Label::FileLock), Problem::FileLock);
        assert_eq!(problem("epoll_wait", Label::EventWait), Problem::Elsewhere);
        assert_eq!(problem("futex", Label::Futex), Problem::Futex);
        let within = |call, label, within| {
            let mut cause = cause(Phase::Service, "asleep", call, label);
            cause.within = Some(within);
            Problem::of(&cause, Kind::Other).expect("a problem")
        };
        let accessed = |call| within(call, Label::Journal, Within::AccessTime);
        assert_eq!(accessed("pread64"), Problem::AccessTime);
        assert_eq!(accessed("getdents64"), Problem::AccessTime);
        let mapped = |call, label| within(call, label, Within::PageFault);
        assert_eq!(mapped("writev", Label::PageIo), Problem::MappedRead);
        assert_eq!(mapped("sendmsg", Label::Fuse), Problem::MappedRead);
        assert_eq!(mapped("write", Label::Journal), Problem::Write);
        assert_eq!(mapped("a page fault", Label::PageIo), Problem::Read);
        let idle = cause(Phase::ReceiveQueue, "asleep", "futex", Label::Futex);
        assert_eq!(Problem::of(&idle, Kind::Other), None);
        let mut log = cause(Phase::Service, "asleep", "write", Label::DirtyThrottle);
        log.files.push(FileShare {
            path: "/var/log/nginx/access.log".to_owned(),
            total_ns: 1,
        });
        assert_eq!(Problem::of(&log, Kind::Nginx), Some(Problem::Log));
    }

    #[test]
    fn small_shares_need_no_advice_but_overflows_do() {
        let mut small = cause(Phase::Service, "running", "", Label::Other);
        small.share.p99 = 0.05;
        let mut report = Report {
            causes: vec![small],
            latency: slow(),
            ..Report::default()
        };
        assert!(advice(&report).is_empty());
        report.causes[0].share.p99 = 0.5;
        assert_eq!(advice(&report).len(), 1);
        report.latency.p99_us = FAST_US - 1.0;
        assert!(advice(&report).is_empty());
        report.listen_overflows = Some(3);
        assert_eq!(advice(&report)[0].problem, Problem::Backlog);
    }

    #[test]
    fn full_disk_is_named_first_even_if_requests_are_fast_and_other_errors_last() {
        let failure = |call: &str, error, file: &str| Failure {
            call: call.to_owned(),
            error,
            count: 3,
            file: (!file.is_empty()).then(|| file.to_owned()),
        };
        let mut report = Report {
            server: "nginx".to_owned(),
            causes: vec![cause(Phase::Service, "running", "", Label::Other)],
            latency: slow(),
            failures: vec![
                failure("read", "EIO", "/srv/a"),
                failure("accept4", "EMFILE", ""),
                failure("write", "ENOSPC", "/var/log/nginx/access.log"),
                failure("write", "ENOSPC", "/tmp/x"),
            ],
            ..Report::default()
        };
        let problems = |report: &Report| {
            let all = advice(report);
            all.iter().map(|one| one.problem).collect::<Vec<Problem>>()
        };
        let full = [Problem::Descriptors, Problem::FullDisk];
        let wanted = [&full[..], &[Problem::Compute, Problem::Failing]].concat();
        assert_eq!(problems(&report), wanted);
        report.latency.p99_us = FAST_US - 1.0;
        assert_eq!(problems(&report)[..2], full);
        let all = advice(&report);
        assert_eq!(
            all[1].finding,
            "nginx cannot write its log: the file system is full (write, /var/log/nginx/access.log: ENOSPC)"
        );
        assert_eq!(all[1].evidence, "3 calls failed");
        assert!(all[0].text.contains("worker_rlimit_nofile"), "{:?}", all[0]);
    }

    #[test]
    fn handler_that_blocks_is_told_from_an_idle_thread() {
        let of = |phase, call, label, kind| Problem::of(&cause(phase, "asleep", call, label), kind);
        let nanosleep = |phase, kind| of(phase, "clock_nanosleep", Label::Timer, kind);
        let blocking = Some(Problem::Blocking);
        assert_eq!(nanosleep(Phase::ReceiveQueue, Kind::Other), blocking);
        assert_eq!(nanosleep(Phase::AcceptQueue, Kind::Python), blocking);
        let busy = nanosleep(Phase::AcceptQueue, Kind::PhpFpm);
        assert_eq!(busy, Some(Problem::Accept));
        let waits = |kind| of(Phase::ReceiveQueue, "epoll_wait", Label::EventWait, kind);
        assert_eq!(waits(Kind::Node), blocking);
        assert_eq!(waits(Kind::Nginx), Some(Problem::Elsewhere));
        assert_eq!(Kind::of("python3.11"), Kind::Python);
        assert_eq!(Kind::of("php-fpm8.2"), Kind::PhpFpm);
    }

    #[test]
    fn upstream_is_named_with_its_queue_when_it_has_no_free_process() {
        let mut report = Report {
            server: "nginx".to_owned(),
            causes: vec![cause(
                Phase::Service,
                "asleep",
                "epoll_wait",
                Label::EventWait,
            )],
            latency: slow(),
            ..Report::default()
        };
        let finding = |report: &Report| advice(report)[0].finding.clone();
        assert_eq!(finding(&report), "nginx waits for an answer from elsewhere");
        report.upstreams.push(Upstream {
            address: "127.0.0.1:9000".to_owned(),
            program: Some("php-fpm8.2".to_owned()),
            looks: 4,
            waiting_looks: 1,
            waiting_max: 1,
            ..Upstream::default()
        });
        assert_eq!(
            finding(&report),
            "nginx waits for its upstream php-fpm8.2 at 127.0.0.1:9000"
        );
        report.upstreams[0].waiting_looks = 4;
        report.upstreams[0].waiting_max = 6;
        let text = finding(&report);
        assert!(
            text.ends_with("up to 6 connections wait in its accept queue"),
            "{text}"
        );
        assert!(advice(&report)[0].text.contains("pm.max_children"));
    }
}
