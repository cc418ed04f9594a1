//! Requests to an HTTP/1.1 upstream: what is written, what is left out, what is not passed on.

use crate::common;
use common::sent;
use headway_gateway::proxy::{Body, Forwarding, ProxyCodec, Unforwardable};
use headway_gateway::{ClientCertificate, Codec, HeadLimits, Request};
use headway_http::{Parsed, parse};
use proptest::prelude::*;

fn forwarding() -> Forwarding<'static> {
    Forwarding {
        remote: "[::ffff:192.0.2.7]:50000".parse().unwrap(),
        client: None,
        https: false,
        certificate: None,
        trusts_client: false,
        authority: b"back:81",
        keeps_host: true,
        via: b"headway",
        strip: b"",
        keep: true,
        upgrades: true,
    }
}

/// The codec for a request, whose body is framed as received unless another framing is given.
fn codec(
    bytes: &[u8],
    forwarding: &Forwarding<'_>,
    body: Option<Body>,
) -> Result<ProxyCodec, Unforwardable> {
    let Parsed::Complete(head) = parse(bytes, &headway_http::HeadLimits::default()) else {
        panic!("{}", bytes.escape_ascii());
    };
    let body = body.unwrap_or(head.framing.into());
    ProxyCodec::new(
        &Request::new(&head, bytes),
        forwarding,
        body,
        &HeadLimits::default(),
    )
}

/// The head that the upstream gets.
fn request_head(bytes: &str, forwarding: &Forwarding<'_>) -> String {
    let mut codec = codec(bytes.as_bytes(), forwarding, None).unwrap();
    String::from_utf8(sent(&mut codec, 11)).unwrap()
}

/// The lines that the upstream gets for a request with these field lines, without the usual ones.
fn passed(lines: &str, forwarding: &Forwarding<'_>) -> Vec<String> {
    const USUAL: &[&str] = &[
        "Host: x",
        "Via: 1.1 headway",
        "Forwarded: for=192.0.2.7;host=x;proto=http",
        "X-Forwarded-For: 192.0.2.7",
        "X-Forwarded-Proto: http",
        "X-Forwarded-Host: x",
        "",
    ];
    let head = request_head(
        &format!("GET / HTTP/1.1\r\nHost: x\r\n{lines}\r\n"),
        forwarding,
    );
    let lines: Vec<&str> = head.split("\r\n").collect();
    assert_eq!(lines[0], "GET / HTTP/1.1");
    let unusual = lines[1..].iter().filter(|line| !USUAL.contains(line));
    unusual.map(|line| (*line).to_owned()).collect()
}

#[test]
fn proxied_request_is_rewritten() {
    let bytes = "POST http://Example.org:80/a%20b?c HTTP/1.1\r\nHost: other\r\nConnection: close\r\n\
        content-length: 5\r\nA: b\r\nAccept: c\r\nA: d\r\n\r\n";
    let expected = "POST /a%20b?c HTTP/1.1\r\nHost: Example.org:80\r\nA: b\r\nAccept: c\r\nA: d\r\n\
        Via: 1.1 headway\r\nForwarded: for=192.0.2.7;host=\"Example.org:80\";proto=http\r\n\
        X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: Example.org:80\r\n\
        Content-Length: 5\r\n\r\n";
    assert_eq!(request_head(bytes, &forwarding()), expected);
}

#[test]
fn forwarded_follows_rfc_7239_for_ipv6_and_tls() {
    let forwarding = Forwarding {
        remote: "[2001:db8::1]:7".parse().unwrap(),
        client: None,
        https: true,
        keeps_host: false,
        keep: false,
        ..forwarding()
    };
    let expected = "GET / HTTP/1.1\r\nHost: back:81\r\nVia: 1.0 headway\r\n\
        Forwarded: for=\"[2001:db8::1]\";proto=https\r\nX-Forwarded-For: 2001:db8::1\r\n\
        X-Forwarded-Proto: https\r\nConnection: close\r\n\r\n";
    assert_eq!(
        request_head("GET / HTTP/1.0\r\n\r\n", &forwarding),
        expected
    );
}

