//! A server under load in simulated time: what a policy of taking clients comes to, the same for
//! the same seed.
//!
//! It stands beside the event crate's simulated mechanism: that one makes the order and the moments
//! of real readiness unkind to the code, this one has no descriptors at all and makes minutes of
//! overload pass in milliseconds, so that a control law can be tried on loads that a test has
//! neither the time nor the machine for. One processor, one loop, the kernel's accept queue,
//! clients that repeat a dropped SYN and give up 3 s after they began; the costs are given.
//!
//! The kernel is Linux's as far as it decides who waits where. A SYN is answered when the accept
//! queue has room and the part that is heard includes it (and at its first knock did, where the
//! kernel remembers that), and from then on its client has a connection. It stands in the queue
//! when its handshake's last segment is there, or where clients are kept back until they speak, its
//! request; and if the queue is full by then, it does not, and sends the request again after 0.2 s,
//! 0.4 s and so on, connected all the while. That is how a server comes to time-outs of connections
//! that it has never seen.
//!
//! Clients are ever new ones at given rates, or a crowd that comes again ([`Returning`]).
//!
//! What it leaves out: the kernel's own work for dropped SYNs, SYN cookies, caches, the network. It
//! says how a policy behaves and which one is better for given costs, never how fast a server is.
//!
//! Sources: Brecht and Ostrowski, section 5, for clients and time-outs; their Figure 2 for the
//! loop; `tcp_conn_request` and `tcp_check_req` of the Linux sources for the queue, tcp(7) and
//! ip-sysctl (`tcp_syn_linear_timeouts`) for repetitions.

mod outcome;
mod random;
mod workload;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

pub use outcome::{Outcome, Sample};
pub use workload::{Returning, Workload};

use super::control::{Controller, Gate, Turn};
use random::Random;

/// Who waits longer for an answer gives up.
const TIMEOUT_US: u64 = 3_000_000;
/// Until an unanswered SYN is sent again (RFC 6298, 2): each time, or for the first time.
const SYN_AGAIN_US: u64 = 1_000_000;
/// Until a request that was not acknowledged is sent again, for the first time (TCP_RTO_MIN).
const REQUEST_AGAIN_US: u64 = 200_000;
/// What a look at a connection costs that finds its client gone.
const GONE_US: u64 = 2;
/// As many events as come out of one wait.
const EVENTS_MOST: usize = 1024;
/// A sample of the course is taken so often.
const SAMPLE_US: u64 = 100_000;
/// For how long the kernel knows whom it did not hear.
const REMEMBERED_US: u64 = (headway_os::porter::REMEMBERED_S * 1e6) as u64;
/// How often an unsteady processor is another.
const SHORT_US: u64 = 40_000;
const LONG_US: u64 = 1_000_000;

/// How many clients a round takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// At most so many; 0 is no bound.
    Fixed(u32),
    /// As the controller says.
    Auto,
    /// The same, and those who cannot be served are turned away.
    Rejecting,
}

/// Runs a workload against a policy.
pub fn run(workload: &Workload, policy: Policy, seed: u64) -> Outcome {
    let mut world = World::new(workload, policy, seed);
    let end_us = (workload.seconds * 1e6) as u64;
    while world.now_us < end_us {
        world.turn();
    }
    world.outcome.times_us.sort_unstable();
    world.outcome.told_us.sort_unstable();
    world.outcome
}

#[derive(Clone, Copy)]
struct Client {
    /// When its current request began: its first SYN, or the request itself.
    asked_us: u64,
    left: u32,
    /// What decides whether it is heard, in (0, 1].
    number: f64,
    /// When its first request has come.
    request_us: u64,
    /// When it was first not heard, where that is remembered.
    refused_us: Option<u64>,
    /// It has what it came for, has been turned away or has given up.
    over: bool,
}

impl Client {
    fn gives_up_us(&self) -> u64 {
        self.asked_us + TIMEOUT_US
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Come,
    /// A SYN: the first, the second, and so on.
    Knock(usize, u32),
    /// A connected client is to stand in the queue: the last segment of its handshake, or its
    /// request, for the so many-th time.
    Enter(usize, u32),
    Ask(usize),
    /// A client's patience ends, unless it has asked anew since.
    Tire(usize),
}

struct World<'a> {
    of: &'a Workload,
    policy: Policy,
    controller: Controller,
    random: Random,
    seed: u64,
    now_us: u64,
    /// Earliest first; the number keeps equal times in order.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    number: u64,
    clients: Vec<Client>,
    queue: VecDeque<usize>,
    /// SYNs and requests that the kernel has dropped since the controller was last told.
    dropped: u32,
    /// The longest that a first request had waited, of those of this turn.
    oldest_us: u64,
    ready: VecDeque<usize>,
    /// Connections that are open and silent, and have requests left; where they are pooled. The
    /// last one is taken first.
    silent: Vec<usize>,
    open: u32,
    turned_us: u64,
    sampled_us: u64,
    sampled_replies: u64,
    outcome: Outcome,
}

