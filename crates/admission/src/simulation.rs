//! A server under load in simulated time: compares accept policies, with the same results for the
//! same seed.
//!
//! The simulated mechanism of the event crate makes the order and the times of real readiness
//! adverse. This simulation has no file descriptors at all and runs minutes of overload in
//! milliseconds, so that the control law can be tested on loads for which a test has neither the
//! time nor the machine. It has one CPU, one event loop, the kernel's accept queue, and clients
//! that retransmit a dropped SYN and time out after 3 s. The costs are given.
//!
//! The kernel behaves like Linux. A SYN is answered when the accept queue has room and the SYN
//! filter admits it; then its client is connected. The connection enters the queue with the last
//! segment of its handshake, or with its request if it is deferred. If the queue is full by then,
//! the client sends its request again after 0.2 s, 0.4 s and so on, connected all the while. So
//! clients can time out on connections that the server has never seen.
//!
//! Clients are new ones at given rates, or a crowd that returns ([`ReturningClients`]).
//!
//! Left out are the kernel's work for dropped SYNs, SYN cookies, caches, and the network. The
//! simulation shows how a policy behaves and which one is better for given costs, never how fast a
//! server is.
//!
//! Sources: Brecht and Ostrowski, section 5, for clients and timeouts; their Figure 2 for the loop;
//! `tcp_conn_request` and `tcp_check_req` of the Linux sources for the queue; tcp(7) and ip-sysctl
//! (`tcp_syn_linear_timeouts`) for retransmissions.

mod outcome;
mod random;
mod workload;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

pub use outcome::{Outcome, Sample};
pub use workload::{ReturningClients, Workload};

use crate::{Controller, Decision, ListenerPolicy, Observation, Settings};
use random::Random;

/// A client's timeout for an answer.
const CLIENT_TIMEOUT_US: u64 = 3_000_000;
/// Time until an unanswered SYN is retransmitted (RFC 6298, 2): each time, or the first time.
const SYN_RETRANSMIT_US: u64 = 1_000_000;
/// Time until an unacknowledged request is retransmitted the first time (TCP_RTO_MIN).
const REQUEST_RETRANSMIT_US: u64 = 200_000;
/// CPU time of a check that finds a client disconnected.
const DISCONNECT_CHECK_US: u64 = 2;
/// Events that one wait returns at most.
const EVENTS_MAX: usize = 1024;
/// Interval between samples.
const SAMPLE_US: u64 = 100_000;
/// Time for which the SYN filter remembers a rejected client.
pub const FILTER_MEMORY_US: u64 = 3_500_000;
/// Intervals after which a jittering CPU changes its speed.
const SHORT_JITTER_US: u64 = 40_000;
const LONG_JITTER_US: u64 = 1_000_000;

/// How many connections an accept batch takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptPolicy {
    /// At most this many; 0 means no limit.
    Fixed(u32),
    /// The controller decides, without load shedding.
    Auto,
    /// The controller decides, with load shedding.
    Rejecting,
}

/// Runs a workload with a policy.
pub fn run(workload: &Workload, policy: AcceptPolicy, seed: u64) -> Outcome {
    let mut world = Simulation::new(workload, policy, seed);
    let end_us = (workload.seconds * 1e6) as u64;
    while world.now_us < end_us {
        world.iterate();
    }
    world.outcome.times_us.sort_unstable();
    world.outcome.first_answer_us.sort_unstable();
    world.outcome
}

#[derive(Clone, Copy)]
struct Client {
    /// When its current request began: its first SYN, or the request itself.
    requested_us: u64,
    requests_left: u32,
    /// Hash of its sequence number, in (0, 1], which decides whether it is admitted.
    number: f64,
    /// When its first request arrived.
    request_us: u64,
    /// When the client was first rejected, if the filter remembers that.
    rejected_us: Option<u64>,
    /// Whether the client has all responses, was rejected or timed out.
    over: bool,
}

impl Client {
    fn times_out_us(&self) -> u64 {
        self.requested_us + CLIENT_TIMEOUT_US
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A client comes.
    Arrive,
    /// A SYN: the first, the second, and so on.
    Syn(usize, u32),
    /// The last segment of a connected client's handshake, or its request: the first, the second,
    /// and so on.
    Enter(usize, u32),
    /// A request on an accepted connection.
    Request(usize),
    /// A client times out, unless it has sent another request since.
    TimeOut(usize),
}

struct Simulation<'a> {
    of: &'a Workload,
    policy: AcceptPolicy,
    controller: Controller,
    random: Random,
    seed: u64,
    now_us: u64,
    /// Earliest first. The number keeps events of the same time in order.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    number: u64,
    clients: Vec<Client>,
    queue: VecDeque<usize>,
    /// SYNs and requests that the kernel has dropped since the last report to the controller.
    dropped: u32,
    /// Longest time that a first request of this iteration had waited.
    oldest_us: u64,
    ready: VecDeque<usize>,
    /// Idle connections with requests left, where they are pooled. The last one is used first.
    idle: Vec<usize>,
    open: u32,
    iteration_ended_us: u64,
    sampled_us: u64,
    sampled_responses: u64,
    outcome: Outcome,
}

