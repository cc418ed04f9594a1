//! The file of the process: created by the first thread that needs it, and again by a forked child.

use std::os::fd::OwnedFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use headway_debox::Debox;
use headway_debox::collect::write::{Identity, Layout, Writer};
use headway_debox::collect::{self, Ended, NoteKind};
use headway_debox_hook::thread::in_vfork_child;
use headway_debox_hook::{raw, wipe_on_fork};
use headway_os::ticks::Ticks;
use rustix::fs::{FallocateFlags, Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::Resource;

use crate::config::{Config, config};
use crate::{image, modules, symbols};

/// How many programs a process may become before tracing stops.
const IMAGES_MAX: u64 = 10_000;

/// What a process knows of itself, in a page that a fork fills with zeros.
struct Shared {
    state: AtomicU64,
    words: AtomicU64,
    lanes_max: AtomicU64,
    log_words: AtomicU64,
    visibility_stored: AtomicU64,
}

const NO_FILE: u64 = 0;
const CREATING: u64 = 1;
const CREATED: u64 = 2;
const FAILED: u64 = 3;

/// The shared page, which is the same in all descendants by fork.
fn shared() -> Option<&'static Shared> {
    // Without a lock, which a fork would copy in its locked state.
    static SHARED: AtomicPtr<Shared> = AtomicPtr::new(null_mut());
    const BYTES: usize = size_of::<Shared>().next_multiple_of(4096);
    let mut address = SHARED.load(Ordering::Acquire);
    if address.is_null() {
        let fresh = wipe_on_fork::pages(BYTES).cast::<Shared>();
        if fresh.is_null() {
            return None;
        }
        let published =
            SHARED.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire);
        address = published.map_or_else(
            |other| {
                // SAFETY: mapped just now, and no other code knows the pages.
                unsafe { wipe_on_fork::free(fresh.cast(), BYTES) };
                other
            },
            |_| fresh,
        );
    }
    // SAFETY: a page of zeros that is never unmapped; all of it is atomic, for which zeros are
    // right.
    unsafe { address.as_ref() }
}

/// The file of this process, created if there is none yet; `None` if that fails.
pub fn writer() -> Option<Writer<'static>> {
    let shared = shared()?;
    if shared.state.load(Ordering::Acquire) == NO_FILE {
        // A handler that left by longjmp, or a cancellation, would leave the others waiting.
        let _blocked = BlockedSignals::new();
        let first =
            (shared.state).compare_exchange(NO_FILE, CREATING, Ordering::AcqRel, Ordering::Acquire);
        if first.is_ok() {
            let made = config().and_then(|config| make(config, shared));
            if made.is_none() {
                report_untraced();
            }
            let state = if made.is_some() { CREATED } else { FAILED };
            shared.state.store(state, Ordering::Release);
            return made;
        }
    }
    // Another thread is creating it; that thread makes some system calls and never waits for this
    // one.
    while shared.state.load(Ordering::Acquire) == CREATING {
        rustix::thread::sched_yield();
    }
    current()
}

/// All signals of the thread blocked, those included that libc keeps for itself and would not block:
/// one of them cancels threads.
struct BlockedSignals(u64);

/// Bytes of the kernel's set of signals.
const SIGNAL_SET_BYTES: usize = 8;

impl BlockedSignals {
    fn new() -> BlockedSignals {
        let (all, mut before) = (u64::MAX, 0_u64);
        let (how, new, old) = (libc::SIG_BLOCK, &raw const all, &raw mut before);
        BlockedSignals::change(how, new, old);
        BlockedSignals(before)
    }

    fn change(how: libc::c_int, new: *const u64, old: *mut u64) {
        let arguments = [
            how as usize,
            new.expose_provenance(),
            old.expose_provenance(),
            SIGNAL_SET_BYTES,
            0,
            0,
        ];
        // SAFETY: both sets are null or of this size and in the caller's frame.
        unsafe { raw(libc::SYS_rt_sigprocmask, arguments) };
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        BlockedSignals::change(libc::SIG_SETMASK, &raw const self.0, null_mut());
    }
}

/// The file of this process, if it has been made.
pub fn current() -> Option<Writer<'static>> {
    let shared = shared()?;
    if shared.state.load(Ordering::Acquire) != CREATED {
        return None;
    }
    let layout = Layout {
        lanes_max: shared.lanes_max.load(Ordering::Relaxed) as usize,
        log_words: shared.log_words.load(Ordering::Relaxed) as usize,
    };
    let words = shared.words.load(Ordering::Relaxed) as usize;
    let words = std::ptr::with_exposed_provenance::<AtomicU64>(words);
    // SAFETY: `make` mapped them with this layout, and they are never unmapped.
    let words = unsafe { std::slice::from_raw_parts(words, layout.words()) };
    Writer::resume(words, layout)
}

