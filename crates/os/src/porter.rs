//! A porter at a listener's door: which part of those who knock is heard, as
//! [`listen::hear`](crate::listen::hear) says, with a memory.
//!
//! The filter there goes by a client's number alone, so a part that grows hears those as well who
//! have knocked in vain, at their second or third knock, late and all together. This one is an eBPF
//! program, which can remember: whoever was not heard is not heard for [`REMEMBERED_S`] either. Who
//! still knocks after that is drawn anew, by chance and not by number, so that nobody who is
//! patient is left out for ever. Its memory is a table of fixed length in which each place is that
//! of many numbers and the last one counts. A client that is forgotten for that fares as it would
//! without a memory.
//!
//! The table is shared with the kernel: to have another part heard is a store, no system call.
//! It needs `CAP_BPF` (root has it); who has not does without ([`Porter::new`] says so).
//!
//! Sources: bpf(2), `include/uapi/linux/bpf.h`,
//! `Documentation/bpf/standardization/instruction-set.rst` for the instructions, socket(7)
//! (`SO_ATTACH_BPF`), tcp(7) and ip-sysctl (`tcp_syn_linear_timeouts`) for when clients knock
//! again.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::io::Result;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::listen::{FLAGS, SCATTER, SEQUENCE, SYN, SYN_ACK};
use crate::residency::last_errno;
use crate::socket::set;

/// Whoever was not heard is not heard for so long: patience of 3 s, and half a second.
pub const REMEMBERED_S: f64 = 3.5;

/// Who is remembered: with a thousand refused in a second one in forty is forgotten early.
const PLACES: usize = 1 << 17;
/// A place: the scattered number, and when it was refused.
const PLACE_BYTES: usize = 8;
/// What stands before the places.
const HEAD_BYTES: usize = 64;

/// About a millisecond: the kernel's nanoseconds, shifted.
const TICK_SHIFT: u32 = 20;
const REMEMBERED_TICKS: i32 = (REMEMBERED_S * 1e9 / (1_u64 << TICK_SHIFT) as f64) as i32;

/// What this process writes and the kernel reads: the largest number that is heard.
type Bound = AtomicU64;

/// A filter, and the memory that it shares with this process. The listeners that it stands at keep
/// both.
#[derive(Debug)]
pub struct Porter {
    program: OwnedFd,
    bound: NonNull<Bound>,
}

// SAFETY: what it points to is shared by its nature and atomic; the address stays until it is
// dropped.
unsafe impl Send for Porter {}

impl Porter {
    /// One that hears everybody, and stands nowhere yet.
    ///
    /// # Errors
    /// As bpf(2): `EPERM` without the privilege or where the system forbids it (before Linux 5.11
    /// also where `RLIMIT_MEMLOCK` has no room for a MiB), `EINVAL` from kernels before 5.8,
    /// `ENOSYS` without eBPF.
    pub fn new() -> Result<Porter> {
        let table = new_table()?;
        let program = load(&instructions(table.as_raw_fd()))?;
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
        let bound = NonNull::new(address.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        let porter = Porter { program, bound };
        porter.hear(1.0);
        Ok(porter)
    }

    /// Stands at a listener from now on, in the place of any other filter. Connections that it
    /// gives inherit the filter, which lets everything but a SYN pass.
    ///
    /// # Errors
    /// As setsockopt(2): `ENOMEM`, or `EPERM` if somebody has locked the filter.
    pub fn stand_at(&self, listener: impl AsFd) -> Result<()> {
        let program = self.program.as_raw_fd();
        set(
            listener.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_BPF,
            program,
        )
    }

    /// Has this part of those heard who knock from now on and are not remembered.
    pub fn hear(&self, part: f64) {
        let largest = (part.clamp(0.0, 1.0) * f64::from(u32::MAX)) as u32;
        // SAFETY: mapped until this is dropped, as long as a page, and atomic; any bits are valid
        // for it.
        let bound = unsafe { self.bound.as_ref() };
        bound.store(largest.into(), Ordering::Relaxed);
    }
}

impl Drop for Porter {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; nobody has the address any more.
        let _ = unsafe { munmap(self.bound.as_ptr().cast(), rustix::param::page_size()) };
    }
}

