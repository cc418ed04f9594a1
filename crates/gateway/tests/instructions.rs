//! Counts the instructions that reading and forwarding a header takes: they grow with its size and no
//! faster, whatever it is made of. Otherwise a small request could hold the loop of a server.
//!
//! The test runs itself under callgrind, which needs no privilege and counts exactly. Each call of
//! [`counted`] makes a dump of its own.
//!
//! It makes the library calls that the server makes. It cannot see what `headway-server` does around them: routing,
//! virtual hosts, the access log, the answer to a rejected header. Nor does it see a part which grows faster but is
//! small at 16 KiB.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use headway_gateway::cgi::{Context, Variables};
use headway_gateway::fastcgi::{FastCgiCodec, RecordKind, write_record};
use headway_gateway::proxy::{Body, Forwarding, ProxyCodec};
use headway_gateway::{Codec, HeadLimits, Request, ResponseAction, ResponseEvent};
use headway_http::conditional::{Validators, evaluate};
use headway_http::encoding::{CodingSet, negotiate};
use headway_http::etag::Tag;
use headway_http::{Parsed, parse, path, range};
use headway_test_support::skip;

/// Two sizes of a header, the larger just below the default limit of 16 KiB.
const SIZES: [usize; 2] = [4_000, 16_000];

/// The most instructions for the larger header: at 7 per nanosecond, 300 µs of the loop. Code which is
/// not optimised has many more.
const INSTRUCTIONS_MAX: u64 = match cfg!(debug_assertions) {
    true => 25_000_000,
    false => 2_000_000,
};

/// Set in the process that callgrind watches.
const COUNTED: &str = "HEADWAY_COUNTED";

/// A header of about `size` bytes: once `start`, then `piece` repeated, in which `@` is a number.
struct Case {
    name: &'static str,
    start: &'static str,
    piece: &'static str,
}

const fn case(name: &'static str, start: &'static str, piece: &'static str) -> Case {
    Case { name, start, piece }
}

/// What clients choose in a header, in the form which makes the most work.
const CASES: &[Case] = &[
    case("one long value", "A: ", "aaaaaaaa"),
    case("long names", "A: b", "\r\nX-@: b"),
    case("the same name", "A: b", "\r\nX: @"),
    case(
        "names of Connection",
        "Connection: X-0,X-1,X-2,X-3,X-4,X-5,X-6,X-7,X-8,X-9",
        "\r\nX-@: b",
    ),
    case("Connection", "Connection: close", ",a"),
    case(
        "Connection of many fields",
        "A: 1\r\nB: 2\r\nC: 3\r\nD: 4\r\nE: 5\r\nF: 6\r\nG: 7\r\nH: 8\r\nConnection: close",
        ",x",
    ),
    case("empty options", "Connection: ", ","),
    case("Accept-Encoding", "Accept-Encoding: gzip", ",br;q=0"),
    case(
        "Accept-Encoding repeated",
        "Accept-Encoding: gzip",
        "\r\nAccept-Encoding: @",
    ),
    case("Cookie", "Cookie: a=b", ";a=b"),
    case("Cookie repeated", "Cookie: a=b", "\r\nCookie: @"),
    case("If-None-Match", "If-None-Match: \"a\"", ",\"b\""),
    case("If-None-Match of spaces", "If-None-Match: \"a\"", " \t"),
    case(
        "If-Match repeated",
        "If-Match: \"a\"",
        "\r\nIf-Match: \"@\"",
    ),
    case("Range", "Range: bytes=0-0", ",1-1"),
    case("Range without ranges", "Range: bytes=", ", "),
    case("Transfer-Encoding", "Transfer-Encoding: chunked", ", "),
    case("Forwarded", "Forwarded: for=a", ",for=b"),
    case("X-Forwarded-For", "X-Forwarded-For: 1.2.3.4", ",1.2.3.4"),
    case(
        "X-Forwarded-For repeated",
        "X-Forwarded-For: 1.2.3.4",
        "\r\nX-Forwarded-For: @",
    ),
    case("Via repeated", "Via: 1.1 a", "\r\nVia: 1.1 @"),
    case("Upgrade", "Connection: Upgrade\r\nUpgrade: a", ",b"),
    case("Host", "Host: x", "a"),
    case("Host repeated", "Host: x", "\r\nHost: x@"),
    case("Expect", "Expect: 100-continue", ",a"),
    case("TE", "TE: trailers", ",a;q=0"),
    case("TE repeated", "TE: trailers", "\r\nTE: a@"),
    case("Trailer", "Trailer: a", ",b"),
    case(
        "If-Modified-Since",
        "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT",
        " ",
    ),
    case(
        "If-Modified-Since repeated",
        "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT",
        "\r\nIf-Modified-Since: @",
    ),
    case("If-Range", "Range: bytes=0-0\r\nIf-Range: \"", "a"),
    case("Content-Length", "Content-Length: 1", ",1"),
    case(
        "Content-Length repeated",
        "Content-Length: 1",
        "\r\nContent-Length: 1",
    ),
];

