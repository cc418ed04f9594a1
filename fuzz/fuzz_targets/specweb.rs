//! The lab's application: a request, and the tables and the log that it reads.
#![no_main]

use headway_specweb::request::{self, Method, Request};
use headway_specweb::{Ads, User, post, scan::Scanner};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((&first, rest)) = bytes.split_first() else {
        return;
    };
    let mut scanner = Scanner::new();
    let mut at = 0;
    while at < rest.len() {
        let (_, count) = scanner.next(&rest[at..]);
        assert!(count > 0 && at + count <= rest.len());
        at += count;
    }
    post::read(rest).ok();
    User::parse(rest, u32::from(first));
    let Ok(text) = std::str::from_utf8(rest) else {
        return;
    };
    Ads::parse(text);
    let (query, cookie) = text.split_once('\n').unwrap_or((text, ""));
    for method in [Method::Get, Method::Post, Method::Other] {
        let request = Request {
            method,
            query,
            cookie,
            body: rest,
            server: "headway",
            client: "192.0.2.7",
            script: "/",
            now_s: 0,
        };
        if let Err(error) = request::parse(&request) {
            assert!((400..500).contains(&error.status));
        }
    }
});
