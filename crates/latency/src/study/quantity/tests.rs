use super::*;
use crate::row::{Outcome, Row};
use crate::run::{RunDescription, Window};
use crate::study::evidence::{CallTime, Collector, DiskUse, Runnable, ServerUse};
use crate::study::result::SleepCount;
use serde_json::json;

/// Ten seconds with 100 requests per second; ten of every size, latency in milliseconds by
/// `latency_ms`.
fn evidence(latency_ms: impl Fn(u64) -> u64) -> RunEvidence {
    evidence_with_lag(|_| 0, latency_ms)
}

/// The same from a client which starts requests late: the latency is from the actual start.
fn evidence_with_lag(lag_ms: impl Fn(u64) -> u64, latency_ms: impl Fn(u64) -> u64) -> RunEvidence {
    let mut description = RunDescription::default();
    description.load.measured = Some(Window {
        start_ns: 0,
        end_ns: 10_000_000_000,
    });
    let mut collector = Collector::new(&description);
    for at in 0..1_000_u64 {
        let intended_ns = at * 10_000_000;
        let start_ns = intended_ns + lag_ms(at) * 1_000_000;
        let row = Row {
            intended_ns,
            start_ns,
            first_byte_ns: 0,
            end_ns: start_ns + latency_ms(at) * 1_000_000,
            size_bytes: (at % 10 + 1) * 1_000,
            bytes: (at % 10 + 1) * 1_000,
            status: 200,
            error: Outcome::Ok,
            connection: (at / 5) as u32,
            ordinal: (at % 5) as u32,
            class: Row::NO_CLASS,
            target: 0,
            warmup: false,
            handshake_ns: 0,
        };
        collector.push(&row);
    }
    RunEvidence {
        description,
        rows: Some(collector.finish()),
        ..RunEvidence::default()
    }
}

#[test]
fn throughput_is_of_the_window_when_responses_end_before_and_after_it() {
    let mut description = RunDescription::default();
    description.load.measured = Some(Window {
        start_ns: 2_000_000_000,
        end_ns: 4_000_000_000,
    });
    let mut collector = Collector::new(&description);
    // A response every 10 ms of six seconds, 1000 bytes each; the first two seconds warm up.
    for end_ns in (0..6_000_000_000).step_by(10_000_000) {
        collector.push(&Row {
            intended_ns: end_ns,
            start_ns: end_ns,
            first_byte_ns: 0,
            end_ns,
            size_bytes: 1_000,
            bytes: 1_000,
            status: 200,
            error: Outcome::Ok,
            connection: 0,
            ordinal: 0,
            class: Row::NO_CLASS,
            target: 0,
            warmup: end_ns < 2_000_000_000,
            handshake_ns: 0,
        });
    }
    let evidence = RunEvidence {
        description,
        rows: Some(collector.finish()),
        ..RunEvidence::default()
    };
    assert_eq!(value("rate_rps", &evidence), 100.0);
    assert_eq!(value("throughput_mbit", &evidence), 0.8);
}

fn take(text: &str, evidence: &RunEvidence) -> Result<Value, String> {
    Quantity::parse(text)?.take(evidence)
}

fn value(text: &str, evidence: &RunEvidence) -> f64 {
    take(text, evidence).expect(text).value
}

#[test]
fn figures_are_those_of_the_rows_when_they_are_known() {
    // Latency follows size: 1 ms a kilobyte.
    let evidence = evidence(|at| at % 10 + 1);
    let near = |text: &str, expected: f64| {
        let found = value(text, &evidence);
        assert!(
            (found / expected - 1.0).abs() < 0.002,
            "{text}: {found}, expected {expected}"
        );
    };
    near("mean_ms", 5.5);
    near("median_ms", 5.0);
    near("p90_ms", 9.0);
    near("max_ms", 10.0);
    near("rate_rps", 100.0);
    near("throughput_mbit", 4.4);
    near("requests", 1000.0);
    near("within:3.5", 0.3);
    // Largest sizes in the slowest decile, series 4.
    near("decile:10:4", 1.0);
    near("decile:1:2", 1.0);
    near("series_median_ms:4", 8.0);
    assert_eq!(value("inversion", &evidence), 0.0);
    // 1 to 10 ms, as often each: 55² / (10 · 385).
    near("jain", 0.7857);
    assert_eq!(value("errors", &evidence), 0.0);
    // 8 kbit a millisecond, whatever the size.
    assert_eq!(value("conforming:7900", &evidence), 1.0);
    assert_eq!(value("conforming:8100", &evidence), 0.0);
}

