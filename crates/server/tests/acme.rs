//! Automatic certificates, from an authority for tests: pebble, which is not part of Headway.
//!
//! The site has to be served all the time, whatever the authority does.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;

use headway_server::acme::{Reason, revoke};
use headway_test_support::{WAIT_MAX, skip, wait_until};
use rustix::process::Signal;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::site::*;

mod fake;
mod faults;
mod tools;

use tools::*;

const CHALLENGES: &str = "state/acme/challenges/.well-known/acme-challenge";

/// The programs of an authority, or a skip.
fn authority_for(test: &str) -> Option<[std::path::PathBuf; 2]> {
    let found = programs();
    if found.is_none() {
        skip(test, "pebble and pebble-challtestsrv are not installed");
    }
    found
}

/// A metric of automatic certificates.
fn metric(server: &Server, name: &str) -> u64 {
    let (_, text) = request(&server.status, &server.status, "/metrics");
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.map_or(0, |value| value.trim().parse::<f64>().unwrap() as u64)
}

fn http_get(address: &str, path: &str) -> (u16, String) {
    request(address, NAME, path)
}

fn request(address: &str, host: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    send(
        &mut stream,
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
    );
    let response = receive(&mut stream).unwrap();
    (response.status, response.text())
}

const ISSUED: &str = "headway_acme_certificates_total{result=\"issued\"}";
const FAILED: &str = "headway_acme_certificates_total{result=\"failed\"}";
const EXPIRY: &str = "headway_acme_certificate_expiry_seconds{host=\"a.example\"}";

/// Needs: the programs pebble and pebble-challtestsrv
#[test]
fn certificate_is_issued_kept_and_renewed_when_the_authority_wants_it() {
    let Some(programs) =
        authority_for("certificate_is_issued_kept_and_renewed_when_the_authority_wants_it")
    else {
        return;
    };
    let automatic = Automatic::new();
    let mut authority = Authority::new(programs, &automatic.site, automatic.port);
    authority.run();
    // A rule of the site does not keep the authority out, and a redirect does not lead it away.
    let settings = authority.settings() + "tls-redirect = true\ndeny = \"203.0.113.0/24\"";
    let server = automatic.start(&settings);
    wait_until("there is a certificate", || metric(&server, ISSUED) == 1);
    let root = authority.root();
    wait_until("clients trust the certificate", || {
        automatic.is_trusted_by(root.clone())
    });
    assert!(metric(&server, EXPIRY) > 1_700_000_000);
    assert_eq!(
        metric(&server, "headway_process_deaths_total{process=\"acme\"}"),
        0
    );
    let left = fs::read_dir(automatic.site.path(CHALLENGES))
        .unwrap()
        .count();
    assert_eq!(left, 0, "answers are removed");
    assert_never_blocked(&server, |_| false);
    let said = server.stop();
    assert_eq!(
        said.matches("certificate of a.example: issued by").count(),
        1,
        "{said}"
    );
    let before = automatic.file();

    let server = automatic.start(&settings);
    wait_until("it is known", || metric(&server, EXPIRY) > 0);
    assert!(automatic.is_trusted_by(root.clone()));
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(metric(&server, ISSUED), 0, "a restart orders nothing");
    assert!(automatic.file() == before);
    drop(server);

    authority.want_renewal(&automatic.certificate());
    let server = automatic.start(&settings);
    wait_until("it is renewed", || metric(&server, ISSUED) == 1);
    assert!(automatic.file() != before);
    let renewed = CertificateDer::from_pem_slice(automatic.certificate().as_bytes()).unwrap();
    wait_until("clients get the new one", || automatic.served() == renewed);
    assert!(automatic.is_trusted_by(root));
    assert!(automatic.is_served(&server) || get(&server, "/file.txt").status == 308);
}

