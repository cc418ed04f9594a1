//! Any bytes as what a client sends behind a TLS handshake: as they are, and as the texts of records that
//! are sealed with the right keys.
#![no_main]

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use headway_tls::{
    Cipher, Client, Direction, Established, RECORD_BYTES_MAX, Received, Records, Splitter, Stage,
};
use libfuzzer_sys::fuzz_target;

const KEY: [u8; 16] = [1; 16];
const IV: [u8; 12] = [2; 12];
/// A record has at most this room.
const ROOM: usize = RECORD_BYTES_MAX;

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else {
        return;
    };
    let is_13 = choice & 1 == 0;
    let room = usize::from(choice >> 1);
    open_once(is_13, bytes, room);
    let sealed = sealed(is_13, bytes);
    open_once(is_13, &sealed, room);
    let whole = outcome(is_13, &[&sealed]);
    let cut = sealed.len() * room / 128;
    let (front, back) = sealed.split_at(cut);
    assert_eq!(outcome(is_13, &[front, back]), whole, "cut at {cut}");
    let (length, _) = Splitter::whole_records(bytes);
    assert!(length <= bytes.len());
});

fn client(is_13: bool) -> Client {
    let direction = || Direction {
        key: KEY.to_vec(),
        iv: IV,
        sequence: 0,
        secret: vec![3; 32],
    };
    let established = Established::with_keys(is_13, Cipher::Aes128Gcm, direction(), direction());
    let mut client = Client::new();
    client.stage = Stage::Open(Box::new(Records::new(&established).unwrap()));
    client
}

/// With little room.
fn open_once(is_13: bool, bytes: &[u8], room: usize) {
    let mut out = vec![0; room];
    if let Received::Data(length) = client(is_13).open(bytes, &mut out) {
        assert!(length <= room);
    }
}

/// The data, and how it ended.
fn outcome(is_13: bool, pieces: &[&[u8]]) -> (Vec<u8>, Received) {
    let (mut client, mut out, mut data) = (client(is_13), vec![0; ROOM], Vec::new());
    let mut last = Received::Nothing;
    for piece in pieces {
        let mut input = vec![0; (1 << 20) + piece.len()];
        loop {
            let kept = client.restore_input(&mut input);
            let new = match client.has_input() {
                true => 0,
                false => piece.len(),
            };
            input[kept..kept + new].copy_from_slice(&piece[..new]);
            last = client.open(&input[..kept + new], &mut out);
            if let Received::Data(length) = last {
                data.extend(&out[..length]);
            }
            if !client.has_input() || !matches!(last, Received::Data(_) | Received::Nothing) {
                break;
            }
        }
    }
    if let Received::Data(_) = last {
        last = Received::Nothing;
    }
    (data, last)
}

/// Makes records: each has its type, the length of its text, and the text.
fn sealed(is_13: bool, mut bytes: &[u8]) -> Vec<u8> {
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &KEY).unwrap());
    let (mut number, mut sealed) = (0_u64, Vec::new());
    while let [kind, length, rest @ ..] = bytes {
        let (text, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        bytes = rest;
        // The usual types are more interesting.
        let kind = 20 + kind % 5;
        let mut nonce = IV;
        let bytes = nonce[4..].iter_mut().zip(number.to_be_bytes());
        bytes.for_each(|(byte, of_number)| *byte ^= of_number);
        let mut text = text.to_vec();
        let explicit = nonce[4..].to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        if is_13 {
            text.push(kind);
            let [high, low] = (text.len() as u16 + 16).to_be_bytes();
            let header = [23, 3, 3, high, low];
            key.seal_in_place_append_tag(nonce, Aad::from(header), &mut text)
                .unwrap();
            sealed.extend(header);
        } else {
            let length = (text.len() as u16).to_be_bytes();
            let context = [&number.to_be_bytes()[..], &[kind, 3, 3], &length].concat();
            key.seal_in_place_append_tag(nonce, Aad::from(context), &mut text)
                .unwrap();
            let [high, low] = (text.len() as u16 + 8).to_be_bytes();
            sealed.extend([kind, 3, 3, high, low]);
            sealed.extend(explicit);
        }
        sealed.extend(text);
        number += 1;
    }
    sealed
}
