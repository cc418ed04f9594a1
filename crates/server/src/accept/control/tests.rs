//! The rules one by one, on turns that are made up.

use super::queue::QUEUE_LEAST;
use super::*;

/// A turn of `busy_us`, of which `accepting_us` for `accepted` clients.
fn turn(now_us: u64, busy_us: u64, accepting_us: u64, accepted: u32) -> Turn {
    Turn {
        now_us,
        busy_us,
        accepting_us,
        accepted,
        ..Turn::default()
    }
}

/// The controller after enough equal turns for its means to have settled.
fn settled(busy_us: u64, accepting_us: u64, accepted: u32) -> Controller {
    let mut controller = Controller::new(1024, 0);
    for step in 1..=200 {
        controller.turn(&turn(step * busy_us, busy_us, accepting_us, accepted));
    }
    controller
}

#[test]
fn round_fills_what_others_leave_of_a_turn_when_they_leave_something() {
    // Costs are rounded up a little.
    let round = |busy_us| settled(busy_us, 1_000, 25).round();
    assert!((98..=100).contains(&round(1_000)), "40 us each");
    assert!((48..=50).contains(&round(3_000)), "half is theirs");
}

#[test]
fn round_takes_its_share_when_others_fill_the_turn() {
    let share = settled(21_000, 1_000, 25).round();
    // 20 ms are 8 % of what is late.
    assert!(
        (113..=115).contains(&share),
        "{share}: a quarter of 20 ms, and 8 % less"
    );
    assert_eq!(settled(13_000, 1_000, 1).round(), 2, "1 ms each");
    // The nearer the others' work is to what is late the smaller the share: half of a quarter, and
    // hardly any.
    let share = [126_000, 241_000].map(|busy_us| settled(busy_us, 1_000, 25).round());
    assert!((380..=390).contains(&share[0]), "{share:?}");
    assert!((57..=60).contains(&share[1]), "{share:?}");
}

#[test]
fn round_is_not_smaller_than_a_wait_is_worth_when_clients_look_dear() {
    assert_eq!(settled(1_500, 1_500, 1).round(), 16, "24 ms");
    assert_eq!(settled(10_000, 10_000, 1).round(), 6, "60 ms");
    assert_eq!(
        settled(3_600, 1_500, 1).round(),
        1,
        "the others have more than half"
    );
}

#[test]
fn round_counts_what_clients_will_take_when_they_are_not_served_at_once() {
    let round = |later| {
        let mut controller = match later {
            true => Controller::new(1024, 0).serving_later(2),
            false => Controller::new(1024, 0),
        };
        for step in 1..=200 {
            controller.turn(&Turn {
                events: 100,
                ..turn(step * 2_500, 2_500, 500, 50)
            });
        }
        controller.round()
    };
    assert!(
        (195..=200).contains(&round(false)),
        "10 us each, and half is the others'"
    );
    // And 20 us for each of two events; the others' are those of the last round.
    assert!((78..=80).contains(&round(true)), "{}", round(true));
}

#[test]
fn round_grows_when_waits_are_dear_and_shrinks_at_the_first_that_is_not() {
    let mut controller = Controller::new(1024, 0);
    let after = |now_us, wait_us| Turn {
        wait_us,
        queue_empty: true,
        ..turn(now_us, 1_000, 1_000, 10)
    };
    for step in 1..=100 {
        controller.turn(&after(step * 10_000, 2_000));
    }
    assert!((378..=380).contains(&controller.round()), "38 ms");
    controller.turn(&after(2_000_000, 10));
    controller.turn(&after(2_010_000, 2_000));
    assert!((38..=40).contains(&controller.round()), "4 ms");
}

#[test]
fn round_has_a_bound_when_clients_cost_nothing_or_very_much() {
    assert_eq!(settled(10, 10, 10).round(), ROUND_MOST);
    assert_eq!(settled(90_000, 90_000, 1).round(), 1);
}

#[test]
fn nobody_is_taken_when_those_who_are_here_are_late_until_they_are_half_as_late() {
    let mut controller = Controller::new(1024, 0);
    controller.turn(&turn(300_000, 300_000, 0, 0));
    assert_eq!((controller.round(), controller.held()), (0, 1));
    controller.turn(&turn(430_000, 130_000, 0, 0));
    assert_eq!((controller.round(), controller.held()), (0, 2));
    controller.turn(&turn(550_000, 120_000, 0, 0));
    assert!(controller.round() > 0);
}

