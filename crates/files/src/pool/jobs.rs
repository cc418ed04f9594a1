//! The jobs of a pool: queued and running ones, and the waiters of each.
//!
//! A waiter that leaves is removed at once, and so is a queued job that has no waiters left. So a
//! helper that hangs holds its one job, not everything that ever asked for it.
//!
//! Equal jobs are one job. Jobs with waiters go before prefetches, and these before lookups that only
//! refresh what is known; such a job that gets a waiter changes its queue. The limit applies to queued
//! jobs, since running ones are limited by the helpers. It is meant for new requests: an admitted
//! request may exceed it ([`Waiter`]), so that no request fails half-way.

use super::shares::{Origin, Shares};
use super::spool::SpoolPiece;
use crate::file::OpenFile;
use crate::protocol::OpenMode;
use crate::root::RootId;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Instant;

/// A request that waits for a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiter {
    /// The request's name for itself; it comes back in [`super::Done::waiters`].
    pub token: u64,
    /// A helper has worked for the same request before, or part of its response was sent. Its next
    /// job is queued even if the queue is full. Each request waits for one job at a time, so the
    /// queue is limited to `queue_max` plus the number of requests under way.
    pub admitted: bool,
}

impl Waiter {
    /// A request that comes to the helpers for the first time.
    pub fn new(token: u64) -> Waiter {
        Waiter {
            token,
            admitted: false,
        }
    }
}

/// The identity of a job: jobs with equal keys are joined.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum JobKey {
    /// With the version of the root: who asks after a switch does not get what was found before it.
    Lookup(RootId, u32, Box<[u8]>, OpenMode),
    List(RootId, u32, Box<[u8]>),
    ReadIn(VersionedRange),
    Copy(VersionedRange),
    /// Never equal to another: each is about what one response has sent.
    CopyChecked {
        number: u64,
        /// Offset of the first byte that was sent.
        sent: u64,
        checksum: u64,
        next: VersionedRange,
    },
    /// A whole file.
    Fetch(VersionedRange),
    /// Never equal to another: each has a number.
    Spool {
        number: u64,
        offset: u64,
        length: u64,
        directory: Box<[u8]>,
    },
    /// Custom jobs without a number may be joined, and done again when a helper dies on one.
    Custom {
        number: Option<u64>,
        payload: Box<[u8]>,
    },
}

impl JobKey {
    /// The root that a helper has to know for the job.
    pub(super) fn root(&self) -> Option<RootId> {
        match self {
            JobKey::Lookup(root, ..) | JobKey::List(root, ..) => Some(*root),
            _ => None,
        }
    }

    /// Whether the job must not be repeated.
    pub(super) fn is_once_only(&self) -> bool {
        matches!(
            self,
            JobKey::Custom {
                number: Some(_),
                ..
            }
        )
    }
}

/// A range of a file in one version. A copy that began before a rewrite in place is not valid for a
/// request that has seen the file after it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct VersionedRange {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) modified: (i64, u32),
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// The state of a job: queued, or running.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum JobState {
    Demanded,
    Prefetch,
    Refresh,
    Running,
}

/// A queued job.
#[derive(Clone, Copy, Debug)]
struct Queued {
    id: u64,
    /// Here, because a long queue is searched for jobs that may start.
    origin: Origin,
}

/// One job.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) key: JobKey,
    /// The file of a read, or the page a listing is compared with; keeps it open until the job is
    /// done.
    pub(super) file: Option<Rc<OpenFile>>,
    /// The piece to be spooled.
    pub(super) piece: Option<SpoolPiece>,
    pub(super) waiters: Vec<u64>,
    pub(super) origin: Origin,
    /// The kernel's workers could not do it: a helper process has to.
    pub(super) needs_process: bool,
    /// How often a helper has died on the job.
    pub(super) deaths: u32,
    pub(super) submitted: Instant,
    state: JobState,
}

impl Job {
    /// Whether it is a lookup for which no request waits.
    pub(super) fn is_refresh(&self) -> bool {
        self.waiters.is_empty() && matches!(self.key, JobKey::Lookup(..))
    }
}

/// The result of submitting a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Submitted {
    Queued,
    /// Queued, and a prefetch was dropped for it.
    Displaced,
    Joined,
    Full,
}

