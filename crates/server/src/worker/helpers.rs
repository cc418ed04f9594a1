//! The worker's side of helper processes: requests them from the master, passes them jobs and takes
//! their results. `deliver` says what a result is to the request that waits for it.
//!
//! Any stage may submit a job to the pool, which is a part of the context.

use std::os::fd::OwnedFd;

use headway_config::ErrorLevel;
use headway_control::FromWorker;
use headway_event::{Interest, Token};
use headway_files::{Done, HelperSlot, PoolStatistics, SlotState};
use headway_metrics::Counters;
use headway_metrics::calls::Call;

use super::HELPER;
use super::context::LoopContext;

/// The token slot of the io_uring instance, beside those of helpers.
pub(super) const RING_SLOT: u32 = u32::MAX;

/// Requested helpers that have not arrived after this time are requested again.
const HELPER_REQUEST_TIMEOUT_MS: u64 = 2_000;

/// The same where the socket of a helper was lost, because descriptors have run out.
const HELPER_LOST_PAUSE_MS: u64 = 100;

/// The most rounds of jobs of the io_uring instance in one iteration.
pub(super) const RING_PASSES_MAX: usize = 8;

/// What the worker has requested from the master, and what it has told the operator.
#[derive(Default)]
pub(super) struct Helpers {
    /// Helpers requested that have not arrived.
    requested: usize,
    /// When the request is repeated.
    repeat_ms: u64,
    abandoned_reported: u64,
    /// The vector of results of the last wakeup, whose memory is used again.
    pub results: Vec<Done>,
}

impl Helpers {
    /// When a request is repeated.
    pub(super) fn next_ms(&self) -> Option<u64> {
        (self.requested > 0).then_some(self.repeat_ms)
    }

    /// A helper has arrived without its socket, because this process has no free descriptor. So
    /// descriptors are freed, and the helper is soon requested again.
    pub(super) fn lost(&mut self, context: &mut LoopContext) {
        context.evict_idle = true;
        context.evict_files = true;
        self.repeat_ms = self.repeat_ms.min(context.now_ms + HELPER_LOST_PAUSE_MS);
    }

    /// A helper has arrived.
    pub(super) fn attach(&mut self, context: &mut LoopContext, socket: OwnedFd, pid: u32) {
        self.requested = self.requested.saturating_sub(1);
        let slot = context.pool.attach(socket, pid);
        let token = Token::new(HELPER, slot.0, 0);
        let watched = context
            .events
            .add(context.pool.socket(slot), token, Interest::READ);
        if let Err(error) = watched {
            context.pool.detach(slot);
            context.notice(
                ErrorLevel::Error,
                format!("cannot watch helper {pid}: {error}"),
            );
        }
    }

    /// Receives the results of a helper or of the io_uring instance, or notices the death of a
    /// helper.
    pub(super) fn receive(&mut self, context: &mut LoopContext, index: u32) -> Vec<Done> {
        let mut results = std::mem::take(&mut self.results);
        let (pool, now_ms) = (&mut context.pool, context.now_ms);
        if index == RING_SLOT {
            context
                .tracer
                .call(Call::HelperReceive, || pool.on_ring(&mut results));
            return results;
        }
        let slot = HelperSlot(index);
        let state = context.tracer.call(Call::HelperReceive, || {
            pool.on_ready(slot, now_ms, &mut results)
        });
        if let SlotState::Dead = state {
            Helpers::detach(context, slot);
        }
        let given_up = context.pool.statistics().given_up;
        if given_up > self.abandoned_reported {
            self.report_abandoned_jobs(context, given_up);
        }
        results
    }

    /// Reports jobs that were abandoned because every helper died on them: the first, second,
    /// fourth and so on.
    fn report_abandoned_jobs(&mut self, context: &LoopContext, given_up: u64) {
        if given_up.is_power_of_two() {
            context.notice(ErrorLevel::Error, format!(
                "several helpers died on the same job, so it was answered with 503 ({given_up} such jobs so \
                 far); check dmesg, memory limits and the disk"
            ));
        }
        self.abandoned_reported = given_up;
    }

    fn detach(context: &mut LoopContext, slot: HelperSlot) {
        // The descriptor number becomes free, so select and poll must forget it first.
        let _ = context.events.remove(context.pool.socket(slot));
        context.pool.detach(slot);
    }

    /// Ends surplus helpers and requests missing ones. Runs once per iteration.
    pub(super) fn maintain(&mut self, context: &mut LoopContext) {
        let now_ms = context.now_ms;
        while let Some(slot) = context.pool.surplus(now_ms) {
            Helpers::detach(context, slot);
        }
        if self.next_ms().is_some_and(|due_ms| now_ms >= due_ms) {
            self.requested = 0;
        }
        let wanted = context.pool.wanted(now_ms);
        let coming = context.pool.statistics().helpers as usize + self.requested;
        if wanted > coming {
            self.request(context, wanted - coming);
        }
    }

    fn request(&mut self, context: &LoopContext, count: usize) {
        let message = FromWorker::WantHelpers {
            count: count as u32,
        };
        // If the channel is full, the request is repeated as one is that was lost.
        let _ = context.tracer.call(Call::ControlSend, || {
            context.control.try_send(&message, &[])
        });
        // One that was lost is not waited for longer because another one is requested.
        if self.requested == 0 {
            self.repeat_ms = context.now_ms + HELPER_REQUEST_TIMEOUT_MS;
        }
        self.requested += count;
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
    counters.helper_jobs_lookup = pool.lookups;
    counters.helper_jobs_refresh = pool.refreshes;
    counters.helper_jobs_read = pool.reads_in;
    counters.helper_jobs_prefetch = pool.prefetches;
    counters.helper_jobs_fetch = pool.fetches;
    counters.helper_contents_returned = pool.contents;
    counters.helper_jobs_copy = pool.copies;
    counters.helper_jobs_listing = pool.listings;
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