#[test]
fn order_from_the_actual_start_is_that_of_sizes_when_only_the_client_was_late() {
    // Latency follows size, but a client's lag of the reversed order is added.
    let evidence = evidence_with_lag(|at| 3 * (10 - at % 10), |at| at % 10 + 1);
    assert_eq!(value("service_inversion", &evidence), 0.0);
    assert_eq!(value("service_inversion_of_random", &evidence), 0.0);
    assert_eq!(value("service_decile:10:4", &evidence), 1.0);
    assert!(value("service_jain", &evidence) < value("jain", &evidence));
    assert!(value("inversion", &evidence) > 0.9);
    assert!(value("inversion_of_random", &evidence) > 1.4);
    assert_eq!(value("decile:10:4", &evidence), 0.0);
}

#[test]
fn failed_requests_are_counted_by_cause_and_left_out_of_good_times() {
    let mut description = RunDescription::default();
    description.load.measured = Some(Window {
        start_ns: 0,
        end_ns: 10_000_000_000,
    });
    let mut collector = Collector::new(&description);
    // Of ten requests one finds no connection; two time out, one with a connection and one without.
    // The two share a connection, and the six others share another.
    let ends = |at: u64| {
        let connection = at as u32 / 10 * 2;
        match at % 10 {
            0 => (Outcome::ConnectTimedOut, 3_000, connection),
            1 | 2 => (Outcome::TimedOut, 3_000, connection),
            3 => (Outcome::TimedOut, 3_000, u32::MAX),
            _ => (Outcome::Ok, 10, connection + 1),
        }
    };
    for at in 0..1_000_u64 {
        let intended_ns = at * 10_000_000;
        let (error, ms, connection) = ends(at);
        collector.push(&Row {
            intended_ns,
            start_ns: intended_ns,
            first_byte_ns: 0,
            end_ns: intended_ns + ms * 1_000_000,
            size_bytes: 1,
            bytes: 1,
            status: 200,
            error,
            connection,
            ordinal: 0,
            class: Row::NO_CLASS,
            target: 0,
            warmup: false,
            handshake_ns: 0,
        });
    }
    let evidence = RunEvidence {
        description,
        rows: Some(collector.finish()),
        ..RunEvidence::default()
    };
    for (text, expected) in [
        ("outcome_share:timed-out", 0.3),
        ("outcome_share:connect-timed-out", 0.1),
        ("outcome_share:ok", 0.6),
        ("outcome_share:refused", 0.0),
        ("error_share", 0.4),
        // A share of connections, not of requests.
        ("accepted_timed_out", 0.5),
        // Those of the two timeouts are too slow; requests without a connection are not counted.
        ("conforming:0.1", 0.5),
    ] {
        let found = value(text, &evidence);
        assert!((found - expected).abs() < 1e-9, "{text}: {found}");
    }
    let near = |text: &str, expected: f64| {
        let found = value(text, &evidence);
        assert!((found / expected - 1.0).abs() < 0.002, "{text}: {found}");
    };
    near("p99_ms", 3_000.0);
    near("good_p99_ms", 10.0);
    near("good_mean_ms", 10.0);
    near("good_median_ms", 10.0);
}

#[test]
fn interval_is_wide_when_the_run_varies_and_narrow_when_it_does_not() {
    let steady = evidence(|at| at % 10 + 1);
    let width = |text: &str, of: &RunEvidence| {
        let interval = take(text, of).expect(text).interval.expect("an interval");
        interval.high - interval.low
    };
    assert!(width("p90_ms", &steady) < 0.1);
    assert!(width("inversion", &steady) < 0.001);
    let drifting = evidence(|at| (at % 10 + 1) * (1 + at / 200));
    assert!(width("p90_ms", &drifting) > 10.0);
    assert!(width("mean_ms", &drifting) > 2.0);
}

