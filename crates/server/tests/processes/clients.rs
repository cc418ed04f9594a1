//! Clients that read slowly, and files that can be told apart.

use std::fs::{self};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use headway_test_support::{make_cold, skip, tiny_client};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The program of this crate which has `serve`.
pub fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_headway-server-test"))
}

/// How long a client waits before it says that nothing came.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A document root on a file system with a page cache of the usual kind, which /tmp may not be.
pub fn root() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Contents that differ from place to place, and from file to file by `seed`.
pub fn contents(seed: usize, size: usize) -> Vec<u8> {
    (0..size).map(|at| ((at + 31 * seed) % 251) as u8).collect()
}

/// More than the kernel buffers for one connection, so that the server cannot have sent it all
/// while the client has read only the head.
pub fn large() -> usize {
    let wmem = fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem").unwrap_or_default();
    let most = wmem.split_whitespace().nth(2);
    let most = most.and_then(|word| word.parse().ok()).unwrap_or(4 << 20);
    2 * most + (8 << 20)
}

/// Sends a request.
pub fn send_get(stream: &mut TcpStream, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
}

/// Reads a response's head; gives its status and the length of its body.
pub fn read_head(stream: &mut TcpStream) -> (u16, usize) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "));
    (
        head[9..12].parse().unwrap(),
        length.unwrap().parse().unwrap(),
    )
}

/// Reads the body of a response whose head said its length.
pub fn read_body(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    body
}

/// Reads one whole response and leaves the connection open.
pub fn read_response(stream: &mut TcpStream) -> (u16, Vec<u8>) {
    let (status, length) = read_head(stream);
    (status, read_body(stream, length))
}

/// One exchange on a connection of its own.
pub fn get(address: &str, path: &str) -> (u16, Vec<u8>) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    send_get(&mut stream, path);
    read_response(&mut stream)
}

/// Reads until the server ends the connection, in whichever way.
pub fn read_to_close(stream: &mut TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    match stream.read_to_end(&mut received) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            panic!("the server neither sends nor closes")
        }
        _ => received,
    }
}

/// A number of the server as a whole.
pub fn counter(status: &Value, name: &str) -> u64 {
    status["total"]["counters"][name].as_u64().unwrap_or(0)
}

/// Stops the clients also when the test fails, which would otherwise wait for them for ever.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Stops processes, and lets them go on when dropped.
pub struct Stopped(pub Vec<i32>);

impl Stopped {
    pub fn stop(pids: Vec<i32>) -> Stopped {
        for pid in &pids {
            kill_process(Pid::from_raw(*pid).unwrap(), Signal::STOP).unwrap();
        }
        // A process that is about to stop may still receive an event.
        let begun = Instant::now();
        while !pids.iter().all(|pid| stands_still(*pid)) {
            assert!(
                begun.elapsed() < Duration::from_secs(30),
                "the processes do not stop"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        Stopped(pids)
    }
}

/// By the state after the name, which may hold anything.
fn stands_still(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = status.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|state| state.starts_with('T'))
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for pid in &self.0 {
            let _ = kill_process(Pid::from_raw(*pid).unwrap(), Signal::CONT);
        }
    }
}

/// Whether a server may use io_uring here; where it may not, the test says that it leaves that out.
pub fn has_io_uring(test: &str) -> bool {
    let arguments = ["serve", "--events", "io_uring", "--check"];
    let checked = program().args(arguments).output().unwrap();
    if !checked.status.success() {
        skip(test, String::from_utf8_lossy(&checked.stderr).trim());
    }
    checked.status.success()
}
