//! The application's files on disk, for a process that may block: the CGI program, a FastCGI or
//! direct process, a helper.
//!
//! Beside the documents is a [`StateDirectory`] with the two tables and the log. The lock of the log
//! orders the appends. It belongs to the open file, so a process that dies leaves none behind. If
//! the log ends within a record, nothing is appended, because its order could not be trusted.
//!
//! A long-running process keeps the advertisements in memory, and checks before each use whether
//! they have been rebuilt.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::application::{Files, Lookup};
use crate::file::FileName;
use crate::post::{Entry, RECORD_BYTES, Record};
use crate::state_directory::{ADS_NAME, StateDirectory, USERS_NAME, now_s, with_path};
use crate::tables::{Ads, Reset, USER_RECORD_BYTES, User};

/// The directories of documents and tables.
#[derive(Debug)]
pub struct State {
    documents: PathBuf,
    own: StateDirectory,
    ads: Option<(Version, Ads)>,
}

/// Identity and modification time of a file, to detect that it has been replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    inode: u64,
    modified: (i64, i64),
    size_bytes: u64,
}

impl Version {
    fn of(status: &Metadata) -> Version {
        Version {
            inode: status.ino(),
            modified: (status.mtime(), status.mtime_nsec()),
            size_bytes: status.len(),
        }
    }
}

impl State {
    /// The documents of a set, and the application's own directory; `None` for the one in the set.
    pub fn new(documents: impl Into<PathBuf>, directory: Option<PathBuf>) -> State {
        let documents = documents.into();
        let own = match directory {
            Some(path) => StateDirectory::at(path),
            None => StateDirectory::of_set(&documents),
        };
        State {
            documents,
            own,
            ads: None,
        }
    }

    /// Opens a document, and returns its length.
    ///
    /// # Errors
    /// The system's error; [`io::ErrorKind::NotFound`] if the set has no such file.
    pub fn open(&self, file: FileName) -> io::Result<(File, u64)> {
        let name = file.to_string();
        let opened = File::open(self.documents.join(&name[1..]))?;
        let size_bytes = opened.metadata()?.len();
        Ok((opened, size_bytes))
    }

    /// Both tables as they are on disk, users and advertisements.
    ///
    /// # Errors
    /// They could not be read, or are malformed.
    pub fn tables(&self) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let read = |name: &str| {
            let path = self.own.path().join(name);
            fs::read(&path).map_err(|error| with_path("reading", &path, &error))
        };
        // In the reverse order of a reset: the users are never older than the advertisements.
        let (ads, users) = (read(ADS_NAME)?, read(USERS_NAME)?);
        let is_one = std::str::from_utf8(&ads).is_ok_and(|text| Ads::parse(text).is_some());
        match is_one {
            true => Ok((users, ads)),
            false => Err(malformed(&self.own.path().join(ADS_NAME))),
        }
    }
}

impl Lookup for State {
    fn user(&mut self, id: u32) -> io::Result<Option<User>> {
        let Some(offset) = User::offset(id) else {
            return Ok(None);
        };
        let path = self.own.path().join(USERS_NAME);
        let read = || -> io::Result<Option<[u8; USER_RECORD_BYTES]>> {
            let mut file = File::open(&path)?;
            file.seek(SeekFrom::Start(offset))?;
            let mut line = [0; USER_RECORD_BYTES];
            match file.read_exact(&mut line) {
                Ok(()) => Ok(Some(line)),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
                Err(error) => Err(error),
            }
        };
        let line = read().map_err(|error| with_path("reading", &path, &error))?;
        let Some(line) = line else { return Ok(None) };
        let user = User::parse(&line, id).ok_or_else(|| malformed(&path))?;
        Ok(Some(user))
    }

    fn ads(&mut self) -> io::Result<&Ads> {
        let path = self.own.path().join(ADS_NAME);
        // If this fails, so does reading the file, which reports the error.
        let now = || fs::metadata(&path).ok().as_ref().map(Version::of);
        let ads = match self.ads.take() {
            Some((version, ads)) if now() == Some(version) => (version, ads),
            _ => read_ads(&path)?,
        };
        Ok(&self.ads.insert(ads).1)
    }
}

impl Files for State {
    fn append(&mut self, entry: &Entry) -> io::Result<u64> {
        let (log, path) = self.own.open_log(OpenOptions::new().append(true))?;
        let append = || -> io::Result<u64> {
            // Until the file is closed, at the end of this function or of the process.
            log.lock()?;
            let length = log.metadata()?.len();
            if !length.is_multiple_of(RECORD_BYTES as u64) {
                return Err(io::Error::other("it ends within a record; reset it"));
            }
            let record = Record {
                number: length / RECORD_BYTES as u64 + 1,
                time_s: now_s(),
                process: std::process::id(),
                entry: *entry,
            };
            (&log).write_all(record.to_string().as_bytes())?;
            Ok(record.number)
        };
        append().map_err(|error| with_path("appending to", &path, &error))
    }

