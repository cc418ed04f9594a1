//! nginx as an HTTP/1.1 upstream.

use std::os::unix::net::UnixStream;

use headway_gateway::HeadLimits;
use headway_gateway::proxy::{Body, Forwarding, ProxyCodec};
use headway_test_support::upstream::{TEXT, nginx};

use super::transaction::{Response, converse, with_request};

fn exchange(stream: &mut UnixStream, request_line: &str, lines: &str, body: &[u8]) -> Response {
    let bytes = format!("{request_line} HTTP/1.1\r\nHost: example.org\r\n{lines}\r\n");
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
    let framing = match (body, lines.contains("chunked")) {
        (b"", _) => Body::None,
        (_, true) => Body::Chunked,
        _ => Body::Length(body.len() as u64),
    };
    let mut codec = with_request(bytes.as_bytes(), |request| {
        ProxyCodec::new(request, &forwarding, framing, &HeadLimits::default()).unwrap()
    });
    converse(&mut codec, stream, body)
}

/// Needs: the program nginx: scripts/setup
#[test]
fn nginx_serves_many_requests_over_a_keepalive_connection() {
    let name = "nginx_serves_many_requests_over_a_keepalive_connection";
    let Some(upstream) = nginx(name) else {
        return;
    };
    let mut stream = upstream.connect();
    let mut get = |request_line: &str, lines: &str, body: &[u8]| {
        let outcome = exchange(&mut stream, request_line, lines, body);
        assert!(
            outcome.end.as_ref().is_ok_and(|end| end.reusable),
            "{request_line}: {outcome:?}"
        );
        outcome
    };
    let plain = get("GET /a.txt", "", b"");
    assert_eq!((plain.response().status, plain.text()), (200, TEXT));
    assert_eq!(plain.response().length, Some(TEXT.len() as u64));
    let chunked = get("GET /chunked/a.txt", "", b"");
    assert_eq!((chunked.response().length, chunked.text()), (None, TEXT));
    assert_eq!(get("GET /chunked/large.bin", "", b"").body.len(), 3_000_000);
    let head = get("HEAD /large.bin", "", b"");
    assert_eq!(
        (head.response().length, head.body.len()),
        (Some(3_000_000), 0)
    );
    let part = get("GET /a.txt", "Range: bytes=5-8\r\n", b"");
    assert_eq!((part.response().status, part.text()), (206, "text"));
    let tag = format!("If-None-Match: {}\r\n", plain.field("ETag"));
    let unchanged = get("GET /a.txt", &tag, b"");
    assert_eq!(
        (unchanged.response().status, unchanged.body.len()),
        (304, 0)
    );
    let echoed = get(
        "GET /request?a%20b",
        "X-Own: c\r\nConnection: keep-alive, X-Gone\r\nX-Gone: d\r\n",
        b"",
    );
    let expected = "example.org|for=192.0.2.7;host=example.org;proto=http|192.0.2.7|1.1 headway|c||/request?a%20b";
    assert_eq!(echoed.text(), expected);
    let post = get("POST /request", "Content-Length: 5\r\n", b"hello");
    assert_eq!(post.response().status, 200);
    let post = get(
        "POST /request",
        "Transfer-Encoding: chunked\r\n",
        &[b'x'; 100_000],
    );
    assert_eq!(post.response().status, 200);
    assert_eq!(get("GET /absent", "", b"").response().status, 404);
}

/// Needs: the program nginx: scripts/setup
#[test]
fn connection_is_not_reusable_when_nginx_closes_it() {
    let Some(upstream) = nginx("connection_is_not_reusable_when_nginx_closes_it") else {
        return;
    };
    let outcome = exchange(&mut upstream.connect(), "GET /old", "", b"");
    assert_eq!(
        (outcome.text(), outcome.end.clone().map(|end| end.reusable)),
        (TEXT, Ok(false))
    );
}
