//! The directory of a study run: `measurements/KEY/` with what was measured, one result a study,
//! and a lock.
//!
//! A measurement is done when its `measurement.json` says so, which is written last and at once.
//! Anything else that is found under a key is what an interruption left, and is measured again. A
//! directory that holds something else is an error.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headway_os::replace::replace_file;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::build;
use super::plan::Plan;
use super::spec::Spec;

const MARK_FILE: &str = "studies.json";
const RECORD_FILE: &str = "measurement.json";

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why the call failed.
        source: io::Error,
    },
    /// The directory holds something else.
    #[error("{}: holds something else than measurements of studies; name a new directory", .0.display())]
    Foreign(PathBuf),
    /// Nothing is there.
    #[error("{}: no run of studies is here (it has no {MARK_FILE}); name the directory that `headway-lab study run -o` wrote", .0.display())]
    Absent(PathBuf),
    /// What is here was measured by another program.
    #[error(
        "{}: {there} measured here, and this is {here}: one table would hold figures of both; name a new directory, or go on all the same with \
         --other-build", path.display()
    )]
    OtherBuild {
        /// The directory.
        path: PathBuf,
        /// The binary that measured.
        there: String,
        /// The binary that is to measure.
        here: String,
    },
    /// Another process measures.
    #[error("{}: another `headway-lab study run` is at work here; wait for it", .0.display())]
    Busy(PathBuf),
}

/// A directory of measurements.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    _lock: Option<File>,
}

/// `studies.json`: what the directory is, and which studies were asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Mark {
    pub format: String,
    pub version: u32,
    pub studies: Vec<String>,
}

/// `measurement.json`: what was measured here, and how it ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub spec: Spec,
    /// Why there are no figures.
    pub failed: Option<String>,
    /// What was offered; absent for a closed loop. Of a search, the knee.
    pub rate_rps: Option<f64>,
    /// Version of the server.
    pub version: Option<String>,
    /// Parts of the environment that were missing.
    #[serde(default)]
    pub missing: Vec<String>,
    /// The build of headway that measured; absent in records of before it was noted.
    #[serde(default)]
    pub build: Option<String>,
}

impl Record {
    /// Of a measurement by this build; what came of it is to be filled in.
    pub fn of(spec: Spec) -> Record {
        Record {
            spec,
            failed: None,
            rate_rps: None,
            version: None,
            missing: Vec::new(),
            build: Some(build::id().to_owned()),
        }
    }
}

