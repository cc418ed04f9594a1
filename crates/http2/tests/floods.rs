//! Floods: the connection of a client that sends too many bytes without effect ends.

use std::io::IoSlice;

use headway_http2::Received;
use headway_test_support::http2::*;

use super::client::OUTPUT_BYTES_MAX;
use super::frames::Raw;

/// RFC 9113, 7.
const ENHANCE_YOUR_CALM: Option<u32> = Some(11);

/// Sends frames until the connection ends or this many bytes were sent. How many were sent, and the
/// error of the GOAWAY.
fn flood(
    raw: &mut Raw,
    bytes_max: usize,
    mut frames: impl FnMut(usize) -> Vec<u8>,
) -> (usize, Option<u32>) {
    let (mut sent, mut round) = (0, 0);
    while sent < bytes_max && !raw.session.is_over() {
        let bytes = frames(round);
        raw.feed(&bytes);
        sent += bytes.len();
        round += 1;
        // The test needs no output, which would fill the memory.
        raw.frames.retain(|frame| frame.kind == GOAWAY);
    }
    (sent, raw.goaway())
}

#[test]
fn floods_without_requests_end_the_connection() {
    let empty_headers = frame(CONTINUATION, 0, 1, b"");
    let open = || frame(HEADERS, 0, 1, &request_block("GET", "/"));
    let post = || frame(HEADERS, END_HEADERS, 1, &request_block("POST", "/"));
    for (what, begin, repeated) in [
        ("PING", Vec::new(), frame(PING, 0, 0, &[0; 8])),
        ("answers to PING", Vec::new(), frame(PING, ACK, 0, &[0; 8])),
        (
            "SETTINGS",
            Vec::new(),
            settings(&[(INITIAL_WINDOW_SIZE, 1)]),
        ),
        ("empty SETTINGS", Vec::new(), settings(&[])),
        ("WINDOW_UPDATE", Vec::new(), window_update(0, 1)),
        (
            "PRIORITY",
            Vec::new(),
            frame(PRIORITY, 0, 5, &[0, 0, 0, 3, 7]),
        ),
        ("unknown frames", Vec::new(), frame(0x42, 0, 0, b"")),
        ("CONTINUATION", open(), empty_headers),
        (
            "long CONTINUATION",
            open(),
            frame(CONTINUATION, 0, 1, &block(&[("a", "b".repeat(9000))])),
        ),
        ("empty DATA", post(), frame(DATA, 0, 1, b"")),
        ("tiny DATA", post(), frame(DATA, 0, 1, b"x")),
        ("padded DATA", post(), frame(DATA, 8, 1, &[99; 100])),
        ("RST_STREAM", get(1, "/"), reset(1)),
    ] {
        let mut raw = Raw::new(&[]);
        raw.feed(&begin);
        let repeated = repeated.repeat(100);
        let (sent, error) = flood(&mut raw, 4 << 20, |_| repeated.clone());
        assert!(raw.session.is_over(), "{what}");
        println!("{what}: {sent} bytes, {error:?}");
        assert!(error.is_some() && error != Some(0), "{what}: {error:?}");
        // More is allowed here, because bodies and headers may be in flight.
        let most = match what {
            "padded DATA" | "long CONTINUATION" => 1 << 20,
            _ => 90 << 10,
        };
        assert!(sent < most, "{what}: {sent}");
    }
}

#[test]
fn bodies_in_tiny_frames_end_the_connection_although_they_are_read() {
    let mut raw = Raw::new(&[]);
    raw.feed(&frame(HEADERS, END_HEADERS, 1, &request_block("POST", "/")));
    let (_, mut stream) = raw.requests.pop().unwrap();
    let mut buffer = [0; 4000];
    let (sent, error) = flood(&mut raw, 4 << 20, |_| {
        while let Received::Data(_) = stream.receive(&mut buffer) {}
        frame(DATA, 0, 1, b"x").repeat(50)
    });
    assert_eq!(error, ENHANCE_YOUR_CALM);
    assert!(sent < 1 << 20, "{sent}");
    assert!(stream.is_reset());
}

