//! First bytes that lead to no handshake.

use std::sync::Arc;

use headway_tls::{Acceptor, Handshake, Reason, Splitter, Step};
use rustls::crypto::aws_lc_rs::{self, cipher_suite};
use rustls::{AlertDescription, ClientConfig, Error};

use crate::support::*;

/// Feeds records that fail a handshake, and returns the alert that the client gets.
fn refused(acceptor: &Acceptor, records: &[u8], expected: Reason) -> u8 {
    assert_eq!(Splitter::whole_records(records), (records.len(), false));
    let mut handshake = Handshake::new(acceptor).unwrap();
    let mut output = Vec::new();
    match handshake.feed(records, &mut output) {
        Step::Failed(failure) => assert_eq!(failure.reason, expected),
        step => panic!("{step:?}"),
    }
    match output[..] {
        [21, 3, _, 0, 2, 2, reason] => reason,
        _ => panic!("no alert: {output:?}"),
    }
}

fn acceptor() -> Acceptor {
    simple_acceptor(&identity(&["a.example"], Kind::P256))
}

/// Has a client fail its handshake by this alert, and the server for this reason.
fn fail(acceptor: &Acceptor, client: ClientConfig, alert: AlertDescription, reason: Reason) {
    let client = connect(&Arc::new(client), "a.example");
    let failure = try_shake(acceptor, client).err().unwrap();
    let expected = Error::AlertReceived(alert);
    assert_eq!(failure.client, Some(expected), "{}", failure.why);
    assert_eq!(failure.reason, reason);
}

#[test]
fn client_without_a_common_suite_gets_an_alert() {
    let identity = identity(&["a.example"], Kind::P256);
    // The key is for ECDSA.
    let provider = provider_with(&[cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]);
    let client = config_with(provider, V12, std::slice::from_ref(&identity));
    let alert = AlertDescription::HandshakeFailure;
    fail(
        &simple_acceptor(&identity),
        client,
        alert,
        Reason::CipherSuite,
    );
}

#[test]
fn suites_that_are_not_allowed_are_not_agreed_on() {
    let identity = identity(&["a.example"], Kind::P256);
    let [suite_12, suite_13] = [0xc02b, 0x1303];
    let mut settings = settings(std::slice::from_ref(&identity));
    settings.suites = vec![suite_12, suite_13];
    let acceptor = Acceptor::new(settings.clone(), None).unwrap();
    for (version, number) in [(V12, suite_12), (V13, suite_13)] {
        let config_all = Arc::new(config(version, std::slice::from_ref(&identity)));
        let mut pair = shake(&acceptor, connect(&config_all, "a.example"));
        let agreed = pair.client.negotiated_cipher_suite().unwrap();
        assert_eq!(u16::from(agreed.suite()), number);
        assert_data_passes(&mut pair);
        let others = aws_lc_rs::ALL_CIPHER_SUITES.iter().copied();
        let others: Vec<_> = others
            .filter(|suite| u16::from(suite.suite()) != number)
            .collect();
        let others = provider_with(&others);
        let client = config_with(others, version, std::slice::from_ref(&identity));
        let alert = AlertDescription::HandshakeFailure;
        fail(&acceptor, client, alert, Reason::CipherSuite);
    }
    // A suite of TLS 1.2 that does not go with the key.
    settings.suites = vec![0xc02f, suite_13];
    let error = Acceptor::new(settings.clone(), None).err().unwrap();
    assert!(
        error.contains("tls-suites") && error.contains("a.example"),
        "{error}"
    );
    settings.only_13 = true;
    assert!(Acceptor::new(settings, None).is_ok());
}

#[test]
fn client_of_12_gets_an_alert_when_only_13_is_wanted() {
    let identity = identity(&["a.example"], Kind::P256);
    let mut settings = settings(std::slice::from_ref(&identity));
    settings.only_13 = true;
    let acceptor = Acceptor::new(settings, None).unwrap();
    let client = config(V12, std::slice::from_ref(&identity));
    fail(
        &acceptor,
        client,
        AlertDescription::ProtocolVersion,
        Reason::Version,
    );
    let config_13 = Arc::new(config(V13, std::slice::from_ref(&identity)));
    assert_data_passes(&mut shake(&acceptor, connect(&config_13, "a.example")));
}

#[test]
fn client_without_a_common_protocol_gets_an_alert() {
    let identity = identity(&["a.example"], Kind::P256);
    for version in [V12, V13] {
        let mut client = config(version, std::slice::from_ref(&identity));
        client.alpn_protocols = vec![b"h2".to_vec()];
        let alert = AlertDescription::NoApplicationProtocol;
        fail(&simple_acceptor(&identity), client, alert, Reason::Protocol);
    }
}

#[test]
fn client_without_a_common_group_gets_an_alert() {
    let identity = identity(&["a.example"], Kind::P256);
    let mut provider = aws_lc_rs::default_provider();
    provider.kx_groups = vec![aws_lc_rs::kx_group::MLKEM1024];
    let client = config_with(Arc::new(provider), V13, std::slice::from_ref(&identity));
    let alert = AlertDescription::HandshakeFailure;
    fail(
        &simple_acceptor(&identity),
        client,
        alert,
        Reason::CipherSuite,
    );
}

