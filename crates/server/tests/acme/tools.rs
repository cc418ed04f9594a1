//! An authority (pebble) with its name server, a server with automatic certificates, and a client which looks
//! at certificates.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use headway_server::acme::{HostStatus, status};
use headway_server::config::{AcmeConfig, Config, ConfigFile, Environment, Settings};
use headway_test_support::trust::Trusting;
use headway_test_support::{WAIT_MAX, find_go_program, wait_until};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::site::*;

/// The name that is certified.
pub const NAME: &str = "a.example";

/// A name that the authority does not certify.
pub const REJECTED: &str = "rejected.example";

/// A port of this machine that was free a moment ago, for TCP and UDP.
pub fn free_port() -> u16 {
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        if UdpSocket::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// The programs of an authority. `None` if they are not installed.
pub fn programs() -> Option<[PathBuf; 2]> {
    Some([
        find_go_program("pebble")?,
        find_go_program("pebble-challtestsrv")?,
    ])
}

/// A process which ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(program: &Path, arguments: &[&str]) -> Process {
    let mut command = Command::new(program);
    command.args(arguments).env("PEBBLE_VA_NOSLEEP", "1");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Process(command.spawn().unwrap())
}

/// The authority's files and ports, whether it runs or not.
pub struct Authority {
    programs: [PathBuf; 2],
    directory: PathBuf,
    port: u16,
    management: u16,
    running: Vec<Process>,
}

impl Authority {
    /// One which does not run, and asks for answers at this port.
    pub fn new(programs: [PathBuf; 2], site: &Site, http_port: u16) -> Authority {
        let directory = site.path("authority");
        fs::create_dir(&directory).unwrap();
        let made = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let CertifiedKey { cert, signing_key } = made;
        fs::write(directory.join("ca.pem"), cert.pem()).unwrap();
        fs::write(directory.join("ca.key"), signing_key.serialize_pem()).unwrap();
        let authority = Authority {
            programs,
            directory,
            port: free_port(),
            management: free_port(),
            running: Vec::new(),
        };
        authority.ask_at_ports(http_port, 1);
        authority
    }

    /// Writes its settings. It reads them when it starts.
    pub fn ask_at_ports(&self, http_port: u16, tls_port: u16) {
        let file = |name| self.directory.join(name).display().to_string();
        let settings = serde_json::json!({ "pebble": {
            "listenAddress": format!("127.0.0.1:{}", self.port),
            "managementListenAddress": format!("127.0.0.1:{}", self.management),
            "certificate": file("ca.pem"),
            "privateKey": file("ca.key"),
            "httpPort": http_port,
            "tlsPort": tls_port,
            "domainBlocklist": [REJECTED],
            "retryAfter": { "authz": 1, "order": 1 },
            "profiles": { "default": { "description": "", "validityPeriod": 7_776_000 } },
        }});
        fs::write(self.directory.join("pebble.json"), settings.to_string()).unwrap();
    }

    pub fn run(&mut self) {
        let names = format!("127.0.0.1:{}", free_port());
        let management = format!("127.0.0.1:{}", free_port());
        let [pebble, servers] = &self.programs;
        let servers = start(
            servers,
            &[
                "-dnsserver",
                &names,
                "-management",
                &management,
                "-defaultIPv6",
                "",
                "-http01",
                "",
                "-https01",
                "",
                "-tlsalpn01",
                "",
                "-doh",
                "",
            ],
        );
        let settings = self.directory.join("pebble.json");
        let settings = settings.to_str().unwrap();
        let pebble = start(pebble, &["-config", settings, "-dnsserver", &names]);
        self.running = vec![servers, pebble];
        let port = self.management;
        wait_until("the authority listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
    }

    pub fn stop(&mut self) {
        self.running.clear();
    }

    /// The URL of its directory.
    pub fn url(&self) -> String {
        format!("https://localhost:{}/dir", self.port)
    }

    /// Whether it has revoked a certificate.
    pub fn status_of(&self, certificate: &str) -> String {
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        let serial = serial_of(&der);
        let body = self.manage(&format!("GET /cert-status-by-serial/{serial}"), "");
        let found: serde_json::Value = serde_json::from_str(&body).unwrap();
        found["Status"].as_str().unwrap().to_owned()
    }

    /// The settings of a server which gets its certificates from it.
    pub fn settings(&self) -> String {
        format!(
            "acme-hosts = \"{NAME}\"\nacme-directory = \"https://localhost:{}/dir\"\nacme-ca = {:?}\n\
             acme-contact = \"mailto:admin@{NAME}\"\nacme-retry-interval = \"1s\"\n",
            self.port,
            self.directory.join("ca.pem")
        )
    }

    /// The certificate at the root of what it issues. It makes another when it starts.
    pub fn root(&self) -> CertificateDer<'static> {
        let body = self.manage("GET /roots/0", "");
        CertificateDer::from_pem_slice(body.as_bytes()).unwrap()
    }

