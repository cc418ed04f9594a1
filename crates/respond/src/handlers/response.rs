//! A handler's response as it is sent to the client: the head with the server's own fields, and the
//! framing of the body.
//!
//! The handler decides status and fields; the gateway crate has validated them. The server adds
//! `Date`, `Server`, `Connection` and the framing: by length if it is known, otherwise in chunks,
//! and for HTTP/1.0 by the end of the connection. After `101 Switching Protocols` there is no body.
//!
//! Sources: RFC 9112 sections 6 and 7; RFC 9110 section 7.8; RFC 3875 section 6.2.2 (local
//! redirects).

use std::io::Write;

use headway_gateway::{FieldList, ResponseHead};
use headway_http::response::HeadWriter;
use headway_http::{Method, Version};
use headway_request::Frame;

use crate::ResponseContext;

/// Status of an upstream that accepts an upgrade.
pub const SWITCHING_PROTOCOLS: u16 = 101;

/// Returns the head of the response, the framing of its body, and whether the connection may stay
/// open.
///
/// `complete`: the whole body is here already, with this length.
pub fn begin_response(
    context: &ResponseContext<'_>,
    mut response: ResponseHead,
    complete: Option<u64>,
) -> (Vec<u8>, Frame, bool) {
    for own in ["Date", "Server"] {
        response.fields.remove(own.as_bytes());
    }
    if response.status == SWITCHING_PROTOCOLS {
        return (switch_protocols(context, &response), Frame::Upgraded, false);
    }
    let length = response.length.or(complete);
    let frame = match length {
        _ if response.is_bodiless() || context.head_only => Frame::Bodiless,
        Some(_) => Frame::Length,
        None if context.is_http10 => Frame::Close,
        None => Frame::Chunked,
    };
    let keep_alive = context.keep_alive && frame != Frame::Close;
    let mut head = Vec::with_capacity(512);
    response.write_head(&mut head);
    let writer = HeadWriter::resume(&mut head)
        .lines(&context.settings.server)
        .field("Date", context.date.text)
        .field_if_some("Server-Timing", context.timing.as_deref());
    let upgrade = response.required_upgrade();
    let options = match (keep_alive, context.is_http10, upgrade.is_some()) {
        (false, _, false) => Some("close"),
        (false, _, true) => Some("close, Upgrade"),
        (true, true, false) => Some("keep-alive"),
        (true, true, true) => Some("keep-alive, Upgrade"),
        (true, false, false) => None,
        (true, false, true) => Some("Upgrade"),
    };
    let writer = writer
        .field_if_some("Connection", options)
        .field_if_some("Upgrade", upgrade);
    let writer = match (frame, length) {
        (Frame::Length, Some(length)) => writer.field_u64("Content-Length", length),
        // The length that a GET would have, if the program declared it (RFC 9110, 8.6).
        (Frame::Bodiless, _) if !response.is_bodiless() => writer.field_if_some(
            "Content-Length",
            response.length.map(|length| length.to_string()),
        ),
        (Frame::Chunked, _) => writer.field("Transfer-Encoding", "chunked"),
        _ => writer,
    };
    context.apply_rules(writer).end();
    (head, frame, keep_alive)
}

/// The head of a 101 response; WebSocket is the only protocol that is offered.
fn switch_protocols(context: &ResponseContext<'_>, response: &ResponseHead) -> Vec<u8> {
    let mut head = Vec::with_capacity(512);
    response.write_head(&mut head);
    let writer = HeadWriter::resume(&mut head)
        .lines(&context.settings.server)
        .field("Date", context.date.text)
        .field("Connection", "Upgrade")
        .field("Upgrade", "websocket");
    context.apply_rules(writer).end();
    head
}

/// Frames bytes of the body, and its end if these are the last, with the trailers. Returns them and how many of
/// them are framing.
pub fn chunk(frame: Frame, body: Vec<u8>, last: Option<&FieldList>) -> (Vec<u8>, usize) {
    if frame != Frame::Chunked {
        return (body, 0);
    }
    let mut framed = Vec::with_capacity(body.len() + 24);
    if !body.is_empty() {
        // Writing to a Vec cannot fail.
        let _ = write!(framed, "{:x}\r\n", body.len());
        framed.extend_from_slice(&body);
        framed.extend_from_slice(b"\r\n");
    }
    if let Some(trailers) = last {
        framed.extend_from_slice(b"0\r\n");
        trailers.write(&mut framed);
        framed.extend_from_slice(b"\r\n");
    }
    let framing = framed.len() - body.len();
    (framed, framing)
}

/// Kinds of internal redirect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedirectKind {
    /// CGI local redirect: the handler has nothing more to do with the response (RFC 3875, 6.2.2).
    LocalRedirect,
    /// `X-Accel-Redirect` or `X-Sendfile`: only the body is taken from the new location.
    AccelRedirect,
}

