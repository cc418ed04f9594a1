//! The fork helper: a small process that alone makes the processes of programs.
//!
//! What it does: starts programs for one worker, each as a process group of its own with its
//! limits; passes on what they say on standard error; tells when they have ended; ends them on
//! order, with all that they have started if their reply is not wanted, and all of them when the
//! worker is gone. What it refuses: to read or write a program's input or output, which the worker
//! does, and to know about HTTP.
//!
//! Why a process for it: making one waits, and costs the more the larger the maker is. This one
//! holds no files and no cache, so a program starts as fast at the ten thousandth request as at the
//! first (dissertation 2.5.4, Figure 2.5: `fork` in the server grew to 130 ms).
//!
//! A program that has ended stays a zombie until the worker has let it go: that keeps its number,
//! so that a signal to its group can never reach a stranger.
//!
//! Sources: dissertation 2.5.4; clone(2), pidfd_open(2), waitid(2) on `WNOWAIT`, kill(2),
//! credentials(7).

mod hunt;
pub mod mark;
mod present;
mod program;
pub mod wire;
mod words;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use headway_os::rights::{ReceiveError, Wait, receive_with_descriptors, send_with_descriptors};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSlice};

use hunt::Hunt;
use program::Program;
use wire::{DESCRIPTORS_MAX, Launch, MESSAGE_BYTES_MAX, Order, Report};
use words::Words;
pub(crate) use words::harmless;

/// Orders taken before programs have their turn.
const ORDERS_A_TURN: usize = 64;
/// When the worker is gone, killed programs have this long to be reaped.
const END_PATIENCE: Duration = Duration::from_millis(500);

/// Runs a fork helper on its socket until the worker closes it; then ends every program.
///
/// # Errors
/// A broken socket, or an order that no worker gives. The programs are ended in every case.
pub fn forker_main(socket: OwnedFd) -> io::Result<()> {
    let mut options = File::options();
    let mut forker = Forker {
        socket,
        null: options.read(true).write(true).open("/dev/null")?,
        programs: Vec::new(),
        hunt: Hunt::default(),
        present: present::of_user(),
        words: Words::new()?,
        buffer: vec![0; MESSAGE_BYTES_MAX],
    };
    let result = forker.run();
    forker.end();
    result
}

struct Forker {
    socket: OwnedFd,
    /// The input of programs whose request has no body.
    null: File,
    programs: Vec<Program>,
    /// Who has left a group and is to end all the same.
    hunt: Hunt,
    /// Processes that the user has had at the beginning.
    present: u64,
    words: Words,
    buffer: Vec<u8>,
}

/// What became ready.
#[derive(Clone, Copy)]
enum Source {
    Worker,
    /// The end of the program at this index.
    Process(usize),
    /// Its standard error.
    Words(usize),
}

impl Forker {
    fn run(&mut self) -> io::Result<()> {
        loop {
            let mut worker = false;
            for source in self.wait()? {
                match source {
                    Source::Worker => worker = true,
                    Source::Process(index) => self.note_end(index)?,
                    Source::Words(index) => self.programs[index].hear(&mut self.words),
                }
            }
            // Last, because it changes the list.
            if worker && !self.obey()? {
                return Ok(());
            }
            self.tend();
        }
    }

