//! Directories of files in storage that speaks S3.
//!
//! [`Storage::upload`] sends a directory. Large files go in parts, each with its checksum, and a part that fails is
//! sent again. An upload that was cut off goes on where it stopped. [`Storage::download`] brings directories back.
//! Neither is ever silently short: lengths are compared at the end, and one file, the *mark*, is sent after all
//! others and says that they are whole.
//!
//! Calls wait for the network, so this is only for processes that may. There is no runtime and no other HTTP client
//! beside `headway-http-client`: the crate `object_store` would bring both.
//!
//! It deletes nothing but uploads of its own that cannot be continued, and overwrites no directory with a mark.
//!
//! Sources: the Amazon S3 API reference (2006-03-01), Signature Version 4.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![deny(clippy::unused_self)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

use std::io;
use std::path::PathBuf;

use headway_http_client::RequestError;

mod download;
mod location;
mod requests;
mod settings;
mod sign;
mod upload;
mod xml;

pub use location::Location;
pub use settings::Settings;
pub use upload::Uploaded;

use requests::Requests;

/// Storage and the place in it that a [`Location`] names.
///
/// ```no_run
/// use headway_object_storage::{Settings, Storage};
///
/// let storage = Storage::open("s3://bucket/tests/7".parse()?, Settings::from_environment()?)?;
/// storage.upload("run-0".as_ref(), "agent=0", "run.json")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Storage {
    location: Location,
    requests: Requests,
}

impl Storage {
    /// Prepares requests; sends none.
    ///
    /// # Errors
    /// The certificates of authorities cannot be read.
    pub fn open(location: Location, settings: Settings) -> Result<Storage, StorageError> {
        let requests = Requests::new(&location.bucket, settings)?;
        Ok(Storage { location, requests })
    }

    /// Asks for one name, so that a wrong bucket or key is found early.
    ///
    /// # Errors
    /// The storage does not answer, or refuses.
    pub fn probe(&self) -> Result<(), StorageError> {
        let prefix = self.location.key("");
        self.requests.list(&prefix, None, 1).map(drop)
    }
}

/// Why something is not in the storage, or not here.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// A variable of the environment is missing or wrong.
    #[error("{0}")]
    Settings(String),
    /// There is no answer.
    #[error("{what}: {source}")]
    Request {
        /// What was tried, on what.
        what: String,
        /// Why it failed.
        source: RequestError,
    },
    /// The answer is an error.
    #[error("{what}: {status} {code}: {message}")]
    Answer {
        /// What was tried, on what.
        what: String,
        /// The status of the response.
        status: u16,
        /// What the storage calls the error.
        code: String,
        /// What it says about it.
        message: String,
    },
    /// The answer is not what was asked for.
    #[error("{what}: {why}")]
    Unexpected {
        /// What was tried, on what.
        what: String,
        /// What is wrong.
        why: String,
    },
    /// A local file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl StorageError {
    /// Whether another try may help.
    fn is_passing(&self) -> bool {
        const CODES: [&str; 5] = [
            "BadDigest",
            "IncompleteBody",
            "RequestTimeout",
            "SlowDown",
            "XAmzContentSHA256Mismatch",
        ];
        match self {
            StorageError::Request { source, .. } => !matches!(
                source,
                RequestError::NoRoots | RequestError::Roots { .. } | RequestError::Url(_)
            ),
            StorageError::Answer { status, code, .. } => {
                *status >= 500 || *status == 429 || CODES.contains(&&**code)
            }
            StorageError::Unexpected { .. } => true,
            StorageError::Settings(_) | StorageError::File { .. } => false,
        }
    }

    /// Whether the storage says that there is no such thing.
    fn is_absent(&self) -> bool {
        matches!(self, StorageError::Answer { status: 404, .. })
    }
}
