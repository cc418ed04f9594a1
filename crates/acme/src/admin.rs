//! What an administrator asks for, beside a running server or without one: the state of the certificates, and
//! revocation.

use headway_config::AcmeConfig;
use instant_acme::RevocationReason;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Serialize;

use crate::authority::Authority;
use crate::file_client::FileClient;
use crate::files::Files;

pub use crate::civil::shown;

/// The state of the certificate of a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostStatus {
    /// The name.
    pub host: String,
    /// What is in use: `issued`, `revoked`, `self-signed` or `none`.
    pub certificate: &'static str,
    /// The URL of the authority that has issued it.
    pub authority: Option<String>,
    /// When it expires, in seconds since 1970.
    pub expires_s: Option<u64>,
    /// When the next order is planned, in seconds since 1970.
    pub next_order_s: Option<u64>,
    /// Failed orders since the last certificate.
    pub failures: u32,
    /// Why the last order failed.
    pub error: Option<String>,
}

/// Returns the state of all certificates.
///
/// # Errors
/// If the files cannot be read by this user.
pub fn status(config: &AcmeConfig) -> Result<Vec<HostStatus>, String> {
    let files = Files::open(config).map_err(|error| error.to_string())?;
    let hosts = config.hosts.iter().map(|host| host_status(&files, host));
    hosts.collect()
}

fn host_status(files: &Files, host: &str) -> Result<HostStatus, String> {
    let stored = files.certificate(host).map_err(|error| error.to_string())?;
    let failures = files.failures_at(host);
    Ok(HostStatus {
        host: host.to_owned(),
        certificate: match &stored {
            None => "none",
            Some(one) if one.is_revoked => "revoked",
            Some(one) if one.issued_by.is_some() => "issued",
            Some(_) => "self-signed",
        },
        expires_s: stored.as_ref().map(|one| one.facts.not_after_s),
        authority: stored.and_then(|one| one.issued_by),
        next_order_s: files.plan_at(host),
        failures: failures.count,
        error: Some(failures.why).filter(|why| !why.is_empty()),
    })
}

/// Why a certificate is revoked (RFC 5280, 5.3.1): the reasons that a subscriber may give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// None is given.
    Unspecified,
    /// Others may have the key.
    KeyCompromise,
    /// There is another certificate.
    Superseded,
    /// The name is not used any more.
    CessationOfOperation,
}

/// Revokes the certificate of a name. The ACME process then orders another one, with another key. Until
/// then it stays in use.
///
/// # Errors
/// What the authority says, or why it is not asked.
pub fn revoke(config: &AcmeConfig, host: &str, reason: Reason) -> Result<(), String> {
    let files = Files::open(config).map_err(|error| error.to_string())?;
    if !config.hosts.iter().any(|own| own == host) {
        let known = config.hosts.join(", ");
        return Err(format!(
            "{host} is not one of acme-hosts, which are {known}"
        ));
    }
    let stored = files.certificate(host).map_err(|error| error.to_string())?;
    match stored.and_then(|one| one.issued_by) {
        None => {
            return Err(format!(
                "{host} has no certificate of an authority that is valid; see headway acme status"
            ));
        }
        Some(by) if by != config.directory => {
            return Err(format!(
                "the certificate of {host} was issued by {by}; set acme-directory to that URL"
            ));
        }
        Some(_) => {}
    }
    let text = files
        .certificate_text(host)
        .map_err(|error| error.to_string())?;
    let certificate = CertificateDer::from_pem_slice(&text.unwrap_or_default());
    let certificate = certificate.map_err(|error| format!("{host}: {error}"))?;
    let client = FileClient(&|request| Ok(files.perform(request)));
    let authority = Authority::connect_again(config, &client).map_err(|failure| failure.why)?;
    let reason = match reason {
        Reason::Unspecified => RevocationReason::Unspecified,
        Reason::KeyCompromise => RevocationReason::KeyCompromise,
        Reason::Superseded => RevocationReason::Superseded,
        Reason::CessationOfOperation => RevocationReason::CessationOfOperation,
    };
    let revoked = authority.revoke(&certificate, reason);
    revoked.map_err(|failure| failure.why)?;
    files.note_revoked(host).map_err(|error| error.to_string())
}
