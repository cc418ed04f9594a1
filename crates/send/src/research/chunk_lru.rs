//! Least-recently-used list of file chunks with a size limit, with their mappings or without.
//!
//! Flash keeps files mapped in chunks and unmaps the least recently used ones when too many bytes
//! are mapped, so a mapped chunk is probably in memory. Its successor drops the mappings and keeps
//! only the list: a chunk on the list is assumed to be in memory. Files are identified by their
//! metadata when they were opened, not by descriptor, so a mapping can outlive the file cache's
//! entry, as in Flash.
//!
//! Eviction removes entries from one end only; it never searches.
//!
//! Sources: dissertation 2.5.3 and 2.5.4; Pai, Druschel and Zwaenepoel 1999, section 5.4, on mapped
//! chunks.

use hashlink::LinkedHashMap;
use headway_files::{CHUNK_BYTES, Meta, OpenFile, chunk_of};

/// Half of what Linux lets a process map by default (`vm.max_map_count`).
const CHUNKS_MAX: usize = 32_768;

#[derive(PartialEq, Eq, Hash)]
struct ChunkKey {
    file: Meta,
    number: u64,
}

/// File chunks, least recently used first, each with a value.
pub(super) struct ChunkLru<T> {
    chunks: LinkedHashMap<ChunkKey, T>,
    bytes: u64,
    bytes_max: u64,
    evicted: u64,
}

impl<T> ChunkLru<T> {
    /// An empty list of at most `bytes_max` bytes. A single chunk may be larger.
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            chunks: LinkedHashMap::new(),
            bytes: 0,
            bytes_max,
            evicted: 0,
        }
    }

    /// The value of the chunk of `file` that contains `offset`; marks it as most recently used.
    pub(super) fn get(&mut self, file: &OpenFile, offset: u64) -> Option<&T> {
        let key = key(file, offset);
        self.chunks.to_back(&key).map(|value| &*value)
    }

    /// Stores a value for the chunk of `file` that contains `offset`. Call [`ChunkLru::pop_excess`]
    /// afterwards.
    pub(super) fn insert(&mut self, file: &OpenFile, offset: u64, value: T) {
        let key = key(file, offset);
        let bytes = bytes(&key);
        if self.chunks.insert(key, value).is_none() {
            self.bytes += bytes;
        }
    }

    /// Removes the least recently used chunk while the list is over its limit. The most recently
    /// used chunk always stays.
    pub(super) fn pop_excess(&mut self) -> Option<T> {
        let fits = self.bytes <= self.bytes_max && self.chunks.len() <= CHUNKS_MAX;
        if fits || self.chunks.len() <= 1 {
            return None;
        }
        let (key, value) = self.chunks.pop_front()?;
        self.bytes -= bytes(&key);
        self.evicted += 1;
        Some(value)
    }

    /// The number of chunks.
    pub(super) fn count(&self) -> u64 {
        self.chunks.len() as u64
    }

    /// The total size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of evicted chunks.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }
}

fn key(file: &OpenFile, offset: u64) -> ChunkKey {
    ChunkKey {
        file: *file.meta(),
        number: offset / CHUNK_BYTES,
    }
}

fn bytes(key: &ChunkKey) -> u64 {
    chunk_of(key.number * CHUNK_BYTES, key.file.size).1
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

    /// Inserts a chunk and returns what was evicted for it.
    fn keep(chunks: &mut ChunkLru<u64>, file: &OpenFile, offset: u64) -> Vec<u64> {
        chunks.insert(file, offset, file.meta().inode);
        std::iter::from_fn(|| chunks.pop_excess()).collect()
    }

    #[test]
    fn least_recently_used_chunk_is_evicted_when_the_byte_limit_is_exceeded() {
        let mut chunks = ChunkLru::new(250);
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
    fn chunks_of_one_file_are_separate_and_the_last_ends_with_the_file() {
        let mut chunks = ChunkLru::new(1 << 30);
        let large = file(1, CHUNK_BYTES + 10);
        keep(&mut chunks, &large, 5);
        assert_eq!(chunks.bytes(), CHUNK_BYTES);
        assert_eq!(chunks.get(&large, CHUNK_BYTES), None);
        keep(&mut chunks, &large, CHUNK_BYTES + 9);
        assert_eq!((chunks.count(), chunks.bytes()), (2, CHUNK_BYTES + 10));
        keep(&mut chunks, &large, 0);
        assert_eq!((chunks.count(), chunks.bytes()), (2, CHUNK_BYTES + 10));
    }

    #[test]
    fn chunk_is_not_found_when_the_file_version_differs() {
        let mut chunks = ChunkLru::new(1 << 30);
        keep(&mut chunks, &file(1, 100), 0);
        assert_eq!(chunks.get(&file(1, 101), 0), None);
        assert_eq!(chunks.get(&file(1, 100), 0), Some(&1), "opened again");
    }

    #[test]
    fn most_recent_chunk_stays_when_it_exceeds_the_limit() {
        let mut chunks = ChunkLru::new(10);
        assert!(keep(&mut chunks, &file(1, 100), 0).is_empty());
        assert_eq!(keep(&mut chunks, &file(2, 100), 0), [1]);
    }
}
