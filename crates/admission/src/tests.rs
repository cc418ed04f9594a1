//! The parts of the controller one by one, on made-up iterations.

use super::*;
use crate::parameters::{PERIOD_US, QUEUE_LENGTH_MIN};

const BATCH_MAX: u32 = 1024;

fn controller(backlog_max: u32) -> Controller {
    Controller::new(&Settings::new(backlog_max, BATCH_MAX), 0)
}

fn shedding(backlog_max: u32) -> Controller {
    let settings = Settings {
        sheds_load: true,
        ..Settings::new(backlog_max, BATCH_MAX)
    };
    Controller::new(&settings, 0)
}

/// An iteration of `busy_us`, of which `accepting_us` for `accepted` connections.
fn iteration(now_us: u64, busy_us: u64, accepting_us: u64, accepted: u32) -> Observation {
    Observation {
        now_us,
        busy_us,
        accepting_us,
        accepted,
        ..Observation::default()
    }
}

/// The controller after enough equal iterations for its means to have settled.
fn settled(busy_us: u64, accepting_us: u64, accepted: u32) -> Controller {
    settle(controller(1024), busy_us, accepting_us, accepted)
}

fn settle(
    mut controller: Controller,
    busy_us: u64,
    accepting_us: u64,
    accepted: u32,
) -> Controller {
    for step in 1..=200 {
        controller.observe(&iteration(step * busy_us, busy_us, accepting_us, accepted));
    }
    controller
}

#[test]
fn batch_fills_the_rest_of_an_iteration_when_established_connections_leave_some() {
    // Costs are rounded up a little.
    let batch = |busy_us| settled(busy_us, 1_000, 25).decision().batch_size;
    assert!((98..=100).contains(&batch(1_000)), "40 us each");
    assert!((48..=50).contains(&batch(3_000)), "half is left");
}

#[test]
fn batch_takes_its_share_when_established_connections_fill_the_iteration() {
    let share = settled(21_000, 1_000, 25).decision().batch_size;
    // 20 ms are 8 % of the maximum loop lag.
    assert!(
        (113..=115).contains(&share),
        "{share}: a quarter of 20 ms, and 8 % less"
    );
    assert_eq!(
        settled(13_000, 1_000, 1).decision().batch_size,
        2,
        "1 ms each"
    );
    // The nearer the other work is to the maximum loop lag, the smaller the share: half of a
    // quarter, and almost none.
    let share = [126_000, 241_000].map(|busy_us| settled(busy_us, 1_000, 25).decision().batch_size);
    assert!((380..=390).contains(&share[0]), "{share:?}");
    assert!((57..=60).contains(&share[1]), "{share:?}");
}

#[test]
fn batch_is_not_smaller_than_its_event_wait_is_worth() {
    assert_eq!(settled(1_500, 1_500, 1).decision().batch_size, 16, "24 ms");
    assert_eq!(settled(10_000, 10_000, 1).decision().batch_size, 6, "60 ms");
    assert_eq!(
        settled(3_600, 1_500, 1).decision().batch_size,
        1,
        "established connections take more than half"
    );
}

#[test]
fn batch_counts_later_work_when_connections_are_not_served_at_once() {
    let batch = |later| {
        let mut controller = match later {
            true => Controller::new(
                &Settings {
                    deferred_events: 2,
                    ..Settings::new(1024, BATCH_MAX)
                },
                0,
            ),
            false => controller(1024),
        };
        for step in 1..=200 {
            controller.observe(&Observation {
                events: 100,
                ..iteration(step * 2_500, 2_500, 500, 50)
            });
        }
        controller.decision().batch_size
    };
    assert!(
        (195..=200).contains(&batch(false)),
        "10 us each, and half is left"
    );
    // And 20 us for each of two events. The other work belongs to the previous batch.
    assert!((78..=80).contains(&batch(true)), "{}", batch(true));
}