#[test]
fn lateness_adds_up_when_more_are_ready_than_a_turn_sees() {
    let mut controller = Controller::new(1024, 0);
    let crowded = |now_us| Turn {
        crowded: true,
        ..turn(now_us, 100_000, 0, 0)
    };
    controller.turn(&crowded(100_000));
    controller.turn(&crowded(200_000));
    assert!(controller.round() > 0);
    controller.turn(&crowded(300_000));
    assert_eq!(controller.round(), 0);
}

#[test]
fn one_is_taken_when_nobody_was_for_too_long() {
    let mut controller = Controller::new(1024, 0);
    let mut taken = 0;
    for step in 1..=10 {
        let accepted = controller.round();
        taken += u32::from(accepted == 1);
        controller.turn(&turn(step * 300_000, 300_000, 0, accepted.min(1)));
    }
    assert!((2..=5).contains(&taken), "{taken} in 3 s");
}

#[test]
fn queue_is_as_long_as_what_is_taken_in_its_time_when_it_is_never_empty() {
    // 10 clients in 10 ms are 1000 a second: 250, and five times their root, and an eighth.
    assert_eq!(settled(10_000, 10_000, 10).gate().backlog, 459);
    let least = settled(1_000_000, 100_000, 1).gate().backlog;
    assert_eq!(least, QUEUE_LEAST * 9 / 8);
    assert_eq!(
        settled(1_000, 1_000, 100).gate().backlog,
        1024,
        "no longer than asked for"
    );
}

#[test]
fn queue_grows_back_when_it_is_found_empty() {
    let mut controller = settled(10_000, 10_000, 10);
    for step in 1..=30 {
        let empty = Turn {
            queue_empty: true,
            ..turn(2_000_000 + step * 10_000, 10, 0, 0)
        };
        controller.turn(&empty);
    }
    assert_eq!(controller.gate().backlog, 1024);
}

/// Turns of 5 ms in which a full round left somebody, and as many as may be were turned away at 40
/// us each.
fn overloaded(controller: &mut Controller, from_us: u64, turns: u64) -> u64 {
    for step in 1..=turns {
        let rejected = controller.reject();
        controller.turn(&Turn {
            rejected,
            rejecting_us: 40 * u64::from(rejected),
            ..turn(from_us + step * 5_000, 5_000, 4_000, 25)
        });
    }
    from_us + turns * 5_000
}

/// A turn of 1 ms that served all who waited.
fn served(now_us: u64) -> Turn {
    Turn {
        queue_empty: true,
        ..turn(now_us, 1_000, 1_000, 5)
    }
}

#[test]
fn nobody_is_turned_away_when_it_is_not_asked_for_or_only_a_burst() {
    let mut without = Controller::new(1024, 0);
    overloaded(&mut without, 0, 400);
    assert_eq!((without.reject(), without.is_rejecting()), (0, false));
    let mut with = Controller::new(1024, 0).rejecting(true);
    let mut now_us = 0;
    for _ in 0..20 {
        now_us = overloaded(&mut with, now_us, 195) + 1_000;
        assert_eq!(with.reject(), 0, "less than a second");
        with.turn(&served(now_us));
    }
}

#[test]
fn surplus_is_turned_away_in_a_quarter_of_a_turn_when_it_does_not_end() {
    let mut controller = Controller::new(1024, 0).rejecting(true);
    let now_us = overloaded(&mut controller, 0, 400);
    assert!(controller.is_rejecting());
    // A millisecond at 40 us.
    let most = controller.reject();
    assert!((24..=25).contains(&most), "{most}");
    controller.turn(&turn(now_us + 40_000, 40_000, 4_000, 25));
    let most = controller.reject();
    assert!((245..=250).contains(&most), "{most}: of a longer one");
}

