//! The two commands that a lab needs: `headway` serves and loads, `headway-lab` makes the parts of
//! a lab that are processes.
//!
//! They are installed, and built, in one directory. Another program that uses this library names
//! them in its environment, or has them on its path.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::LabError;

const HEADWAY: &str = "headway";
const HEADWAY_LAB: &str = "headway-lab";

/// The command that serves, loads and makes file sets: beside this program if this is
/// `headway-lab`, else what `HEADWAY` names, or what the path has.
pub fn headway() -> PathBuf {
    match own() {
        Some(own) => own.with_file_name(HEADWAY),
        None => named("HEADWAY", HEADWAY),
    }
}

/// The command whose subcommands the lab needs: this very program, or for another program that
/// uses this library what `HEADWAY_LAB` names, or what the path has.
pub fn headway_lab() -> PathBuf {
    own().unwrap_or_else(|| named("HEADWAY_LAB", HEADWAY_LAB))
}

/// Says what to do if `headway` is not beside this program, before work that needs it.
///
/// # Errors
/// [`LabError::NoHeadway`].
pub fn require_headway() -> Result<(), LabError> {
    match own() {
        Some(own) => require_beside(&own),
        None => Ok(()),
    }
}

fn require_beside(own: &Path) -> Result<(), LabError> {
    let path = own.with_file_name(HEADWAY);
    match path.is_file() {
        true => Ok(()),
        false => Err(LabError::NoHeadway(path)),
    }
}

/// This program, if it is `headway-lab`.
fn own() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    (own.file_name() == Some(OsStr::new(HEADWAY_LAB))).then_some(own)
}

fn named(variable: &str, command: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| command.into(), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_headway_is_an_error_that_names_where_it_has_to_be() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = folder.path().join(HEADWAY_LAB);
        let error = require_beside(&own).expect_err("it is not there");
        let wanted = folder.path().join(HEADWAY).display().to_string();
        assert!(error.to_string().starts_with(&wanted), "{error}");
        std::fs::write(folder.path().join(HEADWAY), "").expect("a file");
        assert!(require_beside(&own).is_ok());
    }
}
