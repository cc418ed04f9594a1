//! Figures per second while a load run goes on: files, and metrics that a server does or does not take.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headway_test_support::wait_until;

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
}

/// A receiver of metrics: the bodies that it has got.
struct Receiver {
    url: String,
    bodies: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Receiver {
    fn start(later: Later) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/api/v1/write", listener.local_addr().unwrap());
        let bodies: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let seen = Arc::clone(&bodies);
        std::thread::spawn(move || {
            for (at, mut client) in listener.incoming().flatten().enumerate() {
                let body = body_of(&mut client);
                seen.lock().unwrap().push(body);
                let answer = match (at, later) {
                    (0, _) | (_, Later::Takes) => "204 No Content",
                    (_, Later::Fails) => "500 Internal Server Error",
                    (_, Later::Silent) => {
                        std::thread::sleep(Duration::from_secs(60));
                        continue;
                    }
                };
                let answer = format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n");
                let _ = client.write_all(answer.as_bytes());
            }
        });
        Receiver { url, bodies }
    }
}

fn body_of(client: &mut impl Read) -> Vec<u8> {
    let (mut received, mut buffer) = (Vec::new(), [0; 16 << 10]);
    loop {
        let bytes = client.read(&mut buffer).unwrap();
        assert!(bytes > 0, "the request is cut off");
        received.extend_from_slice(&buffer[..bytes]);
        let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&received[..end]).to_lowercase();
        assert!(head.starts_with("post /api/v1/write "), "{head}");
        for line in [
            "content-encoding: snappy",
            "content-type: application/x-protobuf",
        ] {
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
