//! Sends files through the worker's memory: read without blocking, compare, send.
//!
//! The copy has two advantages over `sendfile`. Data in the socket no longer changes with the file.
//! And the read itself reports a page that was evicted after the probe, so the page costs a helper
//! job instead of a blocked loop. The price is small: a chunk is read once for all clients
//! ([`super::chunk_pool`]), and sending it from memory is cheaper than passing pages through
//! `splice`.
//!
//! One call sends as much as the quantum allows. Every call may wake the client, and on a fast link
//! the client has read everything and sleeps again before the next call.

use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use headway_files::{CHUNK_BYTES, OpenFile, SentPrefix, Truncated, Version};
use headway_request::{Outgoing, Piece};

use super::chunk_pool::{ChunkPool, ChunkRead, ChunkSlot, PINNED_CHUNKS_MAX};
use super::{PIECES_PER_CALL_MAX, SendContext, SendProgress, chunk, send_memory};

/// The size of the first read for a client whose socket buffer is unknown.
const INITIAL_WRITE_BYTES: u64 = CHUNK_BYTES;

/// Smaller writes are not worth two system calls.
const WRITE_HINT_BYTES_MIN: u64 = 16 << 10;

/// The most that one call can send.
const WRITE_HINT_BYTES_MAX: u64 = PINNED_CHUNKS_MAX as u64 * CHUNK_BYTES;

/// Chunks, or parts of chunks, to send in one call.
#[derive(Default)]
pub(crate) struct Batch {
    slots: [ChunkSlot; PINNED_CHUNKS_MAX],
    count: usize,
    /// The offset of the first byte in the file.
    start: u64,
    /// The total length in bytes.
    pub length: u64,
}

impl Batch {
    fn end(&self) -> u64 {
        self.start + self.length
    }

    /// Shortens the batch so that it ends at `end`.
    fn cut(&mut self, end: u64, chunks: &ChunkPool) {
        while self.count > 0 && chunks.start(self.slots[self.count - 1]) >= end {
            self.count -= 1;
        }
        self.length = self.length.min(end.saturating_sub(self.start));
    }

    /// Adds the first `sent` bytes, which stand at `offset` in the file, to what was sent.
    pub(crate) fn record(&self, chunks: &ChunkPool, offset: u64, sent: u64, to: &mut SentPrefix) {
        let mut slices = [IoSlice::new(&[]); PINNED_CHUNKS_MAX];
        let used = self.append(chunks, &mut slices, 0);
        let (mut offset, mut left) = (offset, sent as usize);
        for bytes in &slices[..used] {
            let bytes = &bytes[..bytes.len().min(left)];
            to.add(offset, bytes);
            offset += bytes.len() as u64;
            left -= bytes.len();
        }
    }

    /// Appends the bytes to `slices`, of which `used` are in use, and returns the new number in
    /// use.
    pub(crate) fn append<'w>(
        &self,
        chunks: &'w ChunkPool,
        slices: &mut [IoSlice<'w>],
        mut used: usize,
    ) -> usize {
        let mut offset = self.start;
        for &slot in &self.slots[..self.count] {
            let bytes = chunks.bytes(slot, offset, self.end() - offset);
            offset += bytes.len() as u64;
            slices[used] = IoSlice::new(bytes);
            used += 1;
        }
        used
    }

    /// Updates the estimate of what the socket accepts: it accepted all but `left` bytes.
    pub(crate) fn update_write_hint(&self, left: u64, context: &mut SendContext<'_>) {
        let taken = self.length.saturating_sub(left);
        context.quantum_bytes = context.quantum_bytes.saturating_sub(taken);
        let next = match left {
            0 => u64::from(*context.write_size_hint).max(2 * taken),
            _ => taken,
        };
        *context.write_size_hint = next.clamp(WRITE_HINT_BYTES_MIN, WRITE_HINT_BYTES_MAX) as u32;
    }
}

