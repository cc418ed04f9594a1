//! Automatic certificates (ACME): orders, renewal, and the files in which they are kept.
//!
//! The work is that of one process ([`process`]), which the master starts. It may wait: for the authority,
//! for name lookups, for the disk. If the authority is down, the sites are still served. The process begins with a
//! self-signed certificate for each name that has none, so the server can serve at once, and a
//! certificate stays in use until another has replaced it.
//!
//! The process proves that a name belongs to this server by a file that the workers serve (HTTP-01). It
//! listens on no port.
//!
//! There is no HTTP library here: an order needs about ten requests, so [`http_client`] may block, and no
//! asynchronous runtime is needed.
//!
//! Not in here: DNS-01 and TLS-ALPN-01, wildcards, external account binding, revocation.
//!
//! Sources: RFC 8555 (ACME), RFC 9773 (renewal information), RFC 5280 (certificates).
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![deny(clippy::unused_self)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

mod authority;
mod certificate;
mod civil;
mod files;
mod http_client;
pub mod process;
mod schedule;
mod wire;

pub use wire::{FromAcme, ToAcme};
