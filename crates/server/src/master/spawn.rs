//! Starts workers and helpers: the process, its channel, and the descriptors passed to it.

use std::os::fd::AsFd;

use headway_control::{Control, OutgoingDescriptors, StartDescriptor, ToWorker};

use super::children::Role;
use super::reload::Generation;
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
        } = &*assigned.generation;
        let worker = assigned.number as u32;
        let log = log.map(|log| log.socket(worker)).transpose()?;
        let (ours, theirs) = Control::pair()?;
        let mut outgoing = OutgoingDescriptors::default();
        let sockets = listeners.of_worker(assigned.number, config.workers);
        outgoing.add(StartDescriptor::Listener, sockets);
        let counters = shared.counters.iter().map(AsFd::as_fd);
        outgoing.add(StartDescriptor::SharedCounters, counters);
        let addresses = shared.addresses.iter().map(AsFd::as_fd);
        outgoing.add(StartDescriptor::AddressBoard, addresses);
        outgoing.add(StartDescriptor::Log, log.iter().map(AsFd::as_fd));
        let message = ToWorker::Start {
            worker,
            config: Box::new(config.clone()),
            descriptors: outgoing.names,
        };
        ours.send(&message, &outgoing.descriptors)?;
        let child = programs
            .spawn(Role::Worker, theirs.into_inner())
            .map_err(system("start a worker"))?;
        self.slots[place].started(child, ours);
        self.start_spawner(place);
        self.connect_store(place);
        Ok(())
    }

    /// Starts the spawner of a worker, if its configuration has programs.
    pub(super) fn start_spawner(&mut self, place: usize) {
        let Some(assigned) = &self.slots[place].worker else {
            return;
        };
        let generation = assigned.generation.clone();
        let user = generation.config.program_user.as_ref();
        if generation.config.needs_spawner()
            && let Some((pid, socket)) = self.spawners.start(place, &generation.programs, user)
        {
            self.send(place, ToWorker::Spawner { pid }, vec![socket]);
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
            let child = generation
                .programs
                .spawn(Role::Helper, theirs.into_inner())
                .map_err(system("start a helper"))?;
            let pid = child.id();
            self.own_status.helpers_started += 1;
            self.helpers.push(Helper {
                worker: number,
                child,
            });
            self.send(number, ToWorker::Helper { pid }, vec![workers.into_inner()]);
        }
        Ok(())
    }
}
