//! The handle of a thread: makes calls, and fills the record of the last one.
//!
//! Around a call it reads the clock, two counters of page faults and the position of the perf ring: some
//! twenty nanoseconds. Only if the ring moved is there more to do, and then the call slept, so
//! that its cost does not show.
//!
//! It refuses to look at other threads and to keep history: one record, the last, as `errno` is. Who wants
//! more keeps it.

use std::cell::{Cell, Ref, RefCell};
use std::fmt;
use std::io::Read;
use std::sync::OnceLock;

use os::perf::{Fault, FaultCounter, Ring};
use os::ticks::{Ticks, monotonic_ns};

use crate::absence::Absences;
use crate::privilege;
use crate::record::{Limits, Record};
use crate::report::Rung;
use crate::symbols::Symbols;

/// In-band records for the calling thread: after each call made through it, [`Debox::last`] is that
/// call's performance.
///
/// One per thread, made on that thread, neither `Send` nor `Sync`. After a fork the child must enable its own.
///
/// ```
/// use std::io::{Read, Write};
/// use headway_debox::{Debox, Limits};
///
/// let (mut reader, mut writer) = std::io::pipe()?;
/// let late = std::thread::spawn(move || {
///     std::thread::sleep(std::time::Duration::from_millis(5));
///     writer.write_all(b"late")
/// });
///
/// let debox = Debox::enable(Limits::default());
/// let mut bytes = [0; 4];
/// debox.call(libc::SYS_read as u32, || reader.read_exact(&mut bytes))?;
///
/// let record = debox.last().expect("records are on");
/// println!("{} took {} ns", record.number, record.wall_ns);
/// for sleep in record.sleeps() {
///     // 1 × pipe, 5073291 ns
///     println!("{} × {}, {} ns", sleep.count, sleep.label, sleep.blocked_ns);
/// }
/// # drop(record);
/// # late.join().unwrap()?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Debox {
    ring: Option<Ring>,
    minor: Option<FaultCounter>,
    major: Option<FaultCounter>,
    rung: Rung,
    ticks: Ticks,
    /// One pair of readings of both clocks, to place a call on the monotonic one.
    epoch: Cell<Epoch>,
    absences: RefCell<Absences>,
    /// Records lost between calls, for the next record to say.
    lost: Cell<u64>,
    /// What the kernel said at the last look; see [`run_queue_wait_ns`].
    waited_ns: Cell<u64>,
    record: RefCell<Option<Record>>,
}

#[derive(Clone, Copy)]
struct Epoch {
    ticks: u64,
    ns: u64,
}

/// How long a pair of readings serves: the rate is right to 25 parts in a million, so a call is placed to 25 µs.
const EPOCH_NS_MAX: u64 = 1_000_000_000;

impl Epoch {
    #[cold]
    #[inline(never)]
    fn now(ticks: Ticks) -> Epoch {
        Epoch {
            ticks: ticks.now(),
            ns: monotonic_ns(),
        }
    }
}

/// The state before a call.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    ticks: u64,
    minor: u64,
    major: u64,
}

impl Debox {
    /// Starts with as much detail as the kernel allows. Never fails: [`Debox::rung`] tells what is seen.
    pub fn enable(limits: Limits) -> Debox {
        let (mut ring, rung) = privilege::best_ring();
        // Programs count on their descriptor numbers; ours would take the lowest free ones.
        if let Some(ring) = &mut ring {
            ring.give_up_descriptor();
        }
        let ticks = Ticks::calibrated();
        Debox {
            ring,
            minor: FaultCounter::open(Fault::Minor).ok(),
            major: FaultCounter::open(Fault::Major).ok(),
            rung,
            ticks,
            epoch: Cell::new(Epoch::now(ticks)),
            absences: RefCell::new(Absences::new()),
            lost: Cell::new(0),
            waited_ns: Cell::new(run_queue_wait_ns()),
            record: RefCell::new(Some(Record::new(limits))),
        }
    }

    /// How much is seen, and what would show more.
    pub fn rung(&self) -> &Rung {
        &self.rung
    }

    /// Whether page faults are counted.
    pub fn sees_faults(&self) -> bool {
        self.minor.is_some() && self.major.is_some()
    }