impl<'a> Simulation<'a> {
    fn new(of: &'a Workload, policy: AcceptPolicy, seed: u64) -> Simulation<'a> {
        let mut world = Simulation {
            of,
            policy,
            controller: controller(of, policy),
            random: Random::new(seed),
            seed,
            now_us: 0,
            events: BinaryHeap::new(),
            number: 0,
            clients: Vec::new(),
            queue: VecDeque::new(),
            dropped: 0,
            oldest_us: 0,
            ready: VecDeque::new(),
            idle: Vec::new(),
            open: 0,
            iteration_ended_us: 0,
            sampled_us: 0,
            sampled_responses: 0,
            outcome: Outcome::default(),
        };
        match &of.returning {
            None => world.next_client(0),
            Some(returning) => {
                for _ in 0..returning.clients {
                    let arrives_us = (world.random.fraction() * returning.think_us as f64) as u64;
                    world.at(arrives_us, Event::Arrive);
                }
            }
        }
        world
    }

    fn at(&mut self, when_us: u64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((when_us, self.number, event)));
    }

    /// Schedules the next client, unless clients return.
    fn next_client(&mut self, after_us: u64) {
        if self.of.returning.is_none() {
            let rate = self.of.rate(after_us).max(1e-3);
            let gap_us = self.random.wait_us(1e6 / rate);
            self.at(after_us + gap_us, Event::Arrive);
        }
    }

    fn arrive(&mut self, now_us: u64) {
        self.outcome.clients += 1;
        if let Some(client) = self.idle.pop() {
            self.clients[client].requested_us = now_us;
            return self.ready.push_back(client);
        }
        let number = self.random.fraction();
        self.clients.push(Client {
            requested_us: now_us,
            requests_left: self.of.requests,
            number,
            request_us: 0,
            rejected_us: None,
            over: false,
        });
        let client = self.clients.len() - 1;
        self.schedule_timeout(client);
        self.syn(client, 0, now_us);
    }

    /// Schedules a client's timeout where clients return. Elsewhere it is found when they are
    /// served.
    fn schedule_timeout(&mut self, client: usize) {
        if self.of.returning.is_some() {
            let timeout_us = self.clients[client].times_out_us() + 1;
            self.at(timeout_us, Event::TimeOut(client));
        }
    }

    fn time_out(&mut self, client: usize, now_us: u64) {
        if !self.clients[client].over && now_us > self.clients[client].times_out_us() {
            self.finish(client, now_us, false);
        }
    }

    /// Ends a client, which returns later where clients do.
    fn finish(&mut self, client: usize, now_us: u64, rejected: bool) {
        self.clients[client].over = true;
        if let Some(returning) = &self.of.returning {
            let retry_after_us = &returning.retry_after_us;
            let away_us = match rejected {
                true => retry_after_us[self.outcome.rejected as usize % retry_after_us.len()],
                false => self.random.wait_us(returning.think_us as f64),
            };
            self.at(now_us + away_us, Event::Arrive);
        }
    }

    /// One iteration of the loop: wait, accept connections, serve those that are ready.
    fn iterate(&mut self) {
        self.wait();
        let begun_us = self.now_us;
        let saturated = self.ready.len() >= EVENTS_MAX;
        let ready = self.ready.len().min(EVENTS_MAX);
        let (accepted, served_all) = self.accept_batch();
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
        self.controller.observe(&Observation {
            now_us: self.now_us,
            wait_us: begun_us - self.iteration_ended_us,
            busy_us: self.now_us - begun_us,
            accepting_us,
            accepted,
            rejecting_us,
            rejected,
            queue_empty,
            pending: self.queue.len() as u32,
            is_estimate: false,
            dropped: std::mem::take(&mut self.dropped),
            oldest_us: std::mem::take(&mut self.oldest_us),
            events: ready as u32,
            saturated,
        });
        self.iteration_ended_us = self.now_us;
    }

    /// Sleeps until there is something to do, and adds the cost of the wait.
    fn wait(&mut self) {
        self.run_events();
        if self.queue.is_empty() && self.ready.is_empty() {
            let next_us = self.events.peek().map(|Reverse((when_us, ..))| *when_us);
            self.now_us = next_us.unwrap_or(0).max(self.now_us + 1);
            self.run_events();
        }
        let open = u64::from(self.open + self.of.idle);
        self.spend_cpu(self.of.wait_us + open * self.of.wait_open_ns / 1000);
    }

