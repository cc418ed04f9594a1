//! The worker's side of its helpers: a queue of jobs, and the helpers that run them.
//!
//! With [`Pool::use_ring`], the kernel's own workers (io_uring) replace helpers for everything
//! except listings and copies.
//!
//! What it does: joins equal jobs, gives them to idle helpers one at a time, receives the answers,
//! retries the job of a helper that died, decides how many helpers there should be, and sends
//! descriptors to be closed. What it refuses: to block (every call on a socket is `MSG_DONTWAIT`),
//! and to spawn: the worker requests helpers from the master and attaches them.
//!
//! In each iteration of its loop the worker calls, in this order, [`Pool::on_ready`] for each
//! readable helper socket, then the request stages (which submit jobs), then [`Pool::flush`],
//! [`Pool::surplus`] and [`Pool::wanted`].
//!
//! Sources: the Flash papers' helper processes; 2006 paper §3 for passing descriptors.

mod submit;
mod custom_job;
mod jobs;
mod kernel;
mod outcome;
mod ring;
mod schedule;
mod shares;
mod slot;
mod spool;
mod statistics;

pub use custom_job::CustomJob;
pub use jobs::Waiter;
pub use outcome::{Done, Outcome};
pub use spool::SpoolPiece;
pub use statistics::{Log2Histogram, PoolStatistics};

use crate::answer::Failure;
use crate::deferred_close::DeferredCloses;
use crate::protocol::{OpenMode, REPLY_BYTES_MAX, Reply, Request, decode_reply};
use crate::residency::PREFETCH_BYTES;
use crate::root::{RootId, Roots};
use headway_os::fd_passing::ReceiveError;
use jobs::{Job, JobKey, Jobs};
use outcome::{Arrived, Broken, failed};
use ring::{Finished, Ring};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use slot::{Sent, Slot, Work};
use spool::KeptPiece;
use std::rc::Rc;
use std::time::Duration;
use submit::HeldLookup;

/// How often a job is retried when its helper dies. A job that kills helpers must not kill all of
/// them, but a slow job must survive when helpers are killed many times per second.
const RETRIES_MAX: u32 = 15;

/// When this number of descriptors waits, or the oldest has waited for this number of ms, they leave
/// in a batch: after the jobs, and before them, since helpers may have jobs without end.
const CLOSE_AFTER_JOBS: (usize, u64) = (32, 50);
const CLOSE_BEFORE_JOBS: (usize, u64) = (crate::protocol::CLOSE_BATCH_MAX, 500);

/// Limits of the pool, and what its helpers do with files.
#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// Never fewer helpers.
    pub min: usize,
    /// Never more helpers, except for jobs of other directories and file systems than those which take
    /// them all: for these, up to half as many again.
    pub max: usize,
    /// Limit of jobs that wait for a helper, without those of admitted requests: see [`Waiter`].
    pub queue_max: usize,
    /// A helper beyond `min` that has been idle for this long is surplus.
    pub idle: Duration,
    /// When jobs have waited this long with every helper busy, one more helper is wanted.
    pub grow_after: Duration,
    /// What helpers do with names, unless [`Pool::submit_lookup_for`] says something else.
    pub want: OpenMode,
}

impl Default for PoolLimits {
    /// 1 to 16 helpers, 4096 jobs, 10 s idle, grow after 5 ms, files passed and read in.
    fn default() -> Self {
        let (idle, grow_after) = (Duration::from_secs(10), Duration::from_millis(5));
        PoolLimits {
            min: 1,
            max: 16,
            queue_max: 4096,
            idle,
            grow_after,
            want: OpenMode::OpenAndPrefetch(PREFETCH_BYTES),
        }
    }
}

/// The queue is full; nothing was queued. Answer the client with [`Failure::Overloaded`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the helper queue is full")]
pub struct Full;

/// An attached helper. Never reused, so a late event of a detached helper cannot be mistaken for
/// one of another helper.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HelperSlot(pub u32);

/// What [`Pool::on_ready`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotState {
    /// Keep the helper's socket registered.
    Alive,
    /// The helper has ended or broken its protocol: deregister its socket, then [`Pool::detach`].
    Dead,
}

