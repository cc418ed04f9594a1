//! The controller against fixed counts, on loads at which those differ.

mod returning;

use super::*;

const SEEDS: [u64; 2] = [1, 2026];

/// Small files from memory, one request a connection.
fn small() -> Workload {
    Workload::default()
}

/// Five requests a connection.
fn persistent() -> Workload {
    Workload {
        requests: 5,
        ..small()
    }
}

/// Requests of a millisecond, as of larger files or a slow machine.
fn heavy() -> Workload {
    Workload {
        request_us: 1_000,
        requests: 5,
        ..small()
    }
}

/// A wait that is paid for each of many silent connections, as with select; and no eager reads. Six
/// hundred come in a turn, so half of a queue of 1024 would be too little for them.
fn crowded_select() -> Workload {
    Workload {
        queue: 4096,
        wait_open_ns: 400,
        idle: 10_000,
        eager: false,
        ..small()
    }
}

/// Requests that come by themselves and take whichever connection is silent, for a server that has
/// a millisecond of each 25.
fn lent() -> Workload {
    Workload {
        pooled: true,
        requests: 5,
        request_us: 30,
        accept_us: 20,
        wait_us: 5,
        lent: Some((1_000, 25_000)),
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

/// Replies a second once the start is over, and the outcome.
fn goodput(of: &Workload, load: f64, policy: Policy, seed: u64) -> (f64, Outcome) {
    let outcome = run(&of.at(load * of.capacity()), policy, seed);
    (outcome.replies_per_s(6.0, 12.0), outcome)
}

/// The most that a policy gets at any load.
fn peak(of: &Workload, policy: Policy, seed: u64) -> f64 {
    let loads = [0.9, 1.0, 1.1];
    let rates = loads.map(|load| goodput(of, load, policy, seed).0);
    rates.into_iter().fold(0.0, f64::max)
}

/// And small files on a processor that is lent by slices, and another from second to second.
fn unsteady_too() -> Vec<(&'static str, Workload)> {
    let lent = |requests| Workload {
        requests,
        accept_us: 14,
        request_us: 20,
        wait_us: 5,
        lent: Some((1_000, 40_000)),
        unsteady: 0.4,
        ..small()
    };
    let lent = [("unsteady", lent(1)), ("unsteady, persistent", lent(5))];
    workloads().into_iter().chain(lent).collect()
}

#[test]
fn goodput_stays_at_its_peak_when_three_times_as_much_is_asked_for() {
    for (name, of) in workloads() {
        let kernels = [(true, 1024), (true, 4096), (false, 1024)];
        for (seed, (linear_syns, queue)) in SEEDS.into_iter().cycle().zip(kernels) {
            let of = Workload {
                linear_syns,
                queue: of.queue.max(queue),
                // Until the controller knows what can be served it may hear too few, and these
                // knock again.
                timed_from_s: 6.0,
                ..of.clone()
            };
            let peak = peak(&of, Policy::Auto, seed);
            let of = Workload {
                seconds: 18.0,
                ..of
            };
            let (rate, outcome) = goodput(&of, 3.0, Policy::Auto, seed);
            assert!(rate >= 0.95 * peak, "{name}: {rate:.0} of {peak:.0}");
            let lost = outcome.connected_timed_out as f64 / outcome.connected as f64;
            assert!(lost < 0.01, "{name}: {lost:.3} of the connected gave up");
            let late_us = outcome.quantile_us(0.99);
            assert!(
                late_us <= TIMEOUT_US / 2,
                "{name}, {seed}: 99 % within {late_us} us"
            );
        }
    }
}

#[test]
fn whoever_is_heard_finds_room_when_requests_take_silent_connections() {
    let of = Workload {
        seconds: 30.0,
        ..lent().at(3.0 * lent().capacity())
    };
    let beginning = Workload {
        seconds: 8.0,
        ..of.clone()
    };
    for seed in [1, 2, 3, 4] {
        let outcome = run(&of, Policy::Auto, seed);
        let rate = outcome.replies_per_s(8.0, 30.0);
        assert!(rate >= 0.97 * of.capacity(), "{rate:.0}");
        let early = run(&beginning, Policy::Auto, seed);
        // While it learns, and who would have been served had the queue not been full by those who
        // came before it had learned.
        let share = early.no_room as f64 / early.connected as f64;
        assert!(share < 1.7, "{seed}: {share:.2} found no room at first");
        let connected = (outcome.connected - early.connected) as f64;
        let share = (outcome.no_room - early.no_room) as f64 / connected;
        assert!(share < 0.03, "{seed}: {share:.3} found no room");
        let lost = outcome.connected_timed_out - early.connected_timed_out;
        let share = lost as f64 / connected;
        assert!(share < 0.01, "{seed}: {share:.3} of the connected gave up");
        for count in [1, 25, 100, 0] {
            let fixed = run(&of, Policy::Fixed(count), seed).replies_per_s(8.0, 30.0);
            assert!(fixed < 0.85 * rate, "{count}: {fixed:.0} of {rate:.0}");
        }
    }
}

#[test]
fn few_are_heard_late_when_the_load_is_constant_and_too_high() {
    let steady = Workload {
        seconds: 40.0,
        timed_from_s: 8.0,
        ..small()
    };
    let unsteady = Workload {
        accept_us: 14,
        request_us: 20,
        wait_us: 5,
        lent: Some((1_000, 40_000)),
        unsteady: 0.4,
        ..steady.clone()
    };
    for (of, most) in [(steady, 0.007), (unsteady, 0.021)] {
        let late = SEEDS.map(|seed| {
            let outcome = run(&of.at(3.0 * of.capacity()), Policy::Auto, seed);
            let soon = outcome.times_us.partition_point(|us| *us < SYN_AGAIN_US);
            1.0 - soon as f64 / outcome.times_us.len() as f64
        });
        let mean = late.iter().sum::<f64>() / late.len() as f64;
        assert!(
            mean < most,
            "{:?}: {late:.4?} after their first knock",
            of.lent
        );
    }
}

#[test]
fn nobody_is_heard_late_when_the_kernel_remembers_whom_it_did_not_hear() {
    for (name, of) in unsteady_too() {
        for (seed, linear_syns) in SEEDS.into_iter().zip([true, false]) {
            let of = Workload {
                remembers: true,
                linear_syns,
                seconds: 24.0,
                timed_from_s: 6.0,
                ..of.clone()
            };
            let at = |load: f64| {
                let outcome = run(&of.at(load * of.capacity()), Policy::Auto, seed);
                (outcome.replies_per_s(6.0, 24.0), outcome)
            };
            let peak = [0.9, 1.0, 1.1].map(|load| at(load).0);
            let peak = peak.into_iter().fold(0.0, f64::max);
            let (rate, outcome) = at(3.0);
            assert!(rate >= 0.95 * peak, "{name}: {rate:.0} of {peak:.0}");
            let lost = outcome.connected_timed_out as f64 / outcome.connected as f64;
            assert!(lost < 0.01, "{name}: {lost:.3} of the connected gave up");
            let late_us = outcome.quantile_us(0.99);
            assert!(late_us <= 1_000_000, "{name}, {seed}: {late_us} us");
        }
    }
}

#[test]
fn goodput_stays_when_thirty_times_as_much_is_asked_for() {
    for (name, of) in [("heavy", heavy()), ("persistent", persistent())] {
        let of = Workload {
            remembers: true,
            seconds: 16.0,
            ..of
        };
        let three = goodput(&of, 3.0, Policy::Auto, 1).0;
        for load in [10.0, 30.0] {
            let (rate, outcome) = goodput(&of, load, Policy::Auto, 1);
            assert!(
                rate >= 0.95 * three,
                "{name}, {load}: {rate:.0} of {three:.0}"
            );
            // A queue that is full of those who came before anything was known is seconds of work.
            let beginning = Workload {
                seconds: 8.0,
                ..of.clone()
            };
            let (_, early) = goodput(&beginning, load, Policy::Auto, 1);
            let lost = (outcome.connected_timed_out - early.connected_timed_out) as f64
                / (outcome.connected - early.connected) as f64;
            assert!(
                lost < 0.01,
                "{name}, {load}: {lost:.3} of the connected gave up"
            );
        }
    }
}

#[test]
fn whoever_is_heard_finds_room_when_clients_are_served_later_than_they_are_taken() {
    // As the micro-servers are: taking is cheap, and what was taken is work for the next turn.
    let cheap = Workload {
        accept_us: 4,
        request_us: 50,
        wait_us: 5,
        eager: false,
        deferred: false,
        remembers: true,
        queue: 2048,
        seconds: 18.0,
        ..small()
    };
    let dear = Workload {
        accept_us: 8,
        request_us: 600,
        ..cheap.clone()
    };
    for (name, of) in [("cheap", cheap), ("dear", dear)] {
        let of = of.at(3.0 * of.capacity());
        let outcome = run(&of, Policy::Auto, 1);
        let rate = outcome.replies_per_s(8.0, 18.0);
        assert!(rate >= 0.97 * of.capacity(), "{name}: {rate:.0}");
        // A queue is full before anything is known.
        let beginning = Workload { seconds: 8.0, ..of };
        let refused = outcome.no_room - run(&beginning, Policy::Auto, 1).no_room;
        assert_eq!(refused, 0, "{name}");
    }
}

#[test]
fn most_are_served_at_their_first_knock_when_only_a_part_is_heard() {
    let of = Workload {
        deferred: false,
        ..small()
    };
    let soon = |policy| {
        let (_, outcome) = goodput(&of, 3.0, policy, 1);
        let soon = outcome.times_us.partition_point(|us| *us < SYN_AGAIN_US);
        soon as f64 / outcome.times_us.len() as f64
    };
    assert!(soon(Policy::Auto) > 0.95);
    // Where a queue that is full decides, whoever is served has mostly knocked two or three times.
    let by_chance = soon(Policy::Fixed(25));
    assert!(by_chance < 0.6, "{by_chance:.2}");
}

#[test]
fn connections_time_out_that_no_server_has_seen_when_clients_are_kept_back_before_a_full_queue() {
    let share = |deferred| {
        let of = Workload {
            queue: 50,
            deferred,
            ..heavy()
        };
        let (_, outcome) = goodput(&of, 3.0, Policy::Fixed(25), 1);
        outcome.connected_timed_out as f64 / outcome.connected as f64
    };
    let (kept_back, at_once) = (share(true), share(false));
    assert!(kept_back > 0.05, "{kept_back:.3}");
    assert!(at_once < 0.5 * kept_back, "{at_once:.3}");
}

#[test]
fn nobody_is_lost_when_all_can_be_served() {
    for (name, of) in workloads() {
        for load in [0.5, 0.8] {
            let (_, outcome) = goodput(&of, load, Policy::Auto, 1);
            // Whoever has come in the last moments is still being served.
            let lost = outcome.clients - outcome.told_us.len() as u64;
            let last = of.capacity() * load * 0.2;
            assert!((lost as f64) < last, "{name} at {load}: {lost}");
            let all = outcome.samples.iter().all(|sample| sample.heard == 1.0);
            assert!(all, "{name} at {load}: all are heard");
            assert_eq!(outcome.connected_timed_out, 0, "{name} at {load}");
        }
    }
}

#[test]
fn no_fixed_count_does_better_when_three_times_as_much_is_asked_for() {
    for (name, of) in workloads() {
        let (auto, _) = goodput(&of, 3.0, Policy::Auto, 1);
        for count in [1, 25, 100, 0] {
            let (fixed, _) = goodput(&of, 3.0, Policy::Fixed(count), 1);
            assert!(
                auto >= 0.98 * fixed,
                "{name}: {auto:.0}, {count}: {fixed:.0}"
            );
        }
    }
}

#[test]
fn some_fixed_count_does_much_worse_when_the_work_is_another() {
    // The simulation can tell policies apart, or the tests above would say nothing.
    let (auto, _) = goodput(&crowded_select(), 3.0, Policy::Auto, 1);
    let (one, _) = goodput(&crowded_select(), 3.0, Policy::Fixed(1), 1);
    assert!(one < 0.1 * auto, "Accept1 {one:.0} of {auto:.0}");
    // Those who are here become more and more until they wait for as long as they can.
    let long = Workload {
        seconds: 25.0,
        ..heavy().at(3.0 * heavy().capacity())
    };
    let of = |policy| run(&long, policy, 1).replies_per_s(15.0, 25.0);
    let (auto, all) = (of(Policy::Auto), of(Policy::Fixed(0)));
    assert!(all < 0.95 * auto, "AcceptInf {all:.0} of {auto:.0}");
}

#[test]
fn latency_at_half_load_is_that_of_25() {
    for (name, of) in workloads() {
        let (auto, with) = goodput(&of, 0.5, Policy::Auto, 1);
        let (fixed, without) = goodput(&of, 0.5, Policy::Fixed(25), 1);
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
fn nothing_swings_when_the_load_is_constant_and_too_high() {
    for (name, of) in workloads() {
        let (mean, outcome) = goodput(&of, 3.0, Policy::Auto, 1);
        // A turn is at most a tenth of a second, so half a second sees several.
        let mut at_s = 6.0;
        while at_s < 12.0 {
            let rate = outcome.replies_per_s(at_s, at_s + 0.5);
            assert!(
                (rate / mean - 1.0).abs() < 0.15,
                "{name}: {rate:.0} of {mean:.0} at {at_s} s"
            );
            at_s += 0.5;
        }
    }
}

#[test]
fn service_is_as_before_when_an_overload_is_over() {
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
                // Those who came last knock for the last time two seconds later, and may wait for
                // one more.
                seconds: 14.0,
                ..of.clone()
            },
            Policy::Auto,
            1,
        );
        let (before, after) = (
            outcome.replies_per_s(1.0, 4.0),
            outcome.replies_per_s(11.0, 14.0),
        );
        assert!(
            (after / before - 1.0).abs() < 0.15,
            "{name}: {before:.0}, then {after:.0}"
        );
        let last = outcome.samples.last().unwrap();
        assert_eq!(last.queue, of.queue, "{name}: room for a burst again");
        assert!(last.round > 1, "{name}");
        assert_eq!(last.heard, 1.0, "{name}: all are heard again");
    }
}

#[test]
fn course_is_the_same_when_the_seed_is_the_same() {
    let of = heavy().at(500.0);
    let same = run(&of, Policy::Auto, 5);
    assert_eq!(run(&of, Policy::Auto, 5), same);
    assert_ne!(run(&of, Policy::Auto, 6), same);
}

/// Most know within a second what becomes of them if they are turned away, and few if they wait.
fn expect_soon_told(waiting: &Outcome, rejecting: &Outcome) {
    let [before, after] = [waiting, rejecting].map(|outcome| told_within(outcome, 1_000_000));
    assert!(before < 0.6, "{before:.2} knew it without being told");
    assert!(after > 0.9, "{after:.2} knew it");
}

/// The share of the clients that came which knew within `us` what becomes of them.
fn told_within(outcome: &Outcome, us: u64) -> f64 {
    let told = outcome.told_us.partition_point(|told_us| *told_us <= us);
    told as f64 / outcome.clients as f64
}

#[test]
fn clients_learn_soon_that_they_cannot_be_served_when_they_are_turned_away() {
    // Where a request is dear, being told is cheap. At three times the capacity most never come in
    // otherwise.
    let of = Workload {
        seconds: 24.0,
        ..heavy().at(3.0 * heavy().capacity())
    };
    for seed in SEEDS {
        let (waiting, rejecting) = (
            run(&of, Policy::Auto, seed),
            run(&of, Policy::Rejecting, seed),
        );
        expect_soon_told(&waiting, &rejecting);
        // The part that is turned away is what telling costs, and no more.
        let (served, less) = (
            waiting.replies_per_s(6.0, 12.0),
            rejecting.replies_per_s(6.0, 12.0),
        );
        assert!(less >= 0.8 * served, "{less:.0} of {served:.0}");
        let lost = rejecting.connected_timed_out as f64 / rejecting.connected as f64;
        assert!(lost < 0.01, "{lost:.3} of the connected gave up");
    }
}

#[test]
fn telling_takes_a_bounded_part_of_the_time_when_it_costs_as_much_as_serving() {
    // Also where turns are short, because the processor is lent by slices.
    let lent = Workload {
        lent: Some((1_000, 25_000)),
        ..small()
    };
    for of in [small(), lent] {
        let (waiting, _) = goodput(&of, 3.0, Policy::Auto, 1);
        let (rejecting, outcome) = goodput(&of, 3.0, Policy::Rejecting, 1);
        assert!(
            rejecting >= 0.75 * waiting,
            "{rejecting:.0} of {waiting:.0}"
        );
        assert!(outcome.rejected > 0);
    }
}

#[test]
fn nobody_is_turned_away_when_all_can_be_served() {
    for (name, of) in workloads() {
        for load in [0.5, 0.8] {
            let (_, outcome) = goodput(&of, load, Policy::Rejecting, 1);
            assert_eq!(outcome.rejected, 0, "{name} at {load}");
        }
        // Nearer to the capacity more come than can be served for a second now and then, by chance.
        let (_, outcome) = goodput(&of, 0.9, Policy::Rejecting, 1);
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
        assert_eq!(run(&burst, Policy::Rejecting, 1).rejected, 0, "{name}");
    }
}

#[test]
fn nobody_is_turned_away_any_more_when_an_overload_is_over() {
    for (name, of) in workloads() {
        let capacity = of.capacity();
        let steps = Workload {
            rates: vec![
                (0.0, 0.5 * capacity),
                (3.0, 4.0 * capacity),
                (7.0, 0.5 * capacity),
            ],
            // Those who came last knock for the last time two seconds later, and are heard little
            // by little.
            seconds: 12.0,
            ..of.clone()
        };
        let longer = Workload {
            seconds: 16.0,
            ..steps.clone()
        };
        let (until, after) = (
            run(&steps, Policy::Rejecting, 1).rejected,
            run(&longer, Policy::Rejecting, 1).rejected,
        );
        assert!(until > 0, "{name}");
        assert_eq!(until, after, "{name}: five seconds after its end");
    }
}
