//! The recorder of a thread: makes system calls and fills in the record of the last one.
//!
//! Around a call it reads the clock, two page-fault counters and the position of the perf ring,
//! which takes about twenty nanoseconds. Only if the ring has moved is there more to do. Then the
//! call slept, so that the cost is not noticeable.
//!
//! The recorder refuses to observe other threads and to keep a history: there is one record, of the
//! last call, as with `errno`. A caller that needs more copies it.
//!
//! Calls of signal handlers come in between. The borrow of the buffer is the lock: code that finds
//! it borrowed changes nothing, and a call that leaves no record for that reason is counted.
//! Compiler fences order the accesses for a handler; the CPU needs none, since it is the same
//! thread.

use std::cell::{Cell, Ref, RefCell};
use std::fmt;
use std::io::Read;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use headway_os::errno;
use headway_os::fork::ForkGuard;
use headway_os::perf::{FaultCounter, FaultKind, FaultScope, Ring};
use headway_os::published::Published;
use headway_os::ticks::Ticks;
use rustix::thread::{Pid, gettid};

use crate::off_cpu::{OffCpuInterval, OffCpuTracker};
use crate::privilege;
use crate::record::{Limits, Record};
use crate::report::TraceLevel;
use crate::stash::Stash;
use crate::symbols::Symbols;

/// In-band records of the calling thread: after each call made through it, [`Debox::last`] is the
/// record of that call.
///
/// Create one per thread, on that thread; it is neither `Send` nor `Sync`. Threads created later
/// have no records until they enable their own.
///
/// - **A signal handler's call** inside another call leaves its own record. When the outer call
///   returns, the record is that of the outer call, as with `errno`, including what it slept before
///   the handler ran.
/// - **A forked child** inherits the recorder and sees no sleeps with it ([`Debox::level`] says so)
///   until it enables its own. A child of `vfork` leaves the parent's ring alone.
/// - **Not promised**: sleeps of other threads on behalf of the call; page faults in user mode; the
///   order of sleeps that are aggregated in one entry.
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
    level: TraceLevel,
    /// What [`Debox::level`] returns in a forked child.
    level_forked: TraceLevel,
    fork_guard: ForkGuard,
    thread: Pid,
    ticks: Ticks,
    /// Readings of both clocks at one moment, to convert ticks to the monotonic clock. Renewed when
    /// it is too old.
    anchor: Cell<Anchor>,
    anchor_age_max: u64,
    off_cpu: RefCell<OffCpuTracker>,
    stash: RefCell<Stash>,
    /// [`Stash::count`], where the fast path can see it.
    stash_count: Cell<u64>,
    /// Records lost between calls, for the next record to say.
    lost: Cell<u64>,
    /// The run-queue wait at the last reading; see [`run_queue_wait_ns`].
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
pub struct Snapshot {
    ticks: u64,
    minor: u64,
    major: u64,
    stash: u64,
}

impl Snapshot {
    /// Snapshot of a call which leaves no record.
    pub const fn none() -> Snapshot {
        Snapshot {
            ticks: 0,
            minor: 0,
            major: 0,
            stash: 0,
        }
    }
}

impl Debox {
    /// Starts recording with as much detail as the kernel allows. Never fails: [`Debox::level`]
    /// says what is visible.
    ///
    /// With [`Limits::resolve`], the first call in a process loads the kernel's symbols, which
    /// takes tens of milliseconds.
    pub fn enable(limits: Limits) -> Debox {
        let (mut ring, level) = privilege::best_ring();
        // Programs rely on their descriptor numbers, and ours would take the lowest free one.
        if let Some(ring) = &mut ring {
            ring.close_descriptor();
        }
        let ticks = Ticks::calibrated();
        let scope = match limits.own_faults {
            true => FaultScope::Everywhere,
            false => FaultScope::InKernel,
        };
        let debox = Debox {
            ring,
            minor: FaultCounter::open(FaultKind::Minor, scope).ok(),
            major: FaultCounter::open(FaultKind::Major, scope).ok(),
            level,
            level_forked: privilege::forked(),
            fork_guard: ForkGuard::current(),
            thread: gettid(),
            ticks,
            anchor: Cell::new(Anchor::at_current_time(ticks)),
            anchor_age_max: ticks.of_ns(ANCHOR_AGE_MAX_NS),
            off_cpu: RefCell::new(OffCpuTracker::new()),
            stash: RefCell::new(Stash::new()),
            stash_count: Cell::new(0),
            lost: Cell::new(0),
            waited_ns: Cell::new(0),
            dropped: Cell::new(0),
            on: Cell::new(false),
            record: RefCell::new(None),
        };
        debox.replace(Some(Record::new(limits)));
        debox
    }

