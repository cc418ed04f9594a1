//! Handshakes in pieces, and what arrives together with their end.

use std::sync::Arc;

use headway_tls::{Established, Handshake, RECORD_BYTES_MAX, Received, Splitter, Step};
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConnection, HandshakeKind, SupportedProtocolVersion};

use crate::forger::{ALERT, Forger, HANDSHAKE};
use crate::support::*;

const VERSIONS: [&SupportedProtocolVersion; 2] = [V12, V13];

/// A handshake up to the client's last records, which the server has not got.
fn almost_done(version: &'static SupportedProtocolVersion) -> (Handshake, ClientConnection) {
    let identity = identity(&["a.example"], Kind::P256);
    let acceptor = Acceptance::of(&identity, version);
    let (mut handshake, mut client) = (acceptor.handshake, acceptor.client);
    let mut output = Vec::new();
    let step = handshake.feed(&client_output(&mut client), &mut output);
    assert!(matches!(step, Step::More));
    client_input(&mut client, &output).unwrap();
    (handshake, client)
}

struct Acceptance {
    handshake: Handshake,
    client: ClientConnection,
}

impl Acceptance {
    fn of(
        identity: &headway_tls::Identity,
        version: &'static SupportedProtocolVersion,
    ) -> Acceptance {
        let config = config(version, std::slice::from_ref(identity));
        Acceptance {
            handshake: Handshake::new(&simple_acceptor(identity)).unwrap(),
            client: connect(&Arc::new(config), "a.example"),
        }
    }
}

fn done(handshake: &mut Handshake, records: &[u8], output: &mut Vec<u8>) -> Established {
    match handshake.feed(records, output) {
        Step::Done(established) => *established,
        step => panic!("{step:?}"),
    }
}

#[test]
fn client_hello_may_arrive_byte_by_byte() {
    let identity = identity(&["a.example"], Kind::P256);
    for version in VERSIONS {
        let Acceptance {
            mut handshake,
            mut client,
        } = Acceptance::of(&identity, version);
        let (mut input, mut output) = (Vec::new(), Vec::new());
        let hello = client_output(&mut client);
        for (at, byte) in hello.iter().enumerate() {
            input.push(*byte);
            let (whole, is_other) = Splitter::whole_records(&input);
            assert!(!is_other);
            assert_eq!(whole > 0, at + 1 == hello.len(), "byte {at}");
        }
        assert!(matches!(handshake.feed(&input, &mut output), Step::More));
        client_input(&mut client, &output).unwrap();
        output.clear();
        let established = done(&mut handshake, &client_output(&mut client), &mut output);
        client_input(&mut client, &output).unwrap();
        assert_data_passes(&mut pair(client, established));
    }
}

#[test]
fn client_hello_may_be_split_into_records_at_every_byte() {
    let identity = identity(&["a.example"], Kind::P256);
    let acceptor = simple_acceptor(&identity);
    for version in VERSIONS {
        let config = Arc::new(config(version, std::slice::from_ref(&identity)));
        let hello = client_output(&mut connect(&config, "a.example"));
        let text = &hello[5..];
        for at in 1..text.len() {
            let (front, back) = text.split_at(at);
            let record = |part: &[u8]| {
                let length = (part.len() as u16).to_be_bytes();
                [&[22, 3, 1][..], &length, part].concat()
            };
            let mut handshake = Handshake::new(&acceptor).unwrap();
            let mut output = Vec::new();
            assert!(matches!(
                handshake.feed(&record(front), &mut output),
                Step::More
            ));
            assert!(output.is_empty(), "byte {at}");
            assert!(matches!(
                handshake.feed(&record(back), &mut output),
                Step::More
            ));
            assert_eq!(output.first(), Some(&22), "byte {at}");
        }
    }
}

#[test]
fn another_key_share_may_be_asked_for() {
    let identity = identity(&["a.example"], Kind::P256);
    let mut provider = aws_lc_rs::default_provider();
    // Servers know the second one only.
    provider.kx_groups = vec![
        aws_lc_rs::kx_group::MLKEM768,
        aws_lc_rs::kx_group::SECP384R1,
    ];
    let config = config_with(Arc::new(provider), V13, std::slice::from_ref(&identity));
    let mut pair = shake(
        &simple_acceptor(&identity),
        connect(&Arc::new(config), "a.example"),
    );
    let kind = pair.client.handshake_kind();
    assert_eq!(kind, Some(HandshakeKind::FullWithHelloRetryRequest));
    assert_data_passes(&mut pair);
}

#[test]
fn data_behind_the_handshake_is_opened_with_it() {
    for version in VERSIONS {
        let (mut handshake, mut client) = almost_done(version);
        let mut records = client_output(&mut client);
        if version == V12 {
            // The client may only send data when the server has finished, too.
            let mut output = Vec::new();
            let established = done(&mut handshake, &records, &mut output);
            assert!(established.early.is_empty());
            continue;
        }
        let data = pattern(40_000);
        records.extend(client_seal(&mut client, &data));
        let partial = client_seal(&mut client, b"behind");
        let (front, back) = partial.split_at(9);
        let input = [&records[..], front].concat();
        let (whole, is_other) = Splitter::whole_records(&input);
        assert_eq!((whole, is_other), (records.len(), false));
        let mut output = Vec::new();
        let established = done(&mut handshake, &input[..whole], &mut output);
        assert!(established.early == data);
        assert!(!established.is_at_end);
        client_input(&mut client, &output).unwrap();
        let mut pair = pair(client, established);
        pair.server.keep_input(front);
        assert!(!pair.server.has_input());
        assert_eq!(
            open(&mut pair.server, back),
            (b"behind".to_vec(), Received::Nothing)
        );
        assert_data_passes(&mut pair);
    }
}

