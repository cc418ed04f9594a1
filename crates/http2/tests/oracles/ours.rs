//! What our session makes of a case. The fuzz target http2_oracle uses this file, too.

use std::io::IoSlice;

use headway_http::{HeadLimits, Parsed, parse};
use headway_http2::{Received, Session, Settings, Stream};

use super::outcome::{Headers, Outcome, Step, of_http1};

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// An open request.
struct Request {
    stream: Stream,
    is_chunked: bool,
}

/// Runs a case. The outcome is one for each step.
pub fn run(steps: &[Step]) -> Vec<Outcome> {
    let mut session = Session::new(Settings {
        streams_max: 100,
        header_bytes_max: 16 << 10,
        scheme: Some("http"),
    });
    let (mut requests, mut left) = (Vec::new(), Vec::new());
    let mut run = |step: &Step| {
        let mut outcome = Outcome::default();
        match step {
            Step::Feed(bytes) if session.takes_input() => session.feed(bytes),
            Step::Feed(_) => {}
            Step::Answer(stream) => answer(&mut requests, *stream),
        }
        while accept(&mut session, &mut requests, &mut outcome) || session.go_on() {}
        requests
            .iter_mut()
            .for_each(|request| read(request, &mut outcome));
        let count = session.with_output(|output| {
            left.extend_from_slice(output);
            output.len()
        });
        session.sent(count);
        let used = see(&left, matches!(step, Step::Answer(_)), &mut outcome);
        left.drain(..used);
        outcome
    };
    steps.iter().map(&mut run).collect()
}

fn accept(session: &mut Session, requests: &mut Vec<Request>, outcome: &mut Outcome) -> bool {
    let Some((head, stream)) = session.next_request() else {
        return false;
    };
    let is_chunked = head.ends_with(b"\r\nTransfer-Encoding: chunked\r\n\r\n");
    let limits = HeadLimits {
        is_http2: true,
        ..HeadLimits::default()
    };
    if !matches!(parse(&head, &limits), Parsed::Complete(..)) {
        outcome.refused.push(stream.id());
    }
    outcome.requests.push((stream.id(), of_http1(&head)));
    requests.push(Request { stream, is_chunked });
    true
}

fn answer(requests: &mut Vec<Request>, id: u32) {
    let Some(at) = requests.iter().position(|one| one.stream.id() == id) else {
        return;
    };
    let mut request = requests.remove(at);
    let _ = request.stream.send(&[IoSlice::new(RESPONSE)]);
}

/// Reads what has come of a body, and its trailers.
fn read(request: &mut Request, outcome: &mut Outcome) {
    let id = request.stream.id();
    let mut buffer = vec![0; 128 << 10];
    while let Received::Data(count) = request.stream.receive(&mut buffer) {
        let mut data = &buffer[..count];
        if request.is_chunked {
            let at = data
                .windows(2)
                .position(|two| two == b"\r\n")
                .expect("a chunk");
            if let Some(rest) = data.strip_prefix(b"0\r\n") {
                outcome.ends.push(id);
                let headers = lines(rest);
                if !headers.is_empty() {
                    outcome.trailers.push((id, headers));
                }
                continue;
            }
            data = data[at + 2..].strip_suffix(b"\r\n").expect("a whole chunk");
        }
        outcome.data.entry(id).or_default().extend_from_slice(data);
    }
}

fn lines(text: &[u8]) -> Headers {
    let text = text.strip_suffix(b"\r\n").expect("whole trailers");
    let mut all = Vec::new();
    for line in text
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
    {
        let line = line.strip_suffix(b"\r").expect("a line");
        let at = line
            .windows(2)
            .position(|two| two == b": ")
            .expect("a header line");
        all.push((line[..at].to_vec(), line[at + 2..].to_vec()));
    }
    all
}

/// Reads our frames; responses without an `answer` are refusals. Returns how many bytes are whole frames.
fn see(output: &[u8], has_answered: bool, outcome: &mut Outcome) -> usize {
    use headway_http2::frame::{ACK, GOAWAY, HEADERS, Header, PING, RST_STREAM, SETTINGS};
    let mut at = 0;
    while let Some((header, rest)) = output[at..].split_first_chunk() {
        let header = Header::read(header);
        let Some(payload) = rest.get(..header.length) else {
            break;
        };
        let code = |at: usize| u32::from_be_bytes(*payload[at..].first_chunk().unwrap());
        match header.kind {
            RST_STREAM => {
                outcome.resets.entry(header.stream).or_insert(code(0));
            }
            HEADERS if !has_answered => outcome.refused.push(header.stream),
            GOAWAY => outcome.goaway = Some(code(4)),
            PING if header.has(ACK) => outcome.pongs.push(payload.to_vec()),
            SETTINGS if header.has(ACK) => outcome.acks += 1,
            _ => {}
        }
        at += 9 + header.length;
    }
    at
}
