//! Translates an HTTP/1.1 response to HTTP/2: its header, and its body without chunks.

use std::mem::MaybeUninit;

use headway_http::chunked::{ChunkedDrain, DrainLimits};

use crate::hpack::encoder::Encoder;
use crate::request::{is_token, is_value};
use crate::websocket;

/// The most headers in a response.
const HEADERS_MAX: usize = 128;
/// The longest header of a response.
pub(crate) const HEAD_BYTES_MAX: usize = 64 << 10;

/// How the body of a response is framed in HTTP/1.1.
pub(crate) enum Body {
    /// By its length. This number of bytes is left.
    Length(u64),
    /// In chunks.
    Chunked(Box<ChunkedDrain>),
    /// It has no length, and ends with the response.
    ToEnd,
}

impl Body {
    /// Whether the next bytes are the framing of chunks, not data.
    pub(crate) fn is_between_data(&self) -> bool {
        self.frame_bytes(b"?") > 0
    }

    /// Writes the trailers of a body that has ended. Returns whether there are any.
    pub(crate) fn encode_trailers(&self, encoder: &mut Encoder, block: &mut Vec<u8>) -> bool {
        let Body::Chunked(chunks) = self else {
            return false;
        };
        let mut any = false;
        for line in chunks.trailers().split(|byte| *byte == b'\n') {
            let mut parts = line.splitn(2, |byte| *byte == b':');
            if let (Some(name), Some(value)) = (parts.next(), parts.next())
                && is_token(name)
                && is_value(value.trim_ascii())
                && !is_of_connection(name)
            {
                if !std::mem::replace(&mut any, true) {
                    encoder.begin(block);
                }
                encoder.header(block, name, value.trim_ascii());
            }
        }
        any
    }

    /// How many of the first bytes are the framing of chunks, not data.
    pub(crate) fn frame_bytes(&self, bytes: &[u8]) -> usize {
        let Body::Chunked(chunks) = self else {
            return 0;
        };
        let mut rest = bytes;
        let data = chunks.clone().next_piece(&mut rest);
        bytes.len() - rest.len() - data.map_or(0, <[u8]>::len)
    }
}

/// Whether a header is connection-specific: it has no meaning in HTTP/2 (RFC 9113, 8.2.2).
fn is_of_connection(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 5] = [
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"transfer-encoding",
        b"upgrade",
    ];
    NAMES.iter().any(|own| name.eq_ignore_ascii_case(own))
}

/// A response's header, whose header block was written.
pub(crate) struct Translated {
    /// The status that the client gets.
    pub(crate) status: u16,
    pub(crate) body: Body,
    /// The length of the HTTP/1.1 header.
    pub(crate) length: usize,
    /// The HTTP/1.1 response has the status 101. Only a WebSocket may have it.
    pub(crate) changes_protocol: bool,
}

