//! Frames of HTTP/2 as bytes, valid or not: for clients that no library would be (RFC 9113, 4 and 6).
//!
//! Headers are literals which no table keeps (RFC 7541, 6.2.2), so that they need no state.

use std::io::Read;

/// What a client sends first.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Part of a body.
pub const DATA: u8 = 0;
/// The header of a message.
pub const HEADERS: u8 = 1;
/// An older way to say what is urgent.
pub const PRIORITY: u8 = 2;
/// The end of a stream in the middle.
pub const RST_STREAM: u8 = 3;
/// What the sender accepts.
pub const SETTINGS: u8 = 4;
/// A question whether the other end is there.
pub const PING: u8 = 6;
/// No more streams.
pub const GOAWAY: u8 = 7;
/// Room for more data.
pub const WINDOW_UPDATE: u8 = 8;
/// More of a header.
pub const CONTINUATION: u8 = 9;

/// The last frame of its stream.
pub const END_STREAM: u8 = 1;
/// The answer to SETTINGS or PING.
pub const ACK: u8 = 1;
/// No CONTINUATION follows.
pub const END_HEADERS: u8 = 4;

/// A setting: the window of a new stream.
pub const INITIAL_WINDOW_SIZE: u16 = 4;

/// One frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, high, middle, low] = (payload.len() as u32).to_be_bytes();
    let mut bytes = vec![high, middle, low, kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// SETTINGS.
pub fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (name, value) in values {
        payload.extend(name.to_be_bytes());
        payload.extend(value.to_be_bytes());
    }
    frame(SETTINGS, 0, 0, &payload)
}

/// What a client says first: the preface, and its settings.
pub fn hello(values: &[(u16, u32)]) -> Vec<u8> {
    [PREFACE, &settings(values), &frame(SETTINGS, ACK, 0, &[])].concat()
}

/// A number with a prefix of this many bits, under `first` (RFC 7541, 5.1).
fn integer(bytes: &mut Vec<u8>, first: u8, bits: u8, value: usize) {
    let most = (1 << bits) - 1;
    if value < most {
        return bytes.push(first | value as u8);
    }
    bytes.push(first | most as u8);
    let mut rest = value - most;
    while rest >= 128 {
        bytes.push(rest as u8 | 128);
        rest >>= 7;
    }
    bytes.push(rest as u8);
}

fn literal(bytes: &mut Vec<u8>, first: u8, (name, value): (&[u8], &[u8])) {
    bytes.push(first);
    for text in [name, value] {
        integer(bytes, 0, 7, text.len());
        bytes.extend(text);
    }
}

/// A header block: literals without indexing.
pub fn block<N: AsRef<[u8]>, V: AsRef<[u8]>>(headers: &[(N, V)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in headers {
        literal(&mut bytes, 0, (name.as_ref(), value.as_ref()));
    }
    bytes
}

/// A header that the receiver keeps in its table, as its entry 62.
pub fn kept(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    literal(&mut bytes, 64, (name, value));
    bytes
}

/// That entry again.
pub const KEPT_AGAIN: u8 = 128 | 62;

/// The pseudo-headers of a request, and a host.
pub fn request_block(method: &str, path: &str) -> Vec<u8> {
    block(&[
        (":method", method),
        (":scheme", "http"),
        (":authority", "test"),
        (":path", path),
    ])
}

/// A request without a body.
pub fn get(stream: u32, path: &str) -> Vec<u8> {
    let block = request_block("GET", path);
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &block)
}

/// RST_STREAM: the client gives a stream up.
pub fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())
}

/// WINDOW_UPDATE; stream 0 is the connection.
pub fn window_update(stream: u32, bytes: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())
}

/// A frame that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// As [`DATA`].
    pub kind: u8,
    /// As [`END_STREAM`].
    pub flags: u8,
    /// Its stream; 0 is the connection.
    pub stream: u32,
    /// What is in it.
    pub payload: Vec<u8>,
}

impl Frame {
    /// The whole frames at the front of some bytes, and what follows.
    pub fn split(mut bytes: &[u8]) -> (Vec<Frame>, &[u8]) {
        let mut frames = Vec::new();
        while let Some((header, rest)) = bytes.split_at_checked(9) {
            let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
            let Some((payload, rest)) = rest.split_at_checked(length) else {
                break;
            };
            frames.push(Frame::new(header, payload));
            bytes = rest;
        }
        (frames, bytes)
    }

    /// Reads one frame. `None` at the end, also in the middle of a frame.
    pub fn read(stream: &mut impl Read) -> Option<Frame> {
        let mut header = [0; 9];
        stream.read_exact(&mut header).ok()?;
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).ok()?;
        Some(Frame::new(&header, &payload))
    }

    fn new(header: &[u8], payload: &[u8]) -> Frame {
        let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
        Frame {
            kind: header[3],
            flags: header[4],
            stream: stream & (u32::MAX >> 1),
            payload: payload.to_vec(),
        }
    }

    /// Whether it ends its stream well.
    pub fn is_last(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }

    /// The error code of RST_STREAM or GOAWAY.
    pub fn error(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        let code = self.payload[at..].first_chunk();
        code.map_or(u32::MAX, |code| u32::from_be_bytes(*code))
    }
}
