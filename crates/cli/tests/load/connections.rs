//! Connections and requests as a user shapes them: HTTP/1.0, forms, Unix sockets, the PROXY
//! protocol.

use super::https::Https;
use super::responding::{GOOD, Responding};
use super::{finished, load, measured, read_json, serving, skip};
use std::process::Command;

#[test]
fn connections_begin_with_a_proxy_header_in_the_clear_in_tls_and_in_http2() {
    let https = Https::start_with(&["--trusted-proxies", "127.0.0.0/8", "--proxy-protocol"]);
    let certificate = https.path("cert.pem");
    let clear = format!("http://{}/", https.server.address);
    let few = ["-n", "20", "-c", "2", "--requests-per-connection", "5"];
    let trusted = [https.url.as_str(), "--cacert", &certificate];
    for version in ["v1", "v2"] {
        for http in [&[][..], &["--http2"]] {
            let more = [&few[..], &["--proxy-protocol", version], http].concat();
            for server in [&[clear.as_str()][..], &trusted] {
                let found = measured(&[server, &more].concat());
                assert_eq!(found["summary"]["requests"], 20, "{found:#}");
                assert_eq!(found["summary"]["errors"], 0, "{found:#}");
            }
        }
    }
    // The server does expect it.
    let (code, out, _) = load(&[&[clear.as_str()], &few[..]].concat());
    assert_eq!(code, 1, "{out}");
    https.server.stop();
}

#[test]
fn http_1_0_keeps_its_connections() {
    let server = serving::Server::start_hello(serving::headway(), &[]);
    let url = format!("http://{}/", server.address);
    let found = measured(&[&url, "--http1.0", "-n", "20", "-c", "2"]);
    assert_eq!(found["summary"]["errors"], 0, "{found:#}");
    assert_eq!(found["client"]["connections_opened"], 2);
    assert_eq!(found["load"]["protocol"], "http/1.0");
    server.stop();
}

#[test]
fn unix_socket_replaces_the_host_of_the_url_in_the_connection_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let _server = Responding::start_at(&path, GOOD);
    let socket = ["--unix-socket", path.to_str().unwrap()];
    let found = measured(&[&["http://app.invalid/a", "-n", "20"], &socket[..]].concat());
    assert_eq!(found["analysis"]["counts"]["complete"], 20);
    assert_eq!(found["targets"][0], "http://app.invalid/a");
}

/// Needs: root, or user name spaces, and the program ip: takes a network namespace of its own
#[test]
fn link_local_address_is_reached_in_its_zone_and_in_no_other() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("index.html"), "hello").unwrap();
    // The server may need a moment. The last answer counts.
    let script = "ip link set lo up && ip -6 address add fe80::7/64 dev lo nodad || exit 77
        \"$0\" serve \"$1\" --listen '[::]:8080' --user root >/dev/null 2>&1 &
        trap \"kill $!\" EXIT
        for attempt in $(seq 200); do
            \"$0\" load 'http://[fe80::7%25lo]:8080/' -n 7 -c 1 --json 2>/dev/null && break
            sleep 0.1
        done
        \"$0\" load 'http://[fe80::7%25none]:8080/' -n 1";
    let mut command = Command::new("unshare");
    command.args(["--net", "--map-root-user", "sh", "-c", script]);
    command.arg(env!("CARGO_BIN_EXE_headway")).arg(root.path());
    let (code, out, err) = finished(&mut command);
    if code == 77 || err.contains("unshare") {
        return skip(
            "link_local_address_is_reached_in_its_zone_and_in_no_other",
            "a network namespace needs root, or user name spaces, and the program ip",
        );
    }
    assert_eq!(code, 1, "{err}");
    assert!(
        err.starts_with("headway: looking up fe80::7%none: "),
        "{err}"
    );
    let found: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(found["analysis"]["counts"]["complete"], 7, "{found:#}");
    assert_eq!(found["targets"][0], "http://[fe80::7%25lo]:8080/");
}

#[test]
fn cookies_are_headers_whose_values_are_not_kept_in_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let server = Responding::start(GOOD);
    let cookies = [
        "--cookie",
        "id=secret",
        "--cookie=a=b",
        "-o",
        run.to_str().unwrap(),
    ];
    let found = measured(&[&[server.url.as_str(), "-n", "4", "-c", "1"], &cookies[..]].concat());
    assert_eq!(found["load"]["headers"][0], "Cookie: (hidden)");
    let kept = std::fs::read_to_string(run.join("run.json")).unwrap();
    assert!(!kept.contains("secret") && !kept.contains("a=b"), "{kept}");
    let twice = [server.url.as_str(), "--cookie", "a=b", "-H", "Cookie: c=d"];
    assert_eq!(load(&twice).0, 2);
}

#[test]
fn form_is_a_body_with_its_type() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let server = serving::Server::start_hello(serving::headway(), &[]);
    let url = format!("http://{}/", server.address);
    let form = [
        "--form",
        "name=value",
        "-n",
        "4",
        "-o",
        run.to_str().unwrap(),
    ];
    // Files take no form.
    let (code, out, _) = load(&[&[url.as_str()], &form[..]].concat());
    assert_eq!(code, 1, "{out}");
    assert!(out.contains("4 × 405"), "{out}");
    let found = read_json(&run.join("run.json"));
    assert_eq!(found["load"]["method"], "POST");
    let kind = "Content-Type: multipart/form-data; boundary=headway-form";
    assert_eq!(found["load"]["headers"][0], kind);
    let body = "--headway-form\r\nContent-Disposition: form-data; name=\"name\"\r\n\r\nvalue\r\n\
                --headway-form--\r\n";
    assert_eq!(found["load"]["body_bytes"], body.len());
    server.stop();
}
