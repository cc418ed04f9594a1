//! Files by way of memory: read without waiting, compare, send.
//!
//! The copy buys two things `sendfile` cannot give. Bytes in the socket are nobody's but the
//! socket's, so they stay what they were when the file was compared. And the call that touches the
//! page cache says *would block* itself, so that a page evicted since the probe costs a helper's
//! job, not a wait. What it costs is little: windows that many ask for are read once
//! ([`super::windows`]), and then handing them over is cheaper than having `splice` pass them on
//! page by page.
//!
//! As much as may leave in this turn goes into one call. Each call may wake the client, which on a
//! fast link reads faster than we send and is asleep again by the next one.

use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use headway_files::{OpenFile, WINDOW_BYTES};

use super::windows::{Filled, Place, SPARED_MAX, Windows};
use super::{Means, PIECES_AT_ONCE, Progress, send_memory, window};
use crate::request::{Outgoing, Piece};

/// What is read for a client of whose socket nothing is known.
const FIRST_BYTES: u64 = WINDOW_BYTES;

/// Less than this is not worth two system calls.
const LEAST_BYTES: u64 = 16 << 10;

/// More than this does not leave in one call.
const MOST_BYTES: u64 = SPARED_MAX as u64 * WINDOW_BYTES;

/// Windows, or parts of them, that leave in one call.
#[derive(Default)]
pub struct Gathered {
    places: [Place; SPARED_MAX],
    count: usize,
    /// Where in the file they begin.
    start: u64,
    /// Bytes of all of them.
    pub length: u64,
}

impl Gathered {
    fn end(&self) -> u64 {
        self.start + self.length
    }

    /// Appends the bytes to `slices`, of which `used` are taken; how many are then?
    pub fn append<'w>(
        &self,
        windows: &'w Windows,
        slices: &mut [IoSlice<'w>],
        mut used: usize,
    ) -> usize {
        let mut offset = self.start;
        for &place in &self.places[..self.count] {
            let bytes = windows.bytes(place, offset, self.end() - offset);
            offset += bytes.len() as u64;
            slices[used] = IoSlice::new(bytes);
            used += 1;
        }
        used
    }

    /// Takes note of how much of it the socket has taken, all but `left` bytes.
    pub fn learn(&self, left: u64, means: &mut Means<'_>) {
        let taken = self.length.saturating_sub(left);
        means.budget_bytes = means.budget_bytes.saturating_sub(taken);
        let next = match left {
            0 => u64::from(*means.uptake_bytes).max(2 * taken),
            _ => taken,
        };
        *means.uptake_bytes = next.clamp(LEAST_BYTES, MOST_BYTES) as u32;
    }
}

/// Sends what stands before the first file and as much of that file as may leave at once, or memory
/// alone if no file is near. A head never leaves before the file behind it could be read: until
/// then an unreadable file can still become an honest `500`. `None`: went well, go on.
pub fn send_some(
    outgoing: &mut Outgoing,
    socket: BorrowedFd<'_>,
    means: &mut Means<'_>,
) -> Option<Progress> {
    let near = outgoing.pieces.iter().take(PIECES_AT_ONCE + 1);
    let file = near.enumerate().find_map(|(at, piece)| match piece {
        Piece::File(file, range) => Some((at, file, range)),
        _ => None,
    });
    let gathered = match file {
        Some((at, _, range)) if range.is_empty() => {
            outgoing.pieces.remove(at);
            return None;
        }
        Some((_, file, range)) => match gather(file, range, means) {
            Ok(gathered) => gathered,
            Err(progress) => return Some(progress),
        },
        None => Gathered::default(),
    };
    send_memory(outgoing, &gathered, socket, means)
}

/// Finds or reads what follows, as far as this turn goes. Trouble is told only when there is
/// nothing to send before it.
fn gather(
    file: &Rc<OpenFile>,
    range: &Range<u64>,
    means: &mut Means<'_>,
) -> Result<Gathered, Progress> {
    let mut gathered = Gathered {
        start: range.start,
        ..Gathered::default()
    };
    let end = range.end.min(range.start + means.budget_bytes);
    let mut readable = match *means.uptake_bytes {
        0 => FIRST_BYTES,
        uptake => uptake.into(),
    };
    while gathered.count < SPARED_MAX && gathered.end() < end {
        let at = gathered.end();
        let place = match means.windows.find(file, at) {
            Some(place) => {
                means.counters.windows_held += 1;
                place
            }
            None if readable == 0 => break,
            None => {
                let piece = at..window::end(at, range.end).min(at + readable);
                readable -= piece.end - piece.start;
                match read(file, piece, range.end, &gathered, means) {
                    Ok(place) => place,
                    Err(_) if gathered.count > 0 => break,
                    Err(progress) => return Err(progress),
                }
            }
        };
        gathered.places[gathered.count] = place;
        gathered.count += 1;
        gathered.length += means.windows.bytes(place, at, end - at).len() as u64;
    }
    Ok(gathered)
}

/// Reads `piece`, which lies in one window, of what is owed up to `end`.
fn read(
    file: &Rc<OpenFile>,
    piece: Range<u64>,
    end: u64,
    gathered: &Gathered,
    means: &mut Means<'_>,
) -> Result<Place, Progress> {
    let start = piece.start;
    window::expect_cached(file, start..end, means)?;
    let spared = &gathered.places[..gathered.count];
    match means
        .windows
        .fill(file, piece, spared, (means.residency, means.tracer))
    {
        Filled::Here(place) => Ok(place),
        Filled::Cold => Err(window::cold(file, start, means)),
        Filled::Changed => Err(Progress::Changed),
        Filled::Failed(error) => Err(window::failed(&error, file, start, means)),
    }
}
