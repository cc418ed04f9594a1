//! Signals that ask a command to end. They set a flag, so that it can undo what it has begun.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown};

/// SIGINT and SIGTERM.
pub const STOP: &[i32] = &[SIGINT, SIGTERM];
/// SIGINT, SIGTERM and SIGHUP, for commands that have to remove what they created on the machine.
pub const STOP_OR_HANGUP: &[i32] = &[SIGINT, SIGTERM, SIGHUP];

const CATCHING: &str = "catching signals";

/// Set by the first of these signals. They end nothing by themselves any more.
pub fn caught(signals: &[i32]) -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in signals {
        register(*signal, Arc::clone(&flag)).context(CATCHING)?;
    }
    Ok(flag)
}

/// Sets a flag at the first signal; a second one ends the process at once.
pub fn caught_once(signals: &[i32]) -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in signals {
        // In this order: the signal that sets the flag must not find it set.
        register_conditional_shutdown(*signal, 128 + signal, Arc::clone(&flag))
            .and_then(|_| register(*signal, Arc::clone(&flag)))
            .context(CATCHING)?;
    }
    Ok(flag)
}