/// All jobs of a pool.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    next: u64,
    jobs: HashMap<u64, Job>,
    by_key: HashMap<JobKey, u64>,
    /// The job for which each waiter waits.
    waiting: HashMap<u64, u64>,
    demanded: VecDeque<Queued>,
    prefetch: VecDeque<Queued>,
    refresh: VecDeque<Queued>,
    /// Grows whenever a job is queued, started or done.
    changes: u64,
}

/// What may start now.
pub(super) struct Startable {
    pub(super) shares: Shares,
    /// Whether lookups that only refresh may.
    pub(super) refreshes: bool,
}

impl Jobs {
    /// Jobs that no helper has yet.
    pub(super) fn queued(&self) -> usize {
        self.demanded.len() + self.prefetch.len() + self.refresh.len()
    }

    /// Changes whenever another job may be the next.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Submits a job; without a waiter it is a prefetch, or a lookup that refreshes.
    pub(super) fn submit(
        &mut self,
        (key, origin): (JobKey, Origin),
        file: Option<&Rc<OpenFile>>,
        waiter: Option<Waiter>,
        queue_max: usize,
    ) -> Submitted {
        if let Some(&id) = self.by_key.get(&key) {
            self.join(id, waiter);
            return Submitted::Joined;
        }
        let mut submitted = Submitted::Queued;
        if self.queued() >= queue_max {
            match waiter {
                Some(_) if self.drop_prefetch() => submitted = Submitted::Displaced,
                Some(waiter) if waiter.admitted => {}
                _ => return Submitted::Full,
            }
        }
        let id = self.next;
        self.next += 1;
        let state = JobState::queued(&key, waiter.is_some());
        self.waiting.extend(waiter.map(|waiter| (waiter.token, id)));
        let waiters = waiter.iter().map(|waiter| waiter.token).collect();
        let file = file.cloned();
        self.by_key.insert(key.clone(), id);
        let job = Job {
            key,
            file,
            piece: None,
            waiters,
            origin,
            needs_process: false,
            deaths: 0,
            submitted: Instant::now(),
            state,
        };
        self.jobs.insert(id, job);
        self.changes += 1;
        self.queue(state).push_back(Queued { id, origin });
        submitted
    }

    /// Attaches the data to a spool job that was just submitted.
    pub(super) fn attach(&mut self, key: &JobKey, piece: SpoolPiece) {
        let job = self.by_key.get(key).and_then(|id| self.jobs.get_mut(id));
        if let Some(job) = job {
            job.piece = Some(piece);
        }
    }

    /// Whether a job of a kind may start.
    pub(super) fn may_start(&self, now: &Startable, fits: impl Fn(&Job) -> bool) -> bool {
        self.next(now, fits).is_some()
    }

    /// Starts the next job of a kind that may start, and returns it.
    pub(super) fn start(
        &mut self,
        now: &Startable,
        fits: impl Fn(&Job) -> bool,
    ) -> Option<(u64, &Job)> {
        let (state, at) = self.next(now, fits)?;
        let Queued { id, .. } = self.queue(state).remove(at)?;
        self.changes += 1;
        let job = self.jobs.get_mut(&id)?;
        job.state = JobState::Running;
        Some((id, job))
    }

    fn next(&self, now: &Startable, fits: impl Fn(&Job) -> bool) -> Option<(JobState, usize)> {
        let may_start = |queued: &Queued| {
            now.shares.allow(&queued.origin) && self.jobs.get(&queued.id).is_some_and(&fits)
        };
        let queues = [
            (JobState::Demanded, &self.demanded),
            (JobState::Prefetch, &self.prefetch),
            (JobState::Refresh, &self.refresh),
        ];
        let queues = queues
            .into_iter()
            .filter(|(state, _)| *state != JobState::Refresh || now.refreshes);
        queues
            .into_iter()
            .find_map(|(state, queue)| Some((state, queue.iter().position(may_start)?)))
    }

    /// Removes a finished job; from now on it cannot be joined.
    pub(super) fn finish(&mut self, id: u64) -> Option<Job> {
        let job = self.jobs.remove(&id)?;
        self.changes += 1;
        self.by_key.remove(&job.key);
        for waiter in &job.waiters {
            if self.waiting.get(waiter) == Some(&id) {
                self.waiting.remove(waiter);
            }
        }
        Some(job)
    }

