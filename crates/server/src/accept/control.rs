//! How many clients to take, decided from what the loop sees: the control law of `--accept-batch
//! auto`.
//!
//! Pure: turns of the loop in, a few numbers out, no clock and no system call of its own. So the
//! same code runs in the worker and in [`simulation`](super::simulation), where a seed says what
//! happens. It refuses to guess at clients: it knows no time-out of theirs and no size of what they
//! ask for, only how long its own loop took for what, how many wait, and how long some of them had
//! waited.
//!
//! Three things go wrong under overload, and each has a rule of its own; a fourth rule, which is an
//! option, is for those who come for nothing whatever the others do.
//!
//! 1. *A round too small* wastes wake-ups and leaves clients in the queue (their Accept1); *a round
//!    too large* keeps those who are here waiting (AcceptInf). So a round is measured in time: it
//!    takes what remains of a turn after the work for those who are here, by what a client has cost
//!    lately. A turn is [`TURN_US`], or [`WAITS`] times as long as the wait for events takes where
//!    that is more, as with select and very many connections. Where the work for those who are here
//!    alone fills the turn, a round may still take a quarter as long as it did, or less of that the
//!    nearer it is to [`LATE_US`]: clients that stay for many requests must not keep all others
//!    out. Where clients are served in a later turn than they are taken in
//!    ([`Controller::serving_later`]), what they will take then counts as theirs.
//! 2. *Too many who are here* wait for one another until they give up, and then all work is for
//!    nobody (their CM). Who becomes ready waits for a turn at most, or for several when more are
//!    ready than one turn sees. That is the lateness; above [`LATE_US`] nobody is taken until it
//!    has fallen to half. After [`STARVED_US`] without any, one is.
//! 3. *A queue too long* hands over clients that have waited for most of their patience. So the
//!    kernel's queue is kept as long as what leaves it in [`QUEUE_US`], and where more come than
//!    leave, the kernel hears only a part of them, always the same clients however often they
//!    knock, so that those who are heard find room at once (`control/queue.rs`).
//! 4. *Nobody says no* ([`Controller::rejecting`]). Where more come than can be served for longer
//!    than a burst lasts ([`REJECT_AFTER_US`] without a single turn that served all who waited),
//!    most of those beyond the queue would wait for their whole patience and learn nothing. Then
//!    whoever is left in the queue after a round is told at once, as many as a quarter of the time
//!    of everything else is enough for. It ends when for a period all were heard and nobody had to
//!    be told (`control/surplus.rs`). They are told different times to come again at
//!    ([`RETRY_AFTER_S`]).
//!
//! Stability: with the load constant the first rule is a fixed point, not a loop, for the costs it
//! divides by do not depend on what it decides. The second is a switch with hysteresis on a
//! quantity that the switch moves the right way: while nobody is taken those who are here can only
//! become fewer, so lateness falls, and when somebody is, it rises by less than a quarter a turn.
//! The third follows two rates that it does not change, of leaving, which the first two set, and of
//! asking, and is corrected slowly by how many wait. The fourth takes a bounded share of the time,
//! and what it turns away is only what a full round has left; it makes those who are here late by a
//! quarter of a turn at most.
//!
//! Sources: Brecht and Ostrowski, sections 6 and 8, for what has to be balanced; Welsh and Culler's
//! SEDA, which they name for doing it by itself, for controlling by measured times instead of
//! counts; Provos, Lever and Tweedie, and Voigt and others, whom they name for resetting
//! connections early.

mod queue;
mod surplus;

pub use queue::{Gate, QUEUE_US};
pub use surplus::{REJECT_AFTER_US, REJECT_SHARE, RETRY_AFTER_S, retry_after_s};

use queue::Queue;
use surplus::Surplus;

/// What a turn may take before those who are ready in it have waited long enough: an epoll wait and
/// the caches' loss at a change of work are some microseconds, so there is nothing to gain beyond a
/// thousand times as much.
pub const TURN_US: u64 = 4_000;

/// So many times as long as a wait is the turn that follows it, so that waits take a twentieth of
/// the time.
pub const WAITS: u64 = 19;

/// But no turn is made longer than this for the sake of waits.
pub const LONG_TURN_US: u64 = 60_000;

/// Those who are here must not wait longer for their turn. Browsers and people give up after
/// seconds, so an order of magnitude below; and far above any turn that is merely busy.
pub const LATE_US: u64 = 250_000;

