//! Responses of an HTTP/1.1 upstream and their outcome: one table, read from top to bottom.

use crate::common;
use common::{seen, seen_however_cut, sent};
use headway_gateway::proxy::{Body, Forwarding, ProxyCodec};
use headway_gateway::{Codec, HeadLimits, Request};
use headway_http::{Parsed, parse};
use proptest::prelude::*;

const LIMITS: HeadLimits = HeadLimits {
    head_bytes_max: 150,
    fields_max: 4,
};

const GET: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
const HEAD: &str = "HEAD / HTTP/1.1\r\nHost: x\r\n\r\n";
const SOCKET: &str =
    "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

/// A codec whose head has been sent, and the body if there is none to send.
fn codec_for(bytes: &str, body: Body) -> ProxyCodec {
    let Parsed::Complete(head) = parse(bytes.as_bytes(), &headway_http::HeadLimits::default())
    else {
        panic!("{bytes:?}");
    };
    let forwarding = Forwarding {
        remote: "192.0.2.7:50000".parse().unwrap(),
        client: None,
        https: false,
        certificate: None,
        trusts_client: false,
        authority: b"back",
        keeps_host: true,
        via: b"headway",
        strip: b"",
        keep: true,
        upgrades: true,
    };
    let request = Request::new(&head, bytes.as_bytes());
    let mut codec = ProxyCodec::new(&request, &forwarding, body, &LIMITS).unwrap();
    sent(&mut codec, usize::MAX);
    codec
}

/// A leading `+` means that the connection can be reused.
fn outcome(request: &str, response: &str) -> String {
    let found = seen_however_cut(response.as_bytes(), || codec_for(request, Body::None));
    match found.reusable {
        true => format!("+ {}", found.text),
        false => found.text,
    }
}

const CODING: &str = "| the response's header Transfer-Encoding is invalid:";
const LENGTH: &str = "| the response's header Content-Length is invalid:";
const STATUS: &str = "| the response does not begin with an HTTP/1 status line:";