/// Sends the pieces in front of the first file and as much of that file as one call can take, or
/// only the pieces if no file is near. Returns `None` if the caller can go on.
///
/// A header is sent only once the file behind it can be read: until then the response can still
/// become a `500`.
pub(crate) fn send_some(
    outgoing: &mut Outgoing,
    socket: BorrowedFd<'_>,
    context: &mut SendContext<'_>,
) -> Option<SendProgress> {
    outgoing.forget_other_files();
    let near = outgoing.pieces.iter().take(PIECES_PER_CALL_MAX + 1);
    let file = near.enumerate().find_map(|(at, piece)| match piece {
        Piece::File(file, range) => Some((at, file, range)),
        _ => None,
    });
    let prefix = outgoing.sent_prefix.as_deref_mut();
    let batch = match file {
        Some((at, _, range)) if range.is_empty() => {
            outgoing.pieces.remove(at);
            return None;
        }
        Some((_, file, range)) => match collect_batch(file, range, prefix, context) {
            Ok(batch) => batch,
            Err(progress) => return Some(progress),
        },
        None => Batch::default(),
    };
    send_memory(outgoing, &batch, socket, context)
}

/// Finds or reads the next chunks, up to the quantum. Returns an error only if there is nothing to
/// send before it, or what was sent must be compared with the file first.
fn collect_batch(
    file: &Rc<OpenFile>,
    range: &Range<u64>,
    mut prefix: Option<&mut SentPrefix>,
    context: &mut SendContext<'_>,
) -> Result<Batch, SendProgress> {
    let mut batch = Batch {
        start: range.start,
        ..Batch::default()
    };
    let most = context.quantum_bytes.min(context.call_bytes_max());
    let end = range.end.min(range.start + most);
    let mut readable = match *context.write_size_hint {
        0 => INITIAL_WRITE_BYTES,
        uptake => uptake.into(),
    };
    while batch.count < PINNED_CHUNKS_MAX && batch.end() < end {
        let at = batch.end();
        let (slot, version) = match context.chunks.find(file, at) {
            Some(slot) => {
                context.counters.chunks_buffered += 1;
                (slot, file.meta().version())
            }
            None if readable == 0 => break,
            None => {
                let piece = at..chunk::end(at, range.end).min(at + readable);
                readable -= piece.end - piece.start;
                match read(file, piece, range.end, &batch, context) {
                    Ok(read) => read,
                    Err(_) if batch.count > 0 => break,
                    Err(progress) => return Err(progress),
                }
            }
        };
        match note_version(file, version, prefix.as_deref_mut()) {
            Ok(()) => {}
            Err(_) if batch.count > 0 => break,
            Err(progress) => return Err(progress),
        }
        batch.slots[batch.count] = slot;
        batch.count += 1;
        batch.length += context.chunks.bytes(slot, at, end - at).len() as u64;
    }
    if let Some(prefix) = prefix
        && !file.is_memory()
    {
        if prefix.is_due(range) {
            return Err(SendProgress::Unchecked(file.clone(), range.clone()));
        }
        batch.cut(prefix.sendable_end(range), context.chunks);
    }
    Ok(batch)
}

/// Whether bytes of this version may follow what was sent. They may not if the file has changed and
/// there is nothing to compare: the header already says which version it is.
fn note_version(
    file: &OpenFile,
    version: Version,
    prefix: Option<&mut SentPrefix>,
) -> Result<(), SendProgress> {
    let noted = match prefix {
        // A copy of any version is a file of its own.
        Some(prefix) if !file.is_memory() => prefix.note(version),
        _ if version == file.meta().version() => Ok(()),
        _ => Err(Truncated),
    };
    noted.map_err(|Truncated| SendProgress::Changed)
}

/// Reads `piece`, which lies within one chunk of a response that ends at `end`.
fn read(
    file: &Rc<OpenFile>,
    piece: Range<u64>,
    end: u64,
    batch: &Batch,
    context: &mut SendContext<'_>,
) -> Result<(ChunkSlot, Version), SendProgress> {
    let start = piece.start;
    chunk::expect_cached(file, start..end, context)?;
    let pinned = &batch.slots[..batch.count];
    match context
        .chunks
        .fill(file, piece, pinned, (context.residency, context.tracer))
    {
        ChunkRead::Buffered(slot) => Ok((slot, file.meta().version())),
        ChunkRead::Newer(slot, version) => Ok((slot, version)),
        ChunkRead::NotResident => Err(chunk::not_resident(file, start, context)),
        ChunkRead::Truncated => Err(SendProgress::Changed),
        ChunkRead::Failed(error) => Err(chunk::classify_read_error(&error, file, start, context)),
    }
}
