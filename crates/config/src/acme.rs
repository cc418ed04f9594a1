//! Automatic certificates (ACME, RFC 8555): which names get one, from which authority, and where they are kept.
//!
//! Nothing is created here. The ACME process makes the directories, and certificates.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::Findings;
use super::hosts::NAME_BYTES_MAX;
use super::keys::Setting;
use super::ranges::{span, time, value};
use super::settings::Settings;
use super::strategy::named_values;
use super::tls::file;
use super::{Handshakes, Host, Symlinks, TlsIdentity};

/// Default of `state-directory`.
pub(super) const STATE_DIRECTORY: &str = "/var/lib/headway";
/// Default of `acme-directory`.
const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";
/// What `staging` means.
const LETS_ENCRYPT_STAGING: &str = "https://acme-staging-v02.api.letsencrypt.org/directory";
/// Default of `acme-retry-interval`.
const RETRY_MS: u64 = 60_000;
/// A label of a name has at most this many bytes (RFC 1035, 2.3.4).
const LABEL_BYTES_MAX: usize = 63;

named_values! {
    /// How the authority checks that a name leads to this server.
    AcmeChallenge, "kind of challenge" {
        /// By a request to port 80 (RFC 8555, 8.3).
        #[default]
        Http01 = "http-01",
        /// By a handshake at port 443 (RFC 8737).
        TlsAlpn01 = "tls-alpn-01",
    }
}

/// How certificates are ordered. All of it may change at a reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcmeConfig {
    /// The names, in lower case; each gets a certificate of its own.
    pub hosts: Vec<String>,
    /// How the authority checks that a name leads to this server.
    pub challenge: AcmeChallenge,
    /// The URL at which the authority reaches the administrator, such as `mailto:admin@a.example`.
    pub contact: Option<String>,
    /// The URL of the authority's directory.
    pub directory: String,
    /// The certificates that are trusted for the authority's own server; `None` means those of the system.
    pub authority: Option<PathBuf>,
    /// Directory of the server's state; its own files are below `acme`.
    pub state_directory: PathBuf,
    /// Time until the first try after a failure.
    pub retry_ms: u64,
}

impl AcmeConfig {
    /// The directory of all files of ACME.
    pub fn base(&self) -> PathBuf {
        self.state_directory.join("acme")
    }

    /// The directory of the files with certificates and keys.
    pub fn certificates(&self) -> PathBuf {
        self.base().join("certificates")
    }

    /// The file with the key and the certificates of this name.
    pub fn certificate(&self, host: &str) -> PathBuf {
        self.certificates().join(format!("{host}.pem"))
    }

    /// The document root of the answers to challenges.
    pub fn challenge_root(&self) -> PathBuf {
        self.base().join("challenges")
    }

    /// The directory of the answers to challenges.
    pub fn challenges(&self) -> PathBuf {
        self.challenge_root().join(".well-known/acme-challenge")
    }

    /// Whether the file of a certificate is one of these.
    pub fn owns(&self, identity: &TlsIdentity) -> bool {
        identity.certificate.parent() == Some(&self.certificates())
    }

    /// The certificates, whose files have the key as well. One file is replaced in one step, so no process
    /// reads a key with the certificate of another.
    pub(super) fn identities(&self) -> impl Iterator<Item = TlsIdentity> {
        self.hosts.iter().map(|host| TlsIdentity {
            certificate: self.certificate(host),
            key: self.certificate(host),
        })
    }

    /// The virtual host of challenges. No location, rule or limit of the sites applies to it.
    pub(super) fn challenge_host(&self) -> Host {
        Host {
            root: self.challenge_root(),
            symlinks: Symlinks::None,
            ..Host::default()
        }
    }
}

/// Returns how certificates are ordered. `None` without `acme-hosts`.
pub(super) fn acme(from: &Settings, first_tls: usize, to: &mut Findings<'_>) -> Option<AcmeConfig> {
    let Some(item) = &from.acme_hosts else {
        report_without_hosts(from, to);
        return None;
    };
    let position = || Some(item.span());
    if from.tls_listen.is_none() && !from.has_faults {
        let problem = "certificates are for TLS; set tls-listen = \":443\" as well, or remove it";
        to.usage_error("acme-hosts", position(), problem.into());
    }
    let challenge = challenge(from, first_tls, to);
    let hosts: Vec<String> = (item
        .get_ref()
        .0
        .iter()
        .map(|name| name.to_ascii_lowercase()))
    .collect();
    if hosts.is_empty() {
        to.usage_error(
            "acme-hosts",
            position(),
            "at least one name is needed".into(),
        );
    }
    let mut seen = BTreeSet::new();
    for name in &hosts {
        if let Err(problem) = check_name(name) {
            to.usage_error("acme-hosts", position(), problem);
        } else if !seen.insert(name) {
            to.usage_error(
                "acme-hosts",
                position(),
                format!("`{name}` is listed twice"),
            );
        }
    }
    Some(AcmeConfig {
        hosts,
        challenge,
        contact: contact(&from.acme_contact, to),
        directory: directory(&from.acme_directory, to),
        authority: (from.acme_ca.as_ref()).map(|item| file("acme-ca", item, to)),
        state_directory: state_directory(&from.state_directory, to),
        retry_ms: time(
            "acme-retry-interval",
            &from.acme_retry_interval,
            RETRY_MS,
            1,
            to,
        ),
    })
}

