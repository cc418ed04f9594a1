//! Where the time of requests went: the rows of a run beside the sleeps of the server's threads.
//!
//! A row says when a request was intended, started, got its first byte and ended. A trace says when
//! each thread of the server slept in a system call, and on what. Neither says which request a call
//! was made for, so the parts follow from counts at each moment:
//!
//! - a thread that waits for the file system does so for **one** of the requests in flight. With `s`
//!   such threads and `n` requests in flight, each request waits for its own file with a share of
//!   `s / n`;
//! - an event loop that sleeps holds up all its requests. With `b` of `l` loops asleep, each request
//!   waits behind a blocked loop with a share of `b / l`, less its own wait;
//! - the rest is queueing behind work of the CPU before the first byte, and transfer after it.
//!
//! Sums over many requests are exact as far as loops have equal shares of the requests; those of a
//! single request are expectations. A request that waits for a free thread of a pool is counted as
//! queueing, so the share of blocking is a lower bound for such servers.
//!
//! Source: Ruan and Pai (2006), section 5.4: was latency blocking or queueing?

mod course;
mod traced;

pub use traced::{TracedCall, TracedCalls};

use course::Course;

use crate::{OpenError, Outcome, Run};

/// The share of requests above which a request is slow.
pub const SLOW_SHARE: f64 = 0.99;

/// Groups of equal size by response time.
const GROUPS: usize = 10;

/// A request in flight, in nanoseconds after the run's epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flight {
    /// When the schedule wanted the request to start.
    pub intended_ns: i128,
    /// When the request did start.
    pub start_ns: i128,
    /// When the first byte came.
    pub first_byte_ns: i128,
    /// When the last byte came.
    pub end_ns: i128,
}

impl Flight {
    /// From the intended start to the end.
    pub fn response_ns(&self) -> u64 {
        u64::try_from(self.end_ns - self.intended_ns).unwrap_or(0)
    }

    /// The same request on a clock that is later by `by_ns`.
    #[must_use]
    pub fn shifted(self, by_ns: i128) -> Flight {
        Flight {
            intended_ns: self.intended_ns + by_ns,
            start_ns: self.start_ns + by_ns,
            first_byte_ns: self.first_byte_ns + by_ns,
            end_ns: self.end_ns + by_ns,
        }
    }
}

impl From<&crate::Row> for Flight {
    fn from(row: &crate::Row) -> Flight {
        // A request without a first byte waited for it until its end.
        let first_byte_ns = match row.first_byte_ns {
            0 => row.end_ns,
            at => at,
        };
        Flight {
            intended_ns: row.intended_ns.into(),
            start_ns: row.start_ns.into(),
            first_byte_ns: first_byte_ns.into(),
            end_ns: row.end_ns.into(),
        }
    }
}

/// The parts of the response time of some requests, in nanoseconds together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Parts {
    /// Number of requests.
    pub requests: u64,
    /// From the intended to the actual start: the client was late, or had no free connection.
    pub client_ns: f64,
    /// A thread slept on the file system for this request.
    pub own_ns: f64,
    /// The loop slept for another request.
    pub loop_ns: f64,
    /// Before the first byte, none of these: behind work of the CPU, or for a free thread.
    pub queue_ns: f64,
    /// After the first byte, none of these.
    pub transfer_ns: f64,
}

impl Parts {
    /// Names of the parts, in the order of [`Parts::shares`].
    pub const NAMES: [&'static str; 5] = [
        "own wait for the file system",
        "behind a blocked loop",
        "queue and CPU",
        "transfer",
        "client",
    ];

    /// The nanoseconds of the parts, in the order of [`Parts::NAMES`].
    pub fn times(&self) -> [f64; 5] {
        [
            self.own_ns,
            self.loop_ns,
            self.queue_ns,
            self.transfer_ns,
            self.client_ns,
        ]
    }

    /// The shares of the parts in the whole response time.
    pub fn shares(&self) -> [f64; 5] {
        let times = self.times();
        let whole: f64 = times.iter().sum();
        times.map(|time| if whole > 0.0 { time / whole } else { 0.0 })
    }

