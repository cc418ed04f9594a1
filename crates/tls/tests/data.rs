//! Data in both directions, in all versions and ciphers, and with all kinds of keys.

use std::sync::Arc;

use headway_tls::{PLAINTEXT_BYTES_MAX, RECORD_BYTES_MAX, Received, Splitter};
use rustls::SupportedCipherSuite;
use rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;

use crate::support::*;

const LENGTHS: [usize; 5] = [0, 1, 100, PLAINTEXT_BYTES_MAX, 100_000];

/// Whether a server with a key of this kind can use the suite.
fn goes_with(suite: &SupportedCipherSuite, kind: Kind) -> bool {
    let name = format!("{:?}", suite.suite());
    match kind {
        Kind::Rsa => !name.contains("ECDSA"),
        Kind::P256 | Kind::P384 => !name.contains("ECDHE_RSA"),
        // In TLS 1.2 few clients know it.
        Kind::Ed25519 => name.starts_with("TLS13"),
    }
}

#[test]
fn data_passes_in_both_directions_with_every_suite_and_kind_of_key() {
    let mut combinations = 0;
    for kind in [Kind::Rsa, Kind::P256, Kind::P384, Kind::Ed25519] {
        let identity = identity(&["a.example"], kind);
        let acceptor = simple_acceptor(&identity);
        for suite in ALL_CIPHER_SUITES
            .iter()
            .filter(|suite| goes_with(suite, kind))
        {
            let version = match suite.version().version {
                rustls::ProtocolVersion::TLSv1_3 => V13,
                _ => V12,
            };
            let provider = provider_with(&[*suite]);
            let config = config_with(provider, version, std::slice::from_ref(&identity));
            let mut pair = shake(&acceptor, connect(&Arc::new(config), "a.example"));
            assert_eq!(pair.client.negotiated_cipher_suite(), Some(*suite));
            assert_eq!(pair.established.is_13, version == V13);
            LENGTHS
                .iter()
                .for_each(|length| assert_passes(&mut pair, *length));
            assert_ends(&mut pair);
            combinations += 1;
        }
    }
    assert_eq!(combinations, 6 + 2 * 6 + 3);
}

fn assert_passes(pair: &mut Pair, length: usize) {
    let data = pattern(length);
    let sealed = client_seal(&mut pair.client, &data);
    let (opened, last) = open(&mut pair.server, &sealed);
    assert!(opened == data, "{length} bytes of the client");
    assert_eq!(last, Received::Nothing);
    let sealed = seal(&mut pair.server, &data);
    let received = client_input(&mut pair.client, &sealed).unwrap();
    assert!(received == data, "{length} bytes of the server");
}

fn assert_ends(pair: &mut Pair) {
    pair.client.send_close_notify();
    let sealed = client_output(&mut pair.client);
    assert_eq!(open(&mut pair.server, &sealed), (Vec::new(), Received::End));
    // The other direction is open still.
    let mut sealed = seal(&mut pair.server, b"the last");
    pair.server.seal_end();
    sealed.extend(take_unsent(&mut pair.server));
    assert_eq!(
        client_input(&mut pair.client, &sealed).unwrap(),
        b"the last"
    );
    let state = pair.client.process_new_packets().unwrap();
    assert!(state.peer_has_closed());
}

#[test]
fn end_behind_data_is_reported_when_the_data_is_consumed() {
    let mut pair = connected(V13);
    let mut sealed = client_seal(&mut pair.client, b"data");
    pair.client.send_close_notify();
    sealed.extend(client_output(&mut pair.client));
    let mut out = [0; RECORD_BYTES_MAX];
    assert_eq!(pair.server.open(&sealed, &mut out), Received::Data(4));
    assert!(pair.server.has_input());
    assert_eq!(pair.server.open(&[], &mut out), Received::End);
    assert_eq!(pair.server.open(&[], &mut out), Received::End);
}

#[test]
fn nothing_is_sealed_behind_the_end() {
    let mut pair = connected(V13);
    pair.server.seal_end();
    let sealed = take_unsent(&mut pair.server);
    assert!(
        pair.server
            .seal([&b"late"[..]], 0, &mut Vec::new())
            .is_err()
    );
    pair.server.seal_end();
    assert!(!pair.server.has_unsent());
    client_input(&mut pair.client, &sealed).unwrap();
}

#[test]
fn many_small_parts_are_sealed_in_order() {
    let mut pair = connected(V13);
    let data = pattern(5_000);
    let mut sealed = Vec::new();
    pair.server.seal(data.chunks(7), 0, &mut sealed).unwrap();
    assert!(client_input(&mut pair.client, &sealed).unwrap() == data);
}

#[test]
fn first_records_are_short_and_so_are_those_after_a_pause() {
    let mut pair = connected(V13);
    let data = pattern(200_000);
    let lengths = |sealed: &[u8]| {
        let (mut at, mut lengths) = (0, Vec::new());
        while let Splitter::Whole(length) = Splitter::look(&sealed[at..]) {
            lengths.push(length);
            at += length;
        }
        lengths
    };
    let mut all = Vec::new();
    for now_ms in [0, 500, 5_000] {
        let mut sealed = Vec::new();
        pair.server.seal([&data[..]], now_ms, &mut sealed).unwrap();
        all.push(lengths(&sealed));
        assert!(client_input(&mut pair.client, &sealed).unwrap() == data);
    }
    // Header, type and tag.
    let (short, long) = (1_350 + 22, PLAINTEXT_BYTES_MAX + 22);
    assert_eq!((&all[0][..20], all[0][20]), (&[short; 20][..], long));
    assert_eq!(all[1][0], long);
    assert_eq!((&all[2][..20], all[2][20]), (&[short; 20][..], long));
}

#[test]
fn sealed_bytes_that_were_not_sent_stay_in_order() {
    let mut pair = connected(V13);
    let data = pattern(3_000);
    let sealed = seal(&mut pair.server, &data);
    pair.server.keep_unsent(&sealed[..1_000]);
    pair.server.keep_unsent(&sealed[1_000..]);
    pair.server.seal_end();
    let mut sent = Vec::new();
    while pair.server.has_unsent() {
        let now = pair.server.unsent().len().min(700);
        sent.extend(&pair.server.unsent()[..now]);
        pair.server.sent(now);
    }
    assert!(client_input(&mut pair.client, &sent).unwrap() == data);
}

#[test]
fn record_which_the_room_cannot_hold_waits() {
    let mut pair = connected(V13);
    let sealed = client_seal(&mut pair.client, &[7; 100]);
    let mut out = [0; 100];
    assert_eq!(pair.server.open(&sealed, &mut out), Received::Nothing);
    assert!(pair.server.has_input());
    let mut raw = [0; 1_000];
    let kept = pair.server.restore_input(&mut raw);
    let mut out = [0; 101];
    assert_eq!(
        pair.server.open(&raw[..kept], &mut out),
        Received::Data(100)
    );
    assert!(!pair.server.has_input());
}
