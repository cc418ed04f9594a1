//! The processes of locations whose program stays: what each of them does, and whom it has.

use std::os::fd::OwnedFd;

use headway_event::Token;
use headway_http::Status;

use crate::worker::DIRECT;

/// After one that ended young the next one waits so long at first.
pub(super) const FIRST_DELAY_MS: u64 = 100;

/// What a process does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It has not said that it is ready.
    Starting,
    /// It waits for a request.
    Idle,
    /// It answers this client, for this exchange.
    Busy(Token, u64),
    /// It may still answer this exchange, which nobody waits for, until then.
    Draining(u64, u64),
    /// It has been killed. When it is gone its client is answered with this, for this exchange.
    Dying(Token, u64, Status),
}

/// A process of a location whose program stays.
pub(super) struct Process {
    /// The fork helper knows it by this.
    pub(super) id: u64,
    pub(super) place: usize,
    pub(super) socket: OwnedFd,
    pub(super) state: State,
    /// It sends its replies back.
    pub(super) piped: bool,
    /// The event mechanism tells what it says.
    pub(super) watched: bool,
    pub(super) born_ms: u64,
    /// It has answered something.
    pub(super) served: bool,
}

/// All processes of such locations.
pub(super) struct Direct {
    /// By slot.
    pub(super) processes: Vec<Option<Process>>,
    /// By location: not before this, after the last one ended young.
    pub(super) retry_ms: Vec<u64>,
    pub(super) delay_ms: Vec<u64>,
}

impl Direct {
    pub(super) fn new(places: usize) -> Direct {
        Direct {
            processes: Vec::new(),
            retry_ms: vec![0; places],
            delay_ms: vec![FIRST_DELAY_MS; places],
        }
    }

    pub(super) fn get(&self, slot: usize) -> Option<&Process> {
        self.processes.get(slot)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut Process> {
        self.processes.get_mut(slot)?.as_mut()
    }

    pub(super) fn idle(&self, place: usize) -> Option<usize> {
        let is_idle = |one: &Process| one.place == place && one.state == State::Idle;
        // The one used last has what it needs in the caches.
        self.processes
            .iter()
            .rposition(|one| one.as_ref().is_some_and(is_idle))
    }

    pub(super) fn count(&self, place: usize) -> usize {
        let all = self.processes.iter().flatten();
        all.filter(|one| one.place == place).count()
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

    /// By what numbers the fork helper knows them.
    pub(super) fn ids(&self) -> impl Iterator<Item = u64> {
        self.processes.iter().flatten().map(|one| one.id)
    }

    /// The one that has a client's socket for an exchange, whether it may go on or has been killed.
    pub(super) fn borrower(&self, client: Token, exchange: u64) -> Option<usize> {
        let has_it = |one: &Process| match one.state {
            State::Busy(whose, which) | State::Dying(whose, which, _) => {
                (whose, which) == (client, exchange)
            }
            _ => false,
        };
        self.processes
            .iter()
            .position(|one| one.as_ref().is_some_and(has_it))
    }

    /// All processes, and those that have a client.
    pub(super) fn gauges(&self) -> (u64, u64) {
        let all = self.processes.iter().flatten();
        let busy = all
            .clone()
            .filter(|one| !matches!(one.state, State::Starting | State::Idle));
        (all.count() as u64, busy.count() as u64)
    }
}

/// How events name a process: numbers are never used again, so a late event finds nobody.
pub(super) fn token(slot: usize, id: u64) -> Token {
    Token::new(DIRECT, slot as u32, id as u32)
}