/// Nobody was taken for so long: now one is, however late the others are.
pub const STARVED_US: u64 = 500_000;

/// A round takes as many at least, where the others leave half of the turn and it takes no longer
/// than [`LONG_TURN_US`]: where the processor is lent by slices, time passes between them, every
/// client looks dear, and rounds of two would cost as much in waits as in clients.
pub const ROUND_LEAST: u64 = 16;

/// No round takes more than this, however cheap clients are: as many as events come out of one
/// wait.
pub const ROUND_MOST: u32 = 1024;

/// The queue is decided upon so often.
pub const PERIOD_US: u64 = 100_000;

/// Or this early, where more wait than may.
const PERIOD_LEAST_US: u64 = 50_000;

/// And this late, where so few leave the queue that their number is chance, or turns are so long
/// that a period is a few of them.
const PERIOD_MOST_US: u64 = 400_000;

/// How many clients, and how many turns, are enough to tell a rate from.
const LEFT_ENOUGH: u64 = 16;
const TURNS_ENOUGH: u32 = 4;

/// Part of the time for those who are here that a round may take as well, where that is short
/// against [`LATE_US`].
const SHARE: u64 = 4;

/// What a client costs before any has been seen: accepting one and answering from memory is some
/// tens of microseconds.
const COST_FIRST_NS: u64 = 50_000;

/// A mean over about this many rounds follows a change of load within a second and no single slow
/// round.
const COST_MEAN: u64 = 8;
/// And over about so many it is the same whether the processor was there all the time or not.
const LONG_COST_MEAN: f64 = 64.0;

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
    /// How many waited in it in the end.
    pub waiting: u32,
    /// Whether that is reckoned: who has come since the listeners were looked at is not in it.
    pub reckoned: bool,
    /// How many first segments the kernel has dropped since the last turn that left somebody
    /// waiting: no room, or not to be heard.
    pub dropped: u32,
    /// How long the oldest of the first requests that were looked at had waited, in the queue and
    /// for its turn.
    pub oldest_us: u64,
    /// Events of those who are here.
    pub events: u32,
    /// Whether there may be more ready than this turn has seen.
    pub crowded: bool,
}

impl Turn {
    /// The work for those who are here.
    fn others_us(&self) -> u64 {
        self.busy_us
            .saturating_sub(self.accepting_us + self.rejecting_us)
    }
}

/// The controller of one loop.
#[derive(Clone, Debug)]
pub struct Controller {
    /// What taking a client has cost lately.
    cost_ns: u64,
    /// And over many rounds.
    long_cost: LongCost,
    /// Where clients are not served as they are taken.
    later: Option<Later>,
    /// How long the turns have taken since one last saw everybody who was ready.
    late_us: u64,
    holding: bool,
    /// What a wait costs that finds something at once.
    wait_us: u64,
    round: u32,
    last_accept_us: u64,
    held: u64,
    period: Period,
    queue: Queue,
    surplus: Surplus,
}

/// What the turns of a period amounted to; the third rule, and the end of the fourth, go by it.
#[derive(Clone, Copy, Debug)]
struct Period {
    begun_us: u64,
    ended_us: u64,
    /// Clients that left the queue, one way or the other.
    left: u64,
    rejected: u64,
    /// Whether the queue was found empty once.
    emptied: bool,
    turns: u32,
    /// Whether the last turn only reckoned how many wait.
    reckoned: bool,
    /// How many waited when it began and in the end, at most, and over all turns.
    waiting_before: u32,
    waiting: u32,
    waiting_most: u32,
    waiting_sum: u64,
    dropped: u64,
    oldest_us: u64,
    wait_least_us: u64,
}

impl Controller {
    /// A controller at `now_us` for an accept queue of at most `queue_most`.
    pub fn new(queue_most: u32, now_us: u64) -> Controller {
        Controller {
            cost_ns: COST_FIRST_NS,
            long_cost: LongCost::default(),
            later: None,
            late_us: 0,
            holding: false,
            wait_us: 0,
            round: (TURN_US * 1000 / COST_FIRST_NS) as u32,
            last_accept_us: now_us,
            held: 0,
            period: Period::new(now_us, 0),
            queue: Queue::new(queue_most, now_us),
            surplus: Surplus::new(false, now_us),
        }
    }

