//! Clients that are asked for a certificate.

use std::sync::Arc;

use headway_tls::{Acceptor, Facts, Identity, Reason};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CustomExtension, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use rustls::{AlertDescription, ClientConfig, Error, SupportedProtocolVersion};

use crate::support::*;

const VERSIONS: [&SupportedProtocolVersion; 2] = [V12, V13];

/// Certifies clients.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, key_pair(Kind::P256)).unwrap())
    }

    /// A client with a certificate of this authority.
    fn client(&self) -> Identity {
        let key = key_pair(Kind::P256);
        let mut params = CertificateParams::new(vec!["client.example".to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in [
            (DnType::OrganizationName, "Clients"),
            (DnType::CommonName, "a client, or so"),
        ] {
            params.distinguished_name.push(kind, value);
        }
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Identity {
            certificate: certificate.pem().into_bytes(),
            key: key.serialize_pem().into_bytes(),
        }
    }
}

/// A client that is its own authority, with a certificate which is longer than this.
pub fn self_certified(length: usize) -> Identity {
    let mut params = CertificateParams::new(vec!["client.example".to_owned()]).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let unknown = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 65_000], vec![0; length]);
    params.custom_extensions = vec![unknown];
    let key = key_pair(Kind::P256);
    Identity {
        certificate: params.self_signed(&key).unwrap().pem().into_bytes(),
        key: key.serialize_pem().into_bytes(),
    }
}

struct Server {
    identity: Identity,
    authority: Authority,
}

impl Server {
    fn new() -> Server {
        Server {
            identity: identity(&["a.example"], Kind::P256),
            authority: Authority::new(),
        }
    }

    fn acceptor(&self, client_may_be_unknown: bool) -> Acceptor {
        let mut settings = settings(std::slice::from_ref(&self.identity));
        settings.client_authorities = self.authority.0.pem().into_bytes();
        settings.client_may_be_unknown = client_may_be_unknown;
        Acceptor::new(settings, secret()).unwrap()
    }

    fn client(
        &self,
        version: &'static SupportedProtocolVersion,
        own: Option<&Identity>,
    ) -> Arc<ClientConfig> {
        client_with(version, &self.identity, own)
    }
}

/// A client which trusts this server, and may have a certificate of its own.
pub fn client_with(
    version: &'static SupportedProtocolVersion,
    server: &Identity,
    own: Option<&Identity>,
) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider_with(ALL_CIPHER_SUITES));
    let builder = builder.with_protocol_versions(&[version]).unwrap();
    let builder = builder.with_root_certificates(roots(std::slice::from_ref(server)));
    Arc::new(match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let chain = CertificateDer::pem_slice_iter(&own.certificate);
            let chain = chain.map(Result::unwrap).collect();
            let key = PrivateKeyDer::from_pem_slice(&own.key).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    })
}

#[test]
fn known_client_is_let_in_and_its_certificate_reported() {
    let server = Server::new();
    let own = server.authority.client();
    for version in VERSIONS {
        for may_be_unknown in [false, true] {
            let acceptor = server.acceptor(may_be_unknown);
            let config = server.client(version, Some(&own));
            for is_resumed in [false, true] {
                let mut pair = shake(&acceptor, connect(&config, "a.example"));
                assert_eq!(pair.established.is_resumed, is_resumed);
                let expected = Facts::of_der(&certificate_of(&own)).unwrap();
                let found = pair.established.client_certificate.clone().unwrap();
                assert_eq!(found.subject, "CN=a client\\, or so,O=Clients");
                assert_eq!(found.issuer, expected.issuer);
                assert_eq!(found.serial, expected.serial);
                assert_data_passes(&mut pair);
            }
        }
    }
}

#[test]
fn client_without_a_certificate_is_let_in_only_if_it_may_be_unknown() {
    let server = Server::new();
    for version in VERSIONS {
        let config = server.client(version, None);
        let mut pair = shake(&server.acceptor(true), connect(&config, "a.example"));
        assert_eq!(pair.established.client_certificate, None);
        assert_data_passes(&mut pair);
        let failure = try_shake(&server.acceptor(false), connect(&config, "a.example"));
        let failure = failure.err().unwrap();
        let reason = AlertDescription::CertificateRequired;
        assert_eq!(
            failure.client,
            Some(Error::AlertReceived(reason)),
            "{}",
            failure.why
        );
        assert_eq!(failure.reason, Reason::ClientCertificateMissing);
    }
}

#[test]
fn client_of_another_authority_is_not_let_in() {
    let server = Server::new();
    let own = Authority::new().client();
    for version in VERSIONS {
        for may_be_unknown in [false, true] {
            let config = server.client(version, Some(&own));
            let acceptor = server.acceptor(may_be_unknown);
            let failure = try_shake(&acceptor, connect(&config, "a.example"))
                .err()
                .unwrap();
            assert!(
                matches!(failure.client, Some(Error::AlertReceived(_))),
                "{failure:?}"
            );
            assert_eq!(failure.reason, Reason::ClientCertificateRefused);
        }
    }
}

#[test]
fn client_whose_certificate_has_expired_is_not_let_in() {
    let server = Server::new();
    let key = key_pair(Kind::P256);
    let mut params = CertificateParams::new(vec!["client.example".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    let certificate = params.signed_by(&key, &server.authority.0).unwrap();
    let own = Identity {
        certificate: certificate.pem().into_bytes(),
        key: key.serialize_pem().into_bytes(),
    };
    for version in VERSIONS {
        let config = server.client(version, Some(&own));
        let failure = try_shake(&server.acceptor(true), connect(&config, "a.example"));
        assert_eq!(
            failure.err().unwrap().reason,
            Reason::ClientCertificateExpired
        );
    }
}

#[test]
fn certificate_of_a_client_is_not_asked_for_without_authorities() {
    let server = Server::new();
    let own = server.authority.client();
    let config = server.client(V13, Some(&own));
    let pair = shake(
        &simple_acceptor(&server.identity),
        connect(&config, "a.example"),
    );
    assert_eq!(pair.established.client_certificate, None);
}
