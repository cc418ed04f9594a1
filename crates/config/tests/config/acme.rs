//! Automatic certificates: their settings take effect, and what is wrong with them is reported.

use headway_config::AcmeChallenge;
use std::os::unix::fs::PermissionsExt;

use super::mistakes::Mistake;
use super::tls::{assert_reported, directory, good, good_in, messages};
use crate::HERE;

/// A server with automatic certificates and no others.
const ACME: &str = "listen = 8080\ntls-listen = 8443\nstate-directory = \"state\"\n";

#[test]
fn automatic_certificates_have_defaults_when_there_are_names() {
    let config = good(&format!(
        "{ACME}acme-hosts = [\"a.example\", \"WWW.a.example\"]"
    ));
    let acme = config.acme.as_ref().unwrap();
    assert_eq!(acme.hosts, ["a.example", "www.a.example"]);
    assert_eq!(
        acme.directory,
        "https://acme-v02.api.letsencrypt.org/directory"
    );
    assert_eq!(
        (&acme.contact, &acme.authority, acme.retry_ms),
        (&None, &None, 60_000)
    );
    assert!(acme.state_directory.is_absolute() && acme.state_directory.ends_with("state"));
    let identities = &config.tls.as_ref().unwrap().identities;
    assert_eq!(identities.len(), 2);
    assert!(
        identities[1]
            .certificate
            .ends_with("state/acme/certificates/www.a.example.pem")
    );
    assert_eq!(
        identities[1].certificate, identities[1].key,
        "both are one file"
    );
    assert!(identities.iter().all(|identity| acme.owns(identity)));
}

#[test]
fn settings_of_the_authority_take_effect_when_they_are_set() {
    let config = good(&format!(
        "{ACME}acme-hosts = \"a.example\"\nacme-contact = \"mailto:admin@a.example\"\n\
         acme-directory = \"staging\"\nacme-ca = \"ca.pem\"\nacme-retry-interval = \"5m\""
    ));
    let acme = config.acme.unwrap();
    assert_eq!(
        acme.directory,
        "https://acme-staging-v02.api.letsencrypt.org/directory"
    );
    assert_eq!(acme.contact.as_deref(), Some("mailto:admin@a.example"));
    assert!(acme.authority.unwrap().ends_with("ca.pem"));
    assert_eq!(acme.retry_ms, 300_000);
}

#[test]
fn configured_certificates_come_before_automatic_ones() {
    let config = good(&format!(
        "{ACME}acme-hosts = \"a.example\"\ntls-certificate = \"a.pem\"\ntls-key = \"a.key\""
    ));
    let identities = config.tls.unwrap().identities;
    assert!(identities[0].certificate.ends_with("a.pem"));
    assert!(identities[1].certificate.ends_with("a.example.pem"));
    let hosts = "[[host]]\nroot = \"site\"\n[[host]]\nnames = \"b.example\"\nroot = \"site\"";
    let config = good(&format!("{ACME}acme-hosts = \"a.example\"\n{hosts}"));
    assert_eq!(
        config.tls.unwrap().identities.len(),
        1,
        "no host needs its own"
    );
}

#[test]
fn challenges_have_a_host_without_rules_behind_the_others() {
    let config = good(&format!(
        "{ACME}acme-hosts = \"a.example\"\ndeny = \"private\"\nfallback = \"/x\"\nerror-pages = {{ 404 = \"a.pem\" }}\n\
         [[location]]\nprefix = \"/\"\nproxy = \"127.0.0.1:1\""
    ));
    assert_eq!((config.hosts.len(), config.sites().len()), (2, 1));
    let host = &config.hosts[1];
    assert!(host.root.ends_with("state/acme/challenges"));
    assert!(host.locations.is_empty() && host.fallback.is_empty() && host.error_pages.is_empty());
    assert_eq!(host.access, Default::default());
    let without = good("root = \"site\"");
    assert_eq!(without.sites().len(), without.hosts.len());
}

#[test]
fn printed_configuration_is_the_same_when_it_is_read_again() {
    let directory = directory();
    for more in [
        "",
        "tls-certificate = \"a.pem\"\nacme-contact = \"mailto:x@a.example\"\nacme-ca = \"ca.pem\"",
    ] {
        let config = good_in(
            directory.path(),
            &format!("{ACME}acme-hosts = \"a.example\"\n{more}"),
        );
        let again = good_in(directory.path(), &config.to_toml());
        assert_eq!(
            (&again.acme, &again.tls, &again.hosts),
            (&config.acme, &config.tls, &config.hosts)
        );
    }
}

