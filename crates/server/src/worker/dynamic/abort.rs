//! Requests to applications whose clients have gone, over connections that are kept.
//!
//! Where a connection is closed after each request, closing it is all that has to be said. One that
//! is kept would be lost so; instead the application is told that nobody wants its answer, and what
//! it still says is thrown away until it is done. Then the connection waits for its next request.
//! An application that does not care is given up after a while, and there are never more such
//! connections than may be kept anyway.

use headway_debox::Call;
use headway_event::{Interest, Ready};
use headway_gateway::fastcgi::Aborted;
use headway_gateway::upstream::Outcome;
use rustix::io::Errno;

use super::Dynamic;
use super::line::Serves;
use crate::config::Handler;
use crate::connection::{Exchange, Line, Peer};
use crate::worker::Worker;

/// How long an application may take to end a request that nobody wants answered.
const PATIENCE_MS: u64 = 5_000;
/// Reads in a row, so that one that says much does not keep others waiting.
const READS_PER_EVENT_MAX: usize = 16;

/// A connection whose request has been given up.
pub(super) struct Abandoned {
    line: Line,
    talk: Aborted,
    place: usize,
    back_end: usize,
    until_ms: u64,
}

/// What becomes of one after a step.
enum End {
    /// It goes on.
    Open,
    /// Its connection waits for the next request.
    Reusable,
    /// Its connection is of no more use.
    Closed,
}

impl Dynamic {
    /// When one has been waited for for too long.
    pub(super) fn aborts_next_ms(&self) -> Option<u64> {
        self.aborts.iter().map(|one| one.until_ms).min()
    }

    fn aborts_at(&self, place: usize, back_end: usize) -> usize {
        let is_there = |one: &&Abandoned| one.place == place && one.back_end == back_end;
        self.aborts.iter().filter(is_there).count()
    }
}

impl Worker {
    /// The client has gone: an application over a kept connection is told so.
    pub(super) fn abort_peer(&mut self, exchange: &mut Exchange) {
        let place = self.places.get(exchange.program.place).clone();
        let Handler::Upstreams(peers) = &place.location.handler else {
            return;
        };
        let may = |peer: &Peer| peer.begun && !peer.mute && peers.keepalive > 0;
        if !exchange.peer.as_deref().is_some_and(may) {
            return;
        }
        let Some(peer) = exchange.peer.take() else {
            return;
        };
        let Peer {
            talk, line, lease, ..
        } = *peer;
        let back_end = lease.back_end();
        self.end_lease(place.number, lease, Outcome::Unknown);
        let others = self
            .dynamic
            .as_ref()
            .map_or(0, |all| all.aborts_at(place.number, back_end));
        let talk = talk.abort().filter(|_| others < peers.keepalive as usize);
        match (talk, &mut self.dynamic) {
            (Some(talk), Some(dynamic)) => {
                dynamic.lines.assign(line.name, Serves::Nobody);
                self.counters.backend_aborts += 1;
                self.keep_aborted(Abandoned {
                    line,
                    talk,
                    place: place.number,
                    back_end,
                    until_ms: self.now_ms + PATIENCE_MS,
                });
            }
            _ => self.close_line(line),
        }
    }

    /// An event on such a connection.
    pub(super) fn on_aborted(&mut self, event: &Ready) {
        let Some(dynamic) = &mut self.dynamic else {
            return;
        };
        let mut all = dynamic.aborts.iter();
        let Some(at) = all.position(|one| one.line.name == event.token) else {
            return;
        };
        let mut one = dynamic.aborts.swap_remove(at);
        let end = match self.tell_aborted(&mut one) {
            End::Open => self.hear_aborted(&mut one),
            other => other,
        };
        match end {
            End::Open => self.keep_aborted(one),
            End::Reusable => self.end_aborted(one, true),
            End::Closed => self.end_aborted(one, false),
        }
    }

    fn tell_aborted(&self, one: &mut Abandoned) -> End {
        while !one.talk.unsent().is_empty() {
            let written = self.tracer.call(Call::BackendWrite, || {
                rustix::io::write(&one.line.socket, one.talk.unsent())
            });
            match written {
                Ok(count) => one.talk.sent(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return End::Closed,
            }
        }
        End::Open
    }

    fn hear_aborted(&mut self, one: &mut Abandoned) -> End {
        let Some(dynamic) = &mut self.dynamic else {
            return End::Closed;
        };
        for _ in 0..READS_PER_EVENT_MAX {
            let buffer = &mut dynamic.buffer;
            let read = self.tracer.call(Call::BackendRead, || {
                rustix::io::read(&one.line.socket, &mut buffer[..])
            });
            match read {
                Ok(count @ 1..) => match one.talk.feed(&buffer[..count]) {
                    Ok(None) => {}
                    Ok(Some(true)) => return End::Reusable,
                    Ok(Some(false)) | Err(_) => return End::Closed,
                },
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return End::Open,
                Ok(_) | Err(_) => return End::Closed,
            }
        }
        End::Open
    }

    /// It is not over: waits on, for room only while there is something to say.
    fn keep_aborted(&mut self, mut one: Abandoned) {
        let wanted = match one.talk.unsent().is_empty() {
            true => Interest::READ,
            false => Interest::BOTH,
        };
        self.watch_line(&mut one.line, Some(wanted));
        match &mut self.dynamic {
            Some(dynamic) if one.line.interest == Some(wanted) => dynamic.aborts.push(one),
            // What it says would not be heard.
            _ => self.end_aborted(one, false),
        }
    }

    fn end_aborted(&mut self, one: Abandoned, reusable: bool) {
        self.put_idle(one.place, one.back_end, one.line, reusable);
    }

    /// Once a turn: those that have been waited for for too long.
    pub(super) fn maintain_aborts(&mut self) {
        let now_ms = self.now_ms;
        while let Some(dynamic) = &mut self.dynamic
            && let Some(at) = dynamic.aborts.iter().position(|one| now_ms >= one.until_ms)
        {
            let one = dynamic.aborts.swap_remove(at);
            self.end_aborted(one, false);
        }
    }
}
