//! What the pool counts.

/// A histogram of times: bucket 0 counts times below 1 µs, bucket `i` those from 2^(i-1) µs to
/// below 2^i µs, the last one everything longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TimesUs {
    /// Counts by power of two.
    pub buckets: [u64; 32],
    /// All times together.
    pub sum_us: u64,
    /// How many times were recorded.
    pub count: u64,
}

impl TimesUs {
    /// Count one time.
    pub fn record(&mut self, time_us: u64) {
        let bucket = (u64::BITS - time_us.leading_zeros()) as usize;
        self.buckets[bucket.min(31)] += 1;
        self.sum_us = self.sum_us.saturating_add(time_us);
        self.count += 1;
    }
}

/// The pool's counters; all but the gauges only grow.
#[derive(Clone, Debug, Default)]
pub struct PoolStatistics {
    /// Names to resolve.
    pub resolves: u64,
    /// Windows to read in that somebody waits for.
    pub reads_in: u64,
    /// Windows to read in ahead.
    pub prefetches: u64,
    /// Directories to list.
    pub lists: u64,
    /// Contents to copy.
    pub reads: u64,
    /// Askings that joined a job already queued or running.
    pub coalesced: u64,
    /// Gauge: jobs not yet given to a helper.
    pub queue: u64,
    /// The longest the queue has been.
    pub queue_peak: u64,
    /// Gauge: attached helpers.
    pub helpers: u64,
    /// Gauge: of these, at work.
    pub busy: u64,
    /// Helpers that ended while attached.
    pub deaths: u64,
    /// Jobs asked again because their helper died.
    pub asked_again: u64,
    /// Jobs failed because helper after helper died on them.
    pub given_up: u64,
    /// Askings refused because the queue was full.
    pub full: u64,
    /// Prefetches dropped to make room for work that somebody waits for.
    pub prefetches_dropped: u64,
    /// Descriptors sent away to be closed.
    pub retired: u64,
    /// Descriptors closed on the loop because too many were waiting to be sent away.
    pub closed_here: u64,
    /// Time from asking to a helper.
    pub queue_us: TimesUs,
    /// Time from a helper's getting a job to its answer.
    pub service_us: TimesUs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_falls_in_its_power_of_two_when_recorded() {
        let mut times = TimesUs::default();
        for time_us in [0, 1, 2, 3, 4, 1023, 1024, u64::MAX] {
            times.record(time_us);
        }
        let filled: Vec<_> = (0..32).filter(|i| times.buckets[*i] > 0).collect();
        assert_eq!(filled, [0, 1, 2, 3, 10, 11, 31]);
        assert_eq!((times.buckets[2], times.count), (2, 8));
    }
}
