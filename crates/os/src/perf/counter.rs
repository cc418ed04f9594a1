//! Counters of events: how often something happened to a thread, to all it starts, or on a
//! CPU.
//!
//! Unlike the ring, a counter is read by a system call and counts for any thread or CPU the
//! caller may look at. What an event's words mean is the caller's business; this file opens,
//! starts, stops and reads.
//!
//! A kernel with more events than counters lets them take turns; a reading therefore says for how
//! long the event wanted to count and for how long it did.
//!
//! Sources: perf_event_open(2); include/uapi/linux/perf_event.h.

use std::io;
use std::os::fd::AsRawFd;

use rustix::fd::{AsFd, OwnedFd};

use super::attributes;

/// What to count, as in `struct perf_event_attr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EventWords {
    /// `PERF_TYPE_*`, or the number of a counting unit under /sys/bus/event_source/devices.
    pub kind: u32,
    /// The word `config` of `struct perf_event_attr`.
    pub config: u64,
    /// The word `config1`.
    pub config1: u64,
    /// The word `config2`.
    pub config2: u64,
    /// Leaves out what happens in user space.
    pub exclude_user: bool,
    /// Leaves out what happens in the kernel.
    pub exclude_kernel: bool,
}

/// Threads and CPUs for which a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CounterScope {
    /// A thread by its number, 0 for the calling one, with all threads and processes that it starts
    /// from now on.
    Thread(i32),
    /// What the calling thread starts, each from its `exec` on, and not the calling thread itself.
    Children,
    /// Everything on one CPU.
    Cpu(usize),
}

/// What a counter has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Number of events.
    pub value: u64,
    /// Nanoseconds for which the event was to be counted.
    pub enabled_ns: u64,
    /// Nanoseconds for which the event was counted: less, if the counter had to take turns.
    pub running_ns: u64,
}

/// An open counter, which does not count before it is started.
#[derive(Debug)]
pub struct Counter {
    event: OwnedFd,
}

// `_IO('$', n)`; the argument is a flag, no pointer.
const ENABLE: libc::c_ulong = 0x2400;
const DISABLE: libc::c_ulong = 0x2401;
const WHOLE_GROUP: libc::c_ulong = 1;

impl Counter {
    /// Opens a counter, in the group of `leader` if there is one: the events of a group count at
    /// the same time or not at all. A leader must live as long as its group is used.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `EOPNOTSUPP`, `ENODEV`, `ENXIO`: this machine has no such event or no counters.
    /// `EACCES`, `EPERM`: not allowed, see `kernel.perf_event_paranoid` and `CAP_PERFMON`.
    /// `EINVAL`: the group would be larger than the hardware, or the words mean nothing. `ESRCH`:
    /// no such thread. `EMFILE`: too many descriptors.
    pub fn open(
        event: &EventWords,
        scope: CounterScope,
        leader: Option<&Counter>,
    ) -> io::Result<Counter> {
        let leader = leader.map(|leader| leader.event.as_fd());
        let event = attributes::open_counter(event, scope, leader)?;
        Ok(Counter { event })
    }

    /// Starts the counter, and with it the group that it leads.
    ///
    /// # Errors
    ///
    /// None that a caller could do something about.
    pub fn start(&self) -> io::Result<()> {
        self.order(ENABLE)
    }

    /// Stops the counter, and with it the group that it leads. What it has counted stays.
    ///
    /// # Errors
    ///
    /// None that a caller could do something about.
    pub fn stop(&self) -> io::Result<()> {
        self.order(DISABLE)
    }

