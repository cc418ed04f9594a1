//! Handshakes and records against the client of rustls. Bytes are exchanged in memory.

mod challenges;
mod client_certificates;
mod data;
mod early;
mod forger;
mod identities;
mod key_updates;
mod properties;
mod refusals;
mod resumption;
mod separate_process;
mod server_names;
mod support;
mod violations;
