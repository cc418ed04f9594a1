//! How many clients to take, decided from what the loop sees: the control law of `--accept-count auto`.
//!
//! Pure: turns of the loop in, two numbers out, no clock and no system call of its own. So the same code runs in the
//! worker and in [`simulation`](super::simulation), where a seed says what happens. It refuses to guess at clients: it
//! knows no time-out of theirs and no size of what they ask for, only how long its own loop took for what.
//!
//! Three things go wrong under overload, and each has a rule of its own; a fourth rule, which is an option, is for those who
//! come for nothing whatever the others do.
//!
//! 1. *A round too small* wastes wake-ups and leaves clients in the queue (their Accept1); *a round too large* keeps
//!    those who are here waiting (AcceptInf). So a round is measured in time: it takes what remains of a turn
//!    after the work for those who are here, by what a client has cost lately. A turn is [`TURN_US`], or
//!    [`WAITS`] times as long as the wait for events takes where that is more, as with select and very many
//!    connections. Where the work for those who are here alone fills the turn, a round may still take a quarter as
//!    long as it did: clients that stay for many requests must not keep all others out.
//! 2. *Too many who are here* wait for one another until they give up, and then all work is for nobody (their CM). Who
//!    becomes ready waits for a turn at most, or for several when more are ready than one turn sees. That is the
//!    lateness; above [`LATE_US`] nobody is taken until it has fallen to half. After [`STARVED_US`] without any, one is.
//! 3. *A queue too long* hands over clients that have waited for most of their patience. So the kernel's queue is kept
//!    as long as what is taken from it in [`QUEUE_US`], and a client beyond that learns at once, from an unanswered SYN,
//!    that it has to try again. A queue that is found empty grows back, twice a period, so a burst still fits.
//! 4. *Nobody says no* ([`Controller::rejecting`]). Where more come than can be served for longer than a burst lasts
//!    ([`REJECT_AFTER_US`] without a single turn that served all who waited), most of those beyond the queue would wait for their whole
//!    patience and learn nothing. Then whoever is left in the queue after a round is told at once, at most as many as a
//!    quarter of a turn's time is enough for. It ends when for a period nobody had to be told.
//!
//! Stability: with the load constant the first rule is a fixed point, not a loop, for the costs it divides by do not
//! depend on what it decides. The second is a switch with hysteresis on a quantity that the switch moves the right way:
//! while nobody is taken those who are here can only become fewer, so lateness falls, and when somebody is, it
//! rises by less than a quarter a turn. The third follows the rate of taking, which the first two set and which
//! the length of the queue does not change as long as it is not empty. The fourth takes a bounded share of the time, and what it turns
//! away is only what a full round has left; it makes those who are here late by a quarter of a turn at most.
//!
//! Sources: Brecht and Ostrowski, sections 6 and 8, for what has to be balanced; Welsh and Culler's SEDA, which they name
//! for doing it by itself, for controlling by measured times instead of counts; Provos, Lever and Tweedie, and Voigt and others,
//! whom they name for resetting connections early.

/// What a turn may take before those who are ready in it have waited long enough: an epoll wait and the caches' loss at
/// a change of work are some microseconds, so there is nothing to gain beyond a thousand times as much.
pub const TURN_US: u64 = 4_000;

/// So many times as long as a wait is the turn that follows it, so that waits take a twentieth of the time.
pub const WAITS: u64 = 19;

/// But no turn is made longer than this for the sake of waits.
pub const LONG_TURN_US: u64 = 60_000;

/// Those who are here must not wait longer for their turn. Browsers and people give up after seconds, so an order of
/// magnitude below; and far above any turn that is merely busy.
pub const LATE_US: u64 = 250_000;

/// Nobody was taken for so long: now one is, however late the others are.
pub const STARVED_US: u64 = 500_000;

/// How long a client may wait in the kernel's queue. Together with [`LATE_US`] and one repeated SYN (1 s) this stays within
/// half of the 3 s that the papers' clients wait.
pub const QUEUE_US: u64 = 250_000;

/// No queue shorter than this: as many may come at one instant by chance.
pub const QUEUE_LEAST: u32 = 16;

/// No round takes more than this, however cheap clients are: as many as events come out of one wait.
pub const ROUND_MOST: u32 = 1024;

/// For so long no turn has served all who waited: more come than can be served, and it is no burst, nor the chance by which a
/// server that is nearly busy has a queue for a while. It is when the first whose SYN found no room come again.
pub const REJECT_AFTER_US: u64 = 1_000_000;

/// Part of a turn's time that turning clients away may take on top.
pub const REJECT_SHARE: u64 = 4;

