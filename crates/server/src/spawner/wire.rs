//! The messages between a worker and its spawner, as pure functions on bytes.
//!
//! One message is one `SOCK_SEQPACKET` packet; descriptors travel beside it
//! (`headway_os::fd_passing`). Integers are little-endian, a string is its length as u32 and its
//! bytes, a list its length as u32 and its strings.
//!
//! | kind | message | fields after the kind byte | descriptors |
//! |---|---|---|---|
//! | 1 | Spawn | id u64, process tag u64, memory u64, processes u64, joined u8 (0, 1), directory, path, arguments, environment | output, then input if there is one; input alone if joined |
//! | 2 | Release | id u64, timeout u32 (ms) | – |
//! | 3 | Kill | id u64, process tag u64 | – |
//! | 4 | Note | id u64, text | – |
//! | 5 | Start | 0, or 1, user u32, group u32 and name (empty for none) | – |
//! | 129 | Spawned | id u64, process u32, time u32 (us) | – |
//! | 130 | Failed | id u64, step u8, errno u32 | – |
//! | 131 | Ended | id u64, 0 and exit code u32, or 1 and signal u32 | – |
//!
//! Start is the first order and comes from the master. Every Spawn is answered by Spawned or
//! Failed, and every Spawned is followed by one Ended. Both ends are the same binary, so no version
//! is negotiated; a malformed message is a bug.

use std::ffi::CString;

use headway_os::spawn::{SpawnError, SpawnStage};
use rustix::io::Errno;

use crate::config::Account;

/// Longest message. With its descriptors it must fit into a socket's buffer (212,992 bytes by
/// default).
pub const MESSAGE_BYTES_MAX: usize = 128 * 1024;
/// Most descriptors of a message.
pub const DESCRIPTORS_MAX: usize = 2;

/// `processes-max` is not configured: the spawner's default applies.
pub const PROCESSES_DEFAULT: u64 = u64::MAX;

/// A message that does not match the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("malformed message: {what}")]
pub struct Malformed {
    what: &'static str,
}

const fn malformed(what: &'static str) -> Malformed {
    Malformed { what }
}

/// A program to start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Launch {
    /// The tag of the program and its descendants ([`super::process_tag`]); 0 for none.
    pub process_tag: u64,
    /// Limit of the address space in bytes; 0 means no limit.
    pub memory_bytes_max: u64,
    /// Limit of the user's processes; 0 means no limit, [`PROCESSES_DEFAULT`] the spawner's
    /// default.
    pub processes_max: u64,
    /// The output goes where standard error goes. Only a long-running program has this, so what it
    /// may write is limited per minute.
    pub joined: bool,
    /// The working directory.
    pub directory: CString,
    /// The executable.
    pub path: CString,
    /// All arguments, including the program's name.
    pub arguments: Vec<CString>,
    /// All environment variables.
    pub environment: Vec<CString>,
}

/// A message from the master (Start) or the worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SpawnerOrder {
    /// Serve from now on, as this user if there is one.
    Start {
        /// The user of all programs; `None` is that of the server.
        user: Option<Account>,
    },
    /// Start a program.
    Spawn {
        /// The program's ID.
        id: u64,
        /// The program to start.
        launch: Launch,
    },
    /// The response is complete: let the program exit by itself, then kill the rest of its group.
    Release {
        /// The program's ID.
        id: u64,
        /// The program is killed after this time.
        timeout_ms: u32,
    },
    /// Kill the program, its group, and all processes with its tag.
    Kill {
        /// The program's ID.
        id: u64,
        /// The tag, for a program of a previous spawner; 0 for none.
        process_tag: u64,
    },
    /// A message of the worker about a program, for standard error.
    Note {
        /// The program's ID.
        id: u64,
        /// The message, one line.
        text: CString,
    },
}

/// A message from the spawner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpawnerReport {
    /// The program runs.
    Spawned {
        /// The program's ID.
        id: u64,
        /// The process ID.
        pid: u32,
        /// How long it took to create the process.
        spawn_us: u32,
    },
    /// The program could not be started.
    Failed {
        /// The program's ID.
        id: u64,
        /// The step that failed, and why.
        error: SpawnError,
    },
    /// The program has exited.
    Ended {
        /// The program's ID.
        id: u64,
        /// How the program ended.
        end: ExitStatus,
    },
}

/// How a program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitStatus {
    /// With this exit code.
    Exit(u32),
    /// By this signal.
    Signal(u32),
}

