//! Socket options that rustix does not have.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Lets `bind` of an address with port 0 leave the choice of the port to `connect`
/// (`IP_BIND_ADDRESS_NO_PORT`, Linux 4.2).
///
/// Without it `bind` takes a port that no other socket of that local address uses, and some 28,000
/// connections exhaust it. `connect` knows the peer as well, and may use a port again towards
/// another one; when there is none, it fails with `EADDRNOTAVAIL`. Of IPv6 sockets the kernel takes
/// the same option at the same level.
///
/// Source: ip(7).
///
/// # Errors
/// `ENOPROTOOPT` on sockets of other families.
pub fn bind_address_no_port(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on = 1;
    Ok(set(
        socket,
        libc::IPPROTO_IP,
        libc::IP_BIND_ADDRESS_NO_PORT,
        on,
    )?)
}

/// Returns how many bytes all its holders have written into a TCP socket, those included that
/// have not left yet (`TCP_INFO`, Linux 4.19).
///
/// Two equal readings mean that nothing was written in between.
///
/// Source: tcp(7), `struct tcp_info` of linux/tcp.h.
///
/// # Errors
/// `EOPNOTSUPP` on sockets of other protocols; an older kernel's answer is too short
/// (`InvalidData`).
pub fn written_bytes(socket: BorrowedFd<'_>) -> io::Result<u64> {
    const BYTES: usize = 216;
    const NOTSENT: usize = 144;
    const SENT: usize = 200;
    const RETRANSMITTED: usize = 208;
    let mut info = [0_u8; BYTES];
    tcp_info(socket, &mut info)?;
    let number = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| info[at + byte]));
    let waiting = u32::from_ne_bytes(std::array::from_fn(|byte| info[NOTSENT + byte]));
    Ok(number(SENT).saturating_sub(number(RETRANSMITTED)) + u64::from(waiting))
}

/// How long ago the last data came from the peer of a connection, in milliseconds as coarse as the
/// kernel's clock tick; without any, how long ago the connection was made (`TCP_INFO`,
/// `tcpi_last_data_recv`). The end of the peer's side is no data.
///
/// Of a request that has just been read this is how long it has waited: in the accept queue, and
/// for its turn.
///
/// Source: tcp(7), `struct tcp_info` of linux/tcp.h.
///
/// # Errors
/// `EOPNOTSUPP` on sockets of other protocols.
pub fn last_data_ms(socket: BorrowedFd<'_>) -> io::Result<u32> {
    const LAST_DATA_RECEIVED: usize = 52;
    let mut info = [0_u8; LAST_DATA_RECEIVED + 4];
    tcp_info(socket, &mut info)?;
    Ok(u32::from_ne_bytes(std::array::from_fn(|byte| {
        info[LAST_DATA_RECEIVED + byte]
    })))
}

/// How long ago the peer of a connection last acknowledged anything, in milliseconds as coarse as
/// the kernel's clock tick; `None` if it has acknowledged everything (`TCP_INFO`, `tcpi_unacked`
/// and `tcpi_last_ack_recv`).
///
/// A peer that reads nothing still acknowledges. One that does not is gone, or the way to it is.
///
/// Source: tcp(7), `struct tcp_info` of linux/tcp.h.
///
/// # Errors
/// `EOPNOTSUPP` on sockets of other protocols.
pub fn unacknowledged_ms(socket: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    const UNACKNOWLEDGED: usize = 24;
    const LAST_ACKNOWLEDGED: usize = 56;
    let mut info = [0_u8; LAST_ACKNOWLEDGED + 4];
    tcp_info(socket, &mut info)?;
    let number = |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte| info[at + byte]));
    Ok((number(UNACKNOWLEDGED) > 0).then(|| number(LAST_ACKNOWLEDGED)))
}

