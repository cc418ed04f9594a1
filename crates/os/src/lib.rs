//! System calls that rustix does not cover, or not in the shape Headway needs.
//!
//! One wrapper a call: what it is, its caveat, its man page. Descriptors go in as `BorrowedFd` and
//! come out as `OwnedFd`, always close-on-exec. Would-block is a value, not an error.
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

pub mod answer;
pub mod shared_lines;
pub mod codec;
pub mod confine;
pub mod errno;
pub mod exec;
pub mod fork;
pub mod kernel_tls;
pub mod listen;
pub mod mapping;
pub mod open;
pub mod peer;
pub mod perf;
pub mod syn_filter;
pub mod privileges;
pub mod published;
pub mod process;
pub mod replace;
pub mod residency;
pub mod fd_passing;
pub mod ring;
pub mod select;
pub mod socket;
pub mod spawn;
pub mod ticks;
pub mod user;
pub mod uring_files;
