//! Writing a run directory: what is there at each moment, so that a kill never leaves a lie.
//!
//! At the start `run.json` says `complete: false` and the spool has its header. Rows go to the
//! spool. At the end the Parquet files are written under temporary names and renamed when they are
//! on disk; then `run.json` is replaced by one that says `complete: true`; then the spool is
//! removed. A reader in between finds an incomplete run with its spool.

use super::cells_file;
use super::description::{Kind, RunDescription, Summary};
use super::directory::{CELLS, OpenError, REQUESTS, RUN_JSON, Run, SERVER_JSON, SPOOL};
use super::requests::RequestsWriter;
use super::spool::{Spool, SpoolError, SpoolReader};
use crate::analysis::{Analysis, Analyzer};
use crate::row::Row;
use parquet::errors::ParquetError;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Why a run could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The directory holds something other than a run.
    #[error("{}: not empty and not a run directory; nothing was changed, name another directory", .0.display())]
    Foreign(PathBuf),
    /// Something else than a directory has the name.
    #[error("{}: is there and no directory; nothing was changed, name another one", .0.display())]
    NoDirectory(PathBuf),
    /// The directory holds a finished run.
    #[error("{}: holds a finished run; nothing was changed, name another directory or remove it", .0.display())]
    Finished(PathBuf),
    /// The directory holds a run of another kind.
    #[error("{}: holds a profile or a point of one; nothing was changed, name another directory", .0.display())]
    OtherKind(PathBuf),
    /// The directory holds a `run.json` that this version cannot read.
    #[error("will not replace what cannot be read: {0}")]
    Unreadable(#[from] OpenError),
    /// Another process writes there.
    #[error("{}: another process is writing this run; wait for it or name another directory", .0.display())]
    Busy(PathBuf),
    /// A system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why the call failed.
        source: io::Error,
    },
    /// A Parquet file could not be written; the spool is still there and the run can be analysed.
    #[error("{}: {why}; the rows are kept in requests.spool", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// Why the file cannot be written.
        why: String,
    },
}

/// Writes a run as it happens. Dropped without [`RunWriter::finish`] it leaves an incomplete,
/// readable run.
///
/// ```
/// use headway_latency::{Run, RunDescription, RunWriter};
///
/// # let directory = tempfile::tempdir()?;
/// # let rows = [];
/// let path = directory.path().join("run");
/// let description = RunDescription { label: Some("nginx".into()), ..RunDescription::default() };
/// let mut writer = RunWriter::create(&path, &description)?;
/// writer.append(&rows)?;
/// writer.finish(&description)?;
/// assert!(Run::open(&path)?.description().complete);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RunWriter {
    directory: PathBuf,
    spool: Spool,
}

impl RunWriter {
    /// Creates the directory, writes `run.json` (incomplete) and begins the spool. An incomplete
    /// run that is there is replaced.
    ///
    /// # Errors
    /// [`WriteError::Foreign`] for a directory that is neither empty nor a run,
    /// [`WriteError::Finished`] and [`WriteError::OtherKind`] for one whose run must not be lost,
    /// [`WriteError::Busy`] while another process writes there.
    pub fn create(path: &Path, description: &RunDescription) -> Result<RunWriter, WriteError> {
        if path.metadata().is_ok_and(|found| !found.is_dir()) {
            return Err(WriteError::NoDirectory(path.into()));
        }
        fs::create_dir_all(path).map_err(|source| io_error(path, source))?;
        refuse_what_must_not_be_lost(path, description.kind)?;
        let spool_path = path.join(SPOOL);
        let spool = Spool::create(&spool_path).map_err(|source| match source.kind() {
            ErrorKind::WouldBlock => WriteError::Busy(path.into()),
            _ => io_error(&spool_path, source),
        })?;
        write_description(path, description, false)?;
        Ok(RunWriter {
            directory: path.into(),
            spool,
        })
    }

    /// Appends rows, in the order in which requests ended. They are encoded here and written by a
    /// thread, so this does not wait for the disk unless the thread is far behind (256 calls).
    ///
    /// # Errors
    /// [`WriteError::Io`], for example when the disk is full. What was written before is kept.
    pub fn append(&mut self, rows: &[Row]) -> Result<(), WriteError> {
        if rows.is_empty() {
            return Ok(());
        }
        let path = self.directory.join(SPOOL);
        self.spool
            .append(rows)
            .map_err(|source| WriteError::Io { path, source })
    }

    /// Keeps the server's own counters as `server.json`.
    ///
    /// # Errors
    /// [`WriteError::Io`].
    pub fn write_server(&self, counters: &serde_json::Value) -> Result<(), WriteError> {
        write_json(&self.directory, SERVER_JSON, counters)
    }

