//! `headway acme`: the state of automatic certificates, and what cannot be revoked.

use std::fs;
use std::process::Output;

use headway_test_support::{unused_address, wait_until};

use crate::serving::{Server, headway};

fn acme(arguments: &[&str]) -> Output {
    headway().arg("acme").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn status_has_the_last_error_of_a_name_without_a_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("headway.toml");
    fs::create_dir(directory.path().join("root")).unwrap();
    fs::write(directory.path().join("ca.pem"), "").unwrap();
    let nobody = unused_address();
    let settings = format!(
        "root = \"root\"\nlisten = \"127.0.0.1:0\"\ntls-listen = \"127.0.0.1:0\"\nstatus = \"127.0.0.1:0\"\n\
         workers = 1\nstate-directory = \"state\"\nacme-hosts = \"a.example\"\nacme-ca = \"ca.pem\"\n\
         acme-directory = \"https://{nobody}/dir\"\n"
    );
    fs::write(&file, settings).unwrap();
    let path = file.to_str().unwrap();
    let before = acme(&["status", "--config", path]);
    assert!(text(&before.stdout).contains("none"), "{before:?}");
    let server = Server::start_from_file(headway(), &file);
    let shown = || {
        let done = acme(&["status", "--config", path, "--json"]);
        assert!(done.status.success(), "{done:?}");
        serde_json::from_slice::<serde_json::Value>(&done.stdout).unwrap()
    };
    wait_until("an order has failed", || shown()[0]["error"].is_string());
    let hosts = shown();
    assert_eq!(hosts[0]["host"], "a.example");
    assert_eq!(hosts[0]["certificate"], "self-signed");
    let done = acme(&["status", "--config", path]);
    let table = text(&done.stdout);
    assert!(
        table.contains("a.example: ") && table.contains("ca.pem"),
        "{table}"
    );
    for (host, code, part) in [
        ("A.example", 1, "has no certificate of an authority"),
        ("b.example", 2, "not one of acme-hosts, which are a.example"),
    ] {
        let done = acme(&["revoke", host, "--config", path]);
        let said = text(&done.stderr);
        assert!(
            done.status.code() == Some(code) && said.contains(part),
            "{said}"
        );
    }
    drop(server);
}

#[test]
fn configuration_without_automatic_certificates_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("headway.toml");
    for (settings, code, part) in [
        ("", 1, "cannot read the file"),
        ("listen = 8080\n", 2, "no automatic certificates"),
        ("acme-host = 1\n", 2, "acme-host"),
    ] {
        if !settings.is_empty() {
            fs::write(&file, settings).unwrap();
        }
        let done = acme(&["status", "--config", file.to_str().unwrap()]);
        let said = text(&done.stderr);
        assert!(
            done.status.code() == Some(code) && said.contains(part),
            "{said}"
        );
    }
    assert_eq!(acme(&["revoke", "a.example"]).status.code(), Some(2));
}
