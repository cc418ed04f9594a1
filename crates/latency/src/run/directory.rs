//! Reading a run directory, finished or not.
//!
//! A finished run has its rows in `requests.parquet`, an incomplete one in `requests.spool`.
//! Nothing is repaired and nothing is written here. What is missing, damaged, foreign or too new is
//! an error with a name.

use super::cells_file;
use super::description::{FORMAT_NAME, FORMAT_VERSION, Format, Kind, RunDescription};
use super::regular;
use super::requests::RequestsReader;
use super::spool::{self, SpoolError, SpoolReader};
use crate::analysis::{Analysis, Analyzer};
use crate::cells::Cells;
use crate::row::{Outcome, Row};
use serde::Deserialize;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

pub(super) const RUN_JSON: &str = "run.json";
pub(super) const REQUESTS: &str = "requests.parquet";
pub(super) const SPOOL: &str = "requests.spool";
pub(super) const CELLS: &str = "cells.parquet";
pub(super) const SERVER_JSON: &str = "server.json";

/// Why a run could not be read.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory does not exist.
    #[error("{}: no such directory; name the one that `headway load -o` or `headway profile -o` wrote", .0.display())]
    Absent(PathBuf),
    /// The directory has no `run.json`.
    #[error("{}: not a run directory (no run.json in it); name the one that `headway load -o` or `headway profile -o` wrote", .0.display())]
    NotARun(PathBuf),
    /// A newer headway wrote it.
    #[error("{}: format version {found}, this headway reads up to {FORMAT_VERSION}; use a newer headway", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: u32,
    },
    /// A file is not what its name says, or it is damaged.
    #[error("{}: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// A system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why the call failed.
        source: io::Error,
    },
}

/// A run directory, opened for reading.
///
/// ```
/// use headway_latency::{Outcome, Row, Run, RunDescription, RunWriter};
///
/// # let parent = tempfile::tempdir()?;
/// # let path = parent.path().join("nginx");
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
///
/// let run = Run::open(&path)?;
/// let analysis = run.analysis()?;
/// assert_eq!((analysis.counts.requests, analysis.counts.errors), (1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Run {
    path: PathBuf,
    description: RunDescription,
}

/// Rows a batch at a time, whichever file they are in.
enum Batches {
    Parquet(Box<RequestsReader>),
    Spool(SpoolReader, PathBuf),
    None,
}

impl Iterator for Batches {
    type Item = Result<Vec<Row>, OpenError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Batches::Parquet(reader) => reader.next(),
            Batches::Spool(reader, path) => reader
                .next()
                .map(|batch| batch.map_err(|error| spool_error(path, error))),
            Batches::None => None,
        }
    }
}