    /// Returns how much is visible, and what would show more.
    pub fn level(&self) -> &TraceLevel {
        if self.fork_guard.is_same_process() {
            &self.level
        } else {
            &self.level_forked
        }
    }

    /// What the entries of a call trace are on this kernel, and what it offers beyond: a sentence
    /// for users.
    pub fn trace_source(&self) -> String {
        privilege::trace_source(self.level())
    }

    /// Whether page faults are counted.
    pub fn sees_faults(&self) -> bool {
        self.fork_guard.is_same_process() && self.minor.is_some() && self.major.is_some()
    }

    /// Makes a system call and keeps its record in the current buffer. `f` should be that one call
    /// and nothing else. What it returns is returned as it is, and `errno` with it.
    #[inline(always)]
    pub fn call<R>(&self, number: u32, f: impl FnOnce() -> R) -> R {
        let snapshot = self.begin();
        let result = f();
        self.end(number, snapshot);
        result
    }

    /// The first half of [`Debox::call`], for callers that cannot pass a closure. A snapshot whose
    /// call never ends, because a handler jumped out of it, does no harm.
    ///
    /// ```
    /// use headway_debox::{Debox, Limits};
    ///
    /// let debox = Debox::enable(Limits::default());
    /// let snapshot = debox.begin();
    /// let pid = std::process::id();
    /// debox.end(libc::SYS_getpid as u32, snapshot);
    /// assert_eq!(debox.last().expect("records are on").number, libc::SYS_getpid as u32);
    /// # let _ = pid;
    /// ```
    #[inline(always)]
    pub fn begin(&self) -> Snapshot {
        if !self.on.get() {
            return Snapshot::default();
        }
        if self.fork_guard.is_same_process() && self.was_off_cpu() {
            self.stash_intervals();
        }
        self.snapshot()
    }

    /// The second half.
    #[inline(always)]
    pub fn end(&self, number: u32, snapshot: Snapshot) {
        self.make_record(number, snapshot, true);
    }

    /// The first half of a call that is made while another call of this thread is under way. What
    /// the other call has slept so far stays in the ring for it.
    #[inline]
    pub fn begin_nested(&self) -> Snapshot {
        if self.on.get() {
            self.snapshot()
        } else {
            Snapshot::default()
        }
    }

    /// The second half of a nested call. The record has no sleeps: the sleeps of this call become
    /// those of the outer one, as its time does.
    pub fn end_nested(&self, number: u32, snapshot: Snapshot) {
        self.make_record(number, snapshot, false);
    }

    /// Like [`Debox::end`], but leaves the record unchanged if the thread did not leave the CPU.
    /// For functions that may or may not make a call. Returns whether there is a new record.
    #[inline(always)]
    pub fn end_if_off_cpu(&self, number: u32, snapshot: Snapshot) -> bool {
        let was_off_cpu = self.fork_guard.is_same_process() && self.was_off_cpu();
        if was_off_cpu {
            self.end(number, snapshot);
        }
        was_off_cpu
    }

    #[inline(always)]
    fn snapshot(&self) -> Snapshot {
        let mut ticks = self.ticks.now();
        if ticks.wrapping_sub(self.anchor.get().ticks) > self.anchor_age_max {
            self.anchor.set(Anchor::at_current_time(self.ticks));
            ticks = self.ticks.now();
        }
        let here = self.fork_guard.is_same_process();
        Snapshot {
            minor: if here { count(&self.minor) } else { 0 },
            major: if here { count(&self.major) } else { 0 },
            stash: self.stash_count.get(),
            ticks,
        }
    }

