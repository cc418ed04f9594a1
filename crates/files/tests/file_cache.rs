//! The file cache: what it caches and evicts, and that it never exceeds its limits.

use crate::common;
use common::{ROOT, directory, open, put};
use headway_files::{
    AbsentSiblings, Answer, CachedContents, Entry, Failure, FileCache, FileCacheLimits, FoundFile,
    OpenFile, RootId,
};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

fn names(entries_max: usize, descriptors_max: usize) -> FileCache<()> {
    FileCache::new(FileCacheLimits {
        entries_max,
        descriptors_max,
    })
}

fn missing() -> Answer {
    Answer::Failed(Failure::NotFound)
}

/// An answer without descriptors, which is no failure.
fn bare() -> Answer {
    Answer::Directory
}

fn file() -> Rc<OpenFile> {
    let tree = directory();
    put(tree.path(), "f", b"x");
    open(tree.path(), "f")
}

/// An answer that counts `1 + siblings` descriptors.
fn found(siblings: usize) -> Answer {
    let file = file();
    let null = || std::fs::File::open("/dev/null").unwrap().into();
    let sibling = |position| {
        (position < siblings).then(|| Rc::new(OpenFile::new(null(), *file.meta())).into())
    };
    let siblings = [sibling(0), sibling(1), sibling(2)];
    Answer::from(FoundFile {
        file: file.into(),
        index: None,
        siblings,
        unusable: 0,
    })
}

fn has(names: &mut FileCache<()>, path: &[u8]) -> bool {
    names.get(ROOT, path).is_some()
}

#[test]
fn missing_precompressed_files_are_probed_again_after_a_minute() {
    let mut names = names(3, 99);
    let entry = names.insert(ROOT, b"a", bare(), 1_000);
    assert_eq!(entry.absent(1_000), AbsentSiblings::AssumeAbsent);
    entry.confirm(entry.absent(60_999), 60_999);
    assert_eq!(entry.checked_ms.get(), 60_999);
    assert_eq!(entry.absent(61_000), AbsentSiblings::Probe);
    entry.confirm(AbsentSiblings::Probe, 61_000);
    assert_eq!(entry.absent(120_999), AbsentSiblings::AssumeAbsent);
}

#[test]
fn least_recently_used_entry_is_evicted_when_the_cache_is_full() {
    let mut names = names(3, 99);
    for path in [b"a", b"b", b"c"] {
        names.insert(ROOT, path, bare(), 0);
    }
    assert!(has(&mut names, b"a"));
    names.insert(ROOT, b"d", bare(), 0);
    assert!(!has(&mut names, b"b"));
    assert!(has(&mut names, b"c") && has(&mut names, b"a") && has(&mut names, b"d"));
    // All of them have been used again, so only a path that is wanted more often gets a place.
    names.insert(ROOT, b"e", bare(), 0);
    assert!(!has(&mut names, b"e"));
    names.insert(ROOT, b"e", bare(), 0);
    assert!(has(&mut names, b"e") && has(&mut names, b"a"));
    assert_eq!((names.len(), names.evictions()), (3, 2));
}

#[test]
fn asking_whether_an_entry_exists_is_no_use_of_it() {
    let mut names = names(3, 99);
    for path in [b"a", b"b", b"c"] {
        names.insert(ROOT, path, bare(), 0);
    }
    assert!(names.contains(ROOT, b"a") && !names.contains(ROOT, b"d"));
    names.insert(ROOT, b"d", bare(), 0);
    assert!(!names.contains(ROOT, b"a"), "the oldest, still");
}

#[test]
fn descriptors_are_bounded_when_entries_are_not() {
    let mut names = names(99, 4);
    names.insert(ROOT, b"one", found(0), 0);
    names.insert(ROOT, b"none", bare(), 0);
    names.insert(ROOT, b"two", found(1), 0);
    assert_eq!(names.descriptors(), 3);
    names.insert(ROOT, b"three", found(2), 0);
    assert!(!has(&mut names, b"one") && !has(&mut names, b"two") && has(&mut names, b"three"));
    assert_eq!(names.descriptors(), 3);
    names.remove(ROOT, b"three");
    assert_eq!(names.descriptors(), 0);
}

