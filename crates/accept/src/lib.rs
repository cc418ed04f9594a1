//! Listeners, and how many connections to accept per wakeup.
//!
//! A batch that is too small starves new clients; one that is too large delays established
//! connections (Brecht and Ostrowski, section 4.1). `accept_batch` is the limit; 0 means until the
//! queue is empty or the connection limit is reached (their AcceptInf). No connection is dropped:
//! without file descriptors or at the connection limit, the worker closes connections which are
//! idle. If there are none, accepting stops and clients stay in the kernel's accept queue. Only with `early-reject` are connections that cannot
//! be served rejected, and [`headway_admission`] decides which.
//!
//! A listener belongs to one worker (`SO_REUSEPORT`), or to all of them ([`ListenerMode`]). For a
//! shared one the kernel wakes a single worker per connection. A worker that stops polling it and
//! leaves connections must have the others notified: [`Listeners::take_undrained`] says when. A
//! worker with more connections than its share leaves them on purpose ([`Balance`]).
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![deny(clippy::unused_self)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

mod address_board;
mod address_line;
mod addresses;
mod admission_control;
mod balance;
mod reserve;

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use headway_event::{Events, Interest, Token};
use headway_os::syn_filter::SynFilter;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, sockopt};

pub use address_board::AddressBoard;
pub use addresses::{Addresses, network};
pub use admission_control::AdmissionControl;
pub use balance::{Balance, BalanceDecision, NOT_ACCEPTING};
pub use reserve::Reserve;

use headway_config::{ListenerMode, UNIX_CLIENT};
use headway_metrics::calls::{Call, Tracer};

/// The kind of token that names a listener.
pub const LISTENER: u8 = 0;

/// A silent connection is accepted after about this time all the same, so that its deadline runs.
/// The kernel rounds it up to the first retransmission of its handshake.
pub const DEFER_S: u32 = 1;

/// Pause of accepting after the process ran out of file descriptors.
const PAUSE_DURATION_MS: u64 = 100;

/// Time for which the SYN filter stays attached after all SYNs are admitted again.
const SYN_FILTER_LINGER_MS: u64 = (headway_os::syn_filter::MEMORY_S * 1e3) as u64;

/// Largest batch while a worker that stops empties its queue. Each connection may be answered at
/// once, so this many delay the established connections by a few milliseconds.
pub const DRAIN_BATCH_MAX: u32 = 256;

/// Connections in a row that may fail before they are accepted. More of them are an error of the
/// listener, and retrying forever would block the loop.
const FAILED_CONNECTIONS_MAX: u32 = 64;

/// Result of one accept call.
#[derive(Debug)]
pub enum Accepted {
    /// A new connection and its client's address.
    Connection(OwnedFd, SocketAddr),
    /// The accept queue is empty.
    QueueEmpty,
    /// Accepting is paused, so the state of the queue is unknown.
    Paused,
    /// No file descriptor or memory for another connection, or a persistent error. Accepting
    /// pauses.
    Exhausted(Errno),
}

/// Size limit of an accept batch for a configured `accept_batch`. Without a limit it is the number
/// of connections that may be open: otherwise a queue that is refilled while connections are
/// answered and closed would never end the batch.
pub fn batch_limit(accept_count: u32, connections_max: u32) -> u32 {
    match accept_count {
        0 => connections_max,
        count => count,
    }
}

/// The worker's listening sockets.
pub struct Listeners {
    sockets: Vec<OwnedFd>,
    /// Which of them are TCP. The accept queue of a Unix socket is one for all workers, and cannot be
    /// observed.
    are_tcp: Vec<bool>,
    sharing: ListenerMode,
    /// Whether the kernel wakes one of several workers for each connection.
    wakes_one: bool,
    /// Whether connections may be pending in a shared queue of which only this worker was notified,
    /// and which it no longer polls.
    undrained: bool,
    reserve: Reserve,
    /// The stateful SYN filter, where it is permitted, and whether it is attached.
    syn_filter: Option<SynFilter>,
    syn_filter_attached: bool,
    /// When to detach the SYN filter. Until then it admits all SYNs but those of clients that it
    /// still remembers as rejected.
    detach_at_ms: Option<u64>,
    /// Whether the event mechanism watches the listeners.
    watched: bool,
    paused_until_ms: Option<u64>,
    full: bool,
    yielding: bool,
    closed: bool,
    /// The listeners from this one on are not watched: their clients have to wait.
    held_from: Option<u32>,
    /// A message for the operator.
    notice: Option<String>,
}

