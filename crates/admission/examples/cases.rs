//! Prints one line per simulated case, to compare before and after a change of the control law.
//!
//! `cargo run --release -p headway-admission --example cases > before`. The last column is a digest
//! of the whole outcome, so lines that do not differ are cases that did not change at all.

use std::hash::{DefaultHasher, Hash, Hasher};

use headway_admission::simulation::{AcceptPolicy, Outcome, ReturningClients, Workload, run};

fn main() {
    println!(
        "workload filter load policy seed good/s p50_s p99_s late lost no_room rejected digest"
    );
    for (name, of) in workloads() {
        for (filter, stateful_filter, linear_syns) in [
            ("stateful", true, true),
            ("classic", false, true),
            ("classic,old-kernel", false, false),
        ] {
            let of = Workload {
                stateful_filter,
                linear_syns,
                seconds: 18.0,
                timed_from_s: 6.0,
                ..of.clone()
            };
            for (load, of) in loads(&of) {
                for (policy, accept) in [
                    ("auto", AcceptPolicy::Auto),
                    ("rejecting", AcceptPolicy::Rejecting),
                ] {
                    for seed in [1, 2026] {
                        let outcome = run(&of, accept, seed);
                        println!(
                            "{name} {filter} {load} {policy} {seed} {}",
                            figures(&outcome)
                        );
                    }
                }
            }
        }
    }
}

fn figures(of: &Outcome) -> String {
    let soon = of.times_us.partition_point(|us| *us < 1_000_000);
    let late = 1.0 - soon as f64 / of.times_us.len().max(1) as f64;
    let lost = of.connected_timed_out as f64 / of.connected.max(1) as f64;
    let mut digest = DefaultHasher::new();
    format!("{of:?}").hash(&mut digest);
    format!(
        "{:.1} {:.3} {:.3} {late:.4} {lost:.4} {} {} {:016x}",
        of.responses_per_s(6.0, 18.0),
        of.quantile_us(0.5) as f64 / 1e6,
        of.quantile_us(0.99) as f64 / 1e6,
        of.queue_full,
        of.rejected,
        digest.finish()
    )
}

/// Constant loads, and one with two bursts. Clients that return are their own load.
fn loads(of: &Workload) -> Vec<(String, Workload)> {
    if of.returning.is_some() {
        return vec![("returning".into(), of.clone())];
    }
    let capacity = of.capacity();
    let constant = [0.5, 0.9, 1.1, 3.0, 10.0];
    let mut loads: Vec<_> = constant
        .map(|load| (load.to_string(), of.at(load * capacity)))
        .into();
    let bursts = [(0.0, 0.5), (4.0, 5.0), (6.0, 0.5), (10.0, 2.0), (12.0, 0.7)];
    let rates = bursts.map(|(from_s, load)| (from_s, load * capacity));
    loads.push((
        "bursts".into(),
        Workload {
            rates: rates.into(),
            ..of.clone()
        },
    ));
    loads
}

fn workloads() -> Vec<(&'static str, Workload)> {
    let small = Workload::default();
    let heavy = Workload {
        request_us: 1_000,
        requests: 5,
        ..small.clone()
    };
    let quota = |requests| Workload {
        requests,
        accept_us: 14,
        request_us: 20,
        wait_us: 5,
        cpu_quota: Some((1_000, 40_000)),
        cpu_jitter: 0.4,
        ..small.clone()
    };
    let deferred = |accept_us, request_us| Workload {
        accept_us,
        request_us,
        wait_us: 5,
        eager: false,
        deferred: false,
        backlog: 2048,
        ..small.clone()
    };
    let returning = |of: &Workload| Workload {
        returning: Some(ReturningClients {
            clients: (3.0 * of.capacity()) as u32,
            think_us: 1_000_000,
            retry_after_us: vec![1_000_000, 2_000_000, 3_000_000],
        }),
        ..of.clone()
    };
    let persistent = Workload {
        requests: 5,
        ..small.clone()
    };
    let select = Workload {
        backlog: 4096,
        wait_open_ns: 400,
        idle: 10_000,
        eager: false,
        ..small.clone()
    };
    let pooled = Workload {
        pooled: true,
        requests: 5,
        request_us: 30,
        accept_us: 20,
        wait_us: 5,
        cpu_quota: Some((1_000, 25_000)),
        ..small.clone()
    };
    vec![
        ("returning-small", returning(&small)),
        ("returning-heavy", returning(&heavy)),
        ("persistent", persistent),
        ("select", select),
        ("pooled", pooled),
        ("quota", quota(1)),
        ("quota-persistent", quota(5)),
        ("deferred-cheap", deferred(4, 50)),
        ("deferred-expensive", deferred(8, 600)),
        ("small", small),
        ("heavy", heavy),
    ]
}
