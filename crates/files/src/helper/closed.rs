//! Roots whose files are closed to a helper, because it is confined to other directories.
//!
//! The rules are about the directories themselves and not about their paths. A root may be switched: its path then
//! leads to another directory. A helper cannot open files in a directory that got the path after its start. Nor can
//! it in one that lost the path long before, which a worker still has that was stopped meanwhile. The helper does all
//! other jobs, also that of finding out where the path leads now.

use crate::root::{Root, RootId};
use headway_os::open::status;
use std::io;
use std::time::Duration;

/// Pause before a helper ends: its replacement may not know the root either, where it is switched meanwhile.
const PAUSE: Duration = Duration::from_millis(100);

/// The roots that are closed.
#[derive(Default)]
pub(super) struct ClosedRoots(Vec<RootId>);

impl ClosedRoots {
    /// Takes note of a root's directory. Its status comes from memory, since the file system may not answer.
    pub(super) fn put(
        &mut self,
        confined_to: Option<&[(u64, u64)]>,
        root: RootId,
        opened: &Root,
    ) -> io::Result<()> {
        let Some(known) = confined_to else {
            return Ok(());
        };
        let status = status(opened)?;
        self.0.retain(|closed| *closed != root);
        if !known.contains(&(status.device, status.inode)) {
            self.0.push(root);
        }
        Ok(())
    }

    /// Fails for a root which is closed, so that the helper ends. Its replacement can open the root.
    pub(super) fn check(&self, root: RootId) -> io::Result<()> {
        if !self.0.contains(&root) {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
        let why = "another directory has taken the path of a root";
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }
}
