//! Cases for the oracles, and what an implementation makes of each. The fuzz target http2_oracle uses this file, too.
//!
//! A case is a list of steps: bytes of the client, or a response without a body. As bytes: the number of steps; for
//! each step a byte (0 for bytes of the client, 1 for a response), the length of what follows, and that: the bytes, or
//! the number of the stream. Numbers have 4 bytes, the lowest first. An oracle writes lines:
//!
//! - `request STREAM NAME:VALUE …`, `trailers STREAM NAME:VALUE …` and `data STREAM BYTES`, all in hexadecimal digits;
//! - `end STREAM`: the client has sent END_STREAM;
//! - what it answers: `reset STREAM CODE`, `goaway CODE`, `pong BYTES`, `ack`;
//! - `failed REASON`: it gave up without an answer;
//! - `step` after each step, and `case` after the last one.

use std::collections::BTreeMap;

use headway_http2::PREFACE;

/// A part of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Feed(Vec<u8>),
    Answer(u32),
}

/// A case that begins with the preface.
pub fn begin() -> Vec<Step> {
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let answer = [0, 0, 0, 4, 1, 0, 0, 0, 0];
    vec![Step::Feed([PREFACE, &settings, &answer].concat())]
}

/// A case as an oracle reads it.
pub fn encode(steps: &[Step]) -> Vec<u8> {
    let mut bytes = (steps.len() as u32).to_le_bytes().to_vec();
    for step in steps {
        let (kind, part) = match step {
            Step::Feed(part) => (0, part.clone()),
            Step::Answer(stream) => (1, stream.to_le_bytes().to_vec()),
        };
        bytes.push(kind);
        bytes.extend((part.len() as u32).to_le_bytes());
        bytes.extend(part);
    }
    bytes
}

pub type Headers = Vec<(Vec<u8>, Vec<u8>)>;

/// What came of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Requests as [`as_http1`] shows them.
    pub requests: Vec<(u32, Headers)>,
    pub trailers: Vec<(u32, Headers)>,
    pub data: BTreeMap<u32, Vec<u8>>,
    /// Bodies that have ended, where their end has a sign of its own in HTTP/1.1.
    pub ends: Vec<u32>,
    /// The first code of each stream.
    pub resets: BTreeMap<u32, u32>,
    pub goaway: Option<u32>,
    pub pongs: Vec<Vec<u8>>,
    pub acks: usize,
    pub failed: Option<String>,
    /// Requests that get the answer 400 or 431 at once. Only we say this.
    pub refused: Vec<u32>,
}

impl Outcome {
    /// Adds what came of the next step.
    pub fn extend(&mut self, next: &Outcome) {
        self.requests.extend_from_slice(&next.requests);
        self.trailers.extend_from_slice(&next.trailers);
        for (stream, data) in &next.data {
            self.data
                .entry(*stream)
                .or_default()
                .extend_from_slice(data);
        }
        self.ends.extend_from_slice(&next.ends);
        for (stream, code) in &next.resets {
            self.resets.entry(*stream).or_insert(*code);
        }
        self.goaway = self.goaway.or(next.goaway);
        self.pongs.extend_from_slice(&next.pongs);
        self.acks += next.acks;
        self.refused.extend_from_slice(&next.refused);
        self.failed = self.failed.take().or(next.failed.clone());
    }
}

/// Reads the outcomes of all cases.
pub fn parse(text: &str) -> Vec<Vec<Outcome>> {
    let (mut cases, mut steps, mut now) = (Vec::new(), Vec::new(), Outcome::default());
    for line in text.lines() {
        let mut words = line.split(' ');
        let kind = words.next().unwrap();
        let rest: Vec<&str> = words.collect();
        let number = |at: usize| rest[at].parse::<u32>().unwrap();
        match kind {
            "request" => now
                .requests
                .push((number(0), as_http1(&headers(&rest[1..])))),
            "trailers" => now.trailers.push((number(0), headers(&rest[1..]))),
            "data" => now
                .data
                .entry(number(0))
                .or_default()
                .extend(bytes(rest[1])),
            "end" => now.ends.push(number(0)),
            "reset" => {
                now.resets.entry(number(0)).or_insert(number(1));
            }
            "goaway" => now.goaway = Some(number(0)),
            "pong" => now.pongs.push(bytes(rest[0])),
            "ack" => now.acks += 1,
            "failed" => now.failed = Some(rest.join(" ")),
            "step" => steps.push(std::mem::take(&mut now)),
            "case" => cases.push(std::mem::take(&mut steps)),
            _ => panic!("an oracle says: {line}"),
        }
    }
    cases
}

