//! How many helpers there should be, and which job each of them gets.

use super::jobs::Startable;
use super::shares::{Origin, Shares, extra_helpers};
use super::slot::{Slot, Work};
use super::{CLOSE_AFTER_JOBS, HelperSlot, Pool, micros, ms, request};
use crate::protocol::encode_request;
use rustix::fd::AsFd;

impl Pool {
    /// How many helpers there should be, from `min` to [`PoolLimits::max`](super::PoolLimits::max): one more than there are if
    /// jobs have waited too long. Request from the master what is neither attached nor already requested.
    pub fn wanted(&self, now_ms: u64) -> usize {
        let grow = self
            .waiting_since_ms
            .is_some_and(|since| now_ms >= since.saturating_add(ms(self.limits.grow_after)));
        let there = self.slots.iter().filter(|slot| !slot.is_dead()).count();
        (there + usize::from(grow)).clamp(self.limits.min, self.most().max(self.limits.min))
    }

    /// A helper that has been idle too long, while there are more than `min`, or that is outdated: deregister it and
    /// call [`Pool::detach`]. Returns one at a time; repeat until `None`.
    pub fn surplus(&mut self, now_ms: u64) -> Option<HelperSlot> {
        if let Some(slot) = self.slots.iter().find(|slot| self.is_outdated(slot)) {
            return Some(slot.id);
        }
        if self.jobs.queued() > 0 || self.slots.len() <= self.limits.min {
            return None;
        }
        let (since, id) = self.longest_idle()?;
        (now_ms >= since.saturating_add(ms(self.limits.idle))).then_some(id)
    }

    /// When [`Pool::flush`], [`Pool::wanted`] or [`Pool::surplus`] will have something new to say,
    /// on the clock of their `now_ms`; later than `now_ms`, `None` if only an event can change
    /// anything.
    pub fn next_ms(&self, now_ms: u64) -> Option<u64> {
        let grow = self
            .waiting_since_ms
            .filter(|_| self.slots.len() < self.most())
            .map(|since| since.saturating_add(ms(self.limits.grow_after)));
        let shrink = self
            .longest_idle()
            .filter(|_| self.slots.len() > self.limits.min)
            .map(|(since, _)| since.saturating_add(ms(self.limits.idle)));
        let deferred = self
            .closes_waiting_since_ms
            .filter(|_| self.ring.is_some() || self.idle().is_some())
            .map(|since| since.saturating_add(CLOSE_AFTER_JOBS.1));
        [grow, shrink, deferred]
            .into_iter()
            .flatten()
            .filter(|at| *at > now_ms)
            .min()
    }

    /// The limit of helpers now: there may be more while all are busy.
    fn most(&self) -> usize {
        let extra = match self.busy() < self.limits.max {
            true => 0,
            false => extra_helpers(self.limits.max),
        };
        self.limits.max + extra
    }

    fn busy(&self) -> usize {
        let busy = self.slots.iter().filter(|slot| slot.work().is_some());
        busy.count()
    }

    /// The idle helper used last.
    pub(super) fn idle(&self) -> Option<usize> {
        let is_usable = |slot: &Slot| slot.is_idle() && !self.is_outdated(slot);
        self.slots.iter().rposition(is_usable)
    }

    /// Whether it is idle and cannot open what is beneath a root now.
    fn is_outdated(&self, slot: &Slot) -> bool {
        self.are_confined && slot.is_idle() && !slot.knows_all(&self.roots)
    }

    fn longest_idle(&self) -> Option<(u64, HelperSlot)> {
        self.slots
            .iter()
            .filter_map(|slot| Some((slot.idle_since_ms()?, slot.id)))
            .min_by_key(|(since, _)| *since)
    }

    /// Whether a helper that is idle, or one more of them, would get a job.
    pub(super) fn may_start(&mut self) -> bool {
        if self.jobs.queued() == 0 || self.is_known_to_wait() {
            return false;
        }
        let may_start = self.jobs.may_start(&self.startable(), self.needs_helper());
        self.none_may_start = (!may_start).then(|| (self.jobs.changes(), self.busy()));
        may_start
    }

    /// Whether nothing has changed since no job might start.
    pub(super) fn is_known_to_wait(&self) -> bool {
        self.none_may_start == Some((self.jobs.changes(), self.busy()))
    }

    /// What may start in a helper now.
    fn startable(&self) -> Startable {
        let work = self.slots.iter().filter_map(Slot::work);
        let jobs = work.filter_map(|(work, _)| match work {
            Work::Job(id) | Work::Unsent(id) => Some(id),
            Work::DeferClose | Work::OpenRoot(_) => None,
        });
        self.beside(self.busy(), jobs)
    }

    /// What may start beside `busy` helpers, of which some run jobs.
    pub(super) fn beside(&self, busy: usize, jobs: impl Iterator<Item = u64>) -> Startable {
        let running: Vec<_> = jobs.filter_map(|id| self.jobs.running(id)).collect();
        let refreshes = running.iter().filter(|job| job.is_refresh()).count();
        let origins: Vec<Origin> = running.iter().map(|job| job.origin).collect();
        Startable {
            shares: Shares::new(self.limits.max, busy, &origins),
            refreshes: refreshes < self.limits.max.div_ceil(2),
        }
    }

    /// Whether such a job may be queued although the queue is full: it may start, and the jobs in front of
    /// it must not.
    pub(super) fn may_exceed(&self, origin: &Origin) -> bool {
        let now = match self.ring {
            None => self.startable(),
            Some(_) => self.startable_in_ring(),
        };
        now.shares.is_full() && now.shares.allow(origin)
    }

    /// Gives an idle helper the next job, if there are both.
    pub(super) fn start_next(&mut self) -> bool {
        let Some(position) = self.idle().filter(|_| self.may_start()) else {
            return false;
        };
        let (now, fits) = (self.startable(), self.needs_helper());
        let Some((id, job)) = self.jobs.start(&now, fits) else {
            return false;
        };
        let mut bytes = Vec::new();
        encode_request(&request(id, &job.key), &mut bytes);
        let piece = job.piece.iter().map(|piece| piece.as_fd());
        let files: Vec<_> = piece
            .chain(job.file.iter().map(|file| file.as_fd()))
            .collect();
        self.statistics
            .queue_us
            .record(micros(job.submitted.elapsed()));
        let slot = &mut self.slots[position];
        let knows_root = job
            .key
            .root()
            .is_none_or(|root| slot.put_root(&self.roots, root));
        match knows_root {
            true => slot.send(&bytes, &files, id),
            false => slot.fail(id),
        }
        let last = self.slots.remove(position);
        self.slots.push(last);
        true
    }
}
