//! The application in the server itself: what only it has to see to.

use std::time::Duration;

use crate::conversation::{conversed, told_by_all};
use crate::place::Place;
use crate::site::*;

const BODY: &str = "dir=0&class=0&file=1&client=7&serial=1";

fn post_head(length: usize, more: &str) -> String {
    format!("POST /own HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{more}\r\n")
}

#[test]
fn posts_are_appended_once_when_their_bytes_come_in_any_pieces() {
    let test = "posts_are_appended_once_when_their_bytes_come_in_any_pieces";
    let place = Place::new(test, 1);
    let mut stream = place.server.connect();
    let whole = post_head(BODY.len(), "") + BODY;
    let posted = |reply: Reply, number: u32| {
        assert_eq!(reply.status, 200, "{}", reply.text());
        let cookie = format!("posted_cookie=record={number}");
        assert_eq!(reply.field("Set-Cookie"), Some(cookie.as_str()));
    };
    // Two and the beginning of a third at once, the rest a little at a time.
    let (first, rest) = (whole.repeat(3), whole.len() - 20);
    let at = first.len() - rest;
    send(&mut stream, &first[..at]);
    posted(receive(&mut stream).unwrap(), 1);
    posted(receive(&mut stream).unwrap(), 2);
    for piece in first.as_bytes()[at..].chunks(17) {
        std::thread::sleep(Duration::from_millis(2));
        send(&mut stream, piece);
    }
    posted(receive(&mut stream).unwrap(), 3);
    send(
        &mut stream,
        post_head(BODY.len(), "Expect: 100-continue\r\n"),
    );
    assert_eq!(receive_head(&mut stream).unwrap().status, 100);
    send(&mut stream, BODY);
    posted(receive(&mut stream).unwrap(), 4);
    assert_eq!(counter(&place.server, "dynamic_requests"), 4);
    assert_eq!(counter(&place.server, "helper_errands"), 4);
    place.is_well();
}

#[test]
fn body_is_refused_when_it_is_long_or_its_length_is_not_said() {
    let test = "body_is_refused_when_it_is_long_or_its_length_is_not_said";
    let place = Place::new(test, 1);
    let long = post_head(1025, "") + &"x".repeat(1025);
    let chunked =
        "POST /own HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
    for (request, status) in [(long.as_str(), 413), (chunked, 411)] {
        let reply = ask(&place.server, request);
        assert_eq!(
            (reply.status, reply.field("Connection")),
            (status, Some("close"))
        );
    }
    let head = post_head(1024, "") + &"x".repeat(1024);
    assert_eq!(ask(&place.server, head).status, 400, "read, and no entry");
    assert_eq!(counter(&place.server, "helper_errands"), 0);
    place.is_well();
}

#[test]
fn conversation_is_the_same_when_files_are_found_and_sent_in_the_papers_ways() {
    let expected = told_by_all();
    for words in [
        ["--preset", "flash"],
        ["--preset", "fd-pass"],
        ["--preset", "no-mmap"],
        ["--preset", "new-flash"],
        ["--helpers", "io_uring"],
        ["--send", "sendfile"],
        ["--small-file-max", "2KiB"],
    ] {
        let place = Place::with("conversation_is_the_same", 1, &words);
        let told = conversed(&|| place.server.connect(), "/own");
        for (at, (told, expected)) in told.iter().zip(&expected).enumerate() {
            assert!(told == expected, "{words:?}, step {at}: {}", told.0);
        }
        assert_eq!(place.server.status()["master"]["worker_deaths"], 0);
    }
}
