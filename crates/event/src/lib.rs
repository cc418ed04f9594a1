//! Waits for many file descriptors at once: select, poll, epoll (level- or edge-triggered),
//! io_uring and a simulated mechanism behind one interface, and the deadlines of an event loop.
//!
//! A worker may sleep only in this crate. An iteration of its loop calls [`Events::wait`]
//! with the time left until [`Deadlines::next_ms`], handles each [`Ready`], and then calls
//! [`Deadlines::expire`].
//!
//! All mechanisms are level-triggered for their callers, and one conformance suite
//! (`tests/conformance.rs`) checks that they behave the same. Input that was not read is reported
//! again, so a caller may stop early. Where the kernel reports edges only (`epoll-edge`,
//! `io_uring`), readiness between the edges is kept in a ready list (`ready_list.rs`). There are no
//! callbacks, no threads (one `Events` belongs to one thread) and no priorities.
//!
//! Processes that accept from the same socket register it with [`Events::add_shared`]: epoll and
//! io_uring then wake one of them per connection, in turn.
//!
//! Sources: select(2), poll(2), epoll(7), epoll_ctl(2), io_uring(7); Brecht and Ostrowski's
//! micro-server for the choice of mechanisms; the Redis event loop for a small interface.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

mod clock;
mod deadlines;
mod edge;
mod epoll;
mod ready_list;
mod poll;
mod select;
mod sim;
mod slots;
mod table;
mod uring;
mod types;

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use types::Registration;

pub use clock::Clock;
pub use deadlines::Deadlines;
pub use sim::Plan;
pub use slots::Slots;
pub use types::{Interest, Mechanism, Ready, Token, UnknownMechanism};

/// Largest number of events that one wait returns. The others stay ready and come first at the next
/// wait, so no file descriptor waits for more than one round of all ready ones.
pub const EVENTS_PER_WAIT_MAX: usize = 1024;

/// A set of file descriptors to wait for.
///
/// Every file descriptor is registered once, and must be removed before it is closed: select and
/// poll know it only by its number, which the kernel gives to the next file that is opened.
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

/// The mechanism. An enum instead of a trait object, so that calls are direct.
enum Inner {
    Select(select::Select),
    Poll(poll::Poll),
    Epoll(epoll::Epoll),
    Edge(edge::Edge),
    Uring(Box<uring::Uring>),
    Sim(Box<sim::Sim>),
}

