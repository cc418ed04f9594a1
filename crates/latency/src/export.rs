//! A run second by second, for other programs: an HdrHistogram log, CSV or JSON lines.
//!
//! Responses belong to the second in which they ended, counted from the start of the measured part.
//! Those that ended after it are in the seconds behind it. The warm-up is left out. Rows come in
//! the order in which requests ended, so a second is written when the second after the next has
//! begun, and memory does not grow with the run.
//!
//! [`Seconds`] and [`Series`] do the same while a run goes on.

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
pub struct Second {
    /// Seconds from the start of the measured part.
    pub at: u64,
    /// Requests by how they ended. The index is [`Outcome::code`].
    pub outcomes: [u64; Outcome::ALL.len()],
    /// Body bytes received.
    pub bytes: u64,
    /// Response times.
    pub response: Histogram,
}

impl Second {
    fn take(&mut self, row: &Row) {
        self.outcomes[usize::from(row.error.code())] += 1;
        self.bytes = self.bytes.saturating_add(row.bytes);
        if row.error.has_latency() {
            self.response.record_ns(row.response_ns());
        }
    }

    fn complete(&self) -> u64 {
        self.outcomes[usize::from(Outcome::Ok.code())]
    }

    fn errors(&self) -> u64 {
        self.outcomes.iter().sum::<u64>() - self.complete()
    }

    /// Of the errors, those without a latency.
    fn untimed(&self) -> u64 {
        let all = Outcome::ALL.iter().zip(self.outcomes);
        let untimed = all.filter(|(outcome, _)| !outcome.has_latency());
        untimed.map(|(_, count)| count).sum()
    }
}

const SECOND_NS: u64 = 1_000_000_000;

/// The seconds of a run, made of rows in about the order in which the requests ended.
///
/// ```
/// use headway_latency::export::Seconds;
///
/// // The warm-up takes 1 s. After 3.5 s, the first two seconds have ended.
/// let mut seconds = Seconds::new(1_000_000_000);
/// seconds.fill(3_500_000_000);
/// assert_eq!(seconds.close(3_500_000_000).map(|second| second.at), Some(0));
/// assert_eq!(seconds.close(3_500_000_000).map(|second| second.at), Some(1));
/// assert!(seconds.close(3_500_000_000).is_none());
/// ```
#[derive(Clone, Debug)]
pub struct Seconds {
    start_ns: u64,
    open: VecDeque<Second>,
    /// The number of the second after the last one that has begun.
    next: u64,
}

impl Seconds {
    /// The measured part begins at this time of the run.
    pub fn new(start_ns: u64) -> Seconds {
        let mut seconds = Seconds {
            start_ns,
            open: VecDeque::new(),
            next: 0,
        };
        seconds.begin(0);
        seconds
    }

    /// Counts a request of the measured part that has an end. If its second is closed, it is counted in
    /// the first one that is not.
    pub fn take(&mut self, row: &Row) {
        if row.warmup || row.error == Outcome::Abandoned {
            return;
        }
        let first = self.next - self.open.len() as u64;
        let at = self.number(row.end_ns).max(first);
        self.begin(at);
        self.open[(at - first) as usize].take(row);
    }

    /// Begins the seconds before this time of the run, also those in which nothing ends.
    pub fn fill(&mut self, until_ns: u64) {
        if until_ns > self.start_ns {
            self.begin(self.number(until_ns - 1));
        }
    }

    /// Removes the oldest second, if it has ended at this time of the run.
    pub fn close(&mut self, now_ns: u64) -> Option<Second> {
        let at = self.open.front()?.at;
        let end_ns = self
            .start_ns
            .saturating_add((at + 1).saturating_mul(SECOND_NS));
        match end_ns <= now_ns {
            true => self.open.pop_front(),
            false => None,
        }
    }

    fn number(&self, ns: u64) -> u64 {
        ns.saturating_sub(self.start_ns) / SECOND_NS
    }

    /// Begins all seconds up to this one.
    fn begin(&mut self, at: u64) {
        while self.next <= at {
            self.open.push_back(Second {
                at: self.next,
                ..Second::default()
            });
            self.next += 1;
        }
    }
}

/// Writes seconds in a format.
#[derive(Debug)]
pub struct Series<W> {
    format: Format,
    out: W,
}

impl<W: Write> Series<W> {
    /// Writes what is before the first second. `epoch_ns` is its start, since 1970.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn begin(format: Format, epoch_ns: u64, mut out: W) -> io::Result<Series<W>> {
        match format {
            Format::HdrLog => hdr_log::head(&mut out, epoch_ns)?,
            Format::Csv => lines::head(&mut out)?,
            Format::JsonLines => {}
        }
        Ok(Series { format, out })
    }

    /// Writes the next second.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn write(&mut self, second: &Second) -> io::Result<()> {
        match self.format {
            Format::HdrLog => hdr_log::line(&mut self.out, second),
            Format::Csv => lines::csv(&mut self.out, second),
            Format::JsonLines => lines::json(&mut self.out, second),
        }
    }

    /// Passes on what is in buffers.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A row may come this much later than those that ended after it.
const LATE_NS: u64 = SECOND_NS;

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
    let mut series = Series::begin(format, epoch_ns, out)?;
    let mut seconds = Seconds::new(start_ns);
    for batch in run.rows()? {
        for row in &batch? {
            seconds.take(row);
            while let Some(second) = seconds.close(row.end_ns.saturating_sub(LATE_NS)) {
                series.write(&second)?;
            }
        }
    }
    if let Some(window) = load.measured {
        seconds.fill(window.end_ns);
    }
    while let Some(second) = seconds.close(u64::MAX) {
        series.write(&second)?;
    }
    Ok(())
}
