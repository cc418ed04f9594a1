//! How many may wait in the kernel's queue, and which part of those who knock is heard: the third
//! rule.
//!
//! A client that waits in that queue has a connection already, as far as it can tell, so a queue
//! that is longer than what is served in time makes promises that are not kept. And a queue that is
//! full makes clients lucky instead of early: whoever is refused knocks again after 1 s and 2 s
//! (Linux 6.5 and later, before that after 1 s and 3 s), and as often comes in when most of its
//! patience is gone. So two things are decided once a period:
//!
//! - *The length*: what leaves the queue in [`QUEUE_US`], while it is not empty, and room for
//!   [`CHANCE`]. This is the bound, for bursts and for the moments before the second decision has
//!   taken effect. A queue that is found empty grows back.
//! - *The part that is heard*, where more come than leave: so large that the queue stays half as
//!   long as it may be. Chosen by client and not by knock ([`headway_os::listen::hear`]), so that the
//!   others do not come in late, and the queue has room for all who are heard.
//!
//! The part follows from two rates, and is corrected by how many wait: `(leaving + (half - waiting)
//! / 4 s) / asking`, or 1 s. The rate of asking is what came into the queue by the part that was
//! heard then, so what is decided does not depend on what was decided before: with a constant load
//! the number that wait goes to its half as an exponential with a time constant of
//! [`SETTLE_SOON_S`], or of [`SETTLE_S`], forty periods long; beyond [`BRIM`] it is brought back
//! faster. Where the kernel remembers whom it did not hear (`headway_os::porter`) the part that follows is
//! heard at once. Elsewhere chance is to move the number that wait and hardly the part: a part that
//! grows hears those as well who have knocked in vain in the last two seconds, at their next knock.
//! They are late, and they are many: three come where one was meant to. So how many come is
//! reckoned with the parts that were heard one and two seconds ago ([`Queue::coming`]); the means
//! are long (about [`ASKED_ENOUGH`] clients, and [`LEFT_MEAN`] periods); a queue that is about half
//! full leaves the part alone unless it is another by [`WELL`]; and another load is told from
//! chance by the queue: it stays full, or it is empty while far fewer come than were thought to.
//!
//! While the queue is full what came says too little of who asks, for who found no room is not
//! among them. A processor that was away for a moment fills it as well, so only where it stays full
//! ([`FULL_S`]) that rate is more than was thought ([`UNHEARD`]). Learned as at other times it
//! would fall, more would be heard for it, and the queue stay full.
//!
//! What clients say is heeded as well: if of the first requests that were looked at one had waited
//! for longer than a full queue lasts and [`LATE_US`](super::LATE_US) together, however that came
//! about, the bound is halved, and recovers when none has.

use std::collections::VecDeque;

use super::{LATE_US, Period};

/// How long a client may wait in the kernel's queue, room for chance left out. Half of a full
/// queue, [`LATE_US`] and one repeated SYN (1 s) together stay within half of the 3 s that the
/// papers' clients wait, where some hundreds leave it in a second.
pub const QUEUE_US: u64 = 250_000;

/// No queue shorter than this: as many may come at one instant by chance.
pub const QUEUE_LEAST: u32 = 8;

/// Of what leaves in a second the root, so many times: clients come by chance, and a queue that is
/// half as long is empty or full by it seldom.
const CHANCE: f64 = 5.0;
/// But no more than what leaves in so long.
const CHANCE_S: f64 = 0.5;
/// No full queue is thought to last longer.
const LASTS_MOST_US: f64 = 1e6;

/// How fast the number that wait is brought to its half: slow against the time in which an unheard
/// client knocks again.
const SETTLE_S: f64 = 4.0;
/// And where the kernel remembers whom it did not hear, so that nobody comes late when more are.
const SETTLE_SOON_S: f64 = 1.0;

/// Part of the bound beyond which more come than leave.
const FULL: f64 = 0.85;

/// The kernel's own bound by the one that is kept to, and at most.
const ROOM: (f64, f64) = (1.125, 1.25);
/// And where those who come have been chosen once and for all: for them it is better to wait for a
/// second in the queue than to knock again after one.
const ROOM_FOR_CHOSEN: (f64, f64) = (2.0, 2.5);

