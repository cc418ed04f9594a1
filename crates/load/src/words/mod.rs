//! The words of the command line: addresses, times, rates and schedules, as a person writes them.
//!
//! Each type parses with `FromStr` and says what is wrong, and what to write instead. Pure: nothing
//! here looks a name up or reads a clock.

pub mod readable;
mod schedule;
mod units;
mod url;

pub use schedule::{ScheduleWord, Stretch};
pub use units::{Bandwidth, Count, Cpus, PerConnection, Rate, Shares, Time};
pub use url::{Place, Url};