#[rustfmt::skip]
const RESPONSES: &[(&str, &str)] = &[
    // Lengths.
    ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "+ 200 OK length=5 body=hello | end 0"),
    ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "+ 200 OK length=0 | end 0"),
    ("HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 1\r\na:\t c \r\n\r\nx", "+ 200 OK [A: b] [a: c] length=1 body=x | end 0"),
    ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello!", "200 OK length=5 body=hello | end 0"),
    ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", "200 OK length=5 body=hell | the response ended after 4 of 5 declared bytes"),
    ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello", "200 OK length=5 body=hello | end 0"),
    ("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", "200 OK length=1 body=x | end 0"),
    ("HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: Keep-Alive\r\n\r\nx", "+ 200 OK length=1 body=x | end 0"),
    // Chunks.
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nA: b\r\n\r\n", "+ 200 OK body=abcde | end 0"),
    ("HTTP/1.1 200 OK\r\ntransfer-encoding: , Chunked\r\n\r\n0\r\n\r\n", "+ 200 OK | end 0"),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nHTTP/1.1 200", "200 OK | end 0"),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab", "200 OK body=ab | the upstream closed the connection before its response was complete"),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "200 OK | the upstream closed the connection before its response was complete"),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n", "200 OK body=abc | the upstream closed the connection before its response was complete"),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n", "200 OK | the response's chunked body is malformed"),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", "200 OK body=a | the response's chunked body is malformed"),
    // Until the connection ends.
    ("HTTP/1.1 200 OK\r\n\r\nhello", "200 OK body=hello | closed"),
    ("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n", "200 OK | closed"),
    // No body.
    ("HTTP/1.1 204 No Content\r\n\r\n", "+ 204 No Content | end 0"),
    ("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello", "204 No Content length=5 | end 0"),
    ("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", "204 No Content length=5 | end 0"),
    ("HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", "204 No Content | end 0"),
    ("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", "+ 304 Not Modified length=5 | end 0"),
    // Interim responses are not passed on.
    ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "+ 200 OK length=0 | end 0"),
    ("HTTP/1.1 100 Continue\r\n\r\n", "| the response is empty"),
    ("HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\n", "| the response switches to a protocol that was not requested"),
    // Fields about the connection.
    ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nKeep-Alive: 5\r\nConnection: keep-alive, A\r\nA: b\r\n\r\n", "+ 200 OK length=0 | end 0"),
    ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nUpgrade: h2c\r\nProxy-Authenticate: a\r\n\r\n", "+ 200 OK length=0 | end 0"),
    ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Accel-Redirect: /a\r\n\r\nhi", "+ 200 OK length=2 Location([47, 97]) | end 0"),
    // Status lines.
    ("HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", "+ 200 length=0 | end 0"),
    ("HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", "+ 200 length=0 | end 0"),
    ("HTTP/1.7 200 é\r\nContent-Length: 0\r\n\r\n", r"+ 200 \xc3\xa9 length=0 | end 0"),
    ("HTTP/2 200 OK\r\n\r\n", STATUS),
    ("HTTP/2.0 200 OK\r\n\r\n", STATUS),
    ("http/1.1 200 OK\r\n\r\n", STATUS),
    ("HTTP/1.1  200 OK\r\n\r\n", STATUS),
    ("HTTP/1.1 20 OK\r\n\r\n", STATUS),
    ("HTTP/1.1 2000 OK\r\n\r\n", STATUS),
    ("HTTP/1.1 099 OK\r\n\r\n", STATUS),
    ("HTTP/1.1 600 OK\r\n\r\n", STATUS),
    ("HTTP/1.1 200OK\r\n\r\n", STATUS),
    ("\r\nHTTP/1.1 200 OK\r\n\r\n", STATUS),
    ("200 OK\r\n\r\n", STATUS),
    ("HTTP/1.1 200 O\0K\r\n\r\n", "| line 1 of the response's head contains the control byte 0x00"),
    ("HTTP/1.1 200 O\rK\r\n\r\n", "| line 1 of the response's head contains the control byte 0x0d"),
    ("", "| the response is empty"),
    ("HTTP/1.1 200 OK\r\nA: b\r\n", "| the response ended inside its head, after 2 lines"),
    // Ambiguous framing.
    ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", "| the response's header Content-Length is repeated"),
    ("HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello", LENGTH),
    ("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello", LENGTH),
    ("HTTP/1.1 200 OK\r\nContent-Length: 0x5\r\n\r\nhello", LENGTH),
    ("HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nhello", LENGTH),
    ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "| the response has both Content-Length and Transfer-Encoding"),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", CODING),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", CODING),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, identity\r\n\r\n", CODING),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n", CODING),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\n\r\n", CODING),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: \"chunked\"\r\n\r\n", CODING),
    ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", CODING),
    ("HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n", "| line 1 of the response's head ends in a bare LF"),
    ("HTTP/1.1 200 OK\r\nA: b\nContent-Length: 0\r\n\r\n", "| line 2 of the response's head ends in a bare LF"),
    ("HTTP/1.1 200 OK\r\nA: b\r\n\n", "| line 3 of the response's head ends in a bare LF"),
    ("HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", "| line 3 of the response's head starts with white space"),
    ("HTTP/1.1 200 OK\r\nA: b\0\r\n\r\n", "| line 2 of the response's head contains the control byte 0x00"),
    ("HTTP/1.1 200 OK\r\nA: b\rB: c\r\n\r\n", "| line 2 of the response's head contains the control byte 0x0d"),
    ("HTTP/1.1 200 OK\r\nA b\r\n\r\n", "| line 2 of the response's head is not a header: \"A b\""),
    // A proxy must remove this white space.
    ("HTTP/1.1 200 OK\r\nContent-Length \t: 2\r\n\r\nhi", "+ 200 OK length=2 body=hi | end 0"),
    // Limits.
    ("HTTP/1.1 200 OK\r\nA: 1\r\nB: 2\r\nC: 3\r\nD: 4\r\n\r\n", "200 OK [A: 1] [B: 2] [C: 3] [D: 4] | closed"),
    ("HTTP/1.1 200 OK\r\nA: 1\r\nB: 2\r\nC: 3\r\nD: 4\r\nE: 5\r\n\r\n", "| the response's head has more than 4 headers"),
];

#[test]
fn proxied_responses_are_parsed_as_in_the_table_when_split_anywhere() {
    for (response, expected) in RESPONSES {
        let found = outcome(GET, response);
        let agrees = found == *expected || expected.ends_with(':') && found.starts_with(expected);
        assert!(
            agrees,
            "{response:?}\n   found {found}\nexpected {expected}"
        );
    }
}

#[test]
fn proxy_response_to_head_has_no_body() {
    for (response, expected) in [
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
            "+ 200 OK length=5 | end 0",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "+ 200 OK | end 0",
        ),
        ("HTTP/1.1 200 OK\r\n\r\n", "+ 200 OK | end 0"),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            "200 OK length=5 | end 0",
        ),
    ] {
        assert_eq!(outcome(HEAD, response), expected, "{response:?}");
    }
}

