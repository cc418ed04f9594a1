//! Figures per second while a load run goes on: files, and metrics that a server does or does not take.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headway_test_support::{skip, wait_until};
use serde_json::Value;

use super::responding::{GOOD, Responding, unused_address};
use super::{finished, headway, load};
use crate::serving;

/// `headway load` of this server, an open loop without a warm-up.
fn load_command(url: &str, rate: &str, seconds: &str) -> Command {
    let mut command = serving::headway();
    command.args(["load", url, "--rate", rate, "--warmup", "0", "-d", seconds]);
    command
}

/// How a receiver of metrics answers the requests after the first one.
#[derive(Clone, Copy)]
enum Later {
    Takes,
    Fails,
    Silent,
    /// OTLP only.
    Rejects,
}

/// A receiver of metrics: the bodies that it has got.
struct Receiver {
    url: String,
    bodies: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Receiver {
    fn start(later: Later) -> Receiver {
        let lines = "content-type: application/x-protobuf\r\ncontent-encoding: snappy";
        Receiver::start_at("/api/v1/write", lines, later)
    }

    /// A collector of OpenTelemetry.
    fn collector(later: Later) -> Receiver {
        let lines = "content-type: application/x-protobuf\r\nx-key: a b";
        Receiver::start_at("/v1/metrics", lines, later)
    }

    /// At this path, for requests with these lines in their headers.
    fn start_at(path: &'static str, lines: &'static str, later: Later) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}{path}", listener.local_addr().unwrap());
        let bodies: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let seen = Arc::clone(&bodies);
        std::thread::spawn(move || {
            for (at, mut client) in listener.incoming().flatten().enumerate() {
                let body = body_of(&mut client, path, lines);
                seen.lock().unwrap().push(body);
                let answer = match (at, later) {
                    (0, _) | (_, Later::Takes | Later::Rejects) => "200 OK",
                    (_, Later::Fails) => "500 Internal Server Error",
                    (_, Later::Silent) => {
                        std::thread::sleep(Duration::from_secs(60));
                        continue;
                    }
                };
                let text = match later {
                    // A partial success: three points are rejected.
                    Later::Rejects if at > 0 => "\n\u{6}\u{8}\u{3}\u{12}\u{2}no",
                    _ => "",
                };
                let length = text.len();
                let answer = format!("HTTP/1.1 {answer}\r\nContent-Length: {length}\r\n\r\n{text}");
                let _ = client.write_all(answer.as_bytes());
            }
        });
        Receiver { url, bodies }
    }
}

fn body_of(client: &mut impl Read, path: &str, lines: &str) -> Vec<u8> {
    let (mut received, mut buffer) = (Vec::new(), [0; 16 << 10]);
    loop {
        let bytes = client.read(&mut buffer).unwrap();
        assert!(bytes > 0, "the request is cut off");
        received.extend_from_slice(&buffer[..bytes]);
        let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&received[..end]).to_lowercase();
        assert!(head.starts_with(&format!("post {path} ")), "{head}");
        for line in lines.lines() {
            assert!(head.contains(line), "{head}");
        }
        let length = head.split_once("content-length: ").unwrap().1;
        let length: usize = length.lines().next().unwrap().parse().unwrap();
        if received.len() >= end + 4 + length {
            return received[end + 4..].to_vec();
        }
    }
}

#[test]
fn seconds_are_in_the_file_while_the_load_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let server = Responding::start(GOOD);
    let outputs = [
        format!("csv={}", file("live.csv")),
        format!("json={}", file("live.jsonl")),
    ];
    for threads in ["1", "2"] {
        let mut command = load_command(&server.url, "200", "4");
        command
            .args(["--threads", threads, "-o", &file(threads)])
            .args(["--out", &outputs[0], "--out", &outputs[1]])
            .stdout(Stdio::null());
        let mut run = command.spawn().unwrap();
        let text = |name: &str| std::fs::read_to_string(file(name)).unwrap_or_default();
        wait_until("a second is in both files", || {
            text("live.csv").lines().count() >= 2 && text("live.jsonl").lines().count() >= 1
        });
        assert!(run.try_wait().unwrap().is_none(), "the run goes on");
        assert!(run.wait().unwrap().success());
        for (kind, live) in [("csv", "live.csv"), ("json", "live.jsonl")] {
            let again = format!("{kind}={}", file("again"));
            assert_eq!(headway(&["analyze", &file(threads), "--out", &again]).0, 0);
            assert_eq!(text("again"), text(live), "{threads} threads");
        }
        assert!(text("live.jsonl").lines().count() >= 4);
        std::fs::remove_file(file("live.csv")).unwrap();
        std::fs::remove_file(file("live.jsonl")).unwrap();
    }
}