/// Appends an encoded order. Returns `false` if it exceeds the message limit.
pub fn encode_order(order: &SpawnerOrder, bytes: &mut Vec<u8>) -> bool {
    match order {
        SpawnerOrder::Spawn { id, launch } => {
            put_id(bytes, 1, *id);
            bytes.extend(launch.process_tag.to_le_bytes());
            bytes.extend(launch.memory_bytes_max.to_le_bytes());
            bytes.extend(launch.processes_max.to_le_bytes());
            bytes.push(u8::from(launch.joined));
            put_string(bytes, &launch.directory);
            put_string(bytes, &launch.path);
            put_list(bytes, &launch.arguments);
            put_list(bytes, &launch.environment);
        }
        SpawnerOrder::Release { id, timeout_ms } => {
            put_id(bytes, 2, *id);
            bytes.extend(timeout_ms.to_le_bytes());
        }
        SpawnerOrder::Kill { id, process_tag } => {
            put_id(bytes, 3, *id);
            bytes.extend(process_tag.to_le_bytes());
        }
        SpawnerOrder::Note { id, text } => {
            put_id(bytes, 4, *id);
            put_string(bytes, text);
        }
        SpawnerOrder::Start { user: None } => bytes.extend([5, 0]),
        SpawnerOrder::Start {
            user: Some(account),
        } => {
            bytes.extend([5, 1]);
            bytes.extend(account.user.to_le_bytes());
            bytes.extend(account.group.to_le_bytes());
            put_string(bytes, account.name.as_ref().unwrap_or(&CString::default()));
        }
    }
    bytes.len() <= MESSAGE_BYTES_MAX
}

/// Appends an encoded report.
pub fn encode_report(report: &SpawnerReport, bytes: &mut Vec<u8>) {
    match report {
        SpawnerReport::Spawned { id, pid, spawn_us } => {
            put_id(bytes, 129, *id);
            bytes.extend(pid.to_le_bytes());
            bytes.extend(spawn_us.to_le_bytes());
        }
        SpawnerReport::Failed { id, error } => {
            put_id(bytes, 130, *id);
            bytes.push(error.step.number());
            bytes.extend(error.errno.raw_os_error().to_le_bytes());
        }
        SpawnerReport::Ended { id, end } => {
            put_id(bytes, 131, *id);
            let (kind, number) = match end {
                ExitStatus::Exit(code) => (0, code),
                ExitStatus::Signal(signal) => (1, signal),
            };
            bytes.push(kind);
            bytes.extend(number.to_le_bytes());
        }
    }
}

/// Decodes an order.
///
/// # Errors
/// [`Malformed`].
pub fn decode_order(bytes: &[u8]) -> Result<SpawnerOrder, Malformed> {
    let mut rest = Reader(bytes);
    let order = match rest.u8()? {
        1 => SpawnerOrder::Spawn {
            id: rest.u64()?,
            launch: Launch {
                process_tag: rest.u64()?,
                memory_bytes_max: rest.u64()?,
                processes_max: rest.u64()?,
                joined: match rest.u8()? {
                    0 => false,
                    1 => true,
                    _ => return Err(malformed("joined is neither 0 nor 1")),
                },
                directory: rest.string()?,
                path: rest.string()?,
                arguments: rest.list()?,
                environment: rest.list()?,
            },
        },
        2 => SpawnerOrder::Release {
            id: rest.u64()?,
            timeout_ms: rest.u32()?,
        },
        3 => SpawnerOrder::Kill {
            id: rest.u64()?,
            process_tag: rest.u64()?,
        },
        4 => SpawnerOrder::Note {
            id: rest.u64()?,
            text: rest.string()?,
        },
        5 => SpawnerOrder::Start {
            user: match rest.u8()? {
                0 => None,
                1 => Some(Account {
                    user: rest.u32()?,
                    group: rest.u32()?,
                    name: Some(rest.string()?).filter(|name| !name.is_empty()),
                }),
                _ => return Err(malformed("user is neither 0 nor 1")),
            },
        },
        _ => return Err(malformed("unknown order")),
    };
    rest.end()?;
    Ok(order)
}

/// Decodes a report.
///
/// # Errors
/// [`Malformed`].
pub fn decode_report(bytes: &[u8]) -> Result<SpawnerReport, Malformed> {
    let mut rest = Reader(bytes);
    let report = match rest.u8()? {
        129 => SpawnerReport::Spawned {
            id: rest.u64()?,
            pid: rest.u32()?,
            spawn_us: rest.u32()?,
        },
        130 => SpawnerReport::Failed {
            id: rest.u64()?,
            error: SpawnError {
                step: SpawnStage::from_number(rest.u8()?).ok_or(malformed("unknown step"))?,
                errno: Errno::from_raw_os_error(rest.u32()? as i32),
            },
        },
        131 => SpawnerReport::Ended {
            id: rest.u64()?,
            end: match (rest.u8()?, rest.u32()?) {
                (0, code) => ExitStatus::Exit(code),
                (1, signal) => ExitStatus::Signal(signal),
                _ => return Err(malformed("unknown end")),
            },
        },
        _ => return Err(malformed("unknown report")),
    };
    rest.end()?;
    Ok(report)
}