/// The helpers of one worker.
///
/// ```
/// use std::rc::Rc;
/// use headway_files::{Answer, Outcome, Pool, PoolLimits, RootConfig, RootId, Roots, Waiter, helper_main};
///
/// let site = RootConfig { directory: "/proc/self".into(), index: vec![], siblings: false, dotfiles: false, symlinks: Default::default(), rules: vec![] };
/// let roots = Rc::new(Roots::open(&[site])?);
/// let mut pool = Pool::new(PoolLimits::default(), roots);
/// let (worker, helper) = headway_os::fd_passing::pair()?;
/// let thread = std::thread::spawn(|| helper_main(helper, &|directory| directory.path.clone()));
/// let slot = pool.attach(worker, std::process::id());
///
/// // The waiter is a number of the caller's, such as a connection.
/// pool.submit_lookup(RootId(0), b"no-such-file", Waiter::new(7))?;
/// pool.flush(0);
/// let mut done = Vec::new();
/// // A server does this when its event loop says that `pool.socket(slot)` is ready.
/// while done.is_empty() {
///     pool.on_ready(slot, 0, &mut done);
/// }
/// assert_eq!(done[0].waiters, [7]);
/// assert!(matches!(done[0].outcome, Outcome::LookedUp { answer: Answer::Failed(_), .. }));
/// drop(pool);
/// thread.join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Pool {
    limits: PoolLimits,
    roots: Rc<Roots>,
    deferred: DeferredCloses,
    /// The kernel's workers.
    ring: Option<Ring>,
    /// Finished jobs of the ring that were not reported yet.
    finished: Vec<Finished>,
    /// The most recently used last: work goes there first, so that surplus helpers stay idle.
    slots: Vec<Slot>,
    /// Buffer in which answers are received.
    buffer: Vec<u8>,
    next_slot: u32,
    /// Numbers of jobs that are like no other.
    spools: u64,
    /// Memory for what is spooled next.
    pieces: Vec<KeptPiece>,
    custom_jobs: u64,
    checked_copies: u64,
    jobs: Jobs,
    /// Lookups that wait until a helper has looked up the path of their root.
    held: Vec<HeldLookup>,
    /// Since when jobs have been waiting with every helper busy.
    waiting_since_ms: Option<u64>,
    /// Helpers can open only what is beneath the directories that roots led to when they started.
    are_confined: bool,
    /// The state of the jobs, and how many helpers were busy, when none might start: so a long queue is
    /// searched once.
    none_may_start: Option<(u64, usize)>,
    closes_waiting_since_ms: Option<u64>,
    statistics: PoolStatistics,
}

impl Pool {
    /// A pool without helpers; [`Pool::wanted`] says how many to attach.
    pub fn new(limits: PoolLimits, roots: Rc<Roots>) -> Pool {
        Pool {
            limits,
            roots,
            deferred: DeferredCloses::new(),
            ring: None,
            finished: Vec::new(),
            slots: Vec::new(),
            buffer: vec![0; REPLY_BYTES_MAX],
            next_slot: 0,
            spools: 0,
            pieces: Vec::new(),
            custom_jobs: 0,
            checked_copies: 0,
            jobs: Jobs::default(),
            held: Vec::new(),
            waiting_since_ms: None,
            are_confined: false,
            none_may_start: None,
            closes_waiting_since_ms: None,
            statistics: PoolStatistics::default(),
        }
    }

    /// Has helpers replaced when a root leads to another directory than at their start: they are confined.
    pub fn confine_helpers(&mut self) {
        self.are_confined = true;
    }

    /// The list whose descriptors this pool sends to be closed.
    pub fn deferred_closes(&self) -> DeferredCloses {
        self.deferred.clone()
    }

    /// Take over a helper: the worker's end of its socket, and its process for messages. Greets it
    /// with the roots. Register [`Pool::socket`] for reading.
    pub fn attach(&mut self, socket: OwnedFd, pid: u32) -> HelperSlot {
        let id = HelperSlot(self.next_slot);
        self.next_slot = self.next_slot.wrapping_add(1);
        let mut slot = Slot::new(id, socket, pid);
        slot.handshake(&self.roots);
        self.slots.insert(0, slot);
        // Another helper is wanted only if jobs still wait with this one.
        self.waiting_since_ms = None;
        self.gauges();
        id
    }

