//! Certificates, servers that have one, and clients that trust it.

use std::fs;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use headway_test_support::WAIT_MAX;
use rcgen::{
    Certificate, CertificateParams, CertifiedKey, KeyPair, date_time_ymd,
    generate_simple_self_signed,
};
use rustix::process::{Pid, Signal, kill_process};
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned,
    SupportedProtocolVersion,
};

use crate::site::*;

/// The name that clients ask for.
pub const NAME: &str = "localhost";

/// Both versions.
pub const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

/// A client of a server.
pub type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// A certificate and its key.
pub struct Certified {
    pub certificate: CertificateDer<'static>,
    certificate_pem: String,
    pub key_pem: String,
    /// The key as PKCS #8.
    pub key: Vec<u8>,
}

impl Certified {
    pub fn new() -> Certified {
        let made = generate_simple_self_signed([NAME.to_owned()]);
        let CertifiedKey { cert, signing_key } = made.unwrap();
        Certified::of(&cert, &signing_key)
    }

    /// One that is not valid any more.
    pub fn expired() -> Certified {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([NAME.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
        Certified::of(&params.self_signed(&key).unwrap(), &key)
    }

    pub fn of(certificate: &Certificate, key: &KeyPair) -> Certified {
        Certified {
            certificate: certificate.der().clone(),
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            key: key.serialize_der(),
        }
    }

    /// Writes the files that a server reads.
    pub fn write(&self, directory: &Path) {
        fs::write(directory.join("tls.crt"), &self.certificate_pem).unwrap();
        fs::write(directory.join("tls.key"), &self.key_pem).unwrap();
    }

    /// Clients that trust this certificate, and remember no sessions.
    pub fn clients(&self, version: &'static SupportedProtocolVersion) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(&[version]).unwrap();
        let builder = builder.with_root_certificates(roots);
        let mut config = builder.with_no_client_auth();
        config.resumption = Resumption::disabled();
        config
    }
}

/// A server that speaks TLS besides HTTP in the clear.
pub struct Secured {
    pub site: Site,
    pub server: Server,
    pub certified: Certified,
}

impl Secured {
    /// With one worker, and these settings besides.
    pub fn start(settings: &str) -> Secured {
        Secured::start_with(Site::new(), 1, settings)
    }

    pub fn start_with(site: Site, workers: usize, settings: &str) -> Secured {
        Secured::start_as(Certified::new(), site, workers, settings)
    }

    pub fn start_as(certified: Certified, site: Site, workers: usize, settings: &str) -> Secured {
        certified.write(&site.path(""));
        let (file, workers) = (site.path("headway.toml"), workers.to_string());
        fs::write(&file, tls_settings(&site.path(""), settings)).unwrap();
        let file = file.to_str().unwrap();
        let arguments = ["--workers", &workers, "--config", file];
        let server = Server::start(program(), &site.path("root"), &arguments);
        Secured {
            site,
            server,
            certified,
        }
    }

    /// The address of the listener that speaks TLS.
    pub fn address(&self) -> &str {
        self.server.listeners.last().unwrap()
    }

    /// A client that has said nothing yet.
    pub fn connect_tcp(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// A client that has not begun its handshake.
    pub fn connect(&self, version: &'static SupportedProtocolVersion) -> TlsStream {
        self.connect_as(Arc::new(self.certified.clients(version)))
    }

    pub fn connect_as(&self, config: Arc<ClientConfig>) -> TlsStream {
        speak(self.connect_tcp(), config)
    }

    /// One GET on a connection of its own.
    pub fn get(&self, path: &str) -> Response {
        let mut stream = self.connect(&TLS13);
        ask(&mut stream, path)
    }

    /// A counter of the whole server.
    pub fn counter(&self, name: &str) -> u64 {
        counter(&self.server, name)
    }

    /// The only process of a kind.
    pub fn process(&self, kind: &str) -> i32 {
        self.server.children(kind)[0]
    }
}

/// The settings of a server whose certificate is in this directory.
pub fn tls_settings(directory: &Path, more: &str) -> String {
    let (certificate, key) = (directory.join("tls.crt"), directory.join("tls.key"));
    // scripts/kernel-tests has all tests run with kernel TLS.
    let offload = match std::env::var_os("HEADWAY_TEST_OFFLOAD") {
        Some(_) if !more.contains("tls-offload") => "tls-offload = \"kernel\"\n",
        _ => "",
    };
    format!(
        "tls-listen = \"127.0.0.1:0\"\ntls-certificate = {certificate:?}\ntls-key = {key:?}\n{offload}{more}\n"
    )
}

/// Has a connected client speak TLS.
pub fn speak(stream: TcpStream, config: Arc<ClientConfig>) -> TlsStream {
    let name = ServerName::try_from(NAME).unwrap();
    StreamOwned::new(ClientConnection::new(config, name).unwrap(), stream)
}

/// Does the handshake.
pub fn shake_hands(stream: &mut TlsStream) {
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).unwrap();
    }
}

/// A request for a path, to be sent.
pub fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n")
}

/// Clients that remember sessions.
pub fn remembering(
    secured: &Secured,
    version: &'static SupportedProtocolVersion,
) -> Arc<ClientConfig> {
    let mut config = secured.certified.clients(version);
    config.resumption = Resumption::in_memory_sessions(8);
    Arc::new(config)
}

/// Whether the session of the last connection is resumed.
pub fn resumes(secured: &Secured, clients: &Arc<ClientConfig>) -> bool {
    let mut stream = secured.connect_as(clients.clone());
    assert_eq!(ask(&mut stream, "/file.txt").text(), "a file\n");
    stream.conn.handshake_kind() == Some(HandshakeKind::Resumed)
}

/// One GET.
pub fn ask(stream: &mut TlsStream, path: &str) -> Response {
    send(stream, request(path));
    receive(stream).unwrap()
}

/// What is left until the end, and whether the end is marked: a cut is not.
pub fn rest(stream: &mut impl Read) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => (bytes, true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => (bytes, false),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => (bytes, false),
        Err(error) => panic!("after {} bytes: {error}", bytes.len()),
    }
}

/// Checks that the loop of no worker has ever blocked, and that plain connections are served as well.
pub fn is_well_over_tls(secured: &Secured) {
    is_well(&secured.server);
    let response = secured.get("/file.txt");
    assert_eq!(
        (response.status, response.text().as_str()),
        (200, "a file\n")
    );
}

/// Sends what the client has to say first.
pub fn begin(stream: &mut TlsStream) {
    while stream.conn.wants_write() {
        stream.conn.write_tls(&mut stream.sock).unwrap();
    }
}

/// What a client says first, as bytes.
pub fn hello(secured: &Secured) -> Vec<u8> {
    let (mut bytes, config) = (Vec::new(), secured.certified.clients(&TLS13));
    let name = ServerName::try_from(NAME).unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

/// Sends a signal to a process.
pub fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}
