//! The five configurations of Table 4.3 on this machine: which CPUs a server gets, and what
//! has to change for it.
//!
//! [`topology`] reads cores and threads from sysfs, [`configuration`] says what each configuration
//! is here or why it cannot be, [`state`] changes CPUs and changes them back, also after a
//! crash.

pub mod configuration;
pub mod state;
pub mod topology;

pub use configuration::{Configuration, Layout, Setting};
pub use state::{Change, CpuState, StateError};
pub use topology::{Cpu, SmtControl, Topology};
