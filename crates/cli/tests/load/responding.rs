//! A server of a few lines that answers every request with the same bytes, right or wrong.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What the server does with a connection.
#[derive(Clone, Copy, Debug)]
pub enum Manner {
    /// Each request gets these bytes.
    Responses(&'static str),
    /// The first request gets these bytes, then the connection closes.
    ResponsesOnce(&'static str),
    /// Each request gets these bytes after this many milliseconds, so that it is the server that limits
    /// a closed loop.
    ResponsesLate(&'static str, u64),
    /// Each request is read and nothing is said.
    Silent,
}

pub const GOOD: Manner =
    Manner::Responses("HTTP/1.1 200 OK\r\nServer: test/1\r\nContent-Length: 5\r\n\r\nhello");

pub const LATE: Manner = late_by(2);

pub const fn late_by(milliseconds: u64) -> Manner {
    Manner::ResponsesLate(
        "HTTP/1.1 200 OK\r\nServer: test/1\r\nContent-Length: 5\r\n\r\nhello",
        milliseconds,
    )
}

/// A listening server; its threads end with the test.
pub struct Responding {
    pub url: String,
    seen: Arc<Seen>,
}

/// What clients have asked for.
#[derive(Default)]
struct Seen {
    requests: AtomicU64,
    paths: Mutex<BTreeSet<String>>,
}

impl Responding {
    pub fn start(manner: Manner) -> Responding {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let seen = Arc::default();
        let of_clients = Arc::clone(&seen);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let seen = Arc::clone(&of_clients);
                std::thread::spawn(move || converse(client, manner, &seen));
            }
        });
        Responding { url, seen }
    }

    /// On a socket in the filesystem.
    pub fn start_at(path: &Path, manner: Manner) -> Responding {
        let listener = UnixListener::bind(path).unwrap();
        let seen = Arc::default();
        let of_clients = Arc::clone(&seen);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let seen = Arc::clone(&of_clients);
                std::thread::spawn(move || converse(client, manner, &seen));
            }
        });
        let url = format!("unix:{}", path.display());
        Responding { url, seen }
    }

    /// Waits until this many requests have arrived.
    pub fn wait_for(&self, requests: u64) {
        while self.seen.requests.load(Ordering::Relaxed) < requests {
            std::thread::yield_now();
        }
    }

    /// The paths that were asked for.
    pub fn paths(&self) -> BTreeSet<String> {
        self.seen.paths.lock().unwrap().clone()
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

fn converse(mut client: impl Read + Write, manner: Manner, seen: &Seen) {
    let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match client.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(bytes) => received.extend_from_slice(&buffer[..bytes]),
        }
        while let Some(end) = received.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let head: Vec<u8> = received.drain(..end + 4).collect();
            let path = String::from_utf8_lossy(&head);
            let path = path.split(' ').nth(1).unwrap_or_default().to_owned();
            seen.paths.lock().unwrap().insert(path);
            seen.requests.fetch_add(1, Ordering::Relaxed);
            let (bytes, last) = match manner {
                Manner::Responses(bytes) => (bytes, false),
                Manner::ResponsesOnce(bytes) => (bytes, true),
                Manner::ResponsesLate(bytes, milliseconds) => {
                    std::thread::sleep(std::time::Duration::from_millis(milliseconds));
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
