use headway_debox::Label;

use super::{Phase, Report, around};
use crate::collector::{Collector, Stored};
use crate::parts::{At, Cause, Doing};

fn cause(phase: Phase, doing: Doing) -> Cause {
    Cause {
        phase,
        doing,
        for_others: false,
    }
}

/// A hundred requests of 1 ms, the last five of which were blocked for 9 ms more.
fn collector() -> Collector {
    let asleep = Doing::Asleep {
        call: Some(0),
        label: Label::PageIo,
    };
    let mut collector = Collector::default();
    collector.answered = 100;
    collector.causes = vec![
        cause(Phase::Service, Doing::Running),
        cause(Phase::ReceiveQueue, asleep),
    ];
    for index in 0..100 {
        let blocked_ns = if index < 95 { 0 } else { 9_000_000 };
        collector.stored.push(Stored {
            total_ns: 1_000_000 + blocked_ns,
            line: None,
            status: None,
            parts: vec![
                (0, At::default(), 1_000_000),
                (1, At::default(), blocked_ns),
            ],
        });
    }
    collector
}

#[test]
fn shares_are_of_the_requests_around_each_percentile() {
    let mut report = Report::of(&collector());
    report.conclude();
    assert_eq!((report.latency.p50_us, report.latency.p99_us), (1e3, 1e4));
    let blocked = report.blocked_share();
    assert!(blocked.p50 == 0.0 && blocked.all > 0.3, "{blocked:?}");
    let queued = report.phase_share(&[Phase::ReceiveQueue]);
    assert_eq!((queued.p50, queued.p99), (blocked.p50, blocked.p99));
    assert!(blocked.p99 > 0.7, "{blocked:?}");
    assert_eq!(report.causes[0].call.as_deref(), Some("read"));
    assert!(report.causes[0].blocked && report.causes[0].requests == 100);
    let whole = report.phase_share(&Phase::ALL);
    assert!((whole.p99 - 1.0).abs() < 1e-9, "{whole:?}");
    assert!(
        report.summary.contains("asleep in read on page-io"),
        "{}",
        report.summary
    );
}

#[test]
fn report_of_nothing_says_so() {
    let mut report = Report::of(&Collector::default());
    report.conclude();
    assert!(
        report.summary.contains("nothing to explain"),
        "{}",
        report.summary
    );
    assert!(report.causes.is_empty() && report.advice.is_empty());
}

#[test]
fn requests_around_a_percentile_are_few_and_at_least_one() {
    let stored = Stored {
        line: None,
        status: None,
        total_ns: 1,
        parts: Vec::new(),
    };
    let many: Vec<&Stored> = vec![&stored; 10_000];
    assert_eq!(around(&many, 0.5).len(), 51);
    assert_eq!(around(&many[..1], 0.99).len(), 1);
    assert!(around(&many[..0], 0.99).is_empty());
}