#[test]
fn proxy_response_head_above_the_limits_is_rejected() {
    let long = format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "b".repeat(150));
    assert_eq!(
        outcome(GET, &long),
        "| the response's head is longer than 150 bytes"
    );
    let interim = "HTTP/1.1 102 Wait\r\n\r\n";
    let end = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let found = outcome(GET, &(interim.repeat(16) + end));
    assert_eq!(found, "+ 200 OK length=0 | end 0");
    let found = outcome(GET, &(interim.repeat(17) + end));
    assert_eq!(found, "| too many interim responses");
}

#[test]
fn connection_is_not_reusable_after_an_early_response() {
    let post = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n";
    let response = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n";
    let reusable = |pushed: &[u8], ends: bool, leaves: bool| {
        let mut codec = codec_for(post, Body::Length(5));
        codec.push_body(pushed);
        if ends {
            codec.end_body(&headway_gateway::FieldList::default());
        }
        if leaves {
            sent(&mut codec, usize::MAX);
        }
        seen(&mut codec, &[response]).reusable
    };
    assert!(reusable(b"hello", true, true));
    assert!(reusable(b"hello", false, true));
    assert!(!reusable(b"hello", true, false));
    assert!(!reusable(b"hell", false, true));
    assert!(!reusable(b"hell", true, true));
}

#[test]
fn trailers_are_passed_on_if_the_client_accepts_them() {
    let response = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\
        Grpc-Status: 0\r\nContent-Length: 3\r\nX-Own: b\r\n\r\n";
    for (te, expected) in [
        ("TE: trailers\r\n", "[Grpc-Status: 0, X-Own: b]"),
        ("TE: gzip;q=0.5, Trailers\r\n", "[Grpc-Status: 0, X-Own: b]"),
        ("TE: gzip\r\n", "[]"),
        ("", "[]"),
    ] {
        for cut in 0..response.len() {
            let request = format!("GET / HTTP/1.1\r\nHost: x\r\n{te}\r\n");
            let mut codec = codec_for(&request, Body::None);
            for mut part in [&response.as_bytes()[..cut], &response.as_bytes()[cut..]] {
                while codec.feed(&mut part).unwrap().is_some() {}
            }
            let trailers = format!("{:?}", codec.trailers()).replace('"', "");
            assert_eq!(trailers, expected, "{te:?} {cut}");
        }
    }
}

#[test]
fn bytes_pass_both_ways_after_an_upgrade() {
    let response = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: upgrade\r\n\
        Sec-WebSocket-Accept: a\r\n\r\n\x01\x02";
    let expected = r"101 Switching Protocols [Sec-WebSocket-Accept: a] body=\x01\x02 | closed";
    assert_eq!(outcome(SOCKET, response), expected);
    let mut codec = codec_for(SOCKET, Body::None);
    assert_eq!(codec.push_body(b"early"), 0);
    let mut input = response.as_bytes();
    while codec.feed(&mut input).unwrap().is_some() {}
    assert_eq!(codec.push_body(b"\x03\x04"), 2);
    assert_eq!(sent(&mut codec, 1), b"\x03\x04");
    codec.end_body(&headway_gateway::FieldList::default());
    assert_eq!(codec.push_body(b"late"), 0);
}

#[test]
fn refused_upgrade_is_an_ordinary_response() {
    let response = "HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno";
    assert_eq!(
        outcome(SOCKET, response),
        "+ 403 No length=2 body=no | end 0"
    );
    let other = "HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\n\r\n";
    assert_eq!(
        outcome(SOCKET, other),
        "| the response switches to a protocol that was not requested"
    );
}

/// Fragments from which almost valid responses are built in every wrong order.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.0 404 x\r\n",
        "HTTP/1.1 100 x\r\n\r\n",
        "HTTP/1.1 204 x\r\n",
        "Content-Length: 4\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Connection: close\r\n",
        "A: b\r\n",
        "\r\n",
        "\r\n",
        "\n",
        "\r",
        " ",
        "4\r\nabcd\r\n",
        "0\r\n\r\n",
        "abcd",
        "\0",
    ]);
    let rest = prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat());
    (any::<bool>(), rest).prop_map(|(begins, rest)| match begins {
        true => format!("HTTP/1.1 200 OK\r\n{rest}"),
        false => rest,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn nearly_valid_responses_give_the_same_result_when_split_anywhere(response in pieces()) {
        for request in [GET, HEAD, SOCKET] {
            outcome(request, &response);
        }
    }
}
