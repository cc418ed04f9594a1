//! Replaces a file as a whole: a reader, or a crash, finds the old content or the new one.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes a file under the name `PATH.new` and renames it.
///
/// ```
/// let directory = tempfile::tempdir()?;
/// let path = directory.path().join("state");
/// headway_os::replace::replace_file(&path, b"1\n")?;
/// headway_os::replace::replace_file(&path, b"2\n")?;
/// assert_eq!(std::fs::read(&path)?, b"2\n");
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Of unlink(2), open(2), write(2) and rename(2). The old content is then still there.
pub fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = OsString::from(path);
    name.push(".new");
    let name = PathBuf::from(name);
    let mut file = create_new(&name)?;
    let done = file
        .write_all(content)
        .and_then(|()| fs::rename(&name, path));
    done.inspect_err(|_| drop(fs::remove_file(&name)))
}

/// Creates a file in place of what has that name. In a directory which others may write to, that
/// may be a link to a file of this user: it is removed and not followed (`O_EXCL`, open(2)).
///
/// # Errors
/// Of unlink(2) and open(2); `EEXIST` if the name is taken again at this moment.
pub fn create_new(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::options().write(true).create_new(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_at_the_temporary_name_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("victim"), "unharmed").unwrap();
        std::os::unix::fs::symlink(path("victim"), path("state.new")).unwrap();
        replace_file(&path("state"), b"written").unwrap();
        assert_eq!(fs::read_to_string(path("victim")).unwrap(), "unharmed");
        assert_eq!(fs::read_to_string(path("state")).unwrap(), "written");
        assert!(!path("state").is_symlink() && !path("state.new").exists());
    }

    #[test]
    fn temporary_file_is_removed_when_the_rename_fails() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("taken");
        fs::create_dir(&path).unwrap();
        assert!(replace_file(&path, b"x").is_err());
        assert!(!directory.path().join("taken.new").exists());
    }
}
