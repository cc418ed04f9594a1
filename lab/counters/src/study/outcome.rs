//! What came of a study, as it is kept in `counters.json`.
//!
//! Only what was measured stands in it, and what is missing with its reason; the figures of the
//! dissertation follow from it ([`super::compare`]). A second run into the same directory adds to
//! it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use headway_lab::servers::Kind;
use serde::{Deserialize, Serialize};

use super::plan::Workload;
use super::score::Score;
use crate::count::Counts;
use crate::metrics::{Penalties, Served};
use crate::probe::Probed;
use crate::smt::Configuration;

/// The name of the file in the directory.
pub const FILE: &str = "counters.json";

const FORMAT: &str = "headway-counters";
const VERSION: u32 = 1;

/// Everything that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Name of the format, `headway-counters`.
    pub format: String,
    /// Raised when an old reader would misunderstand.
    pub version: u32,
    /// When a measurement was last added, RFC 3339.
    pub made: String,
    /// The machine as text: host, kernel, CPU, memory.
    pub machine: BTreeMap<String, String>,
    /// What a reader should know about its counters.
    pub notices: Vec<String>,
    /// The workload of all measurements.
    pub workload: Workload,
    /// Slots of a cycle, where no event counts them.
    pub width: Option<u32>,
    /// What each configuration was here.
    pub setups: Vec<Setup>,
    /// Latencies and bandwidth.
    pub probed: Option<Probed>,
    /// The measurements.
    pub measured: Vec<Measured>,
    /// Instructions of user code.
    pub instructions: Vec<Instructions>,
    /// How many slow clients each server satisfies.
    #[serde(default)]
    pub scores: Vec<Score>,
}

/// What a configuration was here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// The configuration.
    pub configuration: Configuration,
    /// Why the configuration could not be set; `None` if it could.
    pub impossible: Option<String>,
    /// The server's hardware threads.
    pub server: Vec<usize>,
    /// The client's.
    pub client: Vec<usize>,
    /// What was changed for it and changed back.
    pub changed: Vec<String>,
    /// What a reader of its figures should know.
    pub remarks: Vec<String>,
}

/// One measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The server's name.
    pub server: String,
    /// The version that the server prints.
    pub version: String,
    /// The configuration's notation.
    pub configuration: String,
    /// Counted from 1.
    pub repeat: u32,
    /// Why the measurement failed; `None` if it did not.
    pub failed: Option<String>,
    /// What clients received while it was counted.
    pub served: Served,
    /// Requests that failed meanwhile.
    pub errors: u64,
    /// The client's own verdict: `valid`, `suspect` or `invalid`, and its reasons.
    pub verdict: String,
    /// CPU time of all the server's processes, in milliseconds.
    pub cpu_ms: f64,
    /// The counts of the events.
    pub counts: Counts,
}

/// Instructions of user code for a request, by callgrind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Instructions {
    /// The server's name.
    pub server: String,
    /// The version of the server.
    pub version: String,
    /// Instructions for a request.
    pub per_request: Option<f64>,
    /// Instructions for a byte of content.
    pub per_byte: Option<f64>,
    /// Requests of the two runs whose difference this is.
    pub requests: [u64; 2],
    /// Why there is no count of instructions.
    pub failed: Option<String>,
}

/// A directory that holds something else.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// A file of the system's.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: String,
        /// Why the call failed.
        error: io::Error,
    },
    /// Damaged, not ours, or of a newer version.
    #[error("{path}: {why}; name another directory")]
    Foreign {
        /// The file.
        path: String,
        /// What is wrong with the file.
        why: String,
    },
}

impl Outcome {
    /// Nothing measured yet.
    pub fn new(workload: Workload) -> Outcome {
        Outcome {
            format: FORMAT.into(),
            version: VERSION,
            made: String::new(),
            machine: BTreeMap::new(),
            notices: Vec::new(),
            workload,
            width: None,
            setups: Vec::new(),
            probed: None,
            measured: Vec::new(),
            instructions: Vec::new(),
            scores: Vec::new(),
        }
    }

