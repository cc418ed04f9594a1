//! The worker's side of the helpers: asking the master for them, giving them work, and waking the
//! connections that waited for their answers.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use headway_debox::Call;
use headway_event::{Interest, Token};
use headway_files::{Done, Failure, HelperSlot, OpenFile, Outcome, PoolStatistics, SlotState};

use super::exchange::Given;
use super::small::Copied;
use super::{Fate, HELPER, Worker};
use crate::config::SendMethod;
use crate::connection::{Connection, Phase};
use crate::control::FromWorker;
use crate::tally::Counters;

/// The token's slot of the kernel's workers, beside those of helpers.
pub(super) const RING: u32 = u32::MAX;

/// When helpers that were asked for have not come for so long, ask again.
pub(super) const ASK_AGAIN_MS: u64 = 2_000;

impl Worker {
    pub(super) fn attach_helper(&mut self, socket: OwnedFd, pid: u32) {
        let slot = self.pool.attach(socket, pid);
        let token = Token::new(HELPER, slot.0, 0);
        if let Err(error) = self
            .events
            .add(self.pool.socket(slot), token, Interest::READ)
        {
            self.pool.detach(slot);
            self.notice(format!("watching helper {pid}: {error}"));
        }
    }

    /// Answers of one helper, or its death.
    pub(super) fn on_helper(&mut self, index: u32) {
        if index == RING {
            return self.on_ring();
        }
        let slot = HelperSlot(index);
        let now_ms = self.now_ms;
        let mut done = std::mem::take(&mut self.done);
        let state = self.tracer.call(Call::HelperReceive, || {
            self.pool.on_ready(slot, now_ms, &mut done)
        });
        if let SlotState::Dead = state {
            self.let_helper_go(slot);
        }
        for one in done.drain(..) {
            self.wake(one);
        }
        self.done = done;
        self.tell_given_up();
    }

    /// Answers of the kernel's workers.
    fn on_ring(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        self.tracer
            .call(Call::HelperReceive, || self.pool.on_ring(&mut done));
        for one in done.drain(..) {
            self.wake(one);
        }
        self.done = done;
    }

    /// A job that ends helper after helper is worth a person's look; the first, second, fourth … is
    /// told.
    fn tell_given_up(&mut self) {
        let given_up = self.pool.statistics().given_up;
        if given_up > self.given_up_told && given_up.is_power_of_two() {
            self.notice(format!(
                "helper after helper died on one job, so it was given up and answered 503 ({given_up} so \
                 far); see what ends them (dmesg, a memory limit, a bad disk)"
            ));
        }
        self.given_up_told = given_up;
    }

    fn let_helper_go(&mut self, slot: HelperSlot) {
        // The number of the descriptor is free from here on; select and poll must know.
        let _ = self.events.remove(self.pool.socket(slot));
        self.pool.detach(slot);
    }

    /// Queued work out, too many helpers away, too few asked for. Called once a turn.
    pub(super) fn tend_helpers(&mut self) {
        let now_ms = self.now_ms;
        for (file, range) in std::mem::take(&mut self.prefetch) {
            // A prefetch that finds the queue full is not worth a place in it.
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
            self.let_helper_go(slot);
        }
        if self.helpers_asked > 0 && now_ms >= self.helpers_asked_ms + ASK_AGAIN_MS {
            self.helpers_asked = 0;
        }
        let wanted = self.pool.wanted(now_ms);
        let coming = self.pool.statistics().helpers as usize + self.helpers_asked;
        if wanted > coming {
            self.ask_for_helpers(wanted - coming);
        }
    }

    fn ask_for_helpers(&mut self, count: usize) {
        let message = FromWorker::WantHelpers {
            count: count as u32,
        };
        let sent = self
            .tracer
            .call(Call::ControlSend, || self.control.try_send(&message, &[]));
        if let Ok(true) = sent {
            self.helpers_asked += count;
            self.helpers_asked_ms = self.now_ms;
        }
    }

    /// Brings a helper's answer to those who wait for it.
    fn wake(&mut self, done: Done) {
        let waiters = done.waiters;
        match done.outcome {
            Outcome::Resolved {
                root,
                path,
                answer,
                content,
            } => {
                let copy = content.map(Copied::Bytes);
                let entry = self.lookup.learn(root, &path, answer, self.now_ms);
                self.wake_names(&waiters, || Given::Entry(entry.clone(), copy.clone()));
            }
            Outcome::Touched { root, path } => {
                let entry =
                    self.lookup
                        .reopen(root, &path, self.now_ms, &self.tracer, &mut self.counters);
                self.wake_names(&waiters, || Given::Entry(entry.clone(), None));
            }
            Outcome::Listed { root, path, answer } => {
                let answer = self.lookup.learn_page(root, &path, answer, self.now_ms);
                self.wake_names(&waiters, || match &answer {
                    Ok(page) => Given::Listing(page.clone()),
                    Err(failure) => Given::Failed(*failure),
                });
            }
            Outcome::ReadIn { result, .. } => {
                for waiter in waiters {
                    self.wake_reader(Token(waiter), result);
                }
            }
            Outcome::Read { content, .. } => {
                for waiter in waiters {
                    self.wake_with_copy(Token(waiter), &content);
                }
            }
            Outcome::Fetched { content, .. } => {
                for waiter in waiters {
                    self.wake_with_content(Token(waiter), &content);
                }
            }
            Outcome::Errand { answer } => {
                for waiter in waiters {
                    self.wake_application(Token(waiter), &answer);
                }
            }
            Outcome::Spilled { file } => {
                for waiter in waiters {
                    self.wake_spiller(waiter, &file);
                }
            }
        }
    }

