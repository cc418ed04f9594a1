//! The verdict on the client: do the figures describe the server, or the limits of the client?
//!
//! Pure: evidence in, a verdict and its reasons out; each reason says what to do. *Suspect*: the
//! client was near one of its limits, so the figures may be partly its own. *Invalid*: they are, or
//! the requests were not those described. Each threshold is a constant below with its reason. Slow
//! responses, errors and timeouts of the server are results and never reasons for doubt.

use headway_latency::analysis::UNTIMED_SHARE_MAX;
use headway_latency::format::{count, percent, time_us};
use headway_latency::run::description::Verdict;

/// p99 of actual minus intended start, microseconds. An idle core stays well below it; above it the
/// spacing of requests visibly differs from the schedule.
pub(crate) const LAG_SUSPECT_US: f64 = 1_000.0;
/// Ten milliseconds is a time slice: the client's loop did not run while requests were due.
pub(crate) const LAG_INVALID_US: f64 = 10_000.0;
/// Share of the requests that started late for any reason. Latency includes the delay, so this
/// alone never makes a run invalid.
pub(crate) const LATE_SUSPECT: f64 = 0.01;
/// Share of the time that the client's loop was busy. Near 1 a closed loop measures the client.
pub(crate) const BUSY_SUSPECT: f64 = 0.90;
/// The client's loop had no idle time left.
pub(crate) const BUSY_INVALID: f64 = 0.98;
/// Share of the run that the client was ready to run and waited for a CPU.
pub(crate) const RUN_QUEUE_SUSPECT: f64 = 0.01;
/// A tenth of the run spent waiting for a CPU.
pub(crate) const RUN_QUEUE_INVALID: f64 = 0.10;
/// Share of the CPU time that the hypervisor took.
pub(crate) const STEAL_SUSPECT: f64 = 0.02;
/// A tenth of the CPU time taken by the hypervisor.
pub(crate) const STEAL_INVALID: f64 = 0.10;
/// Share of requests for which no local port or descriptor was free; a single one is suspect.
pub(crate) const SHORTAGE_INVALID: f64 = 0.001;
/// Share of responses with status 404. A site has dead links; a file set that matches its server
/// has none.
pub(crate) const NOT_FOUND_SUSPECT: f64 = 0.01;
/// Most files are missing: another file set, or another document root.
pub(crate) const NOT_FOUND_INVALID: f64 = 0.50;

/// What to do when the client did not get the CPU time it needed.
const PIN_REMEDY: &str = "pin the client to a CPU of its own (--cpu 1)";

/// What is known when a run has ended. `None` means that it could not be measured, which never
/// counts against a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evidence {
    /// Whether requests start by a schedule; only then do lag and late starts matter.
    pub open_loop: bool,
    /// Length of the run.
    pub elapsed_s: f64,
    /// Requests that ended, warm-up included.
    pub requests: u64,
    /// Requests of the measured part that ended.
    pub responses: u64,
    /// Requests of the measured part that ended with a complete response of the expected kind.
    pub good: u64,
    /// Requests of the measured part that were answered 404.
    pub not_found: u64,
    /// Requests of the measured part that timed out.
    pub timed_out: u64,
    /// Whether the requests were for a file set.
    pub fileset: bool,
    /// Requests of the measured part that started late.
    pub late_starts: u64,
    /// Requests that waited because all connections of the open loop were in use.
    pub connections_exhausted: u64,
    /// p99 of actual minus intended start.
    pub lag_p99_us: Option<f64>,
    /// Share of the time that the client's loop did not wait for events.
    pub busy_share: Option<f64>,
    /// Time that the client's thread was ready to run and waited for a CPU.
    pub run_queue_s: Option<f64>,
    /// Share of the CPU time that the hypervisor took.
    pub steal_share: Option<f64>,
    /// Requests for which no local port was free.
    pub no_port: u64,
    /// Requests for which no descriptor was free.
    pub no_descriptor: u64,
    /// Requests of the measured part, in whatever way they ended.
    pub started: u64,
    /// Those of them that have no latency, and are in no percentile.
    pub untimed: u64,
    /// Those of them that found the client's queue full.
    pub unqueued: u64,
    /// Requests that are not in the figures because the disk was too slow.
    pub rows_dropped: u64,
}

