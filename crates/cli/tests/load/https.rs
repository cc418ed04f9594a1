//! HTTPS against our own server, requests with a body and a token, and runs that fail a condition.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use headway_test_support::wait_until;

use super::responding::{GOOD, Responding};
use super::{load, measured, read_json, serving};
use tempfile::TempDir;

/// A server with a certificate for localhost, which is its own authority.
pub struct Https {
    pub server: serving::Server,
    pub url: String,
    folder: TempDir,
}

impl Https {
    pub fn start() -> Https {
        Https::start_with(&[])
    }

    /// With more options of `headway serve`.
    pub fn start_with(more: &[&str]) -> Https {
        let folder = tempfile::tempdir().unwrap();
        let [root, key, certificate] =
            ["site", "key.pem", "cert.pem"].map(|name| folder.path().join(name));
        std::fs::create_dir(&root).unwrap();
        std::fs::write(root.join("index.html"), "hello").unwrap();
        let [key, certificate] = [&key, &certificate].map(|path| path.to_str().unwrap());
        let made = Command::new("openssl")
            .args([
                "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
            ])
            .args([
                "-subj",
                "/CN=a test of headway load",
                "-keyout",
                key,
                "-out",
                certificate,
            ])
            .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
            .output()
            .expect("openssl");
        assert!(made.status.success(), "{made:?}");
        let options = [
            "--tls-listen",
            "127.0.0.1:0",
            "--tls-certificate",
            certificate,
        ];
        let options = [options.as_slice(), &["--tls-key", key], more].concat();
        let server = serving::Server::start(serving::headway(), &root, &options);
        let url = format!("https://{}/", server.listeners[1]);
        Https {
            server,
            url,
            folder,
        }
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }
}

/// OpenSSL's own server of TLS 1.2, which renegotiates.
struct Renegotiating {
    child: Child,
    url: String,
    /// How often it did.
    times: Arc<AtomicUsize>,
}

impl Renegotiating {
    /// Answers requests, and begins to renegotiate before each answer to `/reneg`.
    fn when_asked(https: &Https) -> Renegotiating {
        Renegotiating::start(https, &["-www"], "SSL_renegotiate -> 1", "")
    }

    /// Begins to renegotiate after each request, and ends the connection when the client does not.
    fn insisting(https: &Https) -> Renegotiating {
        Renegotiating::start(https, &[], "GET /", "r\n")
    }

