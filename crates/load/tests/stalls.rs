//! A server that stalls while few connections are allowed: each request that was due has its
//! latency from its intended start, however long it waited for a connection.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use headway_latency::run::description::Verdict;
use headway_load::cli_types::{RateSchedule, RateStep};
use headway_load::engine::{Arrivals, Method};
use headway_load::session::{Demand, Finished, RunContext, Settings, WorkSource};

use crate::support::{Server, Step, response};

const RATE_PER_S: f64 = 100.0;
const REQUESTS: u32 = 150;

/// Stalls as milliseconds from the first request: begin and end.
type Stalls = &'static [(u64, u64)];

const PATTERNS: [(Stalls, u64); 5] = [
    (&[(500, 1_100)], 3_000),
    (&[(200, 400), (600, 800), (1_000, 1_200)], 3_000),
    (&[(0, 700)], 3_000),
    (&[(900, 1_900)], 3_000),
    // The timeout passes in the stall: what waits then has at least the timeout as its latency.
    (&[(100, 1_300)], 500),
];

/// Answers at once, except during a stall, when all of its connections wait for the end.
fn stalling(stalls: Stalls) -> Server {
    let begun = Arc::new(OnceLock::new());
    Server::start(move |_| {
        let begun: &Instant = begun.get_or_init(Instant::now);
        let now_ms = begun.elapsed().as_millis() as u64;
        let stall = stalls
            .iter()
            .find(|(from, to)| (*from..*to).contains(&now_ms));
        let wait = stall.map(|(_, to)| Step::Wait(Duration::from_millis(to - now_ms)));
        wait.into_iter()
            .chain([Step::Send(response("hello"))])
            .collect()
    })
}

fn measure(stalls: Stalls, timeout_ms: u64, connections: u32) -> Finished {
    let server = stalling(stalls);
    let headway_load::engine::Address::Inet(address) = server.address else {
        panic!("it listens on a port");
    };
    let step = RateStep {
        from: RATE_PER_S,
        to: RATE_PER_S,
        length: Duration::from_secs(1),
    };
    let settings = Settings {
        urls: vec![format!("http://{address}/").parse().unwrap()],
        work: WorkSource::Addresses,
        method: Method::Get,
        headers: Vec::new(),
        body: Vec::new(),
        host: None,
        unix_socket: None,
        tls: Default::default(),
        protocol: Default::default(),
        proxy_version: None,
        directories: None,
        demand: Demand::Open {
            schedule: RateSchedule(vec![step]),
            arrivals: Arrivals::Constant,
        },
        connections: Some(connections),
        requests_per_connection: None,
        timeout: Some(Duration::from_millis(timeout_ms)),
        think: Duration::ZERO,
        first_pause: Duration::ZERO,
        bandwidth_bits_per_s: None,
        warmup: None,
        cooldown: Duration::ZERO,
        duration: None,
        requests: Some(REQUESTS.into()),
        seed: 1,
        sources: Vec::new(),
        verify: false,
        cookies: false,
        agent: None,
        label: None,
        threads: Some(1),
        cpus: Vec::new(),
        command: Vec::new(),
    };
    let prepared = settings.prepare().unwrap();
    prepared.run(None, &RunContext::default()).unwrap()
}

/// The least latencies that are possible, ascending, in milliseconds: a request which is due in a
/// stall ends after it, or times out.
fn least_ms(stalls: Stalls, timeout_ms: u64) -> Vec<f64> {
    let due = (0..REQUESTS).map(|number| f64::from(number) * 1e3 / RATE_PER_S);
    let least = due.map(|due_ms| {
        let stall = stalls
            .iter()
            .find(|(from, to)| (*from as f64..*to as f64).contains(&due_ms));
        stall.map_or(0.0, |(_, to)| (*to as f64 - due_ms).min(timeout_ms as f64))
    });
    let mut least: Vec<f64> = least.collect();
    least.sort_by(f64::total_cmp);
    least
}

#[test]
fn percentiles_have_the_stall_or_are_withheld_whatever_the_connections() {
    for connections in [1, 2, 8, 64] {
        std::thread::scope(|scope| {
            for (stalls, timeout_ms) in PATTERNS {
                scope.spawn(move || check(stalls, timeout_ms, connections));
            }
        });
    }
}

fn check(stalls: Stalls, timeout_ms: u64, connections: u32) {
    let finished = measure(stalls, timeout_ms, connections);
    let of = format!(
        "{stalls:?}, {connections} connections: {:?}",
        finished.analysis.errors
    );
    let Some(response) = &finished.analysis.response else {
        let verdict = finished.description.client.unwrap().verdict;
        return assert_eq!(verdict, Verdict::Invalid, "{of}");
    };
    assert_eq!(response.requests, u64::from(REQUESTS), "{of}");
    let least_ms = least_ms(stalls, timeout_ms);
    for (percent, found_us) in [
        (50, response.p50_us),
        (75, response.p75_us),
        (90, response.p90_us),
        (95, response.p95_us),
        (99, response.p99_us),
    ] {
        // The clock of the server begins with its first request, a little after the schedule's; one
        // arrival more or less may be in a stall.
        let at = (REQUESTS as usize * percent / 100).saturating_sub(3);
        let least_us = least_ms[at] * 1e3 - 20_000.0;
        assert!(
            found_us >= least_us,
            "p{percent} {found_us} < {least_us}: {of}"
        );
    }
}
