//! A listening Unix socket, and its file.
//!
//! A file that an earlier server has left is replaced, but not that of one which still listens. Nobody
//! can connect before the file has its owner and its permissions, because the socket does not listen
//! before. The file is removed when no generation needs the socket any more.
//!
//! Source: unix(7).

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use headway_config::UnixRights;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Uid};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// A system call that failed.
pub(super) type Failed = (&'static str, Errno);

/// The file of a listening socket, which is removed with this value, unless another one has taken its
/// place.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    /// Whether the path still leads to this socket.
    pub(super) fn is_there(&self) -> bool {
        identity(&self.path) == Some(self.identity)
    }

    /// Sets the owner and the permissions.
    pub(super) fn set_rights(&self, rights: &UnixRights) -> Result<(), Failed> {
        if let Some(owner) = &rights.owner {
            let (user, group) = (Uid::from_raw(owner.number()), Gid::from_raw(owner.group()));
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(CWD, &self.path, Some(user), Some(group), flags)
                .map_err(|error| ("chown", error))?;
        }
        rustix::fs::chmod(&self.path, Mode::from_raw_mode(rights.mode))
            .map_err(|error| ("chmod", error))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_there() {
            // What cannot be removed is replaced by the next server.
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

/// Listens on a path.
pub(super) fn listen(
    path: &Path,
    backlog: u32,
    rights: &UnixRights,
) -> Result<(OwnedFd, SocketFile), Failed> {
    make_way(path, |path| {
        rustix::fs::unlink(path).map_err(|error| ("unlink", error))
    })?;
    let socket = socket()?;
    rustix::net::bind(&socket, &address(path)?).map_err(|error| ("bind", error))?;
    let identity = identity(path).ok_or(("stat", Errno::NOENT))?;
    let file = SocketFile {
        path: path.into(),
        identity,
    };
    file.set_rights(rights)?;
    let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
    rustix::net::listen(&socket, backlog).map_err(|error| ("listen", error))?;
    Ok((socket, file))
}

/// Fails if the path cannot be listened on now.
pub(super) fn check(path: &Path) -> Result<(), Failed> {
    make_way(path, |_| Ok(()))?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    let rights = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    rustix::fs::access(directory, rights).map_err(|error| ("bind", error))
}

/// Removes the file of a socket at which no process listens.
fn make_way(path: &Path, remove: impl FnOnce(&Path) -> Result<(), Failed>) -> Result<(), Failed> {
    let found = match rustix::fs::lstat(path) {
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(("bind", error)),
        Ok(found) => FileType::from_raw_mode(found.st_mode),
    };
    if found != FileType::Socket {
        return Err(("bind", Errno::EXIST));
    }
    match rustix::net::connect(&socket()?, &address(path)?) {
        // A full queue is one of a process that listens. One of datagrams has another protocol.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(("bind", Errno::ADDRINUSE)),
        Err(Errno::CONNREFUSED) => remove(path),
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(("connect", error)),
    }
}

fn socket() -> Result<OwnedFd, Failed> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|error| ("socket", error))
}

fn address(path: &Path) -> Result<SocketAddrUnix, Failed> {
    SocketAddrUnix::new(path).map_err(|error| ("bind", error))
}

/// Device and inode of a socket.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}
