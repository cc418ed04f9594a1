//! Starts workers and helpers: the process, its channel, and the descriptors passed to it.

use std::os::fd::AsFd;

use headway_control::{Control, OutgoingDescriptors, StartDescriptor, ToWorker};

use super::children::Role;
use super::{Helper, Master, MasterError, system};

impl Master {
    pub(super) fn spawn_worker(&mut self, number: usize) -> Result<(), MasterError> {
        let Some(listeners) = &self.listeners else {
            return Ok(());
        };
        let worker = number as u32;
        let log = self
            .log
            .as_ref()
            .map(|log| log.socket(worker))
            .transpose()?;
        let (ours, theirs) = Control::pair()?;
        let sockets = listeners.sockets[number].iter().map(AsFd::as_fd);
        let counters = self.shared.counters.iter().map(AsFd::as_fd);
        let addresses = self.shared.addresses.iter().map(AsFd::as_fd);
        let mut outgoing = OutgoingDescriptors::default();
        outgoing.add(StartDescriptor::Listener, sockets);
        outgoing.add(StartDescriptor::SharedCounters, counters);
        outgoing.add(StartDescriptor::AddressBoard, addresses);
        outgoing.add(StartDescriptor::Log, log.iter().map(AsFd::as_fd));
        let message = ToWorker::Start {
            worker,
            config: Box::new(self.config.clone()),
            descriptors: outgoing.names,
        };
        ours.send(&message, &outgoing.descriptors)?;
        let child = self
            .options
            .programs
            .spawn(Role::Worker, theirs.into_inner())
            .map_err(system("start a worker"))?;
        self.slots[number].started(child, ours);
        self.start_spawner(number);
        self.connect_store(number);
        Ok(())
    }

    pub(super) fn start_spawner(&mut self, number: usize) {
        let user = self.config.program_user.as_ref();
        let programs = &self.options.programs;
        if let Some((pid, socket)) = self.spawners.start(number, programs, user) {
            self.send(number, ToWorker::Spawner { pid }, vec![socket]);
        }
    }

    pub(super) fn spawn_helpers(&mut self, number: usize, count: u32) -> Result<(), MasterError> {
        let of_worker = self
            .helpers
            .iter()
            .filter(|helper| helper.worker == number)
            .count();
        // Twice the limit: a helper that waits for a disk lives on for a while after its worker has
        // replaced it.
        let room = (2 * self.config.helpers_max).saturating_sub(of_worker);
        let granted = (count as usize).min(self.config.helpers_max).min(room);
        self.own_status.helpers_rejected += u64::from(count) - granted as u64;
        for _ in 0..granted {
            let (theirs, workers) = Control::pair()?;
            let child = self
                .options
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
