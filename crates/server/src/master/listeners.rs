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
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use super::unix_socket::{self, SocketFile};

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
pub(super) struct Listeners(Vec<Address>);

/// An address and its sockets: at least one for each worker, or one for all.
#[derive(Debug)]
struct Address {
    /// As it is configured.
    wanted: Endpoint,
    /// With the port that the kernel chose where it was 0.
    bound: Endpoint,
    sockets: Vec<Rc<OwnedFd>>,
    /// That of a Unix socket.
    file: Option<Rc<SocketFile>>,
}

impl Listeners {
    /// Binds every address. What `earlier` has bound is used again, with its accept queues.
    pub(super) fn bind(
        addresses: &[Endpoint],
        options: &ListenerOptions,
        earlier: Option<&Listeners>,
    ) -> Result<Listeners, BindError> {
        let address = |(place, wanted): (usize, &Endpoint)| {
            // Several with port 0 are different ones.
            let same = addresses[..place].iter().filter(|same| *same == wanted);
            let known = earlier.into_iter().flat_map(|earlier| &earlier.0);
            let mut known = known.filter(|known| known.wanted == *wanted);
            let known = known.nth(same.count());
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
            let needed = if options.shared { 1 } else { options.workers };
            while sockets.len() < needed {
                let socket = open(bound, options)?;
                // The first bind may choose a port, the others share it.
                bound = local_address(&socket, bound)?;
                sockets.push(Rc::new(socket));
            }
            Ok(Address {
                wanted: wanted.into(),
                bound: bound.into(),
                sockets,
                file: None,
            })
        };
        addresses
            .iter()
            .enumerate()
            .map(address)
            .collect::<Result<_, _>>()
            .map(Listeners)
    }

    /// The addresses, with the port the kernel chose where it was 0.
    pub(super) fn addresses(&self) -> Vec<Endpoint> {
        self.0.iter().map(|address| address.bound.clone()).collect()
    }

    /// The addresses as texts.
    pub(super) fn shown(&self) -> Vec<String> {
        self.addresses().iter().map(Endpoint::to_string).collect()
    }

