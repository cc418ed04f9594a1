//! Requests as HTTP/1.1 headers: no input of a client is read as something else there.

use headway_http::{Framing, HeadLimits, Parsed, parse};
use headway_test_support::http2::*;
use proptest::prelude::*;

use super::frames::Raw;

const LIMITS_OF_HTTP2: HeadLimits = HeadLimits {
    head_bytes_max: 16 << 10,
    target_bytes_max: 8 << 10,
    fields_max: 100,
    is_secure: false,
    is_http2: true,
};

type Header = (Vec<u8>, Vec<u8>);

/// The HTTP/1.1 header of a request with these headers; `None` if the stream is reset.
fn translated(headers: &[Header], is_last: bool) -> Option<String> {
    let mut raw = Raw::new(&[]);
    let flags = END_HEADERS | if is_last { END_STREAM } else { 0 };
    raw.feed(&frame(HEADERS, flags, 1, &block(headers)));
    let head = raw.requests.pop().map(|(head, _)| head);
    raw.turn();
    assert!(head.is_some() || raw.reset(1).is_some() || raw.goaway().is_some());
    head
}

fn headers(changes: &[(&str, &str)]) -> Vec<Header> {
    let mut headers: Vec<(&str, &str)> = vec![
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "test"),
        (":path", "/"),
    ];
    for (name, value) in changes {
        let known = headers.iter_mut().find(|(known, _)| known == name);
        match known {
            Some(known) => known.1 = value,
            None => headers.push((name, value)),
        }
    }
    let bytes = |text: &str| text.as_bytes().to_vec();
    headers
        .into_iter()
        .filter(|(_, value)| *value != "(none)")
        .map(|(name, value)| (bytes(name), bytes(value)))
        .collect()
}

#[test]
fn requests_without_an_http_1_form_are_reset() {
    for changes in [
        &[("x", "a\r\nb: c")][..],
        &[("x", "a\nb")],
        &[("x", "a\rb")],
        &[("x", "a\0b")],
        &[("x", "a\x7fb")],
        &[("x: y\r\nz", "a")],
        &[("x y", "a")],
        &[("x:", "a")],
        &[("", "a")],
        &[("X-Large", "a")],
        &[("x", " a")],
        &[("x", "a\t")],
        &[("cookie", "a=1 ")],
        &[(":path", "*")],
        &[("transfer-encoding", "chunked")],
        &[("connection", "close")],
        &[("keep-alive", "1")],
        &[("proxy-connection", "close")],
        &[("upgrade", "websocket")],
        &[("te", "gzip")],
        &[("host", "other")],
        &[("host", "test:80")],
        &[("content-length", "5")],
        &[("content-length", "-1")],
        &[("content-length", "+0")],
        &[("content-length", "0, 0")],
        &[("content-length", "")],
        &[(":authority", "user@test")],
        &[(":authority", "te st")],
        &[(":authority", "test\r\nx: y")],
        &[(":authority", "test/x")],
        &[(":authority", "")],
        &[(":authority", "(none)"), ("host", "")],
        &[(":path", "/ HTTP/2.0\r\nx: y")],
        &[(":path", "/a b")],
        &[(":path", "/a\tb")],
        &[(":path", "/a\0b")],
        &[(":path", "")],
        &[(":path", "a")],
        &[(":path", "?a")],
        &[(":path", "http://other/")],
        &[(":path", "other:80")],
        &[(":path", "(none)")],
        &[(":method", "(none)")],
        &[(":method", "GET /x")],
        &[(":method", "")],
        &[(":method", "GET\r\n")],
        &[(":scheme", "(none)")],
        &[(":scheme", "ht tp")],
        &[(":unknown", "a")],
        &[(":status", "200")],
        &[(":protocol", "websocket")],
        &[("x", "a"), (":late", "b")],
        &[(":method", "CONNECT")],
    ] {
        assert_eq!(translated(&headers(changes), true), None, "{changes:?}");
    }
}

