//! Listening sockets, bound by the master: for each address one per worker, or one for all workers.
//!
//! `SO_REUSEPORT` gives each worker its own accept queue, so no two workers wake up for the same
//! connection. The kernel chooses the worker by a hash of the addresses, whatever its load. With
//! one socket for all, the next idle worker accepts. The master keeps every listener open: when a
//! worker dies, its queue waits for the replacement.
//!
//! By default the kernel reports a connection only when its request has arrived
//! (`TCP_DEFER_ACCEPT`). Accepted before that, a connection costs the loop an unsuccessful `recv`,
//! an `epoll_ctl` and two wakeups instead of one; with one request per connection that is a third
//! of the work.
//!
//! Connections inherit `TCP_NODELAY`. Without it the kernel holds back the small last part of a
//! response that is sent by more than one call until the client has acknowledged the rest, which
//! clients delay by 40 ms. Within a response, `MSG_MORE` joins its parts.
//!
//! Unix sockets cannot be divided so: all workers accept from one.
//!
//! Sources: socket(7), ip(7), ipv6(7), tcp(7).

use headway_accept::DEFER_S;
use headway_config::{Config, Endpoint, ListenerMode, UnixRights};
use headway_control::HandedListener;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use super::inherited::Inherited;
use super::unix_socket::{self, SocketFile};
use super::{MasterError, activation, system};

/// Error that prevents listening on an address.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {call}({address}): {name}: {advice}", name = name(*error), advice = advice(address, *error))]
pub struct BindError {
    /// The setting that names the address.
    key: &'static str,
    call: &'static str,
    address: Endpoint,
    error: Errno,
}

/// Options of the listeners.
#[derive(Clone, Debug)]
pub(super) struct ListenerOptions {
    /// Number of workers.
    pub(super) workers: usize,
    /// Length of each accept queue.
    pub(super) backlog: u32,
    /// Whether the kernel holds connections until their request has arrived.
    pub(super) defer: bool,
    /// Whether all workers accept from one socket.
    pub(super) shared: bool,
    /// Permissions and owner of Unix sockets.
    pub(super) unix_rights: UnixRights,
}

impl ListenerOptions {
    pub(super) fn of(config: &Config) -> ListenerOptions {
        ListenerOptions {
            workers: config.workers,
            backlog: config.backlog,
            defer: config.defer_accept,
            shared: config.listeners != ListenerMode::Reuseport,
            unix_rights: config.unix_rights.clone(),
        }
    }
}

/// The listeners of all workers.
#[derive(Debug)]
pub(super) struct Listeners {
    addresses: Vec<Address>,
    /// Whether the service manager has given sockets. Then workers share them, also after a reload.
    is_activated: bool,
}

/// An address and its sockets: at least one for each worker, or one for all.
#[derive(Debug)]
struct Address {
    /// As it is configured.
    wanted: Endpoint,
    /// With the port that the kernel chose where it was 0.
    bound: Endpoint,
    /// Whether the service manager has given it. Then there is one socket.
    is_given: bool,
    sockets: Vec<Rc<OwnedFd>>,
    /// That of a Unix socket.
    file: Option<Rc<SocketFile>>,
}

impl Listeners {
    /// The listeners of a server that starts: those that it has inherited, and new ones.
    pub(super) fn start(
        inherited: &mut Inherited,
        config: &mut Config,
    ) -> Result<Listeners, MasterError> {
        let known = Listeners::inherited(inherited, config)?;
        if known.as_ref().is_some_and(Listeners::is_activated) {
            activation::share(config);
        }
        let options = ListenerOptions::of(config);
        Ok(Listeners::bind(&config.listen, &options, known.as_ref())?)
    }

    fn inherited(
        inherited: &mut Inherited,
        config: &Config,
    ) -> Result<Option<Listeners>, MasterError> {
        if let Some(before) = inherited.predecessor() {
            let address = |handed: &HandedListener| {
                let sockets = handed.sockets.iter();
                let sockets = sockets.map(|number| Ok(Rc::new(before.duplicate(*number)?)));
                let file = handed.bound.path().zip(handed.file);
                Ok(Address {
                    wanted: handed.wanted.clone(),
                    bound: handed.bound.clone(),
                    is_given: handed.is_given,
                    sockets: sockets.collect::<io::Result<_>>()?,
                    file: file.map(|(path, id)| Rc::new(SocketFile::inherited(path, id))),
                })
            };
            let addresses = before.state.listeners.iter().map(address);
            return Ok(Some(Listeners {
                addresses: addresses
                    .collect::<io::Result<_>>()
                    .map_err(system("listeners of the program before"))?,
                is_activated: before.state.is_activated,
            }));
        }
        let given = std::mem::take(&mut inherited.sockets);
        if given.is_empty() {
            return Ok(None);
        }
        let matched = activation::assign(given, config)?.into_iter();
        let addresses = matched.map(|matched| Address {
            wanted: matched.wanted.into(),
            bound: matched.bound.into(),
            is_given: true,
            sockets: vec![Rc::new(matched.socket)],
            file: None,
        });
        Ok(Some(Listeners {
            addresses: addresses.collect(),
            is_activated: true,
        }))
    }

