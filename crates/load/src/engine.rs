//! The client engine: a loop on one thread that sends requests by a plan and times every response.
//!
//! [`run`] does everything. A [`Plan`] describes the load; an [`Observer`] gets every request as a
//! [`headway_latency::Row`] and may stop the run; [`Measured`] describes the client itself, because
//! a client that started requests late measured itself and not the server.
//!
//! Three instants belong to a request. The *intended* start is when its schedule wanted it, and no
//! stall of the server or of this program moves it. The actual *start* is when it got its
//! connection: the connect of a new one, the send on a kept one. The *end* is its last byte, or the
//! moment it failed. Response time counts from the first, service time from the second; a client
//! that only knows the second leaves out the very requests that had to wait (coordinated omission).
//!
//! What is refused: pipelining, redirects, and any retry but the one that [`Measured::retried`]
//! counts; cookies, and bodies that differ, but those of a [`Conversation`]. Without TLS nothing is
//! allocated for a request once a run has warmed up.
//!
//! The files, in the order a request meets them: `schedule` (when), `requests` (what), `arrive`,
//! `pool` and `dial` (on which connection), `exchange` and `response` (out and in), `sealed` and
//! `tls_session` (the same through TLS), `http2` (in place of both), `counters` (its row); `event_loop` is the loop around them, `core` their state, `slot`, `timers` and `bandwidth` what
//! they use; `part` divides a run among threads; `conversation` stands for `requests` and for the judgement where clients differ.
//!
//! Sources: dissertation sections 3.2.2 and 3.2.3; Brecht and Ostrowski section 5; Mosberger and
//! Jin, "httperf" (1998); Schroeder, Wierman and Harchol-Balter, "Open versus closed" (2006).

use std::io;
use std::num::NonZeroU64;
use std::path::PathBuf;

use headway_event::{Events, Mechanism};
use rustix::thread;
use rustix::time::{ClockId, clock_gettime};

mod arrive;
mod bandwidth;
mod conversation;
mod core;
mod dial;
mod exchange;
mod http2;
mod method;
mod observer;
mod part;
mod plan;
mod pool;
mod protocol;
mod proxy_header;
mod response;
mod requests;
mod schedule;
mod sealed;
mod slot;
mod counters;
mod timers;
mod tls_session;
mod event_loop;
#[cfg(feature = "fuzzing")]
mod fuzzing;

pub use conversation::{Client, Conversation, RequestFacts, RequestParts};
#[cfg(feature = "fuzzing")]
pub use fuzzing::read_in_pieces;
pub use method::Method;
pub use observer::{
    Control, Epoch, Failure, Handshakes, LimitsMet, Live, Measured, Observer, Stage,
};
pub use part::Part;
pub(crate) use plan::is_token;
pub use plan::{
    Address, Arrivals, BODY_BYTES_MAX, Document, Draws, Mode, Plan, PlanError, Popularity,
    Protocol, RequestOrder, Schedule, Segment, Sources, Stop, Target, Work,
};
pub use proxy_header::ProxyVersion;
pub(crate) use proxy_header::header as proxy_header;

