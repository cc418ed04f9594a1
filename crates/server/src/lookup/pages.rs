//! The listing pages that are in memory, so that equal ones are one.
//!
//! A page lives in a memfd of up to some megabytes, and a slow client holds it for as long as it
//! reads. So whoever asks for the same directory is sent the same page: at once while it is younger
//! than a cached name may be, and later if a helper finds that a new one would say the same. The
//! few that came last are kept, because a page can lie in a socket's buffer without anybody holding
//! it.
//!
//! What it refuses: more pages than [`BYTES_MAX`] in memory, whoever holds them.

use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};

use headway_files::{Failure, OpenFile, RootId};

/// All pages in memory take at most so much, those included that only slow clients still hold.
const BYTES_MAX: u64 = 64 << 20;

/// Of these, so much is kept without anybody who is sent it, in at most so many pages.
const KEPT_BYTES_MAX: u64 = 16 << 20;
const KEPT_MAX: usize = 16;

/// A memfd takes whole pages of memory.
const MEMORY_PAGE_BYTES: u64 = 4096;

/// Fewer pages than this are not worth sweeping.
const SWEEP_LEAST: usize = 64;

struct Page {
    file: Weak<OpenFile>,
    checked_ms: u64,
}

/// The pages in memory.
#[derive(Default)]
pub(super) struct Pages {
    latest: HashMap<(RootId, Box<[u8]>), Page>,
    /// The latest pages and older ones of the same directories, with what they take; some may be
    /// gone.
    all: Vec<(Weak<OpenFile>, u64)>,
    /// What `all` takes; too much while some are gone.
    bytes: u64,
    sweep_at: usize,
    /// The last ones, oldest first.
    kept: VecDeque<Rc<OpenFile>>,
}

impl Pages {
    /// The page of a directory and when it was known to be right, if it is in memory.
    pub(super) fn find(&self, root: RootId, path: &[u8]) -> Option<(Rc<OpenFile>, u64)> {
        let page = self.latest.get(&(root, path.into()))?;
        Some((page.file.upgrade()?, page.checked_ms))
    }

    /// Remembers the page that a helper has made, or found right.
    pub(super) fn learn(
        &mut self,
        root: RootId,
        path: &[u8],
        page: Rc<OpenFile>,
        now_ms: u64,
    ) -> Result<Rc<OpenFile>, Failure> {
        if let Some(known) = self.latest.get_mut(&(root, path.into()))
            && std::ptr::eq(known.file.as_ptr(), &*page)
        {
            known.checked_ms = now_ms;
            return Ok(page);
        }
        let bytes = memory_bytes(&page);
        if self.all.len() >= self.sweep_at || self.bytes + bytes > BYTES_MAX {
            self.sweep();
        }
        if self.bytes + bytes > BYTES_MAX {
            return Err(Failure::Overloaded);
        }
        self.bytes += bytes;
        self.all.push((Rc::downgrade(&page), bytes));
        let latest = Page {
            file: Rc::downgrade(&page),
            checked_ms: now_ms,
        };
        self.latest.insert((root, path.into()), latest);
        self.keep(&page);
        Ok(page)
    }

    /// How many pages are in memory.
    pub(super) fn count(&self) -> u64 {
        let alive = |(page, _): &&(Weak<OpenFile>, u64)| page.strong_count() > 0;
        self.all.iter().filter(alive).count() as u64
    }

    fn keep(&mut self, page: &Rc<OpenFile>) {
        self.kept.push_back(page.clone());
        while self.kept.len() > KEPT_MAX
            || self.kept.iter().map(|page| memory_bytes(page)).sum::<u64>() > KEPT_BYTES_MAX
        {
            self.kept.pop_front();
        }
    }

    /// Forgets the pages that are gone. What is kept for nobody makes room for what somebody wants.
    fn sweep(&mut self) {
        if self.bytes > BYTES_MAX - KEPT_BYTES_MAX {
            self.kept.clear();
        }
        self.all.retain(|(page, _)| page.strong_count() > 0);
        self.bytes = self.all.iter().map(|(_, bytes)| bytes).sum();
        self.latest.retain(|_, page| page.file.strong_count() > 0);
        self.sweep_at = (2 * self.all.len()).max(SWEEP_LEAST);
    }
}

fn memory_bytes(page: &OpenFile) -> u64 {
    page.meta().size.next_multiple_of(MEMORY_PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use headway_files::Meta;

    use super::*;

    fn page(size: u64) -> Rc<OpenFile> {
        let descriptor = std::fs::File::open("/dev/null").unwrap().into();
        let meta = Meta {
            size,
            modified: (0, 0),
            changed: (0, 0),
            device: 0,
            inode: 0,
        };
        Rc::new(OpenFile::new(descriptor, meta))
    }

    fn learn(pages: &mut Pages, path: &str, page: &Rc<OpenFile>) -> Result<Rc<OpenFile>, Failure> {
        pages.learn(RootId(0), path.as_bytes(), page.clone(), 5)
    }

    #[test]
    fn page_is_found_with_the_time_it_was_last_right() {
        let mut pages = Pages::default();
        let one = page(10);
        learn(&mut pages, "a", &one).unwrap();
        pages.learn(RootId(0), b"a", one.clone(), 9).unwrap();
        let (found, checked_ms) = pages.find(RootId(0), b"a").unwrap();
        assert!(Rc::ptr_eq(&found, &one));
        assert_eq!((checked_ms, pages.count()), (9, 1));
        assert!(pages.find(RootId(1), b"a").is_none());
    }

    #[test]
    fn older_version_counts_when_somebody_is_still_sent_it() {
        let mut pages = Pages::default();
        let (old, new) = (page(40 << 20), page(40 << 20));
        learn(&mut pages, "a", &old).unwrap();
        assert_eq!(
            learn(&mut pages, "a", &new).unwrap_err(),
            Failure::Overloaded
        );
        drop(old);
        learn(&mut pages, "a", &new).unwrap();
        assert_eq!(pages.count(), 1);
    }

    #[test]
    fn page_kept_for_nobody_makes_room_when_another_is_wanted() {
        let mut pages = Pages::default();
        learn(&mut pages, "kept", &page(16 << 20)).unwrap();
        assert_eq!(pages.count(), 1);
        let sent = [page(24 << 20), page(24 << 20), page(16 << 20)];
        for (path, page) in ["a", "b", "c"].iter().zip(&sent) {
            learn(&mut pages, path, page).unwrap();
        }
        assert!(pages.find(RootId(0), b"kept").is_none());
        assert_eq!(pages.count(), 3);
    }

    #[test]
    fn places_of_pages_that_are_gone_are_swept_when_others_come() {
        let mut pages = Pages::default();
        for number in 0..1000 {
            learn(&mut pages, &number.to_string(), &page(10)).unwrap();
        }
        assert_eq!(pages.count(), KEPT_MAX as u64);
        assert!(pages.all.len() <= SWEEP_LEAST && pages.latest.len() <= SWEEP_LEAST);
    }
}
