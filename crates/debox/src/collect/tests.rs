//! The writer's words read back as a file.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::write::{Identity, Layout, Writer};
use super::{Collection, Ended, NoteKind, Process, file_name, format};
use crate::off_cpu::OffCpuInterval;
use crate::record::{Limits, Record};
use crate::report::TraceLevel;

const LAYOUT: Layout = Layout {
    lanes_max: 2,
    log_words: 64,
};

fn words(layout: Layout) -> Vec<AtomicU64> {
    (0..layout.words()).map(|_| AtomicU64::new(0)).collect()
}

fn identity() -> Identity<'static> {
    Identity {
        pid: 42,
        ppid: 41,
        start_ticks: 7,
        image: 1,
        started_ns: 1000,
        started_unix_ns: 2000,
        boot_id: b"00112233-4455-6677-8899-aabbccddeeff\n",
        exe: b"/bin/program",
        command: b"program\0-x\0",
        directory: b"/tmp",
        policy: b"slept",
        ticks_are_counter: true,
    }
}

fn save(words: &[AtomicU64], path: &Path) {
    let bytes: Vec<u8> = words
        .iter()
        .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
        .collect();
    std::fs::write(path, bytes).expect("room for the file");
}

fn read_back(words: &[AtomicU64]) -> Process {
    let directory = tempfile::tempdir().expect("a directory");
    save(words, &directory.path().join(file_name(42, 7, 1)));
    let mut collection = Collection::open(directory.path()).expect("the directory is there");
    assert_eq!(collection.damaged, []);
    collection.processes.pop().expect("one process")
}

fn record(number: u32, wall_ns: u64, stacks: &[&[u64]]) -> Record {
    let mut record = Record::new(Limits::default());
    record.begin(number);
    record.wall_ns = wall_ns;
    for stack in stacks {
        let interval = OffCpuInterval {
            length_ns: 10,
            preempted: stack.is_empty(),
            stack,
        };
        record.add(interval, None);
    }
    record
}

#[test]
fn process_is_described_when_it_has_made_no_call_yet() {
    let words = words(LAYOUT);
    let writer = Writer::begin(&words, LAYOUT, &identity()).expect("enough words");
    writer.set_visibility(&TraceLevel::Stacks, true);
    writer.module(0x1000, 0x2000, 0x500, b"/lib/libc.so");
    writer.add_note(NoteKind::Static, 5, b"/bin/static");
    writer.set_ended(Some(Ended::Exec), 3000);
    let process = read_back(&words);
    assert_eq!((process.pid, process.ppid, process.image), (42, 41, 1));
    assert_eq!(process.command, ["program", "-x"]);
    assert_eq!(process.exe, "/bin/program");
    assert_eq!(process.boot_id, "00112233445566778899aabbccddeeff");
    assert_eq!(
        (process.ended, process.ended_ns),
        (Some(Ended::Exec), Some(3000))
    );
    assert_eq!(process.level, TraceLevel::Stacks);
    let (module, offset) = process.locate(0x1010).expect("it lies in the module");
    assert_eq!((module.path.as_str(), offset), ("/lib/libc.so", 0x510));
    assert!(process.locate(0x2000).is_none());
    assert!(writer.knows(0x1fff) && !writer.knows(0x2000));
    assert_eq!(
        (process.notes[0].kind, process.notes[0].text.as_str()),
        (NoteKind::Static, "/bin/static")
    );
    assert_eq!(process.losses, super::Losses::default());
}

