//! Conversations of a client that are valid, nearly valid or wrong, from a seed.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;

use headway_http2::{Session, frame};
use headway_test_support::http2::{block, frame, get, hello, settings};

use super::outcome::{Step, begin};
use crate::client::{LIMITS, Sizes};

use frame::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HAS_PRIORITY, HEADERS, Header,
    PADDED, PAYLOAD_BYTES_MAX, PING, PRIORITY, PRIORITY_UPDATE, PUSH_PROMISE, RST_STREAM, SETTINGS,
};

/// Names and values of many clients, and some that no client should send.
const NAMES: [&str; 12] = [
    "accept",
    "user-agent",
    "x-a",
    "x-b",
    "cookie",
    "te",
    "accept-language",
    "if-none-match",
    "priority",
    "range",
    "expect",
    "x-long",
];
const VALUES: [&str; 10] = [
    "",
    "*/*",
    "a=1",
    "trailers",
    "en-GB,en;q=0.9",
    "\"6929a1b0-1f4\"",
    "u=0, i",
    "bytes=0-1",
    "100-continue",
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)",
];
const WRONG: [(&str, &str); 18] = [
    ("connection", "close"),
    ("keep-alive", "1"),
    ("proxy-connection", "x"),
    ("transfer-encoding", "chunked"),
    ("upgrade", "h2c"),
    ("te", "gzip"),
    ("X-A", "1"),
    ("", "1"),
    ("x a", "1"),
    ("x:a", "1"),
    ("x-a", "1\r\nx: 2"),
    ("x-a", "1\0"),
    ("x-a", " 1"),
    ("x-a", "1\t"),
    ("content-length", "x"),
    ("content-length", "-1"),
    (":path", "/late"),
    (":unknown", "1"),
];

/// What the client knows of its streams.
struct Open {
    id: u32,
    /// Bytes of the body that its length leaves.
    left: Option<usize>,
    is_sent: bool,
}

pub struct Generator {
    random: Sizes,
    steps: Vec<Step>,
    /// The dynamic table of the client, the newest entry first.
    table: VecDeque<(String, String)>,
    table_bytes: usize,
    table_bytes_max: usize,
    next: u32,
    streams: Vec<Open>,
}

/// The case of a seed. Each frame is a step.
pub fn case(seed: u64) -> Vec<Step> {
    let mut generator = Generator {
        random: Sizes::new(seed),
        steps: begin(),
        table: VecDeque::new(),
        table_bytes: 0,
        table_bytes_max: 4096,
        next: 1,
        streams: Vec::new(),
    };
    // The first numbers of neighbouring seeds are similar.
    (0..8).for_each(|_| _ = generator.random.next(2));
    for _ in 0..2 + generator.below(30) {
        generator.add();
    }
    generator.steps
}

/// The case of a seed, with some bytes changed, removed or added. A changed length moves all that follows. Each frame
/// is a step, also of the new ones.
pub fn changed_case(seed: u64) -> Vec<Step> {
    let mut random = Sizes::new(seed ^ 0x5eed);
    let mut bytes = Vec::new();
    for step in &case(seed)[1..] {
        if let Step::Feed(frame) = step {
            bytes.extend(frame);
        }
    }
    for _ in 0..random.next(3) {
        let at = random.next(bytes.len() + 1) - 1;
        match random.next(4) {
            1 => bytes.insert(at, random.next(256) as u8),
            _ if at == bytes.len() => {}
            2 => _ = bytes.remove(at),
            _ => bytes[at] ^= 1 << (random.next(8) - 1),
        }
    }
    let mut steps = begin();
    let mut rest = &bytes[..];
    while let Some((header, _)) = rest.split_first_chunk() {
        let length = 9 + Header::read(header).length;
        let mut frame = rest[..length.min(rest.len())].to_vec();
        frame.resize(length.min(9 + PAYLOAD_BYTES_MAX), 0);
        steps.push(Step::Feed(frame));
        rest = rest.get(length..).unwrap_or_default();
    }
    steps
}

impl Generator {
    fn below(&mut self, most: usize) -> usize {
        self.random.next(most) - 1
    }

