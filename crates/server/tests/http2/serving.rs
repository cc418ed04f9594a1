//! Files, listings and errors.

use std::fs;
use std::io::{Read, Write};

use headway_test_support::make_cold;

use super::client::*;
use crate::faults;
use crate::site::*;
use crate::tls::tools::Secured;

const LARGE: usize = 3 << 20;

fn site() -> Site {
    let site = Site::new();
    fs::write(site.path("root/large"), contents(LARGE)).unwrap();
    fs::write(site.path("root/empty"), "").unwrap();
    fs::create_dir(site.path("root/sub")).unwrap();
    fs::write(site.path("root/sub/a"), "a").unwrap();
    for number in 0..100 {
        fs::write(site.path(&format!("root/{number}")), numbered(number)).unwrap();
    }
    site
}

/// A file which differs from the others, and is of another size.
fn numbered(number: usize) -> Vec<u8> {
    let mut bytes = contents(50_000 + number);
    bytes
        .iter_mut()
        .step_by(1000)
        .for_each(|byte| *byte = number as u8);
    bytes
}

/// What an ordinary client does.
fn talk<S: Read + Write + Unpin>(client: &mut Client<S>) {
    let file = client.get("/file.txt");
    assert_eq!((file.status, file.text().as_str()), (200, "a file\n"));
    assert_eq!(file.header("server"), "Headway");
    assert_eq!(file.header("content-length"), "7");
    assert_eq!(
        (file.header("connection"), file.header("keep-alive")),
        ("", "")
    );
    let tag = file.header("etag").to_owned();
    assert!(client.get("/large").received == contents(LARGE));
    assert_eq!(client.get("/empty").text(), "");
    let head = client.begin(client.request("HEAD", "/large"), None);
    let head = client.finish(head);
    assert_eq!(
        (head.status, head.header("content-length")),
        (200, "3145728")
    );
    assert_eq!(head.text(), "");
    let condition = client
        .request("GET", "/file.txt")
        .header("if-none-match", &tag);
    let unchanged = client.begin(condition, None);
    let unchanged = client.finish(unchanged);
    assert_eq!((unchanged.status, unchanged.text().as_str()), (304, ""));
    for (range, status, expected) in [
        ("bytes=2-5", 206, "file"),
        ("bytes=-3", 206, "le\n"),
        ("bytes=99-", 416, ""),
    ] {
        let at = client.begin(
            client.request("GET", "/file.txt").header("range", range),
            None,
        );
        let part = client.finish(at);
        assert_eq!(part.status, status);
        assert!(status == 416 || part.text() == expected, "{range}");
    }
    let parts = client
        .request("GET", "/file.txt")
        .header("range", "bytes=0-0,2-3");
    let parts = client.begin(parts, None);
    let parts = client.finish(parts);
    assert_eq!(parts.status, 206);
    assert!(
        parts
            .header("content-type")
            .starts_with("multipart/byteranges")
    );
    let missing = client.get("/missing");
    assert_eq!(missing.status, 404);
    assert!(missing.text().contains("404 Not Found"));
    let redirect = client.get("/sub");
    assert_eq!(
        (redirect.status, redirect.header("location")),
        (301, "/sub/")
    );
    assert!(client.get("/sub/").text().contains("href=\"./a\""));
    let refused = client.post("/file.txt", b"a body");
    assert_eq!(
        (refused.status, refused.header("allow")),
        (405, "GET, HEAD, OPTIONS")
    );
}

#[test]
fn files_listings_and_errors_arrive_with_every_event_mechanism() {
    for events in ["epoll", "epoll-edge", "poll", "select"] {
        let site = site();
        let settings = format!("events = {events:?}\nlisting = true");
        let server = site.serve_configured(&settings);
        let mut client = Client::connect(&server);
        talk(&mut client);
        talk(&mut client);
        assert_eq!(counter(&server, "http2_connections"), 1);
        assert_eq!(counter(&server, "http2_streams"), 26);
        wait_until_all_have_ended(&server);
        is_well(&server);
    }
}

