//! Certificates, a client, and what passes bytes between it and the server.

use std::io::{ErrorKind, Read, Write};
use std::sync::{Arc, OnceLock};

use headway_tls::{
    Acceptor, Client, Established, Handshake, Identity, Reason, Received, Records, Settings,
    Splitter, Stage, Step, TicketSecret,
};
use rcgen::{
    CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519,
    PKCS_RSA_SHA256,
};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, SupportedCipherSuite, SupportedProtocolVersion,
};

/// As much as a worker receives at a time.
const RAW_BYTES: usize = 64 << 10;

/// The kind of a private key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Rsa,
    P256,
    P384,
    Ed25519,
}

pub fn key_pair(kind: Kind) -> KeyPair {
    // One RSA key is made for all tests, since that takes long.
    static RSA: OnceLock<String> = OnceLock::new();
    let generate = |algorithm| KeyPair::generate_for(algorithm).unwrap();
    match kind {
        Kind::Rsa => {
            let pem = RSA.get_or_init(|| generate(&PKCS_RSA_SHA256).serialize_pem());
            KeyPair::from_pem(pem).unwrap()
        }
        Kind::P256 => generate(&PKCS_ECDSA_P256_SHA256),
        Kind::P384 => generate(&PKCS_ECDSA_P384_SHA384),
        Kind::Ed25519 => generate(&PKCS_ED25519),
    }
}

/// A certificate that certifies itself.
pub fn identity(names: &[&str], kind: Kind) -> Identity {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let key = key_pair(kind);
    let certificate = CertificateParams::new(names)
        .unwrap()
        .self_signed(&key)
        .unwrap();
    Identity {
        certificate: certificate.pem().into_bytes(),
        key: key.serialize_pem().into_bytes(),
    }
}

pub fn certificate_of(identity: &Identity) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(&identity.certificate).unwrap()
}

pub fn settings(identities: &[Identity]) -> Settings {
    Settings {
        identities: identities.to_vec(),
        only_13: false,
        suites: Vec::new(),
        protocols: vec![b"http/1.1".to_vec()],
        client_authorities: Vec::new(),
        client_may_be_unknown: false,
    }
}

/// Accepts for `a.example` without tickets.
pub fn simple_acceptor(identity: &Identity) -> Acceptor {
    Acceptor::new(settings(std::slice::from_ref(identity)), None).unwrap()
}

pub const V12: &SupportedProtocolVersion = &rustls::version::TLS12;
pub const V13: &SupportedProtocolVersion = &rustls::version::TLS13;

pub fn provider_with(suites: &[SupportedCipherSuite]) -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: suites.to_vec(),
        ..aws_lc_rs::default_provider()
    })
}

pub fn roots(trusted: &[Identity]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    trusted
        .iter()
        .for_each(|identity| roots.add(certificate_of(identity)).unwrap());
    roots
}

pub fn config_with(
    provider: Arc<CryptoProvider>,
    version: &'static SupportedProtocolVersion,
    trusted: &[Identity],
) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_protocol_versions(&[version]).unwrap();
    builder
        .with_root_certificates(roots(trusted))
        .with_no_client_auth()
}

pub fn config(version: &'static SupportedProtocolVersion, trusted: &[Identity]) -> ClientConfig {
    config_with(
        provider_with(aws_lc_rs::ALL_CIPHER_SUITES),
        version,
        trusted,
    )
}

pub fn connect(config: &Arc<ClientConfig>, host: &str) -> ClientConnection {
    let name = host.to_owned().try_into().unwrap();
    let mut client = ClientConnection::new(config.clone(), name).unwrap();
    client.set_buffer_limit(None);
    client
}

/// What the client has to send now.
pub fn client_output(client: &mut ClientConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes).unwrap();
    }
    bytes
}

/// Gives bytes to the client, and returns the data that they bring.
pub fn client_input(
    client: &mut ClientConnection,
    mut bytes: &[u8],
) -> Result<Vec<u8>, rustls::Error> {
    let mut data = Vec::new();
    while !bytes.is_empty() {
        client.read_tls(&mut bytes).unwrap();
        client.process_new_packets()?;
        match client.reader().read_to_end(&mut data) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            // The server has ended the connection.
            Ok(_) => break,
        }
    }
    Ok(data)
}

/// Has the client seal data.
pub fn client_seal(client: &mut ClientConnection, data: &[u8]) -> Vec<u8> {
    client.writer().write_all(data).unwrap();
    client_output(client)
}

/// A connection of which the handshake is done.
pub struct Pair {
    pub client: ClientConnection,
    pub server: Client,
    pub established: Established,
}

