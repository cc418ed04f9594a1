//! The keys of one direction of a connection: seal and open records, and make the next keys.

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce,
    UnboundKey,
};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{self, HKDF_SHA256, HKDF_SHA384, KeyType, Prk};

use zeroize::Zeroize;

use crate::established::{Cipher, Direction};
use crate::record::{HEADER_BYTES, content};

/// The tag behind each sealed text.
const TAG_BYTES: usize = 16;
/// The part of the nonce that travels with a record of TLS 1.2 with AES-GCM.
const EXPLICIT_BYTES: usize = 8;
/// After this number of records AES-GCM needs a new key. It is below the limit of RFC 8446, 5.5.
const RECORDS_MAX: u64 = 1 << 23;
/// The most records that a key may encrypt: the limit of RFC 8446, 5.5, which is 2^24.5.
const RECORDS_LIMIT: u64 = 23_726_566;
/// The version that stands in records.
const RECORD_VERSION: [u8; 2] = [3, 3];

/// The keys of one direction.
pub(crate) struct Keys {
    is_13: bool,
    cipher: Cipher,
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    sequence: u64,
    secret: Vec<u8>,
    /// The kernel seals, so records are made unsealed.
    is_offloaded: bool,
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.iv.zeroize();
        self.secret.zeroize();
    }
}

/// A length as the output of HKDF.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

impl Cipher {
    fn algorithm(self) -> &'static Algorithm {
        match self {
            Cipher::Aes128Gcm => &AES_128_GCM,
            Cipher::Aes256Gcm => &AES_256_GCM,
            Cipher::Chacha20Poly1305 => &CHACHA20_POLY1305,
        }
    }

    /// The hash of the only cipher suite of TLS 1.3 with this cipher.
    fn hash(self) -> hkdf::Algorithm {
        match self {
            Cipher::Aes256Gcm => HKDF_SHA384,
            Cipher::Aes128Gcm | Cipher::Chacha20Poly1305 => HKDF_SHA256,
        }
    }
}

/// HKDF-Expand-Label without a context (RFC 8446, 7.1).
fn expand(cipher: Cipher, secret: &[u8], label: &str, out: &mut [u8]) -> Result<(), Unspecified> {
    let length = (out.len() as u16).to_be_bytes();
    let label_length = [("tls13 ".len() + label.len()) as u8];
    let info = [
        &length[..],
        &label_length,
        b"tls13 ",
        label.as_bytes(),
        &[0],
    ];
    let secret = Prk::new_less_safe(cipher.hash(), secret);
    secret.expand(&info, Length(out.len()))?.fill(out)
}

/// The keys of a traffic secret (RFC 8446, 7.3).
fn direction_of_secret(cipher: Cipher, secret: Vec<u8>) -> Result<Direction, Unspecified> {
    let mut direction = Direction {
        key: vec![0; cipher.algorithm().key_len()],
        iv: [0; NONCE_LEN],
        sequence: 0,
        secret,
    };
    expand(cipher, &direction.secret, "key", &mut direction.key)?;
    expand(cipher, &direction.secret, "iv", &mut direction.iv)?;
    Ok(direction)
}

impl Keys {
    pub(crate) fn new(
        is_13: bool,
        cipher: Cipher,
        direction: &Direction,
    ) -> Result<Keys, Unspecified> {
        let key = UnboundKey::new(cipher.algorithm(), &direction.key)?;
        Ok(Keys {
            is_13,
            cipher,
            key: LessSafeKey::new(key),
            iv: direction.iv,
            sequence: direction.sequence,
            secret: direction.secret.clone(),
            is_offloaded: false,
        })
    }

    /// Continues with the next keys (RFC 8446, 7.2).
    pub(crate) fn update(&mut self) -> Result<(), Unspecified> {
        let mut secret = vec![0; self.secret.len()];
        expand(self.cipher, &self.secret, "traffic upd", &mut secret)?;
        let next = direction_of_secret(self.cipher, secret)?;
        let is_offloaded = self.is_offloaded;
        *self = Keys::new(true, self.cipher, &next)?;
        self.is_offloaded = is_offloaded;
        Ok(())
    }

    /// The kernel has these keys, and seals: from now on records are made unsealed.
    pub(crate) fn stop_sealing(&mut self) {
        self.is_offloaded = true;
    }

