//! Messages between the master and the ACME process.
//!
//! The process has no access to files with keys: the master reads and writes them for it. So only the user of
//! the master can read them.

use headway_config::AcmeConfig;
use serde::{Deserialize, Serialize};

use crate::files::Stored;
use crate::schedule::Failures;

/// From the master.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToAcme {
    /// The first message: order what is due. File descriptor: the memory for challenges
    /// ([`ChallengeMemory`](headway_tls::ChallengeMemory)).
    Start {
        /// The names and the authority.
        config: AcmeConfig,
    },
    /// The answer to a file request.
    Files(FileReply),
    /// Files have changed: an administrator may have revoked a certificate.
    Look,
}

/// From the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromAcme {
    /// Files are needed. There is one request at a time.
    Files(FileRequest),
    /// The certificate of a name that is in use now.
    Certificate {
        /// The name.
        host: String,
        /// When it expires, in seconds since 1970; 0 for a self-signed one.
        expires_s: u64,
    },
    /// An order has ended.
    Result {
        /// Whether there is a new certificate.
        is_issued: bool,
        /// One line for the administrator.
        text: String,
    },
}

/// What the ACME process may do with files.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum FileRequest {
    /// What is known of the certificate of a name.
    Certificate { host: String },
    /// Replaces a certificate and its key, in PEM.
    SetCertificate {
        host: String,
        authority: String,
        key: String,
        chain: String,
    },
    /// The account at the authority.
    Account,
    /// Replaces the account.
    SetAccount { text: String },
    /// The failed tries of a name.
    Failures { host: String },
    /// Replaces them.
    SetFailures { host: String, failures: Failures },
    /// When the next order is planned.
    SetPlan { host: String, next_s: u64 },
    /// Lets workers answer a challenge.
    Answer { token: String, text: String },
    /// Removes an answer.
    Forget { token: String },
}

/// Keys are not for logs.
impl std::fmt::Debug for FileRequest {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("FileRequest")
    }
}

/// The result of a file request.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum FileReply {
    /// It is done.
    Done,
    /// `None` if there is none that can be used.
    Certificate { stored: Option<Stored> },
    /// The account.
    Account { text: String },
    /// The failures.
    Failures { failures: Failures },
    /// It could not be done.
    Failed { why: String },
}

/// The account has a key, which is not for logs.
impl std::fmt::Debug for FileReply {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("FileReply")
    }
}
