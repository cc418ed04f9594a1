//! Whether the runs differ, and by how much, or whether chance could have made the difference.

use super::Section;
use crate::subject::Subject;

/// The section; `None` with fewer than two runs that have figures.
pub(crate) fn section(_subjects: &[Subject]) -> Option<Section> {
    None
}
