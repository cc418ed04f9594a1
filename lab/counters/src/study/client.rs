//! `headway load` and `headway fileset`, started by a study and ended with it.

use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use headway_lab::program::{POLL_INTERVAL, Program};
use headway_lab::servers::Server;

use super::run::RunError;
use crate::smt::configuration::listed;

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
    /// `headway load` in a closed loop, for the files of a set, on these CPUs, into a run
    /// directory.
    pub fn command(&self, server: &Server, set: &Path, cpus: &[usize], run: &Path) -> Command {
        let mut command = Command::new(headway_lab::headway());
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
            .args(["--cpu", &listed(cpus), "--threads", "1"])
            .args(["--label", server.kind().title()]);
        if let Some(bits) = self.bits_per_s {
            command.args(["--bandwidth", &format!("{bits}bit")]);
        }
        command.arg("--fileset").arg(set).arg("-o").arg(run);
        command
    }
}

/// A program on its way.
pub(super) struct Running(Program);

impl Running {
    pub fn start(command: &mut Command) -> Result<Running, RunError> {
        let started = Program::start(command);
        let name = || command.get_program().display().to_string();
        started
            .map(Running)
            .map_err(|error| RunError::Failed(format!("cannot start {}: {error}", name())))
    }

    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.ended()
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
            thread::sleep(POLL_INTERVAL);
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
                self.0.last_error_line()
            ))),
            None => Err(RunError::Failed("the client did not end in time".into())),
        }
    }
}
