//! Messages between the master and its workers, and between the master and the log process.
//!
//! The channel is a `SOCK_SEQPACKET` pair: one packet is one JSON message, descriptors travel with
//! it by `SCM_RIGHTS`. A message too long for a packet goes in a sealed memfd that travels as the
//! first descriptor. The end of file means that the other side is gone: a child then ends itself.
//!
//! Control traffic is rare (start, helpers wanted, one snapshot a scrape), so legible JSON is worth
//! more here than a compact encoding.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![deny(clippy::unused_self)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use headway_config::{Config, ErrorLevel, LogConfig, OtlpConfig};
use headway_metrics::Snapshot;

mod handover;
mod start_descriptors;
mod wire;

/// The most directories in one [`FromWorker::Directories`] or [`ToWorker::Directories`].
pub const DIRECTORIES_MAX: usize = 100;

pub use handover::{
    FORMAT, HandedListener, HandedProcess, HandedWorker, Handover, Packet, Packets,
};
pub use start_descriptors::{
    DescriptorError, OutgoingDescriptors, StartDescriptor, StartDescriptors,
};

/// From the master to a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToWorker {
    /// Before the start: directories that are open already, so that the worker does not ask their file systems. File
    /// descriptors: as many, `O_PATH`.
    Directories {
        /// Their numbers among those of the configuration.
        numbers: Vec<u32>,
    },
    /// The first message, except for directories. File descriptors: one listener per address; with accept balancing, the
    /// shared counters; with a limit per address and several workers, their connections per
    /// address; if `config.log` is set, the socket to the log process.
    Start {
        /// The worker's number, from 0.
        worker: u32,
        /// The configuration.
        config: Box<Config>,
        /// What the descriptors are, in their order.
        descriptors: Vec<StartDescriptor>,
        /// For each listener the number of its address in `config.listen`, as there may be several of an
        /// address.
        listeners: Vec<u32>,
    },
    /// A requested helper. File descriptor: its socket.
    Helper {
        /// The helper's process id.
        pid: u32,
    },
    /// A new log process replaces one that died. File descriptor: the socket to it.
    Log,
    /// The store process, or one that replaces it. File descriptor: the socket to it.
    Store,
    /// The span process, or one that replaces it. File descriptor: the socket to it.
    Spans,
    /// The spawner, or a replacement. File descriptor: its socket.
    Spawner {
        /// The spawner's process id.
        pid: u32,
    },
    /// The handshake process, or a replacement. File descriptor: its socket.
    Handshakes,
    /// Requests a snapshot.
    Snapshot {
        /// Returned in the answer.
        id: u64,
    },
    /// Requests a sign of progress.
    Ping,
    /// Poll the shared listeners: another worker may have left connections there.
    PollListeners,
    /// Stop accepting, finish what is in flight, answer `Drained` and exit.
    Drain(Drain),
}

/// How a worker ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// After this time, exit anyway.
    pub timeout_ms: u64,
    /// How long idle connections may wait for a request, which is then their last one. 0 closes them at
    /// once.
    pub idle_ms: u64,
}

impl Drain {
    /// The end of the server, within this time.
    pub fn within(timeout_ms: u64) -> Drain {
        Drain {
            timeout_ms,
            idle_ms: 0,
        }
    }
}

/// From a worker to the master.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FromWorker {
    /// The directories that helpers may open, before [`FromWorker::Ready`]. File descriptors: as many, `O_PATH`.
    Directories {
        /// Their numbers among those of the configuration.
        numbers: Vec<u32>,
    },
    /// The worker serves.
    Ready,
    /// Requests this many more helpers.
    WantHelpers {
        /// Helpers in addition to those started so far.
        count: u32,
    },
    /// The answer to `ToWorker::Snapshot`.
    Snapshot {
        /// The id of the request.
        id: u64,
        /// The snapshot.
        snapshot: Box<Snapshot>,
    },
    /// The answer to `ToWorker::Ping`: the loop makes progress.
    Pong,
    /// The worker consumed the wakeup for a shared listener but left connections in its queue: it
    /// is full, has no file descriptors, or has more connections than its share.
    AcceptPending,
    /// A message for the operator. A worker does not write to standard error itself, because a
    /// stopped terminal would block it.
    Notice {
        /// How serious it is.
        #[serde(default)]
        level: ErrorLevel,
        /// The message, one line.
        text: String,
        /// The request that it is about.
        #[serde(default)]
        request: Option<Box<NoticeRequest>>,
    },
    /// Nothing is in flight any more; the worker is about to exit.
    Drained,
    /// The worker cannot continue and is about to exit.
    Failed {
        /// The operation, its object and the error.
        why: String,
    },
}

/// What identifies a request in the error log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoticeRequest {
    /// The address of the client, where it is at hand.
    pub client: Option<String>,
    /// The host that the request names.
    pub host: Option<String>,
    /// Its method and target.
    pub line: String,
    /// Its ID, with `trace-context`.
    pub id: Option<String>,
}

