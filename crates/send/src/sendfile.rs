//! Sends files with `sendfile`: the kernel passes the file's pages to the socket without a copy.
//!
//! Each chunk is compared with the version that was opened and found resident before it is sent.
//! Two gaps remain: pages can change while they are in the socket, and they can be evicted between
//! the probe and the call, which then blocks on the disk. [`super::copy`] has neither gap.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use headway_files::{CHUNK_BYTES, OpenFile};
use headway_metrics::calls::Call;
use headway_request::{Outgoing, Piece};

use super::copy::Batch;
use super::{SendContext, SendProgress, account_sent, chunk, classify_send_error, send_memory};

/// Fails unless a range, which lies within one chunk, is in memory.
pub(crate) type Expect<'e> =
    &'e mut dyn FnMut(&Rc<OpenFile>, Range<u64>, &mut SendContext<'_>) -> Result<(), SendProgress>;

/// Sends the in-memory pieces at the front, or a part of the file at the front. Returns `None` if
/// the caller can go on. Each chunk is sent after `expect`, and the next one is read ahead if
/// `reads_ahead`.
pub(crate) fn send_some(
    outgoing: &mut Outgoing,
    socket: BorrowedFd<'_>,
    context: &mut SendContext<'_>,
    expect: Expect<'_>,
    reads_ahead: bool,
) -> Option<SendProgress> {
    let sent = match outgoing.pieces.front() {
        Some(Piece::File(..)) => send_chunk(outgoing, socket, context, expect, reads_ahead),
        _ => match expect_first_chunk(outgoing, context, expect) {
            Ok(()) => return send_memory(outgoing, &Batch::default(), socket, context),
            Err(progress) => Err(progress),
        },
    };
    sent.map_or_else(Some, |()| None)
}

/// Sends a header only if the first chunk can follow. Until then an unreadable file can still
/// become a `500`, and the header does not travel as a packet of its own.
fn expect_first_chunk(
    outgoing: &Outgoing,
    context: &mut SendContext<'_>,
    expect: Expect<'_>,
) -> Result<(), SendProgress> {
    if outgoing.sent_bytes > 0 {
        return Ok(());
    }
    // In multipart/byteranges the header of a part comes in between.
    let mut pieces = outgoing.pieces.iter();
    let Some((file, range)) = pieces.find_map(|piece| match piece {
        Piece::File(file, range) => Some((file, range)),
        _ => None,
    }) else {
        return Ok(());
    };
    chunk::compare(file, context)?;
    let end = chunk::end(range.start, range.end);
    expect(file, range.start..end, context)
}

/// Sends a part of the file at the front, within one chunk.
fn send_chunk(
    outgoing: &mut Outgoing,
    socket: BorrowedFd<'_>,
    context: &mut SendContext<'_>,
    expect: Expect<'_>,
    reads_ahead: bool,
) -> Result<(), SendProgress> {
    let Some(Piece::File(file, range)) = outgoing.pieces.front() else {
        return Ok(());
    };
    if range.is_empty() {
        outgoing.pieces.pop_front();
        return Ok(());
    }
    let (mut at, end) = (range.start, chunk::end(range.start, range.end));
    chunk::compare(file, context)?;
    expect(file, at..end, context)?;
    let next = chunk::end(end, range.end);
    if reads_ahead
        && at.is_multiple_of(CHUNK_BYTES)
        && end < range.end
        && let Ok(false) = chunk::is_resident(file, end..next, context)
    {
        chunk::prefetch(file, end..range.end, context);
    }
    let length = (end - at).min(context.quantum_bytes) as usize;
    let sent = context.tracer.call(Call::Sendfile, || {
        rustix::fs::sendfile(socket, file.as_fd(), Some(&mut at), length)
    });
    match sent {
        // The file was truncated between the comparison and the call.
        Ok(0) => Err(SendProgress::Changed),
        Ok(sent) => {
            context.quantum_bytes -= sent as u64;
            outgoing.is_unrecorded = true;
            account_sent(outgoing, sent as u64, context);
            // A short count means that the socket is full; another call would only return EAGAIN.
            if sent < length {
                return Err(SendProgress::SocketFull);
            }
            Ok(())
        }
        Err(error) => classify_send_error(error).map_or(Ok(()), Err),
    }
}