#[test]
fn client_of_a_unix_socket_is_unknown_to_the_upstream() {
    let unix = Forwarding {
        remote: "0.0.0.0:0".parse().unwrap(),
        ..forwarding()
    };
    let behind = Forwarding {
        client: Some("192.0.2.7".parse().unwrap()),
        ..unix
    };
    let itself = Forwarding {
        client: Some("0.0.0.0".parse().unwrap()),
        ..unix
    };
    for (forwarding, hops, clients) in [
        (&unix, "for=unknown;host=x;proto=http", "unknown"),
        (&itself, "for=unknown;host=x;proto=http", "unknown"),
        (
            &behind,
            "for=192.0.2.7, for=unknown;host=x;proto=http",
            "192.0.2.7, unknown",
        ),
    ] {
        let head = request_head("GET / HTTP/1.1\r\nHost: x\r\n\r\n", forwarding);
        let expected = format!("\r\nForwarded: {hops}\r\nX-Forwarded-For: {clients}\r\n");
        assert!(head.contains(&expected), "{head}");
    }
}

#[test]
fn request_headers_are_forwarded_or_removed_as_listed() {
    let rows: &[(&str, &[&str])] = &[
        ("A:\r\nB: c\r\n", &["A: ", "B: c"]),
        ("Cookie: a\r\nCookie: b\r\n", &["Cookie: a", "Cookie: b"]),
        ("X_A: b\r\n", &["X_A: b"]),
        // Fields about the connection.
        (
            "Keep-Alive: 5\r\nTE: gzip\r\nTrailer: A\r\nUpgrade: h2c\r\n",
            &[],
        ),
        (
            "Proxy-Connection: a\r\nProxy-Authorization: b\r\nProxy: c\r\n",
            &[],
        ),
        (
            "Connection: A,, \tb , close\r\nA: 1\r\nB: 2\r\nC: 3\r\n",
            &["C: 3"],
        ),
        ("Connection: a\r\nConnection: B\r\nA: 1\r\nB: 2\r\n", &[]),
        ("Connection: Host, Via, X-Forwarded-For\r\n", &[]),
        // Fields that the server writes itself.
        ("Expect: 100-continue\r\nContent-Length: 0\r\n", &[]),
        (
            "X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Host: evil\r\nX-Forwarded-Proto: https\r\n",
            &[],
        ),
        ("Forwarded: for=127.0.0.1\r\n", &[]),
        (
            "X_Forwarded_For: a\r\nx-forwarded_Host: b\r\nContent_Length: 7\r\n",
            &[],
        ),
        (
            "Transfer_Encoding: chunked\r\nProxy_Authorization: a\r\nHost_: b\r\n",
            &["Host_: b"],
        ),
        ("Max-Forwards: 0\r\n", &["Max-Forwards: 0"]),
        // Framing.
        ("Content-Length: 5\r\n", &["Content-Length: 5"]),
        (
            "Transfer-Encoding: Chunked\r\n",
            &["Transfer-Encoding: chunked"],
        ),
        (
            "Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n",
            &["Transfer-Encoding: chunked"],
        ),
        (
            "Connection: Content-Length\r\nContent-Length: 5\r\n",
            &["Content-Length: 5"],
        ),
    ];
    for (lines, expected) in rows {
        assert_eq!(passed(lines, &forwarding()), *expected, "{lines:?}");
    }
}

#[test]
fn upgrade_headers_are_forwarded_only_for_an_allowed_upgrade() {
    let rows: &[(&str, &[&str])] = &[
        (
            "Connection: upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Key: a\r\n",
            &[
                "Sec-WebSocket-Key: a",
                "Connection: Upgrade",
                "Upgrade: websocket",
            ],
        ),
        (
            "Connection: upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: a\r\n",
            &["HTTP2-Settings: a"],
        ),
        (
            "Connection: upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: a\r\n",
            &[],
        ),
        ("Connection: upgrade\r\nUpgrade: websocket, h2c\r\n", &[]),
        ("Upgrade: websocket\r\n", &[]),
        (
            "Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n",
            &["Content-Length: 5"],
        ),
    ];
    for (lines, expected) in rows {
        assert_eq!(passed(lines, &forwarding()), *expected, "{lines:?}");
    }
    let refusing = Forwarding {
        upgrades: false,
        ..forwarding()
    };
    assert!(passed("Connection: upgrade\r\nUpgrade: websocket\r\n", &refusing).is_empty());
}