#[test]
fn requests_with_repeated_pseudo_headers_length_or_host_are_reset() {
    let twice = |name: &str, value: &str| {
        let mut headers = headers(&[]);
        headers.insert(1, (name.into(), value.into()));
        headers
    };
    for (name, value) in [
        (":method", "GET"),
        (":path", "/"),
        (":path", "/b"),
        (":authority", "test"),
        (":scheme", "http"),
    ] {
        assert_eq!(translated(&twice(name, value), true), None, "two {name}");
    }
    let two_lengths = headers(&[("content-length", "0")])
        .into_iter()
        .chain([(b"content-length".to_vec(), b"0".to_vec())]);
    assert_eq!(translated(&two_lengths.collect::<Vec<_>>(), true), None);
    let two_hosts = headers(&[("host", "test")])
        .into_iter()
        .chain([(b"host".to_vec(), b"test".to_vec())]);
    assert_eq!(translated(&two_hosts.collect::<Vec<_>>(), true), None);
}

#[test]
fn requests_are_translated_to_http_1() {
    for (changes, is_last, expected) in [
        (&[][..], true, "GET / HTTP/2.0\r\nHost: test\r\n\r\n"),
        (
            &[(":path", "*"), (":method", "OPTIONS")],
            true,
            "OPTIONS * HTTP/2.0\r\nHost: test\r\n\r\n",
        ),
        (
            &[("host", "TEST")],
            true,
            "GET / HTTP/2.0\r\nHost: test\r\n\r\n",
        ),
        (
            &[(":authority", "(none)"), ("host", "other:1")],
            true,
            "GET / HTTP/2.0\r\nHost: other:1\r\n\r\n",
        ),
        (&[(":authority", "(none)")], true, "GET / HTTP/2.0\r\n\r\n"),
        (
            &[("te", "trailers"), ("expect", "100-continue")],
            true,
            "GET / HTTP/2.0\r\nHost: test\r\nTE: trailers\r\n\r\n",
        ),
        (
            &[
                (":method", "CONNECT"),
                (":path", "(none)"),
                (":scheme", "(none)"),
                (":authority", "a:443"),
            ],
            true,
            "CONNECT a:443 HTTP/2.0\r\nHost: a:443\r\n\r\n",
        ),
        (
            &[("content-length", "0")],
            true,
            "GET / HTTP/2.0\r\nHost: test\r\n\r\n",
        ),
        (
            &[("content-length", "0")],
            false,
            "GET / HTTP/2.0\r\nHost: test\r\nContent-Length: 0\r\n\r\n",
        ),
        (
            &[("x", ""), ("y", "a \t b")],
            true,
            "GET / HTTP/2.0\r\nHost: test\r\nx: \r\ny: a \t b\r\n\r\n",
        ),
        (
            &[],
            false,
            "GET / HTTP/2.0\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n",
        ),
        // HTTP/1.1 code refuses another scheme than that of the connection.
        (
            &[(":scheme", "https"), (":path", "/x?y")],
            true,
            "GET https://test/x?y HTTP/2.0\r\nHost: test\r\n\r\n",
        ),
        // The whole of another server (RFC 9112, 3.2.4).
        (
            &[(":scheme", "https"), (":path", "*"), (":method", "OPTIONS")],
            true,
            "OPTIONS https://test HTTP/2.0\r\nHost: test\r\n\r\n",
        ),
        // A fragment is not a part of a target.
        (
            &[(":path", "/a#b")],
            true,
            "GET /a HTTP/2.0\r\nHost: test\r\n\r\n",
        ),
        (
            &[(":path", "#b")],
            true,
            "GET / HTTP/2.0\r\nHost: test\r\n\r\n",
        ),
    ] {
        let head = translated(&headers(changes), is_last);
        assert_eq!(head.as_deref(), Some(expected), "{changes:?}");
    }
}