    /// Makes a system call and keeps its record in the current buffer. `f` should be that one call and
    /// nothing else. What it returns is returned as it is, and `errno` with it.
    #[inline(always)]
    pub fn call<R>(&self, number: u32, f: impl FnOnce() -> R) -> R {
        let mark = self.begin();
        let result = f();
        self.end(number, mark);
        result
    }

    /// The first half of [`Debox::call`], for callers that cannot pass a closure.
    #[inline(always)]
    pub fn begin(&self) -> Mark {
        if self.moved() {
            self.forget();
        }
        Mark {
            minor: count(&self.minor),
            major: count(&self.major),
            ticks: self.ticks.now(),
        }
    }

    /// The second half.
    #[inline(always)]
    pub fn end(&self, number: u32, mark: Mark) {
        let now = self.ticks.now();
        let Ok(mut record) = self.record.try_borrow_mut() else {
            return;
        };
        let Some(record) = record.as_mut() else {
            return;
        };
        self.fill(record, number, mark, now);
        if self.moved() {
            self.attribute(record);
        }
    }

    /// All of a record but the sleeps.
    #[inline(always)]
    fn fill(&self, record: &mut Record, number: u32, mark: Mark, now: u64) {
        record.begin(number);
        record.wall_ticks = now.wrapping_sub(mark.ticks);
        record.wall_ns = self.ticks.ns_between(mark.ticks, now);
        let epoch = self.epoch.get();
        let since_ns = self.ticks.ns_between(epoch.ticks, mark.ticks);
        record.start_ns = epoch.ns + since_ns;
        if since_ns > EPOCH_NS_MAX {
            self.place(record);
        }
        record.faults_minor = faults(&self.minor, mark.minor);
        record.faults_major = faults(&self.major, mark.major);
    }

    /// Places a call that has just ended by a fresh pair of readings.
    #[cold]
    #[inline(never)]
    fn place(&self, record: &mut Record) {
        let epoch = Epoch::now(self.ticks);
        self.epoch.set(epoch);
        record.start_ns = epoch.ns - record.wall_ns;
    }

    /// The first half of a call made while another one of this thread is under way, as in a signal
    /// handler: what the other one has slept so far stays its own.
    #[inline]
    pub fn begin_nested(&self) -> Mark {
        Mark {
            minor: count(&self.minor),
            major: count(&self.major),
            ticks: self.ticks.now(),
        }
    }

    /// The second half. The record has no sleeps: those of this call become the other one's, as its
    /// time does.
    pub fn end_nested(&self, number: u32, mark: Mark) {
        let now = self.ticks.now();
        let Ok(mut record) = self.record.try_borrow_mut() else {
            return;
        };
        if let Some(record) = record.as_mut() {
            self.fill(record, number, mark, now);
        }
    }

    /// As [`Debox::end`], but leaves the record as it was if the thread did not leave the processor. For
    /// functions that may or may not make a call. True if there is a new record.
    #[inline(always)]
    pub fn end_if_moved(&self, number: u32, mark: Mark) -> bool {
        let moved = self.moved();
        if moved {
            self.end(number, mark);
        }
        moved
    }

