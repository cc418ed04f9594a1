//! Tools: clients that misbehave, and files whose versions can be distinguished.
#![allow(dead_code, reason = "each test program uses its part of this")]

use std::fs::{self};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

pub use headway_test_support::{make_cold, skip};
use rustix::net::sockopt;
use tempfile::TempDir;

use crate::support::{Response, Served};

/// A document root on a file system with an ordinary page cache, which /tmp may not have.
pub fn root() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

/// More than the kernel buffers for one connection, so that the server cannot have sent it all
/// while the client has read only the head.
pub fn large() -> usize {
    let wmem = fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem").unwrap_or_default();
    let most = wmem.split_whitespace().nth(2);
    let most = most.and_then(|word| word.parse().ok()).unwrap_or(4 << 20);
    2 * most + (8 << 20)
}

/// Content in which the top bit of every byte encodes the version, and each byte differs from its
/// neighbours.
pub fn contents(version: u8, size: usize) -> Vec<u8> {
    (0..size)
        .map(|at| (at % 127) as u8 | (version << 7))
        .collect()
}

/// A client that leaves with the server what it does not read.
pub fn tiny_client(served: &Served) -> TcpStream {
    headway_test_support::tiny_client(served.address)
}

/// Sends a request.
pub fn send_request(stream: &mut TcpStream, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("send");
}

/// Reads the header and no byte more.
pub fn read_head(stream: &mut TcpStream) -> Response {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("a head");
        head.push(byte[0]);
    }
    Response::parse(&head)
}

/// Reads one whole response and leaves the connection open.
pub fn read_response(stream: &mut TcpStream) -> Response {
    let mut response = read_head(stream);
    let length = response.field("Content-Length").expect("a length");
    response.body = vec![0; length.parse().expect("a number")];
    stream.read_exact(&mut response.body).expect("a whole body");
    response
}

/// Reads at most `bytes_max` bytes, until the server ends the connection in any way.
pub fn read_to_close(stream: &mut TcpStream, bytes_max: usize) -> Vec<u8> {
    let mut received = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    while received.len() < bytes_max {
        let room = buffer.len().min(bytes_max - received.len());
        match stream.read(&mut buffer[..room]) {
            Ok(0) => break,
            Ok(count) => received.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => panic!("the server neither sends nor closes: {error}"),
        }
    }
    received
}

/// Ends the connection with a reset.
pub fn reset(stream: TcpStream) {
    sockopt::set_socket_linger(&stream, Some(std::time::Duration::ZERO)).expect("SO_LINGER");
}

/// Every event mechanism that is always there, as a line of configuration.
pub const MECHANISMS: [&str; 4] = [
    "events = 'select'",
    "events = 'poll'",
    "events = 'epoll'",
    "events = 'epoll-edge'",
];

/// All of [`MECHANISMS`], and io_uring where it is permitted.
pub fn mechanisms() -> Vec<&'static str> {
    let mut all = MECHANISMS.to_vec();
    // The end of a ring interrupts the next call of its thread, so it has a thread of its own.
    let probe = || headway_event::Events::new(headway_event::Mechanism::IoUring).map(drop);
    match std::thread::spawn(probe).join().expect("a probe") {
        Ok(()) => all.push("events = 'io_uring'"),
        Err(error) => skip("io_uring", &error.to_string()),
    }
    all
}