    pub(super) fn is_activated(&self) -> bool {
        self.is_activated
    }

    /// All sockets.
    pub(super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let sockets = self.addresses.iter().flat_map(|address| &address.sockets);
        sockets.map(|socket| socket.as_fd())
    }

    /// What the next program gets.
    pub(super) fn handed(&self) -> Vec<HandedListener> {
        let handed = |address: &Address| HandedListener {
            wanted: address.wanted.clone(),
            bound: address.bound.clone(),
            is_given: address.is_given,
            file: address.file.as_ref().map(|file| file.identity()),
            sockets: address.sockets.iter().map(|one| one.as_raw_fd()).collect(),
        };
        self.addresses.iter().map(handed).collect()
    }

    /// Takes over the files of Unix sockets: there is no way back to the program before.
    pub(super) fn own_files(&self) {
        for file in self
            .addresses
            .iter()
            .filter_map(|address| address.file.as_ref())
        {
            file.own();
        }
    }

    /// Binds every address. What `earlier` has bound is used again, with its accept queues.
    pub(super) fn bind(
        addresses: &[Endpoint],
        options: &ListenerOptions,
        earlier: Option<&Listeners>,
    ) -> Result<Listeners, BindError> {
        let address = |(place, wanted): (usize, &Endpoint)| {
            // Several with port 0 are different ones.
            let same = addresses[..place].iter().filter(|same| *same == wanted);
            let known = earlier.into_iter().flat_map(|earlier| &earlier.addresses);
            let mut known = known.filter(|known| known.wanted == *wanted);
            let known = known.nth(same.count());
            let is_given = known.is_some_and(|known| known.is_given);
            let wanted = match wanted {
                Endpoint::Tcp(address) => *address,
                Endpoint::Unix(_) => return Address::of_unix(wanted, options, known),
            };
            let (mut bound, mut sockets) = match known.and_then(Address::of_tcp) {
                Some(known) => known,
                None => {
                    check_port_is_free(wanted)?;
                    (wanted, Vec::new())
                }
            };
            let is_one = options.shared || is_given;
            let needed = if is_one { 1 } else { options.workers };
            while sockets.len() < needed {
                let socket = open(bound, options)?;
                // The first bind may choose a port, the others share it.
                bound = local_address(&socket, bound)?;
                sockets.push(Rc::new(socket));
            }
            Ok(Address {
                wanted: wanted.into(),
                bound: bound.into(),
                is_given,
                sockets,
                file: None,
            })
        };
        let addresses = addresses
            .iter()
            .enumerate()
            .map(address)
            .collect::<Result<_, _>>()?;
        Ok(Listeners {
            addresses,
            is_activated: earlier.is_some_and(|earlier| earlier.is_activated),
        })
    }

    /// The addresses, with the port the kernel chose where it was 0.
    pub(super) fn addresses(&self) -> Vec<Endpoint> {
        let bound = |address: &Address| address.bound.clone();
        self.addresses.iter().map(bound).collect()
    }

    /// The addresses as texts.
    pub(super) fn shown(&self) -> Vec<String> {
        self.addresses().iter().map(Endpoint::to_string).collect()
    }

    /// The sockets of these addresses of one of `workers` workers, with the number of the address. If there were more workers earlier, some have several of
    /// an address: closing one would reset the connections in its queue.
    pub(super) fn of_worker(
        &self,
        (number, workers): (usize, usize),
        addresses: Range<usize>,
    ) -> Vec<(u32, BorrowedFd<'_>)> {
        let mut all = Vec::new();
        for at in addresses {
            let address = &self.addresses[at];
            let is_one = address.sockets.len() == 1;
            let own = address.sockets.iter().enumerate();
            let own = own.filter(|(place, _)| is_one || place % workers == number);
            all.extend(own.map(|(_, socket)| (at as u32, socket.as_fd())));
        }
        all
    }
}

impl Address {
    /// Where it is, and its sockets.
    fn of_tcp(&self) -> Option<(SocketAddr, Vec<Rc<OwnedFd>>)> {
        Some((self.bound.tcp()?, self.sockets.clone()))
    }

    /// A Unix socket, or the one that there is already.
    fn of_unix(
        wanted: &Endpoint,
        options: &ListenerOptions,
        known: Option<&Address>,
    ) -> Result<Address, BindError> {
        let rights = &options.unix_rights;
        let failed = |(call, error)| failed(call, wanted.clone())(error);
        let kept = known.and_then(|known| Some((known, known.file.as_ref()?)));
        let (sockets, file) = match kept.filter(|(_, file)| file.is_there()) {
            Some((known, file)) => {
                file.set_rights(rights).map_err(failed)?;
                (known.sockets.clone(), file.clone())
            }
            None => {
                let path = wanted.path().unwrap_or(Path::new(""));
                let opened = unix_socket::listen(path, options.backlog, rights);
                let (socket, file) = opened.map_err(failed)?;
                (vec![Rc::new(socket)], Rc::new(file))
            }
        };
        Ok(Address {
            wanted: wanted.clone(),
            bound: wanted.clone(),
            is_given: false,
            sockets,
            file: Some(file),
        })
    }
}