/// What became of a handshake which failed.
#[derive(Debug)]
pub struct Failure {
    pub reason: Reason,
    pub why: String,
    /// What the client makes of the server's last bytes.
    pub client: Option<rustls::Error>,
}

fn failed(failure: &headway_tls::Failure, client: Option<rustls::Error>) -> Failure {
    Failure {
        reason: failure.reason,
        why: failure.to_string(),
        client,
    }
}

/// Does a handshake. Either side may end it.
pub fn try_shake(acceptor: &Acceptor, mut client: ClientConnection) -> Result<Pair, Failure> {
    let mut handshake = Handshake::new(acceptor).unwrap();
    loop {
        let records = client_output(&mut client);
        assert_eq!(Splitter::whole_records(&records), (records.len(), false));
        let mut output = Vec::new();
        let step = handshake.feed(&records, &mut output);
        let received = client_input(&mut client, &output);
        match (step, received) {
            (Step::More, Ok(_)) => assert!(client.wants_write(), "both sides wait"),
            // The client's alert goes to the server.
            (Step::More, Err(error)) => {
                match handshake.feed(&client_output(&mut client), &mut output) {
                    Step::Failed(failure) => return Err(failed(&failure, Some(error))),
                    step => panic!("{step:?} after the client has failed: {error}"),
                }
            }
            (Step::Failed(failure), received) => return Err(failed(&failure, received.err())),
            (Step::Done(established), received) => {
                received.unwrap();
                return Ok(pair(client, *established));
            }
        }
    }
}

pub fn pair(client: ClientConnection, established: Established) -> Pair {
    Pair {
        client,
        server: open_stage(&established),
        established,
    }
}

pub fn shake(acceptor: &Acceptor, client: ClientConnection) -> Pair {
    try_shake(acceptor, client).unwrap_or_else(|failure| panic!("{failure:?}"))
}

/// A connection of this version to `a.example` without tickets.
pub fn connected(version: &'static SupportedProtocolVersion) -> Pair {
    let identity = identity(&["a.example"], Kind::P256);
    let config = Arc::new(config(version, std::slice::from_ref(&identity)));
    shake(&simple_acceptor(&identity), connect(&config, "a.example"))
}

/// What the worker keeps of a connection.
pub fn open_stage(established: &Established) -> Client {
    let mut server = Client::new();
    server.stage = Stage::Open(Box::new(Records::new(established).unwrap()));
    server
}

/// The records as the client has them.
pub fn client_side(established: &Established) -> Records {
    let mut mirrored = established.clone();
    std::mem::swap(&mut mirrored.receive, &mut mirrored.send);
    Records::new(&mirrored).unwrap()
}

/// Opens what the client has sent as a worker does it, with `room` for data. Returns the data, and the last
/// that was reported.
pub fn open_with_room(server: &mut Client, mut input: &[u8], room: usize) -> (Vec<u8>, Received) {
    let (mut raw, mut out, mut data) = (vec![0; RAW_BYTES], vec![0; room], Vec::new());
    loop {
        let kept = server.restore_input(&mut raw);
        let taken = match server.has_input() {
            true => 0,
            false => input.len().min(raw.len() - kept),
        };
        raw[kept..kept + taken].copy_from_slice(&input[..taken]);
        input = &input[taken..];
        match server.open(&raw[..kept + taken], &mut out) {
            Received::Data(length) => data.extend(&out[..length]),
            Received::Nothing if !input.is_empty() || server.has_input() => {}
            last => return (data, last),
        }
    }
}

pub fn open(server: &mut Client, input: &[u8]) -> (Vec<u8>, Received) {
    open_with_room(server, input, RAW_BYTES)
}

pub fn seal(server: &mut Client, data: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::new();
    server.seal([data], 0, &mut sealed).unwrap();
    sealed
}

/// What the server has to send besides data.
pub fn take_unsent(server: &mut Client) -> Vec<u8> {
    let bytes = server.unsent().to_vec();
    server.sent(bytes.len());
    bytes
}

/// Bytes that differ from each other.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 % 251) as u8).collect()
}

/// Data goes through in both directions.
pub fn assert_data_passes(pair: &mut Pair) {
    let sealed = client_seal(&mut pair.client, b"ping");
    assert_eq!(
        open(&mut pair.server, &sealed),
        (b"ping".to_vec(), Received::Nothing)
    );
    let mut sealed = take_unsent(&mut pair.server);
    sealed.extend(seal(&mut pair.server, b"pong"));
    assert_eq!(client_input(&mut pair.client, &sealed).unwrap(), b"pong");
}

pub fn secret() -> Option<TicketSecret> {
    Some(TicketSecret::random().unwrap())
}
