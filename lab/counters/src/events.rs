//! What can be counted: meanings, and what each is called on which CPU.
//!
//! `events.toml` is the table, `appendix.toml` the dissertation's list of events with today's
//! counterparts; both are part of the program and checked by tests. [`mod@table`] reads them,
//! [`core`] tells which core the table should be read for.
//!
//! Refused: guessing. A meaning without a row for the core and without a name of the kernel's
//! cannot be counted there.

pub mod core;
pub mod meaning;
pub mod table;

pub use core::{Core, Identity};
pub use meaning::Meaning;
pub use table::{Event, Raw, Scope, Table, appendix, table};
