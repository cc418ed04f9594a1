//! The clients of `bench/floods`: an ordinary one, and one that floods a server with frames of HTTP/2 in the clear.
//!
//!     floods ADDRESS victim PATH RATE SECONDS
//!     floods ADDRESS ATTACK CONNECTIONS SECONDS [MB_PER_SECOND]
//!     floods ADDRESS sink
//!
//! The ordinary client has ten connections. Latency is counted from when a request was due, and so is the part of it before
//! the client begins to send. A connection of either that the server ends is made again at once. So is one of an attacker
//! of which the server takes nothing for a while. With MB_PER_SECOND all attackers together send at most so much. The
//! result is JSON.
//!
//! A sink is a server for attackers alone, which shows what they do to a client of another server. It takes some bytes of
//! each connection, ends it, and runs until its process is ended.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use headway_test_support::http2::*;

const USAGE: &str = "floods ADDRESS victim PATH RATE SECONDS, floods ADDRESS ATTACK CONNECTIONS SECONDS [MB_PER_SECOND], or floods ADDRESS sink";
const VICTIM_CONNECTIONS: u32 = 10;
/// When the ordinary client gives a request up.
const PATIENCE: Duration = Duration::from_secs(10);
/// What an attacker sends at a time, about.
const BURST_BYTES: usize = 16 << 10;
/// When an attacker gives up a connection of which the server takes nothing.
const BLOCKED_MAX: Duration = Duration::from_millis(100);
/// What a sink takes of a connection.
const SINK_BYTES: usize = 64 << 10;
/// When an attacker begins another connection, whose streams have small numbers again.
const STREAM_MAX: u32 = 1 << 30;

fn main() -> Result<(), &'static str> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [address, "victim", path, rate, seconds] => {
            victim(address, path, number(rate)?, number(seconds)?);
        }
        [address, "sink"] => sink(address).map_err(|_| "cannot listen there")?,
        [address, attack, connections, seconds] => {
            let attack = Attack::of(attack).ok_or(USAGE)?;
            flood(
                address,
                attack,
                number(connections)?,
                number(seconds)?,
                None,
            );
        }
        [address, attack, connections, seconds, mb_per_second] => {
            let attack = Attack::of(attack).ok_or(USAGE)?;
            let connections = number(connections)?;
            let share =
                u64::from(number(mb_per_second)?) * 1_000_000 / u64::from(connections.max(1));
            flood(address, attack, connections, number(seconds)?, Some(share));
        }
        _ => return Err(USAGE),
    }
    Ok(())
}

fn number(text: &str) -> Result<u32, &'static str> {
    text.parse().map_err(|_| USAGE)
}

// ---- the ordinary client ----------------------------------------------------------------------------

fn victim(address: &str, path: &str, rate: u32, seconds: u32) {
    let begun = Instant::now();
    let interval = Duration::from_secs(1) * VICTIM_CONNECTIONS / rate;
    let clients: Vec<_> = (0..VICTIM_CONNECTIONS)
        .map(|at| {
            let (address, path) = (address.to_owned(), path.to_owned());
            let first = begun + interval * at / VICTIM_CONNECTIONS;
            let end = begun + Duration::from_secs(seconds.into());
            thread::spawn(move || ask(&address, &path, (first, interval, end)))
        })
        .collect();
    let mut all = Asked::default();
    for client in clients {
        let own = client.join().unwrap_or_default();
        all.latencies.extend(own.latencies);
        all.begun_late.extend(own.begun_late);
        all.errors += own.errors;
    }
    all.latencies.sort_unstable();
    all.begun_late.sort_unstable();
    println!(
        "{{\n  \"count\": {},\n  \"errors\": {},\n  \"p50_us\": {},\n  \"p99_us\": {},\n  \"max_us\": {},\n  \"late_p99_us\": {}\n}}",
        all.latencies.len(),
        all.errors,
        percentile_us(&all.latencies, 50),
        percentile_us(&all.latencies, 99),
        percentile_us(&all.latencies, 100),
        percentile_us(&all.begun_late, 99)
    );
}

