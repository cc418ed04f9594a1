use super::{Breakdown, Flight, TracedCalls};
use serde_json::{Value, json};

const MS: i128 = 1_000_000;

fn flight(start_ms: i128, first_byte_ms: i128, end_ms: i128) -> Flight {
    Flight {
        intended_ns: start_ms * MS,
        start_ns: start_ms * MS,
        first_byte_ns: first_byte_ms * MS,
        end_ns: end_ms * MS,
    }
}

fn kept(thread: u32, label: &str, start_ms: u64, length_ms: u64) -> Value {
    let length = length_ms * 1_000_000;
    json!({
        "thread": thread, "call": "call", "location": 0, "start_ns": start_ms * 1_000_000, "wall_ns": length,
        "sleeps": [{ "label": label, "total_ns": length }],
    })
}

fn trace(kept: &[Value]) -> TracedCalls {
    let location = json!({ "module": "/sbin/server", "offset": 16, "function": null, "file": null, "line": null });
    let trace = json!({
        "schema": 1, "started_ns": 0, "started_unix_ns": 0, "kept": kept, "locations": [location],
    });
    TracedCalls::from_json(&trace, 0).expect("a trace")
}

fn ms(ns: f64) -> f64 {
    (ns / 1e6 * 1e6).round() / 1e6
}

#[test]
fn all_wait_behind_the_loop_when_it_sleeps_for_one_of_them() {
    let flights = [flight(0, 20, 20); 5];
    let calls = trace(&[kept(1, "event-wait", 30, 1), kept(1, "page-io", 5, 10)]);
    let found = Breakdown::of(&flights, &[], &calls).expect("an overlap");
    assert_eq!(ms(found.all.own_ns), 10.0);
    assert_eq!(ms(found.all.loop_ns), 40.0);
    assert_eq!(ms(found.all.queue_ns), 50.0);
    assert_eq!(found.loops, 1);
}

#[test]
fn requests_of_another_client_share_the_wait() {
    let calls = trace(&[kept(1, "event-wait", 30, 1), kept(1, "page-io", 0, 10)]);
    let others = [flight(0, 10, 10); 3];
    let found = Breakdown::of(&[flight(0, 10, 10)], &others, &calls).expect("an overlap");
    assert_eq!((ms(found.all.own_ns), ms(found.all.loop_ns)), (2.5, 7.5));
}

#[test]
fn helpers_hold_up_only_their_own_request() {
    let calls = trace(&[
        kept(1, "event-wait", 0, 10),
        kept(2, "buffer-io", 0, 10),
        // A helper without work.
        kept(3, "socket-recv", 0, 10),
    ]);
    let found = Breakdown::of(&[flight(0, 10, 10); 4], &[], &calls).expect("an overlap");
    assert_eq!((ms(found.all.own_ns), ms(found.all.loop_ns)), (10.0, 0.0));
    assert_eq!(ms(found.all.queue_ns), 30.0);
}

#[test]
fn each_process_waits_for_itself_when_every_request_has_a_process() {
    let calls = trace(&[
        kept(1, "event-wait", 20, 1),
        kept(2, "event-wait", 20, 1),
        kept(1, "page-io", 0, 10),
        kept(2, "page-io", 0, 10),
    ]);
    let found = Breakdown::of(&[flight(0, 10, 10); 2], &[], &calls).expect("an overlap");
    assert_eq!((ms(found.all.own_ns), ms(found.all.loop_ns)), (20.0, 0.0));
    // More requests than processes: the others wait behind these.
    let found = Breakdown::of(&[flight(0, 10, 10); 8], &[], &calls).expect("an overlap");
    assert_eq!((ms(found.all.own_ns), ms(found.all.loop_ns)), (20.0, 60.0));
}

#[test]
fn time_after_the_first_byte_is_transfer_unless_the_loop_sleeps() {
    let mut late = flight(10, 12, 30);
    late.intended_ns = 4 * MS;
    let calls = trace(&[kept(1, "event-wait", 0, 1), kept(1, "inode-lock", 20, 5)]);
    let found = Breakdown::of(&[late], &[], &calls).expect("an overlap");
    assert_eq!(found.all.times().map(ms), [5.0, 0.0, 2.0, 13.0, 6.0]);
    let whole: f64 = found.all.shares().iter().sum();
    assert!((whole - 1.0).abs() < 1e-12);
}

#[test]
fn slow_requests_stand_apart() {
    let mut flights: Vec<Flight> = (0..197)
        .map(|index| flight(index * 100, index * 100 + 1, index * 100 + 1))
        .collect();
    flights.push(flight(19_900, 19_950, 19_950));
    flights.push(flight(20_000, 20_050, 20_050));
    let calls = trace(&[
        kept(1, "event-wait", 0, 1),
        kept(1, "fuse", 19_900, 50),
        kept(1, "fuse", 20_000, 50),
    ]);
    let found = Breakdown::of(&flights, &[], &calls).expect("an overlap");
    assert_eq!((found.slow.requests, found.slow_ns), (2, 50_000_000));
    assert_eq!(found.slow.shares()[0], 1.0);
    assert_eq!(found.groups.len(), 10);
    assert_eq!(
        found.groups.iter().map(|group| group.requests).sum::<u64>(),
        199
    );
    assert_eq!(found.groups[0].shares()[0], 0.0);
}

#[test]
fn nothing_is_said_when_the_trace_is_of_another_time() {
    let calls = trace(&[kept(1, "page-io", 500, 10)]);
    assert_eq!(Breakdown::of(&[flight(0, 10, 10)], &[], &calls), None);
    assert_eq!(Breakdown::of(&[], &[], &calls), None);
}
