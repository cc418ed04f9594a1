//! The open loop: arrivals that nothing moves, and the connections they get.

use crate::support;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use headway_base::random::{Draw, Random};
use headway_latency::{Outcome, Row};
use headway_load::engine::{
    self, Arrivals, Document, Draws, Mode, Plan, PlanError, Popularity, RequestOrder, Schedule,
    Segment, Work,
};
use support::{RowCollector, Server, Step, count, response, run, run_until, send};

const MS: u64 = 1_000_000;

fn open(server: &Server, rate_per_s: f64, connections_max: u32, requests: u64) -> Plan {
    let schedule = Schedule::constant(rate_per_s);
    let mut plan = Plan::open(
        server.target(),
        Work::paths(["/"]),
        schedule,
        connections_max,
    );
    plan.stop.requests = Some(requests);
    plan.timeout = Some(Duration::from_secs(20));
    plan
}

fn set(plan: &mut Plan, gaps: Arrivals, queue: u32) {
    if let Mode::Open {
        arrivals,
        waiting_max,
        ..
    } = &mut plan.mode
    {
        (*arrivals, *waiting_max) = (gaps, queue);
    }
}

#[test]
fn every_arrival_is_a_row_at_its_instant_when_gaps_are_constant() {
    let server = Server::start(|_| send(response("hello")));
    let mut plan = open(&server, 500.0, 64, 200);
    set(&mut plan, Arrivals::Constant, 64);
    let (mut rows, measured) = run(&plan);
    assert_eq!(count(&rows, Outcome::Ok), 200);
    rows.sort_by_key(|row| row.intended_ns);
    let intended: Vec<u64> = rows.iter().map(|row| row.intended_ns).collect();
    let expected: Vec<u64> = (0..200).map(|n| n * 2 * MS).collect();
    assert_eq!(intended, expected);
    assert_eq!(measured.lag.count(), 200);
}

/// All requests that are due during a stall see it. A client that measures from the actual start
/// sees one slow request (coordinated omission).
#[test]
fn stall_is_in_the_response_time_and_not_in_the_service_time() {
    const STALL: Duration = Duration::from_millis(400);
    let stalled = AtomicBool::new(false);
    let server = Server::start(move |request| {
        let stalls = request.ordinal == 20 && !stalled.swap(true, Ordering::Relaxed);
        let mut steps = send(response("hello"));
        if stalls {
            steps.insert(0, Step::Wait(STALL));
        }
        steps
    });
    let mut plan = open(&server, 500.0, 1, 400);
    set(&mut plan, Arrivals::Constant, 1000);
    let (rows, measured) = run(&plan);
    assert_eq!(count(&rows, Outcome::Ok), 400);
    let half = STALL.as_nanos() as u64 / 2;
    let slow = |time: fn(&Row) -> u64| rows.iter().filter(|row| time(row) > half).count();
    // At 500 per second, 100 arrive during the first half of the stall. A busy machine adds some.
    assert!(slow(Row::response_ns) >= 90, "{}", slow(Row::response_ns));
    // The one that met the stall; a busy machine may hold up another one as long, not many.
    assert!(
        (1..20).contains(&slow(Row::service_ns)),
        "{}",
        slow(Row::service_ns)
    );
    assert!(measured.late_starts >= 90 && measured.limits.connections >= 90);
}

#[derive(Debug)]
struct Skewed;

impl Popularity for Skewed {
    fn draws(&self, seed: u64) -> Box<dyn Draws> {
        struct Stream(Random);
        impl Draws for Stream {
            fn next(&mut self) -> u32 {
                (self.0.below(4) * self.0.below(2)) as u32
            }
        }
        Box::new(Stream(Random::new(seed)))
    }
}

/// Instants and documents, in the order of the instants.
fn stream(server: &Server, seed: u64) -> Vec<(u64, u8)> {
    let mut plan = open(server, 2000.0, 8, 300);
    let document = |class| Document {
        class,
        ..Document::path(format!("/{class}"))
    };
    plan.work = Work {
        documents: (0..4).map(document).collect(),
        order: RequestOrder::Drawn(Box::new(Skewed)),
    };
    plan.seed = seed;
    let (rows, _) = run(&plan);
    let mut stream: Vec<(u64, u8)> = rows
        .iter()
        .map(|row| (row.intended_ns, row.class))
        .collect();
    stream.sort_unstable();
    stream
}

#[test]
fn request_stream_depends_on_the_seed_only() {
    let quick = Server::start(|_| send(response("hello")));
    let slow = Server::start(|request| match request.ordinal % 10 {
        0 => vec![Step::Wait(Duration::from_millis(3)), Step::Close],
        _ => send(response("hello")),
    });
    let first = stream(&quick, 7);
    assert_eq!(first, stream(&slow, 7));
    assert_ne!(first, stream(&quick, 8));
    let classes: HashSet<u8> = first.iter().map(|(_, class)| *class).collect();
    assert_eq!(classes.len(), 4);
}