    /// Has it answer that a certificate should have been renewed long ago.
    pub fn want_renewal(&self, certificate: &str) {
        let window = "{\"suggestedWindow\":{\"start\":\"2020-01-02T04:00:00Z\",\"end\":\"2020-01-03T04:00:00Z\"}}";
        let body = serde_json::json!({ "Certificate": certificate, "ARIResponse": window });
        self.manage("POST /set-renewal-info/", &body.to_string());
    }

    fn manage(&self, request: &str, body: &str) -> String {
        let address = format!("127.0.0.1:{}", self.management);
        let mut stream = connect(&address, "localhost", trusting_all());
        let length = body.len();
        let request = format!(
            "{request} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: test\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        text.split_once("\r\n\r\n").unwrap().1.to_owned()
    }
}

/// A server with automatic certificates, whose ports stay the same when it is started again.
pub struct Automatic {
    pub site: Site,
    pub port: u16,
    pub tls_port: u16,
}

impl Automatic {
    pub fn new() -> Automatic {
        Automatic {
            site: Site::new(),
            port: free_port(),
            tls_port: free_port(),
        }
    }

    pub fn start(&self, settings: &str) -> Server {
        let file = self.site.path("headway.toml");
        fs::write(&file, self.text(settings)).unwrap();
        Server::start_from_file(program(), &file)
    }

    /// Starts a server that speaks TLS only.
    pub fn start_with_tls_only(&self, settings: &str) -> Server {
        let file = self.site.path("headway.toml");
        let plain = format!("listen = \"127.0.0.1:{}\"\n", self.port);
        fs::write(&file, self.text(settings).replacen(&plain, "", 1)).unwrap();
        Server::start_from_file(program(), &file)
    }

    /// The text of its file of settings.
    pub fn text(&self, settings: &str) -> String {
        format!(
            "root = \"root\"\nlisten = \"127.0.0.1:{}\"\ntls-listen = \"127.0.0.1:{}\"\n\
             status = \"127.0.0.1:0\"\nworkers = 1\nstate-directory = \"state\"\n{settings}",
            self.port, self.tls_port
        )
    }

    pub fn tls_address(&self) -> String {
        format!("127.0.0.1:{}", self.tls_port)
    }

    /// The file with the key and the certificates.
    pub fn file(&self) -> String {
        let path = format!("state/acme/certificates/{NAME}.pem");
        fs::read_to_string(self.site.path(&path)).unwrap()
    }

    /// The key of the file, as text.
    pub fn key(&self) -> String {
        let file = self.file();
        let end = "-----END PRIVATE KEY-----\n";
        let end = file.find(end).unwrap() + end.len();
        file[file.find("-----BEGIN PRIVATE KEY").unwrap()..end].to_owned()
    }

    /// Its settings, as a command of the administrator has them.
    pub fn config(&self, settings: &str) -> AcmeConfig {
        let path = self.site.path("headway.toml");
        let text = self.text(settings);
        let file = ConfigFile {
            path: &path,
            text: &text,
        };
        let checked = Config::load(file, Settings::default(), &Environment::detect());
        checked.unwrap().config.acme.unwrap()
    }

