//! The windows of files that were used lately, up to a bound: with their mappings, or alone.
//!
//! Flash keeps its files mapped in pieces, and gives back those that were not used for longest when
//! too many bytes are mapped; so what is mapped is likely to be in memory. The server after it
//! gives up the mappings and keeps the list: what stands on it is believed to be in memory. This is
//! that list. Files are told apart by what they were when they were opened, not by their
//! descriptor, so that a mapping outlives the name cache's interest in its file, as the two caches
//! of Flash did.
//!
//! What it refuses: to hold more than its bounds, to find room by looking at more than it takes
//! out.
//!
//! Sources: dissertation 2.5.3 and 2.5.4; Pai, Druschel and Zwaenepoel 1999, section 5.4, on mapped
//! chunks.

use hashlink::LinkedHashMap;
use headway_files::{Meta, OpenFile, WINDOW_BYTES, window_of};

/// Half of what Linux lets a process map by default (`vm.max_map_count`).
const CHUNKS_MAX: usize = 32_768;

#[derive(PartialEq, Eq, Hash)]
struct Key {
    file: Meta,
    number: u64,
}

/// Windows, the least recently used first, each with what is kept for it.
pub struct Chunks<T> {
    held: LinkedHashMap<Key, T>,
    bytes: u64,
    bytes_max: u64,
    evicted: u64,
}

impl<T> Chunks<T> {
    /// None yet, and at most `bytes_max` bytes of them, or one.
    pub fn new(bytes_max: u64) -> Self {
        Self {
            held: LinkedHashMap::new(),
            bytes: 0,
            bytes_max,
            evicted: 0,
        }
    }

    /// What is kept for the window of `file` that holds `offset`; it is the most recently used now.
    pub fn get(&mut self, file: &OpenFile, offset: u64) -> Option<&T> {
        let key = key(file, offset);
        self.held.to_back(&key).map(|kept| &*kept)
    }

    /// Keeps something for the window of `file` that holds `offset`. Ask [`Chunks::surplus`]
    /// afterwards.
    pub fn insert(&mut self, file: &OpenFile, offset: u64, kept: T) {
        let key = key(file, offset);
        let bytes = bytes(&key);
        if self.held.insert(key, kept).is_none() {
            self.bytes += bytes;
        }
    }

    /// Takes out the least recently used, while there is more than the bound allows. The window
    /// used last stays in any case.
    pub fn surplus(&mut self) -> Option<T> {
        let fits = self.bytes <= self.bytes_max && self.held.len() <= CHUNKS_MAX;
        if fits || self.held.len() <= 1 {
            return None;
        }
        let (key, kept) = self.held.pop_front()?;
        self.bytes -= bytes(&key);
        self.evicted += 1;
        Some(kept)
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.held.len() as u64
    }

    /// How long they are together.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many had to leave.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }
}

fn key(file: &OpenFile, offset: u64) -> Key {
    Key {
        file: *file.meta(),
        number: offset / WINDOW_BYTES,
    }
}

fn bytes(key: &Key) -> u64 {
    window_of(key.number * WINDOW_BYTES, key.file.size).1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(inode: u64, size: u64) -> OpenFile {
        let descriptor = std::fs::File::open("/dev/null").unwrap().into();
        let meta = Meta {
            size,
            modified: (0, 0),
            changed: (0, 0),
            device: 0,
            inode,
        };
        OpenFile::new(descriptor, meta)
    }

    /// Keeps a window and says what left for it.
    fn keep(chunks: &mut Chunks<u64>, file: &OpenFile, offset: u64) -> Vec<u64> {
        chunks.insert(file, offset, file.meta().inode);
        std::iter::from_fn(|| chunks.surplus()).collect()
    }

    #[test]
    fn least_recently_used_window_leaves_when_the_bytes_are_too_many() {
        let mut chunks = Chunks::new(250);
        let (one, two, three) = (file(1, 100), file(2, 100), file(3, 100));
        assert!(keep(&mut chunks, &one, 0).is_empty());
        assert!(keep(&mut chunks, &two, 0).is_empty());
        assert_eq!(chunks.get(&one, 99), Some(&1));
        assert_eq!(keep(&mut chunks, &three, 0), [2]);
        assert_eq!(
            (chunks.count(), chunks.bytes(), chunks.evicted()),
            (2, 200, 1)
        );
        assert_eq!(chunks.get(&two, 0), None);
    }

    #[test]
    fn windows_of_one_file_are_kept_apart_and_the_last_is_as_long_as_the_file() {
        let mut chunks = Chunks::new(1 << 30);
        let large = file(1, WINDOW_BYTES + 10);
        keep(&mut chunks, &large, 5);
        assert_eq!(chunks.bytes(), WINDOW_BYTES);
        assert_eq!(chunks.get(&large, WINDOW_BYTES), None);
        keep(&mut chunks, &large, WINDOW_BYTES + 9);
        assert_eq!((chunks.count(), chunks.bytes()), (2, WINDOW_BYTES + 10));
        keep(&mut chunks, &large, 0);
        assert_eq!((chunks.count(), chunks.bytes()), (2, WINDOW_BYTES + 10));
    }

    #[test]
    fn file_of_another_version_is_another_file() {
        let mut chunks = Chunks::new(1 << 30);
        keep(&mut chunks, &file(1, 100), 0);
        assert_eq!(chunks.get(&file(1, 101), 0), None);
        assert_eq!(chunks.get(&file(1, 100), 0), Some(&1), "opened again");
    }

    #[test]
    fn window_used_last_stays_when_it_is_more_than_the_bound() {
        let mut chunks = Chunks::new(10);
        assert!(keep(&mut chunks, &file(1, 100), 0).is_empty());
        assert_eq!(keep(&mut chunks, &file(2, 100), 0), [1]);
    }
}
