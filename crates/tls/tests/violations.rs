//! Clients that break the protocol behind the handshake, and alerts.

use headway_tls::{Client, Opened, Received, Violation, alert};
use rustls::{AlertDescription, Error, SupportedProtocolVersion};

use crate::forger::{ALERT, CHANGE_CIPHER_SPEC, DATA, Forger, HANDSHAKE, header};
use crate::support::*;

const VERSIONS: [&SupportedProtocolVersion; 2] = [V12, V13];
const UNEXPECTED_MESSAGE: u8 = 10;
const BAD_RECORD_MAC: u8 = 20;
const RECORD_OVERFLOW: u8 = 22;
const DECODE_ERROR: u8 = 50;
const USER_CANCELED: u8 = 90;
const NO_RENEGOTIATION: u8 = 100;
/// Records without data that are let pass.
const EMPTY_RECORDS_MAX: usize = 32;

/// The records end the connection with this alert, which the client understands.
fn assert_violates(mut pair: Pair, records: &[u8], reason: u8, what: &str) {
    let (data, last) = open(&mut pair.server, records);
    assert_eq!(last, Received::Failed(Violation::Ours(reason)), "{what}");
    assert!(data.is_empty());
    let alert = take_unsent(&mut pair.server);
    let error = client_input(&mut pair.client, &alert).unwrap_err();
    assert_eq!(
        error,
        Error::AlertReceived(AlertDescription::from(reason)),
        "{what}"
    );
    assert_is_over(&mut pair.server, &last);
}

/// Nothing is opened or sealed any more.
fn assert_is_over(server: &mut Client, last: &Received) {
    assert_eq!(open(server, b"anything").1, *last);
    assert!(server.seal([&b"x"[..]], 0, &mut Vec::new()).is_err());
    server.seal_end();
    assert!(!server.has_unsent());
}

#[test]
fn changed_record_is_a_bad_record() {
    for version in VERSIONS {
        for at in [5, 12, 20, 30] {
            let mut pair = connected(version);
            let mut sealed = client_seal(&mut pair.client, b"something that matters");
            sealed[at] ^= 1;
            assert_violates(
                pair,
                &sealed,
                BAD_RECORD_MAC,
                &format!("{version:?}, byte {at}"),
            );
        }
    }
}

#[test]
fn records_in_another_order_or_twice_are_bad_records() {
    for version in VERSIONS {
        let mut pair = connected(version);
        let first = client_seal(&mut pair.client, b"first");
        let second = client_seal(&mut pair.client, b"second");
        assert_violates(pair, &[second, first].concat(), BAD_RECORD_MAC, "order");
        let mut pair = connected(version);
        let sealed = client_seal(&mut pair.client, b"first");
        assert_eq!(open(&mut pair.server, &sealed).0, b"first");
        assert_violates(pair, &sealed, BAD_RECORD_MAC, "twice");
    }
}

#[test]
fn data_before_a_violation_is_delivered() {
    let mut pair = connected(V13);
    let mut sealed = client_seal(&mut pair.client, b"good");
    sealed.extend(header(DATA, 17));
    sealed.extend([0; 17]);
    let mut out = [0; 1_000];
    assert_eq!(pair.server.open(&sealed, &mut out), Received::Data(4));
    assert!(pair.server.has_input() && pair.server.has_unsent());
    let failed = Received::Failed(Violation::Ours(BAD_RECORD_MAC));
    assert_eq!(pair.server.open(&[], &mut out), failed);
}

#[test]
fn record_with_a_length_that_none_has_is_a_violation_before_it_arrives() {
    for version in VERSIONS {
        let too_long = header(DATA, 16_384 + 2_049);
        assert_violates(connected(version), &too_long, RECORD_OVERFLOW, "length");
    }
}

#[test]
fn record_with_too_long_text_is_a_violation() {
    for version in VERSIONS {
        let mut pair = connected(version);
        let mut forger = Forger::new(&pair.established);
        let full = forger.record(DATA, &[7; 16_384]);
        assert_eq!(open(&mut pair.server, &full).0, [7; 16_384]);
        let long = forger.record(DATA, &[7; 16_385]);
        assert_violates(pair, &long, RECORD_OVERFLOW, "text");
    }
    // TLS 1.3 has a limit that is shorter, even if most of the text is padding.
    let pair = connected(V13);
    let inner = [&b"short"[..], &[DATA], &[0; 16_384 + 256]].concat();
    let long = Forger::new(&pair.established).record_13(&inner);
    assert_violates(pair, &long, RECORD_OVERFLOW, "padding");
}