    /// The same with the fourth rule, or without it.
    pub fn rejecting(mut self, enabled: bool) -> Controller {
        self.surplus = Surplus::new(enabled, self.last_accept_us);
        self
    }

    /// The same for a queue that others take from as well, where all who knock are to be heard.
    pub fn sharing(mut self) -> Controller {
        self.queue.share();
        self
    }

    /// The same where the kernel remembers whom it did not hear for as long as that would knock
    /// again.
    pub fn remembering(mut self) -> Controller {
        self.queue.remember();
        self
    }

    /// The same where clients are not served as they are taken, but by so many events that the wait
    /// tells of later.
    pub fn serving_later(mut self, events: u32) -> Controller {
        self.later = Some(Later {
            events,
            event_ns: COST_FIRST_NS,
            accepted: 0,
        });
        self
    }

    /// How many clients the next round may take; 0 leaves all of them in the queue for this turn.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// What the kernel is to do with those who knock.
    pub fn gate(&self) -> Gate {
        self.queue.gate()
    }

    /// Turns that took nobody, because those who are here were late.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// How many who are left in the queue after the next round may be turned away; 0 unless the
    /// fourth rule says so.
    pub fn reject(&self) -> u32 {
        self.surplus.most()
    }

    /// Whether clients are being turned away.
    pub fn is_rejecting(&self) -> bool {
        self.surplus.is_active()
    }

    /// Whether all who knock are heard and may wait, so that nothing is to be decided before
    /// somebody comes. Otherwise turns are to follow one another within [`PERIOD_US`], or a part
    /// that is not heard any more would never bring about one.
    pub fn is_at_rest(&self) -> bool {
        self.queue.is_open_wide()
    }

    /// Whether more have come than can be served, and it is not long ago.
    pub fn is_crowded(&self) -> bool {
        !self.gate().deferred
    }

    /// Learns from a turn that has ended.
    pub fn turn(&mut self, turn: &Turn) {
        if turn.accepted > 0 {
            self.last_accept_us = turn.now_us;
            learn_cost(&mut self.cost_ns, turn.accepting_us, turn.accepted);
            self.long_cost.learn(turn.accepting_us, turn.accepted);
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
        if let Some(later) = &mut self.later {
            later.learn(turn);
        }
        self.held += u64::from(self.round == 0);
        let turn_us = self.turn_us();
        self.surplus.learn(turn, turn_us);
        self.look_at_period(turn);
    }

    fn next_round(&self, turn: &Turn) -> u32 {
        if self.holding {
            let starved = turn.now_us.saturating_sub(self.last_accept_us) > STARVED_US;
            return u32::from(starved);
        }
        let turn_us = self.turn_us();
        let (later_ns, later_us) = self.later.map_or((0, 0), Later::client_ns_and_last_us);
        // Of those who were taken a turn ago each has been counted once already.
        let others_us = turn.others_us().saturating_sub(later_us);
        let in_time = |us: u64| us * 1000 / (self.cost_ns + later_ns).max(1);
        let least = match others_us > turn_us / 2 {
            true => 1,
            false => in_time(LONG_TURN_US).clamp(1, ROUND_LEAST),
        };
        let room = in_time(turn_us.saturating_sub(others_us));
        let share_us = others_us * LATE_US.saturating_sub(others_us) / (SHARE * LATE_US);
        let share = in_time(share_us).min(self.long_cost.in_time(share_us));
        room.max(share).clamp(least, u64::from(ROUND_MOST)) as u32
    }

    fn turn_us(&self) -> u64 {
        (WAITS * self.wait_us).clamp(TURN_US, LONG_TURN_US)
    }

    fn look_at_period(&mut self, turn: &Turn) {
        self.period.add(turn);
        self.wait_us = self.wait_us.min(turn.wait_us);
        if !self.period.is_over(self.queue.is_beyond(turn.waiting)) {
            return;
        }
        let next = Period::new(turn.now_us, turn.waiting);
        let period = std::mem::replace(&mut self.period, next);
        self.wait_us = period.wait_least_us;
        self.queue.adapt(&period);
        self.surplus.end_period(&period, self.queue.hears_all());
    }
}

impl Period {
    fn new(begun_us: u64, waiting: u32) -> Period {
        Period {
            begun_us,
            ended_us: begun_us,
            left: 0,
            rejected: 0,
            emptied: false,
            turns: 0,
            reckoned: false,
            waiting_before: waiting,
            waiting,
            waiting_most: 0,
            waiting_sum: 0,
            dropped: 0,
            oldest_us: 0,
            wait_least_us: u64::MAX,
        }
    }

