//! Messages between the master and the ACME process.

use headway_config::AcmeConfig;
use serde::{Deserialize, Serialize};

/// From the master.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToAcme {
    /// The first message: make what the server needs to start, and answer.
    Start {
        /// The names and the authority.
        config: AcmeConfig,
    },
    /// Challenges are served from now on: order what is due.
    Begin,
}

/// From the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromAcme {
    /// There is a certificate for each name.
    Ready,
    /// There is none for at least one name. The process ends.
    Failed {
        /// What was tried, and why it failed.
        why: String,
    },
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
