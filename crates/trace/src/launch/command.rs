//! Starting the command and waiting for it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::PreloadOptions;
use super::signals::Forwarding;
use crate::model::Outcome;

/// Why a command did not start, with the exit codes shells use.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The program does not exist; a shell exits with 127.
    #[error("{0}: command not found")]
    NotFound(String),
    /// The program cannot be executed; a shell exits with 126.
    #[error("{0}: cannot be executed: {1}")]
    NotExecutable(String, io::Error),
}

impl SpawnError {
    /// From the error of exec.
    pub fn new(program: &OsStr, error: io::Error) -> SpawnError {
        let name = program.to_string_lossy().into_owned();
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => SpawnError::NotFound(name),
            _ => SpawnError::NotExecutable(name, error),
        }
    }

    /// What a shell would exit with.
    pub const fn exit_code(&self) -> u8 {
        match self {
            SpawnError::NotFound(_) => 127,
            SpawnError::NotExecutable(..) => 126,
        }
    }
}

/// A command that runs.
#[derive(Debug)]
pub struct Launched {
    pid: u32,
    outcome: Receiver<io::Result<Outcome>>,
    forwarding: Forwarding,
}

/// Starts a command that leaves its records in `directory`. `output` is where its standard output
/// and error go, if not where ours go.
///
/// # Errors
///
/// See [`SpawnError`].
pub fn spawn(
    command: &[OsString],
    directory: &Path,
    library: &Path,
    options: &PreloadOptions,
    output: Option<(Stdio, Stdio)>,
) -> Result<Launched, SpawnError> {
    let (program, arguments) = command
        .split_first()
        .ok_or_else(|| SpawnError::NotFound(String::new()))?;
    let mut starting = Command::new(program);
    starting
        .args(arguments)
        .env(
            "LD_PRELOAD",
            preloads(library.as_os_str(), std::env::var_os("LD_PRELOAD")),
        )
        .env("HEADWAY_TRACE_DIR", directory)
        .envs(options.variables());
    if let Some((out, error)) = output {
        starting.stdin(Stdio::null()).stdout(out).stderr(error);
    }
    let child = starting
        .spawn()
        .map_err(|error| SpawnError::new(program, error))?;
    Ok(Launched::new(child))
}

/// Ours first, so that it stands before whatever else wraps libc.
fn preloads(library: &OsStr, others: Option<OsString>) -> OsString {
    let mut preloads = library.to_owned();
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        preloads.push(":");
        preloads.push(others);
    }
    preloads
}

impl Launched {
    /// Watches a child. Signals are caught only from here on, so that the child has inherited what
    /// we were given: a signal that was ignored stays ignored.
    pub fn new(mut child: Child) -> Launched {
        let pid = child.id();
        let forwarding = Forwarding::to(pid);
        let (sender, outcome) = channel();
        std::thread::spawn(move || {
            let outcome = child.wait().map(|status| match status.signal() {
                Some(signal) => Outcome::Signal(signal),
                None => Outcome::Exit(status.code().unwrap_or(0)),
            });
            // The receiver is gone only if this process is ending.
            let _ = sender.send(outcome);
        });
        Launched {
            pid,
            outcome,
            forwarding,
        }
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Does what Ctrl-C would do at its terminal.
    pub fn interrupt(&self) {
        self.send(Signal::INT);
    }

    /// Ends it at once.
    pub fn kill(&self) {
        self.send(Signal::KILL);
    }

    fn send(&self, signal: Signal) {
        // It may have ended at this moment, which is what the signal was for.
        let _ = Pid::from_raw(self.pid as i32).map(|pid| kill_process(pid, signal));
    }

    /// Waits for the end, not longer than this; `None` if it still runs.
    ///
    /// # Errors
    ///
    /// The process cannot be waited for.
    pub fn wait(&mut self, most: Duration) -> io::Result<Option<Outcome>> {
        match self.outcome.recv_timeout(most) {
            Ok(outcome) => {
                self.forwarding.stop();
                outcome.map(Some)
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(io::Error::other("the command's end was not seen"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::preloads;
    use std::ffi::OsStr;

    #[test]
    fn other_preloads_stay_when_there_are_some() {
        let ours = OsStr::new("/lib/ours.so");
        assert_eq!(preloads(ours, None), "/lib/ours.so");
        assert_eq!(preloads(ours, Some("".into())), "/lib/ours.so");
        assert_eq!(
            preloads(ours, Some("a.so b.so".into())),
            "/lib/ours.so:a.so b.so"
        );
    }
}