/// The request after an internal redirect: GET (or HEAD) for `location`, with the fields of the
/// original request except those about its body. Ranges and conditions are kept for
/// `X-Accel-Redirect` if the original method was GET or HEAD. `close`: the connection cannot be
/// used afterwards.
pub fn redirected_request(
    request: &headway_gateway::Request<'_>,
    location: &[u8],
    how: RedirectKind,
    close: bool,
) -> Vec<u8> {
    let head = request.head;
    let method = match head.method {
        Method::Head => "HEAD",
        _ => "GET",
    };
    let mut bytes = Vec::with_capacity(head.length + location.len());
    for part in [
        method.as_bytes(),
        b" ",
        location,
        b" ",
        head.version.as_str().as_bytes(),
        b"\r\n",
    ] {
        bytes.extend_from_slice(part);
    }
    let is_get_or_head = matches!(head.method, Method::Get | Method::Head);
    for (name, value) in request.fields() {
        let is_close = close && name.eq_ignore_ascii_case(b"Connection");
        if is_close || !is_forwarded(name, how, is_get_or_head) {
            continue;
        }
        for part in [name, b": ", request.effective_value(name, value), b"\r\n"] {
            bytes.extend_from_slice(part);
        }
    }
    if close && head.version >= Version::Http11 {
        bytes.extend_from_slice(b"Connection: close\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes
}

/// Whether a request field is kept. `is_get_or_head`: the method is GET or HEAD.
fn is_forwarded(name: &[u8], how: RedirectKind, is_get_or_head: bool) -> bool {
    const BODY_FIELDS: &[&[u8]] = &[
        b"Content-Length",
        b"Content-Type",
        b"Content-Encoding",
        b"Transfer-Encoding",
        b"Trailer",
        b"Expect",
    ];
    const RANGE_FIELDS: &[&[u8]] = &[b"Range", b"If-Range"];
    const CONDITIONS: &[&[u8]] = &[
        b"If-Match",
        b"If-None-Match",
        b"If-Modified-Since",
        b"If-Unmodified-Since",
    ];
    let is = |known: &[&[u8]]| known.iter().any(|known| name.eq_ignore_ascii_case(known));
    let (keeps_part, keeps_conditions) = match how {
        RedirectKind::LocalRedirect => (false, true),
        RedirectKind::AccelRedirect => (is_get_or_head, is_get_or_head),
    };
    let left_out = is(BODY_FIELDS)
        || (!keeps_part && is(RANGE_FIELDS))
        || (!keeps_conditions && is(CONDITIONS));
    !left_out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunked_body_is_framed_and_terminated() {
        let mut trailers = FieldList::default();
        let framed = |body: &[u8], last: bool| {
            let last = last.then_some(&trailers);
            let (bytes, framing) = chunk(Frame::Chunked, body.to_vec(), last);
            assert_eq!(bytes.len(), framing + body.len());
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(framed(b"hello", false), "5\r\nhello\r\n");
        assert_eq!(
            framed(&[b'x'; 26], true),
            format!("1a\r\n{}\r\n0\r\n\r\n", "x".repeat(26))
        );
        assert_eq!(framed(b"", true), "0\r\n\r\n");
        assert_eq!(framed(b"", false), "", "an empty chunk would end the body");
        assert_eq!(
            chunk(Frame::Length, b"hello".to_vec(), Some(&trailers)),
            (b"hello".to_vec(), 0)
        );
        trailers.push(b"A", b"b");
        let (last, framing) = chunk(Frame::Chunked, b"x".to_vec(), Some(&trailers));
        assert_eq!(
            (&last[..], framing),
            (&b"1\r\nx\r\n0\r\nA: b\r\n\r\n"[..], 16)
        );
    }

    #[test]
    fn redirected_request_keeps_headers_but_not_the_body() {
        let bytes =
            b"POST /cgi-bin/a?q HTTP/1.1\r\nHost: x\r\nCookie: c=1\r\nContent-Length: 5\r\n\
            content-type: a/b\r\nConnection: keep-alive\r\nExpect: 100-continue\r\n\r\n";
        let headway_http::Parsed::Complete(head) =
            headway_http::parse(bytes, &headway_http::HeadLimits::default())
        else {
            panic!("not a head");
        };
        let request = headway_gateway::Request::new(&head, bytes);
        let text = |close| {
            let bytes = redirected_request(&request, b"/b?c", RedirectKind::LocalRedirect, close);
            String::from_utf8(bytes).unwrap()
        };
        let kept = "GET /b?c HTTP/1.1\r\nHost: x\r\nCookie: c=1\r\nConnection: keep-alive\r\n\r\n";
        let closed = "GET /b?c HTTP/1.1\r\nHost: x\r\nCookie: c=1\r\nConnection: close\r\n\r\n";
        assert_eq!((text(false).as_str(), text(true).as_str()), (kept, closed));
    }

    #[test]
    fn redirected_request_keeps_its_host() {
        let bytes = b"GET http://a.example/p HTTP/1.1\r\nHost: b.example\r\n\r\n";
        let headway_http::Parsed::Complete(head) =
            headway_http::parse(bytes, &headway_http::HeadLimits::default())
        else {
            panic!("not a head");
        };
        let request = headway_gateway::Request::new(&head, bytes);
        let there = redirected_request(&request, b"/b", RedirectKind::LocalRedirect, false);
        assert_eq!(there, b"GET /b HTTP/1.1\r\nHost: a.example\r\n\r\n");
    }

    #[test]
    fn accel_redirect_keeps_range_and_conditions() {
        let fields = "Host: x\r\nRange: bytes=1-\r\nIf-Range: \"a\"\r\nIf-None-Match: \"a\"\r\n";
        for (method, how, expected) in [
            ("GET", RedirectKind::AccelRedirect, fields),
            ("HEAD", RedirectKind::AccelRedirect, fields),
            ("POST", RedirectKind::AccelRedirect, "Host: x\r\n"),
            (
                "GET",
                RedirectKind::LocalRedirect,
                "Host: x\r\nIf-None-Match: \"a\"\r\n",
            ),
        ] {
            let bytes = format!("{method} /a HTTP/1.1\r\n{fields}\r\n").into_bytes();
            let headway_http::Parsed::Complete(head) =
                headway_http::parse(&bytes, &headway_http::HeadLimits::default())
            else {
                panic!("not a head");
            };
            let request = headway_gateway::Request::new(&head, &bytes);
            let text = String::from_utf8(redirected_request(&request, b"/b", how, false)).unwrap();
            let rest = text.split_once("\r\n").unwrap().1;
            assert_eq!(rest, format!("{expected}\r\n"), "{method} {how:?}");
        }
    }
}
