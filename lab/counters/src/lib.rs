//! CPU counters, what SMT gives a network server, and what sharing a core costs other
//! programs.
//!
//! [`events`] is the table from meanings to what CPUs count, [`machine`] what this machine
//! has of it, [`count`] opens counters and reads them, [`metrics`] makes the figures of the
//! dissertation's chapter 4 of what was counted, [`probe`] measures the latencies they need.
//! [`smt`] makes the five configurations of Table 4.3 out of this machine and undoes them, and
//! [`study`] drives servers in them.
//!
//! [`schedule`] is section 4.7 of the dissertation: from the slow-downs of programs that run in
//! pairs to the range of speed-ups that random pairings have, and to the best and the worst
//! pairing, which are found exactly.
#![forbid(unsafe_code)]

pub mod events;
pub mod machine;
pub mod count;
pub mod metrics;
pub mod probe;
pub mod smt;
pub mod study;
pub mod schedule;