/// The beginning of `struct tcp_info`, which grows at its end only.
fn tcp_info(socket: BorrowedFd<'_>, info: &mut [u8]) -> io::Result<()> {
    let length = get(socket, libc::IPPROTO_TCP, libc::TCP_INFO, info)?;
    match length == info.len() {
        true => Ok(()),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Gives an option a number.
pub(crate) fn set(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> rustix::io::Result<()> {
    let length = size_of_val(&value) as libc::socklen_t;
    let value = (&raw const value).cast();
    // SAFETY: `value` is a live integer of the given length; the kernel reads it and keeps
    // no pointer.
    let answer = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value, length) };
    match answer {
        0 => Ok(()),
        _ => Err(crate::residency::last_errno()),
    }
}

/// How many bytes of an option's value have been put into `room`; the kernel cuts what does not
/// fit.
pub(crate) fn get(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    room: &mut [u8],
) -> io::Result<usize> {
    let mut length = room.len() as libc::socklen_t;
    // SAFETY: the buffer is live and as long as `length` says; the kernel writes at most that
    // many bytes.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            room.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    match answer {
        0 => Ok(length as usize),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{self, AddressFamily, SocketType};
    use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
    use std::os::fd::AsFd;

    #[test]
    fn port_is_chosen_by_connect_when_bind_leaves_it_open() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind_address_no_port(socket.as_fd()).unwrap();
        let source = Ipv4Addr::new(127, 0, 0, 9);
        net::bind(&socket, &SocketAddrV4::new(source, 0)).unwrap();
        let bound = SocketAddr::try_from(net::getsockname(&socket).unwrap()).unwrap();
        assert_eq!((bound.ip(), bound.port()), (source.into(), 0));
        net::connect(&socket, &listener.local_addr().unwrap()).unwrap();
        let connected = SocketAddr::try_from(net::getsockname(&socket).unwrap()).unwrap();
        assert_eq!(connected.ip(), source);
        assert_ne!(connected.port(), 0);
    }

    #[test]
    fn option_is_taken_when_the_socket_is_ipv6() {
        match net::socket(AddressFamily::INET6, SocketType::STREAM, None) {
            Ok(socket) => bind_address_no_port(socket.as_fd()).unwrap(),
            Err(error) => println!("SKIP: no IPv6 here: {error}"),
        }
    }

    #[test]
    fn bytes_written_are_counted_whether_they_have_left_or_not() {
        use std::io::{Read, Write};
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        assert_eq!(written_bytes(server.as_fd()).unwrap(), 0);
        server.write_all(&[1; 1000]).unwrap();
        assert_eq!(written_bytes(server.as_fd()).unwrap(), 1000);
        client.read_exact(&mut [0; 1000]).unwrap();
        // More than both sides' buffers take.
        server.set_nonblocking(true).unwrap();
        let mut written = 1000;
        while let Ok(count) = server.write(&[2; 100_000]) {
            written += count as u64;
        }
        assert_eq!(written_bytes(server.as_fd()).unwrap(), written);
        let (pair, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(written_bytes(pair.as_fd()).is_err());
    }

    #[test]
    fn everything_is_acknowledged_when_the_peer_is_there_and_does_not_read() {
        use std::io::Write;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _silent = listener.accept().unwrap();
        client.write_all(b"request").unwrap();
        while unacknowledged_ms(client.as_fd()).unwrap().is_some() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let (pair, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(unacknowledged_ms(pair.as_fd()).is_err());
    }

    #[test]
    fn idle_time_restarts_with_new_data() {
        use std::io::Write;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.write_all(b"one").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(100));
        let silent_ms = last_data_ms(server.as_fd()).unwrap();
        assert!(silent_ms >= 60, "{silent_ms}");
        // A busy machine may be late once, but not always.
        let fresh = (0..50).any(|_| {
            client.write_all(b"two").unwrap();
            last_data_ms(server.as_fd()).unwrap() < silent_ms
        });
        assert!(fresh);
        let (pair, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(last_data_ms(pair.as_fd()).is_err());
    }

    #[test]
    fn error_is_returned_when_the_socket_has_no_port() {
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(bind_address_no_port(socket.as_fd()).is_err());
    }
}
