//! Listeners, and how many connections to take per wake-up.
//!
//! Taking too few at a time starves new clients, taking too many starves the ones already here
//! (Brecht & Ostrowski, section 4.1): `accept_count` is the bound. 0 means until the queue is empty
//! or the connections are as many as may be: that is their AcceptInf, and what it does to the
//! others is to be seen. It refuses to drop anybody: out of descriptors, or at the connection
//! limit, it stops accepting and leaves the clients in the kernel's accept queue until there is
//! room again. Only where it is asked for (`early-reject`) are those who cannot be served turned
//! away, and [`control`] says who they are.
//!
//! A listener is the worker's own (`SO_REUSEPORT`), or one for all of them ([`ListenerMode`]). Of a
//! shared one the kernel tells a single worker of each client, so a worker that leaves clients in
//! it and looks away has to have the others told: [`Listeners::take_left`] says when. Who has more
//! clients than its share leaves them on purpose ([`Balance`]).

mod addresses;
mod auto;
mod balance;
pub mod control;
mod reserve;
pub mod simulation;

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use headway_debox::{Call, Tracer};
use headway_event::{Events, Interest, Token};
use headway_os::porter::Porter;
use rustix::io::Errno;
use rustix::net::SocketFlags;

pub use addresses::Addresses;
pub use auto::Auto;
pub use balance::{ABSENT, Balance, Turn};
use reserve::Reserve;

use crate::config::ListenerMode;

/// The kind of token that names a listener.
pub const LISTENER: u8 = 0;

/// A client that says nothing is accepted after about this long all the same, so that its deadline
/// runs. The kernel rounds it up to the first time it repeats its handshake.
pub const DEFER_S: u32 = 1;

/// How long to leave the accept queue alone after the process ran out of descriptors.
const PAUSE_MS: u64 = 100;

/// How long the porter stays when all are heard again.
const PORTER_STAYS_MS: u64 = (headway_os::porter::REMEMBERED_S * 1e3) as u64;

/// Clients a turn takes at most from a queue that is to be emptied because the worker ends. Each
/// may be answered at once, so this many are a few milliseconds for those who are here already.
pub const LAST_A_TURN: u32 = 256;

/// Connections in a row that may be lost before they could be accepted. More of them are an error
/// of the listener, and trying for ever would stop the loop.
const LOST_MAX: u32 = 64;

/// What one call to accept gave.
#[derive(Debug)]
pub enum Accepted {
    /// A new client.
    Client(OwnedFd, SocketAddr),
    /// Nobody is waiting.
    Nobody,
    /// Accepting rests; whether somebody waits is not known.
    Paused,
    /// No descriptor or memory for one more, or an error that does not end; accepting pauses.
    Exhausted(Errno),
}

/// Clients to take at most from a listener in one go, for a configured `accept_count`. Without a
/// bound it is as many as may be open: clients that are answered and gone at once would never fill
/// that, and a queue that is refilled meanwhile would never end the round.
pub fn most_a_round(accept_count: u32, connections_max: u32) -> u32 {
    match accept_count {
        0 => connections_max,
        count => count,
    }
}

/// The worker's listening sockets.
pub struct Listeners {
    sockets: Vec<OwnedFd>,
    sharing: ListenerMode,
    /// Clients may wait in a shared queue that nobody but this worker was told of, and it does not
    /// look there any more.
    left: bool,
    reserve: Reserve,
    /// Remembers whom it did not hear, where it may; and whether it stands at the listeners.
    porter: Option<Porter>,
    porter_stands: bool,
    /// Until when it stands there with all heard again, for those who still knock whom it has not
    /// heard.
    porter_until_ms: Option<u64>,
    /// Told to the event mechanism; listeners it does not watch rest in the kernel's queue.
    watched: bool,
    paused_until_ms: Option<u64>,
    full: bool,
    stands_back: bool,
    closed: bool,
}

impl Listeners {
    /// Starts to watch the sockets the master has bound.
    pub fn new(
        sockets: Vec<OwnedFd>,
        sharing: ListenerMode,
        events: &mut Events,
    ) -> std::io::Result<Self> {
        for (index, socket) in sockets.iter().enumerate() {
            let (socket, token) = (socket.as_fd(), Token::new(LISTENER, index as u32, 0));
            match sharing {
                ListenerMode::Shared => events.add_shared(socket, token, Interest::READ)?,
                ListenerMode::Reuseport | ListenerMode::SharedThundering => {
                    events.add(socket, token, Interest::READ)?
                }
            }
        }
        Ok(Self {
            sockets,
            sharing,
            left: false,
            reserve: Reserve::default(),
            porter: None,
            porter_stands: false,
            porter_until_ms: None,
            watched: true,
            paused_until_ms: None,
            full: false,
            stands_back: false,
            closed: false,
        })
    }