    fn chance(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Sends a frame, which is sometimes changed.
    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let (mut kind, mut flags, mut stream, mut payload) =
            (kind, flags, stream, payload.to_vec());
        if self.chance(60) {
            match self.below(6) {
                0 => kind = self.below(18) as u8,
                1 => flags ^= 1 << self.below(8),
                2 => stream = self.below(9) as u32,
                3 => payload.truncate(self.below(payload.len() + 1)),
                4 => payload.push(self.below(256) as u8),
                _ if payload.is_empty() => {}
                _ => {
                    let at = self.below(payload.len());
                    payload[at] ^= 1 << self.below(8);
                }
            }
        }
        self.steps
            .push(Step::Feed(frame(kind, flags, stream, &payload)));
    }

    fn add(&mut self) {
        match self.below(24) {
            0..8 => self.request(),
            8..13 => self.data(),
            13 => self.trailers(),
            14 | 15 => self.answer(),
            16 => self.reset(),
            17 => self.window_update(),
            18 => self.settings(),
            19 => self.ping(),
            20 => self.priority(),
            21 if self.chance(4) => self.rare(),
            _ => self.request(),
        }
    }

    /// A stream that is open, or seldom another one.
    fn stream(&mut self) -> u32 {
        match self.below(12) {
            0 => self.one_of(&[0, 2, self.next, self.next + 2]),
            1 => 1 + 2 * self.below(self.next as usize / 2 + 1) as u32,
            _ if self.streams.is_empty() => self.next.saturating_sub(2),
            _ => {
                let at = self.below(self.streams.len());
                self.streams[at].id
            }
        }
    }

    fn request(&mut self) {
        let method = self.one_of(&["GET", "GET", "POST", "POST", "HEAD", "PUT"]);
        let path = self.one_of(&["/", "/index.html", "/a?b=c", "/x#y", "*"]);
        let scheme = self.one_of(&["http", "http", "https"]);
        let mut headers = vec![
            (":method", method),
            (":scheme", scheme),
            (":authority", "test"),
            (":path", path),
        ];
        for _ in 0..self.below(6) {
            let name = self.one_of(&NAMES);
            let value = if name == "te" {
                "trailers"
            } else {
                self.one_of(&VALUES)
            };
            headers.push((name, value));
        }
        let has_body = self.chance(2);
        let length = self.one_of(&["0", "1", "5", "300"]);
        let mut left = None;
        if has_body && self.chance(2) {
            headers.push(("content-length", length));
            left = length.parse().ok();
        }
        if self.chance(12) {
            let at = self.below(headers.len() + 1);
            headers.insert(at, self.one_of(&WRONG));
        } else if self.chance(20) {
            let at = self.below(headers.len());
            match self.below(3) {
                0 => _ = headers.remove(at),
                1 => headers.insert(at, headers[at]),
                _ => {
                    headers[at].1 =
                        self.one_of(&["", "CONNECT", "a b", "other.example", "\u{1}", "x"])
                }
            }
        }
        let id = match self.below(40) {
            0 => self.stream(),
            1 => self.next + 2,
            _ => self.next,
        };
        let block = self.encode(&headers);
        self.header_frames(id, &block, !has_body);
        if id % 2 == 1 {
            self.next = self.next.max(id + 2);
            self.streams.push(Open {
                id,
                left,
                is_sent: !has_body,
            });
        }
    }

    /// HEADERS with or without padding and priority, and CONTINUATION.
    fn header_frames(&mut self, id: u32, block: &[u8], is_last: bool) {
        let pieces = if self.chance(4) { 1 + self.below(4) } else { 1 };
        let size = block.len().div_ceil(pieces).max(1);
        let mut parts: Vec<&[u8]> = block.chunks(size).collect();
        if parts.is_empty() {
            parts.push(b"");
        }
        let (mut flags, mut payload) = (if is_last { END_STREAM } else { 0 }, Vec::new());
        if self.chance(5) {
            flags |= HAS_PRIORITY;
            let on = if self.chance(20) {
                id
            } else {
                self.below(9) as u32
            };
            payload.extend(on.to_be_bytes());
            payload.push(16);
        }
        payload.extend(parts[0]);
        flags |= self.pad(&mut payload);
        if parts.len() == 1 {
            flags |= END_HEADERS;
        }
        self.send(HEADERS, flags, id, &payload);
        for at in 1..parts.len() {
            if self.chance(40) {
                self.ping();
            }
            let flags = if at + 1 == parts.len() {
                END_HEADERS
            } else {
                0
            };
            self.send(CONTINUATION, flags, id, parts[at]);
        }
    }

    /// Pads a payload, or not. Seldom it says that there is more padding than there is. Returns the flag.
    fn pad(&mut self, payload: &mut Vec<u8>) -> u8 {
        if !self.chance(5) {
            return 0;
        }
        let padding = self.below(20);
        let said = if self.chance(20) { 250 } else { padding };
        payload.insert(0, said as u8);
        payload.resize(payload.len() + padding, 0);
        PADDED
    }

