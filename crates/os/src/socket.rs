//! Socket options that rustix does not have.

use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Lets `bind` of an address with port 0 leave the choice of the port to `connect`
/// (`IP_BIND_ADDRESS_NO_PORT`, Linux 4.2).
///
/// Without it `bind` takes a port that no other socket of that local address uses, and some 28,000
/// connections exhaust it. `connect` knows the peer as well, and may use a port again towards another
/// one; when there is none, it fails with `EADDRNOTAVAIL`. Of IPv6 sockets the kernel takes the same
/// option at the same level.
///
/// Source: ip(7).
///
/// # Errors
/// `ENOPROTOOPT` on sockets of other families.
pub fn bind_address_no_port(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: `on` is a live integer of the size that is given; the kernel reads it and keeps no
    // pointer.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How many bytes have been written into a TCP socket by anybody who has it, those included that have not
/// left yet (`TCP_INFO`, Linux 4.19).
///
/// Two readings that are equal mean that nobody has written in between.
///
/// Source: tcp(7), `struct tcp_info` of linux/tcp.h.
///
/// # Errors
/// `EOPNOTSUPP` on sockets of other protocols; an older kernel's answer is too short (`InvalidData`).
pub fn written_bytes(socket: BorrowedFd<'_>) -> io::Result<u64> {
    // The structure grows at its end only; the kernel fills in what it knows of so many bytes.
    const BYTES: usize = 216;
    const NOTSENT: usize = 144;
    const SENT: usize = 200;
    const RETRANSMITTED: usize = 208;
    let mut info = [0_u8; BYTES];
    let mut length = BYTES as libc::socklen_t;
    // SAFETY: the buffer is live and as long as `length` says; the kernel writes at most so many bytes.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    match (answer, length as usize) {
        (0, BYTES..) => {}
        (0, _) => return Err(io::ErrorKind::InvalidData.into()),
        _ => return Err(io::Error::last_os_error()),
    }
    let number = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| info[at + byte]));
    let waiting = u32::from_ne_bytes(std::array::from_fn(|byte| info[NOTSENT + byte]));
    Ok(number(SENT).saturating_sub(number(RETRANSMITTED)) + u64::from(waiting))
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
    fn error_is_returned_when_the_socket_has_no_port() {
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(bind_address_no_port(socket.as_fd()).is_err());
    }
}
