//! A listener that speaks of a client only when the client has said something.

use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Result;

/// `TCP_DEFER_ACCEPT`: a connection comes to the accept queue with its first data, or after about
/// `seconds` without any. Accepted connections are as ever.
///
/// While a connection is kept back it takes a place in the kernel's queue of half-open connections,
/// not a descriptor; closing the listener resets it. The kernel counts the time in retransmissions
/// of its handshake (1 s, 3 s, 7 s …), so it is rounded up to one of them.
///
/// # Errors
/// As setsockopt(2): `ENOPROTOOPT` or `EOPNOTSUPP` for what is not a TCP socket.
///
/// Source: tcp(7).
pub fn defer_accept(listener: impl AsFd, seconds: u32) -> Result<()> {
    let seconds = libc::c_int::try_from(seconds).unwrap_or(libc::c_int::MAX);
    let length = size_of_val(&seconds) as libc::socklen_t;
    let option: *const libc::c_int = &seconds;
    // SAFETY: the descriptor is open for as long as it is borrowed, and the option's value is an
    // integer of the length that is told.
    let done = unsafe {
        libc::setsockopt(
            listener.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            option.cast(),
            length,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(crate::residency::last_errno()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_told_when_the_descriptor_is_no_socket_of_tcp() {
        let (pipe, _end) = std::io::pipe().unwrap();
        assert_eq!(defer_accept(&pipe, 1), Err(rustix::io::Errno::NOTSOCK));
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(defer_accept(&udp, 1).is_err());
    }
}
