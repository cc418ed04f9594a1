//! TLS 1.2 and 1.3 for a server whose event loop never computes for long.
//!
//! A handshake takes 0.1 to 5 ms of CPU time, and needs the private key. So [`process`] does handshakes in
//! a separate process, and the worker has no keys. [`Handshake`] is one handshake, by rustls. When it is
//! done, the worker gets the traffic secrets ([`Established`]). From then on it opens and seals records by
//! itself ([`Records`]). [`Client`] is the TLS state of one connection.
//!
//! Sources: RFC 8446 (TLS 1.3), RFC 5246 (TLS 1.2), RFC 5288 and RFC 7905 (its ciphers), RFC 6066
//! (server names), RFC 7301 (ALPN), RFC 8737 (challenges of ACME).
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![deny(clippy::unused_self)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

mod certificate;
mod challenge;
mod client;
pub mod der;
mod established;
mod failure;
mod handshake;
mod identity;
mod keys;
mod offload;
pub mod process;
mod record;
mod records;
mod summary;
mod tickets;
pub mod wire;

pub use certificate::Facts;
pub use challenge::{ACME_TLS, Challenge, ChallengeMemory};
pub use client::{Client, Received, Stage};
pub use established::{Cipher, Direction, Established};
pub use failure::{Failure, Reason};
pub use handshake::{Acceptor, Handshake, Settings, Step};
pub use identity::{Certified, Identity, IdentityError};
pub use offload::kernel_cipher;
pub use record::{HEADER_BYTES, PLAINTEXT_BYTES_MAX, RECORD_BYTES_MAX, Splitter, alert};
pub use records::{Opened, Records, Violation};
pub use summary::{ClientCertificate, Summary};
pub use tickets::TicketSecret;