/// Needs: the programs pebble and pebble-challtestsrv
#[test]
fn site_is_served_whether_the_authority_is_up_or_not() {
    let Some(programs) = authority_for("site_is_served_whether_the_authority_is_up_or_not") else {
        return;
    };
    let automatic = Automatic::new();
    let mut authority = Authority::new(programs, &automatic.site, automatic.port);
    let settings = authority.settings();
    let server = automatic.start(&settings);
    wait_until("an order has failed", || metric(&server, FAILED) > 0);
    assert!(automatic.is_served(&server));
    authority.run();
    wait_until("there is a certificate", || metric(&server, ISSUED) == 1);
    let root = authority.root();
    wait_until("clients trust the certificate", || {
        automatic.is_trusted_by(root.clone())
    });
    let said = server.stop();
    assert!(said.contains("connect to localhost:"), "{said}");
    assert!(said.contains("a self-signed one is in use"), "{said}");

    authority.stop();
    let server = automatic.start(&settings);
    assert!(automatic.is_served(&server));
    assert!(automatic.is_trusted_by(root));
    wait_until("it is known", || metric(&server, EXPIRY) > 0);
    assert_eq!(metric(&server, FAILED), 0, "there is nothing to order");
    drop(server);

    // It has forgotten the account, and issues by another root.
    authority.run();
    let file = automatic.file().replace("/dir\n", "/elsewhere\n");
    let path = format!("state/acme/certificates/{NAME}.pem");
    fs::write(automatic.site.path(&path), file).unwrap();
    let server = automatic.start(&settings);
    wait_until("one of another authority is replaced", || {
        metric(&server, ISSUED) == 1
    });
    let root = authority.root();
    wait_until("clients trust the certificate", || {
        automatic.is_trusted_by(root.clone())
    });
    assert!(automatic.is_served(&server));
}

/// Needs: the programs pebble and pebble-challtestsrv
#[test]
fn failed_challenge_is_tried_again_and_serves_on() {
    let Some(programs) = authority_for("failed_challenge_is_tried_again_and_serves_on") else {
        return;
    };
    let automatic = Automatic::new();
    let mut authority = Authority::new(programs, &automatic.site, free_port());
    authority.run();
    let server = automatic.start(&authority.settings());
    wait_until("an order has failed", || metric(&server, FAILED) > 0);
    assert!(automatic.is_served(&server));
    // The process dies, and its replacement waits as well.
    let process = server.children("serve-acme")[0];
    let process = rustix::process::Pid::from_raw(process).unwrap();
    rustix::process::kill_process(process, Signal::KILL).unwrap();
    wait_until("its death is known", || {
        metric(&server, "headway_process_deaths_total{process=\"acme\"}") == 1
    });
    assert!(automatic.is_served(&server));
    authority.stop();
    authority.ask_at_ports(automatic.port, 1);
    authority.run();
    wait_until("there is a certificate", || metric(&server, ISSUED) == 1);
    assert!(automatic.is_served(&server));
    let said = server.stop();
    assert!(said.contains("the authority says connection"), "{said}");
}

/// Needs: the programs pebble and pebble-challtestsrv
#[test]
fn rejected_name_does_not_hold_up_the_others() {
    let Some(programs) = authority_for("rejected_name_does_not_hold_up_the_others") else {
        return;
    };
    let automatic = Automatic::new();
    let mut authority = Authority::new(programs, &automatic.site, automatic.port);
    authority.run();
    let names = format!("[\"{REJECTED}\", \"{NAME}\"]");
    let settings = authority.settings().replace(&format!("\"{NAME}\""), &names);
    let server = automatic.start(&settings);
    wait_until("there is a certificate", || metric(&server, ISSUED) == 1);
    wait_until("it is tried again", || metric(&server, FAILED) > 1);
    let root = authority.root();
    wait_until("clients trust the certificate", || {
        automatic.is_trusted_by(root.clone())
    });
    let said = server.stop();
    let rejected = "certificate of rejected.example: the order at https://localhost:";
    assert!(said.contains(rejected), "{said}");
    assert!(
        said.contains("the authority says rejectedIdentifier"),
        "{said}"
    );
}

