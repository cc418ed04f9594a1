//! A request and its response over a socket.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use headway_gateway::{
    Codec, CodecError, Request, ResponseAction, ResponseEnd, ResponseEvent, ResponseHead,
};
use headway_http::{HeadLimits, Parsed};

/// Parses a request and passes it to `make`.
pub fn with_request<T>(bytes: &[u8], make: impl FnOnce(&Request<'_>) -> T) -> T {
    let Parsed::Complete(head) = headway_http::parse(bytes, &HeadLimits::default()) else {
        panic!("{}", bytes.escape_ascii());
    };
    make(&Request::new(&head, bytes))
}

/// The response.
#[derive(Debug)]
pub struct Response {
    pub answer: Option<ResponseAction>,
    pub body: Vec<u8>,
    pub stderr: String,
    pub end: Result<ResponseEnd, CodecError>,
}

impl Response {
    pub fn response(&self) -> &ResponseHead {
        match &self.answer {
            Some(ResponseAction::Response(response)) => response,
            _ => panic!("{self:?}"),
        }
    }

    pub fn field(&self, name: &str) -> &str {
        let value = self.response().fields.get(name.as_bytes());
        std::str::from_utf8(value.unwrap_or_default()).unwrap()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn has_line(&self, line: &str) -> bool {
        self.text().lines().any(|found| found == line)
    }
}

/// Sends the whole request, then reads the whole response. These servers read a request before they
/// answer it.
pub fn converse(codec: &mut dyn Codec, stream: &mut UnixStream, body: &[u8]) -> Response {
    let mut bytes = Vec::new();
    let mut outcome = converse_into(codec, stream, body, &mut |piece| {
        bytes.extend_from_slice(piece)
    });
    outcome.body = bytes;
    outcome
}

/// Like [`converse`], for a body that is too large to be kept.
pub fn converse_into(
    codec: &mut dyn Codec,
    stream: &mut UnixStream,
    mut body: &[u8],
    sink: &mut dyn FnMut(&[u8]),
) -> Response {
    let mut outcome = Response {
        answer: None,
        body: Vec::new(),
        stderr: String::new(),
        end: Err(CodecError::Closed),
    };
    loop {
        body = &body[codec.push_body(body)..];
        if body.is_empty() {
            codec.end_body(&headway_gateway::FieldList::default());
        }
        if codec.unsent().is_empty() {
            break;
        }
        let written = stream.write(codec.unsent()).unwrap();
        codec.sent(written);
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
            outcome.end = codec.finish();
            return outcome;
        }
        loop {
            match codec.feed(&mut input) {
                Ok(None) => break,
                Ok(Some(ResponseEvent::Head(answer))) => outcome.answer = Some(answer),
                Ok(Some(ResponseEvent::Body(piece))) => sink(piece),
                Ok(Some(ResponseEvent::Stderr(text))) => {
                    outcome.stderr += &String::from_utf8_lossy(text);
                }
                Ok(Some(ResponseEvent::End(end))) => {
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
