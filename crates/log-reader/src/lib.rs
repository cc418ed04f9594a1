//! Access logs of nginx, Apache, Caddy, HAProxy and Envoy as rows with a latency, for the same
//! analysis as a measurement has.
//!
//! - `input` opens a file, also one compressed by gzip or Zstandard, and reads lines of limited
//!   length. Memory does not grow with the file.
//! - `template` takes a line apart by a format of nginx or Apache, `json` a line of JSON.
//! - `time` reads times and lengths of time.
//!
//! A log has what the server measured: its clock starts when the server has read a request, so
//! queues in front of it are not in any figure (`headway explain` sees those). The crate refuses to
//! guess a latency: a line without one is counted, and is in no other figure.
//!
//! Sources: ngx_http_log_module and mod_log_config of the servers' documentation; section 8.2.3 of
//! the HAProxy configuration manual; "Access logging" of Envoy.
#![forbid(unsafe_code)]

mod format;
mod input;
mod json;
mod template;
mod time;

pub use format::{Format, FormatError};

use std::path::Path;

use headway_latency::{Outcome, Row};

use crate::input::Lines;

/// What a line says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Nanoseconds since 1970.
    pub time_ns: Option<u64>,
    /// Whether that is when the request began; otherwise when it ended.
    pub is_start: bool,
    pub duration_ns: Option<u64>,
    pub status: Option<u16>,
    pub bytes: Option<u64>,
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The format that was used.
    pub format: String,
    /// Requests with a time and a latency.
    pub requests: u64,
    /// Lines that are no request of this format.
    pub unreadable: u64,
    /// Requests without a latency.
    pub untimed: u64,
    /// The time of the first request, nanoseconds since 1970. Rows count from there.
    pub epoch_unix_ns: u64,
}

/// Why a log cannot be analysed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// It cannot be read.
    #[error("{path}: {error}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// No format fits.
    #[error(
        "{path}: no known format with a time and a latency fits its first {lines} lines. The time that a request took \
         must be in the log: `$request_time` of nginx, `%D` of Apache; Caddy, HAProxy and Envoy write it. Name another \
         format with --format"
    )]
    NoFormat {
        /// The file.
        path: String,
        /// How many lines were tried.
        lines: usize,
    },
    /// The format that was named fits no line.
    #[error("{path}: {lines} lines, and none has a time and a latency in the format {format}")]
    NoRequest {
        /// The file.
        path: String,
        /// Lines of the file.
        lines: u64,
        /// The format.
        format: String,
    },
}

/// Lines by which the format is chosen.
const TRIED_LINES: usize = 200;

/// Reads a log, `-` for standard input, and gives each request to `take` in the order of the lines.
/// Without a format, the first lines decide.
///
/// # Errors
///
/// The file cannot be read, or no line has a time and a latency.
pub fn read(
    path: &Path,
    format: Option<&Format>,
    mut take: impl FnMut(&Row),
) -> Result<Summary, LogError> {
    let name = path.display().to_string();
    let failed = |error| LogError::Read {
        path: name.clone(),
        error,
    };
    let mut lines = Lines::open(path).map_err(failed)?;
    let mut first = Vec::new();
    while first.len() < TRIED_LINES
        && let Some(line) = lines.next().map_err(failed)?
    {
        first.push(line.to_vec());
    }
    let format = match format {
        Some(format) => format.clone(),
        None => Format::of(&first).ok_or_else(|| LogError::NoFormat {
            path: name.clone(),
            lines: first.len(),
        })?,
    };
    let mut rows = Rows {
        format,
        summary: Summary::default(),
        epoch_ns: None,
        ordinal: 0,
    };
    first.iter().for_each(|line| rows.line(line, &mut take));
    drop(first);
    while let Some(line) = lines.next().map_err(failed)? {
        rows.line(line, &mut take);
    }
    let mut summary = rows.summary;
    summary.unreadable += lines.too_long();
    summary.format = rows.format.to_string();
    summary.epoch_unix_ns = rows.epoch_ns.unwrap_or(0);
    if summary.requests == 0 {
        return Err(LogError::NoRequest {
            path: name,
            lines: summary.unreadable + summary.untimed,
            format: summary.format,
        });
    }
    Ok(summary)
}

struct Rows {
    format: Format,
    summary: Summary,
    epoch_ns: Option<u64>,
    ordinal: u32,
}

impl Rows {
    fn line(&mut self, line: &[u8], take: &mut impl FnMut(&Row)) {
        if line.is_empty() {
            return;
        }
        let Some(entry) = self.format.entry(line) else {
            self.summary.unreadable += 1;
            return;
        };
        let (Some(time_ns), Some(duration_ns)) = (entry.time_ns, entry.duration_ns) else {
            self.summary.untimed += 1;
            return;
        };
        let start_ns = match entry.is_start {
            true => time_ns,
            false => time_ns.saturating_sub(duration_ns),
        };
        let epoch_ns = *self.epoch_ns.get_or_insert(start_ns);
        // A line out of order keeps its latency.
        let start_ns = start_ns.saturating_sub(epoch_ns);
        let (status, bytes) = (entry.status.unwrap_or(0), entry.bytes.unwrap_or(0));
        self.summary.requests += 1;
        self.ordinal = self.ordinal.wrapping_add(1);
        take(&Row {
            intended_ns: start_ns,
            start_ns,
            first_byte_ns: start_ns.saturating_add(duration_ns),
            end_ns: start_ns.saturating_add(duration_ns),
            size_bytes: bytes,
            bytes,
            status,
            error: outcome(status),
            connection: 0,
            ordinal: self.ordinal,
            class: Row::NO_CLASS,
            target: 0,
            warmup: false,
            handshake_ns: 0,
        });
    }
}

/// An answer such as 404 is good: the server did what was asked.
fn outcome(status: u16) -> Outcome {
    match status {
        // nginx: the client closed the connection.
        499 => Outcome::ClosedEarly,
        500.. => Outcome::Status,
        _ => Outcome::Ok,
    }
}

#[cfg(test)]
mod tests;
