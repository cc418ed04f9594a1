//! One handshake, by rustls, until the traffic secrets are known.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::{
    NoServerSessionStorage, ServerConfig, ServerConnection, WebPkiClientVerifier,
};
use rustls::{ConnectionTrafficSecrets, HandshakeKind, KeyLog, ProtocolVersion, RootCertStore};

use crate::client::{Client, Received, Stage};
use crate::established::{Cipher, Direction, Established};
use crate::identity::{ByName, Identity, provider};
use crate::record::Splitter;
use crate::records::Records;
use crate::tickets::{TicketSecret, Tickets};

/// How handshakes are done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The certificates with their keys; the first one is for clients that ask for no known name.
    pub identities: Vec<Identity>,
    /// Whether TLS 1.2 is refused.
    pub only_13: bool,
    /// The protocols to agree on by ALPN, the preferred one first.
    pub protocols: Vec<Vec<u8>>,
    /// Certificates in PEM of the authorities for clients; empty if clients are not asked.
    pub client_authorities: Vec<u8>,
    /// Whether a client may come without a certificate, if clients are asked.
    pub client_may_be_unknown: bool,
}

headway_os::encoding! {
    struct Settings {
        identities, only_13, protocols, client_authorities, client_may_be_unknown,
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
pub struct Acceptor(Arc<ServerConfig>);

impl Acceptor {
    /// Without a secret for tickets sessions are not resumed.
    ///
    /// # Errors
    /// If the settings cannot be used; the text says why.
    pub fn new(settings: Settings, tickets: Option<TicketSecret>) -> Result<Acceptor, String> {
        let text = |error: rustls::Error| error.to_string();
        let provider = provider();
        let identities = settings.identities.iter().map(Identity::check);
        let identities: Result<Vec<_>, _> = identities.collect();
        let identities = identities.map_err(|error| error.to_string())?;
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
        let mut config = builder.with_cert_resolver(Arc::new(ByName(identities)));
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
        Ok(Acceptor(Arc::new(config)))
    }
}

fn client_verifier(
    settings: &Settings,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&settings.client_authorities) {
        let certificate = certificate.map_err(|error| format!("client-ca: {error}"))?;
        let added = roots.add(certificate);
        added.map_err(|error| format!("client-ca: {error}"))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let builder = match settings.client_may_be_unknown {
        true => builder.allow_unauthenticated(),
        false => builder,
    };
    builder
        .build()
        .map_err(|error| format!("client-ca: {error}"))
}

thread_local! {
    /// The traffic secrets of the handshake that the thread works for: the client's and the server's.
    static SECRETS: RefCell<[Vec<u8>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// rustls gives out keys directly, but the secrets from which later keys are made only to a key log.
#[derive(Debug)]
struct Captured;

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
            SECRETS.with_borrow_mut(|secrets| secrets[place] = secret.to_vec());
        }
    }
}

/// What a handshake needs next.
pub enum Step {
    /// The client's next records.
    More,
    /// The handshake is done.
    Done(Box<Established>),
    /// The handshake has failed, for this reason.
    Failed(String),
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
    secrets: [Vec<u8>; 2],
}

impl Handshake {
    /// # Errors
    /// If rustls refuses its settings.
    pub fn new(acceptor: &Acceptor) -> Result<Handshake, String> {
        let connection = ServerConnection::new(acceptor.0.clone());
        Ok(Handshake {
            connection: Some(connection.map_err(|error| error.to_string())?),
            secrets: [Vec::new(), Vec::new()],
        })
    }

    /// Takes whole records of the client, and appends to `output` what has to be sent to the client. A part
    /// of a record would be lost at the end of the handshake.
    pub fn feed(&mut self, mut records: &[u8], output: &mut Vec<u8>) -> Step {
        let Some(mut connection) = self.connection.take() else {
            return Step::Failed("the handshake is over".to_owned());
        };
        SECRETS.with_borrow_mut(|secrets| std::mem::swap(secrets, &mut self.secrets));
        let fed = feed_until_done(&mut connection, &mut records);
        SECRETS.with_borrow_mut(|secrets| std::mem::swap(secrets, &mut self.secrets));
        while connection.wants_write() {
            if connection.write_tls(output).is_err() {
                break;
            }
        }
        match fed {
            Err(why) => Step::Failed(why),
            Ok(()) if connection.is_handshaking() => {
                self.connection = Some(connection);
                Step::More
            }
            Ok(()) => {
                let secrets = std::mem::take(&mut self.secrets);
                match established(connection, secrets) {
                    Ok(established) => open_early(established, records, output),
                    Err(error) => Step::Failed(error.to_string()),
                }
            }
        }
    }
}

/// Feeds one record after the other, and leaves the records after the handshake: rustls would change to new
/// keys without giving out their secrets.
fn feed_until_done(connection: &mut ServerConnection, records: &mut &[u8]) -> Result<(), String> {
    while !records.is_empty() && connection.is_handshaking() {
        let length = match Splitter::look(records) {
            Splitter::Whole(length) => length,
            Splitter::Partial | Splitter::NoRecord => records.len(),
        };
        let (mut record, rest) = records.split_at(length);
        *records = rest;
        while !record.is_empty() {
            let read = connection.read_tls(&mut record);
            let read = read.map_err(|error| error.to_string())?;
            let processed = connection.process_new_packets();
            processed.map_err(|error| error.to_string())?;
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
        return Step::Failed("the keys cannot be used".to_owned());
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
        (Received::Failed(violation), _) => {
            Step::Failed(format!("after the handshake: {violation:?}"))
        }
        (_, Stage::Open(records)) if records.hand_over(&mut established).is_some() => {
            Step::Done(Box::new(established))
        }
        _ => Step::Failed("the next keys cannot be used".to_owned()),
    }
}

fn established(
    connection: ServerConnection,
    [client_secret, server_secret]: [Vec<u8>; 2],
) -> Result<Established, rustls::Error> {
    let is_13 = connection.protocol_version() == Some(ProtocolVersion::TLSv1_3);
    let protocol = connection.alpn_protocol().unwrap_or_default().to_vec();
    let server_name = connection
        .server_name()
        .map(|name| name.as_bytes().to_vec());
    let is_resumed = connection.handshake_kind() == Some(HandshakeKind::Resumed);
    let certificates = connection.peer_certificates();
    let client_certificate = certificates.and_then(|chain| chain.first().map(|one| one.to_vec()));
    let secrets = connection.dangerous_extract_secrets()?;
    let (cipher, receive) = direction(secrets.rx, client_secret)?;
    let (_, send) = direction(secrets.tx, server_secret)?;
    Ok(Established {
        is_13,
        cipher,
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
