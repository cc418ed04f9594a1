//! The access log: line formats, the queue in each worker, and the log process.
//!
//! A worker formats a line into a bounded buffer and sends the buffer to the log process. It never
//! opens, writes or syncs a file.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![deny(clippy::unused_self)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

mod daemon;
pub mod format;
pub mod process;
pub mod queue;

pub use format::{LogLine, LogStages, LogTls};
pub use queue::{Flushed, LogQueue, PACKET_BYTES_MAX};