    /// The listener settings in force.
    fn listener_policy(&self) -> ListenerPolicy {
        match self.policy {
            AcceptPolicy::Auto | AcceptPolicy::Rejecting => self.decision().listeners,
            AcceptPolicy::Fixed(_) => ListenerPolicy {
                backlog: self.of.backlog,
                admit_fraction: 1.0,
                defer: true,
            },
        }
    }

    /// Accepts a batch. Returns its size, and whether the queue was emptied.
    fn accept_batch(&mut self) -> (u32, bool) {
        let limit = match self.policy {
            // Otherwise a queue that is refilled meanwhile would never end the batch.
            AcceptPolicy::Fixed(0) => self.of.connections_max,
            AcceptPolicy::Fixed(count) => count,
            AcceptPolicy::Auto | AcceptPolicy::Rejecting => self.decision().batch_size,
        };
        let mut accepted = 0;
        while accepted < limit && self.open < self.of.connections_max {
            let Some(client) = self.queue.pop_front() else {
                break;
            };
            accepted += 1;
            self.open += 1;
            self.outcome.accepted += 1;
            self.spend_cpu(self.of.accept_us);
            let request_us = self.clients[client].request_us;
            match self.of.eager {
                // A read that finds nothing.
                _ if request_us > self.now_us => self.at(request_us, Event::Request(client)),
                true => self.serve(client),
                false => self.ready.push_back(client),
            }
        }
        (accepted, accepted < limit)
    }

    /// Rejects connections left by a full batch. Returns their number, and whether the queue was
    /// emptied.
    fn reject(&mut self) -> (u32, bool) {
        let limit = self.decision().reject_limit;
        let mut rejected = 0;
        while rejected < limit {
            let Some(client) = self.queue.pop_front() else {
                break;
            };
            rejected += 1;
            self.spend_cpu(self.of.reject_us);
            let Client { requested_us, .. } = self.clients[client];
            match self.now_us <= self.clients[client].times_out_us() {
                true => {
                    self.outcome.rejected += 1;
                    self.outcome
                        .first_answer_us
                        .push(self.now_us - requested_us);
                    self.finish(client, self.now_us, true);
                }
                false => self.outcome.connected_timed_out += 1,
            }
        }
        (rejected, rejected < limit)
    }

    fn serve(&mut self, client: usize) {
        let Client {
            requests_left,
            request_us,
            ..
        } = self.clients[client];
        let times_out_us = self.clients[client].times_out_us();
        if requests_left == self.of.requests {
            self.oldest_us = self.oldest_us.max(self.now_us.saturating_sub(request_us));
        }
        // The server checks for disconnected clients only under overload.
        let checked = self.policy_is_auto() && self.decision().is_overloaded();
        self.spend_cpu(match checked && self.now_us > times_out_us {
            true => DISCONNECT_CHECK_US,
            false => self.of.request_us,
        });
        match self.now_us > times_out_us {
            true => {
                self.outcome.accepted_timed_out += 1;
                self.outcome.connected_timed_out += 1;
                self.open -= 1;
            }
            false => self.response(client),
        }
    }

    /// Counts a good response, and schedules the client's next request if there is one.
    fn response(&mut self, client: usize) {
        let Client {
            requested_us,
            requests_left,
            ..
        } = self.clients[client];
        self.outcome.responses += 1;
        if requested_us as f64 >= self.of.timed_from_s * 1e6 {
            self.outcome.times_us.push(self.now_us - requested_us);
        }
        if requests_left == self.of.requests {
            self.outcome
                .first_answer_us
                .push(self.now_us - requested_us);
        }
        if requests_left == 1 {
            self.open -= 1;
            return self.finish(client, self.now_us, false);
        }
        self.clients[client].requests_left = requests_left - 1;
        if self.of.pooled {
            return self.idle.push(client);
        }
        let next_us = self.now_us + self.of.pause_us;
        self.clients[client].requested_us = next_us;
        self.at(next_us, Event::Request(client));
        self.schedule_timeout(client);
    }

    /// Uses CPU time, and runs the events of that time.
    fn spend_cpu(&mut self, us: u64) {
        let us = (us as f64 * self.slowdown()).round() as u64;
        self.now_us = match self.of.cpu_quota {
            None => self.now_us + us,
            Some((slice_us, period_us)) => {
                // CPU time used up to now, as if time stood still between the slices.
                let (periods, within_us) = (self.now_us / period_us, self.now_us % period_us);
                let used_us = periods * slice_us + within_us.min(slice_us) + us;
                match us {
                    0 => self.now_us,
                    _ => (used_us - 1) / slice_us * period_us + (used_us - 1) % slice_us + 1,
                }
            }
        };
        self.run_events();
    }