#[test]
fn surplus_takes_a_quarter_of_the_others_time_when_turns_are_short() {
    let mut controller = Controller::new(1024, 0).rejecting(true);
    let mut now_us = overloaded(&mut controller, 0, 400);
    // Half a millisecond for those who are here, with the processor taken away for 90 ms while
    // somebody is told, once.
    let (mut others_us, mut rejecting_us) = (0, 0);
    for step in 0..10_000 {
        let rejected = controller.reject();
        let dear_us = if step == 5_000 { 90_000 } else { 0 };
        let took_us = 40 * u64::from(rejected) + dear_us;
        now_us += 500 + took_us;
        others_us += 500;
        rejecting_us += took_us;
        controller.turn(&Turn {
            rejected: rejected.max(u32::from(dear_us > 0)),
            rejecting_us: took_us,
            ..turn(now_us, 500 + took_us, 450, 10)
        });
    }
    let share = rejecting_us as f64 / others_us as f64;
    assert!((0.24..=0.251).contains(&share), "{share}");
}

#[test]
fn nobody_is_turned_away_any_more_when_for_a_period_all_were_served() {
    let mut controller = Controller::new(1024, 0).rejecting(true);
    let mut now_us = overloaded(&mut controller, 0, 400);
    let mut turns = 0;
    while controller.is_rejecting() {
        now_us += 1_000;
        turns += 1;
        controller.turn(&served(now_us));
        assert!(turns <= 2 * PERIOD_US / 1_000, "two periods are enough");
    }
    assert_eq!(controller.reject(), 0);
    // And it takes another second to begin.
    overloaded(&mut controller, now_us, 190);
    assert_eq!(controller.reject(), 0);
}

#[test]
fn those_left_waiting_are_told_when_those_who_are_here_are_late() {
    let mut controller = Controller::new(1024, 0).rejecting(true);
    for step in 1..=4 {
        controller.turn(&turn(step * 300_000, 300_000, 0, 0));
    }
    assert!(controller.round() <= 1 && controller.reject() > 0);
}

#[test]
fn queue_is_no_longer_than_can_be_served_when_turning_away_empties_it() {
    // Or whoever comes into the long one would wait for longer than it takes to be told.
    let mut controller = settled(10_000, 10_000, 10).rejecting(true);
    assert_eq!(controller.gate().backlog, 459);
    let mut now_us = overloaded(&mut controller, 2_000_000, 210);
    for _ in 0..100 {
        now_us += 5_000;
        controller.turn(&Turn {
            rejected: 5,
            rejecting_us: 200,
            queue_empty: true,
            ..turn(now_us, 5_000, 4_000, 25)
        });
    }
    assert!(controller.is_rejecting());
    let backlog = controller.gate().backlog;
    assert!(
        (1_000..=1_024).contains(&backlog),
        "{backlog}: of 6000 a second"
    );
    let mut slow = Controller::new(4096, 0).rejecting(true);
    for step in 1..=400 {
        slow.turn(&Turn {
            rejected: slow.reject().min(1),
            rejecting_us: 40,
            queue_empty: slow.reject() > 0,
            ..turn(step * 5_000, 5_000, 4_000, 1)
        });
    }
    assert!(slow.is_rejecting());
    let backlog = slow.gate().backlog;
    assert!((150..=210).contains(&backlog), "{backlog}: of 400 a second");
}

/// A queue from which 1000 a second are taken, and into which the heard part of `asking_per_s`
/// come.
struct Crowd {
    controller: Controller,
    now_us: u64,
    waiting: f64,
    oldest_us: u64,
}

impl Crowd {
    fn new() -> Crowd {
        Crowd {
            controller: Controller::new(4096, 0),
            now_us: 0,
            waiting: 0.0,
            oldest_us: 0,
        }
    }

    /// Turns of 10 ms.
    fn pass(&mut self, seconds: f64, asking_per_s: f64) {
        for _ in 0..(seconds * 100.0) as u32 {
            let gate = self.controller.gate();
            let came = asking_per_s * gate.heard / 100.0;
            let room = (f64::from(gate.backlog) - self.waiting).max(0.0);
            self.waiting += came.min(room);
            let taken = self.waiting.min(10.0);
            self.waiting -= taken;
            self.now_us += 10_000;
            self.controller.turn(&Turn {
                queue_empty: self.waiting < 1.0,
                waiting: self.waiting as u32,
                dropped: (came - room).max(0.0) as u32,
                oldest_us: self.oldest_us,
                ..turn(self.now_us, 10_000, 10_000, taken as u32)
            });
        }
    }
}

