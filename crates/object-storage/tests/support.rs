//! A server that speaks S3, in Python, and a proxy in front of it that cuts connections.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use headway_object_storage::{Settings, Storage};
use serde_json::Value;

/// A Python with moto: that of `scripts/setup services`, or the machine's.
fn python() -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/duckdb/bin/python");
    let mut candidates = [own, "python3".into()].into_iter();
    candidates.find(|python| {
        let probe = Command::new(python)
            .args([
                "-c",
                "import botocore.auth, moto.moto_server.werkzeug_app, moto.s3.models",
            ])
            .output();
        probe.is_ok_and(|output| output.status.success())
    })
}

/// The server. It ends with the test.
pub struct Server {
    child: Child,
    asks: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    pub url: String,
    access_key: String,
    secret_key: String,
}

impl Server {
    /// `None` if there is no moto.
    pub fn start() -> Option<Server> {
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../object-storage/tests/server.py");
        let mut child = Command::new(python()?)
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("python runs");
        let asks = child.stdin.take();
        let mut answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let first = line(&mut answers);
        let text = |name: &str| first[name].as_str().expect("a text").to_owned();
        Some(Server {
            child,
            asks,
            answers,
            url: text("url"),
            access_key: text("access_key"),
            secret_key: text("secret_key"),
        })
    }

    pub fn settings(&self, url: &str) -> Settings {
        Settings {
            endpoint: Some(url.to_owned()),
            region: "us-east-1".into(),
            access_key: self.access_key.clone(),
            secret_key: self.secret_key.clone(),
            session_token: None,
            authorities: None,
        }
    }

    pub fn storage(&self, url: &str, location: &str) -> Storage {
        Storage::open(location.parse().unwrap(), self.settings(url)).unwrap()
    }

    /// Names with checksums, and the number of uploads that are not complete.
    pub fn content(&mut self) -> (Vec<(String, String)>, u64) {
        self.asks.as_mut().unwrap().write_all(b"\n").unwrap();
        let answer = line(&mut self.answers);
        let objects = answer["objects"].as_object().unwrap().iter();
        let objects = objects.map(|(name, sum)| (name.clone(), sum.as_str().unwrap().to_owned()));
        (objects.collect(), answer["uploads"].as_u64().unwrap())
    }
}

fn line(from: &mut impl BufRead) -> Value {
    let mut text = String::new();
    from.read_line(&mut text).expect("a line");
    serde_json::from_str(&text).expect("JSON")
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.asks.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the proxy does to a request.
#[derive(Clone, Copy)]
pub enum Fault {
    /// Half of it gets through.
    Request,
    /// It gets through, and its answer does not.
    Answer,
}

/// A proxy that lets everything through but the first requests with a certain text in their first line.
pub struct Proxy {
    pub url: String,
    left: Arc<AtomicU32>,
}

impl Proxy {
    pub fn start(server: &str, text: &'static str, fault: Fault, times: u32) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let left = Arc::new(AtomicU32::new(times));
        let (server, own) = (
            server.trim_start_matches("http://").to_owned(),
            Arc::clone(&left),
        );
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (server, left) = (server.clone(), Arc::clone(&own));
                thread::spawn(move || pass(client, &server, text, fault, &left));
            }
        });
        Proxy { url, left }
    }

    /// How many faults have not happened.
    pub fn left(&self) -> u32 {
        self.left.load(Ordering::SeqCst)
    }
}

fn pass(mut client: TcpStream, server: &str, text: &str, fault: Fault, left: &AtomicU32) {
    let Some(request) = whole(&mut client) else {
        return;
    };
    let first = request
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let is_it = String::from_utf8_lossy(first).contains(text);
    let fails = is_it
        && left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            })
            .is_ok();
    let mut upstream = TcpStream::connect(server).unwrap();
    if fails && matches!(fault, Fault::Request) {
        let _ = upstream.write_all(&request[..request.len() / 2]);
        return;
    }
    upstream.write_all(&request).unwrap();
    let mut answer = Vec::new();
    let _ = upstream.read_to_end(&mut answer);
    if !fails {
        let _ = client.write_all(&answer);
    }
    let _ = client.shutdown(Shutdown::Both);
}

/// A request with its body.
fn whole(client: &mut TcpStream) -> Option<Vec<u8>> {
    let (mut received, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let bytes = client.read(&mut buffer).ok().filter(|bytes| *bytes > 0)?;
        received.extend_from_slice(&buffer[..bytes]);
        let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&received[..end]).to_lowercase();
        let length = head
            .split_once("content-length: ")
            .map_or("0", |(_, rest)| rest);
        let length = length.lines().next().unwrap_or_default();
        let length: usize = length.trim().parse().expect("a length");
        if received.len() >= end + 4 + length {
            return Some(received);
        }
    }
}
