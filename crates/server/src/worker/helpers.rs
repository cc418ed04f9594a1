//! The worker's side of helper processes: requests them from the master, passes them jobs, and
//! resumes the connections that waited for an answer.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use headway_event::{Interest, Token};
use headway_files::{Done, Failure, HelperSlot, OpenFile, Outcome, PoolStatistics, SlotState};

use super::files::StaticFiles;
use super::files::small_file::LoadedContent;
use super::files::static_file::LookedUp;
use super::{Disposition, HELPER, Worker};
use crate::calls::Call;
use crate::connection::{Connection, Phase};
use crate::control::FromWorker;
use crate::metrics::Counters;
use crate::request::{Entry, Request};

/// The token slot of the io_uring instance, beside those of helpers.
pub(super) const RING_SLOT: u32 = u32::MAX;

/// Requested helpers that have not arrived after this time are requested again.
const HELPER_REQUEST_TIMEOUT_MS: u64 = 2_000;

/// The most rounds of jobs of the io_uring instance in one iteration.
const RING_PASSES_MAX: usize = 8;

/// What the worker has requested from the master, and what it has told the operator.
#[derive(Default)]
pub(super) struct HelperRequests {
    /// Helpers requested that have not arrived.
    pub requested: usize,
    /// When they were requested.
    pub requested_ms: u64,
    abandoned_reported: u64,
    /// The answers of one wakeup; kept for its memory.
    done: Vec<Done>,
}

impl HelperRequests {
    /// When a request is repeated.
    pub(super) fn next_ms(&self) -> Option<u64> {
        (self.requested > 0).then_some(self.requested_ms + HELPER_REQUEST_TIMEOUT_MS)
    }
}

impl Worker {
    pub(super) fn attach_helper(&mut self, socket: OwnedFd, pid: u32) {
        let slot = self.context.pool.attach(socket, pid);
        let token = Token::new(HELPER, slot.0, 0);
        if let Err(error) =
            self.context
                .events
                .add(self.context.pool.socket(slot), token, Interest::READ)
        {
            self.context.pool.detach(slot);
            self.context
                .notice(format!("cannot watch helper {pid}: {error}"));
        }
    }

    /// Handles the answers of a helper, or its death.
    pub(super) fn on_helper(&mut self, index: u32) {
        if index == RING_SLOT {
            return self.on_ring();
        }
        let slot = HelperSlot(index);
        let now_ms = self.context.now_ms;
        let mut done = std::mem::take(&mut self.helpers.done);
        let state = self.context.tracer.call(Call::HelperReceive, || {
            self.context.pool.on_ready(slot, now_ms, &mut done)
        });
        if let SlotState::Dead = state {
            self.detach_helper(slot);
        }
        for one in done.drain(..) {
            self.deliver_answer(one);
        }
        self.helpers.done = done;
        self.report_abandoned_jobs();
    }

    /// Handles completions of the io_uring instance.
    fn on_ring(&mut self) {
        let mut done = std::mem::take(&mut self.helpers.done);
        self.context
            .tracer
            .call(Call::HelperReceive, || self.context.pool.on_ring(&mut done));
        for one in done.drain(..) {
            self.deliver_answer(one);
        }
        self.helpers.done = done;
    }

    /// Reports jobs that were abandoned because every helper died on them: the first, second,
    /// fourth and so on.
    fn report_abandoned_jobs(&mut self) {
        let given_up = self.context.pool.statistics().given_up;
        if given_up > self.helpers.abandoned_reported && given_up.is_power_of_two() {
            self.context.notice(format!(
                "several helpers died on the same job, so it was answered with 503 ({given_up} such jobs so \
                 far); check dmesg, memory limits and the disk"
            ));
        }
        self.helpers.abandoned_reported = given_up;
    }

    fn detach_helper(&mut self, slot: HelperSlot) {
        // The descriptor number becomes free, so select and poll must forget it first.
        let _ = self.context.events.remove(self.context.pool.socket(slot));
        self.context.pool.detach(slot);
    }

    /// Passes queued jobs to helpers, ends surplus helpers and requests missing ones. Runs once per
    /// iteration.
    pub(super) fn maintain_helpers(&mut self) {
        let now_ms = self.context.now_ms;
        self.context.submit_prefetches();
        self.flush_jobs();
        // A job of the io_uring instance can be done at once, and lead to another one.
        for _ in 0..RING_PASSES_MAX {
            if !self.context.pool.has_finished() {
                break;
            }
            self.on_ring();
            self.flush_jobs();
        }
        while let Some(slot) = self.context.pool.surplus(now_ms) {
            self.detach_helper(slot);
        }
        if self.helpers.requested > 0
            && now_ms >= self.helpers.requested_ms + HELPER_REQUEST_TIMEOUT_MS
        {
            self.helpers.requested = 0;
        }
        let wanted = self.context.pool.wanted(now_ms);
        let coming = self.context.pool.statistics().helpers as usize + self.helpers.requested;
        if wanted > coming {
            self.request_helpers(wanted - coming);
        }
    }

