use super::super::spec::{Fault, FaultPlan, Mechanics, Model, Parallel};
use super::*;

const MS: u64 = 1_000_000;

/// Two layout, a millisecond each, and nothing else.
fn spec(faults: Vec<Fault>) -> DiskSpec {
    let model = Model::Custom(Mechanics::Parallel(Parallel {
        latency_us: 1000.0,
        variation: 0.0,
        parallelism: 2,
        bytes_per_second: u64::MAX,
        overhead_us: 0.0,
    }));
    DiskSpec {
        faults: FaultPlan(faults),
        ..DiskSpec::new(model, 1 << 30)
    }
}

fn running(faults: Vec<Fault>) -> Engine {
    let mut engine = Engine::new(spec(faults), 0);
    engine.order(0, &Order::Model);
    engine
}

/// Numbers and fates of what is due then.
fn due(engine: &mut Engine, now_ns: u64) -> Vec<(u64, bool)> {
    let done = engine.due(now_ns);
    done.iter().map(|done| (done.id, done.failed)).collect()
}

/// Answers everything as a timer would; the instants.
fn run(engine: &mut Engine) -> Vec<u64> {
    let mut instants = Vec::new();
    while let Some(wake_ns) = engine.wake_ns() {
        let done = engine.due(wake_ns);
        instants.extend(done.iter().map(|_| wake_ns));
    }
    instants
}

#[test]
fn answer_is_immediate_when_the_disk_is_fast() {
    let mut engine = Engine::new(spec(vec![]), 0);
    let id = engine.arrive(5, 0, 4096, false);
    assert_eq!(due(&mut engine, 5), [(id, false)]);
    assert_eq!(engine.wake_ns(), None);
}

#[test]
fn answer_is_sent_at_the_modelled_time() {
    let mut engine = running(vec![]);
    for _ in 0..3 {
        engine.arrive(0, 0, 1, false);
    }
    assert!(due(&mut engine, MS - 1).is_empty());
    assert_eq!(engine.wake_ns(), Some(MS));
    assert_eq!(run(&mut engine), [MS, MS, 2 * MS]);
}

#[test]
fn answer_is_sent_earlier_by_the_known_overhead() {
    let mut engine = running(vec![]);
    engine.set_read_overhead(MS / 10);
    engine.arrive(0, 0, 1, false);
    assert_eq!(run(&mut engine), [MS - MS / 10]);
    let statistics = engine.statistics(MS);
    assert_eq!(statistics.modelled_ns, MS);
    assert_eq!(statistics.response_ns, MS);
}

#[test]
fn late_poll_delays_no_other_answer() {
    let mut engine = running(vec![]);
    for _ in 0..3 {
        engine.arrive(0, 0, 1, false);
    }
    // The third was started when the first two ended, not when it was polled.
    assert_eq!(due(&mut engine, MS + MS / 2).len(), 2);
    assert_eq!(run(&mut engine), [2 * MS]);
}

#[test]
fn stalled_requests_complete_after_the_stall() {
    let plan = vec![Fault::Stall {
        at_ms: 3,
        for_ms: 100,
    }];
    let mut engine = running(plan);
    engine.arrive(0, 0, 1, false);
    assert_eq!(run(&mut engine), [MS]);
    // One that is being worked on, and one that comes in the middle.
    engine.arrive(2 * MS + MS / 2, 0, 1, false);
    assert!(due(&mut engine, 2 * MS + MS / 2).is_empty());
    engine.arrive(50 * MS, 0, 1, false);
    assert!(due(&mut engine, 102 * MS).is_empty());
    assert_eq!(run(&mut engine), [103 * MS, 104 * MS]);
}

#[test]
fn stall_applies_to_a_fast_disk() {
    let mut engine = Engine::new(spec(vec![]), 0);
    engine.order(10, &Order::Stall { for_ms: 1 });
    engine.arrive(20, 0, 1, false);
    assert!(due(&mut engine, 30).is_empty());
    assert_eq!(run(&mut engine), [10 + MS]);
}

