//! Answers to the challenges of an authority: a file which the workers serve (HTTP-01), or a certificate in
//! memory that the handshake processes share (TLS-ALPN-01). Each is there until it is dropped.
//!
//! Sources: RFC 8555 section 8.3, RFC 8737.

use headway_tls::{Challenge, ChallengeMemory, Identity};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};

use crate::authority::Failure;
use crate::file_client::{AnswerFile, FileClient};

/// Where answers are put.
pub(crate) struct Answers<'p> {
    pub(crate) files: &'p FileClient<'p>,
    pub(crate) memory: &'p ChallengeMemory,
}

/// An answer that the authority can get. Dropping it removes the answer.
pub(crate) enum Answer<'p> {
    File { _file: AnswerFile<'p> },
    Handshake(&'p ChallengeMemory),
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        if let Answer::Handshake(memory) = self {
            // If it stays, it answers for a challenge that is over.
            let _ = memory.set(None);
        }
    }
}

impl Answers<'_> {
    pub(crate) fn by_file(&self, token: &str, text: &str) -> Result<Answer<'_>, Failure> {
        let file = self.files.answer(token, text)?;
        Ok(Answer::File { _file: file })
    }

    /// There is one at a time, since names are certified one after the other.
    pub(crate) fn by_handshake(&self, host: &str, digest: &[u8]) -> Result<Answer<'_>, Failure> {
        let identity = certificate(host, digest);
        let identity = identity.map_err(|error| Failure::new(error.to_string()))?;
        let host = host.as_bytes().to_vec();
        let put = self.memory.set(Some(&Challenge { host, identity }));
        put.map_err(|error| Failure::new(format!("put the challenge into memory: {error}")))?;
        Ok(Answer::Handshake(self.memory))
    }
}

/// A certificate whose critical extension acmeIdentifier has the digest of the key authorization.
fn certificate(host: &str, digest: &[u8]) -> Result<Identity, rcgen::Error> {
    let mut wanted = CertificateParams::new(vec![host.to_owned()])?;
    wanted.distinguished_name = DistinguishedName::new();
    wanted.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate()?;
    let certificate = wanted.self_signed(&key)?;
    Ok(Identity {
        certificate: certificate.pem().into_bytes(),
        key: key.serialize_pem().into_bytes(),
    })
}
