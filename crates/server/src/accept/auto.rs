//! The controller's eyes and hands in a worker: what a turn took, who waits, and what the kernel is
//! told.
//!
//! It refuses to decide anything: that is [`control`](super::control), which knows neither clock
//! nor call.

use std::time::{Duration, Instant};

use super::control::{Controller, Gate, PERIOD_US, Turn};
use crate::request::Counters;

/// The listeners are looked at no more often: with many short turns it would be a cost, and a
/// period has twenty of these.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A client that has closed its side and has waited for longer than this is taken for one that has
/// given up, while more come than can be served: longer than anybody is meant to wait in the queue.
const IMPATIENT_MS: u32 = 1_000;

/// Of first requests one in some is looked at; all, for so long after one of these had waited for
/// half of [`IMPATIENT_MS`].
const LOOK_AT_ALL: Duration = Duration::from_secs(1);

/// The controller of a worker, where the count is not fixed, and what it learns from.
pub struct Auto {
    controller: Controller,
    /// What the kernel was last told.
    told: Gate,
    /// When the listeners were last looked at, how many waited then, and how many segments had been
    /// dropped.
    looked: Option<Instant>,
    waited: u32,
    dropped: u32,
    /// Clients that have left the queue since.
    left: u32,
    /// How many wait, as far as that is known: those who have left since the last look are taken
    /// off, those who have come are not seen.
    waiting: u32,
    /// Whether clients are kept back until they speak as long as the controller does not mind.
    deferring: bool,
    /// Whether the kernel remembers whom it did not hear.
    remembering: bool,
    clock: Instant,
    ended: Instant,
    begun: Instant,
    turn: Turn,
    /// Whether clients may wait of whom the wait for events has not told.
    unseen: bool,
    /// When a first request was last seen that had waited for long.
    long_wait: Option<Instant>,
}

impl Auto {
    /// A controller for accept queues of at most `queue_most`, that turns clients away or not, and
    /// whose listeners others may have as well, and keep clients back until they speak.
    pub fn new(queue_most: u32, rejecting: bool, shared: bool, deferring: bool) -> Auto {
        let now = Instant::now();
        let controller = Controller::new(queue_most, 0).rejecting(rejecting);
        Auto {
            // A worker begins with its listeners open wide.
            told: controller.gate(),
            controller: match shared {
                true => controller.sharing(),
                false => controller,
            },
            looked: None,
            waited: 0,
            dropped: 0,
            left: 0,
            waiting: 0,
            deferring,
            remembering: false,
            clock: now,
            ended: now,
            begun: now,
            turn: Turn::default(),
            unseen: false,
            long_wait: None,
        }
    }

    /// The same with a kernel that remembers whom it did not hear.
    pub fn remembering(mut self) -> Auto {
        self.controller = self.controller.remembering();
        self.remembering = true;
        self
    }

    /// The same where clients are not served as they are taken, but by so many events afterwards.
    pub fn serving_later(mut self, events: u32) -> Auto {
        self.controller = self.controller.serving_later(events);
        self
    }

    /// The wait for events is over, and has told of so many of those who are here. `crowded`: more
    /// may be ready. `watched`: it would have told of clients.
    pub fn begin_turn(&mut self, events: u32, crowded: bool, watched: bool) {
        self.begun = Instant::now();
        self.unseen = crowded || !watched;
        self.turn = Turn {
            wait_us: (self.begun - self.ended).as_micros() as u64,
            events,
            crowded,
            reckoned: true,
            queue_empty: true,
            ..Turn::default()
        };
    }

    /// How many clients a round may take.
    pub fn round(&self) -> u32 {
        self.controller.round()
    }

    /// How many of those that a round leaves in the queue may be turned away, or still may in this
    /// turn.
    pub fn reject(&self) -> u32 {
        self.controller.reject().saturating_sub(self.turn.rejected)
    }

    /// Whether more have come than can be served, and it is not long ago.
    pub fn is_crowded(&self) -> bool {
        self.controller.is_crowded()
    }

    /// Whether some of those whose first requests are read now may have given up.
    pub fn may_have_gone(&self) -> bool {
        let lately = |seen: Instant| self.begun.saturating_duration_since(seen) < LOOK_AT_ALL;
        self.is_crowded() && self.long_wait.is_some_and(lately)
    }