    fn add(&mut self, other: &Parts) {
        self.requests += other.requests;
        self.client_ns += other.client_ns;
        self.own_ns += other.own_ns;
        self.loop_ns += other.loop_ns;
        self.queue_ns += other.queue_ns;
        self.transfer_ns += other.transfer_ns;
    }
}

/// The parts of all requests of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Breakdown {
    /// All requests.
    pub all: Parts,
    /// Those of at least [`Breakdown::slow_ns`].
    pub slow: Parts,
    /// The response time from which on a request is slow.
    pub slow_ns: u64,
    /// Ten groups of equal size, fastest first; empty if there are fewer requests than groups.
    pub groups: Vec<Parts>,
    /// Event loops among the threads.
    pub loops: usize,
}

impl Breakdown {
    /// Breaks down `flights`, which the calls of a trace held up. `others` are requests of further
    /// clients of the server at the same time, on the same clock.
    ///
    /// `None` if there is no request, or no call of the trace fell into the time of the requests.
    ///
    /// ```
    /// use headway_latency::breakdown::{Breakdown, Flight, TracedCalls};
    ///
    /// // Two requests wait for 10 ms each, while the loop sleeps for 8 ms for one of them.
    /// let flight = Flight { intended_ns: 0, start_ns: 0, first_byte_ns: 10_000_000, end_ns: 10_000_000 };
    /// let trace = serde_json::json!({
    ///     "schema": 1, "started_ns": 0, "started_unix_ns": 0, "locations": [],
    ///     "kept": [
    ///         { "thread": 7, "call": "epoll_wait", "location": 0, "start_ns": 0, "wall_ns": 1_000_000,
    ///           "sleeps": [{ "label": "event-wait", "total_ns": 1_000_000 }] },
    ///         { "thread": 7, "call": "openat", "location": 0, "start_ns": 1_000_000, "wall_ns": 8_000_000,
    ///           "sleeps": [{ "label": "buffer-io", "total_ns": 8_000_000 }] },
    ///     ],
    /// });
    /// let calls = TracedCalls::from_json(&trace, 0).unwrap();
    /// let found = Breakdown::of(&[flight, flight], &[], &calls).unwrap();
    /// assert_eq!(found.all.own_ns, 8e6, "one of the two, all the time");
    /// assert_eq!(found.all.loop_ns, 8e6, "and the other behind it");
    /// assert_eq!(found.all.queue_ns, 4e6);
    /// ```
    pub fn of(flights: &[Flight], others: &[Flight], calls: &TracedCalls) -> Option<Breakdown> {
        let course = Course::new(flights, others, calls)?;
        let mut order: Vec<&Flight> = flights.iter().collect();
        order.sort_by_key(|flight| flight.response_ns());
        let rank = ((order.len() as f64 * SLOW_SHARE) as usize).min(order.len() - 1);
        let slow_ns = order[rank].response_ns();
        let mut found = Breakdown {
            slow_ns,
            loops: calls.loops().len(),
            ..Breakdown::default()
        };
        if order.len() >= GROUPS {
            found.groups = vec![Parts::default(); GROUPS];
        }
        for (index, flight) in order.iter().enumerate() {
            let parts = course.parts(flight);
            found.all.add(&parts);
            if flight.response_ns() >= slow_ns {
                found.slow.add(&parts);
            }
            if let Some(group) = found.groups.get_mut(index * GROUPS / order.len()) {
                group.add(&parts);
            }
        }
        Some(found)
    }
}

/// The measured requests of a run that had an answer or failed.
///
/// # Errors
/// The rows cannot be read.
pub fn flights(run: &Run) -> Result<Vec<Flight>, OpenError> {
    let mut flights = Vec::new();
    for batch in run.rows()? {
        let batch = batch?;
        let measured = batch
            .iter()
            .filter(|row| !row.warmup && row.error != Outcome::Abandoned);
        flights.extend(measured.map(Flight::from));
    }
    Ok(flights)
}

#[cfg(test)]
mod tests;
