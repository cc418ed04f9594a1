//! What became of a simulation.

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
    /// How many wait in the queue.
    pub waiting: u32,
    /// How long it may be.
    pub queue: u32,
    /// The part of the new connections that is heard.
    pub heard: f64,
}

/// What became of a simulation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// SYNs that were heard and found the queue full.
    pub no_room: u64,
    /// Replies that reached their client in time.
    pub replies: u64,
    /// Clients that were taken.
    pub accepted: u64,
    /// Of them, those that gave up before they had all their replies.
    pub accepted_timed_out: u64,
    /// Clients that had a connection, as far as they could tell.
    pub connected: u64,
    /// Of them, those that gave up before they had all their replies.
    pub connected_timed_out: u64,
    /// Clients that were turned away.
    pub rejected: u64,
    /// Clients that came.
    pub clients: u64,
    /// From a client's first SYN until it knew what becomes of it (its first reply, or being turned
    /// away), ascending, in microseconds; clients that gave up without a word are not in it.
    pub told_us: Vec<u64>,
    /// Times of the good replies, from the request (or the first SYN) on, ascending, in
    /// microseconds.
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
