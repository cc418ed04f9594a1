//! Waiting for many descriptors at once: select, poll, epoll (by levels or by edges), io_uring and
//! a simulated mechanism behind one interface, and the deadlines of a loop.
//!
//! This is the one place where a worker may sleep. A turn of its loop is: [`Events::wait`] with the
//! time left until [`Deadlines::next_ms`], the stages for each [`Ready`], then
//! [`Deadlines::expire`].
//!
//! All mechanisms are level-triggered for their callers and are held to the same behaviour by one
//! conformance suite (`tests/conformance.rs`): what is not drained is delivered again, so a stage
//! may stop at its budget and be certain to hear of the rest. Where the kernel is asked for edges
//! alone (`epoll-edge`, `io_uring`), what holds between them is kept and looked at here
//! (`line.rs`). Refused: callbacks, threads (one `Events` belongs to one thread), and priorities.
//!
//! Processes that accept from one socket register it with [`Events::add_shared`]: epoll and
//! io_uring then wake one of them for a client, and in turn.
//!
//! Sources: select(2), poll(2), epoll(7), epoll_ctl(2), io_uring(7); Brecht and Ostrowski's
//! micro-server for why there is more than one; the Redis event loop for how little is needed.

#![forbid(unsafe_code)]

mod clock;
mod deadlines;
mod edge;
mod epoll;
mod line;
mod poll;
mod select;
mod sim;
mod table;
mod uring;
mod vocabulary;

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

pub use clock::Clock;
pub use deadlines::Deadlines;
pub use sim::Plan;
pub use vocabulary::{Interest, Mechanism, Ready, Token, UnknownMechanism};

/// At most this many events come out of one wait. The others are still ready, and come first at the
/// next: no descriptor waits for more than one round of all ready ones.
pub const EVENTS_PER_WAIT_MAX: usize = 1024;

/// A set of descriptors to wait for.
///
/// Every descriptor is registered once, and must be removed before it is closed: select and poll
/// know it by its number only, which the kernel gives to the next file opened.
///
/// ```
/// use headway_event::{Events, Interest, Mechanism, Token};
/// use std::io::{Read, Write};
/// use std::os::fd::AsFd;
/// use std::os::unix::net::UnixStream;
/// use std::time::Duration;
///
/// const CONNECTION: u8 = 1;
/// let (mut near, mut far) = UnixStream::pair()?;
/// near.set_nonblocking(true)?;
///
/// let mut events = Events::new(Mechanism::Epoll)?;
/// events.add(near.as_fd(), Token::new(CONNECTION, 7, 0), Interest::READ)?;
/// far.write_all(b"hello")?;
///
/// let mut ready = Vec::new(); // kept across waits, so that a wait allocates nothing
/// events.wait(&mut ready, Some(Duration::from_secs(5)))?;
/// assert_eq!(ready.len(), 1);
/// assert!(ready[0].readable && ready[0].token.slot() == 7);
///
/// let mut buffer = [0; 16];
/// assert_eq!(near.read(&mut buffer)?, 5);
/// events.wait(&mut ready, Some(Duration::ZERO))?;
/// assert!(ready.is_empty());
/// events.remove(near.as_fd())?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Events(Inner);

/// An enum, not a trait object: the loop's calls stay direct.
enum Inner {
    Select(select::Select),
    Poll(poll::Poll),
    Epoll(epoll::Epoll),
    Edge(edge::Edge),
    Uring(Box<uring::Uring>),
    Sim(Box<sim::Sim>),
}