    /// For each of its lines with this beginning it counts, and gets a command.
    fn start(
        https: &Https,
        options: &[&str],
        beginning: &'static str,
        command: &'static str,
    ) -> Renegotiating {
        // Line by line, so that it says in time what it does.
        let mut child = Command::new("stdbuf")
            .args(["-oL", "openssl"])
            .args(["s_server", "-accept", "127.0.0.1:0", "-tls1_2"])
            .args(options)
            .args([
                "-cert",
                &https.path("cert.pem"),
                "-key",
                &https.path("key.pem"),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("openssl");
        let mut commands = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        let address = lines.find_map(|line| line.strip_prefix("ACCEPT ").map(str::to_owned));
        let url = format!("https://{}", address.expect("an address"));
        let times = Arc::default();
        let seen: Arc<AtomicUsize> = Arc::clone(&times);
        std::thread::spawn(move || {
            for _ in lines.filter(|line| line.starts_with(beginning)) {
                seen.fetch_add(1, Ordering::SeqCst);
                // It may have ended.
                let _ = commands.write_all(command.as_bytes());
            }
        });
        Renegotiating { child, url, times }
    }
}

impl Drop for Renegotiating {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn renegotiation_is_refused_and_requests_are_answered() {
    let https = Https::start();
    let server = Renegotiating::when_asked(&https);
    let certificate = https.path("cert.pem");
    let url = format!("{}/reneg", server.url);
    let few = ["-n", "4", "-c", "1", "--timeout", "5"];
    let found = measured(&[&[url.as_str(), "--cacert", &certificate], &few[..]].concat());
    assert_eq!(found["summary"]["requests"], 4, "{found:#}");
    assert_eq!(found["summary"]["errors"], 0, "{found:#}");
    wait_until("it began to renegotiate for each request", || {
        server.times.load(Ordering::SeqCst) == 4
    });
}

#[test]
fn requests_fail_by_tls_when_the_server_insists_on_renegotiation() {
    let https = Https::start();
    let server = Renegotiating::insisting(&https);
    let certificate = https.path("cert.pem");
    let few = ["-n", "3", "-c", "1", "--timeout", "20"];
    let (code, out, err) =
        load(&[&[server.url.as_str(), "--cacert", &certificate], &few[..]].concat());
    assert_eq!(code, 1, "{out}{err}");
    assert!(out.contains("100 %: 3 tls"), "{out}{err}");
    assert!(err.contains("3 tls (TLS with "), "{err}");
    assert!(
        err.contains("wants to renegotiate, which is not supported"),
        "{err}"
    );
    assert_eq!(server.times.load(Ordering::SeqCst), 3);
}

#[test]
fn https_is_measured_when_the_certificate_is_trusted() {
    let https = Https::start();
    let (certificate, run) = (https.path("cert.pem"), https.path("run"));
    let few = ["-n", "40", "-c", "2", "--requests-per-connection", "5"];
    let trusted = ["--cacert", &certificate, "-o", &run];
    let found = measured(&[&[https.url.as_str()], few.as_slice(), &trusted].concat());
    assert_eq!(found["summary"]["errors"], 0, "{found:#}");
    let tls = &found["client"]["tls"];
    assert!(
        tls["protocol"].as_str().unwrap().starts_with("TLSv1.3"),
        "{tls}"
    );
    // The first of each client is full. Tickets may come too late for the next one.
    assert!(tls["handshakes"].as_u64() >= Some(8), "{tls}");
    assert!(tls["resumed"].as_u64() >= Some(1), "{tls}");
    assert_eq!(
        read_json(Path::new(&run).join("run.json").as_path())["complete"],
        true
    );

    let off = ["--insecure", "--tls-resumption", "off"];
    let found = measured(&[&[https.url.as_str()], few.as_slice(), &off].concat());
    assert_eq!(found["client"]["tls"]["resumed"], 0);

    let (code, out, err) = load(&[&[https.url.as_str(), "--insecure"], few.as_slice()].concat());
    assert_eq!(code, 0, "{err}");
    assert!(
        out.contains("\n  TLS handshake ") && out.contains(" resumed\n"),
        "{out}"
    );
    https.server.stop();
}

#[test]
fn error_says_what_to_do_when_tls_fails() {
    let https = Https::start();
    let certificate = https.path("cert.pem");
    let plain = format!("https://{}/", https.server.address);
    let missing = https.path("missing.pem");
    let url = https.url.as_str();
    let other = https.path("other.pem");
    let key = ["genpkey", "-algorithm", "ed25519", "-out", &other];
    assert!(
        Command::new("openssl")
            .args(key)
            .status()
            .unwrap()
            .success()
    );
    for (arguments, code, parts) in [
        (
            &[url][..],
            1,
            &["self-signed", "--cacert FILE", "--insecure"][..],
        ),
        (
            &[url, "--cacert", &certificate, "--sni", "other.example"],
            1,
            &["not for other.example", "localhost"],
        ),
        (&[&plain, "--insecure"], 1, &["is not TLS; a server"]),
        (
            &[url, "--cert", &certificate, "--key", &other],
            1,
            &["other.pem: it does not belong to --cert"],
        ),
        (
            &[url, "--cacert", &missing],
            1,
            &["--cacert", "missing.pem", "No such file"],
        ),
        (
            &[url, "--cacert", &https.path("key.pem")],
            1,
            &["no certificate in PEM"],
        ),
        (
            &[url, "--cert", &certificate, "--key", &certificate],
            1,
            &["--key", "no private key"],
        ),
        (
            &[url, "--sni", "a b"],
            2,
            &["`a b` cannot be the name of a server"],
        ),
        (&[url, "--cert", &certificate], 2, &["--key"]),
    ] {
        let (found, out, err) = load(arguments);
        assert_eq!(found, code, "{arguments:?}: {out}{err}");
        for part in parts {
            assert!(err.contains(part), "{arguments:?}: {err}");
        }
    }
}

#[test]
fn secrets_are_sent_and_not_kept() {
    let server = Responding::start(GOOD);
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let output = run.to_str().unwrap();
    let secret = [
        "--bearer",
        "hunter2",
        "-H",
        "Cookie: hunter3",
        "--data",
        "a=b",
    ];
    let arguments = [
        &[server.url.as_str(), "-n", "3", "-o", output],
        secret.as_slice(),
    ]
    .concat();
    let (code, _, err) = load(&arguments);
    assert_eq!(code, 0, "{err}");
    let kept = std::fs::read_to_string(run.join("run.json")).unwrap();
    assert!(!kept.contains("hunter"), "{kept}");
    let load = &read_json(&run.join("run.json"))["load"];
    assert_eq!(load["method"], "POST");
    assert_eq!(load["body_bytes"], 3);
    let headers = serde_json::json!(["Cookie: (hidden)", "Authorization: (hidden)"]);
    assert_eq!(load["headers"], headers);
}

#[test]
fn exit_code_is_3_when_a_condition_is_true() {
    let server = Responding::start(GOOD);
    let url = server.url.as_str();
    let rate = ["--rate", "100", "--warmup", "0", "-d", "300ms"];
    let (code, out, err) = load(&[
        url,
        "-n",
        "20",
        "--fail-if",
        "p99 > 1h",
        "--fail-if",
        "errors > 0",
        "--fail-if",
        "p50>0us",
    ]);
    assert_eq!(code, 3, "{err}");
    assert!(
        out.contains("good responses/s"),
        "the figures are printed: {out}"
    );
    assert!(
        err.contains("p50 is ") && err.ends_with(": --fail-if 'p50>0us'\n"),
        "{err}"
    );
    assert!(!err.contains("1h"), "{err}");

    let offered = [
        "--fail-if",
        "rate < 0.2 * offered",
        "--fail-if",
        "errors > 0.1%",
    ];
    let (code, _, err) = load(&[&[url], rate.as_slice(), &offered].concat());
    assert_eq!(code, 0, "{err}");
    let more = ["--fail-if", "rate < 9 * offered", "--json"];
    let (code, out, err) = load(&[&[url], rate.as_slice(), &more].concat());
    assert_eq!(code, 3, "{err}");
    let found: serde_json::Value = serde_json::from_str(&out).unwrap();
    let why = found["failed"][0].as_str().unwrap();
    assert!(
        why.starts_with("rate is ") && err.contains(why),
        "{why}: {err}"
    );
}

#[test]
fn condition_is_a_usage_error_when_it_is_malformed_or_has_no_meaning() {
    let url = "http://127.0.0.1:1/";
    for (condition, part) in [
        ("p99 > 50", "`50` is not a time with a unit"),
        ("rate < 0.9 * offered", "add --rate or --schedule"),
    ] {
        let (code, _, err) = load(&[url, "--fail-if", condition]);
        assert_eq!(code, 2, "{err}");
        assert!(err.contains(part), "{err}");
    }
    for (arguments, part) in [
        (
            &["--bearer", "x", "-H", "authorization: y"][..],
            "Authorization is given twice",
        ),
        (&["--host", "a", "-H", "host: b"], "host is given twice"),
        (&["--data", "@file"], "--data-file"),
        (&["--user", "hunter"], "a colon"),
        (
            &["--insecure"],
            "--insecure has no effect: no URL begins with https://",
        ),
        (&["--sni", "a"], "--sni has no effect"),
        (
            &["--tls-resumption", "off"],
            "--tls-resumption has no effect",
        ),
    ] {
        let (code, _, err) = load(&[&[url], arguments].concat());
        assert_eq!(code, 2, "{err}");
        assert!(err.contains(part), "{err}");
    }
}