impl Listeners {
    /// Starts to watch the sockets that the master has bound.
    pub fn new(
        sockets: Vec<OwnedFd>,
        sharing: ListenerMode,
        wakes_one: bool,
        events: &mut Events,
    ) -> std::io::Result<Self> {
        for (index, socket) in sockets.iter().enumerate() {
            let (socket, token) = (socket.as_fd(), Token::new(LISTENER, index as u32, 0));
            match wakes_one {
                true => events.add_shared(socket, token, Interest::READ)?,
                false => events.add(socket, token, Interest::READ)?,
            }
        }
        let domain = |socket: &OwnedFd| sockopt::socket_domain(socket);
        let is_tcp = |socket| domain(socket) != Ok(AddressFamily::UNIX);
        Ok(Self {
            are_tcp: sockets.iter().map(is_tcp).collect(),
            sockets,
            sharing,
            wakes_one,
            undrained: false,
            reserve: Reserve::default(),
            syn_filter: None,
            syn_filter_attached: false,
            detach_at_ms: None,
            watched: true,
            paused_until_ms: None,
            full: false,
            yielding: false,
            closed: false,
            held_from: None,
            notice: None,
        })
    }

    /// Prepares a stateful SYN filter, which remembers rejected SYNs, and returns whether that is
    /// permitted. Only for listeners of this worker alone, as [`Listeners::set_admit_fraction`].
    pub fn enable_stateful_filter(&mut self) -> bool {
        if self.sharing == ListenerMode::Reuseport {
            // Attaching is tried now, so that it is known whether it works when it is needed.
            let may = |filter: &SynFilter| self.tcp().all(|at| filter.attach(at).is_ok());
            self.syn_filter = SynFilter::new().ok().filter(may);
            self.admit_all(&Tracer::disabled());
        }
        self.syn_filter.is_some()
    }

    fn tcp(&self) -> impl Iterator<Item = &OwnedFd> {
        let both = self.sockets.iter().zip(&self.are_tcp);
        both.filter_map(|(socket, is_tcp)| is_tcp.then_some(socket))
    }

    /// Number of listeners.
    pub fn count(&self) -> u32 {
        self.sockets.len() as u32
    }

    /// Whether the event mechanism watches the listeners: there is room and no pause.
    pub fn are_watched(&self) -> bool {
        self.watched
    }

