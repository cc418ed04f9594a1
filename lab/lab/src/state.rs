//! What is known of a lab outside of the process that made it: `/run/headway-lab/NAME/state.json`.
//!
//! It is written before anything is made, and again before each thing, so after a crash it says
//! what may be there. Removing a lab does not depend on it: every name of a thing follows from the
//! lab's name. `/run` is memory, empty after a restart, as the things themselves are.
//!
//! A process that makes, loads, cools or removes a lab holds a lock on its directory. The kernel
//! releases it when the process ends, however it ends, so a lock never outlives a crash.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::lab::LabSpec;
use crate::network::Addresses;

/// Of what the file looks like; another one is not read.
const FORMAT: u32 = 1;

/// The content of `state.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LabState {
    /// Version of the format, [`FORMAT`].
    pub format: u32,
    /// The specification of the lab.
    pub spec: LabSpec,
    /// The process that made it.
    pub maker: u32,
    /// What has been begun, in order, as text.
    pub begun: Vec<String>,
    /// All of it is there.
    pub complete: bool,
    /// The addresses of the link, if there is one.
    pub addresses: Option<Addresses>,
}

/// The directory of a lab.
#[derive(Clone, Debug)]
pub(crate) struct LabDirectory {
    /// The lab's name.
    pub name: String,
    /// The directory.
    pub path: PathBuf,
}

/// Where labs are recorded: `HEADWAY_LAB_STATE`, or /run/headway-lab, or for a user other than root
/// below `XDG_RUNTIME_DIR`.
pub fn base() -> PathBuf {
    if let Some(path) = std::env::var_os("HEADWAY_LAB_STATE") {
        return path.into();
    }
    let user = rustix::process::geteuid();
    if user.is_root() {
        return "/run/headway-lab".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(path) => Path::new(&path).join("headway-lab"),
        None => std::env::temp_dir().join(format!("headway-lab-{}", user.as_raw())),
    }
}

/// Names of the labs that have a directory, also those without a state in it.
pub(crate) fn recorded() -> Vec<String> {
    let entries = fs::read_dir(base()).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| check_name(name).is_ok())
        .collect();
    names.sort();
    names
}

/// A name must fit into names of devices' aliases, directories and groups, and never lead out of
/// them.
pub(crate) fn check_name(name: &str) -> Result<(), LabError> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let good =
        (1..=32).contains(&name.len()) && name.bytes().all(allowed) && !name.starts_with('-');
    match good {
        true => Ok(()),
        false => Err(LabError::Name(name.to_owned())),
    }
}

impl LabDirectory {
    /// The directory of a lab, whether it is there or not.
    pub fn of(name: &str) -> Result<LabDirectory, LabError> {
        check_name(name)?;
        Ok(LabDirectory {
            name: name.to_owned(),
            path: base().join(name),
        })
    }

    /// Creates the directory and locks it.
    pub fn create(&self) -> Result<File, LabError> {
        let base = base();
        fs::create_dir_all(&base).map_err(LabError::file("making the directory", &base))?;
        fs::create_dir(&self.path).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => LabError::Exists(self.name.clone()),
            _ => LabError::file("making the directory", &self.path)(error),
        })?;
        self.lock()
    }

    /// Locks the directory for as long as the returned file lives.
    ///
    /// Waits a second for another holder: of a maker that was just killed, a child between fork and
    /// exec may still have the lock.
    pub fn lock(&self) -> Result<File, LabError> {
        let directory = File::open(&self.path).map_err(LabError::file("opening", &self.path))?;
        let mut locked = Err(rustix::io::Errno::WOULDBLOCK);
        crate::processes::wait_until(Duration::from_secs(1), || {
            locked = flock(&directory, FlockOperation::NonBlockingLockExclusive);
            locked != Err(rustix::io::Errno::WOULDBLOCK)
        });
        match locked {
            Ok(()) => Ok(directory),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(LabError::Busy(self.name.clone())),
            Err(error) => Err(LabError::file("locking", &self.path)(error.into())),
        }
    }

    /// Writes the state; a reader, or a crash, finds the old one or the new one.
    pub fn write(&self, state: &LabState) -> Result<(), LabError> {
        let file = self.path.join("state.json");
        let new = self.path.join("state.json.new");
        let text = serde_json::to_string_pretty(state).map_err(std::io::Error::other);
        text.and_then(|text| fs::write(&new, text + "\n"))
            .and_then(|()| fs::rename(&new, &file))
            .map_err(LabError::file("writing", &file))
    }

    /// Reads the state.
    ///
    /// # Errors
    /// `Unknown` without a directory, `Unfinished` when the file is missing or was not written by
    /// this version.
    pub fn read(&self) -> Result<LabState, LabError> {
        if !self.path.is_dir() {
            return Err(LabError::Unknown {
                name: self.name.clone(),
                base: base(),
            });
        }
        let text = fs::read_to_string(self.path.join("state.json")).unwrap_or_default();
        serde_json::from_str(&text)
            .ok()
            .filter(|state: &LabState| state.format == FORMAT)
            .ok_or_else(|| LabError::Unfinished(self.name.clone()))
    }
}

impl LabState {
    /// Of a lab of which nothing is made yet.
    pub fn new(spec: &LabSpec) -> LabState {
        LabState {
            format: FORMAT,
            spec: spec.clone(),
            maker: std::process::id(),
            begun: Vec::new(),
            complete: false,
            addresses: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lab_name_is_an_error_when_it_could_leave_the_directory() {
        for name in ["", "..", "a/b", "-x", "Lab", "a b", &"a".repeat(33)] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        for name in ["lab", "7", "disk-bound-2"] {
            assert!(check_name(name).is_ok(), "{name:?}");
        }
    }
}
