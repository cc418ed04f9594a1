//! Rules for clients, and files that change without a signal.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

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
struct Badge(CertifiedKey<rcgen::KeyPair>);

impl Badge {
    fn new() -> Badge {
        Badge(generate_simple_self_signed(["client.example".to_owned()]).unwrap())
    }

    fn write(&self, file: &Path) {
        fs::write(file, self.0.cert.pem()).unwrap();
    }

    /// A client that shows it.
    fn client(&self, certified: &Certified) -> Arc<ClientConfig> {
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
fn new_certificate_is_found_without_a_signal() {
    let secured = Secured::start("");
    assert!(secured.get("/file.txt").status == 200);
    let second = Certified::new();
    second.write(&secured.site.path(""));
    let second = Arc::new(second.clients(&TLS13));
    wait_until("the new certificate", || is_served(&secured, &second));
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
