//! Files by `sendfile`: the kernel lends the file's pages to the socket, nothing is copied.
//!
//! A window is compared with what was opened and found resident before it leaves. That leaves two
//! gaps: the pages can change while the socket holds them, and they can be evicted between the
//! probe and the call, which then waits for the disk. [`super::copy`] has neither. Where a window
//! counts as resident because it was used lately, which costs no call, the second gap is as wide as
//! the guess is wrong.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use headway_debox::Call;
use headway_files::{OpenFile, WINDOW_BYTES};

use super::copy::Gathered;
use super::{Means, Progress, account, refused, send_memory, window};
use crate::config::SendMethod;
use crate::request::{Outgoing, Piece};

/// Sends the memory in front, or from the file in front. `None`: went well, go on.
pub fn send_some(
    outgoing: &mut Outgoing,
    socket: BorrowedFd<'_>,
    means: &mut Means<'_>,
) -> Option<Progress> {
    let sent = match outgoing.pieces.front() {
        Some(Piece::File(..)) => send_window(outgoing, socket, means),
        _ => match expect_first_window(outgoing, means) {
            Ok(()) => return send_memory(outgoing, &Gathered::default(), socket, means),
            Err(progress) => Err(progress),
        },
    };
    sent.map_or_else(Some, |()| None)
}

/// A head leaves only when the first window behind it can follow: until then an unreadable file can
/// still become an honest `500`, and the head does not travel as a packet of its own.
fn expect_first_window(outgoing: &Outgoing, means: &mut Means<'_>) -> Result<(), Progress> {
    if outgoing.sent_bytes > 0 {
        return Ok(());
    }
    // In multipart/byteranges a part's head stands between.
    let mut pieces = outgoing.pieces.iter();
    let Some((file, range)) = pieces.find_map(|piece| match piece {
        Piece::File(file, range) => Some((file, range)),
        _ => None,
    }) else {
        return Ok(());
    };
    window::compare(file, means)?;
    let end = window::end(range.start, range.end);
    expect(file, range.start..end, means)
}

/// An error unless `range`, which lies in one window, is in memory: by a probe, or where that is
/// the way, by having been used lately.
fn expect(file: &Rc<OpenFile>, range: Range<u64>, means: &mut Means<'_>) -> Result<(), Progress> {
    match means.method {
        SendMethod::SendfileRecent => window::expect_recent(file, range.start, means),
        _ => window::expect_resident(file, range, means),
    }
}

/// Sends from the file piece in front, within one window.
fn send_window(
    outgoing: &mut Outgoing,
    socket: BorrowedFd<'_>,
    means: &mut Means<'_>,
) -> Result<(), Progress> {
    let Some(Piece::File(file, range)) = outgoing.pieces.front() else {
        return Ok(());
    };
    if range.is_empty() {
        outgoing.pieces.pop_front();
        return Ok(());
    }
    let (mut at, end) = (range.start, window::end(range.start, range.end));
    window::compare(file, means)?;
    expect(file, at..end, means)?;
    let next = window::end(end, range.end);
    if means.method == SendMethod::Sendfile
        && at.is_multiple_of(WINDOW_BYTES)
        && end < range.end
        && let Ok(false) = window::is_resident(file, end..next, means)
    {
        window::prefetch(file, end..range.end, means);
    }
    let length = (end - at).min(means.budget_bytes) as usize;
    let sent = means.tracer.call(Call::Sendfile, || {
        rustix::fs::sendfile(socket, file.as_fd(), Some(&mut at), length)
    });
    match sent {
        // Shorter than its size says: truncated between the comparison and the call.
        Ok(0) => Err(Progress::Changed),
        Ok(sent) => {
            means.budget_bytes -= sent as u64;
            account(outgoing, sent as u64, means);
            // A short count means that the socket is full: asking again would only be told so.
            if sent < length {
                return Err(Progress::SocketFull);
            }
            Ok(())
        }
        Err(error) => refused(error).map_or(Ok(()), Err),
    }
}
