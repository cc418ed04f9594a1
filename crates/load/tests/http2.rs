//! Requests over HTTP/2: streams, windows, and every way in which a server ends them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use headway_latency::Outcome;
use headway_load::engine::{Arrivals, Method, Mode, Plan, PlanError, Protocol, Schedule, Target};
use headway_load::{checksum, engine::Document};
use headway_test_support::http2::{self, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS};

use crate::http2_server::{Peer, header, response, serve, serve_tls};
use crate::support::{Server, Step, closed_to, count, outcomes, run, send};

const MAX_CONCURRENT_STREAMS: u16 = 3;
const REFUSED_STREAM: u32 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;

/// A closed loop of one connection.
fn plan(target: Target, streams: u32, requests: u64) -> Plan {
    let mut plan = closed_to(target, requests);
    plan.protocol = Protocol::Http2 { streams };
    plan
}

fn goaway(last: u32, code: u32) -> Vec<u8> {
    let payload = [last.to_be_bytes(), code.to_be_bytes()].concat();
    http2::frame(GOAWAY, 0, 0, &payload)
}

fn reset(stream: u32, code: u32) -> Vec<u8> {
    http2::frame(http2::RST_STREAM, 0, stream, &code.to_be_bytes())
}

fn frame_of(kind: u8, flags: u8, stream: u32, text: &str) -> Vec<u8> {
    http2::frame(kind, flags, stream, text.as_bytes())
}

/// Answers requests by `answer`, whose arguments are the peer, the stream and its number.
fn answering(answer: impl Fn(&mut Peer, u32, usize) + Send + Sync + 'static) -> Target {
    serve(move |peer| {
        peer.greet(&[]);
        for number in 0.. {
            let Some(stream) = peer.request() else { return };
            answer(peer, stream, number);
        }
    })
}

#[test]
fn responses_are_whole_through_tls_and_in_the_clear() {
    let large = "x".repeat(1 << 20);
    let conversation = move |peer: &mut Peer| {
        peer.greet(&[]);
        for number in 0.. {
            let Some(stream) = peer.request() else { return };
            match number % 3 {
                0 => {
                    peer.answer(stream, "small");
                }
                1 => {
                    peer.answer(stream, &large);
                }
                _ => peer.dribble(&response(stream, "in segments of one byte")),
            }
        }
    };
    let targets = [serve(conversation.clone()), serve_tls(None, conversation)];
    for (target, tls) in targets.into_iter().zip([0, 1]) {
        let (rows, measured) = run(&plan(target, 1, 12));
        assert_eq!(outcomes(&rows), [Outcome::Ok; 12], "{:?}", measured.failure);
        let sizes = [5, 1 << 20, 23];
        for (at, row) in rows.iter().enumerate() {
            assert_eq!((row.bytes, row.status), (sizes[at % 3], 200));
            assert_eq!((row.connection, row.ordinal), (0, at as u32));
            assert_eq!(row.handshake_ns > 0, tls == 1 && at == 0);
        }
        assert_eq!(measured.server.as_deref(), Some("scripted/2"));
        assert_eq!(
            (measured.connections_opened, measured.handshakes.done),
            (1, tls)
        );
        assert_eq!(measured.unsolicited, 0);
    }
}

/// No answer comes before all streams are in use.
#[test]
fn streams_share_a_connection() {
    let conversation = |peer: &mut Peer| {
        peer.greet(&[]);
        loop {
            let streams = peer.requests(8);
            for stream in streams.iter().rev() {
                peer.answer(*stream, "ok");
            }
            if streams.len() < 8 {
                return;
            }
        }
    };
    for target in [serve(conversation), serve_tls(None, conversation)] {
        let (rows, measured) = run(&plan(target, 8, 32));
        assert_eq!(outcomes(&rows), [Outcome::Ok; 32]);
        assert_eq!(measured.connections_opened, 1);
        let mut ordinals: Vec<u32> = rows.iter().map(|row| row.ordinal).collect();
        ordinals.sort_unstable();
        assert!(ordinals.into_iter().eq(0..32));
    }
}

