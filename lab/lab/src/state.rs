//! What is known of a lab outside of the process that made it: `/run/headway-lab/NAME/state.json`.
//!
//! It is written before anything is made, and again before each thing, so after a crash it says
//! what may be there. Removing a lab does not depend on it: every name of a thing follows from the
//! lab's name. `/run` is memory, empty after a restart, as the things themselves are.
//!
//! A process that makes, loads, cools or removes a lab holds a lock on its directory. The kernel
//! releases it when the process ends, however it ends, so a lock never outlives a crash.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use headway_os::replace::replace_file;
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

/// Where labs are recorded, unless another user has made it: in a directory for all users anyone can
/// take its name, and then say which processes `down` ends and where a state is written.
fn trusted(base: PathBuf) -> std::io::Result<PathBuf> {
    match fs::symlink_metadata(&base) {
        Ok(there) if base.starts_with(std::env::temp_dir()) => {
            let owner = there.uid() == rustix::process::geteuid().as_raw();
            match there.is_dir() && owner && there.mode() & 0o022 == 0 {
                true => Ok(base),
                false => Err(std::io::Error::other(
                    "it is a link, belongs to another user, or others may write to it; remove it",
                )),
            }
        }
        _ => Ok(base),
    }
}

/// Names of the labs that have a directory, also those without a state in it.
pub(crate) fn recorded() -> Vec<String> {
    let own = trusted(base());
    let entries = own.and_then(fs::read_dir);
    let entries = entries.into_iter().flatten().flatten();
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
        let base = base();
        let own = trusted(base.clone()).map_err(LabError::file("trusting the directory", &base))?;
        Ok(LabDirectory {
            name: name.to_owned(),
            path: own.join(name),
        })
    }

    /// Creates the directory and locks it.
    pub fn create(&self) -> Result<File, LabError> {
        let base = base();
        // Servers of other users go through it to the disk's files.
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(0o755).create(&base);
        made.map_err(LabError::file("making the directory", &base))?;
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
        let text = serde_json::to_string_pretty(state).map_err(std::io::Error::other);
        text.and_then(|text| replace_file(&file, (text + "\n").as_bytes()))
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
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn lab_name_is_an_error_when_it_could_leave_the_directory() {
        for name in ["", "..", "a/b", "-x", "Lab", "a b", &"a".repeat(33)] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        for name in ["lab", "7", "disk-bound-2"] {
            assert!(check_name(name).is_ok(), "{name:?}");
        }
    }

    #[test]
    fn directory_of_others_below_the_temporary_one_is_not_trusted() {
        let temporary = tempfile::tempdir().expect("a directory");
        let path = |name: &str| temporary.path().join(name);
        assert!(trusted(path("absent")).is_ok());
        DirBuilder::new()
            .mode(0o700)
            .create(path("own"))
            .expect("made");
        assert!(trusted(path("own")).is_ok());
        std::os::unix::fs::symlink(path("own"), path("link")).expect("made");
        assert!(trusted(path("link")).is_err());
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(path("own"), open).expect("changed");
        assert!(trusted(path("own")).is_err());
    }
}
