//! New keys in the middle of a connection of TLS 1.3.

use headway_tls::{Cipher, Direction, Established, Opened, Received, Records, Violation};

use crate::forger::{Forger, HANDSHAKE};
use crate::support::*;

/// A handshake message for new keys.
const UPDATE_REQUESTED: [u8; 5] = [24, 0, 0, 1, 1];

#[test]
fn key_update_of_the_client_is_answered_with_own_new_keys() {
    let mut pair = connected(V13);
    for _ in 0..3 {
        let mut sealed = client_seal(&mut pair.client, b"old");
        pair.client.refresh_traffic_keys().unwrap();
        sealed.extend(client_seal(&mut pair.client, b"new"));
        assert_eq!(
            open(&mut pair.server, &sealed),
            (b"oldnew".to_vec(), Received::Nothing)
        );
        assert!(pair.server.has_unsent(), "there is an answer");
        assert_data_passes(&mut pair);
    }
}

#[test]
fn key_updates_in_a_row_are_answered_once() {
    let mut pair = connected(V13);
    let mut sealed = Vec::new();
    for _ in 0..5 {
        pair.client.refresh_traffic_keys().unwrap();
        sealed.extend(client_seal(&mut pair.client, b"x"));
    }
    assert_eq!(open(&mut pair.server, &sealed).0, b"xxxxx");
    let answers = take_unsent(&mut pair.server);
    assert_eq!(answers.len(), 5 + 5 + 1 + 16);
    client_input(&mut pair.client, &answers).unwrap();
    assert_data_passes(&mut pair);
}

#[test]
fn key_update_without_a_request_is_not_answered() {
    let established = connected(V13).established;
    let (mut server, mut client) = (open_stage(&established), client_side(&established));
    // The client updates because the server has asked it to.
    let ask = {
        let mut mirrored = established.clone();
        mirrored.receive = established.send.clone();
        Forger::new(&mirrored).record(HANDSHAKE, &UPDATE_REQUESTED)
    };
    assert_eq!(client.open(&ask, &mut [0; 64]), Ok(Opened::Control));
    let mut records = Vec::new();
    client.seal_control(&mut records).unwrap();
    client.seal(&[b"with new keys"], &mut records).unwrap();
    assert_eq!(
        open(&mut server, &records),
        (b"with new keys".to_vec(), Received::Nothing)
    );
    assert!(!server.has_unsent());
}

/// Otherwise a client that never reads would have the server keep an answer for each of its records.
#[test]
fn answer_waits_while_others_are_unsent_and_goes_before_data() {
    let mut pair = connected(V13);
    let mut unsent = 0;
    for _ in 0..100 {
        pair.client.refresh_traffic_keys().unwrap();
        let sealed = client_seal(&mut pair.client, b"x");
        assert_eq!(open(&mut pair.server, &sealed).0, b"x");
        unsent = unsent.max(pair.server.unsent().len());
    }
    assert_eq!(unsent, 27);
    let mut answers = take_unsent(&mut pair.server);
    let data = seal(&mut pair.server, b"data");
    assert_eq!(data.len(), 27 + 5 + 4 + 1 + 16);
    answers.extend(data);
    assert_eq!(client_input(&mut pair.client, &answers).unwrap(), b"data");
    assert_data_passes(&mut pair);
}

#[test]
fn malformed_key_updates_are_violations() {
    let mistakes: [&[u8]; 7] = [
        &[24, 0, 0, 1, 2],
        &[24, 0, 0, 1],
        &[24, 0, 0, 2, 0, 0],
        &[24, 0, 0, 1, 0, 24, 0, 0, 1, 0],
        &[1, 0, 0, 0],
        &[4, 0, 0, 1, 0],
        &[],
    ];
    let established = connected(V13).established;
    for message in mistakes {
        let mut server = open_stage(&established);
        let record = Forger::new(&established).record(HANDSHAKE, message);
        let (_, last) = open(&mut server, &record);
        assert_eq!(last, Received::Failed(Violation::Ours(10)), "{message:?}");
        assert!(server.has_unsent());
    }
}

/// A connection that has sealed almost as many records as one key may.
fn worn(is_13: bool, cipher: Cipher) -> Established {
    let direction = |byte, sequence| Direction {
        key: vec![byte; if cipher == Cipher::Aes128Gcm { 16 } else { 32 }],
        iv: [byte; 12],
        sequence,
        secret: vec![byte; if cipher == Cipher::Aes256Gcm { 48 } else { 32 }],
    };
    Established::with_keys(is_13, cipher, direction(1, 0), direction(2, (1 << 23) - 2))
}

/// Opens what the server has sealed, and counts the messages of the protocol.
fn opened_by_client(client: &mut Records, mut sealed: &[u8]) -> (Vec<u8>, usize) {
    let (mut data, mut controls, mut out) = (Vec::new(), 0, [0; 64]);
    while let headway_tls::Splitter::Whole(length) = headway_tls::Splitter::look(sealed) {
        match client.open(&sealed[..length], &mut out).unwrap() {
            Opened::Data(length) => data.extend(&out[..length]),
            Opened::Control => controls += 1,
            Opened::End => panic!("it has ended"),
        }
        sealed = &sealed[length..];
    }
    (data, controls)
}

#[test]
fn worn_keys_are_replaced_in_13() {
    for (cipher, updates) in [
        (Cipher::Aes128Gcm, 1),
        (Cipher::Aes256Gcm, 1),
        (Cipher::Chacha20Poly1305, 0),
    ] {
        let established = worn(true, cipher);
        let mut server = Records::new(&established).unwrap();
        let mut client = client_side(&established);
        let mut sealed = Vec::new();
        for byte in b"abcdef" {
            server.seal(&[&[*byte]], &mut sealed).unwrap();
        }
        let opened = opened_by_client(&mut client, &sealed);
        assert_eq!(opened, (b"abcdef".to_vec(), updates), "{cipher:?}");
        assert!(!client.owes_control());
    }
}

#[test]
fn worn_keys_end_a_connection_of_12() {
    let mut server = Records::new(&worn(false, Cipher::Aes128Gcm)).unwrap();
    let mut sealed = Vec::new();
    assert!(server.seal(&[b"a"], &mut sealed).is_ok());
    assert!(server.seal(&[b"b"], &mut sealed).is_ok());
    assert!(server.seal(&[b"c"], &mut sealed).is_err());
    let mut server = Records::new(&worn(false, Cipher::Chacha20Poly1305)).unwrap();
    for _ in 0..4 {
        assert!(server.seal(&[b"a"], &mut sealed).is_ok());
    }
}

#[test]
fn number_of_a_record_does_not_wrap() {
    let mut established = worn(true, Cipher::Chacha20Poly1305);
    established.send.sequence = u64::MAX;
    let mut server = Records::new(&established).unwrap();
    let mut sealed = Vec::new();
    assert!(server.seal(&[b"a"], &mut sealed).is_err());
    assert!(sealed.is_empty());
}
