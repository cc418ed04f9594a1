//! What can go wrong between wanting a server and having one.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::Kind;
use super::available::Reason;

/// A server could not be started, or not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The server cannot be started on this machine.
    #[error("{kind} cannot be started: {reason}")]
    Unavailable {
        /// The server.
        kind: Kind,
        /// Why the server is unavailable.
        reason: Reason,
    },
    /// Only what all servers are configured for alike.
    #[error("{address}: the lab starts servers on an IPv4 address with a port of its own, not 0")]
    Address {
        /// The address that was given.
        address: SocketAddr,
    },
    /// There is no configuration of this server with TLS.
    #[error("{kind} is not started with TLS; choose another server, or scheme = \"http\"")]
    NoTls {
        /// The server.
        kind: Kind,
    },
    /// There is no configuration of this server with HTTP/2.
    #[error("{kind} is not started with HTTP/2; choose another server, or protocol = \"http/1.1\"")]
    NoHttp2 {
        /// The server.
        kind: Kind,
    },
    /// The number of connections per wakeup cannot be limited.
    #[error("cannot limit the connections that are accepted per wakeup: {why}")]
    AcceptLimit {
        /// What prevents it.
        why: String,
    },
    /// A path that some server's configuration could misread.
    #[error(
        "{}: the lab gives servers absolute paths of letters, digits and the marks . _ - + , only; \
         choose another folder", path.display()
    )]
    Path {
        /// The path.
        path: PathBuf,
    },
    /// Another process listens there.
    #[error(
        "{kind} cannot listen on {address}: {holder} does already; end it or choose another port"
    )]
    Taken {
        /// The server.
        kind: Kind,
        /// The address of the server.
        address: SocketAddr,
        /// `process 123 (nginx)`, or that it is unknown.
        holder: String,
    },
    /// A file or folder of the lab's own.
    #[error("cannot {what} {}: {error}", path.display())]
    Prepare {
        /// A verb: what was tried.
        what: &'static str,
        /// The path on which it was tried.
        path: PathBuf,
        /// Why the call failed.
        error: io::Error,
    },
    /// The command that enters the environment, or the server's program, does not start.
    #[error("cannot start {program}: {error}")]
    Spawn {
        /// The program.
        program: String,
        /// Why the program could not be started.
        error: io::Error,
    },
    /// The server ended before it answered.
    #[error("{kind} ended at its start ({status}); it said:\n{log}")]
    Died {
        /// The server.
        kind: Kind,
        /// How the server ended.
        status: String,
        /// The end of what it wrote to standard output, standard error and its error log.
        log: String,
    },
    /// The server runs and does not answer, or not with all of its processes.
    #[error(
        "{kind} on {address} is not ready after {after_s} s: {lacks}; it was ended. It said:\n{log}"
    )]
    NotReady {
        /// The server.
        kind: Kind,
        /// Where the server should answer.
        address: SocketAddr,
        /// Length of the wait.
        after_s: u64,
        /// What the server lacked.
        lacks: String,
        /// The end of what it wrote to standard output, standard error and its error log.
        log: String,
    },
    /// Some of its processes are still there after every signal.
    #[error(
        "{kind}: processes {pids:?} do not end, not even by SIGKILL; they probably wait for a disk that does not answer"
    )]
    Remains {
        /// The server.
        kind: Kind,
        /// The process IDs.
        pids: Vec<i32>,
    },
    /// The server does not answer a request of the lab.
    #[error("cannot ask {kind} for {path}: {error}")]
    Ask {
        /// The server.
        kind: Kind,
        /// The path that was requested.
        path: String,
        /// Why there is no answer.
        error: io::Error,
    },
    /// The server answers, but not with the file.
    #[error(
        "{kind} answered {answer} for {path}; may the user it serves as read {} and all folders above it? It said:\n{log}",
        root.display()
    )]
    Refused {
        /// The server.
        kind: Kind,
        /// The path that was requested.
        path: String,
        /// The status.
        answer: u16,
        /// The document root.
        root: PathBuf,
        /// The end of what it wrote to standard output, standard error and its error log.
        log: String,
    },
}

impl ServerError {
    pub(super) fn prepare(what: &'static str, path: &Path, error: io::Error) -> ServerError {
        let path = path.into();
        ServerError::Prepare { what, path, error }
    }
}