#[test]
fn empty_seconds_are_in_the_file_when_a_server_says_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("live.csv");
    let out = format!("csv={}", path.display());
    let server = Responding::start(super::responding::Manner::Silent);
    let mut command = serving::headway();
    command
        .args(["load", &server.url, "-c", "1", "--warmup", "0", "-d", "8"])
        .args(["--timeout", "60", "--out", &out])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut run = Running(command.spawn().unwrap());
    wait_until("an empty second is in the file", || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        text.lines()
            .nth(1)
            .is_some_and(|line| line.starts_with("0,0,0,0,0,"))
    });
    assert!(run.0.try_wait().unwrap().is_none(), "the run goes on");
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn run_fails_after_its_figures_when_a_file_cannot_be_written() {
    let server = Responding::start(GOOD);
    let (code, out, err) = load(&[&server.url, "-n", "20", "--out", "csv=/dev/full"]);
    assert_eq!(code, 1, "{err}");
    assert!(out.contains("good responses/s"), "{out}");
    for part in ["second 0", "/dev/full", "No space left", "the run went on"] {
        assert!(err.contains(part), "{err}");
    }
    let (code, _, err) = load(&[&server.url, "-n", "20", "--out", "json=/none/x"]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("creating /none/x: No such file"), "{err}");
}

#[test]
fn metrics_are_sent_each_second_and_once_before_the_run() {
    let (server, receiver) = (Responding::start(GOOD), Receiver::start(Later::Takes));
    let out = format!("prometheus={}", receiver.url);
    let mut command = load_command(&server.url, "100", "2");
    let (code, _, err) = finished(command.args(["--label", "planted", "--out", &out]));
    assert_eq!((code, err.as_str()), (0, ""), "{err}");
    // Before the run, two seconds, and the end of all series. A slow machine has more seconds with late responses.
    let count = receiver.bodies.lock().unwrap().len();
    assert!(count >= 4, "{count}");
    let has = |body: &[u8], text: &str| {
        let found = body.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(found, "{text}");
    };
    for body in receiver.bodies.lock().unwrap().iter() {
        for text in ["headway_load_requests_total", "headway-load", "planted"] {
            has(body, text);
        }
    }
}

#[test]
fn nothing_is_measured_when_a_receiver_cannot_be_reached() {
    let server = Responding::start(GOOD);
    let out = format!("prometheus={}api/v1/write", unused_address());
    let (code, shown, err) = load(&[&server.url, "-n", "20", "--out", &out]);
    assert_eq!((code, shown.as_str()), (1, ""), "{err}");
    for part in [
        "sending metrics to ",
        "refused",
        "nothing was measured",
        "--web.enable-remote-write",
    ] {
        assert!(err.contains(part), "{err}");
    }
    // A server of another kind answers, too.
    let out = format!(
        "prometheus={}",
        Responding::start(super::responding::Manner::Responses(
            "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone",
        ))
        .url
    );
    let (code, _, err) = load(&[&server.url, "-n", "20", "--out", &out]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("status 404: none"), "{err}");
}

#[test]
fn run_is_whole_when_a_receiver_fails_meanwhile() {
    for later in [Later::Fails, Later::Silent] {
        let (server, receiver) = (Responding::start(GOOD), Receiver::start(later));
        let out = format!("prometheus={}", receiver.url);
        let mut command = load_command(&server.url, "100", "2");
        let (code, shown, err) = finished(command.args(["--out", &out]));
        assert_eq!(code, 0, "{err}");
        assert!(shown.contains("good responses/s"), "{shown}");
        let lost = err.split_once("warning: ").expect("a warning").1;
        let words: Vec<&str> = lost.split(' ').take(5).collect();
        assert_eq!(words[1..], ["of", words[0], "updates", "of"], "{err}");
        assert!(err.contains("are not affected"), "{err}");
    }
}