impl Run {
    /// Opens a run directory and reads its description.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Run, OpenError> {
        let directory = path.as_ref().to_owned();
        let path = directory.join(RUN_JSON);
        let text = match regular::read(&path) {
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Err(if directory.exists() {
                    OpenError::NotARun(directory)
                } else {
                    OpenError::Absent(directory)
                });
            }
            Err(source) => return Err(OpenError::Io { path, source }),
            Ok(text) => text,
        };
        let description = describe(&path, &text)?;
        Ok(Run {
            path: directory,
            description,
        })
    }

    /// The directory of the run.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The content of `run.json`.
    pub fn description(&self) -> &RunDescription {
        &self.description
    }

    /// Whether a process is writing the run at this moment.
    pub fn is_being_written(&self) -> bool {
        !self.description.complete && spool::is_being_written(&self.path.join(SPOOL))
    }

    /// The rows, a batch at a time, in the order in which requests ended; none for a profile.
    ///
    /// # Errors
    /// See [`OpenError`]; also from the iterator, when damage is met on the way.
    pub fn rows(
        &self,
    ) -> Result<impl Iterator<Item = Result<Vec<Row>, OpenError>> + use<>, OpenError> {
        if self.description.kind != Kind::Load {
            return Ok(Batches::None);
        }
        let spool = self.path.join(SPOOL);
        if !self.description.complete && spool.exists() {
            let reader = SpoolReader::open(&spool).map_err(|error| spool_error(&spool, error))?;
            return Ok(Batches::Spool(reader, spool));
        }
        let path = self.path.join(REQUESTS);
        if !path.exists() {
            let why =
                "missing; a run has its rows there, restore it from a copy or measure again".into();
            return Err(OpenError::Damaged { path, why });
        }
        Ok(Batches::Parquet(Box::new(RequestsReader::open(&path)?)))
    }

    /// The figures of the run, from its rows.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn analysis(&self) -> Result<Analysis, OpenError> {
        self.analyze(Analyzer::new(&self.description))
    }

    /// The figures of the run from an analyzer that was set up by the caller, for example with
    /// deadlines.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn analyze(&self, mut analyzer: Analyzer) -> Result<Analysis, OpenError> {
        for batch in self.rows()? {
            batch?.iter().for_each(|row| analyzer.push(row));
        }
        let analysis = analyzer.finish();
        self.refuse_rows_of_another_run(&analysis)?;
        Ok(analysis)
    }

    /// A whole file of headway's may still be that of another run: its figures would stand under
    /// this run's name.
    fn refuse_rows_of_another_run(&self, found: &Analysis) -> Result<(), OpenError> {
        let noted = self.description.summary.as_ref();
        let Some(noted) = noted.filter(|_| self.description.complete) else {
            return Ok(());
        };
        let (requests, errors) = (found.counts.requests, found.counts.errors);
        if (noted.requests, noted.errors) == (requests, errors) {
            return Ok(());
        }
        Err(OpenError::Damaged {
            path: self.path.join(REQUESTS),
            why: format!(
                "holds {requests} requests with {errors} errors, and {RUN_JSON} speaks of {} with {}: \
                 is it of another run? put the file of this run back",
                noted.requests, noted.errors
            ),
        })
    }

    /// The joint histogram of size and latency: `cells.parquet`, or counted from the rows when it
    /// is not there.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn cells(&self) -> Result<Cells, OpenError> {
        let path = self.path.join(CELLS);
        if self.description.complete && path.exists() {
            return cells_file::read(&path);
        }
        let mut cells = Cells::new();
        for batch in self.rows()? {
            for row in batch?
                .iter()
                .filter(|row| !row.warmup && row.error.has_latency())
            {
                cells.record(row.size_bytes, row.response_ns(), row.error == Outcome::Ok);
            }
        }
        Ok(cells)
    }

    /// The server's own counters (`server.json`), if they were kept and are JSON.
    pub fn server(&self) -> Option<serde_json::Value> {
        let text = regular::read(&self.path.join(SERVER_JSON)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// The finished measurements of a profile, in its order; empty for a single run.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn points(&self) -> Result<Vec<Run>, OpenError> {
        let profile = self
            .description
            .profile
            .as_ref()
            .filter(|_| self.description.kind == Kind::Profile);
        let points = profile.into_iter().flat_map(|profile| &profile.points);
        points
            .filter(|point| point.done)
            .map(|point| Run::open(self.path.join(&point.directory)))
            .collect()
    }
}

/// Reads the format first, because the fields of a newer version may not fit the ones known here.
fn describe(path: &Path, text: &[u8]) -> Result<RunDescription, OpenError> {
    #[derive(Deserialize)]
    struct Named {
        format: Format,
    }
    let damaged = |why: String| OpenError::Damaged {
        path: path.into(),
        why,
    };
    let named: Named = serde_json::from_slice(text).map_err(|error| {
        damaged(format!(
            "not the description of a run ({error}); restore it from a copy"
        ))
    })?;
    if named.format.name != FORMAT_NAME {
        return Err(damaged(format!(
            "its format is {:?}, expected {FORMAT_NAME:?}",
            named.format.name
        )));
    }
    if named.format.version > FORMAT_VERSION {
        return Err(OpenError::Newer {
            path: path.into(),
            found: named.format.version,
        });
    }
    serde_json::from_slice(text)
        .map_err(|error| damaged(format!("a field has a value it may not have: {error}")))
}

fn spool_error(path: &Path, error: SpoolError) -> OpenError {
    match error {
        SpoolError::Io(source) => OpenError::Io {
            path: path.into(),
            source,
        },
        other => OpenError::Damaged {
            path: path.into(),
            why: other.to_string(),
        },
    }
}
