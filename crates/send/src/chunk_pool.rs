//! The worker's buffers for chunks of larger files: each chunk is read once and sent to every
//! client that wants it.
//!
//! A chunk is read with a call that cannot block, and *after* that its file is compared with the
//! version that was opened. So a buffered chunk belongs to that version. It can be sent any number of
//! times without another system call, even if the file changes. A chunk of a file that has changed is
//! for the response that has read it: no other one finds it.
//!
//! The number of buffers is fixed, and no connection holds one across loop iterations. Data that a
//! socket did not accept is usually still here when the socket has room again; if not, it is read
//! again. When all buffers are in use, the clock algorithm (second chance) chooses the one to
//! replace.
//!
//! Sources: preadv2(2) `RWF_NOWAIT`; Corbató 1968 for the clock.

use std::ops::Range;
use std::rc::{Rc, Weak};

use headway_files::{CHUNK_BYTES, OpenFile, Residency, Version};
use headway_metrics::calls::{Call, Tracer};

/// The most chunks that a caller of [`ChunkPool::fill`] may pin. The pool has at least twice as
/// many buffers, so that some can always be replaced.
pub(crate) const PINNED_CHUNKS_MAX: usize = 4;

/// The buffer of a chunk. Valid until the next [`ChunkPool::fill`] that does not pin it.
pub(crate) type ChunkSlot = usize;

/// The buffered chunks.
pub struct ChunkPool {
    chunks: Vec<BufferedChunk>,
    chunks_max: usize,
    clock_hand: ChunkSlot,
}

struct BufferedChunk {
    /// Weak, so that the file can be closed when no connection serves it. The address stays
    /// reserved, so no other file can be mistaken for it.
    file: Weak<OpenFile>,
    /// The offset of the first byte in the file.
    start: u64,
    /// Always a whole chunk long, so that a read needs no allocation or clearing.
    bytes: Vec<u8>,
    /// How many bytes have been read.
    length: usize,
    /// Used since the clock hand last passed.
    used: bool,
}

impl Default for BufferedChunk {
    fn default() -> Self {
        Self {
            file: Weak::new(),
            start: 0,
            bytes: vec![0; CHUNK_BYTES as usize],
            length: 0,
            used: false,
        }
    }
}

impl BufferedChunk {
    fn end(&self) -> u64 {
        self.start + self.length as u64
    }

    fn holds(&self, file: &Rc<OpenFile>, offset: u64) -> bool {
        self.file.as_ptr() == Rc::as_ptr(file) && self.start / CHUNK_BYTES == offset / CHUNK_BYTES
    }
}

/// The result of reading a chunk.
pub enum ChunkRead {
    /// The chunk, or at least its first bytes, is in this buffer.
    Buffered(ChunkSlot),
    /// The same, but the file has changed since it was opened, and has this version now. It is not
    /// shorter.
    Newer(ChunkSlot, Version),
    /// The first byte is not in the page cache.
    NotResident,
    /// The file has become shorter since it was opened.
    Truncated,
    /// Reading or comparing failed.
    Failed(std::io::Error),
}

impl ChunkPool {
    /// An empty pool of at most `bytes_max` bytes. Buffers are allocated on demand.
    pub fn new(bytes_max: u64) -> Self {
        let chunks_max = (bytes_max / CHUNK_BYTES) as usize;
        Self {
            chunks: Vec::new(),
            chunks_max: chunks_max.max(2 * PINNED_CHUNKS_MAX),
            clock_hand: 0,
        }
    }

    /// The buffer that contains the byte at `offset`.
    pub fn find(&mut self, file: &Rc<OpenFile>, offset: u64) -> Option<ChunkSlot> {
        let holds = |chunk: &BufferedChunk| {
            chunk.holds(file, offset) && (chunk.start..chunk.end()).contains(&offset)
        };
        let slot = self.chunks.iter().position(holds)?;
        self.chunks[slot].used = true;
        Some(slot)
    }

    /// How many buffers have been needed.
    #[cfg(test)]
    pub(crate) fn filled(&self) -> usize {
        self.chunks.len()
    }

