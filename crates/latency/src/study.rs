//! Studies: what the measurements of an experiment amount to, beside what a paper reported.
//!
//! A study asks for *quantities* (the median of this server at that load) and combines them in
//! *expressions*, which fill the cells of tables and decide claims. Everything here is pure:
//! evidence of finished measurements in, tables and verdicts out. Which measurements there are, and
//! how they come about, is the business of `headway-lab`.
//!
//! `quantity` takes a figure from the evidence of one run; `expression` reads the language of the
//! cells and rules; `estimate` turns the repeats of a figure into a value with an interval; `claim`
//! decides; `result` is the file that is kept, and `reasons` says once what many figures share.
//!
//! Sources: A. Law, W. Kelton, *Simulation Modeling and Analysis* (batch means); the dissertation's
//! and the 2006 paper's tables.

pub mod result;
pub mod quantity;
pub mod evidence;
pub mod expression;
pub mod estimate;
pub mod claim;
pub mod reasons;

pub use result::StudyResult;
