//! The service's socket in the file system: made without a moment in which clients find nothing,
//! and removed only while it is still ours.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, Stat, rename, stat, unlink};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::umask;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Clients that have connected and wait to be accepted; the kernel cuts it to net.core.somaxconn.
const BACKLOG: i32 = 4096;

/// The socket cannot be listened on. Nothing has been replaced.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another service answers on the socket.
    #[error("{}: another service listens there; end it first, or choose another path", .0.display())]
    InUse(PathBuf),
    /// The path is that of a file of another kind.
    #[error("{}: there is a file of that name which is no socket; it stays", .0.display())]
    NoSocket(PathBuf),
    /// A call failed.
    #[error("{}: cannot {what}: {why}", path.display())]
    System {
        /// The socket's path.
        path: PathBuf,
        /// The operation that was tried.
        what: &'static str,
        /// Why the call failed.
        why: Errno,
    },
}

/// A listening socket with its name.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: OwnedFd,
    path: PathBuf,
    /// The name's inode, as made by us.
    identity: (u64, u64),
}

impl Listener {
    /// Binds to a temporary name and renames it over the socket of a service that has ended, so
    /// that no client finds a socket that does not listen yet. Every user may connect: credentials,
    /// which cannot be forged, decide which clients are served.
    pub(super) fn bind(path: &Path) -> Result<Listener, ListenError> {
        let error = |what| {
            move |why| ListenError::System {
                path: path.into(),
                what,
                why,
            }
        };
        check_unused(path)?;
        let mut beside = OsString::from(path);
        beside.push(format!(".{}", std::process::id()));
        let beside = PathBuf::from(beside);
        let address = SocketAddrUnix::new(&beside).map_err(error("use the path"))?;
        let socket = stream().map_err(error("make a socket"))?;
        // Where the kernel cannot, `receive` closes what comes.
        let _ = headway_os::fd_passing::refuse_descriptors(socket.as_fd());
        // Left by a process of our number that was killed right here.
        let _ = unlink(&beside);
        bind_for_everybody(&socket, &address).map_err(error("bind"))?;
        let made = listen(&socket, BACKLOG)
            .and_then(|()| stat(&beside))
            .and_then(|made| rename(&beside, path).map(|()| made));
        match made {
            Ok(made) => Ok(Listener {
                socket,
                path: path.into(),
                identity: identity(&made),
            }),
            Err(why) => {
                let _ = unlink(&beside);
                Err(error("put the socket in place")(why))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another service may have replaced the socket.
        if stat(&self.path).is_ok_and(|now| identity(&now) == self.identity) {
            let _ = unlink(&self.path);
        }
    }
}

/// Sets the mask instead of calling chmod(2) afterwards: by then the owner of the directory, which
/// may be another user, could have put a link to any file of root's in its place. The mask applies
/// to the whole process and is restored before this returns.
fn bind_for_everybody(socket: &OwnedFd, address: &SocketAddrUnix) -> Result<(), Errno> {
    let mask = umask(Mode::from_raw_mode(0o111));
    let bound = bind(socket, address);
    umask(mask);
    bound
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn stream() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Checks that no service listens at the path.
fn check_unused(path: &Path) -> Result<(), ListenError> {
    let error = |what| {
        move |why| ListenError::System {
            path: path.into(),
            what,
            why,
        }
    };
    match stat(path) {
        Err(Errno::NOENT) => return Ok(()),
        Err(why) => return Err(error("look at the path")(why)),
        Ok(found) if found.st_mode & 0o170_000 != 0o140_000 => {
            return Err(ListenError::NoSocket(path.into()));
        }
        Ok(_) => {}
    }
    let probe = stream().map_err(error("make a socket"))?;
    let address = SocketAddrUnix::new(path).map_err(error("use the path"))?;
    match connect(probe.as_fd(), &address) {
        // The owner of the socket has ended without removing it.
        Err(Errno::CONNREFUSED | Errno::NOENT | Errno::PROTOTYPE) => Ok(()),
        _ => Err(ListenError::InUse(path.into())),
    }
}