/// The verdict, and one sentence per reason, the most serious first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judgement {
    /// Valid, suspect or invalid.
    pub verdict: Verdict,
    /// Empty when valid.
    pub reasons: Vec<String>,
}

/// Decides whether the figures of a run are the server's.
pub(crate) fn judge(evidence: &Evidence) -> Judgement {
    let mut findings = VerdictFindings::default();
    work(evidence, &mut findings);
    latencies(evidence, &mut findings);
    schedule(evidence, &mut findings);
    cpu(evidence, &mut findings);
    shortages(evidence, &mut findings);
    findings.conclude()
}

#[derive(Default)]
struct VerdictFindings {
    invalid: Vec<String>,
    suspect: Vec<String>,
}

impl VerdictFindings {
    /// Adds a reason if a value has reached one of its two thresholds.
    fn threshold(
        &mut self,
        value: f64,
        suspect: f64,
        invalid: f64,
        reason: impl FnOnce() -> String,
    ) {
        if value >= invalid {
            self.invalid.push(reason());
        } else if value >= suspect {
            self.suspect.push(reason());
        }
    }

    fn conclude(self) -> Judgement {
        let verdict = match (self.invalid.is_empty(), self.suspect.is_empty()) {
            (false, _) => Verdict::Invalid,
            (true, false) => Verdict::Suspect,
            (true, true) => Verdict::Valid,
        };
        let reasons = self.invalid.into_iter().chain(self.suspect).collect();
        Judgement { verdict, reasons }
    }
}

/// Were the requests answered as expected?
fn work(of: &Evidence, to: &mut VerdictFindings) {
    let share = share(of.not_found, of.responses);
    if of.requests == 0 {
        to.invalid.push("no request ended".to_owned());
    } else if of.responses == 0 {
        to.invalid
            .push("no request ended in the measured time".to_owned());
    } else if of.good == 0 && share < NOT_FOUND_INVALID {
        // If most responses are 404, the reason below says more.
        let none = format!(
            "none of {} requests got a good response",
            count(of.responses)
        );
        // An overloaded server may answer no request in time, and that is a result.
        let is_overrun = of.open_loop && of.timed_out == of.responses;
        match is_overrun {
            true => to.suspect.push(none),
            false => to.invalid.push(none),
        }
    }
    let what = match of.fileset {
        true => "the file set does not match the server; serve the directory of --fileset",
        false => "the paths do not match the server",
    };
    let suspect = if of.fileset {
        f64::MIN_POSITIVE
    } else {
        NOT_FOUND_SUSPECT
    };
    to.threshold(share, suspect, NOT_FOUND_INVALID, || {
        format!(
            "{} of the responses were 404 Not Found: {what}",
            percent(share)
        )
    });
    if of.rows_dropped > 0 {
        to.invalid.push(format!(
            "{} requests are missing from the figures, because the disk of the run directory was too slow; name another directory with -o, or leave -o out",
            count(of.rows_dropped)
        ));
    }
}

/// Does every request that was due have a latency?
fn latencies(of: &Evidence, to: &mut VerdictFindings) {
    let share = share(of.untimed, of.started);
    if of.unqueued > 0 {
        to.invalid.push(format!(
            "{} requests found all connections busy and the client's queue full, so their latency is \
             not known and there are no percentiles; raise --connections or set a --timeout",
            count(of.unqueued)
        ));
    } else {
        to.threshold(share, f64::MIN_POSITIVE, UNTIMED_SHARE_MAX, || {
            let effect = match share >= UNTIMED_SHARE_MAX {
                true => "so there are no percentiles",
                false => "and are in no percentile",
            };
            format!(
                "{} requests have no latency, because the run ended or the client could not send \
                 them, {effect}; set a --timeout and let the run end by itself",
                count(of.untimed)
            )
        });
    }
}

