//! Bodies in both directions, split at any byte, and with flow-control windows of all sizes.

use h2::client::Builder;
use headway_http::chunked::{ChunkedDrain, DrainLimits, DrainProgress};
use headway_http2::{Received, Stream};
use http::Request;

use super::client::*;

const WINDOWS: [u32; 5] = [1, 2, 100, 16 << 10, 64 << 10];

/// Removes the chunk framing of a body, which must be complete.
fn unchunked(framed: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    let mut chunks = ChunkedDrain::new(DrainLimits {
        body_bytes_max: u64::MAX,
        ..DrainLimits::default()
    });
    let end = chunks.feed_body(framed, |piece| body.extend_from_slice(piece));
    assert_eq!(end, DrainProgress::Done(framed.len()));
    body
}

#[test]
fn post_with_a_length_has_its_body_without_chunks() {
    for (size, piece_max) in [(1, 1), (300, 7), (300_000, 1000), (3 << 20, 1 << 20)] {
        let mut peers = Peers::with(&mut Builder::new(), piece_max, 1);
        let body = contents(size);
        let request = Request::post("http://test/").header("content-length", size);
        peers.begin(request.body(()).unwrap(), Some(&body));
        let (head, mut stream) = peers.accept();
        assert_eq!(
            head,
            format!("POST / HTTP/2.0\r\nHost: test\r\nContent-Length: {size}\r\n\r\n")
        );
        let (received, end) = peers.receive(&mut stream);
        assert!(received == body, "{size}: {}", received.len());
        assert_eq!(end, Received::Nothing);
        // Otherwise the server would read again and again.
        assert!(!stream.has_input());
        assert!(!stream.is_reset());
    }
}

