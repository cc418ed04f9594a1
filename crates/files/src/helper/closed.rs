//! Roots whose files are closed to a helper, because it is confined to other directories.
//!
//! The rules are about the directories themselves and not about their paths. So a helper cannot open what is
//! beneath a directory which has taken the path of a root after its start.

use crate::root::Root;
use headway_os::open::{NameLookup, find_directory, status};
use rustix::fs::{Access, AtFlags, Mode, OFlags, accessat, openat};
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Pause before a helper ends, where a replacement could not open the root either.
const PAUSE: Duration = Duration::from_millis(500);

/// Fails for a root which is closed to this helper, so that it ends. Its replacement can open the root, if
/// one of the configured paths leads there.
pub(super) fn check(confined_to: Option<&[PathBuf]>, root: &Root) -> io::Result<()> {
    let Some(paths) = confined_to.filter(|_| is_closed(root)) else {
        return Ok(());
    };
    if !paths.iter().any(|path| leads_to(path, root)) {
        std::thread::sleep(PAUSE);
    }
    let why = "another directory has taken the path of a root";
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Whether this process may not read a directory which its user may read.
fn is_closed(root: &Root) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(root, c".", flags, Mode::empty()).is_err_and(|errno| errno == Errno::ACCESS)
        && accessat(root, c".", Access::READ_OK, AtFlags::empty()).is_ok()
}

/// Whether a path leads to this directory now.
fn leads_to(path: &Path, root: &Root) -> bool {
    let found = find_directory(path, NameLookup::MayBlock).ok().flatten();
    let root = status(root);
    found
        .zip(root.ok())
        .is_some_and(|((_, found), root)| (found.device, found.inode) == (root.device, root.inode))
}