    /// Passes queued jobs to idle helpers.
    fn flush_jobs(&mut self) {
        let (pool, now_ms) = (&mut self.context.pool, self.context.now_ms);
        match pool.has_work() {
            true => self
                .context
                .tracer
                .call(Call::HelperSend, || pool.flush(now_ms)),
            false => pool.flush(now_ms),
        }
    }

    fn request_helpers(&mut self, count: usize) {
        let message = FromWorker::WantHelpers {
            count: count as u32,
        };
        let sent = self.context.tracer.call(Call::ControlSend, || {
            self.context.control.try_send(&message, &[])
        });
        if let Ok(true) = sent {
            self.helpers.requested += count;
            self.helpers.requested_ms = self.context.now_ms;
        }
    }

    /// Delivers a helper's answer to the connections that wait for it.
    fn deliver_answer(&mut self, done: Done) {
        let (waiters, now_ms) = (done.waiters, self.context.now_ms);
        let lookup = &mut self.files.lookup;
        match done.outcome {
            Outcome::Resolved {
                root,
                path,
                answer,
                content,
            } => {
                let content = content.map(LoadedContent::Bytes);
                let entry = lookup.insert_resolved(root, &path, answer, now_ms);
                self.deliver_entry(&waiters, &entry, content.as_ref());
            }
            Outcome::Touched { root, path } => {
                let context = &mut self.context;
                let entry = lookup.reopen(root, &path, context.lookup());
                self.deliver_entry(&waiters, &entry, None);
            }
            Outcome::Listed { root, path, answer } => {
                let answer = lookup.insert_listing(root, &path, answer, now_ms);
                self.for_each_waiter(&waiters, |worker, connection, phase| match phase {
                    Phase::Listing(request) => {
                        Ok(worker.deliver_listing(connection, request, &answer))
                    }
                    other => Err(other),
                });
            }
            Outcome::ReadIn { result, .. } => {
                self.for_each_waiter(&waiters, |worker, connection, phase| {
                    worker.deliver_read_in(connection, phase, result)
                });
            }
            Outcome::Read { content, .. } => {
                self.for_each_waiter(&waiters, |worker, connection, phase| {
                    worker.deliver_copy(connection, phase, &content)
                });
            }
            Outcome::Fetched { content, .. } => {
                let content = content.map(LoadedContent::Bytes);
                self.for_each_waiter(&waiters, |worker, connection, phase| {
                    worker.deliver_content(connection, phase, content.as_ref().map(Some))
                });
            }
            Outcome::Custom { answer } => {
                self.for_each_waiter(&waiters, |worker, connection, phase| match phase {
                    Phase::ApplicationJob(request, progress) => {
                        Ok(worker.resume(connection, |worker, connection, _| {
                            let (applications, mut turn) = worker.applications(connection);
                            applications.resume_after_job(&mut turn, request, *progress, &answer)
                        }))
                    }
                    other => Err(other),
                });
            }
            Outcome::Spooled { file } => {
                for waiter in waiters {
                    self.gateway
                        .on_spool_written(&mut self.context, waiter, &file);
                }
            }
        }
    }

    /// Runs a step for each connection that still waits. The step takes the phase, or returns one
    /// that does not wait for this answer.
    fn for_each_waiter(
        &mut self,
        waiters: &[u64],
        step: impl Fn(&mut Worker, &mut Connection, Phase) -> Result<Disposition, Phase>,
    ) {
        for &waiter in waiters {
            let Some(slot) = self.context.connections.find(Token(waiter)) else {
                continue;
            };
            self.with_connection(slot, |worker, connection| {
                let phase = connection.take_phase();
                step(worker, connection, phase).unwrap_or_else(|phase| {
                    connection.phase = phase;
                    Disposition::Keep
                })
            });
        }
    }

    fn deliver_entry(
        &mut self,
        waiters: &[u64],
        entry: &Rc<Entry>,
        content: Option<&LoadedContent>,
    ) {
        self.for_each_waiter(waiters, |worker, connection, phase| match phase {
            Phase::Lookup(request, wanted) => {
                let found = LookedUp {
                    entry: entry.clone(),
                    content: content.cloned(),
                };
                Ok(worker.resume_lookup(connection, request, wanted, found))
            }
            other => Err(other),
        });
    }