impl<'a> World<'a> {
    fn new(of: &'a Workload, policy: Policy, seed: u64) -> World<'a> {
        let mut world = World {
            of,
            policy,
            controller: controller(of, policy),
            random: Random(seed),
            seed,
            now_us: 0,
            events: BinaryHeap::new(),
            number: 0,
            clients: Vec::new(),
            queue: VecDeque::new(),
            dropped: 0,
            oldest_us: 0,
            ready: VecDeque::new(),
            silent: Vec::new(),
            open: 0,
            turned_us: 0,
            sampled_us: 0,
            sampled_replies: 0,
            outcome: Outcome::default(),
        };
        match &of.returning {
            None => world.next_client(0),
            Some(returning) => {
                for _ in 0..returning.clients {
                    let comes_us = (world.random.fraction() * returning.think_us as f64) as u64;
                    world.at(comes_us, Event::Come);
                }
            }
        }
        world
    }

    fn at(&mut self, when_us: u64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((when_us, self.number, event)));
    }

    /// One more, where clients are ever new ones.
    fn next_client(&mut self, after_us: u64) {
        if self.of.returning.is_none() {
            let rate = self.of.rate(after_us).max(1e-3);
            let gap_us = self.random.wait_us(1e6 / rate);
            self.at(after_us + gap_us, Event::Come);
        }
    }

    fn come(&mut self, now_us: u64) {
        self.outcome.clients += 1;
        if let Some(client) = self.silent.pop() {
            self.clients[client].asked_us = now_us;
            return self.ready.push_back(client);
        }
        let number = self.random.fraction();
        self.clients.push(Client {
            asked_us: now_us,
            left: self.of.requests,
            number,
            request_us: 0,
            refused_us: None,
            over: false,
        });
        let client = self.clients.len() - 1;
        self.be_patient(client);
        self.knock(client, 0, now_us);
    }

    /// Where clients return, it matters when they give up; elsewhere it is seen when they are
    /// looked at.
    fn be_patient(&mut self, client: usize) {
        if self.of.returning.is_some() {
            let tired_us = self.clients[client].gives_up_us() + 1;
            self.at(tired_us, Event::Tire(client));
        }
    }

    fn tire(&mut self, client: usize, now_us: u64) {
        if !self.clients[client].over && now_us > self.clients[client].gives_up_us() {
            self.part(client, now_us, false);
        }
    }

    /// It is over with a client, and it comes again where clients do.
    fn part(&mut self, client: usize, now_us: u64, told: bool) {
        self.clients[client].over = true;
        if let Some(returning) = &self.of.returning {
            let away_us = match told {
                true => returning.told_us[self.outcome.rejected as usize % returning.told_us.len()],
                false => self.random.wait_us(returning.think_us as f64),
            };
            self.at(now_us + away_us, Event::Come);
        }
    }

    /// One turn of the loop: wait, take clients, serve who is ready.
    fn turn(&mut self) {
        self.wait();
        let begun_us = self.now_us;
        let crowded = self.ready.len() >= EVENTS_MOST;
        let ready = self.ready.len().min(EVENTS_MOST);
        let (accepted, served_all) = self.round();
        let accepting_us = self.now_us - begun_us;
        let (rejected, queue_empty) = match served_all {
            true => (0, true),
            false => self.reject(),
        };
        let rejecting_us = self.now_us - begun_us - accepting_us;
        for _ in 0..ready {
            if let Some(client) = self.ready.pop_front() {
                self.serve(client);
            }
        }
        self.controller.turn(&Turn {
            now_us: self.now_us,
            wait_us: begun_us - self.turned_us,
            busy_us: self.now_us - begun_us,
            accepting_us,
            accepted,
            rejecting_us,
            rejected,
            queue_empty,
            waiting: self.queue.len() as u32,
            reckoned: false,
            dropped: std::mem::take(&mut self.dropped),
            oldest_us: std::mem::take(&mut self.oldest_us),
            events: ready as u32,
            crowded,
        });
        self.turned_us = self.now_us;
    }

