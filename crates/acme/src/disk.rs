//! Directories and files that only one user may change. A file is written in one step.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Serialize, de::DeserializeOwned};

/// Other users may not even list it.
pub(crate) const PRIVATE_DIRECTORY: u32 = 0o700;
pub(crate) const PRIVATE_FILE: u32 = 0o600;
/// Write access of the group and of others.
const WRITABLE_BY_OTHERS: u32 = 0o022;
const TEMPORARY: &str = ".new";

/// A file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{what}({}): {error}", path.display())]
pub struct FileError {
    what: &'static str,
    path: PathBuf,
    error: io::Error,
}

/// Whether only this user, or root, can replace what is in a directory. One that is missing is fine.
pub(crate) fn check_directory(path: &Path) -> Result<(), FileError> {
    let Ok(meta) = fs::metadata(path) else {
        return Ok(());
    };
    let own = rustix::process::geteuid().as_raw();
    let (mode, user) = (meta.mode() & 0o7777, meta.uid());
    let wrong = if user != own && user != 0 {
        format!("it belongs to the user {user}; run this as that user, or run chown -R {own}")
    } else if mode & WRITABLE_BY_OTHERS != 0 {
        format!("other users may write to it (mode {mode:04o}), and replace keys; run chmod go-w")
    } else {
        return Ok(());
    };
    Err(failed("use the directory", path)(io::Error::other(wrong)))
}

/// Makes a directory unless it is there.
pub(crate) fn make_directory(path: &Path, mode: u32) -> Result<(), FileError> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check_directory(path),
        // The umask may have taken away what workers need.
        Ok(()) => set_mode(path, mode),
        Err(error) => Err(failed("mkdir", path)(error)),
    }
}

pub(crate) fn set_mode(path: &Path, mode: u32) -> Result<(), FileError> {
    let set = fs::set_permissions(path, Permissions::from_mode(mode));
    set.map_err(failed("chmod", path))
}

/// Makes a directory that only this user can use, and those above it.
pub(crate) fn make_directories(path: &Path) -> Result<(), FileError> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(PRIVATE_DIRECTORY);
    builder.create(path).map_err(failed("mkdir", path))
}

/// Writes a file in one step. Also after a crash of the machine, it has either the text before or this one.
pub(crate) fn replace(path: &Path, text: &[u8], mode: u32) -> Result<(), FileError> {
    let mut name = path.as_os_str().to_owned();
    name.push(TEMPORARY);
    let temporary = PathBuf::from(name);
    // A file which an earlier process left may have another mode.
    let _ = fs::remove_file(&temporary);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(PRIVATE_FILE);
    let mut file = options
        .open(&temporary)
        .map_err(failed("open", &temporary))?;
    file.write_all(text).map_err(failed("write", &temporary))?;
    set_mode(&temporary, mode)?;
    file.sync_all().map_err(failed("fsync", &temporary))?;
    fs::rename(&temporary, path).map_err(failed("rename", path))?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(failed("fsync", directory))
}

pub(crate) fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("unlink", path)(error)),
        _ => Ok(()),
    }
}

pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), FileError> {
    let text = serde_json::to_vec(value).map_err(io::Error::from);
    replace(path, &text.map_err(failed("write", path))?, PRIVATE_FILE)
}

pub(crate) fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_owned();
    move |error| FileError { what, path, error }
}
