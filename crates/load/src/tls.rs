//! The client's side of HTTPS: verification, offered protocols, and explanations of failures.
//!
//! Certificates are verified against the system's authorities unless [`TlsOptions`] say otherwise.
//! HTTP/1.1 is offered, or HTTP/2 instead or in addition (ALPN), in TLS 1.3 and 1.2. Files are read before a run; the engine makes
//! its sessions from a [`TlsClient`].
//!
//! Sources: RFC 8446, RFC 5246, RFC 6066 (server names), RFC 7301 (ALPN), RFC 9525 (names in
//! certificates).

mod verifier;

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::{ClientConfig, Resumption, UnbufferedClientConnection};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    AlertDescription, CertificateError, ClientConnection, Error, ProtocolVersion, RootCertStore,
    SupportedCipherSuite,
};

/// The name of HTTP/2 over TLS.
const HTTP2: &[u8] = b"h2";
/// Sessions that may be resumed, per server.
const SESSIONS_MAX: usize = 1024;

/// How a client uses TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// How servers are verified.
    pub verification: Verification,
    /// The server name to send (SNI) and to verify; `None` is the host of the URL.
    pub server_name: Option<String>,
    /// Whether sessions are resumed.
    pub resumes: bool,
    /// The client's certificate chain and its key, both PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Whether HTTP/2 is offered (ALPN), in addition to HTTP/1.1.
    pub http2: bool,
}

impl Default for TlsOptions {
    fn default() -> TlsOptions {
        TlsOptions {
            verification: Verification::System,
            server_name: None,
            resumes: true,
            identity: None,
            http2: false,
        }
    }
}

/// How servers are verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verification {
    /// By the authorities that the system trusts.
    System,
    /// By the certificates in a PEM file.
    File(PathBuf),
    /// Not at all.
    Off,
}

/// Why there can be no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or has the wrong content.
    #[error("{option} {}: {why}", path.display())]
    File {
        /// The option that names it.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The system has no certificates of authorities.
    #[error(
        "no authority to verify servers by: {0}; install ca-certificates, or use --cacert FILE or --insecure"
    )]
    NoAuthorities(String),
    /// No certificate can be for such a name.
    #[error(
        "`{0}` cannot be the name of a server in TLS; write --sni with a DNS name or an address"
    )]
    ServerName(String),
    /// The library does not take these options.
    #[error("TLS: {0}")]
    Config(#[from] Error),
}

/// A client of one server.
#[derive(Clone, Debug)]
pub struct TlsClient {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl TlsOptions {
    /// A client of the server at `host`, a name or an address.
    ///
    /// # Errors
    /// [`TlsError`], in words that a user can act on.
    pub fn client(&self, host: &str) -> Result<TlsClient, TlsError> {
        let name = self.server_name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| TlsError::ServerName(name.to_owned()))?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?;
        let builder = match &self.verification {
            Verification::System => builder.with_root_certificates(system_authorities()?),
            Verification::File(path) => {
                let verifier = verifier::Verifier::of(certificates("--cacert", path)?, provider)
                    .map_err(|error| file("--cacert", path, &error))?;
                builder
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(verifier))
            }
            Verification::Off => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(verifier::Verifier::of_none(&provider))),
        };
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => builder
                .with_client_auth_cert(certificates("--cert", chain)?, private_key(key)?)
                .map_err(|error| match error {
                    Error::InconsistentKeys(_) => {
                        let chain = chain.display();
                        file(
                            "--key",
                            key,
                            &format!("it does not belong to --cert {chain}"),
                        )
                    }
                    error => file("--key", key, &error),
                })?,
        };
        config.alpn_protocols = match self.http2 {
            true => vec![HTTP2.to_vec(), b"http/1.1".to_vec()],
            false => vec![b"http/1.1".to_vec()],
        };
        config.resumption = match self.resumes {
            true => Resumption::in_memory_sessions(SESSIONS_MAX),
            false => Resumption::disabled(),
        };
        Ok(TlsClient {
            config: Arc::new(config),
            name,
        })
    }
}

impl TlsClient {
    /// A new connection, for the engine.
    pub(crate) fn session(&self) -> UnbufferedClientConnection {
        UnbufferedClientConnection::new(Arc::clone(&self.config), self.name.clone())
            .expect("the versions and suites of a configuration have been checked")
    }

    /// Makes a handshake on a blocking connection, and leaves no session to resume.
    ///
    /// # Errors
    /// Why it failed, as text.
    pub(crate) fn greet(&self, mut stream: impl Read + Write) -> Result<(), String> {
        let mut config = ClientConfig::clone(&self.config);
        config.resumption = Resumption::disabled();
        let mut connection = ClientConnection::new(Arc::new(config), self.name.clone())
            .map_err(|error| explain(&error))?;
        while connection.is_handshaking() {
            connection
                .complete_io(&mut stream)
                .map_err(|error| explain_io(&error))?;
        }
        if self.config.alpn_protocols.iter().any(|name| name == HTTP2) {
            check_http2(connection.alpn_protocol())?;
        }
        connection.send_close_notify();
        // The server may have closed first, and then does not need the alert.
        let _ = connection.complete_io(&mut stream);
        Ok(())
    }
}

