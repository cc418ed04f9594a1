//! Reading what a process left, or is still writing.
//!
//! Numbers of a running process may be a call apart from one another; each by itself is right. A
//! file that is cut, from another kind of machine or from a later version is refused with a reason,
//! never guessed at.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::calls;
use crate::collect::format::{
    COMMITTED, COMMITTED_MASK, ENTRY_ALIGN_WORDS, ENTRY_WORDS, EXITED, HEAD_WORDS, MAGIC,
    NOT_KNOWN, REPLACED, SUFFIX, VERSION, WORD_BYTES, entry, entry_sleep, head, lane, site, sleep,
};
use crate::collect::histogram::Histogram;
use crate::collect::write::Layout;
use crate::collect::{
    CallSite, Collection, Damaged, Ended, KeptRecord, Module, Note, NoteKind, Process, SiteSleep,
    arguments, lossy,
};
use crate::labels::Label;
use crate::report::{TraceLevel, Wait};
use crate::symbols::Symbols;

/// No sane file has more: a limit against damaged ones.
const LANES_MAX: u64 = 1 << 16;
const LOG_WORDS_MAX: u64 = 1 << 32;

impl Collection {
    /// Reads every process's file of a directory.
    ///
    /// # Errors
    ///
    /// The directory cannot be listed. A file that cannot be read is in [`Collection::damaged`].
    pub fn open(directory: &Path) -> io::Result<Collection> {
        let mut collection = Collection::default();
        for listed in std::fs::read_dir(directory)? {
            let path = listed?.path();
            if path.extension().is_none_or(|suffix| suffix != SUFFIX) {
                continue;
            }
            match Process::open(&path) {
                Ok(process) => collection.processes.push(process),
                Err(error) => collection.damaged.push(Damaged {
                    path,
                    why: error.to_string(),
                }),
            }
        }
        collection
            .processes
            .sort_by_key(|process| (process.started_ns, process.pid, process.image));
        Ok(collection)
    }

    /// Gives every sleep its label and symbol. Right only in the boot the processes ran in; see
    /// [`Process::boot_id`].
    pub fn resolve(&mut self, symbols: &Symbols) {
        for process in &mut self.processes {
            let of_sites = process.sites.iter_mut().flat_map(|site| &mut site.sleeps);
            let of_kept = process.kept.iter_mut().flat_map(|kept| &mut kept.sleeps);
            for sleep in of_sites.chain(of_kept) {
                sleep.label = symbols.label(&sleep.stack);
                sleep.symbol = symbols.waiting_site(&sleep.stack);
            }
        }
    }
}

impl Process {
    /// Reads one file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is no such file: the message says which.
    pub fn open(path: &Path) -> io::Result<Process> {
        // In a directory of others a name may be that of a FIFO, for which opening would wait.
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
            .open(path)?;
        if !file.metadata()?.is_file() {
            return Err(bad("not a regular file"));
        }
        let head = SharedWords(read_words(&file, 0, HEAD_WORDS)?);
        let layout = check(&head)?;
        if file.metadata()?.len() < layout.bytes() as u64 {
            return Err(bad("the file is shorter than it says"));
        }
        let mut process = process(path, &head);
        let mut sites = Sites::default();
        let lanes = (head.get(head::LANES_USED) as usize).min(layout.lanes_max);
        let mut height = head.get(head::LEVEL);
        for index in 0..lanes {
            let start = layout.lane_start(index);
            let words = SharedWords(read_words(&file, start, lane::INDEX)?);
            height = height.min(words.get(lane::LEVEL));
            add_losses(&mut process, &words);
            sites.add_lane(&file, start, &words)?;
        }
        process.level = level(height, head.text(head::WHY));
        process.sites = sites.finish();
        process.kept = read_kept(&file, &head, layout)?;
        Ok(process)
    }
}

/// Words that were read. A word beyond the end reads as zero, like a word that was never written.
struct SharedWords(Vec<u64>);

impl SharedWords {
    fn get(&self, word: usize) -> u64 {
        self.0.get(word).copied().unwrap_or(0)
    }

    fn slice(&self, start: usize, words: usize) -> &[u64] {
        let end = start.saturating_add(words).min(self.0.len());
        self.0.get(start..end).unwrap_or(&[])
    }

    /// The text that a word points to.
    fn text(&self, word: usize) -> Vec<u8> {
        let packed = self.get(word);
        let (start, bytes) = ((packed >> 32) as usize, (packed & 0xFFFF_FFFF) as usize);
        let words = self.slice(start, bytes.div_ceil(WORD_BYTES));
        let mut text: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        text.truncate(bytes);
        text
    }
}