/// The head of the file of the last process in this one's line that has one: its own, or that of
/// the ancestor by fork which could create it.
static HEAD: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());

/// The head alone: no lanes, no log.
const HEAD_LAYOUT: Layout = Layout {
    lanes_max: 0,
    log_words: 0,
};

/// Maps the head once more, for children that cannot create a file of their own. A child that can
/// lets go of its ancestor's.
fn share_head(file: &OwnedFd) {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let bytes = HEAD_LAYOUT.bytes();
    // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
    let mapped =
        unsafe { rustix::mm::mmap(null_mut(), bytes, protection, MapFlags::SHARED, file, 0) };
    let before = HEAD.swap(mapped.unwrap_or(null_mut()).cast(), Ordering::Relaxed);
    if !before.is_null() {
        // SAFETY: mapped by an ancestor with this length. Only the thread that creates the file
        // uses it.
        let _ = unsafe { rustix::mm::munmap(before.cast(), bytes) };
    }
}

/// Says in the file of the ancestor that this child has none: behind a chroot, in another mount
/// namespace or as another user it cannot create one.
fn report_untraced() {
    let head = HEAD.load(Ordering::Relaxed);
    if head.is_null() {
        return;
    }
    // SAFETY: `share_head` mapped them, and only a process that has a file unmaps them.
    let words = unsafe { std::slice::from_raw_parts(head, HEAD_LAYOUT.words()) };
    let mut name = image::link("/proc/self/exe");
    name.extend(b" (a child)");
    if let Some(ancestor) = Writer::resume(words, HEAD_LAYOUT) {
        ancestor.add_note(NoteKind::Unreachable, kernel_ns(), &name);
    }
}

/// Stores in the file how much is visible, once per process.
pub fn store_visibility(writer: &Writer<'_>, debox: &Debox) {
    if shared().is_some_and(|shared| shared.visibility_stored.swap(1, Ordering::Relaxed) == 0) {
        writer.set_visibility(debox.level(), debox.sees_faults());
    }
}

/// The last reading of a process that has given up its clock; 0 before.
static LAST_NS: AtomicU64 = AtomicU64::new(0);

/// The monotonic clock. For a process that has given it up, the moment when it did.
pub fn now_ns() -> u64 {
    match LAST_NS.load(Ordering::Relaxed) {
        // It may have given up the counter, which the clock of libc reads and the kernel's does not.
        0 if in_vfork_child() => kernel_ns(),
        0 => headway_os::ticks::monotonic_ns(),
        last_ns => last_ns,
    }
}

/// The monotonic clock by a system call.
fn kernel_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let address = (&raw mut now).expose_provenance();
    let arguments = [libc::CLOCK_MONOTONIC as usize, address, 0, 0, 0, 0];
    // SAFETY: the kernel writes the time into this frame.
    unsafe { raw(libc::SYS_clock_gettime, arguments) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The clock is not read any more: that could kill the process.
pub fn give_up_clock(moment_ns: u64) {
    LAST_NS.store(moment_ns, Ordering::Relaxed);
}

/// Whether the thread may not read the CPU's counter, as prctl(2) has it for `PR_SET_TSC`. An exec
/// keeps that.
pub fn is_clockless() -> bool {
    let mut state: libc::c_int = 0;
    let address = (&raw mut state).expose_provenance();
    let arguments = [libc::PR_GET_TSC as usize, address, 0, 0, 0, 0];
    // SAFETY: the kernel writes one number into this frame.
    unsafe { raw(libc::SYS_prctl, arguments) };
    state == libc::PR_TSC_SIGSEGV
}

/// The program ends, or becomes another one.
pub fn set_ended(ended: Ended) {
    if let Some(writer) = current() {
        writer.set_ended(Some(ended), now_ns());
    }
}

fn make(config: &Config, shared: &Shared) -> Option<Writer<'static>> {
    let ticks = ticks(config);
    let layout = affordable(config.layout)?;
    if config.limits.resolve {
        symbols::load_kernel_symbols(&config.directory);
    }
    let current = image::CurrentProcess::read();
    let (file, path, image) = create(config, &current)?;
    let mapped = reserve(&file, layout).and_then(|layout| Some((map(&file, layout)?, layout)));
    let Some((words, layout)) = mapped else {
        // An empty file would count as a damaged one.
        let _ = rustix::fs::unlink(path);
        return None;
    };
    let (mut boot_id, mut command) = ([0; 64], vec![0; 4096]);
    let identity = Identity {
        pid: current.pid,
        ppid: rustix::process::getppid().map_or(0, |pid| pid.as_raw_pid() as u32),
        start_ticks: current.start_ticks,
        image,
        started_ns: headway_os::ticks::monotonic_ns(),
        started_unix_ns: image::unix_ns(),
        boot_id: image::read("/proc/sys/kernel/random/boot_id", &mut boot_id),
        exe: &image::link("/proc/self/exe"),
        command: image::read("/proc/self/cmdline", &mut command),
        directory: &image::directory(),
        policy: config.policy.as_bytes(),
        ticks_are_counter: ticks.is_counter(),
    };
    let writer = Writer::begin(words, layout, &identity)?;
    share_head(&file);
    modules::scan(&writer);
    shared
        .words
        .store(words.as_ptr().expose_provenance() as u64, Ordering::Relaxed);
    shared
        .lanes_max
        .store(layout.lanes_max as u64, Ordering::Relaxed);
    shared
        .log_words
        .store(layout.log_words as u64, Ordering::Relaxed);
    Some(writer)
}

