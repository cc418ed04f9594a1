//! The table of long-running processes (direct and pipe locations): the state of each and the
//! client it serves.

use std::os::fd::OwnedFd;

use headway_event::Token;
use headway_http::Status;

use crate::worker::DIRECT_PROCESS;

/// Delay before a process is restarted after its first early failure.
pub(super) const RESTART_DELAY_MS_MIN: u64 = 100;

/// State of a process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessState {
    /// Started, not ready yet.
    Starting,
    /// Waits for a request.
    Idle,
    /// Answers this exchange of this client.
    Busy(Token, u64),
    /// Finishes this exchange, whose client has left, until the given time.
    Draining(u64, u64),
    /// Has been killed. When it has gone, this exchange of this client gets this status.
    Dying(Token, u64, Status),
}

/// A long-running process.
pub(super) struct Process {
    /// The ID by which the spawner knows the process.
    pub(super) id: u64,
    pub(super) route: usize,
    pub(super) socket: OwnedFd,
    pub(super) state: ProcessState,
    /// The process sends its responses back through the worker.
    pub(super) piped: bool,
    /// The socket is registered with the event mechanism.
    pub(super) watched: bool,
    pub(super) born_ms: u64,
    /// The process has answered at least one request.
    pub(super) served: bool,
}

/// All long-running processes of the worker.
pub(super) struct Direct {
    /// By slot.
    pub(super) processes: Vec<Option<Process>>,
    /// By location: no restart before this time, after an early failure.
    pub(super) retry_ms: Vec<u64>,
    pub(super) delay_ms: Vec<u64>,
}

impl Direct {
    pub(super) fn new(routes: usize) -> Direct {
        Direct {
            processes: Vec::new(),
            retry_ms: vec![0; routes],
            delay_ms: vec![RESTART_DELAY_MS_MIN; routes],
        }
    }

    pub(super) fn get(&self, slot: usize) -> Option<&Process> {
        self.processes.get(slot)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut Process> {
        self.processes.get_mut(slot)?.as_mut()
    }

    pub(super) fn idle(&self, route: usize) -> Option<usize> {
        let is_idle = |one: &Process| one.route == route && one.state == ProcessState::Idle;
        // The process used last has warm CPU caches.
        self.processes
            .iter()
            .rposition(|one| one.as_ref().is_some_and(is_idle))
    }

    pub(super) fn count(&self, route: usize) -> usize {
        let all = self.processes.iter().flatten();
        all.filter(|one| one.route == route).count()
    }

    pub(super) fn insert(&mut self, process: Process) -> usize {
        let free = self.processes.iter().position(Option::is_none);
        match free {
            Some(slot) => {
                self.processes[slot] = Some(process);
                slot
            }
            None => {
                self.processes.push(Some(process));
                self.processes.len() - 1
            }
        }
    }

    /// The IDs by which the spawner knows the processes.
    pub(super) fn ids(&self) -> impl Iterator<Item = u64> {
        self.processes.iter().flatten().map(|one| one.id)
    }

    /// The process that has a client's socket for an exchange, even if it has been killed already.
    pub(super) fn socket_owner(&self, client: Token, exchange: u64) -> Option<usize> {
        let has_it = |one: &Process| match one.state {
            ProcessState::Busy(owner, current) | ProcessState::Dying(owner, current, _) => {
                (owner, current) == (client, exchange)
            }
            _ => false,
        };
        self.processes
            .iter()
            .position(|one| one.as_ref().is_some_and(has_it))
    }

    /// The number of processes, and of those that have a client.
    pub(super) fn gauges(&self) -> (u64, u64) {
        let all = self.processes.iter().flatten();
        let busy = all
            .clone()
            .filter(|one| !matches!(one.state, ProcessState::Starting | ProcessState::Idle));
        (all.count() as u64, busy.count() as u64)
    }
}

/// The event token of a process. IDs are never reused, so a late event matches nothing.
pub(super) fn token(slot: usize, id: u64) -> Token {
    Token::new(DIRECT_PROCESS, slot as u32, id as u32)
}
