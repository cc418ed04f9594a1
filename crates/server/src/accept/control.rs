//! How many clients to take, decided from what the loop sees: the control law of `--accept-count auto`.
//!
//! Pure: turns of the loop in, two numbers out, no clock and no system call of its own. So the same code runs in the
//! worker and in [`simulation`](super::simulation), where a seed says what happens. It refuses to guess at clients: it
//! knows no time-out of theirs and no size of what they ask for, only how long its own loop took for what.
//!
//! Three things go wrong under overload, and each has a rule of its own.
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
//!
//! Stability: with the load constant the first rule is a fixed point, not a loop, for the costs it divides by do not
//! depend on what it decides. The second is a switch with hysteresis on a quantity that the switch moves the right way:
//! while nobody is taken those who are here can only become fewer, so lateness falls, and when somebody is, it
//! rises by less than a quarter a turn. The third follows the rate of taking, which the first two set and which
//! the length of the queue does not change as long as it is not empty.
//!
//! Sources: Brecht and Ostrowski, sections 6 and 8, for what has to be balanced; Welsh and Culler's SEDA, which they name
//! for doing it by itself, for controlling by measured times instead of counts.

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

/// The length of the queue is looked at so often.
const PERIOD_US: u64 = 100_000;

/// Part of the time for those who are here that a round may take as well.
const SHARE: u64 = 4;

/// What a client costs before any has been seen: accepting one and answering from memory is some tens of microseconds.
const COST_FIRST_NS: u64 = 50_000;

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
    /// Whether the accept queue was found empty, or nobody was announced in it.
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
}

/// The current period of the third rule.
#[derive(Clone, Copy, Debug)]
struct Period {
    begun_us: u64,
    accepted: u64,
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
        }
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

    /// Learns from a turn that has ended.
    pub fn turn(&mut self, turn: &Turn) {
        if turn.accepted > 0 {
            self.last_accept_us = turn.now_us;
            let cost_ns = turn.accepting_us * 1000 / u64::from(turn.accepted);
            // Rounded up, or a mean would never come down the last steps.
            self.cost_ns = (self.cost_ns * (COST_MEAN - 1) + cost_ns).div_ceil(COST_MEAN);
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
        self.look_at_queue(turn);
    }

    fn next_round(&self, turn: &Turn) -> u32 {
        if self.holding {
            let starved = turn.now_us.saturating_sub(self.last_accept_us) > STARVED_US;
            return u32::from(starved);
        }
        let others_us = turn.busy_us.saturating_sub(turn.accepting_us);
        let turn_us = (WAITS * self.wait_us).clamp(TURN_US, LONG_TURN_US);
        let room_us = turn_us.saturating_sub(others_us).max(others_us / SHARE);
        let clients = room_us * 1000 / self.cost_ns.max(1);
        clients.clamp(1, u64::from(ROUND_MOST)) as u32
    }

    fn look_at_queue(&mut self, turn: &Turn) {
        self.period.accepted += u64::from(turn.accepted);
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
                let rate = self.period.accepted as f64 * 1e6 / passed_us as f64;
                self.rate_per_s = match self.rate_per_s {
                    0.0 => rate,
                    known => known + (rate - known) / 4.0,
                };
                let length = self.rate_per_s * QUEUE_US as f64 / 1e6;
                (length as u32).max(QUEUE_LEAST).min(self.queue_most)
            }
        };
        self.wait_us = self.period.wait_least_us;
        self.period = Period::new(turn.now_us);
    }
}

impl Period {
    fn new(begun_us: u64) -> Period {
        Period {
            begun_us,
            accepted: 0,
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
}