    #[inline(always)]
    fn make_record(&self, number: u32, snapshot: Snapshot, with_sleeps: bool) {
        // Records may have been switched on or off since; half a record is none.
        if !self.on.get() || snapshot.ticks == 0 {
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
        record.wall_ticks = now.wrapping_sub(snapshot.ticks);
        record.wall_ns = self.ticks.ns_between(snapshot.ticks, now);
        record.start_ns = self.anchor.get().to_ns(self.ticks, snapshot.ticks);
        let here = self.fork_guard.is_same_process();
        record.faults_minor = if here {
            faults_since(&self.minor, snapshot.minor)
        } else {
            None
        };
        record.faults_major = if here {
            faults_since(&self.major, snapshot.major)
        } else {
            None
        };
        if here && with_sleeps && (self.was_off_cpu() || self.stash_count.get() != snapshot.stash) {
            self.attribute(record, snapshot);
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

    /// Lets an observer that knows more add to the record of the last call. Returns false if there
    /// is no buffer or it is borrowed.
    pub fn amend(&self, f: impl FnOnce(&mut Record)) -> bool {
        let Ok(mut record) = self.record.try_borrow_mut() else {
            return false;
        };
        record.as_mut().map(f).is_some()
    }

    /// Installs another buffer and returns the previous one. `None` switches recording off, like
    /// the paper's `NULL`; sleeps in that time belong to no record.
    ///
    /// # Panics
    ///
    /// If the answer of [`Debox::last`] is still held.
    pub fn replace(&self, record: Option<Record>) -> Option<Record> {
        if self.fork_guard.is_same_process() {
            self.stash_intervals();
        }
        // Reading it costs 20 µs, so it is read only where it was requested.
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

    /// Whether the caller is not the thread that made the handle but the child of its vfork.
    fn is_in_vfork_child(&self) -> bool {
        !is_confined() && gettid() != self.thread
    }

    #[inline(always)]
    fn was_off_cpu(&self) -> bool {
        self.ring
            .as_ref()
            .is_some_and(|ring| ring.head() != ring.tail())
    }

    /// Empties the ring at the start of a call: its contents happened between calls, or in a call
    /// that this one interrupts.
    #[cold]
    #[inline(never)]
    fn stash_intervals(&self) {
        let _errno = errno::SavedErrno::now();
        let (Some(ring), Ok(buffer)) = (&self.ring, self.record.try_borrow_mut()) else {
            return;
        };
        // The child of a vfork shares the memory, and the ring is its parent's.
        if self.is_in_vfork_child() {
            return;
        }
        compiler_fence(Ordering::SeqCst);
        let mut off_cpu = self.off_cpu.borrow_mut();
        let mut stash = self.stash.borrow_mut();
        let mut lost = self.lost.get();
        ring.drain(|record| lost += off_cpu.record(record, |interval| stash.push(interval)));
        self.lost.set(lost);
        off_cpu.end_drain(|interval| stash.push(interval));
        self.stash_count.set(stash.count());
        if buffer.as_ref().is_some_and(|r| r.limits().wakeup) {
            self.waited_ns.set(run_queue_wait_ns().unwrap_or(0));
        }
        compiler_fence(Ordering::SeqCst);
    }

    /// Adds the contents of the ring to the record, and what calls inside this one have stashed.
    #[cold]
    #[inline(never)]
    fn attribute(&self, record: &mut Record, snapshot: Snapshot) {
        let _errno = errno::SavedErrno::now();
        let Some(ring) = &self.ring else { return };
        if self.is_in_vfork_child() {
            // In the child of a vfork, its own sleeps cannot be seen.
            record.lost += 1;
            return;
        }
        let nested = self.stash_count.get() != snapshot.stash;
        if record.limits().wakeup {
            let since_ns = run_queue_wait_ns()
                .map(|waited_ns| waited_ns.saturating_sub(self.waited_ns.replace(waited_ns)));
            // The call inside has read the run-queue wait too, so the part before it is unknown.
            record.wakeup_ns = since_ns.filter(|_| !nested);
        }
        let symbols = record.limits().resolve.then(kernel_symbols).flatten();
        // The thread may also lose the CPU just before the first reading of the clock or just after
        // the second.
        let longest_ns = longest_ns(record.wall_ns);
        let add = |record: &mut Record, interval: OffCpuInterval<'_>| {
            if interval.length_ns <= longest_ns {
                record.add(interval, symbols);
            }
        };
        if nested {
            let mut stash = self.stash.borrow_mut();
            record.lost += stash.take(snapshot.stash, |interval| add(record, interval));
        }
        let mut off_cpu = self.off_cpu.borrow_mut();
        let mut lost = self.lost.take();
        let overflown = ring.is_nearly_full();
        ring.drain(|event| {
            lost += off_cpu.record(event, |interval| add(record, interval));
        });
        off_cpu.end_drain(|interval| add(record, interval));
        if overflown && !is_confined() {
            // The kernel reports lost records in front of its next record, which must not be that
            // of another call.
            ring.force_record();
            ring.drain(|event| lost += off_cpu.record(event, |_| {}));
            off_cpu.end_drain(|_| {});
        }
        record.lost += lost;
        // What resolving caused, such as a page fault, stays in the ring and belongs to no call.
    }
}

impl Anchor {
    fn at_current_time(ticks: Ticks) -> Anchor {
        let (ticks, ns) = ticks.with_monotonic_ns();
        Anchor { ticks, ns }
    }

    /// A reading on the monotonic clock. It is before the anchor if a call inside its own renewed
    /// that.
    #[inline(always)]
    fn to_ns(self, clock: Ticks, ticks: u64) -> u64 {
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
            .field("level", self.level())
            .finish_non_exhaustive()
    }
}

#[inline(always)]
fn count(counter: &Option<FaultCounter>) -> u64 {
    counter.as_ref().map_or(0, FaultCounter::count)
}

#[inline(always)]
fn faults_since(counter: &Option<FaultCounter>, before: u64) -> Option<u32> {
    counter
        .as_ref()
        .map(|counter| (counter.count() - before) as u32)
}

/// The longest interval that fits into a call, as two clocks see it that are apart by some parts in
/// a million.
fn longest_ns(wall_ns: u64) -> u64 {
    wall_ns + wall_ns / 1000 + 1000
}

/// How long the calling thread has been runnable without running since it was created: the second
/// number of /proc/thread-self/schedstat (see sched-stats in the kernel's documentation). `None` if
/// it cannot be read.
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

/// How many calls that confine the process have been made or are under way.
static CONFINED: AtomicU32 = AtomicU32::new(0);

/// Declares that seccomp(2) confines the process, or revokes that. Records are then made without
/// system calls of their own, which the filter could punish by killing the process. They have no
/// wakeup latency.
///
/// ```
/// use headway_debox::{confine, is_confined};
///
/// confine(true);
/// assert!(is_confined());
/// // seccomp(2) failed.
/// confine(false);
/// assert!(!is_confined());
/// ```
pub fn confine(yes: bool) {
    if yes {
        CONFINED.fetch_add(1, Ordering::Relaxed);
    } else {
        CONFINED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether [`confine`] was called.
///
/// ```
/// assert!(!headway_debox::is_confined());
/// ```
pub fn is_confined() -> bool {
    CONFINED.load(Ordering::Relaxed) > 0
}

/// Without a lock: a forked child would wait for ever for the thread that held it.
static SYMBOLS: Published<Option<Symbols>> = Published::new();

/// The kernel's functions, loaded once per process at the first use; `None` if the kernel hides
/// them. The first call takes tens of milliseconds. Once the process is confined ([`confine`]) they
/// are not loaded any more.
///
/// ```
/// match headway_debox::kernel_symbols() {
///     Some(symbols) => assert!(symbols.address("schedule").is_some()),
///     None => println!("kernel.kptr_restrict hides the kernel's symbols"),
/// }
/// ```
pub fn kernel_symbols() -> Option<&'static Symbols> {
    if is_confined() {
        return SYMBOLS.get()?.as_ref();
    }
    SYMBOLS
        .get_or_publish(|| Symbols::load().ok().filter(|symbols| !symbols.hidden()))
        .as_ref()
}

/// Gives [`kernel_symbols`] what it would load, from a process that has loaded it. Those it has it
/// keeps.
///
/// ```
/// use headway_debox::{Symbols, adopt_kernel_symbols, kernel_symbols};
///
/// // The image comes from a file or from shared memory.
/// let image = Symbols::load()?.image().to_vec();
/// let symbols = Symbols::from_image(image.into()).expect("an image of this boot");
/// let hidden = symbols.hidden();
/// adopt_kernel_symbols(symbols);
/// assert_eq!(kernel_symbols().is_none(), hidden);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn adopt_kernel_symbols(symbols: Symbols) {
    SYMBOLS.get_or_publish(|| Some(symbols).filter(|symbols| !symbols.hidden()));
}
