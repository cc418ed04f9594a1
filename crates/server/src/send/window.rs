//! One window of a file before it leaves: is it in memory, and is the file still the one that was
//! opened?

use std::io::{Error, ErrorKind};
use std::ops::Range;
use std::rc::Rc;

use headway_debox::Call;
use headway_files::{OpenFile, WINDOW_BYTES};

use super::{Means, Progress};

/// The end of the window that `start` lies in, or of the file piece.
pub fn end(start: u64, end: u64) -> u64 {
    ((start / WINDOW_BYTES + 1) * WINDOW_BYTES).min(end)
}

/// An error unless the file still has the size and time it was opened with.
pub fn compare(file: &OpenFile, means: &Means<'_>) -> Result<(), Progress> {
    match means.tracer.call(Call::Status, || file.unchanged()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Progress::Changed),
        Err(_) => Err(Progress::Unreadable),
    }
}

/// An error unless the window in which `range` begins is worth reading: its pages are there, or on
/// their way. Has the next window read in if that is missing. One question for both, once a turn,
/// because most files are there as a whole.
pub fn expect_cached(
    file: &Rc<OpenFile>,
    range: Range<u64>,
    means: &mut Means<'_>,
) -> Result<(), Progress> {
    let this = end(range.start, range.end);
    if is_proven(file, range.start..this, means) {
        return Ok(());
    }
    let next = end(this, range.end).max(this);
    if is_cached(file, range.start..next, means)? {
        return Ok(());
    }
    if next == this || !is_cached(file, range.start..this, means)? {
        return Err(cold(file, range.start, means));
    }
    if range.start.is_multiple_of(WINDOW_BYTES) {
        prefetch(file, this..range.end, means);
    }
    Ok(())
}

fn is_cached(
    file: &Rc<OpenFile>,
    range: Range<u64>,
    means: &mut Means<'_>,
) -> Result<bool, Progress> {
    let cached = means.tracer.call(Call::Residency, || {
        means
            .residency
            .cached(file, range.start, range.end - range.start)
    });
    note(file, range, cached, means)
}

/// An error unless `range`, which lies in one window, is in memory and up to date: what has been
/// counted may still be on its way, and only reading it, or asking for its last byte, shows that.
pub fn expect_resident(
    file: &Rc<OpenFile>,
    range: Range<u64>,
    means: &mut Means<'_>,
) -> Result<(), Progress> {
    let start = range.start;
    match is_resident(file, range, means)? {
        true => Ok(()),
        false => Err(cold(file, start, means)),
    }
}

/// An error unless the window that holds `offset` was used lately. Whoever has it read in notes
/// that down.
pub fn expect_recent(
    file: &Rc<OpenFile>,
    offset: u64,
    means: &mut Means<'_>,
) -> Result<(), Progress> {
    // What a helper has copied needs no guess.
    if file.is_memory() || means.recent.get(file, offset).is_some() {
        means.counters.recent_hits += 1;
        return Ok(());
    }
    means.counters.recent_misses += 1;
    Err(cold(file, offset, means))
}

/// Whether `range` is in memory and up to date, unless this turn has found out already.
pub fn is_resident(
    file: &Rc<OpenFile>,
    range: Range<u64>,
    means: &mut Means<'_>,
) -> Result<bool, Progress> {
    if is_proven(file, range.clone(), means) {
        return Ok(true);
    }
    let resident = means.tracer.call(Call::Residency, || {
        means
            .residency
            .resident(file, range.start, range.end - range.start)
    });
    note(file, range, resident, means)
}

fn is_proven(file: &Rc<OpenFile>, range: Range<u64>, means: &Means<'_>) -> bool {
    means.proven.as_ref().is_some_and(|(proven, found)| {
        Rc::ptr_eq(proven, file) && found.start <= range.start && range.end <= found.end
    })
}

/// Remembers for this turn what was found.
fn note(
    file: &Rc<OpenFile>,
    range: Range<u64>,
    found: Result<bool, Error>,
    means: &mut Means<'_>,
) -> Result<bool, Progress> {
    let found = found.map_err(|error| failed(&error, file, range.start, means))?;
    if found {
        means.counters.windows_resident += 1;
        means.proven = Some((file.clone(), range));
    }
    Ok(found)
}

/// Asks for what is owed from the next window on while the one before it leaves.
pub fn prefetch(file: &Rc<OpenFile>, owed: Range<u64>, means: &mut Means<'_>) {
    means.counters.windows_prefetched += 1;
    means.prefetch.push((file.clone(), owed));
}

/// The window that holds `offset` has to be read in.
pub fn cold(file: &Rc<OpenFile>, offset: u64, means: &mut Means<'_>) -> Progress {
    means.counters.windows_cold += 1;
    Progress::Cold(file.clone(), offset - offset % WINDOW_BYTES)
}

/// What an error of a probe or of a read means.
pub fn failed(error: &Error, file: &Rc<OpenFile>, offset: u64, means: &mut Means<'_>) -> Progress {
    if error.kind() != ErrorKind::Unsupported {
        return Progress::Unreadable;
    }
    means.counters.windows_cold += 1;
    Progress::Opaque(file.clone(), offset)
}
