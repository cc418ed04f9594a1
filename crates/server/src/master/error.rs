//! Why the server cannot start or go on.

use std::io;
use std::path::PathBuf;

use headway_control::ControlError;

use super::listeners::BindError;

/// Error that prevents the server from starting or continuing.
#[derive(Debug, thiserror::Error)]
pub enum MasterError {
    /// An address cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The channel to a child could not be created.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The access log cannot be written.
    #[error("cannot open access log{user}: {why}; not starting")]
    Log {
        /// ` as NAME:GROUP`, if the log process is not the user of the master.
        user: String,
        /// The error.
        why: String,
    },
    /// The files of automatic certificates cannot be used.
    #[error("cannot prepare certificates: {0}")]
    Acme(String),
    /// A worker failed before serving began.
    #[error("worker {number}{user}: {why}; not starting")]
    Worker {
        /// The number of the worker.
        number: usize,
        /// ` as NAME:GROUP`, if the worker is not the user of the master.
        user: String,
        /// The error that the worker reported, or how it ended.
        why: String,
    },
    /// The ready file cannot be written.
    #[error("cannot write ready file {}: {error}", path.display())]
    ReadyFile {
        /// The file as given.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// A socket of the service manager cannot be used.
    #[error("socket of the service manager: {0}")]
    Activation(String),
    /// The workers were not ready in time after an upgrade.
    #[error("the new workers are not ready after 60 s")]
    NotReady,
    /// Processes cannot be confined as required.
    #[error("{0}; sandbox = \"on\" confines them as far as possible")]
    Sandbox(String),
    /// A certificate or a key cannot be used.
    #[error("{0}")]
    Tls(String),
    /// There is no memory that several workers can share.
    #[error(
        "memfd_create: {0} (a seccomp profile may forbid it); not starting, because workers share memory. \
         Allow it, or set workers = 1, or listeners = \"reuseport\" without max-connections-per-address"
    )]
    SharedMemory(io::Error),
    /// A system call of the master failed.
    #[error("{what}: {error}")]
    System {
        /// The operation.
        what: &'static str,
        /// The error.
        error: io::Error,
    },
}
