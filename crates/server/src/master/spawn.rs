//! Starts workers and helpers: the process, its channel, and the descriptors passed to it.

use std::os::fd::AsFd;
use std::rc::Rc;

use headway_config::{Config, ErrorFormat, Handshakes};
use headway_control::{Control, OutgoingDescriptors, StartDescriptor, ToWorker};

use super::children::Role;
use super::companions::{self, Companion};
use super::reload::Generation;
use super::tls::Keys;
use super::{Helper, Master, MasterError, system};

impl Master<'_> {
    /// Starts the worker of a slot.
    pub(super) fn spawn_worker(&mut self, place: usize) -> Result<(), MasterError> {
        let slot = &self.slots[place];
        let reload = self.reload.as_ref().filter(|reload| reload.is_of(slot));
        let listeners = reload.map(|reload| &reload.listeners);
        let log = reload.map_or(self.log.as_ref(), |reload| reload.log(self.log.as_ref()));
        let (Some(listeners), Some(assigned)) =
            (listeners.or(self.listeners.as_ref()), &slot.worker)
        else {
            return Ok(());
        };
        let Generation {
            config,
            programs,
            shared,
            keys,
            directories,
        } = &*assigned.generation;
        let worker = assigned.number as u32;
        let log = log.map(|log| log.socket(worker)).transpose()?;
        let (ours, theirs) = Control::pair()?;
        let mut outgoing = OutgoingDescriptors::default();
        let (plain, all) = (config.plain_listeners(), config.listen.len());
        let one = (assigned.number, config.workers);
        let in_clear = listeners.of_worker(one, 0..plain);
        let secure = listeners.of_worker(one, plain..all);
        let of_listeners = in_clear.iter().chain(&secure).map(|(at, _)| *at);
        let of_listeners: Vec<u32> = of_listeners.collect();
        let socket = |(_, socket)| socket;
        outgoing.add(StartDescriptor::Listener, in_clear.into_iter().map(socket));
        outgoing.add(StartDescriptor::TlsListener, secure.into_iter().map(socket));
        let counters = shared.counters.iter().map(AsFd::as_fd);
        outgoing.add(StartDescriptor::SharedCounters, counters);
        let addresses = shared.addresses.iter().map(AsFd::as_fd);
        outgoing.add(StartDescriptor::AddressBoard, addresses);
        outgoing.add(StartDescriptor::Log, log.iter().map(AsFd::as_fd));
        let keys = keys.as_ref().filter(|_| does_handshakes(config));
        let keys = keys.map(Keys::descriptors).transpose();
        let keys = keys.map_err(system("pass keys to a worker"))?;
        let keys = keys.iter().flatten().map(AsFd::as_fd);
        outgoing.add(StartDescriptor::Keys, keys);
        let mut config = config.clone();
        // They may have secrets, which only the span process needs.
        config.otlp.iter_mut().for_each(|otlp| otlp.headers.clear());
        let message = ToWorker::Start {
            worker,
            config: Box::new(config),
            descriptors: outgoing.names,
            listeners: of_listeners,
        };
        directories.give(&ours)?;
        ours.send(&message, &outgoing.descriptors)?;
        let child = programs
            .spawn(Role::Worker, theirs.into_inner())
            .map_err(system("start a worker"))?;
        self.slots[place].started(child, ours);
        self.start_companion(Companion::Spawner, place);
        self.start_companion(Companion::Handshakes, place);
        self.connect_store(place);
        self.connect_spans(place);
        Ok(())
    }

    /// Starts a companion of a worker, if its configuration needs it.
    pub(super) fn start_companion(&mut self, kind: Companion, place: usize) {
        let Some(assigned) = &self.slots[place].worker else {
            return;
        };
        let generation = assigned.generation.clone();
        let Generation {
            config, programs, ..
        } = &*generation;
        let companions = &mut self.companions;
        let message = match (kind, &generation.keys) {
            (Companion::Spawner, _) if config.needs_spawner() => {
                let is_json = config.error_log.format == ErrorFormat::Json;
                let how = (config.program_user.as_ref(), is_json);
                companions
                    .start(kind, place, || companions::spawner(programs, how))
                    .map(|(pid, socket)| (ToWorker::Spawner { pid }, socket))
            }
            (Companion::Handshakes, Some(keys)) if !does_handshakes(config) => companions
                .start(kind, place, || companions::handshakes(programs, keys))
                .map(|(_, socket)| (ToWorker::Handshakes, socket)),
            _ => None,
        };
        if let Some((message, socket)) = message {
            self.send(place, message, vec![socket]);
        }
    }

    pub(super) fn spawn_helpers(&mut self, number: usize, count: u32) -> Result<(), MasterError> {
        let Some(assigned) = &self.slots[number].worker else {
            return Ok(());
        };
        let generation = assigned.generation.clone();
        let helpers_max = generation.config.helpers_max;
        let of_worker = self
            .helpers
            .iter()
            .filter(|helper| helper.worker == number)
            .count();
        // Twice the limit: a helper that waits for a disk lives on for a while after its worker has
        // replaced it.
        let room = (2 * helpers_max).saturating_sub(of_worker);
        let granted = (count as usize).min(helpers_max).min(room);
        self.own_status.helpers_rejected += u64::from(count) - granted as u64;
        for _ in 0..granted {
            let (theirs, workers) = Control::pair()?;
            if let Some(demand) = generation.programs.sandbox_of(Role::Helper) {
                let ordered = generation.directories.order(&generation.config, demand);
                let (order, ruleset) = ordered?;
                let ruleset: Vec<_> = ruleset.iter().map(AsFd::as_fd).collect();
                workers.send(&order, &ruleset)?;
            }
            let child = generation
                .programs
                .spawn(Role::Helper, theirs.into_inner())
                .map_err(system("start a helper"))?;
            let pid = child.id();
            self.own_status.helpers_started += 1;
            self.helpers.push(Helper {
                worker: number,
                generation: Rc::downgrade(&generation),
                child,
            });
            self.send(number, ToWorker::Helper { pid }, vec![workers.into_inner()]);
        }
        Ok(())
    }
}

/// Whether workers do handshakes themselves.
fn does_handshakes(config: &Config) -> bool {
    let tls = config.tls.as_ref();
    tls.is_some_and(|tls| tls.handshakes == Handshakes::Inline)
}
