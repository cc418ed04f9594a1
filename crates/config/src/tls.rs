//! TLS: its listeners, certificates and rules.
//!
//! The files are only looked up here. The master reads them, and reports a certificate or a key that
//! it cannot use.

mod suites;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::acme::AcmeConfig;
use super::document_root::SILENT;
use super::error::Findings;
use super::host_listeners::is_plain;
use super::hosts::lasting_path;
use super::keys::Setting;
use super::ranges::{number, span, tables, time, value};
use super::research::prefixes;
use super::settings::{HostSettings, LocationSettings, Settings};
use super::strategy::named_values;
use super::units::Millis;
use super::{Endpoint, Host};
pub use suites::CipherSuite;

/// Default of `tls-handshake-timeout`.
const HANDSHAKE_TIMEOUT_MS: u64 = 10_000;
/// Ten years: a longer `hsts` is a mistake.
const HSTS_MAX_MS: u64 = 3_650 * 24 * 3_600_000;
const SECOND_MS: u64 = 1_000;

const WITHOUT_LISTENER: &str =
    "there is no TLS without tls-listen; set tls-listen = \":443\" as well, or remove it";

/// How the server speaks TLS. The files are read by the master when it starts and at each reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsConfig {
    /// The listeners from this one on in [`Config::listen`](crate::Config::listen) speak TLS.
    pub first_listener: usize,
    /// The certificates with their keys, at least one; the first is for clients that ask for no known
    /// name.
    pub identities: Vec<TlsIdentity>,
    /// Whether the only certificate is one that the server makes itself, for development.
    pub is_for_development: bool,
    /// Whether TLS 1.2 is refused.
    pub only_13: bool,
    /// The cipher suites that clients may use; empty if all.
    pub suites: Vec<CipherSuite>,
    /// What does handshakes.
    pub handshakes: Handshakes,
    /// What seals records.
    pub offload: Offload,
    /// Time for a handshake.
    pub handshake_timeout_ms: u64,
    /// Whether clients may resume sessions.
    pub session_tickets: bool,
    /// A file with the certificates of the authorities for clients. Without it clients are not asked for a
    /// certificate.
    pub client_authorities: Option<PathBuf>,
    /// Whether a client may come without a certificate, if clients are asked.
    pub client_may_be_unknown: bool,
    /// Whether requests on the other listeners are redirected to TLS.
    pub redirects: bool,
    /// `max-age` of `Strict-Transport-Security`, in seconds; `None` sends no such header.
    pub hsts_seconds: Option<u64>,
}

/// A certificate and its key, as files in PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsIdentity {
    /// The certificate, and behind it those that certify it.
    pub certificate: PathBuf,
    /// The private key. It may be in the same file.
    pub key: PathBuf,
}

named_values! {
    /// What does handshakes.
    Handshakes, "place for handshakes" {
        /// A process beside each worker, so that the worker has no private keys.
        #[default]
        Process = "process",
        /// The worker itself: faster for a single client, but every handshake delays the others.
        Inline = "inline",
    }
}

named_values! {
    /// What encrypts the records that the server sends.
    Offload, "kind of offload" {
        /// The worker.
        #[default]
        Off = "off",
        /// The kernel, if it can.
        Kernel = "kernel",
    }
}

named_values! {
    /// The oldest version of TLS that clients may use.
    TlsVersion, "version of TLS" {
        /// RFC 5246.
        #[default]
        V12 = "1.2",
        /// RFC 8446.
        V13 = "1.3",
    }
}

named_values! {
    /// Whether a client needs a certificate, if clients are asked for one.
    ClientCertificate, "rule for certificates" {
        /// A client without a certificate is rejected.
        #[default]
        Required = "required",
        /// A client may have none. One that it shows must be valid.
        Optional = "optional",
    }
}

/// Returns how TLS is spoken from this listener on. `None` if no listener speaks it.
pub(super) fn tls(
    from: &Settings,
    (plain, hosts, acme): (&[Endpoint], &[Host], Option<&AcmeConfig>),
    to: &mut Findings<'_>,
) -> Option<TlsConfig> {
    let first_listener = plain.len();
    if !is_spoken(from) {
        report_without_listener(from, to);
        return None;
    }
    match is_for_development(from) {
        true => check_development(from, to),
        false => check_certificates(from, plain, to),
    }
    check_direct(from, to);
    let redirects = value(&from.tls_redirect).unwrap_or(false);
    if redirects && first_listener == 0 {
        let problem = "no plain listener gets requests to redirect; set listen = \":80\" as well";
        to.usage_error("tls-redirect", span(&from.tls_redirect), problem.into());
    }
    if from.tls_client_certificate.is_some() && from.tls_client_ca.is_none() && !from.has_faults {
        let problem = "clients are not asked for a certificate; set tls-client-ca as well";
        let position = span(&from.tls_client_certificate);
        to.usage_error("tls-client-certificate", position, problem.into());
    }
    if from.hsts.is_some() && first_listener > 0 && !redirects {
        let problem = "browsers ignore the header without TLS, but listen serves without TLS; set tls-redirect = true";
        to.usage_error("hsts", span(&from.hsts), problem.into());
    }
    let client_certificate = value(&from.tls_client_certificate).unwrap_or_default();
    let only_13 = value(&from.tls_minimum) == Some(TlsVersion::V13);
    Some(TlsConfig {
        first_listener,
        identities: match is_for_development(from) {
            true => development_identity(from, to),
            false => identities(from, (hosts, acme), to),
        },
        is_for_development: is_for_development(from),
        only_13,
        suites: suites::suites(&from.tls_suites, only_13, to),
        handshakes: value(&from.tls_handshakes).unwrap_or_default(),
        offload: value(&from.tls_offload).unwrap_or_default(),
        handshake_timeout_ms: time(
            "tls-handshake-timeout",
            &from.tls_handshake_timeout,
            HANDSHAKE_TIMEOUT_MS,
            1,
            to,
        ),
        session_tickets: value(&from.tls_tickets).unwrap_or(true),
        client_authorities: (from.tls_client_ca.as_ref())
            .map(|item| file("tls-client-ca", item, to)),
        client_may_be_unknown: client_certificate == ClientCertificate::Optional,
        redirects,
        hsts_seconds: hsts_seconds(&from.hsts, to),
    })
}