#[test]
fn post_without_a_length_has_a_body_in_valid_chunks() {
    for (size, piece_max) in [
        (0, 1),
        (1, 1),
        (300, 7),
        (300_000, 1000),
        (3 << 20, 1 << 20),
    ] {
        let mut peers = Peers::with(&mut Builder::new(), piece_max, 2);
        let body = contents(size);
        let request = Request::post("http://test/").body(()).unwrap();
        peers.begin(request, Some(&body));
        let (head, mut stream) = peers.accept();
        assert_eq!(
            head,
            "POST / HTTP/2.0\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
        let (framed, end) = peers.receive(&mut stream);
        assert!(unchunked(&framed) == body, "{size}");
        assert_eq!(end, Received::Nothing);
        assert!(!stream.has_input());
    }
}

#[test]
fn chunk_is_never_empty_when_the_buffer_has_little_room() {
    let mut peers = Peers::new();
    let request = Request::post("http://test/").body(()).unwrap();
    peers.begin(request, Some(&contents(100)));
    let (_, mut stream) = peers.accept();
    let (mut framed, mut buffer) = (Vec::new(), [0; 40]);
    for room in 0..=20 {
        assert_eq!(stream.receive(&mut buffer[..room]), Received::Nothing);
    }
    while let Received::Data(count) = stream.receive(&mut buffer[..21]) {
        framed.extend(&buffer[..count]);
    }
    assert!(unchunked(&framed) == contents(100));
}

#[test]
fn body_that_is_not_read_does_not_exceed_the_windows() {
    let mut peers = Peers::new();
    let sizes = [300_000_usize; 8];
    for size in sizes {
        let request = Request::post("http://test/").body(()).unwrap();
        peers.begin(request, Some(&contents(size)));
    }
    peers.settle();
    let requests = std::mem::take(&mut peers.requests);
    let mut streams: Vec<Stream> = requests.into_iter().map(|(_, stream)| stream).collect();
    assert_eq!(streams.len(), sizes.len());
    let mut held = 0;
    for stream in &mut streams {
        let mut buffer = vec![0; 1 << 20];
        while let Received::Data(count) = stream.receive(&mut buffer) {
            held += count;
        }
    }
    assert!(held <= (256 << 10) + 1000 * sizes.len(), "{held}");
    // WINDOW_UPDATE returns the used windows, so the whole body arrives.
    for stream in &mut streams {
        peers.receive(stream);
        peers.respond(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    }
    assert!(peers.exchanges.iter().all(|one| one.end == Some(Ok(()))));
}

/// A response with a length, in chunks of these sizes, or without a length.
fn responses(body: &[u8], sizes: &mut Sizes) -> [Vec<u8>; 3] {
    let mut chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    let mut rest = body;
    while !rest.is_empty() {
        let (chunk, others) = rest.split_at(sizes.next(5000).min(rest.len()));
        chunked.extend(format!("{:x}\r\n", chunk.len()).as_bytes());
        chunked.extend(chunk);
        chunked.extend(b"\r\n");
        rest = others;
    }
    chunked.extend(b"0\r\n\r\n");
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    let sized = [head.as_bytes(), body].concat();
    let to_end = [&b"HTTP/1.1 200 OK\r\n\r\n"[..], body].concat();
    [sized, chunked, to_end]
}

#[test]
fn large_responses_arrive_whole_through_windows_of_all_sizes() {
    for (at, window) in WINDOWS.into_iter().enumerate() {
        for piece_max in [10, 3000, 200_000] {
            let size = (window as usize * 400).min(piece_max * 500).min(2 << 20);
            let mut builder = Builder::new();
            builder.initial_window_size(window);
            // A connection never begins with a smaller window.
            builder.initial_connection_window_size(1 << 16);
            let mut peers = Peers::with(&mut builder, piece_max, at as u64);
            let body = contents(size);
            for response in responses(&body, &mut Sizes::new(at as u64)) {
                let at = peers.get("/");
                let (_, mut stream) = peers.accept();
                peers.respond(&mut stream, &response);
                let seen = &peers.exchanges[at];
                assert_eq!(seen.end, Some(Ok(())), "{window} {piece_max}");
                assert!(seen.received == body, "{window} {piece_max}");
            }
        }
    }
}

#[test]
fn both_directions_progress_at_the_same_time() {
    for piece_max in [100, 5000, 1 << 20] {
        let body = contents(piece_max * 300);
        let body = &body[..body.len().min(1 << 20)];
        let mut peers = Peers::with(&mut Builder::new(), piece_max, 3);
        let request = Request::post("http://test/").header("content-length", body.len());
        let at = peers.begin(request.body(()).unwrap(), Some(body));
        let (_, mut stream) = peers.accept();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        peers.give(&mut stream, head.as_bytes());
        let (mut echoed, mut buffer) = (0, vec![0; 50_000]);
        while echoed < body.len() {
            match stream.receive(&mut buffer) {
                Received::Data(count) => {
                    peers.give(&mut stream, &buffer[..count]);
                    echoed += count;
                }
                Received::Nothing => assert!(peers.pass(), "{echoed}"),
                end => panic!("{end:?}"),
            }
        }
        stream.end();
        peers.settle();
        assert!(peers.exchanges[at].received == body);
        assert_eq!(peers.exchanges[at].end, Some(Ok(())));
    }
}

#[test]
fn response_may_be_sent_before_the_body_was_read() {
    let mut peers = Peers::new();
    for has_length in [true, false] {
        let mut request = Request::post("http://test/");
        if has_length {
            request = request.header("content-length", 3 << 20);
        }
        let at = peers.begin(request.body(()).unwrap(), Some(&contents(3 << 20)));
        let (_, mut stream) = peers.accept();
        peers.respond(
            &mut stream,
            b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno",
        );
        drop(stream);
        peers.settle();
        let seen = &peers.exchanges[at];
        assert_eq!((seen.status, seen.received.as_slice()), (413, &b"no"[..]));
        assert_eq!(seen.end, Some(Ok(())));
    }
    let at = peers.get("/");
    let (_, mut stream) = peers.accept();
    peers.respond(&mut stream, b"HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(peers.exchanges[at].status, 204);
}
