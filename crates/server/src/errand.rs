//! What helpers do for the application of a SPECweb99-like measurement: append to its log, make its
//! tables anew, load them, hand out the log.
//!
//! All of it may wait, for a disk or for the log's lock, which other processes hold, too. A worker
//! says what it wants in a few words ([`Errand::words`]); a helper understands them and does it
//! ([`carry_out`]). Both are one binary, so words that make no sense are a mistake of ours.
//!
//! The words: the directory, NUL, a verb, and numbers, separated by blanks. What comes back: the
//! number of the record; nothing; the log; both tables with the length of the first before them.

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

/// What a helper is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errand {
    /// Append this; the record's number.
    Append(Entry),
    /// Make the tables anew, and empty the log.
    Reset(Reset),
    /// The log.
    Log,
    /// The advertisements, then the users.
    Tables,
}

impl Errand {
    /// For the application with its own files in `directory`.
    pub fn words(&self, directory: &[u8]) -> Vec<u8> {
        let said = match self {
            Errand::Append(entry) => {
                let (file, client) = (entry.file, entry.client);
                let (directory, class, number) = (file.directory(), file.class(), file.number());
                let (serial, user) = (entry.serial, entry.user);
                format!("append {directory} {class} {number} {client} {serial} {user}")
            }
            Errand::Reset(reset) => {
                let (users, seed, time_s) = (reset.users, reset.seed, reset.time_s);
                format!("reset {users} {seed} {time_s} {}", reset.expired_percent)
            }
            Errand::Log => "log".to_owned(),
            Errand::Tables => "tables".to_owned(),
        };
        [directory, b"\0", said.as_bytes()].concat()
    }

    /// The directory, and what is to be done there.
    fn read(words: &[u8]) -> Option<(&[u8], Errand)> {
        let at = words.iter().position(|byte| *byte == 0)?;
        let said = std::str::from_utf8(&words[at + 1..]).ok()?;
        let (verb, numbers) = said.split_once(' ').unwrap_or((said, ""));
        let numbers = numbers.split_ascii_whitespace();
        let numbers: Option<Vec<u64>> = numbers.map(|word| word.parse().ok()).collect();
        let small = |number: u64| u32::try_from(number).ok();
        let byte = |number: u64| u8::try_from(number).ok();
        let errand = match (verb, &numbers?[..]) {
            ("append", &[directory, class, number, client, serial, user]) => {
                Errand::Append(Entry {
                    file: FileName::new(small(directory)?, byte(class)?, byte(number)?)?,
                    client: small(client)?,
                    serial: small(serial)?,
                    user: small(user)?,
                })
            }
            ("reset", &[users, seed, time_s, expired]) => Errand::Reset(Reset {
                users: small(users)?,
                seed,
                time_s,
                expired_percent: byte(expired)?,
            }),
            ("log", []) => Errand::Log,
            ("tables", []) => Errand::Tables,
            _ => return None,
        };
        Some((&words[..at], errand))
    }
}

/// Before both tables: the length of the first, little-endian.
pub const TABLES_HEAD_BYTES: usize = 8;

/// Does it, in a helper. Why it cannot be done stands on standard error.
pub fn carry_out(words: &[u8]) -> Result<Vec<u8>, Failure> {
    let Some((directory, errand)) = Errand::read(words) else {
        return Err(Failure::Io);
    };
    let directory = Path::new(OsStr::from_bytes(directory));
    // Its documents are the worker's to find.
    let mut state = State::new(directory, Some(directory.to_owned()));
    let done = match errand {
        Errand::Append(entry) => state
            .append(&entry)
            .map(|number| number.to_string().into_bytes()),
        Errand::Reset(reset) => state.reset(&reset).map(|()| Vec::new()),
        Errand::Log => state.log(),
        Errand::Tables => state.tables().map(|(users, ads)| {
            let length = (ads.len() as u64).to_le_bytes();
            [&length[..], &ads, &users].concat()
        }),
    };
    done.map_err(|error| {
        // A standard error that is closed has no reader.
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
    fn errand_is_understood_when_it_was_put_into_words() {
        for errand in [
            Errand::Append(entry()),
            Errand::Reset(RESET),
            Errand::Log,
            Errand::Tables,
        ] {
            let words = errand.words(b"/a b/c");
            assert_eq!(Errand::read(&words), Some((&b"/a b/c"[..], errand)));
        }
        for words in [
            &b""[..],
            b"/x",
            b"/x\0",
            b"/x\0append 1 2 3",
            b"/x\0append 1 9 3 4 5 6",
            b"/x\0log 1",
            b"/x\0reset 1 2 3 x",
        ] {
            assert_eq!(Errand::read(words), None, "{}", words.escape_ascii());
        }
    }

    #[test]
    fn helper_does_what_the_words_say_when_the_files_are_there() {
        let place = tempfile::tempdir().expect("a directory");
        let directory = place.path().as_os_str().as_bytes();
        let done = |errand: Errand| carry_out(&errand.words(directory));
        assert_eq!(done(Errand::Log), Err(Failure::Io), "there is no log yet");
        assert_eq!(done(Errand::Reset(RESET)), Ok(Vec::new()));
        assert_eq!(done(Errand::Append(entry())), Ok(b"1".to_vec()));
        assert_eq!(done(Errand::Append(entry())), Ok(b"2".to_vec()));
        let log = done(Errand::Log).expect("the log");
        assert_eq!(
            headway_specweb::post::read(&log).map(|records| records.len()),
            Ok(2)
        );
        let tables = done(Errand::Tables).expect("the tables");
        let (length, tables) = tables
            .split_first_chunk::<TABLES_HEAD_BYTES>()
            .expect("both");
        let (ads, users) = tables.split_at(u64::from_le_bytes(*length) as usize);
        let ads = std::str::from_utf8(ads).expect("text");
        assert_eq!(
            headway_specweb::Ads::parse(ads),
            Some(headway_specweb::Ads::made(&RESET))
        );
        assert_eq!(
            users,
            headway_specweb::profile::users_file(&RESET).as_bytes()
        );
        assert_eq!(carry_out(b"nonsense"), Err(Failure::Io));
    }
}
