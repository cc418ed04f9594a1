//! A stateful SYN filter: an eBPF socket filter that drops a fraction of the SYNs of a listener,
//! and remembers the rejected ones.
//!
//! The stateless filter of [`stateless::set_admit_fraction`] decides
//! by the sequence number alone. When its fraction grows it also admits clients that were rejected
//! before, at their second or third SYN: late, and all together. This filter keeps a rejected
//! client out for [`MEMORY_S`]. A client that still retransmits after that is decided at random, so
//! that no patient client is rejected forever. Its memory is a hash table of fixed size in which a
//! new entry overwrites the old one of the same slot; a client whose entry was overwritten is
//! treated as without a memory.
//!
//! The table is shared with the kernel, so changing the fraction is a store and no system call. The
//! filter needs `CAP_BPF`, which root has; without it [`SynFilter::new`] fails.
//!
//! Sources: bpf(2), `include/uapi/linux/bpf.h`,
//! `Documentation/bpf/standardization/instruction-set.rst` for the instructions, socket(7)
//! (`SO_ATTACH_BPF`), tcp(7) and ip-sysctl (`tcp_syn_linear_timeouts`) for when clients
//! retransmit.

mod assembler;
mod program;
pub mod stateless;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::io::Result;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use self::assembler::Instruction;
use self::program::drop_rejected_syns;
use crate::residency::last_errno;
use crate::socket::set;

/// Time for which a rejected client stays rejected: a client timeout of 3 s, and half a second.
pub const MEMORY_S: f64 = 3.5;

/// Table size. At 1,000 drops per second, 2.5 % of the entries are overwritten before they expire.
const SLOTS: usize = 1 << 17;
/// Size of a slot: the hashed sequence number, and when it was rejected.
const SLOT_BYTES: usize = 8;
/// Size of the head before the slots.
const HEAD_BYTES: usize = 64;

/// A tick is about a millisecond: the kernel's nanoseconds, shifted.
const TICK_SHIFT: u32 = 20;
const MEMORY_TICKS: i32 = (MEMORY_S * 1e9 / (1_u64 << TICK_SHIFT) as f64) as i32;

/// The largest hash that is admitted, which this process writes and the kernel reads.
type Limit = AtomicU64;

/// The filter, and the memory that it shares with this process. A listener to which it is attached
/// keeps both alive.
#[derive(Debug)]
pub struct SynFilter {
    program: OwnedFd,
    limit: NonNull<Limit>,
}

// SAFETY: it points to shared memory that is only accessed atomically; the address stays valid
// until it is dropped.
unsafe impl Send for SynFilter {}

impl SynFilter {
    /// A filter that admits all SYNs and is not attached yet.
    ///
    /// # Errors
    /// As bpf(2): `EPERM` without the privilege or where the system forbids it (before Linux 5.11
    /// also where `RLIMIT_MEMLOCK` has no room for a MiB), `EINVAL` from kernels before 5.8,
    /// `ENOSYS` without eBPF.
    pub fn new() -> Result<SynFilter> {
        let table = new_table()?;
        let program = load(&drop_rejected_syns(table.as_raw_fd()))?;
        // SAFETY: the kernel chooses the address, so no existing mapping is touched.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                rustix::param::page_size(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &table,
                0,
            )
        }?;
        let limit = NonNull::new(address.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        let filter = SynFilter { program, limit };
        filter.set_admit_fraction(1.0);
        Ok(filter)
    }

    /// Attaches the filter to a listener, instead of any other filter. Accepted connections inherit
    /// it; it passes everything but a SYN.
    ///
    /// # Errors
    /// As setsockopt(2): `ENOMEM`, or `EPERM` if the filter is locked (`SO_LOCK_FILTER`).
    pub fn attach(&self, listener: impl AsFd) -> Result<()> {
        let program = self.program.as_raw_fd();
        set(
            listener.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_BPF,
            program,
        )
    }

    /// Sets the fraction of SYNs that is admitted from now on, of clients that are not remembered
    /// as rejected.
    pub fn set_admit_fraction(&self, fraction: f64) {
        let largest = (fraction.clamp(0.0, 1.0) * f64::from(u32::MAX)) as u32;
        // SAFETY: the address is mapped for a page until this is dropped, and any bits are a valid
        // atomic.
        let limit = unsafe { self.limit.as_ref() };
        limit.store(largest.into(), Ordering::Relaxed);
    }
}

impl Drop for SynFilter {
    fn drop(&mut self) {
        // SAFETY: `new` mapped this length, and nothing refers to the address any more.
        let _ = unsafe { munmap(self.limit.as_ptr().cast(), rustix::param::page_size()) };
    }
}