/// Whether a server has chosen HTTP/2 (RFC 9113 section 3.2); otherwise what to do about it.
pub(crate) fn check_http2(chosen: Option<&[u8]>) -> Result<(), String> {
    match chosen {
        Some(HTTP2) => Ok(()),
        Some(other) => Err(format!(
            "the server speaks {} there and not HTTP/2 (ALPN); leave out --http2",
            other.escape_ascii()
        )),
        None => Err(
            "the server has chosen no protocol, and HTTP/2 needs one (ALPN); leave out --http2"
                .to_owned(),
        ),
    }
}

fn explain_io(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match (inner, error.kind()) {
        (Some(error), _) => explain(error),
        // A timeout of the read is reported as would-block, which is no help for a person.
        (None, io::ErrorKind::WouldBlock) => "no answer to the handshake".to_owned(),
        (None, io::ErrorKind::UnexpectedEof) => {
            "the server closed the connection in the handshake".to_owned()
        }
        (None, _) => error.to_string(),
    }
}

/// What went wrong after the handshake.
pub(crate) fn explain_later(error: &Error) -> String {
    match error {
        // A client of TLS 1.2 may refuse to renegotiate, and the server then may end the connection (RFC 5246 7.4.1.1).
        Error::AlertReceived(AlertDescription::HandshakeFailure) => {
            "the server wants to renegotiate, which is not supported, or it requires a client certificate (--cert, --key)"
                .to_owned()
        }
        other => explain(other),
    }
}

/// What went wrong, and what to do about it.
pub(crate) fn explain(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(error) => explain_certificate(error),
        Error::InvalidMessage(_) => {
            "the answer is not TLS; a server that speaks plain HTTP there needs http://".to_owned()
        }
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "the server requires a client certificate; give it with --cert and --key".to_owned()
        }
        Error::AlertReceived(AlertDescription::UnrecognisedName) => {
            "the server does not know the name that it was asked for; give the name with --sni"
                .to_owned()
        }
        Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            "the server knows no protocol that the client offers (ALPN)".to_owned()
        }
        Error::AlertReceived(AlertDescription::ProtocolVersion) => {
            "the server speaks neither TLS 1.2 nor 1.3".to_owned()
        }
        Error::AlertReceived(AlertDescription::HandshakeFailure) => {
            "the server refused the handshake: no cipher suite in common, or it requires a client certificate (--cert, --key)"
                .to_owned()
        }
        other => other.to_string(),
    }
}

fn explain_certificate(error: &CertificateError) -> String {
    let mut text = match error {
        CertificateError::UnknownIssuer => {
            "the server's certificate is self-signed, or its authority is unknown; give the authority's certificate with --cacert FILE"
                .to_owned()
        }
        CertificateError::BadSignature => {
            "the server's certificate is not signed by the trusted authority of that name; give the right authority's certificate with --cacert FILE"
                .to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the server's certificate has expired; renew it".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet; check the clocks".to_owned()
        }
        CertificateError::NotValidForName => {
            "the server's certificate is for another name; give the name with --sni".to_owned()
        }
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => match presented.is_empty() {
            true => "the server's certificate has no name (subjectAltName); make one with its name"
                .to_owned(),
            false => format!(
                "the server's certificate is not for {} but for {}; give the name with --sni",
                expected.to_str(),
                presented.iter().map(|name| bare(name)).collect::<Vec<_>>().join(", ")
            ),
        },
        other if verifier::is_authority(other) => {
            "the server's certificate is self-signed, as an authority (CA:TRUE); give this certificate with --cacert FILE"
                .to_owned()
        }
        other => format!("the server's certificate is not accepted: {other}"),
    };
    text += ", or do not verify with --insecure";
    text
}

/// A name without its kind: the library writes `DnsName("a.example")`.
fn bare(name: &str) -> &str {
    let inner = name.split_once('(').map_or(name, |(_, inner)| inner);
    inner.trim_matches(['"', ')'])
}

/// Version and cipher suite, as in `TLSv1.3, TLS_AES_128_GCM_SHA256`.
pub(crate) fn protocol(
    version: Option<ProtocolVersion>,
    suite: Option<SupportedCipherSuite>,
) -> String {
    let version = match version {
        Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
        Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
        _ => "TLS",
    };
    // The library writes TLS13_ where IANA has TLS_.
    let suite = suite.and_then(|suite| suite.suite().as_str());
    suite.map_or(version.to_owned(), |suite| {
        format!("{version}, {}", suite.replacen("TLS13_", "TLS_", 1))
    })
}

fn system_authorities() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(found.certs);
    if !store.is_empty() {
        return Ok(store);
    }
    let why = found.errors.first().map_or_else(
        || "the system has no certificates".to_owned(),
        ToString::to_string,
    );
    Err(TlsError::NoAuthorities(why))
}

fn certificates(
    option: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let found: Vec<_> = found.map_err(|error| unread(option, path, &error))?;
    match found.is_empty() {
        true => Err(unread(option, path, &pem::Error::NoItemsFound)),
        false => Ok(found),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| unread("--key", path, &error))
}

fn unread(option: &'static str, path: &Path, error: &pem::Error) -> TlsError {
    match error {
        pem::Error::Io(error) => file(option, path, error),
        pem::Error::NoItemsFound if option == "--key" => file(
            option,
            path,
            &"no private key in PEM; an encrypted one cannot be used",
        ),
        pem::Error::NoItemsFound => file(option, path, &"no certificate in PEM"),
        other => file(option, path, &format!("not PEM: {other}")),
    }
}

fn file(option: &'static str, path: &Path, why: &impl ToString) -> TlsError {
    TlsError::File {
        option,
        path: path.to_owned(),
        why: why.to_string(),
    }
}