    /// What a directory holds; `None` if it holds no outcome.
    ///
    /// # Errors
    /// [`KeepError`].
    pub fn read(directory: &Path) -> Result<Option<Outcome>, KeepError> {
        let file = directory.join(FILE);
        let path = file.display().to_string();
        let text = match fs::read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(KeepError::File { path, error }),
        };
        let foreign = |why: String| KeepError::Foreign {
            path: path.clone(),
            why,
        };
        let value: serde_json::Value = serde_json::from_slice(&text)
            .map_err(|error| foreign(format!("it is damaged ({error}) and can be removed")))?;
        if value["format"] != FORMAT {
            return Err(foreign("it is no outcome of headway-lab counters".into()));
        }
        if value["version"]
            .as_u64()
            .is_none_or(|version| version > u64::from(VERSION))
        {
            return Err(foreign("a newer headway wrote it".into()));
        }
        serde_json::from_value(value)
            .map(Some)
            .map_err(|error| foreign(error.to_string()))
    }

    /// Writes it, whole or not at all.
    ///
    /// # Errors
    /// [`KeepError::File`].
    pub fn write(&self, directory: &Path) -> Result<(), KeepError> {
        let (file, new) = (directory.join(FILE), directory.join("counters.new"));
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other);
        let written = text
            .and_then(|text| fs::write(&new, text + "\n"))
            .and_then(|()| fs::rename(&new, &file));
        written.map_err(|error| KeepError::File {
            path: file.display().to_string(),
            error,
        })
    }

    /// Whether a measurement is there and is one.
    pub fn has(&self, server: Kind, configuration: Configuration, repeat: u32) -> bool {
        let is_it = |one: &&Measured| {
            one.server == server.name()
                && one.configuration == configuration.name()
                && one.repeat == repeat
        };
        self.measured
            .iter()
            .find(is_it)
            .is_some_and(|one| one.failed.is_none())
    }

    /// Puts a measurement in the place of an older one of the same name.
    pub fn put(&mut self, measured: Measured) {
        let same = |one: &Measured| {
            one.server == measured.server
                && one.configuration == measured.configuration
                && one.repeat == measured.repeat
        };
        self.measured.retain(|one| !same(one));
        self.measured.push(measured);
    }

    /// Whether a score is there and is one.
    pub fn has_score(&self, server: Kind, configuration: Configuration) -> bool {
        let found = self.score(server.name(), configuration);
        found.is_some_and(|score| score.failed.is_none())
    }

    /// A server's score.
    pub fn score(&self, server: &str, configuration: Configuration) -> Option<&Score> {
        let is_it =
            |one: &&Score| one.server == server && one.configuration == configuration.name();
        self.scores.iter().find(is_it)
    }

    /// Puts a score in the place of an older one.
    pub fn put_score(&mut self, score: Score) {
        let same =
            |one: &Score| one.server == score.server && one.configuration == score.configuration;
        self.scores.retain(|one| !same(one));
        self.scores.push(score);
    }

    /// Throughput of a server in its last measurement, bits a second.
    pub fn bits_per_s(&self, server: Kind, configuration: Configuration) -> Option<f64> {
        let is_it = |one: &&Measured| {
            one.server == server.name()
                && one.configuration == configuration.name()
                && one.failed.is_none()
        };
        let last = self.measured.iter().rfind(is_it)?;
        Some(last.served.bytes * 8.0 / last.served.seconds)
    }

    /// Notes what a configuration is here.
    pub fn put_setup(&mut self, setup: Setup) {
        // A configuration that was measured earlier, such as in another boot, stays what it was.
        let measured = self
            .measured
            .iter()
            .any(|one| one.configuration == setup.configuration.name() && one.failed.is_none());
        if measured && setup.impossible.is_some() {
            return;
        }
        self.setups
            .retain(|one| one.configuration != setup.configuration);
        self.setups.push(setup);
        self.setups.sort_by_key(|one| one.configuration);
    }

    /// Servers that were measured or tried, in the order in which they first came.
    pub fn servers(&self) -> Vec<&str> {
        let names = self.measured.iter().map(|one| one.server.as_str());
        let mut found = Vec::new();
        for name in names.chain(self.instructions.iter().map(|one| one.server.as_str())) {
            if !found.contains(&name) {
                found.push(name);
            }
        }
        found
    }

    /// What events cost here, as far as it was measured.
    pub fn penalties(&self) -> Penalties {
        self.probed
            .as_ref()
            .map(Probed::penalties)
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(server: &str, failed: Option<&str>) -> Measured {
        Measured {
            server: server.into(),
            configuration: "1T-SMP".into(),
            repeat: 1,
            failed: failed.map(Into::into),
            ..Measured::default()
        }
    }

    #[test]
    fn outcome_is_the_same_when_it_was_written_and_read() {
        let folder = tempfile::tempdir().expect("a directory");
        assert_eq!(Outcome::read(folder.path()).expect("empty"), None);
        let mut outcome = Outcome::new(Workload::default());
        outcome.put(measured("nginx", None));
        outcome.write(folder.path()).expect("written");
        assert_eq!(Outcome::read(folder.path()).expect("read"), Some(outcome));
        fs::write(folder.path().join(FILE), "{\"format\":\"x\"}").expect("written");
        assert!(matches!(
            Outcome::read(folder.path()),
            Err(KeepError::Foreign { .. })
        ));
    }

    #[test]
    fn failed_measurement_is_repeated_and_replaced() {
        let mut outcome = Outcome::new(Workload::default());
        outcome.put(measured("nginx", Some("it died")));
        assert!(!outcome.has(Kind::Nginx, Configuration::One, 1));
        outcome.put(measured("nginx", None));
        assert!(outcome.has(Kind::Nginx, Configuration::One, 1));
        assert_eq!(outcome.measured.len(), 1);
    }
}
