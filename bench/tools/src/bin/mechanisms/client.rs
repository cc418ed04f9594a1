//! The clients: each sends a byte as soon as it has the last one back, on the same connection or on
//! a new one.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, recv, send,
    socket_with, sockopt,
};

/// Ready events taken from the kernel at once.
const EVENTS_MAX: usize = 1024;
/// Source addresses: one has only some 28,000 ports.
const SOURCES: usize = 16;
/// Connections that are opened before the server has to show that it has taken them: fewer than its
/// accept queue holds, or a SYN that finds it full would be repeated a second later.
const OPENED_AT_ONCE: usize = 64;

/// Connections to one server.
pub struct Clients {
    sockets: Vec<OwnedFd>,
    poll: OwnedFd,
    address: SocketAddr,
    /// Each byte has a connection of its own.
    churning: bool,
}

impl Clients {
    pub fn connect(address: SocketAddr, count: usize, churning: bool) -> Result<Clients, Errno> {
        let mut clients = Clients {
            sockets: Vec::with_capacity(count),
            poll: epoll::create(CreateFlags::CLOEXEC)?,
            address,
            churning,
        };
        for number in 0..count {
            let socket = clients.open(number)?;
            if number % OPENED_AT_ONCE == OPENED_AT_ONCE - 1 {
                // Taken in turn, so all before it are.
                send(&socket, b"x", SendFlags::NOSIGNAL)?;
                recv(&socket, &mut [0; 64], RecvFlags::empty())?;
            }
            clients.sockets.push(socket);
        }
        Ok(clients)
    }

    /// The connection of this number.
    fn open(&self, number: usize) -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        let source = Ipv4Addr::new(127, 0, 0, 2 + (number % SOURCES) as u8);
        bind(&socket, &SocketAddrV4::new(source, 0))?;
        connect(&socket, &self.address)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        if self.churning {
            // Closing is a reset, or ports would run out in TIME_WAIT within seconds.
            sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        }
        let data = EventData::new_u64(number as u64);
        epoll::add(&self.poll, &socket, data, EventFlags::IN)?;
        Ok(socket)
    }

    /// Starts this many more connections, and counts responses for a while: how many, and how long
    /// it was.
    pub fn ask(
        &mut self,
        beginning: usize,
        during: Duration,
    ) -> Result<(u64, Duration), Box<dyn Error>> {
        for socket in &self.sockets[..beginning] {
            send(socket, b"x", SendFlags::NOSIGNAL)?;
        }
        let nothing = Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        };
        let mut events = [nothing; EVENTS_MAX];
        let patience = Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        let (begun, mut responses) = (Instant::now(), 0);
        while begun.elapsed() < during {
            let ready = epoll::wait(&self.poll, &mut events[..], Some(&patience))?;
            for event in &events[..ready] {
                let number = event.data.u64() as usize;
                match recv(&self.sockets[number], &mut [0; 64], RecvFlags::DONTWAIT) {
                    Ok((1.., _)) => {}
                    Ok(_) => return Err("the server closed a connection".into()),
                    Err(Errno::AGAIN) => continue,
                    Err(error) => return Err(error.into()),
                }
                responses += 1;
                if self.churning {
                    // The old one is closed by being replaced, and epoll forgets it then.
                    self.sockets[number] = self.open(number)?;
                }
                send(&self.sockets[number], b"x", SendFlags::NOSIGNAL)?;
            }
        }
        Ok((responses, begun.elapsed()))
    }
}
