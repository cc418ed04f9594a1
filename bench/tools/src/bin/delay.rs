//! A server whose latency is known: each response leaves a chosen time after its request was read.
//!
//! The delays have the quantile function `min + (max - min) · u^power`; the u are multiples of the
//! golden ratio modulo 1, which fill [0, 1) evenly, so that the percentiles of n requests are those
//! of the distribution to about 1/n. It spins instead of sleeping, so that its own error is some
//! microseconds; `GET /truth` says what the delays really were, from reading a request to writing
//! its response. With `--stall-ms` it stops altogether at the beginning of every `--every-ms`, as a
//! server does that waits for its disk. It refuses to be anything else: it reads no more of a
//! request than its path, and gives a pipelined request no response of its own.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send, sockopt};

const EVENTS_MAX: usize = 256;
const REQUEST_BYTES_MAX: usize = 4096;
const LISTENER: u64 = u64::MAX;
const GOLDEN_RATIO: f64 = 0.618_033_988_749_894_9;
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nServer: delay\r\nContent-Length: 5\r\n\r\nhello";

/// What was asked on the command line.
struct Settings {
    address: SocketAddr,
    min_us: f64,
    max_us: f64,
    power: f64,
    stall: Duration,
    every: Duration,
}

/// A connection. The generation tells a response that is due from one whose connection has gone.
struct Connection {
    socket: OwnedFd,
    generation: u64,
}

struct Server {
    settings: Settings,
    listener: TcpListener,
    poll: OwnedFd,
    begun: Instant,
    connections: Vec<Option<Connection>>,
    /// Responses by the moment they are due: slot, generation, moment of reading.
    due: BinaryHeap<Reverse<(Instant, usize, u64, Instant)>>,
    requests: u64,
    generations: u64,
    /// What the delays really were, nanoseconds.
    truth: Vec<u64>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut server = Server::listen(settings()?)?;
    loop {
        server.turn()?;
    }
}

fn settings() -> Result<Settings, Box<dyn Error>> {
    let mut settings = Settings {
        address: "127.0.0.1:8080".parse()?,
        min_us: 200.0,
        max_us: 20_000.0,
        power: 8.0,
        stall: Duration::ZERO,
        every: Duration::ZERO,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments
            .next()
            .ok_or_else(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--listen" => settings.address = value.parse()?,
            "--min-us" => settings.min_us = value.parse()?,
            "--max-us" => settings.max_us = value.parse()?,
            "--power" => settings.power = value.parse()?,
            "--stall-ms" => settings.stall = Duration::from_millis(value.parse()?),
            "--every-ms" => settings.every = Duration::from_millis(value.parse()?),
            other => {
                return Err(format!(
                    "{other}: not known; delay [--listen ADDR] [--min-us N] [--max-us N] [--power N] \
                     [--stall-ms N --every-ms N]"
                )
                .into());
            }
        }
    }
    Ok(settings)
}

impl Server {
    fn listen(settings: Settings) -> Result<Server, Box<dyn Error>> {
        let listener = TcpListener::bind(settings.address)?;
        listener.set_nonblocking(true)?;
        let poll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(
            &poll,
            &listener,
            EventData::new_u64(LISTENER),
            EventFlags::IN,
        )?;
        Ok(Server {
            settings,
            listener,
            poll,
            begun: Instant::now(),
            connections: Vec::new(),
            due: BinaryHeap::new(),
            requests: 0,
            generations: 0,
            truth: Vec::new(),
        })
    }

    fn turn(&mut self) -> Result<(), Errno> {
        self.stall();
        let nothing = Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        };
        let mut events = [nothing; EVENTS_MAX];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let ready = match epoll::wait(&self.poll, &mut events[..], Some(&at_once)) {
            Ok(ready) => ready,
            Err(Errno::INTR) => 0,
            Err(error) => return Err(error),
        };
        for event in &events[..ready] {
            match event.data.u64() {
                LISTENER => self.accept()?,
                slot => self.read(slot as usize),
            }
        }
        self.response_what_is_due();
        Ok(())
    }

    /// Sleeps to the end of the stall, if this moment is in one. The first interval begins without.
    fn stall(&self) {
        if self.settings.every.is_zero() {
            return;
        }
        let every = self.settings.every.as_nanos();
        let now = self.begun.elapsed().as_nanos();
        let within = Duration::from_nanos((now % every) as u64);
        if now >= every && within < self.settings.stall {
            std::thread::sleep(self.settings.stall - within);
        }
    }

    fn accept(&mut self) -> Result<(), Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            let socket = match accept_with(&self.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN | Errno::CONNABORTED | Errno::MFILE) => return Ok(()),
                Err(error) => return Err(error),
            };
            sockopt::set_tcp_nodelay(&socket, true)?;
            let slot = socket.as_raw_fd() as usize;
            epoll::add(
                &self.poll,
                &socket,
                EventData::new_u64(slot as u64),
                EventFlags::IN,
            )?;
            if self.connections.len() <= slot {
                self.connections.resize_with(slot + 1, || None);
            }
            self.generations += 1;
            self.connections[slot] = Some(Connection {
                socket,
                generation: self.generations,
            });
        }
    }

    fn read(&mut self, slot: usize) {
        let Some(connection) = &self.connections[slot] else {
            return;
        };
        let mut request = [0; REQUEST_BYTES_MAX];
        let read = recv(
            connection.socket.as_fd(),
            &mut request[..],
            RecvFlags::empty(),
        );
        match read {
            Ok((_, 0)) => self.connections[slot] = None,
            Ok((_, bytes)) if request[..bytes].starts_with(b"GET /truth ") => {
                let text = self.told();
                // A short write would need a long text; this is one line.
                let _ = send(
                    connection.socket.as_fd(),
                    text.as_bytes(),
                    SendFlags::NOSIGNAL,
                );
                self.connections[slot] = None;
            }
            Ok(_) => {
                let now = Instant::now();
                let due = now + self.next_delay();
                let generation = connection.generation;
                self.due.push(Reverse((due, slot, generation, now)));
                self.requests += 1;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.connections[slot] = None,
        }
    }

    fn next_delay(&self) -> Duration {
        let u = (self.requests as f64 * GOLDEN_RATIO).fract();
        let span = self.settings.max_us - self.settings.min_us;
        let us = self.settings.min_us + span * u.powf(self.settings.power);
        Duration::from_nanos((us * 1000.0) as u64)
    }

    fn response_what_is_due(&mut self) {
        while let Some(Reverse((due, slot, generation, read))) = self.due.peek().copied() {
            let now = Instant::now();
            if due > now {
                return;
            }
            self.due.pop();
            let connection = self.connections[slot].as_ref();
            let Some(connection) = connection.filter(|one| one.generation == generation) else {
                continue;
            };
            if send(connection.socket.as_fd(), RESPONSE, SendFlags::NOSIGNAL) != Ok(RESPONSE.len())
            {
                self.connections[slot] = None;
                continue;
            }
            self.truth.push((now - read).as_nanos() as u64);
        }
    }

    /// `requests p50 p90 p95 p99 p99.9` in microseconds, nearest rank.
    fn told(&self) -> String {
        let mut truth = self.truth.clone();
        truth.sort_unstable();
        let mut line = truth.len().to_string();
        for percent in [50.0, 90.0, 95.0, 99.0, 99.9] {
            let rank = (truth.len() as f64 * percent / 100.0).ceil() as usize;
            let ns = truth.get(rank.saturating_sub(1)).copied().unwrap_or(0);
            line += &format!(" {:.1}", ns as f64 / 1000.0);
        }
        line.push('\n');
        format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{line}",
            line.len()
        )
    }
}