/// Did requests start at their intended times?
fn schedule(of: &Evidence, to: &mut VerdictFindings) {
    if !of.open_loop {
        return;
    }
    if let Some(lag) = of.lag_p99_us {
        to.threshold(lag, LAG_SUSPECT_US, LAG_INVALID_US, || {
            format!(
                "the p99 of actual minus intended start is {}; {PIN_REMEDY}, or lower the rate",
                time_us(lag)
            )
        });
    }
    let late = share(of.late_starts, of.started);
    to.threshold(late, LATE_SUSPECT, f64::INFINITY, || {
        format!(
            "{} of the requests started late; {PIN_REMEDY}, or lower the rate",
            percent(late)
        )
    });
    let held = share(of.connections_exhausted, of.requests);
    to.threshold(held, f64::MIN_POSITIVE, f64::INFINITY, || {
        format!(
            "{} requests waited for a free connection; raise --connections",
            count(of.connections_exhausted)
        )
    });
}

/// Did the client have a CPU for itself, and idle time left?
fn cpu(of: &Evidence, to: &mut VerdictFindings) {
    if let Some(busy) = of.busy_share {
        // A busy open loop may still start every request in time; its lag says whether it does.
        let invalid = if of.open_loop {
            f64::INFINITY
        } else {
            BUSY_INVALID
        };
        to.threshold(busy, BUSY_SUSPECT, invalid, || {
            format!(
                "the client was busy {} of the time, so the server may be faster than this; {PIN_REMEDY}, or give it more threads (--threads)",
                percent(busy)
            )
        });
    }
    if let Some(waited) = of.run_queue_s.filter(|_| of.elapsed_s > 0.0) {
        let share = waited / of.elapsed_s;
        to.threshold(share, RUN_QUEUE_SUSPECT, RUN_QUEUE_INVALID, || {
            format!(
                "the client waited for a CPU {} of the time, because others run on it too; {PIN_REMEDY}",
                percent(share)
            )
        });
    }
    if let Some(steal) = of.steal_share {
        to.threshold(steal, STEAL_SUSPECT, STEAL_INVALID, || {
            format!(
                "the hypervisor took {} of the CPU time; measure again, or on a machine of your own",
                percent(steal)
            )
        });
    }
}

/// Did the client run out of ports or descriptors?
fn shortages(of: &Evidence, to: &mut VerdictFindings) {
    let ports = share(of.no_port, of.requests);
    to.threshold(ports, f64::MIN_POSITIVE, SHORTAGE_INVALID, || {
        format!(
            "{} requests found no free local port; name more addresses with --source, widen \
             net.ipv4.ip_local_port_range or raise --requests-per-connection",
            count(of.no_port)
        )
    });
    let descriptors = share(of.no_descriptor, of.requests);
    to.threshold(descriptors, f64::MIN_POSITIVE, SHORTAGE_INVALID, || {
        format!(
            "{} requests found no free descriptor (RLIMIT_NOFILE); raise it with ulimit -Hn",
            count(of.no_descriptor)
        )
    });
}