    /// The kernel has sealed at most this number of records.
    pub(crate) fn count(&mut self, records: u64) {
        self.sequence = self.sequence.saturating_add(records);
    }

    /// What these keys were made of, before they have sealed anything.
    pub(crate) fn begun(&self) -> Result<(Cipher, Direction), Unspecified> {
        let direction = direction_of_secret(self.cipher, self.secret.clone())?;
        Ok((self.cipher, direction))
    }

    /// Whether the keys must not seal any more.
    pub(crate) fn are_used_up(&self) -> bool {
        self.sequence >= RECORDS_LIMIT && self.cipher != Cipher::Chacha20Poly1305
    }

    /// What another process needs to continue with these keys, which began as `before`.
    pub(crate) fn hand_over(&self, before: &Direction) -> Result<Direction, Unspecified> {
        let mut keys = match self.secret == before.secret {
            true => before.clone(),
            false => direction_of_secret(self.cipher, self.secret.clone())?,
        };
        keys.sequence = self.sequence;
        Ok(keys)
    }

    /// Whether the keys have sealed as many records as they may.
    pub(crate) fn are_worn(&self) -> bool {
        self.sequence >= RECORDS_MAX && self.cipher != Cipher::Chacha20Poly1305
    }

    /// Bytes of a record besides its text.
    fn explicit_bytes(&self) -> usize {
        match self.cipher {
            Cipher::Aes128Gcm | Cipher::Aes256Gcm if !self.is_13 => EXPLICIT_BYTES,
            _ => 0,
        }
    }

    /// The number of the next record, and the nonce of which it is a part.
    fn next_nonce(&mut self) -> Result<(u64, [u8; NONCE_LEN]), Unspecified> {
        let number = self.sequence;
        self.sequence = number.checked_add(1).ok_or(Unspecified)?;
        let mut nonce = self.iv;
        for (byte, of_number) in nonce[NONCE_LEN - 8..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= of_number;
        }
        Ok((number, nonce))
    }

    /// Appends a record with these parts as its text. The number of a record is used only once, even if
    /// sealing fails.
    pub(crate) fn seal(
        &mut self,
        kind: u8,
        parts: &[&[u8]],
        out: &mut Vec<u8>,
    ) -> Result<(), Unspecified> {
        let (number, nonce) = self.next_nonce()?;
        let text_bytes: usize = parts.iter().map(|part| part.len()).sum();
        if self.is_offloaded {
            let [high, low] = (text_bytes as u16).to_be_bytes();
            out.extend([kind, RECORD_VERSION[0], RECORD_VERSION[1], high, low]);
            parts.iter().for_each(|part| out.extend_from_slice(part));
            return Ok(());
        }
        let explicit = self.explicit_bytes();
        let kind_bytes = usize::from(self.is_13);
        let length = (explicit + text_bytes + kind_bytes + TAG_BYTES) as u16;
        let outer = if self.is_13 { content::DATA } else { kind };
        let [high, low] = length.to_be_bytes();
        let header = [outer, RECORD_VERSION[0], RECORD_VERSION[1], high, low];
        out.extend(header);
        out.extend(&nonce[NONCE_LEN - explicit..]);
        let begin = out.len();
        parts.iter().for_each(|part| out.extend_from_slice(part));
        if self.is_13 {
            out.push(kind);
        }
        let nonce = Nonce::assume_unique_for_key(nonce);
        let text = &mut out[begin..];
        let tag = match self.is_13 {
            true => self
                .key
                .seal_in_place_separate_tag(nonce, Aad::from(header), text)?,
            false => {
                let context = Aad::from(context_12(number, kind, text_bytes));
                self.key.seal_in_place_separate_tag(nonce, context, text)?
            }
        };
        out.extend(tag.as_ref());
        Ok(())
    }