/// A run of which the status page, the disk, the processes and the tracer were read.
fn observed() -> RunEvidence {
    let mut evidence = evidence(|_| 1);
    evidence.server = Some(json!({
        "before": {"master": {"network": {"listen_drops": 5}}, "total": {"counters": {"accepted": 10}},
            "workers": [{"pid": 7, "counters": {"accepted": 10}}]},
        "after": {"master": {"network": {"listen_drops": 9}},
            "workers": [{"pid": 7, "counters": {"accepted": 15}}, {"pid": 8, "counters": {"accepted": 15}}],
            "total": {"counters": {
            "accepted": 30,
            "loop_turn_us": {"count": 4, "sum": 2000, "max": 1900, "buckets": [[63, 397], [2047, 3]]},
            "ready_events": {"count": 4, "sum": 10, "max": 7, "buckets": [[1, 3], [8, 1]]}},
            "trace": {"level": {"sees": "stacks"}, "sleeps": [{"count": 20}]}}},
    }));
    evidence.disk = Some(DiskUse {
        seconds: 10.0,
        reads: 500,
        busy_share: Some(0.4),
        ..DiskUse::default()
    });
    evidence.usage = Some(ServerUse {
        seconds: 10.0,
        cpu_ms: 2_000.0,
        ..ServerUse::default()
    });
    evidence.runnable = Some(Runnable {
        samples: vec![(0, 50), (10, 50)],
        processes: 20,
        look_us: 40,
    });
    evidence.sleeps = Some(sleeps());
    evidence
}

fn sleeps() -> Sleeps {
    let sleep = |label: &str, call: &str, count| SleepCount {
        label: label.into(),
        call: call.into(),
        count,
        total_ms: count as f64,
        observed_s: 2.0,
    };
    Sleeps {
        counts: vec![
            sleep("event-wait", "epoll_wait", 100),
            sleep("page-io", "openat", 6),
            sleep("page-io", "read", 2),
        ],
        calls: vec![
            CallTime {
                call: "epoll_wait".into(),
                count: 100,
                running_ns: 80_000_000,
            },
            CallTime {
                call: "accept4".into(),
                count: 10,
                running_ns: 20_000_000,
            },
        ],
        seconds: 2.0,
    }
}

#[test]
fn quantities_of_observers_are_read() {
    let evidence = observed();
    for (text, expected) in [
        ("counter:counters.accepted", 20.0),
        ("counter:master.network.listen_drops", 4.0),
        ("ready_mean", 2.5),
        ("ready_median", 1.0),
        ("ready_max", 7.0),
        ("loop_blocked", 20.0),
        ("loop_turn_p99_ms", 0.063),
        ("loop_turn_max_ms", 1.9),
        ("loop_blocked_per_s", 2.0),
        ("disk_reads_per_s", 50.0),
        ("disk_busy", 0.4),
        ("cpu_share", 0.2),
        ("cpu_us_per_request", 2_000.0),
        ("runnable_mean", 5.0),
        ("runnable_look_us", 40.0),
        ("runnable_share_max", 0.5),
        // 40 ms per second, of 200 ms per second that the processes ran.
        ("time_share:epoll_wait", 0.2),
        ("time_share:epoll_wait|accept4|read", 0.25),
        ("worker_skew:counters.accepted", 1.5),
        ("sleeps", 4.0),
        ("sleeps:event-wait", 50.0),
        ("sleeps:page-io:openat", 3.0),
        ("sleeps:*:read", 1.0),
        ("asleep_ms:page-io", 4.0),
    ] {
        let found = value(text, &evidence);
        assert!((found - expected).abs() < 1e-9, "{text}: {found}");
    }
}

#[test]
fn reason_is_given_when_the_loops_were_not_traced() {
    let evidence = evidence(|_| 1);
    for (text, why) in [
        ("ready_mean", "no status page"),
        ("sleeps:page-io", "not traced"),
        ("time_share:accept4", "not traced"),
        ("worker_skew:counters.accepted", "no status page"),
        ("runnable_mean", "not sampled"),
        ("disk_busy", "no modelled disk"),
        ("cpu_share", "not watched"),
        ("background_errors", "no other client"),
    ] {
        let error = take(text, &evidence).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }
    assert!(take("mean_ms", &RunEvidence::default()).is_err());
}

