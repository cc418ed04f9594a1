//! A listener's door: when a client may come in, how many wait behind it, and which part of those
//! who knock is heard.
//!
//! Three things the kernel knows or does and rustix has no call for. It can keep a client back
//! until it has said something. It says how many wait in the accept queue and how many it has sent
//! away unheard. And it can be told to hear only a part of the connections that are asked for, the
//! same part however often they ask: a filter on the listener looks at nothing but first segments
//! (SYN), and decides by the sequence number that the client has chosen for its connection, which a
//! repetition of the segment bears again. So a client is in or out from the beginning, and does not
//! come in by the luck of its third try, when most of its patience is gone. A dropped segment costs
//! the kernel a lookup and these few instructions, and no process anything.
//!
//! Sources: tcp(7), socket(7), `net/core/filter.c`, `net/ipv4/tcp_ipv4.c` (`tcp_v4_rcv`: the filter
//! of a listener sees each segment that comes for it, from the TCP header on), bpf(4) of FreeBSD
//! for the instructions.

use std::io;

use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::io::Result;

use crate::socket::{get, set};

/// Where the flags stand in the TCP header, and the bits of SYN and ACK.
pub(crate) const FLAGS: u32 = 13;
pub(crate) const SYN_ACK: u32 = 0x12;
pub(crate) const SYN: u32 = 0x02;
pub(crate) const SEQUENCE: u32 = 4;
/// 2^32 by the golden ratio (Knuth): neighbours, as some systems choose them, end up far apart.
pub(crate) const SCATTER: u32 = 0x9e37_79b1;

/// `TCP_DEFER_ACCEPT`: a connection comes to the accept queue with its first data, or after about
/// `seconds` without any; 0: at once. Accepted connections are as ever. It may be changed while the
/// listener listens.
///
/// While a connection is kept back it takes a place in the kernel's queue of half-open connections,
/// not a descriptor; closing the listener resets it. The kernel counts the time in retransmissions
/// of its handshake (1 s, 3 s, 7 s …), so it is rounded up to one of them.
///
/// Its client is connected meanwhile. Should the accept queue be full when the data comes, these
/// are dropped, and sent again after 0.2 s, 0.4 s and so on: of a listener that cannot follow,
/// clients hold connections that nobody will ever accept.
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

/// The kernel's bound on accept queues (`net.core.somaxconn`); its default where it cannot be read.
/// A longer queue is cut to it, without a word.
///
/// Source: listen(2).
pub fn longest_queue() -> u32 {
    const DEFAULT: u32 = 4096;
    let text = std::fs::read_to_string("/proc/sys/net/core/somaxconn");
    let length = text.ok().and_then(|text| text.trim().parse().ok());
    length.unwrap_or(DEFAULT)
}