    /// Opens a record into `out`, and returns the type and the length of its text. `out` must have room
    /// for [`text_room`](Keys::text_room).
    pub(crate) fn open(
        &mut self,
        record: &[u8],
        out: &mut [u8],
    ) -> Result<(u8, usize), Unspecified> {
        let (number, mut nonce) = self.next_nonce()?;
        let (header, sealed) = record
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or(Unspecified)?;
        let (explicit, sealed) = sealed
            .split_at_checked(self.explicit_bytes())
            .ok_or(Unspecified)?;
        let text_bytes = sealed.len().checked_sub(TAG_BYTES).ok_or(Unspecified)?;
        let (text, tag) = sealed.split_at(text_bytes);
        let out = out.get_mut(..text_bytes).ok_or(Unspecified)?;
        if !explicit.is_empty() {
            nonce[NONCE_LEN - explicit.len()..].copy_from_slice(explicit);
        }
        let nonce = Nonce::assume_unique_for_key(nonce);
        if self.is_13 {
            let context = Aad::from(*header);
            self.key
                .open_separate_gather(nonce, context, text, tag, out)?;
            // The type follows the text, then zeros. A record without a type is of no known type.
            let last = out.iter().rposition(|byte| *byte != 0);
            return Ok(last.map_or((0, 0), |last| (out[last], last)));
        }
        let context = Aad::from(context_12(number, header[0], text_bytes));
        self.key
            .open_separate_gather(nonce, context, text, tag, out)?;
        Ok((header[0], text_bytes))
    }

    /// The room that a record of this length needs.
    pub(crate) fn text_room(&self, record_bytes: usize) -> usize {
        record_bytes.saturating_sub(HEADER_BYTES + self.explicit_bytes() + TAG_BYTES)
    }
}

/// What a record of TLS 1.2 authenticates besides its text (RFC 5246, 6.2.3.3).
fn context_12(number: u64, kind: u8, text_bytes: usize) -> [u8; 13] {
    let mut context = [0; 13];
    context[..8].copy_from_slice(&number.to_be_bytes());
    context[8] = kind;
    context[9..11].copy_from_slice(&RECORD_VERSION);
    context[11..].copy_from_slice(&(text_bytes as u16).to_be_bytes());
    context
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direction(cipher: Cipher) -> Direction {
        Direction {
            key: vec![7; cipher.algorithm().key_len()],
            iv: [9; NONCE_LEN],
            sequence: 3,
            secret: vec![1; 32],
        }
    }

    #[test]
    fn record_opens_to_what_was_sealed_in_all_ciphers_and_versions() {
        for is_13 in [true, false] {
            for cipher in [
                Cipher::Aes128Gcm,
                Cipher::Aes256Gcm,
                Cipher::Chacha20Poly1305,
            ] {
                let mut seal = Keys::new(is_13, cipher, &direction(cipher)).unwrap();
                let mut open = Keys::new(is_13, cipher, &direction(cipher)).unwrap();
                for text in ["", "a", "hello there"] {
                    let (mut record, mut opened) = (Vec::new(), [0; 64]);
                    let parts = [
                        &text.as_bytes()[..text.len() / 2],
                        &text.as_bytes()[text.len() / 2..],
                    ];
                    seal.seal(content::DATA, &parts, &mut record).unwrap();
                    let (kind, length) = open.open(&record, &mut opened).unwrap();
                    assert_eq!((kind, &opened[..length]), (content::DATA, text.as_bytes()));
                }
            }
        }
    }

    /// The values are those of RFC 8448, section 3: the server's application traffic secret, and the key and
    /// iv that are made of it.
    #[test]
    fn keys_of_a_traffic_secret_are_those_of_the_specification() {
        let secret = "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643";
        let secret: Vec<u8> = (0..32)
            .map(|at| u8::from_str_radix(&secret[2 * at..2 * at + 2], 16).unwrap())
            .collect();
        let (mut key, mut iv) = ([0; 16], [0; 12]);
        expand(Cipher::Aes128Gcm, &secret, "key", &mut key).unwrap();
        expand(Cipher::Aes128Gcm, &secret, "iv", &mut iv).unwrap();
        let hex = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        assert_eq!(hex(&key), "9f02283b6c9c07efc26bb9f2ac92e356");
        assert_eq!(hex(&iv), "cf782b88dd83549aadf1e984");
    }

    #[test]
    fn changed_record_does_not_open() {
        let cipher = Cipher::Aes128Gcm;
        let mut record = Vec::new();
        let mut seal = Keys::new(true, cipher, &direction(cipher)).unwrap();
        seal.seal(content::DATA, &[b"hello"], &mut record).unwrap();
        for at in 0..record.len() {
            let mut changed = record.clone();
            changed[at] ^= 1;
            let mut open = Keys::new(true, cipher, &direction(cipher)).unwrap();
            assert!(open.open(&changed, &mut [0; 64]).is_err(), "byte {at}");
        }
    }
}
