//! One handshake, by rustls, until the traffic secrets are known.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use aws_lc_rs::rand;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::{
    NoServerSessionStorage, ServerConfig, ServerConnection, WebPkiClientVerifier,
};
use rustls::{
    ConnectionTrafficSecrets, HandshakeKind, InvalidMessage, KeyLog, ProtocolVersion,
    RootCertStore, SupportedCipherSuite,
};

use zeroize::Zeroizing;

use crate::challenge::ChallengeMemory;
use crate::client::{Client, Received, Stage};
use crate::established::{Cipher, Direction, Established};
use crate::failure::{Failure, Reason};
use crate::identity::{ByName, Certified, Identity, provider};
use crate::record::Splitter;
use crate::records::{Records, Violation};
use crate::summary::ClientCertificate;
use crate::tickets::{TicketSecret, Tickets};

/// How handshakes are done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The certificates with their keys; the first one is for clients that ask for no known name.
    pub identities: Vec<Identity>,
    /// Whether TLS 1.2 is refused.
    pub only_13: bool,
    /// The numbers of the cipher suites that are allowed; empty if all.
    pub suites: Vec<u16>,
    /// The protocols to agree on by ALPN, the preferred one first.
    pub protocols: Vec<Vec<u8>>,
    /// Certificates in PEM of the authorities for clients; empty if clients are not asked.
    pub client_authorities: Vec<u8>,
    /// Whether a client may come without a certificate, if clients are asked.
    pub client_may_be_unknown: bool,
}

headway_os::encoding! {
    struct Settings {
        identities, only_13, suites, protocols, client_authorities, client_may_be_unknown,
    }
}

impl Settings {
    /// The purpose of tickets. A client that resumes a session shows no certificate. So a session from before a
    /// reload which changed the rules for client certificates must not be resumed.
    fn ticket_purpose(&self) -> Vec<u8> {
        let mut purpose = self.client_authorities.clone();
        purpose.push(u8::from(self.client_may_be_unknown));
        purpose
    }
}

/// Begins handshakes.
pub struct Acceptor {
    config: Arc<ServerConfig>,
    identities: Arc<ByName>,
    challenges: Option<ChallengeMemory>,
}

impl Acceptor {
    /// Without a secret for tickets sessions are not resumed.
    ///
    /// # Errors
    /// If the settings cannot be used; the text says why.
    pub fn new(settings: Settings, tickets: Option<TicketSecret>) -> Result<Acceptor, String> {
        let text = |error: rustls::Error| error.to_string();
        let provider = provider(&settings.suites);
        let identities = settings.identities.iter().map(Identity::check);
        let identities: Result<Vec<_>, _> = identities.collect();
        let identities = identities.map_err(|error| error.to_string())?;
        if !settings.only_13 {
            check_suites(&provider, &identities)?;
        }
        let versions = match settings.only_13 {
            true => &[&rustls::version::TLS13][..],
            false => rustls::ALL_VERSIONS,
        };
        let purpose = settings.ticket_purpose();
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_protocol_versions(versions).map_err(text)?;
        let builder = match settings.client_authorities.is_empty() {
            true => builder.with_no_client_auth(),
            false => builder.with_client_cert_verifier(client_verifier(&settings, provider)?),
        };
        let identities = Arc::new(ByName(identities));
        let mut config = builder.with_cert_resolver(identities.clone());
        config.alpn_protocols = settings.protocols;
        config.key_log = Arc::new(Captured);
        config.enable_secret_extraction = true;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        match tickets {
            Some(secret) => {
                let tickets = Tickets::new(secret, &purpose).ok_or("no keys for tickets")?;
                config.ticketer = Arc::new(tickets);
            }
            None => config.send_tls13_tickets = 0,
        }
        // The first random number of a process costs 30 ms, in which the library measures jitter. No client waits
        // for that here, and no loop.
        rand::fill(&mut [0]).map_err(|_| "no random numbers")?;
        Ok(Acceptor {
            config: Arc::new(config),
            identities,
            challenges: None,
        })
    }

    /// Makes the acceptor answer the challenges of an ACME authority, too.
    pub fn answer_challenges(&mut self, challenges: ChallengeMemory) {
        self.challenges = Some(challenges);
    }
}

/// Checks that TLS 1.2 has a suite for the key of each certificate. The suites of TLS 1.3 work with all
/// keys.
fn check_suites(provider: &CryptoProvider, identities: &[Certified]) -> Result<(), String> {
    let schemes = provider
        .cipher_suites
        .iter()
        .filter_map(|suite| match suite {
            SupportedCipherSuite::Tls12(suite) => Some(suite.sign),
            _ => None,
        });
    match identities
        .iter()
        .find(|one| !schemes.clone().any(|schemes| one.can_sign(schemes)))
    {
        None => Ok(()),
        Some(one) => Err(format!(
            "tls-suites: no suite of TLS 1.2 fits the key of the certificate for {}; add one for ECDSA, or for \
             RSA, as the key is, or set tls-minimum = \"1.3\"",
            one.names.join(", ")
        )),
    }
}

