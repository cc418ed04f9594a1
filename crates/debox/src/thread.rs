//! The handle of a thread: makes calls, and fills the record of the last one.
//!
//! Around a call it reads the clock, two counters of page faults and the position of the perf ring:
//! some twenty nanoseconds. Only if the ring moved is there more to do, and then the call slept, so
//! that its cost does not show.
//!
//! It refuses to look at other threads and to keep history: one record, the last, as `errno` is.
//! Who wants more keeps it.
//!
//! Calls of signal handlers come in between. The borrow of the buffer is the lock: whoever finds it
//! taken leaves everything alone, and a call that leaves no record for that is counted. Compiler
//! fences keep the lock where a handler can see it; the processor needs none, since it is the same
//! thread.

use std::cell::{Cell, Ref, RefCell};
use std::fmt;
use std::io::Read;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use headway_os::errno;
use headway_os::fork::Home;
use headway_os::perf::{Fault, FaultCounter, Ring, Where};
use headway_os::ticks::Ticks;
use rustix::thread::{Pid, gettid};

use crate::absence::{Absence, Absences};
use crate::aside::Aside;
use crate::privilege;
use crate::record::{Limits, Record};
use crate::report::Rung;
use crate::symbols::Symbols;

/// In-band records for the calling thread: after each call made through it, [`Debox::last`] is that
/// call's performance.
///
/// One per thread, made on that thread, neither `Send` nor `Sync`; a thread made later has none
/// until it enables its own.
///
/// - **A signal handler's call** inside another leaves its own record; when the outer one returns,
///   the record is the outer one's, as `errno` would be, with what it slept before the handler ran.
/// - **A forked child** has the handle and sees no sleeps with it ([`Debox::rung`] says so) until
///   it enables its own. A child of `vfork` leaves the parent's ring alone.
/// - **Not promised**: sleeps of other threads on the call's behalf; the user's part of a page
///   fault; the order of sleeps among those aggregated in one entry.
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
    /// What [`Debox::rung`] says in a forked child.
    rung_forked: Rung,
    home: Home,
    thread: Pid,
    ticks: Ticks,
    /// Readings of both clocks at one moment, to place calls on the monotonic one; renewed as it
    /// ages.
    anchor: Cell<Anchor>,
    anchor_age_max: u64,
    absences: RefCell<Absences>,
    aside: RefCell<Aside>,
    /// [`Aside::count`], where the fast path can see it.
    aside_count: Cell<u64>,
    /// Records lost between calls, for the next record to say.
    lost: Cell<u64>,
    /// What the kernel said at the last look; see [`run_queue_wait_ns`].
    waited_ns: Cell<u64>,
    dropped: Cell<u64>,
    /// Whether there is a buffer: without one a call costs two loads.
    on: Cell<bool>,
    record: RefCell<Option<Record>>,
}

#[derive(Clone, Copy)]
struct Anchor {
    ticks: u64,
    ns: u64,
}

/// How old an anchor may get: the calibration is right to some 25 parts in a million, so readings
/// are placed to 5 µs.
const ANCHOR_AGE_MAX_NS: u64 = 200_000_000;

/// The state before a call; all zero while records are off.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mark {
    ticks: u64,
    minor: u64,
    major: u64,
    aside: u64,
}

impl Mark {
    /// That of a call which leaves no record.
    pub const fn none() -> Mark {
        Mark {
            ticks: 0,
            minor: 0,
            major: 0,
            aside: 0,
        }
    }
}

