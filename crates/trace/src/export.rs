//! A trace in the forms other programs read.

mod chrome;
mod folded;
mod history;
mod parquet;

pub use chrome::chrome;
pub use folded::folded;
pub use history::{csv, svg};
pub use parquet::parquet;

use crate::model::{KeptCall, Trace};

/// The label of a kept call; empty if it did not sleep.
fn label(kept: &KeptCall) -> String {
    kept.label()
        .map(|label| label.to_string())
        .unwrap_or_default()
}

/// Where a kept call was made.
fn location(trace: &Trace, kept: &KeptCall) -> String {
    trace
        .locations
        .get(kept.location)
        .map(|location| location.description())
        .unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::model::{KeptCall, SleepAt};

    /// A call that was kept.
    pub fn kept(call: &str, start_ns: u64, result: Option<i64>, sleeps: Vec<SleepAt>) -> KeptCall {
        KeptCall {
            program: 0,
            thread: 7,
            call: call.into(),
            location: 0,
            result,
            start_ns,
            wall_ns: 90,
            faults_minor: None,
            faults_major: None,
            preemptions: headway_debox::Wait::default(),
            wakeup_ns: None,
            sleeps,
            lost: 0,
            stack: Vec::new(),
            functions: Vec::new(),
            functions_dropped: 0,
        }
    }
}
