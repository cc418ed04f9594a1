//! Are these the server's figures, or the client's? The verdict that stands above every result.
//!
//! Pure: evidence in, a conclusion and its reasons out. *Suspect*: something on the client's side
//! was near a bound, so the figures may be partly its own. *Invalid*: they are, or the work was not
//! the one described. Each threshold is a constant below with its reason; docs/src/explanation/honest-latency.md lists
//! the same. What a server does badly (slow, errors, time-outs) is a result and no reason to doubt
//! it.

use crate::words::readable::{count, percent};
use headway_latency::run::description::Verdict;

/// p99 of actual minus intended start. An idle core keeps well below it; beyond, the spacing of
/// requests is visibly not the one that was asked for.
pub const LAG_SUSPECT_US: f64 = 1_000.0;
/// Ten milliseconds is a time slice: the loop stood still while requests should have left.
pub const LAG_INVALID_US: f64 = 10_000.0;
/// Requests that started late for whatever reason, as a share of all. Latency runs from the
/// intended start all the same, so this alone makes no run invalid.
pub const LATE_SUSPECT: f64 = 0.01;
/// Share of the time that the loop was at work. Near 1 a closed loop measures the client.
pub const BUSY_SUSPECT: f64 = 0.90;
/// There is no room left at all.
pub const BUSY_INVALID: f64 = 0.98;
/// Share of the run that the loop was ready and waited for a processor.
pub const RUN_QUEUE_SUSPECT: f64 = 0.01;
/// One part in ten.
pub const RUN_QUEUE_INVALID: f64 = 0.10;
/// Share of the processors' time that the hypervisor took.
pub const STEAL_SUSPECT: f64 = 0.02;
/// One part in ten.
pub const STEAL_INVALID: f64 = 0.10;
/// Share of requests that found no local port or descriptor; any at all is suspect.
pub const SHORTAGE_INVALID: f64 = 0.001;
/// Share of replies that were 404. A site has dead links; a set of files that fits its server has
/// none.
pub const NOT_FOUND_SUSPECT: f64 = 0.01;
/// Most files are not there: another set, or another root directory.
pub const NOT_FOUND_INVALID: f64 = 0.50;

/// What is known when a run has ended. `None` is *could not be measured*, which is never held
/// against a run.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Requests start by a schedule, so lag and late starts mean something.
    pub open_loop: bool,
    /// Length of the run.
    pub elapsed_s: f64,
    /// Requests that ended, warm-up included.
    pub requests: u64,
    /// Requests of the measured part that ended.
    pub replies: u64,
    /// Those of the measured part that ended with a complete reply of the expected kind.
    pub good: u64,
    /// Those of the measured part that were answered 404.
    pub not_found: u64,
    /// Those of the measured part that nobody answered in time.
    pub timed_out: u64,
    /// The work was a set of files with a manifest.
    pub fileset: bool,
    /// Starts of the measured part later than the client tolerates.
    pub late_starts: u64,
    /// Starts that waited because every connection that the open loop may have was in use.
    pub connections_exhausted: u64,
    /// p99 of actual minus intended start.
    pub lag_p99_us: Option<f64>,
    /// Share of the time that the loop was not waiting for events.
    pub busy_share: Option<f64>,
    /// Time the loop's thread was ready and waited for a processor.
    pub run_queue_s: Option<f64>,
    /// Share of the processors' time that the hypervisor took.
    pub steal_share: Option<f64>,
    /// Requests that found no local port.
    pub no_port: u64,
    /// Requests that found no descriptor.
    pub no_descriptor: u64,
    /// Rows that could not be kept because the disk was behind.
    pub rows_dropped: u64,
}

/// The conclusion, and one sentence for each reason, the gravest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// Valid, suspect or invalid.
    pub verdict: Verdict,
    /// Empty when valid.
    pub reasons: Vec<String>,
}

/// Judges a run.
pub fn judge(evidence: &Evidence) -> Judgement {
    let mut findings = Findings::default();
    work(evidence, &mut findings);
    schedule(evidence, &mut findings);
    processor(evidence, &mut findings);
    shortages(evidence, &mut findings);
    findings.conclude()
}

#[derive(Default)]
struct Findings {
    invalid: Vec<String>,
    suspect: Vec<String>,
}