#[test]
fn entry_stays_when_it_is_in_use() {
    let mut names = names(2, 99);
    let held = names.insert(ROOT, b"held", bare(), 0);
    names.insert(ROOT, b"file", found(0), 0);
    let sending = match &names.get(ROOT, b"file").unwrap().answer {
        Answer::File(found) => found.file.open().unwrap(),
        other => panic!("{other:?}"),
    };
    let refused = names.insert(ROOT, b"new", bare(), 0);
    assert!(
        matches!(refused.answer, Answer::Directory) && !refused.is_cached(),
        "answered all the same"
    );
    assert!(has(&mut names, b"held") && has(&mut names, b"file") && !has(&mut names, b"new"));
    drop(sending);
    for _ in 0..2 {
        names.insert(ROOT, b"new", bare(), 0);
    }
    assert!(has(&mut names, b"held") && !has(&mut names, b"file") && has(&mut names, b"new"));
    assert!(names.skips() > 0);
    drop(held);
}

#[test]
fn oldest_unused_files_are_closed_when_descriptors_are_reclaimed() {
    let mut names = names(99, 99);
    let used = names.insert(ROOT, b"used", found(0), 0);
    for path in [b"a", b"b", b"c"] {
        names.insert(ROOT, path, found(1), 0);
    }
    assert_eq!((names.descriptors(), names.evict_descriptors(3)), (7, 4));
    assert!(!has(&mut names, b"a") && !has(&mut names, b"b"));
    assert!(has(&mut names, b"c") && has(&mut names, b"used"));
    assert_eq!((names.evict_descriptors(99), names.descriptors()), (2, 1));
    drop(used);
    assert_eq!((names.evict_descriptors(99), names.descriptors()), (1, 0));
    assert_eq!((names.evict_descriptors(1), names.evictions()), (0, 4));
}

#[test]
fn entries_without_files_stay_when_descriptors_are_reclaimed() {
    let mut names = names(10_000, 2);
    for number in 0..8_000_u32 {
        names.insert(ROOT, &number.to_le_bytes(), bare(), 0);
    }
    names.insert(ROOT, b"file", found(0), 0);
    assert_eq!((names.evict_descriptors(1), names.len()), (1, 8_000));
    for path in [b"a", b"b", b"c"] {
        names.insert(ROOT, path, found(0), 0);
    }
    assert_eq!((names.len(), names.descriptors()), (8_002, 2));
}

/// Holds what is said in the test.
#[derive(Debug, Default)]
struct Held([Cell<bool>; 4]);

impl CachedContents for Held {
    fn has_contents(&self, file: usize) -> bool {
        self.0[file].get()
    }
}

