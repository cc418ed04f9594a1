//! Session tickets, by which a client resumes a session with any process of the server.
//!
//! A ticket is sealed with the key of its period. All processes have the same keys without messages between
//! them: each makes the secret of the next period by a hash when the clock reaches it. The hash cannot be
//! inverted, so keys of earlier periods cannot be computed again (forward secrecy). Tickets which they
//! sealed cannot be opened any more.

use std::fmt;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand;
use rustls::server::ProducesTickets;
use zeroize::{Zeroize, Zeroizing};

/// How long tickets are sealed with one key. They are accepted for twice that.
const PERIOD_SECONDS: u64 = 6 * 60 * 60;
/// The most periods by which a secret is advanced at a time.
const STEPS_MAX: u64 = 1_000;
const SECRET_BYTES: usize = 32;

/// The secret of a period, from which those of all later ones follow.
#[derive(Clone, PartialEq, Eq)]
pub struct TicketSecret {
    period: u64,
    secret: [u8; SECRET_BYTES],
}

headway_os::encoding! {
    struct TicketSecret { period, secret }
}

impl Drop for TicketSecret {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

/// A secret is not for logs.
impl fmt::Debug for TicketSecret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("TicketSecret")
            .field("period", &self.period)
            .finish_non_exhaustive()
    }
}

impl TicketSecret {
    /// A random secret for the current period. `None` if the system has no random numbers.
    pub fn random() -> Option<TicketSecret> {
        let mut secret = [0; SECRET_BYTES];
        rand::fill(&mut secret).ok()?;
        Some(TicketSecret {
            period: current_period(),
            secret,
        })
    }

    /// Forgets the secrets of periods before this one. The clock may have been set back; then nothing
    /// changes.
    pub fn advance(&mut self) {
        self.advance_to(current_period());
    }

    fn advance_to(&mut self, period: u64) {
        for _ in 0..period.saturating_sub(self.period).min(STEPS_MAX) {
            self.secret = derive(b"next period", &self.secret);
        }
        self.period = self.period.max(period);
    }

    /// The key of tickets for a purpose.
    fn key(&self, purpose: &[u8; SECRET_BYTES]) -> Option<Key> {
        let label = [&b"ticket key"[..], purpose].concat();
        let key = UnboundKey::new(&AES_256_GCM, &derive(&label, &self.secret)).ok()?;
        Some(Key {
            period: self.period,
            key: LessSafeKey::new(key),
        })
    }
}

fn derive(purpose: &[u8], secret: &[u8; SECRET_BYTES]) -> [u8; SECRET_BYTES] {
    let mut derived = [0; SECRET_BYTES];
    let joined = Zeroizing::new([purpose, secret].concat());
    derived.copy_from_slice(digest(&SHA256, &joined).as_ref());
    derived
}

fn current_period() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs() / PERIOD_SECONDS)
}

struct Key {
    period: u64,
    key: LessSafeKey,
}

impl Key {
    /// The period, the nonce, the sealed text and its tag.
    fn seal(&self, text: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let period = self.period.to_be_bytes();
        let mut ticket = [&period[..], &nonce, text].concat();
        let begin = period.len() + NONCE_LEN;
        let nonce = Nonce::assume_unique_for_key(nonce);
        let aad = Aad::from(period);
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce, aad, &mut ticket[begin..])
            .ok()?;
        ticket.extend(tag.as_ref());
        Some(ticket)
    }

    fn open(&self, nonce: [u8; NONCE_LEN], sealed: &[u8]) -> Option<Vec<u8>> {
        let mut text = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        let aad = Aad::from(self.period.to_be_bytes());
        let length = self.key.open_in_place(nonce, aad, &mut text).ok()?.len();
        text.truncate(length);
        Some(text)
    }
}

struct Keys {
    secret: TicketSecret,
    purpose: [u8; SECRET_BYTES],
    current: Key,
    before: Option<Key>,
}