    /// The offset of the first byte that the buffer holds.
    pub(crate) fn start(&self, slot: ChunkSlot) -> u64 {
        self.chunks[slot].start
    }

    /// Up to `length` bytes from `offset` on, as far as the buffer holds them.
    pub fn bytes(&self, slot: ChunkSlot, offset: u64, length: u64) -> &[u8] {
        let chunk = &self.chunks[slot];
        let at = offset - chunk.start;
        let end = (at + length).min(chunk.length as u64);
        &chunk.bytes[at as usize..end as usize]
    }

    /// Reads `range`, which lies within one chunk and is not buffered. Replaces any chunk that is
    /// not `pinned`.
    pub fn fill(
        &mut self,
        file: &Rc<OpenFile>,
        range: Range<u64>,
        pinned: &[ChunkSlot],
        (residency, tracer): (&Residency, &Tracer),
    ) -> ChunkRead {
        let before =
            |chunk: &BufferedChunk| chunk.holds(file, range.start) && chunk.end() == range.start;
        let slot = match self.chunks.iter().position(before) {
            Some(slot) => slot,
            None => self.replace(file, range.start, pinned),
        };
        let chunk = &mut self.chunks[slot];
        let room = chunk.length..chunk.length + (range.end - range.start) as usize;
        let read = tracer.call(Call::ReadNowait, || {
            residency.read(file, &mut chunk.bytes[room], range.start)
        });
        // The comparison must come after the read: only then do the bytes belong to the version
        // that was opened.
        let version = tracer.call(Call::Status, || file.version());
        match (read, version) {
            (_, Ok(version)) if version.size < file.meta().size => ChunkRead::Truncated,
            // A read of 0 bytes means that the file is shorter than its size said.
            (Ok(Some(0)), _) => ChunkRead::Truncated,
            (Err(error), _) | (_, Err(error)) => ChunkRead::Failed(error),
            (Ok(None), Ok(_)) => ChunkRead::NotResident,
            (Ok(Some(count)), Ok(version)) => {
                chunk.length += count;
                if version == file.meta().version() {
                    chunk.used = true;
                    return ChunkRead::Buffered(slot);
                }
                chunk.file = Weak::new();
                chunk.used = false;
                ChunkRead::Newer(slot, version)
            }
        }
    }

    /// Empties a buffer for the data that begins at `start`.
    fn replace(&mut self, file: &Rc<OpenFile>, start: u64, pinned: &[ChunkSlot]) -> ChunkSlot {
        let slot = match self.chunks.len() < self.chunks_max {
            true => {
                self.chunks.push(BufferedChunk::default());
                self.chunks.len() - 1
            }
            false => self.advance_clock(pinned),
        };
        let chunk = &mut self.chunks[slot];
        chunk.file = Rc::downgrade(file);
        chunk.start = start;
        chunk.length = 0;
        slot
    }

