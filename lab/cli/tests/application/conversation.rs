//! One conversation over every interface.

use std::fs;
use std::net::TcpStream;

use headway_specweb::file::FileName;
use headway_specweb::post::{self, Entry, RECORD_BYTES};
use headway_test_support::client::*;

use super::directories::{Fixture, WAYS};

const RESET: &str = "command/Reset&users=50&seed=7&time=1700000000&expired=10";

/// The requests in order: method, query, cookie, body.
const CONVERSATION: &[(&str, &str, &str, &str)] = &[
    ("GET", RESET, "", ""),
    // A file of each class, including some that are too large for the server's memory.
    ("GET", "/dir00000/class0_1", "", ""),
    ("GET", "/dir00000/class1_9", "", ""),
    ("GET", "/dir00000/class2_9", "", ""),
    ("GET", "/dir00000/class3_9", "", ""),
    // The same with an advertisement in the file's placeholders.
    ("GET", "/dir00000/class0_1", "my_cookie=user_id=10003", ""),
    (
        "GET",
        "/dir00000/class1_9",
        "a=b; my_cookie=user_id=10003&last_ad=3",
        "",
    ),
    (
        "GET",
        "/dir00000/class2_9",
        "my_cookie=user_id=10049&last_ad=359",
        "",
    ),
    (
        "GET",
        "/dir00000/class3_1",
        "my_cookie=user_id=10000&last_ad=0",
        "",
    ),
    (
        "POST",
        "",
        "my_cookie=user_id=10003&last_ad=5",
        "dir=0&class=1&file=5&client=7&serial=1",
    ),
    ("POST", "", "", "dir=0&class=2&file=1&client=7&serial=2\r\n"),
    ("GET", "command/Fetch", "", ""),
    // Rejected requests.
    ("GET", "", "", ""),
    ("GET", "/dir00000/../dir00000/class0_1", "", ""),
    ("GET", "/dir00000/class0_1&x", "", ""),
    ("GET", "/dir00009/class0_1", "", ""),
    ("GET", "/dir00009/class1_1", "my_cookie=user_id=10003", ""),
    ("GET", "/dir00000/class0_1", "my_cookie=user_id=10050", ""),
    ("GET", "/dir00000/class0_1", "my_cookie=hello", ""),
    (
        "GET",
        "command/Reset&users=0&seed=7&time=1&expired=10",
        "",
        "",
    ),
    ("POST", "", "", "dir=0&class=1"),
    ("POST", "", "", ""),
    ("PUT", "/dir00000/class0_1", "", "x"),
    ("HEAD", "/dir00000/class0_1", "", ""),
    ("GET", "command/Fetch", "", ""),
];

fn request_bytes(path: &str, (method, query, cookie, body): (&str, &str, &str, &str)) -> Vec<u8> {
    let query = match query {
        "" => String::new(),
        query => format!("?{query}"),
    };
    let cookie = match cookie {
        "" => String::new(),
        cookie => format!("Cookie: {cookie}\r\n"),
    };
    let length = match method {
        "POST" | "PUT" => format!("Content-Length: {}\r\n", body.len()),
        _ => String::new(),
    };
    format!("{method} {path}{query} HTTP/1.1\r\nHost: test\r\n{cookie}{length}\r\n{body}")
        .into_bytes()
}

/// A response without variable parts: its status, the application's own fields, and its body.
pub type MaskedResponse = (String, Vec<u8>);

/// Status, fields and body without the parts that vary: interface, server, time and process.
fn masked(path: &str, head: &str, body: &[u8]) -> MaskedResponse {
    let own = ["Content-Type:", "Set-Cookie:", "Allow:"];
    let mut lines: Vec<&str> = head.lines().skip(1).collect();
    lines.retain(|line| own.iter().any(|name| line.starts_with(name)));
    lines.sort_unstable();
    lines.insert(0, &head[9..12]);
    let script = format!("<p>script = {path}</p>").into_bytes();
    let mut body = match body.windows(script.len()).position(|part| part == script) {
        Some(at) => [&body[..at], b"<p>script</p>", &body[at + script.len()..]].concat(),
        None => body.to_vec(),
    };
    let server = b"<p>server = ";
    if let Some(at) = body.windows(server.len()).position(|part| part == server) {
        let length = body[at..].iter().position(|byte| *byte == b'\n');
        body.drain(at..at + length.unwrap());
    }
    (lines.join("\n"), without_times(body))
}

/// The conversation on one connection, or on a new one where the server closes it (Apache does
/// after 400).
pub fn conversed(connect: &dyn Fn() -> TcpStream, path: &str) -> Vec<MaskedResponse> {
    let (mut responses, mut stream) = (Vec::new(), connect());
    for step in CONVERSATION {
        send(&mut stream, request_bytes(path, *step));
        let response = match step.0 {
            "HEAD" => receive_head(&mut stream),
            _ => receive(&mut stream),
        };
        let response = response.unwrap_or_else(|why| panic!("{path} {step:?}: {why}"));
        responses.push(masked(path, &response.head, &response.body));
        if response.field("Connection") == Some("close") {
            stream = connect();
        }
    }
    responses
}

/// The responses over each of Headway's interfaces.
pub fn responses_of_built_in() -> Vec<MaskedResponse> {
    let fixture = Fixture::new("told_by_all", 1);
    conversed(&|| fixture.server.connect(), WAYS[0])
}