#[test]
fn waiting_requests_are_answered_when_the_delays_are_removed() {
    let mut engine = running(vec![]);
    engine.order(0, &Order::Stall { for_ms: 10_000 });
    for _ in 0..5 {
        engine.arrive(0, 0, 1, false);
    }
    assert!(due(&mut engine, MS).is_empty());
    engine.order(2 * MS, &Order::Fast);
    assert_eq!(due(&mut engine, 2 * MS).len(), 5);
    assert_eq!(engine.wake_ns(), None);
}

#[test]
fn range_fails_until_the_disk_is_reset() {
    let mut engine = running(vec![]);
    let order = Order::Fail {
        offset_bytes: 8192,
        length_bytes: 4096,
    };
    engine.order(0, &order);
    engine.arrive(0, 0, 4096, false);
    engine.arrive(0, 4096, 8192, false);
    assert_eq!(due(&mut engine, MS), [(0, false), (1, true)]);
    assert_eq!(engine.statistics(MS).failed, 1);
    engine.order(MS, &Order::Model);
    engine.arrive(MS, 4096, 8192, false);
    assert_eq!(due(&mut engine, 2 * MS), [(2, false)]);
}

#[test]
fn services_are_longer_when_the_order_is_slow() {
    let mut engine = running(vec![]);
    let order = Order::Slow {
        factor: 4.0,
        for_ms: 10,
    };
    engine.order(0, &order);
    engine.arrive(0, 0, 1, false);
    engine.arrive(10 * MS, 0, 1, false);
    assert_eq!(run(&mut engine), [4 * MS, 11 * MS]);
}

#[test]
fn statistics_are_those_of_the_queue_when_requests_overlap() {
    let mut engine = running(vec![]);
    engine.arrive(MS, 0, 4096, false);
    engine.arrive(MS, 0, 4096, false);
    engine.arrive(MS, 0, 512, true);
    run(&mut engine);
    let statistics = engine.statistics(10 * MS);
    assert_eq!((statistics.reads, statistics.writes), (2, 1));
    assert_eq!(
        (statistics.read_bytes, statistics.written_bytes),
        (8192, 512)
    );
    assert_eq!(statistics.depth_max, 3);
    // Three for a millisecond, one for another, of ten.
    assert_eq!(statistics.depth_ns, 4 * MS);
    assert!((statistics.busy_share() - 0.2).abs() < 1e-9);
    assert!((statistics.depth_mean() - 0.4).abs() < 1e-9);
    assert!((statistics.service_us() - 1000.0).abs() < 1.0);
    assert!((statistics.modelled_us() - 4000.0 / 3.0).abs() < 1.0);
    let later = engine.statistics(20 * MS).since(&statistics);
    assert_eq!(
        (later.elapsed_ns, later.reads, later.busy_ns),
        (10 * MS, 0, 0)
    );
}

#[test]
fn requests_are_neither_counted_nor_delayed_during_maintenance() {
    let mut engine = running(vec![Fault::Stall {
        at_ms: 0,
        for_ms: 100,
    }]);
    engine.set_maintenance(MS, true);
    engine.arrive(2 * MS, 0, 4096, false);
    assert_eq!(due(&mut engine, 2 * MS).len(), 1);
    engine.set_maintenance(5 * MS, false);
    let statistics = engine.statistics(6 * MS);
    assert_eq!((statistics.reads, statistics.elapsed_ns), (0, 2 * MS));
    // The plan went on meanwhile.
    engine.arrive(6 * MS, 0, 4096, false);
    assert_eq!(run(&mut engine), [101 * MS]);
}

#[test]
fn fast_disk_stays_fast_after_maintenance() {
    let mut engine = Engine::new(spec(vec![]), 0);
    engine.set_maintenance(1, true);
    engine.set_maintenance(2, false);
    engine.arrive(3, 0, 4096, false);
    assert_eq!(due(&mut engine, 3).len(), 1);
}

#[test]
fn every_request_takes_the_probe_delay_during_calibration() {
    let mut engine = Engine::new(spec(vec![]), 0);
    engine.set_probe(0, true);
    engine.arrive(5, 0, 4096, false);
    assert_eq!(run(&mut engine), [5 + PROBE_NS]);
    engine.set_probe(2 * MS, false);
    engine.arrive(2 * MS, 0, 4096, false);
    assert_eq!(due(&mut engine, 2 * MS).len(), 1);
}
