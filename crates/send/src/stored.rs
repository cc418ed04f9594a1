//! Sends bodies of the content store with `sendfile`: the kernel passes the pages of a sealed memfd to
//! the socket without a copy. They are in memory and cannot change, so nothing is probed or compared.
//! The kernel takes the lock of each page for an instant. A worker that finds it taken by another
//! sleeps (`bench/page-lock`).
//!
//! A header in front leaves with `MSG_MORE`, so it shares the first packet with the body. `sendfile`
//! has no flag like `MSG_DONTWAIT`. So a socket that another process has had is written to by
//! [`super::copy`] instead: that process may have cleared `O_NONBLOCK`.
//!
//! Sources: sendfile(2), memfd_create(2), fcntl(2) on `F_SEAL_WRITE`.

use std::os::fd::{AsFd, BorrowedFd};

use headway_files::Failure;
use headway_metrics::calls::Call;
use headway_request::{Outgoing, Piece};

use super::copy::Batch;
use super::{SendContext, SendProgress, account_sent, classify_send_error, send_memory};

/// Whether the next body is one of the content store.
pub(crate) fn is_next(outgoing: &Outgoing) -> bool {
    let mut pieces = outgoing.pieces.iter();
    let next = pieces.find(|piece| matches!(piece, Piece::Stored(..) | Piece::File(..)));
    matches!(next, Some(Piece::Stored(..)))
}

/// Sends the in-memory pieces at the front, or a part of the stored body at the front. Returns `None` if
/// the caller can go on.
pub(crate) fn send_some(
    outgoing: &mut Outgoing,
    socket: BorrowedFd<'_>,
    context: &mut SendContext<'_>,
) -> Option<SendProgress> {
    if context.was_passed {
        read_instead(outgoing);
        return None;
    }
    let Some(Piece::Stored(stored, range)) = outgoing.pieces.front() else {
        return send_memory(outgoing, &Batch::default(), socket, context);
    };
    if range.is_empty() {
        outgoing.pieces.pop_front();
        return None;
    }
    let mut at = range.start;
    let length = (range.end - at).min(context.quantum_bytes) as usize;
    let sent = context.tracer.call(Call::Sendfile, || {
        rustix::fs::sendfile(socket, stored.file.as_fd(), Some(&mut at), length)
    });
    match sent {
        // A sealed memfd does not end early.
        Ok(0) => Some(SendProgress::Unreadable(Failure::Io)),
        Ok(sent) => {
            context.quantum_bytes -= sent as u64;
            account_sent(outgoing, sent as u64, context);
            // A short count means that the socket is full; another call would only return EAGAIN.
            (sent < length).then_some(SendProgress::SocketFull)
        }
        Err(error) => classify_send_error(error),
    }
}

/// Makes the stored bodies of a response files to be read.
pub(crate) fn read_instead(outgoing: &mut Outgoing) {
    for piece in &mut outgoing.pieces {
        if let Piece::Stored(stored, range) = piece {
            *piece = Piece::File(stored.file.clone(), range.clone());
        }
    }
}