    /// Sleeps until there is something to do, and pays for having asked.
    fn wait(&mut self) {
        self.happen();
        if self.queue.is_empty() && self.ready.is_empty() {
            let next_us = self.events.peek().map(|Reverse((when_us, ..))| *when_us);
            self.now_us = next_us.unwrap_or(0).max(self.now_us + 1);
            self.happen();
        }
        let open = u64::from(self.open + self.of.idle);
        self.pass(self.of.wait_us + open * self.of.wait_open_ns / 1000);
    }

    /// What the kernel has been told.
    fn gate(&self) -> Gate {
        match self.policy {
            Policy::Auto | Policy::Rejecting => self.controller.gate(),
            Policy::Fixed(_) => Gate {
                backlog: self.of.queue,
                heard: 1.0,
                deferred: true,
            },
        }
    }

    /// Takes clients: how many, and whether there were no more.
    fn round(&mut self) -> (u32, bool) {
        let most = match self.policy {
            // Or a queue that is refilled meanwhile would never end it.
            Policy::Fixed(0) => self.of.connections_max,
            Policy::Fixed(count) => count,
            Policy::Auto | Policy::Rejecting => self.controller.round(),
        };
        let mut taken = 0;
        while taken < most && self.open < self.of.connections_max {
            let Some(client) = self.queue.pop_front() else {
                break;
            };
            taken += 1;
            self.open += 1;
            self.outcome.accepted += 1;
            self.pass(self.of.accept_us);
            let request_us = self.clients[client].request_us;
            match self.of.eager {
                // A read that finds nothing.
                _ if request_us > self.now_us => self.at(request_us, Event::Ask(client)),
                true => self.serve(client),
                false => self.ready.push_back(client),
            }
        }
        (taken, taken < most)
    }

    /// Turns away whom a full round has left: how many, and whether there are no more.
    fn reject(&mut self) -> (u32, bool) {
        let most = self.controller.reject();
        let mut rejected = 0;
        while rejected < most {
            let Some(client) = self.queue.pop_front() else {
                break;
            };
            rejected += 1;
            self.pass(self.of.reject_us);
            let Client { asked_us, .. } = self.clients[client];
            match self.now_us <= self.clients[client].gives_up_us() {
                true => {
                    self.outcome.rejected += 1;
                    self.outcome.told_us.push(self.now_us - asked_us);
                    self.part(client, self.now_us, true);
                }
                false => self.outcome.connected_timed_out += 1,
            }
        }
        (rejected, rejected < most)
    }

    fn serve(&mut self, client: usize) {
        let Client {
            left, request_us, ..
        } = self.clients[client];
        let gives_up_us = self.clients[client].gives_up_us();
        if left == self.of.requests {
            self.oldest_us = self.oldest_us.max(self.now_us.saturating_sub(request_us));
        }
        // Who has gone is only seen by looking, and that is done when more come than can be served.
        let seen = self.policy_is_auto() && self.controller.is_crowded();
        self.pass(match seen && self.now_us > gives_up_us {
            true => GONE_US,
            false => self.of.request_us,
        });
        match self.now_us > gives_up_us {
            true => {
                self.outcome.accepted_timed_out += 1;
                self.outcome.connected_timed_out += 1;
                self.open -= 1;
            }
            false => self.answered(client),
        }
    }

    /// A good reply has been sent, and the next request follows, or the client has what it came
    /// for.
    fn answered(&mut self, client: usize) {
        let Client { asked_us, left, .. } = self.clients[client];
        self.outcome.replies += 1;
        if asked_us as f64 >= self.of.timed_from_s * 1e6 {
            self.outcome.times_us.push(self.now_us - asked_us);
        }
        if left == self.of.requests {
            self.outcome.told_us.push(self.now_us - asked_us);
        }
        if left == 1 {
            self.open -= 1;
            return self.part(client, self.now_us, false);
        }
        self.clients[client].left = left - 1;
        if self.of.pooled {
            return self.silent.push(client);
        }
        let again_us = self.now_us + self.of.pause_us;
        self.clients[client].asked_us = again_us;
        self.at(again_us, Event::Ask(client));
        self.be_patient(client);
    }

    /// So much processor time passes, and what happens meanwhile does.
    fn pass(&mut self, us: u64) {
        let us = (us as f64 * self.pace()).round() as u64;
        self.now_us = match self.of.lent {
            None => self.now_us + us,
            Some((slice_us, period_us)) => {
                // What was used of the slices up to now, as if time stood still between them.
                let (periods, within_us) = (self.now_us / period_us, self.now_us % period_us);
                let used_us = periods * slice_us + within_us.min(slice_us) + us;
                match us {
                    0 => self.now_us,
                    _ => (used_us - 1) / slice_us * period_us + (used_us - 1) % slice_us + 1,
                }
            }
        };
        self.happen();
    }