    /// Accepts one connection from a listener.
    pub fn accept(&mut self, index: u32, tracer: &Tracer) -> Accepted {
        let Some(socket) = self.sockets.get(index as usize) else {
            return Accepted::QueueEmpty;
        };
        // The previous connection may have run out of file descriptors.
        if self.paused_until_ms.is_some() {
            return Accepted::Paused;
        }
        if let Err(error) = self.reserve.open() {
            return Accepted::Exhausted(error);
        }
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let mut failed = 0;
        loop {
            match tracer.call(Call::Accept, || rustix::net::acceptfrom_with(socket, flags)) {
                Ok((socket, client)) => {
                    let unix = SocketAddr::new(UNIX_CLIENT, 0);
                    let client = client.and_then(|any| any.try_into().ok()).unwrap_or(unix);
                    return Accepted::Connection(socket, client);
                }
                Err(Errno::AGAIN) => return Accepted::QueueEmpty,
                Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    return Accepted::Exhausted(error);
                }
                // accept(2) reports errors of the new connection itself, so the next one may
                // succeed.
                Err(_) if failed < FAILED_CONNECTIONS_MAX => failed += 1,
                Err(error) => return Accepted::Exhausted(error),
            }
        }
    }

    /// Records that a listener's accept queue was found empty.
    pub fn drained(&self, index: u32, events: &mut Events) {
        if let Some(socket) = self.sockets.get(index as usize) {
            events.drained(socket.as_fd());
        }
    }

    /// Registers shared listeners again, so that the other workers are notified first of the next
    /// connections, and pending ones are reported again. Does nothing for a worker's own listeners.
    pub fn pass_on(&mut self, events: &mut Events, tracer: &Tracer) {
        if !self.wakes_one || !self.watched {
            return;
        }
        for (index, socket) in self.sockets.iter().enumerate() {
            if self.is_held(index as u32) {
                continue;
            }
            let passed = tracer.call(Call::EventControl, || events.requeue_shared(socket.as_fd()));
            // As in `watch`: this fails only without memory.
            if let Err(error) = passed {
                self.notice = Some(unwatched(error));
            }
        }
    }

    /// Records that this worker was notified of connections and leaves them in the queue.
    pub fn mark_undrained(&mut self) {
        self.undrained |= self.wakes_one;
    }

    /// Whether the other workers must be notified that connections may be pending in a shared
    /// queue. Returns `true` once.
    pub fn take_undrained(&mut self) -> bool {
        std::mem::take(&mut self.undrained)
    }

    /// The reserved file descriptors, which a lookup may release. The worker pauses accepting then.
    pub fn reserve(&self) -> Reserve {
        self.reserve.clone()
    }

    /// A message for the operator, once: what happened to the listeners since the last call.
    pub fn take_notice(&mut self) -> Option<String> {
        self.notice.take()
    }

    /// Restores the default listener settings: when this worker ends, or after one that died. The
    /// listeners belong to the master and outlive both.
    pub fn reset_policy(&mut self, backlog: u32, defer: bool, tracer: &Tracer) {
        self.admit_all(tracer);
        self.set_defer(defer, tracer);
        self.set_backlog(backlog, tracer);
    }

    /// Sets the length of every accept queue. Connections in a longer queue stay.
    pub fn set_backlog(&self, length: u32, tracer: &Tracer) {
        let length = i32::try_from(length).unwrap_or(i32::MAX);
        for socket in self.tcp() {
            // On a listening socket this changes only the length (listen(2)). If it fails, the
            // queue stays as it was.
            let _ = tracer.call(Call::SocketOption, || rustix::net::listen(socket, length));
        }
    }

    /// Has the kernel admit only this fraction of the SYNs. Only for listeners of this worker
    /// alone, because other workers would want other fractions.
    pub fn set_admit_fraction(&mut self, fraction: f64, now_ms: u64, tracer: &Tracer) {
        if self.sharing != ListenerMode::Reuseport {
            return;
        }
        let Some(filter) = &self.syn_filter else {
            for socket in self.tcp() {
                // Where it is forbidden all SYNs are admitted, and only the backlog limits them.
                let _ = tracer.call(Call::SocketOption, || {
                    headway_os::syn_filter::stateless::set_admit_fraction(socket, fraction)
                });
            }
            return;
        };
        filter.set_admit_fraction(fraction);
        if !self.syn_filter_attached {
            for socket in self.tcp() {
                // Attaching worked when the worker began.
                let _ = tracer.call(Call::SocketOption, || filter.attach(socket));
            }
            self.syn_filter_attached = true;
        }
        self.detach_at_ms = (fraction >= 1.0).then_some(now_ms + SYN_FILTER_LINGER_MS);
    }

    /// Admits all SYNs and detaches the filter at once.
    fn admit_all(&mut self, tracer: &Tracer) {
        if self.sharing == ListenerMode::Reuseport {
            for socket in self.tcp() {
                let _ = tracer.call(Call::SocketOption, || {
                    headway_os::syn_filter::stateless::set_admit_fraction(socket, 1.0)
                });
            }
        }
        (self.syn_filter_attached, self.detach_at_ms) = (false, None);
    }

    /// Enables or disables `TCP_DEFER_ACCEPT`.
    pub fn set_defer(&self, defer: bool, tracer: &Tracer) {
        let seconds = if defer { DEFER_S } else { 0 };
        for socket in self.tcp() {
            // If it fails, the listener stays as it was.
            let _ = tracer.call(Call::SocketOption, || {
                headway_os::listen::defer_accept(socket, seconds)
            });
        }
    }

    /// Connections pending in a listener's accept queue. On error, assume one.
    pub fn pending(&self, index: u32, tracer: &Tracer) -> u32 {
        let socket = self.sockets.get(index as usize);
        socket.map_or(0, |socket| {
            let pending = tracer.call(Call::SocketOption, || headway_os::listen::pending(socket));
            pending.unwrap_or(1)
        })
    }

    /// Connections pending in all accept queues, and segments dropped there so far, which wraps
    /// around. On error, assume one pending connection and no drops.
    pub fn sample(&self, tracer: &Tracer) -> (u32, u32) {
        let mut total = (0_u32, 0_u32);
        for socket in self.tcp() {
            let (pending, dropped) = tracer.call(Call::SocketOption, || {
                (
                    headway_os::listen::pending(socket),
                    headway_os::listen::dropped(socket),
                )
            });
            total.0 = total.0.saturating_add(pending.unwrap_or(1));
            total.1 = total.1.wrapping_add(dropped.unwrap_or(0));
        }
        total
    }

    /// Pauses accepting, and releases the reserve for the established connections.
    pub fn pause(&mut self, now_ms: u64, events: &mut Events) {
        self.reserve.release();
        self.paused_until_ms = Some(now_ms + PAUSE_DURATION_MS);
        self.watch(events);
    }

    /// Whether this worker accepts connections: not at a limit, not paused and not stopping.
    pub fn are_accepting(&self) -> bool {
        !self.full && !self.closed && self.paused_until_ms.is_none()
    }

    /// Whether there is no room for one more connection.
    pub fn is_full(&self) -> bool {
        self.full && !self.closed
    }

    /// Sets whether there is no room for one more connection.
    pub fn set_full(&mut self, full: bool, events: &mut Events) {
        if self.full != full {
            self.full = full;
            self.watch(events);
        }
    }

    /// Ends a pause early, because descriptors have become free.
    pub fn end_pause(&mut self, now_ms: u64) {
        self.paused_until_ms = self.paused_until_ms.map(|_| now_ms);
    }

    /// Sets whether new connections are left to other workers.
    pub fn set_yielding(&mut self, yielding: bool, events: &mut Events) {
        self.yielding = yielding;
        self.watch(events);
    }

    /// Has the clients of the listeners from this one on wait in the accept queue; `None` ends that. Returns
    /// whether it was another one before.
    pub fn hold(&mut self, from: Option<u32>, events: &mut Events) -> bool {
        if self.held_from == from {
            return false;
        }
        if from.is_some() {
            // Others may have been left asleep for the sake of this worker.
            self.mark_undrained();
        }
        let first = [self.held_from, from].into_iter().flatten().min();
        self.held_from = from;
        self.register(first.unwrap_or(0), events);
        true
    }

    fn is_held(&self, index: u32) -> bool {
        self.held_from.is_some_and(|from| index >= from)
    }

    /// Resumes accepting after the pause, and detaches the SYN filter once no rejected client can
    /// still be retrying.
    pub fn resume(&mut self, now_ms: u64, events: &mut Events, tracer: &Tracer) {
        if self.detach_at_ms.is_some_and(|until| now_ms >= until) {
            self.admit_all(tracer);
        }
        if self.paused_until_ms.is_some_and(|until| now_ms >= until) {
            self.paused_until_ms = None;
            self.watch(events);
        }
    }

    /// When the pause ends or the SYN filter is detached, if that is pending.
    pub fn next_ms(&self) -> Option<u64> {
        [self.paused_until_ms, self.detach_at_ms]
            .into_iter()
            .flatten()
            .min()
    }

    /// Stops accepting, because the worker is draining.
    pub fn close(&mut self, events: &mut Events) {
        self.closed = true;
        self.watch(events);
        for socket in self.sockets.drain(..) {
            // select and poll must forget a file descriptor before its number is used again.
            let _ = events.remove(socket.as_fd());
        }
    }

    fn watch(&mut self, events: &mut Events) {
        let watch = self.are_accepting() && !self.yielding;
        if watch == self.watched {
            return;
        }
        self.watched = watch;
        if !watch {
            // Also when it closes: others may have been left asleep for its sake.
            self.mark_undrained();
        }
        self.register(0, events);
    }

    /// Registers this listener and those behind it: for reading if they are watched and not held, else for nothing.
    fn register(&mut self, first: u32, events: &mut Events) {
        for (index, socket) in self.sockets.iter().enumerate().skip(first as usize) {
            let interest = match self.watched && !self.is_held(index as u32) {
                true => Interest::READ,
                false => Interest::NONE,
            };
            let token = Token::new(LISTENER, index as u32, 0);
            // A listener that is not watched again would stay silent. On a registered file
            // descriptor this fails only without memory.
            if let Err(error) = events.modify(socket.as_fd(), token, interest) {
                self.notice = Some(unwatched(error));
            }
        }
    }
}

