//! Streams beside each other: slow ones, those that are given up, and the end of their connection.

use std::fs;

use h2::Reason;
use h2::client::Builder;
use headway_test_support::http2::{
    DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, PING, PREFACE, block, frame, get, hello,
    request_block, reset, window_update,
};
use headway_test_support::{tiny_client, wait_until};
use rustix::process::Signal;

use super::client::*;
use crate::site::*;

const LARGE: usize = 8 << 20;

fn site() -> Site {
    let site = Site::new();
    fs::write(site.path("root/large"), contents(LARGE)).unwrap();
    site.program("slow", "printf 'Content-Type: a/b\\n\\nbegun,'; until [ -e {notes}/go ]; do sleep 0.01; done; printf ended");
    site
}

#[test]
fn slow_stream_does_not_keep_others_from_going_on() {
    let site = site();
    let server = site.serve("");
    for window in [1, 1000, 65_535] {
        let mut builder = Builder::new();
        builder.initial_window_size(window);
        builder.initial_connection_window_size(1 << 20);
        let mut client = Client::with(&server, &mut builder);
        let slow = client.begin_get("/large");
        client.exchanges[slow].reads = false;
        client.wait_for_header(slow);
        for _ in 0..20 {
            assert_eq!(client.get("/file.txt").text(), "a file\n");
        }
        assert_eq!(client.exchanges[slow].end, None);
        client.cancel(slow);
    }
    let mut client = Client::connect(&server);
    let slow = client.begin_get("/large");
    client.exchanges[slow].reads = false;
    client.wait_for_header(slow);
    client.pass();
    client.exchanges[slow].reads = true;
    assert!(client.finish(slow).received == contents(LARGE));
    wait_until_all_have_ended(&server);
    is_well(&server);
}

/// Service inversion is when small responses wait for large ones.
#[test]
fn small_responses_end_before_large_ones_that_were_asked_for_first() {
    const COUNT: u32 = 20;
    let site = Site::new();
    for number in 0..COUNT {
        fs::write(
            site.path(&format!("root/large{number}")),
            contents(256 << 10),
        )
        .unwrap();
        fs::write(site.path(&format!("root/small{number}")), "small").unwrap();
    }
    let server = site.serve_configured("");
    let mut client = Client::connect(&server);
    for number in 0..COUNT {
        // None needs a helper afterwards.
        client.get(&format!("/large{number}"));
        client.get(&format!("/small{number}"));
    }
    let mut socket = server.connect();
    let mut bytes = hello(&[(4, i32::MAX as u32)]);
    bytes.extend(window_update(0, 1 << 30));
    for number in 0..2 * COUNT {
        let path = match number < COUNT {
            true => format!("/large{number}"),
            false => format!("/small{}", number - COUNT),
        };
        bytes.extend(get(2 * number + 1, &path));
    }
    send(&mut socket, &bytes);
    let (mut ended, mut large_bytes_before) = (Vec::new(), 0);
    let mut turns = Vec::new();
    while ended.len() < 2 * COUNT as usize {
        let frame = Frame::read(&mut socket).unwrap();
        if frame.stream < 2 * COUNT && ended.len() < COUNT as usize {
            large_bytes_before += frame.payload.len();
        }
        if ended.len() >= COUNT as usize && turns.last() != Some(&frame.stream) {
            turns.push(frame.stream);
        }
        if frame.is_last() {
            ended.push(frame.stream);
        }
    }
    let first = &ended[..COUNT as usize];
    assert!(first.iter().all(|stream| *stream > 2 * COUNT), "{ended:?}");
    // What went out before all requests were known.
    assert!(large_bytes_before < 1 << 20, "{large_bytes_before}");
    // Each of the large ones has one turn: it is of use when it is complete. Which is first depends on how much of it had
    // left before all requests were known.
    assert_eq!(turns.len(), COUNT as usize, "{turns:?}");
    is_well(&server);
}

