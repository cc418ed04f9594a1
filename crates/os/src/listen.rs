//! Listener options for which rustix has no call: deferred accept, the state of the accept queue,
//! and a stateless SYN filter.
//!
//! The SYN filter admits only a fraction of the connections that clients request. It decides by the
//! initial sequence number, which a retransmitted SYN repeats, so a client is admitted or rejected
//! from the beginning and does not get in with its third SYN, shortly before it gives up. A dropped
//! SYN costs the kernel a lookup and a few instructions, and no process anything.
//!
//! Sources: tcp(7), socket(7), `net/core/filter.c`, `net/ipv4/tcp_ipv4.c` (`tcp_v4_rcv`: the filter
//! of a listener sees each segment that comes for it, from the TCP header on), bpf(4) of FreeBSD
//! for the instructions.

use std::io;

use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::io::Result;

use crate::socket::{get, set};

/// Offset of the flags in the TCP header, and the bits of SYN and ACK.
pub(crate) const FLAGS: u32 = 13;
pub(crate) const SYN_ACK: u32 = 0x12;
pub(crate) const SYN: u32 = 0x02;
pub(crate) const SEQUENCE: u32 = 4;
/// 2^32 divided by the golden ratio (Knuth). It spreads the consecutive sequence numbers that some
/// systems choose.
pub(crate) const HASH_FACTOR: u32 = 0x9e37_79b1;

/// Sets `TCP_DEFER_ACCEPT`: a connection enters the accept queue with its first data, or after about
/// `seconds` without any; 0 means at once. Accepted connections are not affected. The option may be
/// changed while the listener listens.
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

/// Has the kernel admit only this fraction of the SYNs; 1 or more admits all again.
///
/// The decision follows from the initial sequence number, so a retransmitted SYN is treated like the
/// first one while the fraction stays the same. A larger fraction admits all that were admitted
/// before, and others. A client could choose its sequence numbers to be admitted, but gains no more
/// than by sending more SYNs. Accepted connections inherit the filter, which passes everything else.
///
/// # Errors
/// As setsockopt(2): `ENOMEM`, or `EPERM` if the filter is locked (`SO_LOCK_FILTER`).
pub fn set_admit_fraction(listener: impl AsFd, fraction: f64) -> Result<()> {
    let socket = listener.as_fd();
    if fraction >= 1.0 {
        return admit_all(socket);
    }
    // The largest hash that is admitted. A fraction of 0 admits one SYN in four billion.
    let limit = (fraction.max(0.0) * f64::from(u32::MAX)) as u32;
    let mut code = filter(limit);
    let program = libc::sock_fprog {
        len: code.len() as libc::c_ushort,
        filter: code.as_mut_ptr(),
    };
    // SAFETY: the option's value and the instructions that it points to are live and as long as
    // given; the kernel copies both.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(crate::residency::last_errno()),
    }
}

/// Detaches the SYN filter, if there is one.
fn admit_all(listener: BorrowedFd<'_>) -> Result<()> {
    match set(listener, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0) {
        Err(rustix::io::Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// A filter that passes everything but SYNs whose hashed sequence number is above the limit.
fn filter(limit: u32) -> [libc::sock_filter; 8] {
    const WHOLE: u32 = u32::MAX;
    let code = |operation: u32, value: u32, yes: u8, no: u8| libc::sock_filter {
        code: operation as u16,
        jt: yes,
        jf: no,
        k: value,
    };
    [
        code(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, FLAGS, 0, 0),
        code(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, SYN_ACK, 0, 0),
        code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, SYN, 0, 3),
        code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, SEQUENCE, 0, 0),
        code(
            libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K,
            HASH_FACTOR,
            0,
            0,
        ),
        code(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, limit, 1, 0),
        code(libc::BPF_RET | libc::BPF_K, WHOLE, 0, 0),
        code(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ]
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

    /// Clients that have sent their SYN. On the loopback interface it has been handled when `connect`
    /// returns.
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
        assert!(set_admit_fraction(&pipe, 0.5).is_err() && set_admit_fraction(&pipe, 1.0).is_err());
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

    #[test]
    fn fraction_of_syns_is_admitted() {
        let listener = listener(1024);
        set_admit_fraction(&listener, 0.25).unwrap();
        let part = send_syns(&listener, 400);
        let admitted = pending(&listener).unwrap();
        assert!((50..=150).contains(&admitted), "{admitted} of 400");
        assert_eq!(dropped(&listener).unwrap(), 400 - admitted);
        set_admit_fraction(&listener, 0.0).unwrap();
        let none = send_syns(&listener, 20);
        assert_eq!(pending(&listener).unwrap(), admitted);
        set_admit_fraction(&listener, 1.0).unwrap();
        set_admit_fraction(&listener, 1.0).unwrap();
        let all = send_syns(&listener, 20);
        assert_eq!(pending(&listener).unwrap(), admitted + 20);
        drop((part, none, all));
    }

    #[test]
    fn bytes_pass_when_a_client_was_admitted_and_others_are_not() {
        use std::io::{Read, Write};
        let listener = listener(16);
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        set_admit_fraction(&listener, 0.0).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"request").unwrap();
        server.read_exact(&mut [0; 7]).unwrap();
        server.write_all(b"reply").unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
    }
}
