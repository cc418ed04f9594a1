//! How other threads speak to the service's loop: a queue, and a descriptor that wakes it.

use super::statistics::ServiceStatistics;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{read, write};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel as queue};
use std::time::Duration;

/// How long to wait for the numbers of a loop that never waits.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// A command to the loop.
pub(super) enum Command {
    Stop,
    Statistics(Sender<ServiceStatistics>),
    Helper { socket: OwnedFd, pid: u32 },
    NoHelper,
}

/// A way to reach a running service from any thread. When the last one is dropped, the service
/// ends.
#[derive(Clone, Debug)]
pub struct Remote {
    /// Present until dropped.
    commands: Option<Sender<Command>>,
    wake: Arc<OwnedFd>,
}

impl Remote {
    /// Let the service end.
    pub fn stop(&self) {
        self.send(Command::Stop);
    }

    /// Hand over a started helper: our end of its socket, and its process.
    pub fn helper(&self, socket: OwnedFd, pid: u32) {
        self.send(Command::Helper { socket, pid });
    }

    /// Reports that a helper could not be started.
    pub fn no_helper(&self) {
        self.send(Command::NoHelper);
    }

    /// The counters of this moment; `None` when the service has ended.
    pub fn statistics(&self) -> Option<ServiceStatistics> {
        let (sender, receiver) = queue();
        self.send(Command::Statistics(sender));
        receiver.recv_timeout(REPLY_TIMEOUT).ok()
    }

    fn send(&self, command: Command) {
        // If the service has ended, there is nothing to wake.
        if let Some(commands) = &self.commands {
            let _ = commands.send(command);
        }
        let _ = write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // In this command, so that the loop wakes, reads its queue, and sees whether this was the
        // last one.
        self.commands = None;
        let _ = write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

/// The loop's end.
#[derive(Debug)]
pub(super) struct Commands {
    commands: Receiver<Command>,
    wake: Arc<OwnedFd>,
}

impl Commands {
    /// The next command; `None` if there is none now. `Stop` if no sender is left.
    pub(super) fn next(&mut self) -> Option<Command> {
        // Read before the queue, so that a later command wakes the loop again.
        let _ = read(&*self.wake, &mut [0; 8]);
        match self.commands.try_recv() {
            Ok(command) => Some(command),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Command::Stop),
        }
    }
}

impl AsFd for Commands {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

pub(super) fn channel() -> io::Result<(Commands, Remote)> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, receiver) = queue();
    let commands = Commands {
        commands: receiver,
        wake: Arc::clone(&wake),
    };
    Ok((
        commands,
        Remote {
            commands: Some(sender),
            wake,
        },
    ))
}
