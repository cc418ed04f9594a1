//! The records of one connection after its handshake, in the worker.
//!
//! Nothing here computes for longer than a record takes: some 5 µs for 16 KiB. A client that sends
//! records without data, to have the worker compute for nothing, is cut off.

use crate::established::Established;
use crate::keys::Keys;
use crate::offload::Offload;
use crate::record::{HEADER_BYTES, PLAINTEXT_BYTES_MAX, alert, content};

/// Records without data that a client may send in a row: empty ones, key updates and warnings.
const EMPTY_RECORDS_MAX: u32 = 32;
/// A handshake message that asks for new keys (RFC 8446, 4.6.3), without its last byte.
const KEY_UPDATE: [u8; 4] = [24, 0, 0, 1];
/// The answer's last byte: no new keys are wanted in return.
const UPDATE_NOT_REQUESTED: u8 = 0;
const UPDATE_REQUESTED: u8 = 1;
/// Levels of an alert.
const WARNING: u8 = 1;
const FATAL: u8 = 2;

/// The longest record of TLS 1.3 (RFC 8446, 5.2).
const RECORD_13_BYTES_MAX: usize = HEADER_BYTES + PLAINTEXT_BYTES_MAX + 256;

/// Both directions of a connection.
pub struct Records {
    is_13: bool,
    receive: Keys,
    pub(crate) send: Keys,
    /// The kernel seals what is sent.
    pub(crate) offload: Option<Offload>,
    /// Records without data since the last one with data.
    empty_records: u32,
    /// The client wants new keys in return.
    owes_update: bool,
    /// The client wants to renegotiate, which is refused.
    owes_refusal: bool,
    /// An alert has ended the sending direction.
    pub(crate) has_ended: bool,
    /// The client has ended its direction before these records were made.
    is_at_end: bool,
}

/// What a record has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// Data, and the number of its bytes at the front of the buffer.
    Data(usize),
    /// A message of the protocol itself.
    Control,
    /// The client sends nothing more.
    End,
}

/// Why a connection cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The client has violated the protocol. This alert reports it.
    Ours(u8),
    /// The client has reported a failure.
    Theirs(u8),
}

impl Records {
    /// The records that follow a handshake. `None` if its keys are no keys.
    pub fn new(established: &Established) -> Option<Records> {
        let keys = |direction| Keys::new(established.is_13, established.cipher, direction).ok();
        Some(Records {
            is_13: established.is_13,
            receive: keys(&established.receive)?,
            send: keys(&established.send)?,
            offload: None,
            empty_records: 0,
            owes_update: false,
            owes_refusal: false,
            has_ended: false,
            is_at_end: established.is_at_end,
        })
    }

    /// Puts the keys as they are now into `established`, of which the records were made. `None` if they make
    /// no keys.
    pub(crate) fn hand_over(&self, established: &mut Established) -> Option<()> {
        established.receive = self.receive.hand_over(&established.receive).ok()?;
        established.send = self.send.hand_over(&established.send).ok()?;
        Some(())
    }

    /// Whether the client has sent, with its handshake, that it sends nothing more.
    pub(crate) fn is_at_end(&self) -> bool {
        self.is_at_end
    }

    /// The room that opening this record needs.
    pub fn text_room(&self, record_bytes: usize) -> usize {
        self.receive.text_room(record_bytes)
    }

    /// Opens a whole record into `out`, which has [room](Records::text_room) for it.
    ///
    /// # Errors
    /// If the connection cannot continue.
    pub fn open(&mut self, record: &[u8], out: &mut [u8]) -> Result<Opened, Violation> {
        let outer = record.first().copied().unwrap_or(0);
        if self.is_13 && outer != content::DATA {
            return Err(Violation::Ours(alert::UNEXPECTED_MESSAGE));
        }
        if self.is_13 && record.len() > RECORD_13_BYTES_MAX {
            return Err(Violation::Ours(alert::RECORD_OVERFLOW));
        }
        let opened = self.receive.open(record, out);
        let (kind, length) = opened.map_err(|_| Violation::Ours(alert::BAD_RECORD_MAC))?;
        if length > PLAINTEXT_BYTES_MAX {
            return Err(Violation::Ours(alert::RECORD_OVERFLOW));
        }
        let text = &out[..length];
        match kind {
            content::DATA if length > 0 => {
                self.empty_records = 0;
                return Ok(Opened::Data(length));
            }
            content::DATA => {}
            content::ALERT => match self.take_alert(text)? {
                Opened::Control => {}
                end => return Ok(end),
            },
            content::HANDSHAKE if self.is_13 => self.take_key_update(text)?,
            // A ClientHello: the client wants to renegotiate. It may continue without.
            content::HANDSHAKE if text.first() == Some(&1) => self.owes_refusal = true,
            _ => return Err(Violation::Ours(alert::UNEXPECTED_MESSAGE)),
        }
        self.empty_records += 1;
        match self.empty_records > EMPTY_RECORDS_MAX {
            true => Err(Violation::Ours(alert::UNEXPECTED_MESSAGE)),
            false => Ok(Opened::Control),
        }
    }