/// The share of its address space, where that is limited, that a process can be expected not to
/// miss.
const ADDRESS_SPACE_DIVISOR: u64 = 16;

/// The layout, cut to what the process may write, since beyond the limit the kernel would send it a
/// signal, and to what it may map, since the program's own mappings would fail.
fn affordable(layout: Layout) -> Option<Layout> {
    let limit = |resource| rustix::process::getrlimit(resource).current;
    let limits = [
        limit(Resource::Fsize),
        limit(Resource::As).map(|bytes| bytes / ADDRESS_SPACE_DIVISOR),
    ];
    let least = limits.into_iter().flatten().min();
    let fits = |layout: &Layout| least.is_none_or(|least| layout.bytes() as u64 <= least);
    [layout.lanes_max, 16, 1]
        .into_iter()
        .flat_map(|lanes_max| [layout.log_words, 8192].map(|log_words| (lanes_max, log_words)))
        .map(|(lanes_max, log_words)| Layout {
            lanes_max,
            log_words,
        })
        .find(fits)
}

/// A new file: the first image of the process that has none yet.
fn create(config: &Config, current: &image::CurrentProcess) -> Option<(OwnedFd, Vec<u8>, u64)> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    for image in 0..IMAGES_MAX {
        let mut path = config.directory.clone();
        path.push(b'/');
        let name = collect::file_name(current.pid, current.start_ticks, image);
        path.extend(name.as_encoded_bytes());
        match open(path.as_slice(), flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => return Some((file, path, image)),
            Err(Errno::EXIST) => {}
            Err(_) => return None,
        }
    }
    None
}

/// Sets the length of the file. With plenty of space, most of it is never written and takes none.
/// With little space, a write through the mapping could fail and kill the program (`SIGBUS`), so
/// the file reserves a share of what is left. `None` if there is no space at all.
fn reserve(file: &OwnedFd, layout: Layout) -> Option<Layout> {
    const PLENTY_FACTOR: u64 = 2;
    const FREE_DIVISOR: u64 = 8;
    let room = rustix::fs::fstatvfs(file).ok()?;
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    if free >= PLENTY_FACTOR * layout.bytes() as u64 {
        rustix::fs::ftruncate(file, layout.bytes() as u64).ok()?;
        return Some(layout);
    }
    let layout = layout.within((free / FREE_DIVISOR) as usize);
    rustix::fs::fallocate(file, FallocateFlags::empty(), 0, layout.bytes() as u64).ok()?;
    Some(layout)
}

/// Maps the file. A forked child does not inherit the mapping, so it cannot write to its parent's.
fn map(file: &OwnedFd, layout: Layout) -> Option<&'static [AtomicU64]> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
    let address =
        unsafe { rustix::mm::mmap(null_mut(), layout.bytes(), protection, flags, file, 0) }.ok()?;
    // SAFETY: the mapping made just now.
    unsafe { rustix::mm::madvise(address, layout.bytes(), Advice::LinuxDontFork) }.ok()?;
    // SAFETY: never unmapped, aligned to pages, shared with readers as atomic words only.
    Some(unsafe { std::slice::from_raw_parts(address.cast(), layout.words()) })
}

/// The clock as the first process of the directory has measured it. Measuring takes two
/// milliseconds, which a build would pay a thousand times.
fn ticks(config: &Config) -> Ticks {
    let mut path = config.directory.clone();
    path.extend(b"/ticks");
    let mut buffer = [0; 32];
    let file = image::open_trusted(&path);
    let known = file.map_or(&[][..], |(file, _)| image::read_open(&file, &mut buffer));
    if let Some(rate) = std::str::from_utf8(known)
        .ok()
        .and_then(|text| text.trim().parse().ok())
    {
        return Ticks::adopt(rate);
    }
    let ticks = Ticks::calibrated();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    if let Ok(file) = open(
        path,
        flags,
        Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH,
    ) {
        let _ = rustix::io::write(file, format!("{:<20}\n", ticks.rate()).as_bytes());
    }
    ticks
}