    /// When the next turn is to be at the latest, if it matters.
    pub fn next_ms(&self, now_ms: u64) -> Option<u64> {
        (!self.controller.is_at_rest()).then_some(now_ms + PERIOD_US / 1_000)
    }

    /// A round that began at `begun` has taken so many.
    pub fn took(&mut self, begun: Instant, taken: u32) {
        self.turn.accepted += taken;
        self.leave(taken);
        self.turn.accepting_us += begun.elapsed().as_micros() as u64;
    }

    /// After a round, from `begun` on, so many were turned away.
    pub fn turned_away(&mut self, begun: Instant, rejected: u32) {
        self.turn.rejected += rejected;
        self.leave(rejected);
        self.turn.rejecting_us += begun.elapsed().as_micros() as u64;
    }

    fn leave(&mut self, clients: u32) {
        self.left += clients;
        self.waiting = self.waiting.saturating_sub(clients);
    }

    /// Whether a listener has been left with clients in its queue, as far as that is known.
    pub fn left(&mut self, more: bool) {
        self.unseen = false;
        self.turn.queue_empty &= !more;
    }

    /// A first request had waited for so long when it was read, and its client had closed its side
    /// or not. Whether the client is taken for one that has given up, so that nobody is left to
    /// answer.
    pub fn gives_up_on(&mut self, gone: bool, waited_ms: u32) -> bool {
        self.turn.oldest_us = self.turn.oldest_us.max(u64::from(waited_ms) * 1_000);
        if waited_ms >= IMPATIENT_MS / 2 {
            self.long_wait = Some(self.begun);
        }
        self.is_crowded() && gone && waited_ms > IMPATIENT_MS
    }

    /// Whether the listeners are to be looked at: somebody may wait, and it is some time ago.
    pub fn is_to_look(&self) -> bool {
        match self.looked {
            // Somewhere the counting begins.
            None => true,
            Some(looked) => self.may_wait() && self.begun - looked >= LOOK_EVERY,
        }
    }

    fn may_wait(&self) -> bool {
        !self.turn.queue_empty || self.unseen
    }

    /// What the listeners said: how many wait, and how many segments were dropped so far. How many
    /// of them since it was last asked.
    pub fn looked(&mut self, waiting: u32, dropped: u32) -> u32 {
        let (mut since, over) = match self.looked.replace(self.begun) {
            None => (0, Duration::ZERO),
            Some(looked) => (dropped.wrapping_sub(self.dropped), self.begun - looked),
        };
        if self.deferring && self.told.deferred {
            // Of whoever is kept back the kernel drops the last segment of the handshake, and
            // counts that.
            let came = (self.left + waiting).saturating_sub(self.waited);
            since = since.saturating_sub(came);
        }
        (self.waited, self.dropped, self.left) = (waiting, dropped, 0);
        self.waiting = waiting;
        self.unseen = false;
        self.turn.reckoned = false;
        self.turn.queue_empty = waiting == 0;
        // What was dropped in seconds without a look would pass for one period's, and ten times as
        // many for asking.
        let part = PERIOD_US as f64 / over.as_micros().max(PERIOD_US.into()) as f64;
        self.turn.dropped = (f64::from(since) * part) as u32;
        since
    }

    /// The turn is over. What the kernel was told, and what it is to be told now, if that is
    /// different.
    pub fn end_turn(&mut self) -> Option<(Gate, Gate)> {
        let now = Instant::now();
        self.turn.now_us = (now - self.clock).as_micros() as u64;
        self.turn.busy_us = (now - self.begun).as_micros() as u64;
        self.ended = now;
        // Where nobody looked, it is as it was: somebody, or as many as there were.
        self.turn.queue_empty &= !self.unseen;
        self.waiting = match self.turn.queue_empty {
            true => 0,
            false => self.waiting.max(1),
        };
        self.turn.waiting = self.waiting;
        self.turn.reckoned &= !self.turn.queue_empty;
        self.controller.turn(&self.turn);
        let (wanted, told) = (self.controller.gate(), self.told);
        if told == wanted {
            return None;
        }
        self.told = wanted;
        Some((told, wanted))
    }

