//! Trailers between clients of HTTP/2 and an upstream of HTTP/1.1, as of a gateway to gRPC.

use std::io::{Read, Write};

use http::HeaderMap;

use super::client::*;
use crate::site::*;
use crate::upstreams::faults::{FakeUpstream, proxy, read_head};

/// What comes until the end of a body in chunks.
fn read_chunks(stream: &mut std::net::TcpStream) -> String {
    let (mut body, mut byte) = (Vec::new(), [0]);
    let is_over = |body: &[u8]| {
        let at = body.windows(5).position(|window| window == b"\r\n0\r\n");
        at.is_some() && body.ends_with(b"\r\n\r\n")
    };
    while !is_over(&body) && matches!(stream.read(&mut byte), Ok(1)) {
        body.push(byte[0]);
    }
    String::from_utf8_lossy(&body).into_owned()
}

#[test]
fn trailers_of_an_upstream_reach_a_client_that_accepts_them() {
    let upstream = FakeUpstream::new(|mut stream| {
        while let Some(head) = read_head(&mut stream) {
            let asks = head.contains("\r\nTE: trailers\r\nConnection: TE\r\n");
            let size = if head.starts_with("GET /app/long") {
                300_000
            } else {
                5
            };
            let response = format!(
                "HTTP/1.1 200 OK\r\nTrailer: grpc-status\r\nX-Asks: {asks}\r\nTransfer-Encoding: chunked\r\n\r\n\
                 {size:x}\r\n{}\r\n0\r\nGrpc-Status: 0\r\nGrpc-Message: all well\r\nSet-Cookie: a\r\n\
                 Content-Length: 1\r\nTE: x\r\n\r\n",
                "x".repeat(size)
            );
            // In two parts: the trailers come alone.
            let (first, last) = response.split_at(response.len() - 60);
            if stream.write_all(first.as_bytes()).is_err()
                || stream.write_all(last.as_bytes()).is_err()
            {
                return;
            }
        }
    });
    let site = Site::new();
    let server = proxy(&site, &[&upstream.address], "");
    let mut client = Client::connect(&server);
    for path in ["/app/", "/app/long"] {
        for accepts in [true, false] {
            let mut request = client.request("GET", path);
            if accepts {
                request = request.header("te", "trailers");
            }
            let at = client.begin(request, None);
            let seen = client.finish(at);
            assert_eq!((seen.status, seen.end), (200, Some(Ok(()))), "{path}");
            assert_eq!(
                seen.received.len(),
                if path == "/app/" { 5 } else { 300_000 }
            );
            assert_eq!(seen.header("x-asks"), accepts.to_string());
            assert_eq!(seen.header("trailer"), "");
            let mut expected = HeaderMap::new();
            if accepts {
                expected.insert("grpc-status", "0".parse().unwrap());
                expected.insert("grpc-message", "all well".parse().unwrap());
            }
            assert_eq!(seen.trailers, expected, "{path}");
        }
    }
    // In HTTP/1.1 as well.
    let mut stream = server.connect();
    send(
        &mut stream,
        "GET /app/ HTTP/1.1\r\nHost: x\r\nTE: trailers\r\nConnection: TE\r\n\r\n",
    );
    let head = receive_head(&mut stream).unwrap();
    assert_eq!(head.field("Transfer-Encoding"), Some("chunked"));
    let expected = "5\r\nxxxxx\r\n0\r\nGrpc-Status: 0\r\nGrpc-Message: all well\r\n\r\n";
    assert_eq!(read_chunks(&mut stream), expected);
    wait_until_all_have_ended(&server);
    is_well(&server);
}

#[test]
fn trailers_of_a_request_follow_its_chunks_to_an_upstream() {
    let upstream = FakeUpstream::new(|mut stream| {
        while let Some(head) = read_head(&mut stream) {
            let body = match head.contains("Transfer-Encoding: chunked") {
                true => read_chunks(&mut stream),
                false => {
                    let mut body = [0; 3];
                    stream.read_exact(&mut body).unwrap();
                    String::from_utf8_lossy(&body).into_owned()
                }
            };
            let response = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            if stream.write_all(response.as_bytes()).is_err() {
                return;
            }
        }
    });
    let site = Site::new();
    for buffers in [true, false] {
        let more = format!("request-buffering = {buffers}");
        let server = proxy(&site, &[&upstream.address], &more);
        let mut client = Client::connect(&server);
        for (length, expected) in [
            (None, "3\r\nabc\r\n0\r\nx-own: b\r\n\r\n"),
            (Some(3), "abc"),
        ] {
            let mut request = client.request("POST", "/app/");
            if let Some(length) = length {
                request = request.header("content-length", length);
            }
            let at = client.begin(request, Some(b"abc"));
            let mut trailers = HeaderMap::new();
            for (name, value) in [("x-own", "b"), ("x-forwarded-for", "1"), ("host", "c")] {
                trailers.insert(name, value.parse().unwrap());
            }
            client.exchanges[at].own_trailers = Some(trailers);
            assert_eq!(client.finish(at).text(), expected, "{buffers}");
        }
        wait_until_all_have_ended(&server);
        is_well(&server);
    }
}
