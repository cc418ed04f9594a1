//! `headway load` and `headway fileset`, started by a study and ended with it.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lab::servers::Server;
use rustix::process::{Pid, Signal, kill_process};

use super::run::RunError;
use crate::smt::configuration::listed;

/// Between two looks at a child.
const LOOK: Duration = Duration::from_millis(20);

/// What a child gets to end by itself after SIGINT.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a client asks for.
pub(super) struct Demand {
    pub connections: usize,
    pub requests_per_connection: Option<u64>,
    pub warmup_s: f64,
    pub seconds: f64,
    /// What a connection receives at most.
    pub bits_per_s: Option<u64>,
}

impl Demand {
    /// `headway load` in a closed loop, for the files of a set, on these processors, into a run directory.
    pub fn command(&self, server: &Server, set: &Path, cpus: &[usize], run: &Path) -> Command {
        let mut command = Command::new(lab::headway());
        let time = |seconds: f64| format!("{:.0}ms", seconds * 1e3);
        let requests = self
            .requests_per_connection
            .map_or("unlimited".into(), |many| many.to_string());
        let url = format!("http://{}/set/", server.address());
        command
            .args(["load", &url, "--quiet", "--closed"])
            .args(["-c", &self.connections.to_string()])
            .args(["--requests-per-connection", &requests])
            .args(["--warmup", &time(self.warmup_s)])
            .args(["-d", &time(self.seconds)])
            .args(["--cpu", &listed(cpus)])
            .args(["--label", server.kind().title()]);
        if let Some(bits) = self.bits_per_s {
            command.args(["--bandwidth", &format!("{bits}bit")]);
        }
        command.arg("--fileset").arg(set).arg("-o").arg(run);
        command
    }
}

/// A program on its way, in a process group of its own: Ctrl-C is for the study. Dropped, it is ended.
pub(super) struct Running {
    child: Child,
    words: Option<thread::JoinHandle<String>>,
}

impl Running {
    pub fn start(command: &mut Command) -> Result<Running, RunError> {
        let spawned = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn();
        let program = || command.get_program().display().to_string();
        let mut child = spawned
            .map_err(|error| RunError::Failed(format!("cannot start {}: {error}", program())))?;
        let words = child.stderr.take().map(|mut stderr| {
            thread::spawn(move || {
                let mut text = Vec::new();
                // A pipe that breaks has said what it had to say.
                let _ = stderr.read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            })
        });
        Ok(Running { child, words })
    }

    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits until a moment, or until it ends, or until `stop` finds a reason.
    pub fn wait(
        &mut self,
        until: Instant,
        interrupted: &AtomicBool,
        mut stop: impl FnMut() -> Option<String>,
    ) -> Result<(), RunError> {
        while Instant::now() < until && self.ended().is_none() {
            if interrupted.load(Ordering::Relaxed) {
                return Err(RunError::Interrupted);
            }
            if let Some(why) = stop() {
                return Err(RunError::Failed(why));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Waits for its end, which must come before `deadline`; what it said if it did not succeed.
    pub fn finish(&mut self, deadline: Instant, interrupted: &AtomicBool) -> Result<(), RunError> {
        self.wait(deadline, interrupted, || None)?;
        match self.ended() {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(RunError::Failed(format!(
                "the client ended with {status}: {}",
                self.said()
            ))),
            None => Err(RunError::Failed("the client did not end in time".into())),
        }
    }

    fn said(&mut self) -> String {
        let text = self
            .words
            .take()
            .and_then(|words| words.join().ok())
            .unwrap_or_default();
        let last = text.lines().rfind(|line| !line.trim().is_empty());
        last.unwrap_or("it said nothing").trim().to_owned()
    }

    fn end(&mut self) {
        if self.ended().is_some() {
            return;
        }
        // A process that has just ended is what is wanted.
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if self.ended().is_some() {
                return;
            }
            thread::sleep(LOOK);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}