#[test]
fn open_loop_is_answered_over_streams() {
    let target = serve_tls(None, |peer| {
        peer.greet(&[]);
        peer.answer_all("ok");
    });
    let mut plan = plan(target, 4, 200);
    plan.mode = Mode::Open {
        schedule: Schedule::constant(1000.0),
        arrivals: Arrivals::Poisson,
        connections_max: 2,
        waiting_max: 1000,
    };
    let (rows, measured) = run(&plan);
    assert_eq!(count(&rows, Outcome::Ok), 200, "{:?}", measured.failure);
    assert!(measured.connections_opened <= 2);
}

#[test]
fn no_more_streams_are_started_than_the_server_allows() {
    let target = serve(|peer| {
        peer.greet(&[(MAX_CONCURRENT_STREAMS, 2)]);
        // What was started before the settings came: all.
        for stream in peer.requests(8) {
            peer.answer(stream, "ok");
        }
        while let [one, two] = peer.requests(2)[..] {
            // A third request would come before the answer to this, and be lost.
            peer.send(&frame_of(http2::PING, 0, 0, "12345678"));
            peer.next(http2::PING);
            peer.answer(one, "ok");
            peer.answer(two, "ok");
        }
    });
    let (rows, measured) = run(&plan(target, 8, 40));
    assert_eq!(outcomes(&rows), [Outcome::Ok; 40]);
    assert_eq!(measured.connections_opened, 1);
}

#[test]
fn connection_is_replaced_after_its_requests() {
    for (streams, requests) in [(1, 12), (8, 40)] {
        let target = serve(|peer| {
            peer.greet(&[]);
            peer.answer_all("ok");
        });
        let mut plan = plan(target, streams, requests);
        plan.requests_per_connection = Some(4);
        let (rows, measured) = run(&plan);
        assert_eq!(count(&rows, Outcome::Ok) as u64, requests);
        assert_eq!(measured.connections_opened, requests / 4);
        assert!(rows.iter().all(|row| row.ordinal < 4));
        assert_eq!(measured.retried, 0);
    }
}

#[test]
fn streams_below_a_goaway_are_finished_and_the_others_sent_again() {
    let target = serve(|peer| {
        peer.greet(&[]);
        if peer.connection > 0 {
            return peer.answer_all("ok");
        }
        let streams = peer.requests(4);
        assert_eq!(streams, [1, 3, 5, 7]);
        peer.send(&goaway(3, 0));
        peer.answer(3, "ok");
        peer.answer(1, "ok");
        // The client closes when it has both.
        peer.wait();
    });
    let (rows, measured) = run(&plan(target, 4, 12));
    assert_eq!(outcomes(&rows), [Outcome::Ok; 12]);
    assert_eq!((measured.retried, measured.connections_opened), (2, 2));
    assert_eq!(measured.failure, None);
}

#[test]
fn request_fails_when_every_connection_ends_with_goaway() {
    let target = answering(|peer, _, _| {
        peer.send(&goaway(0, ENHANCE_YOUR_CALM));
        peer.wait();
    });
    let (rows, measured) = run(&plan(target, 1, 3));
    assert_eq!(outcomes(&rows), [Outcome::ClosedEarly; 3]);
    assert_eq!((measured.retried, measured.connections_opened), (3, 6));
    let message = measured.failure.expect("the reason").message;
    assert!(message.starts_with("HTTP/2 with 127.0.0.1:"), "{message}");
    assert!(message.contains("ENHANCE_YOUR_CALM"), "{message}");
}

#[test]
fn other_streams_continue_when_one_is_reset() {
    let target = serve(|peer| {
        peer.greet(&[]);
        for stream in peer.requests(4) {
            match stream {
                3 => peer.send(&[header(3, 5), frame_of(DATA, 0, 3, "he"), reset(3, 2)].concat()),
                _ => peer.answer(stream, "hello"),
            };
        }
        peer.answer_all("hello");
    });
    let (rows, measured) = run(&plan(target, 4, 20));
    assert_eq!(count(&rows, Outcome::Reset), 1, "{:?}", outcomes(&rows));
    assert_eq!(count(&rows, Outcome::Ok), 19);
    let failed = rows.iter().find(|row| row.error == Outcome::Reset).unwrap();
    assert_eq!((failed.bytes, failed.size_bytes), (2, 5));
    assert_eq!((measured.connections_opened, measured.retried), (1, 0));
}

