//! What a request costs the worker whose upstream answers over a connection that is kept.
//!
//! Most of the user code that such a request ran more than with other servers was the allocator's: over fifty
//! allocations.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use headway_gateway::fastcgi::{RecordKind, write_record};

use crate::support::{Served, config};
use crate::{ALLOCATIONS, COUNTING, IS_COUNTED};

/// Requests that are counted.
const REQUESTS: u64 = 200;
/// Calls and allocations of the two snapshots, and of the turns before and behind the requests.
const BESIDE: u64 = 100;

const PROXY_RESPONSE: &str = "HTTP/1.1 200 OK\r\nServer: x\r\nDate: Mon, 30 Nov 2026 01:36:00 GMT\r\n\
    Content-Type: text/plain\r\nContent-Length: 5\r\nConnection: keep-alive\r\nETag: \"a\"\r\n\r\nhello";

/// An upstream that accepts one connection, and sends `response` whenever a request has ended with `end`.
fn upstream(end: &'static [u8], response: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        IS_COUNTED.set(false);
        let (mut stream, _) = listener.accept().unwrap();
        let (mut request, mut piece) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = stream.read(&mut piece) {
            request.extend_from_slice(&piece[..count]);
            if request.ends_with(end) {
                request.clear();
                stream.write_all(&response).unwrap();
            }
        }
    });
    address
}

/// Checks the calls, and returns the allocations of a request.
fn allocations_per_request(handler: &str, address: SocketAddr) -> u64 {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    IS_COUNTED.set(false);
    let root = tempfile::tempdir().unwrap();
    let location = format!("[[location]]\nprefix = '/app/'\n{handler}{address}'\nkeepalive = 4");
    let mut served = Served::start(config(root.path(), &location));
    let mut client = served.connect();
    let mut ask = || {
        let request =
            "GET /app/a?b=c HTTP/1.1\r\nHost: test\r\nUser-Agent: x\r\nAccept: */*\r\n\r\n";
        client.write_all(request.as_bytes()).unwrap();
        let (mut response, mut piece) = (Vec::new(), [0; 4096]);
        while !response.ends_with(b"hello") {
            let count = client.read(&mut piece).unwrap();
            assert!(count > 0, "{}", response.escape_ascii());
            response.extend_from_slice(&piece[..count]);
        }
        assert!(
            response.starts_with(b"HTTP/1.1 200 OK\r\n"),
            "{}",
            response.escape_ascii()
        );
    };
    // What is made once.
    (0..3).for_each(|_| ask());
    let before = served.snapshot().trace.calls;
    let allocated = ALLOCATIONS.load(Ordering::Relaxed);
    (0..REQUESTS).for_each(|_| ask());
    let allocated = ALLOCATIONS.load(Ordering::Relaxed) - allocated;
    check_calls(&before, &served.snapshot().trace.calls);
    served.drain();
    println!(
        "{handler}: {} allocations",
        allocated as f64 / REQUESTS as f64
    );
    allocated.saturating_sub(BESIDE) / REQUESTS
}

/// One read and one write on either side, and a wait before each read. The connection to the upstream is taken and put
/// back without a call.
fn check_calls(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) {
    let made: BTreeMap<&str, u64> = after
        .iter()
        .map(|(call, count)| (&**call, count - before.get(call).unwrap_or(&0)))
        .filter(|(_, count)| *count > 0)
        .collect();
    for call in ["recvfrom", "write (upstream)", "read (upstream)", "sendto"] {
        assert_eq!(made.get(call), Some(&REQUESTS), "{call}: {made:?}");
    }
    assert!(
        made.values().sum::<u64>() <= 6 * REQUESTS + BESIDE,
        "{made:?}"
    );
}

#[test]
fn proxied_request_over_a_kept_connection_makes_six_calls_and_few_allocations() {
    let address = upstream(b"\r\n\r\n", PROXY_RESPONSE.into());
    let allocations = allocations_per_request("proxy = 'http://", address);
    assert!(allocations <= 14, "{allocations}");
}

#[test]
fn fastcgi_request_over_a_kept_connection_makes_six_calls_and_few_allocations() {
    let mut response = Vec::new();
    let output = b"Content-Type: text/plain\r\nX-A: b\r\n\r\nhello";
    write_record(&mut response, RecordKind::STDOUT, 1, output);
    write_record(&mut response, RecordKind::END_REQUEST, 1, &[0; 8]);
    let mut end = Vec::new();
    write_record(&mut end, RecordKind::STDIN, 1, b"");
    let address = upstream(end.leak(), response);
    let allocations = allocations_per_request("fastcgi = '", address);
    assert!(allocations <= 17, "{allocations}");
}
