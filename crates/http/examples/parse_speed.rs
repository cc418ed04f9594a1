//! Measures how long parsing a request header takes, in nanoseconds.
//!
//! `cargo run --release -p headway-http --example parse_speed`
//!
//! Prints the best of several rounds, which is the one with the least disturbance. Use it while
//! working on the parser; comparisons of servers are under `bench/`.

use std::hint::black_box;
use std::time::Instant;

use headway_http::conditional::{Validators, evaluate};
use headway_http::encoding::{CodingSet, negotiate};
use headway_http::etag::Tag;
use headway_http::response::{HeadWriter, field_lines};
use headway_http::{HeadLimits, Parsed, Status, Target, Version, parse, path};

const SMALL: &[u8] = b"GET /a.html HTTP/1.1\r\nHost: x\r\n\r\n";

const BROWSER: &[u8] = b"GET /docs/guide/first-steps.html?from=index HTTP/1.1\r\n\
    Host: www.example.org\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n\
    Accept-Language: en-GB,en;q=0.7,de;q=0.3\r\n\
    Accept-Encoding: gzip, deflate, br, zstd\r\n\
    Referer: http://www.example.org/docs/guide/\r\n\
    DNT: 1\r\n\
    Connection: keep-alive\r\n\
    Upgrade-Insecure-Requests: 1\r\n\
    Sec-Fetch-Dest: document\r\n\
    Sec-Fetch-Mode: navigate\r\n\
    Sec-Fetch-Site: same-origin\r\n\
    If-None-Match: \"1f-1f4-abc\"\r\n\
    Priority: u=0, i\r\n\r\n";

const ROUNDS: usize = 20;
const REPEATS: u32 = 50_000;

fn main() {
    let limits = HeadLimits::default();
    println!("browser head: {} bytes", BROWSER.len());
    report("small head, parse", || {
        drop(black_box(parse(black_box(SMALL), &limits)))
    });
    report("small head, parse and normalise", || read(SMALL, &limits));
    report("browser head, parse", || {
        drop(black_box(parse(black_box(BROWSER), &limits)))
    });
    report("browser head, parse and normalise", || {
        read(BROWSER, &limits)
    });
    report("normalise with an escape", || {
        black_box(path::normalise(black_box(b"/docs/a%20b/./c.html"))).ok();
    });
    report("preconditions and coding", || weigh(BROWSER, &limits));
    let mut out = Vec::with_capacity(1024);
    let shared = field_lines([
        ("Server", "headway"),
        ("Date", "Sun, 06 Nov 1994 08:49:37 GMT"),
    ]);
    report("response head", || {
        out.clear();
        HeadWriter::new(&mut out, Version::Http11, Status::OK)
            .lines(&shared)
            .field("Content-Type", "text/html; charset=utf-8")
            .field("ETag", "\"1f-1f4-abc\"")
            .field("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT")
            .field_u64("Content-Length", black_box(500))
            .end();
        black_box(&out);
    });
}

fn read(bytes: &[u8], limits: &HeadLimits) {
    if let Parsed::Complete(head) = parse(black_box(bytes), limits)
        && let Target::Path(target) = head.target
    {
        black_box(path::normalise(target)).ok();
    }
}

fn weigh(bytes: &[u8], limits: &HeadLimits) {
    let ours = Validators {
        etag: Tag {
            weak: false,
            opaque: b"\"1f-1f4-abc\"",
        },
        last_modified: 0,
        is_date_strong: true,
    };
    if let Parsed::Complete(head) = parse(black_box(bytes), limits) {
        black_box(evaluate(head.method, &head.conditions, &ours));
        black_box(
            head.accept_encoding
                .map(|field| negotiate(&field, CodingSet::ALL)),
        );
    }
}

fn report(what: &str, mut work: impl FnMut()) {
    let mut best_ns = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..REPEATS {
            work();
        }
        best_ns = best_ns.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(REPEATS));
    }
    println!("{what:<36} {best_ns:7.1} ns");
}
