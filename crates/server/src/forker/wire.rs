//! What a worker and its fork helper say to each other, as pure functions on bytes.
//!
//! One message is one `SOCK_SEQPACKET` packet; descriptors travel beside it (`headway_os::rights`).
//! Integers are little-endian, a string is its length as u32 and its bytes, a list its length as
//! u32 and its strings.
//!
//! | kind | message | fields after the kind byte | descriptors |
//! |---|---|---|---|
//! | 1 | Spawn | id u64, mark u64, memory u64, processes u64, joined u8 (0, 1), directory, path, arguments, environment | output, then input if there is one; input alone if joined |
//! | 2 | Release | id u64, patience u32 (ms) | – |
//! | 3 | Kill | id u64, mark u64 | – |
//! | 4 | Note | id u64, text | – |
//! | 129 | Spawned | id u64, process u32, time u32 (us) | – |
//! | 130 | Failed | id u64, step u8, errno u32 | – |
//! | 131 | Ended | id u64, 0 and exit code u32, or 1 and signal u32 | – |
//!
//! Every Spawn is answered by Spawned or Failed, and every Spawned is followed by one Ended. The
//! two ends are one binary started by one master, so there is no version to negotiate; a message
//! that is malformed is a mistake of ours.

use std::ffi::CString;

use headway_os::spawn::{SpawnError, Step};
use rustix::io::Errno;

/// No message is longer: with its descriptors it has to fit into a socket's buffer (212,992 bytes
/// unless an administrator has changed it).
pub const MESSAGE_BYTES_MAX: usize = 128 * 1024;
/// No message has more descriptors.
pub const DESCRIPTORS_MAX: usize = 2;

/// Nobody has said how many processes there may be.
pub const PROCESSES_UNSAID: u64 = u64::MAX;

/// A message that is not one of the table's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("malformed message: {what}")]
pub struct Malformed {
    what: &'static str,
}

const fn malformed(what: &'static str) -> Malformed {
    Malformed { what }
}

/// What to start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Launch {
    /// What it and its descendants are known by ([`super::mark`]); 0: nothing.
    pub mark: u64,
    /// Bytes of address space; 0 is no bound.
    pub memory_bytes_max: u64,
    /// Processes of the user; 0 is no bound, [`PROCESSES_UNSAID`] the fork helper's.
    pub processes_max: u64,
    /// Its output is said like its standard error; it stays, so what it may say is counted by the
    /// minute.
    pub joined: bool,
    /// Where it starts.
    pub directory: CString,
    /// The file.
    pub path: CString,
    /// All arguments, the program's name included.
    pub arguments: Vec<CString>,
    /// All variables.
    pub environment: Vec<CString>,
}

/// From the worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// Start a program.
    Spawn {
        /// The worker's number for it.
        id: u64,
        /// What to start.
        launch: Launch,
    },
    /// Its reply is complete: let it end by itself, then end what it has left behind.
    Release {
        /// Which program.
        id: u64,
        /// After so long it is killed.
        patience_ms: u32,
    },
    /// End it, all of its group, and all who bear its mark.
    Kill {
        /// Which program.
        id: u64,
        /// Its mark, for one that was started by another fork helper, which has died; 0 for none.
        mark: u64,
    },
    /// What the worker has to say about it, for standard error.
    Note {
        /// Which program.
        id: u64,
        /// One line.
        text: CString,
    },
}

/// From the fork helper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Report {
    /// It runs.
    Spawned {
        /// Which program.
        id: u64,
        /// Its process.
        pid: u32,
        /// How long it took to make.
        spawn_us: u32,
    },
    /// It could not be started.
    Failed {
        /// Which program.
        id: u64,
        /// What failed, and why.
        error: SpawnError,
    },
    /// It has ended, by itself or not.
    Ended {
        /// Which program.
        id: u64,
        /// How.
        end: End,
    },
}

/// How a program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It returned.
    Exit(u32),
    /// By this signal.
    Signal(u32),
}

/// Appends the bytes of an order. `false`: it is longer than a message may be.
pub fn encode_order(order: &Order, bytes: &mut Vec<u8>) -> bool {
    match order {
        Order::Spawn { id, launch } => {
            put_id(bytes, 1, *id);
            bytes.extend(launch.mark.to_le_bytes());
            bytes.extend(launch.memory_bytes_max.to_le_bytes());
            bytes.extend(launch.processes_max.to_le_bytes());
            bytes.push(u8::from(launch.joined));
            put_string(bytes, &launch.directory);
            put_string(bytes, &launch.path);
            put_list(bytes, &launch.arguments);
            put_list(bytes, &launch.environment);
        }
        Order::Release { id, patience_ms } => {
            put_id(bytes, 2, *id);
            bytes.extend(patience_ms.to_le_bytes());
        }
        Order::Kill { id, mark } => {
            put_id(bytes, 3, *id);
            bytes.extend(mark.to_le_bytes());
        }
        Order::Note { id, text } => {
            put_id(bytes, 4, *id);
            put_string(bytes, text);
        }
    }
    bytes.len() <= MESSAGE_BYTES_MAX
}

