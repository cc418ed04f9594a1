//! `send = "auto"`: files leave by `sendfile`, and by copy for a while after one that slept.
//!
//! A page can be evicted between the probe and the call, which then waits for the disk. The record of
//! the worker's own calls shows this. Memory is scarce then, so the next calls would wait as well.
//!
//! What it does not promise is what [`super::sendfile`] does not: data in the socket changes with the
//! file. A response that has begun by copy goes on so, since what was sent can be compared. One of which a
//! part left by `sendfile` closes if the file changes.

use std::os::fd::BorrowedFd;

use headway_metrics::calls::Call;
use headway_request::Outgoing;

use super::{SendContext, SendProgress, chunk, copy, sendfile};

/// How long a worker copies after a `sendfile` that slept.
const COPY_MS: u64 = 10_000;

/// Sends what one system call can take. Returns `None` if the caller can go on.
pub(crate) fn send_some(
    outgoing: &mut Outgoing,
    socket: BorrowedFd<'_>,
    context: &mut SendContext<'_>,
) -> Option<SendProgress> {
    // sendfile has no flag like MSG_DONTWAIT, so it would wait for room in a socket without O_NONBLOCK.
    let copies = context.now_ms < *context.copies_until_ms || context.was_passed;
    if copies || outgoing.sent_prefix.is_some() {
        return copy::send_some(outgoing, socket, context);
    }
    let before = context.tracer.sleeps_in(Call::Sendfile);
    let expect = &mut chunk::expect_resident;
    let progress = sendfile::send_some(outgoing, socket, context, expect, true);
    if context.tracer.sleeps_in(Call::Sendfile) > before {
        context.counters.sendfile_slept += 1;
        *context.copies_until_ms = context.now_ms + COPY_MS;
    }
    progress
}