/// More responses than have a turn of 16 KiB in the output of a connection.
const TOGETHER: u32 = 6;
/// What a response may be ahead of another one: what went out before all requests were known.
const AHEAD_BYTES_MAX: usize = 64 << 10;

/// The bodies of the first responses in the order in which they come: the number of the response, the bytes, and
/// whether they are the last. The requests come at once, with this priority.
fn bodies(server: &Server, count: u32, priority: &str) -> Vec<(usize, usize, bool)> {
    let mut socket = server.connect();
    let mut bytes = hello(&[(4, i32::MAX as u32)]);
    bytes.extend(window_update(0, 1 << 30));
    for number in 0..count {
        let mut headers = request_block("GET", &format!("/large{number}"));
        headers.extend(block(&[("priority", priority)]));
        let flags = END_STREAM | END_HEADERS;
        bytes.extend(frame(HEADERS, flags, 2 * number + 1, &headers));
    }
    send(&mut socket, &bytes);
    let (mut found, mut ended) = (Vec::new(), 0);
    while ended < count {
        let frame = Frame::read(&mut socket).unwrap();
        if frame.kind == DATA {
            ended += u32::from(frame.is_last());
            let number = frame.stream as usize / 2;
            found.push((number, frame.payload.len(), frame.is_last()));
        }
    }
    found
}

#[test]
fn incremental_responses_take_turns_and_others_come_one_after_the_other() {
    const BYTES: usize = 256 << 10;
    let site = Site::new();
    for number in 0..TOGETHER {
        fs::write(site.path(&format!("root/large{number}")), contents(BYTES)).unwrap();
    }
    let server = site.serve_configured("");
    let mut client = Client::connect(&server);
    for number in 0..TOGETHER {
        // None needs a helper afterwards.
        client.get(&format!("/large{number}"));
    }
    for count in [2, TOGETHER] {
        let mut received = vec![0; count as usize];
        for (number, bytes, is_last) in bodies(&server, count, "i") {
            received[number] += bytes;
            let (least, most) = (received.iter().min(), received.iter().max());
            let ahead = most.unwrap() - least.unwrap();
            assert!(ahead <= AHEAD_BYTES_MAX, "{received:?}");
            if is_last {
                break;
            }
        }
        let frames = bodies(&server, count, "i=?0");
        let first = frames.iter().position(|(_, _, is_last)| *is_last).unwrap();
        let (number, ..) = frames[first];
        let others = frames[..first].iter().filter(|frame| frame.0 != number);
        let ahead: usize = others.map(|(_, bytes, _)| bytes).sum();
        // A turn of each while the requests were read.
        assert!(ahead <= count as usize * (16 << 10), "{ahead} bytes");
    }
    is_well(&server);
}

#[test]
fn reader_that_is_always_behind_costs_no_memory() {
    let site = Site::new();
    const SIZE: usize = 64 << 20;
    fs::File::create(site.path("root/huge"))
        .unwrap()
        .set_len(SIZE as u64)
        .unwrap();
    let server = site.serve_configured("");
    let mut socket = tiny_client(server.address.as_str());
    let mut bytes = hello(&[(4, i32::MAX as u32)]);
    bytes.extend(window_update(0, 1 << 30));
    bytes.extend(get(1, "/file.txt"));
    send(&mut socket, &bytes);
    while !Frame::read(&mut socket).unwrap().is_last() {}
    let before = resident_bytes(&server);
    send(&mut socket, get(3, "/huge"));
    let mut received = 0;
    loop {
        let frame = Frame::read(&mut socket).unwrap();
        if frame.stream == 3 {
            received += frame.payload.len();
            if frame.is_last() {
                break;
            }
        }
    }
    assert!(received >= SIZE);
    let after = resident_bytes(&server);
    assert!(after < before + (20 << 20), "{before} bytes, then {after}");
    is_well(&server);
}