    fn take_alert(&mut self, text: &[u8]) -> Result<Opened, Violation> {
        match *text {
            [_, alert::CLOSE_NOTIFY] => Ok(Opened::End),
            [_, alert::USER_CANCELED] => Ok(Opened::Control),
            [_, reason] => {
                // Nothing may follow (RFC 8446, 6.2).
                self.has_ended = true;
                Err(Violation::Theirs(reason))
            }
            _ => Err(Violation::Ours(alert::DECODE_ERROR)),
        }
    }

    fn take_key_update(&mut self, text: &[u8]) -> Result<(), Violation> {
        let wants = match text.split_first_chunk() {
            Some((&KEY_UPDATE, &[wants @ (UPDATE_NOT_REQUESTED | UPDATE_REQUESTED)])) => wants,
            _ => return Err(Violation::Ours(alert::UNEXPECTED_MESSAGE)),
        };
        let updated = self.receive.update();
        updated.map_err(|_| Violation::Ours(alert::INTERNAL_ERROR))?;
        self.owes_update |= wants == UPDATE_REQUESTED;
        Ok(())
    }

    /// Whether a message of the protocol itself has to be sent.
    pub fn owes_control(&self) -> bool {
        self.owes_update || self.owes_refusal
    }

    /// Appends what the protocol itself has to send.
    pub fn seal_control(&mut self, out: &mut Vec<u8>) -> Result<(), Violation> {
        if self.has_ended {
            return Ok(());
        }
        if std::mem::take(&mut self.owes_refusal) {
            self.seal_record(content::ALERT, &[&[WARNING, alert::NO_RENEGOTIATION]], out)?;
        }
        if std::mem::take(&mut self.owes_update) {
            self.update_own_keys(out)?;
        }
        Ok(())
    }

    pub(crate) fn update_own_keys(&mut self, out: &mut Vec<u8>) -> Result<(), Violation> {
        if let Some(offload) = &mut self.offload
            && !offload.begin_update()
        {
            return Ok(());
        }
        self.seal_record(
            content::HANDSHAKE,
            &[&KEY_UPDATE, &[UPDATE_NOT_REQUESTED]],
            out,
        )?;
        let updated = self.send.update();
        updated.map_err(|_| Violation::Ours(alert::INTERNAL_ERROR))
    }

    fn seal_record(
        &mut self,
        kind: u8,
        parts: &[&[u8]],
        out: &mut Vec<u8>,
    ) -> Result<(), Violation> {
        let sealed = self.send.seal(kind, parts, out);
        sealed.map_err(|_| Violation::Ours(alert::INTERNAL_ERROR))
    }

    /// Appends a record with this data, which is at most [`PLAINTEXT_BYTES_MAX`] long. What the protocol owes
    /// the client goes before it (RFC 8446, 4.6.3).
    ///
    /// # Errors
    /// If the keys must not seal any more.
    pub fn seal(&mut self, parts: &[&[u8]], out: &mut Vec<u8>) -> Result<(), Violation> {
        if self.has_ended {
            return Err(Violation::Ours(alert::INTERNAL_ERROR));
        }
        self.seal_control(out)?;
        if self.send.are_worn() {
            match self.is_13 {
                true => self.update_own_keys(out)?,
                // TLS 1.2 could only renegotiate.
                false => return Err(Violation::Ours(alert::INTERNAL_ERROR)),
            }
        }
        self.seal_record(content::DATA, parts, out)
    }

    /// Appends an alert, after which nothing can be sealed any more.
    pub fn seal_alert(&mut self, reason: u8, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        let level = match reason {
            alert::CLOSE_NOTIFY => WARNING,
            _ => FATAL,
        };
        let _ = self.seal_record(content::ALERT, &[&[level, reason]], out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::established::{Cipher, Direction};

    #[test]
    fn end_is_a_warning_and_other_alerts_are_fatal() {
        let direction = Direction {
            key: vec![7; 16],
            iv: [9; 12],
            sequence: 0,
            secret: Vec::new(),
        };
        for (reason, level) in [(alert::CLOSE_NOTIFY, 1), (alert::BAD_RECORD_MAC, 2)] {
            let [receive, send] = [(); 2].map(|()| direction.clone());
            let established = Established::with_keys(false, Cipher::Aes128Gcm, receive, send);
            let mut records = Records::new(&established).unwrap();
            let (mut sealed, mut text) = (Vec::new(), [0; 2]);
            records.seal_alert(reason, &mut sealed);
            let mut receive = Keys::new(false, Cipher::Aes128Gcm, &direction).unwrap();
            assert_eq!(receive.open(&sealed, &mut text), Ok((content::ALERT, 2)));
            assert_eq!(text, [level, reason]);
        }
    }
}
