//! One or two programs running beside one another until each has ended often enough.
//!
//! A thread for each seat is bound to its CPU, starts the program, waits for its end and starts it
//! again; what a thread starts inherits its binding, so nothing has to happen between fork and
//! exec. The calling thread watches: time limits and interruptions. A run is over with the end of
//! the process that was started; what is left of its group is ended then. The kernel may give a
//! process number away again only after its owner has been waited for, hence signals are sent only
//! between start and that wait, under the lock.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::cpus::bind_thread;
use super::{MeasureError, Program};

/// Between two checks of time limits and interruptions.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A program and the CPU it runs on.
pub(super) struct Slot {
    pub program: Program,
    pub cpu: usize,
    /// Where its output goes, if it is kept.
    pub output: Option<File>,
}

/// Programs beside one another.
pub(super) struct PairRun<'a> {
    seats: &'a [Slot],
    runs: u32,
    time_limit: Duration,
    state: Mutex<CoRunState>,
    /// A thread has left.
    left: Condvar,
}

struct CoRunState {
    /// Nothing is started any more.
    is_over: bool,
    failure: Option<MeasureError>,
    /// Threads that have left.
    gone: usize,
    /// For each seat, the process that runs and since when.
    running: Vec<Option<(Pid, Instant)>>,
    /// For each seat, the times of its whole runs.
    times: Vec<Vec<Duration>>,
}

impl<'a> PairRun<'a> {
    pub fn new(seats: &'a [Slot], runs: u32, time_limit: Duration) -> PairRun<'a> {
        let state = CoRunState {
            is_over: false,
            failure: None,
            gone: 0,
            running: vec![None; seats.len()],
            times: vec![Vec::new(); seats.len()],
        };
        PairRun {
            seats,
            runs,
            time_limit,
            state: Mutex::new(state),
            left: Condvar::new(),
        }
    }

    /// Runs all to the end; the times of each seat's whole runs, `runs` at least.
    pub fn run(self, interrupted: &AtomicBool) -> Result<Vec<Vec<Duration>>, MeasureError> {
        thread::scope(|scope| {
            for seat in 0..self.seats.len() {
                let this = &self;
                scope.spawn(move || this.work(seat));
            }
            self.watch(interrupted);
        });
        let state = self
            .state
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        match state.failure {
            Some(failure) => Err(failure),
            None => Ok(state.times),
        }
    }

    /// The life of a seat's thread.
    fn work(&self, seat: usize) {
        let done = bind_thread(self.seats[seat].cpu)
            .map_err(|error| self.start_error(seat, error.into()))
            .and_then(|()| self.repeat(seat));
        let mut state = self.lock();
        if let Err(error) = done {
            state.end(Some(error));
        }
        state.gone += 1;
        self.left.notify_all();
    }

    fn repeat(&self, seat: usize) -> Result<(), MeasureError> {
        while let Some((mut child, begun)) = self.start(seat)? {
            let error = |error: io::Error| self.start_error(seat, error);
            wait_for_end(&child).map_err(error)?;
            let took = begun.elapsed();
            let mut state = self.lock();
            state.end_group(seat);
            state.running[seat] = None;
            let status = child.wait().map_err(error)?;
            if state.is_over {
                // It was cut off, or would have been.
                return Ok(());
            }
            if !status.success() {
                return Err(self.failed(seat, status));
            }
            state.times[seat].push(took);
            if state
                .times
                .iter()
                .all(|times| times.len() >= self.runs as usize)
            {
                state.end(None);
            }
        }
        Ok(())
    }

    /// Starts the program, unless it is over.
    fn start(&self, seat: usize) -> Result<Option<(Child, Instant)>, MeasureError> {
        let Slot {
            program, output, ..
        } = &self.seats[seat];
        let error = |error| self.start_error(seat, error);
        let sink = || match output {
            Some(file) => file.try_clone().map(Stdio::from),
            None => Ok(Stdio::null()),
        };
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", &program.command])
            .stdin(Stdio::null())
            .stdout(sink().map_err(error)?)
            .stderr(sink().map_err(error)?)
            .process_group(0);
        let mut state = self.lock();
        if state.is_over {
            return Ok(None);
        }
        let begun = Instant::now();
        let child = command.spawn().map_err(error)?;
        state.running[seat] = Some((Pid::from_child(&child), begun));
        Ok(Some((child, begun)))
    }

    /// Until every thread has left.
    fn watch(&self, interrupted: &AtomicBool) {
        let mut state = self.lock();
        while state.gone < self.seats.len() {
            if !state.is_over {
                if interrupted.load(Ordering::Relaxed) {
                    state.end(Some(MeasureError::Interrupted));
                } else if let Some(seat) = state.overdue(self.time_limit) {
                    let failure = MeasureError::TooLong {
                        program: self.seats[seat].program.name.clone(),
                        cpu: self.seats[seat].cpu,
                        limit: self.time_limit,
                    };
                    state.end(Some(failure));
                }
            }
            let waited = self.left.wait_timeout(state, POLL_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, CoRunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_error(&self, seat: usize, error: io::Error) -> MeasureError {
        MeasureError::Start {
            program: self.seats[seat].program.name.clone(),
            cpu: self.seats[seat].cpu,
            error,
        }
    }

    fn failed(&self, seat: usize, status: ExitStatus) -> MeasureError {
        MeasureError::Failed {
            program: self.seats[seat].program.name.clone(),
            cpu: self.seats[seat].cpu,
            how: status.to_string(),
        }
    }
}

impl CoRunState {
    /// Nothing more starts, and what runs is ended; the first failure is the reason.
    fn end(&mut self, failure: Option<MeasureError>) {
        self.is_over = true;
        if self.failure.is_none() {
            self.failure = failure;
        }
        (0..self.running.len()).for_each(|seat| self.end_group(seat));
    }

    fn end_group(&self, seat: usize) {
        if let Some((pid, _)) = self.running[seat] {
            // A group that has ended is what is wanted.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }

    /// A seat whose run has exceeded the limit.
    fn overdue(&self, limit: Duration) -> Option<usize> {
        let is_late =
            |run: &Option<(Pid, Instant)>| run.is_some_and(|(_, begun)| begun.elapsed() > limit);
        self.running.iter().position(is_late)
    }
}

/// Waits until a child has ended and leaves it to be waited for, so that its number stays its own.
fn wait_for_end(child: &Child) -> io::Result<()> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    loop {
        match waitid(WaitId::Pid(Pid::from_child(child)), options) {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.map(drop).map_err(io::Error::from),
        }
    }
}
