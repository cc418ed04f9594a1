//! Servers that speak TLS, and certificates of an authority of the test's own.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use headway_load::engine::{Address, Target};
use headway_load::tls::{TlsOptions, Verification};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    RootCertStore, ServerConfig, ServerConnection, StreamOwned, SupportedProtocolVersion,
};
use tempfile::TempDir;

use crate::support::{ReceivedRequest, Server, Step, Stream};

/// An authority, and the folder that its files are in.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    folder: TempDir,
}

/// A certificate with its key.
pub struct Certificate {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    pem: [String; 2],
    /// The chain, and the key of another certificate with which the server signs.
    signs_with: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
}

impl Authority {
    pub fn new() -> Authority {
        Authority::named("an authority")
    }

    pub fn named(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        Authority::with(params)
    }

    /// An authority whose certificate is for a server, as `openssl req -x509` makes it.
    pub fn serving(name: &str, change: impl FnOnce(&mut CertificateParams)) -> Authority {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        change(&mut params);
        Authority::with(params)
    }

    fn with(mut params: CertificateParams) -> Authority {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), certificate.pem()).unwrap();
        Authority {
            certificate: certificate.der().clone(),
            issuer: Issuer::new(params, key),
            folder,
        }
    }

    /// A certificate for a server, or a client, of this name.
    pub fn certify(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Certificate {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        change(&mut params);
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        Certificate {
            chain: vec![signed.der().clone()],
            key: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            pem: [signed.pem(), key.serialize_pem()],
            signs_with: None,
        }
    }

    /// Its own certificate, which a server presents.
    pub fn own(&self) -> Certificate {
        let key = self.issuer.key();
        Certificate {
            chain: vec![self.certificate.clone()],
            key: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            pem: [String::new(), key.serialize_pem()],
            signs_with: None,
        }
    }

    /// The options of a client which trusts this authority.
    pub fn trusted(&self) -> TlsOptions {
        TlsOptions {
            verification: Verification::File(self.folder.path().join("ca.pem")),
            ..TlsOptions::default()
        }
    }

    /// The files of a client's certificate and its key.
    pub fn files(&self, certificate: &Certificate) -> (PathBuf, PathBuf) {
        let paths = ["client.pem", "client.key"].map(|name| self.folder.path().join(name));
        for (path, text) in paths.iter().zip(&certificate.pem) {
            std::fs::write(path, text).unwrap();
        }
        let [certificate, key] = paths;
        (certificate, key)
    }
}

impl Certificate {
    /// Takes the key of another one, which does not belong to it.
    pub fn with_key_of(self, other: Certificate) -> Certificate {
        Certificate {
            signs_with: Some((self.chain.clone(), other.key)),
            ..self
        }
    }
}

pub fn make_expired(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(2001, 1, 1);
    params.not_after = date_time_ymd(2002, 1, 1);
}

/// How a server differs from the plainest.
#[derive(Default)]
pub struct Settings<'a> {
    pub versions: Option<&'static [&'static SupportedProtocolVersion]>,
    /// It wants certificates of clients from here.
    pub clients: Option<&'a Authority>,
    /// What it chooses from (ALPN); otherwise from HTTP/2 and HTTP/1.1.
    pub protocols: Option<&'static [&'static str]>,
}

/// Accepts the next client.
pub type Accept = Box<dyn Fn() -> Option<(Box<dyn Stream>, Option<IpAddr>)> + Send>;

/// A server with TLS; and how many clients left without `close_notify`.
pub struct TlsServer {
    pub server: Server,
    pub rude: Arc<AtomicUsize>,
}

impl TlsServer {
    pub fn start(
        certificate: Certificate,
        settings: &Settings<'_>,
        script: impl Fn(&ReceivedRequest) -> Vec<Step> + Send + Sync + 'static,
    ) -> TlsServer {
        let (address, accept, rude) = TlsServer::listen(certificate, settings);
        let server = Server::serve(address, script, accept);
        TlsServer { server, rude }
    }

    /// Where it listens, how it accepts, and how many clients left without `close_notify`.
    pub fn listen(
        certificate: Certificate,
        settings: &Settings<'_>,
    ) -> (Address, Accept, Arc<AtomicUsize>) {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let versions = settings.versions.unwrap_or(rustls::ALL_VERSIONS);
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .unwrap();
        let builder = match settings.clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.certificate.clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let mut config = builder
            .with_single_cert(certificate.chain, certificate.key)
            .unwrap();
        let protocols = settings.protocols.unwrap_or(&["h2", "http/1.1"]);
        let protocols = protocols.iter().map(|name| name.as_bytes().to_vec());
        config.alpn_protocols = protocols.collect();
        config.ticketer = aws_lc_rs::Ticketer::new().unwrap();
        if let Some((chain, key)) = certificate.signs_with {
            let key = aws_lc_rs::sign::any_supported_type(&key).unwrap();
            let certified = CertifiedKey::new(chain, key);
            config.cert_resolver = Arc::new(SingleCertAndKey::from(certified));
        }
        let (config, rude) = (Arc::new(config), Arc::new(AtomicUsize::new(0)));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = Address::Inet(listener.local_addr().unwrap());
        let counter = Arc::clone(&rude);
        let accept = move || -> Option<(Box<dyn Stream>, Option<IpAddr>)> {
            let (client, from) = listener.accept().ok()?;
            client.set_nodelay(true).unwrap();
            let session = ServerConnection::new(Arc::clone(&config)).ok()?;
            let stream = TlsStream {
                stream: StreamOwned::new(session, client),
                rude: Arc::clone(&counter),
            };
            Some((Box::new(stream), Some(from.ip())))
        };
        (address, Box::new(accept), rude)
    }

    /// As a target, asked for by this name.
    pub fn target(&self, name: &str, options: &TlsOptions) -> Target {
        Target {
            tls: Some(options.client(name).unwrap()),
            ..self.server.target()
        }
    }
}

struct TlsStream {
    stream: StreamOwned<ServerConnection, TcpStream>,
    rude: Arc<AtomicUsize>,
}

impl Read for TlsStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer);
        if let Err(error) = &read
            && error.kind() == io::ErrorKind::UnexpectedEof
        {
            self.rude.fetch_add(1, Ordering::SeqCst);
        }
        read
    }
}

impl Write for TlsStream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl AsFd for TlsStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.sock.as_fd()
    }
}

impl Stream for TlsStream {
    fn goodbye(&mut self) -> io::Result<()> {
        self.stream.conn.send_close_notify();
        self.stream.flush()
    }
}