/// What upstreams choose in the header of a response.
const RESPONSES: &[Case] = &[
    case("one long value", "A: ", "aaaaaaaa"),
    case("long names", "A: b", "\r\nX-@: b"),
    case("the same name", "A: b", "\r\nX: @"),
    case("Set-Cookie repeated", "A: b", "\r\nSet-Cookie: a=@"),
    case(
        "names of Connection",
        "Connection: X-0,X-1,X-2,X-3,X-4,X-5,X-6,X-7,X-8,X-9",
        "\r\nX-@: b",
    ),
    case(
        "Connection of many fields",
        "A: 1\r\nB: 2\r\nC: 3\r\nD: 4\r\nE: 5\r\nF: 6\r\nG: 7\r\nH: 8\r\nConnection: close",
        ",x",
    ),
    case("Connection", "Connection: close", ",a"),
    case(
        "Connection repeated",
        "Connection: close",
        "\r\nConnection: a@",
    ),
    case("Transfer-Encoding", "Transfer-Encoding: chunked", ", "),
    case("Content-Length", "Content-Length: 1", ",1"),
    case(
        "Content-Length repeated",
        "Content-Length: 1",
        "\r\nContent-Length: 1",
    ),
    case("Vary", "Vary: a", ",b"),
    case("Upgrade", "Connection: Upgrade\r\nUpgrade: a", ",b"),
];

/// Bytes of a response which arrive at a time: what came before must not be read again.
const PIECE_BYTES: usize = 100;

/// What is counted, with the bytes to read.
enum Work {
    Request(Vec<u8>),
    Proxied(Vec<u8>),
    FastCgi(Vec<u8>),
}

/// Each case at each size, with its name.
fn all() -> Vec<(String, [Work; 2])> {
    let requests = CASES.iter().map(|case| {
        let works = SIZES.map(|size| Work::Request(header(case, size)));
        (case.name.to_owned(), works)
    });
    let responses = RESPONSES.iter().flat_map(|case| {
        let proxied = SIZES.map(|size| {
            let start = "HTTP/1.1 200 OK\r\nServer: x\r\n";
            Work::Proxied(lines(start, case, size))
        });
        let records = SIZES.map(|size| {
            let mut bytes = Vec::new();
            let content = lines("Content-Type: a\r\n", case, size);
            write_record(&mut bytes, RecordKind::STDOUT, 1, &content);
            Work::FastCgi(bytes)
        });
        [
            (format!("proxy: {}", case.name), proxied),
            (format!("FastCGI: {}", case.name), records),
        ]
    });
    requests.chain(responses).collect()
}

/// The most field lines of a header; each is filled up so that all have the same length.
const LINES: usize = 90;

fn header(case: &Case, size: usize) -> Vec<u8> {
    let host = if case.start.starts_with("Host") {
        ""
    } else {
        "Host: x\r\n"
    };
    lines(&format!("GET /app/a/../%62 HTTP/1.1\r\n{host}"), case, size)
}

fn lines(begin: &str, case: &Case, size: usize) -> Vec<u8> {
    let mut bytes = format!("{begin}{}", case.start);
    let filling = "a".repeat((size / LINES).saturating_sub(case.piece.len()));
    let mut number = 0;
    while bytes.len() < size - 200 {
        let text = format!("{filling}{number}");
        bytes.push_str(&case.piece.replace('@', &text));
        number += 1;
    }
    bytes.push_str("\r\n\r\n");
    bytes.into_bytes()
}

#[inline(never)]
fn counted(work: &Work) {
    match work {
        Work::Request(bytes) => request(bytes),
        Work::Proxied(bytes) => {
            let asked = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
            let Parsed::Complete(head) = parse(asked, &headway_http::HeadLimits::default()) else {
                panic!("a request");
            };
            let asked = Request::new(&head, asked);
            let codec = ProxyCodec::new(&asked, &FORWARDING, Body::None, &HeadLimits::default());
            response(codec.unwrap(), bytes);
        }
        Work::FastCgi(bytes) => {
            let variables = Variables::default();
            response(
                FastCgiCodec::new(&variables, true, &HeadLimits::default(), false),
                bytes,
            );
        }
    }
}

const FORWARDING: Forwarding<'static> = Forwarding {
    remote: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7)), 50000),
    client: None,
    https: false,
    certificate: None,
    trusts_client: true,
    authority: b"back:81",
    keeps_host: true,
    via: b"headway",
    strip: b"",
    keep: true,
    upgrades: true,
};