#[test]
fn forwarded_headers_are_extended_for_a_trusted_client() {
    let lines = "X-Forwarded-For: 10.0.0.1, 10.0.0.2\r\nForwarded: for=a\r\nX-Forwarded-For: 10.0.0.3\r\n\
        X-Forwarded-Proto: https\r\nX-Forwarded-Host: front\r\nVia: 1.0 a\r\n";
    let trusting = Forwarding {
        trusts_client: true,
        ..forwarding()
    };
    let expected = [
        "Via: 1.0 a, 1.1 headway",
        "Forwarded: for=a, for=192.0.2.7;host=x;proto=http",
        "X-Forwarded-For: 10.0.0.1, 10.0.0.2, 10.0.0.3, 192.0.2.7",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Host: front",
    ];
    assert_eq!(passed(lines, &trusting), expected);
    assert_eq!(
        passed("Via: 1.0 a\r\n", &forwarding()),
        ["Via: 1.0 a, 1.1 headway"]
    );
}

#[test]
fn request_target_is_converted_to_origin_form() {
    let line = |bytes: &str, forwarding: &Forwarding<'_>| {
        request_head(bytes, forwarding)
            .lines()
            .next()
            .unwrap()
            .to_owned()
    };
    for (target, expected) in [
        ("GET http://x", "GET / HTTP/1.1"),
        ("GET http://x?a", "GET /?a HTTP/1.1"),
        ("OPTIONS *", "OPTIONS * HTTP/1.1"),
        ("DELETE /a", "DELETE /a HTTP/1.1"),
    ] {
        let bytes = format!("{target} HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(line(&bytes, &forwarding()), expected);
    }
}

#[test]
fn prefix_is_stripped_from_the_normal_form_of_the_path() {
    let stripping = Forwarding {
        strip: b"/app",
        ..forwarding()
    };
    let head = |target: &str, fields: &str, forwarding: &Forwarding<'_>| {
        let bytes = format!("GET {target} HTTP/1.1\r\nHost: x\r\n{fields}\r\n");
        codec(bytes.as_bytes(), forwarding, None)
            .map(|codec| String::from_utf8(codec.unsent().to_vec()).unwrap())
    };
    for (target, expected) in [
        ("/app/a?b", "/a?b"),
        ("/app", "/"),
        ("/app?x", "/?x"),
        ("/app/", "/"),
        ("/x/..//app//a%20b", "/a%20b"),
        ("/%61pp/app/a", "/app/a"),
        ("http://x/app//evil.example/", "/evil.example/"),
    ] {
        let head = head(target, "", &stripping).unwrap();
        let line = format!("GET {expected} HTTP/1.1");
        assert_eq!(head.lines().next(), Some(&*line), "{target}");
        assert!(head.contains("\r\nX-Forwarded-Prefix: /app\r\n"), "{head}");
    }
    for target in ["/apple", "/other", "/app%2Fa"] {
        let refused = head(target, "", &stripping);
        assert_eq!(refused, Err(Unforwardable::Target), "{target}");
    }
    let claimed = "x_forwarded-PREFIX: /evil\r\nX-Forwarded-Prefix: /front/\r\n";
    let untrusted = head("/app/", claimed, &stripping).unwrap();
    assert!(
        untrusted.contains("\r\nX-Forwarded-Prefix: /app\r\n"),
        "{untrusted}"
    );
    assert!(
        !untrusted.contains("evil") && !untrusted.contains("front"),
        "{untrusted}"
    );
    let trusting = Forwarding {
        trusts_client: true,
        ..stripping
    };
    let trusted = head("/app/", claimed, &trusting).unwrap();
    assert!(
        trusted.contains("\r\nX-Forwarded-Prefix: /front/app\r\n"),
        "{trusted}"
    );
    let passed_on = head("/app/", claimed, &forwarding()).unwrap();
    assert!(
        passed_on.contains("\r\nX-Forwarded-Prefix: /front/\r\n"),
        "{passed_on}"
    );
}

