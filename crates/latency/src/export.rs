//! A run second by second, for other programs: an HdrHistogram log, CSV or JSON lines.
//!
//! Responses belong to the second in which they ended, counted from the start of the measured part.
//! Those that ended after it are in the seconds behind it. The warm-up is left out. Rows come in
//! the order in which requests ended, so a second is written when the second after the next has
//! begun, and memory does not grow with the run.

mod hdr_log;
mod lines;

use crate::histogram::Histogram;
use crate::row::{Outcome, Row};
use crate::run::{OpenError, Run};
use std::collections::VecDeque;
use std::io::{self, Write};

/// What the seconds of a run are written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The log of HdrHistogram, version 1.3, with histograms in the encoding V2, in nanoseconds.
    HdrLog,
    /// Comma-separated values with a line of names.
    Csv,
    /// A JSON object per line.
    JsonLines,
}

/// Why a run could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The run cannot be read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What ended in one second.
#[derive(Clone, Debug, Default)]
struct Second {
    /// Seconds from the start of the measured part.
    at: u64,
    complete: u64,
    errors: u64,
    /// Of the errors, those without a latency.
    untimed: u64,
    bytes: u64,
    response: Histogram,
}

impl Second {
    fn take(&mut self, row: &Row) {
        let complete = row.error == Outcome::Ok;
        self.complete += u64::from(complete);
        self.errors += u64::from(!complete);
        self.bytes = self.bytes.saturating_add(row.bytes);
        match row.error.has_latency() {
            true => self.response.record_ns(row.response_ns()),
            false => self.untimed += 1,
        }
    }
}

/// Seconds that are kept before they are written: a row may come a little late.
const OPEN_SECONDS: usize = 2;

/// Writes the seconds of a run, empty ones included.
///
/// ```
/// use headway_latency::{Outcome, Row, Run, RunDescription, RunWriter};
/// use headway_latency::export::{Format, export};
///
/// # let parent = tempfile::tempdir()?;
/// # let path = parent.path().join("run");
/// # let row = Row {
/// #     intended_ns: 0, start_ns: 0, first_byte_ns: 900_000, end_ns: 1_000_000,
/// #     size_bytes: 512, bytes: 512, status: 200, error: Outcome::Ok,
/// #     connection: 0, ordinal: 0, class: Row::NO_CLASS, target: 0, warmup: false,
/// #     handshake_ns: 0,
/// # };
/// let description = RunDescription::default();
/// let mut writer = RunWriter::create(&path, &description)?;
/// writer.append(&[row])?;
/// writer.finish(&description)?;
/// let mut csv = Vec::new();
/// export(&Run::open(&path)?, Format::Csv, &mut csv)?;
/// assert!(String::from_utf8(csv)?.contains("\n0,1,0,0,512,1000.0,"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`ExportError`] when the run cannot be read, or the output cannot be written.
pub fn export(run: &Run, format: Format, out: &mut dyn Write) -> Result<(), ExportError> {
    let load = &run.description().load;
    let warmup_ns = (load.warmup_s.max(0.0) * 1e9) as u64;
    let start_ns = load.measured.map_or(warmup_ns, |window| window.start_ns);
    let epoch_ns = run.description().epoch_unix_ns.saturating_add(start_ns);
    match format {
        Format::HdrLog => hdr_log::head(out, epoch_ns)?,
        Format::Csv => lines::head(out)?,
        Format::JsonLines => {}
    }
    let mut write = |second: &Second| match format {
        Format::HdrLog => hdr_log::line(out, second),
        Format::Csv => lines::csv(out, second),
        Format::JsonLines => lines::json(out, second),
    };
    let mut open = VecDeque::from([Second::default()]);
    for batch in run.rows()? {
        for row in batch?.iter().filter(|row| is_response(row)) {
            let at = row.end_ns.saturating_sub(start_ns) / 1_000_000_000;
            while let Some(last) = open.back()
                && last.at < at
            {
                let at = last.at + 1;
                open.push_back(Second {
                    at,
                    ..Second::default()
                });
                if open.len() > OPEN_SECONDS
                    && let Some(first) = open.pop_front()
                {
                    write(&first)?;
                }
            }
            let first = open.front().map_or(0, |first| first.at);
            let index = usize::try_from(at.saturating_sub(first)).unwrap_or(0);
            open[index].take(row);
        }
    }
    open.iter().try_for_each(&mut write)?;
    Ok(())
}

/// Whether a row is a request of the measured part that has an end.
fn is_response(row: &Row) -> bool {
    !row.warmup && row.error != Outcome::Abandoned
}