/// What a server does with the response of an upstream: reads and filters its header, and writes one of its own.
fn response(mut codec: impl Codec, bytes: &[u8]) {
    let sent = codec.unsent().len();
    codec.sent(sent);
    codec.end_body(&headway_gateway::FieldList::default());
    for mut piece in bytes.chunks(PIECE_BYTES) {
        match codec.feed(&mut piece) {
            Ok(None) => {}
            Ok(Some(ResponseEvent::Head(ResponseAction::Response(head)))) => {
                let mut out = Vec::new();
                head.fields.write(&mut out);
                std::hint::black_box(out);
                return;
            }
            // Too many of something, or an invalid one.
            Err(_) => return,
            Ok(other) => panic!("{other:?}"),
        }
    }
    panic!("no header: {}", bytes.escape_ascii());
}

/// What a server does with a header: reads it, looks for a file, asks an upstream, or starts a program.
fn request(bytes: &[u8]) {
    let head = match parse(bytes, &headway_http::HeadLimits::default()) {
        Parsed::Complete(head) => head,
        // Too many of something, which must be found out as cheaply.
        Parsed::Reject(_) => return,
        Parsed::Partial => panic!("{}", bytes.escape_ascii()),
    };
    let headway_http::Target::Path(target) = head.target else {
        panic!("no path");
    };
    let found = path::normalise(target).is_ok();
    let validators = Validators {
        etag: Tag {
            weak: false,
            opaque: b"\"c\"",
        },
        last_modified: 0,
        is_date_strong: true,
    };
    std::hint::black_box((found, evaluate(head.method, &head.conditions, &validators)));
    if let Some(accept) = &head.accept_encoding {
        std::hint::black_box(negotiate(accept, CodingSet::ALL));
    }
    if let Some(field) = head.range {
        std::hint::black_box(range::ranges(field, 10_000));
    }
    let request = Request::new(&head, bytes);
    let body = head.framing.into();
    let codec = ProxyCodec::new(&request, &FORWARDING, body, &HeadLimits::default()).unwrap();
    assert!(!codec.unsent().is_empty());
    let context = Context {
        script_name: b"/app",
        path_info: b"/b",
        script_filename: b"/srv/app",
        document_root: b"/srv",
        remote: FORWARDING.remote,
        local: FORWARDING.remote,
        server_name: b"x",
        server_software: b"headway",
        https: false,
        tls: None,
        body_bytes: None,
        user: None,
        authorization: true,
    };
    let mut environment = Vec::new();
    Variables::new(&request, &context).write_environment(&mut environment);
    assert!(!environment.is_empty());
}

/// The number of instructions of each call of [`counted`], in order.
fn counts(folder: &Path) -> Vec<u64> {
    let mut dumps: BTreeMap<usize, u64> = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let number = path
            .extension()
            .and_then(|number| number.to_str()?.parse().ok());
        let text = std::fs::read_to_string(&path).unwrap();
        let total = text
            .lines()
            .find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok());
        if let (Some(number), Some(total)) = (number, total) {
            dumps.insert(number, total);
        }
    }
    dumps.into_values().filter(|total| *total > 0).collect()
}

/// Needs: the program valgrind: scripts/setup
#[test]
fn instructions_grow_with_the_size_of_the_header_and_no_faster() {
    let all = all();
    if std::env::var_os(COUNTED).is_some() {
        all.iter().flat_map(|(_, works)| works).for_each(counted);
        return;
    }
    let name = "instructions_grow_with_the_size_of_the_header_and_no_faster";
    let folder = tempfile::tempdir().unwrap();
    let ran = Command::new("valgrind")
        .args(["--tool=callgrind", "--compress-strings=no"])
        .args([
            "--toggle-collect=gateway::instructions::counted",
            "--dump-after=gateway::instructions::counted",
        ])
        .arg(format!(
            "--callgrind-out-file={}/dump",
            folder.path().display()
        ))
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            &format!("instructions::{name}"),
            "--test-threads=1",
        ])
        .env(COUNTED, "1")
        .output();
    let output = match ran {
        Err(error) => return skip(name, &format!("valgrind: {error}")),
        Ok(output) => output,
    };
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let counts = counts(folder.path());
    assert_eq!(counts.len(), 2 * all.len(), "one dump per call");
    let mut slow = Vec::new();
    for ((case, _), pair) in all.iter().zip(counts.chunks(2)) {
        println!("{case:30} {:9} {:9}", pair[0], pair[1]);
        // Four times the size. A constant part makes it less.
        if pair[1] > 5 * pair[0] || pair[1] > INSTRUCTIONS_MAX {
            slow.push((case, pair));
        }
    }
    assert!(slow.is_empty(), "{slow:?}");
}
