//! Checks of one chunk before it is sent: whether it is in memory, and whether the file is
//! unchanged.

use std::io::{Error, ErrorKind};
use std::ops::Range;
use std::rc::Rc;

use headway_files::{CHUNK_BYTES, Failure, OpenFile};
use headway_metrics::calls::Call;

use super::{SendContext, SendProgress};

/// The end of the chunk that contains `start`, or `end` if that comes first.
pub(crate) fn end(start: u64, end: u64) -> u64 {
    ((start / CHUNK_BYTES + 1) * CHUNK_BYTES).min(end)
}

/// Fails unless the file still has the size and modification time with which it was opened.
pub(crate) fn compare(file: &OpenFile, context: &SendContext<'_>) -> Result<(), SendProgress> {
    match context.tracer.call(Call::Status, || file.unchanged()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(SendProgress::Changed),
        Err(error) => Err(SendProgress::Unreadable(Failure::of_read(&error))),
    }
}

/// Fails unless the pages of the chunk at the start of `range` are in the page cache or being read
/// in. Requests the next chunk if that is missing.
///
/// One probe covers both chunks, once per loop iteration, because most files are resident as a
/// whole.
pub(crate) fn expect_cached(
    file: &Rc<OpenFile>,
    range: Range<u64>,
    context: &mut SendContext<'_>,
) -> Result<(), SendProgress> {
    let this = end(range.start, range.end);
    if is_known_resident(file, range.start..this, context) {
        return Ok(());
    }
    let next = end(this, range.end).max(this);
    if is_cached(file, range.start..next, context)? {
        return Ok(());
    }
    if next == this || !is_cached(file, range.start..this, context)? {
        return Err(not_resident(file, range.start, context));
    }
    if range.start.is_multiple_of(CHUNK_BYTES) {
        prefetch(file, this..range.end, context);
    }
    Ok(())
}

fn is_cached(
    file: &Rc<OpenFile>,
    range: Range<u64>,
    context: &mut SendContext<'_>,
) -> Result<bool, SendProgress> {
    let cached = context.tracer.call(Call::Residency, || {
        context
            .residency
            .cached(file, range.start, range.end - range.start)
    });
    record_residency(file, range, cached, context)
}

/// Fails unless `range`, which lies within one chunk, is in memory and up to date. A page that
/// counts as cached may still be on its way from the disk; only this check shows that.
pub(crate) fn expect_resident(
    file: &Rc<OpenFile>,
    range: Range<u64>,
    context: &mut SendContext<'_>,
) -> Result<(), SendProgress> {
    let start = range.start;
    match is_resident(file, range, context)? {
        true => Ok(()),
        false => Err(not_resident(file, start, context)),
    }
}

/// Whether `range` is in memory and up to date. Skips the probe if this iteration has already made
/// it.
pub(crate) fn is_resident(
    file: &Rc<OpenFile>,
    range: Range<u64>,
    context: &mut SendContext<'_>,
) -> Result<bool, SendProgress> {
    if is_known_resident(file, range.clone(), context) {
        return Ok(true);
    }
    let resident = context.tracer.call(Call::Residency, || {
        context
            .residency
            .resident(file, range.start, range.end - range.start)
    });
    record_residency(file, range, resident, context)
}

/// Whether this iteration has found the range resident.
pub(crate) fn is_known_resident(
    file: &Rc<OpenFile>,
    range: Range<u64>,
    context: &SendContext<'_>,
) -> bool {
    context
        .known_resident
        .as_ref()
        .is_some_and(|(known_resident, found)| {
            Rc::ptr_eq(known_resident, file) && found.start <= range.start && range.end <= found.end
        })
}

/// Remembers the result of a probe for this iteration.
fn record_residency(
    file: &Rc<OpenFile>,
    range: Range<u64>,
    found: Result<bool, Error>,
    context: &mut SendContext<'_>,
) -> Result<bool, SendProgress> {
    let found = found.map_err(|error| classify_read_error(&error, file, range.start, context))?;
    if found {
        context.counters.chunks_resident += 1;
        context.known_resident = Some((file.clone(), range));
    }
    Ok(found)
}

/// Requests read-ahead of the rest of the response, from the next chunk on.
pub(crate) fn prefetch(file: &Rc<OpenFile>, owed: Range<u64>, context: &mut SendContext<'_>) {
    context.counters.chunks_prefetched += 1;
    context.prefetch.push((file.clone(), owed));
}

/// Reports that the chunk at `offset` must be read in.
pub(crate) fn not_resident(
    file: &Rc<OpenFile>,
    offset: u64,
    context: &mut SendContext<'_>,
) -> SendProgress {
    context.counters.chunks_cold += 1;
    SendProgress::NotResident(file.clone(), offset - offset % CHUNK_BYTES)
}

/// What a failed probe or read means.
pub(crate) fn classify_read_error(
    error: &Error,
    file: &Rc<OpenFile>,
    offset: u64,
    context: &mut SendContext<'_>,
) -> SendProgress {
    if error.kind() != ErrorKind::Unsupported {
        return SendProgress::Unreadable(Failure::of_read(error));
    }
    context.counters.chunks_cold += 1;
    SendProgress::ResidencyUnknown(file.clone(), offset)
}
