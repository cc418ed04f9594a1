//! Clients of other makers: each speaks both versions with both kinds of key, verifies the certificate, and
//! resumes its session.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use headway_test_support::{find_program, skip};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, RsaKeySize};

use super::tools::*;
use crate::site::*;

const REQUEST: &str = "GET /file.txt HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
const BODY: &str = "a file\n";

/// What a client needs to know.
struct Visit<'s> {
    secured: &'s Secured,
    /// TLS 1.3, and else TLS 1.2.
    is_13: bool,
}

impl Visit<'_> {
    fn certificate(&self) -> PathBuf {
        self.secured.site.path("tls.crt")
    }

    fn port(&self) -> &str {
        self.secured.address().rsplit(':').next().unwrap()
    }

    fn url(&self) -> String {
        format!("https://{NAME}:{}/file.txt", self.port())
    }

    fn either<'t>(&self, of_12: &'t str, of_13: &'t str) -> &'t str {
        match self.is_13 {
            true => of_13,
            false => of_12,
        }
    }
}

/// Runs a client with this input; it must succeed. Returns its output.
fn output(command: &mut Command, input: &str) -> String {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    // A client that has failed already reads nothing; its status tells.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let (out, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{command:?}: {out}\n{errors}");
    out.into_owned()
}

/// Has a client visit servers with both kinds of key in both versions. It gets the file this number of times, by these
/// numbers of full and of resumed handshakes in TLS 1.2 and 1.3.
fn visit_all(bodies: usize, handshakes: [[u64; 2]; 2], client: impl Fn(&Visit<'_>) -> String) {
    let rsa = || KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
    let ecdsa = || KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    for key in [ecdsa(), rsa()] {
        let certificate = CertificateParams::new([NAME.to_owned()]).unwrap();
        let certificate = certificate.self_signed(&key).unwrap();
        let certified = Certified::of(&certificate, &key);
        let secured = Secured::start_as(certified, Site::new(), 1, "");
        let mut all = [0, 0];
        for (is_13, handshakes) in [false, true].into_iter().zip(handshakes) {
            let secured = &secured;
            let text = client(&Visit { secured, is_13 });
            assert_eq!(text.matches(BODY).count(), bodies, "1.3: {is_13}: {text}");
            all = [all[0] + handshakes[0], all[1] + handshakes[1]];
            secured.server.wait_for("all handshakes counted", |server| {
                let names = ["tls_handshakes_full", "tls_handshakes_resumed"];
                names.map(|name| counter(server, name)) == all
            });
        }
        assert_eq!(secured.counter("tls_handshakes_failed"), 0);
        is_well_over_tls(&secured);
    }
}

/// The program, unless the test is skipped.
fn client(test: &str, name: &str) -> Option<PathBuf> {
    let program = find_program(name);
    if program.is_none() {
        skip(test, &format!("{name} is not installed"));
    }
    program
}

/// Needs: the program curl: scripts/setup
#[test]
fn curl_is_served_and_resumes_sessions() {
    let Some(curl) = client("curl_is_served_and_resumes_sessions", "curl") else {
        return;
    };
    // It wants no tickets of TLS 1.2.
    visit_all(2, [[2, 0], [1, 1]], |visit| {
        let versions = visit.either("--tls-max=1.2", "--tlsv1.3").split('=');
        let mut command = Command::new(&curl);
        command.args(["-sS", "--fail", "--http1.1", "--noproxy", "*"]);
        command.args(["-H", "Connection: close"]).args(versions);
        command.arg("--cacert").arg(visit.certificate());
        output(command.args([visit.url(), visit.url()]), "")
    });
}

/// Needs: the program openssl: scripts/setup
#[test]
fn openssl_is_served_and_resumes_sessions() {
    let Some(openssl) = client("openssl_is_served_and_resumes_sessions", "openssl") else {
        return;
    };
    visit_all(2, [[1, 1], [1, 1]], |visit| {
        let session = visit.secured.site.path("session");
        let run = |direction: &str| {
            let mut command = Command::new(&openssl);
            command.args([
                "s_client",
                "-quiet",
                "-verify_return_error",
                "-servername",
                NAME,
            ]);
            command.args(["-verify_hostname", NAME]).arg("-CAfile");
            command.arg(visit.certificate());
            command.args([visit.either("-tls1_2", "-tls1_3"), direction]);
            command.arg(&session).arg("-connect");
            output(command.arg(visit.secured.address()), REQUEST)
        };
        [run("-sess_out"), run("-sess_in")].concat()
    });
}

/// Needs: the program gnutls-cli: scripts/setup
#[test]
fn gnutls_is_served_and_resumes_sessions() {
    let Some(gnutls) = client("gnutls_is_served_and_resumes_sessions", "gnutls-cli") else {
        return;
    };
    // The first connection is without a request.
    visit_all(1, [[1, 1], [1, 1]], |visit| {
        let version = visit.either("TLS1.2", "TLS1.3");
        let mut command = Command::new(&gnutls);
        command.args(["--resume", "--waitresumption", "--priority"]);
        command.arg(format!("NORMAL:-VERS-ALL:+VERS-{version}"));
        command.arg("--x509cafile").arg(visit.certificate());
        output(command.args(["--port", visit.port(), NAME]), REQUEST)
    });
}

/// The client of HTTP/2 resumes no sessions.
///
/// Needs: the program nghttp: scripts/setup
#[test]
fn nghttp_is_served() {
    let Some(nghttp) = client("nghttp_is_served", "nghttp") else {
        return;
    };
    visit_all(1, [[1, 0], [1, 0]], |visit| {
        // It has no option for the version.
        let settings = visit.secured.site.path("openssl.cnf");
        let left_out = visit.either("TLSv1.3", "SSLv3");
        let text = format!(
            "openssl_conf = all\n[all]\nssl_conf = ssl\n[ssl]\nsystem_default = client\n[client]\n\
             Protocol = -{left_out}\n"
        );
        fs::write(&settings, text).unwrap();
        output(
            Command::new(&nghttp)
                .env("OPENSSL_CONF", settings)
                .arg(visit.url()),
            "",
        )
    });
}

/// Needs: the program python3: scripts/setup
#[test]
fn python_is_served_and_resumes_sessions() {
    let Some(python) = client("python_is_served_and_resumes_sessions", "python3") else {
        return;
    };
    let script = include_str!("clients/client.py");
    visit_all(2, [[1, 1], [1, 1]], |visit| {
        let version = visit.either("TLSv1_2", "TLSv1_3");
        let mut command = Command::new(&python);
        command.args(["-c", script, version, visit.port()]);
        output(command.arg(visit.certificate()), "")
    });
}

/// Needs: the program go
#[test]
fn go_is_served_and_resumes_sessions() {
    let of_go = PathBuf::from("/usr/local/go/bin/go");
    let go = find_program("go").or(of_go.exists().then_some(of_go));
    let Some(go) = go else {
        return skip("go_is_served_and_resumes_sessions", "go is not installed");
    };
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (
        directory.path().join("client.go"),
        directory.path().join("client"),
    );
    fs::write(&source, include_str!("clients/client.go")).unwrap();
    let mut build = Command::new(go);
    build.env("GO111MODULE", "off").env("GOTOOLCHAIN", "local");
    output(build.args(["build", "-o"]).args([&program, &source]), "");
    visit_all(2, [[1, 1], [1, 1]], |visit| {
        let mut command = Command::new(&program);
        command.args([visit.either("1.2", "1.3"), visit.port()]);
        output(command.arg(visit.certificate()), "")
    });
}
