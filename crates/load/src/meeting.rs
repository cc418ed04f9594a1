//! Agents meet before they begin: all start at one moment, and know how far their clocks are apart.
//!
//! Agent 0 listens, the others connect to it. When all are there, each exchanges the time with agent 0 as in NTP
//! (RFC 5905, 8): its request carries its own time, and the answer the times of arrival and departure. The exchange
//! with the shortest round trip counts. The true offset is within half of that round trip, however long the paths are.
//! Then agent 0 names the moment to begin. No agent needs a right time, only a steady clock.
//!
//! What it refuses: to begin without an agent. It has nothing secret, and belongs into a private network.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use headway_latency::run::{AgentInfo, ClockInfo};

/// What begins a connection.
const HELLO: &[u8; 8] = b"headway1";
/// The answer to one that belongs here.
const WELCOME: u8 = 1;
/// The answer to one of another number of agents.
const FOREIGN: u8 = 2;
/// Exchanges of the time, of which the one with the shortest round trip counts.
const EXCHANGES: usize = 64;
/// From the last exchange to the common start.
const LEAD: Duration = Duration::from_millis(500);
/// Time for one step of another agent that is there.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two attempts to reach agent 0, which may not be there yet.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Moves the clock by this time, for tests.
const SKEW_VARIABLE: &str = "HEADWAY_CLOCK_SKEW_MS";

/// What an agent knows after the meeting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Met {
    /// When all begin, by its own clock, in nanoseconds since 1970.
    pub start_unix_ns: u64,
    /// Its clock against that of agent 0.
    pub clock: ClockInfo,
}

/// Why agents did not meet.
#[derive(Debug, thiserror::Error)]
pub enum MeetingError {
    /// The address cannot be listened at.
    #[error("--meet {address}: listen: {source}")]
    Listen {
        /// The address.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// Agent 0 is not there.
    #[error("--meet {address}: agent 0 cannot be reached within {seconds} s: {source}")]
    NoHost {
        /// The address.
        address: String,
        /// How long it was tried.
        seconds: f64,
        /// The last error.
        source: io::Error,
    },
    /// Not all agents are there.
    #[error(
        "--meet {address}: after {seconds} s agent {missing} of {count} is missing; nothing was measured"
    )]
    Missing {
        /// The address.
        address: String,
        /// How long they were waited for.
        seconds: f64,
        /// The numbers of the missing ones.
        missing: String,
        /// How many there should be.
        count: u32,
    },
    /// Agent 0 knows another number of agents.
    #[error("--meet {address}: agent 0 does not expect an agent {index} of {count}")]
    Foreign {
        /// The address.
        address: String,
        /// The own number.
        index: u32,
        /// How many there are.
        count: u32,
    },
    /// A connection failed.
    #[error("--meet {address}: {what}: {source}")]
    Broken {
        /// The address.
        address: String,
        /// What was tried.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The run was interrupted.
    #[error("interrupted before the start")]
    Interrupted,
}

/// The time of this machine.
pub fn wall_clock() -> SystemTime {
    static SKEW: std::sync::OnceLock<i64> = std::sync::OnceLock::new();
    let skew_ms = *SKEW.get_or_init(|| {
        let text = std::env::var(SKEW_VARIABLE).unwrap_or_default();
        text.parse().unwrap_or(0)
    });
    let now = SystemTime::now();
    let skew = Duration::from_millis(skew_ms.unsigned_abs());
    match skew_ms < 0 {
        true => now.checked_sub(skew).unwrap_or(now),
        false => now.checked_add(skew).unwrap_or(now),
    }
}

fn own_ns() -> u64 {
    let since = wall_clock().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// A meeting as this agent takes part in it.
pub struct Meeting<'m> {
    /// Where agent 0 listens.
    pub address: &'m str,
    /// Which of them this is.
    pub agent: AgentInfo,
    /// How long all may take to come.
    pub patience: Duration,
    /// Set when the run is to end.
    pub interrupt: &'m AtomicBool,
    /// Nanoseconds since 1970.
    clock: &'m (dyn Fn() -> u64 + Sync),
}

