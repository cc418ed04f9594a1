//! The log of posts: one line of fixed length for each, numbered without a gap.
//!
//! The length makes the number of the next record the length of the file over that of a record, so
//! the log needs no counter beside it and whoever appends needs one lock. [`read`] and [`compare`]
//! are the client's: whether the log is whole and in order, and whether every post that was
//! acknowledged is in it, once.

use std::fmt;

use crate::file::FileName;

/// The length of a record.
pub const RECORD_BYTES: usize = 77;

/// What a client posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The file it is shown for it.
    pub file: FileName,
    /// Which connection of the client, from 0.
    pub client: u32,
    /// Its posts counted, from 1.
    pub serial: u32,
    /// The user of its cookie; 0 without one.
    pub user: u32,
}

/// A post in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number in the log, from 1.
    pub number: u64,
    /// When it was appended, in seconds since 1970.
    pub time_s: u64,
    /// The process that appended it.
    pub process: u32,
    /// What was posted.
    pub entry: Entry,
}

impl fmt::Display for Record {
    /// The line, its end included.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Record {
            number,
            time_s,
            process,
            entry,
        } = self;
        let Entry {
            file,
            client,
            serial,
            user,
        } = entry;
        let (directory, class, file) = (file.directory(), file.class(), file.number());
        writeln!(
            out,
            "{number:>10} {time_s:>10} {process:>10} {directory:>7} {class} {file} {client:>9} {serial:>10} {user:>10}"
        )
    }
}

/// Why bytes are not a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogFault {
    /// It ends within a record.
    #[error("the log has {0} bytes, which is no whole number of records of 77 bytes")]
    Torn(usize),
    /// A line is no record.
    #[error("line {line} of the log is no record: {text:?}")]
    Line {
        /// From 1.
        line: usize,
        /// What it is.
        text: String,
    },
    /// The numbers do not follow one another.
    #[error("line {line} of the log has the number {found}")]
    Number {
        /// From 1.
        line: usize,
        /// Its number.
        found: u64,
    },
    /// A record is older than the one before it.
    #[error("line {line} of the log is older than the one before it")]
    Time {
        /// From 1.
        line: usize,
    },
}

/// Reads a log; every line is a record, numbers go up by one, times do not go back.
///
/// # Errors
/// The first [`LogFault`].
pub fn read(log: &[u8]) -> Result<Vec<Record>, LogFault> {
    if !log.len().is_multiple_of(RECORD_BYTES) {
        return Err(LogFault::Torn(log.len()));
    }
    let mut records: Vec<Record> = Vec::with_capacity(log.len() / RECORD_BYTES);
    for (index, bytes) in log.chunks(RECORD_BYTES).enumerate() {
        let line = index + 1;
        let record = parse(bytes).ok_or_else(|| LogFault::Line {
            line,
            text: String::from_utf8_lossy(bytes).into_owned(),
        })?;
        if record.number != line as u64 {
            let found = record.number;
            return Err(LogFault::Number { line, found });
        }
        if records
            .last()
            .is_some_and(|last| record.time_s < last.time_s)
        {
            return Err(LogFault::Time { line });
        }
        records.push(record);
    }
    Ok(records)
}

fn parse(line: &[u8]) -> Option<Record> {
    let text = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let words: Vec<u64> = text
        .split_ascii_whitespace()
        .map(|word| word.parse().ok())
        .collect::<Option<_>>()?;
    let [
        number,
        time_s,
        process,
        directory,
        class,
        file,
        client,
        serial,
        user,
    ] = words[..]
    else {
        return None;
    };
    let small = |word: u64| u32::try_from(word).ok();
    let file = FileName::new(
        small(directory)?,
        u8::try_from(class).ok()?,
        u8::try_from(file).ok()?,
    )?;
    let record = Record {
        number,
        time_s,
        process: small(process)?,
        entry: Entry {
            file,
            client: small(client)?,
            serial: small(serial)?,
            user: small(user)?,
        },
    };
    // Another spelling of the same numbers was not written by us.
    (record.to_string().as_bytes() == line).then_some(record)
}

/// How a log differs from what its clients know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Records in the log.
    pub records: u64,
    /// Posts that were acknowledged and are not in it.
    pub missing: u64,
    /// Records of a client that come after a later one of the same client, or twice.
    pub out_of_order: u64,
    /// Records that nobody posted.
    pub unknown: u64,
}

impl Difference {
    /// Whether the log is what it should be.
    pub fn is_none(&self) -> bool {
        (self.missing, self.out_of_order, self.unknown) == (0, 0, 0)
    }
}

