//! Everything the status page, the JSON and the metrics are made from: one moment of the whole
//! server.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

use super::{Counters, NetworkDrops, Snapshot};

/// The whole server at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Overview {
    /// The version of Headway.
    pub version: String,
    /// When it was taken, in milliseconds since 1970.
    pub time_ms: u64,
    /// What the master knows itself.
    pub master: MasterTally,
    /// All workers together, including those that are gone; `None` until a first one has answered.
    pub total: Option<Snapshot>,
    /// The workers that answered.
    pub workers: Vec<Snapshot>,
    /// Numbers of workers that did not answer in time.
    pub silent: Vec<u32>,
    /// How evenly those that answered share the work.
    #[serde(default)]
    pub skew: Skew,
}

/// The most that one worker has, by the mean of all: 1 where all have the same, the number of
/// workers where one has everything. `None` with fewer than two workers, or where nobody has
/// anything. A worker counts from its own start, so a successor begins with nothing.
///
/// ```
/// use headway_server::tally::Skew;
/// assert_eq!(Skew::ratio([30, 10]), Some(1.5));
/// assert_eq!(Skew::ratio([30]), None);
/// assert_eq!(Skew::ratio([0, 0]), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Skew {
    /// Of connections open now.
    pub connections_open: Option<f64>,
    /// Of connections accepted.
    pub accepted: Option<f64>,
    /// Of requests.
    pub requests: Option<f64>,
}

impl Skew {
    /// Of these workers.
    pub fn of(workers: &[Snapshot]) -> Skew {
        let of = |number: fn(&Counters) -> u64| {
            Skew::ratio(workers.iter().map(|worker| number(&worker.counters)))
        };
        Skew {
            connections_open: of(|counters| counters.connections_open),
            accepted: of(|counters| counters.accepted),
            requests: of(|counters| counters.requests),
        }
    }

    /// The largest of these by their mean.
    pub fn ratio(numbers: impl IntoIterator<Item = u64>) -> Option<f64> {
        let (mut count, mut sum, mut most) = (0_u64, 0_u64, 0_u64);
        for number in numbers {
            (count, sum, most) = (count + 1, sum + number, most.max(number));
        }
        (count > 1 && sum > 0).then(|| most as f64 * count as f64 / sum as f64)
    }

    /// Each with its name.
    pub fn all(&self) -> [(&'static str, Option<f64>); 3] {
        [
            ("connections_open", self.connections_open),
            ("accepted", self.accepted),
            ("requests", self.requests),
        ]
    }
}

/// What the master knows itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MasterTally {
    /// Its process.
    pub pid: u32,
    /// Milliseconds since it began to serve.
    pub uptime_ms: u64,
    /// The addresses served.
    pub listen: Vec<SocketAddr>,
    /// Workers that ended unasked.
    pub worker_deaths: u64,
    /// Helper processes started.
    pub helpers_spawned: u64,
    /// Helper processes refused because a worker asked for more than its bound.
    pub helpers_refused: u64,
    /// Log processes that ended unasked.
    pub log_deaths: u64,
    /// Fork helpers that ended unasked.
    #[serde(default)]
    pub spawner_deaths: u64,
    /// Keepers of small files that ended unasked.
    #[serde(default)]
    pub keeper_deaths: u64,
    /// What the keeper keeps for all workers; `None` where there is none.
    #[serde(default)]
    pub kept: Option<Kept>,
    /// Log lines the log process could not write.
    pub log_lines_lost: u64,
    /// The last words of the log process about a failed write or open.
    pub log_trouble: Option<String>,
    /// What the kernel dropped in this network namespace; `None` where it does not tell.
    #[serde(default)]
    pub network: Option<NetworkDrops>,
}

/// The small files that stay in the page cache for all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Files now.
    pub files: u64,
    /// Their bytes, in whole pages.
    pub bytes: u64,
    /// Bytes at most, as memory is now.
    pub bytes_max: u64,
    /// Files given up: for others, because memory has become short, or because they were deleted.
    pub let_go: u64,
    /// Files not kept: there was no room, they had left memory again, or the kernel refused.
    pub missed: u64,
}

impl Kept {
    /// What there is now: name, meaning, value.
    pub fn gauges(&self) -> [(&'static str, &'static str, u64); 3] {
        [
            (
                "files",
                "Small files kept in the page cache for all workers.",
                self.files,
            ),
            ("bytes", "Their bytes, in whole pages.", self.bytes),
            (
                "bytes_max",
                "Bytes of them at most, as memory is now.",
                self.bytes_max,
            ),
        ]
    }

    /// What has been: name, meaning, value.
    pub fn counters(&self) -> [(&'static str, &'static str, u64); 2] {
        [
            (
                "let_go",
                "Files given up: for others, for want of memory, or deleted.",
                self.let_go,
            ),
            (
                "missed",
                "Files not kept: no room, gone again, or refused by the kernel.",
                self.missed,
            ),
        ]
    }
}

impl From<headway_files::KeepStatistics> for Kept {
    fn from(kept: headway_files::KeepStatistics) -> Kept {
        Kept {
            files: kept.files,
            bytes: kept.bytes,
            bytes_max: kept.bytes_max,
            let_go: kept.let_go,
            missed: kept.missed,
        }
    }
}

impl Overview {
    /// Log lines lost on either side of the log's socket.
    pub fn log_dropped(&self) -> u64 {
        self.total
            .as_ref()
            .map_or(0, |total| total.counters.log_dropped)
            + self.master.log_lines_lost
    }
}
