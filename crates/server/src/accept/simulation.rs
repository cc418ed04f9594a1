//! A server under load in simulated time: what a policy of taking clients comes to, the same for the same seed.
//!
//! It stands beside the event crate's simulated mechanism: that one makes the order and the moments of real readiness
//! unkind to the code, this one has no descriptors at all and makes minutes of overload pass in milliseconds, so that a
//! control law can be tried on loads that a test has neither the time nor the machine for. One processor, one loop, the
//! kernel's accept queue, clients that repeat a dropped SYN after 1 s and give up 3 s after they began; the costs are given.
//!
//! What it leaves out: the kernel's own work for dropped SYNs, caches, the network. It says how a policy behaves and
//! which one is better for given costs, never how fast a server is.
//!
//! Sources: Brecht and Ostrowski, section 5, for clients and time-outs; their Figure 2 for the loop.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::control::{Controller, Turn};

/// Who waits longer for an answer gives up.
const TIMEOUT_US: u64 = 3_000_000;
/// Until an unanswered SYN is sent again (RFC 6298, 2); the next time is beyond the time-out.
const SYN_AGAIN_US: u64 = 1_000_000;
/// As many events as come out of one wait.
const EVENTS_MOST: usize = 1024;
/// A sample of the course is taken so often.
const SAMPLE_US: u64 = 100_000;

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

/// What is asked of the server, and what it costs.
#[derive(Clone, Debug)]
pub struct Workload {
    /// New connections a second: each rate from its second on, ascending.
    pub rates: Vec<(f64, f64)>,
    /// Requests on a connection, one after the other.
    pub requests: u32,
    /// Processor time of taking a client.
    pub accept_us: u64,
    /// Processor time of a request.
    pub request_us: u64,
    /// Processor time of turning a client away, accepting it included.
    pub reject_us: u64,
    /// Processor time of a wait for events.
    pub wait_us: u64,
    /// And for each open connection, in nanoseconds: what select and poll take, and epoll does not.
    pub wait_open_ns: u64,
    /// Connections that are open and silent all the time.
    pub idle: u32,
    /// The kernel's accept queue.
    pub queue: u32,
    /// Open connections at most.
    pub connections_max: u32,
    /// Whether a client is read from and answered as soon as it is taken.
    pub eager: bool,
    /// From a reply to the next request of the same client.
    pub pause_us: u64,
    /// How long all of it lasts.
    pub seconds: f64,
}

impl Default for Workload {
    /// A small file from memory on a slow processor, one request a connection, at half of what the server can do.
    fn default() -> Workload {
        Workload {
            rates: vec![(0.0, 3_125.0)],
            requests: 1,
            accept_us: 60,
            request_us: 100,
            reject_us: 90,
            wait_us: 20,
            wait_open_ns: 0,
            idle: 0,
            queue: 1024,
            connections_max: 15_000,
            eager: true,
            pause_us: 1_000,
            seconds: 12.0,
        }
    }
}

impl Workload {
    /// Connections a second that keep the processor busy all the time, if nothing else did.
    pub fn capacity(&self) -> f64 {
        1e6 / (self.accept_us + u64::from(self.requests) * self.request_us) as f64
    }

    /// The same at one rate throughout.
    pub fn at(&self, rate: f64) -> Workload {
        Workload {
            rates: vec![(0.0, rate)],
            ..self.clone()
        }
    }

    fn rate(&self, now_us: u64) -> f64 {
        let now_s = now_us as f64 / 1e6;
        let begun = self.rates.iter().rev().find(|(from_s, _)| *from_s <= now_s);
        begun.map_or(0.0, |(_, rate)| *rate)
    }
}

/// A moment of the course.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// When.
    pub at_s: f64,
    /// Good replies a second since the last sample.
    pub replies_per_s: f64,
    /// What a round may take.
    pub round: u32,
    /// Open connections, those that are always silent left out.
    pub open: u32,
    /// How long the queue may be.
    pub queue: u32,
}

/// What became of a simulation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Replies that reached their client in time.
    pub replies: u64,
    /// Clients that were taken.
    pub accepted: u64,
    /// Of them, those that gave up before they had all their replies.
    pub accepted_timed_out: u64,
    /// Clients that were turned away.
    pub rejected: u64,
    /// Clients that came.
    pub clients: u64,
    /// From a client's first SYN until it knew what becomes of it (its first reply, or being turned away), ascending, in
    /// microseconds; clients that gave up without a word are not in it.
    pub told_us: Vec<u64>,
    /// Times of the good replies, from the request (or the first SYN) on, ascending, in microseconds.
    pub times_us: Vec<u64>,
    /// The course.
    pub samples: Vec<Sample>,
}

impl Outcome {
    /// Good replies a second in the span of seconds.
    pub fn replies_per_s(&self, from_s: f64, to_s: f64) -> f64 {
        let within = self
            .samples
            .iter()
            .filter(|sample| sample.at_s > from_s && sample.at_s <= to_s);
        let rates: Vec<f64> = within.map(|sample| sample.replies_per_s).collect();
        rates.iter().sum::<f64>() / rates.len().max(1) as f64
    }