/// The length of the queue is looked at so often.
const PERIOD_US: u64 = 100_000;

/// Part of the time for those who are here that a round may take as well.
const SHARE: u64 = 4;

/// What a client costs before any has been seen: accepting one and answering from memory is some tens of microseconds.
const COST_FIRST_NS: u64 = 50_000;

/// What turning a client away costs before any has been: as much as taking one.
const REJECT_COST_FIRST_NS: u64 = 50_000;

/// A mean over about this many rounds follows a change of load within a second and no single slow round.
const COST_MEAN: u64 = 8;

/// What one turn of the loop amounted to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// When it ended, on any clock that never goes back.
    pub now_us: u64,
    /// The wait for events before it, asleep or not: of many, the shortest was not asleep.
    pub wait_us: u64,
    /// From the end of that wait to its own end.
    pub busy_us: u64,
    /// The part of it in which clients were taken, and served at once.
    pub accepting_us: u64,
    /// How many were taken.
    pub accepted: u32,
    /// The part of it in which clients were turned away.
    pub rejecting_us: u64,
    /// How many were.
    pub rejected: u32,
    /// Whether the accept queue was found empty in the end, or nobody was announced in it.
    pub queue_empty: bool,
    /// Whether there may be more ready than this turn has seen.
    pub crowded: bool,
}

/// The controller of one loop.
#[derive(Clone, Debug)]
pub struct Controller {
    /// The longest that the kernel's queue may be.
    queue_most: u32,
    /// What taking a client has cost lately.
    cost_ns: u64,
    /// How long the turns have taken since one last saw everybody who was ready.
    late_us: u64,
    holding: bool,
    /// What a wait costs that finds something at once.
    wait_us: u64,
    round: u32,
    last_accept_us: u64,
    period: Period,
    rate_per_s: f64,
    queue: u32,
    held: u64,
    reject: Reject,
}

/// The fourth rule.
#[derive(Clone, Copy, Debug)]
struct Reject {
    /// It is wanted.
    enabled: bool,
    /// Clients are being turned away.
    active: bool,
    /// When all who waited were served last.
    served_all_us: u64,
    /// What turning a client away has cost lately.
    cost_ns: u64,
    /// How many may be turned away after the next round.
    most: u32,
}

/// The current period of the third rule, and of the end of the fourth.
#[derive(Clone, Copy, Debug)]
struct Period {
    begun_us: u64,
    /// Clients that left the queue, one way or the other.
    taken: u64,
    rejected: u64,
    emptied: bool,
    wait_least_us: u64,
}

impl Controller {
    /// A controller at `now_us` for an accept queue of at most `queue_most`.
    pub fn new(queue_most: u32, now_us: u64) -> Controller {
        Controller {
            queue_most,
            cost_ns: COST_FIRST_NS,
            late_us: 0,
            holding: false,
            wait_us: 0,
            round: (TURN_US * 1000 / COST_FIRST_NS) as u32,
            last_accept_us: now_us,
            period: Period::new(now_us),
            rate_per_s: 0.0,
            queue: queue_most,
            held: 0,
            reject: Reject {
                enabled: false,
                active: false,
                served_all_us: now_us,
                cost_ns: REJECT_COST_FIRST_NS,
                most: 0,
            },
        }
    }

    /// The same with the fourth rule, or without it.
    pub fn rejecting(mut self, enabled: bool) -> Controller {
        self.reject.enabled = enabled;
        self
    }

    /// How many clients the next round may take; 0 leaves all of them in the queue for this turn.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// How long the kernel's queue is to be.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// Turns that took nobody, because those who are here were late.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// How many who are left in the queue after the next round may be turned away; 0 unless the fourth rule says so.
    pub fn reject(&self) -> u32 {
        self.reject.most
    }

    /// Whether clients are being turned away.
    pub fn is_rejecting(&self) -> bool {
        self.reject.active
    }

    /// Learns from a turn that has ended.
    pub fn turn(&mut self, turn: &Turn) {
        if turn.accepted > 0 {
            self.last_accept_us = turn.now_us;
            learn_cost(&mut self.cost_ns, turn.accepting_us, turn.accepted);
        }
        self.late_us = match turn.crowded {
            true => self.late_us + turn.busy_us,
            false => turn.busy_us,
        };
        self.holding = match self.holding {
            true => self.late_us > LATE_US / 2,
            false => self.late_us > LATE_US,
        };
        self.round = self.next_round(turn);
        self.held += u64::from(self.round == 0);
        self.look_at_surplus(turn);
        self.look_at_queue(turn);
    }