#[test]
fn body_that_contradicts_its_length_is_reset() {
    for (length, data, is_last) in [("3", "abcd", false), ("3", "ab", true), ("0", "a", false)] {
        let mut raw = Raw::new(&[]);
        let head = headers(&[(":method", "POST"), ("content-length", length)]);
        raw.feed(&frame(HEADERS, END_HEADERS, 1, &block(&head)));
        let (_, mut stream) = raw.requests.pop().unwrap();
        raw.feed(&frame(DATA, is_last.into(), 1, data.as_bytes()));
        assert!(stream.is_reset(), "{length} {data}");
        assert_eq!(raw.reset(1), Some(1), "{length} {data}");
    }
}

#[test]
fn trailers_follow_only_a_chunked_body() {
    let received = |own: &[(&str, &str)]| received_with_trailers(own, 1000);
    let trailers = "a: b\r\na: b\tc\r\n";
    let expected = format!("3\r\nabc\r\n0\r\n{trailers}\r\n");
    assert_eq!(received(&[]), expected);
    for room in 23..40 {
        assert_eq!(received_with_trailers(&[], room), expected, "{room}");
    }
    assert_eq!(received(&[("content-length", "3")]), "abc");
}

#[test]
fn trailers_that_are_none_reset_the_stream() {
    let long = "b".repeat(16_360);
    for (flags, name, value) in [
        // More would have to follow.
        (0, "a", "b"),
        (END_STREAM, "a", &*long),
        (END_STREAM, "A", "b"),
        (END_STREAM, "a b", "c"),
        (END_STREAM, "a", " b"),
        (END_STREAM, "a: b\r\nc", "d"),
        (END_STREAM, "", "b"),
        (END_STREAM, "a", "b\r\nc: d"),
        (END_STREAM, "a", "b\0"),
        (END_STREAM, ":status", "200"),
        (END_STREAM, "connection", "close"),
        (END_STREAM, "transfer-encoding", "chunked"),
        (END_STREAM, "upgrade", "websocket"),
        (END_STREAM, "te", "gzip"),
    ] {
        let mut raw = Raw::new(&[]);
        raw.feed(&frame(HEADERS, END_HEADERS, 1, &request_block("POST", "/")));
        let (_, mut stream) = raw.requests.pop().unwrap();
        let trailers = block(&[(name, value)]);
        raw.feed(&frame(HEADERS, END_HEADERS | flags, 1, &trailers));
        assert!(stream.is_reset(), "{name} {value}");
        let errors = (raw.reset(1), raw.goaway());
        assert_eq!(errors, (Some(1), None), "{name} {value}");
    }
}

fn received_with_trailers(own: &[(&str, &str)], room: usize) -> String {
    let mut raw = Raw::new(&[]);
    let head = headers(&[&[(":method", "POST")], own].concat());
    raw.feed(&frame(HEADERS, END_HEADERS, 1, &block(&head)));
    let (_, mut stream) = raw.requests.pop().unwrap();
    raw.feed(&frame(DATA, 0, 1, b"abc"));
    let trailers = block(&[("a", "b"), ("a", "b\tc")]);
    raw.feed(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &trailers));
    let (mut body, mut buffer) = (Vec::<u8>::new(), [0; 1000]);
    while let headway_http2::Received::Data(count) = stream.receive(&mut buffer[..room]) {
        body.extend(&buffer[..count]);
    }
    assert!(!stream.has_input());
    String::from_utf8(body).unwrap()
}

#[test]
fn priorities_order_streams() {
    let mut raw = Raw::new(&[]);
    for (at, value) in ["u=7", "u=0", "", "u=3, i", "u=0"].iter().enumerate() {
        let head = headers(&[("priority", value)]);
        let stream = 2 * at as u32 + 1;
        raw.feed(&frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            stream,
            &block(&head),
        ));
    }
    let priorities: Vec<_> = raw
        .requests
        .iter_mut()
        .map(|(_, stream)| stream.priority())
        .collect();
    assert!(priorities[1] < priorities[2] && priorities[2] < priorities[0]);
    assert!(priorities[2] < priorities[3] && priorities[3] < priorities[0]);
    assert_eq!(priorities[1], priorities[4]);
}

