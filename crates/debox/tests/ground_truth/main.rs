//! A test bed where the truth is known: calls are blocked on purpose, by a schedule, and their
//! records are compared with it. Every injected block has to be found, with its label and its
//! length, and none that was not injected.
//!
//! The bed is one program, so that a filesystem which answers late, locks that are held and pipes
//! that are full are under the control of the test. What needs a privilege (mounting, real-time
//! priority, a control group) says so and is skipped without.

mod anomaly;
mod disk;
mod evidence;
mod files;
mod fuse;
mod handlers;
mod trace_levels;
mod locks;
mod memory;
mod processes;
mod cpu;
mod streams;
mod truth;