    /// What an administrator sees of its certificate.
    pub fn state(&self, authority: &Authority) -> HostStatus {
        self.state_with(&authority.settings())
    }

    /// The same, with the settings of another authority.
    pub fn state_with(&self, settings: &str) -> HostStatus {
        status(&self.config(settings)).unwrap().remove(0)
    }

    /// The first certificate of the file, as text.
    pub fn certificate(&self) -> String {
        let file = self.file();
        let begin = file.find("-----BEGIN CERTIFICATE").unwrap();
        let mark = "-----END CERTIFICATE-----\n";
        let end = begin + file[begin..].find(mark).unwrap() + mark.len();
        file[begin..end].to_owned()
    }

    /// The certificate that clients get.
    pub fn served(&self) -> CertificateDer<'static> {
        let stream = connect(&self.tls_address(), NAME, trusting_all());
        let chain = stream.conn.peer_certificates().unwrap();
        chain[0].clone().into_owned()
    }

    /// A client that asks for the answer to a challenge, as an authority does.
    pub fn ask_as_authority(&self) -> StreamOwned<ClientConnection, TcpStream> {
        let mut config = (*trusting_all()).clone();
        config.alpn_protocols = vec![b"acme-tls/1".to_vec()];
        connect(&self.tls_address(), NAME, Arc::new(config))
    }

    /// Whether such a client gets an alert.
    pub fn refuses_challenges(&self) -> bool {
        let found = self.ask_as_authority().read(&mut [0]);
        found.is_err_and(|error| error.to_string().contains("NoApplicationProtocol"))
    }

    /// Whether a client which trusts this root gets the site.
    pub fn is_trusted_by(&self, root: CertificateDer<'static>) -> bool {
        let mut roots = RootCertStore::empty();
        roots.add(root).unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots).with_no_client_auth();
        let mut stream = connect(&self.tls_address(), NAME, Arc::new(config));
        let request = format!("GET /file.txt HTTP/1.1\r\nHost: {NAME}\r\n\r\n");
        match stream.write_all(request.as_bytes()) {
            Ok(()) => receive(&mut stream).unwrap().text() == "a file\n",
            Err(_) => false,
        }
    }

    /// Whether clients get the site, by HTTP and by HTTPS.
    pub fn is_served(&self, server: &Server) -> bool {
        let mut stream = connect(&self.tls_address(), NAME, trusting_all());
        let request = format!("GET /file.txt HTTP/1.1\r\nHost: {NAME}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let by_tls = receive(&mut stream).unwrap().text();
        by_tls == "a file\n" && get(server, "/file.txt").text() == "a file\n"
    }
}

/// The serial number of a certificate, in hexadecimal digits. Its first fields have fixed lengths.
fn serial_of(certificate: &[u8]) -> String {
    const BEFORE: usize = 4 + 4 + 5;
    let (tag, length) = (certificate[BEFORE], usize::from(certificate[BEFORE + 1]));
    assert_eq!(tag, 2);
    let serial = &certificate[BEFORE + 2..BEFORE + 2 + length];
    let digits: String = serial.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.trim_start_matches("00").to_owned()
}

fn connect(
    address: &str,
    name: &'static str,
    config: Arc<ClientConfig>,
) -> StreamOwned<ClientConnection, TcpStream> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let name = ServerName::try_from(name).unwrap();
    let mut tls = ClientConnection::new(config, name).unwrap();
    while tls.is_handshaking() {
        // What is wrong shows when the stream is used.
        if tls.complete_io(&mut stream).is_err() {
            break;
        }
    }
    StreamOwned::new(tls, stream)
}

/// Clients that look at certificates, and trust all.
fn trusting_all() -> Arc<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Trusting::all()));
    Arc::new(config.with_no_client_auth())
}