impl<'m> Meeting<'m> {
    /// One with the clock of this machine.
    pub fn new(
        address: &'m str,
        agent: AgentInfo,
        patience: Duration,
        interrupt: &'m AtomicBool,
    ) -> Meeting<'m> {
        Meeting {
            address,
            agent,
            patience,
            interrupt,
            clock: &own_ns,
        }
    }

    /// Waits for all others.
    ///
    /// # Errors
    /// See [`MeetingError`].
    pub fn attend(&self) -> Result<Met, MeetingError> {
        match self.agent.index {
            0 => self.host(&self.listen()?),
            _ => self.join(),
        }
    }

    /// On one machine an agent that asks too early may for a moment have the port itself.
    fn listen(&self) -> Result<TcpListener, MeetingError> {
        let deadline = Instant::now() + STEP_TIMEOUT.min(self.patience);
        loop {
            self.check_interrupt()?;
            match TcpListener::bind(self.address) {
                Ok(listener) => return Ok(listener),
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline =>
                {
                    std::thread::sleep(POLL_INTERVAL);
                }
                Err(source) => {
                    return Err(MeetingError::Listen {
                        address: self.address.into(),
                        source,
                    });
                }
            }
        }
    }

    fn broken(&self, what: &'static str) -> impl Fn(io::Error) -> MeetingError {
        let address = self.address.to_owned();
        move |source| MeetingError::Broken {
            address: address.clone(),
            what,
            source,
        }
    }

    fn check_interrupt(&self) -> Result<(), MeetingError> {
        match self.interrupt.load(Ordering::Relaxed) {
            true => Err(MeetingError::Interrupted),
            false => Ok(()),
        }
    }

    /// Agent 0.
    fn host(&self, listener: &TcpListener) -> Result<Met, MeetingError> {
        let mut guests = self.gather(listener)?;
        for guest in &mut guests {
            self.serve_exchanges(guest)
                .map_err(self.broken("exchange the time with an agent"))?;
        }
        let start_unix_ns = (self.clock)() + LEAD.as_nanos() as u64;
        for guest in &mut guests {
            guest
                .write_all(&start_unix_ns.to_le_bytes())
                .map_err(self.broken("tell an agent when to begin"))?;
        }
        Ok(Met {
            start_unix_ns,
            clock: ClockInfo::default(),
        })
    }

    /// Waits until all others have connected. One that is restarted connects again.
    fn gather(&self, listener: &TcpListener) -> Result<Vec<TcpStream>, MeetingError> {
        let deadline = Instant::now() + self.patience;
        listener
            .set_nonblocking(true)
            .map_err(self.broken("wait for agents"))?;
        let count = self.agent.count;
        let mut guests: Vec<Option<TcpStream>> = (1..count).map(|_| None).collect();
        while guests.iter().any(Option::is_none) {
            self.check_interrupt()?;
            match listener.accept() {
                Ok((stream, _)) => {
                    if let Some((index, stream)) = self.welcome(stream) {
                        guests[index as usize - 1] = Some(stream);
                    }
                }
                Err(_) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
                Err(_) => return Err(self.missing(&guests)),
            }
        }
        Ok(guests.into_iter().flatten().collect())
    }

    fn missing(&self, guests: &[Option<TcpStream>]) -> MeetingError {
        let missing = (1..).zip(guests).filter(|(_, guest)| guest.is_none());
        let missing: Vec<String> = missing.map(|(index, _)| index.to_string()).collect();
        MeetingError::Missing {
            address: self.address.into(),
            seconds: self.patience.as_secs_f64(),
            missing: missing.join(", "),
            count: self.agent.count,
        }
    }

    /// The number of one that belongs here. Something else may connect too, and is closed.
    fn welcome(&self, mut stream: TcpStream) -> Option<(u32, TcpStream)> {
        stream.set_nonblocking(false).ok()?;
        stream.set_nodelay(true).ok()?;
        stream.set_read_timeout(Some(STEP_TIMEOUT)).ok()?;
        stream.set_write_timeout(Some(STEP_TIMEOUT)).ok()?;
        let mut hello = [0; 16];
        stream.read_exact(&mut hello).ok()?;
        let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| hello[at + byte]));
        let (index, count) = (number(8), number(12));
        if &hello[..8] != HELLO {
            return None;
        }
        if count != self.agent.count || !(1..count).contains(&index) {
            // It says why, and ends.
            let _ = stream.write_all(&[FOREIGN]);
            return None;
        }
        stream.write_all(&[WELCOME]).ok()?;
        Some((index, stream))
    }

    fn serve_exchanges(&self, guest: &mut TcpStream) -> io::Result<()> {
        guest.write_all(&[WELCOME])?;
        for _ in 0..EXCHANGES {
            let mut sent = [0; 8];
            guest.read_exact(&mut sent)?;
            let arrived_ns = (self.clock)();
            let mut answer = [0; 16];
            answer[..8].copy_from_slice(&arrived_ns.to_le_bytes());
            answer[8..].copy_from_slice(&(self.clock)().to_le_bytes());
            guest.write_all(&answer)?;
        }
        Ok(())
    }

    /// Another agent.
    fn join(&self) -> Result<Met, MeetingError> {
        let mut host = self.connect()?;
        let mut hello = HELLO.to_vec();
        hello.extend(self.agent.index.to_le_bytes());
        hello.extend(self.agent.count.to_le_bytes());
        let greeted = self.broken("greet agent 0");
        host.write_all(&hello).map_err(&greeted)?;
        if read_byte(&mut host).map_err(&greeted)? != WELCOME {
            return Err(MeetingError::Foreign {
                address: self.address.into(),
                index: self.agent.index,
                count: self.agent.count,
            });
        }
        // All others have to come first, and each exchanges the time in its turn.
        self.wait_for(&mut host)?;
        let clock = self
            .exchange(&mut host)
            .map_err(self.broken("exchange the time with agent 0"))?;
        self.wait_for(&mut host)?;
        let mut start = [0; 8];
        host.read_exact(&mut start)
            .map_err(self.broken("wait for the start"))?;
        let start_unix_ns = u64::from_le_bytes(start).saturating_add_signed(-clock.offset_ns);
        Ok(Met {
            start_unix_ns,
            clock,
        })
    }

    fn connect(&self) -> Result<TcpStream, MeetingError> {
        let deadline = Instant::now() + self.patience;
        loop {
            self.check_interrupt()?;
            // Names may change while machines start.
            let reached = self.address.to_socket_addrs().and_then(|mut all| {
                let address = all.next().ok_or(io::ErrorKind::NotFound)?;
                let stream = TcpStream::connect_timeout(&address, STEP_TIMEOUT)?;
                // A free port of this machine may be connected to itself (simultaneous open, RFC 9293, 3.5).
                if stream.local_addr()? == stream.peer_addr()? {
                    return Err(io::ErrorKind::ConnectionRefused.into());
                }
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(STEP_TIMEOUT))?;
                Ok(stream)
            });
            match reached {
                Ok(stream) => return Ok(stream),
                Err(source) if Instant::now() >= deadline => {
                    return Err(MeetingError::NoHost {
                        address: self.address.into(),
                        seconds: self.patience.as_secs_f64(),
                        source,
                    });
                }
                Err(_) => std::thread::sleep(RETRY_INTERVAL),
            }
        }
    }

    /// Waits until agent 0 says something. If it gives up, it closes.
    fn wait_for(&self, host: &mut TcpStream) -> Result<(), MeetingError> {
        let waiting = self.broken("wait for the other agents");
        loop {
            self.check_interrupt()?;
            match host.peek(&mut [0]) {
                Ok(0) => return Err(waiting(io::ErrorKind::UnexpectedEof.into())),
                Ok(_) => return Ok(()),
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(waiting(error)),
            }
        }
    }

    /// Its clock against that of agent 0, from the exchange with the shortest round trip.
    fn exchange(&self, host: &mut TcpStream) -> io::Result<ClockInfo> {
        read_byte(host)?;
        let mut best: Option<ClockInfo> = None;
        for _ in 0..EXCHANGES {
            let sent_ns = (self.clock)();
            host.write_all(&sent_ns.to_le_bytes())?;
            let mut answer = [0; 16];
            host.read_exact(&mut answer)?;
            let received_ns = (self.clock)();
            let number =
                |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| answer[at + byte]));
            let found = clock_of(sent_ns, (number(0), number(8)), received_ns);
            if best.is_none_or(|best| found.error_ns < best.error_ns) {
                best = Some(found);
            }
        }
        best.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// The offset and its error from one exchange.
