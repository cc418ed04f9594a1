//! The closed loop, and what both loops share: targets, sources, sockets, bandwidth, plans that are
//! refused.

use crate::support;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, TcpListener};
use std::time::Duration;

use headway_latency::Outcome;
use headway_load::engine::{
    self, Address, Document, Plan, PlanError, Schedule, Sources, Stage, Stop, Target, Work,
};
use headway_test_support::skip;
use support::{
    RowCollector, Server, Step, closed, closed_to, count, outcomes, response, run, run_until, send,
};

#[test]
fn client_reuses_its_connection_when_the_server_keeps_it_alive() {
    let server = Server::start(|_| send(response("hello")));
    let mut plan = closed(&server, 400);
    plan.mode = engine::Mode::Closed { connections: 8 };
    let (rows, measured) = run(&plan);
    assert_eq!(count(&rows, Outcome::Ok), 400);
    assert_eq!(
        (measured.connections_opened, measured.connections_peak),
        (8, 8)
    );
    let connections: HashSet<u32> = rows.iter().map(|row| row.connection).collect();
    assert_eq!(connections, (0..8).collect());
    // Requests on one connection are sequential.
    let mut before: HashMap<u32, (u32, u64)> = HashMap::new();
    for row in &rows {
        let (ordinal, end_ns) = before
            .get(&row.connection)
            .map_or((0, 0), |&(n, end)| (n + 1, end));
        assert_eq!(row.ordinal, ordinal);
        assert!(row.start_ns >= end_ns);
        before.insert(row.connection, (row.ordinal, row.end_ns));
    }
}

#[test]
fn connection_is_closed_when_it_has_carried_its_requests() {
    let server = Server::start(|_| send(response("hello")));
    let mut plan = closed(&server, 23);
    plan.requests_per_connection = Some(5);
    let (rows, measured) = run(&plan);
    assert_eq!(count(&rows, Outcome::Ok), 23);
    assert_eq!(measured.connections_opened, 5);
    assert!(
        server
            .requests()
            .iter()
            .all(|request| request.last == (request.ordinal == 4))
    );
}

#[test]
fn connection_is_closed_when_the_response_says_close() {
    let server = Server::start(|_| {
        send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
    });
    let (rows, measured) = run(&closed(&server, 4));
    assert_eq!(outcomes(&rows), [Outcome::Ok; 4]);
    assert_eq!((measured.connections_opened, measured.retried), (4, 0));
}

#[test]
fn client_pauses_for_the_think_time_between_response_and_request() {
    let server = Server::start(|request| match request.ordinal {
        // Closes while the client thinks, which is no error.
        1 => vec![Step::Send(response("hello")), Step::Close],
        _ => send(response("hello")),
    });
    let mut plan = closed(&server, 5);
    plan.think = Duration::from_millis(15);
    let (rows, _) = run(&plan);
    assert_eq!(outcomes(&rows), [Outcome::Ok; 5]);
    for pair in rows.windows(2) {
        assert_eq!(pair[1].intended_ns, pair[0].end_ns + 15_000_000);
    }
}

#[test]
fn client_waits_for_the_first_pause_after_connecting() {
    let server = Server::start(|_| send(response("hello")));
    let mut plan = closed(&server, 6);
    plan.requests_per_connection = Some(3);
    plan.first_pause = Duration::from_millis(30);
    let (rows, measured) = run(&plan);
    assert_eq!(outcomes(&rows), [Outcome::Ok; 6]);
    assert_eq!(measured.connections_opened, 2);
    let took_ns = |at: usize| rows[at].end_ns - rows[at].start_ns;
    for first in [0, 3] {
        assert!(took_ns(first) >= 30_000_000, "{}", took_ns(first));
    }
    // A client whose pause is longer than its timeout has a connection all the same.
    plan.timeout = Some(Duration::from_millis(10));
    let (rows, _) = run(&plan);
    assert_eq!(outcomes(&rows), [Outcome::TimedOut; 6]);
}

#[test]
fn documents_are_requested_in_turn_by_default() {
    let server = Server::start(|_| send(response("hello")));
    let mut plan = closed(&server, 5);
    plan.work = Work::paths(["/a", "/b?c", "/d"]);
    run(&plan);
    let paths: Vec<String> = server
        .requests()
        .into_iter()
        .map(|request| request.path)
        .collect();
    assert_eq!(paths, ["/a", "/b?c", "/d", "/a", "/b?c"]);
}