fn percentile_us(sorted: &[Duration], percent: usize) -> u128 {
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).map_or(0, Duration::as_micros)
}

/// What a client has seen.
#[derive(Default)]
struct Asked {
    latencies: Vec<Duration>,
    /// How long after they were due requests began.
    begun_late: Vec<Duration>,
    /// How many requests have failed.
    errors: u32,
}

/// Asks once each interval.
fn ask(address: &str, path: &str, (first, interval, end): (Instant, Duration, Instant)) -> Asked {
    let mut asked = Asked::default();
    let mut connection: Option<(TcpStream, u32)> = None;
    let mut due = first;
    while due < end {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        asked.begun_late.push(due.elapsed());
        let (mut socket, stream) = match connection.take() {
            Some(open) => open,
            None => match begin(address) {
                Ok(socket) => (socket, 1),
                Err(_) => {
                    asked.errors += 1;
                    due += interval;
                    continue;
                }
            },
        };
        match answered(&mut socket, stream, path) {
            Ok(()) => {
                asked.latencies.push(due.elapsed());
                connection = Some((socket, stream + 2));
            }
            Err(_) => asked.errors += 1,
        }
        due += interval;
    }
    asked
}

fn begin(address: &str) -> io::Result<TcpStream> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.write_all(&hello(&[]))?;
    Ok(socket)
}

fn answered(socket: &mut TcpStream, stream: u32, path: &str) -> io::Result<()> {
    socket.write_all(&get(stream, path))?;
    let ended = || io::Error::from(ErrorKind::UnexpectedEof);
    loop {
        let frame = Frame::read(socket).ok_or_else(ended)?;
        match frame.kind {
            DATA if !frame.payload.is_empty() => {
                let bytes = frame.payload.len() as u32;
                socket.write_all(&window_update(0, bytes))?;
            }
            RST_STREAM | GOAWAY => return Err(ended()),
            _ => {}
        }
        if frame.stream == stream && frame.is_last() {
            return Ok(());
        }
    }
}

// ---- the attackers ----------------------------------------------------------------------------------

#[derive(Clone, Copy)]
enum Attack {
    RapidReset,
    Continuation,
    Settings,
    Ping,
    EmptyData,
    TinyWindowUpdate,
    TinyData,
    HeaderBomb,
}

impl Attack {
    fn of(name: &str) -> Option<Attack> {
        Some(match name {
            "rapid-reset" => Attack::RapidReset,
            "continuation" => Attack::Continuation,
            "settings" => Attack::Settings,
            "ping" => Attack::Ping,
            "empty-data" => Attack::EmptyData,
            "tiny-window-update" => Attack::TinyWindowUpdate,
            "tiny-data" => Attack::TinyData,
            "header-bomb" => Attack::HeaderBomb,
            _ => return None,
        })
    }

    /// What a connection sends before it repeats itself.
    fn opening(self) -> Vec<u8> {
        match self {
            Attack::Continuation => frame(HEADERS, 0, 1, &request_block("GET", "/")),
            Attack::EmptyData | Attack::TinyData => {
                frame(HEADERS, END_HEADERS, 1, &request_block("POST", "/"))
            }
            _ => Vec::new(),
        }
    }

    /// What it repeats.
    fn burst(self, stream: &mut u32) -> Vec<u8> {
        let repeated = match self {
            Attack::RapidReset | Attack::HeaderBomb => return self.requests(stream),
            Attack::Continuation => frame(CONTINUATION, 0, 1, &block(&[("x", "y")])),
            Attack::Settings => settings(&[(INITIAL_WINDOW_SIZE, 65_535)]),
            Attack::Ping => frame(PING, 0, 0, &[0; 8]),
            Attack::EmptyData => frame(DATA, 0, 1, b""),
            Attack::TinyWindowUpdate => window_update(0, 1),
            Attack::TinyData => frame(DATA, 0, 1, b"x"),
        };
        repeated.repeat(BURST_BYTES / repeated.len())
    }