/// Why a run could not be carried out. What happens to a request is never an error but a row.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The plan makes no sense.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The path of a Unix socket has no place in an address (108 bytes).
    #[error("{}: too long for the address of a Unix socket (107 bytes)", path.display())]
    SocketPath {
        /// The path.
        path: PathBuf,
    },
    /// No descriptor or memory for the event mechanism.
    #[error("epoll_create: {0}; nothing was sent")]
    Events(#[source] io::Error),
    /// The event mechanism failed in the middle of a run. Rows up to then have been handed over.
    #[error("epoll_wait: {0}; the run ends here")]
    Wait(#[source] io::Error),
}

/// Carries out a plan, and returns when the last of its requests has ended.
///
/// The calling thread does all of it: pin it to a core of its own. Its timer slack is set to the
/// shortest for the time being.
///
/// # Errors
/// [`EngineError`]: nothing was sent, except with [`EngineError::Wait`].
///
/// ```
/// use std::io::{Read, Write};
/// use headway_load::engine::{self, Address, Observer, Plan, Stop, Target, Work};
/// use headway_latency::{Outcome, Row};
///
/// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr()?;
/// std::thread::spawn(move || {
///     let (mut client, _) = listener.accept()?;
///     let mut head = [0; 1024];
///     while client.read(&mut head)? > 0 {
///         client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
///     }
///     std::io::Result::Ok(())
/// });
///
/// struct Rows(Vec<Row>);
/// impl Observer for Rows {
///     fn rows(&mut self, batch: &mut Vec<Row>) {
///         self.0.append(batch);
///     }
/// }
/// let target = Target::new(Address::Inet(address), address.to_string());
/// let mut plan = Plan::closed(target, Work::paths(["/"]), 1);
/// plan.stop = Stop { requests: Some(3), ..Stop::default() };
/// let mut rows = Rows(Vec::new());
/// let measured = engine::run(&plan, &mut rows)?;
/// assert_eq!(measured.requests, 3);
/// assert!(rows.0.iter().all(|row| row.error == Outcome::Ok && row.bytes == 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run(plan: &Plan, observer: &mut dyn Observer) -> Result<Measured, EngineError> {
    let events = Events::new(Mechanism::Epoll).map_err(EngineError::Events)?;
    run_on(plan, observer, events)
}

/// As [`run`], with the events of the caller: tests give simulated ones.
///
/// # Errors
/// As [`run`].
#[doc(hidden)]
pub fn run_on(
    plan: &Plan,
    observer: &mut dyn Observer,
    events: Events,
) -> Result<Measured, EngineError> {
    plan.check()?;
    Loop::on(plan, Part::WHOLE, observer, events)?.run(Epoch::now())
}

/// A loop that has everything it needs, and has not begun.
///
/// With several threads each makes its own, and all begin at the same epoch.
///
/// ```no_run
/// use headway_load::engine::{Epoch, Loop, Observer, Part, Plan};
///
/// fn run_on_one_thread(plan: &Plan, observer: &mut dyn Observer) {
///     let prepared = Loop::new(plan, Part::WHOLE, observer).expect("descriptors");
///     prepared.run(Epoch::now()).expect("events");
/// }
/// ```
pub struct Loop<'a>(core::Engine<'a>);

impl<'a> Loop<'a> {
    /// Prepares a part of a plan that [`Plan::check`] has passed.
    ///
    /// # Errors
    /// As [`run`].
    pub fn new(
        plan: &'a Plan,
        part: Part,
        observer: &'a mut dyn Observer,
    ) -> Result<Loop<'a>, EngineError> {
        let events = Events::new(Mechanism::Epoll).map_err(EngineError::Events)?;
        Loop::on(plan, part, observer, events)
    }

    fn on(
        plan: &'a Plan,
        part: Part,
        observer: &'a mut dyn Observer,
        events: Events,
    ) -> Result<Loop<'a>, EngineError> {
        core::Engine::new(plan, part, observer, events).map(Loop)
    }

    /// Carries it out, on the thread that prepared it. The rows count from `epoch`.
    ///
    /// # Errors
    /// As [`run`].
    pub fn run(self, epoch: Epoch) -> Result<Measured, EngineError> {
        let Loop(mut engine) = self;
        let slack_ns = thread::current_timer_slack().ok().and_then(NonZeroU64::new);
        // Without it sleeps end up to 50 us late, which only costs precision.
        let _ = thread::set_current_timer_slack(NonZeroU64::new(1));
        let cpu_before_ns = thread_cpu_ns();
        engine.begin(epoch);
        let turned = engine.run_until_done();
        let cpu_ns = thread_cpu_ns() - cpu_before_ns;
        let _ = thread::set_current_timer_slack(slack_ns);
        let (epoch, elapsed_ns) = (engine.epoch(), engine.update_clock());
        let idle_ns = turned.as_ref().map_or(0, |turned| turned.idle_ns);
        let mut measured = engine.counters.measured(epoch, elapsed_ns, idle_ns, cpu_ns);
        measured.stopped = turned.map_err(EngineError::Wait)?.stopped;
        Ok(measured)
    }
}

/// User and system time of this thread.
fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
