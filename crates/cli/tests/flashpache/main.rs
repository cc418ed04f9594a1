//! Flashpache: `headway backend` with its clients: Apache's module, the C library, the preload shim.
//!
//! Whatever a test starts or mounts has a guard that takes it away again.

#[path = "../processes/disks.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod disks;

mod client;
mod command;
mod conversations;
mod faults;
mod preload;
mod support;
mod tree;
