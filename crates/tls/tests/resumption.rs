//! Sessions that are resumed by tickets, with whatever process of the server.

use std::sync::Arc;

use headway_tls::{Acceptor, Identity, Settings, TicketSecret};
use rustls::{ClientConfig, SupportedProtocolVersion};

use crate::support::*;

const VERSIONS: [&SupportedProtocolVersion; 2] = [V12, V13];

struct Server {
    identity: Identity,
    settings: Settings,
}

impl Server {
    fn new() -> Server {
        let identity = identity(&["a.example", "b.example"], Kind::P256);
        let settings = settings(std::slice::from_ref(&identity));
        Server { identity, settings }
    }

    fn process(&self, secret: &Option<TicketSecret>) -> Acceptor {
        Acceptor::new(self.settings.clone(), secret.clone()).unwrap()
    }

    fn client(&self, version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
        Arc::new(config(version, std::slice::from_ref(&self.identity)))
    }
}

/// Whether a handshake resumes a session. Both sides agree on that, and data passes.
fn resumes(process: &Acceptor, client: &Arc<ClientConfig>, host: &str) -> bool {
    let mut pair = shake(process, connect(client, host));
    assert_data_passes(&mut pair);
    let is_resumed = pair.client.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
    assert_eq!(pair.established.is_resumed, is_resumed);
    is_resumed
}

#[test]
fn session_resumes_with_another_process_of_the_same_secret() {
    let (server, secret) = (Server::new(), secret());
    for version in VERSIONS {
        let client = server.client(version);
        assert!(!resumes(&server.process(&secret), &client, "a.example"));
        assert!(
            resumes(&server.process(&secret), &client, "a.example"),
            "{version:?}"
        );
        // The ticket of a resumed session is good, too.
        assert!(
            resumes(&server.process(&secret), &client, "a.example"),
            "{version:?}"
        );
    }
}

#[test]
fn session_does_not_resume_with_another_secret() {
    let server = Server::new();
    for version in VERSIONS {
        let client = server.client(version);
        assert!(!resumes(&server.process(&secret()), &client, "a.example"));
        assert!(
            !resumes(&server.process(&secret()), &client, "a.example"),
            "{version:?}"
        );
    }
}

#[test]
fn session_does_not_resume_when_tickets_are_off() {
    let server = Server::new();
    for version in VERSIONS {
        let client = server.client(version);
        let process = server.process(&None);
        assert!(!resumes(&process, &client, "a.example"));
        assert!(!resumes(&process, &client, "a.example"), "{version:?}");
        // Nor with tickets of before.
        let secret = secret();
        assert!(!resumes(&server.process(&secret), &client, "a.example"));
        assert!(!resumes(&process, &client, "a.example"), "{version:?}");
    }
}

#[test]
fn session_does_not_resume_for_another_host() {
    let (server, secret) = (Server::new(), secret());
    for version in VERSIONS {
        let client = server.client(version);
        assert!(!resumes(&server.process(&secret), &client, "a.example"));
        assert!(
            !resumes(&server.process(&secret), &client, "b.example"),
            "{version:?}"
        );
    }
}

#[test]
fn resumed_session_shows_the_host_and_the_protocol() {
    let (server, secret) = (Server::new(), secret());
    for version in VERSIONS {
        let mut client = config(version, std::slice::from_ref(&server.identity));
        client.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let client = Arc::new(client);
        for is_resumed in [false, true] {
            let pair = shake(&server.process(&secret), connect(&client, "b.example"));
            assert_eq!(pair.established.is_resumed, is_resumed);
            assert_eq!(pair.established.protocol, b"http/1.1");
            assert_eq!(
                pair.established.server_name.as_deref(),
                Some(&b"b.example"[..])
            );
            let mut pair = pair;
            assert_data_passes(&mut pair);
        }
    }
}

/// The secret outlives a reload. A client that was let in without a certificate gets no further by its ticket
/// when certificates are required from then on.
#[test]
fn session_of_before_a_reload_does_not_replace_a_certificate() {
    let (mut server, secret) = (Server::new(), secret());
    for version in VERSIONS {
        let client = server.client(version);
        server.settings.client_authorities = Vec::new();
        assert!(!resumes(&server.process(&secret), &client, "a.example"));
        server.settings.client_authorities = server.identity.certificate.clone();
        let process = server.process(&secret);
        assert!(
            try_shake(&process, connect(&client, "a.example")).is_err(),
            "{version:?}"
        );
    }
}