#[test]
fn connections_are_closed_after_their_number_of_requests() {
    let server = Server::start(|_| send(response("hello")));
    let mut plan = open(&server, 1000.0, 50, 100);
    plan.requests_per_connection = Some(5);
    let (rows, measured) = run(&plan);
    assert_eq!(count(&rows, Outcome::Ok), 100);
    assert!(rows.iter().all(|row| row.ordinal < 5));
    assert!(
        (20..100).contains(&measured.connections_opened),
        "{}",
        measured.connections_opened
    );
    let requests = server.requests();
    assert!(
        requests
            .iter()
            .all(|request| request.last == (request.ordinal == 4))
    );
}

#[test]
fn connections_stay_at_the_limit_when_the_server_is_slow() {
    let server = Server::start(|_| {
        vec![
            Step::Wait(Duration::from_millis(5)),
            Step::Send(response("hello")),
        ]
    });
    let mut plan = open(&server, 2000.0, 3, 60);
    set(&mut plan, Arrivals::Poisson, 100);
    let (rows, measured) = run(&plan);
    assert_eq!(count(&rows, Outcome::Ok), 60);
    assert_eq!(
        (measured.connections_peak, measured.connections_opened),
        (3, 3)
    );
    assert!(measured.limits.connections > 0);
}

#[test]
fn idle_connection_is_dropped_without_an_error_when_the_server_closes_it() {
    let server = Server::start(|_| vec![Step::Send(response("hello")), Step::Close]);
    let (rows, measured) = run(&open(&server, 200.0, 10, 30));
    assert_eq!(count(&rows, Outcome::Ok), 30);
    // Found at once or, at worst, when the next request is sent.
    assert_eq!(measured.connections_opened, 30);
}

#[test]
fn unsolicited_bytes_are_counted_when_they_come_on_an_idle_connection() {
    let server = Server::start(|_| {
        let pause = Duration::from_millis(10);
        vec![
            Step::Send(response("hello")),
            Step::Wait(pause),
            Step::Send(b"HTTP/1.1 408 Late\r\n\r\n".to_vec()),
        ]
    });
    let mut plan = open(&server, 10.0, 10, 5);
    set(&mut plan, Arrivals::Constant, 10);
    let (rows, measured) = run(&plan);
    assert_eq!(count(&rows, Outcome::Ok), 5);
    assert!(measured.unsolicited >= 1);
}

#[test]
fn requests_time_out_in_the_queue_without_a_free_connection() {
    let server = Server::start(|_| vec![Step::Ignore]);
    // All at once, so that the waiting requests and the first one time out together.
    let mut plan = open(&server, 1_000_000.0, 1, 20);
    plan.timeout = Some(Duration::from_millis(60));
    set(&mut plan, Arrivals::Constant, 100);
    let (rows, _) = run(&plan);
    assert_eq!(count(&rows, Outcome::TimedOut), 20);
    assert!(rows.iter().all(|row| row.response_ns() >= 60 * MS));
    let unsent = |row: &&Row| row.connection == u32::MAX && row.lag_ns() >= 60 * MS;
    assert!(rows.iter().filter(unsent).count() >= 10);
    assert!(server.requests().len() <= 10);
}

#[test]
fn arrivals_that_were_due_become_rows_when_the_loop_is_behind_at_the_end() {
    let server = Server::start(|_| vec![Step::Ignore]);
    // More than any loop can start: when it is stopped it has a backlog, and then no time for it.
    let mut plan = open(&server, 10_000_000.0, 1, 1_000_000_000);
    plan.timeout = None;
    set(&mut plan, Arrivals::Constant, 1);
    let (rows, measured) = run_until(&plan, Some(Box::new(|_| true)));
    assert!(measured.stopped);
    let last = rows.iter().map(|row| row.intended_ns).max().unwrap();
    assert_eq!(last, (rows.len() as u64 - 1) * 100);
    assert!(last >= 99 * MS, "{last}");
}

#[test]
fn backlog_becomes_rows_when_the_observer_stops_an_impossible_rate() {
    let server = Server::start(|_| vec![Step::Ignore]);
    let mut plan = open(&server, 200_000.0, 2, 10_000_000);
    plan.timeout = None;
    set(&mut plan, Arrivals::Constant, 10);
    let (rows, measured) = run_until(&plan, Some(Box::new(|live| live.started > 1000)));
    assert!(measured.stopped);
    assert_eq!(count(&rows, Outcome::Abandoned), 12);
    assert_eq!(count(&rows, Outcome::NoConnection), rows.len() - 12);
    // No due request is missing.
    let last = rows.iter().map(|row| row.intended_ns).max().unwrap();
    assert_eq!(last, (rows.len() as u64 - 1) * 5_000);
}

