//! A program's reply on its way to the client: its head with what the server has to say, its body
//! framed.
//!
//! The program decides status and fields, `gateway` has made sure that they may be sent. The server
//! says `Date`, `Server`, what becomes of the connection, and how the body ends: by its length if
//! that is known, else in chunks, and towards a client of HTTP/1.0 by the end of the connection.
//! After `101 Switching Protocols` there is no body: what follows is the other protocol.
//!
//! Sources: RFC 9112 sections 6 and 7; RFC 9110 section 7.8; RFC 3875 section 6.2.2 (local
//! redirects).

use std::io::Write;

use headway_gateway::Reply;
use headway_http::response::HeadWriter;
use headway_http::{Method, Version};

use crate::request::Frame;
use crate::respond::ReplyContext;

/// The status of a back end that agrees to another protocol.
pub const SWITCHING_PROTOCOLS: u16 = 101;

/// The reply's head, how its body is framed, and whether the connection may stay.
///
/// `complete`: all of the body is here already, so many bytes.
pub fn begin_reply(
    context: &ReplyContext<'_>,
    mut reply: Reply,
    complete: Option<u64>,
) -> (Vec<u8>, Frame, bool) {
    for own in ["Date", "Server"] {
        reply.fields.remove(own.as_bytes());
    }
    if reply.status == SWITCHING_PROTOCOLS {
        return (switch_protocols(context, &reply), Frame::Tunnel, false);
    }
    let length = reply.length.or(complete);
    let frame = match length {
        _ if reply.is_bodiless() || context.head_only => Frame::Bodiless,
        Some(_) => Frame::Length,
        None if context.is_http10 => Frame::Close,
        None => Frame::Chunked,
    };
    let keep_alive = context.keep_alive && frame != Frame::Close;
    let mut head = Vec::with_capacity(512);
    reply.write_head(&mut head);
    let writer = HeadWriter::resume(&mut head)
        .lines(&context.settings.server)
        .field("Date", context.date.text);
    let writer = match (keep_alive, context.is_http10) {
        (false, _) => writer.field("Connection", "close"),
        (true, true) => writer.field("Connection", "keep-alive"),
        (true, false) => writer,
    };
    let writer = match (frame, length) {
        (Frame::Length, Some(length)) => writer.field_u64("Content-Length", length),
        // What a GET would have brought, where the program said so itself (RFC 9110, 8.6).
        (Frame::Bodiless, _) if !reply.is_bodiless() => writer.field_if_some(
            "Content-Length",
            reply.length.map(|length| length.to_string()),
        ),
        (Frame::Chunked, _) => writer.field("Transfer-Encoding", "chunked"),
        _ => writer,
    };
    context.extra_fields(writer).end();
    (head, frame, keep_alive)
}

/// The back end has agreed to the one other protocol it may be asked for.
fn switch_protocols(context: &ReplyContext<'_>, reply: &Reply) -> Vec<u8> {
    let mut head = Vec::with_capacity(512);
    reply.write_head(&mut head);
    let writer = HeadWriter::resume(&mut head)
        .lines(&context.settings.server)
        .field("Date", context.date.text)
        .field("Connection", "Upgrade")
        .field("Upgrade", "websocket");
    context.extra_fields(writer).end();
    head
}

/// Bytes of the body as they leave, and how many of them are framing.
pub fn chunk(frame: Frame, body: Vec<u8>, last: bool) -> (Vec<u8>, usize) {
    if frame != Frame::Chunked {
        return (body, 0);
    }
    let mut framed = Vec::with_capacity(body.len() + 24);
    if !body.is_empty() {
        // Writing to a Vec can not fail.
        let _ = write!(framed, "{:x}\r\n", body.len());
        framed.extend_from_slice(&body);
        framed.extend_from_slice(b"\r\n");
    }
    if last {
        framed.extend_from_slice(b"0\r\n\r\n");
    }
    let framing = framed.len() - body.len();
    (framed, framing)
}

/// How a program sends a request elsewhere on this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirected {
    /// It has nothing more to do with it (RFC 3875, 6.2.2).
    Away,
    /// Only the content of its reply is there.
    HandedOver,
}

