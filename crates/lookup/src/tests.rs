//! Which entries are used without a check, and when a helper is to make it.

use super::*;
use headway_files::{FileCacheLimits, RootConfig};

/// The kernel never says from its cache that a file is no directory, so each check would block.
const PATH: &[u8] = b"file/below";

const AGES: Ages = Ages {
    revalidate_ms: 1000,
    stale_ms: 5000,
};

struct Fixture {
    lookup: Lookup,
    counters: Counters,
    _folder: tempfile::TempDir,
}

impl Fixture {
    /// With an entry that was checked at time 0.
    fn new(ages: Ages) -> Fixture {
        Fixture::below("", ages)
    }

    /// Below a name in the folder: the folder itself, or `link`, which leads there.
    fn below(name: &str, ages: Ages) -> Fixture {
        let folder = tempfile::tempdir().expect("a place for files");
        std::fs::write(folder.path().join("file"), "x").expect("room");
        std::os::unix::fs::symlink(folder.path(), folder.path().join("link")).expect("room");
        let root = RootConfig {
            directory: folder.path().join(name),
            index: vec![],
            siblings: false,
            dotfiles: false,
            symlinks: Default::default(),
            rules: Vec::new(),
        };
        let limits = FileCacheLimits {
            entries_max: 10,
            descriptors_max: 10,
        };
        let mut lookup = Lookup::new(
            Rc::new(Roots::open(&[root]).expect("there")),
            FileCache::new(limits),
            DeferredCloses::new(),
            None,
            ages,
            true,
        );
        lookup.store((RootId(0), 0), PATH, Answer::Directory, 0);
        Fixture {
            lookup,
            counters: Counters::default(),
            _folder: folder,
        }
    }

    /// Whether the entry is used, and if so whether a helper is to check it.
    fn find(&mut self, now_ms: u64) -> Option<bool> {
        let tracer = Tracer::disabled();
        let context = LookupContext {
            now_ms,
            tracer: &tracer,
            counters: &mut self.counters,
        };
        let found = self.lookup.find(RootId(0), PATH, context)?;
        assert!(matches!(
            found.entry.answer,
            Answer::Failed(Failure::NotFound) | Answer::Directory
        ));
        Some(found.refresh)
    }

    /// A helper's check ends.
    fn store(&mut self, failure: Failure, now_ms: u64) {
        let answer = Answer::Failed(failure);
        self.lookup.store((RootId(0), 0), PATH, answer, now_ms);
    }
}

#[test]
fn busy_entry_is_used_while_a_helper_checks_it() {
    let mut fixture = Fixture::new(AGES);
    assert_eq!(fixture.find(900), Some(false));
    assert_eq!(fixture.find(1100), Some(true), "busy: used at 900");
    assert_eq!(fixture.counters.file_cache_stale_hits, 1);
    fixture.store(Failure::NotFound, 1110);
    assert_eq!(fixture.find(1200), Some(false), "checked");
}

#[test]
fn entry_that_was_not_used_lately_waits_for_the_check() {
    let mut fixture = Fixture::new(AGES);
    assert_eq!(fixture.find(1000), None, "last used at 0");
    assert_eq!(fixture.find(1100), Some(true), "now it is busy");
}

#[test]
fn busy_entry_waits_for_the_check_when_it_is_too_old() {
    let mut fixture = Fixture::new(AGES);
    for now_ms in (900..6000).step_by(900) {
        assert!(fixture.find(now_ms).is_some(), "{now_ms}");
    }
    assert_eq!(fixture.find(6000), None);
}

#[test]
fn every_use_waits_for_the_check_when_nothing_may_be_stale() {
    for ages in [
        Ages {
            stale_ms: 0,
            ..AGES
        },
        Ages {
            revalidate_ms: 0,
            ..AGES
        },
    ] {
        let mut fixture = Fixture::new(ages);
        fixture.find(900);
        assert_eq!(fixture.find(1100), None, "{ages:?}");
    }
}

#[test]
fn entry_stays_when_its_check_fails_and_goes_when_it_is_too_old() {
    let mut fixture = Fixture::new(AGES);
    fixture.find(900);
    fixture.store(Failure::Io, 1200);
    assert_eq!(fixture.find(1300), Some(true), "still to be checked");
    fixture.store(Failure::Io, 6000);
    assert_eq!(fixture.find(6100), None);
}

#[test]
fn absence_is_checked_although_it_is_busy() {
    let mut fixture = Fixture::new(AGES);
    fixture.store(Failure::NotFound, 0);
    assert_eq!(fixture.find(900), Some(false));
    assert_eq!(fixture.find(1100), None, "the file may have come");
}

#[test]
fn absence_is_forgotten_when_its_check_fails() {
    for failure in [Failure::Io, Failure::Exhausted] {
        let mut fixture = Fixture::new(AGES);
        fixture.store(Failure::NotFound, 0);
        fixture.find(900);
        fixture.store(failure, 1200);
        assert_eq!(fixture.find(1300), None, "{failure:?}");
    }
}

/// Needs: a file system that writes access times
#[test]
fn busy_entry_is_used_while_a_helper_follows_a_new_link_to_the_root() {
    let test = "busy_entry_is_used_while_a_helper_follows_a_new_link_to_the_root";
    let mut fixture = Fixture::below("link", AGES);
    assert_eq!(fixture.find(900), Some(false));
    assert_eq!(fixture.find(1100), Some(true), "busy: used at 900");
    if !fixture.lookup.roots.awaits_helper(RootId(0)) {
        return headway_test_support::skip(test, "the file system writes no access times");
    }
    assert_eq!(fixture.find(2200), None, "last used at 1100");
}

#[test]
fn answer_about_an_earlier_root_is_only_for_the_requests_that_wait_for_it() {
    let mut fixture = Fixture::new(AGES);
    let earlier = fixture.lookup.roots.version(RootId(0)).wrapping_sub(1);
    let answer = Answer::Failed(Failure::NotFound);
    let entry = fixture.lookup.store((RootId(0), earlier), PATH, answer, 0);
    assert_eq!(entry.root_version.get(), earlier);
    assert!(!fixture.lookup.is_known(RootId(0), PATH));
}