#[test]
fn request_target_is_forwarded_in_the_form_that_chose_the_location() {
    for (target, expected) in [
        ("/x/../p/20", "/p/20"),
        ("//p//20", "/p/20"),
        ("/p/%2e%2e/p/x", "/p/x"),
        ("/p/./.%2E/q/?a=/../b//c", "/q/?a=/../b//c"),
        ("http://x//a/../b?c", "/b?c"),
        ("/%70/20", "/p/20"),
        ("/p/a%20b%3bc%2Bd;e+f", "/p/a%20b%3bc%2Bd;e+f"),
        ("/p/caf%C3%A9/%25", "/p/caf%C3%A9/%25"),
    ] {
        let bytes = format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n");
        let head = request_head(&bytes, &forwarding());
        let line = format!("GET {expected} HTTP/1.1");
        assert_eq!(head.lines().next(), Some(&*line), "{target}");
    }
    let outside = codec(b"GET /a/../../b HTTP/1.0\r\n\r\n", &forwarding(), None);
    assert_eq!(outside.unwrap_err(), Unforwardable::Target);
}

#[test]
fn connect_trace_loops_and_max_forwards_zero_are_not_forwarded() {
    let refused = |bytes: &str, forwarding: &Forwarding<'_>| {
        codec(bytes.as_bytes(), forwarding, None).map(drop)
    };
    for (bytes, expected) in [
        (
            "CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
            Err(Unforwardable::Method),
        ),
        (
            "TRACE / HTTP/1.1\r\nHost: a\r\n\r\n",
            Err(Unforwardable::Method),
        ),
        (
            "OPTIONS / HTTP/1.1\r\nHost: a\r\nMax-Forwards: 0\r\n\r\n",
            Err(Unforwardable::MaxForwards),
        ),
        (
            "OPTIONS / HTTP/1.1\r\nHost: a\r\nMax-Forwards: 1\r\n\r\n",
            Ok(()),
        ),
        (
            &format!(
                "GET / HTTP/1.1\r\nHost: a\r\n{}\r\n",
                "Via: 1.0 Headway, 1.1 b\r\n".repeat(8)
            ),
            Err(Unforwardable::Loop),
        ),
        (
            &format!(
                "GET / HTTP/1.1\r\nHost: a\r\n{}\r\n",
                "Via: 1.0 Headway, 1.1 b\r\n".repeat(7)
            ),
            Ok(()),
        ),
    ] {
        assert_eq!(refused(bytes, &forwarding()), expected, "{bytes:?}");
    }
    let options = "OPTIONS / HTTP/1.1\r\nHost: x\r\nMax_Forwards: 9\r\nMax-Forwards: 7\r\n\r\n";
    let head = request_head(options, &forwarding());
    assert!(
        head.contains("\r\nMax-Forwards: 6\r\n") && !head.contains("Max_"),
        "{head}"
    );
}

#[test]
fn post_without_a_body_gets_content_length_zero() {
    let head = |method: &str| request_head(&format!("{method} / HTTP/1.0\r\n\r\n"), &forwarding());
    assert!(head("POST").contains("\r\nContent-Length: 0\r\n"));
    assert!(!head("GET").contains("Content-Length"));
}

const POST: &[u8] = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";

/// The bytes after the head once these pieces have been pushed.
fn body_of(body: Option<Body>, pieces: &[&[u8]], ends: bool) -> Vec<u8> {
    let mut codec = codec(POST, &forwarding(), body).unwrap();
    sent(&mut codec, usize::MAX);
    for piece in pieces {
        codec.push_body(piece);
    }
    if ends {
        codec.end_body(&headway_gateway::FieldList::default());
    }
    codec.push_body(b"late");
    sent(&mut codec, 3)
}

#[test]
fn request_body_is_framed_as_announced() {
    assert_eq!(
        body_of(None, &[b"hello", b"", b"0123456789abcdef"], true),
        b"5\r\nhello\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n"
    );
    assert_eq!(body_of(None, &[], true), b"0\r\n\r\n");
    let ten = Some(Body::Length(10));
    assert_eq!(body_of(ten, &[b"hello", b" world"], true), b"hello worl");
    assert_eq!(body_of(ten, &[b"hello"], true), b"hello");
    assert_eq!(body_of(Some(Body::None), &[b"hello"], true), b"");
}

#[test]
fn trailers_follow_a_body_in_chunks_and_no_other() {
    let trailers = headway_gateway::trailers::passed(b"A: b\r\nHost: c\r\n");
    for (body, expected) in [
        (None, "2\r\nhi\r\n0\r\nA: b\r\n\r\n"),
        (Some(Body::Length(2)), "hi"),
    ] {
        let mut codec = codec(POST, &forwarding(), body).unwrap();
        sent(&mut codec, usize::MAX);
        codec.push_body(b"hi");
        codec.end_body(&trailers);
        assert_eq!(sent(&mut codec, usize::MAX), expected.as_bytes());
    }
}