/// What a mechanism does; [`Events`] says what callers may rely on.
trait Backend {
    fn name(&self) -> &'static str;
    /// `shared`: other processes watch the same file, and one of them is to be woken. Where there
    /// is no way to wake one, all are, and whoever comes late finds nothing.
    fn register(
        &mut self,
        fd: BorrowedFd<'_>,
        token: Token,
        interest: Interest,
        shared: bool,
    ) -> io::Result<()>;
    fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()>;
    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()>;
    fn forget(&mut self, fd: BorrowedFd<'_>) {
        // Nothing to undo where it was never registered.
        let _ = self.remove(fd);
    }
    fn pass_on(&mut self, _fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }
    fn drained(&mut self, _fd: BorrowedFd<'_>) {
        // What is level-triggered in the kernel is looked at there.
    }
    /// Pushes at most [`EVENTS_PER_WAIT_MAX`] events on an empty `ready`. On an error nothing was
    /// pushed. A time-out fits in an `i32`.
    fn wait(&mut self, ready: &mut Vec<Ready>, timeout_ms: Option<u32>) -> io::Result<()>;
    /// The same with a finer time-out, where there is one.
    fn wait_finely(&mut self, ready: &mut Vec<Ready>, timeout: Duration) -> io::Result<()> {
        self.wait(ready, Some(timeout_ms(timeout)))
    }
}

/// Rounded up, and cut to what the kernel's calls take.
fn timeout_ms(timeout: Duration) -> u32 {
    clock::whole_ms(timeout).min(i32::MAX as u64) as u32
}

macro_rules! dispatch {
    ($events:expr, $backend:ident => $call:expr) => {
        match $events {
            Inner::Select($backend) => $call,
            Inner::Poll($backend) => $call,
            Inner::Epoll($backend) => $call,
            Inner::Edge($backend) => $call,
            Inner::Uring($backend) => $call,
            Inner::Sim($backend) => $call,
        }
    };
}

impl Events {
    /// An empty set served by `mechanism`.
    ///
    /// # Errors
    /// epoll and io_uring need a descriptor of their own: `EMFILE`, `ENFILE` or `ENOMEM`. io_uring
    /// may be missing or forbidden (`ENOSYS`, `EPERM`); the message says by what.
    pub fn new(mechanism: Mechanism) -> io::Result<Events> {
        Ok(Events(match mechanism {
            Mechanism::Select => Inner::Select(select::Select::new()),
            Mechanism::Poll => Inner::Poll(poll::Poll::new()),
            Mechanism::Epoll => Inner::Epoll(epoll::Epoll::new()?),
            Mechanism::EpollEdge => Inner::Edge(edge::Edge::new()?),
            Mechanism::IoUring => Inner::Uring(Box::new(uring::Uring::new()?)),
        }))
    }

    /// An empty set for tests, whose readiness follows `plan`.
    pub fn simulated(plan: Plan) -> Events {
        Events(Inner::Sim(Box::new(sim::Sim::new(plan))))
    }

