//! Any bytes as header blocks of HTTP/2 (HPACK), with references to the dynamic table and changes of its size. Requests do
//! not depend on how valid blocks are cut into HEADERS and CONTINUATION.
#![no_main]

use headway_http::{HeadLimits, Parsed, parse};
use headway_http2::{PREFACE, Session, Settings, Stream};
use libfuzzer_sys::fuzz_target;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// More frames for one header are an attack.
const PIECES_MAX: usize = 4;
const BLOCKS_MAX: usize = 16;
/// `:method` GET, `:scheme` http and `:path` / of the static table (RFC 7541, A).
const REQUEST: [u8; 3] = [0x82, 0x86, 0x84];

fuzz_target!(|bytes: &[u8]| {
    let Some(([choice, pieces], bytes)) = bytes.split_first_chunk() else {
        return;
    };
    let blocks = blocks(bytes, choice & 1 != 0);
    let whole = outcome(&blocks, 1, *choice);
    let pieces = 2 + usize::from(*pieces) % (PIECES_MAX - 1);
    let cut = outcome(&blocks, pieces, *choice);
    // An invalid block may have another outcome when it is cut.
    if whole.0.len() == blocks.len() && !whole.1 {
        assert_eq!(whole, cut);
    }
});

/// Each block has its length first. Those of `requests` begin with what a request must have.
fn blocks(mut bytes: &[u8], requests: bool) -> Vec<Vec<u8>> {
    let mut blocks = Vec::new();
    while let [length, rest @ ..] = bytes {
        let (block, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        bytes = rest;
        blocks.push(match requests {
            true => [&REQUEST, block].concat(),
            false => block.to_vec(),
        });
        if blocks.len() == BLOCKS_MAX {
            break;
        }
    }
    blocks
}

/// The next request, of all that has come.
fn next_request(session: &mut Session) -> Option<(Vec<u8>, Stream)> {
    loop {
        let request = session.next_request();
        if request.is_some() || !session.go_on() {
            return request;
        }
    }
}

/// The requests that come of blocks in this number of pieces, and whether the connection ends.
fn outcome(blocks: &[Vec<u8>], pieces: usize, choice: u8) -> (Vec<Vec<u8>>, bool) {
    let mut session = Session::new(Settings {
        streams_max: 100,
        header_bytes_max: 2000,
        scheme: (choice & 2 != 0).then_some("https"),
    });
    session.feed(PREFACE);
    session.feed(&frame(SETTINGS, 0, 0, &[]));
    let mut heads = Vec::new();
    for (at, block) in blocks.iter().enumerate() {
        let stream = 2 * at as u8 + 1;
        let size = block.len().div_ceil(pieces).max(1);
        // A block without bytes is a frame, too.
        let count = block.len().div_ceil(size).max(1);
        for piece in 0..count {
            let end = block.len().min((piece + 1) * size);
            let kind = if piece == 0 { HEADERS } else { CONTINUATION };
            let ends_stream = if piece == 0 && choice & 4 == 0 {
                END_STREAM
            } else {
                0
            };
            let ends_headers = if piece + 1 == count { END_HEADERS } else { 0 };
            let flags = ends_stream | ends_headers;
            session.feed(&frame(kind, flags, stream, &block[piece * size..end]));
        }
        while let Some((head, mut stream)) = next_request(&mut session) {
            let limits = HeadLimits {
                is_http2: true,
                ..HeadLimits::default()
            };
            assert!(!matches!(parse(&head, &limits), Parsed::Partial));
            assert!(head.ends_with(b"\r\n\r\n"));
            stream.priority();
            // The key of a WebSocket is another one each time.
            heads.push(without_key(&head));
        }
        if choice & 4 != 0 {
            // A header behind a body is a trailer section.
            session.feed(&frame(DATA, 0, stream, b"x"));
        }
        let count = session.with_output(<[u8]>::len);
        session.sent(count);
    }
    (heads, session.is_over())
}

fn without_key(head: &[u8]) -> Vec<u8> {
    let lines = head.split_inclusive(|byte| *byte == b'\n');
    let is_key = |line: &&[u8]| line.starts_with(b"Sec-WebSocket-Key: ");
    lines
        .filter(|line| !is_key(line))
        .flatten()
        .copied()
        .collect()
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u16).to_be_bytes();
    let header = [0, length[0], length[1], kind, flags, 0, 0, 0, stream];
    [&header, payload].concat()
}
