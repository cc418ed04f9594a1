//! Values of the command line: addresses, times, rates, schedules, headers.
//!
//! Each type parses with `FromStr`; an error says what is wrong and what to write instead. Pure:
//! nothing here resolves a name or reads a clock.

mod output;
mod request;
mod schedule;
mod units;
mod url;

pub use output::{MetricsProtocol, MetricsReceiver, SeriesOutput};
pub(crate) use request::THREADS_MAX;
pub use request::{Agent, Basic, Bearer, Cookie, Header, Seed, Threads};
pub use schedule::{RateSchedule, RateStep};
pub use units::{Bandwidth, Count, Cpus, PerConnection, Rate, Shares, Time};
pub(crate) use url::without_zone;
pub use url::{Endpoint, Url};
