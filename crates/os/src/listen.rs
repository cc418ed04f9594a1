//! Listener options for which rustix has no call: deferred accept and the state of the accept
//! queue. SYNs are dropped by [`syn_filter`](crate::syn_filter).
//!
//! Sources: tcp(7), socket(7).

use std::io;

use rustix::fd::AsFd;
use rustix::io::Result;

use crate::socket::{get, set};

/// Sets `TCP_DEFER_ACCEPT`: a connection enters the accept queue with its first data, or after
/// about `seconds` without any; 0 means at once. Accepted connections are not affected. The option
/// may be changed while the listener listens.
///
/// A deferred connection takes a place in the kernel's queue of half-open connections, not a file
/// descriptor; closing the listener resets it. The kernel counts the time in retransmissions of its
/// handshake (1 s, 3 s, 7 s …), so it is rounded up to one of them.
///
/// The client is connected meanwhile. If the accept queue is full when its data comes, the data is
/// dropped and sent again after 0.2 s, 0.4 s and so on: clients of an overloaded listener hold
/// connections that are never accepted.
///
/// # Errors
/// As setsockopt(2): `ENOPROTOOPT` or `EOPNOTSUPP` for what is not a TCP socket.
///
/// Source: tcp(7).
pub fn defer_accept(listener: impl AsFd, seconds: u32) -> Result<()> {
    let seconds = libc::c_int::try_from(seconds).unwrap_or(libc::c_int::MAX);
    set(
        listener.as_fd(),
        libc::IPPROTO_TCP,
        libc::TCP_DEFER_ACCEPT,
        seconds,
    )
}

/// The kernel's limit of accept queues (`net.core.somaxconn`), or its default where it cannot be
/// read. The kernel silently shortens a longer queue to it.
///
/// Source: listen(2).
pub fn backlog_max() -> u32 {
    const DEFAULT: u32 = 4096;
    let text = std::fs::read_to_string("/proc/sys/net/core/somaxconn");
    let length = text.ok().and_then(|text| text.trim().parse().ok());
    length.unwrap_or(DEFAULT)
}

/// Connections pending in the accept queue now (`TCP_INFO` of a listener, `tcpi_unacked`).
///
/// # Errors
/// As getsockopt(2): `EOPNOTSUPP` for what is not a TCP socket. `InvalidInput` for a
/// socket that does not listen and so has no queue.
///
/// Source: `tcp_get_info` of `net/ipv4/tcp.c`.
pub fn pending(listener: impl AsFd) -> io::Result<u32> {
    /// `tcpi_state` of a listener.
    const LISTEN: u8 = 10;
    const UNACKED: usize = 24;
    let mut info = [0_u8; UNACKED + 4];
    let length = get(
        listener.as_fd(),
        libc::IPPROTO_TCP,
        libc::TCP_INFO,
        &mut info,
    )?;
    match (length == info.len(), info[0]) {
        (true, LISTEN) => Ok(word(&info, UNACKED)),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Segments that the kernel has dropped at this listener since it was created, wrapping around:
/// because the accept queue was full, or by the SYN filter (`SO_MEMINFO`, Linux 4.12). The last
/// segment of a deferred handshake ([`defer_accept`]) is dropped and counted as well.
///
/// # Errors
/// `ENOPROTOOPT` from older kernels, or `InvalidData` if their answer is too short.
///
/// Source: `sk_get_meminfo` of `net/core/sock.c`.
pub fn dropped(listener: impl AsFd) -> io::Result<u32> {
    const DROPS: usize = 8 * 4;
    let mut numbers = [0_u8; DROPS + 4];
    let length = get(
        listener.as_fd(),
        libc::SOL_SOCKET,
        libc::SO_MEMINFO,
        &mut numbers,
    )?;
    match length == numbers.len() {
        true => Ok(word(&numbers, DROPS)),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
    use std::net::{Ipv4Addr, TcpListener};
    use std::os::fd::OwnedFd;

    pub(crate) fn listener(backlog: i32) -> TcpListener {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        net::listen(&listener, backlog).unwrap();
        listener
    }

    /// Clients that have sent their SYN. On the loopback interface it has been handled when
    /// `connect` returns.
    pub(crate) fn send_syns(listener: &TcpListener, clients: usize) -> Vec<OwnedFd> {
        let address = listener.local_addr().unwrap();
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let send_syn = |_| {
            let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
            let socket = socket.unwrap();
            let _ = net::connect(&socket, &address);
            socket
        };
        (0..clients).map(send_syn).collect()
    }

    #[test]
    fn options_fail_when_the_descriptor_is_no_tcp_socket() {
        let (pipe, _end) = io::pipe().unwrap();
        assert_eq!(defer_accept(&pipe, 1), Err(rustix::io::Errno::NOTSOCK));
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(defer_accept(&udp, 1).is_err());
        assert!(pending(&udp).is_err());
    }

    #[test]
    fn pending_connections_and_dropped_syns_are_counted() {
        let listener = listener(3);
        assert_eq!(
            (pending(&listener).unwrap(), dropped(&listener).unwrap()),
            (0, 0)
        );
        let clients = send_syns(&listener, 8);
        // The kernel admits one more than the length of the queue.
        assert_eq!(pending(&listener).unwrap(), 4);
        assert!(dropped(&listener).unwrap() >= 4);
        listener.accept().unwrap();
        assert_eq!(pending(&listener).unwrap(), 3);
        drop(clients);
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(
            pending(&stream).is_err(),
            "a connection has no accept queue"
        );
    }
}