#[test]
fn upstream_learns_that_trailers_are_accepted() {
    let head = |lines: &str, forwarding: &Forwarding<'_>| {
        request_head(
            &format!("GET / HTTP/1.1\r\nHost: x\r\n{lines}\r\n"),
            forwarding,
        )
    };
    let closing = Forwarding {
        keep: false,
        ..forwarding()
    };
    let asked = head("TE: trailers, gzip\r\nConnection: TE\r\n", &forwarding());
    assert!(
        asked.contains("\r\nTE: trailers\r\nConnection: TE\r\n"),
        "{asked}"
    );
    assert!(!asked.contains("gzip"));
    let asked = head("TE: trailers\r\n", &closing);
    assert!(asked.contains("\r\nConnection: TE, close\r\n"), "{asked}");
    assert!(!head("TE: gzip\r\n", &forwarding()).contains("TE"));
}

#[test]
fn request_body_waits_when_the_upstream_does_not_read() {
    let mut codec = codec(POST, &forwarding(), None).unwrap();
    let body = vec![b'x'; 50_000];
    let mut pushed = 0;
    loop {
        match codec.push_body(&body) {
            0 => break,
            taken => pushed += taken,
        }
    }
    assert!((64 * 1024..100 * 1024).contains(&pushed), "{pushed}");
    codec.sent(60_000);
    assert!(codec.push_body(&body) > 0);
}

proptest! {
    /// Whatever fields a client sends, the upstream sees one valid request, framed once.
    #[test]
    fn upstream_gets_one_valid_request_from_odd_headers(
        fields in prop::collection::vec(
            (
                prop::sample::select(vec![
                    "Connection", "Content-Length", "Content_Length", "Transfer_Encoding", "Upgrade", "Via",
                    "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "Expect", "X-A", "TE", "Keep-Alive",
                ]),
                "(chunked|close|upgrade|websocket|5|0|content-length, host|[!-~ ]{0,12})",
            ),
            0..8,
        ),
        chunked in any::<bool>(),
        trusts_client in any::<bool>(),
    ) {
        let lines: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let framing = if chunked { "Transfer-Encoding: chunked\r\n" } else { "" };
        let bytes = format!("POST /a HTTP/1.1\r\nHost: x\r\n{framing}{lines}\r\n");
        if let Parsed::Complete(head) = parse(bytes.as_bytes(), &headway_http::HeadLimits::default()) {
            let forwarding = Forwarding { trusts_client, ..forwarding() };
            let out = request_head(&bytes, &forwarding);
            let Parsed::Complete(again) = parse(out.as_bytes(), &headway_http::HeadLimits::default()) else {
                panic!("{out:?}");
            };
            prop_assert_eq!(again.length, out.len());
            prop_assert_eq!(again.framing, head.framing);
            prop_assert_eq!(again.host, Some(&b"x"[..]));
        }
    }
}

#[test]
fn certificate_of_the_client_is_passed_on_and_cannot_be_forged() {
    let forged = "X-SSL-Client-Verify: SUCCESS\r\nx_ssl_client_s_dn: CN=admin\r\nX-SSL-Client-Cert: a\r\n\
         X-SSL-Protocol: b\r\n";
    assert_eq!(passed(forged, &forwarding()), ["X-SSL-Protocol: b"]);
    let known = Forwarding {
        certificate: Some(ClientCertificate {
            subject: "CN=a client",
            issuer: "CN=CA",
            serial: "0ABC",
        }),
        ..forwarding()
    };
    let own = [
        "X-SSL-Protocol: b",
        "X-SSL-Client-Verify: SUCCESS",
        "X-SSL-Client-S-DN: CN=a client",
        "X-SSL-Client-I-DN: CN=CA",
        "X-SSL-Client-Serial: 0ABC",
    ];
    assert_eq!(passed(forged, &known), own);
    // A proxy in front may have checked the client, unless it has shown a certificate of its own.
    let trusting = Forwarding {
        trusts_client: true,
        ..forwarding()
    };
    let kept: Vec<_> = forged.trim_end().split("\r\n").collect();
    assert_eq!(passed(forged, &trusting), kept);
    let trusting = Forwarding {
        trusts_client: true,
        ..known
    };
    assert_eq!(passed(forged, &trusting), own);
}