#[test]
fn run_ends_by_its_duration_after_the_warmup() {
    let server = Server::start(|_| {
        vec![
            Step::Wait(Duration::from_millis(2)),
            Step::Send(response("hello")),
        ]
    });
    let mut plan = closed(&server, 1);
    plan.warmup = Duration::from_millis(60);
    plan.stop = Stop {
        duration: Some(Duration::from_millis(60)),
        requests: None,
    };
    let (rows, measured) = run(&plan);
    assert!(
        rows.iter()
            .all(|row| row.warmup == (row.intended_ns < 60_000_000))
    );
    assert!(rows.iter().all(|row| row.intended_ns < 120_000_000));
    assert!(rows.iter().any(|row| row.warmup) && rows.iter().any(|row| !row.warmup));
    assert!(measured.elapsed_ns >= 120_000_000 && !measured.stopped);
}

#[test]
fn observer_sees_the_stages_and_can_stop_the_run() {
    let server = Server::start(|_| {
        vec![
            Step::Wait(Duration::from_millis(1)),
            Step::Send(response("hello")),
        ]
    });
    let mut plan = closed(&server, 1);
    plan.stop = Stop::default();
    plan.warmup = Duration::from_millis(150);
    let stop = Box::new(|live: &engine::Live| {
        assert!(live.done <= live.started && live.errors == 0 && live.connections == 1);
        live.stage == Stage::Measuring
    });
    let (rows, measured) = run_until(&plan, Some(stop));
    assert!(measured.stopped);
    assert_eq!(count(&rows, Outcome::Ok), rows.len());
    assert!(!rows.is_empty());
}

#[test]
fn targets_share_by_weight_when_there_are_several() {
    let servers = [
        Server::start(|_| send(response("hello"))),
        Server::start(|_| send(response("hello"))),
    ];
    let mut plan = closed_to(servers[0].target(), 40);
    plan.targets[0].weight = 3;
    plan.targets.push(servers[1].target());
    // A new connection for every request, so that each chooses its target again.
    plan.requests_per_connection = Some(1);
    let (rows, _) = run(&plan);
    assert_eq!(count(&rows, Outcome::Ok), 40);
    assert_eq!(
        (servers[0].requests().len(), servers[1].requests().len()),
        (30, 10)
    );
    assert_eq!(rows.iter().filter(|row| row.target == 1).count(), 10);
    // An open loop deals every request, whatever connections are there: one at a time here.
    let mut plan = Plan::open(
        servers[0].target(),
        Work::paths(["/"]),
        Schedule::constant(500.0),
        1,
    );
    plan.targets.push(servers[1].target());
    plan.timeout = Some(Duration::from_secs(20));
    plan.stop.requests = Some(20);
    if let engine::Mode::Open { waiting_max, .. } = &mut plan.mode {
        *waiting_max = 100;
    }
    let (rows, measured) = run(&plan);
    assert_eq!(count(&rows, Outcome::Ok), 20);
    assert_eq!(
        (servers[0].requests().len(), servers[1].requests().len()),
        (40, 20)
    );
    assert_eq!(measured.connections_peak, 1);
}

#[test]
fn connections_use_the_source_addresses_in_turn() {
    let server = Server::start(|_| send(response("hello")));
    let mut plan = closed(&server, 4);
    let sources: Vec<IpAddr> = ["127.0.0.7", "127.9.9.9"]
        .map(|ip| ip.parse().unwrap())
        .into();
    plan.targets[0].sources = Sources::List(sources.clone());
    plan.requests_per_connection = Some(1);
    assert_eq!(outcomes(&run(&plan).0), [Outcome::Ok; 4]);
    let from: Vec<IpAddr> = server
        .requests()
        .iter()
        .filter_map(|request| request.from)
        .collect();
    assert_eq!(from, [sources[0], sources[1], sources[0], sources[1]]);
}

/// Needs: IPv6 on the loopback interface
#[test]
fn ipv6_server_is_reached_when_there_is_ipv6() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else {
        return skip(
            "ipv6_server_is_reached_when_there_is_ipv6",
            "no IPv6 loopback",
        );
    };
    let server = Server::listen(listener, |_| send(response("hello")));
    let mut plan = closed(&server, 3);
    assert_eq!(outcomes(&run(&plan).0), [Outcome::Ok; 3]);
    plan.targets[0].sources = Sources::List(vec!["::1".parse().unwrap()]);
    assert_eq!(outcomes(&run(&plan).0), [Outcome::Ok; 3]);
}

