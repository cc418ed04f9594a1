//! Draws the figures about accept policies of the guide, from the simulation.
//!
//! `cargo run -p headway --example accept_control -- responses >
//! docs/research/src/accept-responses.svg`, and `times` and `course` for the others. The simulation
//! is seeded, so the pictures change only with the control law.

use headway_admission::simulation::{AcceptPolicy, Outcome, Sample, Workload, run};
use headway_report::{TimeSeries, time_series_svg};

const SEED: u64 = 1;
const POLICIES: [(&str, AcceptPolicy); 4] = [
    ("auto", AcceptPolicy::Auto),
    ("25", AcceptPolicy::Fixed(25)),
    ("no limit", AcceptPolicy::Fixed(0)),
    ("1", AcceptPolicy::Fixed(1)),
];

/// Small files over select with 10,000 idle connections.
fn workload() -> Workload {
    Workload {
        wait_open_ns: 400,
        idle: 10_000,
        eager: false,
        ..Workload::default()
    }
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("responses") => print!("{}", responses()),
        Some("times") => print!("{}", times()),
        Some("course") => print!("{}", course()),
        _ => {
            eprintln!("accept_control: name a figure: responses, times or course");
            std::process::exit(2);
        }
    }
}

/// Good responses by offered rate, Figure 9's form.
fn responses() -> String {
    let of = workload();
    let rate = |policy, load: f64| {
        let rate = load * of.capacity();
        (
            rate,
            run(&of.at(rate), policy, SEED).responses_per_s(6.0, 12.0),
        )
    };
    let loads: Vec<f64> = (1..=12).map(|step| f64::from(step) / 4.0).collect();
    let series = POLICIES.map(|(name, policy)| {
        let points = loads.iter().map(|load| rate(policy, *load));
        (name, points.collect::<Vec<_>>())
    });
    time_series_svg(&TimeSeries {
        title: "Good responses by offered rate, in the simulation",
        description: "Lines for the batch sizes 1, 25, no limit and auto; auto stays at the top beyond saturation.",
        x_title: "new connections per second, one request each",
        y_title: "good responses per second",
        series: &series,
        level: None,
    })
}

/// 99th percentile of the response times by offered rate: small files, one request per connection,
/// no idle connections, without the beginning.
fn times() -> String {
    let of = Workload {
        seconds: 24.0,
        timed_from_s: 6.0,
        ..Workload::default()
    };
    let p99_ms = |policy, load: f64| {
        let rate = load * of.capacity();
        let outcome = run(&of.at(rate), policy, SEED);
        (rate, outcome.quantile_us(0.99) as f64 / 1e3)
    };
    let loads: Vec<f64> = (1..=12).map(|step| f64::from(step) / 4.0).collect();
    let series = POLICIES.map(|(name, policy)| {
        let points = loads.iter().map(|load| p99_ms(policy, *load));
        (name, points.collect::<Vec<_>>())
    });
    time_series_svg(&TimeSeries {
        title: "Time of 99 % of the good responses by offered rate, in the simulation",
        description: "Beyond saturation the fixed batch sizes rise to more than two seconds; auto stays far below.",
        x_title: "new connections per second, one request each",
        y_title: "milliseconds",
        series: &series,
        level: None,
    })
}

/// A load of 0.5, then of 3, then of 0.5 again, with requests of a millisecond.
fn course() -> String {
    let heavy = Workload {
        request_us: 1_000,
        requests: 5,
        seconds: 40.0,
        ..Workload::default()
    };
    let capacity = heavy.capacity();
    let of = Workload {
        rates: vec![
            (0.0, 0.5 * capacity),
            (5.0, 3.0 * capacity),
            (30.0, 0.5 * capacity),
        ],
        ..heavy
    };
    // Seconds instead of tenths, which show the steps and not the randomness.
    let seconds = |outcome: &Outcome| {
        let samples = outcome.samples.chunks_exact(10);
        let second = |of: &[Sample]| {
            let mean =
                of.iter().map(|sample| sample.responses_per_s).sum::<f64>() / of.len() as f64;
            (of[of.len() - 1].at_s, mean)
        };
        samples.map(second).collect::<Vec<_>>()
    };
    let series = POLICIES.map(|(name, policy)| (name, seconds(&run(&of, policy, SEED))));
    time_series_svg(&TimeSeries {
        title: "Good responses during a threefold overload, in the simulation",
        description: "The load is three times the capacity from second 5 to 30; auto holds its rate.",
        x_title: "seconds",
        y_title: "good responses per second",
        series: &series,
        level: Some((capacity * 5.0, "capacity")),
    })
}
