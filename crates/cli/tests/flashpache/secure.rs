//! TLS and HTTP/2 (mod_ssl, mod_http2): how the tests speak them, and that files arrive whole
//! whatever becomes of the service.
//!
//! Python's and curl's own implementations are the clients; neither looks at the certificate, which
//! says nothing.

use super::conversations;
use super::faults::{FILES, NumberedFiles, built};
use super::support::{Apache, Backend, Over, folder, make_cold, skip, wait_until};
use rustix::process::Signal;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Requests come in and responses go out with their lengths before them. A connection for each; the
/// end of it may be abrupt, where Apache gives up on what it was sent.
const CLIENT: &str = r#"
import socket, ssl, struct, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
asked, told = sys.stdin.buffer, sys.stdout.buffer
while head := asked.read(4):
    request = asked.read(struct.unpack("<I", head)[0])
    response = b""
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 30) as plain, context.wrap_socket(plain) as secure:
        try:
            secure.sendall(request)
            while part := secure.recv(65536):
                response += part
        except (ssl.SSLError, ConnectionError):
            pass
    told.write(struct.pack("<I", len(response)) + response)
    told.flush()
"#;

/// A key and a certificate of its own, made once.
fn certificate() -> Result<&'static Path, String> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("flashpache-tls");
        fs::create_dir_all(&directory).unwrap();
        let output = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-nodes",
                "-days",
                "3650",
                "-subj",
                "/CN=site.test",
            ])
            .args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .arg("-keyout")
            .arg(directory.join("key.pem"))
            .arg("-out")
            .arg(directory.join("certificate.pem"))
            .output()
            .map_err(|error| format!("openssl: {error}"))?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "openssl: {stderr}");
        Ok(directory)
    });
    made.as_deref().map_err(Clone::clone)
}

/// Everything that these conversations need, or what is missing.
pub fn available() -> Result<(), String> {
    certificate()?;
    for module in ["ssl", "http2"] {
        let file = format!("/usr/lib/apache2/modules/mod_{module}.so");
        if !Path::new(&file).is_file() {
            return Err(format!("no mod_{module}: scripts/setup installs Apache"));
        }
    }
    let python = Command::new("python3").args(["-c", "import ssl"]).output();
    if !python.is_ok_and(|output| output.status.success()) {
        return Err("no python3 with ssl".into());
    }
    let curl = Command::new("curl").arg("--version").output();
    match curl.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("HTTP2")) {
        true => Ok(()),
        false => Err("no curl with HTTP/2".into()),
    }
}

pub const MODULE: &str = "LoadModule ssl_module /usr/lib/apache2/modules/mod_ssl.so\n";

/// What makes a host speak TLS.
pub fn host() -> String {
    let directory = certificate().unwrap().display();
    format!(
        "SSLEngine On\nSSLCertificateFile {directory}/certificate.pem\nSSLCertificateKeyFile {directory}/key.pem\n"
    )
}

/// Sends bytes over TLS, each on a connection of their own, and gives what came back.
pub fn exchange(address: &str, requests: impl Iterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let port = address.rsplit(':').next().unwrap();
    let mut client = Command::new("python3")
        .args(["-c", CLIENT, port])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut sent_bytes = Vec::new();
    for request in requests {
        sent_bytes.extend((request.len() as u32).to_le_bytes());
        sent_bytes.extend(request);
    }
    let mut stdin = client.stdin.take().unwrap();
    let sending = std::thread::spawn(move || stdin.write_all(&sent_bytes));
    let output = client.wait_with_output().unwrap();
    sending.join().unwrap().unwrap();
    assert!(output.status.success(), "the client: {}", output.status);
    let mut responses = Vec::new();
    let mut rest = &output.stdout[..];
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let (response, after) = after.split_at(u32::from_le_bytes(*length) as usize);
        responses.push(response.to_vec());
        rest = after;
    }
    responses
}

/// Responses to those lines of `cases.txt` that HTTP/2 has a form for: not raw bytes, not targets
/// that are no path. Not those with a body either: Apache may answer before it has read that, and
/// whether curl then takes the answer is chance. All on one connection, as long as Apache keeps it.
pub fn fetch_http2(address: &str, lines: &[String]) -> Vec<(String, Vec<u8>)> {
    let out = folder();
    let (mut configuration, mut fetched) = (String::new(), Vec::new());
    for line in lines {
        let file = out.path().join(fetched.len().to_string());
        if let Some(block) = block(address, line, &file) {
            if !fetched.is_empty() {
                configuration += "next\n";
            }
            configuration += &block;
            fetched.push((line.clone(), file));
        }
    }
    let file = out.path().join("curl.conf");
    fs::write(&file, configuration).unwrap();
    // Its exit code is that of the last one.
    let _ = Command::new("curl")
        .args(["--disable", "--config"])
        .arg(&file)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    fetched
        .into_iter()
        // A stream that was reset has no response.
        .map(|(line, file)| (line, fs::read(file).unwrap_or_default()))
        .collect()
}

