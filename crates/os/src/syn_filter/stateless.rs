//! The stateless SYN filter: a classic BPF program at a listener, for workers without `CAP_BPF`.
//!
//! The filter admits only a fraction of the connections that clients request. It decides by the
//! initial sequence number, which a retransmitted SYN repeats, so a client is admitted or rejected
//! from the beginning and does not get in with its third SYN, shortly before it gives up. A dropped
//! SYN costs the kernel a lookup and a few instructions, and no process anything.
//!
//! Sources: socket(7), `net/core/filter.c`, `net/ipv4/tcp_ipv4.c` (`tcp_v4_rcv`: the filter of a
//! listener sees each segment that comes for it, from the TCP header on), bpf(4) of FreeBSD for the
//! instructions.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::io::Result;

use crate::socket::set;

/// Offset of the flags in the TCP header, and the bits of SYN and ACK.
pub(crate) const FLAGS: u32 = 13;
pub(crate) const SYN_ACK: u32 = 0x12;
pub(crate) const SYN: u32 = 0x02;
pub(crate) const SEQUENCE: u32 = 4;
/// 2^32 divided by the golden ratio (Knuth). It spreads the consecutive sequence numbers that some
/// systems choose.
pub(crate) const HASH_FACTOR: u32 = 0x9e37_79b1;

/// Has the kernel admit only this fraction of the SYNs; 1 or more admits all again.
///
/// The decision follows from the initial sequence number, so a retransmitted SYN is treated like
/// the first one while the fraction stays the same. A larger fraction admits all that were admitted
/// before, and others. A client could choose its sequence numbers to be admitted, but gains no more
/// than by sending more SYNs. Accepted connections inherit the filter, which passes everything
/// else.
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
    let mut code = drop_syns_above(limit);
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
fn drop_syns_above(limit: u32) -> [libc::sock_filter; 8] {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::tests::{listener, send_syns};
    use crate::listen::{dropped, pending};

    #[test]
    fn filter_is_refused_when_the_descriptor_is_no_socket() {
        let (pipe, _end) = std::io::pipe().unwrap();
        assert!(set_admit_fraction(&pipe, 0.5).is_err() && set_admit_fraction(&pipe, 1.0).is_err());
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
