//! The application inside the server: what only this form has to handle.

use std::time::Duration;

use headway_test_support::client::*;

use super::conversation::{conversed, responses_of_built_in};
use super::directories::Fixture;

const BODY: &str = "dir=0&class=0&file=1&client=7&serial=1";

fn post_head(length: usize, more: &str) -> String {
    format!("POST /own HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{more}\r\n")
}

#[test]
fn built_in_post_is_appended_once_however_it_is_split() {
    let test = "built_in_post_is_appended_once_however_it_is_split";
    let fixture = Fixture::new(test, 1);
    let mut stream = fixture.server.connect();
    let whole = post_head(BODY.len(), "") + BODY;
    let posted = |response: Response, number: u32| {
        assert_eq!(response.status, 200, "{}", response.text());
        let cookie = format!("posted_cookie=record={number}");
        assert_eq!(response.field("Set-Cookie"), Some(cookie.as_str()));
    };
    // Two requests and the start of a third at once, the rest in small parts.
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
    assert_eq!(counter(&fixture.server, "handler_requests_application"), 4);
    assert_eq!(counter(&fixture.server, "helper_jobs_custom"), 4);
    fixture.is_well();
}

#[test]
fn built_in_post_is_rejected_when_too_long_or_chunked() {
    let test = "built_in_post_is_rejected_when_too_long_or_chunked";
    let fixture = Fixture::new(test, 1);
    let long = post_head(1025, "") + &"x".repeat(1025);
    let chunked =
        "POST /own HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
    for (request, status) in [(long.as_str(), 413), (chunked, 411)] {
        let response = exchange(&fixture.server, request);
        assert_eq!(
            (response.status, response.field("Connection")),
            (status, Some("close"))
        );
    }
    let head = post_head(1024, "") + &"x".repeat(1024);
    assert_eq!(
        exchange(&fixture.server, head).status,
        400,
        "read, and no entry"
    );
    assert_eq!(counter(&fixture.server, "helper_jobs_custom"), 0);
    fixture.is_well();
}

#[test]
fn built_in_responses_are_identical_under_the_papers_presets() {
    let expected = responses_of_built_in();
    for options in [
        ["--preset", "flash"],
        ["--preset", "fd-pass"],
        ["--preset", "no-mmap"],
        ["--preset", "new-flash"],
        ["--helpers", "io_uring"],
        ["--send", "sendfile"],
        ["--small-file-max", "2KiB"],
    ] {
        let fixture = Fixture::with("conversation_is_the_same", 1, &options);
        let responses = conversed(&|| fixture.server.connect(), "/own");
        for (at, (response, expected)) in responses.iter().zip(&expected).enumerate() {
            assert!(
                response == expected,
                "{options:?}, step {at}: {}",
                response.0
            );
        }
        assert_eq!(fixture.server.status()["master"]["worker_deaths"], 0);
    }
}
