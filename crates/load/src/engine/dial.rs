//! Opening connections: the socket, its local address, and the reason of a failure.
//!
//! Nothing here waits. A Unix socket whose listener's queue is full returns `EAGAIN` and has to be
//! tried again, unlike TCP, which connects in the background. If the local ports of one source
//! address are used up, the next address is tried, up to a limit, because each attempt costs the
//! kernel a search.
//!
//! Sources: connect(2), ip(7), unix(7).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use headway_latency::Outcome;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use super::EngineError;
use super::observer::{Failure, LimitsMet};
use super::plan::{Address, Sources, Target};

/// Source addresses tried for one connection.
const SOURCES_TRIED_MAX: usize = 8;

/// Opens connections to one target.
#[derive(Debug)]
pub(crate) struct Dialer {
    to: Peer,
    /// For messages.
    name: String,
    sources: Sources,
    /// The next source of a list, or the present host part of 127.0.0.0/8.
    source: u32,
    receive_buffer_bytes: Option<usize>,
}

#[derive(Debug)]
enum Peer {
    Inet(SocketAddr),
    Unix(SocketAddrUnix),
}

/// The outcome of opening a connection.
pub(crate) enum DialOutcome {
    /// A socket that is connected, or will be when it is writable.
    Socket(OwnedFd),
    /// The accept queue of the listener is full: try again.
    Busy,
    /// No connection.
    Failed(DialError),
}

/// Why there is no connection. The message is only made for the first one: a server that is down
/// fails thousands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DialError {
    pub outcome: Outcome,
    call: &'static str,
    source: Option<IpAddr>,
    error: Errno,
}

impl DialError {
    /// A connection that failed after it had been asked for, in a call or in the TLS handshake.
    pub(super) fn after_connect(call: &'static str, error: Errno) -> DialError {
        DialError {
            outcome: outcome(error),
            call,
            source: None,
            error,
        }
    }
}

impl Dialer {
    pub(super) fn new(
        target: &Target,
        receive_buffer_bytes: Option<usize>,
    ) -> Result<Dialer, EngineError> {
        let to = match &target.address {
            Address::Inet(address) => Peer::Inet(*address),
            Address::Unix(path) => Peer::Unix(
                SocketAddrUnix::new(path.as_path())
                    .map_err(|_| EngineError::SocketPath { path: path.clone() })?,
            ),
        };
        Ok(Dialer {
            to,
            name: target.address.to_string(),
            sources: target.sources.clone(),
            source: match target.sources {
                Sources::Loopback => 1,
                _ => 0,
            },
            receive_buffer_bytes,
        })
    }

    /// Whether a connection is complete, or refused, when `connect` returns: on this machine it is.
    pub(super) fn is_local(&self) -> bool {
        match &self.to {
            Peer::Inet(address) => address.ip().is_loopback(),
            Peer::Unix(_) => true,
        }
    }

    /// Whether bytes may be thrown away by `MSG_TRUNC`: TCP's meaning of it, which Unix sockets
    /// lack.
    pub(super) fn discards(&self) -> bool {
        matches!(self.to, Peer::Inet(_))
    }

    pub(super) fn dial(&mut self, limits: &mut LimitsMet) -> DialOutcome {
        let tries = match &self.sources {
            Sources::Any => 1,
            Sources::List(list) => list.len().min(SOURCES_TRIED_MAX),
            Sources::Loopback => SOURCES_TRIED_MAX,
        };
        let mut last = Errno::ADDRNOTAVAIL;
        for _ in 0..tries {
            let source = self.present_source();
            match self.attempt(source) {
                Ok(socket) => {
                    if matches!(self.sources, Sources::List(_)) {
                        self.advance_source();
                    }
                    return DialOutcome::Socket(socket);
                }
                Err(("connect", Errno::ADDRNOTAVAIL)) => {
                    limits.ports += 1;
                    self.advance_source();
                    last = Errno::ADDRNOTAVAIL;
                }
                Err(("connect", Errno::AGAIN)) => match self.to {
                    Peer::Unix(_) => return DialOutcome::Busy,
                    // TCP's answer when even the routing cache refuses; ip(7) has it as no port.
                    Peer::Inet(_) => {
                        limits.ports += 1;
                        self.advance_source();
                        last = Errno::AGAIN;
                    }
                },
                Err((call, error)) => return self.failed(call, source, error, limits),
            }
        }
        self.failed("connect", None, last, limits)
    }

    fn present_source(&self) -> Option<IpAddr> {
        match &self.sources {
            Sources::Any => None,
            Sources::List(list) => Some(list[self.source as usize % list.len()]),
            // The kernel's own choice first: two calls fewer, and mostly enough.
            Sources::Loopback if self.source == 1 => None,
            Sources::Loopback => Some(Ipv4Addr::from(0x7f00_0000 | self.source).into()),
        }
    }

    fn advance_source(&mut self) {
        self.source = match &self.sources {
            Sources::Any => 0,
            Sources::List(list) => (self.source + 1) % list.len() as u32,
            // 127.0.0.0 and 127.255.255.255 are no host addresses.
            Sources::Loopback => self.source % 0x00ff_fffe + 1,
        };
    }