/// Compares a log with the clients' knowledge: `sent[client]` is the serial of its last post, and
/// `open` are those posts, as client and serial, that were not acknowledged and may be in the log
/// or not. A client posts one after the other, so its serials go up.
pub fn compare(records: &[Record], sent: &[u32], open: &[(u32, u32)]) -> Difference {
    let mut difference = Difference {
        records: records.len() as u64,
        ..Difference::default()
    };
    let mut last = vec![0_u32; sent.len()];
    let mut found = vec![0_u64; sent.len()];
    for Record { entry, .. } in records {
        let client = entry.client as usize;
        match sent.get(client) {
            Some(&sent) if (1..=sent).contains(&entry.serial) => {}
            _ => {
                difference.unknown += 1;
                continue;
            }
        }
        if entry.serial <= last[client] {
            difference.out_of_order += 1;
            continue;
        }
        last[client] = entry.serial;
        let known = !open.contains(&(entry.client, entry.serial));
        found[client] += u64::from(known);
    }
    for (client, (&sent, found)) in sent.iter().zip(found).enumerate() {
        let open = open.iter().filter(|(of, _)| *of as usize == client).count() as u64;
        difference.missing += u64::from(sent).saturating_sub(open + found);
    }
    difference
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u64, client: u32, serial: u32) -> Record {
        Record {
            number,
            time_s: 1_700_000_000 + number,
            process: 77,
            entry: Entry {
                file: FileName::new(12, 1, 3).expect("a file"),
                client,
                serial,
                user: 10_000 + client,
            },
        }
    }

    fn log(records: &[Record]) -> Vec<u8> {
        records
            .iter()
            .map(Record::to_string)
            .collect::<String>()
            .into_bytes()
    }

    #[test]
    fn records_are_read_again_when_they_were_written() {
        let records = [record(1, 0, 1), record(2, 5, 1), record(3, 0, 2)];
        let log = log(&records);
        assert_eq!(log.len(), 3 * RECORD_BYTES);
        assert_eq!(read(&log), Ok(records.to_vec()));
        assert_eq!(read(b""), Ok(Vec::new()));
    }

    #[test]
    fn largest_numbers_keep_the_length_when_they_are_written() {
        let mut large = record(9_999_999_999, 999_999_999, u32::MAX);
        large.process = u32::MAX;
        large.time_s = 9_999_999_999;
        large.entry.user = u32::MAX;
        large.entry.file = FileName::new((1 << 20) - 1, 3, 9).expect("a file");
        assert_eq!(large.to_string().len(), RECORD_BYTES);
    }

    #[test]
    fn fault_is_named_when_a_log_is_not_whole_or_not_in_order() {
        let good = log(&[record(1, 0, 1), record(2, 0, 2)]);
        assert_eq!(read(&good[..100]), Err(LogFault::Torn(100)));
        let mut bad = good.clone();
        bad[80] = b'x';
        assert!(matches!(read(&bad), Err(LogFault::Line { line: 2, .. })));
        let gap = log(&[record(1, 0, 1), record(3, 0, 2)]);
        assert_eq!(read(&gap), Err(LogFault::Number { line: 2, found: 3 }));
        let mut older = record(2, 0, 2);
        older.time_s = 5;
        assert_eq!(
            read(&log(&[record(1, 0, 1), older])),
            Err(LogFault::Time { line: 2 })
        );
    }

    #[test]
    fn differences_are_counted_apart_when_log_and_clients_disagree() {
        let records = [record(1, 0, 1), record(2, 1, 1), record(3, 0, 2)];
        assert!(compare(&records, &[2, 1], &[]).is_none());
        let of = |records: &[Record], sent: &[u32], open: &[(u32, u32)]| {
            let found = compare(records, sent, open);
            (found.missing, found.out_of_order, found.unknown)
        };
        assert_eq!(
            of(&records, &[3, 1], &[]),
            (1, 0, 0),
            "the third of 0 is lost"
        );
        assert_eq!(
            of(&records, &[3, 1], &[(0, 3)]),
            (0, 0, 0),
            "it was never acknowledged"
        );
        assert_eq!(
            of(&records, &[2, 1], &[(0, 2)]),
            (0, 0, 0),
            "not acknowledged, and there"
        );
        assert_eq!(of(&records, &[2], &[]), (0, 0, 1), "nobody is client 1");
        let turned = [record(1, 0, 2), record(2, 0, 1)];
        assert_eq!(of(&turned, &[2], &[]), (1, 1, 0));
        let twice = [record(1, 0, 1), record(2, 0, 1)];
        assert_eq!(of(&twice, &[1], &[]), (0, 1, 0));
    }
}
