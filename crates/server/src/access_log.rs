//! The access log: line formats, the queue in each worker, and the log process.
//!
//! A worker formats a line into a bounded buffer and sends the buffer to the log process. It never
//! opens, writes or syncs a file.

pub mod format;
pub mod process;
pub mod queue;

pub use format::LogLine;
pub use queue::{Flushed, LogQueue, PACKET_BYTES_MAX};
