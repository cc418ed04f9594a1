//! Challenges of an authority (TLS-ALPN-01): which client gets their certificate, and which an alert.

use std::os::fd::AsFd;
use std::sync::Arc;

use headway_test_support::trust::Trusting;
use headway_tls::process::{sealed, start};
use headway_tls::wire::Answer;
use headway_tls::{ACME_TLS, Challenge, ChallengeMemory, Identity, TicketSecret};
use rcgen::{CertificateParams, CustomExtension};
use rustls::pki_types::CertificateDer;
use rustls::{AlertDescription, ClientConfig, Error, SupportedProtocolVersion};

use crate::separate_process::{Worker, worker};
use crate::support::*;

const NAME: &str = "a.example";

/// A certificate as an authority wants it, with an extension that it alone understands.
fn challenge(host: &str) -> Challenge {
    let mut wanted = CertificateParams::new(vec![host.to_owned()]).unwrap();
    wanted.custom_extensions = vec![CustomExtension::new_acme_identifier(&[7; 32])];
    let key = key_pair(Kind::P256);
    Challenge {
        host: host.into(),
        identity: Identity {
            certificate: wanted.self_signed(&key).unwrap().pem().into_bytes(),
            key: key.serialize_pem().into_bytes(),
        },
    }
}

/// A client which offers these protocols, and verifies nothing.
fn client(version: &'static SupportedProtocolVersion, protocols: &[&[u8]]) -> Arc<ClientConfig> {
    let mut config = config(version, &[]);
    let trusting = Arc::new(Trusting::all());
    config.dangerous().set_certificate_verifier(trusting);
    config.alpn_protocols = protocols.iter().map(|one| one.to_vec()).collect();
    Arc::new(config)
}

/// A process which serves this certificate, and asks all other clients for one.
fn started(own: &Identity, memory: Option<&ChallengeMemory>) -> Worker {
    let mut settings = settings(std::slice::from_ref(own));
    settings.client_authorities = own.certificate.clone();
    let mut descriptors = vec![
        sealed(&settings).unwrap(),
        sealed(&None::<TicketSecret>).unwrap(),
    ];
    let shared = memory.map(|memory| memory.as_fd().try_clone_to_owned().unwrap());
    descriptors.extend(shared);
    let worker = worker();
    start(&worker.socket, &descriptors).unwrap();
    worker
}

/// What the server's alert says.
fn alert(worker: &mut Worker, config: &Arc<ClientConfig>, host: &str) -> AlertDescription {
    let mut client = connect(config, host);
    let Answer::Failed { output, .. } = worker.feed(1, &client_output(&mut client)) else {
        panic!("{host} is not refused");
    };
    match client_input(&mut client, output).unwrap_err() {
        Error::AlertReceived(alert) => alert,
        other => panic!("{other}"),
    }
}

/// What a client agrees on with the server.
fn agreed(
    worker: &mut Worker,
    config: &Arc<ClientConfig>,
    host: &str,
) -> (Vec<u8>, CertificateDer<'static>) {
    let mut client = connect(config, host);
    worker.begin(1, &mut client);
    let established = worker.finish(1, &mut client);
    let chain = client.peer_certificates().unwrap();
    (established.protocol, chain[0].clone().into_owned())
}

#[test]
fn authority_gets_the_certificate_of_the_challenge_and_others_an_alert() {
    let own = identity(&[NAME], Kind::P256);
    let memory = ChallengeMemory::new().unwrap();
    let mut worker = started(&own, Some(&memory));
    let refused = AlertDescription::NoApplicationProtocol;
    for version in [V12, V13] {
        let authority = client(version, &[ACME_TLS]);
        assert_eq!(alert(&mut worker, &authority, NAME), refused, "none waits");
        let challenge = challenge(NAME);
        memory.set(Some(&challenge)).unwrap();
        let (protocol, found) = agreed(&mut worker, &authority, "A.Example");
        assert_eq!(protocol, ACME_TLS);
        assert_eq!(found, certificate_of(&challenge.identity));
        assert_eq!(alert(&mut worker, &authority, "b.example"), refused);
        let both = client(version, &[ACME_TLS, b"http/2.0"]);
        assert_eq!(alert(&mut worker, &both, NAME), refused, "not alone");
        memory.set(None).unwrap();
        assert_eq!(alert(&mut worker, &authority, NAME), refused, "no more");
    }
    worker.ended().unwrap();
}

#[test]
fn later_challenge_replaces_an_earlier_one_that_was_longer() {
    let memory = ChallengeMemory::new().unwrap();
    let mut worker = started(&identity(&[NAME], Kind::P256), Some(&memory));
    let authority = client(V13, &[ACME_TLS]);
    let long = format!("{}.example", "b".repeat(60));
    for host in [&long, NAME] {
        let challenge = challenge(host);
        memory.set(Some(&challenge)).unwrap();
        let (_, found) = agreed(&mut worker, &authority, host);
        assert_eq!(found, certificate_of(&challenge.identity));
    }
    worker.ended().unwrap();
}

#[test]
fn server_without_challenges_speaks_no_such_protocol() {
    let mut worker = started(&identity(&[NAME], Kind::P256), None);
    let refused = AlertDescription::NoApplicationProtocol;
    for version in [V12, V13] {
        assert_eq!(
            alert(&mut worker, &client(version, &[ACME_TLS]), NAME),
            refused
        );
    }
    worker.ended().unwrap();
}

#[test]
fn other_clients_get_the_certificate_of_the_site_during_a_challenge() {
    let own = identity(&[NAME], Kind::P256);
    let memory = ChallengeMemory::new().unwrap();
    memory.set(Some(&challenge(NAME))).unwrap();
    let mut worker = started(&own, Some(&memory));
    let mut client = connect(&client(V12, &[b"http/1.1"]), NAME);
    worker.begin(1, &mut client);
    let chain = client.peer_certificates().unwrap();
    assert_eq!(chain[0], certificate_of(&own));
    worker.ended().unwrap();
}