    /// Ends the run: makes the Parquet files, completes `run.json` with this description, removes
    /// the spool.
    ///
    /// A description without a summary gets one. Returns the analysis that was made on the way.
    ///
    /// # Errors
    /// [`WriteError::Io`], [`WriteError::Parquet`]; the spool stays, so that nothing is lost.
    pub fn finish(self, description: &RunDescription) -> Result<Analysis, WriteError> {
        let spool = self.directory.join(SPOOL);
        self.spool
            .finish()
            .map_err(|source| io_error(&spool, source))?;
        let mut analyzer = convert(&self.directory, description)?;
        // Sorts the cells, which the file needs as well.
        let analysis = analyzer.finish();
        let cells = self.directory.join(CELLS);
        cells_file::write(&cells, analyzer.cells())
            .map_err(|error| parquet_error(&cells, &error))?;
        let mut described = description.clone();
        described.summary.get_or_insert_with(|| summary(&analysis));
        write_description(&self.directory, &described, true)?;
        fs::remove_file(&spool).map_err(|source| io_error(&spool, source))?;
        Ok(analysis)
    }
}

/// Spool in, `requests.parquet` out, every row seen by an analyzer on the way.
fn convert(directory: &Path, description: &RunDescription) -> Result<Analyzer, WriteError> {
    let (spool, requests) = (directory.join(SPOOL), directory.join(REQUESTS));
    let failed = |error: &ParquetError| parquet_error(&requests, error);
    let unread = |error: SpoolError| io_error(&spool, io::Error::other(error));
    let mut analyzer = Analyzer::new(description);
    let mut writer = RequestsWriter::create(&requests).map_err(|error| failed(&error))?;
    for batch in SpoolReader::open(&spool).map_err(unread)? {
        let rows = batch.map_err(unread)?;
        rows.iter().for_each(|row| analyzer.push(row));
        writer.append(&rows).map_err(|error| failed(&error))?;
    }
    writer.finish().map_err(|error| failed(&error))?;
    Ok(analyzer)
}

fn refuse_what_must_not_be_lost(path: &Path, kind: Kind) -> Result<(), WriteError> {
    if !path.join(RUN_JSON).exists() {
        // A run that was killed before its first `run.json` leaves a spool only.
        let entries = fs::read_dir(path).map_err(|source| io_error(path, source))?;
        let ours = |name: &std::ffi::OsStr| name == SPOOL || name == "run.json.part";
        let foreign = entries.flatten().any(|entry| !ours(&entry.file_name()));
        return if foreign {
            Err(WriteError::Foreign(path.into()))
        } else {
            Ok(())
        };
    }
    let run = Run::open(path)?;
    match run.description() {
        found if found.kind != kind => Err(WriteError::OtherKind(path.into())),
        found if found.complete => Err(WriteError::Finished(path.into())),
        _ => Ok(()),
    }
}

/// Writes `run.json` whole or not at all, and creates the directory if needed. For a profile, whose
/// rows are in its points.
///
/// ```
/// use headway_latency::run::{Kind, write_description};
/// use headway_latency::{Run, RunDescription};
///
/// let parent = tempfile::tempdir()?;
/// let directory = parent.path().join("profile");
/// let description = RunDescription { kind: Kind::Profile, ..RunDescription::default() };
/// write_description(&directory, &description, true)?;
/// assert!(Run::open(&directory)?.description().complete);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`WriteError::Io`].
pub fn write_description(
    directory: &Path,
    description: &RunDescription,
    complete: bool,
) -> Result<(), WriteError> {
    fs::create_dir_all(directory).map_err(|source| io_error(directory, source))?;
    let described = RunDescription {
        complete,
        ..description.clone()
    };
    write_json(directory, RUN_JSON, &described)
}

/// A temporary name, fsync, rename.
fn write_json(
    directory: &Path,
    name: &str,
    value: &impl serde::Serialize,
) -> Result<(), WriteError> {
    let path = directory.join(name);
    let temporary = directory.join(format!("{name}.part"));
    let write = || {
        let mut text = serde_json::to_vec_pretty(value)?;
        text.push(b'\n');
        // What a killed run has left, or a link which must not be followed.
        let _ = fs::remove_file(&temporary);
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .open(&temporary)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&temporary, &path)
    };
    write().map_err(|source| WriteError::Io {
        path: path.clone(),
        source,
    })
}

/// The headline figures of an analysis.
pub fn summary(analysis: &Analysis) -> Summary {
    let response = analysis.response.as_ref();
    Summary {
        requests: analysis.counts.requests,
        errors: analysis.counts.errors,
        duration_s: analysis.duration_s,
        rate_rps: analysis.achieved_rps,
        throughput_bytes_per_s: analysis.throughput_bytes_per_s,
        mean_us: response.map(|response| response.mean_us),
        p50_us: response.map(|response| response.p50_us),
        p95_us: response.map(|response| response.p95_us),
        p99_us: response.map(|response| response.p99_us),
    }
}

fn io_error(path: &Path, source: io::Error) -> WriteError {
    WriteError::Io {
        path: path.into(),
        source,
    }
}

fn parquet_error(path: &Path, error: &ParquetError) -> WriteError {
    WriteError::Parquet {
        path: path.into(),
        why: error.to_string(),
    }
}