    /// Reads what the counter has counted so far.
    ///
    /// # Errors
    ///
    /// `EOF` as [`io::ErrorKind::UnexpectedEof`]: the event could not be put on the hardware and
    /// never will be.
    pub fn read(&self) -> io::Result<Reading> {
        let mut answer = [0_u8; 24];
        let bytes = rustix::io::retry_on_intr(|| rustix::io::read(&self.event, &mut answer))?;
        if bytes != answer.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Reading::decode(&answer))
    }

    fn order(&self, request: libc::c_ulong) -> io::Result<()> {
        // SAFETY: these requests take a number and touch no memory of ours.
        let answer = unsafe { libc::ioctl(self.event.as_raw_fd(), request as _, WHOLE_GROUP) };
        match answer {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

impl Reading {
    /// The words that a read of a counter returns: value, time enabled, time running, each of the
    /// machine's byte order.
    ///
    /// ```
    /// use headway_os::perf::counter::Reading;
    /// let mut words = [0; 24];
    /// words[..8].copy_from_slice(&7_u64.to_ne_bytes());
    /// assert_eq!(Reading::decode(&words).value, 7);
    /// ```
    pub fn decode(bytes: &[u8; 24]) -> Reading {
        let u64_at = |at: usize| {
            let field = bytes[at..at + 8].try_into().expect("eight bytes");
            u64::from_ne_bytes(field)
        };
        Reading {
            value: u64_at(0),
            enabled_ns: u64_at(8),
            running_ns: u64_at(16),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_test_support::skip;

    const MINOR_FAULTS: EventWords = EventWords {
        kind: 1,
        config: 5,
        config1: 0,
        config2: 0,
        exclude_user: false,
        exclude_kernel: false,
    };

    fn open(scope: CounterScope, test: &str) -> Option<Counter> {
        let error = match Counter::open(&MINOR_FAULTS, scope, None) {
            Ok(counter) => return Some(counter),
            Err(error) => error,
        };
        skip(test, &format!("perf_event_open: {error}"));
        None
    }

    /// Needs: counting in the kernel (perf_event_paranoid, CAP_PERFMON)
    #[test]
    fn faults_are_counted_between_start_and_stop_when_memory_is_touched() {
        let name = "faults_are_counted_between_start_and_stop_when_memory_is_touched";
        let Some(counter) = open(CounterScope::Thread(0), name) else {
            return;
        };
        let touch = || {
            // A mapping of its own each time: an allocator may give out memory that has been
            // touched before.
            const BYTES: usize = 8 << 20;
            // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of ours.
            let mapped = unsafe {
                rustix::mm::mmap_anonymous(
                    std::ptr::null_mut(),
                    BYTES,
                    rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                    rustix::mm::MapFlags::PRIVATE,
                )
            };
            let start = mapped.expect("a mapping").cast::<u8>();
            for at in (0..BYTES).step_by(4096) {
                let address = start.wrapping_add(at);
                // SAFETY: within the mapping made above, which no other code knows.
                unsafe { address.write_volatile(1) };
            }
            // SAFETY: the mapping made above, whole; nothing refers to it any more.
            unsafe { rustix::mm::munmap(start.cast(), BYTES) }.expect("unmapped");
        };
        touch();
        assert_eq!(counter.read().expect("a reading").value, 0, "not started");
        counter.start().expect("started");
        touch();
        counter.stop().expect("stopped");
        let first = counter.read().expect("a reading");
        assert!(first.value > 0 && first.enabled_ns > 0, "{first:?}");
        assert_eq!(
            first.enabled_ns, first.running_ns,
            "software events take no turns"
        );
        touch();
        assert_eq!(counter.read().expect("a reading"), first, "stopped");
    }

    /// Needs: counting in the kernel (perf_event_paranoid, CAP_PERFMON)
    #[test]
    fn only_the_child_is_counted_when_the_scope_is_children() {
        let name = "only_the_child_is_counted_when_the_scope_is_children";
        let Some(counter) = open(CounterScope::Children, name) else {
            return;
        };
        let ended = std::process::Command::new("true").status();
        assert!(ended.expect("true is everywhere").success());
        let counted = counter.read().expect("a reading");
        assert!(counted.value > 10, "a program that starts: {counted:?}");
        let bytes = vec![1_u8; 8 << 20];
        assert_eq!(std::hint::black_box(&bytes)[1 << 20], 1);
        assert_eq!(counter.read().expect("a reading").value, counted.value);
    }

    #[test]
    fn unknown_event_is_an_error() {
        let nonsense = EventWords {
            kind: 1,
            config: 9999,
            ..MINOR_FAULTS
        };
        assert!(Counter::open(&nonsense, CounterScope::Thread(0), None).is_err());
        let no_thread = Counter::open(&MINOR_FAULTS, CounterScope::Thread(i32::MAX), None);
        assert_eq!(
            no_thread.expect_err("no such thread").raw_os_error(),
            Some(libc::ESRCH)
        );
    }
}
