//! The log of posts: one line of fixed length per post, numbered without a gap.
//!
//! The number of the next record is the length of the file divided by that of a record, so the log
//! needs no separate counter, and appending needs one lock. [`read`] and [`compare`] are for the
//! client: whether the log is complete and in order, and whether it contains every acknowledged
//! post once.

use std::fmt;

use crate::file::FileName;

/// Length of a record.
pub const RECORD_BYTES: usize = 77;

/// The content of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The file that the client gets in response.
    pub file: FileName,
    /// The client's connection, from 0.
    pub client: u32,
    /// Number of the post on that connection, from 1.
    pub serial: u32,
    /// The user in the post's cookie; 0 without one.
    pub user: u32,
}

/// A record in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The number in the log, from 1.
    pub number: u64,
    /// When the record was appended, in seconds since 1970.
    pub time_s: u64,
    /// The process that appended the record.
    pub process: u32,
    /// The post.
    pub entry: Entry,
}

impl fmt::Display for Record {
    /// The line, including its line ending.
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
    /// The log ends within a record.
    #[error("the log has {0} bytes, which is not a multiple of the record length of 77")]
    Torn(usize),
    /// A line is not a record.
    #[error("line {line} of the log is not a record: {text:?}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// The line.
        text: String,
    },
    /// The numbers are not consecutive.
    #[error("line {line} of the log has the number {found}")]
    Number {
        /// Counted from 1.
        line: usize,
        /// The record's number.
        found: u64,
    },
    /// A record is older than the previous one.
    #[error("line {line} of the log is older than the one before it")]
    Time {
        /// Counted from 1.
        line: usize,
    },
}

/// Parses a log: every line is a record, numbers increase by one, times do not decrease.
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
    let numbers: Vec<u64> = text
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
    ] = numbers[..]
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
    // A different spelling of the same numbers was not written by this code.
    (record.to_string().as_bytes() == line).then_some(record)
}

/// Differences between a log and what its clients know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Records in the log.
    pub records: u64,
    /// Acknowledged posts that are missing.
    pub missing: u64,
    /// Records of a client that follow a later one of the same client, or are repeated.
    pub out_of_order: u64,
    /// Records that no client posted.
    pub unknown: u64,
}

impl Difference {
    /// Whether there is no difference.
    pub fn is_none(&self) -> bool {
        (self.missing, self.out_of_order, self.unknown) == (0, 0, 0)
    }
}

/// Compares a log with the clients' knowledge. `sent[client]` is the serial of the client's last
/// post; `open` are posts, as client and serial, that were not acknowledged and may or may not be
/// in the log. A client posts one after the other, so its serials increase.
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
    fn log_records_read_back_as_written() {
        let records = [record(1, 0, 1), record(2, 5, 1), record(3, 0, 2)];
        let log = log(&records);
        assert_eq!(log.len(), 3 * RECORD_BYTES);
        assert_eq!(read(&log), Ok(records.to_vec()));
        assert_eq!(read(b""), Ok(Vec::new()));
    }

    #[test]
    fn log_record_length_holds_for_the_largest_numbers() {
        let mut large = record(9_999_999_999, 999_999_999, u32::MAX);
        large.process = u32::MAX;
        large.time_s = 9_999_999_999;
        large.entry.user = u32::MAX;
        large.entry.file = FileName::new((1 << 20) - 1, 3, 9).expect("a file");
        assert_eq!(large.to_string().len(), RECORD_BYTES);
    }

    #[test]
    fn log_fault_is_reported_when_truncated_or_out_of_order() {
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
    fn log_differences_are_counted_by_kind() {
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
        assert_eq!(of(&records, &[2], &[]), (0, 0, 1), "no client has number 1");
        let turned = [record(1, 0, 2), record(2, 0, 1)];
        assert_eq!(of(&turned, &[2], &[]), (1, 1, 0));
        let twice = [record(1, 0, 1), record(2, 0, 1)];
        assert_eq!(of(&twice, &[1], &[]), (0, 1, 0));
    }
}