#[test]
fn warmup_is_marked_by_the_intended_start_when_there_is_one() {
    let server = Server::start(|_| send(response("hello")));
    let mut plan = open(&server, 500.0, 10, 50);
    plan.warmup = Duration::from_millis(100);
    set(&mut plan, Arrivals::Constant, 50);
    let (rows, _) = run(&plan);
    assert!(
        rows.iter()
            .all(|row| row.warmup == (row.intended_ns < 100 * MS))
    );
    assert_eq!(rows.iter().filter(|row| row.warmup).count(), 50);
    assert_eq!(rows.iter().filter(|row| !row.warmup).count(), 50);
}

/// 60 ms of warm-up and 100 ms that are measured, then a cool-down of a minute.
fn cooling_down(server: &Server) -> Plan {
    let mut plan = open(server, 500.0, 10, 50);
    plan.warmup = Duration::from_millis(60);
    (plan.stop.duration, plan.stop.requests) = (Some(Duration::from_millis(100)), None);
    plan.cooldown = Duration::from_secs(60);
    set(&mut plan, Arrivals::Constant, 50);
    plan
}

#[test]
fn cool_down_is_short_when_all_measured_requests_have_their_responses() {
    let server = Server::start(|_| send(response("hello")));
    let (rows, _) = run(&cooling_down(&server));
    assert!(
        rows.iter()
            .all(|row| row.warmup != (60 * MS..160 * MS).contains(&row.intended_ns))
    );
    assert_eq!(rows.iter().filter(|row| !row.warmup).count(), 50);
    // A minute would have 30,000.
    assert!(rows.len() < 10_000, "{}", rows.len());
}

#[test]
fn cool_down_is_offered_until_the_last_measured_request_has_its_response() {
    // 80 requests come before the cool-down, and the first 30 are of the warm-up.
    let requests = AtomicUsize::new(0);
    let server = Server::start(move |_| {
        let mut steps = send(response("hello"));
        if requests.fetch_add(1, Ordering::Relaxed) == 70 {
            steps.insert(0, Step::Wait(Duration::from_millis(300)));
        }
        steps
    });
    let (rows, _) = run(&cooling_down(&server));
    let measured = rows.iter().filter(|row| !row.warmup);
    let answered_ns = measured.map(|row| row.end_ns).max().unwrap();
    let last_ns = rows.iter().map(|row| row.intended_ns).max().unwrap();
    assert!(answered_ns >= 300 * MS, "{answered_ns}");
    assert!(last_ns + 2 * MS >= answered_ns, "{last_ns} {answered_ns}");
}

#[test]
fn warmup_and_late_starts_go_by_the_intended_start_when_requests_are_held_up() {
    let stalled = AtomicBool::new(false);
    let server = Server::start(move |request| {
        let stalls = request.ordinal == 10 && !stalled.swap(true, Ordering::Relaxed);
        let mut steps = send(response("hello"));
        if stalls {
            steps.insert(0, Step::Wait(Duration::from_millis(100)));
        }
        steps
    });
    let mut plan = open(&server, 500.0, 1, 50);
    plan.warmup = Duration::from_millis(60);
    set(&mut plan, Arrivals::Constant, 1000);
    let (rows, measured) = run(&plan);
    // Wanted from 22 ms on and sent after 120 ms: of the warm-up all the same.
    let held_up = |row: &&Row| row.warmup && row.start_ns >= 60 * MS;
    assert!(rows.iter().filter(held_up).count() >= 15);
    let by_intended = |row: &Row| row.warmup == (row.intended_ns < 60 * MS);
    assert!(rows.iter().all(by_intended));
    let late = |row: &&Row| !row.warmup && row.lag_ns() >= MS;
    assert_eq!(
        measured.late_starts,
        rows.iter().filter(late).count() as u64
    );
}

#[test]
fn arrivals_follow_the_schedule_when_the_rate_steps() {
    let server = Server::start(|_| send(response("hello")));
    let mut plan = open(&server, 1.0, 10, 1_000_000);
    let segment = |rate, ms| Segment {
        from_per_s: rate,
        to_per_s: rate,
        length: Duration::from_millis(ms),
    };
    plan.mode = Mode::Open {
        schedule: Schedule {
            segments: vec![segment(100.0, 200), segment(500.0, 200)],
        },
        arrivals: Arrivals::Constant,
        connections_max: 10,
        waiting_max: 1000,
    };
    plan.stop = engine::Stop {
        duration: Some(Duration::from_millis(400)),
        requests: None,
    };
    let (rows, _) = run(&plan);
    let (first, second) = rows
        .iter()
        .partition::<Vec<&Row>, _>(|row| row.intended_ns < 200 * MS);
    assert_eq!((first.len(), second.len()), (20, 100));
}

#[test]
fn plan_is_an_error_when_the_rate_is_zero_or_missing() {
    let server = Server::start(|_| send(response("hello")));
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let mut collector = RowCollector::default();
        let error = engine::run(&open(&server, rate, 1, 1), &mut collector).unwrap_err();
        assert!(
            matches!(error, engine::EngineError::Plan(PlanError::Rate(_))),
            "{rate}: {error}"
        );
        assert!(collector.rows.is_empty() && server.requests().is_empty());
    }
}
