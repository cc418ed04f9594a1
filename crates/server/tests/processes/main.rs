//! The processes of a server when something goes wrong: workers, helpers, the log and
//! the master are killed, descriptors run out, the log's disk is full, the files' disk is slow or
//! broken.
//!
//! Whatever a test starts, mounts or attaches has a guard that takes it away again.

mod clients;
mod disk;
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