fn is_open(names: &mut FileCache<Held>, path: &[u8]) -> Option<Vec<bool>> {
    match &names.get(ROOT, path)?.answer {
        Answer::File(found) => {
            let siblings = found.siblings.iter().flatten();
            let files = std::iter::once(&found.file).chain(siblings);
            Some(files.map(|file| file.open().is_some()).collect())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn entry_stays_and_its_file_is_closed_when_its_content_is_cached() {
    let mut names = FileCache::<Held>::new(FileCacheLimits {
        entries_max: 99,
        descriptors_max: 3,
    });
    let held = |names: &mut FileCache<Held>, path: &[u8], siblings, which: &[usize]| {
        let entry = names.insert(ROOT, path, found(siblings), 0);
        which
            .iter()
            .for_each(|file| entry.prepared.0[*file].set(true));
    };
    held(&mut names, b"one", 0, &[0]);
    held(&mut names, b"other", 1, &[1]);
    assert_eq!(names.descriptors(), 3);
    assert!(names.get(ROOT, b"one").unwrap().is_whole());
    held(&mut names, b"two", 1, &[]);
    // Of the other one only the sibling was held.
    assert_eq!((names.descriptors(), names.closed()), (3, 2));
    assert_eq!(is_open(&mut names, b"one"), Some(vec![false]));
    assert_eq!(is_open(&mut names, b"other"), Some(vec![true, false]));
    assert_eq!(is_open(&mut names, b"two"), Some(vec![true, true]));
    assert_eq!((names.len(), names.evictions()), (3, 0));
    // Nothing more is held of these, so they go: the least recently used first.
    (0..2).for_each(|_| held(&mut names, b"three", 1, &[]));
    assert_eq!((names.len(), names.evictions()), (2, 2));
    assert_eq!(is_open(&mut names, b"one"), Some(vec![false]));
    let one = names.get(ROOT, b"one").unwrap();
    assert!(one.is_whole());
    one.prepared.0[0].set(false);
    assert!(!one.is_whole(), "closed, and no longer held");
    assert!(names.remove(ROOT, b"one").is_some());
    assert_eq!(names.descriptors(), 2);
}

#[test]
fn file_in_use_is_not_closed_when_its_content_is_cached() {
    let mut names = FileCache::<Held>::new(FileCacheLimits {
        entries_max: 99,
        descriptors_max: 1,
    });
    let entry = names.insert(ROOT, b"used", found(0), 0);
    entry.prepared.0[0].set(true);
    names.insert(ROOT, b"new", found(0), 0);
    assert_eq!(is_open(&mut names, b"used"), Some(vec![true]));
    assert_eq!(is_open(&mut names, b"new"), None);
    drop(entry);
    names.insert(ROOT, b"new", found(0), 0);
    assert_eq!(is_open(&mut names, b"used"), Some(vec![false]));
    assert_eq!(is_open(&mut names, b"new"), Some(vec![true]));
}

#[test]
fn oldest_entry_is_evicted_with_or_without_descriptors_when_the_cache_is_full() {
    let mut names = names(4, 99);
    names.insert(ROOT, b"a", found(0), 0);
    names.insert(ROOT, b"b", bare(), 0);
    names.insert(ROOT, b"c", found(0), 0);
    names.insert(ROOT, b"d", bare(), 0);
    assert!(has(&mut names, b"a"));
    for gone in [b"b", b"c", b"d"] {
        assert!(names.len() == 4);
        names.insert(ROOT, &[gone[0] + 10], bare(), 0);
        assert!(!has(&mut names, gone), "{gone:?}");
    }
    assert!(has(&mut names, b"a"), "used again");
}

#[test]
fn search_is_bounded_when_everything_is_in_use() {
    let mut names = names(1000, 99);
    let held: Vec<_> = (0..875_u32)
        .map(|i| names.insert(ROOT, &i.to_le_bytes(), bare(), 0))
        .collect();
    names.insert(ROOT, b"one more", bare(), 0);
    assert_eq!(
        (names.skips(), names.len(), names.not_stored()),
        (64, 875, 1)
    );
    drop(held);
}

#[test]
fn resource_shortage_is_not_cached() {
    let mut names = names(9, 9);
    for failure in [Failure::Exhausted, Failure::Io, Failure::Overloaded] {
        let entry = names.insert(ROOT, b"a", Answer::Failed(failure), 0);
        assert!(matches!(entry.answer, Answer::Failed(found) if found == failure));
        assert!(!has(&mut names, b"a"));
    }
    for failure in [
        Failure::NotFound,
        Failure::NameTooLong,
        Failure::Forbidden,
        Failure::NotRegular,
    ] {
        names.insert(ROOT, b"a", Answer::Failed(failure), 0);
        assert!(has(&mut names, b"a"));
    }
    // And then what was remembered before is not true any more either.
    names.insert(ROOT, b"a", Answer::Failed(Failure::Io), 0);
    assert!(!has(&mut names, b"a"));
}

#[test]
fn failure_is_not_cached_when_its_name_is_long() {
    let mut names = names(10, 10);
    names.insert(ROOT, &[b'a'; 256], missing(), 0);
    names.insert(ROOT, &[b'a'; 257], missing(), 0);
    names.insert(ROOT, &[b'b'; 257], found(0), 0);
    assert!(has(&mut names, &[b'a'; 256]) && has(&mut names, &[b'b'; 257]));
    assert!(!has(&mut names, &[b'a'; 257]));
}

#[test]
fn newer_answer_is_given_when_a_path_is_inserted_twice() {
    let mut names = names(9, 9);
    names.insert(ROOT, b"a", found(1), 1);
    names.insert(ROOT, b"a", Answer::Redirect, 2);
    let entry: &Rc<Entry<()>> = names.get(ROOT, b"a").unwrap();
    assert!(matches!(entry.answer, Answer::Redirect));
    assert_eq!(entry.checked_ms.get(), 2);
    assert_eq!(
        (names.len(), names.descriptors(), names.evictions()),
        (1, 0, 0)
    );
}

#[test]
fn roots_are_apart_when_paths_are_equal() {
    let mut names = names(9, 9);
    names.insert(RootId(0), b"a", Answer::Redirect, 0);
    names.insert(RootId(1), b"a", Answer::Directory, 0);
    assert!(matches!(
        names.get(RootId(0), b"a").unwrap().answer,
        Answer::Redirect
    ));
    assert!(matches!(
        names.get(RootId(1), b"a").unwrap().answer,
        Answer::Directory
    ));
    assert!(names.get(RootId(2), b"a").is_none());
}

#[test]
fn nothing_is_cached_when_the_limits_are_zero() {
    let mut none = names(0, 0);
    none.insert(ROOT, b"a", missing(), 0);
    assert!(none.is_empty());
    let mut files = names(9, 1);
    files.insert(ROOT, b"a", found(1), 0);
    assert!(
        files.is_empty(),
        "two descriptors never fit in a bound of one"
    );
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u8, Option<usize>),
    Get(u8),
    Remove(u8),
    Hold(u8),
    LetGo,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u8..12, prop::option::of(0_usize..4))
            .prop_map(|(path, siblings)| Step::Insert(path, siblings)),
        3 => (0_u8..12).prop_map(Step::Get),
        1 => (0_u8..12).prop_map(Step::Remove),
        2 => (0_u8..12).prop_map(Step::Hold),
        1 => Just(Step::LetGo),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 128,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn limits_hold_and_answers_are_the_last_ones_when_steps_are_random(
        steps in prop::collection::vec(step(), 1..80),
        entries_max in 0_usize..20,
        descriptors_max in 0_usize..10,
    ) {
        let mut names = FileCache::<()>::new(FileCacheLimits { entries_max, descriptors_max });
        let mut last: HashMap<u8, usize> = HashMap::new();
        let mut held: Vec<(u8, Rc<Entry<()>>)> = Vec::new();
        for step in steps {
            match step {
                Step::Insert(path, siblings) => {
                    // What is inserted again is another entry: holding the old one does not count.
                    held.retain(|(known, _)| *known != path);
                    let answer = match siblings {
                        Some(siblings) => found(siblings),
                        None if path % 2 == 0 => bare(),
                        None => missing(),
                    };
                    last.insert(path, answer.descriptors());
                    let entry = names.insert(ROOT, &[path], answer, 0);
                    let is_cached = entry.is_cached();
                    drop(entry);
                    prop_assert_eq!(is_cached, has(&mut names, &[path]));
                }
                Step::Get(path) => {
                    if let Some(entry) = names.get(ROOT, &[path]) {
                        prop_assert_eq!(Some(&entry.answer.descriptors()), last.get(&path));
                    }
                }
                Step::Remove(path) => {
                    held.retain(|(known, _)| *known != path);
                    names.remove(ROOT, &[path]);
                    prop_assert!(!has(&mut names, &[path]));
                }
                Step::Hold(path) => {
                    held.extend(names.get(ROOT, &[path]).map(|entry| (path, Rc::clone(entry))));
                }
                Step::LetGo => held.clear(),
            }
            // Failures are evicted all the same: that frees little memory, but no descriptor.
            for (path, entry) in &held {
                let is_failed = matches!(entry.answer, Answer::Failed(_));
                prop_assert!(is_failed || entry.is_cached(), "{} is in use", path);
            }
            prop_assert!(names.len() <= entries_max && names.descriptors() <= descriptors_max);
        }
    }
}