    /// The controller's state, for those who read it.
    pub fn gauges(&self, counters: &mut Counters) {
        counters.accept_round = u64::from(self.controller.round());
        counters.accept_queue = u64::from(self.told.backlog);
        counters.accept_waiting = u64::from(self.waiting);
        counters.accept_held = self.controller.held();
        counters.accept_limiting = u64::from(self.controller.gate().heard < 1.0);
        counters.accept_remembering = u64::from(self.remembering);
        counters.early_rejecting = u64::from(self.controller.is_rejecting());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_of_those_who_are_kept_back_are_no_drops() {
        for (deferring, dropped) in [(true, 20), (false, 130)] {
            let mut auto = Auto::new(1024, false, false, deferring);
            auto.begin_turn(0, false, true);
            auto.looked(10, 1_000);
            auto.took(Instant::now(), 70);
            auto.turned_away(Instant::now(), 30);
            assert_eq!(auto.looked(20, 1_130), dropped);
        }
    }

    #[test]
    fn those_who_have_left_do_not_wait_any_more_when_nobody_has_looked_since() {
        let mut auto = Auto::new(1024, false, false, true);
        auto.begin_turn(0, false, true);
        auto.looked(100, 0);
        auto.end_turn();
        assert_eq!((auto.turn.waiting, auto.turn.reckoned), (100, false));
        auto.begin_turn(0, false, true);
        auto.took(Instant::now(), 30);
        auto.turned_away(Instant::now(), 5);
        auto.left(true);
        auto.end_turn();
        assert_eq!((auto.turn.waiting, auto.turn.reckoned), (65, true));
        auto.begin_turn(0, false, true);
        auto.left(false);
        auto.end_turn();
        assert_eq!((auto.turn.waiting, auto.turn.reckoned), (0, false));
    }

    /// The same after a second in which the queue was never empty and nearly full.
    fn crowded() -> Auto {
        let mut auto = Auto::new(1024, false, false, true);
        for turn in 1..=50 {
            auto.controller.turn(&Turn {
                now_us: turn * 20_000,
                busy_us: 19_000,
                accepting_us: 5_000,
                accepted: 20,
                waiting: 1_000,
                ..Turn::default()
            });
        }
        auto
    }

    #[test]
    fn clients_are_given_up_on_when_they_have_closed_and_waited_long_and_more_come_than_can_be_served()
     {
        let mut auto = crowded();
        assert!(auto.is_crowded());
        assert!(!auto.gives_up_on(false, 499) && !auto.may_have_gone());
        assert!(auto.gives_up_on(true, 1_001) && auto.may_have_gone());
        assert!(!auto.gives_up_on(true, 1_000), "it may still listen");
        assert!(!auto.gives_up_on(false, 5_000), "it is there");
        assert_eq!(auto.turn.oldest_us, 5_000_000, "what they met is heeded");
        let mut auto = Auto::new(1024, false, false, true);
        assert!(!auto.gives_up_on(true, 5_000), "there is time to answer");
        assert_eq!(auto.turn.oldest_us, 5_000_000);
    }

    #[test]
    fn listeners_are_looked_at_when_somebody_may_wait() {
        let mut auto = Auto::new(1024, false, false, false);
        auto.begin_turn(0, false, true);
        assert!(auto.is_to_look(), "the counting begins");
        assert_eq!(auto.looked(0, 70), 0);
        std::thread::sleep(LOOK_EVERY);
        auto.begin_turn(0, false, true);
        assert!(!auto.is_to_look(), "nobody was announced");
        auto.left(false);
        assert!(!auto.is_to_look());
        auto.left(true);
        assert!(auto.is_to_look());
        assert_eq!(auto.looked(3, 75), 5);
        auto.left(true);
        assert!(!auto.is_to_look(), "it has just been done");
        std::thread::sleep(LOOK_EVERY);
        auto.begin_turn(0, false, false);
        assert!(auto.is_to_look(), "it was not asked about");
        auto.begin_turn(0, true, true);
        assert!(auto.is_to_look(), "there was no room to tell of it");
        auto.left(false);
        assert!(!auto.is_to_look());
    }
}