/// `headway load` with a key for the collector.
fn load_with_collector(server: &Responding, receiver: &Receiver) -> Command {
    let base = receiver.url.trim_end_matches("/v1/metrics");
    let mut command = load_command(&server.url, "100", "2");
    command.args(["--label", "planted", "--out", &format!("otlp={base}")]);
    command.env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b");
    command
}

/// Needs: opentelemetry-proto for Python: scripts/setup services
#[test]
fn opentelemetry_reads_the_metrics_of_a_run() {
    let name = "opentelemetry_reads_the_metrics_of_a_run";
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = root.join("target/duckdb/bin/python");
    let module = "import opentelemetry.proto.metrics.v1.metrics_pb2";
    let probe = Command::new(&python).args(["-c", module]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        return skip(
            name,
            "no opentelemetry-proto for Python; run scripts/setup services",
        );
    }
    let (server, receiver) = (Responding::start(GOOD), Receiver::collector(Later::Takes));
    let mut command = load_with_collector(&server, &receiver);
    let (code, out, err) = finished(command.arg("--json"));
    assert_eq!((code, err.as_str()), (0, ""), "{err}");
    let run: Value = serde_json::from_str(&out).unwrap();
    let requests = run["summary"]["requests"].as_f64().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let bodies = receiver.bodies.lock().unwrap();
    // The first is before the run, and the last one ends all series.
    for (name, body) in [
        ("first", 0),
        ("sums", bodies.len() - 2),
        ("last", bodies.len() - 1),
    ] {
        std::fs::write(directory.path().join(name), &bodies[body]).unwrap();
    }
    let script = root.join("crates/cli/tests/load/otlp_reads.py");
    let output = Command::new(&python)
        .arg(script)
        .arg(directory.path())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sums = &found["sums"];
    assert_eq!(sums["headway.load.requests"]["total"], requests);
    assert_eq!(found["first"]["headway.load.requests"]["total"], 0.0);
    assert_eq!(found["last"]["headway.load.requests"]["total"], Value::Null);
    let response = &sums["headway.load.response"];
    assert_eq!(
        (&response["kind"], &response["unit"]),
        (&"histogram".into(), &"s".into())
    );
    assert_eq!(
        (&response["count"], &response["in_buckets"]),
        (&requests.into(), &requests.into())
    );
    assert_eq!(
        response["buckets"],
        response["limits"].as_u64().unwrap() + 1
    );
    assert!(response["sum"].as_f64().unwrap() > 0.0, "{response}");
    assert_eq!(sums["headway.load.connections"]["kind"], "gauge");
    assert_eq!(sums["headway.load.requests"]["kind"], "sum 2 True");
    let attributes = &sums["headway.load.requests"]["attributes"];
    assert_eq!(attributes["run"], "planted");
    assert_eq!(found["resource"]["service.name"], "headway-load");
    let names = found["sums"].as_object().unwrap().len();
    assert_eq!(names, 9, "{sums}");
}

#[test]
fn run_is_whole_when_a_collector_rejects_points_or_fails() {
    for (later, part) in [
        (Later::Rejects, "rejected 3 points: no"),
        (Later::Fails, "status 500"),
    ] {
        let (server, receiver) = (Responding::start(GOOD), Receiver::collector(later));
        let (code, shown, err) = finished(&mut load_with_collector(&server, &receiver));
        assert_eq!(code, 0, "{err}");
        assert!(shown.contains("good responses/s"), "{shown}");
        assert!(
            err.contains(part) && err.contains("are not affected"),
            "{err}"
        );
    }
    let server = Responding::start(GOOD);
    let out = format!("otlp={}", unused_address());
    let (code, shown, err) = load(&[&server.url, "-n", "20", "--out", &out]);
    assert_eq!((code, shown.as_str()), (1, ""), "{err}");
    assert!(
        err.contains("/v1/metrics") && err.contains("port 4318"),
        "{err}"
    );
}
