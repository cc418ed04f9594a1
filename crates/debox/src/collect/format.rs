//! The layout of the file of a traced process, in 64-bit words of the machine's byte order.
//!
//! ```text
//! head    64 KiB   identity of the process, modules, notes, texts
//! lane    a whole number of pages per lane; one thread at a time writes to each
//! log     entries of kept records; any thread appends
//! ```
//!
//! Every word is atomic in the writer's memory, so the file can be read at any moment, while the
//! process runs and after `SIGKILL`: the kernel owns the pages. A count is stored (release) after
//! the data it counts, so that the counted data is there. The file is sparse: parts that were never
//! written take no space.

/// The first word.
pub(super) const MAGIC: u64 = u64::from_ne_bytes(*b"DeBoxRun");

/// Grows when a reader of the version before would misread.
pub(super) const VERSION: u64 = 1;

/// The ending of the files' names.
pub(super) const SUFFIX: &str = "debox";

pub(super) const WORD_BYTES: usize = 8;
pub(super) const HEAD_WORDS: usize = 8192;

/// Words of the head.
pub(super) mod head {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 1;
    pub const LANES_MAX: usize = 2;
    pub const LOG_WORDS: usize = 3;
    pub const PID: usize = 4;
    pub const PPID: usize = 5;
    pub const START_TICKS: usize = 6;
    pub const IMAGE: usize = 7;
    pub const STARTED_NS: usize = 8;
    pub const STARTED_UNIX_NS: usize = 9;
    pub const LEVEL: usize = 10;
    pub const SEES_FAULTS: usize = 11;
    pub const TICKS_ARE_COUNTER: usize = 12;
    pub const BOOT_ID: usize = 13;
    pub const LANES_USED: usize = 15;
    pub const ENDED: usize = 16;
    pub const ENDED_NS: usize = 17;
    pub const CALLS_WITHOUT_LANE: usize = 18;
    pub const CALLS_PASSED: usize = 19;
    pub const CALLS_OF_VFORK: usize = 20;
    pub const TEXT_WORDS_USED: usize = 21;
    pub const TEXTS_DROPPED: usize = 22;
    pub const MODULES_USED: usize = 23;
    pub const MODULES_DROPPED: usize = 24;
    pub const NOTES_USED: usize = 25;
    pub const NOTES_DROPPED: usize = 26;
    pub const LOG_USED: usize = 27;
    pub const LOG_DROPPED: usize = 28;
    pub const EXE: usize = 29;
    pub const COMMAND: usize = 30;
    pub const DIRECTORY: usize = 31;
    pub const WHY: usize = 32;
    pub const POLICY: usize = 33;
    /// Set last: before it the head is being written.
    pub const READY: usize = 34;

    pub const MODULES: usize = 64;
    pub const MODULES_MAX: usize = 256;
    pub const NOTES: usize = MODULES + MODULES_MAX * super::ENTRY_WORDS;
    pub const NOTES_MAX: usize = 64;
    pub const TEXTS: usize = NOTES + NOTES_MAX * super::ENTRY_WORDS;
    pub const TEXT_WORDS: usize = super::HEAD_WORDS - TEXTS;
}

/// Modules (start, end, offset in the file, text) and notes (kind, time, text, nothing).
pub(super) const ENTRY_WORDS: usize = 4;

/// Values of `head::ENDED`.
pub(super) const RUNNING: u64 = 0;
pub(super) const EXITED: u64 = 1;
pub(super) const REPLACED: u64 = 2;

/// Words of a lane.
pub(super) mod lane {
    /// The thread that writes here; 0 if none does.
    pub const OWNER: usize = 0;
    pub const CALLS: usize = 1;
    pub const SITES_USED: usize = 2;
    pub const SITES_DROPPED: usize = 3;
    pub const SLEEPS_USED: usize = 4;
    pub const SLEEPS_DROPPED: usize = 5;
    pub const LOST: usize = 6;
    pub const NESTED: usize = 7;
    pub const MET: usize = 8;
    pub const THREADS: usize = 9;
    /// How much this lane's last owner saw, as `head::LEVEL`.
    pub const LEVEL: usize = 10;

