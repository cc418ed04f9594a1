use std::collections::BTreeMap;

use headway_debox::Label;

use super::{cell, in_words, render, statuses, wrapped};
use crate::parts::{Cause, Doing, Phase};
use crate::report::{PathShare, Report};

#[test]
fn cause_says_whether_another_request_was_served() {
    let words = |phase, doing, for_others| {
        in_words(&Cause {
            phase,
            doing,
            for_others,
        })
    };
    let asleep = Doing::Asleep {
        call: headway_debox::calls::number("openat"),
        label: Label::InodeLock,
    };
    assert_eq!(
        words(Phase::ReceiveQueue, asleep.clone(), true),
        "asleep in openat on inode-lock"
    );
    assert_eq!(
        words(Phase::Service, asleep, true),
        "asleep in openat on inode-lock, for another request"
    );
    assert_eq!(
        words(Phase::ReceiveQueue, Doing::Running, true),
        "running for other requests"
    );
    assert_eq!(words(Phase::Service, Doing::Running, false), "running");
    let futex = Doing::Asleep {
        call: headway_debox::calls::number("futex"),
        label: Label::Futex,
    };
    assert_eq!(
        words(Phase::ReceiveQueue, futex.clone(), true),
        "idle until another thread passed it on"
    );
    assert_eq!(
        words(Phase::Service, futex, false),
        "asleep in futex on futex"
    );
}

#[test]
fn text_has_what_was_seen_when_nothing_was_answered() {
    let mut report = Report {
        server: "nginx".to_owned(),
        ports: vec![80],
        missing: vec!["children are not followed".to_owned()],
        ready_events: vec![0, 5, 3],
        ..Report::default()
    };
    report.conclude();
    let text = render(&report, str::to_owned);
    assert!(text.starts_with("nginx: nothing to explain"), "{text}");
    assert!(text.contains("TCP port 80") && text.contains("children are not followed"));
    assert!(text.contains("2–3"), "{text}");
}

#[test]
fn statuses_have_counts_unless_all_requests_have_one() {
    let of = |counts: &[(u16, u64)]| {
        statuses(&PathShare {
            path: "GET /".to_owned(),
            requests: 100,
            statuses: counts.iter().copied().collect::<BTreeMap<u16, u64>>(),
            share: 1.0,
            p50_us: 1.0,
            p99_us: 1.0,
        })
    };
    assert_eq!(of(&[]), "–");
    assert_eq!(of(&[(200, 100)]), "200");
    assert_eq!(of(&[(200, 99)]), "200 × 99");
    assert_eq!(of(&[(200, 5), (503, 95)]), "503 × 95, 200 × 5");
    assert_eq!(of(&[(200, 90), (404, 5), (503, 5)]), "200 × 90, 404 × 5, …");
}

#[test]
fn shares_are_short() {
    assert_eq!(cell(0.0), "–");
    assert_eq!(cell(0.000_1), "<0.1 %");
    assert_eq!(cell(0.123_4), "12.3 %");
    assert_eq!(wrapped("one two three", "- ", 9), "- one two\n  three\n");
}

#[test]
fn server_that_answers_nothing_is_said_to_hang() {
    let mut report = Report {
        server: "nginx".to_owned(),
        duration_s: 5.0,
        ports: vec![80],
        ..Report::default()
    };
    report.requests.waiting = 3;
    report.requests.waiting_longest_us = 4.2e6;
    report.conclude();
    let text = render(&report, str::to_owned);
    assert!(text.contains("3 requests had none at the end"), "{text}");
    assert!(text.contains("the oldest for 4.20 s"), "{text}");
}
