//! Counting: which events stand in one group, opening them for a target, and what was counted.
//!
//! [`perf`] is the layer below, the kernel's or a stand-in; [`plan`] makes groups that fit the
//! hardware; [`session`] opens, starts, stops and reads them; [`counts`] scales and marks what had
//! to take turns.

pub mod counts;
pub mod perf;
pub mod plan;
pub mod session;

pub use counts::{Count, Counts, Space};
pub use perf::{KernelPerf, OpenError, Perf};
pub use plan::Group;
pub use session::{Session, Target};
