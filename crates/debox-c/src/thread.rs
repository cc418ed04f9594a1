//! The recorder of one thread of a C program, and the thread's settings.
//!
//! The settings survive a fork; the recorder does not ([`headway_debox_hook::wipe_on_fork`]). A
//! child creates a new one for the same buffer at its first call.

use std::cell::{Cell, RefCell};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use headway_debox::policy::Rule;
use headway_debox::{Debox, Limits, Record, Snapshot};
use headway_debox_hook::{Tracer, wipe_on_fork};

use crate::info::DeBoxInfo;

/// What the calling thread has passed to `DeBoxControl`.
#[derive(Clone, Copy)]
pub struct Settings {
    pub buffer: *mut DeBoxInfo,
    pub size: usize,
    pub limits: Limits,
}

thread_local! {
    static SETTINGS: Cell<Option<Settings>> = const { Cell::new(None) };
}

/// Stores the settings of the calling thread.
pub fn set_settings(settings: Option<Settings>) {
    SETTINGS.set(settings);
}

/// The state of one thread.
pub struct Thread {
    alive: AtomicU64,
    debox: Debox,
    buffer: Cell<*mut DeBoxInfo>,
    rules: RefCell<Vec<Rule>>,
    /// Whether a callback has asked to remove all rules while they were in use.
    forgotten: Cell<bool>,
    /// Snapshots of calls in `DEBOX_CALL` that are under way; handlers interrupt calls. The newest
    /// is at `depth - 1`, modulo the length, so that calls that a handler jumped out of are
    /// overwritten at some point.
    explicit: [Cell<Snapshot>; EXPLICIT_MAX],
    depth: Cell<usize>,
}

/// How many calls in `DEBOX_CALL` may interrupt one another.
const EXPLICIT_MAX: usize = 8;

const ALIVE: u64 = 1;
const BYTES: usize = size_of::<Thread>().next_multiple_of(4096);

impl Thread {
    /// The records' origin.
    pub fn debox(&self) -> &Debox {
        &self.debox
    }

    /// Applies other settings: a new buffer, other limits.
    pub fn apply_settings(&self, settings: Settings) {
        if self.debox.last().map(|record| record.limits()) != Some(settings.limits) {
            self.debox.replace(Some(Record::new(settings.limits)));
        }
        self.buffer.set(settings.buffer);
    }

    /// Adds a rule and returns its number.
    pub fn add_rule(&self, rule: Rule) -> usize {
        let mut rules = self.rules.borrow_mut();
        rules.push(rule);
        rules.len() - 1
    }

    /// Removes all rules: at once, or when the rule that calls this has returned.
    pub fn remove_rules(&self) {
        match self.rules.try_borrow_mut() {
            Ok(mut rules) => rules.clear(),
            Err(_) => self.forgotten.set(true),
        }
    }

    /// Stops writing into the program's buffer, until the program provides another one.
    pub fn remove_buffer(&self) {
        self.buffer.set(null_mut());
    }

    /// The first half of `DEBOX_CALL`.
    pub fn begin_explicit(&self) {
        let depth = self.depth.get();
        self.explicit[depth % EXPLICIT_MAX].set(self.debox.begin());
        self.depth.set(depth.wrapping_add(1));
    }

    /// The second half.
    pub fn end_explicit(&self, number: u32, site: usize) {
        let Some(depth) = self.depth.get().checked_sub(1) else {
            return;
        };
        self.depth.set(depth);
        self.debox
            .end(number, self.explicit[depth % EXPLICIT_MAX].get());
        self.publish(site);
    }

    #[inline(always)]
    fn publish(&self, site: usize) {
        let Some(record) = self.debox.last() else {
            return;
        };
        // SAFETY: the thread promised the buffer to `DeBoxControl` until it gives another one.
        if let Some(buffer) = unsafe { self.buffer.get().as_mut() } {
            buffer.fill(&record, site);
        }
        if let Ok(mut rules) = self.rules.try_borrow_mut()
            && !rules.is_empty()
        {
            self.react(&mut rules, &record, site);
        }
    }

    #[cold]
    fn react(&self, rules: &mut Vec<Rule>, record: &Record, site: usize) {
        for rule in rules.iter_mut() {
            // A failure cannot be reported: the streams belong to the program.
            let _ = rule.apply(record, site as u64);
            if self.forgotten.get() {
                break;
            }
        }
        if self.forgotten.take() {
            rules.clear();
        }
    }
}

// SAFETY: the pages of `start` stay until `stop`; a fork fills them with zeros, so `alive` can be
// read in a child and says no.
unsafe impl Tracer for Thread {
    type Snapshot = Snapshot;

    unsafe fn start(old: *mut Thread) -> *mut Thread {
        let Some(settings) = SETTINGS.get() else {
            return null_mut();
        };
        // SAFETY: null, or pages of this thread or of its copy in the parent.
        if let Some(thread) = unsafe { old.as_ref() }
            && thread.alive()
        {
            thread.apply_settings(settings);
            return old;
        }
        if headway_debox::is_confined() {
            return null_mut();
        }
        let pages = if old.is_null() {
            wipe_on_fork::pages(BYTES).cast::<Thread>()
        } else {
            old
        };
        if pages.is_null() {
            return null_mut();
        }
        if settings.limits.resolve {
            // Now and not at the first sleep, which the program is measuring.
            headway_debox::kernel_symbols();
        }
        let debox = Debox::enable(settings.limits);
        // SAFETY: the thread promised the buffer to `DeBoxControl`.
        if let Some(buffer) = unsafe { settings.buffer.as_mut() } {
            buffer.begin(settings.size, debox.level());
        }
        let thread = Thread {
            alive: AtomicU64::new(ALIVE),
            debox,
            buffer: Cell::new(settings.buffer),
            rules: RefCell::new(Vec::new()),
            forgotten: Cell::new(false),
            explicit: [const { Cell::new(Snapshot::none()) }; EXPLICIT_MAX],
            depth: Cell::new(0),
        };
        // SAFETY: pages of that size that no other code knows; what a forked child's parent had in
        // them is gone, so nothing is dropped.
        unsafe { pages.write(thread) };
        pages
    }

    unsafe fn stop(thread: *mut Thread) {
        // SAFETY: the caller's promise: written by `start`, not used again.
        drop(unsafe { thread.read() });
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
    fn end(&self, snapshot: Snapshot, number: u32, site: usize, _result: usize) {
        self.debox.end(number, snapshot);
        self.publish(site);
    }

    fn begin_nested(&self) -> Snapshot {
        self.debox.begin_nested()
    }

    fn end_nested(&self, snapshot: Snapshot, number: u32, site: usize, _result: usize) {
        self.debox.end_nested(number, snapshot);
        self.publish(site);
    }

    #[inline(always)]
    fn end_quiet(&self, snapshot: Snapshot, number: u32, site: usize, _result: usize) {
        if self.debox.end_if_off_cpu(number, snapshot)
            && (self.debox.last()).is_some_and(|record| record.slept_count() > 0)
        {
            self.publish(site);
        }
    }

    fn shares_memory(&self) {}

    fn count_skipped_call(_site: usize) {}

    fn count_vfork_call(_site: usize) {}

    fn confining() {
        headway_debox::confine(true);
    }

    fn gives_up_clock() -> u64 {
        0
    }

    fn gave_up_clock(_moment_ns: u64) {}

    fn confined(succeeded: bool) {
        if !succeeded {
            headway_debox::confine(false);
        }
    }
}
