//! The worker's side of helper processes: requests them from the master, passes them jobs, and
//! resumes the connections that waited for an answer.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use headway_debox::Call;
use headway_event::{Interest, Token};
use headway_files::{Done, Failure, HelperSlot, OpenFile, Outcome, PoolStatistics, SlotState};

use super::small_file::LoadedContent;
use super::static_file::LookedUp;
use super::{Disposition, HELPER, Worker};
use crate::config::SendMethod;
use crate::connection::{Connection, Phase};
use crate::control::FromWorker;
use crate::metrics::Counters;
use crate::request::{Entry, Request};

/// The token slot of the io_uring instance, beside those of helpers.
pub(super) const RING_SLOT: u32 = u32::MAX;

/// Requested helpers that have not arrived after this time are requested again.
pub(super) const HELPER_REQUEST_TIMEOUT_MS: u64 = 2_000;

impl Worker {
    pub(super) fn attach_helper(&mut self, socket: OwnedFd, pid: u32) {
        let slot = self.pool.attach(socket, pid);
        let token = Token::new(HELPER, slot.0, 0);
        if let Err(error) = self
            .events
            .add(self.pool.socket(slot), token, Interest::READ)
        {
            self.pool.detach(slot);
            self.notice(format!("cannot watch helper {pid}: {error}"));
        }
    }

    /// Handles the answers of a helper, or its death.
    pub(super) fn on_helper(&mut self, index: u32) {
        if index == RING_SLOT {
            return self.on_ring();
        }
        let slot = HelperSlot(index);
        let now_ms = self.now_ms;
        let mut done = std::mem::take(&mut self.done);
        let state = self.tracer.call(Call::HelperReceive, || {
            self.pool.on_ready(slot, now_ms, &mut done)
        });
        if let SlotState::Dead = state {
            self.detach_helper(slot);
        }
        for one in done.drain(..) {
            self.deliver_answer(one);
        }
        self.done = done;
        self.report_abandoned_jobs();
    }

    /// Handles completions of the io_uring instance.
    fn on_ring(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        self.tracer
            .call(Call::HelperReceive, || self.pool.on_ring(&mut done));
        for one in done.drain(..) {
            self.deliver_answer(one);
        }
        self.done = done;
    }

    /// Reports jobs that were abandoned because every helper died on them: the first, second,
    /// fourth and so on.
    fn report_abandoned_jobs(&mut self) {
        let given_up = self.pool.statistics().given_up;
        if given_up > self.abandoned_jobs_reported && given_up.is_power_of_two() {
            self.notice(format!(
                "several helpers died on the same job, so it was answered with 503 ({given_up} such jobs so \
                 far); check dmesg, memory limits and the disk"
            ));
        }
        self.abandoned_jobs_reported = given_up;
    }

    fn detach_helper(&mut self, slot: HelperSlot) {
        // The descriptor number becomes free, so select and poll must forget it first.
        let _ = self.events.remove(self.pool.socket(slot));
        self.pool.detach(slot);
    }

    /// Passes queued jobs to helpers, ends surplus helpers and requests missing ones. Runs once per
    /// iteration.
    pub(super) fn maintain_helpers(&mut self) {
        let now_ms = self.now_ms;
        for (file, range) in std::mem::take(&mut self.prefetch) {
            // A read-ahead is optional: drop it if the queue is full.
            let length = self.config.send.read_in_bytes(range.clone());
            let _ = self.pool.read_in(&file, range.start, length, None);
        }
        if self.pool.has_work() {
            self.tracer
                .call(Call::HelperSend, || self.pool.flush(now_ms));
        } else {
            self.pool.flush(now_ms);
        }
        if self.pool.has_finished() {
            self.on_ring();
        }
        while let Some(slot) = self.pool.surplus(now_ms) {
            self.detach_helper(slot);
        }
        if self.helpers_requested > 0
            && now_ms >= self.helpers_requested_ms + HELPER_REQUEST_TIMEOUT_MS
        {
            self.helpers_requested = 0;
        }
        let wanted = self.pool.wanted(now_ms);
        let coming = self.pool.statistics().helpers as usize + self.helpers_requested;
        if wanted > coming {
            self.request_helpers(wanted - coming);
        }
    }

    fn request_helpers(&mut self, count: usize) {
        let message = FromWorker::WantHelpers {
            count: count as u32,
        };
        let sent = self
            .tracer
            .call(Call::ControlSend, || self.control.try_send(&message, &[]));
        if let Ok(true) = sent {
            self.helpers_requested += count;
            self.helpers_requested_ms = self.now_ms;
        }
    }

    /// Delivers a helper's answer to the connections that wait for it.
    fn deliver_answer(&mut self, done: Done) {
        let waiters = done.waiters;
        match done.outcome {
            Outcome::Resolved {
                root,
                path,
                answer,
                content,
            } => {
                let content = content.map(LoadedContent::Bytes);
                let entry = self
                    .lookup
                    .insert_resolved(root, &path, answer, self.now_ms);
                self.deliver_entry(&waiters, &entry, content.as_ref());
            }
            Outcome::Touched { root, path } => {
                let entry =
                    self.lookup
                        .reopen(root, &path, self.now_ms, &self.tracer, &mut self.counters);
                self.deliver_entry(&waiters, &entry, None);
            }
            Outcome::Listed { root, path, answer } => {
                let answer = self.lookup.insert_listing(root, &path, answer, self.now_ms);
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
                        Ok(worker.deliver_job(connection, request, *progress, &answer))
                    }
                    other => Err(other),
                });
            }
            Outcome::Spooled { file } => {
                for waiter in waiters {
                    self.on_spool_written(waiter, &file);
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
            let Some(slot) = self.connections.find(Token(waiter)) else {
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
            Ok(page) => worker.send_listing(connection, request, page.clone()),
            Err(failure) => worker.send_failure(connection, request, *failure),
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
                self.record_recent_use(connection, &request);
                Ok(self.continue_sending(connection, request))
            }
            (Phase::Chunk(request), Err(failure)) => {
                Ok(self.chunk_failed(connection, request, failure))
            }
            (other, _) => Err(other),
        }
    }

    /// Records that the requested chunk was read in, where recent use counts as residency.
    fn record_recent_use(&mut self, connection: &Connection, request: &Request) {
        if self.config.send == SendMethod::SendfileRecent
            && let Some(file) = connection.outgoing.file()
        {
            self.recent.insert(file, request.requested_offset(), ());
            while self.recent.pop_excess().is_some() {}
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
            (Phase::Chunk(request), Ok(copy)) => Ok(self.send_copy(connection, request, copy)),
            (Phase::Chunk(request), Err(failure)) => {
                Ok(self.chunk_failed(connection, request, *failure))
            }
            (phase @ Phase::Exchange(_), copy) => {
                connection.phase = phase;
                Ok(self.on_spool_read(connection, copy))
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
                worker.send_failure(connection, request, *failure)
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