#[test]
fn calls_add_up_by_site_when_two_threads_make_them() {
    let words = words(LAYOUT);
    let writer = Writer::begin(&words, LAYOUT, &identity()).expect("enough words");
    writer.set_visibility(&TraceLevel::Stacks, true);
    let first = writer.lane(42, &TraceLevel::Stacks).expect("a free lane");
    let second = writer.lane(43, &TraceLevel::Stacks).expect("a free lane");
    assert!(writer.lane(44, &TraceLevel::Stacks).is_none());
    writer.count_call_without_lane();
    assert!(first.add(0x1000, false, &record(0, 100, &[])));
    assert!(!first.add(0x1000, true, &record(0, 300, &[&[1, 2], &[1, 2], &[]])));
    second.add(0x1000, false, &record(0, 50, &[&[1, 2]]));
    second.add(0x1000, false, &record(1, 7, &[]));
    second.release();
    // The next thread reuses the lane and adds to its sums.
    let third = writer
        .lane(45, &TraceLevel::Stacks)
        .expect("the one given back");
    assert!(!third.add(0x1000, false, &record(1, 7, &[])));
    let process = read_back(&words);
    assert_eq!(process.calls(), 5);
    let site = &process.sites[0];
    assert_eq!(
        (site.address, site.name.as_str(), site.count),
        (0x1000, "read", 3)
    );
    assert_eq!(
        (site.wall_ns, site.wall_min_ns, site.wall_max_ns),
        (450, 50, 300)
    );
    assert_eq!((site.in_band_max_ns, site.errors), (290, 1));
    assert_eq!((site.slept.count, site.slept.total_ns), (3, 30));
    assert_eq!(site.preemptions.count, 1);
    assert_eq!(site.histogram.count(), 3);
    let sleep = &site.sleeps[0];
    assert_eq!(
        (site.sleeps.len(), sleep.count, sleep.stack.as_slice()),
        (1, 3, &[1, 2][..])
    );
    assert_eq!(process.sites[1].count, 2);
    assert_eq!(process.losses.calls_without_lane, 1);
}

#[test]
fn call_is_counted_once_when_an_exec_fails() {
    let words = words(LAYOUT);
    let writer = Writer::begin(&words, LAYOUT, &identity()).expect("enough words");
    let lane = writer.lane(42, &TraceLevel::Stacks).expect("a free lane");
    lane.count_departing_call(0x10, 59);
    assert_eq!(read_back(&words).calls(), 1);
    lane.uncount_departing_call(0x10, 59);
    lane.add(0x10, true, &record(59, 5, &[]));
    let process = read_back(&words);
    assert_eq!((process.calls(), process.sites[0].errors), (1, 1));
}

#[test]
fn nothing_is_lost_when_threads_take_turns_on_a_lane_and_append_to_the_log_at_once() {
    const ROUNDS: u32 = if cfg!(miri) { 2 } else { 200 };
    let layout = Layout {
        lanes_max: 1,
        log_words: 2 * ROUNDS as usize * 16,
    };
    let words = words(layout);
    let writer = Writer::begin(&words, layout, &identity()).expect("enough words");
    std::thread::scope(|scope| {
        for thread in [42, 43] {
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let lane = loop {
                        match writer.lane(thread, &TraceLevel::Stacks) {
                            Some(lane) => break lane,
                            None => std::thread::yield_now(),
                        }
                    };
                    lane.add(0x1000, false, &record(0, 100, &[]));
                    lane.release();
                    writer.append_record(thread, 0x1000, 0, &record(1, 500, &[]), &[]);
                }
            });
        }
    });
    let process = read_back(&words);
    let calls = u64::from(2 * ROUNDS);
    assert_eq!(process.calls(), calls);
    assert_eq!(
        (process.sites.len(), process.sites[0].wall_ns),
        (1, 100 * calls)
    );
    assert_eq!(process.kept.len() as u64, calls);
    assert!(process.kept.iter().all(|kept| kept.wall_ns == 500));
    assert_eq!(process.losses, super::Losses::default());
}

#[test]
fn sites_beyond_the_table_are_counted_when_it_is_full() {
    let words = words(LAYOUT);
    let writer = Writer::begin(&words, LAYOUT, &identity()).expect("enough words");
    let lane = writer.lane(42, &TraceLevel::Stacks).expect("a free lane");
    let beyond = 5;
    let sites = format::lane::SITES_MAX as u64 + beyond;
    for _ in 0..2 {
        for site in 1..=sites {
            lane.add(site << 4, false, &record(0, 1, &[]));
        }
    }
    let process = read_back(&words);
    assert_eq!(process.sites.len(), format::lane::SITES_MAX);
    assert!(process.sites.iter().all(|site| site.count == 2));
    assert_eq!(process.losses.calls_without_site, 2 * beyond);
}