#[test]
fn a_part_is_heard_that_leaves_half_of_the_queue_free_when_more_come_than_leave() {
    let mut crowd = Crowd::new();
    crowd.pass(3.0, 500.0);
    assert_eq!(crowd.controller.gate().heard, 1.0);
    assert!(!crowd.controller.is_crowded());
    for (asking_per_s, part) in [(3_000.0, 1.0 / 3.0), (1_500.0, 2.0 / 3.0), (10_000.0, 0.1)] {
        crowd.pass(12.0, asking_per_s);
        let Gate {
            heard,
            backlog,
            deferred,
        } = crowd.controller.gate();
        assert!(
            (heard / part - 1.0).abs() < 0.08,
            "{heard} of {asking_per_s}"
        );
        assert!((390..=530).contains(&backlog), "{backlog}");
        assert!(
            (100.0..=310.0).contains(&crowd.waiting),
            "{}",
            crowd.waiting
        );
        assert!(!deferred, "whoever is heard has a place");
    }
}

#[test]
fn telling_goes_on_when_all_were_served_and_some_not_heard() {
    let mut crowd = Crowd::new();
    crowd.controller = crowd.controller.rejecting(true);
    crowd.pass(5.0, 4_000.0);
    assert!(crowd.controller.is_rejecting() && crowd.controller.gate().heard < 0.5);
    crowd.waiting = 0.0;
    while crowd.controller.is_rejecting() {
        crowd.pass(0.01, 500.0);
        assert!(crowd.now_us < 8_000_000, "all are heard and served by now");
    }
    assert_eq!(crowd.controller.gate().heard, 1.0);
}

#[test]
fn the_queue_never_holds_more_than_is_served_in_time_when_a_crowd_comes_at_once() {
    let mut crowd = Crowd::new();
    crowd.pass(2.0, 900.0);
    for _ in 0..200 {
        crowd.pass(0.01, 5_000.0);
        // What comes in a period, at most.
        assert!(crowd.waiting <= 450.0, "{}", crowd.waiting);
    }
    assert!(crowd.waiting <= 345.0, "{}", crowd.waiting);
}

#[test]
fn all_are_heard_again_when_the_crowd_has_gone() {
    let mut crowd = Crowd::new();
    crowd.pass(5.0, 4_000.0);
    assert!(crowd.controller.is_crowded() && !crowd.controller.is_at_rest());
    crowd.pass(1.0, 500.0);
    assert_eq!(crowd.controller.gate().heard, 1.0);
    crowd.pass(2.0, 500.0);
    let all = Gate {
        backlog: 4096,
        heard: 1.0,
        deferred: true,
    };
    assert_eq!(crowd.controller.gate(), all);
    assert!(crowd.controller.is_at_rest());
}

#[test]
fn all_are_heard_when_some_always_wait_but_not_long() {
    let mut controller = Controller::new(4096, 0);
    for step in 1..=500 {
        // 1000 a second, and a tenth of a second's worth waits.
        controller.turn(&Turn {
            waiting: 100,
            ..turn(step * 10_000, 10_000, 10_000, 10)
        });
        assert_eq!(controller.gate().heard, 1.0, "turn {step}");
    }
    assert!(controller.gate().deferred);
}

#[test]
fn fewer_may_wait_when_those_who_were_looked_at_had_waited_for_too_long() {
    let mut crowd = Crowd::new();
    crowd.pass(5.0, 3_000.0);
    crowd.oldest_us = 800_000;
    crowd.pass(1.0, 3_000.0);
    let backlog = crowd.controller.gate().backlog;
    assert!((95..=150).contains(&backlog), "{backlog}: a quarter");
    crowd.oldest_us = 300_000;
    crowd.pass(2.0, 3_000.0);
    let backlog = crowd.controller.gate().backlog;
    assert!((390..=530).contains(&backlog), "{backlog}: all of it");
}

#[test]
fn somebody_is_heard_when_nobody_could_be_taken_for_long() {
    let mut controller = Controller::new(4096, 0);
    for step in 1..=100 {
        controller.turn(&Turn {
            waiting: 4096,
            dropped: 100,
            ..turn(step * 300_000, 300_000, 0, u32::from(step % 3 == 0))
        });
    }
    let gate = controller.gate();
    let least = QUEUE_LEAST * 9 / 8;
    assert!(gate.heard > 0.0 && gate.backlog == least, "{gate:?}");
}
