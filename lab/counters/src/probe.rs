//! Latencies and bandwidth of this machine's memory, which the cycle breakdown needs: lmbench's
//! part.
//!
//! [`chase`] follows pointers through working sets of growing size, [`stream`] reads, writes and
//! copies one that is larger than all caches, [`pipeline`] tells the length of a cycle and the
//! price of a mispredicted branch. All of it runs on the calling thread, for about two seconds;
//! the caller binds the thread first, and should have nothing else run there.
//!
//! Refused: calling a level by its size alone. A level is where the kernel says a cache is; its
//! latency is that of a set that fits in it and not in the one below.
//!
//! Source: L. McVoy and C. Staelin, "lmbench: Portable tools for performance analysis",
//! USENIX 1996.

mod caches;
mod chase;
mod pipeline;
mod stream;

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::metrics::Penalties;

pub use caches::{Cache, caches};
pub use stream::Bandwidth;

/// What the probe has measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Probed {
    /// Length of a cycle while it measured, in nanoseconds: that of a chain of additions.
    pub cycle_ns: f64,
    /// Each level of memory, nearest first.
    pub levels: Vec<Level>,
    /// More time for an access whose page is in no TLB, in nanoseconds.
    pub walk_ns: f64,
    /// More time for a branch that was predicted wrongly, in nanoseconds.
    pub misprediction_ns: f64,
    /// The memory bandwidth of one thread.
    pub bandwidth: Bandwidth,
}

/// A level of memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Level {
    /// `L1`, `L2`, `L3` or `memory`.
    pub name: String,
    /// The size as the kernel says; `None` for memory.
    pub bytes: Option<u64>,
    /// The working set that was chased through.
    pub set_bytes: u64,
    /// An access, in nanoseconds.
    pub latency_ns: f64,
}

/// Largest working set: beyond it a shared cache can no longer be told from memory in reasonable
/// time and space.
const SET_BYTES_MAX: u64 = 1 << 30;

/// Measures on the calling thread; `cpu` is the CPU that it is bound to, whose caches the
/// kernel is asked for.
///
/// ```no_run
/// let probed = headway_counters::probe::run(0);
/// println!("memory answers in {:.0} cycles", probed.penalties().memory.unwrap_or(f64::NAN));
/// ```
pub fn run(cpu: usize) -> Probed {
    let folder = format!("/sys/devices/system/cpu/cpu{cpu}/cache");
    measured(&caches(Path::new(&folder)), SET_BYTES_MAX)
}

fn measured(caches: &[Cache], most: u64) -> Probed {
    let cycle_ns = pipeline::cycle_ns();
    let mut levels = Vec::new();
    let mut below = 0;
    for cache in caches {
        // Halfway between this level's size and that of the one below, in powers: well outside the
        // one and inside the other, of which other users of the cache may leave a part only.
        let halfway = match below {
            0 => cache.bytes / 2,
            below => ((below as f64) * (cache.bytes as f64)).sqrt() as u64,
        };
        let set = (halfway & !4095).max(4096).min(most);
        levels.push(level(&format!("L{}", cache.level), Some(cache.bytes), set));
        below = cache.bytes;
    }
    // Four times the largest cache leaves a quarter of the hits at most to a cache that keeps what
    // it can.
    let beyond = (below * 4).max(64 << 20).min(most);
    levels.push(level("memory", None, beyond));
    Probed {
        cycle_ns,
        levels,
        walk_ns: chase::walk_ns(),
        misprediction_ns: pipeline::misprediction_ns(),
        bandwidth: stream::bandwidth(beyond),
    }
}

fn level(name: &str, bytes: Option<u64>, set_bytes: u64) -> Level {
    Level {
        name: name.into(),
        bytes,
        set_bytes,
        latency_ns: chase::latency_ns(set_bytes),
    }
}

impl Probed {
    /// What events cost, in cycles: latencies of the next level, less what an access costs in any
    /// case.
    pub fn penalties(&self) -> Penalties {
        let first = self.latency("L1").unwrap_or(0.0);
        let more = |name: &str| {
            self.latency(name)
                .map(|latency| ((latency - first) / self.cycle_ns).max(0.0))
        };
        let cycles = |ns: f64| (ns > 0.0).then_some(ns / self.cycle_ns);
        Penalties {
            l2: more("L2"),
            l3: more("L3"),
            memory: more("memory"),
            walk: cycles(self.walk_ns),
            misprediction: cycles(self.misprediction_ns),
        }
    }

    fn latency(&self, name: &str) -> Option<f64> {
        let level = self.levels.iter().find(|level| level.name == name)?;
        Some(level.latency_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cache_level_has_a_latency() {
        let cache = |level, bytes| Cache { level, bytes };
        // The probe changes it for a while, and nothing else in this program does.
        let huge_pages = rustix::thread::transparent_huge_pages_are_disabled();
        let probed = measured(&[cache(1, 32 << 10), cache(2, 512 << 10)], 4 << 20);
        let names: Vec<&str> = probed
            .levels
            .iter()
            .map(|level| level.name.as_str())
            .collect();
        assert_eq!(names, ["L1", "L2", "memory"]);
        assert_eq!(probed.levels[2].set_bytes, 4 << 20);
        // No more is promised of figures on a machine that others use.
        assert!(probed.cycle_ns > 0.0 && probed.levels.iter().all(|level| level.latency_ns > 0.0));
        assert!(probed.bandwidth.read_bytes_per_s > 0.0);
        let afterwards = rustix::thread::transparent_huge_pages_are_disabled();
        assert_eq!(afterwards, huge_pages);
    }

    #[test]
    fn penalties_are_what_an_access_costs_more_when_latencies_are_known() {
        let level = |name: &str, latency_ns| Level {
            name: name.into(),
            latency_ns,
            ..Level::default()
        };
        let probed = Probed {
            cycle_ns: 0.5,
            levels: vec![level("L1", 2.0), level("L2", 7.0), level("memory", 102.0)],
            walk_ns: 10.0,
            misprediction_ns: 0.0,
            ..Probed::default()
        };
        let penalties = probed.penalties();
        assert_eq!((penalties.l2, penalties.l3), (Some(10.0), None));
        assert_eq!(
            (penalties.memory, penalties.walk),
            (Some(200.0), Some(20.0))
        );
        assert_eq!(
            penalties.misprediction, None,
            "nothing measured, nothing said"
        );
    }
}
