//! The figures of chapter 4, from counts, what was served meanwhile, and the latencies of this
//! machine.
//!
//! Pure. A figure that lacks a count has no value and says which count it lacks; nothing is put in
//! its place.
//!
//! [`mod@figures`] are ratios (Figures 4.8 to 4.18, Tables 4.4 and 4.6), [`cpi`] is the breakdown
//! of Figure 4.19, [`bus`] is equation 4.1 and what has taken the bus's place, [`mod@slots`] is
//! top-down level 1.

pub mod bus;
pub mod cpi;
pub mod figures;
pub mod slots;

pub use cpi::{Breakdown, Penalties};
pub use figures::{Figure, FigureUnit, Served, figures};
pub use slots::{Slots, slots};