    /// The socket to register for `slot`.
    ///
    /// # Panics
    /// If `slot` is not attached.
    pub fn socket(&self, slot: HelperSlot) -> BorrowedFd<'_> {
        match self.slots.iter().find(|known| known.id == slot) {
            Some(known) => known.socket.as_fd(),
            None => panic!("helper {} is not attached", slot.0),
        }
    }

    /// The helper's process, as attached; `None` if it is not attached any more.
    pub fn pid(&self, slot: HelperSlot) -> Option<u32> {
        self.slots
            .iter()
            .find(|known| known.id == slot)
            .map(|known| known.pid)
    }

    /// Detaches a helper by closing its socket (deregister it first). Its job, if any, is retried.
    pub fn detach(&mut self, slot: HelperSlot) {
        let Some(position) = self.slots.iter().position(|known| known.id == slot) else {
            return;
        };
        let gone = self.slots.remove(position);
        match gone.work() {
            Some((Work::Job(id) | Work::Unsent(id), _)) => drop(self.jobs.requeue_front(id)),
            Some((Work::OpenRoot(asked), _)) => self.roots.ask_again(asked),
            _ => {}
        }
        self.pieces.truncate(self.slots.len());
        self.gauges();
    }

    /// Receives the answer of a readable helper and appends the result to `done`; never blocks. A
    /// helper answers each request once, so there is one answer at most; anything more is received
    /// when its socket is readable again.
    pub fn on_ready(&mut self, slot: HelperSlot, now_ms: u64, done: &mut Vec<Done>) -> SlotState {
        let Some(position) = self.slots.iter().position(|known| known.id == slot) else {
            return SlotState::Dead;
        };
        let received = self.take_answer(position, now_ms, done);
        if received.is_err() {
            self.reap(position, done);
        }
        self.gauges();
        match received {
            Ok(()) => SlotState::Alive,
            Err(Broken) => SlotState::Dead,
        }
    }

    /// Whether [`Pool::flush`] may have something to send: for a caller that counts system calls.
    pub fn has_work(&self) -> bool {
        let startable = self.jobs.queued() > 0 && !self.is_known_to_wait();
        let waiting = startable || !self.deferred.is_empty();
        let somebody = self.ring.is_some() || self.idle().is_some();
        let waiting = waiting || self.roots.wanted().is_some() || self.found_root().is_some();
        waiting && somebody || self.slots.iter().any(Slot::is_in_handshake)
    }

    /// Gives queued jobs to idle helpers and sends descriptors to be closed. Call it once per loop
    /// iteration, after the stages that submit jobs.
    pub fn flush(&mut self, now_ms: u64) {
        for slot in &mut self.slots {
            slot.handshake(&self.roots);
            slot.settle(now_ms);
        }
        self.start_in_ring();
        self.submit_found_roots();
        self.open_roots();
        self.send_deferred_closes(now_ms, CLOSE_BEFORE_JOBS);
        while self.start_next() {}
        self.send_deferred_closes(now_ms, CLOSE_AFTER_JOBS);
        if let Some(ring) = &mut self.ring {
            ring.submit(&mut self.finished);
        }
        let waits = self.roots.wanted().is_some() || self.may_start();
        self.waiting_since_ms = waits.then(|| self.waiting_since_ms.unwrap_or(now_ms));
        self.gauges();
    }

    /// The roots below which it works.
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// The version of a root now ([`Roots::version`]).
    pub fn root_version(&self, root: RootId) -> u32 {
        self.roots.version(root)
    }

    /// The counters so far.
    pub fn statistics(&self) -> &PoolStatistics {
        &self.statistics
    }

    /// Has idle helpers look up the roots whose paths the loop could not look up. Before other jobs: it is
    /// rare, and later answers depend on it.
    fn open_roots(&mut self) {
        while let Some((asked, path)) = self.roots.wanted() {
            let Some(position) = self.idle() else { return };
            self.slots[position].send_open_root(asked, path);
            self.roots.set_asked(asked);
        }
    }

    /// Sends descriptors to an idle helper. Our copies are closed before the order to
    /// close its own, so that the helper's is the last reference.
    fn send_deferred_closes(&mut self, now_ms: u64, (count, delay_ms): (usize, u64)) {
        if self.deferred.is_empty() {
            self.closes_waiting_since_ms = None;
            return;
        }
        let since = *self.closes_waiting_since_ms.get_or_insert(now_ms);
        let due = now_ms >= since.saturating_add(delay_ms);
        if self.deferred.len() < count && !due {
            return;
        }
        if self.ring.is_some() {
            return self.close_in_ring();
        }
        let Some(position) = self.idle() else { return };
        let batch = self.deferred.take(crate::protocol::CLOSE_BATCH_MAX);
        let files: Vec<_> = batch.iter().map(AsFd::as_fd).collect();
        match self.slots[position].send_deferred_closes(&files) {
            Sent::Sent => {
                self.statistics.deferred_closes += batch.len() as u64;
                drop(batch);
                self.slots[position].release();
            }
            Sent::Failed => self.deferred.put_back(batch),
        }
        self.closes_waiting_since_ms = if self.deferred.is_empty() {
            None
        } else {
            Some(now_ms)
        };
    }

    /// Take one answer, if there is one.
    fn take_answer(
        &mut self,
        position: usize,
        now_ms: u64,
        done: &mut Vec<Done>,
    ) -> Result<(), Broken> {
        let slot = &mut self.slots[position];
        let (length, descriptors) = match slot.receive(&mut self.buffer) {
            Ok(None) => return Ok(()),
            Ok(Some(received)) if received.is_end() => return Err(Broken),
            Ok(Some(received)) => (received.length, Some(received.descriptors)),
            // The bytes identify the job; the descriptors were lost because this process has none
            // free.
            Err(ReceiveError::DescriptorsLost { length }) => (length, None),
            Err(ReceiveError::TooLong | ReceiveError::Os(_)) => return Err(Broken),
        };
        let reply = decode_reply(&self.buffer[..length]).map_err(|_| Broken)?;
        let Some((work, started)) = slot.work() else {
            return Err(Broken);
        };
        match (work, &reply) {
            (Work::DeferClose, Reply::Closed { .. }) => {
                slot.set_idle(now_ms);
                return Ok(());
            }
            (Work::OpenRoot(asked), Reply::RootOpened { directory, .. }) => {
                slot.set_idle(now_ms);
                let opened = descriptors.and_then(|mut files| files.pop());
                let found = match (directory, opened) {
                    (Ok(meta), Some(opened)) => Ok((opened, *meta)),
                    _ => Err(Errno::IO),
                };
                self.roots.found_by_helper(asked, found, &self.deferred);
                self.submit_held(asked.root);
                return Ok(());
            }
            (Work::Job(id), reply) if reply.job() == id => slot.set_idle(now_ms),
            _ => return Err(Broken),
        }
        let Some(mut job) = self.jobs.finish(reply.job()) else {
            return Err(Broken);
        };
        // A helper that was given up may still be reading it.
        if let Some(piece) = job.piece.take().filter(|_| job.deaths == 0) {
            self.keep_piece(piece, now_ms);
        }
        let age = started.elapsed();
        self.statistics.service_us.record(micros(age));
        let outcome = match descriptors {
            Some(files) => Arrived {
                deferred: &self.deferred,
                roots: &self.roots,
                files,
            }
            .outcome(job.key, job.file, reply)?,
            None => failed(job.key, Failure::Exhausted),
        };
        self.statistics.contents += u64::from(outcome.has_contents());
        done.push(Done {
            outcome,
            waiters: job.waiters,
            age,
        });
        Ok(())
    }

    /// A helper has died. Its job is retried first in the queue, unless it has killed too many
    /// helpers.
    fn reap(&mut self, position: usize, done: &mut Vec<Done>) {
        let slot = &mut self.slots[position];
        if slot.is_dead() {
            return;
        }
        let work = slot.work();
        slot.die();
        self.statistics.deaths += 1;
        let (id, was_sent) = match work {
            Some((Work::Job(id), _)) => (id, true),
            Some((Work::Unsent(id), _)) => (id, false),
            Some((Work::OpenRoot(asked), _)) => return self.roots.ask_again(asked),
            _ => return,
        };
        let Some(once) = self.jobs.running(id).map(|job| job.key.is_once_only()) else {
            return;
        };
        // It is unknown whether a custom job was done, unless it was not sent.
        if !(once && was_sent) && self.jobs.requeue_front(id) <= RETRIES_MAX {
            self.statistics.retried += 1;
        } else if let Some(Job { key, waiters, .. }) = self.jobs.give_up(id) {
            self.statistics.given_up += 1;
            done.push(Done {
                outcome: failed(key, Failure::GivenUp),
                waiters,
                age: Duration::ZERO,
            });
        }
    }

    fn gauges(&mut self) {
        let statistics = &mut self.statistics;
        statistics.queue = (self.jobs.queued() + self.held.len()) as u64;
        statistics.queue_peak = statistics.queue_peak.max(statistics.queue);
        statistics.helpers = self.slots.iter().filter(|slot| !slot.is_dead()).count() as u64;
        statistics.busy = self
            .slots
            .iter()
            .filter(|slot| slot.work().is_some())
            .count() as u64
            + self.ring.as_ref().map_or(0, Ring::busy) as u64;
        statistics.closed_here = self.deferred.closed_here();
    }
}

fn request(job: u64, key: &JobKey) -> Request<'_> {
    match key {
        JobKey::Lookup(root, _, path, want) => Request::Lookup {
            job,
            root: *root,
            want: *want,
            path,
        },
        JobKey::List(root, _, path) => Request::List {
            job,
            root: *root,
            path,
        },
        JobKey::ReadIn(piece) => Request::ReadIn {
            job,
            offset: piece.offset,
            length: piece.length,
        },
        JobKey::Copy(piece) => Request::Copy {
            job,
            offset: piece.offset,
            length: piece.length,
        },
        JobKey::CopyChecked {
            sent,
            checksum,
            next,
            ..
        } => Request::CopyChecked {
            job,
            sent: *sent,
            checksum: *checksum,
            offset: next.offset,
            length: next.length,
        },
        JobKey::Fetch(piece) => Request::Fetch {
            job,
            // At most FETCH_BYTES_MAX.
            length: piece.length as u32,
        },
        JobKey::Spool {
            offset,
            length,
            directory,
            ..
        } => Request::Spool {
            job,
            offset: *offset,
            length: *length,
            directory,
        },
        JobKey::Custom { payload, .. } => Request::Custom { job, payload },
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
