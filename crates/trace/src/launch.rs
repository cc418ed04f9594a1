//! Runs a command with the preload library, as quietly as time(1): its streams, signals and exit
//! code are its own.
//!
//! The library reads what to do from environment variables and writes into a directory of ours.
//! Nothing stands between the command and its terminal; a signal sent to us is passed on.

mod command;
mod library;
mod program;
mod session;
mod signals;

pub use command::{Launched, SpawnError, spawn};
pub use library::{LibraryError, library};
pub use program::{Untraceable, why_untraceable};
pub use session::Session;

use headway_debox::policy::{Filter, ReactionRule};

/// The configuration of the preload library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreloadOptions {
    /// Which records to keep one by one, as a [`headway_debox::policy::Filter`]; empty for none.
    pub keep: String,
    /// Reactions, as [`headway_debox::policy::ReactionRule`].
    pub react: Vec<String>,
    /// Keep the program's stack with each record.
    pub stacks: bool,
    /// Measure after each sleep how long the thread waited for a CPU.
    pub wakeup: bool,
    /// Bytes for kept records in each process; `None` for the library's choice.
    pub log_bytes: Option<u64>,
    /// Follow into programs that are started with an environment of their own.
    pub follow_all: bool,
}

impl PreloadOptions {
    /// Whether the programs need the labels of sleeps at once. What is no order is the library's
    /// business.
    pub fn need_labels(&self) -> bool {
        let by_label = |keep: Filter| !keep.labels.is_empty();
        let reacts = |order: &String| {
            order
                .parse()
                .is_ok_and(|order: ReactionRule| order.needs_labels())
        };
        self.keep.parse().is_ok_and(by_label) || self.react.iter().any(reacts)
    }

    /// The variables of the library's `config`.
    fn variables(&self) -> Vec<(&'static str, String)> {
        let mut variables = vec![("HEADWAY_TRACE_KEEP", self.keep.clone())];
        if !self.react.is_empty() {
            variables.push(("HEADWAY_TRACE_REACT", self.react.join(";")));
        }
        for (name, wanted) in [
            ("HEADWAY_TRACE_STACKS", self.stacks),
            ("HEADWAY_TRACE_WAKEUP", self.wakeup),
            ("HEADWAY_TRACE_FOLLOW", self.follow_all),
        ] {
            if wanted {
                variables.push((name, "1".to_owned()));
            }
        }
        if let Some(bytes) = self.log_bytes {
            variables.push(("HEADWAY_TRACE_LOG_BYTES", bytes.to_string()));
        }
        variables
    }
}
