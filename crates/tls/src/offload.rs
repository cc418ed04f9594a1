//! Sending by kernel TLS: the worker writes plain bytes, and the kernel encrypts them.
//!
//! The records of the protocol itself (alerts, key updates) wait in [`Client::unsent`] and are not encrypted. The
//! kernel gets them one by one with their type. It does not report how many records it has made, so this module
//! counts the highest possible number.
//!
//! Before Linux 6.14 the kernel cannot change keys. A connection that needs new ones must then end:
//! after the response in progress it closes. This response is still sent with the old keys, although the
//! client has asked for new ones (RFC 8446, 4.6.3, wants those first).

use headway_os::kernel_tls::{self, SendKeys};
use rustix::io::Errno;

use crate::client::{Client, Stage};
use crate::established::{Cipher, Direction, Established};
use crate::record::{HEADER_BYTES, PLAINTEXT_BYTES_MAX, alert, content};
use crate::records::{Records, Violation};

/// The most records that are not full of one write: the first one and the last one.
const PART_RECORDS: u64 = 2;

/// The state of a connection for which the kernel encrypts, instead of [`Records`].
#[derive(Default)]
pub(crate) struct Offload {
    /// Whether the kernel can change keys.
    rekeys: bool,
    /// Whether the keys are newer than those of the kernel, which gets them after the key update.
    has_new_keys: bool,
    must_end: bool,
}

impl Offload {
    /// Whether a key update may be sent. Otherwise the connection has to end.
    pub(crate) fn begin_update(&mut self) -> bool {
        (self.has_new_keys, self.must_end) = (self.rekeys, !self.rekeys);
        self.rekeys
    }
}

/// The kernel's name of this cipher.
pub fn kernel_cipher(cipher: Cipher) -> kernel_tls::Cipher {
    match cipher {
        Cipher::Aes128Gcm => kernel_tls::Cipher::Aes128Gcm,
        Cipher::Aes256Gcm => kernel_tls::Cipher::Aes256Gcm,
        Cipher::Chacha20Poly1305 => kernel_tls::Cipher::Chacha20Poly1305,
    }
}

fn send_keys(is_13: bool, cipher: Cipher, direction: &Direction) -> SendKeys<'_> {
    SendKeys {
        is_13,
        cipher: kernel_cipher(cipher),
        key: &direction.key,
        iv: direction.iv,
        sequence: direction.sequence,
    }
}

impl Established {
    /// The keys for what the server sends, as the kernel gets them.
    pub fn send_keys(&self) -> SendKeys<'_> {
        send_keys(self.is_13, self.cipher, &self.send)
    }
}

impl Records {
    /// The kernel has the keys for sending.
    fn offload(&mut self, rekeys: bool) {
        self.send.stop_sealing();
        self.offload = Some(Offload {
            rekeys,
            ..Offload::default()
        });
    }

    /// Makes what has to be sent before more data.
    fn prepare(&mut self, out: &mut Vec<u8>) -> Result<(), Violation> {
        if self.has_ended {
            return Ok(());
        }
        if self.send.are_used_up() {
            return Err(Violation::Ours(alert::INTERNAL_ERROR));
        }
        if out.is_empty() {
            self.seal_control(out)?;
        }
        match out.is_empty() && self.send.are_worn() {
            true => self.update_own_keys(out),
            false => Ok(()),
        }
    }
}

impl Client {
    /// From now on the kernel seals: it has the keys with which the handshake has ended, and nothing was sealed
    /// with them since.
    pub fn offload(&mut self, rekeys: bool) {
        if let Stage::Open(records) = &mut self.stage {
            records.offload(rekeys);
        }
    }

    fn offloaded(&self) -> Option<&Offload> {
        match &self.stage {
            Stage::Open(records) => records.offload.as_ref(),
            _ => None,
        }
    }

    /// Whether the kernel seals.
    pub fn is_offloaded(&self) -> bool {
        self.offloaded().is_some()
    }

    /// Whether the connection must end after the response in progress, because the kernel cannot change keys.
    pub fn must_end(&self) -> bool {
        self.offloaded().is_some_and(|offload| offload.must_end)
    }

    /// One call has given the kernel this number of bytes. It may have sealed records which have found no room
    /// in the socket.
    pub fn gave(&mut self, bytes: u64) {
        if let Stage::Open(records) = &mut self.stage {
            let whole = bytes.div_ceil(PLAINTEXT_BYTES_MAX as u64);
            records.send.count(whole + PART_RECORDS);
            self.is_settled = false;
        }
    }

    /// The socket has room for all that the kernel has sealed.
    pub fn settle(&mut self) {
        self.is_settled = true;
    }

    /// Whether there is room for all that the kernel has sealed. If the socket closes before, records are lost.
    pub fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Makes what has to be sent before more data.
    ///
    /// # Errors
    /// If the keys must not seal any more.
    pub fn prepare(&mut self) -> Result<(), Violation> {
        let mut unsent = self.unsent().to_vec();
        let before = unsent.len();
        if let Stage::Open(records) = &mut self.stage {
            records.prepare(&mut unsent)?;
        }
        self.keep_unsent(&unsent[before..]);
        Ok(())
    }

    /// The next record that is not data: its type and its content.
    pub fn next_record(&self) -> Option<(u8, &[u8])> {
        let record = self.unsent();
        let (header, rest) = record.split_first_chunk::<HEADER_BYTES>()?;
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        Some((header[0], rest.get(..length)?))
    }

    /// That record has been sent. After a key update the kernel gets the next keys by `set_keys`.
    ///
    /// # Errors
    /// If the kernel does not accept the keys. Then nothing more can be sent.
    pub fn record_sent(
        &mut self,
        set_keys: impl FnOnce(&SendKeys<'_>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let Some((kind, text)) = self.next_record() else {
            return Ok(());
        };
        let length = HEADER_BYTES + text.len();
        self.sent(length);
        let Stage::Open(records) = &mut self.stage else {
            return Ok(());
        };
        let Some(offload) = &mut records.offload else {
            return Ok(());
        };
        if kind != content::HANDSHAKE || !std::mem::take(&mut offload.has_new_keys) {
            return Ok(());
        }
        let (cipher, direction) = records.send.begun().map_err(|_| Errno::INVAL)?;
        set_keys(&send_keys(true, cipher, &direction))
    }
}

#[cfg(test)]
mod tests;