    fn add(&mut self, turn: &Turn) {
        self.ended_us = turn.now_us;
        self.left += u64::from(turn.accepted) + u64::from(turn.rejected);
        self.rejected += u64::from(turn.rejected);
        self.emptied |= turn.queue_empty;
        self.turns += 1;
        self.reckoned = turn.reckoned;
        self.waiting = turn.waiting;
        self.waiting_most = self.waiting_most.max(turn.waiting);
        self.waiting_sum += u64::from(turn.waiting);
        self.dropped += u64::from(turn.dropped);
        self.oldest_us = self.oldest_us.max(turn.oldest_us);
        self.wait_least_us = self.wait_least_us.min(turn.wait_us);
    }

    /// Whether somebody always waited, or would have if nobody had been turned away: then what left
    /// is what can.
    fn is_busy(&self) -> bool {
        !self.emptied || self.rejected > 0
    }

    fn is_over(&self, urgent: bool) -> bool {
        let passed_us = self.ended_us.saturating_sub(self.begun_us);
        let few = !self.emptied && (self.left < LEFT_ENOUGH || self.turns < TURNS_ENOUGH);
        match passed_us {
            // Whoever is not counted in one period would be in the next.
            0..PERIOD_MOST_US if self.reckoned => false,
            0..PERIOD_LEAST_US => false,
            PERIOD_LEAST_US..PERIOD_US => urgent && !few,
            PERIOD_US..PERIOD_MOST_US => !few,
            _ => true,
        }
    }

    /// How many waited at the end of a turn, in the mean.
    fn waiting_mean(&self) -> f64 {
        self.waiting_sum as f64 / f64::from(self.turns.max(1))
    }

    fn seconds(&self) -> f64 {
        self.ended_us.saturating_sub(self.begun_us).max(1) as f64 / 1e6
    }
}

/// What those who are taken cost in later turns.
#[derive(Clone, Copy, Debug)]
struct Later {
    /// Events until a client's first request is answered.
    events: u32,
    /// What an event costs in a quarter of all turns at most: where the processor is lent by
    /// slices, time that passes between them is nobody's.
    event_ns: u64,
    /// How many were taken in the last turn.
    accepted: u32,
}

impl Later {
    fn learn(&mut self, turn: &Turn) {
        self.accepted = turn.accepted;
        if turn.events == 0 {
            return;
        }
        let cost_ns = turn.others_us() * 1000 / u64::from(turn.events);
        let (least, most) = (self.event_ns * 29 / 32, self.event_ns * 33 / 32 + 1);
        self.event_ns = cost_ns.clamp(least, most);
    }

    /// For one client, and for those of the last turn together.
    fn client_ns_and_last_us(self) -> (u64, u64) {
        let client_ns = self.event_ns * u64::from(self.events);
        (client_ns, client_ns * u64::from(self.accepted) / 1000)
    }
}

/// All the time of many rounds by all the clients that they took. Where the processor is lent by
/// slices, a round lies in one of them and looks cheap, or between two and looks a hundred times as
/// dear, while the work of others that it is held against has taken many of them.
#[derive(Clone, Copy, Debug)]
struct LongCost {
    us: f64,
    clients: f64,
}

impl Default for LongCost {
    fn default() -> LongCost {
        LongCost {
            us: COST_FIRST_NS as f64 / 1e3,
            clients: 1.0,
        }
    }
}

impl LongCost {
    fn learn(&mut self, us: u64, clients: u32) {
        self.us += (us as f64 - self.us) / LONG_COST_MEAN;
        self.clients += (f64::from(clients) - self.clients) / LONG_COST_MEAN;
    }

    /// How many can be taken in so long.
    fn in_time(self, us: u64) -> u64 {
        (us as f64 * self.clients / self.us.max(1e-3)) as u64
    }
}

/// Rounded up, or a mean would never come down the last steps.
fn learn_cost(mean_ns: &mut u64, us: u64, clients: u32) {
    let cost_ns = us * 1000 / u64::from(clients);
    *mean_ns = (*mean_ns * (COST_MEAN - 1) + cost_ns).div_ceil(COST_MEAN);
}

#[cfg(test)]
mod tests;