#[test]
fn stream_that_is_given_up_leaves_the_others_alone() {
    let site = site();
    let server = site.serve("");
    let mut client = Client::connect(&server);
    for round in 0..10 {
        let begun: Vec<usize> = (0..10).map(|_| client.begin_get("/large")).collect();
        let slow = client.begin_get("/cgi-bin/slow");
        client.wait_for_header(begun[round]);
        for (at, exchange) in begun.iter().enumerate() {
            if at != round {
                client.cancel(*exchange);
            }
        }
        client.cancel(slow);
        assert!(client.finish(begun[round]).received == contents(LARGE));
    }
    assert_eq!(counter(&server, "connections_accepted"), 1);
    wait_until_all_have_ended(&server);
    server.wait_for("the end of the programs", |server| {
        counter(server, "cgi_processes") == 0
    });
    is_well(&server);
}

#[test]
fn nothing_is_left_of_connections_that_close_in_the_middle() {
    let site = site();
    let server = site.serve("");
    let mut closed = 0;
    let mut close_some = |rounds: usize| {
        for round in 0..rounds {
            let mut client = Client::connect(&server);
            for _ in 0..10 {
                client.begin_get("/large");
            }
            client.begin_get("/cgi-bin/slow");
            let request = client.request("POST", "/cgi-bin/slow");
            let request = request.header("content-length", 1 << 20);
            client.begin(request, Some(&contents(100_000)));
            for _ in 0..round {
                client.step();
            }
        }
        // In the middle of a frame.
        let mut socket = server.connect();
        send(
            &mut socket,
            [&hello(&[])[..], &get(1, "/large"), &[0, 0]].concat(),
        );
        drop(socket);
        closed += rounds as u64 + 1;
        server.wait_for("the end of all connections", |server| {
            let ends = ["connections_closed", "connections_reset"];
            ends.map(|end| counter(server, end)).iter().sum::<u64>() >= closed
        });
        wait_until_all_have_ended(&server);
        server.wait_for("the end of the programs", |server| {
            counter(server, "cgi_processes") == 0
        });
    };
    // Files stay open in a cache.
    close_some(10);
    let before = descriptors(&server);
    close_some(20);
    server.wait_for("the descriptors", |server| descriptors(server) <= before);
    is_well(&server);
}

#[test]
fn urgent_streams_come_before_others() {
    let site = site();
    let server = site.serve("");
    let mut builder = Builder::new();
    builder.initial_window_size(16 << 20);
    builder.initial_connection_window_size(64 << 20);
    let mut client = Client::with(&server, &mut builder);
    let late: Vec<usize> = (0..5)
        .map(|_| {
            let request = client.request("GET", "/large").header("priority", "u=7");
            client.begin(request, None)
        })
        .collect();
    let request = client.request("GET", "/large").header("priority", "u=0");
    let urgent = client.begin(request, None);
    assert!(client.finish(urgent).received == contents(LARGE));
    let of_others = late.iter().map(|at| client.exchanges[*at].received.len());
    assert!(of_others.max() < Some(LARGE), "they came as fast");
    for at in late {
        assert!(client.finish(at).received == contents(LARGE));
    }
    is_well(&server);
}

#[test]
fn streams_finish_after_a_reload_and_new_ones_need_a_connection() {
    let site = site();
    let server = site.serve("");
    let mut client = Client::connect(&server);
    let slow = client.begin_get("/cgi-bin/slow");
    let large = client.begin_get("/large");
    client.exchanges[large].reads = false;
    client.wait_for_header(slow);
    client.wait_for_header(large);
    let mut idle = Client::connect(&server);
    assert_eq!(idle.get("/file.txt").text(), "a file\n");
    server.signal(Signal::HUP);
    idle.wait_for("the end of an idle connection", |idle| idle.end.is_some());
    assert!(matches!(idle.end, Some(Ok(()))), "{:?}", idle.end);
    client.pass();
    client.exchanges[large].reads = true;
    fs::write(site.note("go"), "").unwrap();
    assert_eq!(client.finish(slow).text(), "begun,ended");
    assert!(client.finish(large).received == contents(LARGE));
    client.wait_for("the end", |client| client.end.is_some());
    assert!(matches!(client.end, Some(Ok(()))), "{:?}", client.end);
    assert_eq!(Client::connect(&server).get("/file.txt").text(), "a file\n");
    server.wait_for("the end of the worker before", |server| {
        server.children("serve-worker").len() == 1
    });
}