    /// The time within which this share of good replies came.
    pub fn quantile_us(&self, share: f64) -> u64 {
        let last = self.times_us.len().saturating_sub(1);
        let at = (share * last as f64).round() as usize;
        self.times_us.get(at).copied().unwrap_or(0)
    }
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
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Come,
    ComeAgain(usize),
    Ask(usize),
}

struct World<'a> {
    of: &'a Workload,
    policy: Policy,
    controller: Controller,
    random: Random,
    now_us: u64,
    /// Earliest first; the number keeps equal times in order.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    number: u64,
    clients: Vec<Client>,
    queue: VecDeque<usize>,
    ready: VecDeque<usize>,
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
            controller: Controller::new(of.queue, 0).rejecting(policy == Policy::Rejecting),
            random: Random(seed),
            now_us: 0,
            events: BinaryHeap::new(),
            number: 0,
            clients: Vec::new(),
            queue: VecDeque::new(),
            ready: VecDeque::new(),
            open: 0,
            turned_us: 0,
            sampled_us: 0,
            sampled_replies: 0,
            outcome: Outcome::default(),
        };
        world.next_client(0);
        world
    }

    fn at(&mut self, when_us: u64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((when_us, self.number, event)));
    }

    fn next_client(&mut self, after_us: u64) {
        let rate = self.of.rate(after_us).max(1e-3);
        let gap_us = -self.random.fraction().ln() * 1e6 / rate;
        self.at(after_us + gap_us.round() as u64, Event::Come);
    }

    /// One turn of the loop: wait, take clients, serve who is ready.
    fn turn(&mut self) {
        self.happen();
        if self.queue.is_empty() && self.ready.is_empty() {
            let next_us = self.events.peek().map(|Reverse((when_us, ..))| *when_us);
            self.pass(next_us.map_or(1, |next_us| next_us.saturating_sub(self.now_us).max(1)));
        }
        let open = u64::from(self.open + self.of.idle);
        self.pass(self.of.wait_us + open * self.of.wait_open_ns / 1000);
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
            crowded,
        });
        self.turned_us = self.now_us;
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
            match self.of.eager {
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
            let asked_us = self.clients[client].asked_us;
            if self.now_us <= asked_us + TIMEOUT_US {
                self.outcome.rejected += 1;
                self.outcome.told_us.push(self.now_us - asked_us);
            }
        }
        (rejected, rejected < most)
    }

    fn serve(&mut self, client: usize) {
        let Client { asked_us, left } = self.clients[client];
        let gave_up = |now_us: u64| now_us > asked_us + TIMEOUT_US;
        // Who has gone by now costs a read that finds the end; who goes meanwhile costs the whole request.
        let gone_before = gave_up(self.now_us);
        self.pass(match gone_before {
            true => self.of.accept_us,
            false => self.of.request_us,
        });
        if gave_up(self.now_us) {
            self.outcome.accepted_timed_out += 1;
            self.open -= 1;
            return;
        }
        self.outcome.replies += 1;
        self.outcome.times_us.push(self.now_us - asked_us);
        if left == self.of.requests {
            self.outcome.told_us.push(self.now_us - asked_us);
        }
        match left {
            1 => self.open -= 1,
            _ => {
                let again_us = self.now_us + self.of.pause_us;
                self.clients[client] = Client {
                    asked_us: again_us,
                    left: left - 1,
                };
                self.at(again_us, Event::Ask(client));
            }
        }
    }

    /// Time passes, and what happens meanwhile does.
    fn pass(&mut self, us: u64) {
        self.now_us += us;
        self.happen();
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
                    self.outcome.clients += 1;
                    self.clients.push(Client {
                        asked_us: when_us,
                        left: self.of.requests,
                    });
                    self.knock(self.clients.len() - 1, Some(when_us + SYN_AGAIN_US));
                }
                Event::ComeAgain(client) => self.knock(client, None),
                Event::Ask(client) => self.ready.push_back(client),
            }
        }
    }

    /// The kernel has room in the queue, or drops the SYN.
    fn knock(&mut self, client: usize, again_us: Option<u64>) {
        let length = match self.policy {
            Policy::Auto | Policy::Rejecting => self.controller.queue(),
            Policy::Fixed(_) => self.of.queue,
        };
        if self.queue.len() < length as usize {
            self.queue.push_back(client);
        } else if let Some(again_us) = again_us {
            self.at(again_us, Event::ComeAgain(client));
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
            queue: match self.policy {
                Policy::Auto | Policy::Rejecting => self.controller.queue(),
                Policy::Fixed(_) => self.of.queue,
            },
        });
    }
}

/// SplitMix64: small, and every seed is good.
struct Random(u64);

impl Random {
    /// In (0, 1], so that its logarithm is finite.
    fn fraction(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11).wrapping_add(1) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests;