    /// The record of the last call; `None` if there is no buffer.
    ///
    /// Must be dropped before the next call, which otherwise leaves no record.
    pub fn last(&self) -> Option<Ref<'_, Record>> {
        Ref::filter_map(self.record.borrow(), Option::as_ref).ok()
    }

    /// Lets an observer who knows more add to the record of the last call; false if there is no buffer or
    /// it is borrowed.
    pub fn amend(&self, f: impl FnOnce(&mut Record)) -> bool {
        let Ok(mut record) = self.record.try_borrow_mut() else {
            return false;
        };
        record.as_mut().map(f).is_some()
    }

    /// Puts another buffer in place and returns the one before. `None` switches recording off, the
    /// paper's `NULL`; what sleeps meanwhile is nobody's.
    ///
    /// # Panics
    ///
    /// If the answer of [`Debox::last`] is still held.
    pub fn replace(&self, record: Option<Record>) -> Option<Record> {
        self.forget();
        self.record.replace(record)
    }

    /// Changes what is kept from the next call on, by a new buffer.
    ///
    /// # Panics
    ///
    /// As [`Debox::replace`].
    pub fn set_limits(&self, limits: Limits) {
        self.replace(Some(Record::new(limits)));
    }

    #[inline(always)]
    fn moved(&self) -> bool {
        self.ring
            .as_ref()
            .is_some_and(|ring| ring.head() != ring.tail())
    }

    /// Drops what is in the ring: it happened between calls.
    #[cold]
    #[inline(never)]
    fn forget(&self) {
        if let (Some(ring), Ok(mut absences)) = (&self.ring, self.absences.try_borrow_mut()) {
            let mut lost = self.lost.get();
            ring.drain(|record| lost += absences.record(record, |_| {}));
            self.lost.set(lost);
            absences.settle(|_| {});
        }
        if self.asks_wakeup() {
            self.waited_ns.set(run_queue_wait_ns());
        }
    }

    fn asks_wakeup(&self) -> bool {
        let record = self.record.try_borrow();
        record.is_ok_and(|record| record.as_ref().is_some_and(|r| r.limits().wakeup))
    }

    #[cold]
    #[inline(never)]
    fn attribute(&self, record: &mut Record) {
        let Some(ring) = &self.ring else { return };
        if record.limits().wakeup {
            let waited_ns = run_queue_wait_ns();
            record.wakeup_ns = Some(waited_ns.saturating_sub(self.waited_ns.replace(waited_ns)));
        }
        let symbols = record.limits().resolve.then(kernel_symbols).flatten();
        let full = ring.head() - ring.tail() + RECORD_BYTES_MAX > ring.capacity();
        let mut absences = self.absences.borrow_mut();
        let mut lost = self.lost.take();
        ring.drain(|event| {
            lost += absences.record(event, |absence| record.add(absence, symbols));
        });
        absences.settle(|absence| record.add(absence, symbols));
        if full {
            lost += announced_losses(ring, &mut absences);
        }
        record.lost += lost;
        // What resolving caused, a page fault of its own perhaps, stays in the ring and is nobody's.
    }
}

impl fmt::Debug for Debox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Debox")
            .field("rung", &self.rung)
            .finish_non_exhaustive()
    }
}

#[inline(always)]
fn count(counter: &Option<FaultCounter>) -> u64 {
    counter.as_ref().map_or(0, FaultCounter::count)
}

#[inline(always)]
fn faults(counter: &Option<FaultCounter>, before: u64) -> Option<u32> {
    counter
        .as_ref()
        .map(|counter| (counter.count() - before) as u32)
}

/// The longest record the kernel writes here: a header, a time and a call chain.
const RECORD_BYTES_MAX: u64 = 8 * (3 + 1 + os::perf::STACK_FRAMES_MAX as u64);

/// How many records the kernel dropped from a ring that was full. It says so with the next record, so one has
/// to come: the thread sleeps as shortly as it can.
#[cold]
fn announced_losses(ring: &Ring, absences: &mut Absences) -> u64 {
    std::thread::sleep(std::time::Duration::from_nanos(1));
    let mut lost = 0;
    ring.drain(|record| lost += absences.record(record, |_| {}));
    absences.settle(|_| {});
    lost
}

/// Nanoseconds the calling thread was runnable without running, since it began: the second word of
/// /proc/thread-self/schedstat (sched-stats in the kernel's documentation). Zero where there is none.
fn run_queue_wait_ns() -> u64 {
    let mut text = [0; 96];
    let read = std::fs::File::open("/proc/thread-self/schedstat")
        .and_then(|mut file| file.read(&mut text));
    let Ok(bytes) = read else { return 0 };
    std::str::from_utf8(&text[..bytes])
        .ok()
        .and_then(|text| text.split_ascii_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}

/// The kernel's functions, loaded once a process by whoever needs them first; `None` where they are hidden. Call
/// it early, where tens of milliseconds do no harm; else the first sleep does.
pub fn kernel_symbols() -> Option<&'static Symbols> {
    static SYMBOLS: OnceLock<Option<Symbols>> = OnceLock::new();
    SYMBOLS
        .get_or_init(|| Symbols::load().ok().filter(|symbols| !symbols.hidden()))
        .as_ref()
}
