//! A simulated mechanism: real readiness with injected disturbances, reproducible by a seed.
//!
//! A loop that works with epoll on an idle machine may still depend on the order of events, on
//! getting all of them at once, or on every wakeup having a cause. This mechanism reads from
//! poll(2) what is ready and then reorders events, withholds some, or adds spurious wakeups, so
//! that a failure found with a seed can be reproduced. With a [`Clock`] it never sleeps: if nothing
//! is ready, the timeout passes at once on that clock. With a script, the first waits return what
//! the script says and do not ask the kernel.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::poll::Poll;
use crate::types::{Interest, Ready, Registration};
use crate::{Backend, Clock, EVENTS_PER_WAIT_MAX};

use headway_base::random::{Draw, SplitMix64};

/// The disturbances of a simulated mechanism. A new plan has none.
///
/// ```
/// use headway_event::{Clock, Events, Plan};
/// use std::time::Duration;
///
/// let clock = Clock::simulated();
/// let plan = Plan::new(42).reordered().events_max(3).spurious_wakeups(10).clock(&clock);
/// let mut events = Events::simulated(plan);
/// let mut ready = Vec::new();
/// while clock.now_ms() < 60_000 {
///     events.wait(&mut ready, Some(Duration::from_secs(1)))?; // returns at once
///     assert!(ready.is_empty());
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Plan {
    seed: u64,
    events_max: usize,
    reordered: bool,
    spurious_wakeups_percent: u8,
    spurious_readiness_percent: u8,
    clock: Option<Clock>,
    script: VecDeque<Vec<Ready>>,
}

impl Plan {
    /// Creates a plan without disturbances. The seed decides every later choice.
    pub fn new(seed: u64) -> Plan {
        Plan {
            seed,
            events_max: EVENTS_PER_WAIT_MAX,
            reordered: false,
            spurious_wakeups_percent: 0,
            spurious_readiness_percent: 0,
            clock: None,
            script: VecDeque::new(),
        }
    }

    /// Limits each wait to `count` events, at least one. The others stay ready for the next wait.
    pub fn events_max(mut self, count: usize) -> Plan {
        self.events_max = count.clamp(1, EVENTS_PER_WAIT_MAX);
        self
    }

    /// Reports the events of a wait in random order. With [`Plan::events_max`], which ones come
    /// first is random too.
    pub fn reordered(mut self) -> Plan {
        self.reordered = true;
        self
    }

    /// Makes this percentage of waits return at once without events, as after a signal.
    pub fn spurious_wakeups(mut self, percent: u8) -> Plan {
        self.spurious_wakeups_percent = percent;
        self
    }

    /// Makes this percentage of waits report one random file descriptor as ready for what it is
    /// registered for, although a read or write may still fail with `EWOULDBLOCK`.
    pub fn spurious_readiness(mut self, percent: u8) -> Plan {
        self.spurious_readiness_percent = percent;
        self
    }

    /// Lets timeouts pass on this simulated clock instead of sleeping. A wait without a timeout
    /// while nothing is ready then fails with `Deadlock`, because nothing could ever end it.
    pub fn clock(mut self, clock: &Clock) -> Plan {
        self.clock = Some(clock.clone());
        self
    }

    /// Appends one wait to the script: it reports exactly these events, in this order, except those
    /// whose token is not registered or whose directions are not of interest.
    ///
    /// ```
    /// use headway_event::{Events, Interest, Plan, Ready, Token};
    /// use std::os::fd::AsFd;
    /// use std::os::unix::net::UnixStream;
    ///
    /// let token = Token::new(0, 7, 0);
    /// let spurious = Ready { token, readable: true, writable: false, hangup: false };
    /// let mut events = Events::simulated(Plan::new(42).then(&[spurious]));
    ///
    /// let (near, _far) = UnixStream::pair()?;
    /// events.add(near.as_fd(), token, Interest::READ)?;
    /// let mut ready = Vec::new();
    /// events.wait(&mut ready, None)?;
    /// assert_eq!(ready, [spurious]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn then(mut self, events: &[Ready]) -> Plan {
        self.script.push_back(events.to_vec());
        self
    }
}

pub(crate) struct Sim {
    inner: Poll,
    plan: Plan,
    random: SplitMix64,
}

impl Sim {
    pub fn new(plan: Plan) -> Sim {
        Sim {
            inner: Poll::new(),
            random: SplitMix64(plan.seed),
            plan,
        }
    }

    /// The scripted events that a kernel could deliver to this table.
    fn push_scripted(&self, step: &[Ready], ready: &mut Vec<Ready>) {
        for event in step {
            let known = self
                .inner
                .registrations()
                .iter()
                .find(|known| known.token == event.token);
            let Some(known) = known else { continue };
            let readable = event.readable && known.interest.reads();
            let writable = event.writable && known.interest.writes();
            if readable || writable || event.hangup {
                ready.push(Ready {
                    readable,
                    writable,
                    ..*event
                });
            }
        }
        ready.truncate(EVENTS_PER_WAIT_MAX);
    }

    fn wait_undisturbed(
        &mut self,
        ready: &mut Vec<Ready>,
        timeout_ms: Option<u32>,
    ) -> io::Result<()> {
        let Some(clock) = &self.plan.clock else {
            return self.inner.wait(ready, timeout_ms);
        };
        self.inner.wait(ready, Some(0))?;
        match timeout_ms {
            _ if !ready.is_empty() => Ok(()),
            Some(ms) => {
                clock.advance(Duration::from_millis(ms.into()));
                Ok(())
            }
            None => Err(io::Error::new(
                io::ErrorKind::Deadlock,
                "simulated wait without a timeout while nothing is ready",
            )),
        }
    }

    /// Whether something happens that has this probability.
    fn happens(&mut self, percent: u8) -> bool {
        self.random.below(100) < percent.into()
    }

    fn disturb(&mut self, ready: &mut Vec<Ready>) {
        if self.happens(self.plan.spurious_readiness_percent) {
            self.add_spurious_event(ready);
        }
        if self.plan.reordered {
            self.random.shuffle(ready);
        }
        ready.truncate(self.plan.events_max);
    }

    /// Adds a spurious event, unless the file descriptor is ready anyway or has no interest.
    fn add_spurious_event(&mut self, ready: &mut Vec<Ready>) {
        let known = self.inner.registrations();
        if known.is_empty() {
            return;
        }
        let chosen = known[self.random.index(known.len())];
        let is_reported = ready.iter().any(|event| event.token == chosen.token);
        if !is_reported && chosen.interest != Interest::NONE {
            ready.push(Ready {
                token: chosen.token,
                readable: chosen.interest.reads(),
                writable: chosen.interest.writes(),
                hangup: false,
            });
        }
    }
}

impl Backend for Sim {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn register(
        &mut self,
        fd: BorrowedFd<'_>,
        registration: Registration,
        shared: bool,
    ) -> io::Result<()> {
        self.inner.register(fd, registration, shared)
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, registration: Registration) -> io::Result<()> {
        self.inner.modify(fd, registration)
    }

    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.inner.remove(fd)
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout_ms: Option<u32>) -> io::Result<()> {
        if let Some(step) = self.plan.script.pop_front() {
            self.push_scripted(&step, ready);
            return Ok(());
        }
        if self.happens(self.plan.spurious_wakeups_percent) {
            return Ok(());
        }
        self.wait_undisturbed(ready, timeout_ms)?;
        self.disturb(ready);
        Ok(())
    }
}
