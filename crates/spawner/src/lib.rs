//! The spawner: a small process that creates the processes of programs for one worker.
//!
//! The spawner starts each program as a process group with its own limits, relays standard error,
//! reports exits, and kills programs on order: with all their descendants if the response is not
//! wanted, and all of them when the worker has gone. It does not read or write a program's input or
//! output, and knows nothing of HTTP.
//!
//! The spawner is a separate process because `fork` blocks, and costs more the larger the parent
//! is. The spawner has no files and no caches, so the ten thousandth program starts as fast as the
//! first (dissertation 2.5.4, Figure 2.5: `fork` in the server grew to 130 ms).
//!
//! An exited program stays a zombie until the worker releases it. That reserves its process ID, so
//! a signal to its group never reaches another process.
//!
//! Sources: dissertation 2.5.4; clone(2), pidfd_open(2), waitid(2) on `WNOWAIT`, kill(2),
//! credentials(7).
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![deny(clippy::unused_self)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

mod orphan_reaper;
pub mod process_tag;
mod nproc_limit;
mod program;
pub mod wire;
mod stderr_relay;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use headway_config::Account;
use headway_os::fd_passing::{ReceiveError, Wait, receive_with_descriptors, send_with_descriptors};
use headway_os::privileges::{CapabilitySet, drop_capabilities, empty_bounding_set};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSlice};

use orphan_reaper::OrphanReaper;
use program::{Confines, Program};
use stderr_relay::StderrRelay;
pub use stderr_relay::escape_control;
use wire::{DESCRIPTORS_MAX, Launch, MESSAGE_BYTES_MAX, SpawnerOrder, SpawnerReport};

/// Most orders handled before programs are served again.
const ORDERS_PER_TICK_MAX: usize = 64;
/// How long killed programs may take to be reaped after the worker has gone.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);

/// Runs a spawner on its socket until the worker closes it; then kills every program.
///
/// Before the first program it becomes the user of the programs and gives up all capabilities, so
/// that no program has any.
///
/// # Errors
/// A broken socket, or an invalid order. The programs are killed in every case.
pub fn spawner_main(socket: OwnedFd) -> io::Result<()> {
    spawner_main_with(socket, None)
}

/// As [`spawner_main`], with a ruleset of Landlock that each program is under.
///
/// # Errors
/// As [`spawner_main`].
pub fn spawner_main_with(socket: OwnedFd, domain: Option<OwnedFd>) -> io::Result<()> {
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    let Some((user, json)) = receive_start(&socket, &mut buffer)? else {
        return Ok(());
    };
    // Before the change of the user, which takes the right to.
    empty_bounding_set()?;
    if let Some(account) = user {
        account.assume()?;
    }
    drop_capabilities(CapabilitySet::empty())?;
    let mut options = File::options();
    let mut spawner = Spawner {
        socket,
        null: options.read(true).write(true).open("/dev/null")?,
        programs: Vec::new(),
        orphan_reaper: OrphanReaper::default(),
        processes: nproc_limit::processes_of_user(),
        domain,
        stderr_relay: StderrRelay::new(json)?,
        buffer,
    };
    let result = spawner.run();
    spawner.end();
    result
}

/// Receives the first order: the user of the programs, and whether messages are JSON. `None` when the
/// master has gone.
fn receive_start(
    socket: &OwnedFd,
    buffer: &mut [u8],
) -> io::Result<Option<(Option<Account>, bool)>> {
    let received = receive_with_descriptors(socket, buffer, 0, Wait::Block);
    let Some(received) = received.map_err(io::Error::other)? else {
        return Ok(None);
    };
    if received.is_end() {
        return Ok(None);
    }
    match wire::decode_order(&buffer[..received.length]) {
        Ok(SpawnerOrder::Start { user, json, .. }) => Ok(Some((user, json))),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the first order does not start the spawner",
        )),
        Err(malformed) => Err(io::Error::new(io::ErrorKind::InvalidData, malformed)),
    }
}