#[test]
fn unix_server_is_reached_when_its_path_is_given() {
    let path = std::env::temp_dir().join(format!("headway-load-{}.sock", std::process::id()));
    let body = "x".repeat(300_000);
    let bytes = response(&body);
    let server = Server::unix(&path, move |_| send(bytes.clone()));
    let mut plan = closed(&server, 50);
    plan.mode = engine::Mode::Closed { connections: 10 };
    plan.work.documents = vec![Document {
        size_bytes: Some(300_000),
        ..Document::path("/")
    }];
    plan.requests_per_connection = Some(2);
    let (rows, _) = run(&plan);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(count(&rows, Outcome::Ok), 50);
}

/// Bytes are never earned early, so a lower bound on time holds on any machine.
#[test]
fn response_takes_longer_when_bandwidth_is_limited() {
    let bytes = response(&"x".repeat(25_000));
    let server = Server::start(move |_| send(bytes.clone()));
    let mut plan = closed(&server, 2);
    plan.bandwidth_bits_per_s = Some(800_000);
    let (rows, _) = run(&plan);
    assert_eq!(outcomes(&rows), [Outcome::Ok; 2]);
    // 100,000 bytes per second, with an initial burst of 10,000.
    for row in &rows {
        assert!(row.response_ns() >= 140_000_000, "{row:?}");
        assert_eq!(row.bytes, 25_000);
    }
    assert!(rows[1].end_ns >= 400_000_000, "{rows:?}");
}

/// A change that makes a plan inconsistent.
type Change = fn(&mut Plan);

/// What the message says, and what makes a plan inconsistent.
const INCONSISTENT: &[(&str, Change)] = &[
    ("requests per connection is 0", |plan| {
        plan.requests_per_connection = Some(0)
    }),
    ("0 targets", |plan| plan.targets.clear()),
    ("the number of connections is 0", |plan| {
        plan.mode = engine::Mode::Closed { connections: 0 }
    }),
    (
        "the number of connections is 2000000: at most 1000000",
        |plan| {
            plan.mode = engine::Mode::Closed {
                connections: 2_000_000,
            };
        },
    ),
    ("the timeout is 0", |plan| {
        plan.timeout = Some(Duration::ZERO)
    }),
    ("bandwidth is 0", |plan| plan.bandwidth_bits_per_s = Some(0)),
    ("the number of requests is 0", |plan| {
        plan.stop.requests = Some(0)
    }),
    ("the duration is 0", |plan| {
        plan.stop.duration = Some(Duration::ZERO)
    }),
    ("no document", |plan| plan.work.documents.clear()),
    ("does not begin with /", |plan| {
        plan.work = Work::paths(["index.html"])
    }),
    ("percent-encoded", |plan| plan.work = Work::paths(["/a b"])),
    ("percent-encoded", |plan| {
        plan.work = Work::paths(["/a\r\nX: y"])
    }),
    ("host", |plan| plan.targets[0].host = "a\r\nb".into()),
    ("its name is not an HTTP token", |plan| {
        plan.headers = vec![("a b".into(), "c".into())]
    }),
    ("control character", |plan| {
        plan.headers = vec![("a".into(), "b\r\nc: d".into())]
    }),
    ("has no checksum", |plan| plan.verify = true),
    ("weight", |plan| plan.targets[0].weight = 0),
    ("the list is empty", |plan| {
        plan.targets[0].sources = Sources::List(vec![])
    }),
    ("do not mix", |plan| {
        plan.targets[0].sources = Sources::List(vec!["::1".parse().unwrap()]);
    }),
    ("this machine only", |plan| {
        plan.targets[0] = Target {
            sources: Sources::Loopback,
            ..Target::new(Address::Inet(([192, 0, 2, 1], 80).into()), "host")
        };
    }),
    ("ends in one above 0", |plan| {
        let schedule = Schedule { segments: vec![] };
        *plan = Plan::open(plan.targets[0].clone(), Work::paths(["/"]), schedule, 1);
    }),
];

#[test]
fn plan_is_an_error_when_it_is_inconsistent() {
    let server = Server::start(|_| send(response("hello")));
    for (message, spoil) in INCONSISTENT {
        let mut plan = closed(&server, 1);
        spoil(&mut plan);
        let error = engine::run(&plan, &mut RowCollector::default()).unwrap_err();
        assert!(error.to_string().contains(message), "{message}: {error}");
        assert!(matches!(error, engine::EngineError::Plan(_)));
    }
    assert_eq!(
        PlanError::Rate(0.0).to_string().split(':').next(),
        Some("rate 0 requests/s")
    );
    assert!(server.requests().is_empty());
}