/// Needs: the programs pebble and pebble-challtestsrv
#[test]
fn certificate_is_issued_by_a_handshake_when_the_server_speaks_tls_only() {
    let name = "certificate_is_issued_by_a_handshake_when_the_server_speaks_tls_only";
    let Some(programs) = authority_for(name) else {
        return;
    };
    let automatic = Automatic::new();
    let mut authority = Authority::new(programs, &automatic.site, free_port());
    authority.ask_at_ports(automatic.port, automatic.tls_port);
    authority.run();
    let settings = authority.settings() + "acme-challenge = \"tls-alpn-01\"";
    let server = automatic.start_with_tls_only(&settings);
    wait_until("there is a certificate", || metric(&server, ISSUED) == 1);
    let root = authority.root();
    wait_until("clients trust the certificate", || {
        automatic.is_trusted_by(root.clone())
    });
    // The challenge is over, so nothing answers it any more.
    assert!(automatic.refuses_challenges());
    assert_never_blocked(&server, |_| false);
    assert_eq!(metric(&server, FAILED), 0, "{}", server.stop());
}

/// Needs: the programs pebble and pebble-challtestsrv
#[test]
fn revoked_certificate_is_replaced_by_one_with_another_key() {
    let name = "revoked_certificate_is_replaced_by_one_with_another_key";
    let Some(programs) = authority_for(name) else {
        return;
    };
    let automatic = Automatic::new();
    let mut authority = Authority::new(programs, &automatic.site, automatic.port);
    authority.run();
    let server = automatic.start(&authority.settings());
    wait_until("there is a certificate", || metric(&server, ISSUED) == 1);
    wait_until("the next order is planned", || {
        let state = automatic.state(&authority);
        state.next_order_s.is_some_and(|at| at > 1_700_000_000)
    });
    let before = automatic.state(&authority);
    assert_eq!((before.certificate, before.failures), ("issued", 0));
    assert_eq!(before.authority, Some(authority.url()));
    assert!(before.expires_s.is_some() && before.error.is_none());
    let (first, key) = (automatic.certificate(), automatic.key());
    assert_eq!(authority.status_of(&first), "Valid");
    let config = automatic.config(&authority.settings());
    revoke(&config, NAME, Reason::KeyCompromise).unwrap();
    assert_eq!(authority.status_of(&first), "Revoked");
    wait_until("there is another certificate", || {
        metric(&server, ISSUED) == 2
    });
    assert_eq!(authority.status_of(&automatic.certificate()), "Valid");
    let second = CertificateDer::from_pem_slice(automatic.certificate().as_bytes()).unwrap();
    wait_until("clients get it", || automatic.served() == second);
    assert!(automatic.is_served(&server));
    assert_ne!(automatic.key(), key);
    assert_eq!(automatic.state(&authority).certificate, "issued");
    let unknown = revoke(&config, "b.example", Reason::Superseded).unwrap_err();
    assert!(unknown.contains("not one of acme-hosts"), "{unknown}");
    assert_never_blocked(&server, |_| false);
    assert_eq!(metric(&server, FAILED), 0);
}

#[test]
fn server_starts_with_a_self_signed_certificate_and_answers_only_its_own_challenges() {
    let automatic = Automatic::new();
    let nobody = headway_test_support::unused_address();
    let ca = automatic.site.path("ca.pem");
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(&ca, certified.cert.pem()).unwrap();
    let settings = format!(
        "acme-hosts = [\"{NAME}\", \"b.example\"]\nacme-directory = \"https://{nobody}/dir\"\nacme-ca = {ca:?}\n\
         allow = \"203.0.113.0/24\""
    );
    let server = automatic.start(&settings);
    let made = CertificateDer::from_pem_slice(automatic.certificate().as_bytes()).unwrap();
    assert_eq!(automatic.served(), made);
    let challenge = "/.well-known/acme-challenge/token";
    fs::write(automatic.site.path(CHALLENGES).join("token"), "the answer").unwrap();
    assert_eq!(
        http_get(&server.address, challenge),
        (200, "the answer".into())
    );
    assert_eq!(
        http_get(&server.address, "/.well-known/acme-challenge/other").0,
        404
    );
    assert_eq!(
        http_get(
            &server.address,
            "/.well-known/acme-challenge/../../../account.json"
        )
        .0,
        403
    );
    assert_eq!(http_get(&server.address, "/file.txt").0, 403);
    let other = exchange(
        &server,
        format!("GET {challenge} HTTP/1.1\r\nHost: c.example\r\n\r\n"),
    );
    assert_eq!(other.status, 403, "c.example is a site like others");
}