/// Seals tickets and opens them.
pub(crate) struct Tickets(Mutex<Keys>);

impl Tickets {
    /// Tickets of another purpose do not open. `None` if the secret makes no key.
    pub(crate) fn new(secret: TicketSecret, purpose: &[u8]) -> Option<Tickets> {
        let purpose = derive(purpose, &[0; SECRET_BYTES]);
        let current = secret.key(&purpose)?;
        Some(Tickets(Mutex::new(Keys {
            secret,
            purpose,
            current,
            before: None,
        })))
    }

    fn with_keys<T>(&self, period: u64, work: impl FnOnce(&Keys) -> Option<T>) -> Option<T> {
        let mut keys = self.0.lock().ok()?;
        while keys.secret.period < period {
            // Of the periods that are over, only the last one is of use.
            let next = (period - 1).max(keys.secret.period + 1);
            keys.secret.advance_to(next);
            let new = keys.secret.key(&keys.purpose)?;
            keys.before = Some(std::mem::replace(&mut keys.current, new));
        }
        work(&keys)
    }

    fn open(&self, ticket: &[u8], period: u64) -> Option<Vec<u8>> {
        let (of, rest) = ticket.split_first_chunk()?;
        let (nonce, sealed) = rest.split_first_chunk()?;
        let of = u64::from_be_bytes(*of);
        self.with_keys(period, |keys| {
            let mut known = [Some(&keys.current), keys.before.as_ref()]
                .into_iter()
                .flatten();
            known.find(|key| key.period == of)?.open(*nonce, sealed)
        })
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Tickets")
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        2 * PERIOD_SECONDS as u32
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.with_keys(current_period(), |keys| keys.current.seal(plain))
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.open(cipher, current_period())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(period: u64) -> TicketSecret {
        TicketSecret {
            period,
            secret: [5; SECRET_BYTES],
        }
    }

    fn seal(tickets: &Tickets, period: u64) -> Vec<u8> {
        let sealed = tickets.with_keys(period, |keys| keys.current.seal(b"session"));
        sealed.unwrap()
    }

    #[test]
    fn ticket_opens_in_another_process_that_was_started_in_a_later_period() {
        let (early, mut later) = (Tickets::new(at(10), b"").unwrap(), at(10));
        later.advance_to(12);
        let later = Tickets::new(later, b"").unwrap();
        let ticket = seal(&early, 12);
        assert_eq!(later.open(&ticket, 12).as_deref(), Some(&b"session"[..]));
    }

    #[test]
    fn ticket_of_the_period_before_opens_and_older_ones_do_not() {
        let tickets = Tickets::new(at(10), b"").unwrap();
        let ticket = seal(&tickets, 10);
        assert!(tickets.open(&ticket, 11).is_some());
        assert!(tickets.open(&ticket, 12).is_none());
        // The clock was set back: what was forgotten stays so.
        assert!(tickets.open(&ticket, 10).is_none());
    }

    #[test]
    fn ticket_that_was_changed_or_is_of_another_server_does_not_open() {
        let tickets = Tickets::new(at(10), b"").unwrap();
        let ticket = seal(&tickets, 10);
        for at in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[at] ^= 1;
            assert!(tickets.open(&changed, 10).is_none(), "byte {at}");
            assert!(tickets.open(&ticket[..at], 10).is_none(), "{at} bytes");
        }
        let other = TicketSecret {
            period: 10,
            secret: [6; SECRET_BYTES],
        };
        assert!(
            Tickets::new(other, b"")
                .unwrap()
                .open(&ticket, 10)
                .is_none()
        );
    }

    #[test]
    fn ticket_of_another_purpose_does_not_open() {
        let ticket = seal(&Tickets::new(at(10), b"").unwrap(), 10);
        let tickets = Tickets::new(at(10), b"clients are known").unwrap();
        assert!(tickets.open(&ticket, 10).is_none());
    }
}
