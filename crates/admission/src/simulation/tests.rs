//! The controller compared with fixed batch sizes, on loads at which those differ.

mod returning;

use super::*;

const SEEDS: [u64; 2] = [1, 2026];

/// Small files from memory, one request per connection.
fn small() -> Workload {
    Workload::default()
}

/// Five requests per connection.
fn persistent() -> Workload {
    Workload {
        requests: 5,
        ..small()
    }
}

/// Requests of 1 ms, as for larger files or on a slow machine.
fn heavy() -> Workload {
    Workload {
        request_us: 1_000,
        requests: 5,
        ..small()
    }
}

/// Event waits that cost time for each of many idle connections, as with select, and no eager
/// reads. 600 connections come per iteration, so half of a queue of 1,024 would be too short.
fn crowded_select() -> Workload {
    Workload {
        backlog: 4096,
        wait_open_ns: 400,
        idle: 10_000,
        eager: false,
        ..small()
    }
}

/// Requests over pooled connections, for a server with a CPU quota of 1 ms in 25 ms.
fn pooled() -> Workload {
    Workload {
        pooled: true,
        requests: 5,
        request_us: 30,
        accept_us: 20,
        wait_us: 5,
        cpu_quota: Some((1_000, 25_000)),
        ..small()
    }
}

fn workloads() -> [(&'static str, Workload); 4] {
    [
        ("small", small()),
        ("persistent", persistent()),
        ("heavy", heavy()),
        ("crowded select", crowded_select()),
    ]
}

/// Responses per second after the start, and the outcome.
fn goodput(of: &Workload, load: f64, policy: AcceptPolicy, seed: u64) -> (f64, Outcome) {
    let outcome = run(&of.at(load * of.capacity()), policy, seed);
    (outcome.responses_per_s(6.0, 12.0), outcome)
}

/// Highest goodput of a policy at any load.
fn peak(of: &Workload, policy: AcceptPolicy, seed: u64) -> f64 {
    let loads = [0.9, 1.0, 1.1];
    let rates = loads.map(|load| goodput(of, load, policy, seed).0);
    rates.into_iter().fold(0.0, f64::max)
}

/// All workloads, and small files with a CPU quota on a jittering CPU.
fn workloads_and_jitter() -> Vec<(&'static str, Workload)> {
    let with_quota = |requests| Workload {
        requests,
        accept_us: 14,
        request_us: 20,
        wait_us: 5,
        cpu_quota: Some((1_000, 40_000)),
        cpu_jitter: 0.4,
        ..small()
    };
    let jitter = [
        ("jitter", with_quota(1)),
        ("jitter, persistent", with_quota(5)),
    ];
    workloads().into_iter().chain(jitter).collect()
}

#[test]
fn goodput_stays_at_its_peak_at_three_times_the_capacity() {
    for (name, of) in workloads() {
        let kernels = [(true, 1024), (true, 4096), (false, 1024)];
        for (seed, (linear_syns, backlog)) in SEEDS.into_iter().cycle().zip(kernels) {
            let of = Workload {
                linear_syns,
                backlog: of.backlog.max(backlog),
                // Until the controller knows what can be served it may admit too few, and the
                // others retransmit.
                timed_from_s: 6.0,
                ..of.clone()
            };
            let peak = peak(&of, AcceptPolicy::Auto, seed);
            let of = Workload {
                seconds: 18.0,
                ..of
            };
            let (rate, outcome) = goodput(&of, 3.0, AcceptPolicy::Auto, seed);
            assert!(rate >= 0.95 * peak, "{name}: {rate:.0} of {peak:.0}");
            let lost = outcome.connected_timed_out as f64 / outcome.connected as f64;
            assert!(lost < 0.01, "{name}: {lost:.3} of the connected timed out");
            let late_us = outcome.quantile_us(0.99);
            assert!(
                late_us <= CLIENT_TIMEOUT_US / 2,
                "{name}, {seed}: 99 % within {late_us} us"
            );
        }
    }
}

#[test]
fn accept_queue_has_room_for_admitted_clients_with_pooled_connections() {
    let of = Workload {
        seconds: 30.0,
        ..pooled().at(3.0 * pooled().capacity())
    };
    let beginning = Workload {
        seconds: 8.0,
        ..of.clone()
    };
    for seed in [1, 2, 3, 4] {
        let outcome = run(&of, AcceptPolicy::Auto, seed);
        let rate = outcome.responses_per_s(8.0, 30.0);
        assert!(rate >= 0.97 * of.capacity(), "{rate:.0}");
        let early = run(&beginning, AcceptPolicy::Auto, seed);
        // While it learns, and afterwards until the queue that filled meanwhile is served.
        let share = early.queue_full as f64 / early.connected as f64;
        assert!(share < 1.7, "{seed}: {share:.2} found no room at first");
        let connected = (outcome.connected - early.connected) as f64;
        let share = (outcome.queue_full - early.queue_full) as f64 / connected;
        assert!(share < 0.03, "{seed}: {share:.3} found no room");
        let lost = outcome.connected_timed_out - early.connected_timed_out;
        let share = lost as f64 / connected;
        assert!(
            share < 0.01,
            "{seed}: {share:.3} of the connected timed out"
        );
        for count in [1, 25, 100, 0] {
            let fixed = run(&of, AcceptPolicy::Fixed(count), seed).responses_per_s(8.0, 30.0);
            assert!(fixed < 0.85 * rate, "{count}: {fixed:.0} of {rate:.0}");
        }
    }
}

#[test]
fn few_clients_are_admitted_late_when_overload_is_constant() {
    let steady = Workload {
        seconds: 40.0,
        timed_from_s: 8.0,
        ..small()
    };
    let unsteady = Workload {
        accept_us: 14,
        request_us: 20,
        wait_us: 5,
        cpu_quota: Some((1_000, 40_000)),
        cpu_jitter: 0.4,
        ..steady.clone()
    };
    for (of, most) in [(steady, 0.007), (unsteady, 0.021)] {
        let late = SEEDS.map(|seed| {
            let outcome = run(&of.at(3.0 * of.capacity()), AcceptPolicy::Auto, seed);
            let soon = outcome
                .times_us
                .partition_point(|us| *us < SYN_RETRANSMIT_US);
            1.0 - soon as f64 / outcome.times_us.len() as f64
        });
        let mean = late.iter().sum::<f64>() / late.len() as f64;
        assert!(
            mean < most,
            "{:?}: {late:.4?} after their first SYN",
            of.cpu_quota
        );
    }
}

#[test]
fn no_client_is_admitted_late_with_a_stateful_filter() {
    for (name, of) in workloads_and_jitter() {
        for (seed, linear_syns) in SEEDS.into_iter().zip([true, false]) {
            let of = Workload {
                stateful_filter: true,
                linear_syns,
                seconds: 24.0,
                timed_from_s: 6.0,
                ..of.clone()
            };
            let at = |load: f64| {
                let outcome = run(&of.at(load * of.capacity()), AcceptPolicy::Auto, seed);
                (outcome.responses_per_s(6.0, 24.0), outcome)
            };
            let peak = [0.9, 1.0, 1.1].map(|load| at(load).0);
            let peak = peak.into_iter().fold(0.0, f64::max);
            let (rate, outcome) = at(3.0);
            assert!(rate >= 0.95 * peak, "{name}: {rate:.0} of {peak:.0}");
            let lost = outcome.connected_timed_out as f64 / outcome.connected as f64;
            assert!(lost < 0.01, "{name}: {lost:.3} of the connected timed out");
            let late_us = outcome.quantile_us(0.99);
            assert!(late_us <= 1_000_000, "{name}, {seed}: {late_us} us");
        }
    }
}

#[test]
fn goodput_stays_at_thirty_times_the_capacity() {
    for (name, of) in [("heavy", heavy()), ("persistent", persistent())] {
        let of = Workload {
            stateful_filter: true,
            seconds: 16.0,
            ..of
        };
        let three = goodput(&of, 3.0, AcceptPolicy::Auto, 1).0;
        for load in [10.0, 30.0] {
            let (rate, outcome) = goodput(&of, load, AcceptPolicy::Auto, 1);
            assert!(
                rate >= 0.95 * three,
                "{name}, {load}: {rate:.0} of {three:.0}"
            );
            // A queue that filled before anything was learned is seconds of work.
            let beginning = Workload {
                seconds: 8.0,
                ..of.clone()
            };
            let (_, early) = goodput(&beginning, load, AcceptPolicy::Auto, 1);
            let lost = (outcome.connected_timed_out - early.connected_timed_out) as f64
                / (outcome.connected - early.connected) as f64;
            assert!(
                lost < 0.01,
                "{name}, {load}: {lost:.3} of the connected timed out"
            );
        }
    }
}

#[test]
fn accept_queue_has_room_for_admitted_clients_with_deferred_service() {
    // Like the micro-servers: accepting is cheap, and the work follows in the next iteration.
    let cheap = Workload {
        accept_us: 4,
        request_us: 50,
        wait_us: 5,
        eager: false,
        deferred: false,
        stateful_filter: true,
        backlog: 2048,
        seconds: 18.0,
        ..small()
    };
    let expensive = Workload {
        accept_us: 8,
        request_us: 600,
        ..cheap.clone()
    };
    for (name, of) in [("cheap", cheap), ("expensive", expensive)] {
        let of = of.at(3.0 * of.capacity());
        let outcome = run(&of, AcceptPolicy::Auto, 1);
        let rate = outcome.responses_per_s(8.0, 18.0);
        assert!(rate >= 0.97 * of.capacity(), "{name}: {rate:.0}");
        // The queue is full before anything is learned.
        let beginning = Workload { seconds: 8.0, ..of };
        let dropped = outcome.queue_full - run(&beginning, AcceptPolicy::Auto, 1).queue_full;
        assert_eq!(dropped, 0, "{name}");
    }
}

#[test]
fn most_clients_are_served_after_their_first_syn_when_a_fraction_is_admitted() {
    let of = Workload {
        deferred: false,
        ..small()
    };
    let soon = |policy| {
        let (_, outcome) = goodput(&of, 3.0, policy, 1);
        let soon = outcome
            .times_us
            .partition_point(|us| *us < SYN_RETRANSMIT_US);
        soon as f64 / outcome.times_us.len() as f64
    };
    assert!(soon(AcceptPolicy::Auto) > 0.95);
    // Where only a full queue rejects, most served clients have sent two or three SYNs.
    let by_full_queue = soon(AcceptPolicy::Fixed(25));
    assert!(by_full_queue < 0.6, "{by_full_queue:.2}");
}

#[test]
fn deferred_connections_time_out_unseen_when_the_queue_is_full() {
    let share = |deferred| {
        let of = Workload {
            backlog: 50,
            deferred,
            ..heavy()
        };
        let (_, outcome) = goodput(&of, 3.0, AcceptPolicy::Fixed(25), 1);
        outcome.connected_timed_out as f64 / outcome.connected as f64
    };
    let (kept_back, at_once) = (share(true), share(false));
    assert!(kept_back > 0.05, "{kept_back:.3}");
    assert!(at_once < 0.5 * kept_back, "{at_once:.3}");
}

#[test]
fn no_client_times_out_when_all_can_be_served() {
    for (name, of) in workloads() {
        for load in [0.5, 0.8] {
            let (_, outcome) = goodput(&of, load, AcceptPolicy::Auto, 1);
            // Clients of the last moments are still being served.
            let lost = outcome.clients - outcome.first_answer_us.len() as u64;
            let last = of.capacity() * load * 0.2;
            assert!((lost as f64) < last, "{name} at {load}: {lost}");
            let all = outcome
                .samples
                .iter()
                .all(|sample| sample.admit_fraction == 1.0);
            assert!(all, "{name} at {load}: all SYNs are admitted");
            assert_eq!(outcome.connected_timed_out, 0, "{name} at {load}");
        }
    }
}

#[test]
fn no_fixed_batch_is_better_at_three_times_the_capacity() {
    for (name, of) in workloads() {
        let (auto, _) = goodput(&of, 3.0, AcceptPolicy::Auto, 1);
        for count in [1, 25, 100, 0] {
            let (fixed, _) = goodput(&of, 3.0, AcceptPolicy::Fixed(count), 1);
            assert!(
                auto >= 0.98 * fixed,
                "{name}: {auto:.0}, {count}: {fixed:.0}"
            );
        }
    }
}

#[test]
fn some_fixed_batch_is_much_worse_when_the_workload_differs() {
    // The tests above are meaningful only if the simulation shows differences between policies.
    let (auto, _) = goodput(&crowded_select(), 3.0, AcceptPolicy::Auto, 1);
    let (one, _) = goodput(&crowded_select(), 3.0, AcceptPolicy::Fixed(1), 1);
    assert!(one < 0.1 * auto, "Accept1 {one:.0} of {auto:.0}");
    // Established connections accumulate until their clients time out.
    let long = Workload {
        seconds: 25.0,
        ..heavy().at(3.0 * heavy().capacity())
    };
    let of = |policy| run(&long, policy, 1).responses_per_s(15.0, 25.0);
    let (auto, all) = (of(AcceptPolicy::Auto), of(AcceptPolicy::Fixed(0)));
    assert!(all < 0.95 * auto, "AcceptInf {all:.0} of {auto:.0}");
}

#[test]
fn latency_at_half_load_is_that_of_a_batch_of_25() {
    for (name, of) in workloads() {
        let (auto, with) = goodput(&of, 0.5, AcceptPolicy::Auto, 1);
        let (fixed, without) = goodput(&of, 0.5, AcceptPolicy::Fixed(25), 1);
        assert!(
            (auto / fixed - 1.0).abs() < 0.02,
            "{name}: {auto:.0}, {fixed:.0}"
        );
        let (auto, fixed) = (with.quantile_us(0.99), without.quantile_us(0.99));
        assert!(
            auto as f64 <= 1.05 * fixed as f64,
            "{name}: {auto}, {fixed} us"
        );
    }
}

#[test]
fn goodput_does_not_oscillate_when_overload_is_constant() {
    for (name, of) in workloads() {
        let (mean, outcome) = goodput(&of, 3.0, AcceptPolicy::Auto, 1);
        // An iteration takes at most a tenth of a second, so half a second has several.
        let mut at_s = 6.0;
        while at_s < 12.0 {
            let rate = outcome.responses_per_s(at_s, at_s + 0.5);
            assert!(
                (rate / mean - 1.0).abs() < 0.15,
                "{name}: {rate:.0} of {mean:.0} at {at_s} s"
            );
            at_s += 0.5;
        }
    }
}

#[test]
fn goodput_recovers_after_an_overload() {
    for (name, of) in workloads() {
        let capacity = of.capacity();
        let steps = vec![
            (0.0, 0.5 * capacity),
            (4.0, 5.0 * capacity),
            (6.0, 0.5 * capacity),
        ];
        let outcome = run(
            &Workload {
                rates: steps,
                // The last clients send their last SYN two seconds later, and may wait one
                // more second.
                seconds: 14.0,
                ..of.clone()
            },
            AcceptPolicy::Auto,
            1,
        );
        let (before, after) = (
            outcome.responses_per_s(1.0, 4.0),
            outcome.responses_per_s(11.0, 14.0),
        );
        assert!(
            (after / before - 1.0).abs() < 0.15,
            "{name}: {before:.0}, then {after:.0}"
        );
        let last = outcome.samples.last().unwrap();
        assert_eq!(last.backlog, of.backlog, "{name}: room for a burst again");
        assert!(last.batch_size > 1, "{name}");
        assert_eq!(
            last.admit_fraction, 1.0,
            "{name}: all SYNs are admitted again"
        );
    }
}

#[test]
fn simulation_is_deterministic_for_a_seed() {
    let of = heavy().at(500.0);
    let same = run(&of, AcceptPolicy::Auto, 5);
    assert_eq!(run(&of, AcceptPolicy::Auto, 5), same);
    assert_ne!(run(&of, AcceptPolicy::Auto, 6), same);
}

/// Most clients are answered within a second with load shedding, and few without it.
fn expect_answers_soon(without: &Outcome, rejecting: &Outcome) {
    let [before, after] = [without, rejecting].map(|outcome| answered_within(outcome, 1_000_000));
    assert!(before < 0.6, "{before:.2} were answered without rejections");
    assert!(after > 0.9, "{after:.2} were answered");
}

/// Fraction of the clients that were answered within this time.
fn answered_within(outcome: &Outcome, us: u64) -> f64 {
    let answered = outcome
        .first_answer_us
        .partition_point(|answer_us| *answer_us <= us);
    answered as f64 / outcome.clients as f64
}

#[test]
fn most_clients_are_answered_soon_with_load_shedding() {
    // Where a request is expensive, a rejection is cheap. At three times the capacity most clients
    // are never connected otherwise.
    let of = Workload {
        seconds: 24.0,
        ..heavy().at(3.0 * heavy().capacity())
    };
    for seed in SEEDS {
        let (waiting, rejecting) = (
            run(&of, AcceptPolicy::Auto, seed),
            run(&of, AcceptPolicy::Rejecting, seed),
        );
        expect_answers_soon(&waiting, &rejecting);
        // Goodput falls by what rejections cost, and no more.
        let (served, less) = (
            waiting.responses_per_s(6.0, 12.0),
            rejecting.responses_per_s(6.0, 12.0),
        );
        assert!(less >= 0.8 * served, "{less:.0} of {served:.0}");
        let lost = rejecting.connected_timed_out as f64 / rejecting.connected as f64;
        assert!(lost < 0.01, "{lost:.3} of the connected timed out");
    }
}

#[test]
fn rejections_take_limited_time_when_they_cost_as_much_as_responses() {
    // Also with short iterations because of a CPU quota.
    let quota = Workload {
        cpu_quota: Some((1_000, 25_000)),
        ..small()
    };
    for of in [small(), quota] {
        let (waiting, _) = goodput(&of, 3.0, AcceptPolicy::Auto, 1);
        let (rejecting, outcome) = goodput(&of, 3.0, AcceptPolicy::Rejecting, 1);
        assert!(
            rejecting >= 0.75 * waiting,
            "{rejecting:.0} of {waiting:.0}"
        );
        assert!(outcome.rejected > 0);
    }
}

#[test]
fn load_shedding_rejects_nothing_below_the_capacity() {
    for (name, of) in workloads() {
        for load in [0.5, 0.8] {
            let (_, outcome) = goodput(&of, load, AcceptPolicy::Rejecting, 1);
            assert_eq!(outcome.rejected, 0, "{name} at {load}");
        }
        // Near the capacity there is a random overload of a second now and then.
        let (_, outcome) = goodput(&of, 0.9, AcceptPolicy::Rejecting, 1);
        let share = outcome.rejected as f64 / outcome.clients as f64;
        assert!(share < 0.01, "{name} at 0.9: {share:.3}");
        // A burst: twice as much for a tenth of a second, in every second.
        let capacity = of.capacity();
        let rates = (0..8).flat_map(|at| {
            let at_s = f64::from(at);
            [
                (at_s, 0.4 * capacity),
                (at_s + 0.7, 2.0 * capacity),
                (at_s + 0.8, 0.4 * capacity),
            ]
        });
        let burst = Workload {
            rates: rates.collect(),
            seconds: 8.0,
            ..of.clone()
        };
        assert_eq!(
            run(&burst, AcceptPolicy::Rejecting, 1).rejected,
            0,
            "{name}"
        );
    }
}

#[test]
fn load_shedding_rejects_nothing_after_an_overload() {
    for (name, of) in workloads() {
        let capacity = of.capacity();
        let steps = Workload {
            rates: vec![
                (0.0, 0.5 * capacity),
                (3.0, 4.0 * capacity),
                (7.0, 0.5 * capacity),
            ],
            // The last clients send their last SYN two seconds later, and are admitted little by
            // little.
            seconds: 12.0,
            ..of.clone()
        };
        let longer = Workload {
            seconds: 16.0,
            ..steps.clone()
        };
        let (until, after) = (
            run(&steps, AcceptPolicy::Rejecting, 1).rejected,
            run(&longer, AcceptPolicy::Rejecting, 1).rejected,
        );
        assert!(until > 0, "{name}");
        assert_eq!(until, after, "{name}: five seconds after its end");
    }
}