/// From the master to a helper, before the worker has its socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToHelper {
    /// What it may open, whatever the worker asks. File descriptor: a ruleset of Landlock with this; without
    /// one, it makes its own.
    Start {
        /// Directories to read beneath; `None` does not limit reading.
        read: Option<Vec<PathBuf>>,
        /// Directories for temporary files.
        write: Vec<PathBuf>,
        /// Device and inode of the directories to read beneath that are in the ruleset.
        known: Vec<(u64, u64)>,
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
    /// A worker's lines. File descriptor: the socket on which they arrive.
    Worker {
        /// The worker's number.
        worker: u32,
    },
    /// Log rotation has renamed the file: reopen it.
    Reopen,
}

/// From the master to the span process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSpans {
    /// The first message: where spans go.
    Start {
        /// The collector.
        otlp: OtlpConfig,
    },
    /// A worker's spans. File descriptor: the socket on which they arrive.
    Worker,
}

/// From the span process to the master.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromSpans {
    /// What became of spans since the last report.
    Done {
        /// The collector has them.
        exported: u64,
        /// They are lost.
        dropped: u64,
        /// Why the last ones are lost.
        why: Option<String>,
    },
    /// The process cannot work, and ends.
    Failed {
        /// What was tried, and why it failed.
        why: String,
    },
}

/// From the log process to the master.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromLog {
    /// The file is open.
    Ready,
    /// Lines that could not be written since the last report.
    Dropped {
        /// Number of lines.
        lines: u64,
        /// The error of the last failed write.
        why: String,
    },
    /// The file could not be opened. At startup the process exits; on `Reopen` it keeps the old
    /// file.
    Failed {
        /// The operation and the error.
        why: String,
    },
}

/// Error of sending or receiving a control message.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// A system call failed; the channel is unusable.
    #[error("control channel, {call}: {error}")]
    System {
        /// The system call.
        call: &'static str,
        /// The call's error.
        error: io::Error,
    },
    /// The packet is not a message of this version.
    #[error("control channel: malformed message: {0}")]
    Malformed(String),
    /// The message is longer than the channel permits.
    #[error("control channel: message of {bytes} bytes exceeds the limit of {max}")]
    TooLong {
        /// The message's length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
}

/// Result of a non-blocking receive.
#[derive(Debug)]
pub enum Received<T> {
    /// A message with its descriptors.
    Message(T, Vec<OwnedFd>),
    /// No message is available.
    WouldBlock,
    /// The other end is closed.
    Closed,
}

/// One end of a control channel.
///
/// ```
/// use headway_control::{Control, ToWorker, Received};
/// let (master, worker) = Control::pair()?;
/// master.send(&ToWorker::Snapshot { id: 7 }, &[])?;
/// let (message, descriptors) = worker.receive::<ToWorker>()?.expect("the master lives");
/// assert_eq!(message, ToWorker::Snapshot { id: 7 });
/// assert!(descriptors.is_empty());
/// drop(master);
/// assert!(matches!(worker.try_receive::<ToWorker>()?, Received::Closed));
/// # Ok::<(), headway_control::ControlError>(())
/// ```
#[derive(Debug)]
pub struct Control(OwnedFd);

impl Control {
    /// Wraps one end of a `SOCK_SEQPACKET` pair, for example standard input of a child.
    pub fn new(socket: OwnedFd) -> Control {
        Control(socket)
    }

    /// Two connected ends, both close-on-exec.
    pub fn pair() -> Result<(Control, Control), ControlError> {
        let (left, right) = wire::pair()?;
        Ok((Control(left), Control(right)))
    }

    /// Sends a message with descriptors, blocking while the other end's buffer is full.
    pub fn send<T: Serialize>(
        &self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ControlError> {
        wire::send(self.0.as_fd(), &encode(message)?, descriptors, true).map(|_| ())
    }

    /// Sends a message with descriptors; `false` if the other end's buffer is full.
    pub fn try_send<T: Serialize>(
        &self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<bool, ControlError> {
        wire::send(self.0.as_fd(), &encode(message)?, descriptors, false)
    }

    /// Waits for a message; `None` if the other end is closed.
    pub fn receive<T: DeserializeOwned>(&self) -> Result<Option<(T, Vec<OwnedFd>)>, ControlError> {
        match decode(wire::receive(self.0.as_fd(), true)?)? {
            Received::Message(message, descriptors) => Ok(Some((message, descriptors))),
            Received::WouldBlock | Received::Closed => Ok(None),
        }
    }

    /// Receives a message if there is one; never blocks.
    pub fn try_receive<T: DeserializeOwned>(&self) -> Result<Received<T>, ControlError> {
        decode(wire::receive(self.0.as_fd(), false)?)
    }

    /// The socket, to pass it to a child.
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