#[test]
fn padded_records_open_to_their_text() {
    let established = connected(V13).established;
    let mut forger = Forger::new(&established);
    let mut server = open_stage(&established);
    let padded = forger.record_13(&[&b"text\0\0"[..], &[DATA], &[0; 300]].concat());
    assert_eq!(
        open(&mut server, &padded),
        (b"text\0\0".to_vec(), Received::Nothing)
    );
}

#[test]
fn record_that_is_all_padding_is_unexpected() {
    let pair = connected(V13);
    let record = Forger::new(&pair.established).record_13(&[0; 50]);
    assert_violates(pair, &record, UNEXPECTED_MESSAGE, "zeros");
    let pair = connected(V13);
    let record = Forger::new(&pair.established).record_13(&[]);
    assert_violates(pair, &record, UNEXPECTED_MESSAGE, "nothing");
}

#[test]
fn record_without_encryption_is_a_violation() {
    for kind in [CHANGE_CIPHER_SPEC, ALERT, HANDSHAKE, DATA] {
        let record = [&header(kind, 2)[..], &[1, 0]].concat();
        let expected = match kind {
            DATA => BAD_RECORD_MAC,
            _ => UNEXPECTED_MESSAGE,
        };
        assert_violates(connected(V13), &record, expected, &format!("type {kind}"));
        assert_violates(
            connected(V12),
            &record,
            BAD_RECORD_MAC,
            &format!("type {kind}"),
        );
    }
}

#[test]
fn records_of_other_types_are_violations() {
    for version in VERSIONS {
        for kind in [CHANGE_CIPHER_SPEC, 24] {
            let pair = connected(version);
            // TLS 1.2 shows its types, so an unknown one is no record.
            let record = Forger::new(&pair.established).record(kind, &[1]);
            assert_violates(pair, &record, UNEXPECTED_MESSAGE, &format!("type {kind}"));
        }
    }
    assert_violates(
        connected(V13),
        b"GET / HTTP/1.1\r\n\r\n",
        UNEXPECTED_MESSAGE,
        "HTTP",
    );
    assert_violates(connected(V13), &[23, 2, 0, 0, 20], DECODE_ERROR, "SSL 2");
}

/// Sends records of one sort. A few are let pass, and the next one is a violation.
fn assert_limited(pair: Pair, mut next: impl FnMut(&mut Pair) -> Vec<u8>, what: &str) {
    let mut pair = pair;
    for _ in 0..EMPTY_RECORDS_MAX {
        let record = next(&mut pair);
        assert_eq!(
            open(&mut pair.server, &record).1,
            Received::Nothing,
            "{what}"
        );
    }
    let record = next(&mut pair);
    take_unsent(&mut pair.server);
    let (_, last) = open(&mut pair.server, &record);
    assert_eq!(
        last,
        Received::Failed(Violation::Ours(UNEXPECTED_MESSAGE)),
        "{what}"
    );
}

#[test]
fn floods_of_records_without_data_are_cut_off() {
    for version in VERSIONS {
        for (what, kind, text) in [
            ("empty", DATA, &[][..]),
            ("canceled", ALERT, &[1, USER_CANCELED]),
        ] {
            let pair = connected(version);
            let mut forger = Forger::new(&pair.established);
            assert_limited(pair, |_| forger.record(kind, text), what);
        }
    }
    let pair = connected(V12);
    let mut forger = Forger::new(&pair.established);
    assert_limited(
        pair,
        |_| forger.record(HANDSHAKE, &[1, 0, 0, 0]),
        "renegotiation",
    );
    let update = |pair: &mut Pair| {
        pair.client.refresh_traffic_keys().unwrap();
        client_output(&mut pair.client)
    };
    assert_limited(connected(V13), update, "key updates");
}