    /// A waiter does not wait any more.
    pub(super) fn leave(&mut self, waiter: u64) {
        let Some(id) = self.waiting.remove(&waiter) else {
            return;
        };
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        job.waiters.retain(|known| *known != waiter);
        if job.waiters.is_empty() && job.state == JobState::Demanded {
            self.give_up(id);
        }
    }

    /// The kernel's workers could not do a running job: queue it again, in front, for a helper process.
    pub(super) fn leave_to_process(&mut self, id: u64) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.needs_process = true;
            self.queue_again(id);
        }
    }

    /// The helper of a running job has died: queue it again, in front. Returns how often that has
    /// happened to this job.
    pub(super) fn requeue_front(&mut self, id: u64) -> u32 {
        let Some(job) = self.jobs.get_mut(&id) else {
            return 0;
        };
        job.deaths += 1;
        let deaths = job.deaths;
        self.queue_again(id);
        deaths
    }

    fn queue_again(&mut self, id: u64) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        // Joined since it was started as a prefetch, perhaps.
        let state = JobState::queued(&job.key, !job.waiters.is_empty());
        job.state = state;
        let origin = job.origin;
        self.changes += 1;
        self.queue(state).push_front(Queued { id, origin });
    }

    /// Removes a queued job without running it.
    pub(super) fn give_up(&mut self, id: u64) -> Option<Job> {
        for queue in [&mut self.demanded, &mut self.prefetch, &mut self.refresh] {
            queue.retain(|queued| queued.id != id);
        }
        self.finish(id)
    }

    /// A running job by its number.
    pub(super) fn running(&self, id: u64) -> Option<&Job> {
        self.jobs
            .get(&id)
            .filter(|job| job.state == JobState::Running)
    }

    fn join(&mut self, id: u64, waiter: Option<Waiter>) {
        let (Some(waiter), Some(job)) = (waiter, self.jobs.get_mut(&id)) else {
            return;
        };
        job.waiters.push(waiter.token);
        self.waiting.insert(waiter.token, id);
        if let JobState::Prefetch | JobState::Refresh = job.state {
            let (state, origin) = (job.state, job.origin);
            job.state = JobState::Demanded;
            self.queue(state).retain(|queued| queued.id != id);
            self.demanded.push_back(Queued { id, origin });
            self.changes += 1;
        }
    }

    fn drop_prefetch(&mut self) -> bool {
        let Some(Queued { id, .. }) = self
            .refresh
            .pop_front()
            .or_else(|| self.prefetch.pop_front())
        else {
            return false;
        };
        self.finish(id);
        true
    }

    fn queue(&mut self, state: JobState) -> &mut VecDeque<Queued> {
        match state {
            JobState::Refresh => &mut self.refresh,
            JobState::Prefetch => &mut self.prefetch,
            JobState::Demanded | JobState::Running => &mut self.demanded,
        }
    }
}