fn client_verifier(
    settings: &Settings,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&settings.client_authorities) {
        let certificate = certificate.map_err(|error| format!("tls-client-ca: {error}"))?;
        let added = roots.add(certificate);
        added.map_err(|error| format!("tls-client-ca: {error}"))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let builder = match settings.client_may_be_unknown {
        true => builder.allow_unauthenticated(),
        false => builder,
    };
    builder
        .build()
        .map_err(|error| format!("tls-client-ca: {error}"))
}

thread_local! {
    /// The traffic secrets of the handshake that the thread works for: the client's and the server's.
    static SECRETS: RefCell<[Zeroizing<Vec<u8>>; 2]> = RefCell::default();
}

/// rustls gives out keys directly, but the secrets from which later keys are made only to a key log.
#[derive(Debug)]
pub(crate) struct Captured;

impl Captured {
    fn place(label: &str) -> Option<usize> {
        match label {
            "CLIENT_TRAFFIC_SECRET_0" => Some(0),
            "SERVER_TRAFFIC_SECRET_0" => Some(1),
            _ => None,
        }
    }
}

impl KeyLog for Captured {
    fn will_log(&self, label: &str) -> bool {
        Captured::place(label).is_some()
    }

    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        if let Some(place) = Captured::place(label) {
            SECRETS.with_borrow_mut(|secrets| secrets[place] = Zeroizing::new(secret.to_vec()));
        }
    }
}

/// A fatal alert in the clear: record_overflow (RFC 8446, 6.2).
const TOO_LONG: [u8; 7] = [21, 3, 3, 0, 2, 2, 22];

/// What a handshake needs next.
pub enum Step {
    /// The client's next records.
    More,
    /// The handshake is done.
    Done(Box<Established>),
    /// The handshake has failed.
    Failed(Failure),
}

impl fmt::Debug for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::More => out.write_str("More"),
            Step::Done(_) => out.write_str("Done"),
            Step::Failed(why) => write!(out, "Failed({why})"),
        }
    }
}

/// A handshake in progress.
pub struct Handshake {
    /// `None` after its end.
    connection: Option<ServerConnection>,
    secrets: [Zeroizing<Vec<u8>>; 2],
    identities: Arc<ByName>,
    server_name: Option<Vec<u8>>,
    fed_bytes: usize,
}

impl Handshake {
    /// # Errors
    /// If rustls refuses its settings.
    pub fn new(acceptor: &Acceptor) -> Result<Handshake, Failure> {
        Handshake::with(acceptor, acceptor.config.clone())
    }

    /// One for a client that sends these records first.
    ///
    /// # Errors
    /// If rustls refuses its settings.
    pub fn for_records(acceptor: &Acceptor, records: &[u8]) -> Result<Handshake, Failure> {
        let challenges = acceptor.challenges.as_ref();
        let answer = challenges.and_then(|memory| memory.config_for(records));
        Handshake::with(acceptor, answer.unwrap_or_else(|| acceptor.config.clone()))
    }

    fn with(acceptor: &Acceptor, config: Arc<ServerConfig>) -> Result<Handshake, Failure> {
        let connection = ServerConnection::new(config);
        Ok(Handshake {
            connection: Some(connection.map_err(Failure::other)?),
            secrets: Default::default(),
            identities: acceptor.identities.clone(),
            server_name: None,
            fed_bytes: 0,
        })
    }

    /// Bytes that the client has sent.
    pub(crate) fn fed_bytes(&self) -> usize {
        self.fed_bytes
    }

    /// The host that the client asks for, as far as it is known.
    pub fn server_name(&self) -> Option<&[u8]> {
        self.server_name.as_deref()
    }

    /// Takes whole records of the client, and appends to `output` what has to be sent to the client. A part
    /// of a record would be lost at the end of the handshake.
    pub fn feed(&mut self, mut records: &[u8], output: &mut Vec<u8>) -> Step {
        let Some(mut connection) = self.connection.take() else {
            return Step::Failed(Failure::other("the handshake is over"));
        };
        self.fed_bytes += records.len();
        SECRETS.with_borrow_mut(|secrets| std::mem::swap(secrets, &mut self.secrets));
        let fed = feed_until_done(&mut connection, &mut records);
        SECRETS.with_borrow_mut(|secrets| std::mem::swap(secrets, &mut self.secrets));
        while connection.wants_write() {
            if connection.write_tls(output).is_err() {
                break;
            }
        }
        if self.server_name.is_none() {
            let name = connection.server_name();
            self.server_name = name.map(|name| name.as_bytes().to_vec());
        }
        match fed {
            Err(error) => {
                // rustls makes no alert for a message that it rejects because of its length.
                let is_too_long = matches!(
                    error,
                    rustls::Error::PeerSentOversizedRecord
                        | rustls::Error::InvalidMessage(InvalidMessage::HandshakePayloadTooLarge)
                );
                if is_too_long && output.is_empty() {
                    output.extend(TOO_LONG);
                }
                Step::Failed(self.failure(error))
            }
            Ok(()) if connection.is_handshaking() => {
                self.connection = Some(connection);
                Step::More
            }
            Ok(()) => {
                let secrets = std::mem::take(&mut self.secrets);
                match established(connection, secrets) {
                    Ok(established) => open_early(established, records, output),
                    Err(failure) => Step::Failed(failure),
                }
            }
        }
    }

