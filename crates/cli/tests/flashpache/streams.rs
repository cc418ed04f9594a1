//! HTTP/2 with many streams on one connection: what the module keeps outlives the request that it
//! was kept for, since mod_http2 hands it from the thread that answers to the one that sends.
//!
//! The client is a few lines of its own: header blocks without a table, small windows, so that
//! every file is sent in pieces over a long time. Of a response's fields it reads the status alone.
//!
//! Sources: RFC 9113 (frames, flow control), RFC 7541 (header blocks).

use super::faults::{FILES, NumberedFiles, built};
use super::support::{Apache, Backend, Over, TIMEOUT, make_cold, wait_until};
use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
/// Bytes of one file that may be on their way.
const WINDOW: u32 = 3000;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// GET of a target, all of whose fields are written out.
fn request(stream: u32, target: &str) -> Vec<u8> {
    // `:method: GET` and `:scheme: http` are in the static table, as are the names of the other
    // two.
    let mut block = vec![0x82, 0x86];
    for (name, value) in [(1, "site.test"), (4, target)] {
        block.extend([name, value.len() as u8]);
        block.extend(value.bytes());
    }
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &block)
}

fn receive(stream: &mut TcpStream) -> (u8, u8, u32, Vec<u8>) {
    let mut head = [0; 9];
    stream.read_exact(&mut head).unwrap();
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let number = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload).unwrap();
    (head[3], head[4], number, payload)
}

/// Asks for all targets at once on one connection, and gives the bodies; every status is 200.
fn fetch(address: &str, targets: &[String]) -> Vec<Vec<u8>> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let window = [&[0, 4][..], &WINDOW.to_be_bytes()].concat();
    bytes.extend(frame(SETTINGS, 0, 0, &window));
    let number = |at: usize| 2 * at as u32 + 1;
    for (at, target) in targets.iter().enumerate() {
        bytes.extend(request(number(at), target));
    }
    stream.write_all(&bytes).unwrap();
    let mut bodies: HashMap<u32, Vec<u8>> = HashMap::new();
    let mut open = targets.len();
    while open > 0 {
        let (kind, flags, of, payload) = receive(&mut stream);
        match kind {
            SETTINGS if flags & ACK == 0 => {
                stream.write_all(&frame(SETTINGS, ACK, 0, &[])).unwrap()
            }
            PING if flags & ACK == 0 => stream.write_all(&frame(PING, ACK, 0, &payload)).unwrap(),
            // The first field is the status, and 200 has a number.
            HEADERS => assert_eq!(payload[0], 0x88, "{}", targets[of as usize / 2]),
            DATA if !payload.is_empty() => {
                bodies.entry(of).or_default().extend(&payload);
                let more = (payload.len() as u32).to_be_bytes();
                let mut taken = frame(WINDOW_UPDATE, 0, 0, &more);
                taken.extend(frame(WINDOW_UPDATE, 0, of, &more));
                stream.write_all(&taken).unwrap();
            }
            RESET | GOAWAY => panic!("frame {kind} for {of}: {payload:?}"),
            _ => {}
        }
        if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
            open -= 1;
        }
    }
    (0..targets.len())
        .map(|at| bodies.remove(&number(at)).unwrap_or_default())
        .collect()
}

/// Small files, which the module sends from memory, and large ones, which it sends by their
/// descriptor.
fn enlarge(served: &NumberedFiles) {
    for number in (0..FILES).step_by(4) {
        let contents = format!("large {number} ").repeat(20_000);
        fs::write(served.file(number), contents).unwrap();
    }
}

fn start(served: &NumberedFiles, module: &Path) -> Apache {
    let more = "LoadModule http2_module /usr/lib/apache2/modules/mod_http2.so\nProtocols h2c http/1.1\nHeadwayEnable On";
    Apache::start("event", &served.configuration(module, more))
}

/// One connection's worth of all files, in memory or not.
fn are_right(served: &NumberedFiles, apache: &Apache) {
    let targets: Vec<String> = (0..FILES).map(|number| format!("/f{number}")).collect();
    for (number, body) in fetch(&apache.address, &targets).iter().enumerate() {
        let expected = fs::read(served.file(number)).unwrap();
        assert!(*body == expected, "{number}: {} bytes", body.len());
    }
}

fn request_count(backend: &Option<Backend>) -> u64 {
    backend
        .as_ref()
        .map_or(0, |backend| backend.counter("requests_total"))
}

/// Needs: the programs apache2 and apxs: scripts/setup
#[test]
fn files_are_complete_when_streams_share_a_connection_with_small_reads() {
    let name = "files_are_complete_when_streams_share_a_connection_with_small_reads";
    let Some(module) = built(name) else { return };
    let served = NumberedFiles::new();
    enlarge(&served);
    let mut backend = Some(served.backend());
    let apache = start(&served, &module);
    are_right(&served, &apache);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = Over(&over);
        let fetching: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        (0..FILES).for_each(|number| make_cold(&served.file(number)));
                        are_right(&served, &apache);
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            wait_until("no request arrives", || {
                let failed = fetching.iter().any(|thread| thread.is_finished());
                failed || request_count(&backend) > 20
            });
            backend.take().unwrap().kill();
            backend = Some(served.backend());
        }
    });
    assert!(apache.counter("Answered") > 20);
}