fn put_id(bytes: &mut Vec<u8>, kind: u8, id: u64) {
    bytes.push(kind);
    bytes.extend(id.to_le_bytes());
}

fn put_string(bytes: &mut Vec<u8>, string: &CString) {
    bytes.extend((string.as_bytes().len() as u32).to_le_bytes());
    bytes.extend(string.as_bytes());
}

fn put_list(bytes: &mut Vec<u8>, list: &[CString]) {
    bytes.extend((list.len() as u32).to_le_bytes());
    list.iter().for_each(|string| put_string(bytes, string));
}

struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, length: usize) -> Result<&'b [u8], Malformed> {
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(malformed("too short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], Malformed> {
        let taken = self.take(LENGTH)?;
        taken.try_into().map_err(|_| malformed("too short"))
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    fn string(&mut self) -> Result<CString, Malformed> {
        let length = self.u32()? as usize;
        CString::new(self.take(length)?).map_err(|_| malformed("NUL in a string"))
    }

    fn list(&mut self) -> Result<Vec<CString>, Malformed> {
        let length = self.u32()?;
        (0..length).map(|_| self.string()).collect()
    }

    fn end(&self) -> Result<(), Malformed> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(malformed("too long")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders() -> Vec<SpawnerOrder> {
        let launch = Launch {
            process_tag: 9 << 59,
            memory_bytes_max: 1 << 40,
            processes_max: 7,
            joined: true,
            directory: c"/srv".into(),
            path: c"/srv/a b".into(),
            arguments: vec![c"a b".into(), c"".into()],
            environment: vec![c"A=\xff".into()],
        };
        vec![
            SpawnerOrder::Spawn {
                id: u64::MAX,
                launch,
            },
            SpawnerOrder::Spawn {
                id: 0,
                launch: Launch::default(),
            },
            SpawnerOrder::Release {
                id: 3,
                timeout_ms: 1000,
            },
            SpawnerOrder::Kill {
                id: 4,
                process_tag: 6,
            },
            SpawnerOrder::Note {
                id: 5,
                text: c"it said nothing".into(),
            },
            SpawnerOrder::Start { user: None },
            SpawnerOrder::Start {
                user: Some(Account {
                    name: Some(c"www-cgi".into()),
                    user: 1001,
                    group: 33,
                }),
            },
        ]
    }

    fn reports() -> Vec<SpawnerReport> {
        let error = SpawnError {
            step: SpawnStage::Execute,
            errno: Errno::NOENT,
        };
        vec![
            SpawnerReport::Spawned {
                id: 1,
                pid: 77,
                spawn_us: 300,
            },
            SpawnerReport::Failed { id: 2, error },
            SpawnerReport::Ended {
                id: 3,
                end: ExitStatus::Exit(3),
            },
            SpawnerReport::Ended {
                id: 4,
                end: ExitStatus::Signal(9),
            },
        ]
    }

    #[test]
    fn spawner_messages_read_back_as_written() {
        for order in orders() {
            let mut bytes = Vec::new();
            assert!(encode_order(&order, &mut bytes));
            assert_eq!(decode_order(&bytes), Ok(order));
        }
        for report in reports() {
            let mut bytes = Vec::new();
            encode_report(&report, &mut bytes);
            assert_eq!(decode_report(&bytes), Ok(report));
        }
    }

    #[test]
    fn truncated_or_overlong_spawner_message_is_rejected() {
        let mut all: Vec<Vec<u8>> = Vec::new();
        for order in orders() {
            let mut bytes = Vec::new();
            encode_order(&order, &mut bytes);
            all.push(bytes);
        }
        for bytes in all {
            for length in 0..bytes.len() {
                assert!(
                    decode_order(&bytes[..length]).is_err(),
                    "{length} of {bytes:?}"
                );
            }
            assert!(decode_order(&[bytes, vec![0]].concat()).is_err());
        }
        for report in reports() {
            let mut bytes = Vec::new();
            encode_report(&report, &mut bytes);
            assert!(decode_report(&bytes[..bytes.len() - 1]).is_err());
            assert!(decode_order(&bytes).is_err(), "a report is no order");
        }
    }

    #[test]
    fn order_with_too_many_variables_is_too_long() {
        let order = SpawnerOrder::Spawn {
            id: 1,
            launch: Launch {
                environment: vec![CString::new(vec![b'x'; MESSAGE_BYTES_MAX]).unwrap()],
                ..Launch::default()
            },
        };
        assert!(!encode_order(&order, &mut Vec::new()));
    }
}