fn clock_of(sent_ns: u64, (arrived_ns, left_ns): (u64, u64), received_ns: u64) -> ClockInfo {
    let there = i128::from(arrived_ns) - i128::from(sent_ns);
    let back = i128::from(left_ns) - i128::from(received_ns);
    // What both sides waited for the other.
    let round_trip = (there - back).max(0);
    ClockInfo {
        offset_ns: i64::try_from((there + back) / 2).unwrap_or(0),
        error_ns: u64::try_from(round_trip / 2 + 1).unwrap_or(u64::MAX),
    }
}

fn read_byte(stream: &mut TcpStream) -> io::Result<u8> {
    let mut byte = [0];
    stream.read_exact(&mut byte)?;
    Ok(byte[0])
}

fn is_timeout(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

#[cfg(test)]
mod tests {
    use super::*;

    static RUNNING: AtomicBool = AtomicBool::new(false);

    fn real_ns() -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        since.as_nanos() as u64
    }

    fn meeting<'m>(
        address: &'m str,
        (index, count): (u32, u32),
        clock: &'m (dyn Fn() -> u64 + Sync),
    ) -> Meeting<'m> {
        Meeting {
            clock,
            ..Meeting::new(
                address,
                AgentInfo { index, count },
                Duration::from_secs(20),
                &RUNNING,
            )
        }
    }

    #[test]
    fn planted_offsets_are_found_and_all_begin_at_one_moment() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let skews_ms = [0_i64, 300, -300, 7];
        let all: Vec<Met> = std::thread::scope(|scope| {
            let host = scope.spawn(|| meeting(&address, (0, 4), &real_ns).host(&listener).unwrap());
            // Something else connects, and one that does not belong here.
            drop(TcpStream::connect(&address));
            let error = meeting(&address, (2, 9), &real_ns).join().unwrap_err();
            assert!(matches!(error, MeetingError::Foreign { .. }), "{error}");
            let guests: Vec<_> = (1..4)
                .map(|index| {
                    let skew_ns = skews_ms[index as usize] * 1_000_000;
                    let address = &address;
                    scope.spawn(move || {
                        let clock = move || real_ns().saturating_add_signed(skew_ns);
                        meeting(address, (index, 4), &clock).join().unwrap()
                    })
                })
                .collect();
            let all = std::iter::once(host).chain(guests);
            all.map(|agent| agent.join().unwrap()).collect()
        });
        for (met, skew_ms) in all.iter().zip(skews_ms) {
            let ClockInfo {
                offset_ns,
                error_ns,
            } = met.clock;
            eprintln!("skew {skew_ms} ms: offset {offset_ns} ns, error {error_ns} ns");
            let skew_ns = skew_ms * 1_000_000;
            assert!((offset_ns + skew_ns).unsigned_abs() <= error_ns);
            // The same moment on the clock of agent 0.
            let start_ns = met.start_unix_ns.saturating_add_signed(-skew_ns);
            assert!(start_ns.abs_diff(all[0].start_unix_ns) <= error_ns);
        }
    }

    #[test]
    fn offset_is_exact_when_both_ways_are_equal_and_within_the_error_when_not() {
        let of = |there_ns: u64, back_ns: u64, ahead_ns: u64| {
            let arrived = 1_000 + there_ns + ahead_ns;
            let received = 1_000 + there_ns + 50 + back_ns;
            clock_of(1_000, (arrived, arrived + 50), received)
        };
        assert_eq!(of(400, 400, 9_000).offset_ns, 9_000);
        for (there, back) in [(0, 1_000), (1_000, 0), (3, 7)] {
            let found = of(there, back, 9_000);
            assert!((found.offset_ns - 9_000).unsigned_abs() <= found.error_ns);
            assert_eq!(found.error_ns, (there + back) / 2 + 1);
        }
    }

    #[test]
    fn missing_agents_are_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let host = Meeting {
            patience: Duration::from_millis(50),
            ..meeting(&address, (0, 3), &real_ns)
        };
        let error = host.host(&listener).unwrap_err().to_string();
        assert!(error.contains("agent 1, 2 of 3 is missing"), "{error}");
        let host = meeting(&address, (0, 1), &real_ns);
        assert!(host.host(&listener).is_ok(), "alone");
    }
}