/// Part of the bound beyond which some find no room, and how fast what is beyond it is brought
/// back.
const BRIM: f64 = 0.95;
const HASTEN_S: f64 = 1.0;

/// The rate of leaving is a mean over about this many periods.
const LEFT_MEAN: f64 = 16.0;

/// But over this many, once it is not known any more whether it still holds.
const STALE: f64 = 4.0;

/// The rate of asking is a mean over about this many clients, and over 8 to 64 periods.
const ASKED_ENOUGH: f64 = 3_000.0;
/// Where nobody comes late when more are heard, over so many periods.
const ASKED_MEAN: f64 = 16.0;

/// Another load, and not chance: this many times fewer than were thought to come, of
/// [`EXPECTED_ENOUGH`] at least.
const SUDDEN: f64 = 1.4;
const EXPECTED_ENOUGH: f64 = 100.0;
/// No smaller part of what was thought is believed of it at once: those who come may only have
/// paused.
const SUDDEN_LEAST: f64 = 0.25;

/// How much more is heard after a run of periods in which the queue was empty, or after one in
/// which clients were turned away.
const SPARE: f64 = 1.1;

/// How much more than was thought ask after a period at whose end the queue was full, at least.
const UNHEARD: f64 = 1.05;
const UNHEARD_MOST: f64 = 1.25;
/// For so long the queue may be full for another reason: a processor that was away for a while, and
/// whoever knocks again for it.
const FULL_S: f64 = 1.5;
/// Part of what the kernel was told beyond which it has refused somebody.
const REFUSED: f64 = 0.95;
/// And beyond which it has refused everybody, for they are left of a longer queue: how many more
/// ask is not to be told from it.
const LEFT_OVER: f64 = 1.1;

/// The part grows by this much a period at most: whoever has knocked in vain knocks again, and each
/// step shows how many of them there are.
const STEP: f64 = 1.5;

/// Another part is heard when it is another by so much, or by less when the one in force has held
/// for a while: the kernel compiles a filter for it (a tenth of a millisecond), which is much where
/// the processor is a small share of one, and who is heard is to stay so.
const COARSE: f64 = 0.03;
const FINE: f64 = 0.01;
const FINE_AFTER_US: u64 = 500_000;
/// And by so much where the queue is about half full: there is room for what that part has too few
/// or too many.
const WELL: f64 = 0.05;

/// After so long a client that was not heard knocks again, and after as long once more (Linux 6.5
/// and later; before that after three times as long).
const AGAIN_US: u64 = 1_000_000;

/// Never less, or nobody would come from whom it could be learned that more may.
const HEARD_LEAST: f64 = 1.0 / 32.0;

/// A queue that is too long is brought back by hearing half of what leaves it and not less: whoever
/// is not heard comes again a second later, all together, and would find it empty until then and
/// too long afterwards.
const HEARD_OF_LEAVING: f64 = 0.5;

/// After so many periods in a row in which the queue was empty once more is heard.
const EMPTY_RUN: u32 = 10;

/// The bound is halved so often at most.
const SPAN_LEAST: f64 = 0.25;

/// All who knock have been heard and served for so long: what was arranged for the crowd is undone.
const CALM_US: u64 = 1_000_000;

/// What the kernel is to do with those who knock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gate {
    /// How many may wait in the accept queue.
    pub backlog: u32,
    /// The part of new connections that is heard, up to 1.
    pub heard: f64,
    /// Whether a client may be kept back until its request is there. Not when more come than can be
    /// served: its place in the queue would be given away meanwhile, and it has its request ready
    /// anyway when its turn comes.
    pub deferred: bool,
}