fn unwatched(error: std::io::Error) -> String {
    format!("cannot watch a listener again: {error}; new connections may wait")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operator_reads_once_that_a_listener_cannot_be_watched() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        for sharing in [ListenerMode::Reuseport, ListenerMode::Shared] {
            let mut events = Events::new(headway_event::Mechanism::Epoll).unwrap();
            let sockets = vec![socket.try_clone().unwrap().into()];
            let mut listeners = Listeners::new(
                sockets,
                sharing,
                sharing == ListenerMode::Shared,
                &mut events,
            )
            .unwrap();
            assert_eq!(listeners.take_notice(), None);
            events.remove(listeners.sockets[0].as_fd()).unwrap();
            match sharing {
                ListenerMode::Shared => listeners.pass_on(&mut events, &Tracer::disabled()),
                _ => listeners.set_yielding(true, &mut events),
            }
            let notice = listeners
                .take_notice()
                .expect("the event mechanism forgot it");
            assert!(
                notice.starts_with("cannot watch a listener again: "),
                "{notice}"
            );
            assert_eq!(listeners.take_notice(), None);
        }
    }

    #[test]
    fn accepting_pauses_when_the_listener_has_a_persistent_error() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut events = Events::new(headway_event::Mechanism::Poll).unwrap();
        let sockets = vec![socket.into()];
        let mut listeners =
            Listeners::new(sockets, ListenerMode::Reuseport, false, &mut events).unwrap();
        let accepted = listeners.accept(0, &Tracer::disabled());
        assert!(
            matches!(accepted, Accepted::Exhausted(Errno::OPNOTSUPP)),
            "{accepted:?}"
        );
    }
}
