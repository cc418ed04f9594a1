//! The processes behind `headway serve` when something goes wrong: workers, helpers, the log and
//! the master are killed, descriptors run out, the log's disk is full, the files' disk is slow or
//! broken.
//!
//! Whatever a test starts, mounts or attaches has a guard that takes it away again.

#[path = "../serving/mod.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod serving;

mod clients;
mod disk;
mod disks;
mod forbidden;
mod helpers;
mod pinner;
mod memory;
mod overlay;
mod overload;
mod sharing;
mod shortage;
mod stopping;
mod workers;