#[test]
fn usual_bodies_downloads_and_pings_end_no_connection() {
    let mut raw = Raw::new(&[]);
    raw.feed(&frame(HEADERS, END_HEADERS, 1, &request_block("POST", "/")));
    let (_, mut stream) = raw.requests.pop().unwrap();
    let mut buffer = vec![0; 40_000];
    let (sent, error) = flood(&mut raw, 20 << 20, |_| {
        while let Received::Data(_) = stream.receive(&mut buffer) {}
        frame(DATA, 0, 1, &[7; 50]).repeat(20)
    });
    assert!(error.is_none() && sent >= 20 << 20);
    // A WINDOW_UPDATE for each frame of 100 bytes that the client gets.
    let mut raw = Raw::new(&[]);
    raw.feed(&get(1, "/"));
    let (_, mut stream) = raw.requests.pop().unwrap();
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n";
    stream.send(&[IoSlice::new(head)]).unwrap();
    let (sent, error) = flood(&mut raw, 4 << 20, |_| {
        stream.send(&[IoSlice::new(&[1; 100])]).unwrap();
        [window_update(0, 100), window_update(1, 100)].concat()
    });
    assert!(error.is_none() && sent >= 4 << 20);
    // Requests with PING frames between them.
    let mut raw = Raw::new(&[]);
    for round in 0..300 {
        raw.feed(&get(2 * round + 1, "/"));
        raw.feed(&frame(PING, 0, 0, &[0; 8]).repeat(1000));
        assert_eq!(raw.requests.drain(..).count(), 1);
    }
    assert!(raw.goaway().is_none() && !raw.session.is_over());
}

#[test]
fn window_updates_of_one_byte_end_the_connection() {
    let mut raw = Raw::new(&[(INITIAL_WINDOW_SIZE, 0)]);
    raw.feed(&get(1, "/"));
    let (_, mut stream) = raw.requests.pop().unwrap();
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n";
    stream.send(&[IoSlice::new(head)]).unwrap();
    let (sent, error) = flood(&mut raw, 4 << 20, |_| {
        let _ = stream.send(&[IoSlice::new(&[1; 100])]);
        window_update(1, 1)
    });
    assert_eq!(error, ENHANCE_YOUR_CALM);
    assert!(sent < 1 << 20, "{sent}");
}

#[test]
fn rapid_reset_within_one_read_ends_the_connection_at_once() {
    let mut raw = Raw::new(&[]);
    let mut bytes = Vec::new();
    for stream in 0..10_000 {
        bytes.extend(get(2 * stream + 1, "/"));
        bytes.extend(reset(2 * stream + 1));
    }
    raw.feed(&bytes);
    assert!(raw.session.is_over());
    assert_eq!(raw.goaway(), ENHANCE_YOUR_CALM);
    assert!(raw.requests.len() <= 25, "{}", raw.requests.len());
}

#[test]
fn rapid_reset_ends_the_connection_also_when_each_request_has_begun() {
    let mut raw = Raw::new(&[]);
    let (mut begun, mut is_begun) = (0, false);
    while !raw.session.is_over() && begun < 10_000 {
        let stream = 2 * begun + 1;
        raw.feed(&match is_begun {
            false => get(stream, "/"),
            true => reset(stream),
        });
        if is_begun {
            begun += 1;
            raw.requests.clear();
        }
        is_begun = !is_begun;
        raw.turn();
    }
    assert_eq!(raw.goaway(), ENHANCE_YOUR_CALM);
    assert!(begun < 1000, "{begun}");
}

#[test]
fn requests_that_were_given_up_count_only_if_they_came_just_before_and_had_no_answer() {
    let of = |from: u32, count: u32| (from..from + count).map(|number| 2 * number + 1);
    let requests =
        |from, count| -> Vec<u8> { of(from, count).flat_map(|id| get(id, "/")).collect() };
    let resets = |from, count| -> Vec<u8> { of(from, count).flat_map(reset).collect() };
    let mut raw = Raw::new(&[]);
    // In one piece, but few at a time.
    for round in 0..4 {
        let from = 15 * round;
        raw.feed(&[requests(from, 15), resets(from, 15)].concat());
        raw.requests.clear();
    }
    // Many, but in a later piece.
    raw.feed(&requests(100, 60));
    raw.feed(&resets(100, 60));
    raw.requests.clear();
    assert_eq!(raw.goaway(), None);
    // Many in one piece, each of which an answer was begun for.
    let each = of(200, 60).flat_map(|id| [get(id, "/"), reset(id)].concat());
    raw.session.feed(&each.collect::<Vec<u8>>());
    let mut begun = Vec::new();
    while let Some((_, mut stream)) = raw.session.next_request() {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        stream.send(&[IoSlice::new(head)]).unwrap();
        begun.push(stream);
    }
    raw.turn();
    assert_eq!((begun.len(), raw.goaway()), (60, None));
}