    /// The next buffer that was not used recently. The loop ends: one round clears every mark, and
    /// fewer buffers are pinned than exist.
    fn advance_clock(&mut self, pinned: &[ChunkSlot]) -> ChunkSlot {
        loop {
            let slot = self.clock_hand;
            self.clock_hand = (slot + 1) % self.chunks.len();
            if !pinned.contains(&slot) && !std::mem::take(&mut self.chunks[slot].used) {
                return slot;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    const CHUNK: usize = CHUNK_BYTES as usize;
    /// The smallest possible pool.
    const CHUNKS: u64 = 2 * PINNED_CHUNKS_MAX as u64;

    fn open(path: &Path) -> Rc<OpenFile> {
        let file = fs::File::open(path).unwrap();
        let meta = headway_os::open::status(&file).unwrap().into();
        Rc::new(OpenFile::new(file.into(), meta))
    }

    struct Fixture {
        pool: ChunkPool,
        file: Rc<OpenFile>,
        directory: tempfile::TempDir,
    }

    impl Fixture {
        /// A file of `chunks` chunks, each filled with its number.
        fn of(chunks: u64) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("file");
            let content: Vec<u8> = (0..chunks).flat_map(|one| vec![one as u8; CHUNK]).collect();
            fs::write(&path, content).unwrap();
            Self {
                pool: ChunkPool::new(0),
                file: open(&path),
                directory,
            }
        }

        fn fill(&mut self, range: Range<u64>, pinned: &[ChunkSlot]) -> ChunkSlot {
            let file = self.file.clone();
            match self.pool.fill(
                &file,
                range,
                pinned,
                (&Residency::detect(), &Tracer::disabled()),
            ) {
                ChunkRead::Buffered(slot) => slot,
                _ => panic!("it has just been written"),
            }
        }

        fn fill_chunk(&mut self, number: u64) -> ChunkSlot {
            self.fill(number * CHUNK_BYTES..(number + 1) * CHUNK_BYTES, &[])
        }

        fn holds(&mut self, number: u64) -> bool {
            let slot = self.pool.find(&self.file, number * CHUNK_BYTES);
            slot.is_some_and(|slot| {
                let bytes = self.pool.bytes(slot, number * CHUNK_BYTES, 10);
                bytes == [number as u8; 10]
            })
        }
    }

    #[test]
    fn chunk_is_found_by_any_of_its_bytes_and_no_other() {
        let mut all = Fixture::of(2);
        let slot = all.fill(10..100, &[]);
        for (offset, found) in [(9, false), (10, true), (99, true), (100, false)] {
            assert_eq!(
                all.pool.find(&all.file, offset).is_some(),
                found,
                "{offset}"
            );
        }
        assert!(all.pool.find(&all.file, CHUNK_BYTES + 10).is_none());
        assert_eq!(all.pool.bytes(slot, 90, 1000).len(), 10);
    }

    #[test]
    fn buffered_chunk_grows_when_its_next_bytes_are_read() {
        let mut all = Fixture::of(2);
        let first = all.fill(0..100, &[]);
        assert_eq!(all.fill(100..CHUNK_BYTES, &[]), first);
        assert_eq!(all.pool.bytes(first, 0, u64::MAX / 2).len(), CHUNK);
        assert_ne!(all.fill_chunk(1), first);
    }

    #[test]
    fn used_chunk_stays_when_another_one_needs_a_buffer() {
        let mut all = Fixture::of(CHUNKS + 2);
        for number in 0..=CHUNKS {
            all.fill_chunk(number);
        }
        // The clock hand has made one round and cleared every mark but the last.
        assert!(!all.holds(0) && all.holds(1));
        all.fill_chunk(CHUNKS + 1);
        assert!(all.holds(1) && !all.holds(2));
    }

    #[test]
    fn pinned_chunks_stay_when_all_others_are_replaced() {
        let mut all = Fixture::of(3 * CHUNKS);
        let pinned: Vec<ChunkSlot> = (0..3).map(|number| all.fill_chunk(number)).collect();
        for number in 3..3 * CHUNKS {
            let start = number * CHUNK_BYTES;
            all.fill(start..start + 1, &pinned);
        }
        assert!((0..3).all(|number| all.holds(number)));
    }

    #[test]
    fn chunk_is_found_by_no_other_response_when_the_file_was_rewritten_before_the_read() {
        let mut all = Fixture::of(2);
        all.fill_chunk(0);
        let path = all.directory.path().join("file");
        fs::write(path, vec![9; 2 * CHUNK]).unwrap();
        let file = all.file.clone();
        let next = CHUNK_BYTES..2 * CHUNK_BYTES;
        let filled = all.pool.fill(
            &file,
            next,
            &[],
            (&Residency::detect(), &Tracer::disabled()),
        );
        assert!(matches!(filled, ChunkRead::Newer(..)));
        assert!(all.pool.find(&file, CHUNK_BYTES).is_none());
        assert!(
            all.holds(0),
            "what was read in time is of the first version"
        );
    }

    #[test]
    fn chunk_is_not_found_when_its_file_was_closed_and_another_opened() {
        let mut all = Fixture::of(1);
        all.fill_chunk(0);
        let path = all.directory.path().join("file");
        for _ in 0..100 {
            all.file = open(&path);
            assert!(!all.holds(0), "it was read through another descriptor");
        }
    }
}