/// Whether any listener speaks TLS.
pub(super) fn is_spoken(from: &Settings) -> bool {
    from.tls_listen.is_some() || is_for_development(from)
}

/// Whether the server makes its certificate itself.
pub(super) fn is_for_development(from: &Settings) -> bool {
    value(&from.tls) == Some(true)
}

/// Reports certificates beside that for development, which would look as if clients got them.
fn check_development(from: &Settings, to: &mut Findings<'_>) {
    let of_hosts = tables(&from.host).iter();
    let of_hosts = of_hosts.map(|host| span(&host.get_ref().tls_certificate));
    let others = [
        ("tls-certificate", span(&from.tls_certificate)),
        ("acme-hosts", span(&from.acme_hosts)),
    ];
    let of_hosts = of_hosts.map(|position| ("host.tls-certificate", position));
    for (key, position) in others.into_iter().chain(of_hosts) {
        if position.is_some() {
            let problem = "with tls = true the server makes a certificate itself; remove tls and write \
                 tls-listen = \":443\", or remove this certificate";
            to.usage_error(key, position, problem.into());
        }
    }
}

/// The file of the certificate for development with its key: that of the user, so that it stays the same.
fn development_identity(from: &Settings, to: &mut Findings<'_>) -> Vec<TlsIdentity> {
    let directory = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let absolute = |path: &PathBuf| path.is_absolute();
    let own = directory("XDG_DATA_HOME").filter(absolute);
    let of_home = || Some(directory("HOME").filter(absolute)?.join(".local/share"));
    let Some(data) = own.or_else(of_home) else {
        let problem = "the certificate is kept in the home directory, but HOME is not set; set it, or write \
             tls-listen and tls-certificate instead";
        to.environment_error("tls", span(&from.tls), problem.into());
        return Vec::new();
    };
    let file = data.join("headway/localhost.pem");
    vec![TlsIdentity {
        certificate: file.clone(),
        key: file,
    }]
}

/// The certificate of the top level or of a host (whose keys have this prefix), with its key.
pub(super) fn identity(
    prefix: &str,
    (certificate, key): (&Setting<PathBuf>, &Setting<PathBuf>),
    to: &mut Findings<'_>,
) -> Option<TlsIdentity> {
    let Some(certificate) = certificate else {
        if key.is_some() {
            let problem = "there is no certificate for this key; set tls-certificate as well";
            to.usage_error(&format!("{prefix}tls-key"), span(key), problem.into());
        }
        return None;
    };
    let certificate = file(&format!("{prefix}tls-certificate"), certificate, to);
    Some(TlsIdentity {
        key: match key {
            Some(key) => file(&format!("{prefix}tls-key"), key, to),
            None => certificate.clone(),
        },
        certificate,
    })
}

/// The certificate of the top level, then those of hosts, then automatic ones, each once.
fn identities(
    from: &Settings,
    (hosts, acme): (&[Host], Option<&AcmeConfig>),
    to: &mut Findings<'_>,
) -> Vec<TlsIdentity> {
    let top = identity("", (&from.tls_certificate, &from.tls_key), to);
    let of_hosts = hosts.iter().filter_map(|host| host.tls.clone());
    let mut all: Vec<TlsIdentity> = Vec::new();
    let automatic = acme.into_iter().flat_map(AcmeConfig::identities);
    for identity in top.into_iter().chain(of_hosts).chain(automatic) {
        if !all.contains(&identity) {
            all.push(identity);
        }
    }
    all
}