/// What curl's configuration says of one line.
fn block(address: &str, line: &str, out: &Path) -> Option<String> {
    let mut parts = line.split(" | ");
    let (method, target) = parts.next()?.split_once(' ')?;
    let has_form = target.starts_with('/') && !target.contains(['#', ' ']);
    if method == "RAW" || !has_form || line.contains(" >> ") {
        return None;
    }
    let mut fields = vec!["Accept:", "User-Agent:"];
    let mut host = "Host: site.test";
    for field in parts {
        match field.split(':').next()? {
            "Content-Length" | "Connection" => {}
            "Host" => host = field,
            _ => fields.push(field),
        }
    }
    fields.push(host);
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    let mut block = format!(
        "url = \"https://{address}{}\"\noutput = \"{}\"\nhttp2\ninsecure\ngloboff\npath-as-is\ninclude\nsilent\n\
         noproxy = \"*\"\nmax-time = 30\n",
        quoted(target),
        out.display()
    );
    match method {
        "GET" => {}
        "HEAD" => block += "head\n",
        other => {
            let _ = writeln!(block, "request = \"{other}\"");
        }
    }
    for field in fields {
        let _ = writeln!(block, "header = \"{}\"", quoted(field));
    }
    Some(block)
}

/// Fetches all files by curl, over one connection after the other or over many at once, and looks
/// at each.
fn are_right(served: &NumberedFiles, apache: &Apache, protocol: &str, at_once: bool) {
    let out = folder();
    (0..FILES).for_each(|number| make_cold(&served.file(number)));
    let mut curl = Command::new("curl");
    curl.args([
        "--disable",
        "--silent",
        "--fail",
        "--insecure",
        "--noproxy",
        "*",
    ])
    .arg(protocol);
    if at_once {
        curl.args(["--parallel", "--parallel-immediate", "--parallel-max", "40"]);
    }
    let fetched = curl
        .arg(format!("https://{}/f[0-{}]", apache.address, FILES - 1))
        .arg("-o")
        .arg(out.path().join("#1"))
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(fetched.success(), "{protocol}: {fetched}");
    for number in 0..FILES {
        let got = fs::read(out.path().join(number.to_string())).unwrap();
        let expected = fs::read(served.file(number)).unwrap();
        assert!(got == expected, "{protocol}: {number}");
    }
}

fn request_count(backend: &Option<Backend>) -> u64 {
    backend
        .as_ref()
        .map_or(0, |backend| backend.counter("requests_total"))
}

/// Needs: the programs apache2 and apxs: scripts/setup, and openssl, curl and python3
#[test]
fn files_are_whole_over_tls_when_the_service_is_killed_stopped_or_full() {
    let name = "files_are_whole_over_tls_when_the_service_is_killed_stopped_or_full";
    let Some(module) = built(name) else { return };
    if let Err(why) = available() {
        return skip(name, &why);
    }
    let served = NumberedFiles::new();
    let mut backend = Some(served.backend());
    let more = format!(
        "{MODULE}Listen 127.0.0.1:@STATUS@\nLoadModule http2_module /usr/lib/apache2/modules/mod_http2.so\n\
         Protocols h2 http/1.1\nHeadwayEnable On\nHeadwayTimeout 300\n<VirtualHost 127.0.0.1:@PORT@>\n{}</VirtualHost>",
        host()
    );
    let apache = Apache::start("event", &served.configuration(&module, &more));
    let fetch = |at_once: bool| {
        for protocol in ["--http1.1", "--http2"] {
            are_right(&served, &apache, protocol, at_once);
        }
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = Over(&over);
        let fetching = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                fetch(false);
            }
        });
        for _ in 0..3 {
            wait_until("no request arrives", || {
                fetching.is_finished() || request_count(&backend) > 20
            });
            backend.take().unwrap().kill();
            backend = Some(served.backend());
        }
    });
    assert!(apache.counter("Answered") > 50);

    let backend = backend.unwrap();
    backend.signal(Signal::STOP);
    fetch(false);
    backend.signal(Signal::CONT);
    assert!(apache.counter("Timeouts") > 0);
    drop(backend);

    // Each thread of Apache that has to ask wants a connection of its own.
    let options = [
        "--max-connections",
        "1",
        "--helpers",
        "1",
        "--helper-queue-max",
        "1",
    ];
    let before = apache.counter("Fallbacks");
    let full = Backend::start_with(&options, &served.root(), &served.socket());
    wait_until("no client is rejected", || {
        fetch(true);
        full.counter(r#"connections_closed_total{reason="full"}"#)
            + full.counter(r#"answers_total{result="busy"}"#)
            > 0
    });
    assert!(apache.counter("Fallbacks") > before);
}

#[test]
fn request_is_skipped_over_http_2_when_it_cannot_be_expressed() {
    let has_form = |line: &str| block("127.0.0.1:1", line, Path::new("out")).is_some();
    assert!(has_form("GET /file.txt | Range: bytes=0-4"));
    assert!(has_form("POST /file.txt"));
    for line in [
        "RAW GET / HTTP/1.0\\r\\n",
        "OPTIONS *",
        "GET http://site.test/file.txt",
        "POST /file.txt | Content-Length: 3 >> abc",
    ] {
        assert!(!has_form(line), "{line}");
    }
    let raw = conversations::request("RAW GET /\\r\\n");
    assert_eq!(raw, b"GET /\r\n");
}
