//! The memory of one connection, when a client makes each part of it as large as possible.
//!
//! Each allocation of this program is counted, so nothing is left out, such as headers that are kept while their
//! requests are answered.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::IoSlice;

use headway_http2::{Session, Settings, Stream};
use headway_test_support::http2::*;

struct CountingAllocator;

thread_local! {
    static LIVE: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    if bytes > 0 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
    }
    // A thread that is ending has no counter any more, and is not the one we look at.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting allocates nothing, since the
// thread-locals are constant-initialised and have no destructor.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both allocations exist while the data is moved.
        count(size as i64);
        count(-(layout.size() as i64));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The most bytes that a worker reads at a time.
const READ_BYTES: usize = 64 << 10;

/// A session, with the requests that a worker has in memory.
struct Held {
    session: Session,
    requests: Vec<(Vec<u8>, Stream)>,
}

impl Held {
    /// Processes bytes as a worker does. The output is not sent if the client does not read.
    fn feed(&mut self, bytes: &[u8], reads: bool) {
        for piece in bytes.chunks(READ_BYTES) {
            if self.session.takes_input() {
                self.session.feed(piece);
            }
            loop {
                while let Some(request) = self.session.next_request() {
                    self.requests.push(request);
                }
                if reads {
                    let count = self.session.with_output(<[u8]>::len);
                    self.session.sent(count);
                }
                if !self.session.go_on() {
                    break;
                }
            }
        }
    }

    /// Sends as much of a response as each stream accepts.
    fn respond(&mut self) {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n";
        let data = [1; 16 << 10];
        for (_, stream) in &mut self.requests {
            let _ = stream.send(&[IoSlice::new(head)]);
        }
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            for (_, stream) in &mut self.requests {
                let sent = stream.can_send()
                    && matches!(stream.send(&[IoSlice::new(&data)]), Ok(Some(1..)));
                goes_on |= sent;
            }
            while self.session.next_request().is_some() {}
        }
    }
}

/// The kind of a header list.
#[derive(Clone, Copy, Debug)]
enum Headers {
    /// One long header.
    Long,
    /// Many short ones.
    Short,
    /// References to one entry of the dynamic table, of one byte each.
    References,
}

/// A header list of nearly this size.
fn header_block(bytes: usize, kind: Headers) -> Vec<u8> {
    let mut all = request_block("POST", "/");
    // RFC 9113, 10.5.1: 32 more for each header.
    let left = bytes - 300;
    match kind {
        Headers::Long => all.extend(block(&[("x", "y".repeat(left))])),
        Headers::Short => {
            (0..left / 37).for_each(|at| all.extend(block(&[(format!("x{at:03}"), "")])));
        }
        Headers::References => {
            all.extend(kept(b"a", b""));
            all.extend(vec![KEPT_AGAIN; left / 33]);
        }
    }
    all
}

/// HEADERS, and CONTINUATION if the block is long.
fn headers(stream: u32, block: &[u8], flags: u8) -> Vec<u8> {
    let mut pieces = block.chunks(16 << 10).peekable();
    let (mut bytes, mut kind, mut own) = (Vec::new(), HEADERS, flags);
    while let Some(piece) = pieces.next() {
        let ends = if pieces.peek().is_none() {
            END_HEADERS
        } else {
            0
        };
        bytes.extend(frame(kind, own | ends, stream, piece));
        (kind, own) = (CONTINUATION, 0);
    }
    bytes
}

/// The most memory of one connection during `attack`, and its memory before.
fn peak(settings: Settings, attack: impl FnOnce(&mut Held)) -> (u64, u64) {
    let before = LIVE.get();
    let mut held = Held {
        session: Session::new(settings),
        requests: Vec::new(),
    };
    held.feed(&hello(&[(INITIAL_WINDOW_SIZE, i32::MAX as u32)]), true);
    held.feed(&window_update(0, 1 << 30), true);
    let idle = LIVE.get() - before;
    PEAK.set(LIVE.get());
    attack(&mut held);
    ((PEAK.get() - before) as u64, idle as u64)
}