#[test]
fn refused_stream_is_sent_again_once() {
    let once = answering(|peer, stream, number| match number {
        0 => {
            peer.send(&reset(stream, REFUSED_STREAM));
        }
        _ => {
            peer.answer(stream, "ok");
        }
    });
    let (rows, measured) = run(&plan(once, 1, 3));
    assert_eq!(outcomes(&rows), [Outcome::Ok; 3]);
    assert_eq!((measured.retried, measured.connections_opened), (1, 1));

    let always = answering(|peer, stream, _| {
        peer.send(&reset(stream, REFUSED_STREAM));
    });
    let (rows, measured) = run(&plan(always, 1, 3));
    assert_eq!(outcomes(&rows), [Outcome::Reset; 3]);
    assert_eq!(measured.retried, 3);
}

#[test]
fn request_is_sent_again_when_its_kept_connection_is_closed() {
    let target = serve(|peer| {
        peer.greet(&[]);
        if peer.connection > 0 {
            return peer.answer_all("ok");
        }
        if let Some(stream) = peer.request() {
            peer.answer(stream, "ok");
        }
        peer.request();
    });
    let (rows, measured) = run(&plan(target, 1, 4));
    assert_eq!(outcomes(&rows), [Outcome::Ok; 4]);
    assert_eq!((measured.retried, measured.connections_opened), (1, 2));

    // Nothing says that a first request was not processed.
    let target = serve(|peer| {
        peer.greet(&[]);
        peer.request();
    });
    let (rows, measured) = run(&plan(target, 1, 2));
    assert_eq!(measured.retried, 0);
    assert!(
        rows.iter()
            .all(|row| matches!(row.error, Outcome::ClosedEarly | Outcome::Reset))
    );
}

#[test]
fn body_of_a_request_follows_the_windows() {
    let body: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
    let received = Arc::new(Mutex::new(Vec::<u8>::new()));
    let log = Arc::clone(&received);
    let target = serve(move |peer| {
        peer.greet(&[(http2::INITIAL_WINDOW_SIZE, 0)]);
        peer.send(&http2::window_update(0, 1 << 20));
        let Some(stream) = peer.request() else { return };
        let mut content = Vec::new();
        let mut allowed = 0;
        while content.len() < 100_000 {
            while content.len() >= allowed {
                allowed += 7_000;
                peer.send(&http2::window_update(stream, 7_000));
            }
            let frame = peer.next(DATA).unwrap();
            content.extend(&frame.payload);
            // Before the settings come to it, the client has the window of the standard.
            assert!(content.len() <= allowed.max(65_535));
            assert_eq!(frame.is_last(), content.len() == 100_000);
        }
        *log.lock().unwrap() = content;
        peer.answer(stream, "ok");
        peer.wait();
    });
    let mut plan = plan(target, 1, 1);
    plan.method = Method::Post;
    plan.body = body.clone();
    let (rows, _) = run(&plan);
    assert_eq!(outcomes(&rows), [Outcome::Ok]);
    assert!(*received.lock().unwrap() == body);
}

#[test]
fn request_times_out_when_the_window_for_its_body_stays_closed() {
    let target = serve(|peer| {
        peer.greet(&[(http2::INITIAL_WINDOW_SIZE, 0)]);
        peer.request();
        peer.wait();
    });
    let mut plan = plan(target, 1, 2);
    plan.method = Method::Post;
    // More than the window that the client has before the settings come to it.
    plan.body = vec![7; 100_000];
    plan.timeout = Some(Duration::from_millis(300));
    let (rows, _) = run(&plan);
    assert_eq!(outcomes(&rows), [Outcome::TimedOut; 2]);
}

#[test]
fn stalled_stream_times_out_and_is_reset() {
    let resets = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&resets);
    let target = serve(move |peer| {
        peer.greet(&[]);
        while let Some(stream) = peer.request() {
            match (peer.connection, stream) {
                (0, 1) => {
                    if peer
                        .next(http2::RST_STREAM)
                        .is_some_and(|frame| frame.stream == 1)
                    {
                        seen.fetch_add(1, Ordering::SeqCst);
                    }
                }
                _ => {
                    peer.answer(stream, "ok");
                }
            }
        }
    });
    let mut plan = plan(target, 1, 3);
    plan.timeout = Some(Duration::from_secs(1));
    let (rows, measured) = run(&plan);
    assert_eq!(
        outcomes(&rows),
        [Outcome::TimedOut, Outcome::Ok, Outcome::Ok]
    );
    assert_eq!((measured.connections_opened, measured.retried), (2, 0));
    // The server may read it later than the run ends.
    let deadline = Instant::now() + Duration::from_secs(20);
    while resets.load(Ordering::SeqCst) == 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(resets.load(Ordering::SeqCst), 1);
}

