//! HTTP/2 against our own server, through TLS and in the clear, and beside h2load's count.

use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use headway_test_support::{find_program, skip, wait_until};

use super::https::Https;
use super::responding::{GOOD, Responding};
use super::{load, measured};

#[test]
fn http2_is_measured_through_tls_and_in_the_clear() {
    let https = Https::start();
    let certificate = https.path("cert.pem");
    let clear = format!("http://{}/", https.server.address);
    for streams in ["1", "8"] {
        let few = ["--http2", "--streams", streams, "-n", "200", "-c", "2"];
        let trusted = [https.url.as_str(), "--cacert", &certificate];
        let through_tls = measured(&[trusted.as_slice(), &few].concat());
        let in_the_clear = measured(&[&[clear.as_str()], few.as_slice()].concat());
        for found in [through_tls, in_the_clear] {
            assert_eq!(found["summary"]["errors"], 0, "{found:#}");
            assert_eq!(found["summary"]["requests"], 200);
            assert_eq!(found["client"]["connections_opened"], 2);
            assert_eq!(found["load"]["protocol"], "h2");
            assert_eq!(found["load"]["streams"].to_string(), streams);
        }
    }
    let arguments = [clear.as_str(), "--http2", "--streams", "8", "-n", "50"];
    let (code, out, err) = load(&arguments);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains(", HTTP/2 with 8 streams each\n"), "{out}");
    https.server.stop();
}

#[test]
fn requests_and_bytes_are_those_of_h2load() {
    let test = "requests_and_bytes_are_those_of_h2load";
    let Some(h2load) = find_program("h2load") else {
        return skip(test, "no h2load: scripts/setup installs it");
    };
    let https = Https::start();
    std::fs::write(https.path("site/large"), vec![b'x'; 100_000]).unwrap();
    let url = format!("{}large", https.url);
    let few = ["-c", "2", "-n", "100"];
    let found = Command::new(h2load)
        .args(few)
        .args(["-m", "8"])
        .arg(&url)
        .output();
    let text = String::from_utf8(found.expect("h2load").stdout).unwrap();
    assert!(text.contains("100 succeeded, 0 failed"), "{text}");
    let bytes = text.split("traffic: ").nth(1).expect("its traffic");
    // "…MB (10003000) total, …B (…) headers (…), 9.54MB (10000000) data"
    let data = bytes
        .split(" data")
        .next()
        .and_then(|rest| rest.rsplit('(').next());
    let data: u64 = data.unwrap().trim_end_matches(')').parse().unwrap();

    let ours = ["--http2", "--streams", "8", "--insecure", &url];
    let found = measured(&[few.as_slice(), &ours].concat());
    assert_eq!(found["analysis"]["counts"]["complete"], 100, "{found:#}");
    let rate = found["summary"]["throughput_bytes_per_s"].as_f64().unwrap();
    let length = found["summary"]["duration_s"].as_f64().unwrap();
    assert_eq!((rate * length).round() as u64, data);
    https.server.stop();
}

#[test]
fn error_says_what_to_do_when_there_is_no_http2() {
    let server = Responding::start(GOOD);
    let url = server.url.as_str();
    let (code, _, err) = load(&[url, "--http2", "-n", "1"]);
    assert_eq!(code, 1, "{err}");
    assert!(
        err.contains("not HTTP/2") && err.contains("without --http2"),
        "{err}"
    );
    for (arguments, part) in [
        (&["--streams", "8"][..], "--http2"),
        (&["--http2", "--streams", "0"], "1 or more"),
        (&["--http2", "--bandwidth", "1Mbit"], "needs HTTP/1.1"),
        (&["--http2", "--first-pause", "1s"], "needs HTTP/1.1"),
        (&["--http2", "-H", "Upgrade: x"], "no header Upgrade"),
        (&["--http2", "http://127.0.0.1:2/"], "2 servers"),
    ] {
        let (code, _, err) = load(&[&[url, "-n", "1"], arguments].concat());
        assert_eq!(code, 2, "{arguments:?}: {err}");
        assert!(err.contains(part), "{arguments:?}: {err}");
    }
}

#[test]
fn run_does_not_begin_when_the_server_chooses_http1() {
    let folder = tempfile::tempdir().unwrap();
    let https = Https::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let mut server = Command::new("openssl")
        .args(["s_server", "-www", "-alpn", "http/1.1", "-cert"])
        .arg(https.path("cert.pem"))
        .args(["-key", &https.path("key.pem")])
        .args(["-accept", &address.to_string()])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("openssl");
    wait_until("the server", || TcpStream::connect(address).is_ok());
    let url = format!("https://{address}/");
    let (code, out, err) = load(&[&url, "--insecure", "--http2", "-n", "1"]);
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(
        err.contains("speaks http/1.1") && err.contains("leave out --http2"),
        "{err}"
    );
    https.server.stop();
}