    /// The sockets of these addresses of one of `workers` workers. If there were more workers earlier, some have several of
    /// an address: closing one would reset the connections in its queue.
    pub(super) fn of_worker(
        &self,
        (number, workers): (usize, usize),
        addresses: Range<usize>,
    ) -> Vec<BorrowedFd<'_>> {
        let mut all = Vec::new();
        for address in &self.0[addresses] {
            let is_one = address.sockets.len() == 1;
            let own = address.sockets.iter().enumerate();
            let own = own.filter(|(place, _)| is_one || place % workers == number);
            all.extend(own.map(|(_, socket)| socket.as_fd()));
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
    let of_status = |error| BindError {
        key: "status",
        ..error
    };
    let listen = config.listen.iter().map(|address| match address {
        Endpoint::Tcp(address) => check_port_is_free(*address),
        Endpoint::Unix(path) => {
            unix_socket::check(path).map_err(|(call, error)| failed(call, address.clone())(error))
        }
    });
    let status = config
        .status
        .iter()
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
mod tests {
    use super::*;

    const EXCLUSIVE: ListenerOptions = ListenerOptions {
        workers: 1,
        backlog: 16,
        defer: false,
        shared: false,
        unix_rights: UnixRights {
            mode: 0o600,
            owner: None,
        },
    };

    fn any() -> Endpoint {
        "127.0.0.1:0".parse().unwrap()
    }

    fn tcp(listeners: &Listeners) -> SocketAddr {
        listeners.addresses()[0].tcp().unwrap()
    }

    #[test]
    fn workers_share_the_port_chosen_by_the_kernel_for_port_zero() {
        for shared in [false, true] {
            let options = ListenerOptions {
                workers: 3,
                shared,
                ..EXCLUSIVE
            };
            let listeners = Listeners::bind(&[any()], &options, None).unwrap();
            let port = tcp(&listeners).port();
            assert_ne!(port, 0);
            for number in 0..3 {
                let of_worker = listeners.of_worker((number, 3), 0..1);
                assert_eq!(of_worker.len(), 1);
                let local = local_address(of_worker[0], tcp(&listeners));
                assert_eq!(local.unwrap().port(), port);
            }
        }
    }

    #[test]
    fn no_socket_is_lost_when_the_number_of_workers_changes() {
        let of = |workers| ListenerOptions {
            workers,
            ..EXCLUSIVE
        };
        let mut listeners = Listeners::bind(&[any()], &of(3), None).unwrap();
        let address = listeners.addresses();
        for (workers, expected) in [(2, vec![2, 1]), (1, vec![3]), (4, vec![1, 1, 1, 1])] {
            listeners = Listeners::bind(&[any()], &of(workers), Some(&listeners)).unwrap();
            assert_eq!(listeners.addresses(), address, "the port stays");
            let sockets = |number| listeners.of_worker((number, workers), 0..1).len();
            assert_eq!((0..workers).map(sockets).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn every_worker_sees_a_pending_connection_when_the_socket_is_shared() {
        for (shared, finding) in [(true, 3), (false, 1)] {
            let options = ListenerOptions {
                workers: 3,
                shared,
                ..EXCLUSIVE
            };
            let listeners = Listeners::bind(&[any()], &options, None).unwrap();
            let _client = std::net::TcpStream::connect(tcp(&listeners)).unwrap();
            let workers = (0..3).filter(|number| {
                let socket = listeners.of_worker((*number, 3), 0..1)[0];
                let mut entry = [headway_os::select::PollEntry::new(socket)];
                entry[0].set_interest(true, false);
                headway_os::select::poll(&mut entry, Some(0)).unwrap() == 1
            });
            assert_eq!(workers.count(), finding, "{shared}");
        }
    }

    #[test]
    fn connections_are_deferred_until_their_request_unless_disabled() {
        for (defer, accepted_silent) in [(true, false), (false, true)] {
            let options = ListenerOptions { defer, ..EXCLUSIVE };
            let listeners = Listeners::bind(&[any()], &options, None).unwrap();
            let mut client = std::net::TcpStream::connect(tcp(&listeners)).unwrap();
            let accept = || rustix::net::accept(listeners.of_worker((0, 1), 0..1)[0]);
            assert_eq!(accept().is_ok(), accepted_silent, "{defer}");
            if defer {
                std::io::Write::write_all(&mut client, b"GET").unwrap();
                // On the loopback interface the data has arrived when the call returns.
                accept().unwrap();
            }
        }
    }

    #[test]
    fn accepted_connections_have_nodelay() {
        let listeners = Listeners::bind(&[any()], &EXCLUSIVE, None).unwrap();
        let _client = std::net::TcpStream::connect(tcp(&listeners)).unwrap();
        let accepted = rustix::net::accept(listeners.of_worker((0, 1), 0..1)[0]).unwrap();
        assert!(sockopt::tcp_nodelay(&accepted).unwrap());
    }

    #[test]
    fn binding_fails_when_the_port_is_in_use_even_by_the_same_user() {
        // A separate address, so that no other test gets the port between the two binds.
        let own = "127.83.71.5:0".parse().unwrap();
        let first = Listeners::bind(&[own], &EXCLUSIVE, None).unwrap();
        let error = Listeners::bind(&first.addresses(), &EXCLUSIVE, None)
            .unwrap_err()
            .to_string();
        let expected = format!(
            "listen: bind({}): EADDRINUSE: another process",
            first.addresses()[0]
        );
        assert!(error.starts_with(&expected), "{error}");
        let address = first.addresses();
        drop(first);
        let two = ListenerOptions {
            workers: 2,
            ..EXCLUSIVE
        };
        Listeners::bind(&address, &two, None).unwrap();
    }

    #[test]
    fn dead_unix_socket_is_replaced_and_a_live_one_or_another_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| Endpoint::Unix(directory.path().join(name));
        let bind = |name: &str| Listeners::bind(&[at(name)], &EXCLUSIVE, None);
        // An earlier server leaves the file when it is killed.
        drop(std::os::unix::net::UnixListener::bind(directory.path().join("dead")).unwrap());
        let _live = std::os::unix::net::UnixListener::bind(directory.path().join("live")).unwrap();
        let _dgram =
            std::os::unix::net::UnixDatagram::bind(directory.path().join("dgram")).unwrap();
        std::fs::write(directory.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink("none", directory.path().join("link")).unwrap();
        let first = bind("dead").unwrap();
        std::os::unix::net::UnixStream::connect(directory.path().join("dead")).unwrap();
        for (name, part) in [
            ("dead", "EADDRINUSE: another process"),
            ("live", "EADDRINUSE: another process"),
            ("dgram", "EADDRINUSE: another process"),
            ("file", "EEXIST: there is a file"),
            ("link", "EEXIST: there is a file"),
            ("none/x", "ENOENT: the directory"),
        ] {
            let error = bind(name).unwrap_err().to_string();
            let begin = format!("listen: bind({}): ", at(name));
            assert!(error.starts_with(&begin) && error.contains(part), "{error}");
        }
        drop(first);
        let names = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(names, 4, "the own file is removed, others stay");
    }

    #[test]
    fn unix_socket_is_one_for_all_workers_and_stays_in_a_reload() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let at = [Endpoint::Unix(path.clone())];
        let two = ListenerOptions {
            workers: 2,
            ..EXCLUSIVE
        };
        let first = Listeners::bind(&at, &two, None).unwrap();
        let of_worker = |number| first.of_worker((number, 2), 0..1);
        assert_eq!((of_worker(0).len(), of_worker(1).len()), (1, 1));
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, 0o600);
        let open = ListenerOptions {
            unix_rights: UnixRights {
                mode: 0o666,
                owner: None,
            },
            ..two.clone()
        };
        let again = Listeners::bind(&at, &open, Some(&first)).unwrap();
        drop(first);
        let now = std::fs::metadata(&path).unwrap();
        assert_eq!(now.ino(), found.ino());
        assert_eq!(now.permissions().mode() & 0o777, 0o666);
        // A socket which cannot be reached any more is replaced, and what took its place stays.
        std::fs::remove_file(&path).unwrap();
        let other = Listeners::bind(&at, &two, Some(&again)).unwrap();
        drop(again);
        std::os::unix::net::UnixStream::connect(&path).unwrap();
        drop(other);
        assert!(!path.exists());
    }

    #[test]
    fn binding_fails_when_no_interface_has_the_address() {
        let error =
            Listeners::bind(&["192.0.2.1:0".parse().unwrap()], &EXCLUSIVE, None).unwrap_err();
        assert!(error.to_string().contains("EADDRNOTAVAIL"), "{error}");
    }
}