/// Writes the header block of a response, unless it is an interim one. `websocket_answer` is the expected
/// `Sec-WebSocket-Accept`. `None` if the header is not complete, an error if it is invalid.
pub(crate) fn translate(
    head: &[u8],
    is_head: bool,
    websocket_answer: Option<&str>,
    encoder: &mut Encoder,
    block: &mut Vec<u8>,
) -> Result<Option<Translated>, ()> {
    // Not initialized, because most responses have few headers.
    let mut slots = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut parsed = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    let length = match config.parse_response_with_uninit_headers(&mut parsed, head, &mut slots) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if head.len() < HEAD_BYTES_MAX => return Ok(None),
        _ => return Err(()),
    };
    let own = parsed.code.filter(|code| *code >= 100).ok_or(())?;
    let (mut body, mut accept) = (Body::ToEnd, None);
    for header in parsed.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("transfer-encoding") {
            body = chunked();
        } else if is("content-length") && !matches!(body, Body::Chunked(_)) {
            body = Body::Length(headway_http::decimal(header.value).ok_or(())?);
        } else if is("sec-websocket-accept") {
            accept = Some(header.value);
        }
    }
    let replaced = websocket_answer.and_then(|expected| websocket::replaced(own, accept, expected));
    let status = replaced.unwrap_or(own);
    let is_open = replaced == Some(200);
    let has_none = is_head || matches!(status, 100..=199 | 204 | 304);
    let body = match replaced {
        Some(200) => Body::ToEnd,
        Some(_) => Body::Length(0),
        None if has_none => Body::Length(0),
        None => body,
    };
    if status >= 200 {
        encoder.begin(block);
        Encoder::status(block, status);
        // An error that replaces the upstream's answer has none of its headers.
        let headers = if replaced.is_none() || is_open {
            &*parsed.headers
        } else {
            &[]
        };
        for header in headers {
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            let is_left_out = is_of_connection(header.name.as_bytes())
                || (is_open && is("sec-websocket-accept"))
                || (matches!(body, Body::Chunked(_)) && is("content-length"));
            if !is_left_out {
                encoder.header(block, header.name.as_bytes(), header.value);
            }
        }
    }
    Ok(Some(Translated {
        status,
        body,
        length,
        changes_protocol: own == 101,
    }))
}

fn chunked() -> Body {
    let chunks = ChunkedDrain::new(DrainLimits {
        body_bytes_max: u64::MAX,
        extension_bytes_max: 0,
        trailer_bytes_max: HEAD_BYTES_MAX as u32,
    });
    Body::Chunked(Box::new(chunks.keeping_trailers()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hpack::Decoder;

    /// The translated response, and its headers.
    fn translated(head: &[u8], is_head: bool) -> Result<Option<(Translated, Vec<String>)>, ()> {
        let (mut encoder, mut block) = (Encoder::new(), Vec::new());
        let translated = translate(head, is_head, None, &mut encoder, &mut block)?;
        let mut headers = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let mut decoder = Decoder::default();
        decoder
            .decode(&block, |name, value| {
                headers.push(format!("{}: {}", text(name), text(value)));
                true
            })
            .unwrap();
        Ok(translated.map(|translated| (translated, headers)))
    }

    #[test]
    fn connection_specific_headers_are_left_out() {
        let head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nKeep-Alive: x\r\nETag: \"a\"\r\n\
            Content-Length: 5\r\n\r\nhello";
        let (translated, headers) = translated(head, false).unwrap().unwrap();
        assert_eq!(translated.length, head.len() - 5);
        assert!(matches!(translated.body, Body::Length(5)));
        assert_eq!(
            headers,
            [":status: 200", "etag: \"a\"", "content-length: 5"]
        );
    }

    #[test]
    fn length_is_left_out_when_the_body_is_chunked() {
        for lines in [
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        ] {
            let head = format!("HTTP/1.1 200 OK\r\n{lines}\r\n");
            let (translated, headers) = translated(head.as_bytes(), false).unwrap().unwrap();
            assert!(matches!(translated.body, Body::Chunked(_)));
            assert_eq!(headers, [":status: 200"]);
        }
    }

    #[test]
    fn response_without_a_body_expects_no_data() {
        for (head, is_head) in [
            ("HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n", true),
            ("HTTP/1.1 204 No Content\r\n\r\n", false),
        ] {
            let (translated, _) = translated(head.as_bytes(), is_head).unwrap().unwrap();
            assert!(matches!(translated.body, Body::Length(0)), "{head}");
        }
    }

    #[test]
    fn incomplete_header_is_none_and_an_invalid_one_is_an_error() {
        assert!(
            translated(b"HTTP/1.1 200 OK\r\nA: b\r\n", false)
                .unwrap()
                .is_none()
        );
        assert!(translated(b"HTTP/1.1 abc\r\n\r\n", false).is_err());
        assert!(translated(&[b'a'; HEAD_BYTES_MAX], false).is_err());
    }
}