/// The third rule.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    /// The longest that it may be.
    most: u32,
    gate: Gate,
    /// The parts that were heard lately, and since when: the last one is in force.
    parts: VecDeque<(u64, f64)>,
    /// What leaves the queue while somebody waits.
    leaving_per_s: f64,
    /// Periods that rate was learned from, as far as it matters.
    learned: f64,
    /// New connections that are asked for, heard or not.
    asking_per_s: f64,
    /// Clients that came, and that were thought to, in the last periods without a break in which
    /// the queue was empty once.
    came: f64,
    expected: f64,
    empty_run: u32,
    empty_s: f64,
    /// For how long each period has left the queue nearly full.
    full_s: f64,
    /// Part of [`QUEUE_US`] that clients' own waiting allows.
    span: f64,
    /// All are heard whatever happens: the queue is not this loop's alone.
    shared: bool,
    /// The kernel remembers whom it did not hear.
    remembers: bool,
    busy_us: u64,
}

impl Queue {
    pub fn new(most: u32, now_us: u64) -> Queue {
        Queue {
            most,
            gate: Gate {
                backlog: most,
                heard: 1.0,
                deferred: true,
            },
            parts: VecDeque::from([(now_us, 1.0)]),
            leaving_per_s: 0.0,
            learned: 0.0,
            asking_per_s: 0.0,
            came: 0.0,
            expected: 0.0,
            empty_run: 0,
            empty_s: 0.0,
            full_s: 0.0,
            span: 1.0,
            shared: false,
            remembers: false,
            busy_us: now_us,
        }
    }

    pub fn share(&mut self) {
        self.shared = true;
    }

    pub fn remember(&mut self) {
        self.remembers = true;
    }

    pub fn gate(&self) -> Gate {
        self.gate
    }

    pub fn is_open_wide(&self) -> bool {
        self.hears_all() && self.gate.deferred && self.gate.backlog == self.most
    }

    /// Whether so many are more than can wait, so that the decision should not.
    pub fn is_beyond(&self, waiting: u32) -> bool {
        let bound = match self.learned > 0.0 {
            true => self.bound(),
            // Nothing is known of what can be served, only of the room that there is.
            false => f64::from(self.most) / 2.0,
        };
        self.hears_all() && f64::from(waiting) > bound
    }

    /// Learns from a period.
    pub fn adapt(&mut self, period: &Period) {
        self.heed(period.oldest_us);
        if period.is_busy() {
            self.learn_leaving(period);
            self.busy_us = period.ended_us;
        }
        self.choose_heard(period);
        self.full_s = match self.is_full(period) {
            true => self.full_s + period.seconds(),
            false => 0.0,
        };
        self.gate.backlog = match period.is_busy() || !self.hears_all() {
            _ if self.learned == 0.0 => self.gate.backlog,
            true => self.backlog(),
            false => self.gate.backlog.saturating_mul(2).min(self.most),
        };
        let calm = period.ended_us.saturating_sub(self.busy_us) >= CALM_US;
        self.gate.deferred &= !self.is_full(period);
        self.gate.deferred |= self.hears_all() && calm;
    }

    /// What the kernel is told: a little more than the bound, so that nobody is refused by chance;
    /// and the same again as long as that will do.
    fn backlog(&self) -> u32 {
        let (bound, told) = (self.bound(), f64::from(self.gate.backlog));
        let (room, most) = self.room_by_bound();
        let least = room - (most - room);
        match (least * bound..=most * bound).contains(&told) {
            true => self.gate.backlog,
            false => ((room * bound) as u32).min(self.most),
        }
    }

    fn room_by_bound(&self) -> (f64, f64) {
        match self.remembers && !self.hears_all() {
            true => ROOM_FOR_CHOSEN,
            false => ROOM,
        }
    }

    /// What leaves the queue within the time that a client may wait in it, and room for chance; as
    /// far as there is room and clients' own waiting allows.
    fn bound(&self) -> f64 {
        self.bound_of(self.span)
    }

    fn bound_of(&self, span: f64) -> f64 {
        let served = self.leaving_per_s * QUEUE_US as f64 / 1e6;
        let chance = CHANCE * self.leaving_per_s.sqrt();
        let bound = span * (served + chance.min(CHANCE_S * self.leaving_per_s));
        bound.max(QUEUE_LEAST.into()).min(self.most.into())
    }

    /// Whether more come than leave, as far as can be told from those who wait: the queue is nearly
    /// full, or would be after one more such period.
    fn is_full(&self, period: &Period) -> bool {
        let (waiting, before) = (f64::from(period.waiting), f64::from(period.waiting_before));
        let soon = waiting + (waiting - before).max(0.0);
        let known = self.learned > 0.0 && period.is_busy();
        known && waiting > self.room() / 2.0 && soon > FULL * self.room()
    }