#[test]
fn batch_grows_with_expensive_waits_and_shrinks_at_the_first_cheap_one() {
    let mut controller = controller(1024);
    let after = |now_us, wait_us| Observation {
        wait_us,
        queue_empty: true,
        ..iteration(now_us, 1_000, 1_000, 10)
    };
    for step in 1..=100 {
        controller.observe(&after(step * 10_000, 2_000));
    }
    assert!(
        (378..=380).contains(&controller.decision().batch_size),
        "38 ms"
    );
    controller.observe(&after(2_000_000, 10));
    controller.observe(&after(2_010_000, 2_000));
    assert!(
        (38..=40).contains(&controller.decision().batch_size),
        "4 ms"
    );
}

#[test]
fn batch_has_limits_when_connections_cost_nothing_or_very_much() {
    assert_eq!(settled(10, 10, 10).decision().batch_size, BATCH_MAX);
    assert_eq!(settled(90_000, 90_000, 1).decision().batch_size, 1);
}

#[test]
fn nothing_is_accepted_from_maximum_loop_lag_until_half_of_it() {
    let mut controller = controller(1024);
    controller.observe(&iteration(300_000, 300_000, 0, 0));
    assert_eq!(controller.decision().batch_size, 0);
    controller.observe(&iteration(430_000, 130_000, 0, 0));
    assert_eq!(controller.decision().batch_size, 0);
    controller.observe(&iteration(550_000, 120_000, 0, 0));
    assert!(controller.decision().batch_size > 0);
}

#[test]
fn loop_lag_adds_up_when_more_events_are_ready_than_an_iteration_sees() {
    let mut controller = controller(1024);
    let saturated = |now_us| Observation {
        saturated: true,
        ..iteration(now_us, 100_000, 0, 0)
    };
    controller.observe(&saturated(100_000));
    controller.observe(&saturated(200_000));
    assert!(controller.decision().batch_size > 0);
    controller.observe(&saturated(300_000));
    assert_eq!(controller.decision().batch_size, 0);
}

#[test]
fn one_connection_is_accepted_when_none_was_for_too_long() {
    let mut controller = controller(1024);
    let mut accepted = 0;
    for step in 1..=10 {
        let batch = controller.decision().batch_size;
        accepted += u32::from(batch == 1);
        controller.observe(&iteration(step * 300_000, 300_000, 0, batch.min(1)));
    }
    assert!((2..=5).contains(&accepted), "{accepted} in 3 s");
}

#[test]
fn backlog_is_what_departs_within_the_delay_limit_when_the_queue_is_never_empty() {
    // 10 connections in 10 ms are 1,000 per second: 250, plus five times the root, plus an eighth.
    assert_eq!(
        settled(10_000, 10_000, 10).decision().listeners.backlog,
        459
    );
    let shortest = settled(1_000_000, 100_000, 1).decision().listeners.backlog;
    assert_eq!(shortest, QUEUE_LENGTH_MIN * 9 / 8);
    assert_eq!(
        settled(1_000, 1_000, 100).decision().listeners.backlog,
        1024,
        "not longer than configured"
    );
}

#[test]
fn backlog_grows_back_when_the_queue_is_found_empty() {
    let mut controller = settled(10_000, 10_000, 10);
    for step in 1..=30 {
        let empty = Observation {
            queue_empty: true,
            ..iteration(2_000_000 + step * 10_000, 10, 0, 0)
        };
        controller.observe(&empty);
    }
    assert_eq!(controller.decision().listeners.backlog, 1024);
}

/// Iterations of 5 ms in which a full batch left connections, and as many as permitted were
/// rejected at 40 us each.
fn overloaded(controller: &mut Controller, from_us: u64, iterations: u64) -> u64 {
    for step in 1..=iterations {
        let rejected = controller.decision().reject_limit;
        controller.observe(&Observation {
            rejected,
            rejecting_us: 40 * u64::from(rejected),
            ..iteration(from_us + step * 5_000, 5_000, 4_000, 25)
        });
    }
    from_us + iterations * 5_000
}