    fn data(&mut self) {
        let id = self.stream();
        let open = self.streams.iter().find(|one| one.id == id && !one.is_sent);
        let wanted = open.and_then(|one| one.left);
        let is_valid = !self.chance(8);
        let (mut size, mut is_last) = (self.below(200), self.chance(2));
        if let (Some(left), true) = (wanted, is_valid) {
            size = size.min(left);
            is_last &= size == left;
        }
        let mut payload: Vec<u8> = (0..size).map(|at| at as u8).collect();
        let mut flags = if is_last { END_STREAM } else { 0 };
        flags |= self.pad(&mut payload);
        if let Some(one) = self.streams.iter_mut().find(|one| one.id == id) {
            one.left = one.left.map(|left| left.saturating_sub(size));
            one.is_sent |= is_last;
        }
        self.send(DATA, flags, id, &payload);
    }

    fn trailers(&mut self) {
        let id = self.stream();
        let mut headers = vec![("x-checksum", "1")];
        if self.chance(6) {
            headers.push(self.one_of(&[
                (":path", "/"),
                ("te", "trailers"),
                ("connection", "x"),
                ("X", "1"),
            ]));
        }
        let is_last = !self.chance(8);
        if let Some(one) = self.streams.iter_mut().find(|one| one.id == id) {
            one.is_sent |= is_last;
        }
        let block = self.encode(&headers);
        self.header_frames(id, &block, is_last);
    }

    fn answer(&mut self) {
        let id = self.stream();
        self.streams.retain(|one| one.id != id);
        self.steps.push(Step::Answer(id));
    }

    fn reset(&mut self) {
        let id = self.stream();
        self.send(RST_STREAM, 0, id, &8_u32.to_be_bytes());
        self.streams.retain(|one| one.id != id);
    }

    fn window_update(&mut self) {
        let id = self.stream();
        let more = self.one_of(&[1, 100, 65_535, 0x8000_0001, 1 << 20, 0, u32::MAX >> 1]);
        let id = if self.chance(2) { 0 } else { id };
        self.send(frame::WINDOW_UPDATE, 0, id, &more.to_be_bytes());
    }

    fn settings(&mut self) {
        let name = 1 + self.below(9) as u16;
        let value = match self.below(3) {
            0 => self.one_of(&[
                0,
                1,
                2,
                100,
                16_383,
                16_384,
                65_535,
                1 << 24,
                u32::MAX >> 1,
                1 << 31,
            ]),
            _ => [0, 4096, 0, 100, 65_535, 16_384, 65_536, 1, 0, 0][usize::from(name)],
        };
        match self.below(8) {
            0 => self.send(SETTINGS, ACK, 0, &[]),
            1 => self.send(SETTINGS, 0, 0, &[]),
            _ => {
                let whole = settings(&[(name, value)]);
                self.send(SETTINGS, 0, 0, &whole[9..]);
            }
        }
    }

    fn ping(&mut self) {
        let flags = if self.chance(6) { ACK } else { 0 };
        self.send(PING, flags, 0, b"12345678");
    }

    fn priority(&mut self) {
        let id = self.stream();
        let on = if self.chance(10) { id } else { id + 2 };
        let mut payload = on.to_be_bytes().to_vec();
        payload.push(3);
        self.send(PRIORITY, 0, id, &payload);
    }

    fn rare(&mut self) {
        match self.below(5) {
            0 => self.send(GOAWAY, 0, 0, &[0; 8]),
            1 => self.send(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2]),
            2 => self.send(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=1"),
            3 => self.send(0x42, 255, 77, b"unknown"),
            _ => self.send(CONTINUATION, END_HEADERS, 1, b""),
        }
    }