/// Appends the bytes of a report.
pub fn encode_report(report: &Report, bytes: &mut Vec<u8>) {
    match report {
        Report::Spawned { id, pid, spawn_us } => {
            put_id(bytes, 129, *id);
            bytes.extend(pid.to_le_bytes());
            bytes.extend(spawn_us.to_le_bytes());
        }
        Report::Failed { id, error } => {
            put_id(bytes, 130, *id);
            bytes.push(error.step.number());
            bytes.extend(error.errno.raw_os_error().to_le_bytes());
        }
        Report::Ended { id, end } => {
            put_id(bytes, 131, *id);
            let (kind, number) = match end {
                End::Exit(code) => (0, code),
                End::Signal(signal) => (1, signal),
            };
            bytes.push(kind);
            bytes.extend(number.to_le_bytes());
        }
    }
}

/// Reads an order.
///
/// # Errors
/// [`Malformed`].
pub fn decode_order(bytes: &[u8]) -> Result<Order, Malformed> {
    let mut rest = Reader(bytes);
    let order = match rest.u8()? {
        1 => Order::Spawn {
            id: rest.u64()?,
            launch: Launch {
                mark: rest.u64()?,
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
        2 => Order::Release {
            id: rest.u64()?,
            patience_ms: rest.u32()?,
        },
        3 => Order::Kill {
            id: rest.u64()?,
            mark: rest.u64()?,
        },
        4 => Order::Note {
            id: rest.u64()?,
            text: rest.string()?,
        },
        _ => return Err(malformed("unknown order")),
    };
    rest.end()?;
    Ok(order)
}

/// Reads a report.
///
/// # Errors
/// [`Malformed`].
pub fn decode_report(bytes: &[u8]) -> Result<Report, Malformed> {
    let mut rest = Reader(bytes);
    let report = match rest.u8()? {
        129 => Report::Spawned {
            id: rest.u64()?,
            pid: rest.u32()?,
            spawn_us: rest.u32()?,
        },
        130 => Report::Failed {
            id: rest.u64()?,
            error: SpawnError {
                step: Step::from_number(rest.u8()?).ok_or(malformed("unknown step"))?,
                errno: Errno::from_raw_os_error(rest.u32()? as i32),
            },
        },
        131 => Report::Ended {
            id: rest.u64()?,
            end: match (rest.u8()?, rest.u32()?) {
                (0, code) => End::Exit(code),
                (1, signal) => End::Signal(signal),
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

    fn orders() -> Vec<Order> {
        let launch = Launch {
            mark: 9 << 59,
            memory_bytes_max: 1 << 40,
            processes_max: 7,
            joined: true,
            directory: c"/srv".into(),
            path: c"/srv/a b".into(),
            arguments: vec![c"a b".into(), c"".into()],
            environment: vec![c"A=\xff".into()],
        };
        vec![
            Order::Spawn {
                id: u64::MAX,
                launch,
            },
            Order::Spawn {
                id: 0,
                launch: Launch::default(),
            },
            Order::Release {
                id: 3,
                patience_ms: 1000,
            },
            Order::Kill { id: 4, mark: 6 },
            Order::Note {
                id: 5,
                text: c"it said nothing".into(),
            },
        ]
    }

    fn reports() -> Vec<Report> {
        let error = SpawnError {
            step: Step::Execute,
            errno: Errno::NOENT,
        };
        vec![
            Report::Spawned {
                id: 1,
                pid: 77,
                spawn_us: 300,
            },
            Report::Failed { id: 2, error },
            Report::Ended {
                id: 3,
                end: End::Exit(3),
            },
            Report::Ended {
                id: 4,
                end: End::Signal(9),
            },
        ]
    }

    #[test]
    fn messages_are_the_same_when_they_have_travelled() {
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
    fn message_is_refused_when_it_is_cut_or_goes_on() {
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
    fn order_is_too_long_when_its_variables_are() {
        let order = Order::Spawn {
            id: 1,
            launch: Launch {
                environment: vec![CString::new(vec![b'x'; MESSAGE_BYTES_MAX]).unwrap()],
                ..Launch::default()
            },
        };
        assert!(!encode_order(&order, &mut Vec::new()));
    }
}
