//! Roots whose files are closed to a helper, because it is confined to other directories.
//!
//! The rules are about the directories themselves and not about their paths. So a helper cannot open what is
//! beneath a directory which has taken the path of a root after its start.

use crate::root::Root;
use headway_os::open::status;
use std::io;
use std::time::Duration;

/// Pause before a helper ends: its replacement may not know the root either, where it is switched meanwhile.
const PAUSE: Duration = Duration::from_millis(100);

/// Fails for a root which is closed to this helper, so that it ends. Its replacement can open the root. The
/// status comes from memory, since the file system may not answer.
pub(super) fn check(confined_to: Option<&[(u64, u64)]>, root: &Root) -> io::Result<()> {
    let Some(known) = confined_to else {
        return Ok(());
    };
    let status = status(root)?;
    if known.contains(&(status.device, status.inode)) {
        return Ok(());
    }
    std::thread::sleep(PAUSE);
    let why = "another directory has taken the path of a root";
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}
