//! The messages between a worker and its spawner.
//!
//! One message is one `SOCK_SEQPACKET` packet; descriptors travel beside it
//! (`headway_os::fd_passing`). [`headway_os::codec`] says how the tables below become bytes.
//!
//! Start is the first order and comes from the master. Every Spawn is answered by Spawned or
//! Failed, and every Spawned is followed by one Ended. Only Spawn has descriptors: output, then
//! input if there is one, or input alone if the output is joined.

use std::ffi::CString;

pub use headway_os::codec::Malformed;
use headway_os::codec::{Field, Version, decode};
use headway_os::encoding;
use headway_os::spawn::SpawnError;

use headway_config::Account;

/// Longest message. With its descriptors it must fit into a socket's buffer (212,992 bytes by
/// default).
pub const MESSAGE_BYTES_MAX: usize = 128 * 1024;
/// Most descriptors of a message.
pub const DESCRIPTORS_MAX: usize = 2;

/// `processes-max` is not configured: the spawner's default applies.
pub const PROCESSES_DEFAULT: u64 = u64::MAX;

/// A program to start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Launch {
    /// The tag of the program and its descendants ([`super::process_tag`]); 0 for none.
    pub process_tag: u64,
    /// Limit of the address space in bytes; 0 means no limit.
    pub memory_bytes_max: u64,
    /// Limit of the CPU time of each process in seconds; 0 means no limit.
    pub cpu_s_max: u64,
    /// Limit of the open files of each process.
    pub open_files_max: u64,
    /// Limit of the user's processes; 0 means no limit, [`PROCESSES_DEFAULT`] the spawner's
    /// default.
    pub processes_max: u64,
    /// The output goes where standard error goes. Only a long-running program has this, so what
    /// it may write is limited per minute.
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
    /// Start a program.
    Spawn {
        /// The program's ID.
        id: u64,
        /// The program to start.
        launch: Launch,
    },
    /// The response is complete: let the program exit by itself, then kill the rest of its
    /// group.
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
    /// Serve from now on, as this user if there is one.
    Start {
        /// The version of these tables.
        version: Version<2>,
        /// Whether messages are JSON.
        json: bool,
        /// The user of all programs; `None` is that of the server.
        user: Option<Account>,
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

encoding! {
    enum SpawnerOrder {
        1 => Spawn { id, launch },
        2 => Release { id, timeout_ms },
        3 => Kill { id, process_tag },
        4 => Note { id, text },
        5 => Start { version, json, user },
    }
}

encoding! {
    struct Launch {
        process_tag,
        memory_bytes_max,
        cpu_s_max,
        open_files_max,
        processes_max,
        joined,
        directory,
        path,
        arguments,
        environment,
    }
}

encoding! {
    enum SpawnerReport {
        129 => Spawned { id, pid, spawn_us },
        130 => Failed { id, error },
        131 => Ended { id, end },
    }
}

encoding! {
    enum ExitStatus {
        0 => Exit(code),
        1 => Signal(signal),
    }
}

/// Appends an encoded order. Returns `false` if it exceeds the message limit.
pub fn encode_order(order: &SpawnerOrder, bytes: &mut Vec<u8>) -> bool {
    order.write(bytes);
    bytes.len() <= MESSAGE_BYTES_MAX
}

/// Appends an encoded report.
pub fn encode_report(report: &SpawnerReport, bytes: &mut Vec<u8>) {
    report.write(bytes);
}

/// Decodes an order.
///
/// # Errors
/// [`Malformed`].
pub fn decode_order(bytes: &[u8]) -> Result<SpawnerOrder, Malformed> {
    decode(bytes)
}

/// Decodes a report.
///
/// # Errors
/// [`Malformed`].
pub fn decode_report(bytes: &[u8]) -> Result<SpawnerReport, Malformed> {
    decode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_os::spawn::SpawnStage;
    use rustix::io::Errno;

    fn orders() -> Vec<SpawnerOrder> {
        let launch = Launch {
            process_tag: 9 << 59,
            memory_bytes_max: 1 << 40,
            cpu_s_max: 30,
            open_files_max: 256,
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
            SpawnerOrder::Start {
                version: Version,
                json: true,
                user: None,
            },
            SpawnerOrder::Start {
                version: Version,
                json: true,
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

    #[test]
    fn report_is_malformed_when_its_error_number_is_none_of_the_kernels() {
        let report = SpawnerReport::Failed {
            id: 7,
            error: SpawnError {
                step: SpawnStage::Execute,
                errno: Errno::NOENT,
            },
        };
        let mut bytes = Vec::new();
        encode_report(&report, &mut bytes);
        let at = bytes.len() - 4;
        for (number, is_sound) in [
            (0, false),
            (1, true),
            (4095, true),
            (4096, false),
            (0x7f_0002, false),
        ] {
            bytes[at..].copy_from_slice(&u32::to_le_bytes(number));
            assert_eq!(decode_report(&bytes).is_ok(), is_sound, "{number}");
        }
    }
}
