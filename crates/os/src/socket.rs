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
    fn error_is_returned_when_the_socket_has_no_port() {
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(bind_address_no_port(socket.as_fd()).is_err());
    }
}