/// The request that a program sends elsewhere on this server: GET (or HEAD) for `location`, with
/// the fields of the first request but those about its body. Which part was asked for, and on which
/// conditions, counts for a file that is handed over, but only if the request could have been one
/// for that file. `close`: the connection is of no use afterwards.
pub fn elsewhere(
    request: &headway_gateway::Request<'_>,
    location: &[u8],
    how: Redirected,
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
    let asks = matches!(head.method, Method::Get | Method::Head);
    for (name, value) in request.fields() {
        let is_close = close && name.eq_ignore_ascii_case(b"Connection");
        if is_close || !goes_elsewhere(name, how, asks) {
            continue;
        }
        for part in [name, b": ", request.meant(name, value), b"\r\n"] {
            bytes.extend_from_slice(part);
        }
    }
    if close && head.version == Version::Http11 {
        bytes.extend_from_slice(b"Connection: close\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes
}

/// Whether a request's field goes with it. `asks`: its method is GET or HEAD.
fn goes_elsewhere(name: &[u8], how: Redirected, asks: bool) -> bool {
    const ABOUT_THE_BODY: &[&[u8]] = &[
        b"Content-Length",
        b"Content-Type",
        b"Content-Encoding",
        b"Transfer-Encoding",
        b"Trailer",
        b"Expect",
    ];
    const ABOUT_A_PART: &[&[u8]] = &[b"Range", b"If-Range"];
    const CONDITIONS: &[&[u8]] = &[
        b"If-Match",
        b"If-None-Match",
        b"If-Modified-Since",
        b"If-Unmodified-Since",
    ];
    let is = |known: &[&[u8]]| known.iter().any(|known| name.eq_ignore_ascii_case(known));
    let (keeps_part, keeps_conditions) = match how {
        Redirected::Away => (false, true),
        Redirected::HandedOver => (asks, asks),
    };
    let left_out = is(ABOUT_THE_BODY)
        || (!keeps_part && is(ABOUT_A_PART))
        || (!keeps_conditions && is(CONDITIONS));
    !left_out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_say_their_length_and_the_last_one_ends_the_body() {
        let framed = |body: &[u8], last| {
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
            chunk(Frame::Length, b"hello".to_vec(), true),
            (b"hello".to_vec(), 0)
        );
    }

    #[test]
    fn request_keeps_its_fields_but_not_its_body_when_it_is_sent_elsewhere() {
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
            let bytes = elsewhere(&request, b"/b?c", Redirected::Away, close);
            String::from_utf8(bytes).unwrap()
        };
        let kept = "GET /b?c HTTP/1.1\r\nHost: x\r\nCookie: c=1\r\nConnection: keep-alive\r\n\r\n";
        let closed = "GET /b?c HTTP/1.1\r\nHost: x\r\nCookie: c=1\r\nConnection: close\r\n\r\n";
        assert_eq!((text(false).as_str(), text(true).as_str()), (kept, closed));
    }

    #[test]
    fn request_stays_with_its_host_when_it_is_sent_elsewhere() {
        let bytes = b"GET http://a.example/p HTTP/1.1\r\nHost: b.example\r\n\r\n";
        let headway_http::Parsed::Complete(head) =
            headway_http::parse(bytes, &headway_http::HeadLimits::default())
        else {
            panic!("not a head");
        };
        let request = headway_gateway::Request::new(&head, bytes);
        let there = elsewhere(&request, b"/b", Redirected::Away, false);
        assert_eq!(there, b"GET /b HTTP/1.1\r\nHost: a.example\r\n\r\n");
    }

    #[test]
    fn part_and_conditions_count_when_a_file_is_handed_over_to_one_who_asked_for_it() {
        let fields = "Host: x\r\nRange: bytes=1-\r\nIf-Range: \"a\"\r\nIf-None-Match: \"a\"\r\n";
        for (method, how, expected) in [
            ("GET", Redirected::HandedOver, fields),
            ("HEAD", Redirected::HandedOver, fields),
            ("POST", Redirected::HandedOver, "Host: x\r\n"),
            (
                "GET",
                Redirected::Away,
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
            let text = String::from_utf8(elsewhere(&request, b"/b", how, false)).unwrap();
            let rest = text.split_once("\r\n").unwrap().1;
            assert_eq!(rest, format!("{expected}\r\n"), "{method} {how:?}");
        }
    }
}