    /// How many could wait in the period that has ended: what was decided before it may be less
    /// than what is to hold now.
    fn room(&self) -> f64 {
        self.bound().min(self.gate.backlog.into())
    }

    /// Whether everybody who knocks may come in, as far as there is room.
    pub fn hears_all(&self) -> bool {
        self.gate.heard >= 1.0
    }

    fn heed(&mut self, oldest_us: u64) {
        let lasts_us = match self.leaving_per_s > 0.0 {
            true => self.room_by_bound().0 * self.bound_of(1.0) / self.leaving_per_s * 1e6,
            false => 0.0,
        };
        let lasts_us = lasts_us.clamp(QUEUE_US as f64, LASTS_MOST_US) as u64;
        self.span = match oldest_us > lasts_us + LATE_US {
            true => (self.span / 2.0).max(SPAN_LEAST),
            false => (self.span * 1.25).min(1.0),
        };
    }

    fn learn_leaving(&mut self, period: &Period) {
        let rate = period.left as f64 / period.seconds();
        if rate > 0.0 && period.ended_us.saturating_sub(self.busy_us) >= CALM_US {
            // Of another load, by now.
            self.learned = self.learned.min(if self.hears_all() { 0.0 } else { STALE });
        }
        // Nothing is said of a rate by a period in which nobody could be taken, unless it lasts.
        if self.learned == 0.0 && rate == 0.0 {
            return;
        }
        self.learned = (self.learned + 1.0).min(LEFT_MEAN);
        self.leaving_per_s += (rate - self.leaving_per_s) / self.learned;
    }

    fn choose_heard(&mut self, period: &Period) {
        if self.learned == 0.0 || self.shared {
            return;
        }
        let (bound, waiting) = (self.bound(), f64::from(period.waiting));
        let came = period.left as f64 + waiting - f64::from(period.waiting_before);
        let came = came.max(0.0);
        if !self.hears_all() {
            self.learn_asking(period, came);
        } else if self.is_full(period) && self.full_s > 0.0 {
            // What one period alone brought may be what a pause has held up. Those who found no
            // room ask as well.
            self.asking_per_s = (came + period.dropped as f64) / period.seconds();
            self.forget_empty();
        } else {
            return;
        }
        // With long turns how many wait goes up and down with each: half of the queue in the mean,
        // and room for the most.
        let (mean, most) = (period.waiting_mean(), f64::from(period.waiting_most));
        let correction = (bound / 2.0 - mean) / self.settle_s();
        let beyond = |waiting: f64| (waiting - BRIM * bound).max(0.0);
        let haste = beyond(mean) / HASTEN_S + beyond(most) / (SETTLE_S / 2.0);
        let least = -HEARD_OF_LEAVING * self.leaving_per_s;
        let wanted = self.leaving_per_s + (correction - haste).max(least);
        let mut heard = self.part_for(wanted / self.asking_per_s.max(1e-3), period.ended_us);
        if period.emptied && period.rejected > 0 {
            // All who came could be served or told: it is not known yet how many more can.
            heard = heard.max(self.gate.heard * SPARE);
        }
        let heard = heard.clamp(HEARD_LEAST, self.gate.heard * STEP).min(1.0);
        let is_well = (0.25..0.75).contains(&(mean / bound));
        self.hear(heard, is_well, period.ended_us);
    }

    fn settle_s(&self) -> f64 {
        match self.remembers {
            true => SETTLE_SOON_S,
            false => SETTLE_S,
        }
    }

    fn hear(&mut self, part: f64, is_well: bool, now_us: u64) {
        let since_us = self.parts.back().map_or(0, |(since_us, _)| *since_us);
        let enough = match now_us.saturating_sub(since_us) >= FINE_AFTER_US {
            _ if self.remembers => 0.0,
            _ if is_well => WELL,
            true => FINE,
            false => COARSE,
        };
        let is_other = (part - self.gate.heard).abs() > enough * self.gate.heard;
        if is_other || (part >= 1.0) != self.hears_all() {
            self.gate.heard = part;
            self.parts.push_back((now_us, part));
        }
        // The one that was in force when they first knocked who now knock for the third time is
        // still wanted.
        let oldest_us = now_us.saturating_sub(3 * AGAIN_US);
        while self
            .parts
            .get(1)
            .is_some_and(|(since_us, _)| *since_us <= oldest_us)
        {
            self.parts.pop_front();
        }
    }