    pub const INDEX: usize = 64;
    pub const INDEX_WORDS: usize = 1024;
    pub const SITES: usize = INDEX + INDEX_WORDS;
    pub const SITES_MAX: usize = 512;
    pub const SLEEPS: usize = SITES + SITES_MAX * super::site::WORDS;
    pub const SLEEPS_MAX: usize = 256;
    const END: usize = SLEEPS + SLEEPS_MAX * super::sleep::WORDS;
    /// Whole pages of 4 KiB.
    pub const WORDS: usize = END.div_ceil(512) * 512;
}

/// Words of a call site.
pub(super) mod site {
    pub const ADDRESS: usize = 0;
    pub const CALL: usize = 1;
    pub const COUNT: usize = 2;
    pub const ERRORS: usize = 3;
    pub const WALL_NS: usize = 4;
    pub const WALL_MIN_NS: usize = 5;
    pub const WALL_MAX_NS: usize = 6;
    pub const IN_BAND_MAX_NS: usize = 7;
    pub const FAULTS_MINOR: usize = 8;
    pub const FAULTS_MAJOR: usize = 9;
    pub const PREEMPTIONS: usize = 10;
    pub const PREEMPTED_NS: usize = 11;
    pub const SLEPT: usize = 12;
    pub const BLOCKED_NS: usize = 13;
    pub const WAKEUP_NS: usize = 14;
    pub const IN_BAND_MIN_NS: usize = 15;
    pub const HISTOGRAM: usize = 16;
    /// Two buckets of 32 bits per word.
    pub const HISTOGRAM_WORDS: usize = super::super::histogram::BUCKETS / 2;
    pub const WORDS: usize = HISTOGRAM + HISTOGRAM_WORDS;
}

/// Words of the sleeps of a call site at one kernel stack.
pub(super) mod sleep {
    pub const SITE: usize = 0;
    pub const COUNT: usize = 1;
    pub const BLOCKED_NS: usize = 2;
    pub const MAX_NS: usize = 3;
    pub const DEPTH: usize = 4;
    pub const FRAMES: usize = 8;
    pub const WORDS: usize = 32;
}

const _: () = assert!(sleep::FRAMES + headway_os::perf::STACK_FRAMES_MAX == sleep::WORDS);

/// Words of an entry of the log; sleeps and the user's stack follow.
pub(super) mod entry {
    /// The length in words, with [`super::COMMITTED`] added when the entry is complete.
    pub const LENGTH: usize = 0;
    /// The call's number, and the thread above.
    pub const CALL: usize = 1;
    pub const SITE: usize = 2;
    pub const START_NS: usize = 3;
    pub const WALL_NS: usize = 4;
    /// Minor faults, and major ones above; all ones where not known.
    pub const FAULTS: usize = 5;
    pub const PREEMPTIONS: usize = 6;
    pub const PREEMPTED_NS: usize = 7;
    /// All ones if not known.
    pub const WAKEUP_NS: usize = 8;
    pub const LOST: usize = 9;
    pub const RESULT: usize = 10;
    /// The number of sleeps in the low bits, and of dropped ones in the high bits.
    pub const SLEEPS: usize = 11;
    /// Frames of the user's stack.
    pub const FRAMES: usize = 12;
    pub const WORDS: usize = 13;
}

/// Words of a sleep in a log entry, its frames follow.
pub(super) mod entry_sleep {
    pub const COUNT: usize = 0;
    pub const BLOCKED_NS: usize = 1;
    pub const MAX_NS: usize = 2;
    pub const DEPTH: usize = 3;
    pub const WORDS: usize = 4;
}

/// Entries start at multiples of this, so that a reader can step over one that was never completed.
pub(super) const ENTRY_ALIGN_WORDS: usize = 8;

pub(super) const COMMITTED: u64 = 0xDB0C << 48;
pub(super) const COMMITTED_MASK: u64 = 0xFFFF << 48;

/// The value of a number that is unknown.
pub(super) const NOT_KNOWN: u64 = u64::MAX;

/// The position and length of a text in one word.
pub(super) const fn text_word(word: usize, bytes: usize) -> u64 {
    (word as u64) << 32 | bytes as u64
}
