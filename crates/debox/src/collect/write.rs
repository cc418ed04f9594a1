//! The writer: how a traced process updates the file in its memory.
//!
//! The writer takes words, not a file: the caller maps them, and a test needs no mapping. Nothing
//! here allocates, blocks or makes a system call, so all of it may run in a signal handler. A lane
//! has one writer at a time, which adds by a load and a store. The head and the log have many
//! writers, which reserve space by one atomic addition.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::collect::format::{
    COMMITTED, ENTRY_ALIGN_WORDS, ENTRY_WORDS, HEAD_WORDS, MAGIC, NOT_KNOWN, VERSION, WORD_BYTES,
    entry, entry_sleep, head, lane, text_word,
};
use crate::collect::{Ended, NoteKind};
use crate::record::{Record, Sleep};
use crate::report::TraceLevel;

mod thread_totals;

pub use thread_totals::ThreadTotals;

/// Sizes of a file, chosen when it is made.
///
/// ```
/// use headway_debox::collect::write::Layout;
///
/// let layout = Layout::default().within(4 << 20);
/// assert!(layout.bytes() <= 4 << 20 && layout.lanes_max < Layout::default().lanes_max);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// How many threads at a time have a lane; calls of further threads are only counted.
    pub lanes_max: usize,
    /// Words for kept records.
    pub log_words: usize,
}

impl Default for Layout {
    fn default() -> Layout {
        Layout {
            lanes_max: 256,
            log_words: 16 * 1024 * 1024 / WORD_BYTES,
        }
    }
}

impl Layout {
    /// Words of the whole file.
    pub const fn words(self) -> usize {
        self.log_start() + self.log_words
    }

    /// The size of the whole file. Most of it is never written and takes no space.
    pub const fn bytes(self) -> usize {
        self.words() * WORD_BYTES
    }

    /// Returns this layout, or a smaller one that fits into this many bytes. The smallest has one
    /// lane and no log.
    pub const fn within(self, bytes: usize) -> Layout {
        const fn less(one: usize, other: usize) -> usize {
            if one < other { one } else { other }
        }
        let words = (bytes / WORD_BYTES).saturating_sub(HEAD_WORDS + lane::WORDS);
        // A quarter for the log: lanes hold the sums, which are of every call.
        let log_words = less(self.log_words, words / 4);
        let lanes_max = less(self.lanes_max, 1 + (words - log_words) / lane::WORDS);
        Layout {
            lanes_max,
            log_words,
        }
    }

    pub(super) const fn lane_start(self, index: usize) -> usize {
        HEAD_WORDS + index * lane::WORDS
    }

    pub(super) const fn log_start(self) -> usize {
        self.lane_start(self.lanes_max)
    }
}

/// The identity of the process, stored in the head.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// The process and its parent.
    pub pid: u32,
    /// The parent.
    pub ppid: u32,
    /// When the process began, in clock ticks since boot (proc(5), /proc/PID/stat, field 22).
    pub start_ticks: u64,
    /// 0 for the program the process began with, then one more with each exec.
    pub image: u64,
    /// Now, on `CLOCK_MONOTONIC`, the clock of all times in the file.
    pub started_ns: u64,
    /// Now, on `CLOCK_REALTIME`, in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// /proc/sys/kernel/random/boot_id as it is: kernel addresses mean nothing after the next boot.
    pub boot_id: &'a [u8],
    /// Path of the program.
    pub exe: &'a [u8],
    /// Arguments, each ended by a zero byte.
    pub command: &'a [u8],
    /// Working directory.
    pub directory: &'a [u8],
    /// The policy of kept records, as text.
    pub policy: &'a [u8],
    /// Whether times come from the CPU's counter.
    pub ticks_are_counter: bool,
}

