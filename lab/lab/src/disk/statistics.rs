//! What a disk did: totals, and the means that follow from them.

use serde::{Deserialize, Serialize};

/// What a disk did since it was last told [`Order::Fast`](super::Order::Fast) or [`Order::Model`](super::Order::Model). Totals, so that two
/// of them can be subtracted ([`DiskStatistics::since`]); the methods make means of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskStatistics {
    /// Time covered.
    pub elapsed_ns: u64,
    /// Reads answered, failed ones included.
    pub reads: u64,
    /// Writes answered, failed ones included.
    pub writes: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Bytes of the writes.
    pub written_bytes: u64,
    /// Answered with EIO by a fault.
    pub failed: u64,
    /// Time during which at least one request was there.
    pub busy_ns: u64,
    /// Integral of the number of requests there over time.
    pub depth_ns: u64,
    /// The most requests that were there at once, since the start of the time covered.
    pub depth_max: u64,
    /// Sum over requests: from where the disk began with one to where the model says it ends.
    pub service_ns: u64,
    /// Sum over requests: from arrival to where the model says it ends, the model's account of a
    /// response.
    pub modelled_ns: u64,
    /// Sum over requests: from arrival to the answer as it really was, the way back to the kernel
    /// included.
    pub response_ns: u64,
}

impl DiskStatistics {
    /// What happened between an earlier reading and this one, if the statistics were not reset
    /// between them. The greatest depth is unknown for the part alone and stays that of the whole.
    pub fn since(&self, earlier: &DiskStatistics) -> DiskStatistics {
        DiskStatistics {
            elapsed_ns: self.elapsed_ns.saturating_sub(earlier.elapsed_ns),
            reads: self.reads.saturating_sub(earlier.reads),
            writes: self.writes.saturating_sub(earlier.writes),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
            failed: self.failed.saturating_sub(earlier.failed),
            busy_ns: self.busy_ns.saturating_sub(earlier.busy_ns),
            depth_ns: self.depth_ns.saturating_sub(earlier.depth_ns),
            depth_max: self.depth_max,
            service_ns: self.service_ns.saturating_sub(earlier.service_ns),
            modelled_ns: self.modelled_ns.saturating_sub(earlier.modelled_ns),
            response_ns: self.response_ns.saturating_sub(earlier.response_ns),
        }
    }

    /// Share of the time during which the disk had something to do, 0 to 1.
    pub fn busy_share(&self) -> f64 {
        ratio(self.busy_ns, self.elapsed_ns)
    }

    /// Requests there, waiting ones included, on average over time.
    pub fn depth_mean(&self) -> f64 {
        ratio(self.depth_ns, self.elapsed_ns)
    }

    /// Mean time the disk worked on a request.
    pub fn service_us(&self) -> f64 {
        ratio(self.service_ns, self.answered()) / 1000.0
    }

    /// Mean time from a request's arrival to its answer, by the model's account.
    pub fn modelled_us(&self) -> f64 {
        ratio(self.modelled_ns, self.answered()) / 1000.0
    }

    /// Mean time from a request's arrival to its answer, as it was.
    pub fn response_us(&self) -> f64 {
        ratio(self.response_ns, self.answered()) / 1000.0
    }

    fn answered(&self) -> u64 {
        self.reads + self.writes
    }
}

/// 0 when there is nothing to divide by: nothing happened.
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}
