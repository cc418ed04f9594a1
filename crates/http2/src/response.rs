//! Translates an HTTP/1.1 response to HTTP/2: its header, and its body without chunks.

use headway_http::chunked::{ChunkedDrain, DrainLimits};
use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE,
};
use http::{Response, StatusCode, Version};

/// The most headers in a response.
const HEADERS_MAX: usize = 128;
/// A longer header of a response is refused.
pub(crate) const HEAD_BYTES_MAX: usize = 64 << 10;

/// How the body of a response is framed in HTTP/1.1.
pub(crate) enum Body {
    /// This number of bytes is left.
    Length(u64),
    /// In chunks.
    Chunked(Box<ChunkedDrain>),
    /// It ends with the connection.
    ToEnd,
}

impl Body {
    /// Whether what comes next is not data but framing of chunks.
    pub(crate) fn is_between_data(&self) -> bool {
        self.frame_bytes(b"?") > 0
    }

    /// How many bytes at the front are not data but framing of chunks.
    pub(crate) fn frame_bytes(&self, bytes: &[u8]) -> usize {
        let Body::Chunked(chunks) = self else {
            return 0;
        };
        let mut rest = bytes;
        let data = chunks.clone().next_piece(&mut rest);
        bytes.len() - rest.len() - data.map_or(0, <[u8]>::len)
    }
}

/// A response's header.
pub(crate) struct Translated {
    pub(crate) response: Response<()>,
    pub(crate) body: Body,
    /// The length of the header of HTTP/1.1.
    pub(crate) length: usize,
}

/// `None` if the header is not complete, an error if it is invalid.
pub(crate) fn translate(head: &[u8], is_head: bool) -> Result<Option<Translated>, ()> {
    let mut slots = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Response::new(&mut slots);
    let length = match parsed.parse(head) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if head.len() < HEAD_BYTES_MAX => return Ok(None),
        _ => return Err(()),
    };
    let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or(())?;
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.version_mut() = Version::HTTP_2;
    let mut body = Body::ToEnd;
    for header in parsed.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(drop)?;
        match name {
            TRANSFER_ENCODING => {
                body = Body::Chunked(Box::new(ChunkedDrain::new(DrainLimits {
                    body_bytes_max: u64::MAX,
                    extension_bytes_max: 0,
                    trailer_bytes_max: u32::MAX,
                })));
                continue;
            }
            CONNECTION | UPGRADE => continue,
            _ if name == "keep-alive" || name == "proxy-connection" => continue,
            _ => {}
        }
        let value = HeaderValue::from_bytes(header.value).map_err(drop)?;
        if name == CONTENT_LENGTH && !matches!(body, Body::Chunked(_)) {
            let length = value.to_str().ok().and_then(|text| text.parse().ok());
            body = Body::Length(length.ok_or(())?);
        }
        response.headers_mut().append(name, value);
    }
    let has_none = is_head || matches!(status.as_u16(), 100..=199 | 204 | 304);
    Ok(Some(Translated {
        response,
        body: if has_none { Body::Length(0) } else { body },
        length,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_of_the_connection_is_left_out() {
        let head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nKeep-Alive: x\r\nETag: \"a\"\r\n\
            Content-Length: 5\r\n\r\nhello";
        let translated = translate(head, false).unwrap().unwrap();
        assert_eq!(translated.length, head.len() - 5);
        assert!(matches!(translated.body, Body::Length(5)));
        let headers = translated.response.headers();
        let names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["etag", "content-length"]);
    }

    #[test]
    fn body_that_is_not_there_has_no_length() {
        for (head, is_head) in [
            ("HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n", true),
            ("HTTP/1.1 204 No Content\r\n\r\n", false),
        ] {
            let translated = translate(head.as_bytes(), is_head).unwrap().unwrap();
            assert!(matches!(translated.body, Body::Length(0)), "{head}");
        }
    }

    #[test]
    fn partial_header_waits_and_garbage_is_an_error() {
        assert!(
            translate(b"HTTP/1.1 200 OK\r\nA: b\r\n", false)
                .unwrap()
                .is_none()
        );
        assert!(translate(b"HTTP/1.1 abc\r\n\r\n", false).is_err());
        assert!(translate(&[b'a'; HEAD_BYTES_MAX], false).is_err());
    }
}