impl Debox {
    /// Starts with as much detail as the kernel allows. Never fails: [`Debox::rung`] tells what is
    /// seen.
    ///
    /// The first call of a process with [`Limits::resolve`] loads the kernel's symbols: tens of
    /// milliseconds.
    pub fn enable(limits: Limits) -> Debox {
        let (mut ring, rung) = privilege::best_ring();
        // Programs count on their descriptor numbers; ours would take the lowest free ones.
        if let Some(ring) = &mut ring {
            ring.give_up_descriptor();
        }
        let ticks = Ticks::calibrated();
        let whose = match limits.own_faults {
            true => Where::Everywhere,
            false => Where::InKernel,
        };
        let debox = Debox {
            ring,
            minor: FaultCounter::open(Fault::Minor, whose).ok(),
            major: FaultCounter::open(Fault::Major, whose).ok(),
            rung,
            rung_forked: privilege::forked(),
            home: Home::here(),
            thread: gettid(),
            ticks,
            anchor: Cell::new(Anchor::drop_now(ticks)),
            anchor_age_max: ticks.of_ns(ANCHOR_AGE_MAX_NS),
            absences: RefCell::new(Absences::new()),
            aside: RefCell::new(Aside::new()),
            aside_count: Cell::new(0),
            lost: Cell::new(0),
            waited_ns: Cell::new(0),
            dropped: Cell::new(0),
            on: Cell::new(false),
            record: RefCell::new(None),
        };
        debox.replace(Some(Record::new(limits)));
        debox
    }

    /// How much is seen, and what would show more.
    pub fn rung(&self) -> &Rung {
        if self.home.is_here() {
            &self.rung
        } else {
            &self.rung_forked
        }
    }

    /// What the entries of a call trace are on this kernel, and what it offers beyond: a sentence
    /// for users.
    pub fn trace_source(&self) -> String {
        privilege::trace_source(self.rung())
    }

    /// Whether page faults are counted.
    pub fn sees_faults(&self) -> bool {
        self.home.is_here() && self.minor.is_some() && self.major.is_some()
    }

    /// Makes a system call and keeps its record in the current buffer. `f` should be that one call
    /// and nothing else. What it returns is returned as it is, and `errno` with it.
    #[inline(always)]
    pub fn call<R>(&self, number: u32, f: impl FnOnce() -> R) -> R {
        let mark = self.begin();
        let result = f();
        self.end(number, mark);
        result
    }

    /// The first half of [`Debox::call`], for callers that cannot pass a closure. A mark whose call
    /// never ends, since a handler jumped out of it, does no harm.
    #[inline(always)]
    pub fn begin(&self) -> Mark {
        if !self.on.get() {
            return Mark::default();
        }
        if self.home.is_here() && self.moved() {
            self.put_aside();
        }
        self.mark()
    }

    /// The second half.
    #[inline(always)]
    pub fn end(&self, number: u32, mark: Mark) {
        self.keep(number, mark, true);
    }

    /// The first half of a call made while another one of this thread is under way, for callers who
    /// know: what the other one has slept so far stays in the ring, where the other one finds it.
    #[inline]
    pub fn begin_nested(&self) -> Mark {
        if self.on.get() {
            self.mark()
        } else {
            Mark::default()
        }
    }

    /// The second half. The record has no sleeps: those of this call become the other one's, as its
    /// time does.
    pub fn end_nested(&self, number: u32, mark: Mark) {
        self.keep(number, mark, false);
    }

    /// As [`Debox::end`], but leaves the record as it was if the thread did not leave the
    /// processor. For functions that may or may not make a call. True if there is a new record.
    #[inline(always)]
    pub fn end_if_moved(&self, number: u32, mark: Mark) -> bool {
        let moved = self.home.is_here() && self.moved();
        if moved {
            self.end(number, mark);
        }
        moved
    }

    #[inline(always)]
    fn mark(&self) -> Mark {
        let mut ticks = self.ticks.now();
        if ticks.wrapping_sub(self.anchor.get().ticks) > self.anchor_age_max {
            self.anchor.set(Anchor::drop_now(self.ticks));
            ticks = self.ticks.now();
        }
        let here = self.home.is_here();
        Mark {
            minor: if here { count(&self.minor) } else { 0 },
            major: if here { count(&self.major) } else { 0 },
            aside: self.aside_count.get(),
            ticks,
        }
    }

