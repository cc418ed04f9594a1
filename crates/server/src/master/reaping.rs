//! Children that have ended: which of them are restarted, and what their end means for the server.

use std::time::{Duration, Instant};

use super::children::ended;
use super::{CLEAN_EXIT, Master, MasterError, announce, log_error, log_warn};

impl Master<'_> {
    /// Checks every child, because SIGCHLD does not say which one ended.
    pub(super) fn reap(&mut self) {
        for number in 0..self.slots.len() {
            let running = self.slots[number].running.as_mut();
            if let Some(Ok(Some(status))) = running.map(|running| running.child.try_wait()) {
                // Its last messages first: they may have the reason.
                self.read_worker(number);
                self.worker_ended(number, &ended(status));
            }
            self.slots[number].reap_ended();
        }
        self.helpers
            .retain_mut(|helper| match helper.child.try_wait() {
                Ok(Some(status)) => {
                    let has_failed = status.code().is_some_and(|code| code != 0);
                    let generation = helper.generation.upgrade().filter(|_| has_failed);
                    if let Some(generation) = generation {
                        generation.directories.have_helper_look();
                    }
                    false
                }
                Ok(None) => true,
                Err(_) => false,
            });
        self.reap_predecessors();
        self.companions
            .reap(self.stopping.is_some(), &mut self.own_status);
        if let Some(store) = &mut self.store {
            store.reap(self.stopping.is_some(), &mut self.own_status);
        }
        if let Some(acme) = &mut self.acme {
            acme.reap(self.stopping.is_some(), &mut self.own_status);
        }
        self.read_spans();
        if let Some(spans) = &mut self.spans {
            spans.reap(self.stopping.is_some(), &mut self.own_status);
        }
    }

    pub(super) fn worker_ended(&mut self, number: usize, end: &str) {
        let last = self.slots[number].last.take();
        self.collector.departed(number, last);
        self.companions.dismiss(number);
        let slot = &mut self.slots[number];
        if let Some(worker) = &slot.worker {
            worker.generation.shared.release(worker.number);
        }
        let reported = slot.why.take();
        let why = reported.map_or(end.to_owned(), |why| format!("{why} ({end})"));
        let delay = slot.died(Instant::now()).as_millis();
        let worker = slot.number();
        if slot.is_retiring() {
            slot.free();
            if end != CLEAN_EXIT && self.stopping.is_none() {
                log_warn(format_args!(
                    "worker {worker} ended while it drained: {why}"
                ));
            }
            return self.notify_others(number);
        }
        if self.stopping.is_some() {
            slot.restart_at = None;
            return;
        }
        if !self.announced {
            let user = announce::as_user(&self.current.config);
            let number = worker;
            self.failure = Some(MasterError::Worker { number, user, why });
            return self.stop(Duration::ZERO);
        }
        if self
            .reload
            .as_ref()
            .is_some_and(|reload| reload.is_of(&self.slots[number]))
        {
            return self.fail_reload(&format!("worker {worker}: {why}"));
        }
        self.own_status.worker_deaths += 1;
        if self.current.config.wakes_one_worker() {
            self.notify_others(number);
        }
        log_error(format_args!(
            "worker {worker} ended: {why}; restarting it in {delay} ms"
        ));
    }
}
