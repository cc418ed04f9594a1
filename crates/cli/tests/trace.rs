//! `headway trace` through the binary: the command's own output and exit code, what the summary
//! says, every form of output, and every bad input.

mod anomaly;
mod attach;
mod bad_input;
mod functions;
mod kernel_lines;
mod outputs;
mod programs;
mod reactions;
mod support;
mod transparency;
mod waiters;
