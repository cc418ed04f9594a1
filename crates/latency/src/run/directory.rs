//! Writing and opening a run directory.

use super::description::{FORMAT_NAME, FORMAT_VERSION, Kind, RunDescription};
use super::spool::{self, RowBatches};
use crate::analysis::{Analysis, Analyzer};
use crate::cells::Cells;
use crate::row::{Outcome, Row};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const RUN_JSON: &str = "run.json";
const SPOOL: &str = "requests.spool";
const SERVER_JSON: &str = "server.json";

/// Why a run could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The directory holds something that is not a run.
    #[error("{}: not empty and not a run directory; nothing was changed, name another directory", .0.display())]
    Foreign(PathBuf),
    /// The directory holds a finished run.
    #[error("{}: holds a finished run; nothing was changed, name another directory or remove it", .0.display())]
    Finished(PathBuf),
    /// A system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Why a run could not be read.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no `run.json`.
    #[error("{}: no run directory (it has no run.json)", .0.display())]
    NotARun(PathBuf),
    /// A newer headway wrote it.
    #[error("{}: format version {found}, this headway reads up to {FORMAT_VERSION}; use a newer headway", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
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
        /// Why.
        source: io::Error,
    },
}

/// Writes a run as it happens.
pub struct RunWriter {
    directory: PathBuf,
    spool: File,
    buffer: Vec<u8>,
}

impl RunWriter {
    /// Makes the directory, writes `run.json` (incomplete) and begins the spool.
    ///
    /// # Errors
    /// [`WriteError::Foreign`] for a directory that is not empty and not a run, [`WriteError::Finished`] for one that holds
    /// a finished run; a run that was cut off is replaced.
    pub fn create(path: &Path, description: &RunDescription) -> Result<RunWriter, WriteError> {
        let io = |source| WriteError::Io {
            path: path.into(),
            source,
        };
        fs::create_dir_all(path).map_err(io)?;
        if path.join(RUN_JSON).exists() {
            if Run::open(path).is_ok_and(|run| run.description.complete) {
                return Err(WriteError::Finished(path.into()));
            }
        } else if fs::read_dir(path).map_err(io)?.next().is_some() {
            return Err(WriteError::Foreign(path.into()));
        }
        write_description(path, description, false)?;
        let mut spool = File::create(path.join(SPOOL)).map_err(io)?;
        spool.write_all(&spool::head()).map_err(io)?;
        Ok(RunWriter {
            directory: path.into(),
            spool,
            buffer: Vec::new(),
        })
    }

    /// Appends rows. They are in the file, not only in this process, when it returns.
    ///
    /// # Errors
    /// [`WriteError::Io`], for example when the disk is full.
    pub fn append(&mut self, rows: &[Row]) -> Result<(), WriteError> {
        self.buffer.resize(rows.len() * Row::BYTES, 0);
        let (records, _) = self.buffer.as_chunks_mut::<{ Row::BYTES }>();
        for (row, record) in rows.iter().zip(records) {
            row.encode(record);
        }
        let written = self.spool.write_all(&self.buffer);
        written.map_err(|source| WriteError::Io {
            path: self.directory.join(SPOOL),
            source,
        })
    }

    /// Ends the run with its final description.
    ///
    /// # Errors
    /// [`WriteError::Io`]; the spool stays, so nothing is lost.
    pub fn finish(self, description: &RunDescription) -> Result<(), WriteError> {
        self.spool.sync_all().map_err(|source| WriteError::Io {
            path: self.directory.join(SPOOL),
            source,
        })?;
        write_description(&self.directory, description, true)
    }
}

/// Writes `run.json` whole or not at all: a temporary name, fsync, rename.
pub fn write_description(
    directory: &Path,
    description: &RunDescription,
    complete: bool,
) -> Result<(), WriteError> {
    let path = directory.join(RUN_JSON);
    let described = RunDescription {
        complete,
        ..description.clone()
    };
    let mut text =
        serde_json::to_vec_pretty(&described).expect("a description has no map with other keys");
    text.push(b'\n');
    let temporary = directory.join("run.json.part");
    let write = || {
        fs::create_dir_all(directory)?;
        let mut file = File::create(&temporary)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&temporary, &path)
    };
    write().map_err(|source| WriteError::Io { path, source })
}

/// A run directory, opened for reading.
#[derive(Clone, Debug)]
pub struct Run {
    path: PathBuf,
    description: RunDescription,
}

impl Run {
    /// Opens a run directory and reads its description.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Run, OpenError> {
        let directory = path.as_ref().to_owned();
        let path = directory.join(RUN_JSON);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(OpenError::NotARun(directory));
            }
            Err(source) => return Err(OpenError::Io { path, source }),
            Ok(text) => text,
        };
        let description: RunDescription =
            serde_json::from_slice(&text).map_err(|error| OpenError::Damaged {
                path: path.clone(),
                why: error.to_string(),
            })?;
        if description.format.name != FORMAT_NAME {
            let why = format!("its format is {:?}, not a run", description.format.name);
            return Err(OpenError::Damaged { path, why });
        }
        if description.format.version > FORMAT_VERSION {
            let found = description.format.version;
            return Err(OpenError::Newer { path, found });
        }
        Ok(Run {
            path: directory,
            description,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The content of `run.json`.
    pub fn description(&self) -> &RunDescription {
        &self.description
    }

    /// The rows, a batch at a time.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn rows(
        &self,
    ) -> Result<impl Iterator<Item = Result<Vec<Row>, OpenError>> + use<>, OpenError> {
        let path = self.path.join(SPOOL);
        let damaged = move |error: spool::SpoolError| OpenError::Damaged {
            path: path.clone(),
            why: error.to_string(),
        };
        let batches = RowBatches::open(&self.path.join(SPOOL)).map_err(&damaged)?;
        Ok(batches.map(move |batch| batch.map_err(&damaged)))
    }

    /// The figures of the run, from its rows.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn analysis(&self) -> Result<Analysis, OpenError> {
        let mut analyzer = Analyzer::new(&self.description);
        for batch in self.rows()? {
            batch?.iter().for_each(|row| analyzer.push(row));
        }
        Ok(analyzer.finish())
    }

    /// The joint histogram of size and latency.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn cells(&self) -> Result<Cells, OpenError> {
        let mut cells = Cells::new();
        for batch in self.rows()? {
            for row in batch?
                .iter()
                .filter(|row| !row.warmup && row.error != Outcome::Abandoned)
            {
                cells.record(row.size_bytes, row.response_ns(), row.error == Outcome::Ok);
            }
        }
        Ok(cells)
    }

    /// The server's own counters (`server.json`), if they were kept.
    pub fn server(&self) -> Option<serde_json::Value> {
        let text = fs::read(self.path.join(SERVER_JSON)).ok()?;
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
        let points = profile
            .into_iter()
            .flat_map(|profile| &profile.points)
            .filter(|point| point.done);
        points
            .map(|point| Run::open(self.path.join(&point.directory)))
            .collect()
    }
}
