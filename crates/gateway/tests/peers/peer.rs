//! Talking to another program.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use headway_gateway::{Answer, End, Event, Exchange, Fault, Reply, Request};
use headway_http::{HeadLimits, Parsed};

/// Parses a request for whatever is made of it.
pub fn with_request<T>(bytes: &[u8], make: impl FnOnce(&Request<'_>) -> T) -> T {
    let Parsed::Complete(head) = headway_http::parse(bytes, &HeadLimits::default()) else {
        panic!("{}", bytes.escape_ascii());
    };
    make(&Request::new(&head, bytes))
}

/// What came back.
#[derive(Debug)]
pub struct Outcome {
    pub answer: Option<Answer>,
    pub body: Vec<u8>,
    pub stderr: String,
    pub end: Result<End, Fault>,
}

impl Outcome {
    pub fn reply(&self) -> &Reply {
        match &self.answer {
            Some(Answer::Reply(reply)) => reply,
            _ => panic!("{self:?}"),
        }
    }

    pub fn field(&self, name: &str) -> &str {
        let value = self.reply().fields.get(name.as_bytes());
        std::str::from_utf8(value.unwrap_or_default()).unwrap()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn has_line(&self, line: &str) -> bool {
        self.text().lines().any(|found| found == line)
    }
}

/// Sends all of a request, then reads all of its reply. The peers read a request before they answer
/// it.
pub fn converse(exchange: &mut dyn Exchange, stream: &mut UnixStream, body: &[u8]) -> Outcome {
    let mut bytes = Vec::new();
    let mut outcome = converse_into(exchange, stream, body, &mut |piece| {
        bytes.extend_from_slice(piece)
    });
    outcome.body = bytes;
    outcome
}

/// The same for a body that is too large to be kept.
pub fn converse_into(
    exchange: &mut dyn Exchange,
    stream: &mut UnixStream,
    mut body: &[u8],
    sink: &mut dyn FnMut(&[u8]),
) -> Outcome {
    let mut outcome = Outcome {
        answer: None,
        body: Vec::new(),
        stderr: String::new(),
        end: Err(Fault::Closed),
    };
    loop {
        body = &body[exchange.push_body(body)..];
        if body.is_empty() {
            exchange.end_body();
        }
        if exchange.unsent().is_empty() {
            break;
        }
        let written = stream.write(exchange.unsent()).unwrap();
        exchange.sent(written);
    }
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let bytes = match stream.read(&mut buffer) {
            Ok(bytes) => bytes,
            // A program that is killed leaves bytes of the request unread.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
            Err(error) => panic!("{error}"),
        };
        let mut input = &buffer[..bytes];
        if bytes == 0 {
            outcome.end = exchange.finish();
            return outcome;
        }
        loop {
            match exchange.feed(&mut input) {
                Ok(None) => break,
                Ok(Some(Event::Head(answer))) => outcome.answer = Some(answer),
                Ok(Some(Event::Body(piece))) => sink(piece),
                Ok(Some(Event::Stderr(words))) => {
                    outcome.stderr += &String::from_utf8_lossy(words);
                }
                Ok(Some(Event::End(end))) => {
                    outcome.end = Ok(end);
                    return outcome;
                }
                Err(fault) => {
                    outcome.end = Err(fault);
                    return outcome;
                }
            }
        }
    }
}