    fn failure(&self, error: rustls::Error) -> Failure {
        let mut failure = Failure::from(error);
        let name = self.server_name.as_deref().map(String::from_utf8_lossy);
        if failure.reason == Reason::CertificateRejected
            && name.is_some_and(|name| !self.identities.has_one_for(&name))
        {
            failure.reason = Reason::UnknownName;
        }
        failure
    }
}

/// Feeds one record after the other, and leaves the records after the handshake: rustls would change to new
/// keys without giving out their secrets.
fn feed_until_done(
    connection: &mut ServerConnection,
    records: &mut &[u8],
) -> Result<(), rustls::Error> {
    while !records.is_empty() && connection.is_handshaking() {
        let length = match Splitter::look(records) {
            Splitter::Whole(length) => length,
            Splitter::Partial | Splitter::NoRecord => records.len(),
        };
        let (mut record, rest) = records.split_at(length);
        *records = rest;
        while !record.is_empty() {
            let read = connection.read_tls(&mut record);
            // rustls accepts messages of at most 64 KiB.
            let read = read.map_err(|_| rustls::Error::PeerSentOversizedRecord)?;
            connection.process_new_packets()?;
            if read == 0 {
                break;
            }
        }
    }
    Ok(())
}

/// Opens what has come after the handshake.
fn open_early(mut established: Established, sealed: &[u8], output: &mut Vec<u8>) -> Step {
    let Some(records) = Records::new(&established) else {
        return Step::Failed(Failure::other("the keys cannot be used"));
    };
    if sealed.is_empty() {
        return Step::Done(Box::new(established));
    }
    let mut client = Client::new();
    client.stage = Stage::Open(Box::new(records));
    let mut early = vec![0; sealed.len()];
    let mut received = client.open(sealed, &mut early);
    if let Received::Data(length) = received {
        early.truncate(length);
        established.early = early;
        received = client.open(&[], &mut []);
    }
    output.extend(client.unsent());
    established.is_at_end = received == Received::End;
    match (received, &client.stage) {
        (Received::Failed(violation), _) => Step::Failed(Failure {
            reason: match violation {
                Violation::Ours(_) => Reason::BadMessage,
                Violation::Theirs(_) => Reason::ClientAlert,
            },
            detail: "right after the handshake".to_owned(),
        }),
        (_, Stage::Open(records)) if records.hand_over(&mut established).is_some() => {
            Step::Done(Box::new(established))
        }
        _ => Step::Failed(Failure::other("the next keys cannot be used")),
    }
}

fn established(
    connection: ServerConnection,
    [mut client_secret, mut server_secret]: [Zeroizing<Vec<u8>>; 2],
) -> Result<Established, Failure> {
    let is_13 = connection.protocol_version() == Some(ProtocolVersion::TLSv1_3);
    let protocol = connection.alpn_protocol().unwrap_or_default().to_vec();
    let server_name = connection
        .server_name()
        .map(|name| name.as_bytes().to_vec());
    let is_resumed = connection.handshake_kind() == Some(HandshakeKind::Resumed);
    let suite = connection.negotiated_cipher_suite();
    let suite = suite.map_or(0, |suite| suite.suite().into());
    let certificate = connection.peer_certificates().and_then(<[_]>::first);
    let client_certificate = match certificate.map(|one| ClientCertificate::of_der(one)) {
        None => None,
        Some(Some(certificate)) => Some(certificate),
        Some(None) => {
            return Err(Failure {
                reason: Reason::ClientCertificateRefused,
                detail: "its names are too long or malformed".to_owned(),
            });
        }
    };
    let secrets = connection.dangerous_extract_secrets()?;
    let (cipher, receive) = direction(secrets.rx, std::mem::take(&mut *client_secret))?;
    let (_, send) = direction(secrets.tx, std::mem::take(&mut *server_secret))?;
    // Each function that these secrets pass through may leave a copy on the stack.
    Ok(Established {
        is_13,
        cipher,
        suite,
        receive,
        send,
        protocol,
        server_name,
        is_resumed,
        early: Vec::new(),
        is_at_end: false,
        client_certificate,
    })
}

fn direction(
    (sequence, keys): (u64, ConnectionTrafficSecrets),
    secret: Vec<u8>,
) -> Result<(Cipher, Direction), rustls::Error> {
    let (cipher, key, iv) = match keys {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Cipher::Aes128Gcm, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Cipher::Aes256Gcm, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
            (Cipher::Chacha20Poly1305, key, iv)
        }
        _ => return Err(rustls::Error::General("an unknown cipher".to_owned())),
    };
    let mut nonce = [0; 12];
    nonce.copy_from_slice(iv.as_ref());
    Ok((
        cipher,
        Direction {
            key: key.as_ref().to_vec(),
            iv: nonce,
            sequence,
            secret,
        },
    ))
}
