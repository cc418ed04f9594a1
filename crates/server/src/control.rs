//! Messages between the master and its workers, and between the master and the log process.
//!
//! The channel is a `SOCK_SEQPACKET` pair: one packet is one JSON message, descriptors travel with
//! it by `SCM_RIGHTS`. A message too long for a packet goes in a sealed memfd that travels as the
//! first descriptor. The end of file means that the other side is gone: a child then ends itself.
//!
//! Control traffic is rare (start, helpers wanted, one snapshot a scrape), so legible JSON is worth
//! more here than a compact encoding.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::config::{Config, LogConfig};
use crate::tally::Snapshot;

mod wire;

/// From the master to a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToWorker {
    /// The first message. Descriptors: one listener an address, in the order of `config.listen`;
    /// then, if workers take clients by shares, the board on which they show how many they have;
    /// then, if small files are kept for all, the socket to the keeper; then, if `config.log` is
    /// set, the socket to the log process.
    Start {
        /// The worker's number, from 0.
        worker: u32,
        /// What to serve.
        config: Box<Config>,
    },
    /// A helper that was asked for. Descriptor: its socket.
    Helper {
        /// The helper's process.
        pid: u32,
    },
    /// A new log process replaces one that died. Descriptor: the socket to it.
    Log,
    /// The spawner, or one that replaces it. Descriptor: its socket.
    Spawner {
        /// The spawner's process.
        pid: u32,
    },
    /// Please send a snapshot with this number.
    Snapshot {
        /// Comes back in the answer.
        id: u64,
    },
    /// Clients may wait in the shared listeners that another worker was told of and has left there:
    /// look.
    Look,
    /// Accept no more, finish what is in flight, answer `Drained` and end.
    Drain {
        /// After this long, end anyway.
        timeout_ms: u64,
    },
}

/// From a worker to the master.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FromWorker {
    /// The worker serves.
    Ready,
    /// Please spawn this many more helpers.
    WantHelpers {
        /// In addition to those spawned so far.
        count: u32,
    },
    /// The answer to `ToWorker::Snapshot`.
    Snapshot {
        /// The number of the question.
        id: u64,
        /// The numbers.
        snapshot: Box<Snapshot>,
    },
    /// Clients may wait in the shared listeners, and this worker, who alone was told of them, does
    /// not look there any more: it is full, has no descriptors, or has more clients than its share.
    LeftWaiting,
    /// Words for a person: a worker does not write to standard error, which may be a stopped
    /// terminal.
    Notice {
        /// One line.
        text: String,
    },
    /// Nothing is in flight any more; the worker is about to end.
    Drained,
    /// The worker can not go on and is about to end.
    Failed {
        /// What was tried, on what, why it failed.
        why: String,
    },
}

/// From the master to the log process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToLog {
    /// The first message: which file to write.
    Start {
        /// The file and its format.
        log: LogConfig,
    },
    /// A worker's lines. Descriptor: the socket they come by.
    Worker {
        /// The worker's number.
        worker: u32,
    },
    /// The file was renamed by log rotation: open it anew.
    Reopen,
}

/// From the log process to the master.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromLog {
    /// The file is open.
    Ready,
    /// Lines that could not be written since the last report, and why.
    Dropped {
        /// How many lines.
        lines: u64,
        /// The error of the last failed write.
        why: String,
    },
    /// The file could not be opened. At the start the process ends; on `Reopen` it keeps the old
    /// file.
    Failed {
        /// What was tried and why it failed.
        why: String,
    },
}

/// Why a control message could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The system call failed; the channel is of no more use.
    #[error("control channel, {call}: {error}")]
    System {
        /// Which call.
        call: &'static str,
        /// Its error.
        error: io::Error,
    },
    /// The packet is not a message of this version.
    #[error("control channel: malformed message: {0}")]
    Malformed(String),
    /// The message is beyond the bound of the channel.
    #[error("control channel: a message of {bytes} bytes, at most {max} are allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The bound.
        max: usize,
    },
}

/// What a non-blocking receive found.
#[derive(Debug)]
pub enum Received<T> {
    /// A message with its descriptors.
    Message(T, Vec<OwnedFd>),
    /// Nothing now.
    WouldBlock,
    /// The other side is gone.
    Closed,
}

/// One end of a control channel.
///
/// ```
/// use headway_server::control::{Control, ToWorker, Received};
/// let (master, worker) = Control::pair()?;
/// master.send(&ToWorker::Snapshot { id: 7 }, &[])?;
/// let (message, descriptors) = worker.receive::<ToWorker>()?.expect("the master lives");
/// assert_eq!(message, ToWorker::Snapshot { id: 7 });
/// assert!(descriptors.is_empty());
/// drop(master);
/// assert!(matches!(worker.try_receive::<ToWorker>()?, Received::Closed));
/// # Ok::<(), headway_server::control::ControlError>(())
/// ```
#[derive(Debug)]
pub struct Control(OwnedFd);

impl Control {
    /// Takes over one end of a `SOCK_SEQPACKET` pair, for example standard input of a child.
    pub fn new(socket: OwnedFd) -> Control {
        Control(socket)
    }

    /// Two connected ends, both close-on-exec.
    pub fn pair() -> Result<(Control, Control), ControlError> {
        let (left, right) = wire::pair()?;
        Ok((Control(left), Control(right)))
    }

    /// Sends a message with descriptors, waiting while the other side's buffer is full.
    pub fn send<T: Serialize>(
        &self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ControlError> {
        wire::send(self.0.as_fd(), &encode(message)?, descriptors, true).map(|_| ())
    }

    /// Sends a message with descriptors; `false` when the other side's buffer is full.
    pub fn try_send<T: Serialize>(
        &self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<bool, ControlError> {
        wire::send(self.0.as_fd(), &encode(message)?, descriptors, false)
    }

    /// Waits for a message; `None` when the other side is gone.
    pub fn receive<T: DeserializeOwned>(&self) -> Result<Option<(T, Vec<OwnedFd>)>, ControlError> {
        match decode(wire::receive(self.0.as_fd(), true)?)? {
            Received::Message(message, descriptors) => Ok(Some((message, descriptors))),
            Received::WouldBlock | Received::Closed => Ok(None),
        }
    }

    /// Takes a message if there is one; never waits.
    pub fn try_receive<T: DeserializeOwned>(&self) -> Result<Received<T>, ControlError> {
        decode(wire::receive(self.0.as_fd(), false)?)
    }

    /// The socket, to hand it to a child.
    pub fn into_inner(self) -> OwnedFd {
        self.0
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, ControlError> {
    serde_json::to_vec(message).map_err(|error| ControlError::Malformed(error.to_string()))
}

fn decode<T: DeserializeOwned>(received: Received<Vec<u8>>) -> Result<Received<T>, ControlError> {
    Ok(match received {
        Received::Message(bytes, descriptors) => {
            let message = serde_json::from_slice(&bytes)
                .map_err(|error| ControlError::Malformed(error.to_string()))?;
            Received::Message(message, descriptors)
        }
        Received::WouldBlock => Received::WouldBlock,
        Received::Closed => Received::Closed,
    })
}