/// How many connections wait in the accept queue now (`TCP_INFO` of a listener, `tcpi_unacked`).
///
/// # Errors
/// As getsockopt(2): `EOPNOTSUPP` for what is not a TCP socket. A socket that does not listen has
/// no queue: `InvalidInput`.
///
/// Source: `tcp_get_info` of `net/ipv4/tcp.c`.
pub fn waiting(listener: impl AsFd) -> io::Result<u32> {
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

/// How many segments the kernel has dropped at this listener since it was made, wrapping around:
/// because the accept queue was full, or because [`hear`] said so (`SO_MEMINFO`, Linux 4.12). The
/// last segment of a handshake whose client is kept back ([`defer_accept`]) is dropped and counted
/// as well.
///
/// # Errors
/// `ENOPROTOOPT` from older kernels, whose answer may also be too short (`InvalidData`).
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

/// Lets the kernel hear only a `share` of the connections that are asked for; 1 or more hears all
/// again.
///
/// Whether one is heard follows from its initial sequence number, so repeated SYNs fare as the
/// first did for as long as the share is the same; one that is larger hears all that were heard
/// before, and others. Clients that choose these numbers to be heard can do so, and gain nothing
/// that knocking more often would not give them. Connections that have been accepted inherit the
/// filter, which lets everything else pass.
///
/// # Errors
/// As setsockopt(2): `ENOMEM`, or `EPERM` if somebody has locked the filter.
pub fn hear(listener: impl AsFd, share: f64) -> Result<()> {
    let socket = listener.as_fd();
    if share >= 1.0 {
        return hear_all(socket);
    }
    // The largest product that is heard. A share of nothing hears one in four billion.
    let bound = (share.max(0.0) * f64::from(u32::MAX)) as u32;
    let mut code = filter(bound);
    let program = libc::sock_fprog {
        len: code.len() as libc::c_ushort,
        filter: code.as_mut_ptr(),
    };
    // SAFETY: the option's value and the instructions that it points to are live and of the lengths
    // that are told; the kernel copies both.
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

/// Lets the kernel hear all connections that are asked for. Where it does already nothing happens.
fn hear_all(listener: BorrowedFd<'_>) -> Result<()> {
    match set(listener, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0) {
        Err(rustix::io::Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Passes everything but first segments whose number, scattered over all numbers, is above the
/// bound.
fn filter(bound: u32) -> [libc::sock_filter; 8] {
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
        code(libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K, SCATTER, 0, 0),
        code(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, bound, 1, 0),
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

    /// Clients that have sent their SYN; on the loopback interface it has been dealt with when
    /// `connect` returns.
    pub(crate) fn knock(listener: &TcpListener, clients: usize) -> Vec<OwnedFd> {
        let address = listener.local_addr().unwrap();
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let knock = |_| {
            let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
            let socket = socket.unwrap();
            let _ = net::connect(&socket, &address);
            socket
        };
        (0..clients).map(knock).collect()
    }

    #[test]
    fn error_is_told_when_the_descriptor_is_no_socket_of_tcp() {
        let (pipe, _end) = io::pipe().unwrap();
        assert_eq!(defer_accept(&pipe, 1), Err(rustix::io::Errno::NOTSOCK));
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(defer_accept(&udp, 1).is_err());
        assert!(waiting(&udp).is_err());
        assert!(hear(&pipe, 0.5).is_err() && hear(&pipe, 1.0).is_err());
    }

    #[test]
    fn clients_are_counted_while_they_wait_and_the_dropped_ones_too() {
        let listener = listener(3);
        assert_eq!(
            (waiting(&listener).unwrap(), dropped(&listener).unwrap()),
            (0, 0)
        );
        let clients = knock(&listener, 8);
        // The kernel lets one more in than the queue is long.
        assert_eq!(waiting(&listener).unwrap(), 4);
        assert!(dropped(&listener).unwrap() >= 4);
        listener.accept().unwrap();
        assert_eq!(waiting(&listener).unwrap(), 3);
        drop(clients);
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(waiting(&stream).is_err(), "nobody waits behind a client");
    }

    #[test]
    fn a_part_is_heard_when_no_more_is_to_be() {
        let listener = listener(1024);
        hear(&listener, 0.25).unwrap();
        let part = knock(&listener, 400);
        let heard = waiting(&listener).unwrap();
        assert!((50..=150).contains(&heard), "{heard} of 400");
        assert_eq!(dropped(&listener).unwrap(), 400 - heard);
        hear(&listener, 0.0).unwrap();
        let none = knock(&listener, 20);
        assert_eq!(waiting(&listener).unwrap(), heard);
        hear(&listener, 1.0).unwrap();
        hear(&listener, 1.0).unwrap();
        let all = knock(&listener, 20);
        assert_eq!(waiting(&listener).unwrap(), heard + 20);
        drop((part, none, all));
    }

    #[test]
    fn bytes_pass_when_a_client_was_heard_and_others_are_not() {
        use std::io::{Read, Write};
        let listener = listener(16);
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        hear(&listener, 0.0).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"request").unwrap();
        server.read_exact(&mut [0; 7]).unwrap();
        server.write_all(b"reply").unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
    }
}