#[test]
fn name_is_an_error_when_it_is_not_a_quantity() {
    for (text, why) in [
        ("speed", "no quantity \"speed\""),
        ("mean_ms:1", "takes 0 arguments, 1 given"),
        ("decile:1", "takes 2 arguments"),
        ("within:fast", "\"fast\" is not a number"),
        ("sleeps:a:b:c", "0 to 2"),
        ("outcome_share", "takes 1 arguments"),
        ("outcome_share:late", "no outcome \"late\": ok, status"),
    ] {
        let error = Quantity::parse(text).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }
    let every = [&OF_ROWS[..], &OF_ORDER, &OF_RUN, &HEADLINE_QUANTITIES].concat();
    assert!(every.iter().all(|name| Quantity::parse(name).is_ok()));
}

#[test]
fn shares_are_of_samples_above_the_number() {
    let mut evidence = evidence(|_| 1);
    evidence.server = Some(json!({"counters": {
        "ready_events": {"count": 4, "sum": 10, "max": 7, "buckets": [[1, 3], [8, 1]]}}}));
    evidence.runnable = Some(Runnable {
        samples: vec![(0, 50), (10, 30), (18, 20)],
        processes: 20,
        look_us: 40,
    });
    assert_eq!(value("ready_above:1", &evidence), 0.25);
    assert_eq!(value("ready_above:8", &evidence), 0.0);
    assert_eq!(value("runnable_at_most:0", &evidence), 0.5);
    assert_eq!(value("runnable_at_most:0.5", &evidence), 0.8);
    assert_eq!(value("runnable_above:0.8", &evidence), 0.2);
    assert!(
        Quantity::parse("runnable_above").is_err() && Quantity::parse("ready_above:x").is_err()
    );
}

/// Of 5,000 requests with a latency of 10 ms or none, for this many there was no port.
fn with_untimed(untimed: u64) -> RunEvidence {
    let mut description = RunDescription::default();
    description.load.measured = Some(Window {
        start_ns: 0,
        end_ns: 10_000_000_000,
    });
    let mut collector = Collector::new(&description);
    for at in 0..5_000_u64 {
        let intended_ns = at * 2_000_000;
        collector.push(&Row {
            intended_ns,
            start_ns: intended_ns,
            first_byte_ns: intended_ns + 5_000_000,
            end_ns: intended_ns + 10_000_000,
            size_bytes: 1_000,
            bytes: 1_000,
            status: 200,
            error: match at < untimed {
                true => Outcome::NoPort,
                false => Outcome::Ok,
            },
            connection: at as u32,
            ordinal: 0,
            class: Row::NO_CLASS,
            target: 0,
            warmup: false,
            handshake_ns: 0,
        });
    }
    let rows = collector.finish();
    RunEvidence {
        background: Some(rows.analysis.clone()),
        description,
        rows: Some(rows),
        ..RunEvidence::default()
    }
}

#[test]
fn latency_is_an_error_when_the_analysis_withholds_it() {
    let evidence = with_untimed(50);
    let latencies = OF_ROWS.iter().filter(|name| name.ends_with("_ms"));
    let more = [
        "small_in_slowest",
        "decile:1:1",
        "inversion",
        "inversion_random",
        "conforming:0.1",
        "series_mean_ms:2",
        "series_p95_ms:2",
        "timeline_max_p99_ms",
        "background_mean_ms",
        "background_median_ms",
        "background_p95_ms",
        "background_p99_ms",
    ];
    for text in latencies.chain(&more) {
        let error = take(text, &evidence).expect_err(text);
        assert!(error.contains("withheld"), "{text}: {error}");
    }
    for (text, expected) in [
        ("requests", 5_000.0),
        ("error_share", 0.01),
        ("series_share:2", 1.0),
        ("background_requests", 5_000.0),
    ] {
        assert_eq!(value(text, &evidence), expected, "{text}");
    }
}

#[test]
fn maximum_is_an_error_when_a_request_has_no_latency() {
    let evidence = with_untimed(1);
    let error = take("max_ms", &evidence).unwrap_err();
    assert!(error.contains("withheld"), "{error}");
    assert_eq!(value("p99_ms", &evidence).round(), 10.0);
}
