//! Listening sockets: for each address one a worker, or one for all of them, bound by the master.
//!
//! `SO_REUSEPORT` gives each worker an accept queue of its own, so no two workers wake for one
//! client; the kernel chooses the worker by a hash of the addresses, whatever that worker has to
//! do. One socket for all leaves the choice to whoever is free. The master keeps every listener
//! open: when a worker dies, its queue waits for the successor.
//!
//! Unless told otherwise the kernel speaks of a client only when its request is there
//! (`TCP_DEFER_ACCEPT`). Accepted before that, a client costs the loop a `recv` for nothing, an
//! `epoll_ctl` and two wake-ups instead of one; with one request a connection that is a third of
//! the work.
//!
//! Clients inherit `TCP_NODELAY`. Without it the kernel keeps the small end of a reply that leaves
//! by more than one call until the client has acknowledged what came before, which clients put off
//! for 40 ms. Inside a reply `MSG_MORE` joins what belongs together.
//!
//! Sources: socket(7), ip(7), ipv6(7), tcp(7).

use crate::accept::DEFER_S;
use crate::config::{Config, ListenerMode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// Why an address can not be listened on.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {call}({address}): {name}: {advice}", name = name(*error), advice = advice(*error))]
pub struct BindError {
    /// The setting that names the address.
    key: &'static str,
    call: &'static str,
    address: SocketAddr,
    error: Errno,
}

/// How to listen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    /// How many workers accept.
    pub(super) workers: usize,
    /// The length of each accept queue.
    pub(super) queue: u32,
    /// Whether clients are kept back until they speak.
    pub(super) defer: bool,
    /// Whether all workers accept from one socket.
    pub(super) shared: bool,
}

impl Manner {
    pub(super) fn of(config: &Config) -> Manner {
        Manner {
            workers: config.workers,
            queue: config.backlog,
            defer: config.defer_accept,
            shared: config.listeners != ListenerMode::Reuseport,
        }
    }
}

/// The listeners of all workers.
#[derive(Debug)]
pub(super) struct Listeners {
    /// By worker, then by address.
    pub(super) sockets: Vec<Vec<OwnedFd>>,
    /// The addresses, with the port the kernel chose where it was 0.
    pub(super) addresses: Vec<SocketAddr>,
}

impl Listeners {
    /// Binds every address for every worker.
    pub(super) fn bind(addresses: &[SocketAddr], manner: &Manner) -> Result<Listeners, BindError> {
        let mut sockets: Vec<Vec<OwnedFd>> = (0..manner.workers).map(|_| Vec::new()).collect();
        let mut bound = Vec::new();
        for &wanted in addresses {
            refuse_if_taken(wanted)?;
            let mut address = wanted;
            for number in 0..manner.workers {
                let first = sockets.first().and_then(|sockets| sockets.last());
                let socket = match first.filter(|_| manner.shared && number > 0) {
                    Some(first) => rustix::io::fcntl_dupfd_cloexec(first, 0)
                        .map_err(failed("F_DUPFD_CLOEXEC", address))?,
                    None => open(address, manner)?,
                };
                // The first bind may choose a port, the others share it.
                address = local_address(&socket, address)?;
                sockets[number].push(socket);
            }
            bound.push(address);
        }
        Ok(Listeners {
            sockets,
            addresses: bound,
        })
    }
}

/// A listener as it is wanted.
fn open(address: SocketAddr, manner: &Manner) -> Result<OwnedFd, BindError> {
    let socket = listen(address, manner.queue, !manner.shared)?;
    sockopt::set_tcp_nodelay(&socket, true).map_err(failed("TCP_NODELAY", address))?;
    if manner.defer {
        headway_os::listen::defer_accept(&socket, DEFER_S)
            .map_err(failed("TCP_DEFER_ACCEPT", address))?;
    }
    Ok(socket)
}

/// One listener that shares its port with nobody.
pub(super) fn bind_alone(wanted: SocketAddr) -> Result<(OwnedFd, SocketAddr), BindError> {
    let bound = listen(wanted, 16, false).and_then(|socket| {
        let address = local_address(&socket, wanted)?;
        Ok((socket, address))
    });
    bound.map_err(|error| BindError {
        key: "status",
        ..error
    })
}

/// `SO_REUSEPORT` would let a second server of the same user share the port in silence, and each
/// would get half of the clients. A socket without it can not be bound beside another listener.
fn refuse_if_taken(address: SocketAddr) -> Result<(), BindError> {
    match address.port() {
        0 => Ok(()),
        _ => socket(address, false).map(drop),
    }
}

fn listen(address: SocketAddr, queue: u32, shared: bool) -> Result<OwnedFd, BindError> {
    let socket = socket(address, shared)?;
    let queue = i32::try_from(queue).unwrap_or(i32::MAX);
    rustix::net::listen(&socket, queue).map_err(failed("listen", address))?;
    Ok(socket)
}

/// A bound socket, non-blocking and close-on-exec.
fn socket(address: SocketAddr, shared: bool) -> Result<OwnedFd, BindError> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)
        .map_err(failed("socket", address))?;
    // Without SO_REUSEADDR, connections of an earlier server in TIME_WAIT would hold the port.
    sockopt::set_socket_reuseaddr(&socket, true).map_err(failed("SO_REUSEADDR", address))?;
    if shared {
        sockopt::set_socket_reuseport(&socket, true).map_err(failed("SO_REUSEPORT", address))?;
    }
    if address.is_ipv6() {
        // So that [::]:80 and 0.0.0.0:80 can both be listened on, whatever the system's default.
        sockopt::set_ipv6_v6only(&socket, true).map_err(failed("IPV6_V6ONLY", address))?;
    }
    rustix::net::bind(&socket, &address).map_err(failed("bind", address))?;
    Ok(socket)
}

