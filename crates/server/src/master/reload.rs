//! A reload: the configuration is read again, and workers with the new one replace the others.
//!
//! Whatever can fail is tried first, and then the server goes on as before. New workers take the same
//! listeners, with their accept queues. Only when all of them are ready do the earlier ones drain, so
//! there is always someone to accept.

use std::rc::Rc;
use std::time::{Duration, Instant};

use headway_config::{Config, ListenerMode, Sandbox};
use headway_control::{Drain, ToWorker};
use headway_sandbox::Support;

use super::acme::Acme;
use super::children::Programs;
use super::directories::OpenDirectories;
use super::listeners::{ListenerOptions, Listeners};
use super::log::Log;
use super::names::Resolver;
use super::reading::silent_paths;
use super::service::Service;
use super::shared::SharedTables;
use super::stopping::EXIT_TIMEOUT;
use super::store::{self, Store};
use super::tls::{Keys, SharedTls};
use super::watchdog::Watchdog;
use super::worker::WorkerSlot;
use super::{
    Master, MasterError, activation, announce, choose_send_method, error_log, log_error, log_info,
    signals, system,
};
use crate::confinement;

/// Time for new workers to be ready.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A configuration, and what the workers that have it share.
pub(super) struct Generation {
    pub(super) config: Config,
    /// How to start their processes.
    pub(super) programs: Programs,
    /// What the workers know of each other.
    pub(super) shared: SharedTables,
    /// Certificates and their keys.
    pub(super) keys: Option<Keys>,
    /// What its helpers may open.
    pub(super) directories: OpenDirectories,
}

impl Generation {
    pub(super) fn new(
        mut config: Config,
        programs: &Programs,
        shared_tls: &SharedTls,
    ) -> Result<Generation, MasterError> {
        choose_send_method(&mut config);
        check_sandbox(&config)?;
        let shared = SharedTables::new(&config).map_err(MasterError::SharedMemory)?;
        let keys = Keys::load(&config, shared_tls).map_err(MasterError::Tls)?;
        let mut programs = programs.clone();
        let users = programs.use_accounts(&config);
        users.map_err(system("groups of the user"))?;
        Ok(Generation {
            directories: OpenDirectories::new(&config),
            config,
            programs,
            shared,
            keys,
        })
    }

    /// Checks the certificates, compared with those in use.
    pub(super) fn with_valid_certificates(
        self,
        before: Option<&Keys>,
    ) -> Result<Generation, MasterError> {
        if let Some(keys) = &self.keys {
            keys.check_validity(before).map_err(MasterError::Tls)?;
        }
        Ok(self)
    }
}

/// Whether this kernel, and what is configured, can be confined as required.
fn check_sandbox(config: &Config) -> Result<(), MasterError> {
    if config.sandbox != Sandbox::Required {
        return Ok(());
    }
    if let Some(why) = confinement::workers_need_more(config) {
        return Err(MasterError::Sandbox(format!("sandbox: {why}")));
    }
    let support = Support::probe();
    let lacks = support.require_all();
    lacks.map_err(|error| MasterError::Sandbox(error.to_string()))
}

/// Where new workers get the directories of roots.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Roots {
    /// From the file system.
    LookedUp,
    /// From the workers before: a reload that the server begins itself. A file system may not answer now.
    Kept,
}

/// A reload whose workers are starting.
pub(super) struct Reload {
    generation: Rc<Generation>,
    pub(super) listeners: Listeners,
    /// The new log process, if the log has changed.
    log: Option<Option<Log>>,
    /// The new ACME process, if its settings have changed.
    acme: Option<Option<Acme>>,
    /// What is printed in the end.
    done: &'static str,
    deadline: Instant,
}

impl Reload {
    pub(super) fn is_of(&self, slot: &WorkerSlot) -> bool {
        slot.is_of(&self.generation)
    }

    /// The log of its workers.
    pub(super) fn log<'l>(&'l self, unchanged: Option<&'l Log>) -> Option<&'l Log> {
        match &self.log {
            Some(log) => log.as_ref(),
            None => unchanged,
        }
    }
}

