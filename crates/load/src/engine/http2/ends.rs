//! How requests over HTTP/2 and their connections end.

use std::ops::Range;

use headway_latency::Outcome;
use rustix::io::Errno;

use super::super::core::Engine;
use super::super::dial::{DialError, outcome};
use super::super::response::Response;
use super::super::slot::Phase;
use super::carrier::State;
use super::frames;
use super::session::{Broken, StreamEnd};

/// Why a connection has failed.
pub(super) enum Loss {
    /// The server closed it.
    End,
    Failed(Errno),
    Tls(String),
    Broken(Broken),
    /// The kernel has no memory to poll it.
    Unpolled,
}

impl Engine<'_> {
    /// Records the requests whose streams have ended. The next requests of their slots are sent together.
    pub(super) fn end_streams(&mut self, at: u32) {
        self.carrier(at).is_corked = true;
        let mut ended = std::mem::take(&mut self.http2().ended);
        for (index, end) in ended.drain(..) {
            let is_processed = !matches!(end, StreamEnd::Unprocessed(_));
            if is_processed {
                self.slot(index).stream = None;
            }
            match end {
                StreamEnd::Whole { excess } => {
                    let outcome = self.outcome_of_whole(index, excess);
                    self.finish(index, outcome, true);
                }
                StreamEnd::Failed(outcome) => self.finish(index, outcome, true),
                StreamEnd::Unprocessed(outcome) => self.send_again(index, outcome),
            }
        }
        let http2 = self.http2();
        http2.ended = ended;
        http2.carriers[at as usize].is_corked = false;
    }

    /// Sends a request a second time. If it was already repeated, it ends with the outcome `otherwise`.
    fn send_again(&mut self, index: u32, otherwise: Outcome) {
        let verify = self.plan.verify;
        let slot = self.slot(index);
        slot.stream = None;
        if slot.request.is_retried {
            return self.finish(index, otherwise, true);
        }
        slot.request.is_retried = true;
        Response::restart(&mut slot.response, verify);
        self.counters.retried += 1;
        self.join(index);
    }

    /// Starts no more requests on the connection. The ones that wait for a stream move to another connection.
    pub(super) fn retire(&mut self, at: u32) {
        let is_open_loop = self.is_open_loop();
        let http2 = self.http2();
        let carrier = &mut http2.carriers[at as usize];
        carrier.session.is_draining = true;
        let has_served = carrier.session.started > 0;
        let (group, waiting) = (carrier.group, std::mem::take(&mut carrier.session.waiting));
        if http2.current(group) == Some(at) {
            http2.current[group as usize] = None;
            let slots = group * http2.streams..(group + 1) * http2.streams;
            if is_open_loop {
                self.forget_idle(slots);
            }
        }
        for index in waiting {
            match has_served {
                true => self.join(index),
                // Only once. Otherwise this would never end if the server closes every connection at once.
                false => self.send_again(index, Outcome::ClosedEarly),
            }
        }
    }

    /// Removes slots from the idle list: their next requests need a new connection.
    fn forget_idle(&mut self, slots: Range<u32>) {
        for index in slots.start..slots.end.min(self.pool.slots.len() as u32) {
            if self.slot(index).phase == Phase::Idle {
                self.pool.not_idle(index);
                self.pool.free(index);
            }
        }
    }

    /// Called when the slot's request has ended. If its stream has not ended, the stream is cancelled and the
    /// connection gets no more requests. An HTTP/1.1 connection is closed in this case.
    pub(in super::super) fn leave(&mut self, index: u32) {
        let Some(place) = self.slot(index).stream.take() else {
            return;
        };
        let at = place.connection;
        let carrier = self.carrier(at);
        carrier.session.cancel(index, place.id);
        let is_unused = carrier.state != State::Open && carrier.session.is_idle();
        if place.id != 0 || is_unused {
            self.retire(at);
            if self.carrier(at).state == State::Open {
                self.advance_unless_corked(at);
            }
            self.close_if_done(at);
        }
    }

    /// Called when a client of a closed loop is done. Closes its connection if no other client uses it.
    pub(in super::super) fn close_unused(&mut self, index: u32) {
        let http2 = self.http2();
        let Some(at) = http2.current(index / http2.streams) else {
            return;
        };
        if self.carrier(at).session.is_idle() {
            self.retire(at);
            self.close_if_done(at);
        }
    }

    pub(super) fn close_if_done(&mut self, at: u32) {
        let carrier = self.carrier(at);
        let is_done = carrier.session.is_draining && carrier.session.is_idle();
        if is_done && !carrier.is_corked && carrier.socket.is_some() {
            carrier.send_goaway(frames::NO_ERROR);
            self.close(at);
        }
    }

    fn close(&mut self, at: u32) {
        let Some(http2) = &mut self.http2 else { return };
        http2.carriers[at as usize].close(&mut self.events);
        http2.free.push(at);
        self.counters.connections -= 1;
    }

    /// Called when a connection has failed. Ends its streams, and closes it.
    pub(super) fn lose(&mut self, at: u32, loss: Loss) {
        let carrier = self.carrier(at);
        if carrier.socket.is_none() {
            return;
        }
        let state = carrier.state;
        if let Loss::Broken(broken) = &loss {
            carrier.send_goaway(broken.code);
        } else if let Loss::Tls(_) = &loss {
            // Sends the TLS alert, if the server still reads it.
            let _ = carrier.flush();
        }
        let (sent, waiting) = carrier.session.drain_requests();
        let outcome = self.explain_loss(state, &loss);
        self.retire(at);
        self.close(at);
        let may_repeat = matches!(outcome, Outcome::ClosedEarly | Outcome::Reset)
            && matches!(loss, Loss::End | Loss::Failed(_));
        for index in sent {
            let slot = self.slot(index);
            let is_kept = slot.stream.take().is_some_and(|place| place.is_kept);
            let begun = slot.response.begun();
            match may_repeat && is_kept && !begun && self.repeats(index) {
                true => self.send_again(index, outcome),
                false => self.finish(index, outcome, false),
            }
        }
        for index in waiting {
            self.slot(index).stream = None;
            match may_repeat && state == State::Open {
                true => self.send_again(index, outcome),
                false => self.finish(index, outcome, false),
            }
        }
    }

    /// The outcome of the requests of a failed connection. Reports the reason.
    fn explain_loss(&mut self, state: State, loss: &Loss) -> Outcome {
        match loss {
            Loss::End if state == State::Handshaking => {
                let why = "the server closed the connection in the handshake";
                self.tls_connection_failed(why);
                Outcome::Tls
            }
            Loss::End => Outcome::ClosedEarly,
            Loss::Tls(why) => {
                self.tls_connection_failed(why);
                Outcome::Tls
            }
            Loss::Broken(broken) => {
                self.http2_failed(Outcome::Malformed, broken.why);
                Outcome::Malformed
            }
            Loss::Unpolled => {
                self.counters.limits.descriptors += 1;
                Outcome::NoDescriptor
            }
            Loss::Failed(error) => {
                let call = match state {
                    State::Connecting => "connect",
                    State::Handshaking => "TLS handshake",
                    State::Open => return outcome(*error),
                };
                let dialer = &self.dialers[0];
                let cause = DialError::after_connect(call, *error);
                self.counters.failed(|| dialer.describe(cause));
                match cause.outcome {
                    Outcome::TimedOut => Outcome::ConnectTimedOut,
                    other => other,
                }
            }
        }
    }

    fn tls_connection_failed(&mut self, why: &str) {
        let dialer = &self.dialers[0];
        self.counters.failed(|| dialer.describe_tls(why));
    }

    pub(super) fn http2_failed(&mut self, outcome: Outcome, why: &str) {
        let dialer = &self.dialers[0];
        self.counters.failed(|| dialer.describe_http2(outcome, why));
    }
}