/// Without a certificate of the top level, each host that speaks TLS needs its own.
fn check_certificates(from: &Settings, plain: &[Endpoint], to: &mut Findings<'_>) {
    // The certificate may be the setting that could not be read.
    let has_any = from.tls_certificate.is_some() || from.acme_hosts.is_some();
    if has_any || from.tls_key.is_some() || from.has_faults {
        return;
    }
    let hosts = tables(&from.host);
    if from.root.is_some() || hosts.is_empty() {
        let problem =
            "TLS needs a certificate; set acme-hosts, or tls-certificate and tls-key, as well";
        to.usage_error("tls-listen", span(&from.tls_listen), problem.into());
        return;
    }
    for host in hosts {
        let own = host.get_ref();
        if own.tls_certificate.is_none() && own.tls_key.is_none() && !is_plain(own, plain) {
            let problem = "the host has no certificate; set tls-certificate and tls-key here, or for all hosts at \
                 the top of the file";
            to.usage_error("host", Some(host.span()), problem.into());
        }
    }
}

/// A program that gets the client's socket cannot speak TLS.
fn check_direct(from: &Settings, to: &mut Findings<'_>) {
    let research = from.research.as_ref().map(Spanned::get_ref);
    let pipe = research.map_or(&[][..], |research| prefixes(&research.pipe));
    let is_passed_sockets = |own: &LocationSettings| {
        let prefix = own.prefix.as_ref().map(Spanned::get_ref);
        own.direct.is_some() && !prefix.is_some_and(|prefix| pipe.contains(prefix))
    };
    let instead = match to.research {
        Some(_) => "use cgi, fastcgi, scgi or proxy, or name its prefix in research.pipe",
        None => "use cgi, fastcgi, scgi or proxy",
    };
    let problem =
        format!("the program gets the client's socket, and cannot speak TLS on it; {instead}");
    let of_hosts = tables(&from.host)
        .iter()
        .flat_map(|host| tables(&host.get_ref().location))
        .map(|location| ("host.location.direct", location));
    let top = tables(&from.location).iter();
    let all = top.map(|location| ("location.direct", location));
    for (key, location) in all.chain(of_hosts) {
        if is_passed_sockets(location.get_ref()) {
            to.usage_error(key, span(&location.get_ref().direct), problem.clone());
        }
    }
}

/// Reports settings of TLS if no listener speaks it. If they were ignored, they would look as if they had an effect.
fn report_without_listener(from: &Settings, to: &mut Findings<'_>) {
    // The listener may be the setting that could not be read.
    if from.has_faults {
        return;
    }
    let top = [
        ("tls-certificate", span(&from.tls_certificate)),
        ("tls-key", span(&from.tls_key)),
        ("tls-minimum", span(&from.tls_minimum)),
        ("tls-suites", span(&from.tls_suites)),
        ("tls-handshakes", span(&from.tls_handshakes)),
        ("tls-offload", span(&from.tls_offload)),
        ("tls-handshake-timeout", span(&from.tls_handshake_timeout)),
        ("tls-tickets", span(&from.tls_tickets)),
        ("tls-client-ca", span(&from.tls_client_ca)),
        ("tls-client-certificate", span(&from.tls_client_certificate)),
        ("tls-redirect", span(&from.tls_redirect)),
        ("hsts", span(&from.hsts)),
    ];
    let of_host = |host: &HostSettings| {
        [
            ("host.tls-certificate", span(&host.tls_certificate)),
            ("host.tls-key", span(&host.tls_key)),
        ]
    };
    let hosts = tables(&from.host).iter();
    let of_hosts = hosts.flat_map(|host| of_host(host.get_ref()));
    for (key, position) in top.into_iter().chain(of_hosts) {
        if position.is_some() {
            to.usage_error(key, position, WITHOUT_LISTENER.into());
        }
    }
}

fn hsts_seconds(item: &Setting<Millis>, to: &mut Findings<'_>) -> Option<u64> {
    let position = Some(item.as_ref()?.span());
    let limits = Millis(0)..=Millis(HSTS_MAX_MS);
    let Millis(max_age) = number("hsts", item, Millis(0), limits, to);
    if !max_age.is_multiple_of(SECOND_MS) {
        let problem = format!("{} is not a whole number of seconds", Millis(max_age));
        to.usage_error("hsts", position, problem);
    }
    Some(max_age / SECOND_MS)
}

/// The path of a file that the master can read. Symbolic links in it stay, so that a renewed
/// certificate is found.
pub(super) fn file(key: &str, item: &Spanned<PathBuf>, to: &mut Findings<'_>) -> PathBuf {
    let written = item.get_ref().clone();
    let problem = match to.patience.ask(move || look(&written)) {
        Some(Ok(path)) => return path,
        Some(Err(problem)) => problem,
        None => format!("the file {}: {SILENT}", item.get_ref().display()),
    };
    to.environment_error(key, Some(item.span()), problem);
    item.get_ref().clone()
}

fn look(written: &Path) -> Result<PathBuf, String> {
    let shown = written.display();
    let path = lasting_path(written).map_err(|error| format!("the file {shown}: {error}"))?;
    if !path.is_file() {
        return Err(format!("{shown} is not a file"));
    }
    match rustix::fs::access(&path, rustix::fs::Access::READ_OK) {
        Ok(()) => Ok(path),
        Err(error) => Err(format!("the file {shown} is not readable: {error}")),
    }
}