    /// One socket, connected or on its way; else the call that failed.
    fn attempt(&self, source: Option<IpAddr>) -> Result<OwnedFd, (&'static str, Errno)> {
        let family = match &self.to {
            Peer::Inet(SocketAddr::V4(_)) => AddressFamily::INET,
            Peer::Inet(SocketAddr::V6(_)) => AddressFamily::INET6,
            Peer::Unix(_) => AddressFamily::UNIX,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = net::socket_with(family, SocketType::STREAM, flags, None)
            .map_err(|error| ("socket", error))?;
        if let Some(bytes) = self.receive_buffer_bytes {
            // Before connect, since the window is announced with the first segment. A refusal
            // leaves the default, and the limit on reading holds all the same.
            let _ = sockopt::set_socket_recv_buffer_size(&socket, bytes);
        }
        if let Some(source) = source {
            // Linux before 4.2 chooses the port at bind: fewer connections are possible, but all
            // are correct.
            let _ = headway_os::socket::bind_address_no_port(socket.as_fd());
            net::bind(&socket, &SocketAddr::new(source, 0)).map_err(|error| ("bind", error))?;
        }
        let connected = match &self.to {
            Peer::Inet(address) => {
                // A request is one small segment: it must not wait for an acknowledgement.
                let _ = sockopt::set_tcp_nodelay(&socket, true);
                net::connect(&socket, address)
            }
            Peer::Unix(path) => net::connect(&socket, path),
        };
        match connected {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
            // A signal interrupted the call; the connection continues in the background.
            Err(Errno::INTR) => Ok(socket),
            Err(error) => Err(("connect", error)),
        }
    }

    fn failed(
        &self,
        call: &'static str,
        source: Option<IpAddr>,
        error: Errno,
        limits: &mut LimitsMet,
    ) -> DialOutcome {
        let outcome = match (call, error) {
            // A source address that is not this machine's is no lack of ports.
            ("bind", Errno::ADDRNOTAVAIL) => Outcome::Unreachable,
            _ => outcome(error),
        };
        if outcome == Outcome::NoDescriptor {
            limits.descriptors += 1;
        }
        DialOutcome::Failed(DialError {
            outcome,
            call,
            source,
            error,
        })
    }

    /// The same of a TLS handshake or a record.
    pub(super) fn describe_tls(&self, why: &str) -> Failure {
        Failure {
            outcome: Outcome::Tls,
            message: format!("TLS with {}: {why}", self.name),
        }
    }

    /// Describes a connection that violates HTTP/2.
    pub(super) fn describe_http2(&self, outcome: Outcome, why: &str) -> Failure {
        Failure {
            outcome,
            message: format!("HTTP/2 with {}: {why}", self.name),
        }
    }

    /// What was tried, on what, and why it failed.
    pub(super) fn describe(&self, cause: DialError) -> Failure {
        let DialError { call, error, .. } = cause;
        let source = cause
            .source
            .map_or(String::new(), |from| format!(" from {from}"));
        Failure {
            outcome: cause.outcome,
            message: format!("{call}({}){source}: {error}", self.name),
        }
    }
}

/// What a request becomes when this happens to its connection.
pub(crate) fn outcome(error: Errno) -> Outcome {
    match error {
        Errno::CONNREFUSED => Outcome::Refused,
        Errno::CONNRESET | Errno::PIPE | Errno::CONNABORTED => Outcome::Reset,
        Errno::TIMEDOUT => Outcome::TimedOut,
        Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM => Outcome::NoDescriptor,
        Errno::ADDRNOTAVAIL | Errno::AGAIN => Outcome::NoPort,
        _ => Outcome::Unreachable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loopback() -> Dialer {
        let address = Address::Inet((Ipv4Addr::LOCALHOST, 80).into());
        let mut target = Target::new(address, "host");
        target.sources = Sources::Loopback;
        Dialer::new(&target, None).unwrap()
    }

    #[test]
    fn source_addresses_wrap_inside_127_0_0_0_8() {
        let mut dialer = loopback();
        assert_eq!(dialer.present_source(), None);
        dialer.advance_source();
        assert_eq!(
            dialer.present_source(),
            Some(Ipv4Addr::new(127, 0, 0, 2).into())
        );
        dialer.source = 0x00ff_fffe;
        assert_eq!(
            dialer.present_source(),
            Some(Ipv4Addr::new(127, 255, 255, 254).into())
        );
        dialer.advance_source();
        assert_eq!(dialer.present_source(), None);
    }

    #[test]
    fn socket_path_is_an_error_when_it_is_too_long() {
        let address = Address::Unix("/x".repeat(60).into());
        let error = Dialer::new(&Target::new(address, "host"), None).unwrap_err();
        assert!(matches!(error, EngineError::SocketPath { .. }));
    }

    #[test]
    fn message_names_address_and_cause_when_a_bind_fails() {
        let address = Address::Inet((Ipv4Addr::LOCALHOST, 80).into());
        let mut target = Target::new(address, "host");
        target.sources = Sources::List(vec![Ipv4Addr::new(192, 0, 2, 1).into()]);
        let mut limits = LimitsMet::default();
        let mut dialer = Dialer::new(&target, None).unwrap();
        let DialOutcome::Failed(cause) = dialer.dial(&mut limits) else {
            panic!("192.0.2.1 is a documentation address");
        };
        let failure = dialer.describe(cause);
        assert!(
            failure
                .message
                .starts_with("bind(127.0.0.1:80) from 192.0.2.1: ")
        );
        assert_eq!((failure.outcome, limits.ports), (Outcome::Unreachable, 0));
    }
}
