//! `tls = true`: HTTPS for development, with a certificate that the server makes itself.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use headway_test_support::{find_program, skip};

use crate::site::*;

/// What a command prints, which has to succeed.
fn output(program: &str, arguments: &[&str]) -> String {
    let done = Command::new(program).args(arguments).output().unwrap();
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {arguments:?}: {error}");
    String::from_utf8(done.stdout).unwrap()
}

/// A server whose user keeps its files in this directory.
fn serve(site: &Site, data: &Path, arguments: &[&str]) -> Server {
    let mut program = program();
    program.env("XDG_DATA_HOME", data);
    let all = ["--workers", "1", "--tls"];
    let all: Vec<&str> = all.iter().chain(arguments).copied().collect();
    Server::start(program, &site.path("root"), &all)
}

/// Needs: the programs curl and openssl
#[test]
fn browser_is_asked_once_to_accept_the_certificate_for_development() {
    if find_program("curl").is_none() || find_program("openssl").is_none() {
        return skip(
            "browser_is_asked_once_to_accept_the_certificate_for_development",
            "curl or openssl is not installed",
        );
    }
    let site = Site::new();
    let data = site.path("data");
    let server = serve(&site, &data, &[]);
    let port = server.address.rsplit_once(':').unwrap().1.to_owned();
    let file = data.join("headway/localhost.pem");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let path = file.to_str().unwrap();
    let insecure = format!("https://{}/file.txt", server.address);
    let written = "%{http_version} %{response_code} %{ssl_verify_result}";
    let of_any = output("curl", &["-sk", "-w", written, &insecure]);
    assert!(of_any.starts_with("a file\n2 200 "), "{of_any}");
    for host in ["localhost", "127.0.0.1"] {
        let url = format!("https://{host}:{port}/file.txt");
        let trusting = ["-s", "--cacert", path, "--noproxy", "*", "-w", written];
        let found = output("curl", &[&trusting[..], &[&url]].concat());
        assert_eq!(found, "a file\n2 200 0", "{host}");
    }
    let print = ["x509", "-noout", "-fingerprint", "-sha256", "-in", path];
    let print = output("openssl", &print);
    let print = print.trim().rsplit_once('=').unwrap().1;
    let said = server.stop();
    let marked = format!("certificate {path}: self-signed, for development only; SHA-256 {print}");
    assert!(said.contains(&marked), "{said}");
    assert!(said.contains(" on https://127.0.0.1:"), "{said}");

    let before = fs::read(&file).unwrap();
    let said = serve(&site, &data, &[]).stop();
    assert!(said.contains(print), "{said}");
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[test]
fn development_certificate_is_refused_if_others_can_read_its_key() {
    let site = Site::new();
    let data = site.path("data");
    fs::create_dir_all(data.join("headway")).unwrap();
    fs::write(data.join("headway/localhost.pem"), "").unwrap();
    let done = program()
        .env("XDG_DATA_HOME", &data)
        .args(["serve", "--tls", "--listen", "127.0.0.1:0"])
        .arg(site.path("root"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(
        said.contains("headway/localhost.pem: it has a private key"),
        "{said}"
    );
    assert!(said.contains("run chmod 600"), "{said}");
}

#[test]
fn check_makes_no_certificate() {
    let site = Site::new();
    let done = program()
        .env("XDG_DATA_HOME", site.path("data"))
        .args(["serve", "--tls", "--check"])
        .arg(site.path("root"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(
        done.status.success() && said.contains("tls = true"),
        "{said}"
    );
    assert!(said.contains("tls-listen = [\"127.0.0.1:8443\"]"), "{said}");
    assert!(!site.path("data").exists());
}
