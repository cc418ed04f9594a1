//! What sets for a SPECweb99-like load need beyond being made: the application's own files, and
//! growing with the number of connections.
//!
//! A smaller SPECweb set is the beginning of a larger one, since a file's content depends on its
//! number alone. So a set grows by the directories that are missing, and a search over numbers of
//! connections needs one set.

use std::num::NonZeroUsize;
use std::path::Path;

use headway_specweb_files::state_directory::{StateDirectory, now_s};
use headway_specweb_files::tables::{Reset, USERS_MAX};

use super::create::{CreateError, Created, Progress, complete, locked};
use super::manifest::{self, MANIFEST_NAME, Manifest, ManifestError};
use super::shape::specweb_connections;

/// Adds directories to a SPECweb set until it has this many; a larger set is left as it is. An
/// interrupted call is continued.
///
/// # Errors
/// As [`super::create`]'s; the directory has to hold a set.
pub fn grow(
    directory: &Path,
    directories: u32,
    threads: NonZeroUsize,
    progress: &mut dyn FnMut(Progress),
) -> Result<Created, CreateError> {
    let root = locked(directory)?;
    let (found, seed, _) = manifest::read(directory)?;
    let most = u64::from(directories).max(found.directories());
    let shape = found.with_directories(most as u32).unwrap_or(found);
    let shape = shape.checked().map_err(|error| ManifestError::Malformed {
        path: directory.join(MANIFEST_NAME),
        why: error.to_string(),
    })?;
    complete(directory, &root, shape, seed, true, threads, progress)
}

/// The application's own files: as many users as a set of this size has connections. A measurement
/// resets them.
pub(super) fn make_state(manifest: &Manifest) -> Result<(), CreateError> {
    let state = StateDirectory::of_set(manifest.root());
    let users = specweb_connections(manifest.shape().page_bytes()).clamp(1, USERS_MAX.into());
    let reset = Reset {
        users: users as u32,
        seed: manifest.seed(),
        time_s: now_s(),
        expired_percent: 10,
    };
    let made = state.make(&reset).map(drop);
    made.map_err(|error| CreateError::Io {
        doing: "making",
        path: state.path().to_owned(),
        error,
    })
}
