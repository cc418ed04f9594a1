//! The tracer of one thread: its ring and its lane of the process's file.
//!
//! The data is in pages that a fork fills with zeros, so a child knows at its first call that it
//! has none yet.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use headway_debox::collect::NoteKind;
use headway_debox::collect::write::{ThreadTotals, Writer};
use headway_debox::{Debox, Record, Snapshot};
use headway_debox_hook::{Tracer, wipe_on_fork};

use crate::config::{Config, config};
use crate::stack::Frames;
use crate::{modules, process, react};

/// The state of one thread.
pub struct Thread {
    alive: AtomicU64,
    debox: Debox,
    lane: Option<ThreadTotals<'static>>,
    writer: Writer<'static>,
    config: &'static Config,
}

const ALIVE: u64 = 1;
const BYTES: usize = size_of::<Thread>().next_multiple_of(4096);

impl Thread {
    /// The writer of the process this thread is in.
    pub fn writer(&self) -> &Writer<'static> {
        &self.writer
    }

    /// The lane, if one was free.
    pub fn lane(&self) -> Option<&ThreadTotals<'static>> {
        self.lane.as_ref()
    }

    /// The monotonic clock.
    pub fn now_ns(&self) -> u64 {
        process::now_ns()
    }

    #[inline(always)]
    fn account(&self, site: usize, result: usize) {
        let site = site as u64;
        let (Some(record), Some(lane)) = (self.debox.last(), self.lane) else {
            return self.writer.count_call_without_lane();
        };
        if lane.add(site, failed(result), &record) {
            self.ensure_module_known(site);
        }
        if let Some(filter) = &self.config.keep
            && filter.meets(&record, site)
        {
            self.append_record(&lane, site, result, &record);
        }
        if !self.config.orders.is_empty() {
            react::react(&self.config.orders, &record, site);
        }
    }

    /// A new call site: if its module is not known, one was loaded since.
    #[cold]
    fn ensure_module_known(&self, site: u64) {
        if !self.writer.knows(site) {
            modules::scan(&self.writer);
        }
    }

    #[cold]
    fn append_record(&self, lane: &ThreadTotals<'_>, site: u64, result: usize, record: &Record) {
        let one_in = self.config.keep.as_ref().map_or(1, |filter| filter.one_in);
        if !lane.count_match().is_multiple_of(u64::from(one_in.max(1))) {
            return;
        }
        let frames = if self.config.stacks {
            Frames::from(site)
        } else {
            Frames::none()
        };
        let thread = lane.thread();
        self.writer
            .append_record(thread, site, result as i64, record, frames.addresses());
    }
}

/// Whether a call failed, as the stubs say it.
fn failed(result: usize) -> bool {
    result == usize::MAX
}

// SAFETY: the pages of `start` stay until `stop`; a fork fills them with zeros, so `alive` can be
// read in a child and says no.
unsafe impl Tracer for Thread {
    type Snapshot = Snapshot;

    unsafe fn start(old: *mut Thread) -> *mut Thread {
        if headway_debox::is_confined() || process::is_clockless() {
            return null_mut();
        }
        let Some(config) = config() else {
            return null_mut();
        };
        let Some(writer) = process::writer() else {
            return null_mut();
        };
        let pages = if old.is_null() {
            wipe_on_fork::pages(BYTES).cast()
        } else {
            old
        };
        if pages.is_null() {
            return null_mut();
        }
        let debox = Debox::enable(config.limits);
        process::store_visibility(&writer, &debox);
        let thread = Thread {
            lane: writer.lane(rustix::thread::gettid().as_raw_pid() as u32, debox.level()),
            alive: AtomicU64::new(ALIVE),
            debox,
            writer,
            config,
        };
        // SAFETY: pages of that size that no other code knows; what a forked child's parent had in
        // them is gone, so nothing is dropped.
        unsafe { pages.write(thread) };
        pages
    }

    unsafe fn stop(thread: *mut Thread) {
        // SAFETY: the caller's promise: written by `start`, not used again.
        let thread_value = unsafe { thread.read() };
        if let Some(lane) = thread_value.lane {
            lane.release();
        }
        drop(thread_value);
        // SAFETY: mapped by `start`, and empty now.
        unsafe { wipe_on_fork::free(thread.cast(), BYTES) };
    }

    #[inline(always)]
    fn alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed) == ALIVE
    }

    #[inline(always)]
    fn begin(&self) -> Snapshot {
        self.debox.begin()
    }

    #[inline(always)]
    fn end(&self, snapshot: Snapshot, number: u32, site: usize, result: usize) {
        self.debox.end(number, snapshot);
        self.account(site, result);
    }

    fn begin_nested(&self) -> Snapshot {
        self.debox.begin_nested()
    }

    fn end_nested(&self, snapshot: Snapshot, number: u32, site: usize, result: usize) {
        self.debox.end_nested(number, snapshot);
        if let Some(lane) = &self.lane {
            lane.count_nested_call();
        }
        self.account(site, result);
    }

    #[inline(always)]
    fn end_quiet(&self, snapshot: Snapshot, number: u32, site: usize, result: usize) {
        if self.debox.end_if_off_cpu(number, snapshot)
            && (self.debox.last()).is_some_and(|record| record.slept_count() > 0)
        {
            self.account(site, result);
        }
    }

    fn shares_memory(&self) {
        self.writer
            .add_note(NoteKind::SharedMemory, self.now_ns(), b"clone");
    }

    fn count_skipped_call(site: usize) {
        // The library's own calls come by here too.
        if !modules::is_own(site as u64)
            && let Some(writer) = process::current()
        {
            writer.count_skipped_call();
        }
    }

    fn confining() {
        headway_debox::confine(true);
    }

    fn confined(succeeded: bool) {
        if !succeeded {
            return headway_debox::confine(false);
        }
        if let Some(writer) = process::current() {
            writer.add_note(NoteKind::Confined, process::now_ns(), b"seccomp");
        }
    }

    fn gives_up_clock() -> u64 {
        process::now_ns()
    }

    fn gave_up_clock(moment_ns: u64) {
        process::give_up_clock(moment_ns);
        if let Some(writer) = process::current() {
            writer.add_note(NoteKind::Clockless, moment_ns, b"clock");
        }
    }

    fn count_vfork_call(site: usize) {
        // As above.
        if !modules::is_own(site as u64)
            && let Some(writer) = process::current()
        {
            writer.count_vfork_call();
        }
    }
}