    #[inline(always)]
    fn keep(&self, number: u32, mark: Mark, with_sleeps: bool) {
        // Records may have been switched on or off since; half a record is none.
        if !self.on.get() || mark.ticks == 0 {
            return;
        }
        let now = self.ticks.now();
        let Ok(mut buffer) = self.record.try_borrow_mut() else {
            return self.dropped.set(self.dropped.get() + 1);
        };
        let Some(record) = buffer.as_mut() else {
            return;
        };
        compiler_fence(Ordering::SeqCst);
        record.begin(number);
        record.wall_ticks = now.wrapping_sub(mark.ticks);
        record.wall_ns = self.ticks.ns_between(mark.ticks, now);
        record.start_ns = self.anchor.get().place(self.ticks, mark.ticks);
        let here = self.home.is_here();
        record.faults_minor = if here {
            faults(&self.minor, mark.minor)
        } else {
            None
        };
        record.faults_major = if here {
            faults(&self.major, mark.major)
        } else {
            None
        };
        if here && with_sleeps && (self.moved() || self.aside_count.get() != mark.aside) {
            self.attribute(record, mark);
        }
        compiler_fence(Ordering::SeqCst);
    }

    /// The record of the last call; `None` if there is no buffer.
    ///
    /// Must be dropped before the next call, which otherwise leaves no record and is counted in
    /// [`Debox::dropped`].
    #[inline(always)]
    pub fn last(&self) -> Option<Ref<'_, Record>> {
        Ref::filter_map(self.record.borrow(), Option::as_ref).ok()
    }

    /// Calls that left no record because the buffer was in use: the answer of [`Debox::last`] was
    /// still held, or a signal handler's call came while another record was being written.
    pub fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// Lets an observer who knows more add to the record of the last call; false if there is no
    /// buffer or it is borrowed.
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
        if self.home.is_here() {
            self.put_aside();
        }
        // A look costs 20 us, so only who asked for it pays.
        if record.as_ref().is_some_and(|r| r.limits().wakeup) {
            self.waited_ns.set(run_queue_wait_ns().unwrap_or(0));
        }
        // Now and not at the first sleep, which may be in a signal handler.
        if record.as_ref().is_some_and(|r| r.limits().resolve) && self.ring.is_some() {
            kernel_symbols();
        }
        self.on.set(record.is_some());
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

    /// Whether this is not the thread that made the handle but the child of its vfork.
    fn is_anothers(&self) -> bool {
        !is_confined() && gettid() != self.thread
    }

    #[inline(always)]
    fn moved(&self) -> bool {
        self.ring
            .as_ref()
            .is_some_and(|ring| ring.head() != ring.tail())
    }

    /// Empties the ring: what is in it happened between calls, or in a call this one interrupts.
    #[cold]
    #[inline(never)]
    fn put_aside(&self) {
        let _errno = errno::Kept::now();
        let (Some(ring), Ok(buffer)) = (&self.ring, self.record.try_borrow_mut()) else {
            return;
        };
        // The child of a vfork shares the memory, and the ring is its parent's.
        if self.is_anothers() {
            return;
        }
        compiler_fence(Ordering::SeqCst);
        let mut absences = self.absences.borrow_mut();
        let mut aside = self.aside.borrow_mut();
        let mut lost = self.lost.get();
        ring.drain(|record| lost += absences.record(record, |absence| aside.put(absence)));
        self.lost.set(lost);
        absences.settle(|absence| aside.put(absence));
        self.aside_count.set(aside.count());
        if buffer.as_ref().is_some_and(|r| r.limits().wakeup) {
            self.waited_ns.set(run_queue_wait_ns().unwrap_or(0));
        }
        compiler_fence(Ordering::SeqCst);
    }

    /// Adds to the record what is in the ring, and what a call inside this one has put aside.
    #[cold]
    #[inline(never)]
    fn attribute(&self, record: &mut Record, mark: Mark) {
        let _errno = errno::Kept::now();
        let Some(ring) = &self.ring else { return };
        if self.is_anothers() {
            // The child of a vfork: its own sleeps are seen by nobody.
            record.lost += 1;
            return;
        }
        let nested = self.aside_count.get() != mark.aside;
        if record.limits().wakeup {
            let since_ns = run_queue_wait_ns()
                .map(|waited_ns| waited_ns.saturating_sub(self.waited_ns.replace(waited_ns)));
            // The call inside has looked at the clock of waiting, too: the part before it is not
            // known.
            record.wakeup_ns = since_ns.filter(|_| !nested);
        }
        let symbols = record.limits().resolve.then(kernel_symbols).flatten();
        // The thread may also lose the processor just before the first reading of the clock or just
        // after the second.
        let longest_ns = longest_ns(record.wall_ns);
        let add = |record: &mut Record, absence: Absence<'_>| {
            if absence.length_ns <= longest_ns {
                record.add(absence, symbols);
            }
        };
        if nested {
            let mut aside = self.aside.borrow_mut();
            record.lost += aside.take(mark.aside, |absence| add(record, absence));
        }
        let mut absences = self.absences.borrow_mut();
        let mut lost = self.lost.take();
        let overflown = ring.is_nearly_full();
        ring.drain(|event| {
            lost += absences.record(event, |absence| add(record, absence));
        });
        absences.settle(|absence| add(record, absence));
        if overflown && !is_confined() {
            // The kernel tells what it lost in front of its next record, which must not be another
            // call's.
            ring.provoke();
            ring.drain(|event| lost += absences.record(event, |_| {}));
            absences.settle(|_| {});
        }
        record.lost += lost;
        // What resolving caused, a page fault of its own perhaps, stays in the ring and is
        // nobody's.
    }
}

