//! Files from mappings, the way of Flash: `mincore` before each use, then one `writev` for the head
//! and as much of the file as lies in the window.
//!
//! Windows stay mapped as long as [`Chunks`] keeps them. The bytes are the kernel's to look at: no
//! slice of a mapping exists here, so that a file truncated under it is an `EFAULT`, not a signal.
//! It has the gaps of `sendfile` and more: what was resident can be evicted before it is written;
//! giving a mapping back can free an unlinked file; and each first touch of a page is a fault.
//! [`super::copy`] has none of them. It is here because the papers' servers did it.
//!
//! Sources: 2006 paper, section 2.1; dissertation 2.5.4; `headway_os::mapping`.

use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use headway_debox::Call;
use headway_files::{OpenFile, WINDOW_BYTES, window_of};
use headway_os::mapping::{MEMORY_PIECES_MAX, Mapping};
use rustix::io::Errno;

use super::copy::Gathered;
use super::{Means, PIECES_AT_ONCE, Progress, account, lend, refused, send_memory, window};
use crate::request::{Outgoing, Piece};

/// All pieces that leave at once have a place in the call.
const _: () = assert!(PIECES_AT_ONCE <= MEMORY_PIECES_MAX);

/// Sends what stands before the first file and as much of that file as its window holds, or memory
/// alone if no file is near. `None`: went well, go on.
pub fn send_some(
    outgoing: &mut Outgoing,
    socket: BorrowedFd<'_>,
    means: &mut Means<'_>,
) -> Option<Progress> {
    let near = outgoing.pieces.iter().take(PIECES_AT_ONCE + 1);
    let file = near.enumerate().find_map(|(at, piece)| match piece {
        Piece::File(file, range) => Some((at, file.clone(), range.clone())),
        _ => None,
    });
    let sent = match file {
        None => return send_memory(outgoing, &Gathered::default(), socket, means),
        Some((at, _, range)) if range.is_empty() => {
            outgoing.pieces.remove(at);
            return None;
        }
        // What a helper has copied is in memory, and not worth a mapping of its own.
        Some((_, file, _)) if file.is_memory() => return lend::send_some(outgoing, socket, means),
        Some((_, file, range)) => send_window(outgoing, &file, &range, socket, means),
    };
    sent.map_or_else(Some, |()| None)
}

fn send_window(
    outgoing: &mut Outgoing,
    file: &Rc<OpenFile>,
    range: &Range<u64>,
    socket: BorrowedFd<'_>,
    means: &mut Means<'_>,
) -> Result<(), Progress> {
    window::compare(file, means)?;
    map(file, range.start, means)?;
    let end = window::end(range.start, range.end).min(range.start + means.budget_bytes);
    let at = range.start % WINDOW_BYTES;
    let within = at as usize..(at + (end - range.start)) as usize;
    let Some(mapping) = means.maps.get(file, range.start) else {
        return Err(opaque(file, range.start, means));
    };
    let resident = means
        .tracer
        .call(Call::Mincore, || mapping.is_resident(within.clone()));
    match resident {
        Ok(true) => means.counters.mincore_hits += 1,
        Ok(false) => {
            means.counters.mincore_misses += 1;
            return Err(window::cold(file, range.start, means));
        }
        Err(_) => return Err(Progress::Unreadable),
    }
    write(outgoing, file, range.start, within, socket, means)
}

/// Sees to it that the window that holds `offset` is mapped, and gives back what is mapped beyond
/// the bound.
fn map(file: &Rc<OpenFile>, offset: u64, means: &mut Means<'_>) -> Result<(), Progress> {
    if means.maps.get(file, offset).is_some() {
        return Ok(());
    }
    let (start, length) = window_of(offset, file.meta().size);
    let made = means.tracer.call(Call::Mmap, || {
        Mapping::new(file.as_fd(), start, length as usize)
    });
    let Ok(mapping) = made else {
        // No mappings here, or no more of them: a helper copies.
        return Err(opaque(file, offset, means));
    };
    means.maps.insert(file, offset, mapping);
    while let Some(surplus) = means.maps.surplus() {
        means.tracer.call(Call::Munmap, || drop(surplus));
    }
    Ok(())
}

/// One call for the memory pieces in front of the file and `within` its window, which begins before
/// `offset`.
fn write(
    outgoing: &mut Outgoing,
    file: &Rc<OpenFile>,
    offset: u64,
    within: Range<usize>,
    socket: BorrowedFd<'_>,
    means: &mut Means<'_>,
) -> Result<(), Progress> {
    let mut slices = [IoSlice::new(&[]); PIECES_AT_ONCE];
    let (mut count, mut memory_bytes) = (0, 0);
    for piece in &outgoing.pieces {
        let Some(memory) = piece.memory() else { break };
        slices[count] = IoSlice::new(memory);
        count += 1;
        memory_bytes += memory.len();
    }
    let length = within.len();
    let Some(mapping) = means.maps.get(file, offset) else {
        return Ok(());
    };
    let sent = means.tracer.call(Call::Writev, || {
        mapping.write_behind(socket, &slices[..count], within)
    });
    match sent {
        Ok(sent) => {
            means.budget_bytes -= sent.saturating_sub(memory_bytes) as u64;
            account(outgoing, sent as u64, means);
            // A short count means that the socket is full, or that the file ends here now, which
            // the comparison finds before the next call.
            match sent < memory_bytes + length {
                true => Err(Progress::SocketFull),
                false => Ok(()),
            }
        }
        // Truncated between the comparison and the call.
        Err(Errno::FAULT) => Err(Progress::Changed),
        Err(error) => refused(error).map_or(Ok(()), Err),
    }
}

fn opaque(file: &Rc<OpenFile>, offset: u64, means: &mut Means<'_>) -> Progress {
    means.counters.windows_cold += 1;
    Progress::Opaque(file.clone(), offset)
}
