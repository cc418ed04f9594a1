//! The process at the other end of a Unix socket, as the kernel noted it when the connection was
//! made.
//!
//! rustix has the first call, but its type has no room for what the kernel answers about a peer in
//! a process name space that we cannot see into (process 0), and it has no call for the peer's
//! groups.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A user with all groups.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The user.
    pub user: u32,
    /// The primary group first, then the supplementary ones.
    pub groups: Vec<u32>,
}

/// Reads the user that connected this socket (`SO_PEERCRED`, `SO_PEERGROUPS`): user and groups at
/// that moment.
///
/// Source: unix(7); Linux 4.13 for the groups.
///
/// # Errors
/// `ENOTSOCK` and the like when it is no Unix socket.
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut cred = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `cred` is a live `ucred` of the size that is given, which any bytes are; the kernel
    // writes no more than that and keeps no pointer.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut cred).cast(),
            &raw mut length,
        )
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut groups = vec![cred.gid];
    groups.extend(supplementary(socket)?);
    Ok(Peer {
        user: cred.uid,
        groups,
    })
}

fn supplementary(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    // Most users are in a few; when the list is longer the kernel returns its length.
    let mut groups = vec![0_u32; 32];
    loop {
        let room = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        let mut length = room;
        // SAFETY: `groups` is live memory of the size that is given; the kernel writes no more than
        // that and keeps no pointer.
        let answer = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = length as usize / size_of::<u32>();
        if answer == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ERANGE) && length > room => {
                groups.resize(count, 0);
            }
            error => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn peer_is_this_user_when_both_ends_are_ours() {
        let (near, _far) = UnixStream::pair().unwrap();
        let peer = peer(near.as_fd()).unwrap();
        assert_eq!(peer.user, rustix::process::geteuid().as_raw());
        assert_eq!(peer.groups[0], rustix::process::getegid().as_raw());
        let own = rustix::process::getgroups().unwrap();
        let own: Vec<u32> = own.into_iter().map(|group| group.as_raw()).collect();
        assert_eq!(peer.groups[1..], own);
    }

    #[test]
    fn error_is_returned_for_a_descriptor_that_is_no_socket() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(peer(file.as_fd()).is_err());
    }
}