/// An iteration of 1 ms that served all pending connections.
fn served(now_us: u64) -> Observation {
    Observation {
        queue_empty: true,
        ..iteration(now_us, 1_000, 1_000, 5)
    }
}

#[test]
fn load_shedding_rejects_nothing_when_off_or_in_a_burst() {
    let mut without = controller(1024);
    overloaded(&mut without, 0, 400);
    assert_eq!(
        (
            without.decision().reject_limit,
            without.decision().is_rejecting
        ),
        (0, false)
    );
    let mut with = shedding(1024);
    let mut now_us = 0;
    for _ in 0..20 {
        now_us = overloaded(&mut with, now_us, 195) + 1_000;
        assert_eq!(with.decision().reject_limit, 0, "less than a second");
        with.observe(&served(now_us));
    }
}

#[test]
fn rejections_take_a_quarter_of_an_iteration_when_overload_lasts() {
    let mut controller = shedding(1024);
    let now_us = overloaded(&mut controller, 0, 400);
    assert!(controller.decision().is_rejecting);
    // A millisecond at 40 us each.
    let most = controller.decision().reject_limit;
    assert!((24..=25).contains(&most), "{most}");
    controller.observe(&iteration(now_us + 40_000, 40_000, 4_000, 25));
    let most = controller.decision().reject_limit;
    assert!((245..=250).contains(&most), "{most}: of a longer one");
}

#[test]
fn rejections_take_a_quarter_of_the_other_time_when_iterations_are_short() {
    let mut controller = shedding(1024);
    let mut now_us = overloaded(&mut controller, 0, 400);
    // Half a millisecond for the established connections, with one preemption of 90 ms during a
    // rejection.
    let (mut others_us, mut rejecting_us) = (0, 0);
    for step in 0..10_000 {
        let rejected = controller.decision().reject_limit;
        let preempted_us = if step == 5_000 { 90_000 } else { 0 };
        let took_us = 40 * u64::from(rejected) + preempted_us;
        now_us += 500 + took_us;
        others_us += 500;
        rejecting_us += took_us;
        controller.observe(&Observation {
            rejected: rejected.max(u32::from(preempted_us > 0)),
            rejecting_us: took_us,
            ..iteration(now_us, 500 + took_us, 450, 10)
        });
    }
    let share = rejecting_us as f64 / others_us as f64;
    assert!((0.24..=0.251).contains(&share), "{share}");
}

#[test]
fn load_shedding_ends_when_all_were_served_for_a_period() {
    let mut controller = shedding(1024);
    let mut now_us = overloaded(&mut controller, 0, 400);
    let mut iterations = 0;
    while controller.decision().is_rejecting {
        now_us += 1_000;
        iterations += 1;
        controller.observe(&served(now_us));
        assert!(
            iterations <= 2 * PERIOD_US / 1_000,
            "two periods are enough"
        );
    }
    assert_eq!(controller.decision().reject_limit, 0);
    // It takes another second to begin again.
    overloaded(&mut controller, now_us, 190);
    assert_eq!(controller.decision().reject_limit, 0);
}

#[test]
fn pending_connections_are_rejected_when_loop_lag_is_high() {
    let mut controller = shedding(1024);
    for step in 1..=4 {
        controller.observe(&iteration(step * 300_000, 300_000, 0, 0));
    }
    assert!(controller.decision().batch_size <= 1 && controller.decision().reject_limit > 0);
}