#[test]
fn client_that_cancels_some_requests_is_not_a_flood() {
    let mut raw = Raw::new(&[]);
    for number in 0..5000 {
        let stream = 2 * number + 1;
        raw.feed(&get(stream, "/"));
        let (_, mut of) = raw.requests.pop().unwrap();
        match number % 5 {
            0 | 1 => raw.feed(&reset(stream)),
            _ => {
                let response = b"HTTP/1.1 204 No Content\r\n\r\n";
                of.send(&[IoSlice::new(response)]).unwrap();
            }
        }
        drop(of);
        raw.turn();
    }
    assert!(!raw.session.is_over());
    assert_eq!(raw.goaway(), None);
}

#[test]
fn long_header_list_is_answered_431_or_ends_the_connection() {
    let long = |bytes: usize| block(&[("a", "b".repeat(bytes))]);
    let all = |bytes| [request_block("GET", "/"), long(bytes)].concat();
    // A list that fits into one frame.
    let mut raw = Raw::new(&[]);
    raw.feed(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &all(16_280)));
    assert!(raw.requests.is_empty());
    let answered = raw
        .frames
        .iter()
        .any(|frame| frame.kind == HEADERS && frame.stream == 1);
    assert!(answered && !raw.session.is_over());
    // Many references to an entry of the dynamic table, of one byte each.
    let mut raw = Raw::new(&[]);
    let mut bomb = request_block("GET", "/");
    bomb.extend(kept(b"a", "b".repeat(4000).as_bytes()));
    bomb.extend([KEPT_AGAIN; 12_000]);
    raw.feed(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &bomb));
    assert!(raw.requests.is_empty() && raw.session.is_over());
    assert_eq!(raw.goaway(), ENHANCE_YOUR_CALM);
}

#[test]
fn many_header_lists_that_are_too_long_end_the_connection() {
    let mut raw = Raw::new(&[]);
    let long = block(&[("a", "b".repeat(16_280))]);
    let all = [request_block("GET", "/"), long].concat();
    let (sent, error) = flood(&mut raw, 4 << 20, |round| {
        let stream = 2 * round as u32 + 1;
        frame(HEADERS, END_HEADERS | END_STREAM, stream, &all)
    });
    assert_eq!(error, ENHANCE_YOUR_CALM);
    assert!(sent < 1 << 20, "{sent}");
}

#[test]
fn dynamic_table_may_not_exceed_its_limit() {
    let mut raw = Raw::new(&[(1, u32::MAX)]);
    // A dynamic table size update to 64 KiB (RFC 7541, 6.3).
    let update = [0x3f, 0xe1, 0xff, 0x03];
    let block = [&update[..], &request_block("GET", "/")].concat();
    raw.feed(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &block));
    assert!(raw.session.is_over() && raw.requests.is_empty());
}

#[test]
fn answers_to_control_frames_do_not_pass_the_limit_when_the_client_does_not_read() {
    let mut raw = Raw::new(&[]);
    let pings = frame(PING, 0, 0, &[0; 8]).repeat(3000);
    for _ in 0..100 {
        if raw.session.takes_input() {
            raw.session.feed(&pings);
        }
        while raw.session.next_request().is_some() || raw.session.go_on() {}
        let length = raw.session.with_output(<[u8]>::len);
        assert!(length <= 2 * OUTPUT_BYTES_MAX, "{length}");
    }
    assert!(!raw.session.takes_input());
}

#[test]
fn client_is_read_in_small_parts_until_its_frames_have_an_effect() {
    let mut raw = Raw::new(&[]);
    let small = raw.session.input_max();
    assert!(small < 4 << 10);
    raw.feed(&get(1, "/"));
    assert_eq!(raw.session.input_max(), usize::MAX);
    raw.feed(&frame(PING, 0, 0, &[0; 8]).repeat(100));
    assert_eq!(raw.session.input_max(), usize::MAX);
    raw.feed(&frame(PING, 0, 0, &[0; 8]).repeat(100));
    assert_eq!(raw.session.input_max(), small);
    raw.feed(&get(3, "/"));
    assert_eq!(raw.session.input_max(), usize::MAX);
}

