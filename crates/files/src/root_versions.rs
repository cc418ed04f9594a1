//! What is remembered of a root belongs to a version of it: it says nothing about the next one.

use crate::root::{RootId, Roots};

/// Which version of each root what is remembered belongs to.
#[derive(Debug, Default)]
pub struct RootVersions(Vec<u32>);

impl RootVersions {
    /// Whether the root has been switched since the last question: forget what is known of it.
    pub fn has_changed(&mut self, roots: &Roots, root: RootId) -> bool {
        let (version, at) = (roots.version(root), root.0 as usize);
        if self.0.get(at).copied().unwrap_or(0) == version {
            return false;
        }
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] = version;
        true
    }
}