/// Fewer than asked for if the file ends.
fn read_words(file: &File, start: usize, words: usize) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; words * WORD_BYTES];
    let mut filled = 0;
    while filled < bytes.len() {
        let offset = (start * WORD_BYTES + filled) as u64;
        match file.read_at(&mut bytes[filled..], offset) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let (words, _) = bytes[..filled].as_chunks();
    Ok(words.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}

/// A damaged file may hold any number.
fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

fn bad(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

fn check(head: &SharedWords) -> io::Result<Layout> {
    match head.get(head::MAGIC) {
        MAGIC => {}
        0 => return Err(bad("the process had not yet begun to write")),
        magic if magic == MAGIC.swap_bytes() => {
            return Err(bad("written on a machine of the other byte order"));
        }
        _ => return Err(bad("not a record of a traced process")),
    }
    let version = head.get(head::VERSION);
    if version != VERSION {
        return Err(bad(&format!(
            "version {version} of the file, this program reads version {VERSION}; use the release it was made with"
        )));
    }
    if head.get(head::READY) != 1 {
        return Err(bad("the process had not yet begun to write"));
    }
    let (lanes, log) = (head.get(head::LANES_MAX), head.get(head::LOG_WORDS));
    if lanes > LANES_MAX || log > LOG_WORDS_MAX {
        return Err(bad("sizes no process would choose: the file is damaged"));
    }
    Ok(Layout {
        lanes_max: lanes as usize,
        log_words: log as usize,
    })
}

fn process(path: &Path, head: &SharedWords) -> Process {
    let ended = match head.get(head::ENDED) {
        EXITED => Some(Ended::Exit),
        REPLACED => Some(Ended::Exec),
        _ => None,
    };
    let mut process = Process {
        path: path.to_owned(),
        pid: head.get(head::PID) as u32,
        ppid: head.get(head::PPID) as u32,
        start_ticks: head.get(head::START_TICKS),
        image: head.get(head::IMAGE),
        exe: lossy(&head.text(head::EXE)),
        command: arguments(&head.text(head::COMMAND)),
        directory: lossy(&head.text(head::DIRECTORY)),
        policy: lossy(&head.text(head::POLICY)),
        started_ns: head.get(head::STARTED_NS),
        started_unix_ns: head.get(head::STARTED_UNIX_NS),
        ended,
        ended_ns: ended.map(|_| head.get(head::ENDED_NS)),
        level: TraceLevel::Stacks,
        sees_faults: head.get(head::SEES_FAULTS) == 1,
        ticks_are_counter: head.get(head::TICKS_ARE_COUNTER) == 1,
        boot_id: format!(
            "{:016x}{:016x}",
            head.get(head::BOOT_ID),
            head.get(head::BOOT_ID + 1)
        ),
        modules: modules(head),
        sites: Vec::new(),
        kept: Vec::new(),
        notes: notes(head),
        losses: super::Losses::default(),
    };
    let losses = &mut process.losses;
    losses.calls_without_lane = head.get(head::CALLS_WITHOUT_LANE);
    losses.calls_passed = head.get(head::CALLS_PASSED);
    losses.calls_of_vfork = head.get(head::CALLS_OF_VFORK);
    losses.kept_records = head.get(head::LOG_DROPPED);
    for dropped in [
        head::MODULES_DROPPED,
        head::NOTES_DROPPED,
        head::TEXTS_DROPPED,
    ] {
        add(&mut losses.remarks, head.get(dropped));
    }
    process
}

fn add_losses(process: &mut Process, lane: &SharedWords) {
    let losses = &mut process.losses;
    add(
        &mut losses.calls_without_site,
        lane.get(lane::SITES_DROPPED),
    );
    add(&mut losses.calls_nested, lane.get(lane::NESTED));
    add(&mut losses.sleeps_merged, lane.get(lane::SLEEPS_DROPPED));
    add(&mut losses.kernel_records, lane.get(lane::LOST));
}

fn level(height: u64, why: Vec<u8>) -> TraceLevel {
    let why = if why.is_empty() {
        "perf_event_open was refused to some thread".to_owned()
    } else {
        lossy(&why)
    };
    match height {
        2 => TraceLevel::Stacks,
        1 => TraceLevel::SwitchesOnly { why },
        _ => TraceLevel::Off { why },
    }
}

/// The complete entries of a table of the head.
fn table(
    head: &SharedWords,
    start: usize,
    used: usize,
    max: usize,
) -> impl Iterator<Item = usize> + '_ {
    let used = (head.get(used) as usize).min(max);
    (0..used)
        .map(move |index| start + index * ENTRY_WORDS)
        .filter(|at| head.get(*at) != 0)
}

fn modules(head: &SharedWords) -> Vec<Module> {
    let mut modules: Vec<Module> = Vec::new();
    for at in table(head, head::MODULES, head::MODULES_USED, head::MODULES_MAX) {
        let module = Module {
            start: head.get(at),
            end: head.get(at + 1),
            offset: head.get(at + 2),
            path: lossy(&head.text(at + 3)),
        };
        // Two threads may have added it at the same time.
        if !modules.contains(&module) {
            modules.push(module);
        }
    }
    modules
}

fn notes(head: &SharedWords) -> Vec<Note> {
    let mut notes = Vec::new();
    for at in table(head, head::NOTES, head::NOTES_USED, head::NOTES_MAX) {
        let code = head.get(at);
        if let Some(kind) = NoteKind::ALL.into_iter().find(|kind| *kind as u64 == code) {
            notes.push(Note {
                kind,
                time_ns: head.get(at + 1),
                text: lossy(&head.text(at + 2)),
            });
        }
    }
    notes
}

/// Call sites of all lanes, added up.
#[derive(Default)]
struct Sites {
    sites: Vec<CallSite>,
    indices: HashMap<(u64, u32), usize>,
}

impl Sites {
    fn add_lane(&mut self, file: &File, start: usize, lane: &SharedWords) -> io::Result<()> {
        let used = (lane.get(lane::SITES_USED) as usize).min(lane::SITES_MAX);
        let words = SharedWords(read_words(file, start + lane::SITES, used * site::WORDS)?);
        let lane_sites: Vec<usize> = (0..used)
            .map(|index| self.add_site(words.slice(index * site::WORDS, site::WORDS)))
            .collect();
        let used = (lane.get(lane::SLEEPS_USED) as usize).min(lane::SLEEPS_MAX);
        let words = SharedWords(read_words(file, start + lane::SLEEPS, used * sleep::WORDS)?);
        for index in 0..used {
            let words = words.slice(index * sleep::WORDS, sleep::WORDS);
            if let Ok(words) = <&[u64; sleep::WORDS]>::try_from(words)
                && let Some(&site) = lane_sites.get(words[sleep::SITE] as usize)
            {
                self.add_sleep(site, words);
            }
        }
        Ok(())
    }

    /// Adds the sums of a slot to its call site and returns the index of the site.
    fn add_site(&mut self, words: &[u64]) -> usize {
        let get = |word: usize| words.get(word).copied().unwrap_or(0);
        let (address, call) = (get(site::ADDRESS), get(site::CALL) as u32);
        let index = *self.indices.entry((address, call)).or_insert_with(|| {
            self.sites.push(empty_site(address, call));
            self.sites.len() - 1
        });
        let sum = &mut self.sites[index];
        add(&mut sum.count, get(site::COUNT));
        add(&mut sum.errors, get(site::ERRORS));
        add(&mut sum.wall_ns, get(site::WALL_NS));
        sum.wall_min_ns = sum.wall_min_ns.min(get(site::WALL_MIN_NS));
        sum.wall_max_ns = sum.wall_max_ns.max(get(site::WALL_MAX_NS));
        sum.in_band_min_ns = sum.in_band_min_ns.min(get(site::IN_BAND_MIN_NS));
        sum.in_band_max_ns = sum.in_band_max_ns.max(get(site::IN_BAND_MAX_NS));
        add(&mut sum.faults_minor, get(site::FAULTS_MINOR));
        add(&mut sum.faults_major, get(site::FAULTS_MAJOR));
        add(&mut sum.preemptions.count, get(site::PREEMPTIONS));
        add(&mut sum.preemptions.total_ns, get(site::PREEMPTED_NS));
        add(&mut sum.slept.count, get(site::SLEPT));
        add(&mut sum.slept.total_ns, get(site::BLOCKED_NS));
        add(&mut sum.wakeup_ns, get(site::WAKEUP_NS));
        for word in 0..site::HISTOGRAM_WORDS {
            let counts = get(site::HISTOGRAM + word);
            sum.histogram.add_to(2 * word, counts & 0xFFFF_FFFF);
            sum.histogram.add_to(2 * word + 1, counts >> 32);
        }
        index
    }

    fn add_sleep(&mut self, site: usize, words: &[u64; sleep::WORDS]) {
        let depth = (words[sleep::DEPTH] as usize).min(sleep::WORDS - sleep::FRAMES);
        let stack = &words[sleep::FRAMES..sleep::FRAMES + depth];
        let sleeps = &mut self.sites[site].sleeps;
        let index = sleeps.iter().position(|sleep| sleep.stack == stack);
        let index = index.unwrap_or_else(|| {
            sleeps.push(without_symbol(stack.to_vec()));
            sleeps.len() - 1
        });
        add(&mut sleeps[index].count, words[sleep::COUNT]);
        add(&mut sleeps[index].total_ns, words[sleep::BLOCKED_NS]);
        sleeps[index].max_ns = sleeps[index].max_ns.max(words[sleep::MAX_NS]);
    }

    fn finish(self) -> Vec<CallSite> {
        let mut sites = self.sites;
        for site in &mut sites {
            if site.wall_min_ns == u64::MAX {
                site.wall_min_ns = 0;
                site.in_band_min_ns = 0;
            }
            site.sleeps
                .sort_by_key(|sleep| std::cmp::Reverse(sleep.total_ns));
        }
        sites.retain(|site| site.count > 0);
        sites.sort_by_key(|site| std::cmp::Reverse(site.wall_ns));
        sites
    }
}

fn empty_site(address: u64, call: u32) -> CallSite {
    CallSite {
        address,
        call,
        name: calls::display_name(call).into_owned(),
        count: 0,
        errors: 0,
        wall_ns: 0,
        wall_min_ns: u64::MAX,
        wall_max_ns: 0,
        in_band_min_ns: u64::MAX,
        in_band_max_ns: 0,
        faults_minor: 0,
        faults_major: 0,
        preemptions: Wait::default(),
        slept: Wait::default(),
        wakeup_ns: 0,
        histogram: Histogram::default(),
        sleeps: Vec::new(),
    }
}

fn without_symbol(stack: Vec<u64>) -> SiteSleep {
    SiteSleep {
        label: Label::Unknown,
        symbol: None,
        stack,
        count: 0,
        total_ns: 0,
        max_ns: 0,
    }
}

/// The complete entries of the log. One that its process did not live to complete is stepped over.
fn read_kept(file: &File, head: &SharedWords, layout: Layout) -> io::Result<Vec<KeptRecord>> {
    let used = (head.get(head::LOG_USED) as usize).min(layout.log_words);
    let log = SharedWords(read_words(file, layout.log_start(), used)?);
    let mut kept = Vec::new();
    let mut at = 0;
    while at < used {
        let length = log.get(at + entry::LENGTH);
        let words = (length & !COMMITTED_MASK) as usize;
        let complete = length & COMMITTED_MASK == COMMITTED && words >= entry::WORDS;
        if complete && at.saturating_add(words) <= used {
            kept.push(kept_entry(&SharedWords(log.slice(at, words).to_vec())));
            at += words.next_multiple_of(ENTRY_ALIGN_WORDS);
        } else {
            at += ENTRY_ALIGN_WORDS;
        }
    }
    kept.sort_by_key(|kept| kept.start_ns);
    Ok(kept)
}

fn kept_entry(words: &SharedWords) -> KeptRecord {
    let number = words.get(entry::CALL) as u32;
    let faults = |half: u64| (half as u32 != u32::MAX).then_some(half as u32);
    let wakeup_ns = words.get(entry::WAKEUP_NS);
    let count = words.get(entry::SLEEPS) as u32;
    let mut next = entry::WORDS;
    let mut sleeps = Vec::new();
    for _ in 0..count {
        let depth = words.get(next + entry_sleep::DEPTH) as usize;
        let stack = words.slice(next + entry_sleep::WORDS, depth).to_vec();
        if stack.len() != depth || next >= words.0.len() {
            break;
        }
        sleeps.push(SiteSleep {
            count: words.get(next + entry_sleep::COUNT),
            total_ns: words.get(next + entry_sleep::BLOCKED_NS),
            max_ns: words.get(next + entry_sleep::MAX_NS),
            ..without_symbol(stack)
        });
        next += entry_sleep::WORDS + depth;
    }
    KeptRecord {
        thread: (words.get(entry::CALL) >> 32) as u32,
        call: number,
        name: calls::display_name(number).into_owned(),
        site: words.get(entry::SITE),
        result: words.get(entry::RESULT) as i64,
        start_ns: words.get(entry::START_NS),
        wall_ns: words.get(entry::WALL_NS),
        faults_minor: faults(words.get(entry::FAULTS) & 0xFFFF_FFFF),
        faults_major: faults(words.get(entry::FAULTS) >> 32),
        preemptions: Wait {
            count: words.get(entry::PREEMPTIONS),
            total_ns: words.get(entry::PREEMPTED_NS),
        },
        wakeup_ns: (wakeup_ns != NOT_KNOWN).then_some(wakeup_ns),
        sleeps,
        sleeps_dropped: (words.get(entry::SLEEPS) >> 32) as u32,
        lost: words.get(entry::LOST),
        user_stack: words
            .slice(next, words.get(entry::FRAMES) as usize)
            .to_vec(),
    }
}