#[test]
fn suspect_is_processed_in_small_parts() {
    let pongs = |raw: &mut Raw| {
        while raw.session.next_request().is_some() {}
        let frames = raw
            .session
            .with_output(|output| Frame::split(output).0.to_vec());
        let bytes = raw.session.with_output(<[u8]>::len);
        raw.session.sent(bytes);
        frames.iter().filter(|frame| frame.kind == PING).count()
    };
    let pings = |count| frame(PING, 0, 0, &[0; 8]).repeat(count);
    let mut raw = Raw::new(&[]);
    raw.feed(&get(1, "/"));
    raw.session.feed(&pings(1000));
    let first = pongs(&mut raw);
    assert!((1..200).contains(&first), "{first}");
    assert!(raw.session.is_suspect() && raw.session.withholds() && !raw.session.takes_input());
    let mut all = first;
    while raw.session.go_on() {
        let more = pongs(&mut raw);
        assert!(more < 200, "{more}");
        all += more;
    }
    assert_eq!(all, 1000);
    assert!(raw.session.takes_input());
    // After a request the client is not a suspect any more, and the rest is processed at once.
    let mut raw = Raw::new(&[]);
    raw.feed(&get(1, "/"));
    raw.session
        .feed(&[pings(150), get(3, "/"), pings(100)].concat());
    let first = pongs(&mut raw);
    assert!(first < 150 && raw.session.go_on(), "{first}");
    assert!(raw.session.next_request().is_some());
    assert_eq!(first + pongs(&mut raw), 250);
    assert!(!raw.session.withholds());
}

#[test]
fn client_without_a_request_may_send_less_without_effect() {
    let pings = |count| frame(PING, 0, 0, &[0; 8]).repeat(count);
    let mut raw = Raw::new(&[]);
    raw.feed(&pings(400));
    assert!(!raw.session.is_over() && !raw.session.has_flooded());
    raw.feed(&pings(400));
    assert!(raw.session.is_over() && raw.session.has_flooded());
    let mut raw = Raw::new(&[]);
    raw.feed(&get(1, "/"));
    raw.feed(&pings(800));
    assert!(!raw.session.is_over() && !raw.session.has_flooded());
}

#[test]
fn client_is_a_suspect_when_header_blocks_make_no_request() {
    let mut raw = Raw::new(&[]);
    raw.feed(&get(1, "/"));
    let long = [
        request_block("GET", "/"),
        block(&[("a", "b".repeat(16_280))]),
    ]
    .concat();
    raw.feed(&frame(
        HEADERS,
        END_HEADERS | END_STREAM,
        3,
        &long[..long.len()],
    ));
    assert!(!raw.session.is_over());
    let is_suspect = |raw: &Raw| raw.session.is_suspect();
    // A single one may be a mistake.
    let before = is_suspect(&raw);
    raw.feed(&frame(HEADERS, END_HEADERS | END_STREAM, 5, &long));
    assert_eq!((before, is_suspect(&raw)), (false, true));
    raw.feed(&get(7, "/"));
    assert!(!is_suspect(&raw));
}

#[test]
fn distrusted_client_is_a_suspect_until_its_first_request() {
    let mut raw = Raw::new(&[]);
    assert!(!raw.session.is_suspect());
    raw.session.distrust();
    assert!(raw.session.is_suspect());
    raw.feed(&get(1, "/"));
    assert!(!raw.session.is_suspect() && raw.requests.len() == 1);
}

#[test]
fn connections_with_other_errors_have_not_flooded() {
    let mut raw = Raw::new(&[]);
    raw.feed(&frame(DATA, 0, 0, b"x"));
    assert!(raw.session.is_over() && !raw.session.has_flooded());
    let mut raw = Raw::new(&[]);
    raw.session.shut_down();
    raw.turn();
    assert!(!raw.session.has_flooded());
    let mut raw = Raw::new(&[]);
    raw.feed(&frame(HEADERS, 0, 1, &request_block("GET", "/")));
    raw.feed(&frame(CONTINUATION, 0, 1, b"").repeat(100));
    assert!(raw.session.is_over() && raw.session.has_flooded());
}
