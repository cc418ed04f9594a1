//! The results of a simulation.

/// The state at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// The moment, in seconds.
    pub at_s: f64,
    /// Good responses per second since the last sample.
    pub responses_per_s: f64,
    /// Size limit of an accept batch.
    pub batch_size: u32,
    /// Open connections, without those that are always idle.
    pub open: u32,
    /// Connections pending in the accept queue.
    pub pending: u32,
    /// Length limit of the accept queue.
    pub backlog: u32,
    /// Fraction of new connections that is admitted.
    pub admit_fraction: f64,
}

/// The results of a simulation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// SYNs that were admitted and found the queue full.
    pub queue_full: u64,
    /// Responses that reached their client in time.
    pub responses: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Accepted connections whose client timed out before it had all its responses.
    pub accepted_timed_out: u64,
    /// Clients that were connected, accepted or not.
    pub connected: u64,
    /// Connected clients that timed out before they had all their responses.
    pub connected_timed_out: u64,
    /// Connections rejected.
    pub rejected: u64,
    /// Clients that came.
    pub clients: u64,
    /// Times from a client's first SYN to its first answer (a response or a rejection), ascending,
    /// in microseconds. Clients that timed out without an answer are not in it.
    pub first_answer_us: Vec<u64>,
    /// Response times of the good responses, from the request or the first SYN, ascending, in
    /// microseconds.
    pub times_us: Vec<u64>,
    /// The course over time.
    pub samples: Vec<Sample>,
}

impl Outcome {
    /// Good responses per second between two moments.
    pub fn responses_per_s(&self, from_s: f64, to_s: f64) -> f64 {
        let within = self
            .samples
            .iter()
            .filter(|sample| sample.at_s > from_s && sample.at_s <= to_s);
        let rates: Vec<f64> = within.map(|sample| sample.responses_per_s).collect();
        rates.iter().sum::<f64>() / rates.len().max(1) as f64
    }

    /// A quantile of the response times.
    pub fn quantile_us(&self, quantile: f64) -> u64 {
        let last = self.times_us.len().saturating_sub(1);
        let at = (quantile * last as f64).round() as usize;
        self.times_us.get(at).copied().unwrap_or(0)
    }
}