/// A record's second and third number are the time and the process.
fn without_times(mut body: Vec<u8>) -> Vec<u8> {
    let Some(begin) = body.windows(6).position(|part| part == b"<pre>\n") else {
        return body;
    };
    let is_log = body
        .windows(21)
        .any(|part| part == b"query = command/Fetch");
    let mut at = begin + 6;
    while is_log && at + RECORD_BYTES < body.len() && body[at] != b'\n' {
        body[at + 10..at + 32].fill(b'.');
        at += RECORD_BYTES;
    }
    body
}

#[test]
fn responses_are_identical_over_every_interface() {
    let test = "responses_are_identical_over_every_interface";
    let fixture = Fixture::new(test, 1);
    let by_interface = WAYS.map(|way| conversed(&|| fixture.server.connect(), way));
    for (at, step) in CONVERSATION.iter().enumerate() {
        let (head, body) = &by_interface[0][at];
        for (way, responses) in WAYS.iter().zip(&by_interface) {
            assert_eq!(responses[at].0, *head, "{way} {step:?}");
            assert!(
                responses[at].1 == *body,
                "{way} {step:?}: {}",
                String::from_utf8_lossy(&responses[at].1)
            );
        }
    }
    let statuses: Vec<&str> = by_interface[0].iter().map(|(head, _)| &head[..3]).collect();
    let expected = [
        vec!["200"; 12],
        vec!["404"; 5],
        vec!["400"; 5],
        vec!["405"; 2],
        vec!["200"],
    ];
    assert_eq!(statuses, expected.concat());
    let (head, body) = &by_interface[0][6];
    assert!(head.contains("Set-Cookie: found_cookie=Ad_id="), "{head}");
    let plain = fs::read(fixture.set.join("dir00000/class1_9")).unwrap();
    assert!(
        !body.windows(plain.len()).any(|part| part == plain),
        "no advertisement in it"
    );
    fixture.is_well();
}

/// Sends posts over this interface, one after the other; returns the record numbers from the
/// responses.
fn posted(stream: &mut TcpStream, way: &str, client: u32, count: u32) -> Vec<u64> {
    let number = |serial| {
        let body = format!("dir=0&class=0&file=1&client={client}&serial={serial}");
        send(stream, request_bytes(way, ("POST", "", "", &body)));
        let response = receive(stream).unwrap();
        assert_eq!(response.status, 200, "{way}: {}", response.text());
        let cookie = response.field("Set-Cookie").unwrap().to_owned();
        let digits = cookie.rsplit('=').next().unwrap();
        digits.parse().unwrap()
    };
    (1..=count).map(number).collect()
}

#[test]
fn log_is_complete_and_ordered_with_concurrent_posts_over_every_interface() {
    const POSTS: u32 = 40;
    let test = "log_is_complete_and_ordered_with_concurrent_posts_over_every_interface";
    let fixture = Fixture::new(test, 2);
    let reset = get(&fixture.server, &format!("{}?{RESET}", WAYS[0]));
    assert_eq!(reset.status, 200, "{}", reset.text());
    let server = &fixture.server;
    let mut numbers: Vec<u64> = Vec::new();
    std::thread::scope(|scope| {
        let posting = |client: usize| {
            scope.spawn(move || {
                let mut stream = server.connect();
                posted(&mut stream, WAYS[client % WAYS.len()], client as u32, POSTS)
            })
        };
        let clients: Vec<_> = (0..2 * WAYS.len()).map(posting).collect();
        for client in clients {
            let of_client = client.join().unwrap();
            assert!(of_client.is_sorted(), "{of_client:?}");
            numbers.extend(of_client);
        }
    });
    numbers.sort_unstable();
    let all = u64::from(POSTS) * 2 * WAYS.len() as u64;
    assert!(
        numbers.iter().copied().eq(1..=all),
        "each number once: {numbers:?}"
    );
    let log = fs::read(fixture.set.join(".specweb99/post.log")).unwrap();
    let records = post::read(&log).unwrap();
    let found = post::compare(&records, &[POSTS; 2 * WAYS.len()], &[]);
    assert_eq!((found.records, found.missing), (all, 0), "{found:?}");
    assert_eq!((found.out_of_order, found.unknown), (0, 0), "{found:?}");
    let entry = Entry {
        file: FileName::new(0, 0, 1).unwrap(),
        ..records[0].entry
    };
    assert_eq!(records[0].entry, entry);
    fixture.is_well();
}

#[test]
fn tables_are_reloaded_after_a_reset_over_another_interface() {
    let test = "tables_are_reloaded_after_a_reset_over_another_interface";
    let fixture = Fixture::new(test, 2);
    let user = "my_cookie=user_id=10003&last_ad=3";
    let mut before = None;
    for (turn, maker) in WAYS.iter().enumerate() {
        let command = format!("command/Reset&users=50&seed={turn}&time=1700000000&expired=10");
        assert_eq!(
            get(&fixture.server, &format!("{maker}?{command}")).status,
            200
        );
        let shown = WAYS.map(|way| {
            let request = request_bytes(way, ("GET", "/dir00000/class1_1", user, ""));
            let response = exchange(&fixture.server, request);
            response.field("Set-Cookie").map(str::to_owned)
        });
        assert!(
            shown
                .iter()
                .all(|cookie| cookie.is_some() && *cookie == shown[0]),
            "after {maker}: {shown:?}"
        );
        assert_ne!(shown[0], before, "the seed decides");
        before.clone_from(&shown[0]);
    }
    fixture.is_well();
}