#[test]
fn connection_that_begins_in_a_worker_that_drains_is_told_to_go_away() {
    let site = site();
    let server = site.serve("");
    let mut socket = server.connect();
    // It is accepted, and has not said yet what it speaks.
    send(&mut socket, &PREFACE[..10]);
    server.wait_for("the connection", |server| {
        counter(server, "connections_open") == 1
    });
    server.signal(Signal::HUP);
    server.wait_for("the reload", |server| {
        server.status()["master"]["reloads"] == 1
    });
    send(
        &mut socket,
        [&hello(&[])[10..], &get(1, "/file.txt")].concat(),
    );
    let frames: Vec<Frame> = std::iter::from_fn(|| Frame::read(&mut socket)).collect();
    assert!(frames.iter().any(|frame| frame.kind == GOAWAY));
    server.wait_for("the end of the worker before", |server| {
        server.children("serve-worker").len() == 1
    });
}

#[test]
fn connection_says_goaway_when_the_server_stops() {
    let site = site();
    let server = site.serve("");
    let mut socket = server.connect();
    send(&mut socket, [hello(&[]), get(1, "/file.txt")].concat());
    while !Frame::read(&mut socket).unwrap().is_last() {}
    std::thread::scope(|scope| {
        scope.spawn(|| server.signal(Signal::TERM));
        let mut kinds = Vec::new();
        while let Some(received) = Frame::read(&mut socket) {
            kinds.push(received.kind);
            // It waits for this answer, since a request may be on its way.
            if received.kind == PING {
                send(&mut socket, frame(PING, 1, 0, &received.payload));
            }
        }
        assert!(kinds.contains(&GOAWAY), "{kinds:?}");
    });
    server.stop();
}

#[test]
fn reset_that_comes_with_its_request_is_harmless() {
    let site = site();
    let server = site.serve("");
    let mut socket = server.connect();
    let mut bytes = hello(&[]);
    for stream in [1, 3, 5] {
        bytes.extend(get(stream, "/large"));
        bytes.extend(reset(stream));
    }
    bytes.extend(get(7, "/file.txt"));
    send(&mut socket, &bytes);
    let mut body: Vec<u8> = Vec::new();
    wait_until("the response", || {
        let frame = Frame::read(&mut socket).unwrap();
        assert!(![GOAWAY].contains(&frame.kind));
        if frame.stream == 7 && frame.kind == 0 {
            body.extend(&frame.payload);
        }
        frame.stream == 7 && frame.is_last()
    });
    assert_eq!(body, b"a file\n");
    wait_until_all_have_ended(&server);
    is_well(&server);
}

#[test]
fn cancelled_request_of_a_waiting_helper_is_forgotten() {
    let directory = crate::faults::tools::root();
    let path = directory.path().join("cold");
    fs::write(&path, contents(LARGE)).unwrap();
    fs::write(directory.path().join("file.txt"), "a file\n").unwrap();
    let server = Server::start(program(), directory.path(), &["--workers", "1"]);
    let mut client = Client::connect(&server);
    for _ in 0..20 {
        crate::faults::tools::make_cold(&path);
        let at = client.begin_get("/cold");
        client.step();
        client.cancel(at);
        assert_eq!(client.finish(at).end, Some(Err(Reason::CANCEL)));
    }
    assert!(client.get("/cold").received == contents(LARGE));
    wait_until_all_have_ended(&server);
    is_well(&server);
}
