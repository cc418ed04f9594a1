//! Jobs that helpers do for the application: append to its log, rebuild its tables, load them, read
//! the log.
//!
//! Each of them may wait for a disk, or for the log's lock, which other processes use, too. A
//! worker encodes a job with [`AppJob::encode`]; a helper decodes and executes it ([`run`]). Both
//! are the same binary, so a job that cannot be decoded is a bug.
//!
//! Encoding: a verb, and numbers separated by blanks. Result: the number of the record; nothing; the
//! log; both tables preceded by the length of the first.

use std::io;
use std::path::Path;

use headway_specweb::FileName;
use headway_specweb::application::Files;
use headway_specweb::post::Entry;
use headway_specweb::state::State;
use headway_specweb::tables::Reset;

/// A job for a helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppJob {
    /// Append this entry; returns the number of its record.
    Append(Entry),
    /// Rebuild the tables and empty the log.
    Reset(Reset),
    /// Read the log.
    Log,
    /// Load the advertisements, then the users.
    Tables,
}

impl AppJob {
    /// Encodes the job.
    pub fn encode(&self) -> String {
        match self {
            AppJob::Append(entry) => {
                let (file, client) = (entry.file, entry.client);
                let (directory, class, number) = (file.directory(), file.class(), file.number());
                let (serial, user) = (entry.serial, entry.user);
                format!("append {directory} {class} {number} {client} {serial} {user}")
            }
            AppJob::Reset(reset) => {
                let (users, seed, time_s) = (reset.users, reset.seed, reset.time_s);
                format!("reset {users} {seed} {time_s} {}", reset.expired_percent)
            }
            AppJob::Log => "log".to_owned(),
            AppJob::Tables => "tables".to_owned(),
        }
    }

    fn decode(encoded: &[u8]) -> Option<AppJob> {
        let said = std::str::from_utf8(encoded).ok()?;
        let (verb, numbers) = said.split_once(' ').unwrap_or((said, ""));
        let numbers = numbers.split_ascii_whitespace();
        let numbers: Option<Vec<u64>> = numbers.map(|word| word.parse().ok()).collect();
        let small = |number: u64| u32::try_from(number).ok();
        let byte = |number: u64| u8::try_from(number).ok();
        Some(match (verb, &numbers?[..]) {
            ("append", &[directory, class, number, client, serial, user]) => {
                AppJob::Append(Entry {
                    file: FileName::new(small(directory)?, byte(class)?, byte(number)?)?,
                    client: small(client)?,
                    serial: small(serial)?,
                    user: small(user)?,
                })
            }
            ("reset", &[users, seed, time_s, expired]) => AppJob::Reset(Reset {
                users: small(users)?,
                seed,
                time_s,
                expired_percent: byte(expired)?,
            }),
            ("log", []) => AppJob::Log,
            ("tables", []) => AppJob::Tables,
            _ => return None,
        })
    }
}

/// Length of the prefix of both tables: the length of the first, little-endian.
pub const TABLES_HEAD_BYTES: usize = 8;

/// Executes a job on the application's files, in a helper.
pub fn run(directory: &Path, encoded: &[u8]) -> io::Result<Vec<u8>> {
    let Some(job) = AppJob::decode(encoded) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // The worker looks up the documents itself.
    let mut state = State::new(directory, Some(directory.to_owned()));
    match job {
        AppJob::Append(entry) => state
            .append(&entry)
            .map(|number| number.to_string().into_bytes()),
        AppJob::Reset(reset) => state.reset(&reset).map(|()| Vec::new()),
        AppJob::Log => state.log(),
        AppJob::Tables => state.tables().map(|(users, ads)| {
            let length = (ads.len() as u64).to_le_bytes();
            [&length[..], &ads, &users].concat()
        }),
    }
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
            AppJob::Append(entry()),
            AppJob::Reset(RESET),
            AppJob::Log,
            AppJob::Tables,
        ] {
            assert_eq!(AppJob::decode(job.encode().as_bytes()), Some(job));
        }
        for encoded in [
            &b""[..],
            b"x",
            b"append 1 2 3",
            b"append 1 9 3 4 5 6",
            b"log 1",
            b"reset 1 2 3 x",
            b"tables\xff",
        ] {
            assert_eq!(AppJob::decode(encoded), None, "{}", encoded.escape_ascii());
        }
    }

    #[test]
    fn helper_executes_encoded_jobs() {
        let directory_guard = tempfile::tempdir().expect("a directory");
        let directory = directory_guard.path();
        let done = |job: AppJob| run(directory, job.encode().as_bytes());
        assert!(done(AppJob::Log).is_err(), "there is no log yet");
        assert_eq!(done(AppJob::Reset(RESET)).expect("done"), b"");
        assert_eq!(done(AppJob::Append(entry())).expect("done"), b"1");
        assert_eq!(done(AppJob::Append(entry())).expect("done"), b"2");
        let log = done(AppJob::Log).expect("the log");
        assert_eq!(
            headway_specweb::post::read(&log).map(|records| records.len()),
            Ok(2)
        );
        let tables = done(AppJob::Tables).expect("the tables");
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
            headway_specweb::tables::users_file(&RESET).as_bytes()
        );
        assert!(run(directory, b"nonsense").is_err());
    }
}