fn share(part: u64, all: u64) -> f64 {
    if all == 0 {
        0.0
    } else {
        part as f64 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Evidence {
        Evidence {
            open_loop: true,
            elapsed_s: 10.0,
            requests: 10_000,
            good: 10_000,
            responses: 10_000,
            started: 10_000,
            lag_p99_us: Some(80.0),
            busy_share: Some(0.4),
            run_queue_s: Some(0.01),
            steal_share: Some(0.001),
            ..Evidence::default()
        }
    }

    fn verdict(change: impl FnOnce(&mut Evidence)) -> (Verdict, String) {
        let mut evidence = good();
        change(&mut evidence);
        let judgement = judge(&evidence);
        (judgement.verdict, judgement.reasons.join("; "))
    }

    #[test]
    fn run_is_valid_when_no_measure_is_near_a_threshold() {
        assert_eq!(verdict(|_| ()), (Verdict::Valid, String::new()));
    }

    #[test]
    fn run_is_valid_when_the_client_could_not_measure_itself() {
        let unknown = |evidence: &mut Evidence| {
            evidence.lag_p99_us = None;
            evidence.busy_share = None;
            evidence.run_queue_s = None;
            evidence.steal_share = None;
        };
        assert_eq!(verdict(unknown).0, Verdict::Valid);
    }

    #[test]
    fn run_is_valid_when_only_the_server_was_slow() {
        assert_eq!(verdict(|evidence| evidence.good = 3).0, Verdict::Valid);
    }

    #[test]
    fn requests_without_a_latency_are_suspect_and_invalid_from_one_in_a_thousand() {
        let of = |untimed, unqueued| {
            verdict(|evidence| {
                (evidence.started, evidence.untimed) = (10_000, untimed);
                evidence.unqueued = unqueued;
            })
        };
        assert_eq!(of(0, 0).0, Verdict::Valid);
        assert_eq!(of(9, 0).0, Verdict::Suspect);
        let (found, reasons) = of(10, 0);
        assert_eq!(found, Verdict::Invalid);
        assert!(reasons.contains("no percentiles"), "{reasons}");
    }

    #[test]
    fn single_request_that_found_the_queue_full_makes_a_run_invalid() {
        let (found, reasons) = verdict(|evidence| (evidence.untimed, evidence.unqueued) = (1, 1));
        assert_eq!(found, Verdict::Invalid);
        assert!(reasons.contains("queue full"), "{reasons}");
    }

    /// A change of the good evidence that a verdict has to notice.
    type Change = fn(&mut Evidence);

    #[test]
    fn each_measure_is_suspect_then_invalid_when_it_grows() {
        let cases: &[(Change, Change, &str)] = &[
            (
                |e| e.lag_p99_us = Some(1e3),
                |e| e.lag_p99_us = Some(1e4),
                "intended start",
            ),
            (
                |e| e.run_queue_s = Some(0.1),
                |e| e.run_queue_s = Some(1.0),
                "waited for a CPU",
            ),
            (
                |e| e.steal_share = Some(0.02),
                |e| e.steal_share = Some(0.1),
                "hypervisor",
            ),
            (|e| e.no_port = 1, |e| e.no_port = 10, "ip_local_port_range"),
            (
                |e| e.no_descriptor = 1,
                |e| e.no_descriptor = 10,
                "RLIMIT_NOFILE",
            ),
            (|e| e.not_found = 100, |e| e.not_found = 5000, "404"),
        ];
        for (suspect, invalid, part) in cases {
            for (change, expected) in [(suspect, Verdict::Suspect), (invalid, Verdict::Invalid)] {
                let (found, reasons) = verdict(change);
                assert_eq!(found, expected, "{part}: {reasons}");
                assert!(reasons.contains(part), "{reasons}");
            }
        }
    }

    #[test]
    fn busy_loop_is_invalid_when_it_is_closed_and_only_suspect_when_open() {
        let (found, reasons) = verdict(|evidence| evidence.busy_share = Some(0.99));
        assert_eq!(found, Verdict::Suspect, "{reasons}");
        let closed = verdict(|evidence| {
            evidence.open_loop = false;
            evidence.busy_share = Some(0.99);
        });
        assert_eq!(closed.0, Verdict::Invalid, "{}", closed.1);
    }

    #[test]
    fn late_starts_are_suspect_at_most_when_connections_were_short() {
        let (found, reasons) = verdict(|evidence| {
            evidence.late_starts = 10_000;
            evidence.connections_exhausted = 10_000;
        });
        assert_eq!(found, Verdict::Suspect);
        assert!(
            reasons.contains("started late") && reasons.contains("--connections"),
            "{reasons}"
        );
        assert_eq!(
            verdict(|evidence| evidence.late_starts = 99).0,
            Verdict::Valid
        );
    }

    #[test]
    fn late_starts_are_a_share_of_the_measured_part_when_there_was_a_warm_up() {
        let (found, reasons) = verdict(|evidence| {
            evidence.requests = 15_000;
            evidence.late_starts = 2_000;
        });
        assert_eq!(found, Verdict::Suspect);
        assert_eq!(
            reasons,
            "20 % of the requests started late; pin the client to a CPU of its own (--cpu 1), or lower the rate"
        );
    }

    #[test]
    fn late_starts_are_a_share_of_all_when_many_got_no_response() {
        let (_, reasons) = verdict(|evidence| {
            evidence.responses = 400;
            evidence.started = 10_000;
            evidence.late_starts = 1_200;
        });
        assert!(
            reasons.contains("12 % of the requests started late"),
            "{reasons}"
        );
    }

    #[test]
    fn lag_does_not_matter_when_the_loop_is_closed() {
        let closed = verdict(|evidence| {
            evidence.open_loop = false;
            evidence.lag_p99_us = Some(1e6);
            evidence.late_starts = 10_000;
        });
        assert_eq!(closed.0, Verdict::Valid, "{}", closed.1);
    }

    #[test]
    fn file_set_is_named_when_a_single_response_is_404() {
        let (found, reasons) = verdict(|evidence| {
            evidence.fileset = true;
            evidence.not_found = 1;
        });
        assert_eq!(found, Verdict::Suspect);
        assert!(
            reasons.contains("the file set does not match the server"),
            "{reasons}"
        );
    }

    #[test]
    fn run_is_invalid_when_rows_are_missing_or_no_response_arrived() {
        assert_eq!(
            verdict(|evidence| evidence.rows_dropped = 1).0,
            Verdict::Invalid
        );
        assert_eq!(verdict(|evidence| evidence.good = 0).0, Verdict::Invalid);
        let nothing = |evidence: &mut Evidence| {
            evidence.requests = 0;
            evidence.responses = 0;
            evidence.good = 0;
        };
        assert_eq!(
            verdict(nothing),
            (Verdict::Invalid, "no request ended".to_owned())
        );
    }

    #[test]
    fn run_is_invalid_without_a_good_response_and_with_a_404() {
        let (found, reasons) = verdict(|evidence| {
            evidence.good = 0;
            evidence.not_found = 1;
        });
        assert_eq!(found, Verdict::Invalid, "{reasons}");
        assert_eq!(reasons, "none of 10,000 requests got a good response");
    }

    #[test]
    fn run_is_suspect_when_all_requests_of_an_open_loop_timed_out() {
        let overrun = |evidence: &mut Evidence| {
            evidence.open_loop = true;
            evidence.good = 0;
            evidence.timed_out = evidence.responses;
        };
        let (found, reasons) = verdict(overrun);
        assert_eq!(found, Verdict::Suspect, "{reasons}");
        assert_eq!(reasons, "none of 10,000 requests got a good response");
        let closed = |evidence: &mut Evidence| {
            overrun(evidence);
            evidence.open_loop = false;
        };
        assert_eq!(verdict(closed).0, Verdict::Invalid);
        let one_refused = |evidence: &mut Evidence| {
            overrun(evidence);
            evidence.timed_out -= 1;
        };
        assert_eq!(verdict(one_refused).0, Verdict::Invalid);
    }

    #[test]
    fn run_is_invalid_when_requests_ended_only_in_the_warm_up() {
        let (found, reasons) = verdict(|evidence| {
            evidence.responses = 0;
            evidence.good = 0;
        });
        assert_eq!(found, Verdict::Invalid);
        assert_eq!(reasons, "no request ended in the measured time");
    }

    #[test]
    fn worst_reason_comes_first_when_there_are_several() {
        let (found, reasons) = verdict(|evidence| {
            evidence.lag_p99_us = Some(2e3);
            evidence.no_port = 500;
        });
        assert_eq!(found, Verdict::Invalid);
        assert!(
            reasons.starts_with("500 requests found no free local port"),
            "{reasons}"
        );
    }
}