    /// Current cost divided by the mean cost.
    fn slowdown(&self) -> f64 {
        let share = |every_us: u64| {
            2.0 * Random::new(self.seed ^ (self.now_us / every_us) << 8 ^ every_us).fraction() - 1.0
        };
        1.0 + self.of.cpu_jitter * (share(SHORT_JITTER_US) + share(LONG_JITTER_US) / 4.0)
    }

    fn run_events(&mut self) {
        while self.now_us >= self.sampled_us + SAMPLE_US {
            self.sample();
        }
        while let Some(Reverse((when_us, _, event))) = self.events.peek().copied() {
            if when_us > self.now_us {
                return;
            }
            self.events.pop();
            match event {
                Event::Arrive => {
                    self.next_client(when_us);
                    self.arrive(when_us);
                }
                Event::Syn(client, attempt) => self.syn(client, attempt, when_us),
                Event::Enter(client, attempt) => self.enter(client, attempt, when_us),
                Event::Request(client) => self.ready.push_back(client),
                Event::TimeOut(client) => self.time_out(client, when_us),
            }
        }
    }

    fn decision(&self) -> Decision {
        self.controller.decision()
    }

    fn policy_is_auto(&self) -> bool {
        matches!(self.policy, AcceptPolicy::Auto | AcceptPolicy::Rejecting)
    }

    /// The kernel answers a SYN, or drops it.
    fn syn(&mut self, client: usize, attempt: u32, now_us: u64) {
        let policy = self.listener_policy();
        let admitted = self.is_admitted(client, policy.admit_fraction, now_us);
        if !admitted || self.queue.len() >= policy.backlog as usize {
            self.dropped += 1;
            self.outcome.queue_full += u64::from(admitted);
            let again_us = match self.of.linear_syns {
                true => now_us + SYN_RETRANSMIT_US,
                false => now_us + (SYN_RETRANSMIT_US << attempt),
            };
            if again_us < self.clients[client].times_out_us() {
                self.at(again_us, Event::Syn(client, attempt + 1));
            }
            return;
        }
        self.outcome.connected += 1;
        let handshake_us = now_us + self.of.trip_us;
        let request_us = handshake_us + self.of.lag_us;
        self.clients[client].request_us = request_us;
        let enters_us = match self.of.deferred && policy.defer {
            true => request_us,
            false => handshake_us,
        };
        self.at(enters_us, Event::Enter(client, 0));
    }

    /// Whether the SYN filter admits a client. A stateful filter rejects a client that it
    /// remembers.
    fn is_admitted(&mut self, client: usize, fraction: f64, now_us: u64) -> bool {
        let Client {
            number,
            rejected_us,
            ..
        } = self.clients[client];
        if rejected_us.is_some_and(|rejected_us| now_us - rejected_us < FILTER_MEMORY_US) {
            return false;
        }
        // A forgotten client is decided at random.
        let number = rejected_us.map_or(number, |_| self.random.fraction());
        let admitted = number <= fraction;
        if !admitted && self.of.stateful_filter {
            self.clients[client].rejected_us = Some(now_us);
        }
        admitted
    }

    /// A connected client enters the queue, or retransmits until its timeout.
    fn enter(&mut self, client: usize, attempt: u32, now_us: u64) {
        if now_us > self.clients[client].times_out_us() {
            self.outcome.connected_timed_out += 1;
        } else if self.queue.len() < self.listener_policy().backlog as usize {
            // A retransmitted request arrives later than it was first sent.
            self.clients[client].request_us = self.clients[client].request_us.max(now_us);
            self.queue.push_back(client);
        } else {
            self.dropped += 1;
            self.at(
                now_us + (REQUEST_RETRANSMIT_US << attempt),
                Event::Enter(client, attempt + 1),
            );
        }
    }

    fn sample(&mut self) {
        self.sampled_us += SAMPLE_US;
        let responses = self.outcome.responses - self.sampled_responses;
        self.sampled_responses = self.outcome.responses;
        self.outcome.samples.push(Sample {
            at_s: self.sampled_us as f64 / 1e6,
            responses_per_s: responses as f64 * 1e6 / SAMPLE_US as f64,
            batch_size: match self.policy {
                AcceptPolicy::Auto | AcceptPolicy::Rejecting => self.decision().batch_size,
                AcceptPolicy::Fixed(count) => count,
            },
            open: self.open,
            pending: self.queue.len() as u32,
            backlog: self.listener_policy().backlog,
            admit_fraction: self.listener_policy().admit_fraction,
        });
    }
}

fn controller(of: &Workload, policy: AcceptPolicy) -> Controller {
    let settings = Settings {
        sheds_load: policy == AcceptPolicy::Rejecting,
        is_filter_stateful: of.stateful_filter,
        deferred_events: u32::from(!of.eager),
        ..Settings::new(of.backlog, EVENTS_MAX as u32)
    };
    Controller::new(&settings, 0)
}

#[cfg(test)]
mod tests;