#[test]
fn reload_begins_and_ends_automatic_certificates() {
    let automatic = Automatic::new();
    let nobody = headway_test_support::unused_address();
    let with =
        |hosts: &str| format!("acme-hosts = {hosts}\nacme-directory = \"https://{nobody}/dir\"");
    let server = automatic.start(&with("\"a.example\""));
    wait_until("it has a process", || {
        server.children("serve-acme").len() == 1
    });
    let first = server.children("serve-acme");
    let reload = |settings: &str, reloads: u64| {
        fs::write(
            automatic.site.path("headway.toml"),
            automatic.text(settings),
        )
        .unwrap();
        server.signal(Signal::HUP);
        server.wait_for("the reload", |server| {
            server.status()["master"]["reloads"] == reloads
        });
    };
    reload(&with("[\"a.example\", \"b.example\"]"), 1);
    wait_until("another process takes over", || {
        let now = server.children("serve-acme");
        now.len() == 1 && now != first
    });
    assert!(
        automatic
            .site
            .path("state/acme/certificates/b.example.pem")
            .exists()
    );
    let second = server.children("serve-acme");
    reload(&with("[\"a.example\", \"b.example\"]"), 2);
    assert_eq!(
        server.children("serve-acme"),
        second,
        "nothing has changed for it"
    );
    assert_eq!(server.status()["master"]["acme_deaths"], 0);
}

/// Needs: root, and the user nobody
#[test]
fn no_process_of_the_servers_user_can_read_keys() {
    let name = "no_process_of_the_servers_user_can_read_keys";
    if !rustix::process::geteuid().is_root() {
        return skip(name, "not root");
    }
    let automatic = Automatic::new();
    automatic.site.open_to_all();
    let nobody = headway_test_support::unused_address();
    let state = automatic.site.path("state");
    let settings = format!(
        "user = \"nobody\"\nacme-hosts = [\"{NAME}\"]\nacme-directory = \"https://{nobody}/dir\""
    );
    // The directory above is open to all, so this one has to be there.
    fs::create_dir(&state).unwrap();
    let server = automatic.start(&settings);
    wait_until("an order has failed", || metric(&server, FAILED) > 0);
    assert_eq!(automatic.served(), {
        let made = automatic.certificate();
        CertificateDer::from_pem_slice(made.as_bytes()).unwrap()
    });
    let certificates = state.join("acme/certificates");
    for (path, is_readable) in [
        (certificates.join(format!("{NAME}.pem")), false),
        (certificates, false),
        (state.join("acme/failures"), false),
        (automatic.site.path(CHALLENGES), true),
    ] {
        let as_nobody = ["--reuid=nobody", "--regid=nogroup", "--clear-groups", "ls"];
        let mut look = std::process::Command::new("setpriv");
        let done = look.args(as_nobody).arg(&path).output().unwrap();
        assert_eq!(done.status.success(), is_readable, "{}", path.display());
    }
    for process in server.children("serve-acme") {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        assert!(!status.contains("Uid:\t0"), "{status}");
        // proc_pid(5): its files belong to root if no process of its user may look into it.
        let memory = fs::metadata(format!("/proc/{process}/mem")).unwrap();
        assert_eq!(memory.uid(), 0, "its memory has keys");
    }
    fs::write(automatic.site.path(CHALLENGES).join("token"), "the answer").unwrap();
    let answer = http_get(&server.address, "/.well-known/acme-challenge/token");
    assert_eq!(answer, (200, "the answer".into()));
}
