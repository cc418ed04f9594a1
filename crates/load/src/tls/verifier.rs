//! Verifies the certificates of servers for `--cacert` and `--insecure`. Otherwise the system's authorities are used.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// Accepts the certificates of trusted authorities, or all certificates. In both cases the server must prove that it
/// has the private key: it signs the handshake.
#[derive(Debug)]
pub(super) struct Verifier {
    algorithms: WebPkiSupportedAlgorithms,
    trusted: Option<Trusted>,
}

/// The certificates that a user trusts.
#[derive(Debug)]
struct Trusted {
    by_authority: Arc<WebPkiServerVerifier>,
    certificates: Vec<CertificateDer<'static>>,
}

impl Verifier {
    /// Accepts every certificate.
    pub(super) fn of_none(provider: &CryptoProvider) -> Verifier {
        Verifier {
            algorithms: provider.signature_verification_algorithms,
            trusted: None,
        }
    }

    /// Accepts certificates that one of these has signed, and these certificates themselves.
    pub(super) fn of(
        certificates: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Verifier, Error> {
        let mut roots = RootCertStore::empty();
        for certificate in &certificates {
            roots.add(certificate.clone())?;
        }
        let algorithms = provider.signature_verification_algorithms;
        let by_authority = WebPkiServerVerifier::builder_with_provider(roots.into(), provider)
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        Ok(Verifier {
            algorithms,
            trusted: Some(Trusted {
                by_authority,
                certificates,
            }),
        })
    }
}

/// Whether the error is that a server has the certificate of an authority. rustls has no enum case for it.
pub(super) fn is_authority(error: &CertificateError) -> bool {
    matches!(error, CertificateError::Other(error) if error.to_string() == "CaUsedAsEndEntity")
}

/// Whether only the issuer of a certificate is wrong. rustls checks the dates first, so these are valid.
fn is_of_issuer(error: &Error) -> bool {
    match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => true,
        Error::InvalidCertificate(error) => is_authority(error),
        _ => false,
    }
}

impl ServerCertVerifier for Verifier {
    /// A trusted certificate may be that of the server itself, as with curl. `openssl req -x509` marks such a
    /// certificate as an authority, and rustls does not accept it from a server.
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(trusted) = &self.trusted else {
            return Ok(ServerCertVerified::assertion());
        };
        let by_authority = &trusted.by_authority;
        match by_authority.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            Err(error) if is_of_issuer(&error) && trusted.certificates.contains(certificate) => {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