/// Reads headers of the form `NAME:VALUE`.
pub fn headers(words: &[&str]) -> Headers {
    let one = |word: &&str| {
        let (name, value) = word.split_once(':').unwrap();
        (bytes(name), bytes(value))
    };
    words.iter().map(one).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// What HTTP/1.1 says of a message's framing and of a WebSocket; it is compared by its effects.
const FRAMING: [&str; 6] = [
    "content-length",
    "transfer-encoding",
    "connection",
    "upgrade",
    "sec-websocket-key",
    "expect",
];

/// A request as its HTTP/1.1 header must show it, sorted.
pub fn as_http1(headers: &[(Vec<u8>, Vec<u8>)]) -> Headers {
    let of = |name: &str| headers.iter().find(|one| one.0 == name.as_bytes());
    let value = |name: &str| of(name).map_or(&b""[..], |one| &one.1[..]);
    let connects = value(":method") == b"CONNECT";
    let is_websocket = connects && value(":protocol") == b"websocket";
    let host = match of(":authority") {
        Some((_, authority)) => authority.clone(),
        None => value("host").to_vec(),
    };
    let path = value(":path").split(|byte| *byte == b'#').next().unwrap();
    let path = if path.is_empty() { b"/" } else { path };
    let is_other = !value(":scheme").eq_ignore_ascii_case(b"http") && of(":authority").is_some();
    let is_server = path == b"*" && is_other;
    let path = if is_server { b"" } else { path };
    let target = match (connects && !is_websocket, is_other) {
        (true, _) => host.clone(),
        (false, true) => [value(":scheme"), b"://", &host, path].concat(),
        (false, false) => path.to_vec(),
    };
    let method = if is_websocket {
        b"GET"
    } else {
        value(":method")
    };
    let mut all = vec![
        (b":method".to_vec(), method.to_vec()),
        (b":target".to_vec(), target),
    ];
    if !host.is_empty() {
        all.push((b"host".to_vec(), host));
    }
    let cookies: Vec<&[u8]> = headers
        .iter()
        .filter(|one| one.0 == b"cookie")
        .map(|one| &one.1[..])
        .collect();
    if !cookies.is_empty() {
        all.push((b"cookie".to_vec(), cookies.join(&b"; "[..])));
    }
    if of("te").is_some() {
        all.push((b"te".to_vec(), b"trailers".to_vec()));
    }
    let is_own = |name: &[u8]| {
        name.starts_with(b":")
            || [&b"cookie"[..], b"host", b"te"].contains(&name)
            || FRAMING.iter().any(|framing| framing.as_bytes() == name)
            || (is_websocket && name == b"sec-websocket-accept")
    };
    all.extend(headers.iter().filter(|one| !is_own(&one.0)).cloned());
    all.sort();
    all
}

/// The same of an HTTP/1.1 header.
pub fn of_http1(head: &[u8]) -> Headers {
    let text = head.strip_suffix(b"\r\n\r\n").expect("a whole header");
    let mut lines = text.split(|byte| *byte == b'\n');
    let first = lines.next().unwrap();
    let first = first.strip_suffix(b"\r").unwrap_or(first);
    let words: Vec<&[u8]> = first.split(|byte| *byte == b' ').collect();
    let [method, target, b"HTTP/2.0"] = words[..] else {
        panic!("a request line: {}", first.escape_ascii());
    };
    let mut all = vec![
        (b":method".to_vec(), method.to_vec()),
        (b":target".to_vec(), target.to_vec()),
    ];
    for line in lines {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let at = line
            .windows(2)
            .position(|two| two == b": ")
            .expect("a header line");
        let name = line[..at].to_ascii_lowercase();
        if !FRAMING.iter().any(|framing| framing.as_bytes() == name) {
            all.push((name, line[at + 2..].to_vec()));
        }
    }
    all.sort();
    all
}