impl Store {
    /// Creates the directory or opens an existing one, and locks it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn create(path: &Path) -> Result<Store, StoreError> {
        fs::create_dir_all(path).map_err(io_at(path))?;
        let mut entries = fs::read_dir(path).map_err(io_at(path))?;
        if !path.join(MARK_FILE).exists() && entries.next().is_some() {
            return Err(StoreError::Foreign(path.to_owned()));
        }
        let lock = File::open(path).map_err(io_at(path))?;
        // Of a run that was just killed, a child between fork and exec may still have the lock.
        let locked = crate::processes::wait_until(Duration::from_secs(1), || {
            flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        });
        if !locked {
            return Err(StoreError::Busy(path.to_owned()));
        }
        let store = Store {
            path: path.to_owned(),
            _lock: Some(lock),
        };
        let mark = store.mark().unwrap_or_default();
        store.write_mark(&mark)?;
        Ok(store)
    }

    /// Opens one for reading.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn open(path: &Path) -> Result<Store, StoreError> {
        match path.join(MARK_FILE).exists() {
            true => Ok(Store {
                path: path.to_owned(),
                _lock: None,
            }),
            false => Err(StoreError::Absent(path.to_owned())),
        }
    }

    /// Fails on measurements of a plan by another build, if there is more of it to measure. What
    /// is done is shown all the same.
    ///
    /// # Errors
    /// [`StoreError::OtherBuild`].
    pub fn refuse_other_build(&self, plan: &Plan) -> Result<(), StoreError> {
        let here = build::id();
        let done = |key: String| self.record(&key).filter(|record| record.failed.is_none());
        let records: Vec<Option<Record>> = plan.specs().map(|spec| done(spec.key())).collect();
        if records.iter().all(Option::is_some) {
            return Ok(());
        }
        let other = records
            .into_iter()
            .flatten()
            .map(|record| record.build)
            .find(|build| build.as_deref() != Some(here));
        match other {
            None => Ok(()),
            Some(there) => Err(StoreError::OtherBuild {
                path: self.path.clone(),
                there: there.map_or_else(
                    || "a build of headway that was not noted".to_owned(),
                    |build| format!("headway {build}"),
                ),
                here: here.to_owned(),
            }),
        }
    }

    /// The directory of the store.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The result of a study: `NAME.json`.
    pub fn result_path(&self, study: &str) -> PathBuf {
        self.path.join(format!("{study}.json"))
    }

    /// Names of the studies whose results are here, in the order in which they were first asked
    /// for.
    pub fn studies(&self) -> Vec<String> {
        self.mark().unwrap_or_default().studies
    }

    /// Writes the result of a study and notes its name.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn write_result(&self, result: &headway_latency::StudyResult) -> Result<(), StoreError> {
        self.write(&self.result_path(&result.name), result)?;
        let mut mark = self.mark().unwrap_or_default();
        if !mark.studies.contains(&result.name) {
            mark.studies.push(result.name.clone());
        }
        self.write_mark(&mark)
    }

    /// Reads the results that are here.
    ///
    /// # Errors
    /// See [`StoreError`]; a file that is no result is an error of its own.
    pub fn results(&self) -> Result<Vec<headway_latency::StudyResult>, StoreError> {
        let read = |name: String| {
            let path = self.result_path(&name);
            let text = fs::read_to_string(&path).map_err(io_at(&path))?;
            headway_latency::StudyResult::from_json(&text).map_err(|error| StoreError::Io {
                path,
                source: io::Error::other(error.to_string()),
            })
        };
        self.studies().into_iter().map(read).collect()
    }

    fn mark(&self) -> Option<Mark> {
        let text = fs::read_to_string(self.path.join(MARK_FILE)).ok()?;
        serde_json::from_str(&text).ok()
    }

    fn write_mark(&self, mark: &Mark) -> Result<(), StoreError> {
        let mark = Mark {
            format: "headway-studies".to_owned(),
            version: 1,
            studies: mark.studies.clone(),
        };
        self.write(&self.path.join(MARK_FILE), &mark)
    }

    /// The directory of a measurement.
    pub(super) fn directory(&self, key: &str) -> PathBuf {
        self.path.join("measurements").join(key)
    }

    /// What is known of a measurement; `None` if nothing, or nothing whole.
    pub(super) fn record(&self, key: &str) -> Option<Record> {
        let text = fs::read_to_string(self.directory(key).join(RECORD_FILE)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Everything that has ended here, this way or that.
    pub(super) fn records(&self) -> Vec<Record> {
        let entries = fs::read_dir(self.path.join("measurements"))
            .into_iter()
            .flatten();
        let names = entries.flatten().map(|entry| entry.file_name());
        names
            .filter_map(|name| self.record(&name.to_string_lossy()))
            .collect()
    }

    /// Whether there are figures.
    pub(super) fn is_done(&self, key: &str) -> bool {
        self.record(key)
            .is_some_and(|record| record.failed.is_none())
    }

    /// Empties the place of a measurement for a new try.
    pub(super) fn clear(&self, key: &str) -> Result<PathBuf, StoreError> {
        let directory = self.directory(key);
        if directory.exists() {
            fs::remove_dir_all(&directory).map_err(io_at(&directory))?;
        }
        fs::create_dir_all(&directory).map_err(io_at(&directory))?;
        Ok(directory)
    }

    /// Records that a measurement has ended.
    pub(super) fn conclude(&self, record: &Record) -> Result<(), StoreError> {
        let directory = self.directory(&record.spec.key());
        fs::create_dir_all(&directory).map_err(io_at(&directory))?;
        self.write(&directory.join(RECORD_FILE), record)
    }

    /// A reader finds the old text or the new one.
    fn write(&self, path: &Path, value: &impl Serialize) -> Result<(), StoreError> {
        let text = serde_json::to_string_pretty(value).map_err(io::Error::other);
        text.and_then(|text| replace_file(path, (text + "\n").as_bytes()))
            .map_err(io_at(path))
    }
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { path, source }
}