#[test]
fn data_between_empty_records_lets_them_go_on() {
    let mut pair = connected(V13);
    let mut forger = Forger::new(&pair.established);
    for _ in 0..10 {
        for _ in 0..EMPTY_RECORDS_MAX {
            let record = forger.record(DATA, &[]);
            assert_eq!(open(&mut pair.server, &record).1, Received::Nothing);
        }
        let record = forger.record(DATA, b"x");
        assert_eq!(open(&mut pair.server, &record).0, b"x");
    }
}

#[test]
fn renegotiation_is_declined_and_the_connection_goes_on() {
    let mut pair = connected(V12);
    let mut forger = Forger::new(&pair.established);
    let hello = forger.record(HANDSHAKE, &[1, 0, 0, 2, 3, 3]);
    assert_eq!(
        open(&mut pair.server, &hello),
        (Vec::new(), Received::Nothing)
    );
    let answer = take_unsent(&mut pair.server);
    let mut client = client_side(&pair.established);
    let opened = client.open(&answer, &mut [0; 64]);
    assert_eq!(opened, Err(Violation::Theirs(NO_RENEGOTIATION)));
    let data = forger.record(DATA, b"without it");
    assert_eq!(
        open(&mut pair.server, &data),
        (b"without it".to_vec(), Received::Nothing)
    );
    // The client of rustls takes it for the warning that it is.
    let sealed = [answer, seal(&mut pair.server, b"answer")].concat();
    assert_eq!(client_input(&mut pair.client, &sealed).unwrap(), b"answer");
}

#[test]
fn other_handshake_messages_are_violations_in_12() {
    for message in [&[0, 0, 0, 0][..], &[20, 0, 0, 12], &[]] {
        let pair = connected(V12);
        let record = Forger::new(&pair.established).record(HANDSHAKE, message);
        assert_violates(pair, &record, UNEXPECTED_MESSAGE, &format!("{message:?}"));
    }
}

#[test]
fn alert_of_the_client_ends_the_connection_without_an_answer() {
    for version in VERSIONS {
        let mut pair = connected(version);
        let mut forger = Forger::new(&pair.established);
        let records = [forger.record(DATA, b"data"), forger.record(ALERT, &[2, 80])].concat();
        let (data, last) = open(&mut pair.server, &records);
        assert_eq!(
            (&data[..], last),
            (&b"data"[..], Received::Failed(Violation::Theirs(80)))
        );
        assert!(!pair.server.has_unsent());
        assert_is_over(&mut pair.server, &last);
    }
}

#[test]
fn malformed_alerts_are_violations() {
    for version in VERSIONS {
        for text in [&[][..], &[1], &[1, 0, 0]] {
            let pair = connected(version);
            let record = Forger::new(&pair.established).record(ALERT, text);
            assert_violates(pair, &record, DECODE_ERROR, &format!("{text:?}"));
        }
    }
}

#[test]
fn records_behind_the_end_are_not_opened() {
    let mut pair = connected(V13);
    let mut forger = Forger::new(&pair.established);
    let close = forger.record(ALERT, &[1, alert::CLOSE_NOTIFY]);
    let records = [close, forger.record(DATA, b"late")].concat();
    assert_eq!(
        open(&mut pair.server, &records),
        (Vec::new(), Received::End)
    );
    assert_eq!(
        open(&mut pair.server, &forger.record(DATA, b"later")).1,
        Received::End
    );
}

#[test]
fn client_that_is_not_open_gets_nothing() {
    let mut server = Client::new();
    assert_eq!(server.open(b"anything", &mut [0; 64]), Received::End);
    assert!(server.seal([&b"x"[..]], 0, &mut Vec::new()).is_err());
    server.seal_end();
    assert!(!server.has_unsent() && !server.is_open());
}

#[test]
fn room_that_is_too_small_is_a_violation_and_no_panic() {
    let pair = connected(V13);
    let record = Forger::new(&pair.established).record(DATA, b"text");
    let mut records = headway_tls::Records::new(&pair.established).unwrap();
    assert_eq!(records.text_room(record.len()), 5);
    assert!(records.open(&record, &mut [0; 4]).is_err());
    let mut records = headway_tls::Records::new(&pair.established).unwrap();
    assert_eq!(records.open(&record, &mut [0; 5]), Ok(Opened::Data(4)));
}