/// The file as its process writes it.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use headway_debox::collect::write::{Identity, Layout, Writer};
/// use headway_debox::collect::{Collection, file_name};
/// use headway_debox::{Debox, Limits};
///
/// let layout = Layout { lanes_max: 1, log_words: 1024 };
/// let words: Vec<AtomicU64> = (0..layout.words()).map(|_| AtomicU64::new(0)).collect();
/// let identity = Identity {
///     pid: 42,
///     ppid: 1,
///     start_ticks: 7,
///     image: 0,
///     started_ns: 0,
///     started_unix_ns: 0,
///     boot_id: b"",
///     exe: b"/bin/program",
///     command: b"program\0-v\0",
///     directory: b"/",
///     policy: b"slept",
///     ticks_are_counter: false,
/// };
/// let writer = Writer::begin(&words, layout, &identity).expect("as many words as the layout needs");
///
/// let debox = Debox::enable(Limits::default());
/// debox.call(libc::SYS_getpid as u32, std::process::id);
/// let totals = writer.lane(42, debox.level()).expect("a free lane");
/// totals.add(0x40_1000, false, &debox.last().expect("records are on"));
///
/// // A traced process maps the file. Here its words are written into one.
/// let words = words.iter().map(|word| word.load(Ordering::Relaxed));
/// let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
/// let directory = tempfile::tempdir()?;
/// std::fs::write(directory.path().join(file_name(42, 7, 0)), bytes)?;
/// let collection = Collection::open(directory.path())?;
/// assert_eq!(collection.processes[0].command, ["program", "-v"]);
/// assert_eq!(collection.processes[0].sites[0].name, "getpid");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Writer<'a> {
    words: &'a [AtomicU64],
    layout: Layout,
}

