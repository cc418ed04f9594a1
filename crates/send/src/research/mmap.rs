//! Sends files from memory mappings, as Flash did: `mincore` before each use, then one `writev` for
//! the header and the part of the file in its chunk.
//!
//! Chunks stay mapped as long as the list of recently used ones holds them. Only the kernel reads the
//! mapped bytes, so a truncated file causes `EFAULT`, not a signal. This way has the gaps of
//! `sendfile` and more: a resident page can be evicted before the write, unmapping can free an
//! unlinked file, and the first touch of each page is a page fault. [`crate::copy`] has none of
//! them. It exists to reproduce the papers' servers.
//!
//! Sources: 2006 paper, section 2.1; dissertation 2.5.4; `headway_os::mapping`.

use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use headway_files::{CHUNK_BYTES, Failure, OpenFile, chunk_of};
use headway_metrics::Counters;
use headway_metrics::calls::Call;
use headway_os::mapping::{MEMORY_PIECES_MAX, Mapping};
use headway_request::{Outgoing, Piece};
use rustix::io::Errno;

use super::chunk_lru::ChunkLru;
use super::let_go::LetGo;
use crate::copy::Batch;
use crate::{
    PIECES_PER_CALL_MAX, SendContext, SendFiles, SendProgress, account_sent, chunk,
    classify_send_error, send_memory, sendfile,
};

/// All pieces of one call must fit into the call.
const _: () = assert!(PIECES_PER_CALL_MAX <= MEMORY_PIECES_MAX);

/// Sends from mappings, of which it keeps a limited number of bytes.
pub(super) struct MappedFiles {
    mappings: ChunkLru<Mapping>,
    /// Files are closed when they are mapped.
    let_go: Option<LetGo>,
}

impl SendFiles for MappedFiles {
    fn send_some(
        &mut self,
        outgoing: &mut Outgoing,
        socket: BorrowedFd<'_>,
        context: &mut SendContext<'_>,
    ) -> Option<SendProgress> {
        let near = outgoing.pieces.iter().take(PIECES_PER_CALL_MAX + 1);
        let file = near.enumerate().find_map(|(at, piece)| match piece {
            Piece::File(file, range) => Some((at, file.clone(), range.clone())),
            _ => None,
        });
        let sent = match file {
            None => return send_memory(outgoing, &Batch::default(), socket, context),
            Some((at, _, range)) if range.is_empty() => {
                outgoing.pieces.remove(at);
                return None;
            }
            // A helper's copy is in memory; mapping it would gain nothing.
            Some((_, file, _)) if file.is_memory() => {
                return sendfile::send_some(
                    outgoing,
                    socket,
                    context,
                    &mut chunk::expect_resident,
                    false,
                );
            }
            Some((_, file, range)) => self.send_chunk(outgoing, &file, &range, socket, context),
        };
        sent.map_or_else(Some, |()| None)
    }

    fn residency(&self) -> Option<&'static str> {
        Some("mincore")
    }

    fn maps_files(&self) -> bool {
        true
    }

    fn gauges(&self, counters: &mut Counters) {
        counters.mapping_cache_entries = self.mappings.count();
        counters.mapping_cache_bytes = self.mappings.bytes();
        counters.mapping_cache_evictions = self.mappings.evicted();
    }
}

impl MappedFiles {
    pub(super) fn new(bytes_max: u64, closes: bool) -> MappedFiles {
        MappedFiles {
            mappings: ChunkLru::new(bytes_max),
            let_go: closes.then(LetGo::new).flatten(),
        }
    }

    fn send_chunk(
        &mut self,
        outgoing: &mut Outgoing,
        file: &Rc<OpenFile>,
        range: &Range<u64>,
        socket: BorrowedFd<'_>,
        context: &mut SendContext<'_>,
    ) -> Result<(), SendProgress> {
        chunk::compare(file, context)?;
        let end = chunk::end(range.start, range.end).min(range.start + context.quantum_bytes);
        let at = range.start % CHUNK_BYTES;
        let within = at as usize..(at + (end - range.start)) as usize;
        if !self.is_resident(file, range.start, within.clone(), context)? {
            self.hold(file, outgoing.sent_bytes == 0, context)?;
            return Err(chunk::not_resident(file, range.start, context));
        }
        if chunk::end(range.start, range.end) == range.end
            && let Some(let_go) = &mut self.let_go
        {
            let_go.close(file, context);
        }
        self.write(outgoing, file, range.start, within, socket, context)
    }

    /// A helper is to read of this file, so it has to be open. Before the response has begun, a helper
    /// looks up its name, too, as Flash's did.
    fn hold(
        &mut self,
        file: &Rc<OpenFile>,
        is_first: bool,
        context: &mut SendContext<'_>,
    ) -> Result<(), SendProgress> {
        match &mut self.let_go {
            Some(let_go) if file.is_let_go() && is_first => {
                let_go.forget(file);
                Err(SendProgress::Changed)
            }
            Some(let_go) if file.is_let_go() => let_go.open(file, context),
            _ => Ok(()),
        }
    }

