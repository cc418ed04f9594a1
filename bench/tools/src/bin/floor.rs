//! The floor: what a request costs when a server does nothing but read it and write an answer.
//!
//! One thread, one level-triggered epoll loop, one `recv` and one `send` a request, a fixed answer of
//! 500 bytes with the head a real server would send. It refuses everything else: it does not parse (so
//! pipelined requests get one answer a read), looks nothing up, keeps no deadline and logs nothing. A
//! real server cannot be faster on the same kernel; how near it comes is what `bench/serve` reports.
//!
//! With `--close` it closes the connection after the answer, for the case of one request a connection.
#![forbid(unsafe_code)]

use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send, sockopt};

/// Ready events taken from the kernel at once.
const EVENTS_MAX: usize = 256;
/// More than any request of the benchmarks; a longer one would be answered twice.
const REQUEST_BYTES_MAX: usize = 4096;
const BODY_BYTES: usize = 500;
/// The token of the listener; connections use their descriptor number, which cannot reach it.
const LISTENER: u64 = u64::MAX;

/// The connections by descriptor number: the kernel gives the lowest free one, so a table is enough.
type Connections = Vec<Option<OwnedFd>>;

fn main() -> Result<(), Box<dyn Error>> {
    let mut address: SocketAddr = "127.0.0.1:8080".parse()?;
    let mut close = false;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--listen" => {
                address = arguments
                    .next()
                    .ok_or("--listen needs an address")?
                    .parse()?
            }
            "--close" => close = true,
            other => {
                return Err(format!("{other}: not known; floor [--listen ADDR] [--close]").into());
            }
        }
    }
    serve(address, close)
}

fn serve(address: SocketAddr, close: bool) -> Result<(), Box<dyn Error>> {
    // The standard library sets SO_REUSEADDR and a listen queue of 4096.
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    if close {
        // As the servers do: with one request per connection it halves the wakeups.
        headway_os::listen::defer_accept(&listener, 1)?;
    }
    let poll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(
        &poll,
        &listener,
        EventData::new_u64(LISTENER),
        EventFlags::IN,
    )?;
    let answer = answer(close);
    let mut connections = Connections::new();
    let nothing = Event {
        flags: EventFlags::empty(),
        data: EventData::new_u64(0),
    };
    let mut events = [nothing; EVENTS_MAX];
    loop {
        let ready = match epoll::wait(&poll, &mut events[..], None) {
            Ok(ready) => ready,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        for event in &events[..ready] {
            match event.data.u64() {
                LISTENER => accept_one(&listener, &poll, &mut connections)?,
                token => answer_one(&mut connections[token as usize], &answer, close),
            }
        }
    }
}

/// The fields are those that headway sends for a small file, so that the bytes on the wire are the same.
fn answer(close: bool) -> Vec<u8> {
    let connection = if close { "Connection: close\r\n" } else { "" };
    let mut answer = format!(
        "HTTP/1.1 200 OK\r\nServer: Headway\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\n\
         Content-Type: application/octet-stream\r\nContent-Length: {BODY_BYTES}\r\n\
         Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nETag: \"1f4-64c9a3b2d1e0f\"\r\n\
         Accept-Ranges: bytes\r\n{connection}\r\n"
    )
    .into_bytes();
    answer.resize(answer.len() + BODY_BYTES, b'x');
    answer
}

fn accept_one(
    listener: &TcpListener,
    poll: &OwnedFd,
    connections: &mut Connections,
) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connection = match accept_with(listener, flags) {
        Ok(connection) => connection,
        // The client left before we came, or a descriptor is missing: neither concerns the floor.
        Err(Errno::AGAIN | Errno::CONNABORTED | Errno::MFILE) => return Ok(()),
        Err(error) => return Err(error),
    };
    sockopt::set_tcp_nodelay(&connection, true)?;
    let slot = connection.as_raw_fd() as usize;
    epoll::add(
        poll,
        &connection,
        EventData::new_u64(slot as u64),
        EventFlags::IN,
    )?;
    if connections.len() <= slot {
        connections.resize_with(slot + 1, || None);
    }
    connections[slot] = Some(connection);
    Ok(())
}

/// One read, one write. Closing the descriptor also takes it out of the epoll set.
fn answer_one(slot: &mut Option<OwnedFd>, answer: &[u8], close: bool) {
    let Some(connection) = slot else { return };
    let mut request = [0u8; REQUEST_BYTES_MAX];
    // The answer and the end of the connection leave in one segment.
    let more = match close {
        true => SendFlags::MORE,
        false => SendFlags::empty(),
    };
    let keep = match recv(connection.as_fd(), &mut request[..], RecvFlags::empty()) {
        Ok((_, 0)) => false,
        Ok(_) => {
            send(connection.as_fd(), answer, SendFlags::NOSIGNAL | more) == Ok(answer.len())
                && !close
        }
        Err(Errno::AGAIN | Errno::INTR) => true,
        Err(_) => false,
    };
    if !keep {
        *slot = None;
    }
}
