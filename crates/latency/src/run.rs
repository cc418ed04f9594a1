//! The run directory: `run.json`, the rows, the cells, and what the server said of itself.
//!
//! The only part of this crate that touches files. A run is written through [`RunWriter`] and read
//! through [`Run`]; nothing else knows the names of the files. A run that was killed stays
//! readable: its rows are in a spool of fixed records until they become a Parquet file.

pub mod description;
mod directory;
mod writer;
pub mod merge;
mod spool;
mod requests;
mod cells_file;
mod parquet_file;
mod regular;

pub use description::{
    AgentInfo, Arrivals, ClientBound, ClientInfo, ClockInfo, Environment, FileSetInfo, Format,
    Kind, LoadInfo, MergedAgent, Mode, Point, ProfileInfo, RunDescription, ScheduleStep,
    ServerInfo, Summary, Verdict, Window,
};
pub use directory::{OpenError, Run};
pub use writer::{RunWriter, WriteError, summary, write_description};