    fn deliver_listing(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
        answer: &Result<Rc<OpenFile>, Failure>,
    ) -> Disposition {
        self.resume(connection, |worker, connection, _| match answer {
            Ok(page) => {
                StaticFiles::send_listing(&mut worker.context, connection, request, page.clone())
            }
            Err(failure) => worker.context.send_failure(connection, request, *failure),
        })
    }

    /// The file or chunk that a connection waits for is in the page cache now.
    fn deliver_read_in(
        &mut self,
        connection: &mut Connection,
        phase: Phase,
        result: Result<(), Failure>,
    ) -> Result<Disposition, Phase> {
        match (phase, result) {
            (phase @ Phase::SmallFile(..), result) => {
                self.deliver_content(connection, phase, result.as_ref().map(|()| None))
            }
            (Phase::Chunk(request), Ok(())) => {
                self.context.note_chunk_read(connection, &request);
                let next = self.context.continue_sending(connection, request);
                Ok(self.advance(connection, next))
            }
            (Phase::Chunk(request), Err(failure)) => {
                let next = self.context.chunk_failed(connection, request, failure);
                Ok(self.advance(connection, next))
            }
            (other, _) => Err(other),
        }
    }

    /// A helper has copied what a connection waits for.
    fn deliver_copy(
        &mut self,
        connection: &mut Connection,
        phase: Phase,
        copy: &Result<Rc<OpenFile>, Failure>,
    ) -> Result<Disposition, Phase> {
        match (phase, copy) {
            (phase @ Phase::SmallFile(..), copy) => {
                let content = copy.clone().map(LoadedContent::File);
                self.deliver_content(connection, phase, content.as_ref().map(Some))
            }
            (Phase::Chunk(request), Ok(copy)) => {
                let next = self.context.send_copy(connection, request, copy);
                Ok(self.advance(connection, next))
            }
            (Phase::Chunk(request), Err(failure)) => {
                let next = self.context.chunk_failed(connection, request, *failure);
                Ok(self.advance(connection, next))
            }
            (phase @ Phase::Exchange(_), copy) => {
                connection.phase = phase;
                let next = self
                    .gateway
                    .on_spool_read(&mut self.context, connection, copy);
                Ok(self.advance(connection, next))
            }
            (other, _) => Err(other),
        }
    }

    /// Continues a request with a small file: in the page cache, or with its content.
    fn deliver_content(
        &mut self,
        connection: &mut Connection,
        phase: Phase,
        content: Result<Option<&LoadedContent>, &Failure>,
    ) -> Result<Disposition, Phase> {
        let (request, entry, wanted) = match phase {
            Phase::SmallFile(request, entry, wanted) => (request, entry, wanted),
            other => return Err(other),
        };
        Ok(match content {
            Ok(content) => {
                let content = content.cloned();
                let found = LookedUp { entry, content };
                self.resume_lookup(connection, request, wanted, found)
            }
            Err(failure) => self.resume(connection, |worker, connection, _| {
                worker.context.send_failure(connection, request, *failure)
            }),
        })
    }
}

/// Copies the pool's statistics into a snapshot.
pub(super) fn gauges(pool: &PoolStatistics, counters: &mut Counters) {
    counters.helpers = pool.helpers;
    counters.helpers_busy = pool.busy;
    counters.helper_queue_length = pool.queue;
    counters.helper_queue_length_max = pool.queue_peak;
    counters.helper_deaths = pool.deaths;
    counters.helper_jobs_done = pool.service_us.count;
    counters.helper_jobs_io_uring = pool.ring_jobs;
    counters.helper_jobs_lookup = pool.resolves;
    counters.helper_jobs_read = pool.reads_in;
    counters.helper_jobs_prefetch = pool.prefetches;
    counters.helper_jobs_fetch = pool.fetches;
    counters.helper_contents_returned = pool.contents;
    counters.helper_jobs_copy = pool.reads;
    counters.helper_jobs_listing = pool.lists;
    counters.helper_jobs_custom = pool.custom_jobs;
    counters.helper_jobs_coalesced = pool.coalesced;
    counters.helper_jobs_retried = pool.retried;
    counters.helper_jobs_abandoned = pool.given_up;
    counters.helper_jobs_rejected = pool.full;
    counters.deferred_closes = pool.deferred_closes;
    counters.helper_queue_length_at_submit = (&pool.queue_found).into();
    counters.helper_wait_us = (&pool.queue_us).into();
    counters.helper_service_us = (&pool.service_us).into();
}
