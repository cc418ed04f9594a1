//! Sends to clients that speak TLS: seals the bytes, and keeps what the socket does not take.
//!
//! Sealed bytes have to be sent as they are, since a record may be sealed only once. So at most
//! [`CALL_BYTES_MAX`] are sealed before the socket is tried, and nothing more until it has taken them all.
//! Bodies of the content store are read like other files: `sendfile` would send them unencrypted.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::time::Instant;

use headway_metrics::calls::{Call, Tracer};
use headway_tls::Client;
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::offload;

/// The most bytes of pieces in memory, and the most of a file, that are sealed for one call.
pub(crate) const CALL_BYTES_MAX: u64 = 64 << 10;

/// Shorter data is sealed without a look at the clock.
const TIMED_BYTES: usize = 4 << 10;

/// TLS of the client, and a buffer in which records are made.
pub struct Sealer<'a> {
    /// TLS of the client.
    pub client: &'a mut Client,
    /// The buffer, which all connections share.
    pub buffer: &'a mut Vec<u8>,
    /// The time.
    pub now_ms: u64,
    /// Counts the time of sealing 4 KiB or more.
    pub sealing_ns: &'a mut u64,
}

impl Sealer<'_> {
    /// Sends what the socket has not taken before. Returns whether it has taken all now.
    pub(crate) fn flush(&mut self, socket: impl AsFd, tracer: &Tracer) -> Result<bool, Errno> {
        flush(self.client, socket, tracer)
    }

    /// Seals these bytes, and sends as much as the socket takes. An error means that the client has
    /// disconnected.
    pub(crate) fn send(
        &mut self,
        socket: impl AsFd,
        parts: &[IoSlice<'_>],
        flags: SendFlags,
        tracer: &Tracer,
    ) -> Result<(), Errno> {
        self.buffer.clear();
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let begun = (length >= TIMED_BYTES).then(Instant::now);
        let parts = parts.iter().map(|part| &**part);
        let sealed = self.client.seal(parts, self.now_ms, self.buffer);
        sealed.map_err(|_| Errno::PIPE)?;
        if let Some(begun) = begun {
            *self.sealing_ns += begun.elapsed().as_nanos() as u64;
        }
        let sent = tracer.call(Call::Send, || rustix::net::send(socket, self.buffer, flags));
        let sent = match sent {
            Ok(sent) => sent,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(error) => return Err(error),
        };
        self.client.keep_unsent(&self.buffer[sent..]);
        Ok(())
    }
}

/// Sends sealed bytes that the socket has not taken before. Returns whether it has taken all now.
///
/// # Errors
/// If the client has disconnected.
pub fn flush(client: &mut Client, socket: impl AsFd, tracer: &Tracer) -> Result<bool, Errno> {
    flush_before(client, socket, false, tracer)
}

/// The same, and if `more` follows at once, the kernel may wait for it to fill the packet.
///
/// # Errors
/// If the client has disconnected.
pub fn flush_before(
    client: &mut Client,
    socket: impl AsFd,
    more: bool,
    tracer: &Tracer,
) -> Result<bool, Errno> {
    if client.is_offloaded() {
        return offload::flush(client, socket.as_fd(), tracer);
    }
    if !client.has_unsent() {
        return Ok(true);
    }
    let mut flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    flags.set(SendFlags::MORE, more);
    let sent = tracer.call(Call::Send, || {
        rustix::net::send(socket, client.unsent(), flags)
    });
    match sent {
        Ok(sent) => {
            client.sent(sent);
            Ok(!client.has_unsent())
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(error) => Err(error),
    }
}