    fn next_round(&self, turn: &Turn) -> u32 {
        if self.holding {
            let starved = turn.now_us.saturating_sub(self.last_accept_us) > STARVED_US;
            return u32::from(starved);
        }
        let others_us = turn
            .busy_us
            .saturating_sub(turn.accepting_us + turn.rejecting_us);
        let turn_us = self.turn_us();
        let room_us = turn_us.saturating_sub(others_us).max(others_us / SHARE);
        let clients = room_us * 1000 / self.cost_ns.max(1);
        clients.clamp(1, u64::from(ROUND_MOST)) as u32
    }

    fn turn_us(&self) -> u64 {
        (WAITS * self.wait_us).clamp(TURN_US, LONG_TURN_US)
    }

    /// Whether more come than can be served, and how many of them may be told.
    fn look_at_surplus(&mut self, turn: &Turn) {
        if !self.reject.enabled {
            return;
        }
        if turn.rejected > 0 {
            learn_cost(&mut self.reject.cost_ns, turn.rejecting_us, turn.rejected);
        } else if turn.queue_empty {
            self.reject.served_all_us = turn.now_us;
        }
        let for_us = turn.now_us.saturating_sub(self.reject.served_all_us);
        self.reject.active |= for_us >= REJECT_AFTER_US;
        // Of a turn that the others make longer, too.
        let turn_us = self
            .turn_us()
            .max(turn.busy_us.saturating_sub(turn.rejecting_us));
        let room_us = turn_us / REJECT_SHARE;
        self.reject.most = match self.reject.active {
            true => {
                (room_us * 1000 / self.reject.cost_ns.max(1)).clamp(1, ROUND_MOST.into()) as u32
            }
            false => 0,
        };
    }

    fn look_at_queue(&mut self, turn: &Turn) {
        self.period.taken += u64::from(turn.accepted) + u64::from(turn.rejected);
        self.period.rejected += u64::from(turn.rejected);
        self.period.emptied |= turn.queue_empty;
        self.period.wait_least_us = self.period.wait_least_us.min(turn.wait_us);
        self.wait_us = self.wait_us.min(turn.wait_us);
        let passed_us = turn.now_us.saturating_sub(self.period.begun_us);
        if passed_us < PERIOD_US {
            return;
        }
        self.queue = match self.period.emptied {
            true => self.queue.saturating_mul(2).min(self.queue_most),
            false => {
                let rate = self.period.taken as f64 * 1e6 / passed_us as f64;
                self.rate_per_s = match self.rate_per_s {
                    0.0 => rate,
                    known => known + (rate - known) / 4.0,
                };
                let length = self.rate_per_s * QUEUE_US as f64 / 1e6;
                (length as u32).max(QUEUE_LEAST).min(self.queue_most)
            }
        };
        if self.reject.active && self.period.emptied && self.period.rejected == 0 {
            (self.reject.active, self.reject.most) = (false, 0);
        }
        self.wait_us = self.period.wait_least_us;
        self.period = Period::new(turn.now_us);
    }
}

/// Rounded up, or a mean would never come down the last steps.
fn learn_cost(mean_ns: &mut u64, us: u64, clients: u32) {
    let cost_ns = us * 1000 / u64::from(clients);
    *mean_ns = (*mean_ns * (COST_MEAN - 1) + cost_ns).div_ceil(COST_MEAN);
}

impl Period {
    fn new(begun_us: u64) -> Period {
        Period {
            begun_us,
            taken: 0,
            rejected: 0,
            emptied: false,
            wait_least_us: u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
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
        let quarter = settled(21_000, 1_000, 25).round();
        assert!((123..=125).contains(&quarter), "{quarter}: of 20 ms");
        assert_eq!(settled(13_000, 1_000, 1).round(), 3, "1 ms each");
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
        // 10 clients in 10 ms are 1000 a second.
        assert_eq!(settled(10_000, 10_000, 10).queue(), 250);
        assert_eq!(settled(100_000, 100_000, 1).queue(), QUEUE_LEAST);
        assert_eq!(
            settled(1_000, 1_000, 100).queue(),
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
        assert_eq!(controller.queue(), 1024);
    }

    /// Turns of 5 ms in which a full round left somebody, and as many as may be were turned away at 40 us each.
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
    fn queue_is_long_again_when_turning_away_empties_it() {
        let mut controller = settled(10_000, 10_000, 10).rejecting(true);
        assert_eq!(controller.queue(), 250);
        let mut now_us = overloaded(&mut controller, 2_000_000, 200);
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
        assert_eq!(controller.queue(), 1024);
    }
}