#[test]
fn key_update_behind_the_handshake_is_answered() {
    let (mut handshake, mut client) = almost_done(V13);
    let mut records = client_output(&mut client);
    records.extend(client_seal(&mut client, b"old keys"));
    client.refresh_traffic_keys().unwrap();
    records.extend(client_seal(&mut client, b", new keys"));
    let mut output = Vec::new();
    let established = done(&mut handshake, &records, &mut output);
    assert_eq!(established.early, b"old keys, new keys");
    client_input(&mut client, &output).unwrap();
    let mut pair = pair(client, established);
    assert_data_passes(&mut pair);
    // The next keys are those that follow the new ones.
    pair.client.refresh_traffic_keys().unwrap();
    assert_data_passes(&mut pair);
    assert_data_passes(&mut pair);
}

#[test]
fn end_behind_the_handshake_is_reported_after_the_data() {
    let (mut handshake, mut client) = almost_done(V13);
    let mut records = client_output(&mut client);
    records.extend(client_seal(&mut client, b"all"));
    client.send_close_notify();
    records.extend(client_output(&mut client));
    let mut output = Vec::new();
    let established = done(&mut handshake, &records, &mut output);
    assert_eq!(established.early, b"all");
    assert!(established.is_at_end);
    let mut server = open_stage(&established);
    assert!(server.has_input());
    let mut out = [0; RECORD_BYTES_MAX];
    assert_eq!(server.open(&[], &mut out), Received::End);
    // The client may read still.
    client_input(&mut client, &output).unwrap();
    assert_eq!(
        client_input(&mut client, &seal(&mut server, b"answer")).unwrap(),
        b"answer"
    );
}

#[test]
fn violation_behind_the_handshake_fails_it_with_an_alert() {
    let (mut handshake, mut client) = almost_done(V13);
    let mut records = client_output(&mut client);
    let mut sealed = client_seal(&mut client, b"data");
    *sealed.last_mut().unwrap() ^= 1;
    records.extend(sealed);
    let mut output = Vec::new();
    assert!(matches!(
        handshake.feed(&records, &mut output),
        Step::Failed(_)
    ));
    let error = client_input(&mut client, &output).unwrap_err();
    assert_eq!(
        error,
        rustls::Error::AlertReceived(rustls::AlertDescription::BadRecordMac)
    );
    let again = handshake.feed(&[], &mut Vec::new());
    assert!(matches!(again, Step::Failed(_)));
}

/// TLS 1.2 has data with the handshake's end when a session is resumed: the client finishes last.
#[test]
fn resumed_session_of_12_may_bring_data_with_its_end() {
    let identity = identity(&["a.example"], Kind::P256);
    let settings = settings(std::slice::from_ref(&identity));
    let acceptor = headway_tls::Acceptor::new(settings, secret()).unwrap();
    let config = Arc::new(config(V12, std::slice::from_ref(&identity)));
    shake(&acceptor, connect(&config, "a.example"));
    let mut client = connect(&config, "a.example");
    let mut handshake = Handshake::new(&acceptor).unwrap();
    let mut output = Vec::new();
    handshake.feed(&client_output(&mut client), &mut output);
    client_input(&mut client, &output).unwrap();
    output.clear();
    let mut records = client_output(&mut client);
    records.extend(client_seal(&mut client, b"at once"));
    let established = done(&mut handshake, &records, &mut output);
    assert!(established.is_resumed);
    assert_eq!(established.early, b"at once");
    client_input(&mut client, &output).unwrap();
    assert_data_passes(&mut pair(client, established));
}

#[test]
fn garbage_behind_the_handshake_is_noticed_without_more_input() {
    let mut pair = connected(V13);
    pair.server.keep_input(b"GET / HTTP/1.1\r\n");
    assert!(pair.server.has_input());
    let (data, last) = open(&mut pair.server, &[]);
    assert!(
        data.is_empty() && matches!(last, Received::Failed(_)),
        "{last:?}"
    );
}

#[test]
fn forged_records_open() {
    for version in VERSIONS {
        let pair = connected(version);
        let mut forger = Forger::new(&pair.established);
        let mut server = open_stage(&pair.established);
        let records = [forger.record(23, b"x"), forger.record(ALERT, &[1, 0])].concat();
        assert_eq!(open(&mut server, &records), (b"x".to_vec(), Received::End));
        let mut server = open_stage(&pair.established);
        let mut forger = Forger::new(&pair.established);
        if version == V13 {
            let update = forger.record(HANDSHAKE, &[24, 0, 0, 1, 1]);
            assert_eq!(open(&mut server, &update), (Vec::new(), Received::Nothing));
            assert!(server.has_unsent());
        }
    }
}