#[test]
fn backlog_is_what_can_be_served_when_rejections_empty_the_queue() {
    // Otherwise a connection in a long queue would wait longer than until a rejection.
    let mut controller = settle(shedding(1024), 10_000, 10_000, 10);
    assert_eq!(controller.decision().listeners.backlog, 459);
    let mut now_us = overloaded(&mut controller, 2_000_000, 210);
    for _ in 0..100 {
        now_us += 5_000;
        controller.observe(&Observation {
            rejected: 5,
            rejecting_us: 200,
            queue_empty: true,
            ..iteration(now_us, 5_000, 4_000, 25)
        });
    }
    assert!(controller.decision().is_rejecting);
    let backlog = controller.decision().listeners.backlog;
    assert!(
        (1_000..=1_024).contains(&backlog),
        "{backlog}: of 6,000 per second"
    );
    let mut slow = shedding(4096);
    for step in 1..=400 {
        slow.observe(&Observation {
            rejected: slow.decision().reject_limit.min(1),
            rejecting_us: 40,
            queue_empty: slow.decision().reject_limit > 0,
            ..iteration(step * 5_000, 5_000, 4_000, 1)
        });
    }
    assert!(slow.decision().is_rejecting);
    let backlog = slow.decision().listeners.backlog;
    assert!(
        (150..=210).contains(&backlog),
        "{backlog}: of 400 per second"
    );
}

/// A queue from which 1,000 connections per second are accepted, and into which the admitted
/// fraction of `arrivals_per_s` come.
struct Crowd {
    controller: Controller,
    now_us: u64,
    pending: f64,
    oldest_us: u64,
}

impl Crowd {
    fn new() -> Crowd {
        Crowd {
            controller: controller(4096),
            now_us: 0,
            pending: 0.0,
            oldest_us: 0,
        }
    }

    /// Runs iterations of 10 ms.
    fn run(&mut self, seconds: f64, arrivals_per_s: f64) {
        for _ in 0..(seconds * 100.0) as u32 {
            let policy = self.controller.decision().listeners;
            let came = arrivals_per_s * policy.admit_fraction / 100.0;
            let room = (f64::from(policy.backlog) - self.pending).max(0.0);
            self.pending += came.min(room);
            let accepted = self.pending.min(10.0);
            self.pending -= accepted;
            self.now_us += 10_000;
            self.controller.observe(&Observation {
                queue_empty: self.pending < 1.0,
                pending: self.pending as u32,
                dropped: (came - room).max(0.0) as u32,
                oldest_us: self.oldest_us,
                ..iteration(self.now_us, 10_000, 10_000, accepted as u32)
            });
        }
    }
}

#[test]
fn admit_fraction_keeps_the_queue_half_full_when_more_come_than_leave() {
    let mut crowd = Crowd::new();
    crowd.run(3.0, 500.0);
    assert_eq!(crowd.controller.decision().listeners.admit_fraction, 1.0);
    assert!(!crowd.controller.decision().is_overloaded());
    for (arrivals_per_s, part) in [(3_000.0, 1.0 / 3.0), (1_500.0, 2.0 / 3.0), (10_000.0, 0.1)] {
        crowd.run(12.0, arrivals_per_s);
        let ListenerPolicy {
            admit_fraction,
            backlog,
            defer,
        } = crowd.controller.decision().listeners;
        assert!(
            (admit_fraction / part - 1.0).abs() < 0.08,
            "{admit_fraction} of {arrivals_per_s}"
        );
        assert!((390..=530).contains(&backlog), "{backlog}");
        assert!(
            (100.0..=310.0).contains(&crowd.pending),
            "{}",
            crowd.pending
        );
        assert!(!defer, "an admitted client has a place");
    }
}

#[test]
fn load_shedding_continues_when_all_were_served_but_some_syns_rejected() {
    let mut crowd = Crowd {
        controller: shedding(4096),
        ..Crowd::new()
    };
    crowd.run(5.0, 4_000.0);
    assert!(
        crowd.controller.decision().is_rejecting
            && crowd.controller.decision().listeners.admit_fraction < 0.5
    );
    crowd.pending = 0.0;
    while crowd.controller.decision().is_rejecting {
        crowd.run(0.01, 500.0);
        assert!(
            crowd.now_us < 8_000_000,
            "all are admitted and served by now"
        );
    }
    assert_eq!(crowd.controller.decision().listeners.admit_fraction, 1.0);
}