    fn wake_names(&mut self, waiters: &[u64], given: impl Fn() -> Given) {
        for &waiter in waiters {
            let Some(slot) = self.connections.find(Token(waiter)) else {
                continue;
            };
            self.step(slot, |worker, connection| match connection.phase {
                Phase::Name => worker.resume(connection, given()),
                _ => Fate::Keep,
            });
        }
    }

    fn wake_reader(&mut self, waiter: Token, result: Result<(), Failure>) {
        let Some(slot) = self.connections.find(waiter) else {
            return;
        };
        self.step(slot, |worker, connection| {
            let entry = match &connection.phase {
                Phase::Content(entry) => Some(entry.clone()),
                Phase::Window => None,
                _ => return Fate::Keep,
            };
            match (entry, result) {
                (Some(entry), Ok(())) => worker.resume(connection, Given::Entry(entry, None)),
                (Some(_), Err(failure)) => worker.resume(connection, Given::Failed(failure)),
                (None, Ok(())) => {
                    worker.note_recent(connection);
                    worker.continue_sending(connection)
                }
                (None, Err(failure)) => worker.unreadable(connection, failure),
            }
        });
    }

    /// A helper has read in the window that this connection asked for last: where recent use is
    /// taken for residency, that counts as use.
    fn note_recent(&mut self, connection: &Connection) {
        if self.config.send == SendMethod::SendfileRecent
            && let Some(file) = connection.outgoing.file()
        {
            self.recent.insert(file, connection.asked_window.0, ());
            while self.recent.surplus().is_some() {}
        }
    }

    /// A helper has copied what the loop could not read without waiting.
    fn wake_with_copy(&mut self, waiter: Token, copy: &Result<Rc<OpenFile>, Failure>) {
        let Some(slot) = self.connections.find(waiter) else {
            return;
        };
        self.step(slot, |worker, connection| {
            let entry = match &connection.phase {
                Phase::Content(entry) => Some(entry.clone()),
                Phase::Window => None,
                Phase::Exchange(_) => return worker.wake_restorer(connection, copy),
                _ => return Fate::Keep,
            };
            match (entry, copy) {
                (Some(entry), Ok(copy)) => {
                    let copied = Copied::File(copy.clone());
                    worker.resume(connection, Given::Entry(entry, Some(copied)))
                }
                (Some(_), Err(failure)) => worker.resume(connection, Given::Failed(*failure)),
                (None, Ok(copy)) => worker.send_copy(connection, copy),
                (None, Err(failure)) => worker.unreadable(connection, *failure),
            }
        });
    }

    /// A helper has read a small file.
    fn wake_with_content(&mut self, waiter: Token, content: &Result<Rc<[u8]>, Failure>) {
        let Some(slot) = self.connections.find(waiter) else {
            return;
        };
        self.step(slot, |worker, connection| {
            let Phase::Content(entry) = &connection.phase else {
                return Fate::Keep;
            };
            let given = match content {
                Ok(content) => Given::Entry(entry.clone(), Some(Copied::Bytes(content.clone()))),
                Err(failure) => Given::Failed(*failure),
            };
            worker.resume(connection, given)
        });
    }
}

/// The pool's own numbers, for a snapshot.
pub(super) fn gauges(pool: &PoolStatistics, counters: &mut Counters) {
    counters.helpers = pool.helpers;
    counters.helpers_busy = pool.busy;
    counters.helper_queue = pool.queue;
    counters.helper_queue_peak = pool.queue_peak;
    counters.helper_deaths = pool.deaths;
    counters.helper_jobs = pool.service_us.count;
    counters.helper_ring_jobs = pool.ring_jobs;
    counters.helper_resolves = pool.resolves;
    counters.helper_reads_in = pool.reads_in;
    counters.helper_prefetches = pool.prefetches;
    counters.helper_fetches = pool.fetches;
    counters.helper_contents = pool.contents;
    counters.helper_copies = pool.reads;
    counters.helper_lists = pool.lists;
    counters.helper_errands = pool.errands;
    counters.helper_coalesced = pool.coalesced;
    counters.helper_asked_again = pool.asked_again;
    counters.helper_given_up = pool.given_up;
    counters.helper_queue_full = pool.full;
    counters.retired = pool.retired;
    counters.helper_queue_found = (&pool.queue_found).into();
    counters.helper_queue_us = (&pool.queue_us).into();
    counters.helper_service_us = (&pool.service_us).into();
}