    fn requests(self, stream: &mut u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < BURST_BYTES {
            match self {
                Attack::HeaderBomb => {
                    let mut bomb = request_block("GET", "/");
                    bomb.extend(kept(b"a", &[b'b'; 3800]));
                    bomb.extend(vec![KEPT_AGAIN; 12_000]);
                    bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, *stream, &bomb));
                }
                _ => bytes.extend([get(*stream, "/"), reset(*stream)].concat()),
            }
            *stream += 2;
        }
        bytes
    }
}

/// What an attacker has done.
#[derive(Default)]
struct Done {
    sent_bytes: u64,
    connections: u64,
    refused: u64,
}

/// `share`: the bytes per second of each attacker, if there is a limit.
fn flood(address: &str, attack: Attack, connections: u32, seconds: u32, share: Option<u64>) {
    let begun = Instant::now();
    let end = begun + Duration::from_secs(seconds.into());
    let attackers: Vec<_> = (0..connections)
        .map(|_| {
            let address = address.to_owned();
            thread::spawn(move || {
                let mut done = Done::default();
                while Instant::now() < end {
                    match TcpStream::connect(&address) {
                        Ok(socket) => {
                            done.connections += 1;
                            // That the server ends it is what should happen.
                            let pace = Pace { begun, end, share };
                            let _ = attack_once(socket, attack, pace, &mut done.sent_bytes);
                        }
                        Err(_) => {
                            done.refused += 1;
                            thread::sleep(Duration::from_millis(10));
                        }
                    }
                }
                done
            })
        })
        .collect();
    let mut all = Done::default();
    for attacker in attackers {
        let done = attacker.join().unwrap_or_default();
        all.sent_bytes += done.sent_bytes;
        all.connections += done.connections;
        all.refused += done.refused;
    }
    println!(
        "{{\n  \"connections\": {},\n  \"refused\": {},\n  \"sent_mb\": {:.1}\n}}",
        all.connections,
        all.refused,
        all.sent_bytes as f64 / 1e6
    );
}

/// Takes some bytes of each connection.
fn sink(address: &str) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    for socket in listener.incoming() {
        let mut socket = socket?;
        thread::spawn(move || {
            let (mut received, mut taken) = (vec![0; 16 << 10], 0);
            while taken < SINK_BYTES
                && let Ok(count @ 1..) = socket.read(&mut received)
            {
                taken += count;
            }
        });
    }
    Ok(())
}

/// When an attacker sends.
#[derive(Clone, Copy)]
struct Pace {
    begun: Instant,
    end: Instant,
    share: Option<u64>,
}

impl Pace {
    /// Whether an attacker that has sent so much must wait.
    fn is_ahead(&self, sent_bytes: u64) -> bool {
        self.share.is_some_and(|share| {
            sent_bytes as f64 > self.begun.elapsed().as_secs_f64() * share as f64
        })
    }
}

/// Attacks until the server ends the connection.
fn attack_once(
    mut socket: TcpStream,
    attack: Attack,
    pace: Pace,
    sent_bytes: &mut u64,
) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    let (mut stream, mut received) = (1, [0; 16 << 10]);
    let mut unsent = [hello(&[]), attack.opening()].concat();
    let mut progressed = Instant::now();
    while Instant::now() < pace.end && stream < STREAM_MAX {
        if pace.is_ahead(*sent_bytes) {
            thread::sleep(Duration::from_millis(1));
            progressed = Instant::now();
            continue;
        }
        if unsent.is_empty() {
            unsent = attack.burst(&mut stream);
        }
        let written = match socket.write(&unsent) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        unsent.drain(..written);
        *sent_bytes += written as u64;
        if written > 0 {
            progressed = Instant::now();
        } else if progressed.elapsed() > BLOCKED_MAX {
            return Ok(());
        }
        match socket.read(&mut received) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if written == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
