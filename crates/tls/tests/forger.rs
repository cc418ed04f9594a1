//! Seals what the client of rustls would not send, by code of its own.

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use headway_tls::{Cipher, Established};

pub const CHANGE_CIPHER_SPEC: u8 = 20;
pub const ALERT: u8 = 21;
pub const HANDSHAKE: u8 = 22;
pub const DATA: u8 = 23;

/// Seals records with the client's keys.
pub struct Forger {
    is_13: bool,
    cipher: Cipher,
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
}

impl Forger {
    pub fn new(established: &Established) -> Forger {
        let algorithm = match established.cipher {
            Cipher::Aes128Gcm => &AES_128_GCM,
            Cipher::Aes256Gcm => &AES_256_GCM,
            Cipher::Chacha20Poly1305 => &CHACHA20_POLY1305,
        };
        let key = UnboundKey::new(algorithm, &established.receive.key).unwrap();
        Forger {
            is_13: established.is_13,
            cipher: established.cipher,
            key: LessSafeKey::new(key),
            iv: established.receive.iv,
            sequence: established.receive.sequence,
        }
    }

    pub fn record(&mut self, kind: u8, text: &[u8]) -> Vec<u8> {
        match self.is_13 {
            true => self.record_13(&[text, &[kind]].concat()),
            false => self.record_12(kind, text),
        }
    }

    /// A record of TLS 1.3. The type of its text and padding are parts of `inner`.
    pub fn record_13(&mut self, inner: &[u8]) -> Vec<u8> {
        let (_, nonce) = self.nonce();
        let header = header(DATA, inner.len() + 16);
        let mut text = inner.to_vec();
        self.key
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(header),
                &mut text,
            )
            .unwrap();
        [&header[..], &text].concat()
    }

    fn record_12(&mut self, kind: u8, text: &[u8]) -> Vec<u8> {
        let (number, mut nonce) = self.nonce();
        // A random one would do as well.
        let explicit = match self.cipher {
            Cipher::Chacha20Poly1305 => Vec::new(),
            _ => [&[0xa5, 0x5a][..], &number.to_be_bytes()[2..]].concat(),
        };
        nonce[12 - explicit.len()..].copy_from_slice(&explicit);
        let length = (text.len() as u16).to_be_bytes();
        let context = [&number.to_be_bytes()[..], &[kind, 3, 3], &length].concat();
        let mut sealed = text.to_vec();
        self.key
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(context),
                &mut sealed,
            )
            .unwrap();
        let header = header(kind, explicit.len() + sealed.len());
        [&header[..], &explicit, &sealed].concat()
    }

    fn nonce(&mut self) -> (u64, [u8; 12]) {
        let number = self.sequence;
        self.sequence += 1;
        let mut nonce = self.iv;
        let bytes = nonce[4..].iter_mut().zip(number.to_be_bytes());
        bytes.for_each(|(byte, of_number)| *byte ^= of_number);
        (number, nonce)
    }
}

pub fn header(kind: u8, length: usize) -> [u8; 5] {
    let [high, low] = (length as u16).to_be_bytes();
    [kind, 3, 3, high, low]
}
