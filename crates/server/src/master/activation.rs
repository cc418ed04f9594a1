//! Sockets of the service manager (socket activation): it listens before the server runs, so that the
//! server needs no privilege for port 80, and clients wait while it restarts.
//!
//! A socket belongs to the address of `listen` or `tls-listen` to which it is bound. One with the name
//! `http` or `https` may have another address, and belongs to the first one of `listen` or `tls-listen` that
//! has none. All workers accept from it, as with `listeners = "shared"`: only its owner could bind more.
//!
//! Sources: sd_listen_fds(3), systemd.socket(5), socket(7).

use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};

use headway_accept::DEFER_S;
use headway_config::{Config, Endpoint, ListenerMode};
use headway_os::exec::take_inherited;
use rustix::io::Errno;
use rustix::net::sockopt;

use super::MasterError;

/// The first descriptor of the service manager (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;

/// A socket that the service manager has given.
#[derive(Debug)]
pub(super) struct GivenSocket {
    /// From `LISTEN_FDNAMES`.
    name: String,
    bound: SocketAddr,
    socket: OwnedFd,
}

/// A socket, with the address of the configuration to which it belongs.
#[derive(Debug)]
pub(super) struct Matched {
    pub(super) wanted: SocketAddr,
    pub(super) bound: SocketAddr,
    pub(super) socket: OwnedFd,
}

/// Takes the sockets, if there are some for this process.
pub(super) fn take() -> Result<Vec<GivenSocket>, MasterError> {
    let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    let (Some(pid), Some(count)) = (number("LISTEN_PID"), number("LISTEN_FDS")) else {
        return Ok(Vec::new());
    };
    if pid != std::process::id() {
        return Ok(Vec::new());
    }
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let names = names.split(':').chain(std::iter::repeat(""));
    let numbers = FIRST..FIRST + count.min(1 << 16) as RawFd;
    let one = |(number, name): (RawFd, &str)| {
        let failed = |why: &str| {
            MasterError::Activation(format!("descriptor {number} ({name}): {why}; not starting"))
        };
        let socket = take_inherited(number).map_err(|_| failed("there is none"))?;
        let is_listening = sockopt::socket_acceptconn(&socket) == Ok(true);
        let name_of = rustix::net::getsockname(&socket);
        let bound = name_of.and_then(SocketAddr::try_from);
        match (is_listening, bound) {
            (true, Ok(bound)) => Ok(GivenSocket {
                name: name.to_owned(),
                bound,
                socket,
            }),
            _ => Err(failed("it is not a TCP socket that listens")),
        }
    };
    numbers.zip(names).map(one).collect()
}

/// Finds the address of each socket.
///
/// # Errors
/// Names the sockets that belong to no address.
pub(super) fn assign(
    sockets: Vec<GivenSocket>,
    config: &Config,
) -> Result<Vec<Matched>, MasterError> {
    let plain = config.plain_listeners();
    let mut is_free = vec![true; config.listen.len()];
    let mut take = |is_wanted: &dyn Fn(usize, SocketAddr) -> bool| {
        let tcp = config.listen.iter().map(Endpoint::tcp).enumerate();
        let free = tcp.filter(|(place, _)| is_free[*place]);
        let mut free = free.filter_map(|(place, wanted)| Some((place, wanted?)));
        let (place, wanted) = free.find(|(place, wanted)| is_wanted(*place, *wanted))?;
        is_free[place] = false;
        Some(wanted)
    };
    let (mut matched, mut named) = (Vec::new(), Vec::new());
    for given in sockets {
        let found = take(&|_, wanted| wanted == given.bound);
        match found {
            Some(wanted) => matched.push(given.at(wanted, config)?),
            None => named.push(given),
        }
    }
    let mut surplus = Vec::new();
    for given in named {
        let wanted = match given.name.as_str() {
            "http" => take(&|place, _| place < plain),
            "https" => take(&|place, _| place >= plain),
            _ => None,
        };
        match wanted {
            Some(wanted) => matched.push(given.at(wanted, config)?),
            None => surplus.push(format!("{} ({})", given.bound, given.name)),
        }
    }
    match surplus.is_empty() {
        true => Ok(matched),
        false => Err(MasterError::Activation(format!(
            "{}: no address of listen or tls-listen; add it, or name the socket http or https; not starting",
            surplus.join(", ")
        ))),
    }
}

impl GivenSocket {
    /// Gives it the options of the server's own listeners.
    fn at(self, wanted: SocketAddr, config: &Config) -> Result<Matched, MasterError> {
        let set = || -> Result<(), Errno> {
            rustix::io::ioctl_fionbio(&self.socket, true)?;
            sockopt::set_tcp_nodelay(&self.socket, true)?;
            let backlog = i32::try_from(config.backlog).unwrap_or(i32::MAX);
            rustix::net::listen(&self.socket, backlog)?;
            match config.defer_accept {
                true => headway_os::listen::defer_accept(&self.socket, DEFER_S),
                false => Ok(()),
            }
        };
        set().map_err(|error| {
            MasterError::Activation(format!(
                "{} ({}): {error}; not starting",
                self.bound, self.name
            ))
        })?;
        Ok(Matched {
            wanted,
            bound: self.bound,
            socket: self.socket,
        })
    }
}

/// Workers share such sockets, so they share all.
pub(super) fn share(config: &mut Config) {
    if config.listeners == ListenerMode::Reuseport {
        config.listeners = ListenerMode::Shared;
    }
}