    fn reset(&mut self, reset: &Reset) -> io::Result<()> {
        self.own.reset(reset)
    }

    fn log(&mut self) -> io::Result<Vec<u8>> {
        let (mut log, path) = self.own.open_log(OpenOptions::new().read(true))?;
        let mut content = Vec::new();
        log.lock_shared()
            .and_then(|()| log.read_to_end(&mut content))
            .map_err(|error| with_path("reading", &path, &error))?;
        Ok(content)
    }
}

/// The advertisements and the version of their file.
fn read_ads(path: &Path) -> io::Result<(Version, Ads)> {
    let read = || -> io::Result<(Version, String)> {
        let mut file = File::open(path)?;
        let version = Version::of(&file.metadata()?);
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        Ok((version, text))
    };
    let (version, text) = read().map_err(|error| with_path("reading", path, &error))?;
    let ads = Ads::parse(&text).ok_or_else(|| malformed(path))?;
    Ok((version, ads))
}

fn malformed(path: &Path) -> io::Error {
    let message = format!(
        "{} is not the file of a reset; give the command again",
        path.display()
    );
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::post;
    use crate::state_directory::LOG_NAME;

    const RESET: Reset = Reset {
        users: 20,
        seed: 5,
        time_s: 1_700_000_000,
        expired_percent: 10,
    };

    fn generate() -> (tempfile::TempDir, State) {
        let directory = tempfile::tempdir().expect("a directory");
        let state = State::new(directory.path(), None);
        assert!(state.own.make(&RESET).expect("the files"));
        (directory, state)
    }

    fn entry(client: u32, serial: u32) -> Entry {
        Entry {
            file: FileName::new(0, 1, 1).expect("a file"),
            client,
            serial,
            user: 0,
        }
    }

    #[test]
    fn stored_tables_match_the_reset() {
        let (directory, mut state) = generate();
        assert_eq!(
            state.user(10_007).expect("a table"),
            User::generate(&RESET, 10_007)
        );
        assert_eq!(state.user(10_020).expect("a table"), None);
        let mut fresh = State::new(directory.path(), None);
        assert_eq!(fresh.ads().expect("a table"), &Ads::generate(&RESET));
        let other = Reset { users: 30, ..RESET };
        fresh.reset(&other).expect("a reset");
        assert_eq!(
            fresh.user(10_020).expect("a table"),
            User::generate(&other, 10_020)
        );
        let made = Ads::generate(&Reset { seed: 6, ..RESET });
        let mut another = State::new(directory.path(), None);
        another.reset(&Reset { seed: 6, ..RESET }).expect("a reset");
        let seen = fresh.ads().expect("a table");
        assert_eq!(seen, &made, "another process made them anew");
    }

    #[test]
    fn concurrent_appends_keep_records_complete_and_in_order() {
        let (directory, mut state) = generate();
        std::thread::scope(|scope| {
            for client in 0..8 {
                let mut state = State::new(directory.path(), None);
                scope.spawn(move || {
                    for serial in 1..=50 {
                        state.append(&entry(client, serial)).expect("a record");
                    }
                });
            }
        });
        let records = post::read(&state.log().expect("the log")).expect("whole and in order");
        assert!(post::compare(&records, &[50; 8], &[]).is_none());
        assert_eq!(records.len(), 400);
        state.reset(&RESET).expect("a reset");
        assert_eq!(state.log().expect("the log"), b"");
        assert_eq!(state.append(&entry(0, 1)).expect("a record"), 1);
    }

    #[test]
    fn state_error_names_file_and_remedy() {
        let (_place, mut state) = generate();
        let log = state.own.path().join(LOG_NAME);
        fs::write(&log, "half a record").expect("a log");
        let error = state.append(&entry(0, 1)).expect_err("torn").to_string();
        assert!(
            error.contains("post.log") && error.contains("reset"),
            "{error}"
        );
        fs::remove_file(&log).expect("a log");
        let error = state.append(&entry(0, 1)).expect_err("absent");
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
        fs::write(state.own.path().join(ADS_NAME), "x").expect("a table");
        state.ads = None;
        let error = state.ads().expect_err("no table").to_string();
        assert!(error.contains("Custom.Ads"), "{error}");
    }
}