    /// A header block that uses all forms of HPACK. Seldom it is wrong.
    fn encode(&mut self, headers: &[(&str, &str)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.chance(12) {
            let size = self.one_of(&[0, 50, 200, 1000, 4096]);
            integer(&mut bytes, 0x20, 5, size);
            self.table_bytes_max = size;
            self.evict(0);
        }
        for (name, value) in headers {
            self.encode_one(&mut bytes, name, value);
        }
        if self.chance(60) {
            // The next entry was evicted, or never existed.
            integer(&mut bytes, 0x80, 7, 62 + self.table.len());
        }
        if self.chance(150) {
            let wrong: [&[u8]; 8] = [
                &[0x80],
                &[0xff, 0x7f],
                &[0x20],
                &[0x3f, 0xe2, 0x1f],
                &[0x00, 0x81, 0x00, 0x00],
                &[0x00, 0x05, b'a'],
                &[0xff, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01],
                &[0x00, 0x84, 0xff, 0xff, 0xff, 0xff, 0x01, b'x'],
            ];
            bytes.extend(self.one_of(&wrong));
        }
        bytes
    }

    fn encode_one(&mut self, bytes: &mut Vec<u8>, name: &str, value: &str) {
        let is_it = |one: &(String, String)| one.0 == name && one.1 == value;
        if let Some(at) = self.table.iter().position(is_it)
            && !self.chance(10)
        {
            return integer(bytes, 0x80, 7, 62 + at);
        }
        // A few of the static table (RFC 7541, A).
        let whole = [
            (2, ":method", "GET"),
            (3, ":method", "POST"),
            (4, ":path", "/"),
            (5, ":path", "/index.html"),
            (6, ":scheme", "http"),
            (7, ":scheme", "https"),
        ];
        let known = whole.iter().find(|one| one.1 == name && one.2 == value);
        if let Some((index, ..)) = known
            && !self.chance(10)
        {
            return integer(bytes, 0x80, 7, *index);
        }
        let (first, bits) = self.one_of(&[(0x40, 6), (0x40, 6), (0x00, 4), (0x10, 4)]);
        let names = [
            (1, ":authority"),
            (2, ":method"),
            (4, ":path"),
            (7, ":scheme"),
            (19, "accept"),
            (28, "content-length"),
            (32, "cookie"),
            (35, "expect"),
            (58, "user-agent"),
        ];
        let in_table = self
            .table
            .iter()
            .position(|one| one.0 == name)
            .map(|at| 62 + at);
        let in_names = names.iter().find(|one| one.1 == name).map(|one| one.0);
        match in_names.or(in_table).filter(|_| !self.chance(6)) {
            Some(index) => integer(bytes, first, bits, index),
            None => {
                bytes.push(first);
                self.string(bytes, name);
            }
        }
        self.string(bytes, value);
        if first == 0x40 {
            let size = name.len() + value.len() + 32;
            self.evict(size);
            if size <= self.table_bytes_max {
                self.table_bytes += size;
                self.table.push_front((name.to_owned(), value.to_owned()));
            }
        }
    }

    /// Evicts the oldest entries until this many bytes have room.
    fn evict(&mut self, bytes: usize) {
        while self.table_bytes + bytes > self.table_bytes_max
            && let Some((name, value)) = self.table.pop_back()
        {
            self.table_bytes -= name.len() + value.len() + 32;
        }
    }

    fn string(&mut self, bytes: &mut Vec<u8>, text: &str) {
        if self.chance(2) {
            return bytes.extend(huffman(text));
        }
        integer(bytes, 0, 7, text.len());
        bytes.extend(text.as_bytes());
    }
}

/// A number with a prefix (RFC 7541, 5.1).
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

thread_local! {
    static HUFFMAN: RefCell<HashMap<String, Vec<u8>>> = RefCell::default();
}

/// A string as our encoder writes it in a response: in Huffman code if that is shorter.
fn huffman(text: &str) -> Vec<u8> {
    HUFFMAN.with_borrow_mut(|known| {
        known
            .entry(text.to_owned())
            .or_insert_with(|| encoded(text))
            .clone()
    })
}

fn encoded(text: &str) -> Vec<u8> {
    let is_plain = text.bytes().all(|byte| (b' '..0x7f).contains(&byte)) && text.trim() == text;
    if !is_plain || text.is_empty() {
        return [&block(&[("", text)])[2..]].concat();
    }
    let mut session = Session::new(LIMITS);
    session.feed(&[hello(&[]), get(1, "/")].concat());
    let (_, mut stream) = session.next_request().unwrap();
    let count = session.with_output(<[u8]>::len);
    session.sent(count);
    // Its name has the index 55, and it is never kept.
    let head = format!("HTTP/1.1 204 No Content\r\nset-cookie: {text}\r\n\r\n");
    stream.send(&[IoSlice::new(head.as_bytes())]).unwrap();
    session.with_output(|output| {
        let header = &output[9..];
        let at = header
            .windows(2)
            .position(|two| two == [0x0f, 0x28])
            .unwrap();
        header[at + 2..].to_vec()
    })
}