    fn wait(&self) -> io::Result<Vec<Source>> {
        let mut watched: Vec<(Source, BorrowedFd<'_>)> =
            vec![(Source::Worker, self.socket.as_fd())];
        for (index, program) in self.programs.iter().enumerate() {
            let process = program.process().map(|fd| (Source::Process(index), fd));
            let words = program.words().map(|fd| (Source::Words(index), fd));
            watched.extend(process.into_iter().chain(words));
        }
        let mut polled: Vec<PollFd<'_>> = watched
            .iter()
            .map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
            .collect();
        let now = Instant::now();
        let next = self.programs.iter().filter_map(Program::deadline);
        let next = next.chain(self.hunt.is_on().then_some(now)).min();
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

    /// Takes orders that have come. `false`: the worker is gone.
    fn obey(&mut self) -> io::Result<bool> {
        for _ in 0..ORDERS_A_TURN {
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
                // No descriptor left here: the order is known all the same, and cannot be carried
                // out.
                Err(ReceiveError::DescriptorsLost { length }) => {
                    self.refuse(length)?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if received.is_end() {
                return Ok(false);
            }
            let order = self.order(received.length)?;
            self.carry_out(order, received.descriptors)?;
        }
        Ok(true)
    }

    fn order(&self, length: usize) -> io::Result<Order> {
        wire::decode_order(&self.buffer[..length])
            .map_err(|malformed| io::Error::new(io::ErrorKind::InvalidData, malformed))
    }

    fn refuse(&mut self, length: usize) -> io::Result<()> {
        let Order::Spawn { id, .. } = self.order(length)? else {
            return Ok(());
        };
        let error = headway_os::spawn::SpawnError {
            step: headway_os::spawn::Step::Descriptors,
            errno: Errno::MFILE,
        };
        self.report(&Report::Failed { id, error })
    }

    fn carry_out(&mut self, order: Order, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        match order {
            Order::Spawn { id, launch } => self.spawn(id, &launch, descriptors),
            Order::Release { id, patience_ms } => {
                let until = Instant::now() + Duration::from_millis(u64::from(patience_ms));
                self.find(id)
                    .into_iter()
                    .for_each(|program| program.release(until));
                Ok(())
            }
            Order::Kill { id, mark } => {
                match self.find(id) {
                    Some(program) => program.give_up(),
                    // One of the helper before this one.
                    None if mark > 0 => self.hunt.add(mark),
                    None => {}
                }
                Ok(())
            }
            Order::Note { text, .. } => {
                self.words.say(text.to_string_lossy().into_owned());
                Ok(())
            }
        }
    }

    fn find(&mut self, id: u64) -> Option<&mut Program> {
        self.programs.iter_mut().find(|program| program.id == id)
    }

    fn spawn(&mut self, id: u64, launch: &Launch, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let begun = Instant::now();
        match Program::start(id, launch, descriptors, self.null.as_fd(), self.present) {
            Ok(program) => {
                let pid = program.pid();
                let spawn_us = u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX);
                self.programs.push(program);
                self.report(&Report::Spawned { id, pid, spawn_us })
            }
            Err(error) => {
                let path = launch.path.to_string_lossy();
                self.words.say(format!("{path}: {error}"));
                self.report(&Report::Failed { id, error })
            }
        }
    }

    /// The program at `index` may have ended.
    fn note_end(&mut self, index: usize) -> io::Result<()> {
        let program = &mut self.programs[index];
        match program.note_end(&mut self.words) {
            Some(end) => {
                let id = program.id;
                self.report(&Report::Ended { id, end })
            }
            None => Ok(()),
        }
    }

    /// Signals that are due, and farewell to those who have ended and are not needed any more.
    fn tend(&mut self) {
        let now = Instant::now();
        let (words, hunt) = (&mut self.words, &mut self.hunt);
        self.programs.retain_mut(|program| {
            let was_last = program.tend(now);
            let has_gone = program.leave(words);
            if was_last || has_gone {
                program.hunted().into_iter().for_each(|mark| hunt.add(mark));
            }
            !has_gone
        });
        self.hunt.run(&mut self.words);
    }

    /// The worker reads these as they come; if it is behind, this process has time.
    fn report(&self, report: &Report) -> io::Result<()> {
        let mut bytes = Vec::new();
        wire::encode_report(report, &mut bytes);
        match send_with_descriptors(&self.socket, &[IoSlice::new(&bytes)], &[], Wait::Block) {
            // That it is gone is found out by receiving.
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn end(mut self) {
        let deadline = Instant::now() + END_PATIENCE;
        let hunted = self.programs.iter_mut().filter_map(Program::end);
        hunted.for_each(|mark| self.hunt.add(mark));
        while (self.hunt.is_on() || !self.programs.is_empty()) && Instant::now() < deadline {
            let words = &mut self.words;
            self.hunt.run(words);
            self.programs.retain_mut(|program| {
                program.note_end(words);
                !program.leave(words)
            });
            std::thread::sleep(Duration::from_millis(2));
        }
        self.words.end(deadline);
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