    /// What a cost is now by what it is in the mean.
    fn pace(&self) -> f64 {
        let share = |every_us: u64| {
            2.0 * Random(self.seed ^ (self.now_us / every_us) << 8 ^ every_us).fraction() - 1.0
        };
        1.0 + self.of.unsteady * (share(SHORT_US) + share(LONG_US) / 4.0)
    }

    fn happen(&mut self) {
        while self.now_us >= self.sampled_us + SAMPLE_US {
            self.sample();
        }
        while let Some(Reverse((when_us, _, event))) = self.events.peek().copied() {
            if when_us > self.now_us {
                return;
            }
            self.events.pop();
            match event {
                Event::Come => {
                    self.next_client(when_us);
                    self.come(when_us);
                }
                Event::Knock(client, time) => self.knock(client, time, when_us),
                Event::Enter(client, time) => self.enter(client, time, when_us),
                Event::Ask(client) => self.ready.push_back(client),
                Event::Tire(client) => self.tire(client, when_us),
            }
        }
    }

    fn policy_is_auto(&self) -> bool {
        matches!(self.policy, Policy::Auto | Policy::Rejecting)
    }

    /// The kernel answers a SYN, or drops it.
    fn knock(&mut self, client: usize, time: u32, now_us: u64) {
        let gate = self.gate();
        let heard = self.is_heard(client, gate.heard, now_us);
        if !heard || self.queue.len() >= gate.backlog as usize {
            self.dropped += 1;
            self.outcome.no_room += u64::from(heard);
            let again_us = match self.of.linear_syns {
                true => now_us + SYN_AGAIN_US,
                false => now_us + (SYN_AGAIN_US << time),
            };
            if again_us < self.clients[client].gives_up_us() {
                self.at(again_us, Event::Knock(client, time + 1));
            }
            return;
        }
        self.outcome.connected += 1;
        let shaken_us = now_us + self.of.trip_us;
        let request_us = shaken_us + self.of.lag_us;
        self.clients[client].request_us = request_us;
        let enters_us = match self.of.deferred && gate.deferred {
            true => request_us,
            false => shaken_us,
        };
        self.at(enters_us, Event::Enter(client, 0));
    }

    /// Whether the part that is heard includes a client, and was not without it at its first knock
    /// where that is remembered.
    fn is_heard(&mut self, client: usize, part: f64, now_us: u64) -> bool {
        let Client {
            number, refused_us, ..
        } = self.clients[client];
        if refused_us.is_some_and(|refused_us| now_us - refused_us < REMEMBERED_US) {
            return false;
        }
        // Who has been forgotten is drawn anew.
        let number = refused_us.map_or(number, |_| self.random.fraction());
        let heard = number <= part;
        if !heard && self.of.remembers {
            self.clients[client].refused_us = Some(now_us);
        }
        heard
    }

    /// A connected client finds room in the queue, or it tries again as long as it has patience.
    fn enter(&mut self, client: usize, time: u32, now_us: u64) {
        if now_us > self.clients[client].gives_up_us() {
            self.outcome.connected_timed_out += 1;
        } else if self.queue.len() < self.gate().backlog as usize {
            // What was repeated came later than it was sent first.
            self.clients[client].request_us = self.clients[client].request_us.max(now_us);
            self.queue.push_back(client);
        } else {
            self.dropped += 1;
            self.at(
                now_us + (REQUEST_AGAIN_US << time),
                Event::Enter(client, time + 1),
            );
        }
    }

    fn sample(&mut self) {
        self.sampled_us += SAMPLE_US;
        let replies = self.outcome.replies - self.sampled_replies;
        self.sampled_replies = self.outcome.replies;
        self.outcome.samples.push(Sample {
            at_s: self.sampled_us as f64 / 1e6,
            replies_per_s: replies as f64 * 1e6 / SAMPLE_US as f64,
            round: match self.policy {
                Policy::Auto | Policy::Rejecting => self.controller.round(),
                Policy::Fixed(count) => count,
            },
            open: self.open,
            waiting: self.queue.len() as u32,
            queue: self.gate().backlog,
            heard: self.gate().heard,
        });
    }
}

fn controller(of: &Workload, policy: Policy) -> Controller {
    let controller = Controller::new(of.queue, 0).rejecting(policy == Policy::Rejecting);
    let controller = match of.remembers {
        true => controller.remembering(),
        false => controller,
    };
    match of.eager {
        true => controller,
        false => controller.serving_later(1),
    }
}

#[cfg(test)]
mod tests;