#[test]
fn kept_record_is_whole_when_it_is_read_back() {
    let words = words(LAYOUT);
    let writer = Writer::begin(&words, LAYOUT, &identity()).expect("enough words");
    writer.append_record(
        43,
        0x1000,
        -1,
        &record(1, 500, &[&[9, 8, 7], &[6]]),
        &[0x77, 0x78],
    );
    let process = read_back(&words);
    let kept = &process.kept[0];
    assert_eq!((kept.thread, kept.name.as_str()), (43, "write"));
    assert_eq!((kept.site, kept.result, kept.wall_ns), (0x1000, -1, 500));
    assert_eq!((kept.faults_minor, kept.wakeup_ns), (None, None));
    let stacks: Vec<&[u64]> = kept.sleeps.iter().map(|s| s.stack.as_slice()).collect();
    assert_eq!(stacks, [&[9, 8, 7][..], &[6]]);
    assert_eq!(kept.user_stack, [0x77, 0x78]);
}

#[test]
fn records_are_dropped_and_counted_when_the_log_is_full() {
    let words = words(LAYOUT);
    let writer = Writer::begin(&words, LAYOUT, &identity()).expect("enough words");
    for _ in 0..10 {
        writer.append_record(43, 0, 0, &record(1, 500, &[]), &[]);
    }
    let process = read_back(&words);
    // 16 words each.
    assert_eq!(process.kept.len(), 4);
    assert_eq!(process.losses.kept_records, 6);
}

#[test]
fn later_entries_are_read_when_one_was_never_completed() {
    let words = words(LAYOUT);
    let writer = Writer::begin(&words, LAYOUT, &identity()).expect("enough words");
    writer.append_record(43, 0, 0, &record(1, 500, &[]), &[]);
    writer.append_record(43, 0, 0, &record(2, 500, &[]), &[]);
    words[LAYOUT.log_start()].store(0, Ordering::Relaxed);
    let process = read_back(&words);
    assert_eq!(process.kept.len(), 1);
    assert_eq!(process.kept[0].call, 2);
}

#[test]
fn file_is_refused_with_a_reason_when_it_is_cut_or_foreign() {
    let words = words(LAYOUT);
    Writer::begin(&words, LAYOUT, &identity()).expect("enough words");
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("1-1-0.debox");
    let why = |change: &dyn Fn(&mut Vec<u8>)| {
        save(&words, &path);
        let mut bytes = std::fs::read(&path).expect("just written");
        change(&mut bytes);
        std::fs::write(&path, bytes).expect("room for the file");
        let collection = Collection::open(directory.path()).expect("the directory is there");
        assert_eq!(collection.processes.len(), 0);
        collection.damaged[0].why.clone()
    };
    assert!(why(&|bytes| bytes.truncate(70_000)).contains("shorter"));
    assert!(why(&Vec::clear).contains("not yet begun"));
    assert!(why(&|bytes| bytes[0] ^= 1).contains("not a record"));
    assert!(why(&|bytes| bytes[..8].reverse()).contains("byte order"));
    assert!(why(&|bytes| bytes[8] = 9).contains("version 9"));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(40))]
    #[test]
    fn damaged_file_never_makes_the_reader_panic(
        changes in proptest::collection::vec((0..LAYOUT.words(), proptest::num::u64::ANY), 1..60),
        in_lanes in proptest::collection::vec((0..2_usize, 0..1300_usize, proptest::num::u64::ANY), 1..30),
    ) {
        let words = words(LAYOUT);
        let writer = Writer::begin(&words, LAYOUT, &identity()).expect("enough words");
        for thread in [42, 43] {
            let lane = writer.lane(thread, &TraceLevel::Stacks).expect("a free lane");
            lane.add(0x10, false, &record(0, 10, &[&[1]]));
        }
        writer.append_record(43, 0, 0, &record(1, 500, &[&[1, 2]]), &[3]);
        let in_lanes = in_lanes
            .into_iter()
            .map(|(lane, word, value)| (LAYOUT.lane_start(lane) + word, value));
        for (at, value) in changes.into_iter().chain(in_lanes) {
            // Else most files would be refused at the door.
            if at < 4 { continue; }
            words[at].store(value, Ordering::Relaxed);
        }
        let directory = tempfile::tempdir().expect("a directory");
        save(&words, &directory.path().join("1-1-0.debox"));
        Collection::open(directory.path()).expect("the directory is there");
    }
}
