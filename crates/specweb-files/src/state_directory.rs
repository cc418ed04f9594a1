//! The application's own directory in a set: two tables, each replaced as a whole by a rename, and
//! the log, whose lock (`flock`) orders the appends.
//!
//! The calls may wait for a disk, or for the log's lock.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::tables::{Ads, Reset, users_file};

/// The directory's name inside a file set. Servers do not serve names that begin with a dot.
pub const STATE_NAME: &str = ".specweb99";

/// The users' profiles.
pub const USERS_NAME: &str = "User.Personality";

/// The advertisements.
pub const ADS_NAME: &str = "Custom.Ads";

/// The log of posts.
pub const LOG_NAME: &str = "post.log";

/// The directory of tables and log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDirectory(PathBuf);

impl StateDirectory {
    /// That of the set with these documents.
    pub fn of_set(documents: &Path) -> StateDirectory {
        StateDirectory(documents.join(STATE_NAME))
    }

    /// A state directory outside the file set.
    pub fn at(path: PathBuf) -> StateDirectory {
        StateDirectory(path)
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Creates directory, tables and log if they do not exist. Returns whether they were created.
    ///
    /// # Errors
    /// They could not be written.
    pub fn make(&self, reset: &Reset) -> io::Result<bool> {
        let whole = [USERS_NAME, ADS_NAME, LOG_NAME]
            .iter()
            .all(|name| self.0.join(name).is_file());
        if !whole {
            fs::create_dir_all(&self.0)
                .map_err(|error| with_path("creating the directory", &self.0, &error))?;
            self.reset(reset)?;
        }
        Ok(!whole)
    }

    /// Rebuilds the tables and empties the log. The directory has to exist.
    ///
    /// # Errors
    /// They could not be written.
    pub fn reset(&self, reset: &Reset) -> io::Result<()> {
        self.replace(USERS_NAME, &users_file(reset))?;
        self.replace(ADS_NAME, &Ads::generate(reset).file())?;
        // Emptied instead of replaced: a process that waits for its lock has it open already.
        let (log, path) =
            self.open_log(OpenOptions::new().create(true).write(true).truncate(false))?;
        log.lock()
            .and_then(|()| log.set_len(0))
            .map_err(|error| with_path("emptying", &path, &error))
    }

    /// Opens the log. Returns its path, too, for messages.
    ///
    /// # Errors
    /// It could not be opened.
    pub fn open_log(&self, options: &mut OpenOptions) -> io::Result<(File, PathBuf)> {
        let path = self.0.join(LOG_NAME);
        let log = options
            .open(&path)
            .map_err(|error| with_path("opening", &path, &error))?;
        Ok((log, path))
    }

    fn replace(&self, name: &str, text: &str) -> io::Result<()> {
        let path = self.0.join(name);
        // Two concurrent resets write two files, and the later rename wins.
        let unfinished = self.0.join(format!("{name}.{}.new", std::process::id()));
        fs::write(&unfinished, text)
            .and_then(|()| fs::rename(&unfinished, &path))
            .map_err(|error| with_path("writing", &path, &error))
    }
}

/// The current time, in seconds since 1970.
pub fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// The error with what was tried, on which file.
pub fn with_path(doing: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{doing} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESET: Reset = Reset {
        users: 20,
        seed: 5,
        time_s: 1_700_000_000,
        expired_percent: 10,
    };

    #[test]
    fn files_are_made_once_and_replaced_by_a_reset() {
        let set = tempfile::tempdir().expect("a directory");
        let files = StateDirectory::of_set(set.path());
        assert!(files.reset(&RESET).is_err(), "there is no directory");
        assert!(files.make(&RESET).expect("the files"));
        assert!(!files.make(&RESET).expect("nothing to do"));
        let users = || fs::read_to_string(files.path().join(USERS_NAME)).expect("a table");
        assert_eq!(users(), users_file(&RESET));
        fs::write(files.path().join(LOG_NAME), "a record").expect("a log");
        let other = Reset { users: 30, ..RESET };
        files.reset(&other).expect("a reset");
        assert_eq!(users(), users_file(&other));
        let log = fs::read(files.path().join(LOG_NAME)).expect("the log");
        assert_eq!(log, b"");
        let left = fs::read_dir(files.path()).expect("the directory").count();
        assert_eq!(left, 3, "nothing unfinished stays");
    }
}