fn challenge(from: &Settings, first_tls: usize, to: &mut Findings<'_>) -> AcmeChallenge {
    let challenge = value(&from.acme_challenge).unwrap_or_default();
    let is_inline = value(&from.tls_handshakes) == Some(Handshakes::Inline);
    match challenge {
        // Without tls-listen there is a message already.
        _ if from.has_faults || from.tls_listen.is_none() => {}
        AcmeChallenge::Http01 if first_tls == 0 => {
            let problem = "the authority sends its requests to port 80, without TLS; set listen = \":80\" or \
                 acme-challenge = \"tls-alpn-01\" as well";
            to.usage_error("acme-hosts", span(&from.acme_hosts), problem.into());
        }
        AcmeChallenge::TlsAlpn01 if is_inline => {
            let problem =
                "the handshake process answers them; remove tls-handshakes, or write http-01";
            to.usage_error("acme-challenge", span(&from.acme_challenge), problem.into());
        }
        _ => {}
    }
    challenge
}

/// If they were ignored, they would look as if they had an effect.
fn report_without_hosts(from: &Settings, to: &mut Findings<'_>) {
    if from.has_faults {
        return;
    }
    for (key, position) in [
        ("acme-challenge", span(&from.acme_challenge)),
        ("acme-contact", span(&from.acme_contact)),
        ("acme-directory", span(&from.acme_directory)),
        ("acme-ca", span(&from.acme_ca)),
        ("acme-retry-interval", span(&from.acme_retry_interval)),
        ("state-directory", span(&from.state_directory)),
    ] {
        if position.is_some() {
            let problem = "no certificate is ordered without acme-hosts; set acme-hosts = [\"a.example\"] as well, \
                 or remove it";
            to.usage_error(key, position, problem.into());
        }
    }
}

/// Only a name of DNS is certified by a request over HTTP (RFC 8555, 8.3), and no wildcard is.
fn check_name(name: &str) -> Result<(), String> {
    if name.starts_with("*.") {
        return Err(format!(
            "`{name}`: authorities issue no wildcard certificates by HTTP; list each name"
        ));
    }
    let good = |label: &str| {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label.bytes().all(is_good)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_address = last.bytes().all(|byte| byte.is_ascii_digit());
    match name.len() <= NAME_BYTES_MAX && name.split('.').all(good) && !is_address {
        true => Ok(()),
        false => Err(format!(
            "`{name}` is not a DNS name; write a.example (a name in another script begins with xn--)"
        )),
    }
}

fn contact(item: &Setting<String>, to: &mut Findings<'_>) -> Option<String> {
    let item = item.as_ref()?;
    let text = item.get_ref();
    let is_mail = |address: &str| {
        let (user, host) = address.split_once('@').unwrap_or_default();
        !user.is_empty() && !host.is_empty() && !address.contains([' ', ',', '?'])
    };
    if !text.strip_prefix("mailto:").is_some_and(is_mail) {
        let problem = format!("`{text}` is not a mail address; write mailto:admin@a.example");
        to.usage_error("acme-contact", Some(item.span()), problem);
    }
    Some(text.clone())
}

fn directory(item: &Setting<String>, to: &mut Findings<'_>) -> String {
    let Some(item) = item else {
        return LETS_ENCRYPT.into();
    };
    let text = item.get_ref();
    if text == "staging" {
        return LETS_ENCRYPT_STAGING.into();
    }
    let rest = text.strip_prefix("https://").unwrap_or_default();
    if rest.is_empty() || rest.starts_with('/') || !text.bytes().all(|byte| byte.is_ascii_graphic())
    {
        let problem =
            format!("`{text}` is not a URL; write staging, or https://ca.example/directory");
        to.usage_error("acme-directory", Some(item.span()), problem);
    }
    text.clone()
}

/// The directory, which is created if only it is missing.
fn state_directory(item: &Setting<PathBuf>, to: &mut Findings<'_>) -> PathBuf {
    let written = item
        .as_ref()
        .map_or(Path::new(STATE_DIRECTORY), |item| item.get_ref());
    let path = std::path::absolute(written).unwrap_or_else(|_| written.into());
    let shown = path.display();
    let parent = path.parent().unwrap_or(Path::new("/"));
    let rights = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    let problem = match (path.metadata(), parent.is_dir()) {
        (Ok(meta), _) if !meta.is_dir() => Some(format!("{shown} is not a directory")),
        (Ok(_), _) => (rustix::fs::access(&path, rights).err())
            .map(|error| format!("{shown} is not writable: {error}; certificates are kept there")),
        (Err(_), true) => (rustix::fs::access(parent, rights).err()).map(|error| {
            format!(
                "{shown} does not exist and cannot be created: {error}; certificates are kept there"
            )
        }),
        (Err(error), false) => Some(format!("{shown}: {error}; certificates are kept there")),
    };
    if let Some(problem) = problem {
        let position = span(item);
        to.environment_error("state-directory", position, problem);
    }
    path
}
