//! Signals sent to us, passed on to the command.
//!
//! What the keyboard sends goes to every process of the terminal's foreground group, hence to the
//! command already: `SIGINT` and `SIGQUIT` are passed on only when we are not in that group. We
//! outlive them, to show the result.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{Handle, Signals};

/// Passing signals on, until it is stopped.
#[derive(Debug)]
pub struct Forwarding {
    stopped: Arc<AtomicBool>,
    handle: Option<Handle>,
}

impl Forwarding {
    /// Begins. If handlers cannot be installed, signals do to us what they always do.
    pub fn to(pid: u32) -> Forwarding {
        let stopped = Arc::new(AtomicBool::new(false));
        let signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2]);
        let handle = signals.ok().map(|mut signals| {
            let handle = signals.handle();
            let stopped = Arc::clone(&stopped);
            std::thread::spawn(move || {
                for signal in signals.forever() {
                    if !stopped.load(Ordering::Acquire) {
                        forward(signal, pid);
                    }
                }
            });
            handle
        });
        Forwarding { stopped, handle }
    }

    /// Ends: the process has been waited for, and its number may be another's.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        if let Some(handle) = &self.handle {
            handle.close();
        }
    }
}

fn forward(signal: i32, pid: u32) {
    if matches!(signal, SIGINT | SIGQUIT) && in_foreground() {
        return;
    }
    let (Some(signal), Some(pid)) = (Signal::from_named_raw(signal), Pid::from_raw(pid as i32))
    else {
        return;
    };
    // It may have ended at this moment, which is what the signal was for.
    let _ = kill_process(pid, signal);
}

/// Whether a keyboard's signals reach our whole process group.
fn in_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    let group = terminal
        .ok()
        .and_then(|terminal| rustix::termios::tcgetpgrp(terminal).ok());
    group == Some(rustix::process::getpgrp())
}
