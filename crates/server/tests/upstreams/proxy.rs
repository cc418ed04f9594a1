//! nginx behind the reverse proxy.

use headway_test_support::upstream::{self, TEXT};

use crate::site::*;

/// Needs: the program nginx: scripts/setup
#[test]
fn proxy_reuses_connections_with_keepalive() {
    let name = "proxy_reuses_connections_with_keepalive";
    let Some(upstream) = upstream::nginx(name) else {
        return;
    };
    let site = Site::new();
    let server = site.serve_configured(&format!(
        "[[location]]\nprefix = \"/\"\nproxy = \"unix:{}\"\nmax-body-size = \"8MiB\"\n\
         [[location]]\nprefix = \"/file.txt\"\nfiles = true\n",
        upstream.socket().display()
    ));
    let mut stream = server.connect();
    let mut response_to = |request: &str| {
        send(&mut stream, request);
        match request.starts_with("HEAD") {
            true => receive_head(&mut stream).unwrap(),
            false => receive(&mut stream).unwrap(),
        }
    };
    let plain = response_to("GET /a.txt HTTP/1.1\r\nHost: example.org\r\n\r\n");
    assert_eq!((plain.status, plain.text().as_str()), (200, TEXT));
    assert_eq!(plain.field("Server"), Some("Headway"));
    let tag = plain.field("ETag").unwrap();
    let again = format!("GET /a.txt HTTP/1.1\r\nHost: x\r\nIf-None-Match: {tag}\r\n\r\n");
    assert_eq!(response_to(&again).status, 304);
    let part = response_to("GET /a.txt HTTP/1.1\r\nHost: x\r\nRange: bytes=5-8\r\n\r\n");
    assert_eq!((part.status, part.text().as_str()), (206, "text"));
    let head = response_to("HEAD /large.bin HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(head.field("Content-Length"), Some("3000000"));
    assert_eq!(
        response_to("GET /large.bin HTTP/1.1\r\nHost: x\r\n\r\n")
            .body
            .len(),
        3_000_000
    );
    assert_eq!(
        response_to("GET /chunked/large.bin HTTP/1.1\r\nHost: x\r\n\r\n")
            .body
            .len(),
        3_000_000
    );
    let response = response_to(
        "GET /request?q HTTP/1.1\r\nHost: example.org\r\nX-Forwarded-For: 1.2.3.4\r\nX-Own: a\r\nConnection: X-Gone\r\nX-Gone: b\r\n\r\n",
    );
    let expected =
        "example.org|for=127.0.0.1;host=example.org;proto=http|127.0.0.1|1.1 headway|a||/request?q";
    assert_eq!(response.text(), expected);
    let sent = response_to(
        "POST /request HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    );
    assert_eq!(sent.status, 200);
    assert_eq!(
        response_to("GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n").status,
        404
    );
    assert!(counter(&server, "upstream_connections_reused") >= 7);
    assert!(counter(&server, "upstream_connects") <= 3);
    is_well(&server);
}
