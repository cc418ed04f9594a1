//! The store process: it keeps the content store and pins small files for all workers, and is replaced
//! when it dies.
//!
//! Each worker has a socket to it, which the master makes when it starts either of them. The store process
//! reports what it holds, for the status page; no process waits for it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::time::Instant;

use headway_config::Config;
use headway_control::ToWorker;
use headway_files::{StoreLimits, join_store, receive_store_statistics};
use headway_metrics::{MasterStatus, Pinned, Stored};

use super::children::{Programs, RESTART_DELAY, Role, ended};
use super::stopping::wait_or_kill;
use super::{Master, MasterError, log_error, log_warn, system};

/// The store process and the socket to it.
pub(super) struct Store {
    limits: StoreLimits,
    running: Option<(Child, OwnedFd)>,
    pub(super) restart_at: Option<Instant>,
}

impl Store {
    /// Starts the process, if there is something to store or to pin. Where the system refuses memfds, the
    /// store is off.
    pub(super) fn start(
        config: &mut Config,
        programs: &Programs,
    ) -> Result<Option<Store>, MasterError> {
        if config.content_store_max_bytes > 0
            && let Err(error) = headway_files::probe_memfd()
        {
            config.content_store_max_bytes = 0;
            log_warn(format_args!(
                "memfd_create: {error}; no content store: files above 16 KiB are copied for each response"
            ));
        }
        let mut store = Store {
            limits: limits_of(config),
            running: None,
            restart_at: None,
        };
        if !is_needed(config) {
            return Ok(None);
        }
        store.spawn(programs)?;
        Ok(Some(store))
    }

    /// Sets the limits, which the process learns with the next worker.
    pub(super) fn set_limits(&mut self, config: &Config) {
        self.limits = limits_of(config);
    }

    fn spawn(&mut self, programs: &Programs) -> Result<(), MasterError> {
        let pair = headway_os::fd_passing::pair().map_err(std::io::Error::from);
        let (ours, theirs) = pair.map_err(system("socket of the store process"))?;
        let child = programs.spawn(Role::Store, theirs);
        let child = child.map_err(system("start the store process"))?;
        self.running = Some((child, ours));
        self.restart_at = None;
        Ok(())
    }

    /// The socket for a worker. `None` while the process is not running: its replacement gets one then.
    pub(super) fn connect(&self) -> Option<OwnedFd> {
        let (_, store) = self.running.as_ref()?;
        let connected = headway_os::fd_passing::pair().map_err(std::io::Error::from);
        let connected = connected.and_then(|(ours, theirs)| {
            join_store(store, theirs.as_fd(), self.limits)?;
            Ok(ours)
        });
        match connected {
            Ok(socket) => Some(socket),
            Err(error) => {
                log_error(format_args!(
                    "store process: {error}; a worker stores files on its own"
                ));
                None
            }
        }
    }

    /// The process and the socket, for the next program.
    pub(super) fn handed(&self) -> Option<(u32, Option<BorrowedFd<'_>>)> {
        let (child, socket) = self.running.as_ref()?;
        Some((child.id(), Some(socket.as_fd())))
    }

    /// The socket on which its reports arrive.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(|(_, socket)| socket.as_fd())
    }

    /// Reads its reports.
    pub(super) fn read(&self, status: &mut MasterStatus) {
        // If it has ended, it is reaped next.
        if let Some((_, socket)) = &self.running
            && let Ok(Some(report)) = receive_store_statistics(socket)
        {
            status.pinned = (self.limits.pin_bytes_max > 0).then(|| Pinned::from(report.pinned));
            status.stored = (self.limits.store_bytes_max > 0).then(|| Stored::from(report));
        }
    }

    /// Checks whether it has ended.
    pub(super) fn reap(&mut self, stopping: bool, status: &mut MasterStatus) {
        let child = self.running.as_mut().map(|(child, _)| child);
        let Some(Ok(Some(exit))) = child.map(Child::try_wait) else {
            return;
        };
        self.running = None;
        // The kernel may now evict what was pinned.
        (status.pinned, status.stored) = (None, None);
        if stopping {
            return;
        }
        status.store_deaths += 1;
        self.restart_at = Some(Instant::now() + RESTART_DELAY);
        let (end, delay) = (ended(exit), RESTART_DELAY.as_millis());
        log_error(format_args!(
            "store process ended: {end}; restarting it in {delay} ms"
        ));
    }

    /// Starts a replacement when it is due, and returns whether one was started.
    pub(super) fn restart(&mut self, programs: &Programs, now: Instant) -> bool {
        if self.restart_at.is_none_or(|at| at > now) {
            return false;
        }
        match self.spawn(programs) {
            Ok(()) => true,
            Err(error) => {
                log_error(error);
                self.restart_at = Some(now + RESTART_DELAY);
                false
            }
        }
    }

    /// Closes the socket, so that it ends.
    pub(super) fn let_end(self) -> Option<Child> {
        self.running.map(|(child, _)| child)
    }

    /// Closes the socket, so that it ends: the workers have ended already.
    pub(super) fn end(self, deadline: Instant) {
        let mut child = self.running.map(|(child, _)| child);
        wait_or_kill(child.as_mut(), deadline);
    }
}

impl Master<'_> {
    pub(super) fn read_store(&mut self) {
        if let Some(store) = &self.store {
            store.read(&mut self.own_status);
        }
    }

    pub(super) fn connect_store(&mut self, number: usize) {
        let worker = self.slots[number].worker.as_ref();
        if !worker.is_some_and(|worker| is_needed(&worker.generation.config)) {
            return;
        }
        if let Some(socket) = self.store.as_ref().and_then(Store::connect) {
            self.send(number, ToWorker::Store, vec![socket]);
        }
    }
}

/// Whether there is something to store or to pin.
pub(super) fn is_needed(config: &Config) -> bool {
    config.content_store_max_bytes > 0 || config.pin_max_bytes > 0
}

fn limits_of(config: &Config) -> StoreLimits {
    StoreLimits {
        store_bytes_max: config.content_store_max_bytes,
        files_max: config.content_store_descriptors() as u64,
        pin_bytes_max: config.pin_max_bytes,
    }
}