/// `union bpf_attr` for `BPF_MAP_CREATE`, as far as it is used.
#[repr(C)]
struct NewMap {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

/// One for `BPF_PROG_LOAD`.
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

/// One value, which holds everything, so that the program reaches it without a lookup.
fn new_table() -> Result<OwnedFd> {
    const ARRAY: u32 = 2;
    const MMAPABLE: u32 = 1 << 10;
    bpf(
        MAP_CREATE,
        &NewMap {
            kind: ARRAY,
            key_bytes: 4,
            value_bytes: (HEAD_BYTES + PLACES * PLACE_BYTES) as u32,
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

/// Makes something of which the answer is a descriptor, close-on-exec as all of bpf(2) are.
fn bpf<A>(command: libc::c_int, attributes: &A) -> Result<OwnedFd> {
    // SAFETY: the attributes are live and of the length that is told, and so is what they point to;
    // the kernel copies both.
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
    // SAFETY: the kernel has just made it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(answer as libc::c_int) })
}

/// `struct bpf_insn`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Instruction {
    code: u8,
    /// The source in the upper half, the destination in the lower one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const LOAD_PACKET_BYTE: u8 = 0x30;
const LOAD_PACKET_HALF: u8 = 0x28;
const LOAD_PACKET_WORD: u8 = 0x20;
const LOAD_WORD: u8 = 0x61;
const LOAD_DOUBLE: u8 = 0x79;
const STORE_WORD: u8 = 0x63;
const LOAD_IMMEDIATE: u8 = 0x18;
const MOVE: u8 = 0xbf;
const MOVE_IMMEDIATE_32: u8 = 0xb4;
const MULTIPLY_IMMEDIATE_32: u8 = 0x24;
const SUBTRACT_32: u8 = 0x1c;
const ADD: u8 = 0x0f;
const AND_IMMEDIATE: u8 = 0x57;
const LEFT_IMMEDIATE: u8 = 0x67;
const RIGHT_IMMEDIATE: u8 = 0x77;
const EXCLUSIVE_OR: u8 = 0xaf;
const IF_NOT_EQUAL_IMMEDIATE: u8 = 0x55;
const IF_NOT_EQUAL_32: u8 = 0x5e;
const IF_ABOVE: u8 = 0x2d;
const IF_BELOW_IMMEDIATE_32: u8 = 0xa6;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// A source that says: the value of the map whose descriptor is the immediate.
const MAP_VALUE: u8 = 2;
const KTIME_GET_NS: i32 = 5;
const GET_PRANDOM_U32: i32 = 7;

/// What the kernel does with each segment that comes for a listener, from the TCP header on.
fn instructions(table: libc::c_int) -> Vec<Instruction> {
    let code = |code, destination: u8, source: u8, offset, immediate| Instruction {
        code,
        registers: source << 4 | destination,
        offset,
        immediate,
    };
    const ANSWER: u8 = 0;
    const PLACE: u8 = 1;
    const HEAD: u8 = 2;
    const SPARE: u8 = 3;
    const PACKET: u8 = 6;
    const NUMBER: u8 = 7;
    /// The port, and then what decides.
    const PORT: u8 = 8;
    const DRAWN: u8 = 8;
    const NOW: u8 = 9;
    /// In the place of the packet, once that has been read.
    const CHANCE: u8 = 6;
    const LAST: i32 = (PLACES - 1) as i32;
    let head_of = |register| {
        [
            code(LOAD_IMMEDIATE, register, MAP_VALUE, 0, table),
            code(0, 0, 0, 0, 0),
        ]
    };
    let mut program = vec![
        code(MOVE, PACKET, 1, 0, 0),
        // 1: everything but a first segment passes.
        code(LOAD_PACKET_BYTE, 0, 0, 0, FLAGS as i32),
        code(AND_IMMEDIATE, ANSWER, 0, 0, SYN_ACK as i32),
        code(IF_NOT_EQUAL_IMMEDIATE, ANSWER, 0, 30, SYN as i32),
        // 4: its number, scattered, and its port.
        code(LOAD_PACKET_WORD, 0, 0, 0, SEQUENCE as i32),
        code(MOVE, NUMBER, ANSWER, 0, 0),
        code(MULTIPLY_IMMEDIATE_32, NUMBER, 0, 0, SCATTER as i32),
        code(LOAD_PACKET_HALF, 0, 0, 0, 0),
        code(MOVE, PORT, ANSWER, 0, 0),
        // 9: the time, and chance.
        code(CALL, 0, 0, 0, KTIME_GET_NS),
        code(RIGHT_IMMEDIATE, ANSWER, 0, 0, TICK_SHIFT as i32),
        code(MOVE, NOW, ANSWER, 0, 0),
        code(CALL, 0, 0, 0, GET_PRANDOM_U32),
        code(MOVE, CHANCE, ANSWER, 0, 0),
        // 14: its place, by the number's upper bits and the port; and its number is what decides.
        code(MOVE, SPARE, NUMBER, 0, 0),
        code(RIGHT_IMMEDIATE, SPARE, 0, 0, 12),
        code(EXCLUSIVE_OR, SPARE, PORT, 0, 0),
        code(AND_IMMEDIATE, SPARE, 0, 0, LAST),
        code(LEFT_IMMEDIATE, SPARE, 0, 0, 3),
        code(MOVE, DRAWN, NUMBER, 0, 0),
    ];
    // 20, 22
    program.extend(head_of(PLACE));
    program.extend(head_of(HEAD));
    let (tag, since) = (HEAD_BYTES as i16, HEAD_BYTES as i16 + 4);
    program.extend([
        code(ADD, PLACE, SPARE, 0, 0),
        // 25: was it refused, and lately?
        code(LOAD_WORD, SPARE, PLACE, tag, 0),
        code(IF_NOT_EQUAL_32, SPARE, NUMBER, 5, 0),
        code(MOVE, ANSWER, NOW, 0, 0),
        code(LOAD_WORD, SPARE, PLACE, since, 0),
        code(SUBTRACT_32, ANSWER, SPARE, 0, 0),
        code(IF_BELOW_IMMEDIATE_32, ANSWER, 0, 7, REMEMBERED_TICKS),
        // 31: long ago: chance decides.
        code(MOVE, DRAWN, CHANCE, 0, 0),
        // 32: is it heard?
        code(LOAD_DOUBLE, SPARE, HEAD, 0, 0),
        code(IF_ABOVE, DRAWN, SPARE, 2, 0),
        // 34: it is.
        code(MOVE_IMMEDIATE_32, ANSWER, 0, 0, -1),
        code(EXIT, 0, 0, 0, 0),
        // 36: it is not, and that is remembered.
        code(STORE_WORD, PLACE, NUMBER, tag, 0),
        code(STORE_WORD, PLACE, NOW, since, 0),
        // 38
        code(MOVE_IMMEDIATE_32, ANSWER, 0, 0, 0),
        code(EXIT, 0, 0, 0, 0),
    ]);
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::{hear, tests::knock, tests::listener, waiting};
    use std::time::{Duration, Instant};

    /// None without the privilege, which is said.
    fn porter() -> Option<Porter> {
        match Porter::new() {
            Ok(porter) => Some(porter),
            Err(error) => {
                println!("SKIP: no eBPF here: {error}");
                None
            }
        }
    }

    #[test]
    fn a_part_is_heard_when_a_porter_stands_at_the_door_and_all_again_when_it_has_gone() {
        let Some(porter) = porter() else { return };
        let listener = listener(1024);
        porter.stand_at(&listener).unwrap();
        let all = knock(&listener, 20);
        assert_eq!(waiting(&listener).unwrap(), 20);
        porter.hear(0.25);
        let part = knock(&listener, 400);
        let heard = waiting(&listener).unwrap() - 20;
        assert!((50..=150).contains(&heard), "{heard} of 400");
        hear(&listener, 1.0).unwrap();
        let before = waiting(&listener).unwrap();
        let gone = knock(&listener, 5);
        assert!(waiting(&listener).unwrap() >= before + 5);
        drop((all, part, gone));
    }

    #[test]
    fn whoever_was_not_heard_is_not_when_more_are_until_it_is_forgotten() {
        let Some(porter) = porter() else { return };
        let listener = listener(1024);
        porter.stand_at(&listener).unwrap();
        porter.hear(0.0);
        let refused = knock(&listener, 30);
        let begun = Instant::now();
        porter.hear(1.0);
        let new = knock(&listener, 3);
        // They knock again after 1 s and 2 s, or 3 s; two of them may have one place in the table.
        std::thread::sleep(Duration::from_millis(2_500));
        let early = waiting(&listener).unwrap();
        if begun.elapsed().as_secs_f64() < REMEMBERED_S {
            assert!((3..=5).contains(&early), "{early}");
        }
        // And after 4 s or 7 s.
        while waiting(&listener).unwrap() < 33 {
            assert!(begun.elapsed() < Duration::from_secs(20), "never heard");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(begun.elapsed().as_secs_f64() > REMEMBERED_S);
        drop((refused, new));
    }

    #[test]
    fn part_of_the_patient_is_heard_when_they_are_forgotten() {
        let Some(porter) = porter() else { return };
        let listener = listener(1024);
        porter.stand_at(&listener).unwrap();
        // By their numbers half of them never would.
        porter.hear(0.5);
        let clients = knock(&listener, 200);
        let (begun, at_once) = (Instant::now(), waiting(&listener).unwrap());
        let some_more = at_once + (200 - at_once) / 4;
        while waiting(&listener).unwrap() < some_more {
            assert!(begun.elapsed() < Duration::from_secs(20), "never drawn");
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(clients);
    }

    #[test]
    fn bytes_pass_when_the_porter_is_gone_and_hears_nobody() {
        use std::io::{Read, Write};
        let Some(porter) = porter() else { return };
        let listener = listener(16);
        porter.stand_at(&listener).unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        porter.hear(0.0);
        drop(porter);
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"request").unwrap();
        server.read_exact(&mut [0; 7]).unwrap();
        server.write_all(b"reply").unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
        let refused = knock(&listener, 5);
        assert_eq!(waiting(&listener).unwrap(), 0, "the listener keeps it");
        drop(refused);
    }

    #[test]
    fn error_is_told_when_the_descriptor_is_no_socket() {
        let Some(porter) = porter() else { return };
        let (pipe, _end) = std::io::pipe().unwrap();
        assert!(porter.stand_at(&pipe).is_err());
    }
}