const MISTAKES: &[Mistake] = &[
    ("acme-hosts = []", 4, &["acme-hosts: at least one name"]),
    (
        "acme-hosts = \"*.a.example\"",
        4,
        &["acme-hosts: `*.a.example`: authorities issue no wildcard certificates by HTTP"],
    ),
    (
        "acme-hosts = \"192.0.2.1\"",
        4,
        &["acme-hosts: `192.0.2.1` is not a DNS name"],
    ),
    ("acme-hosts = \"a.example:443\"", 4, &["is not a DNS name"]),
    ("acme-hosts = \"../x\"", 4, &["is not a DNS name"]),
    ("acme-hosts = \"a..example\"", 4, &["is not a DNS name"]),
    ("acme-hosts = \"-a.example\"", 4, &["is not a DNS name"]),
    (
        "acme-hosts = \"b\u{fc}cher.example\"",
        4,
        &["is not a DNS name", "xn--"],
    ),
    (
        "acme-hosts = [\"a.example\", \"A.example\"]",
        4,
        &["acme-hosts: `a.example` is listed twice"],
    ),
    (
        "acme-hosts = \"a.example\"\nacme-contact = \"admin@a.example\"",
        5,
        &["acme-contact: ", "write mailto:"],
    ),
    (
        "acme-hosts = \"a.example\"\nacme-directory = \"http://ca.example/\"",
        5,
        &["acme-directory: ", "is not a URL"],
    ),
    (
        "acme-hosts = \"a.example\"\nacme-directory = \"production\"",
        5,
        &["acme-directory: ", "write staging"],
    ),
    (
        "acme-hosts = \"a.example\"\nacme-ca = \"none.pem\"",
        5,
        &["acme-ca: the file ", "none.pem: No such file"],
    ),
    (
        "acme-hosts = \"a.example\"\nacme-retry-interval = 0",
        5,
        &["acme-retry-interval: "],
    ),
];

#[test]
fn mistake_of_automatic_certificates_is_reported_with_line_and_key() {
    for (text, line, parts) in MISTAKES {
        assert_reported(&format!("{ACME}{text}"), *line, parts);
    }
}

#[test]
fn names_need_listeners_with_and_without_tls() {
    let hosts = "state-directory = \"state\"\nacme-hosts = \"a.example\"";
    assert_reported(
        &format!("listen = 80\n{hosts}"),
        3,
        &["acme-hosts: certificates are for TLS; set tls-listen"],
    );
    assert_reported(
        &format!("tls-listen = 443\n{hosts}"),
        3,
        &[
            "acme-hosts: the authority sends its requests to port 80",
            "set listen = \":80\"",
        ],
    );
}

#[test]
fn setting_without_names_is_an_error() {
    for setting in [
        "acme-contact = \"mailto:admin@a.example\"",
        "acme-directory = \"staging\"",
        "acme-ca = \"ca.pem\"",
        "acme-retry-interval = 60",
        "state-directory = \"state\"",
    ] {
        let (key, _) = setting.split_once(' ').unwrap();
        let part = format!("{key}: no certificate is ordered without acme-hosts");
        assert_reported(&format!("listen = 8080\n{setting}"), 2, &[&part]);
    }
}

#[test]
fn state_directory_must_be_one_that_can_be_written() {
    let directory = directory();
    let at = |name: &str| {
        format!(
            "listen = 80\ntls-listen = 443\nacme-hosts = \"a.example\"\nstate-directory = \"{name}\""
        )
    };
    for (name, part) in [
        ("a.pem", "a.pem is not a directory"),
        ("none/state", "none/state: No such file"),
    ] {
        let found = messages(&at(name), &HERE);
        assert!(found.len() == 1 && found[0].contains(part), "{found:?}");
    }
    if rustix::process::geteuid().is_root() {
        return;
    }
    let closed = directory.path().join("site");
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o500)).unwrap();
    let here = closed.display();
    for (name, part) in [("", "is not writable"), ("/state", "cannot be created")] {
        let found = messages(&at(&format!("{here}{name}")), &HERE);
        assert!(found.len() == 1 && found[0].contains(part), "{found:?}");
    }
}

#[test]
fn challenge_by_tls_needs_no_plain_listener_but_the_handshake_process() {
    let text = |more: &str| {
        format!(
            "tls-listen = 443\nstate-directory = \"state\"\nacme-hosts = \"a.example\"\n\
             acme-challenge = \"tls-alpn-01\"\n{more}"
        )
    };
    let challenge = |text: &str| good(text).acme.unwrap().challenge;
    assert_eq!(challenge(&text("")), AcmeChallenge::TlsAlpn01);
    let default = format!("{ACME}acme-hosts = \"a.example\"");
    assert_eq!(challenge(&default), AcmeChallenge::Http01);
    let found = messages(&text("tls-handshakes = \"inline\""), &HERE);
    let wanted = "acme-challenge: the handshake process answers them";
    assert!(found.len() == 1 && found[0].contains(wanted), "{found:?}");
}
