//! Responses as the client gets them: framing, ends, and streams that end early.

use std::io::IoSlice;

use h2::Reason;
use headway_http2::Received;
use http::Request;

use super::client::*;

/// The response that the client gets.
fn answer(method: &str, response: &[u8]) -> Exchange {
    let mut peers = Peers::new();
    let request = Request::builder().method(method).uri("http://test/x");
    peers.begin(request.body(()).unwrap(), None);
    let (head, mut stream) = peers.accept();
    assert_eq!(head, format!("{method} /x HTTP/2.0\r\nHost: test\r\n\r\n"));
    assert!(!stream.has_input());
    peers.respond(&mut stream, response);
    drop(stream);
    peers.settle();
    peers.exchanges.remove(0)
}

#[test]
fn get_has_status_headers_and_body() {
    let seen = answer(
        "GET",
        b"HTTP/1.1 200 OK\r\nServer: x\r\nConnection: close\r\nETag: \"a\"\r\nContent-Length: 5\r\n\r\nhello",
    );
    assert_eq!((seen.status, seen.end), (200, Some(Ok(()))));
    assert_eq!(seen.received, b"hello");
    let names: Vec<&str> = seen.headers.keys().map(|name| name.as_str()).collect();
    assert_eq!(names, ["server", "etag", "content-length"]);
}

#[test]
fn response_without_a_body_ends_with_its_header() {
    for (method, head) in [
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 500"),
        ("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked"),
        ("GET", "HTTP/1.1 304 Not Modified\r\nETag: \"a\""),
        ("GET", "HTTP/1.1 204 No Content\r\nServer: x"),
        ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0"),
    ] {
        let seen = answer(method, format!("{head}\r\n\r\n").as_bytes());
        assert_eq!(seen.end, Some(Ok(())), "{head}");
        assert!(seen.received.is_empty());
        assert_eq!(seen.status.to_string(), head[9..12]);
    }
}

#[test]
fn chunk_framing_is_removed() {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let seen = answer(
        "GET",
        format!("{head}3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").as_bytes(),
    );
    assert_eq!(
        (seen.received.as_slice(), seen.end),
        (&b"abcde"[..], Some(Ok(())))
    );
    assert!(!seen.headers.contains_key("transfer-encoding"));
    let empty = answer("GET", format!("{head}0\r\n\r\n").as_bytes());
    assert_eq!((empty.received.len(), empty.end), (0, Some(Ok(()))));
}

#[test]
fn trailers_of_a_response_follow_its_body() {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let trailers = "Grpc-Status: 0\r\nX:\tb \r\nx: c\r\nConnection: d\r\nKeep-Alive: e\r\n\r\n";
    for data in ["3\r\nabc\r\n", ""] {
        let seen = answer("GET", format!("{head}{data}0\r\n{trailers}").as_bytes());
        assert_eq!(seen.end, Some(Ok(())));
        assert_eq!(seen.received.is_empty(), data.is_empty());
        let found: Vec<(&str, &[u8])> = seen
            .trailers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
            .collect();
        let expected = [
            ("grpc-status", &b"0"[..]),
            ("x", &b"b"[..]),
            ("x", &b"c"[..]),
        ];
        assert_eq!(found, expected);
    }
}

#[test]
fn response_without_a_length_ends_with_end() {
    let seen = answer("GET", b"HTTP/1.0 200 OK\r\n\r\nall of it");
    assert_eq!(
        (seen.received.as_slice(), seen.end),
        (&b"all of it"[..], Some(Ok(())))
    );
}

#[test]
fn response_that_is_too_short_is_reset() {
    for response in [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhell",
        "HTTP/1.1 200 OK\r\nContent-Le",
        "",
    ] {
        let seen = answer("GET", response.as_bytes());
        assert_eq!(seen.end, Some(Err(Reason::INTERNAL_ERROR)), "{response}");
    }
}

#[test]
fn stream_that_is_dropped_is_reset() {
    for response in ["", "HTTP/1.1 200 OK\r\n\r\nhello"] {
        let mut peers = Peers::new();
        let at = peers.get("/");
        let (_, mut stream) = peers.accept();
        peers.give(&mut stream, response.as_bytes());
        drop(stream);
        peers.settle();
        assert_eq!(peers.exchanges[at].end, Some(Err(Reason::INTERNAL_ERROR)));
        // The other streams continue.
        let at = peers.get("/");
        let (_, mut stream) = peers.accept();
        peers.respond(
            &mut stream,
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
        );
        assert_eq!(peers.exchanges[at].end, Some(Ok(())));
    }
}

#[test]
fn refused_stream_may_be_repeated() {
    let mut peers = Peers::new();
    let at = peers.get("/");
    let (_, stream) = peers.accept();
    stream.refuse();
    peers.settle();
    assert_eq!(peers.exchanges[at].end, Some(Err(Reason::REFUSED_STREAM)));
}

#[test]
fn informational_responses_are_left_out() {
    let seen = answer(
        "GET",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
          HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    );
    assert_eq!((seen.status, seen.received.as_slice()), (200, &b"ok"[..]));
    assert!(!seen.headers.contains_key("link"));
}

