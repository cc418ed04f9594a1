//! Which certificate a client gets.

use std::sync::Arc;

use headway_test_support::trust::Trusting;
use headway_tls::{Acceptor, Identity};
use rustls::crypto::aws_lc_rs::{self, cipher_suite};
use rustls::{ClientConfig, SignatureScheme, SupportedCipherSuite, SupportedProtocolVersion};

use crate::support::*;

const ECDSA: SignatureScheme = SignatureScheme::ECDSA_NISTP256_SHA256;
const RSA: SignatureScheme = SignatureScheme::RSA_PSS_SHA256;

fn client(
    version: &'static SupportedProtocolVersion,
    suites: &[SupportedCipherSuite],
    schemes: &[SignatureScheme],
) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(provider_with(suites));
    let builder = builder.with_protocol_versions(&[version]).unwrap();
    let verifier = Arc::new(Trusting(schemes.to_vec()));
    let builder = builder
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    builder.with_no_client_auth()
}

/// The number of the certificate that the client gets.
fn chosen(identities: &[Identity], config: &Arc<ClientConfig>, host: &str) -> usize {
    let acceptor = Acceptor::new(settings(identities), None).unwrap();
    let pair = shake(&acceptor, connect(config, host));
    let shown = &pair.client.peer_certificates().unwrap()[0];
    let is_shown = |identity: &Identity| certificate_of(identity) == *shown;
    identities.iter().position(is_shown).unwrap()
}

fn any(version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
    Arc::new(client(version, aws_lc_rs::ALL_CIPHER_SUITES, &[ECDSA, RSA]))
}

#[test]
fn certificate_is_chosen_by_the_name() {
    let identities = [
        identity(&["first.example"], Kind::P256),
        identity(&["*.wild.example"], Kind::P256),
        identity(
            &["a.example", "b.example", "exact.wild.example"],
            Kind::P256,
        ),
    ];
    for version in [V12, V13] {
        let config = any(version);
        for (host, number) in [
            ("first.example", 0),
            ("a.example", 2),
            ("B.Example", 2),
            ("x.wild.example", 1),
            ("X.WILD.example", 1),
            // The exact name goes first.
            ("exact.wild.example", 2),
            // A wildcard stands for one label.
            ("x.y.wild.example", 0),
            ("wild.example", 0),
            ("unknown.example", 0),
            // No name at all.
            ("127.0.0.1", 0),
        ] {
            assert_eq!(chosen(&identities, &config, host), number, "{host}");
        }
    }
}

#[test]
fn host_is_reported_as_the_client_asks_for_it() {
    let identity = identity(&["a.example"], Kind::P256);
    let acceptor = simple_acceptor(&identity);
    for (host, expected) in [("a.example", Some("a.example")), ("127.0.0.1", None)] {
        let pair = shake(&acceptor, connect(&any(V13), host));
        let name = pair.established.server_name;
        assert_eq!(name.as_deref(), expected.map(str::as_bytes));
    }
}

#[test]
fn kind_of_the_certificate_is_what_the_client_can_verify() {
    for kinds in [[Kind::Rsa, Kind::P256], [Kind::P256, Kind::Rsa]] {
        let identities = [
            identity(&["a.example", "b.example"], kinds[0]),
            // The names stand in another order.
            identity(&["b.example", "a.example"], kinds[1]),
            identity(&["other.example"], Kind::Rsa),
        ];
        let number = |kind| kinds.iter().position(|one| *one == kind).unwrap();
        for version in [V12, V13] {
            // Unknown hosts get the first certificate, or its twin.
            for host in ["a.example", "b.example", "unknown.example"] {
                let all = aws_lc_rs::ALL_CIPHER_SUITES;
                let only_rsa = Arc::new(client(version, all, &[RSA]));
                let only_ecdsa = Arc::new(client(version, all, &[ECDSA]));
                assert_eq!(
                    chosen(&identities, &only_rsa, host),
                    number(Kind::Rsa),
                    "{host}"
                );
                assert_eq!(
                    chosen(&identities, &only_ecdsa, host),
                    number(Kind::P256),
                    "{host}"
                );
                assert_eq!(chosen(&identities, &any(version), host), 0, "{host}");
            }
        }
    }
}

#[test]
fn suites_of_12_decide_about_the_kind_too() {
    let identities = [
        identity(&["a.example"], Kind::P256),
        identity(&["a.example"], Kind::Rsa),
    ];
    for (suite, number) in [
        (cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, 1),
        (cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, 0),
    ] {
        let config = Arc::new(client(V12, &[suite], &[ECDSA, RSA]));
        assert_eq!(chosen(&identities, &config, "a.example"), number);
    }
}

#[test]
fn client_that_can_verify_none_gets_an_alert() {
    let identities = [identity(&["a.example"], Kind::P256)];
    let acceptor = Acceptor::new(settings(&identities), None).unwrap();
    let config = client(V13, aws_lc_rs::ALL_CIPHER_SUITES, &[RSA]);
    let failure = try_shake(&acceptor, connect(&Arc::new(config), "a.example"))
        .err()
        .unwrap();
    assert!(
        matches!(failure.client, Some(rustls::Error::AlertReceived(_))),
        "{failure:?}"
    );
}
