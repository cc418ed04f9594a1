//! A controlled environment for a server under test, made of the kernel's own parts.
//!
//! [`disk`] is a disk with the delays of a model: a FUSE process exports one file, a loop device in
//! direct-I/O mode sits on it, a file system on that. The kernel's page, inode and dentry caches
//! stay in play, which is what the papers are about. [`Lab`] puts it together with little memory
//! (`memory`), a share of a CPU (`cpu`) and a narrow link (`network`), for the server under
//! test only, and removes all of it (`sweep`) whatever happened.
//!
//! Refused: anything that would change the machine outside the lab. What the lab makes it records
//! first, so that it can be undone after a crash.
//!
//! Sources: 2006 paper section 4.1 and dissertation sections 2.6 and 3.3 (the papers' machines).

#![forbid(unsafe_code)]

mod lab;
mod requirements;
mod state;
pub mod disk;
mod memory;
mod reclaim;
pub mod cpu;
mod network;
pub mod groups;
mod status;
mod sweep;
mod processes;
pub mod program;
pub mod runnable;
pub mod servers;
mod siblings;
pub mod study;
mod tool;
pub mod writers;
mod error;

pub use cpu::{QuotaStatus, allowed as allowed_cpus, usual_split};
pub use error::{LabError, Missing};
pub use lab::{Lab, LabSpec, Side, down, down_all, join_by_name, list};
pub use memory::MemoryStatus;
pub use network::{Direction, LinkSpec, LinkStatus};
pub use reclaim::reclaimer;
pub use requirements::{missing, survey};
pub use siblings::{headway, headway_lab, require_headway};
pub use state::base;
pub use status::{DiskStatus, ProcessStatus, Status};

/// What the name of everything that a lab makes begins with; devices, whose names are short, begin
/// with `hwl`.
const PREFIX: &str = "headway-lab-";