impl Anchor {
    fn drop_now(ticks: Ticks) -> Anchor {
        let (ticks, ns) = ticks.with_monotonic_ns();
        Anchor { ticks, ns }
    }

    /// A reading on the monotonic clock. It is before the anchor if a call inside its own renewed
    /// that.
    #[inline(always)]
    fn place(self, clock: Ticks, ticks: u64) -> u64 {
        if ticks >= self.ticks {
            self.ns + clock.ns_between(self.ticks, ticks)
        } else {
            self.ns - clock.ns_between(ticks, self.ticks)
        }
    }
}

impl fmt::Debug for Debox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Debox")
            .field("rung", self.rung())
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

/// The longest absence that fits into a call, as two clocks see it that are apart by some parts in
/// a million.
fn longest_ns(wall_ns: u64) -> u64 {
    wall_ns + wall_ns / 1000 + 1000
}

/// Nanoseconds the calling thread was runnable without running, since it began: the second word of
/// /proc/thread-self/schedstat (sched-stats in the kernel's documentation). `None` where it cannot
/// be read.
fn run_queue_wait_ns() -> Option<u64> {
    if is_confined() {
        return None;
    }
    let mut text = [0; 96];
    let mut file = std::fs::File::open("/proc/thread-self/schedstat").ok()?;
    let bytes = file.read(&mut text).ok()?;
    let text = std::str::from_utf8(&text[..bytes]).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// How many calls that give up system calls have been made or are under way.
static CONFINED: AtomicU32 = AtomicU32::new(0);

/// Says that the process gives up system calls (seccomp(2)), or takes it back. Records then do
/// without calls of their own, which could be the end of the process: there is no time between
/// wake-up and running in them.
pub fn confine(yes: bool) {
    if yes {
        CONFINED.fetch_add(1, Ordering::Relaxed);
    } else {
        CONFINED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether [`confine`] was said.
pub fn is_confined() -> bool {
    CONFINED.load(Ordering::Relaxed) > 0
}

static SYMBOLS: OnceLock<Option<Symbols>> = OnceLock::new();

/// The kernel's functions, loaded once a process by whoever needs them first; `None` where they are
/// hidden. Slow at the first call: tens of milliseconds. Once the process is confined ([`confine`])
/// they are no longer loaded.
pub fn kernel_symbols() -> Option<&'static Symbols> {
    if is_confined() {
        return SYMBOLS.get()?.as_ref();
    }
    SYMBOLS
        .get_or_init(|| Symbols::load().ok().filter(|symbols| !symbols.hidden()))
        .as_ref()
}

/// Gives [`kernel_symbols`] what it would load, from a process that has loaded it. Those it has it
/// keeps.
pub fn adopt_kernel_symbols(symbols: Symbols) {
    let _ = SYMBOLS.set(Some(symbols).filter(|symbols| !symbols.hidden()));
}
