//! A server of a few lines that answers every request with the same bytes, right or wrong.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the server does with a connection.
#[derive(Clone, Copy, Debug)]
pub enum Manner {
    /// Each request gets these bytes.
    Responses(&'static str),
    /// The first request gets these bytes, then the connection closes.
    ResponsesOnce(&'static str),
    /// Each request gets these bytes two milliseconds later, so that it is the server that limits a
    /// closed loop.
    ResponsesLate(&'static str),
    /// Each request is read and nothing is said.
    Silent,
}

pub const GOOD: Manner =
    Manner::Responses("HTTP/1.1 200 OK\r\nServer: test/1\r\nContent-Length: 5\r\n\r\nhello");

pub const LATE: Manner =
    Manner::ResponsesLate("HTTP/1.1 200 OK\r\nServer: test/1\r\nContent-Length: 5\r\n\r\nhello");

/// A listening server; its threads end with the test.
pub struct Responding {
    pub url: String,
    requests: Arc<AtomicU64>,
}

impl Responding {
    pub fn start(manner: Manner) -> Responding {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let requests = Arc::default();
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let seen = Arc::clone(&seen);
                std::thread::spawn(move || converse(client, manner, &seen));
            }
        });
        Responding { url, requests }
    }

    /// On a socket in the filesystem.
    pub fn start_at(path: &Path, manner: Manner) -> Responding {
        let listener = UnixListener::bind(path).unwrap();
        let requests = Arc::default();
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let seen = Arc::clone(&seen);
                std::thread::spawn(move || converse(client, manner, &seen));
            }
        });
        let url = format!("unix:{}", path.display());
        Responding { url, requests }
    }

    /// Waits until this many requests have arrived.
    pub fn wait_for(&self, requests: u64) {
        while self.requests.load(Ordering::Relaxed) < requests {
            std::thread::yield_now();
        }
    }
}

/// A server that takes one connection and is gone.
pub fn vanishing() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || drop(listener.accept()));
    url
}

/// An address on which no server listens.
pub fn unused_address() -> String {
    format!("http://{}/", headway_test_support::unused_address())
}

fn converse(mut client: impl Read + Write, manner: Manner, requests: &AtomicU64) {
    let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match client.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(bytes) => received.extend_from_slice(&buffer[..bytes]),
        }
        while let Some(end) = received.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            received.drain(..end + 4);
            requests.fetch_add(1, Ordering::Relaxed);
            let (bytes, last) = match manner {
                Manner::Responses(bytes) => (bytes, false),
                Manner::ResponsesOnce(bytes) => (bytes, true),
                Manner::ResponsesLate(bytes) => {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                    (bytes, false)
                }
                Manner::Silent => ("", false),
            };
            if client.write_all(bytes.as_bytes()).is_err() || last {
                return;
            }
        }
    }
}