    /// The mechanism's name: `select`, `poll`, `epoll`, `epoll-edge`, `io_uring` or `sim`.
    pub fn mechanism(&self) -> &'static str {
        dispatch!(&self.0, backend => backend.name())
    }

    /// Registers a descriptor. Tokens need not be unique.
    ///
    /// # Errors
    /// `AlreadyExists` when it is registered. epoll also refuses regular files (`EPERM`) and can
    /// run out of memory or of watches (`ENOMEM`, `ENOSPC`). On an error nothing has changed.
    pub fn add(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        dispatch!(&mut self.0, backend => backend.register(fd, token, interest, false))
    }

    /// Registers a listener that other processes accept from as well, each by its own `Events`.
    /// epoll, epoll-edge and io_uring wake one of those who sleep for each client
    /// (`EPOLLEXCLUSIVE`, Linux 4.5); select and poll wake all, and who comes late finds nothing.
    /// Apart from that it is [`Events::add`], for listeners only: with [`Interest::NONE`] nothing
    /// at all is delivered.
    ///
    /// Whoever is told of clients and leaves some of them must either ask for them again or see to
    /// it that others hear of them: the kernel told nobody else.
    ///
    /// # Errors
    /// As [`Events::add`].
    pub fn add_shared(
        &mut self,
        fd: BorrowedFd<'_>,
        token: Token,
        interest: Interest,
    ) -> io::Result<()> {
        dispatch!(&mut self.0, backend => backend.register(fd, token, interest, true))
    }

    /// Looks at a shared listener anew, and lets the others who share it be told first of what
    /// comes next. epoll wakes the one that has been registered longest, so without this it would
    /// always be the same. If clients wait now, the next wait delivers them, whoever was told of
    /// them. For a descriptor that is not shared, and with the other mechanisms, nothing happens.
    ///
    /// # Errors
    /// `NotFound` when it is not registered; those of epoll_ctl(2), after which it may be without a
    /// registration.
    pub fn pass_on(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        dispatch!(&mut self.0, backend => backend.pass_on(fd))
    }

    /// The caller has read all that there was: a read found nothing, or less than it had room for.
    /// A hint, which spares epoll-edge and io_uring a look and means nothing to the other
    /// mechanisms; of an unknown descriptor it is ignored.
    #[inline]
    pub fn drained(&mut self, fd: BorrowedFd<'_>) {
        dispatch!(&mut self.0, backend => backend.drained(fd));
    }

    /// Replaces the token and the interest of a registered descriptor. Free of system calls with
    /// select, poll, epoll-edge and io_uring, and with epoll when the interest is unchanged.
    ///
    /// With [`Interest::NONE`] the descriptor stays registered and delivers at most its hang-up:
    /// poll, epoll, epoll-edge and io_uring deliver it at every wait until the descriptor is
    /// removed, select not at all.
    ///
    /// # Errors
    /// `NotFound` when it is not registered.
    pub fn modify(
        &mut self,
        fd: BorrowedFd<'_>,
        token: Token,
        interest: Interest,
    ) -> io::Result<()> {
        dispatch!(&mut self.0, backend => backend.modify(fd, token, interest))
    }

    /// Forgets a descriptor. Call it before closing the descriptor.
    ///
    /// # Errors
    /// `NotFound` when it is not registered.
    pub fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        dispatch!(&mut self.0, backend => backend.remove(fd))
    }

    /// Forgets a descriptor that is about to be closed and shared with nobody: epoll then needs no
    /// call of its own, since the kernel drops what is closed (epoll(7), question 6).
    pub fn forget(&mut self, fd: BorrowedFd<'_>) {
        dispatch!(&mut self.0, backend => backend.forget(fd));
    }

    /// Replaces `ready` by the descriptors that can make progress, at most [`EVENTS_PER_WAIT_MAX`]
    /// of them.
    ///
    /// Sleeps until there is one or the time-out has passed, rounded up to a millisecond (`None`:
    /// without end). It may return early with nothing: after a signal (so that its flag is looked
    /// at), and after 24 days.
    ///
    /// # Errors
    /// None that waiting again would cure. `EBADF` (select) means that a descriptor was closed
    /// without `remove`.
    pub fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()> {
        ready.clear();
        let timeout_ms = timeout.map(timeout_ms);
        uninterrupted(dispatch!(&mut self.0, backend => backend.wait(ready, timeout_ms)))
    }

    /// As [`Events::wait`], with a time-out that epoll, epoll-edge and io_uring keep to the
    /// nanosecond instead of rounding it up to a millisecond, at the price of a second call when it
    /// has to sleep; the other mechanisms round. The thread's timer slack comes on top (prctl(2),
    /// 50 us unless it was changed).
    ///
    /// # Errors
    /// As [`Events::wait`].
    pub fn wait_finely(&mut self, ready: &mut Vec<Ready>, timeout: Duration) -> io::Result<()> {
        ready.clear();
        uninterrupted(dispatch!(&mut self.0, backend => backend.wait_finely(ready, timeout)))
    }
}

/// An error of io_uring_setup(2) with who may forbid it, in words: for others who use a ring.
pub fn explain_ring(error: io::Error) -> io::Error {
    uring::explained(error)
}

/// A signal ends a wait early, with nothing.
fn uninterrupted(waited: io::Result<()>) -> io::Result<()> {
    match waited {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        other => other,
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Events").field(&self.mechanism()).finish()
    }
}