impl Master<'_> {
    /// Begins a reload. One that is requested during another one follows it.
    pub(super) fn handle_reload(&mut self) {
        if signals::drain(&self.signals.reload) == 0 || self.stopping.is_some() {
            return;
        }
        self.reload_is_due = true;
        self.reload_if_due();
    }

    pub(super) fn reload_if_due(&mut self) {
        if !self.announced || self.is_busy() || self.stopping.is_some() {
            return;
        }
        if !std::mem::take(&mut self.reload_is_due) {
            return;
        }
        Service::reloading();
        match self.reader.start() {
            Ok(reading) => self.reading = Some(reading),
            Err(error) => self.fail_reload(&format!("read the configuration: {error}")),
        }
    }

    /// Continues a reload when the configuration has been read, or gives it up.
    pub(super) fn watch_reading(&mut self, now: Instant) {
        let Some(reading) = &self.reading else { return };
        let read = match reading.take() {
            Some(read) => read,
            None if reading.deadline <= now => Err(self.reader.why_late(&self.current.config)),
            None => return,
        };
        self.reading = None;
        if let Err(why) = read
            .and_then(|config| check_fixed(&self.current.config, self.activated(config)))
            .and_then(|config| self.begin_reload(config, "configuration reloaded", Roots::LookedUp))
        {
            self.fail_reload(&why);
        }
    }

    /// Replaces the workers if names of upstreams have other addresses. During a reload, the new
    /// workers know them already.
    pub(super) fn handle_new_addresses(&mut self) {
        let Some(resolved) = self.resolver.as_ref().and_then(Resolver::take) else {
            return;
        };
        let mut config = self.current.config.clone();
        if self.is_busy() || self.stopping.is_some() || !config.set_addresses(&resolved) {
            return;
        }
        let done = "names of upstreams have other addresses; workers replaced";
        if let Err(why) = self.begin_reload(config, done, Roots::Kept) {
            self.fail_reload(&why);
        }
    }

    pub(super) fn begin_reload(
        &mut self,
        mut config: Config,
        done: &'static str,
        roots: Roots,
    ) -> Result<(), String> {
        let text = |error: MasterError| error.to_string();
        let options = ListenerOptions::of(&config);
        let listeners = Listeners::bind(&config.listen, &options, self.listeners.as_ref());
        let listeners = listeners.map_err(|error| error.to_string())?;
        if self.store.is_none() {
            self.store = Store::start(&mut config, &self.current.programs).map_err(text)?;
        }
        let acme = match config.acme == self.current.config.acme {
            true => None,
            false => Some(Acme::prepare(&config, &self.shared_tls).map_err(text)?),
        };
        let generation = Generation::new(config, &self.current.programs, &self.shared_tls);
        let before = self.current.keys.as_ref();
        let generation = match generation.and_then(|new| new.with_valid_certificates(before)) {
            Ok(generation) => generation,
            Err(error) => {
                self.ending.extend(acme.flatten().and_then(Acme::let_end));
                return Err(text(error));
            }
        };
        let log = match generation.config.log == self.current.config.log {
            true => None,
            false => Some(Log::start_of(&generation).map_err(text)?),
        };
        if roots == Roots::Kept {
            generation.directories.keep(&self.current.directories);
        }
        let generation = Rc::new(generation);
        self.reload = Some(Reload {
            generation: generation.clone(),
            listeners,
            log,
            acme,
            done,
            deadline: Instant::now() + START_TIMEOUT,
        });
        self.start_workers(&generation).map_err(text)
    }

    /// Starts all workers of a generation.
    pub(super) fn start_workers(&mut self, generation: &Rc<Generation>) -> Result<(), MasterError> {
        for number in 0..generation.config.workers {
            let place = self.free_slot();
            self.slots[place].assign(generation.clone(), number);
            self.spawn_worker(place)?;
        }
        Ok(())
    }

    /// A slot without a worker.
    fn free_slot(&mut self) -> usize {
        let free = self.slots.iter().position(|slot| slot.worker.is_none());
        free.unwrap_or_else(|| {
            self.slots.push(WorkerSlot::new());
            self.slots.len() - 1
        })
    }

    /// Ends a reload once all of its workers are ready.
    pub(super) fn finish_reload(&mut self) {
        let Some(reload) = &self.reload else { return };
        let mut new = self.slots.iter().filter(|slot| reload.is_of(slot));
        if !new.all(WorkerSlot::is_ready) {
            return;
        }
        let Some(reload) = self.reload.take() else {
            return;
        };
        let earlier = std::mem::replace(&mut self.current, reload.generation);
        self.own_status.listen = reload.listeners.shown();
        self.listeners = Some(reload.listeners);
        match reload.log {
            Some(log) => {
                let earlier = std::mem::replace(&mut self.log, log);
                self.retired_logs.extend(earlier);
            }
            None => self.reopen_log(),
        }
        if let Some(acme) = reload.acme {
            self.replace_acme(acme);
        }
        self.replace_spans();
        if let Some(store) = &mut self.store {
            store.set_limits(&self.current.config);
        }
        self.watchdog = Watchdog::new(&self.current.config);
        self.start_resolver();
        self.retire(&earlier);
        self.own_status.reloads += 1;
        self.own_status.reload_error = None;
        error_log::configure(self.current.config.error_log);
        log_info(reload.done);
        Service::ready();
        if !self.options.quiet && earlier.config.listen != self.current.config.listen {
            announce::addresses(&self.current.config, &self.own_status.listen);
        }
        self.report_result();
        self.reload_if_due();
        self.upgrade_if_due();
    }

    /// The configuration as it is for sockets of the service manager, if there are any.
    fn activated(&self, mut config: Config) -> Config {
        if self.listeners.as_ref().is_some_and(Listeners::is_activated) {
            activation::share(&mut config);
        }
        config
    }

    /// Gives up a reload. What it has started ends, and the server goes on as before.
    pub(super) fn fail_reload(&mut self, why: &str) {
        let user = self
            .reload
            .as_ref()
            .map(|reload| announce::as_user(&reload.generation.config));
        log_error(format_args!(
            "reload failed{}: {why}; serving on with the configuration before",
            user.unwrap_or_default()
        ));
        Service::ready();
        self.own_status.reload_failures += 1;
        self.own_status.reload_error = Some(why.to_owned());
        if let Some(reload) = self.reload.take() {
            // One that is ready may have clients.
            self.retire(&reload.generation);
            self.abandon(reload);
        }
        // It says again which addresses have changed.
        self.start_resolver();
        self.report_result();
        self.reload_if_due();
        self.upgrade_if_due();
    }

    /// Whether a reload or an upgrade runs or is to follow.
    pub(super) fn is_changing(&self) -> bool {
        self.reload_is_due || self.upgrade_is_due || self.is_busy()
    }

    /// Ends the processes that a reload has started beside its workers.
    pub(super) fn abandon(&mut self, reload: Reload) {
        self.retired_logs.extend(reload.log.flatten());
        let acme = reload.acme.flatten();
        self.ending.extend(acme.and_then(Acme::let_end));
    }

    fn start_resolver(&mut self) {
        match Resolver::start(&self.current.config) {
            Ok(resolver) => self.resolver = resolver,
            Err(error) => log_error(format_args!(
                "resolver thread: {error}; names are not resolved again"
            )),
        }
    }

    /// Has all workers of a generation drain.
    fn retire(&mut self, generation: &Rc<Generation>) {
        let timeout_ms = generation.config.drain_timeout_ms;
        // A client may send its next request at any moment, so idle connections stay for a while.
        let drain = Drain {
            timeout_ms,
            idle_ms: timeout_ms / 2,
        };
        let until = Instant::now() + Duration::from_millis(timeout_ms) + EXIT_TIMEOUT;
        for place in 0..self.slots.len() {
            let slot = &mut self.slots[place];
            if !slot.is_of(generation) {
                continue;
            }
            if let Some(worker) = &mut slot.worker {
                worker.retires_at = Some(until);
            }
            let is_ready = slot.is_ready();
            match slot.running.as_mut() {
                Some(running) if !is_ready => running.cut(true),
                Some(_) => self.send(place, ToWorker::Drain(drain), Vec::new()),
                None => {
                    slot.free();
                    self.companions.dismiss(place);
                }
            }
        }
    }

    /// The next deadline of a reload, and of workers that it has replaced.
    pub(super) fn reload_deadline(&self) -> Option<Instant> {
        let workers = self.slots.iter().filter_map(|slot| slot.worker.as_ref());
        let retiring = workers.filter_map(|worker| worker.retires_at);
        let starting = self.reload.iter().map(|reload| reload.deadline);
        let reading = self.reading.iter().map(|reading| reading.deadline);
        retiring.chain(starting).chain(reading).min()
    }

    /// Kills workers that have not ended in time, gives up a reload whose workers are not ready in
    /// time, and ends log processes that no worker needs any more.
    pub(super) fn enforce_reload(&mut self, now: Instant) {
        let late = self.reload.as_ref().filter(|one| one.deadline <= now);
        if let Some(late) = late {
            let silent = silent_paths(&late.generation.config);
            let seconds = START_TIMEOUT.as_secs();
            self.fail_reload(&format!(
                "the new workers are not ready after {seconds} s{silent}"
            ));
        }
        for slot in &mut self.slots {
            let Some(worker) = &mut slot.worker else {
                continue;
            };
            if worker.retires_at.is_some_and(|at| at <= now)
                && let Some(running) = &mut slot.running
            {
                // It may have ended already. One that waits for a dead disk ends later.
                let _ = running.child.kill();
                worker.retires_at = Some(now + EXIT_TIMEOUT);
            }
        }
        let is_over = !self.slots.iter().any(WorkerSlot::is_retiring);
        if is_over && self.reload.is_none() {
            let logs = self.retired_logs.drain(..);
            self.ending.extend(logs.filter_map(Log::let_end));
            if !store::is_needed(&self.current.config) {
                self.ending
                    .extend(self.store.take().and_then(Store::let_end));
                (self.own_status.stored, self.own_status.pinned) = (None, None);
            }
        }
        self.ending
            .retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }
}

/// Refuses changes that need a restart.
fn check_fixed(now: &Config, new: Config) -> Result<Config, String> {
    let is_shared = |config: &Config| config.listeners != ListenerMode::Reuseport;
    let changed = [
        ("status", now.status != new.status),
        ("listeners", is_shared(now) != is_shared(&new)),
        ("user", now.user != new.user),
    ];
    match changed.into_iter().find(|(_, has_changed)| *has_changed) {
        Some((key, _)) => Err(format!("{key}: a change needs a restart")),
        None => Ok(new),
    }
}
