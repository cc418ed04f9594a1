//! The listing cache: rendered directory listings, shared by all requests for the same directory.
//!
//! A listing lives in a memfd of up to some megabytes, and a slow client keeps it alive while it
//! reads. Therefore requests for the same directory share one listing: at once while it is younger
//! than a file cache entry may be, and later if a helper finds it still correct. The most recent
//! listings are retained, because a listing can be in a socket's buffer without any reference to
//! it.
//!
//! All listings together take at most [`BYTES_MAX`], including those that are only being sent.

use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};

use headway_files::{Failure, OpenFile, RootId};

/// The most memory that all listings together may take, including those that are only being sent.
const BYTES_MAX: u64 = 64 << 20;

/// The most memory and listings that are retained while no client is receiving them.
const IDLE_BYTES_MAX: u64 = 16 << 20;
const IDLE_LISTINGS_MAX: usize = 16;

/// The size of a memory page; a memfd takes whole pages.
const MEMFD_PAGE_BYTES: u64 = 4096;

/// A table with fewer listings is not swept.
const SWEEP_LISTINGS_MIN: usize = 64;

struct Listing {
    /// The version of the root.
    version: u32,
    file: Weak<OpenFile>,
    checked_ms: u64,
}

/// The listings in memory.
#[derive(Default)]
pub(super) struct ListingCache {
    latest: HashMap<(RootId, Box<[u8]>), Listing>,
    /// The latest listings and older ones that are still being sent, with their sizes; some may be
    /// gone.
    all: Vec<(Weak<OpenFile>, u64)>,
    /// The total size of `all`, including listings that are already gone.
    bytes: u64,
    sweep_at: usize,
    /// The most recent listings, oldest first.
    idle: VecDeque<Rc<OpenFile>>,
}

impl ListingCache {
    /// The listing of a directory and the time when it was last checked, if it is in memory.
    pub(super) fn find(
        &self,
        (root, version): (RootId, u32),
        path: &[u8],
    ) -> Option<(Rc<OpenFile>, u64)> {
        let page = self.latest.get(&(root, path.into()))?;
        let page = (page.version == version).then_some(page)?;
        Some((page.file.upgrade()?, page.checked_ms))
    }

    /// Stores a listing that a helper has rendered or confirmed.
    pub(super) fn insert(
        &mut self,
        (root, version): (RootId, u32),
        path: &[u8],
        page: Rc<OpenFile>,
        now_ms: u64,
    ) -> Result<Rc<OpenFile>, Failure> {
        if let Some(known) = self.latest.get_mut(&(root, path.into()))
            && std::ptr::eq(known.file.as_ptr(), &*page)
            && known.version == version
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
        let latest = Listing {
            version,
            file: Rc::downgrade(&page),
            checked_ms: now_ms,
        };
        self.latest.insert((root, path.into()), latest);
        self.retain_idle(&page);
        Ok(page)
    }

    /// The number of listings in memory.
    pub(super) fn count(&self) -> u64 {
        let alive = |(page, _): &&(Weak<OpenFile>, u64)| page.strong_count() > 0;
        self.all.iter().filter(alive).count() as u64
    }

    fn retain_idle(&mut self, page: &Rc<OpenFile>) {
        self.idle.push_back(page.clone());
        while self.idle.len() > IDLE_LISTINGS_MAX
            || self.idle.iter().map(|page| memory_bytes(page)).sum::<u64>() > IDLE_BYTES_MAX
        {
            self.idle.pop_front();
        }
    }

    /// Removes listings that are gone. When memory is short, retained listings are dropped too.
    fn sweep(&mut self) {
        if self.bytes > BYTES_MAX - IDLE_BYTES_MAX {
            self.idle.clear();
        }
        self.all.retain(|(page, _)| page.strong_count() > 0);
        self.bytes = self.all.iter().map(|(_, bytes)| bytes).sum();
        self.latest.retain(|_, page| page.file.strong_count() > 0);
        self.sweep_at = (2 * self.all.len()).max(SWEEP_LISTINGS_MIN);
    }
}

fn memory_bytes(page: &OpenFile) -> u64 {
    page.meta().size.next_multiple_of(MEMFD_PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use headway_files::Meta;

    use super::*;

    const ROOT: (RootId, u32) = (RootId(0), 0);

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

    fn insert(
        pages: &mut ListingCache,
        path: &str,
        page: &Rc<OpenFile>,
    ) -> Result<Rc<OpenFile>, Failure> {
        pages.insert(ROOT, path.as_bytes(), page.clone(), 5)
    }

    #[test]
    fn listing_is_found_with_the_time_of_its_last_check() {
        let mut pages = ListingCache::default();
        let one = page(10);
        insert(&mut pages, "a", &one).unwrap();
        pages.insert(ROOT, b"a", one.clone(), 9).unwrap();
        let (found, checked_ms) = pages.find(ROOT, b"a").unwrap();
        assert!(Rc::ptr_eq(&found, &one));
        assert_eq!((checked_ms, pages.count()), (9, 1));
        assert!(pages.find((RootId(1), 0), b"a").is_none());
        assert!(pages.find((RootId(0), 1), b"a").is_none());
    }

    #[test]
    fn replaced_listing_counts_as_memory_while_it_is_being_sent() {
        let mut pages = ListingCache::default();
        let (old, new) = (page(40 << 20), page(40 << 20));
        insert(&mut pages, "a", &old).unwrap();
        assert_eq!(
            insert(&mut pages, "a", &new).unwrap_err(),
            Failure::Overloaded
        );
        drop(old);
        insert(&mut pages, "a", &new).unwrap();
        assert_eq!(pages.count(), 1);
    }

    #[test]
    fn idle_listing_is_dropped_when_another_one_needs_room() {
        let mut pages = ListingCache::default();
        insert(&mut pages, "kept", &page(16 << 20)).unwrap();
        assert_eq!(pages.count(), 1);
        let sent = [page(24 << 20), page(24 << 20), page(16 << 20)];
        for (path, page) in ["a", "b", "c"].iter().zip(&sent) {
            insert(&mut pages, path, page).unwrap();
        }
        assert!(pages.find(ROOT, b"kept").is_none());
        assert_eq!(pages.count(), 3);
    }

    #[test]
    fn listing_table_is_swept_when_listings_are_gone() {
        let mut pages = ListingCache::default();
        for number in 0..1000 {
            insert(&mut pages, &number.to_string(), &page(10)).unwrap();
        }
        assert_eq!(pages.count(), IDLE_LISTINGS_MAX as u64);
        assert!(pages.all.len() <= SWEEP_LISTINGS_MIN && pages.latest.len() <= SWEEP_LISTINGS_MIN);
    }
}