/// The operations of a mechanism. [`Events`] documents what callers may rely on.
trait Backend {
    fn name(&self) -> &'static str;
    /// `shared`: other processes watch the same file, and only one of them should wake up. Where
    /// that is not possible, all wake up, and the late ones find nothing.
    fn register(
        &mut self,
        fd: BorrowedFd<'_>,
        registration: Registration,
        shared: bool,
    ) -> io::Result<()>;
    fn modify(&mut self, fd: BorrowedFd<'_>, registration: Registration) -> io::Result<()>;
    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()>;
    fn forget(&mut self, fd: BorrowedFd<'_>) {
        // There is nothing to undo if it was never registered.
        let _ = self.remove(fd);
    }
    fn requeue_shared(&mut self, _fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }
    fn drained(&mut self, _fd: BorrowedFd<'_>) {
        // Level-triggered mechanisms ask the kernel at every wait.
    }
    /// Pushes at most [`EVENTS_PER_WAIT_MAX`] events on an empty `ready`, and none on an error. The
    /// timeout fits in an `i32`.
    fn wait(&mut self, ready: &mut Vec<Ready>, timeout_ms: Option<u32>) -> io::Result<()>;
    /// Like `wait` with a precise timeout, where the mechanism has one.
    fn wait_precise(&mut self, ready: &mut Vec<Ready>, timeout: Duration) -> io::Result<()> {
        self.wait(ready, Some(timeout_ms(timeout)))
    }
}

/// A timeout in milliseconds, rounded up and limited to what the system calls accept.
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
    /// Creates an empty set that uses `mechanism`.
    ///
    /// # Errors
    /// epoll and io_uring need a file descriptor of their own: `EMFILE`, `ENFILE` or `ENOMEM`.
    /// io_uring may be missing or forbidden (`ENOSYS`, `EPERM`); the message says why.
    ///
    /// ```
    /// use headway_event::{Events, Mechanism};
    /// let events = Events::new(Mechanism::Poll)?;
    /// assert_eq!(events.mechanism(), "poll");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn new(mechanism: Mechanism) -> io::Result<Events> {
        Ok(Events(match mechanism {
            Mechanism::Select => Inner::Select(select::Select::new()),
            Mechanism::Poll => Inner::Poll(poll::Poll::new()),
            Mechanism::Epoll => Inner::Epoll(epoll::Epoll::new()?),
            Mechanism::EpollEdge => Inner::Edge(edge::Edge::new()?),
            Mechanism::IoUring => Inner::Uring(Box::new(uring::Uring::new()?)),
        }))
    }

    /// Creates an empty set for tests, whose readiness follows `plan`.
    ///
    /// ```
    /// use headway_event::{Events, Plan};
    /// assert_eq!(Events::simulated(Plan::new(42)).mechanism(), "sim");
    /// ```
    pub fn simulated(plan: Plan) -> Events {
        Events(Inner::Sim(Box::new(sim::Sim::new(plan))))
    }

    /// Returns the mechanism's name: `select`, `poll`, `epoll`, `epoll-edge`, `io_uring` or `sim`.
    pub fn mechanism(&self) -> &'static str {
        dispatch!(&self.0, backend => backend.name())
    }

    /// Registers a file descriptor. Tokens need not be unique.
    ///
    /// # Errors
    /// `AlreadyExists` if it is registered already. epoll also rejects regular files (`EPERM`) and
    /// can run out of memory or of watches (`ENOMEM`, `ENOSPC`). On an error nothing has changed.
    pub fn add(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let registration = Registration { token, interest };
        dispatch!(&mut self.0, backend => backend.register(fd, registration, false))
    }

    /// Registers a listener from which other processes accept as well, each with its own `Events`.
    /// epoll, epoll-edge and io_uring wake one sleeping process per connection (`EPOLLEXCLUSIVE`,
    /// Linux 4.5); select and poll wake all, and the late ones find nothing. Apart from that it is
    /// [`Events::add`], for listeners only: with [`Interest::NONE`] nothing at all is reported.
    ///
    /// A process that was woken and leaves connections must ask for them again or have another
    /// process woken, because the kernel notified no other process.
    ///
    /// ```
    /// use headway_event::{Events, Interest, Mechanism, Token};
    /// use std::net::{TcpListener, TcpStream};
    /// use std::os::fd::AsFd;
    /// use std::time::Duration;
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let mut events = Events::new(Mechanism::Epoll)?;
    /// events.add_shared(listener.as_fd(), Token::new(0, 0, 0), Interest::READ)?;
    ///
    /// let _client = TcpStream::connect(listener.local_addr()?)?;
    /// let mut ready = Vec::new();
    /// events.wait(&mut ready, Some(Duration::from_secs(5)))?;
    /// assert!(ready[0].readable);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Like [`Events::add`].
    pub fn add_shared(
        &mut self,
        fd: BorrowedFd<'_>,
        token: Token,
        interest: Interest,
    ) -> io::Result<()> {
        let registration = Registration { token, interest };
        dispatch!(&mut self.0, backend => backend.register(fd, registration, true))
    }

    /// Puts a shared listener at the end of the kernel's wait queue, so that other processes are
    /// woken first. epoll wakes the process that has been registered longest, so without this it
    /// would always be the same one. Pending connections are reported by the next wait. For a file
    /// descriptor that is not shared, and with the other mechanisms, nothing happens.
    ///
    /// ```
    /// use headway_event::{Events, Interest, Mechanism, Token};
    /// use std::net::{TcpListener, TcpStream};
    /// use std::os::fd::AsFd;
    /// use std::time::Duration;
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let mut events = Events::new(Mechanism::Epoll)?;
    /// events.add_shared(listener.as_fd(), Token::new(0, 0, 0), Interest::READ)?;
    ///
    /// let _clients = [(); 2].map(|()| TcpStream::connect(listener.local_addr().unwrap()));
    /// let mut ready = Vec::new();
    /// events.wait(&mut ready, Some(Duration::from_secs(5)))?;
    /// listener.accept()?;
    /// events.requeue_shared(listener.as_fd())?; // another process is woken for the second one
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound` if it is not registered; those of epoll_ctl(2), after which it may be
    /// unregistered.
    pub fn requeue_shared(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        dispatch!(&mut self.0, backend => backend.requeue_shared(fd))
    }

    /// Reports that the caller has read everything: a read found nothing, or less than it had room
    /// for. This is a hint that saves epoll-edge and io_uring a poll(2). The other mechanisms
    /// ignore it, and it is ignored for an unknown file descriptor.
    #[inline]
    pub fn drained(&mut self, fd: BorrowedFd<'_>) {
        dispatch!(&mut self.0, backend => backend.drained(fd));
    }

    /// Replaces the token and the interest of a registered file descriptor. This makes no system
    /// call with select, poll, epoll-edge and io_uring, and with epoll if the interest is
    /// unchanged.
    ///
    /// With [`Interest::NONE`] the file descriptor stays registered, and only a hang-up is
    /// reported: by poll, epoll, epoll-edge and io_uring at every wait until it is removed, by
    /// select never.
    ///
    /// ```
    /// use headway_event::{Events, Interest, Mechanism, Token};
    /// use std::os::fd::AsFd;
    /// use std::os::unix::net::UnixStream;
    /// use std::time::Duration;
    ///
    /// let (near, _far) = UnixStream::pair()?;
    /// let mut events = Events::new(Mechanism::Epoll)?;
    /// events.add(near.as_fd(), Token::new(0, 7, 0), Interest::READ)?;
    ///
    /// // There is a response to write.
    /// events.modify(near.as_fd(), Token::new(0, 7, 0), Interest::WRITE)?;
    /// let mut ready = Vec::new();
    /// events.wait(&mut ready, Some(Duration::from_secs(5)))?;
    /// assert!(ready[0].writable && !ready[0].readable);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound` if it is not registered.
    pub fn modify(
        &mut self,
        fd: BorrowedFd<'_>,
        token: Token,
        interest: Interest,
    ) -> io::Result<()> {
        let registration = Registration { token, interest };
        dispatch!(&mut self.0, backend => backend.modify(fd, registration))
    }

    /// Unregisters a file descriptor. Call this before closing it.
    ///
    /// # Errors
    /// `NotFound` if it is not registered.
    pub fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        dispatch!(&mut self.0, backend => backend.remove(fd))
    }

    /// Unregisters a file descriptor that is about to be closed and has no duplicates. epoll then
    /// needs no system call, because the kernel unregisters what is closed (epoll(7), question 6).
    ///
    /// ```
    /// use headway_event::{Events, Interest, Mechanism, Token};
    /// use std::os::fd::AsFd;
    /// use std::os::unix::net::UnixStream;
    ///
    /// let (near, _far) = UnixStream::pair()?;
    /// let mut events = Events::new(Mechanism::Epoll)?;
    /// events.add(near.as_fd(), Token::new(0, 7, 0), Interest::READ)?;
    /// events.forget(near.as_fd());
    /// drop(near);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn forget(&mut self, fd: BorrowedFd<'_>) {
        dispatch!(&mut self.0, backend => backend.forget(fd));
    }

    /// Waits, and replaces `ready` by the file descriptors that can make progress, up to
    /// [`EVENTS_PER_WAIT_MAX`].
    ///
    /// Sleeps until there is one or the timeout, rounded up to a millisecond, has passed; `None`
    /// means no timeout. It may return early without events: after a signal, so that the caller can
    /// check its flag, and after 24 days.
    ///
    /// # Errors
    /// Only errors that persist. `EBADF` (select) means that a file descriptor was closed without
    /// `remove`.
    pub fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()> {
        ready.clear();
        let timeout_ms = timeout.map(timeout_ms);
        match dispatch!(&mut self.0, backend => backend.wait(ready, timeout_ms)) {
            // The process may have been stopped. What became ready meanwhile comes before deadlines that
            // passed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                uninterrupted(dispatch!(&mut self.0, backend => backend.wait(ready, Some(0))))
            }
            waited => uninterrupted(waited),
        }
    }

    /// Waits like [`Events::wait`], with a timeout in nanoseconds.
    ///
    /// epoll, epoll-edge and io_uring do not round the timeout up to a millisecond, at the cost of
    /// a second system call if they have to sleep. The other mechanisms round it. The thread's
    /// timer slack is added (prctl(2), 50 µs by default).
    ///
    /// ```
    /// use headway_event::{Events, Mechanism};
    /// use std::time::{Duration, Instant};
    ///
    /// let mut events = Events::new(Mechanism::Epoll)?;
    /// let (begun, timeout) = (Instant::now(), Duration::from_micros(300));
    /// events.wait_precise(&mut Vec::new(), timeout)?;
    /// assert!(begun.elapsed() >= timeout);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Like [`Events::wait`].
    pub fn wait_precise(&mut self, ready: &mut Vec<Ready>, timeout: Duration) -> io::Result<()> {
        ready.clear();
        uninterrupted(dispatch!(&mut self.0, backend => backend.wait_precise(ready, timeout)))
    }
}

/// Adds to an error of io_uring_setup(2) what may have forbidden it, for other users of a ring.
///
/// ```
/// let error = std::io::Error::from_raw_os_error(1);
/// let explained = headway_event::explain_io_uring_error(error);
/// assert!(explained.to_string().contains("io_uring"));
/// ```
pub fn explain_io_uring_error(error: io::Error) -> io::Error {
    uring::explained(error)
}

/// A signal ends a wait early, without events. So does a lack of memory, which poll and select need
/// in proportion to their file descriptors: after a pause, so that this does not become a busy loop.
fn uninterrupted(waited: io::Result<()>) -> io::Result<()> {
    match waited {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
            std::thread::sleep(Duration::from_millis(1));
            Ok(())
        }
        other => other,
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Events").field(&self.mechanism()).finish()
    }
}
