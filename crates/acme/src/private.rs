//! Reads files with private keys, but only those that no other user can read or could have put there.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Certificates and keys are far shorter.
const BYTES_MAX: u64 = 1 << 20;
/// Any access by the group or by others.
const OTHERS: u32 = 0o077;

/// Reads a file that belongs to the user of this process.
///
/// # Errors
/// Those of open(2) and read(2). Also if the file is a symbolic link, belongs to another user, or may be
/// read by others: the text says what to do.
pub fn read_private(path: &Path) -> io::Result<Vec<u8>> {
    // A FIFO must not hold up the server.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::LOOP) => {
            return Err(io::Error::other(
                "it is a symbolic link; put the file itself there",
            ));
        }
        opened => File::from(opened?),
    };
    let meta = file.metadata()?;
    let own = rustix::process::geteuid().as_raw();
    let wrong = if !meta.is_file() {
        Some("it is not a regular file; remove it".into())
    } else if meta.uid() != own {
        let found = meta.uid();
        Some(format!(
            "it has a private key, but belongs to the user {found}; remove it, or run chown {own}"
        ))
    } else if meta.mode() & OTHERS != 0 {
        let mode = meta.mode() & 0o777;
        Some(format!(
            "it has a private key, but other users may use it (mode {mode:04o}); run chmod 600, and \
             replace the key if they may have read it"
        ))
    } else {
        None
    };
    if let Some(wrong) = wrong {
        return Err(io::Error::other(wrong));
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn file_is_read_only_if_no_other_user_may_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key.pem");
        fs::write(&path, "the key").unwrap();
        for mode in [0o600, 0o400, 0o700] {
            set_mode(&path, mode);
            assert_eq!(read_private(&path).unwrap(), b"the key");
        }
        for mode in [0o640, 0o620, 0o604, 0o644, 0o610] {
            set_mode(&path, mode);
            let error = read_private(&path).unwrap_err().to_string();
            assert!(error.contains("run chmod 600"), "{mode:o}: {error}");
        }
    }

    #[test]
    fn what_is_not_the_file_itself_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key.pem");
        let link = directory.path().join("link.pem");
        fs::write(&path, "the key").unwrap();
        set_mode(&path, 0o600);
        symlink(&path, &link).unwrap();
        let error = read_private(&link).unwrap_err().to_string();
        assert!(error.contains("symbolic link"), "{error}");
        let error = read_private(directory.path()).unwrap_err();
        assert!(error.to_string().contains("regular file"), "{error}");
        let missing = read_private(&directory.path().join("none")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    /// Needs: root
    #[test]
    fn file_of_another_user_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key.pem");
        fs::write(&path, "the key").unwrap();
        set_mode(&path, 0o600);
        if chown(&path, Some(4711), None).is_err() {
            return headway_test_support::skip("file_of_another_user_is_not_read", "not root");
        }
        let error = read_private(&path).unwrap_err().to_string();
        assert!(error.contains("belongs to the user 4711"), "{error}");
        assert!(error.contains("run chown 0"), "{error}");
    }
}