    /// Has the kernel remember whom it is told not to hear, where that is allowed. Only where the
    /// listeners are this worker's own, as [`Listeners::set_heard`]. Whether it does.
    pub fn remember(&mut self) -> bool {
        if self.sharing == ListenerMode::Reuseport {
            // Whether it may stand there is known before it has to.
            let may = |porter: &Porter| self.sockets.iter().all(|at| porter.stand_at(at).is_ok());
            self.porter = Porter::new().ok().filter(may);
            self.hear_all(&Tracer::disabled());
        }
        self.porter.is_some()
    }

    /// How many listeners there are.
    pub fn len(&self) -> u32 {
        self.sockets.len() as u32
    }

    /// Whether the event mechanism tells of clients: there is room for them, and no pause.
    pub fn are_watched(&self) -> bool {
        self.watched
    }

    /// Accepts one client from the listener that `index` names.
    pub fn accept(&mut self, index: u32, tracer: &Tracer) -> Accepted {
        let Some(socket) = self.sockets.get(index as usize) else {
            return Accepted::Nobody;
        };
        // A request of the client before may have met a shortage.
        if self.paused_until_ms.is_some() {
            return Accepted::Paused;
        }
        if let Err(error) = self.reserve.fill() {
            return Accepted::Exhausted(error);
        }
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let mut lost = 0;
        loop {
            match tracer.call(Call::Accept, || rustix::net::acceptfrom_with(socket, flags)) {
                Ok((client, peer)) => {
                    let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
                    let peer = peer.and_then(|any| any.try_into().ok()).unwrap_or(unknown);
                    return Accepted::Client(client, peer);
                }
                Err(Errno::AGAIN) => return Accepted::Nobody,
                Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    return Accepted::Exhausted(error);
                }
                // accept(2): errors of the new connection itself are reported here; take the next.
                Err(_) if lost < LOST_MAX => lost += 1,
                Err(error) => return Accepted::Exhausted(error),
            }
        }
    }

    /// Nobody waits at this listener any more, as far as is known.
    pub fn drained(&self, index: u32, events: &mut Events) {
        if let Some(socket) = self.sockets.get(index as usize) {
            events.drained(socket.as_fd());
        }
    }

    /// Lets the others who share the listeners be told first of the next clients; and looks at them
    /// anew, for clients that nobody was told of. Nothing to do where each worker has its own.
    pub fn pass_on(&self, events: &mut Events, tracer: &Tracer) {
        if self.sharing != ListenerMode::Shared || !self.watched {
            return;
        }
        for socket in &self.sockets {
            let passed = tracer.call(Call::EventControl, || events.pass_on(socket.as_fd()));
            // As in `watch`: a registered descriptor, and memory.
            if let Err(error) = passed {
                eprintln!("headway: watching a listener again: {error}");
            }
        }
    }

    /// Clients are left in the queue for now, by somebody who was told of them.
    pub fn leave(&mut self) {
        self.left |= self.sharing == ListenerMode::Shared;
    }

    /// Whether the others have to be told that clients may wait in the shared queue; once.
    pub fn take_left(&mut self) -> bool {
        std::mem::take(&mut self.left)
    }

    /// Gives up the descriptors kept back; `false` when there are none. The caller pauses
    /// accepting.
    pub fn give_up_reserve(&mut self) -> bool {
        self.reserve.give_up()
    }

    /// Undoes what a policy has told the kernel: this worker's own when it ends, or that of one
    /// that died in its place. The listeners are the master's, and outlive both.
    pub fn open_wide(&mut self, queue: u32, deferred: bool) {
        let nobody_looks = Tracer::disabled();
        self.hear_all(&nobody_looks);
        self.set_deferred(deferred, &nobody_looks);
        self.set_queue(queue, &nobody_looks);
    }

    /// Makes every accept queue so long. Clients that are in a longer one stay.
    pub fn set_queue(&self, length: u32, tracer: &Tracer) {
        let length = i32::try_from(length).unwrap_or(i32::MAX);
        for socket in &self.sockets {
            // On a socket that listens already this changes the length and nothing else
            // (listen(2)); should it fail, the queue is as it was.
            let _ = tracer.call(Call::SocketOption, || rustix::net::listen(socket, length));
        }
    }

    /// Lets the kernel hear only this part of the connections that are asked for. Only where the
    /// listeners are this worker's own: others would have other parts heard.
    pub fn set_heard(&mut self, part: f64, now_ms: u64, tracer: &Tracer) {
        if self.sharing != ListenerMode::Reuseport {
            return;
        }
        let Some(porter) = &self.porter else {
            for socket in &self.sockets {
                // Where it is forbidden all are heard, and the queue's length is all there is.
                let _ = tracer.call(Call::SocketOption, || {
                    headway_os::listen::hear(socket, part)
                });
            }
            return;
        };
        porter.hear(part);
        if !self.porter_stands {
            for socket in &self.sockets {
                // It could stand there when the worker began.
                let _ = tracer.call(Call::SocketOption, || porter.stand_at(socket));
            }
            self.porter_stands = true;
        }
        self.porter_until_ms = (part >= 1.0).then_some(now_ms + PORTER_STAYS_MS);
    }

    /// Undoes it at once.
    fn hear_all(&mut self, tracer: &Tracer) {
        if self.sharing == ListenerMode::Reuseport {
            for socket in &self.sockets {
                let _ = tracer.call(Call::SocketOption, || headway_os::listen::hear(socket, 1.0));
            }
        }
        (self.porter_stands, self.porter_until_ms) = (false, None);
    }

    /// Has clients kept back until they speak, or not any more.
    pub fn set_deferred(&self, deferred: bool, tracer: &Tracer) {
        let seconds = if deferred { DEFER_S } else { 0 };
        for socket in &self.sockets {
            // Should it fail, they wait where they waited before.
            let _ = tracer.call(Call::SocketOption, || {
                headway_os::listen::defer_accept(socket, seconds)
            });
        }
    }

    /// How many wait in the accept queue that `index` names. What the kernel does not tell is
    /// somebody.
    pub fn waiting(&self, index: u32, tracer: &Tracer) -> u32 {
        let socket = self.sockets.get(index as usize);
        socket.map_or(0, |socket| {
            let waiting = tracer.call(Call::SocketOption, || headway_os::listen::waiting(socket));
            waiting.unwrap_or(1)
        })
    }

    /// How many wait in the accept queues, and how many segments the kernel has dropped there so
    /// far, wrapping around. What it does not tell is somebody, and none.
    pub fn look(&self, tracer: &Tracer) -> (u32, u32) {
        let mut found = (0_u32, 0_u32);
        for socket in &self.sockets {
            let (waiting, dropped) = tracer.call(Call::SocketOption, || {
                (
                    headway_os::listen::waiting(socket),
                    headway_os::listen::dropped(socket),
                )
            });
            found.0 = found.0.saturating_add(waiting.unwrap_or(1));
            found.1 = found.1.wrapping_add(dropped.unwrap_or(0));
        }
        found
    }

    /// Leaves the queue alone for a while, and the reserve to those who are here.
    pub fn pause(&mut self, now_ms: u64, events: &mut Events) {
        self.reserve.give_up();
        self.paused_until_ms = Some(now_ms + PAUSE_MS);
        self.watch(events);
    }

    /// Whether clients are taken as far as it depends on what there is for them: not at the limits,
    /// and not at the end.
    pub fn are_taken_from(&self) -> bool {
        !self.full && !self.closed && self.paused_until_ms.is_none()
    }

    /// Whether there is no room for one more connection.
    pub fn is_full(&self) -> bool {
        self.full && !self.closed
    }

    /// Says whether there is room for one more connection.
    pub fn set_full(&mut self, full: bool, events: &mut Events) {
        if self.full != full {
            self.full = full;
            self.watch(events);
        }
    }

    /// Leaves new clients to other workers, or not any more.
    pub fn stand_back(&mut self, back: bool, events: &mut Events) {
        self.stands_back = back;
        self.watch(events);
    }

    /// Ends the pause when its time has come, and sends the porter away when nobody knocks any more
    /// whom it has not heard.
    pub fn resume(&mut self, now_ms: u64, events: &mut Events, tracer: &Tracer) {
        if self.porter_until_ms.is_some_and(|until| now_ms >= until) {
            self.hear_all(tracer);
        }
        if self.paused_until_ms.is_some_and(|until| now_ms >= until) {
            self.paused_until_ms = None;
            self.watch(events);
        }
    }

    /// When the pause ends, or the porter goes, if it is to be.
    pub fn next_ms(&self) -> Option<u64> {
        [self.paused_until_ms, self.porter_until_ms]
            .into_iter()
            .flatten()
            .min()
    }

    /// Accepts nobody from here on: the worker is draining.
    pub fn close(&mut self, events: &mut Events) {
        self.closed = true;
        self.watch(events);
        for socket in self.sockets.drain(..) {
            // Select and poll must forget a descriptor before its number is used again.
            let _ = events.remove(socket.as_fd());
        }
    }

    fn watch(&mut self, events: &mut Events) {
        let watch = self.are_taken_from() && !self.stands_back;
        if watch == self.watched {
            return;
        }
        self.watched = watch;
        if !watch && !self.closed {
            self.leave();
        }
        let interest = if watch {
            Interest::READ
        } else {
            Interest::NONE
        };
        for (index, socket) in self.sockets.iter().enumerate() {
            let token = Token::new(LISTENER, index as u32, 0);
            // A listener that cannot be watched again would be silent for ever; there is no known
            // way for this to fail on a registered descriptor but out of memory.
            if let Err(error) = events.modify(socket.as_fd(), token, interest) {
                eprintln!("headway: watching a listener again: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepting_pauses_when_the_listener_has_an_error_that_does_not_end() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut events = Events::new(headway_event::Mechanism::Poll).unwrap();
        let sockets = vec![socket.into()];
        let mut listeners = Listeners::new(sockets, ListenerMode::Reuseport, &mut events).unwrap();
        let accepted = listeners.accept(0, &Tracer::disabled());
        assert!(
            matches!(accepted, Accepted::Exhausted(Errno::OPNOTSUPP)),
            "{accepted:?}"
        );
    }
}
