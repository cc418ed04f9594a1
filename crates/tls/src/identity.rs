//! A certificate with its key, as read from files, and the choice of one for each handshake.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{SignatureScheme, SupportedCipherSuite};
use webpki::EndEntityCert;
use zeroize::Zeroize;

use crate::certificate::Facts;

/// The texts of a certificate file and of a key file, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate, and behind it those that certify it.
    pub certificate: Vec<u8>,
    /// The private key.
    pub key: Vec<u8>,
}

headway_os::encoding! {
    struct Identity { certificate, key }
}

impl Drop for Identity {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

/// A private key is not for logs.
impl std::fmt::Debug for Identity {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// Why a certificate and a key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The certificate file.
    #[error("certificate: {0}")]
    Certificate(String),
    /// The key file.
    #[error("key: {0}")]
    Key(String),
    /// The two do not belong together.
    #[error("the key does not belong to the certificate")]
    Mismatch,
}

impl Identity {
    /// Checks that both can be used and belong together.
    ///
    /// # Errors
    /// If not.
    pub fn check(&self) -> Result<Certified, IdentityError> {
        let chain = self.chain()?;
        let names = names_of(&chain[0])?;
        let key = self.private_key()?;
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        match CertifiedKey::from_der(chain, key, &provider) {
            Ok(certified) => Ok(Certified {
                names,
                certified: Arc::new(certified),
            }),
            Err(rustls::Error::InconsistentKeys(_)) => Err(IdentityError::Mismatch),
            Err(error) => Err(IdentityError::Key(error.to_string())),
        }
    }

    pub(crate) fn chain(&self) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
        let error = |text: &str| IdentityError::Certificate(text.to_owned());
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.certificate).collect();
        match chain {
            Ok(chain) if chain.is_empty() => Err(error("no certificate in PEM form")),
            Ok(chain) => Ok(chain),
            Err(found) => Err(error(&pem_text(&found))),
        }
    }

    pub(crate) fn private_key(&self) -> Result<PrivateKeyDer<'static>, IdentityError> {
        let error = |text: String| IdentityError::Key(text);
        // Both forms of an encrypted key have this word in the text.
        let has = |mark: &[u8]| self.key.windows(mark.len()).any(|part| part == mark);
        if has(b"ENCRYPTED") {
            return Err(error(
                "it is encrypted; decrypt it (openssl pkey -in KEY -out PLAIN) and protect the file by its \
                 owner and mode"
                    .to_owned(),
            ));
        }
        PrivateKeyDer::from_pem_slice(&self.key).map_err(|found| match found {
            PemError::NoItemsFound => {
                error("no private key in PEM form; tls-key names the file that has it".to_owned())
            }
            found => error(pem_text(&found)),
        })
    }
}

fn pem_text(error: &PemError) -> String {
    match error {
        PemError::MissingSectionEnd { .. } => "a part of it has no end (-----END …)".to_owned(),
        PemError::IllegalSectionStart { .. } => "a line -----BEGIN … is malformed".to_owned(),
        PemError::Base64Decode(_) => "a part of it is not base64".to_owned(),
        other => other.to_string(),
    }
}

/// The DNS names in a certificate.
fn names_of(certificate: &CertificateDer<'_>) -> Result<Vec<String>, IdentityError> {
    let parsed = EndEntityCert::try_from(certificate);
    let parsed = parsed.map_err(|error| IdentityError::Certificate(error.to_string()))?;
    Ok(parsed
        .valid_dns_names()
        .map(str::to_ascii_lowercase)
        .collect())
}

/// A certificate with its key, ready to sign.
#[derive(Clone, Debug)]
pub struct Certified {
    /// The DNS names that the certificate is for.
    pub names: Vec<String>,
    certified: Arc<CertifiedKey>,
}

impl Certified {
    /// What the certificate says about itself. `None` if it is not understood.
    pub fn facts(&self) -> Option<Facts> {
        Facts::of_der(self.certified.cert.first()?)
    }

    /// Whether the key can sign by one of these schemes.
    pub(crate) fn can_sign(&self, schemes: &[SignatureScheme]) -> bool {
        self.certified.key.choose_scheme(schemes).is_some()
    }

    /// One that is not chosen by a name.
    pub(crate) fn unnamed(certified: CertifiedKey) -> Certified {
        Certified {
            names: Vec::new(),
            certified: Arc::new(certified),
        }
    }

    /// Whether the certificate is for this host: by its name, or by a wildcard for its first label.
    fn is_for(&self, host: &str) -> bool {
        let rest = host.split_once('.').map(|(_, rest)| rest);
        self.names.iter().any(|name| match name.strip_prefix("*.") {
            Some(suffix) => rest == Some(suffix),
            None => name == host,
        })
    }
}

/// Chooses a certificate: by the name that the client asks for, exact names first, then by what the
/// client can verify. The first certificate is for clients that ask for no or for an unknown name.
#[derive(Debug)]
pub(crate) struct ByName(pub(crate) Vec<Certified>);

impl ByName {
    /// Whether a certificate is for this host.
    pub(crate) fn has_one_for(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        self.0.iter().any(|one| one.is_for(&host))
    }

    fn choose<'s>(&'s self, host: Option<&str>) -> Vec<&'s Certified> {
        let host = host.unwrap_or_default().to_ascii_lowercase();
        let is_exact = |one: &&Certified| one.names.contains(&host);
        let exact: Vec<_> = self.0.iter().filter(is_exact).collect();
        if !exact.is_empty() {
            return exact;
        }
        let wild: Vec<_> = self.0.iter().filter(|one| one.is_for(&host)).collect();
        match (wild.is_empty(), self.0.first()) {
            (true, Some(first)) => {
                // A certificate for the same names with another kind of key may be used as well.
                let has_all = |of: &Certified, names: &[String]| {
                    names.iter().all(|name| of.names.contains(name))
                };
                let same =
                    |one: &&Certified| has_all(one, &first.names) && has_all(first, &one.names);
                self.0.iter().filter(same).collect()
            }
            _ => wild,
        }
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let candidates = self.choose(hello.server_name());
        let schemes = hello.signature_schemes();
        let can_verify = |one: &&&Certified| one.can_sign(schemes);
        let chosen = candidates.iter().find(can_verify).or(candidates.first())?;
        Some(chosen.certified.clone())
    }
}

/// The provider of all cryptography, with these cipher suites only if there are any.
pub(crate) fn provider(suites: &[u16]) -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    if !suites.is_empty() {
        let is_allowed = |suite: &SupportedCipherSuite| suites.contains(&suite.suite().into());
        provider.cipher_suites.retain(is_allowed);
    }
    Arc::new(provider)
}