/// Opens one listener.
fn open(address: SocketAddr, options: &ListenerOptions) -> Result<OwnedFd, BindError> {
    let socket = listen(address, options.backlog, !options.shared)?;
    sockopt::set_tcp_nodelay(&socket, true).map_err(failed("TCP_NODELAY", address))?;
    if options.defer {
        headway_os::listen::defer_accept(&socket, DEFER_S)
            .map_err(failed("TCP_DEFER_ACCEPT", address))?;
    }
    Ok(socket)
}

/// One listener that does not share its port.
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

/// What keeps a server with this configuration from listening now: for a check without a start.
pub fn unavailable_addresses(config: &Config) -> Vec<BindError> {
    unavailable_beside(config, &[])
}

/// The same for a server that has these addresses already.
pub(super) fn unavailable_beside(config: &Config, known: &[Endpoint]) -> Vec<BindError> {
    let is_new = |address: &Endpoint| !known.contains(address);
    let of_status = |error| BindError {
        key: "status",
        ..error
    };
    let listen = config.listen.iter().filter(|wanted| is_new(wanted));
    let listen = listen.map(|address| match address {
        Endpoint::Tcp(address) => check_port_is_free(*address),
        Endpoint::Unix(path) => {
            unix_socket::check(path).map_err(|(call, error)| failed(call, address.clone())(error))
        }
    });
    let status = config
        .status
        .iter()
        .filter(|wanted| is_new(&Endpoint::Tcp(**wanted)))
        .map(|address| check_port_is_free(*address).map_err(of_status));
    listen.chain(status).filter_map(Result::err).collect()
}

/// Fails if the port is in use. `SO_REUSEPORT` would let a second server of the same user share the
/// port silently, and each would get half of the connections. A socket without it cannot be bound
/// beside another listener.
fn check_port_is_free(address: SocketAddr) -> Result<(), BindError> {
    match address.port() {
        0 => Ok(()),
        _ => socket(address, false).map(drop),
    }
}

fn listen(address: SocketAddr, backlog: u32, shared: bool) -> Result<OwnedFd, BindError> {
    let socket = socket(address, shared)?;
    let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
    rustix::net::listen(&socket, backlog).map_err(failed("listen", address))?;
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
        // Permits listening on both [::]:80 and 0.0.0.0:80, whatever the system's default.
        sockopt::set_ipv6_v6only(&socket, true).map_err(failed("IPV6_V6ONLY", address))?;
    }
    rustix::net::bind(&socket, &address).map_err(failed("bind", address))?;
    Ok(socket)
}

fn local_address(socket: impl AsFd, wanted: SocketAddr) -> Result<SocketAddr, BindError> {
    let name = rustix::net::getsockname(socket).map_err(failed("getsockname", wanted))?;
    name.try_into().map_err(failed("getsockname", wanted))
}

fn failed(call: &'static str, address: impl Into<Endpoint>) -> impl Fn(Errno) -> BindError {
    let address = address.into();
    move |error| BindError {
        key: "listen",
        call,
        address: address.clone(),
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
        Errno::NOENT => "ENOENT".into(),
        Errno::EXIST => "EEXIST".into(),
        Errno::PERM => "EPERM".into(),
        other => other.to_string(),
    }
}

fn advice(address: &Endpoint, error: Errno) -> &'static str {
    if address.path().is_some() {
        return match error {
            Errno::ADDRINUSE => {
                "another process listens there; stop it (`ss -lxp` names it) or choose another path"
            }
            Errno::EXIST => "there is a file which is no socket; remove it or choose another path",
            Errno::NOENT => "the directory does not exist; create it",
            Errno::ACCESS => {
                "this user cannot write into the directory, or connect to the socket there"
            }
            Errno::PERM => "only root can give a socket to another user; remove listen-owner",
            _ => "not starting",
        };
    }
    match error {
        Errno::ADDRINUSE => {
            "another process listens there; stop it (`ss -ltnp` names it) or choose another port"
        }
        Errno::ADDRNOTAVAIL => "no interface of this machine has this address; see `ip address`",
        Errno::ACCESS => {
            "ports below 1024 need CAP_NET_BIND_SERVICE, or sysctl net.ipv4.ip_unprivileged_port_start"
        }
        Errno::MFILE => "too many open files; lower workers or raise the limit (ulimit -n)",
        Errno::AFNOSUPPORT => "the kernel has no IPv6; listen on IPv4 addresses only",
        _ => "not starting",
    }
}

#[cfg(test)]
mod tests;
