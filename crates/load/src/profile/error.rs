//! Why a profile did not come to its end.

use std::path::PathBuf;

use super::CommandError;
use crate::session::SessionError;

/// Why a profile did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// A usage error.
    #[error("{0}")]
    Use(String),
    /// A run did not take place, or was not kept.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A command between points failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The directory holds another profile.
    #[error("{}: a profile was begun here with {what}; ask for the same, or name another directory", path.display())]
    Other {
        /// The directory.
        path: PathBuf,
        /// The difference.
        what: String,
    },
    /// The directory cannot be read or written.
    #[error(transparent)]
    Write(#[from] headway_latency::WriteError),
    /// A point cannot be read.
    #[error(transparent)]
    Read(#[from] headway_latency::OpenError),
    /// Not even the lowest rate of the search was answered in time.
    #[error(
        "no rate down to {lowest_rps}/s was answered in time (97 % of the requests with a mean within {limit}), so there is no knee"
    )]
    NoKnee {
        /// The lowest rate that was tried.
        lowest_rps: String,
        /// The limit of the mean.
        limit: String,
    },
    /// The server answered nothing in the closed loop.
    #[error(
        "the server gave no good response in the closed loop, so it has no capacity to take a share of{why}"
    )]
    NoCapacity {
        /// A hint, or nothing.
        why: String,
    },
    /// The capacity is not the server's.
    #[error(
        "--strict: {0}; give the client a faster CPU or the server a slower one, or name the capacity with --capacity"
    )]
    ClientBound(String),
    /// The server did not come back after a command.
    #[error("{target} does not answer {seconds} s after --before-point: {source}")]
    NotBack {
        /// The server.
        target: String,
        /// How long it was waited for.
        seconds: u64,
        /// The last error.
        source: std::io::Error,
    },
    /// The profile was interrupted.
    #[error("interrupted; continue with the same command")]
    Interrupted,
}

impl ProfileError {
    /// Whether the error is a usage error, and not a failure of the machine.
    pub fn is_use(&self) -> bool {
        match self {
            ProfileError::Use(_) => true,
            ProfileError::Session(error) => error.is_use(),
            _ => false,
        }
    }
}
