//! The pool's side of the kernel's workers: which jobs go there, and what comes back. The work
//! itself is in [`ring`](super::ring).

use super::jobs::{Job, Startable};
use super::ring::Ring;
use super::shares::extra_helpers;
use super::{Done, Pool, micros};
use crate::protocol::CLOSE_BATCH_MAX;
use rustix::fd::BorrowedFd;
use std::io;

impl Pool {
    /// Has the kernel's workers (io_uring) resolve paths, read chunks into memory and close files
    /// from now on, at most as many at a time as there may be helpers. Helpers still do listings
    /// and copies. Register [`Pool::ring`] for reading. `descriptors` is the expected number of
    /// open descriptors: more are possible, but the loop may sleep for milliseconds when the
    /// descriptor table grows.
    ///
    /// # Errors
    /// Those of [`headway_os::uring_files::FileRing::new`] and
    /// [`headway_os::uring_files::FileRing::grow_table`]; nothing has changed then.
    pub fn use_ring(&mut self, descriptors: u32) -> io::Result<()> {
        let workers = self.limits.max + extra_helpers(self.limits.max);
        let ring = Ring::new(workers, self.roots.clone(), self.deferred.clone())?;
        ring.grow_table(descriptors)?;
        self.ring = Some(ring);
        Ok(())
    }

    /// The descriptor that is readable when the kernel's workers have answered, if they are in use.
    pub fn ring(&self) -> Option<BorrowedFd<'_>> {
        self.ring.as_ref().map(Ring::descriptor)
    }

    /// Whether [`Pool::on_ring`] has something to say although nothing has become readable.
    pub fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Take the answers of the kernel's workers. Appends to `done`; never waits.
    pub fn on_ring(&mut self, done: &mut Vec<Done>) {
        if let Some(ring) = &mut self.ring {
            ring.take(&mut self.finished);
        }
        for finished in std::mem::take(&mut self.finished) {
            let Some(outcome) = finished.outcome else {
                self.jobs.leave_to_process(finished.id);
                continue;
            };
            let Some(job) = self.jobs.finish(finished.id) else {
                continue;
            };
            self.statistics.ring_jobs += 1;
            let age = finished.started.elapsed();
            self.statistics.service_us.record(micros(age));
            done.push(Done {
                outcome,
                waiters: job.waiters,
                age,
            });
        }
        self.gauges();
    }

    /// Whether a helper has to do a job: the ring does the others.
    pub(super) fn needs_helper(&self) -> fn(&Job) -> bool {
        match self.ring {
            None => |_| true,
            Some(_) => |job| !Ring::takes(job),
        }
    }

    pub(super) fn start_in_ring(&mut self) {
        while self.ring.as_ref().is_some_and(Ring::has_room) {
            let now = self.startable_in_ring();
            let Some((id, job)) = self.jobs.start(&now, Ring::takes) else {
                break;
            };
            self.statistics
                .queue_us
                .record(micros(job.submitted.elapsed()));
            if let Some(ring) = &mut self.ring {
                let finished = ring.start(id, &job.key, job.file.as_ref());
                self.finished.extend(finished);
            }
        }
    }

    pub(super) fn startable_in_ring(&self) -> Startable {
        let jobs: Vec<u64> = self.ring.iter().flat_map(Ring::jobs).collect();
        self.beside(jobs.len(), jobs.into_iter())
    }

    /// Has files closed. Those for which there is no room wait on.
    pub(super) fn close_in_ring(&mut self) {
        let Some(ring) = &mut self.ring else { return };
        let batch = self.deferred.take(CLOSE_BATCH_MAX);
        let count = batch.len();
        let left = ring.close(batch);
        self.statistics.deferred_closes += (count - left.len()) as u64;
        self.deferred.put_back(left);
    }
}