fn priority_update(stream: u32, value: &str) -> Vec<u8> {
    let payload = [&stream.to_be_bytes(), value.as_bytes()].concat();
    frame(0x10, 0, 0, &payload)
}

#[test]
fn priority_update_changes_open_and_later_streams() {
    let mut raw = Raw::new(&[]);
    let urgencies = |raw: &mut Raw| -> Vec<u8> {
        let streams = raw.requests.iter_mut();
        streams
            .map(|(_, stream)| stream.priority().urgency)
            .collect()
    };
    raw.feed(&[get(1, "/"), get(3, "/")].concat());
    assert_eq!(urgencies(&mut raw), [3, 3]);
    raw.feed(
        &[
            priority_update(3, "u=1"),
            priority_update(5, "u=6"),
            priority_update(9, "u=0"),
        ]
        .concat(),
    );
    assert_eq!(urgencies(&mut raw), [3, 1]);
    let head = headers(&[("priority", "u=2")]);
    for stream in [5, 7] {
        raw.feed(&frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            stream,
            &block(&head),
        ));
    }
    // An update has precedence over the header, and the last update counts.
    assert_eq!(urgencies(&mut raw), [3, 1, 6, 2]);
    raw.feed(&[priority_update(7, "u=4"), priority_update(7, "u=5")].concat());
    raw.feed(&get(9, "/"));
    assert_eq!(urgencies(&mut raw), [3, 1, 6, 5, 0]);
    assert!(raw.goaway().is_none());
    raw.feed(&frame(0x10, 0, 3, &[0, 0, 0, 3]));
    assert_eq!((raw.goaway(), raw.session.is_over()), (Some(1), true));
}

/// Names and values of known smuggling attacks, and random ones.
fn any_header() -> impl Strategy<Value = Header> {
    let name = prop_oneof![
        6 => "[a-z][a-z0-9!#$%&'*+.^_`|~-]{0,12}".prop_map(String::into_bytes),
        2 => prop_oneof![
            Just("content-length"), Just("host"), Just("cookie"), Just("te"), Just("expect"),
            Just("transfer-encoding"), Just("connection"), Just("transfer_encoding"), Just("range"),
            Just("if-none-match"), Just("accept-encoding"), Just("priority"), Just("forwarded"),
        ].prop_map(|name| name.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..6),
    ];
    let value = prop_oneof![
        4 => "[ -~]{0,20}".prop_map(String::into_bytes),
        1 => "[0-9]{1,3}".prop_map(String::into_bytes),
        1 => prop::collection::vec(prop_oneof![
            Just(b' '), Just(b'\t'), 0x80..=0xff_u8, Just(b'a'), Just(b':'), Just(b',')
        ], 0..8),
        1 => prop::collection::vec(any::<u8>(), 0..8),
    ];
    (name, value)
}

fn any_request() -> impl Strategy<Value = (Vec<Header>, bool)> {
    let path = prop_oneof![
        4 => "/[ -~]{0,12}".prop_map(String::into_bytes),
        1 => Just(b"*".to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..6),
        1 => Just(b"http://other/".to_vec()),
    ];
    let authority = prop_oneof![
        4 => "[a-z.:0-9]{1,9}".prop_map(String::into_bytes),
        1 => "[ -~]{0,9}".prop_map(String::into_bytes),
    ];
    let method = prop_oneof![
        4 => Just("GET"), 1 => Just("POST"), 1 => Just("OPTIONS"), 1 => Just("FETCH"),
    ];
    let others = prop::collection::vec(any_header(), 0..6);
    (method, authority, path, others, any::<bool>()).prop_map(
        |(method, authority, path, others, is_last)| {
            let mut headers = vec![
                (b":method".to_vec(), method.as_bytes().to_vec()),
                (b":scheme".to_vec(), b"http".to_vec()),
                (b":authority".to_vec(), authority),
                (b":path".to_vec(), path),
            ];
            headers.extend(others);
            (headers, is_last)
        },
    )
}

