//! Rules for clients, and files that change without a signal.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use headway_config::CipherSuite;
use headway_test_support::wait_until;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore};

use super::tools::*;
use crate::site::*;

/// A client's certificate, which is its own authority.
pub struct Badge(CertifiedKey<rcgen::KeyPair>);

impl Badge {
    pub fn new() -> Badge {
        Badge(generate_simple_self_signed(["client.example".to_owned()]).unwrap())
    }

    pub fn write(&self, file: &Path) {
        fs::write(file, self.0.cert.pem()).unwrap();
    }

    /// A client that shows it.
    pub fn client(&self, certified: &Certified) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(certified.certificate.clone()).unwrap();
        let key = PrivatePkcs8KeyDer::from(self.0.signing_key.serialize_der());
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let builder = builder.with_protocol_versions(&[&TLS13]).unwrap();
        let builder = builder.with_root_certificates(roots);
        let chain = vec![self.0.cert.der().clone()];
        let mut config = builder
            .with_client_auth_cert(chain, PrivateKeyDer::from(key))
            .unwrap();
        config.resumption = Resumption::disabled();
        Arc::new(config)
    }
}

/// Whether a client gets an answer.
fn is_served(secured: &Secured, config: &Arc<ClientConfig>) -> bool {
    let mut stream = secured.connect_as(config.clone());
    let sent = stream.write_all(request("/file.txt").as_bytes());
    sent.is_ok() && receive(&mut stream).is_ok_and(|response| response.status == 200)
}

#[test]
fn clients_without_the_right_certificate_are_not_served() {
    for handshakes in ["process", "inline"] {
        let (site, right, wrong) = (Site::new(), Badge::new(), Badge::new());
        let authority = site.path("clients.pem");
        right.write(&authority);
        let settings =
            format!("tls-handshakes = \"{handshakes}\"\ntls-client-ca = {authority:?}\n");
        for (rule, without) in [("required", false), ("optional", true)] {
            let settings = format!("{settings}tls-client-certificate = \"{rule}\"");
            let secured = Secured::start(&settings);
            let unknown = Arc::new(secured.certified.clients(&TLS13));
            assert!(
                is_served(&secured, &right.client(&secured.certified)),
                "{rule}"
            );
            assert!(
                !is_served(&secured, &wrong.client(&secured.certified)),
                "{rule}"
            );
            assert_eq!(is_served(&secured, &unknown), without, "{rule}");
        }
    }
}

#[test]
fn clients_need_a_certificate_after_a_reload_that_says_so() {
    let secured = Secured::start("");
    let badge = Badge::new();
    let unknown = Arc::new(secured.certified.clients(&TLS13));
    assert!(is_served(&secured, &unknown));
    let authority = secured.site.path("clients.pem");
    badge.write(&authority);
    let settings = tls_settings(
        &secured.site.path(""),
        &format!("tls-client-ca = {authority:?}"),
    );
    fs::write(secured.site.path("headway.toml"), settings).unwrap();
    secured.server.signal(Signal::HUP);
    // The worker before may accept until it drains.
    wait_until("the rule", || !is_served(&secured, &unknown));
    assert!(is_served(&secured, &badge.client(&secured.certified)));
}

#[test]
fn version_below_the_minimum_is_refused() {
    for handshakes in ["process", "inline"] {
        let settings = format!("tls-handshakes = \"{handshakes}\"\ntls-minimum = \"1.3\"");
        let secured = Secured::start(&settings);
        let client = |version| Arc::new(secured.certified.clients(version));
        assert!(is_served(&secured, &client(&TLS13)));
        assert!(!is_served(&secured, &client(&TLS12)));
    }
}

