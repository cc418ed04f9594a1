//! Servers that do not play along. The figures are printed, errors with their names; without one
//! good response it fails.

use super::responding::{GOOD, Manner, Responding, unused_address, vanishing};
use super::{headway, load, measured, serving};
use serde_json::Value;

/// Every request ends the same way, and the command fails with its name.
fn only(url: &str, outcome: &str, arguments: &[&str]) {
    let few = ["-n", "20", "-c", "2"];
    let (code, out, err) = load(&[&[url], few.as_slice(), arguments].concat());
    assert_eq!(code, 1, "{outcome}: {out}{err}");
    assert!(
        out.starts_with("invalid: none of 20 requests got a good response"),
        "{out}"
    );
    let message = format!("no request got a good response: 20 {outcome}");
    assert!(err.contains(&message), "{outcome}: {err}");
    assert!(out.contains(&format!("100 %: 20 {outcome}")), "{out}");
}

#[test]
fn error_says_connection_refused_when_no_server_listens() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let (code, _, err) = headway(&["load", &unused_address(), "-o", run.to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(
        err.contains("Connection refused") && err.contains("is the server running"),
        "{err}"
    );
    assert!(
        !run.exists(),
        "a directory was made for a run that did not take place"
    );
}

#[test]
fn error_names_the_socket_when_it_does_not_exist() {
    let (code, _, err) = load(&["unix:/nonexistent/socket"]);
    assert_eq!(code, 1);
    assert!(
        err.contains("unix:/nonexistent/socket") && err.contains("No such file"),
        "{err}"
    );
}

#[test]
fn requests_are_counted_as_refused_when_the_server_stops() {
    let arguments = ["--requests-per-connection", "1", "-n", "20", "-c", "2"];
    let (code, out, err) = load(&[&[vanishing().as_str()], arguments.as_slice()].concat());
    assert_eq!(code, 1, "{out}");
    // The first ones may find the listener still there, and are reset when it goes.
    assert!(out.starts_with("invalid: none of 20 requests"), "{out}");
    assert!(out.contains(" refused"), "{out}");
    assert!(err.contains("Connection refused"), "{err}");
}

#[test]
fn responses_are_malformed_when_the_server_sends_garbage() {
    let server = Responding::start(Manner::Responses("SSH-2.0-OpenSSH_9.2\r\n\r\n"));
    only(&server.url, "malformed", &[]);
}

#[test]
fn requests_are_closed_early_when_the_body_is_cut_off() {
    let cut = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort";
    let server = Responding::start(Manner::ResponsesOnce(cut));
    only(&server.url, "closed-early", &[]);
}

#[test]
fn requests_are_timed_out_when_the_server_never_answers() {
    let server = Responding::start(Manner::Silent);
    only(&server.url, "timed-out", &["--timeout", "200ms"]);
}

#[test]
fn verdict_names_the_option_when_requests_waited_for_a_connection() {
    let server = Responding::start(Manner::Silent);
    let arguments = ["--rate", "50", "-c", "1", "--timeout", "300ms"];
    let length = ["-d", "1s", "--warmup", "0"];
    let (_, out, _) = load(&[&[server.url.as_str()], &arguments[..], &length].concat());
    assert!(
        out.contains("requests waited for a free connection; raise --connections"),
        "{out}"
    );
}

#[test]
fn errors_keep_their_time_when_they_are_timed_out() {
    let server = Responding::start(Manner::Silent);
    let (_, out, _) = load(&[&server.url, "-n", "4", "--timeout", "200ms", "--json"]);
    let json: Value = serde_json::from_str(&out).unwrap();
    let least_us = json["analysis"]["response"]["min_us"].as_f64().unwrap();
    assert!(least_us >= 200_000.0, "a timeout took {least_us} us");
    let length_s = json["analysis"]["duration_s"].as_f64().unwrap();
    assert!(length_s >= 0.2, "four timeouts in {length_s} s");
}

#[test]
fn error_names_the_status_when_every_file_is_missing() {
    let missing = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
    let server = Responding::start(Manner::Responses(missing));
    let (code, out, err) = load(&[&server.url, "-n", "20", "-c", "2"]);
    assert_eq!(code, 1);
    assert!(
        out.contains("100 % of the responses were 404 Not Found"),
        "{out}"
    );
    assert!(out.contains("20 × 404"), "{out}");
    assert!(err.contains("20 status"), "{err}");
}

/// A set of files of 1 kB below a directory.
fn set(directory: &tempfile::TempDir, name: &str, count: &str) -> String {
    let path = directory.path().join(name).to_str().unwrap().to_owned();
    let arguments = [
        "fileset",
        "create",
        &path,
        "--file-size",
        "1kB",
        "--count",
        count,
    ];
    let (code, _, err) = headway(&arguments);
    assert_eq!(code, 0, "{err}");
    path
}

#[test]
fn verdict_names_the_file_set_when_the_server_has_another_one() {
    let directory = tempfile::tempdir().unwrap();
    let (small, large) = (
        set(&directory, "small", "8"),
        set(&directory, "large", "12"),
    );
    let server = serving::Server::start(serving::headway(), small.as_ref(), &[]);
    let url = format!("http://{}/", server.address);
    let arguments = [&url, "--fileset", &large, "-n", "400", "-c", "4"];
    let (code, out, _) = load(&arguments);
    assert_eq!(code, 0);
    assert!(
        out.contains("the file set does not match the server"),
        "{out}"
    );
    let (code, _, err) = load(&[arguments.as_slice(), &["--strict"]].concat());
    assert_eq!(code, 1);
    assert!(err.contains("--strict: the run is "), "{err}");
}

#[test]
fn verify_reports_content_when_one_byte_differs() {
    let directory = tempfile::tempdir().unwrap();
    let path = set(&directory, "set", "1");
    let server = serving::Server::start(serving::headway(), path.as_ref(), &["--revalidate", "0"]);
    let url = format!("http://{}/", server.address);
    let arguments = [&url, "--fileset", &path, "--verify", "-n", "20", "-c", "2"];
    assert_eq!(measured(&arguments)["analysis"]["counts"]["errors"], 0);
    let file = files(path.as_ref()).pop().expect("the file of the set");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[500] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let (code, _, err) = load(&arguments);
    assert_eq!(code, 1);
    assert!(err.contains("20 content"), "{err}");
}

#[test]
fn verify_reports_length_when_a_file_was_truncated() {
    let directory = tempfile::tempdir().unwrap();
    let path = set(&directory, "set", "1");
    let file = files(path.as_ref()).pop().expect("the file of the set");
    std::fs::write(&file, "short").unwrap();
    let server = serving::Server::start(serving::headway(), path.as_ref(), &[]);
    let url = format!("http://{}/", server.address);
    let (code, _, err) = load(&[&url, "--fileset", &path, "-n", "20", "-c", "2"]);
    assert_eq!(code, 1);
    assert!(err.contains("20 length"), "{err}");
}

/// The files of a set, without its manifest.
fn files(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if !path.file_name().unwrap().to_str().unwrap().starts_with('.') {
            found.push(path);
        }
    }
    found
}

#[test]
fn server_is_named_when_its_responses_name_it() {
    let server = Responding::start(GOOD);
    let json = measured(&[&server.url, "-n", "10", "-c", "1"]);
    assert_eq!(json["server"]["name"], "test");
    assert_eq!(json["server"]["version"], "1");
}
