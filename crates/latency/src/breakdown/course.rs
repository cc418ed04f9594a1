//! How many requests were in flight and how many threads asleep at each moment, summed up so that
//! the shares of any span are two lookups.

use super::{Flight, Parts, TracedCalls};

/// What happens at a moment: the change of each number.
#[derive(Clone, Copy, Default)]
struct Change {
    at_ns: i128,
    flights: i64,
    sleepers: i64,
    loops_asleep: i64,
}

/// The waits of a request that is in flight from the beginning to a moment.
#[derive(Clone, Copy)]
struct Sum {
    at_ns: i128,
    own_ns: f64,
    loop_ns: f64,
    /// Shares from here to the next moment.
    own: f64,
    behind: f64,
}

/// The sums at each moment at which a number changes.
pub(super) struct Course {
    sums: Vec<Sum>,
}

impl Course {
    /// `None` if no call overlaps with a request.
    pub fn new(flights: &[Flight], others: &[Flight], calls: &TracedCalls) -> Option<Course> {
        let loops = calls.loops();
        let mut changes = Vec::with_capacity(2 * (flights.len() + others.len()));
        for flight in flights.iter().chain(others) {
            let change = |at_ns, flights| Change {
                at_ns,
                flights,
                ..Change::default()
            };
            changes.push(change(flight.start_ns, 1));
            changes.push(change(flight.end_ns, -1));
        }
        let begin = flights.iter().map(|flight| flight.start_ns).min()?;
        let end = flights.iter().map(|flight| flight.end_ns).max()?;
        let mut overlap = false;
        for call in calls.calls() {
            let from = call.start_ns;
            let to = from + i128::from(call.asleep_ns);
            overlap |= from < end && begin < to;
            let is_loop = loops.contains(&call.thread);
            if call.idle || !(is_loop || call.waits_for_files()) {
                continue;
            }
            let change = |at_ns, number| Change {
                at_ns,
                sleepers: number,
                loops_asleep: if is_loop { number } else { 0 },
                ..Change::default()
            };
            changes.push(change(from, 1));
            changes.push(change(to, -1));
        }
        changes.sort_by_key(|change| change.at_ns);
        overlap.then(|| Course {
            sums: summed(&changes, loops.len()),
        })
    }

    /// The parts of one request.
    pub fn parts(&self, flight: &Flight) -> Parts {
        let before = self.between(flight.start_ns, flight.first_byte_ns);
        let after = self.between(flight.first_byte_ns, flight.end_ns);
        let rest = |from: i128, to: i128, (own, behind): (f64, f64)| {
            ((to - from) as f64 - own - behind).max(0.0)
        };
        Parts {
            requests: 1,
            client_ns: (flight.start_ns - flight.intended_ns).max(0) as f64,
            own_ns: before.0 + after.0,
            loop_ns: before.1 + after.1,
            queue_ns: rest(flight.start_ns, flight.first_byte_ns, before),
            transfer_ns: rest(flight.first_byte_ns, flight.end_ns, after),
        }
    }

    fn between(&self, from_ns: i128, to_ns: i128) -> (f64, f64) {
        let (from, to) = (self.until(from_ns), self.until(to_ns.max(from_ns)));
        (to.0 - from.0, to.1 - from.1)
    }

    fn until(&self, at_ns: i128) -> (f64, f64) {
        let next = self.sums.partition_point(|sum| sum.at_ns <= at_ns);
        let Some(sum) = next.checked_sub(1).map(|index| self.sums[index]) else {
            return (0.0, 0.0);
        };
        let since = (at_ns - sum.at_ns) as f64;
        (
            sum.own_ns + since * sum.own,
            sum.loop_ns + since * sum.behind,
        )
    }
}

fn summed(changes: &[Change], loops: usize) -> Vec<Sum> {
    let mut sums: Vec<Sum> = Vec::with_capacity(changes.len());
    let (mut flights, mut sleepers, mut loops_asleep) = (0_i64, 0_i64, 0_i64);
    for change in changes {
        flights += change.flights;
        sleepers += change.sleepers;
        loops_asleep += change.loops_asleep;
        let own = share(sleepers, flights);
        let behind = (share(loops_asleep, loops as i64) - own).max(0.0);
        let (own_ns, loop_ns) = match sums.last() {
            Some(last) => {
                let since = (change.at_ns - last.at_ns) as f64;
                (
                    last.own_ns + since * last.own,
                    last.loop_ns + since * last.behind,
                )
            }
            None => (0.0, 0.0),
        };
        sums.push(Sum {
            at_ns: change.at_ns,
            own_ns,
            loop_ns,
            own,
            behind,
        });
    }
    sums
}

fn share(part: i64, whole: i64) -> f64 {
    if whole <= 0 {
        return 0.0;
    }
    (part as f64 / whole as f64).clamp(0.0, 1.0)
}