#[test]
fn memory_of_a_connection_has_a_limit_for_any_input() {
    for (streams_max, header_bytes_max) in [
        (100, 16 << 10),
        (10, 64 << 10),
        (250, 4 << 10),
        (1, 1 << 10),
    ] {
        let settings = Settings {
            streams_max,
            header_bytes_max,
            scheme: None,
        };
        let most = settings.memory_bytes_max();
        for kind in [Headers::Long, Headers::Short, Headers::References] {
            for data_bytes in [1, 100, 16 << 10] {
                let block = header_block(header_bytes_max as usize, kind);
                let opening: Vec<u8> = (0..streams_max)
                    .flat_map(|at| headers(2 * at + 1, &block, 0))
                    .collect();
                let updates: Vec<u8> = (0..500_u32)
                    .flat_map(|at| {
                        frame(
                            0x10,
                            0,
                            0,
                            &[&(2 * at + 1).to_be_bytes()[..], &[b'u'; 200]].concat(),
                        )
                    })
                    .collect();
                let data = vec![b'x'; data_bytes];
                let bodies: Vec<u8> = (0..(300 << 10) / data_bytes as u32)
                    .flat_map(|at| frame(DATA, 0, 2 * (at % streams_max) + 1, &data))
                    .collect();
                let (found, idle) = peak(settings, |held| {
                    held.feed(&opening, true);
                    assert_eq!(held.requests.len(), streams_max as usize);
                    held.feed(&updates, true);
                    held.feed(&bodies, true);
                    held.respond();
                    held.feed(&frame(PING, 0, 0, &[0; 8]).repeat(10_000), false);
                    // A header block without an end.
                    held.feed(
                        &frame(
                            HEADERS,
                            0,
                            2 * streams_max + 1,
                            &block[..block.len().min(16 << 10)],
                        ),
                        false,
                    );
                });
                println!(
                    "{streams_max} streams, {header_bytes_max} bytes, {kind:?}, frames of {data_bytes}: {found} of {most}, idle {idle}"
                );
                assert!(found <= most, "{found} of {most}");
                assert!(idle <= 40 << 10, "{idle}");
            }
        }
    }
}

/// Allocations of a request and its response, when the client's and our dynamic tables know their headers: the header
/// in HTTP/1.1, which its request owns. A chunked response needs more, for the data without its framing.
const REQUEST_ALLOCATIONS: u64 = 1;
const CHUNKED_ALLOCATIONS: u64 = 2;

#[test]
fn request_and_its_response_need_one_allocation() {
    let sized = [
        &b"HTTP/1.1 200 OK\r\nServer: headway\r\nContent-Length: 500\r\n\r\n"[..],
        &[b'x'; 500],
    ];
    let chunked = [
        &b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"[..],
        b"5\r\nhello\r\n0\r\n\r\n",
    ];
    for (response, more) in [(sized, 0), (chunked, CHUNKED_ALLOCATIONS)] {
        let mut session = Session::new(Settings {
            streams_max: 100,
            header_bytes_max: 16 << 10,
            scheme: Some("http"),
        });
        session.feed(&hello(&[(INITIAL_WINDOW_SIZE, i32::MAX as u32)]));
        session.feed(&window_update(0, 1 << 30));
        assert!(session.next_request().is_none());
        let first = [request_block("GET", "/a"), kept(b"x-a", b"b")].concat();
        let later = [request_block("GET", "/a"), vec![KEPT_AGAIN]].concat();
        let mut counts = Vec::new();
        for number in 0..1000 {
            let block = if number == 0 { &first } else { &later };
            let request = frame(HEADERS, END_STREAM | END_HEADERS, 2 * number + 1, block);
            let before = ALLOCATIONS.get();
            session.feed(&request);
            let (head, mut stream) = session.next_request().unwrap();
            stream.send(&response.map(IoSlice::new)).unwrap();
            stream.end();
            drop((head, stream));
            let count = session.with_output(<[u8]>::len);
            session.sent(count);
            counts.push(ALLOCATIONS.get() - before);
        }
        let most = counts[500..].iter().max();
        assert_eq!(most, Some(&(REQUEST_ALLOCATIONS + more)), "{counts:?}");
    }
}