#[test]
fn client_that_does_not_trust_the_certificate_says_so() {
    let [ours, other] = [(); 2].map(|()| identity(&["a.example"], Kind::P256));
    for version in [V12, V13] {
        let client = Arc::new(config(version, std::slice::from_ref(&other)));
        let failure = try_shake(&simple_acceptor(&ours), connect(&client, "a.example"));
        let failure = failure.err().unwrap();
        assert!(matches!(failure.client, Some(Error::InvalidCertificate(_))));
        assert!(failure.why.contains("alert"), "{}", failure.why);
        assert_eq!(failure.reason, Reason::CertificateRejected);
        // It may have asked for another name.
        let failure = try_shake(&simple_acceptor(&ours), connect(&client, "b.example"));
        assert_eq!(failure.err().unwrap().reason, Reason::UnknownName);
    }
}

/// A ClientHello of an old version, with the suites and extensions of its time.
fn old_hello(record_version: u8, version: u8) -> Vec<u8> {
    let mut hello = vec![3, version];
    hello.extend([7; 32]);
    // No session, two suites of RSA, no compression.
    hello.extend([0, 0, 4, 0, 0x2f, 0, 0x35, 1, 0]);
    let length = hello.len() as u8;
    let mut record = vec![22, 3, record_version, 0, length + 4, 1, 0, 0, length];
    record.extend(hello);
    record
}

#[test]
fn hellos_of_old_versions_get_an_alert() {
    const HANDSHAKE_FAILURE: u8 = 40;
    const PROTOCOL_VERSION: u8 = 70;
    // SSL 3, TLS 1.0 and TLS 1.1. Which alert they get depends on what is missing first.
    for version in [0, 1, 2] {
        let reason = refused(&acceptor(), &old_hello(version, version), Reason::Version);
        assert!(
            [HANDSHAKE_FAILURE, PROTOCOL_VERSION].contains(&reason),
            "3.{version}: {reason}"
        );
    }
}

#[test]
fn hello_of_ssl_2_and_http_in_the_clear_are_no_records() {
    let ssl_2 = [0x80, 0x2e, 1, 0, 2, 0, 0x15, 0, 0, 0, 0x10, 1, 0, 0x80];
    assert_eq!(Splitter::look(&ssl_2), Splitter::NoRecord);
    assert_eq!(
        Splitter::look(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"),
        Splitter::NoRecord
    );
    assert_eq!(Splitter::look(b"G"), Splitter::NoRecord);
    // Should they be fed, nothing bad happens.
    for bytes in [&ssl_2[..], b"GET / HTTP/1.1\r\n\r\n"] {
        let mut handshake = Handshake::new(&acceptor()).unwrap();
        let step = handshake.feed(bytes, &mut Vec::new());
        assert!(matches!(step, Step::Failed(_)), "{step:?}");
    }
}

#[test]
fn records_that_begin_no_handshake_get_an_alert() {
    const UNEXPECTED_MESSAGE: u8 = 10;
    const DECODE_ERROR: u8 = 50;
    let finished = [22, 3, 3, 0, 4, 20, 0, 0, 0];
    let data = [23, 3, 3, 0, 1, 7];
    let malformed = [22, 3, 1, 0, 6, 1, 0, 0, 2, 3, 3];
    let empty = [22, 3, 1, 0, 0];
    for (records, alert) in [
        (&finished[..], UNEXPECTED_MESSAGE),
        (&data, UNEXPECTED_MESSAGE),
        (&malformed, DECODE_ERROR),
        (&empty, DECODE_ERROR),
    ] {
        assert_eq!(refused(&acceptor(), records, Reason::BadMessage), alert);
    }
}

#[test]
fn client_hello_of_excessive_length_is_refused() {
    let mut handshake = Handshake::new(&acceptor()).unwrap();
    // The message says that it is 16 MiB long. It need not arrive to be refused.
    let mut record = vec![22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff];
    record.resize(5 + 0x4000, 0);
    let step = handshake.feed(&record, &mut Vec::new());
    assert!(matches!(step, Step::Failed(_)), "{step:?}");
}

#[test]
fn alert_of_the_client_ends_the_handshake() {
    let mut handshake = Handshake::new(&acceptor()).unwrap();
    let mut output = Vec::new();
    let step = handshake.feed(&[21, 3, 1, 0, 2, 2, 40], &mut output);
    assert_eq!(output, b"");
    let Step::Failed(failure) = step else {
        panic!("{step:?}");
    };
    assert_eq!(failure.reason, Reason::ClientAlert);
    assert!(failure.detail.contains("handshake_failure"), "{failure}");
}

#[test]
fn nothing_fed_is_no_mistake() {
    let mut handshake = Handshake::new(&acceptor()).unwrap();
    assert!(matches!(handshake.feed(&[], &mut Vec::new()), Step::More));
}
