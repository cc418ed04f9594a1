//! Pairing programs on cores that run two at a time: how much does the choice of pairs matter?
//!
//! The dissertation (section 4.7, Figure 4.22) takes the pairwise interference of 26 programs,
//! supposes that all of them run for the same time, pairs them at random ten million times and
//! looks at the total run time. We do the same:
//!
//! - an entry of the matrix is the **slow-down** of the program of the *row* while the program of
//!   the *column* runs beside it: its time then, over its time alone;
//! - the **cost** of a pair is the mean of both directions, the time that both occupy the core for
//!   when each is as much work as the other, in units of one program's time alone; a program that
//!   runs alone costs 1;
//! - the **run time** of a schedule is the sum of its costs, and its **speed-up** what it saves
//!   against running all of them one after another: programs ÷ run time − 1.
//!
//! In the order of an analysis: `csv` and [`matrix`] read it (or [`draw`] makes one up, or
//! [`measure`] measures one), [`pairing`] has the costs and the exact best and worst schedule by
//! `matching`, [`trials`] the random ones, and [`rounds`] what becomes of a scheduler that pairs
//! again in each round; [`analysis`] is all of it. Nothing depends on the number of threads.

pub mod matrix;
pub mod draw;
pub mod pairing;
pub mod trials;
pub mod rounds;
pub mod analysis;
pub mod measure;
mod csv;
mod matching;
mod parallel;

pub use analysis::Analysis;
pub use matrix::{MatrixError, SlowDowns};
pub use pairing::{Costs, Schedule};
