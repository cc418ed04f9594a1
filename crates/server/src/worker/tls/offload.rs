//! Kernel TLS (`tls-offload = "kernel"`): gives the kernel the keys for sending once a handshake is done.
//!
//! If the kernel does not accept a connection, the worker encrypts its records, as without the setting. The records
//! of the handshake must be in the socket before, because the kernel would encrypt them again.
//!
//! The calls can sleep: setsockopt for memory, or while the kernel's list of ciphers changes; a write or a close
//! while the kernel's own worker sends records of the same socket. The record of the worker's calls shows it.

use headway_config::{Offload, TlsConfig};
use headway_connection::Connection;
use headway_metrics::calls::Call;
use headway_os::kernel_tls::{self, Support};
use headway_tls::Established;
use std::os::fd::AsFd;

use crate::worker::context::LoopContext;

/// The ciphers for which the kernel can encrypt, if the setting asks for it. If it cannot, the master has logged why.
pub(super) fn support(tls: &TlsConfig) -> Option<Support> {
    match tls.offload {
        Offload::Off => None,
        Offload::Kernel => kernel_tls::probe().ok(),
    }
}

impl LoopContext {
    /// Lets the kernel encrypt what this connection sends, if it can.
    pub(super) fn offload(&mut self, connection: &mut Connection, established: &Established) {
        let keys = established.send_keys();
        let support = self.tls.as_ref().and_then(|tls| tls.support);
        let support = support.filter(|support| support.has(keys.is_13, keys.cipher));
        let (Some(support), Some(client)) = (support, &mut connection.tls) else {
            return;
        };
        if client.has_unsent() {
            return;
        }
        let begun = self.tracer.call(Call::SocketOption, || {
            kernel_tls::begin(connection.socket.as_fd(), &keys)
        });
        if begun.is_ok() {
            client.offload(support.rekeys);
            self.counters.tls_connections_offloaded += 1;
        }
    }
}