/// `union bpf_attr` for `BPF_MAP_CREATE`, up to the last field that is used.
#[repr(C)]
struct NewMap {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

/// `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
struct NewProgram {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
}

const MAP_CREATE: libc::c_int = 0;
const PROG_LOAD: libc::c_int = 5;

/// A map with one value, which holds everything, so that the program needs no lookup.
fn new_table() -> Result<OwnedFd> {
    const ARRAY: u32 = 2;
    const MMAPABLE: u32 = 1 << 10;
    bpf(
        MAP_CREATE,
        &NewMap {
            kind: ARRAY,
            key_bytes: 4,
            value_bytes: (HEAD_BYTES + SLOTS * SLOT_BYTES) as u32,
            entries: 1,
            flags: MMAPABLE,
        },
    )
}

fn load(instructions: &[Instruction]) -> Result<OwnedFd> {
    const SOCKET_FILTER: u32 = 1;
    bpf(
        PROG_LOAD,
        &NewProgram {
            kind: SOCKET_FILTER,
            count: instructions.len() as u32,
            instructions: instructions.as_ptr() as u64,
            license: c"Dual MIT/Apache-2.0".as_ptr() as u64,
            log_level: 0,
            log_bytes: 0,
            log: 0,
        },
    )
}

/// Runs a bpf(2) command that returns a file descriptor, which is close-on-exec.
fn bpf<A>(command: libc::c_int, attributes: &A) -> Result<OwnedFd> {
    // SAFETY: the attributes and what they point to are live and as long as given; the kernel
    // copies both.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<A>(),
        )
    };
    if answer < 0 {
        return Err(last_errno());
    }
    // SAFETY: the kernel has just created it, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(answer as libc::c_int) })
}

#[cfg(test)]
mod tests {
    use super::stateless::set_admit_fraction;
    use super::*;
    use crate::listen::{pending, tests::listener, tests::send_syns};
    use std::time::{Duration, Instant};

    /// The filter, or `None` and a message without the privilege.
    fn filter() -> Option<SynFilter> {
        match SynFilter::new() {
            Ok(filter) => Some(filter),
            Err(error) => {
                println!("SKIP: no eBPF here: {error}");
                None
            }
        }
    }

    #[test]
    fn fraction_of_syns_is_admitted_while_the_filter_is_attached_and_all_after() {
        let Some(filter) = filter() else { return };
        let listener = listener(1024);
        filter.attach(&listener).unwrap();
        let all = send_syns(&listener, 20);
        assert_eq!(pending(&listener).unwrap(), 20);
        filter.set_admit_fraction(0.25);
        let part = send_syns(&listener, 400);
        let admitted = pending(&listener).unwrap() - 20;
        assert!((50..=150).contains(&admitted), "{admitted} of 400");
        set_admit_fraction(&listener, 1.0).unwrap();
        let before = pending(&listener).unwrap();
        let gone = send_syns(&listener, 5);
        assert!(pending(&listener).unwrap() >= before + 5);
        drop((all, part, gone));
    }

    #[test]
    fn rejected_client_stays_rejected_when_the_fraction_grows_until_it_is_forgotten() {
        let Some(filter) = filter() else { return };
        let listener = listener(1024);
        filter.attach(&listener).unwrap();
        filter.set_admit_fraction(0.0);
        let refused = send_syns(&listener, 30);
        let begun = Instant::now();
        filter.set_admit_fraction(1.0);
        let new = send_syns(&listener, 3);
        // They retransmit after 1 s and 2 s, or 3 s; two of them may share a slot of the table.
        std::thread::sleep(Duration::from_millis(2_500));
        let early = pending(&listener).unwrap();
        if begun.elapsed().as_secs_f64() < MEMORY_S {
            assert!((3..=5).contains(&early), "{early}");
        }
        // And after 4 s or 7 s.
        while pending(&listener).unwrap() < 33 {
            assert!(begun.elapsed() < Duration::from_secs(20), "never admitted");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(begun.elapsed().as_secs_f64() > MEMORY_S);
        drop((refused, new));
    }

    #[test]
    fn fraction_of_rejected_clients_is_admitted_when_they_are_forgotten() {
        let Some(filter) = filter() else { return };
        let listener = listener(1024);
        filter.attach(&listener).unwrap();
        // By their sequence numbers half of them would never be admitted.
        filter.set_admit_fraction(0.5);
        let clients = send_syns(&listener, 200);
        let (begun, at_once) = (Instant::now(), pending(&listener).unwrap());
        let some_more = at_once + (200 - at_once) / 4;
        while pending(&listener).unwrap() < some_more {
            assert!(begun.elapsed() < Duration::from_secs(20), "never admitted");
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(clients);
    }

    #[test]
    fn bytes_pass_when_the_filter_was_dropped_and_admits_nothing() {
        use std::io::{Read, Write};
        let Some(filter) = filter() else { return };
        let listener = listener(16);
        filter.attach(&listener).unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        filter.set_admit_fraction(0.0);
        drop(filter);
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"request").unwrap();
        server.read_exact(&mut [0; 7]).unwrap();
        server.write_all(b"reply").unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
        let refused = send_syns(&listener, 5);
        assert_eq!(
            pending(&listener).unwrap(),
            0,
            "the listener keeps the filter"
        );
        drop(refused);
    }

    #[test]
    fn attaching_fails_when_the_descriptor_is_no_socket() {
        let Some(filter) = filter() else { return };
        let (pipe, _end) = std::io::pipe().unwrap();
        assert!(filter.attach(&pipe).is_err());
    }
}