impl Findings {
    /// Notes a value that has reached one of its two bounds.
    fn bound(&mut self, value: f64, suspect: f64, invalid: f64, reason: impl FnOnce() -> String) {
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

/// Was it the work that was described?
fn work(of: &Evidence, to: &mut Findings) {
    let share = share(of.not_found, of.replies);
    if of.requests == 0 {
        to.invalid.push("no request ended".to_owned());
    } else if of.replies == 0 {
        // The warm-up may have gone well, but there is nothing to believe.
        to.invalid
            .push("no request ended in the measured time".to_owned());
    } else if of.good == 0 && share < NOT_FOUND_INVALID {
        // Where most replies are 404, the sentence below says more.
        let none = format!("none of {} requests got a good reply", count(of.replies));
        // Who is asked for more than it can do may answer nobody in time, and that is a result.
        let is_overrun = of.open_loop && of.timed_out == of.replies;
        match is_overrun {
            true => to.suspect.push(none),
            false => to.invalid.push(none),
        }
    }
    let what = match of.fileset {
        true => "the file set does not match the server",
        false => "the paths do not match the server",
    };
    let suspect = if of.fileset {
        f64::MIN_POSITIVE
    } else {
        NOT_FOUND_SUSPECT
    };
    to.bound(share, suspect, NOT_FOUND_INVALID, || {
        format!(
            "{} of the replies were 404 Not Found: {what}",
            percent(share)
        )
    });
    if of.rows_dropped > 0 {
        to.invalid.push(format!(
            "{} requests are missing in the figures: the disk of the run directory could not keep up",
            count(of.rows_dropped)
        ));
    }
}

/// Did requests start when they should?
fn schedule(of: &Evidence, to: &mut Findings) {
    if !of.open_loop {
        return;
    }
    if let Some(lag) = of.lag_p99_us {
        to.bound(lag, LAG_SUSPECT_US, LAG_INVALID_US, || {
            format!(
                "requests started late: p99 of actual minus intended start is {:.1} ms",
                lag / 1000.0
            )
        });
    }
    let late = share(of.late_starts, of.replies);
    to.bound(late, LATE_SUSPECT, f64::INFINITY, || {
        format!("{} of the requests started late", percent(late))
    });
    let held = share(of.connections_exhausted, of.requests);
    to.bound(held, f64::MIN_POSITIVE, f64::INFINITY, || {
        format!(
            "{} requests waited for a connection: all that --connections allows were in use",
            count(of.connections_exhausted)
        )
    });
}

/// Had the loop its processor, and time to spare?
fn processor(of: &Evidence, to: &mut Findings) {
    if let Some(busy) = of.busy_share {
        // An open loop that is nearly always busy may still start everything in time, which its lag
        // tells.
        let invalid = if of.open_loop {
            f64::INFINITY
        } else {
            BUSY_INVALID
        };
        to.bound(busy, BUSY_SUSPECT, invalid, || {
            format!(
                "the client's loop was at work {} of the time: the server may be able to do more",
                percent(busy)
            )
        });
    }
    if let Some(waited) = of.run_queue_s.filter(|_| of.elapsed_s > 0.0) {
        let share = waited / of.elapsed_s;
        to.bound(share, RUN_QUEUE_SUSPECT, RUN_QUEUE_INVALID, || {
            format!(
                "the client was ready and waited for a processor {} of the time: something else runs on its core",
                percent(share)
            )
        });
    }
    if let Some(steal) = of.steal_share {
        to.bound(steal, STEAL_SUSPECT, STEAL_INVALID, || {
            format!(
                "the hypervisor took {} of the processors' time",
                percent(steal)
            )
        });
    }
}

/// Did the client meet a limit of its machine?
fn shortages(of: &Evidence, to: &mut Findings) {
    let ports = share(of.no_port, of.requests);
    to.bound(ports, f64::MIN_POSITIVE, SHORTAGE_INVALID, || {
        format!(
            "{} requests found no free local port: name more addresses with --source, widen \
             net.ipv4.ip_local_port_range or raise --requests-per-connection",
            count(of.no_port)
        )
    });
    let descriptors = share(of.no_descriptor, of.requests);
    to.bound(descriptors, f64::MIN_POSITIVE, SHORTAGE_INVALID, || {
        format!(
            "{} requests found no free descriptor (RLIMIT_NOFILE): raise it with ulimit -Hn",
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
            replies: 10_000,
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
    fn run_is_valid_when_nothing_was_near_a_bound() {
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
    fn run_is_valid_when_only_the_server_was_bad() {
        assert_eq!(verdict(|evidence| evidence.good = 3).0, Verdict::Valid);
    }

    /// A change of the good evidence that a verdict has to notice.
    type Change = fn(&mut Evidence);

    #[test]
    fn each_measure_has_its_two_bounds_when_it_grows() {
        let cases: &[(Change, Change, &str)] = &[
            (
                |e| e.lag_p99_us = Some(1e3),
                |e| e.lag_p99_us = Some(1e4),
                "intended start",
            ),
            (
                |e| e.run_queue_s = Some(0.1),
                |e| e.run_queue_s = Some(1.0),
                "waited for a processor",
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
        assert_eq!(reasons, "20 % of the requests started late");
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
    fn file_set_is_named_when_a_single_reply_is_404() {
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
    fn run_is_invalid_when_rows_are_missing_or_nothing_came() {
        assert_eq!(
            verdict(|evidence| evidence.rows_dropped = 1).0,
            Verdict::Invalid
        );
        assert_eq!(verdict(|evidence| evidence.good = 0).0, Verdict::Invalid);
        let nothing = |evidence: &mut Evidence| {
            evidence.requests = 0;
            evidence.replies = 0;
            evidence.good = 0;
        };
        assert_eq!(
            verdict(nothing),
            (Verdict::Invalid, "no request ended".to_owned())
        );
    }

    #[test]
    fn run_is_invalid_when_nothing_was_good_and_one_reply_was_404() {
        let (found, reasons) = verdict(|evidence| {
            evidence.good = 0;
            evidence.not_found = 1;
        });
        assert_eq!(found, Verdict::Invalid, "{reasons}");
        assert_eq!(reasons, "none of 10,000 requests got a good reply");
    }

    #[test]
    fn run_is_suspect_when_nobody_was_answered_in_time_in_an_open_loop() {
        let overrun = |evidence: &mut Evidence| {
            evidence.open_loop = true;
            evidence.good = 0;
            evidence.timed_out = evidence.replies;
        };
        let (found, reasons) = verdict(overrun);
        assert_eq!(found, Verdict::Suspect, "{reasons}");
        assert_eq!(reasons, "none of 10,000 requests got a good reply");
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
    fn run_is_invalid_when_only_its_warm_up_saw_a_request_end() {
        let (found, reasons) = verdict(|evidence| {
            evidence.replies = 0;
            evidence.good = 0;
        });
        assert_eq!(found, Verdict::Invalid);
        assert_eq!(reasons, "no request ended in the measured time");
    }

    #[test]
    fn gravest_reason_comes_first_when_there_are_several() {
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