impl JobState {
    fn queued(key: &JobKey, has_waiters: bool) -> JobState {
        match key {
            _ if has_waiters => JobState::Demanded,
            JobKey::Lookup(..) => JobState::Refresh,
            _ => JobState::Prefetch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Roots;

    fn name(n: u8) -> JobKey {
        JobKey::Lookup(RootId(0), 0, Box::new([n]), OpenMode::Open)
    }

    fn job(n: u8) -> (JobKey, Origin) {
        (name(n), Origin::of(&name(n), &Roots::default()))
    }

    fn new(token: u64) -> Option<Waiter> {
        Some(Waiter::new(token))
    }

    fn started(jobs: &mut Jobs) -> Vec<JobKey> {
        std::iter::from_fn(|| start(jobs).map(|(_, job)| job.key.clone())).collect()
    }

    fn start(jobs: &mut Jobs) -> Option<(u64, &Job)> {
        let now = Startable {
            shares: Shares::new(1, 0, &[]),
            refreshes: true,
        };
        jobs.start(&now, |_| true)
    }

    #[test]
    fn demanded_work_goes_first_when_prefetches_are_older() {
        let mut jobs = Jobs::default();
        jobs.submit(job(1), None, None, 9);
        jobs.submit(job(2), None, new(7), 9);
        assert_eq!(started(&mut jobs), [name(2), name(1)]);
    }

    #[test]
    fn prefetch_becomes_demanded_when_a_waiter_joins_it() {
        let mut jobs = Jobs::default();
        jobs.submit(job(1), None, None, 9);
        jobs.submit(job(2), None, None, 9);
        assert_eq!(jobs.submit(job(2), None, new(7), 9), Submitted::Joined);
        assert_eq!(started(&mut jobs), [name(2), name(1)]);
    }

    #[test]
    fn oldest_prefetch_is_dropped_when_the_queue_is_full() {
        let mut jobs = Jobs::default();
        jobs.submit(job(1), None, None, 2);
        jobs.submit(job(2), None, None, 2);
        assert_eq!(jobs.submit(job(3), None, None, 2), Submitted::Full);
        assert_eq!(jobs.submit(job(4), None, new(1), 2), Submitted::Displaced);
        assert_eq!(jobs.submit(job(5), None, new(1), 2), Submitted::Displaced);
        assert_eq!(jobs.submit(job(6), None, new(1), 2), Submitted::Full);
        assert_eq!(started(&mut jobs), [name(4), name(5)]);
    }

    #[test]
    fn admitted_request_stays_queued_when_the_queue_is_full() {
        let mut jobs = Jobs::default();
        jobs.submit(job(1), None, new(1), 2);
        jobs.submit(job(2), None, new(1), 2);
        assert_eq!(jobs.submit(job(3), None, new(1), 2), Submitted::Full);
        let admitted = Some(Waiter {
            token: 1,
            admitted: true,
        });
        assert_eq!(jobs.submit(job(3), None, admitted, 2), Submitted::Queued);
        assert_eq!(jobs.submit(job(4), None, new(1), 2), Submitted::Full);
        assert_eq!(started(&mut jobs), [name(1), name(2), name(3)]);
    }

    #[test]
    fn departed_waiters_are_forgotten_when_their_helper_hangs() {
        let mut jobs = Jobs::default();
        jobs.submit(job(1), None, new(0), 1);
        let id = start(&mut jobs).unwrap().0;
        for waiter in 1..1000 {
            assert_eq!(jobs.submit(job(1), None, new(waiter), 1), Submitted::Joined);
            jobs.leave(waiter);
        }
        assert_eq!(jobs.running(id).unwrap().waiters, [0]);
        assert_eq!(jobs.waiting.len(), 1);
        jobs.leave(0);
        let unwanted = jobs.finish(id).unwrap();
        assert!(unwanted.waiters.is_empty() && jobs.waiting.is_empty() && jobs.by_key.is_empty());
    }

    #[test]
    fn queued_job_frees_its_slot_when_its_last_waiter_leaves() {
        let mut jobs = Jobs::default();
        jobs.submit(job(1), None, new(1), 1);
        jobs.submit(job(1), None, new(2), 1);
        jobs.leave(1);
        assert_eq!(jobs.submit(job(2), None, new(3), 1), Submitted::Full);
        jobs.leave(2);
        assert_eq!(jobs.submit(job(2), None, new(3), 1), Submitted::Queued);
        assert_eq!(started(&mut jobs), [name(2)]);
    }

    #[test]
    fn leaving_waiter_cancels_its_most_recent_job() {
        let mut jobs = Jobs::default();
        jobs.submit(job(1), None, new(1), 9);
        let first = start(&mut jobs).unwrap().0;
        jobs.submit(job(2), None, new(1), 9);
        jobs.finish(first);
        jobs.leave(1);
        assert_eq!(jobs.queued(), 0);
    }

    #[test]
    fn job_is_first_again_when_its_helper_dies() {
        let mut jobs = Jobs::default();
        jobs.submit(job(1), None, new(1), 9);
        jobs.submit(job(2), None, new(1), 9);
        let id = start(&mut jobs).unwrap().0;
        assert_eq!(jobs.requeue_front(id), 1);
        assert_eq!(started(&mut jobs), [name(1), name(2)]);
    }
}
