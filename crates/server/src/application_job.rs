//! Jobs that helpers do for the SPECweb99 application: append to its log, rebuild its tables, load
//! them, read the log.
//!
//! Each of them may wait for a disk, or for the log's lock, which other processes use, too. A
//! worker encodes a job with [`ApplicationJob::encode`]; a helper decodes and executes it
//! ([`run`]). Both are the same binary, so a job that cannot be decoded is a bug.
//!
//! Encoding: the directory, NUL, a verb, and numbers separated by blanks. Result: the number of the
//! record; nothing; the log; both tables preceded by the length of the first.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use headway_files::Failure;
use headway_specweb::FileName;
use headway_specweb::application::Files;
use headway_specweb::post::Entry;
use headway_specweb::profile::Reset;
use headway_specweb::state::State;

/// A job for a helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplicationJob {
    /// Append this entry; returns the number of its record.
    Append(Entry),
    /// Rebuild the tables and empty the log.
    Reset(Reset),
    /// Read the log.
    Log,
    /// Load the advertisements, then the users.
    Tables,
}

impl ApplicationJob {
    /// Encodes the job for the application whose files are in `directory`.
    pub fn encode(&self, directory: &[u8]) -> Vec<u8> {
        let said = match self {
            ApplicationJob::Append(entry) => {
                let (file, client) = (entry.file, entry.client);
                let (directory, class, number) = (file.directory(), file.class(), file.number());
                let (serial, user) = (entry.serial, entry.user);
                format!("append {directory} {class} {number} {client} {serial} {user}")
            }
            ApplicationJob::Reset(reset) => {
                let (users, seed, time_s) = (reset.users, reset.seed, reset.time_s);
                format!("reset {users} {seed} {time_s} {}", reset.expired_percent)
            }
            ApplicationJob::Log => "log".to_owned(),
            ApplicationJob::Tables => "tables".to_owned(),
        };
        [directory, b"\0", said.as_bytes()].concat()
    }

    /// Decodes the directory and the job.
    fn decode(encoded: &[u8]) -> Option<(&[u8], ApplicationJob)> {
        let at = encoded.iter().position(|byte| *byte == 0)?;
        let said = std::str::from_utf8(&encoded[at + 1..]).ok()?;
        let (verb, numbers) = said.split_once(' ').unwrap_or((said, ""));
        let numbers = numbers.split_ascii_whitespace();
        let numbers: Option<Vec<u64>> = numbers.map(|word| word.parse().ok()).collect();
        let small = |number: u64| u32::try_from(number).ok();
        let byte = |number: u64| u8::try_from(number).ok();
        let job = match (verb, &numbers?[..]) {
            ("append", &[directory, class, number, client, serial, user]) => {
                ApplicationJob::Append(Entry {
                    file: FileName::new(small(directory)?, byte(class)?, byte(number)?)?,
                    client: small(client)?,
                    serial: small(serial)?,
                    user: small(user)?,
                })
            }
            ("reset", &[users, seed, time_s, expired]) => ApplicationJob::Reset(Reset {
                users: small(users)?,
                seed,
                time_s,
                expired_percent: byte(expired)?,
            }),
            ("log", []) => ApplicationJob::Log,
            ("tables", []) => ApplicationJob::Tables,
            _ => return None,
        };
        Some((&encoded[..at], job))
    }
}

/// Length of the prefix of both tables: the length of the first, little-endian.
pub const TABLES_HEAD_BYTES: usize = 8;

/// Executes a job, in a helper. Errors are explained on standard error.
pub fn run(encoded: &[u8]) -> Result<Vec<u8>, Failure> {
    let Some((directory, job)) = ApplicationJob::decode(encoded) else {
        return Err(Failure::Io);
    };
    let directory = Path::new(OsStr::from_bytes(directory));
    // The worker looks up the documents itself.
    let mut state = State::new(directory, Some(directory.to_owned()));
    let done = match job {
        ApplicationJob::Append(entry) => state
            .append(&entry)
            .map(|number| number.to_string().into_bytes()),
        ApplicationJob::Reset(reset) => state.reset(&reset).map(|()| Vec::new()),
        ApplicationJob::Log => state.log(),
        ApplicationJob::Tables => state.tables().map(|(users, ads)| {
            let length = (ads.len() as u64).to_le_bytes();
            [&length[..], &ads, &users].concat()
        }),
    };
    #[expect(clippy::disallowed_methods, reason = "a helper may wait")]
    done.map_err(|error| {
        // If standard error is closed, nothing can be reported.
        let _ = writeln!(io::stderr(), "headway: specweb99: {error}");
        Failure::Io
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            file: FileName::new(42, 1, 5).expect("a file"),
            client: 7,
            serial: 3,
            user: 10_003,
        }
    }

    const RESET: Reset = Reset {
        users: 20,
        seed: u64::MAX,
        time_s: 1_700_000_000,
        expired_percent: 10,
    };

    #[test]
    fn job_reads_back_as_encoded() {
        for job in [
            ApplicationJob::Append(entry()),
            ApplicationJob::Reset(RESET),
            ApplicationJob::Log,
            ApplicationJob::Tables,
        ] {
            let encoded = job.encode(b"/a b/c");
            assert_eq!(
                ApplicationJob::decode(&encoded),
                Some((&b"/a b/c"[..], job))
            );
        }
        for encoded in [
            &b""[..],
            b"/x",
            b"/x\0",
            b"/x\0append 1 2 3",
            b"/x\0append 1 9 3 4 5 6",
            b"/x\0log 1",
            b"/x\0reset 1 2 3 x",
        ] {
            assert_eq!(
                ApplicationJob::decode(encoded),
                None,
                "{}",
                encoded.escape_ascii()
            );
        }
    }

    #[test]
    fn helper_executes_encoded_jobs() {
        let directory_guard = tempfile::tempdir().expect("a directory");
        let directory = directory_guard.path().as_os_str().as_bytes();
        let done = |job: ApplicationJob| run(&job.encode(directory));
        assert_eq!(
            done(ApplicationJob::Log),
            Err(Failure::Io),
            "there is no log yet"
        );
        assert_eq!(done(ApplicationJob::Reset(RESET)), Ok(Vec::new()));
        assert_eq!(done(ApplicationJob::Append(entry())), Ok(b"1".to_vec()));
        assert_eq!(done(ApplicationJob::Append(entry())), Ok(b"2".to_vec()));
        let log = done(ApplicationJob::Log).expect("the log");
        assert_eq!(
            headway_specweb::post::read(&log).map(|records| records.len()),
            Ok(2)
        );
        let tables = done(ApplicationJob::Tables).expect("the tables");
        let (length, tables) = tables
            .split_first_chunk::<TABLES_HEAD_BYTES>()
            .expect("both");
        let (ads, users) = tables.split_at(u64::from_le_bytes(*length) as usize);
        let ads = std::str::from_utf8(ads).expect("text");
        assert_eq!(
            headway_specweb::Ads::parse(ads),
            Some(headway_specweb::Ads::generate(&RESET))
        );
        assert_eq!(
            users,
            headway_specweb::profile::users_file(&RESET).as_bytes()
        );
        assert_eq!(run(b"nonsense"), Err(Failure::Io));
    }
}