#[test]
fn suite_that_is_not_allowed_is_not_agreed_on() {
    let numbers = |suites: &[u16]| {
        let mut numbers = suites.to_vec();
        numbers.sort_unstable();
        numbers
    };
    let known: Vec<u16> = CipherSuite::ALL.iter().map(|one| one.number()).collect();
    let all = aws_lc_rs::ALL_CIPHER_SUITES.iter();
    let all: Vec<u16> = all.map(|one| one.suite().into()).collect();
    assert_eq!(numbers(&known), numbers(&all));
    for handshakes in ["process", "inline"] {
        let secured = Secured::start(&format!(
            "tls-handshakes = \"{handshakes}\"\ntls-suites = [\"TLS_CHACHA20_POLY1305_SHA256\", \
             \"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384\"]"
        ));
        for (version, number) in [(&TLS12, 0xc02c), (&TLS13, 0x1303)] {
            let mut stream = secured.connect(version);
            assert_eq!(ask(&mut stream, "/file.txt").text(), "a file\n");
            let agreed = stream.conn.negotiated_cipher_suite().unwrap();
            assert_eq!(u16::from(agreed.suite()), number);
        }
        is_well_over_tls(&secured);
    }
}

#[test]
fn new_certificate_is_found_without_a_signal() {
    let secured = Secured::start("");
    assert!(secured.get("/file.txt").status == 200);
    let second = Certified::new();
    second.write(&secured.site.path(""));
    let second = Arc::new(second.clients(&TLS13));
    wait_until("the new certificate", || is_served(&secured, &second));
}

#[test]
fn expired_certificate_does_not_replace_one_that_is_valid() {
    let secured = Secured::start("");
    let server = &secured.server;
    let valid = Arc::new(secured.certified.clients(&TLS13));
    Certified::expired().write(&secured.site.path(""));
    server.signal(Signal::HUP);
    let failures = || server.status()["master"]["reload_failures"].as_u64();
    server.wait_for("the refusal", |_| failures() == Some(1));
    assert!(is_served(&secured, &valid));
    let status = server.status()["master"]["reload_error"].to_string();
    assert!(
        status.contains("has expired on Fri, 01 Jan 2021"),
        "{status}"
    );
    assert!(status.contains("the one in use is valid until"), "{status}");
    // The next certificate is looked at again.
    let second = Certified::new();
    second.write(&secured.site.path(""));
    server.signal(Signal::HUP);
    let second = Arc::new(second.clients(&TLS13));
    wait_until("the new certificate", || is_served(&secured, &second));
}

#[test]
fn certificate_in_use_stays_when_its_file_is_removed() {
    let secured = Secured::start("");
    let server = &secured.server;
    let first = Arc::new(secured.certified.clients(&TLS13));
    fs::remove_file(secured.site.path("tls.crt")).unwrap();
    server.signal(Signal::HUP);
    let master = |name: &str| server.status()["master"][name].clone();
    // The server may also have looked without the signal.
    server.wait_for("the refusal", |_| {
        master("reload_failures").as_u64() >= Some(1)
    });
    let why = master("reload_error").to_string();
    assert!(
        why.contains("tls-certificate") && why.contains("tls.crt"),
        "{why}"
    );
    assert!(is_served(&secured, &first));
    let second = Certified::new();
    second.write(&secured.site.path(""));
    server.signal(Signal::HUP);
    let second = Arc::new(second.clients(&TLS13));
    wait_until("the new certificate", || is_served(&secured, &second));
}

#[test]
fn server_with_an_expired_certificate_starts_and_says_so() {
    let (site, expired) = (Site::new(), Certified::expired());
    expired.write(&site.path(""));
    let file = site.path("headway.toml");
    fs::write(&file, tls_settings(&site.path(""), "")).unwrap();
    let arguments = ["--workers", "1", "--config", file.to_str().unwrap()];
    let server = Server::start(program(), &site.path("root"), &arguments);
    let printed = server.stop();
    assert!(
        printed.contains("has expired on Fri, 01 Jan 2021 00:00:00 GMT; clients will refuse it"),
        "{printed}"
    );
}

#[test]
fn fifo_in_place_of_a_certificate_does_not_hold_up_the_master() {
    let secured = Secured::start("");
    let key = secured.site.path("tls.key");
    fs::remove_file(&key).unwrap();
    mknodat(CWD, &key, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    secured.server.signal(Signal::HUP);
    secured.server.wait_for("the refusal", |server| {
        server.status()["master"]["reload_failures"] == 1
    });
    assert_eq!(secured.get("/file.txt").status, 200);
}