/// The lines of an HTTP/1.1 header, parsed in the simplest way.
fn lines(head: &[u8]) -> Vec<&[u8]> {
    let mut lines = Vec::new();
    let mut rest = head;
    while let Some(at) = rest.windows(2).position(|two| two == b"\r\n") {
        lines.push(&rest[..at]);
        rest = &rest[at + 2..];
    }
    assert!(rest.is_empty());
    lines
}

fn check(headers: &[Header], head: &[u8], is_last: bool) -> Result<(), TestCaseError> {
    let value = |name: &str| {
        let found = headers.iter().find(|(known, _)| known == name.as_bytes());
        found.map(|(_, value)| value.as_slice())
    };
    let lines = lines(head);
    let (first, fields) = lines.split_first().unwrap();
    let (last, fields) = fields.split_last().unwrap();
    prop_assert!(last.is_empty());
    let path = value(":path").unwrap();
    let path = match path.split(|byte| *byte == b'#').next() {
        None | Some([]) => b"/",
        Some(path) => path,
    };
    prop_assert_eq!(
        *first,
        [value(":method").unwrap(), b" ", path, b" HTTP/2.0"].concat()
    );
    // Each line is a header of the client or replaces one. Lines with the same name are in the client's order.
    let made = |name: &[u8]| {
        let known = [
            &b"Host"[..],
            b"Cookie",
            b"Content-Length",
            b"Transfer-Encoding",
        ];
        known.contains(&name)
    };
    let mut seen: Vec<Header> = Vec::new();
    for line in fields {
        let at = line.windows(2).position(|two| two == b": ").unwrap();
        let (name, value) = (&line[..at], &line[at + 2..]);
        if !made(name) {
            seen.push((name.to_vec(), value.to_vec()));
        }
    }
    let not_passed = ["content-length", "cookie", "expect", "host", "te"];
    let mut sent: Vec<Header> = headers[4..].to_vec();
    sent.retain(|(name, _)| not_passed.iter().all(|other| other.as_bytes() != name));
    seen.sort_by(|a, b| a.0.cmp(&b.0));
    sent.sort_by(|a, b| a.0.cmp(&b.0));
    prop_assert_eq!(seen, sent);
    // The framing follows from the HTTP/2 frames.
    if let Parsed::Complete(parsed) = parse(head, &LIMITS_OF_HTTP2) {
        prop_assert_eq!(parsed.length, head.len());
        prop_assert_eq!(parsed.host, value(":authority"));
        let length = value("content-length");
        let length = length.map(|value| std::str::from_utf8(value).unwrap().parse().unwrap());
        let expected = match (is_last, length) {
            (true, _) | (false, Some(0)) => Framing::None,
            (false, Some(length)) => Framing::Length(length),
            (false, None) => Framing::Chunked,
        };
        prop_assert_eq!(parsed.framing, expected);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn any_request_says_the_same_in_http_1_or_is_reset((headers, is_last) in any_request()) {
        let mut raw = Raw::new(&[]);
        let flags = END_HEADERS | u8::from(is_last);
        raw.session.feed(&frame(HEADERS, flags, 1, &block(&headers)));
        if let Some((head, _)) = raw.session.next_request() {
            check(&headers, &head, is_last)?;
            let parsed = parse(&head, &LIMITS_OF_HTTP2);
            prop_assert!(!matches!(parsed, Parsed::Partial), "it would wait for more");
        }
    }

    #[test]
    fn any_bytes_end_no_session_by_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        size in 1_usize..50,
    ) {
        let mut raw = Raw::new(&[]);
        for piece in bytes.chunks(size) {
            raw.feed(piece);
        }
    }
}
