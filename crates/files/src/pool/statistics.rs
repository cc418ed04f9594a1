//! What the pool counts. Its histogram is as plain as it can be, because the server converts it to
//! that of its metrics.

use headway_base::Octaves;

/// A histogram: bucket 0 counts zeros (for times, what is below 1 µs), bucket `i` values from
/// 2^(i-1) to below 2^i, the last one everything larger.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Log2Histogram {
    /// Counts by power of two.
    pub buckets: [u64; 32],
    /// All values together.
    pub sum: u64,
    /// Number of recorded values.
    pub count: u64,
}

impl Log2Histogram {
    /// Count one value.
    pub fn record(&mut self, value: u64) {
        let bucket = Octaves::<0>::of(value) as usize;
        self.buckets[bucket.min(31)] += 1;
        self.sum = self.sum.saturating_add(value);
        self.count += 1;
    }
}

/// The pool's counters; all but the gauges only grow.
#[derive(Clone, Debug, Default)]
pub struct PoolStatistics {
    /// Paths to look up.
    pub lookups: u64,
    /// Chunks to read into memory for which a request waits.
    pub reads_in: u64,
    /// Windows to read in ahead.
    pub prefetches: u64,
    /// Lookups of cached paths for which no request waits.
    pub refreshes: u64,
    /// Directories to list.
    pub listings: u64,
    /// Contents to copy.
    pub copies: u64,
    /// Small files to fetch.
    pub fetches: u64,
    /// Small files whose contents came in an answer: fetched, or together with the open file.
    pub contents: u64,
    /// Custom jobs.
    pub custom_jobs: u64,
    /// Jobs that joined an equal one already queued or running.
    pub coalesced: u64,
    /// Gauge: jobs not yet given to a helper.
    pub queue: u64,
    /// The longest the queue has been.
    pub queue_peak: u64,
    /// Gauge: attached helpers.
    pub helpers: u64,
    /// Gauge: of these, at work; and jobs of the kernel's workers.
    pub busy: u64,
    /// Jobs that the kernel's workers have done.
    pub ring_jobs: u64,
    /// Helpers that ended while attached.
    pub deaths: u64,
    /// Jobs retried because their helper died.
    pub retried: u64,
    /// Jobs failed because helper after helper died on them.
    pub given_up: u64,
    /// Jobs rejected because the queue was full.
    pub full: u64,
    /// Prefetches dropped to make room for jobs with waiters.
    pub prefetches_dropped: u64,
    /// Descriptors sent away to be closed.
    pub deferred_closes: u64,
    /// Descriptors closed on the loop because too many were waiting to be sent away.
    pub closed_here: u64,
    /// How many jobs each new one found queued before it.
    pub queue_found: Log2Histogram,
    /// Time from submission to start, in microseconds.
    pub queue_us: Log2Histogram,
    /// Time from a helper's getting a job to its answer, in microseconds.
    pub service_us: Log2Histogram,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_falls_in_its_power_of_two_when_recorded() {
        let mut histogram = Log2Histogram::default();
        for value in [0, 1, 2, 3, 4, 1023, 1024, u64::MAX] {
            histogram.record(value);
        }
        let filled: Vec<_> = (0..32).filter(|i| histogram.buckets[*i] > 0).collect();
        assert_eq!(filled, [0, 1, 2, 3, 10, 11, 31]);
        assert_eq!((histogram.buckets[2], histogram.count), (2, 8));
    }
}
