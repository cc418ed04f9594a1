//! Automatic certificates (ACME): orders, renewal, and the files in which they are kept.
//!
//! The work is that of one process ([`process`]), which the master starts. It may wait: for the authority,
//! for name lookups. If the authority is down, the sites are still served. The server begins with a self-signed
//! certificate for each name that has none, so it can serve at once, and a certificate stays in use until another
//! has replaced it. The master keeps the files ([`Files`]), so that no process of the server's user can read keys.
//!
//! The process proves that a name belongs to this server by a file that the workers serve (HTTP-01), or by a
//! certificate that the handshake processes show to the authority (TLS-ALPN-01). It listens on no port.
//!
//! There is no HTTP library here: an order needs about ten requests, so [`http_client`] may block, and no
//! asynchronous runtime is needed.
//!
//! Not in here: DNS-01, wildcards, external account binding.
//!
//! Sources: RFC 8555 (ACME), RFC 8737 (TLS-ALPN-01), RFC 9773 (renewal information), RFC 5280 (certificates).
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![deny(clippy::unused_self)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

pub mod admin;
mod authority;
mod certificate;
mod challenge;
mod civil;
mod development;
mod disk;
mod files;
mod http_client;
mod file_client;
mod private;
pub mod process;
mod schedule;
mod wire;

pub use development::ensure_development_certificate;
pub use files::Files;
pub use private::read_private;
pub use wire::{FileReply, FileRequest, FromAcme, ToAcme};