#[test]
fn answer_is_malformed_when_it_is_not_http2() {
    let http1 = Server::start(|_| send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"));
    let (rows, measured) = run(&plan(http1.target(), 1, 2));
    assert_eq!(outcomes(&rows), [Outcome::Malformed; 2]);
    let message = measured.failure.expect("the reason").message;
    assert!(
        message.contains("not HTTP/2") && message.contains("--http2"),
        "{message}"
    );

    let silent = Server::start(|_| vec![Step::Close]);
    let (rows, _) = run(&plan(silent.target(), 1, 2));
    assert!(
        rows.iter()
            .all(|row| matches!(row.error, Outcome::ClosedEarly | Outcome::Reset))
    );
}

#[test]
fn handshake_fails_when_the_server_does_not_choose_http2() {
    for (protocols, part) in [
        (&["http/1.1"][..], "speaks http/1.1"),
        (&[], "has chosen no protocol"),
        (&["spdy/3"], "knows no protocol that the client offers"),
    ] {
        let target = serve_tls(Some(protocols), Peer::wait);
        let (rows, measured) = run(&plan(target, 2, 2));
        assert_eq!(outcomes(&rows), [Outcome::Tls; 2], "{protocols:?}");
        let failure = measured.failure.expect("the reason");
        assert_eq!(failure.outcome, Outcome::Tls);
        assert!(failure.message.contains(part), "{}", failure.message);
    }
}

/// The outcome of every one of three requests which are all answered so.
fn always(answer: impl Fn(u32) -> Vec<u8> + Send + Sync + 'static) -> Outcome {
    let target = answering(move |peer, stream, _| {
        peer.send(&answer(stream));
    });
    let mut plan = plan(target, 1, 3);
    plan.work.documents = vec![Document {
        size_bytes: Some(5),
        checksum: Some(checksum::of(b"hello")),
        ..Document::path("/")
    }];
    plan.verify = true;
    let (rows, _) = run(&plan);
    assert!(
        rows.iter().all(|row| row.error == rows[0].error),
        "{rows:?}"
    );
    rows[0].error
}

fn block(stream: u32, flags: u8, headers: &[(&str, &str)]) -> Vec<u8> {
    http2::frame(HEADERS, END_HEADERS | flags, stream, &http2::block(headers))
}

#[test]
fn responses_are_judged_by_status_length_and_content() {
    let end = END_STREAM;
    let hello = |stream| response(stream, "hello");
    assert_eq!(always(hello), Outcome::Ok);
    assert_eq!(always(|stream| response(stream, "hellO")), Outcome::Content);
    assert_eq!(always(|stream| response(stream, "hello!")), Outcome::Length);
    // Without a length; with trailers; after an interim response.
    let without = move |stream| {
        [
            block(stream, 0, &[(":status", "200")]),
            frame_of(DATA, end, stream, "hello"),
        ]
    };
    assert_eq!(always(move |stream| without(stream).concat()), Outcome::Ok);
    let trailers = move |stream| {
        let trailer = block(stream, end, &[("grpc-status", "0")]);
        [
            header(stream, 5),
            frame_of(DATA, 0, stream, "hello"),
            trailer,
        ]
        .concat()
    };
    assert_eq!(always(trailers), Outcome::Ok);
    let interim = move |stream| [block(stream, 0, &[(":status", "103")]), hello(stream)].concat();
    assert_eq!(always(interim), Outcome::Ok);
    // A header in two frames, padded DATA, an empty last frame, and a frame no one knows.
    let pieces = move |stream| {
        let block = http2::block(&[(":status", "200"), ("content-length", "5")]);
        let (one, two) = block.split_at(3);
        [
            http2::frame(HEADERS, 0, stream, one),
            http2::frame(http2::CONTINUATION, END_HEADERS, stream, two),
            frame_of(DATA, 8, stream, "\x03hello\0\0\0"),
            frame_of(0xfa, 0, stream, "?"),
            frame_of(http2::PING, 0, 0, "12345678"),
            frame_of(DATA, end, stream, ""),
        ]
        .concat()
    };
    assert_eq!(always(pieces), Outcome::Ok);
    let missing = move |stream| block(stream, end, &[(":status", "404")]);
    assert_eq!(always(missing), Outcome::Status);
    // Less and more than the server promised.
    let short = move |stream| [header(stream, 5), frame_of(DATA, end, stream, "hell")].concat();
    assert_eq!(always(short), Outcome::ClosedEarly);
    let long = move |stream| [header(stream, 5), frame_of(DATA, end, stream, "hello!")].concat();
    assert_eq!(always(long), Outcome::Length);
}

#[test]
fn responses_are_malformed_when_they_do_not_add_up() {
    let bad: [fn(u32) -> Vec<u8>; 10] = [
        |stream| block(stream, END_STREAM, &[("content-length", "5")]),
        |stream| block(stream, END_STREAM, &[(":status", "103")]),
        |stream| block(stream, END_STREAM, &[(":status", "99")]),
        |stream| frame_of(DATA, END_STREAM, stream, "hello"),
        |stream| [header(stream, 5), header(stream, 5)].concat(),
        |stream| frame_of(DATA, 8, stream, "\x09hello"),
        |stream| http2::frame(HEADERS, END_HEADERS, stream, &[http2::KEPT_AGAIN]),
        |stream| frame_of(http2::CONTINUATION, END_HEADERS, stream, ""),
        |_| frame_of(HEADERS, END_HEADERS, 2, "\u{8}"),
        |_| http2::frame(DATA, 0, 1, &[0; 16_385]),
    ];
    for (at, answer) in bad.into_iter().enumerate() {
        assert_eq!(always(answer), Outcome::Malformed, "{at}");
    }
}

#[test]
fn head_and_other_methods_are_written_as_pseudo_headers() {
    let blocks = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&blocks);
    let target = serve(move |peer| {
        peer.greet(&[]);
        while let Some(frame) = peer.next(HEADERS) {
            log.lock().unwrap().push(frame.payload);
            let headers = [(":status", "200"), ("content-length", "5")];
            peer.send(&block(frame.stream, END_STREAM, &headers));
        }
    });
    let mut plan = plan(target, 1, 1);
    plan.method = Method::Head;
    plan.headers = vec![
        ("Accept".into(), " */* ".into()),
        ("Host".into(), "a".into()),
    ];
    let (rows, _) = run(&plan);
    assert_eq!(outcomes(&rows), [Outcome::Ok]);
    let agent = format!("headway-load/{}", env!("CARGO_PKG_VERSION"));
    let rest = http2::block(&[("user-agent", agent.as_str()), ("accept", "*/*")]);
    // :method by name, :scheme http, :authority a, :path /.
    let expected = [b"\x02\x04HEAD\x86\x01\x01a\x84", rest.as_slice()].concat();
    assert_eq!(*blocks.lock().unwrap(), [expected]);
}

#[test]
fn plan_is_an_error_when_http2_has_no_place_for_it() {
    let target = || Target::new(headway_load::engine::Address::Unix("/x".into()), "host");
    let good = || plan(target(), 1, 1);
    assert_eq!(good().check(), Ok(()));
    type Change = fn(&mut Plan);
    let changes: [(Change, &str); 7] = [
        (
            |plan| plan.protocol = Protocol::Http2 { streams: 0 },
            "streams is 0",
        ),
        (
            |plan| plan.protocol = Protocol::Http2 { streams: 2_000_000 },
            "connections times streams",
        ),
        (
            |plan| plan.headers.push(("Connection".into(), "close".into())),
            "no header Connection",
        ),
        (
            |plan| plan.targets.push(plan.targets[0].clone()),
            "2 servers",
        ),
        (|plan| plan.bandwidth_bits_per_s = Some(1000), "bandwidth"),
        (|plan| plan.first_pause = Duration::from_secs(1), "pause"),
        (
            |plan| plan.headers.push(("x".into(), "y".repeat(17_000))),
            "header of a request",
        ),
    ];
    for (change, part) in changes {
        let mut plan = good();
        change(&mut plan);
        let error: PlanError = plan.check().unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}