    fn part_at(&self, when_us: u64) -> f64 {
        let mut before = self.parts.iter().rev();
        let then = before.find(|(since_us, _)| *since_us <= when_us);
        then.or(self.parts.front()).map_or(1.0, |(_, part)| *part)
    }

    /// The part that was heard one knock ago, and the larger of those one and two knocks ago:
    /// whoever is above has knocked in vain so often.
    fn parts_before(&self, now_us: u64) -> (f64, f64) {
        let once = self.part_at(now_us.saturating_sub(AGAIN_US));
        let twice = self.part_at(now_us.saturating_sub(2 * AGAIN_US));
        (once, twice.max(once))
    }

    /// How many come where this part is heard, by how many ask: a part that has grown hears those
    /// as well who have knocked in vain.
    fn coming(&self, part: f64, now_us: u64) -> f64 {
        if self.remembers {
            return part;
        }
        let (once, twice) = self.parts_before(now_us);
        part + (part - once).max(0.0) + (part - twice).max(0.0)
    }

    /// The part by which so many come.
    fn part_for(&self, coming: f64, now_us: u64) -> f64 {
        if self.remembers {
            return coming;
        }
        let (once, twice) = self.parts_before(now_us);
        let if_twice = (coming + once) / 2.0;
        if coming <= once {
            coming
        } else if if_twice <= twice {
            if_twice
        } else {
            (coming + once + twice) / 3.0
        }
    }

    /// Whether the queue has been full for so long that it is not the server which has paused, and
    /// refuses clients, and is not left of a longer one.
    fn has_refused(&self, period: &Period) -> bool {
        let of_told = f64::from(period.waiting_most) / f64::from(self.gate.backlog);
        let grows = period.waiting >= period.waiting_before;
        self.full_s > FULL_S && grows && (REFUSED..LEFT_OVER).contains(&of_told)
    }

    fn forget_empty(&mut self) {
        (self.came, self.expected) = (0.0, 0.0);
        (self.empty_run, self.empty_s) = (0, 0.0);
    }

    /// Learns how many ask from how many of those who are heard came.
    fn learn_asking(&mut self, period: &Period, came: f64) {
        let middle_us = (period.begun_us + period.ended_us) / 2;
        let coming = self.coming(self.gate.heard, middle_us);
        let asking = came / period.seconds() / coming;
        if period.emptied {
            self.empty_run += 1;
            self.empty_s += period.seconds();
            self.came += came;
            self.expected += self.asking_per_s * coming * period.seconds();
        } else {
            self.forget_empty();
        }
        if self.expected >= EXPECTED_ENOUGH && self.came * SUDDEN < self.expected {
            self.asking_per_s *= (self.came / self.expected).max(SUDDEN_LEAST);
            self.forget_empty();
            return;
        }
        if self.empty_run >= EMPTY_RUN {
            // As many as were thought to come, and yet the queue is empty: more can leave it than
            // is known.
            self.leaving_per_s = SPARE * self.leaving_per_s.max(self.came / self.empty_s);
            self.forget_empty();
        }
        if self.has_refused(period) {
            // What found no room is not among those who came: more ask than came, and more than was
            // thought.
            let most = self.leaving_per_s.max(1.0) / HEARD_LEAST;
            let (least, next) = (
                UNHEARD * self.asking_per_s,
                UNHEARD_MOST * self.asking_per_s,
            );
            self.asking_per_s = asking.clamp(least, next).min(most);
            return;
        }
        let weight = match self.remembers {
            true => 1.0 / ASKED_MEAN,
            false => (came / ASKED_ENOUGH).clamp(1.0 / 64.0, 0.125),
        };
        self.asking_per_s += (asking - self.asking_per_s) * weight;
    }
}
