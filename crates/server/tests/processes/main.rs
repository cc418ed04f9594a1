//! The processes of a server when something goes wrong: they are killed, stopped, or short of
//! processes, memory or descriptors, the log's disk is full, the files' disk is slow or broken.
//!
//! Whatever a test starts, mounts or attaches has a guard that takes it away again.

mod clients;
mod disk;
mod forbidden;
mod groups;
mod helpers;
mod idle;
mod pinner;
mod process_limit;
mod memory;
mod order;
mod overlay;
mod overload;
mod sharing;
mod shortage;
mod stalled;
mod stopping;
mod store;
mod workers;