struct Spawner {
    socket: OwnedFd,
    /// The input of programs whose request has no body.
    null: File,
    programs: Vec<Program>,
    /// Kills processes that have left their group.
    orphan_reaper: OrphanReaper,
    /// Number of processes of the user at startup.
    processes: u64,
    /// What programs are under.
    domain: Option<OwnedFd>,
    stderr_relay: StderrRelay,
    buffer: Vec<u8>,
}

/// What became ready.
#[derive(Clone, Copy)]
enum SpawnerEvent {
    Worker,
    /// The program at this index has exited.
    Process(usize),
    /// Standard error of the program at this index is readable.
    Stderr(usize),
}

impl Spawner {
    fn run(&mut self) -> io::Result<()> {
        loop {
            let mut worker = false;
            for source in self.wait()? {
                match source {
                    SpawnerEvent::Worker => worker = true,
                    SpawnerEvent::Process(index) => self.on_exit(index)?,
                    SpawnerEvent::Stderr(index) => {
                        self.programs[index].read(&mut self.stderr_relay)
                    }
                }
            }
            // Last, because it changes the list.
            if worker && !self.take_orders()? {
                return Ok(());
            }
            self.tick();
        }
    }

    fn wait(&self) -> io::Result<Vec<SpawnerEvent>> {
        let mut watched: Vec<(SpawnerEvent, BorrowedFd<'_>)> =
            vec![(SpawnerEvent::Worker, self.socket.as_fd())];
        for (index, program) in self.programs.iter().enumerate() {
            let process = program
                .process()
                .map(|fd| (SpawnerEvent::Process(index), fd));
            let stderr = program.stderr().map(|fd| (SpawnerEvent::Stderr(index), fd));
            watched.extend(process.into_iter().chain(stderr));
        }
        let mut polled: Vec<PollFd<'_>> = watched
            .iter()
            .map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
            .collect();
        let now = Instant::now();
        let next = self.programs.iter().filter_map(Program::deadline);
        let next = next
            .chain(self.orphan_reaper.is_active().then_some(now))
            .min();
        let timeout = next.map(|at| timespec(at.saturating_duration_since(now)));
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = watched
            .iter()
            .zip(&polled)
            .filter(|(_, one)| !one.revents().is_empty());
        Ok(ready.map(|((source, _), _)| *source).collect())
    }

    /// Handles pending orders. Returns `false` when the worker has gone.
    fn take_orders(&mut self) -> io::Result<bool> {
        for _ in 0..ORDERS_PER_TICK_MAX {
            let received = receive_with_descriptors(
                &self.socket,
                &mut self.buffer,
                DESCRIPTORS_MAX,
                Wait::Never,
            );
            let received = match received {
                Ok(Some(received)) => received,
                Ok(None) => return Ok(true),
                Err(ReceiveError::Os(Errno::CONNRESET)) => return Ok(false),
                // No descriptor is free: the order was received but cannot be executed.
                Err(ReceiveError::DescriptorsLost { length }) => {
                    self.refuse_spawn(length)?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if received.is_end() {
                return Ok(false);
            }
            let order = self.order(received.length)?;
            self.execute(order, received.descriptors)?;
        }
        Ok(true)
    }

    fn order(&self, length: usize) -> io::Result<SpawnerOrder> {
        wire::decode_order(&self.buffer[..length])
            .map_err(|malformed| io::Error::new(io::ErrorKind::InvalidData, malformed))
    }

    fn refuse_spawn(&mut self, length: usize) -> io::Result<()> {
        let SpawnerOrder::Spawn { id, .. } = self.order(length)? else {
            return Ok(());
        };
        let error = headway_os::spawn::SpawnError {
            step: headway_os::spawn::SpawnStage::Descriptors,
            errno: Errno::MFILE,
        };
        self.report(&SpawnerReport::Failed { id, error })
    }

    fn execute(&mut self, order: SpawnerOrder, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        match order {
            SpawnerOrder::Spawn { id, launch } => self.spawn(id, &launch, descriptors),
            SpawnerOrder::Release { id, timeout_ms } => {
                let until = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
                self.find(id)
                    .into_iter()
                    .for_each(|program| program.release(until));
                Ok(())
            }
            SpawnerOrder::Kill { id, process_tag } => {
                match self.find(id) {
                    Some(program) => program.abandon(),
                    // A program of the previous spawner.
                    None if process_tag > 0 => self.orphan_reaper.add(process_tag),
                    None => {}
                }
                Ok(())
            }
            // It comes once, before the others.
            SpawnerOrder::Start { .. } => Err(io::ErrorKind::InvalidData.into()),
            SpawnerOrder::Note { text, .. } => {
                self.stderr_relay.log(text.to_string_lossy().into_owned());
                Ok(())
            }
        }
    }

    fn find(&mut self, id: u64) -> Option<&mut Program> {
        self.programs.iter_mut().find(|program| program.id == id)
    }

    fn spawn(&mut self, id: u64, launch: &Launch, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let begun = Instant::now();
        let confines = Confines {
            null: self.null.as_fd(),
            processes: self.processes,
            domain: self.domain.as_ref().map(AsFd::as_fd),
        };
        match Program::start(id, launch, descriptors, confines) {
            Ok(program) => {
                let pid = program.pid();
                let spawn_us = u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX);
                self.programs.push(program);
                self.report(&SpawnerReport::Spawned { id, pid, spawn_us })
            }
            Err(error) => {
                let path = launch.path.to_string_lossy();
                self.stderr_relay.log(format!("{path}: {error}"));
                self.report(&SpawnerReport::Failed { id, error })
            }
        }
    }

    /// The program at `index` may have exited.
    fn on_exit(&mut self, index: usize) -> io::Result<()> {
        let program = &mut self.programs[index];
        match program.on_exit(&mut self.stderr_relay) {
            Some(end) => {
                let id = program.id;
                self.report(&SpawnerReport::Ended { id, end })
            }
            None => Ok(()),
        }
    }

    /// Sends the signals that are due, and removes programs that have exited and are not needed any
    /// more.
    fn tick(&mut self) {
        let now = Instant::now();
        let (stderr_relay, orphan_reaper) = (&mut self.stderr_relay, &mut self.orphan_reaper);
        self.programs.retain_mut(|program| {
            let was_last = program.tick(now);
            let has_gone = program.take_if_done(stderr_relay);
            if was_last || has_gone {
                program
                    .take_tag()
                    .into_iter()
                    .for_each(|process_tag| orphan_reaper.add(process_tag));
            }
            !has_gone
        });
        self.orphan_reaper.run(&mut self.stderr_relay);
    }

    /// The worker reads reports as they come. If it is slow, this process can afford to wait.
    fn report(&self, report: &SpawnerReport) -> io::Result<()> {
        let mut bytes = Vec::new();
        wire::encode_report(report, &mut bytes);
        match send_with_descriptors(&self.socket, &[IoSlice::new(&bytes)], &[], Wait::Block) {
            // The worker's end is detected by receiving.
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn end(mut self) {
        let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
        let take_tag = self.programs.iter_mut().filter_map(Program::end);
        take_tag.for_each(|process_tag| self.orphan_reaper.add(process_tag));
        while (self.orphan_reaper.is_active() || !self.programs.is_empty())
            && Instant::now() < deadline
        {
            let stderr_relay = &mut self.stderr_relay;
            self.orphan_reaper.run(stderr_relay);
            self.programs.retain_mut(|program| {
                program.on_exit(stderr_relay);
                !program.take_if_done(stderr_relay)
            });
            std::thread::sleep(Duration::from_millis(2));
        }
        self.stderr_relay.end(deadline);
    }
}

fn timespec(duration: Duration) -> Timespec {
    // Rounded up, so that a deadline has passed when the wait for it ends.
    let duration = duration + Duration::from_micros(999);
    Timespec {
        tv_sec: duration.as_secs() as i64,
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests;