impl<'a> Writer<'a> {
    /// Begins a file in words that are all zero. `None` if the layout needs more words.
    pub fn begin(
        words: &'a [AtomicU64],
        layout: Layout,
        identity: &Identity<'_>,
    ) -> Option<Writer<'a>> {
        if words.len() < layout.words() {
            return None;
        }
        let writer = Writer { words, layout };
        for (word, value) in [
            (head::VERSION, VERSION),
            (head::LANES_MAX, layout.lanes_max as u64),
            (head::LOG_WORDS, layout.log_words as u64),
            (head::PID, u64::from(identity.pid)),
            (head::PPID, u64::from(identity.ppid)),
            (head::START_TICKS, identity.start_ticks),
            (head::IMAGE, identity.image),
            (head::STARTED_NS, identity.started_ns),
            (head::STARTED_UNIX_NS, identity.started_unix_ns),
            (
                head::TICKS_ARE_COUNTER,
                u64::from(identity.ticks_are_counter),
            ),
        ] {
            words[word].store(value, Ordering::Relaxed);
        }
        let [high, low] = boot_id_words(identity.boot_id);
        words[head::BOOT_ID].store(high, Ordering::Relaxed);
        words[head::BOOT_ID + 1].store(low, Ordering::Relaxed);
        for (word, text) in [
            (head::EXE, identity.exe),
            (head::COMMAND, identity.command),
            (head::DIRECTORY, identity.directory),
            (head::POLICY, identity.policy),
        ] {
            words[word].store(writer.text(text), Ordering::Relaxed);
        }
        words[head::MAGIC].store(MAGIC, Ordering::Release);
        words[head::READY].store(1, Ordering::Release);
        Some(writer)
    }

    /// The writer of a file that [`Writer::begin`] has begun. `None` if the layout needs more
    /// words.
    pub fn resume(words: &'a [AtomicU64], layout: Layout) -> Option<Writer<'a>> {
        (words.len() >= layout.words()).then_some(Writer { words, layout })
    }

    /// Stores how much the first thread sees; lanes of other threads have their own word for it.
    pub fn set_visibility(&self, level: &TraceLevel, faults: bool) {
        let (height, why) = level_word(level);
        self.words[head::WHY].store(self.text(why.as_bytes()), Ordering::Relaxed);
        self.words[head::SEES_FAULTS].store(u64::from(faults), Ordering::Relaxed);
        self.words[head::LEVEL].store(height, Ordering::Release);
    }

    /// Stores that the process is about to end or to become another program. `None` takes that back
    /// when the exec failed.
    pub fn set_ended(&self, ended: Option<Ended>, now_ns: u64) {
        let word = ended.map_or(super::format::RUNNING, Ended::word);
        self.words[head::ENDED_NS].store(now_ns, Ordering::Relaxed);
        self.words[head::ENDED].store(word, Ordering::Release);
    }

    /// A lane for the calling thread. It is one without an owner and continues the sums of its last
    /// owner. `None` if all are in use.
    pub fn lane(&self, thread: u32, level: &TraceLevel) -> Option<ThreadTotals<'a>> {
        for index in 0..self.layout.lanes_max {
            let start = self.layout.lane_start(index);
            let owner = &self.words[start + lane::OWNER];
            let free =
                owner.compare_exchange(0, u64::from(thread), Ordering::Acquire, Ordering::Relaxed);
            if free.is_ok() {
                self.words[head::LANES_USED].fetch_max(index as u64 + 1, Ordering::Release);
                let words = self.words[start..start + lane::WORDS].try_into().ok()?;
                let lane = ThreadTotals { words, thread };
                lane.increase(lane::THREADS, 1);
                lane.words[lane::LEVEL].store(level_word(level).0, Ordering::Relaxed);
                return Some(lane);
            }
        }
        None
    }

    /// Counts a call that was not recorded because no lane was free.
    pub fn count_call_without_lane(&self) {
        self.words[head::CALLS_WITHOUT_LANE].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a call that was not recorded, since the thread was inside the tracer itself.
    pub fn count_skipped_call(&self) {
        self.words[head::CALLS_PASSED].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a call of a vfork child, which shares its parent's memory and is not traced.
    pub fn count_vfork_call(&self) {
        self.words[head::CALLS_OF_VFORK].fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a piece of mapped code: addresses from `start` up to `end` are the file's bytes from
    /// `offset`.
    pub fn module(&self, start: u64, end: u64, offset: u64, path: &[u8]) {
        let (used, dropped) = (head::MODULES_USED, head::MODULES_DROPPED);
        if let Some(index) = self.reserve(used, dropped, head::MODULES_MAX) {
            let values = [end, offset, self.text(path)];
            self.entry(head::MODULES, index, start, values);
        }
    }

    /// Whether an address lies in a module that is known.
    pub fn knows(&self, address: u64) -> bool {
        let used = self.words[head::MODULES_USED].load(Ordering::Acquire);
        (0..(used as usize).min(head::MODULES_MAX)).any(|index| {
            let at = head::MODULES + index * ENTRY_WORDS;
            let start = self.words[at].load(Ordering::Acquire);
            let end = self.words[at + 1].load(Ordering::Relaxed);
            start != 0 && (start..end).contains(&address)
        })
    }

    /// Adds a remark, such as the path of a program that cannot be traced.
    pub fn add_note(&self, kind: NoteKind, now_ns: u64, text: &[u8]) {
        if let Some(index) = self.reserve(head::NOTES_USED, head::NOTES_DROPPED, head::NOTES_MAX) {
            let values = [now_ns, self.text(text), 0];
            self.entry(head::NOTES, index, kind as u64, values);
        }
    }

    /// Appends a record to the log; `frames` is the stack of the user's program, innermost first.
    /// What does not fit is counted.
    pub fn append_record(
        &self,
        thread: u32,
        site: u64,
        result: i64,
        record: &Record,
        frames: &[u64],
    ) {
        let sleeps = record.sleeps();
        let sleep_words = |sleep: &Sleep| entry_sleep::WORDS + sleep.stack.frames().len();
        let words = entry::WORDS + sleeps.iter().map(sleep_words).sum::<usize>() + frames.len();
        let Some(at) = self.log_space(words) else {
            self.words[head::LOG_DROPPED].fetch_add(1, Ordering::Relaxed);
            return;
        };
        let log = &self.words[at..at + words];
        let faults = |count: Option<u32>| u64::from(count.unwrap_or(u32::MAX));
        for (word, value) in [
            (
                entry::CALL,
                u64::from(record.number) | u64::from(thread) << 32,
            ),
            (entry::SITE, site),
            (entry::START_NS, record.start_ns),
            (entry::WALL_NS, record.wall_ns),
            (
                entry::FAULTS,
                faults(record.faults_minor) | faults(record.faults_major) << 32,
            ),
            (entry::PREEMPTIONS, record.preemptions.count),
            (entry::PREEMPTED_NS, record.preemptions.total_ns),
            (entry::WAKEUP_NS, record.wakeup_ns.unwrap_or(NOT_KNOWN)),
            (entry::LOST, record.lost),
            (entry::RESULT, result as u64),
            (
                entry::SLEEPS,
                sleeps.len() as u64 | u64::from(record.sleeps_dropped) << 32,
            ),
            (entry::FRAMES, frames.len() as u64),
        ] {
            log[word].store(value, Ordering::Relaxed);
        }
        let mut next = entry::WORDS;
        for sleep in sleeps {
            next = write_sleep(log, next, sleep);
        }
        for (word, &frame) in log[next..].iter().zip(frames) {
            word.store(frame, Ordering::Relaxed);
        }
        log[entry::LENGTH].store(COMMITTED | words as u64, Ordering::Release);
    }

    fn log_space(&self, words: usize) -> Option<usize> {
        let words = words.next_multiple_of(ENTRY_ALIGN_WORDS) as u64;
        let used = &self.words[head::LOG_USED];
        let limit = self.layout.log_words as u64;
        // Compare-and-exchange instead of an addition, so that the word never exceeds the capacity.
        let mut at = used.load(Ordering::Relaxed);
        while at + words <= limit {
            match used.compare_exchange_weak(at, at + words, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(self.layout.log_start() + at as usize),
                Err(now) => at = now,
            }
        }
        None
    }

    /// The next entry of a table, or a count of what did not fit.
    fn reserve(&self, used: usize, dropped: usize, max: usize) -> Option<usize> {
        let index = self.words[used].fetch_add(1, Ordering::AcqRel) as usize;
        if index < max {
            return Some(index);
        }
        self.words[used].store(max as u64, Ordering::Relaxed);
        self.words[dropped].fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Writes the first word last: an entry without it is not complete.
    fn entry(&self, table: usize, index: usize, first: u64, rest: [u64; ENTRY_WORDS - 1]) {
        let at = table + index * ENTRY_WORDS;
        for (word, value) in self.words[at + 1..].iter().zip(rest) {
            word.store(value, Ordering::Relaxed);
        }
        self.words[at].store(first, Ordering::Release);
    }

    /// Stores a text and returns the word that refers to it; an empty text if there is no room.
    fn text(&self, text: &[u8]) -> u64 {
        let needed = text.len().div_ceil(WORD_BYTES);
        let used = &self.words[head::TEXT_WORDS_USED];
        let at = used.fetch_add(needed as u64, Ordering::AcqRel) as usize;
        if at + needed > head::TEXT_WORDS {
            used.fetch_sub(needed as u64, Ordering::AcqRel);
            self.words[head::TEXTS_DROPPED].fetch_add(1, Ordering::Relaxed);
            return 0;
        }
        let start = head::TEXTS + at;
        for (word, piece) in self.words[start..].iter().zip(text.chunks(WORD_BYTES)) {
            let mut bytes = [0; WORD_BYTES];
            bytes[..piece.len()].copy_from_slice(piece);
            word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
        text_word(start, text.len())
    }
}

fn write_sleep(log: &[AtomicU64], at: usize, sleep: &Sleep) -> usize {
    let frames = sleep.stack.frames();
    let words = &log[at..at + entry_sleep::WORDS + frames.len()];
    words[entry_sleep::COUNT].store(u64::from(sleep.count), Ordering::Relaxed);
    words[entry_sleep::BLOCKED_NS].store(sleep.blocked_ns, Ordering::Relaxed);
    words[entry_sleep::MAX_NS].store(sleep.max_ns, Ordering::Relaxed);
    words[entry_sleep::DEPTH].store(frames.len() as u64, Ordering::Relaxed);
    for (word, &frame) in words[entry_sleep::WORDS..].iter().zip(frames) {
        word.store(frame, Ordering::Relaxed);
    }
    at + words.len()
}

fn level_word(level: &TraceLevel) -> (u64, &str) {
    match level {
        TraceLevel::Stacks => (2, ""),
        TraceLevel::SwitchesOnly { why } => (1, why),
        TraceLevel::Off { why } => (0, why),
    }
}

/// The hexadecimal digits of a boot's identifier, dashes left out.
pub(super) fn boot_id_words(text: &[u8]) -> [u64; 2] {
    let digits = text
        .iter()
        .filter_map(|&byte| char::from(byte).to_digit(16));
    let value = digits
        .take(32)
        .fold(0_u128, |sum, digit| sum << 4 | u128::from(digit));
    [(value >> 64) as u64, value as u64]
}
