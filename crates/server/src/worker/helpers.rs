//! The worker's side of helper processes: requests them from the master, passes them jobs, and
//! resumes the connections that waited for an answer.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use headway_debox::Call;
use headway_event::{Interest, Token};
use headway_files::{Done, Failure, HelperSlot, OpenFile, Outcome, PoolStatistics, SlotState};

use super::request_handling::Resume;
use super::small_file::LoadedContent;
use super::{Disposition, HELPER, Worker};
use crate::config::SendMethod;
use crate::connection::{Connection, Phase};
use crate::control::FromWorker;
use crate::metrics::Counters;

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
                let copy = content.map(LoadedContent::Bytes);
                let entry = self
                    .lookup
                    .insert_resolved(root, &path, answer, self.now_ms);
                self.resume_lookups(&waiters, || Resume::Entry(entry.clone(), copy.clone()));
            }
            Outcome::Touched { root, path } => {
                let entry =
                    self.lookup
                        .reopen(root, &path, self.now_ms, &self.tracer, &mut self.counters);
                self.resume_lookups(&waiters, || Resume::Entry(entry.clone(), None));
            }
            Outcome::Listed { root, path, answer } => {
                let answer = self.lookup.insert_listing(root, &path, answer, self.now_ms);
                self.resume_lookups(&waiters, || match &answer {
                    Ok(page) => Resume::Listing(page.clone()),
                    Err(failure) => Resume::Failed(*failure),
                });
            }
            Outcome::ReadIn { result, .. } => {
                for waiter in waiters {
                    self.resume_after_read_in(Token(waiter), result);
                }
            }
            Outcome::Read { content, .. } => {
                for waiter in waiters {
                    self.resume_with_copy(Token(waiter), &content);
                }
            }
            Outcome::Fetched { content, .. } => {
                for waiter in waiters {
                    self.resume_with_content(Token(waiter), &content);
                }
            }
            Outcome::Custom { answer } => {
                for waiter in waiters {
                    self.wake_application(Token(waiter), &answer);
                }
            }
            Outcome::Spooled { file } => {
                for waiter in waiters {
                    self.on_spool_written(waiter, &file);
                }
            }
        }
    }

    fn resume_lookups(&mut self, waiters: &[u64], resume: impl Fn() -> Resume) {
        for &waiter in waiters {
            let Some(slot) = self.connections.find(Token(waiter)) else {
                continue;
            };
            self.with_connection(slot, |worker, connection| match connection.phase {
                Phase::Lookup => worker.resume(connection, resume()),
                _ => Disposition::Keep,
            });
        }
    }

    fn resume_after_read_in(&mut self, waiter: Token, result: Result<(), Failure>) {
        let Some(slot) = self.connections.find(waiter) else {
            return;
        };
        self.with_connection(slot, |worker, connection| {
            let entry = match &connection.phase {
                Phase::SmallFile(entry) => Some(entry.clone()),
                Phase::Chunk => None,
                _ => return Disposition::Keep,
            };
            match (entry, result) {
                (Some(entry), Ok(())) => worker.resume(connection, Resume::Entry(entry, None)),
                (Some(_), Err(failure)) => worker.resume(connection, Resume::Failed(failure)),
                (None, Ok(())) => {
                    worker.record_recent_use(connection);
                    worker.continue_sending(connection)
                }
                (None, Err(failure)) => worker.chunk_failed(connection, failure),
            }
        });
    }

    /// Records that the requested chunk was read in, where recent use counts as residency.
    fn record_recent_use(&mut self, connection: &Connection) {
        if self.config.send == SendMethod::SendfileRecent
            && let Some(file) = connection.outgoing.file()
        {
            self.recent.insert(file, connection.requested_chunk.0, ());
            while self.recent.pop_excess().is_some() {}
        }
    }

    /// Resumes a connection with data that a helper has copied.
    fn resume_with_copy(&mut self, waiter: Token, copy: &Result<Rc<OpenFile>, Failure>) {
        let Some(slot) = self.connections.find(waiter) else {
            return;
        };
        self.with_connection(slot, |worker, connection| {
            let entry = match &connection.phase {
                Phase::SmallFile(entry) => Some(entry.clone()),
                Phase::Chunk => None,
                Phase::Exchange(_) => return worker.on_spool_read(connection, copy),
                _ => return Disposition::Keep,
            };
            match (entry, copy) {
                (Some(entry), Ok(copy)) => {
                    let copied = LoadedContent::File(copy.clone());
                    worker.resume(connection, Resume::Entry(entry, Some(copied)))
                }
                (Some(_), Err(failure)) => worker.resume(connection, Resume::Failed(*failure)),
                (None, Ok(copy)) => worker.send_copy(connection, copy),
                (None, Err(failure)) => worker.chunk_failed(connection, *failure),
            }
        });
    }

    /// Resumes a request with the content of a small file.
    fn resume_with_content(&mut self, waiter: Token, content: &Result<Rc<[u8]>, Failure>) {
        let Some(slot) = self.connections.find(waiter) else {
            return;
        };
        self.with_connection(slot, |worker, connection| {
            let Phase::SmallFile(entry) = &connection.phase else {
                return Disposition::Keep;
            };
            let resume = match content {
                Ok(content) => {
                    Resume::Entry(entry.clone(), Some(LoadedContent::Bytes(content.clone())))
                }
                Err(failure) => Resume::Failed(*failure),
            };
            worker.resume(connection, resume)
        });
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
