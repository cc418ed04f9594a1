//! What sharing a processor core costs programs, and what a scheduler could gain by choosing who shares.
//!
//! [`schedule`] is section 4.7 of the dissertation: from the slow-downs of programs that run in pairs to the range of
//! speed-ups that random pairings have, and to the best and the worst pairing, which are found exactly.
//!
//! The mathematics is pure; only [`schedule::measure`] starts processes.
#![forbid(unsafe_code)]

pub mod schedule;