fn local_address(socket: &OwnedFd, wanted: SocketAddr) -> Result<SocketAddr, BindError> {
    let name = rustix::net::getsockname(socket).map_err(failed("getsockname", wanted))?;
    name.try_into().map_err(failed("getsockname", wanted))
}

fn failed(call: &'static str, address: SocketAddr) -> impl Fn(Errno) -> BindError {
    move |error| BindError {
        key: "listen",
        call,
        address,
        error,
    }
}

fn name(error: Errno) -> String {
    match error {
        Errno::ADDRINUSE => "EADDRINUSE".into(),
        Errno::ADDRNOTAVAIL => "EADDRNOTAVAIL".into(),
        Errno::ACCESS => "EACCES".into(),
        Errno::MFILE => "EMFILE".into(),
        Errno::AFNOSUPPORT => "EAFNOSUPPORT".into(),
        other => other.to_string(),
    }
}

fn advice(error: Errno) -> &'static str {
    match error {
        Errno::ADDRINUSE => {
            "another process listens there; stop it (`ss -ltnp` names it) or choose another port"
        }
        Errno::ADDRNOTAVAIL => "no interface of this machine has the address; see `ip address`",
        Errno::ACCESS => {
            "ports below 1024 need CAP_NET_BIND_SERVICE, or sysctl net.ipv4.ip_unprivileged_port_start"
        }
        Errno::MFILE => "too many open files; lower workers or raise the limit (ulimit -n)",
        Errno::AFNOSUPPORT => "the kernel has no IPv6; listen on IPv4 addresses only",
        _ => "nothing is served",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const ALONE: Manner = Manner {
        workers: 1,
        queue: 16,
        defer: false,
        shared: false,
    };

    fn any() -> SocketAddr {
        "127.0.0.1:0".parse().unwrap()
    }

    #[test]
    fn all_workers_share_the_chosen_port_when_it_was_left_open() {
        for shared in [false, true] {
            let manner = Manner {
                workers: 3,
                shared,
                ..ALONE
            };
            let listeners = Listeners::bind(&[any()], &manner).unwrap();
            let port = listeners.addresses[0].port();
            assert!(port != 0 && listeners.sockets.len() == 3);
            for worker in &listeners.sockets {
                assert_eq!(local_address(&worker[0], any()).unwrap().port(), port);
            }
        }
    }

    #[test]
    fn client_waits_where_every_worker_finds_it_when_one_socket_is_for_all() {
        for (shared, finding) in [(true, 3), (false, 1)] {
            let manner = Manner {
                workers: 3,
                shared,
                ..ALONE
            };
            let listeners = Listeners::bind(&[any()], &manner).unwrap();
            let _client = std::net::TcpStream::connect(listeners.addresses[0]).unwrap();
            let workers = listeners.sockets.iter().filter(|worker| {
                let mut entry = [headway_os::select::PollEntry::new(worker[0].as_fd())];
                entry[0].ask(true, false);
                headway_os::select::poll(&mut entry, Some(0)).unwrap() == 1
            });
            assert_eq!(workers.count(), finding, "{shared}");
        }
    }

    #[test]
    fn clients_are_kept_back_until_they_speak_unless_told_otherwise() {
        for (defer, accepted_silent) in [(true, false), (false, true)] {
            let listeners = Listeners::bind(&[any()], &Manner { defer, ..ALONE }).unwrap();
            let mut client = std::net::TcpStream::connect(listeners.addresses[0]).unwrap();
            let listener = &listeners.sockets[0][0];
            let accept = || rustix::net::accept(listener);
            assert_eq!(accept().is_ok(), accepted_silent, "{defer}");
            if defer {
                std::io::Write::write_all(&mut client, b"GET").unwrap();
                // On the loopback interface the data has arrived when the call returns.
                accept().unwrap();
            }
        }
    }

    #[test]
    fn ends_of_replies_leave_at_once_when_a_client_has_been_accepted() {
        let listeners = Listeners::bind(&[any()], &ALONE).unwrap();
        let _client = std::net::TcpStream::connect(listeners.addresses[0]).unwrap();
        let accepted = rustix::net::accept(&listeners.sockets[0][0]).unwrap();
        assert!(sockopt::tcp_nodelay(&accepted).unwrap());
    }

    #[test]
    fn a_taken_port_is_refused_when_even_its_owner_shares_it() {
        // An address of its own: between the two binds nobody else may be given the port.
        let own = "127.83.71.5:0".parse().unwrap();
        let first = Listeners::bind(&[own], &ALONE).unwrap();
        let error = Listeners::bind(&first.addresses, &ALONE)
            .unwrap_err()
            .to_string();
        let expected = format!(
            "listen: bind({}): EADDRINUSE: another process",
            first.addresses[0]
        );
        assert!(error.starts_with(&expected), "{error}");
        let address = first.addresses.clone();
        drop(first);
        let two = Manner {
            workers: 2,
            ..ALONE
        };
        Listeners::bind(&address, &two).unwrap();
    }

    #[test]
    fn a_foreign_address_is_refused_when_no_interface_has_it() {
        let error = Listeners::bind(&["192.0.2.1:0".parse().unwrap()], &ALONE).unwrap_err();
        assert!(error.to_string().contains("EADDRNOTAVAIL"), "{error}");
    }
}