#[test]
fn client_over_tls_agrees_on_it_by_alpn() {
    let secured = Secured::start_with(site(), 1, "listing = true");
    let mut client = Client::secured(&secured);
    talk(&mut client);
    many_at_once(&mut client);
    assert_eq!(secured.counter("http2_connections"), 1);
    wait_until_all_have_ended(&secured.server);
    is_well(&secured.server);
}

fn many_at_once<S: Read + Write + Unpin>(client: &mut Client<S>) {
    let begun: Vec<usize> = (0..100)
        .map(|number| client.begin_get(&format!("/{number}")))
        .collect();
    for (number, at) in begun.into_iter().enumerate() {
        let seen = client.finish(at);
        assert_eq!(seen.end, Some(Ok(())), "{number}");
        assert!(seen.received == numbered(number), "{number}");
    }
}

#[test]
fn many_streams_at_once_get_each_their_own_file() {
    for send in ["copy", "sendfile", "auto"] {
        let site = site();
        let server = site.serve_configured(&format!("send = {send:?}\nsmall-file-max = \"16KiB\""));
        let mut client = Client::connect(&server);
        for _ in 0..3 {
            many_at_once(&mut client);
        }
        wait_until_all_have_ended(&server);
        is_well(&server);
    }
}

#[test]
fn cold_files_come_from_helpers() {
    let directory = faults::tools::root();
    for number in 0..10 {
        let path = directory.path().join(number.to_string());
        fs::write(&path, numbered(number)).unwrap();
        make_cold(&path);
    }
    let large = directory.path().join("large");
    fs::write(&large, contents(LARGE)).unwrap();
    make_cold(&large);
    fs::write(directory.path().join("file.txt"), "a file\n").unwrap();
    let server = Server::start(program(), directory.path(), &["--workers", "1"]);
    let mut client = Client::connect(&server);
    let begun: Vec<usize> = (0..10)
        .map(|number| client.begin_get(&format!("/{number}")))
        .collect();
    assert!(client.get("/large").received == contents(LARGE));
    for (number, at) in begun.into_iter().enumerate() {
        assert!(client.finish(at).received == numbered(number), "{number}");
    }
    wait_until_all_have_ended(&server);
    is_well(&server);
}

#[test]
fn file_that_changes_while_it_is_sent_is_reset_and_others_go_on() {
    let size = 4 << 20;
    let version = |version| faults::tools::contents(version, size);
    for is_rewritten in [true, false] {
        let site = Site::new();
        let path = site.path("root/changing");
        fs::write(&path, version(0)).unwrap();
        let server = site.serve_configured("");
        let mut client = Client::connect(&server);
        let at = client.begin_get("/changing");
        client.exchanges[at].reads = false;
        client.wait_for_header(at);
        client.pass();
        match is_rewritten {
            true => fs::write(&path, version(1)).unwrap(),
            false => {
                let file = fs::File::options().write(true).open(&path).unwrap();
                file.set_len(size as u64 / 2).unwrap();
            }
        }
        client.exchanges[at].reads = true;
        let seen = client.finish(at);
        assert!(matches!(seen.end, Some(Err(_))), "the end is marked");
        assert!(seen.received.len() < size);
        assert!(seen.received == version(0)[..seen.received.len()]);
        assert_eq!(client.get("/file.txt").text(), "a file\n");
        assert_eq!(counter(&server, "chunks_changed"), 1);
        wait_until_all_have_ended(&server);
        is_well(&server);
    }
}

#[test]
fn log_says_the_version_and_the_bytes_of_bodies() {
    let site = site();
    let log = site.path("access.log");
    let server = site.serve_configured(&format!("log = {log:?}"));
    let mut client = Client::connect(&server);
    client.get("/file.txt?a=b");
    client.get("/large");
    client.get("/missing");
    let lines = log_lines(&server, &log, 3);
    for (line, start, status) in [
        (0, "\"GET /file.txt?a=b HTTP/2.0\"", " 200 7 "),
        (1, "\"GET /large HTTP/2.0\"", " 200 3145728 "),
        (2, "\"GET /missing HTTP/2.0\"", " 404 "),
    ] {
        assert!(
            lines[line].contains(&format!("{start}{status}")),
            "{}",
            lines[line]
        );
    }
}