    /// Whether `within` of the chunk that contains `offset` is in memory, by `mincore` on its mapping.
    fn is_resident(
        &mut self,
        file: &Rc<OpenFile>,
        offset: u64,
        within: Range<usize>,
        context: &mut SendContext<'_>,
    ) -> Result<bool, SendProgress> {
        self.map(file, offset, context)?;
        let Some(mapping) = self.mappings.get(file, offset) else {
            return Err(residency_unknown(file, offset, context));
        };
        let resident = context
            .tracer
            .call(Call::Mincore, || mapping.is_resident(within));
        match resident {
            Ok(true) => context.counters.mapping_cache_resident += 1,
            Ok(false) => context.counters.mapping_cache_cold += 1,
            Err(_) => {}
        }
        resident.map_err(|error| SendProgress::Unreadable(Failure::of_read(&error.into())))
    }

    /// Maps the chunk that contains `offset`, and unmaps what exceeds the limit.
    fn map(
        &mut self,
        file: &Rc<OpenFile>,
        offset: u64,
        context: &mut SendContext<'_>,
    ) -> Result<(), SendProgress> {
        if self.mappings.get(file, offset).is_some() {
            return Ok(());
        }
        if let Some(let_go) = &mut self.let_go
            && file.is_let_go()
        {
            let_go.open(file, context)?;
        }
        let (start, length) = chunk_of(offset, file.meta().size);
        let made = context.tracer.call(Call::Mmap, || {
            Mapping::new(file.as_fd(), start, length as usize)
        });
        let Ok(mapping) = made else {
            // Mapping failed, so a helper copies the data.
            return Err(residency_unknown(file, offset, context));
        };
        self.mappings.insert(file, offset, mapping);
        while let Some(excess) = self.mappings.pop_excess() {
            context.tracer.call(Call::Munmap, || drop(excess));
        }
        Ok(())
    }

    /// Sends the in-memory pieces in front of the file and then `within` of its chunk in one call.
    fn write(
        &mut self,
        outgoing: &mut Outgoing,
        file: &Rc<OpenFile>,
        offset: u64,
        within: Range<usize>,
        socket: BorrowedFd<'_>,
        context: &mut SendContext<'_>,
    ) -> Result<(), SendProgress> {
        let mut slices = [IoSlice::new(&[]); PIECES_PER_CALL_MAX];
        let (mut count, mut memory_bytes) = (0, 0);
        for piece in &outgoing.pieces {
            let Some(memory) = piece.memory() else { break };
            slices[count] = IoSlice::new(memory);
            count += 1;
            memory_bytes += memory.len();
        }
        let length = within.len();
        let Some(mapping) = self.mappings.get(file, offset) else {
            return Ok(());
        };
        let sent = context.tracer.call(Call::Writev, || {
            mapping.write_behind(socket, &slices[..count], within)
        });
        match sent {
            Ok(sent) => {
                context.quantum_bytes -= sent.saturating_sub(memory_bytes) as u64;
                account_sent(outgoing, sent as u64, context);
                // A short count means that the socket is full or the file has become shorter; the
                // comparison finds that before the next call.
                match sent < memory_bytes + length {
                    true => Err(SendProgress::SocketFull),
                    false => Ok(()),
                }
            }
            // The file was truncated: between the comparison and the call, or since it was let go.
            Err(Errno::FAULT) => {
                if let Some(let_go) = self.let_go.as_mut().filter(|_| file.is_let_go()) {
                    let_go.forget(file);
                }
                Err(SendProgress::Changed)
            }
            Err(error) => classify_send_error(error).map_or(Ok(()), Err),
        }
    }
}

/// Sends with `sendfile` what `mincore` on a mapping has found in memory: Flash after its first change
/// (dissertation 2.5.1). Files stay open.
pub(super) struct SendfileMapped(MappedFiles);

impl SendfileMapped {
    pub(super) fn new(bytes_max: u64) -> SendfileMapped {
        SendfileMapped(MappedFiles::new(bytes_max, false))
    }
}

impl SendFiles for SendfileMapped {
    fn send_some(
        &mut self,
        outgoing: &mut Outgoing,
        socket: BorrowedFd<'_>,
        context: &mut SendContext<'_>,
    ) -> Option<SendProgress> {
        let mut expect = |file: &Rc<OpenFile>,
                          range: Range<u64>,
                          context: &mut SendContext<'_>|
         -> Result<(), SendProgress> {
            // A helper's copy is always in memory.
            if file.is_memory() || chunk::is_known_resident(file, range.clone(), context) {
                return Ok(());
            }
            let at = (range.start % CHUNK_BYTES) as usize;
            let within = at..at + (range.end - range.start) as usize;
            match self.0.is_resident(file, range.start, within, context)? {
                true => {
                    context.known_resident = Some((file.clone(), range));
                    Ok(())
                }
                false => Err(chunk::not_resident(file, range.start, context)),
            }
        };
        sendfile::send_some(outgoing, socket, context, &mut expect, false)
    }

    fn residency(&self) -> Option<&'static str> {
        Some("mincore")
    }

    fn maps_files(&self) -> bool {
        true
    }

    fn gauges(&self, counters: &mut Counters) {
        self.0.gauges(counters);
    }
}

fn residency_unknown(
    file: &Rc<OpenFile>,
    offset: u64,
    context: &mut SendContext<'_>,
) -> SendProgress {
    context.counters.chunks_cold += 1;
    SendProgress::ResidencyUnknown(file.clone(), offset)
}