#[test]
fn response_header_may_be_split_anywhere() {
    let response = b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n\
        HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 5\r\n\r\nhello";
    for size in 1..response.len() {
        let mut peers = Peers::new();
        let at = peers.get("/");
        let (_, mut stream) = peers.accept();
        for piece in response.chunks(size) {
            peers.give(&mut stream, piece);
        }
        stream.end();
        peers.settle();
        let seen = &peers.exchanges[at];
        assert_eq!(
            (seen.status, seen.received.as_slice()),
            (200, &b"hello"[..]),
            "{size}"
        );
        assert_eq!(seen.end, Some(Ok(())), "{size}");
    }
}

#[test]
fn bytes_after_the_end_are_dropped_in_the_same_call_and_later_an_error() {
    let mut peers = Peers::new();
    let at = peers.get("/");
    let (_, mut stream) = peers.accept();
    peers.give(
        &mut stream,
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 400",
    );
    assert!(stream.send(&[IoSlice::new(b" Bad")]).is_err());
    stream.end();
    peers.settle();
    assert_eq!(peers.exchanges[at].received, b"ok");
    assert_eq!(peers.exchanges[at].end, Some(Ok(())));
}

#[test]
fn malformed_responses_are_errors() {
    for response in [
        "hello\r\n\r\n",
        "HTTP/1.1 2x0 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA b: c\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ] {
        let mut peers = Peers::new();
        let at = peers.get("/");
        let (_, mut stream) = peers.accept();
        assert!(
            stream.send(&[IoSlice::new(response.as_bytes())]).is_err(),
            "{response}"
        );
        drop(stream);
        peers.settle();
        assert_eq!(
            peers.exchanges[at].end,
            Some(Err(Reason::INTERNAL_ERROR)),
            "{response}"
        );
    }
}

#[test]
fn reset_by_the_client_is_seen_at_any_moment() {
    // Before the response, within its header, in its body.
    for given in [
        "",
        "HTTP/1.1 200",
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhell",
    ] {
        for has_body in [false, true] {
            let mut peers = Peers::new();
            let request = Request::post("http://test/").body(()).unwrap();
            let (upload, download) = (contents(1 << 20), contents(1 << 20));
            let at = peers.begin(request, has_body.then_some(&upload[..]));
            let other = peers.get("/other");
            let (_, mut stream) = peers.accept();
            let (_, mut of_other) = peers.accept();
            peers.give(&mut stream, given.as_bytes());
            peers.settle();
            assert!(!stream.is_reset());
            peers.exchanges[at].send.send_reset(Reason::CANCEL);
            peers.settle();
            assert!(stream.is_reset(), "{given}");
            let mut buffer = [0; 100];
            if has_body {
                while let Received::Data(_) = stream.receive(&mut buffer) {}
                assert_eq!(stream.receive(&mut buffer), Received::Reset);
            }
            let rest = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello you";
            assert!(stream.send(&[IoSlice::new(rest)]).is_err(), "{given}");
            stream.end();
            drop(stream);
            // The connection's window is as large as before, because other streams need it.
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
                download.len()
            );
            peers.give(&mut of_other, head.as_bytes());
            peers.give(&mut of_other, &download);
            peers.settle();
            assert_eq!(peers.exchanges[other].end, Some(Ok(())));
            assert!(peers.exchanges[other].received == download);
            let request = Request::post("http://test/").body(()).unwrap();
            peers.begin(request, Some(&upload));
            let (_, mut stream) = peers.accept();
            assert!(peers.receive(&mut stream).0.len() > upload.len());
        }
    }
}

#[test]
fn streams_finish_after_goaway_and_none_begin() {
    let mut peers = Peers::new();
    let first = peers.get("/first");
    let (_, mut stream) = peers.accept();
    peers.give(
        &mut stream,
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe",
    );
    peers.session.shut_down();
    peers.session.shut_down();
    peers.settle();
    assert!(!peers.session.is_over());
    assert!(peers.exchanges[first].end.is_none());
    peers.give(&mut stream, b"llo");
    stream.end();
    drop(stream);
    peers.settle();
    assert_eq!(peers.exchanges[first].received, b"hello");
    assert_eq!(peers.exchanges[first].end, Some(Ok(())));
    assert!(peers.session.is_over() && peers.requests.is_empty());
    assert!(
        matches!(peers.client_end, Some(Ok(()))),
        "{:?}",
        peers.client_end
    );
}

#[test]
fn session_that_is_shut_down_before_the_preface_serves_nothing() {
    let mut peers = Peers::new();
    peers.session.shut_down();
    peers.settle();
    assert!(peers.session.is_over());
}

#[test]
fn streams_outlive_their_session() {
    let mut peers = Peers::new();
    let request = Request::post("http://test/").body(()).unwrap();
    peers.begin(request, Some(&contents(1000)));
    let (_, mut stream) = peers.accept();
    let (_, mut unread) = {
        peers.get("/");
        peers.accept()
    };
    peers.give(&mut stream, b"HTTP/1.1 200 OK\r\n\r\nhello");
    drop(peers);
    assert!(stream.is_reset() && unread.is_reset());
    assert!(stream.send(&[IoSlice::new(b"more")]).is_err());
    stream.end();
    unread.end();
}