#[test]
fn accept_queue_stays_within_the_delay_limit_in_a_burst() {
    let mut crowd = Crowd::new();
    crowd.run(2.0, 900.0);
    for _ in 0..200 {
        crowd.run(0.01, 5_000.0);
        // At most what comes in a period.
        assert!(crowd.pending <= 450.0, "{}", crowd.pending);
    }
    assert!(crowd.pending <= 345.0, "{}", crowd.pending);
}

#[test]
fn all_syns_are_admitted_again_when_the_overload_is_over() {
    let mut crowd = Crowd::new();
    crowd.run(5.0, 4_000.0);
    assert!(crowd.controller.decision().is_overloaded() && !crowd.controller.decision().is_at_rest);
    crowd.run(1.0, 500.0);
    assert_eq!(crowd.controller.decision().listeners.admit_fraction, 1.0);
    crowd.run(2.0, 500.0);
    let all = ListenerPolicy {
        backlog: 4096,
        admit_fraction: 1.0,
        defer: true,
    };
    assert_eq!(crowd.controller.decision().listeners, all);
    assert!(crowd.controller.decision().is_at_rest);
}

#[test]
fn all_syns_are_admitted_when_the_queue_is_short_but_never_empty() {
    let mut controller = controller(4096);
    for step in 1..=500 {
        // 1,000 per second, and as many as come in a tenth of a second are pending.
        controller.observe(&Observation {
            pending: 100,
            ..iteration(step * 10_000, 10_000, 10_000, 10)
        });
        assert_eq!(
            controller.decision().listeners.admit_fraction,
            1.0,
            "iteration {step}"
        );
    }
    assert!(controller.decision().listeners.defer);
}

#[test]
fn backlog_shrinks_when_sampled_first_requests_had_waited_too_long() {
    let mut crowd = Crowd::new();
    crowd.run(5.0, 3_000.0);
    crowd.oldest_us = 800_000;
    crowd.run(1.0, 3_000.0);
    let backlog = crowd.controller.decision().listeners.backlog;
    assert!((95..=150).contains(&backlog), "{backlog}: a quarter");
    crowd.oldest_us = 300_000;
    crowd.run(2.0, 3_000.0);
    let backlog = crowd.controller.decision().listeners.backlog;
    assert!((390..=530).contains(&backlog), "{backlog}: all of it");
}

#[test]
fn some_syns_are_admitted_when_almost_nothing_was_accepted_for_long() {
    let mut controller = controller(4096);
    for step in 1..=100 {
        controller.observe(&Observation {
            pending: 4096,
            dropped: 100,
            ..iteration(step * 300_000, 300_000, 0, u32::from(step % 3 == 0))
        });
    }
    let policy = controller.decision().listeners;
    let shortest = QUEUE_LENGTH_MIN * 9 / 8;
    assert!(
        policy.admit_fraction > 0.0 && policy.backlog == shortest,
        "{policy:?}"
    );
}

#[test]
fn control_law_has_at_most_twenty_parameters_and_all_are_in_one_file() {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let constants = |name: &str| {
        let text = std::fs::read_to_string(source.join(name)).unwrap();
        let declared = text.lines().map(|line| {
            line.trim_start_matches("pub ")
                .trim_start_matches("pub(crate) ")
        });
        declared.filter(|line| line.starts_with("const ")).count()
    };
    let parameters = constants("parameters.rs");
    assert!((1..=20).contains(&parameters), "{parameters}");
    for name in [
        "batch_sizing.rs",
        "overload_hold.rs",
        "syn_admission.rs",
        "load_shedding.rs",
        "period.rs",
        "lib.rs",
    ] {
        // The batch size before the first iteration follows from two parameters.
        let own = usize::from(name == "batch_sizing.rs");
        assert_eq!(constants(name), own, "{name}");
    }
}
