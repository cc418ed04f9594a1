//! A program that is started for a measurement and never outlives the process that started it.
//!
//! It has a process group of its own: Ctrl-C at a terminal must reach the measuring process,
//! which ends its programs in order and leaves a directory to resume from.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Between two looks at a program.
pub const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// What a program gets to end by itself after SIGINT.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A program on its way. Dropped, it is ended.
#[derive(Debug)]
pub struct Program {
    child: Child,
    stderr: Option<thread::JoinHandle<String>>,
}

impl Program {
    /// Starts it; what it writes to standard error is kept for the reason of a failure.
    ///
    /// # Errors
    /// As `Command::spawn`.
    pub fn start(command: &mut Command) -> io::Result<Program> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let stderr = child.stderr.take().map(|mut pipe| {
            thread::spawn(move || {
                let mut text = Vec::new();
                // A pipe that breaks has said what it had to say.
                let _ = pipe.read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            })
        });
        Ok(Program { child, stderr })
    }

    /// The process ID.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// The exit status, if the program has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// The last line that it wrote to standard error; waits until that is closed.
    pub fn last_error_line(&mut self) -> String {
        let text = self.stderr.take().and_then(|stderr| stderr.join().ok());
        let text = text.unwrap_or_default();
        let last = text.lines().rfind(|line| !line.trim().is_empty());
        last.unwrap_or("it said nothing").trim().to_owned()
    }

    /// SIGINT, then SIGKILL.
    pub fn end(&mut self) {
        if self.ended().is_some() {
            return;
        }
        // A process that has just ended is what is wanted.
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        let begun = Instant::now();
        while begun.elapsed() < END_TIMEOUT {
            if self.ended().is_some() {
                return;
            }
            thread::sleep(POLL_INTERVAL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.end();
    }
}
