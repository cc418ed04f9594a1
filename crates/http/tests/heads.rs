//! A table of request headers and their results, from top to bottom.
//!
//! Each row is a header and its description by [`described`]. Every row is also split at each byte,
//! since the result must not depend on how the bytes arrive.

use headway_http::{
    CONNECTION_OPTIONS_MAX, Framing, Head, HeadLimits, Parsed, Target, may_be_decided, parse,
};

/// `GET /path 1.1 host=x keep none`, or `400 reason`, or `partial`.
fn described(parsed: &Parsed<'_>) -> String {
    match parsed {
        Parsed::Partial => "partial".to_owned(),
        Parsed::Reject(reject) => {
            assert!(reject.close, "every reject closes: {reject:?}");
            format!("{} {}", reject.status.code(), reject.reason)
        }
        Parsed::Complete(head) => described_head(head),
    }
}

fn described_head(head: &Head<'_>) -> String {
    let target = match head.target {
        Target::Path(path) => path.escape_ascii().to_string(),
        Target::Asterisk => "<asterisk>".to_owned(),
        Target::Authority(authority) => format!("<{}>", authority.escape_ascii()),
    };
    let host = head
        .host
        .map_or("-".to_owned(), |host| host.escape_ascii().to_string());
    let keep = if head.keep_alive { "keep" } else { "close" };
    let framing = match head.framing {
        Framing::None => "none".to_owned(),
        Framing::Length(bytes) => bytes.to_string(),
        Framing::Chunked => "chunked".to_owned(),
    };
    let expect = if head.expect_continue { " expects" } else { "" };
    let version = head.version.as_str().trim_start_matches("HTTP/");
    format!(
        "{} {target} {version} host={host} {keep} {framing}{expect}",
        head.method.as_str()
    )
}

/// A row without a reason matches any reason with that status.
fn agrees(expected: &str, found: &str) -> bool {
    expected == found || (expected.len() == 3 && found.starts_with(expected))
}

const BARE_LF: &str = "400 bare LF";
const NEWLINE: &str = "400 invalid line end";
const TOKEN: &str = "400 invalid byte in the request line";
const NAME: &str = "400 invalid field name or folded line";
const VALUE: &str = "400 invalid byte in a field value";
const LENGTH: &str = "400 Content-Length is not a number";
const LENGTHS: &str = "400 repeated Content-Length";
const BOTH: &str = "400 Content-Length with Transfer-Encoding";
const CODING: &str = "400 Transfer-Encoding does not end in one chunked";
const HOST: &str = "400 invalid Host";
const VERSION: &str = "400 malformed version";
const UNSUPPORTED: &str = "505 version not supported";
const AUTHORITY: &str = "400 invalid authority in the target";
const FORM: &str = "400 target is neither a path nor an http URI";
const OK: &str = "GET / 1.1 host=x keep none";

/// The end of a header which arrives byte by byte: how many bytes had come, and how many of them were
/// parsed in all.
fn byte_by_byte(bytes: &[u8]) -> (usize, usize) {
    let limits = HeadLimits::default();
    let (mut parsed, mut work) = (0, 0);
    for length in 1..=bytes.len() {
        if parsed > 0 && !may_be_decided(&bytes[..length], parsed, &limits) {
            continue;
        }
        (parsed, work) = (length, work + length);
        if !matches!(parse(&bytes[..length], &limits), Parsed::Partial) {
            return (length, work);
        }
    }
    (0, work)
}

#[test]
fn header_in_single_bytes_is_decided_in_time_and_with_little_work() {
    let many = "A: b\r\n".repeat(99);
    let long = |bytes| "a".repeat(bytes);
    for (text, decided) in [
        (format!("GET / HTTP/1.1\r\nHost: x\r\n{many}\r\n"), 621),
        (
            format!("GET / HTTP/1.1\r\nHost: x\r\nA: {}\r\n\r\n", long(16_000)),
            16_032,
        ),
        (
            format!("GET / HTTP/1.1\r\nHost: x\r\nA: {}", long(20_000)),
            16_384,
        ),
        (format!("GET /{} HTTP/1.1\r\n", long(9_000)), 8_197),
        (format!("\r\nOPTIONS /{} HTTP/1.1\r\n", long(9_000)), 8_203),
        (long(20_000), 16_384),
    ] {
        let (length, work) = byte_by_byte(text.as_bytes());
        assert_eq!(length, decided, "{}", &text[..30]);
        assert!(work < 24 * 16_384, "{work} bytes parsed: {}", &text[..30]);
    }
}

#[test]
fn header_with_too_many_connection_options_is_rejected() {
    let with_options = |options: usize| {
        let (one, more) = ("A,".repeat(options / 2), "B,".repeat(options - options / 2));
        let bytes =
            format!("GET / HTTP/1.1\r\nHost: x\r\nConnection: {one}\r\nConnection: {more}\r\n\r\n");
        described(&parse(bytes.as_bytes(), &HeadLimits::default()))
    };
    assert_eq!(with_options(CONNECTION_OPTIONS_MAX), OK);
    let reject = "431 too many connection options";
    assert_eq!(with_options(CONNECTION_OPTIONS_MAX + 1), reject);
}

#[rustfmt::skip]
const HEADS: &[(&str, &str)] = &[
    // Ordinary.
    ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", OK),
    ("HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n", "HEAD /a 1.1 host=x keep none"),
    ("OPTIONS /a HTTP/1.1\r\nHost: x\r\n\r\n", "OPTIONS /a 1.1 host=x keep none"),
    ("GET /a?b=c&d HTTP/1.1\r\nHost: x\r\n\r\n", "GET /a?b=c&d 1.1 host=x keep none"),
    ("GET / HTTP/1.0\r\n\r\n", "GET / 1.0 host=- close none"),
    ("GET / HTTP/1.0\r\nHost: x\r\n\r\n", "GET / 1.0 host=x close none"),
    ("GET / HTTP/1.1\r\nhOsT:x\r\n\r\n", OK),
    ("GET / HTTP/1.1\r\nHost: \t x \t \r\n\r\n", OK),
    ("GET / HTTP/1.1\r\nHost: x:8080\r\n\r\n", "GET / 1.1 host=x:8080 keep none"),
    ("GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", "GET / 1.1 host=[::1]:80 keep none"),
    ("GET / HTTP/1.1\r\nHost:\r\n\r\n", "GET / 1.1 host=- keep none"),
    ("GET / HTTP/1.1\r\nHost: x\r\nX-Empty:\r\nX-Colon: a:b\r\n\r\n", OK),
    ("GET / HTTP/1.1\r\nHost: x\r\nX-Tab: a\tb\r\n\r\n", OK),
    ("GET / HTTP/1.1\r\nHost: x\r\n!#$%&'*+-.^_`|~9: token\r\n\r\n", OK),
    ("GET / HTTP/1.1\r\nHost: x\r\nX-Utf: é\r\n\r\n", OK),
    ("GET /é HTTP/1.1\r\nHost: x\r\n\r\n", r"GET /\xc3\xa9 1.1 host=x keep none"),
    ("GET //a/..//b HTTP/1.1\r\nHost: x\r\n\r\n", "GET //a/..//b 1.1 host=x keep none"),
    ("GET /\\..\\a HTTP/1.1\r\nHost: x\r\n\r\n", r"GET /\\..\\a 1.1 host=x keep none"),
    ("GET /\"<>^`{|} HTTP/1.1\r\nHost: x\r\n\r\n", "GET /\\\"<>^`{|} 1.1 host=x keep none"),
    ("GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /next HTTP/1.1\r\n", OK),
    ("GET / HTTP/1.1\r\nHost: x\r\n\r\n\0\n\r\0", OK),
    // Not yet.
    ("", "partial"),
    ("\r", "partial"),
    ("\r\n", "partial"),
    ("GET", "partial"),
    ("GET / HTTP/1.1\r\nHost: x\r\n", "partial"),
    ("GET / HTTP/1.1\r\nHost: x\r\n\r", "partial"),
    ("GET / HTTP/2.", "partial"),
    ("GET / HTTP/2.0", "partial"),
    // Empty lines in front.
    ("\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", OK),
    ("\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", "400 more than one empty line before the request"),
    ("\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", BARE_LF),
    ("\r\n\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", "400 more than one empty line before the request"),
    ("\rGET / HTTP/1.1\r\nHost: x\r\n\r\n", "400 bare CR"),
    (" GET / HTTP/1.1\r\nHost: x\r\n\r\n", TOKEN),
    // Line ends.
    ("GET / HTTP/1.1\nHost: x\r\n\r\n", BARE_LF),
    ("GET / HTTP/1.1\r\nHost: x\n\r\n", BARE_LF),
    ("GET / HTTP/1.1\r\nHost: x\r\n\n", BARE_LF),
    ("GET / HTTP/1.1\r\nHost: x\n\n", BARE_LF),
    ("GET / HTTP/1.1\r\nHost: x\r\nA: b\nContent-Length: 5\r\n\r\n", BARE_LF),
    ("GET / HTTP/1.1\rHost: x\r\n\r\n", NEWLINE),
    ("GET / HTTP/1.1\r\nHost: x\rA: b\r\n\r\n", VALUE),
    ("GET / HTTP/1.1\r\nHost: x\r\r\n\r\n", VALUE),
    ("GET / HTTP/1.1\r\nHost: x\r\n\rA: b\r\n\r\n", NEWLINE),
    ("GET / HTTP/1.1\r\nA\r: b\r\nHost: x\r\n\r\n", NAME),
    ("GET / HTTP/1.1\r\nA:\rb\r\nHost: x\r\n\r\n", VALUE),
    // Control bytes.
    ("GET / HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n", VALUE),
    ("GET / HTTP/1.1\r\nHost: x\r\nA: b\x01c\r\n\r\n", VALUE),
    ("GET / HTTP/1.1\r\nHost: x\r\nA: b\x7fc\r\n\r\n", VALUE),
    ("GET / HTTP/1.1\r\nHost: x\r\nA: b\x0bc\r\n\r\n", VALUE),
    ("GET / HTTP/1.1\r\nHost: x\r\nA\0: b\r\n\r\n", NAME),
    ("GET / HTTP/1.1\r\nHost: x\r\n\0A: b\r\n\r\n", NAME),
    ("GET /\0 HTTP/1.1\r\nHost: x\r\n\r\n", TOKEN),
    ("GET /a\x1fb HTTP/1.1\r\nHost: x\r\n\r\n", TOKEN),
    ("GET /a\x7fb HTTP/1.1\r\nHost: x\r\n\r\n", TOKEN),
    ("G\0ET / HTTP/1.1\r\nHost: x\r\n\r\n", TOKEN),
    ("\x16\x03\x01\x02\0\x01\0\x01\u{fc}\x03\x03", TOKEN),
    // Fields that are not fields.
    ("GET / HTTP/1.1\r\nHost : x\r\n\r\n", NAME),
    ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length : 5\r\n\r\n", NAME),
    ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding\t: chunked\r\n\r\n", NAME),
    ("GET / HTTP/1.1\r\n Host: x\r\n\r\n", NAME),
    ("GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", NAME),
    ("GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n\tc\r\n\r\n", NAME),
    ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\r\n chunked\r\n\r\n", NAME),
    ("GET / HTTP/1.1\r\nHost: x\r\n: b\r\n\r\n", NAME),
    ("GET / HTTP/1.1\r\nHost: x\r\nA\r\n\r\n", NAME),
    ("GET / HTTP/1.1\r\nHost: x\r\nA B: c\r\n\r\n", NAME),
    ("GET / HTTP/1.1\r\nHost: x\r\nA(: c\r\n\r\n", NAME),
    ("GET / HTTP/1.1\r\nHost: x\r\nÄ: c\r\n\r\n", NAME),
    // The request line.
    ("GET /\r\n\r\n", TOKEN),
    ("GET / \r\n\r\n", VERSION),
    ("GET\r\nHost: x\r\n\r\n", TOKEN),
    ("GET  / HTTP/1.1\r\nHost: x\r\n\r\n", TOKEN),
    ("GET /  HTTP/1.1\r\nHost: x\r\n\r\n", VERSION),
    ("GET\t/ HTTP/1.1\r\nHost: x\r\n\r\n", TOKEN),
    ("GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", VERSION),
    ("GET / HTTP/1.1 \r\nHost: x\r\n\r\n", NEWLINE),
    ("GET / http/1.1\r\nHost: x\r\n\r\n", VERSION),
    ("GET / HTTP/1\r\nHost: x\r\n\r\n", VERSION),
    ("GET / HTTP/11.1\r\nHost: x\r\n\r\n", VERSION),
    ("GET / HTTP/1.10\r\nHost: x\r\n\r\n", NEWLINE),
    ("GET / HTTP/2.00\r\nHost: x\r\n\r\n", VERSION),
    ("GET / XTTP/1.1\r\nHost: x\r\n\r\n", VERSION),
    ("GET / HTTP/2.0\r\nHost: x\r\n\r\n", UNSUPPORTED),
    ("GET / HTTP/3.0\r\n", UNSUPPORTED),
    // A later minor version is HTTP/1.1, with all its checks.
    ("GET / HTTP/1.2\r\nHost: x\r\n\r\n", OK),
    ("\r\nPOST http://y/a HTTP/1.9\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", "POST /a 1.1 host=y keep 3"),
    ("GET / HTTP/1.2\r\n\r\n", "400 no Host"),
    ("GET / HTTP/1.2\r\nHost: x\r\nA : b\r\n\r\n", NAME),
    ("GET / HTTP/1.2\r\nHost: x\n\r\n", BARE_LF),
    ("GET / HTTP/1.2\n\r\n", BARE_LF),
    ("GET / HTTP/1.2\rHost: x\r\n\r\n", NEWLINE),
    ("GET / HTTP/1.2 \r\nHost: x\r\n\r\n", VERSION),
    ("GET / HTTP/1.2", "partial"),
    ("GET / HTTP/1.2\r", "partial"),
    ("GET / HTTP/1.2\r\nHost: x\r\n", "partial"),
    ("GET / HTTP/0.9\r\n\r\n", UNSUPPORTED),
    ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", UNSUPPORTED),
    ("GET / HTTP/2.0\n\r\n", BARE_LF),
    ("(GET) / HTTP/1.1\r\nHost: x\r\n\r\n", TOKEN),
    ("get / HTTP/1.1\r\nHost: x\r\n\r\n", "501 unknown method"),
    ("BREW /pot HTTP/1.1\r\nHost: x\r\n\r\n", "501 unknown method"),
    ("GETT / HTTP/1.1\r\nHost: x\r\n\r\n", "501 unknown method"),
    ("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", "POST /a 1.1 host=x keep 3"),
    ("PUT /a HTTP/1.1\r\nHost: x\r\n\r\n", "PUT /a 1.1 host=x keep none"),
    ("DELETE /a HTTP/1.1\r\nHost: x\r\n\r\n", "DELETE /a 1.1 host=x keep none"),
    ("PATCH /a HTTP/1.1\r\nHost: x\r\n\r\n", "PATCH /a 1.1 host=x keep none"),
    ("TRACE /a HTTP/1.1\r\nHost: x\r\n\r\n", "TRACE /a 1.1 host=x keep none"),
    // Targets.
    ("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", "OPTIONS <asterisk> 1.1 host=x keep none"),
    ("GET * HTTP/1.1\r\nHost: x\r\n\r\n", "400 asterisk-form with a method other than OPTIONS"),
    ("POST * HTTP/1.1\r\nHost: x\r\n\r\n", "400 asterisk-form with a method other than OPTIONS"),
    ("OPTIONS ** HTTP/1.1\r\nHost: x\r\n\r\n", FORM),
    ("CONNECT y:443 HTTP/1.1\r\nHost: x\r\n\r\n", "CONNECT <y:443> 1.1 host=x keep none"),
    ("CONNECT /a HTTP/1.1\r\nHost: x\r\n\r\n", "400 CONNECT without host and port"),
    ("CONNECT y HTTP/1.1\r\nHost: x\r\n\r\n", "400 CONNECT without host and port"),
    ("GET y:443 HTTP/1.1\r\nHost: x\r\n\r\n", FORM),
    ("GET a/b HTTP/1.1\r\nHost: x\r\n\r\n", FORM),
    ("GET ?q HTTP/1.1\r\nHost: x\r\n\r\n", FORM),
    ("GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n", "400 fragment in the target"),
    ("GET http://y/#b HTTP/1.1\r\nHost: x\r\n\r\n", "400 fragment in the target"),
    ("GET http://y/a?b HTTP/1.1\r\nHost: x\r\n\r\n", "GET /a?b 1.1 host=y keep none"),
    ("GET HTTPS://y:444/a HTTP/1.1\r\nHost: x\r\n\r\n", "421 https target without TLS"),
    ("GET https://u@y/a HTTP/1.1\r\nHost: x\r\n\r\n", AUTHORITY),
    ("GET http://y HTTP/1.1\r\nHost: x\r\n\r\n", "GET  1.1 host=y keep none"),
    ("GET http://y?q HTTP/1.1\r\nHost: x\r\n\r\n", "GET ?q 1.1 host=y keep none"),
    ("OPTIONS http://y HTTP/1.1\r\nHost: x\r\n\r\n", "OPTIONS <asterisk> 1.1 host=y keep none"),
    ("OPTIONS http://y/ HTTP/1.1\r\nHost: x\r\n\r\n", "OPTIONS / 1.1 host=y keep none"),
    ("GET http://y/ HTTP/1.0\r\n\r\n", "GET / 1.0 host=y close none"),
    ("GET http://y/ HTTP/1.1\r\n\r\n", "400 no Host"),
    ("GET http:///a HTTP/1.1\r\nHost: x\r\n\r\n", AUTHORITY),
    ("GET http://u:p@y/ HTTP/1.1\r\nHost: x\r\n\r\n", AUTHORITY),
    ("GET http://y:z/ HTTP/1.1\r\nHost: x\r\n\r\n", AUTHORITY),
    ("GET ftp://y/ HTTP/1.1\r\nHost: x\r\n\r\n", FORM),
    ("GET file:///etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", FORM),
    // Host.
    ("GET / HTTP/1.1\r\n\r\n", "400 no Host"),
    ("GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", "400 repeated Host"),
    ("GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", "400 repeated Host"),
    ("GET / HTTP/1.0\r\nHost: x\r\nhost: y\r\n\r\n", "400 repeated Host"),
    ("GET http://y/ HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", "400 repeated Host"),
    ("GET / HTTP/1.1\r\nHost: x, y\r\n\r\n", HOST),
    ("GET / HTTP/1.1\r\nHost: x y\r\n\r\n", HOST),
    ("GET / HTTP/1.1\r\nHost: u@x\r\n\r\n", HOST),
    ("GET / HTTP/1.1\r\nHost: x/a\r\n\r\n", HOST),
    ("GET / HTTP/1.1\r\nHost: http://x\r\n\r\n", HOST),
    ("GET / HTTP/1.1\r\nHost: x:port\r\n\r\n", HOST),
    ("GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", HOST),
    ("GET / HTTP/1.1\r\nHost: é\r\n\r\n", HOST),
    // Keeping the connection.
    ("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "GET / 1.1 host=x close none"),
    ("GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, CLOSE\r\n\r\n", "GET / 1.1 host=x close none"),
    ("GET / HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n", "GET / 1.1 host=x close none"),
    ("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nConnection: keep-alive\r\n\r\n", "GET / 1.1 host=x close none"),
    ("GET / HTTP/1.1\r\nHost: x\r\nConnection: closed\r\n\r\n", OK),
    ("GET / HTTP/1.1\r\nHost: x\r\nConnection:\r\n\r\n", OK),
    ("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", "GET / 1.0 host=- keep none"),
    ("GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n", "GET / 1.0 host=- close none"),
    // Framing.
    ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", OK),
    ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 007\r\n\r\n", "GET / 1.1 host=x keep 7"),
    ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551615\r\n\r\n", "GET / 1.1 host=x keep 18446744073709551615"),
    ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551616\r\n\r\n", LENGTH),
    ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\n", LENGTH),
    ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\n", LENGTH),
    ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", LENGTH),
    ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 0x5\r\n\r\n", LENGTH),
    ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5, 5\r\n\r\n", LENGTH),
    ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5 5\r\n\r\n", LENGTH),
    ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5.0\r\n\r\n", LENGTH),
    ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", LENGTHS),
    ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\ncontent-length: 6\r\n\r\n", LENGTHS),
    ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n", LENGTHS),
    ("GET / HTTP/1.1\r\nHost: x\r\nContent_Length: 5\r\n\r\n", OK),
    ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", "GET / 1.1 host=x keep chunked"),
    ("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \tCHUNKED \r\n\r\n", "POST / 1.1 host=x keep chunked"),
    ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", BOTH),
    ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n", BOTH),
    ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\nContent-Length: 5\r\n\r\n", BOTH),
    ("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "400 Transfer-Encoding in HTTP/1.0"),
    ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "501 unknown transfer coding"),
    ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n", "501 unknown transfer coding"),
    ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, gzip\r\n\r\n", CODING),
    ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", CODING),
    ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", CODING),
    ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", CODING),
    ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", CODING),
    ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\n\r\n", CODING),
    ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n", CODING),
    ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \"chunked\"\r\n\r\n", CODING),
    ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked;a=b\r\n\r\n", CODING),
    ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chun ked\r\n\r\n", CODING),
    ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\r\n\r\n", CODING),
    ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \x0bchunked\r\n\r\n", VALUE),
    // Expectations.
    ("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-Continue\r\n\r\n", "POST / 1.1 host=x keep 5 expects"),
    ("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n", "POST / 1.1 host=x keep chunked expects"),
    ("GET / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\r\n", OK),
    ("POST / HTTP/1.0\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n", "POST / 1.0 host=- close 5"),
    ("GET / HTTP/1.1\r\nHost: x\r\nExpect: tea\r\n\r\n", "417 unknown expectation"),
    ("GET / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue, tea\r\n\r\n", "417 unknown expectation"),
    ("GET / HTTP/1.0\r\nExpect: tea\r\n\r\n", "GET / 1.0 host=- close none"),
];

#[test]
fn header_is_parsed_or_rejected_as_in_the_table() {
    for (bytes, expected) in HEADS {
        let found = described(&parse(bytes.as_bytes(), &HeadLimits::default()));
        assert!(
            agrees(expected, &found),
            "{bytes:?}\n  expected {expected}\n  found    {found}"
        );
    }
    assert!(HEADS.len() >= 120);
}

#[test]
fn result_is_the_same_when_the_header_arrives_in_pieces() {
    let limits = HeadLimits::default();
    for (bytes, _) in HEADS {
        let bytes = bytes.as_bytes();
        let whole = parse(bytes, &limits);
        for cut in 0..bytes.len() {
            let piece = parse(&bytes[..cut], &limits);
            match (&whole, &piece) {
                (Parsed::Complete(head), _) if cut >= head.length => {
                    assert_eq!(described(&piece), described(&whole));
                }
                (Parsed::Reject(whole), Parsed::Reject(piece)) => {
                    assert_eq!(piece.status, whole.status)
                }
                (_, Parsed::Partial) => {}
                _ => panic!(
                    "{:?} cut at {cut}: {}",
                    bytes.escape_ascii().to_string(),
                    described(&piece)
                ),
            }
        }
    }
}

#[test]
fn header_length_excludes_the_bytes_that_follow() {
    let bytes = b"\r\nGET /a?b HTTP/1.1\r\nHost: x\r\n\r\nGET /next";
    let Parsed::Complete(head) = parse(bytes, &HeadLimits::default()) else {
        panic!()
    };
    assert_eq!(head.length, bytes.len() - 9);
    assert_eq!(head.request_line, b"GET /a?b HTTP/1.1");
}

#[test]
fn header_fields_are_kept_as_sent_when_they_occur_once() {
    let bytes = b"GET / HTTP/1.1\r\nHost: x\r\nRange: bytes=0-1\r\nIf-Range: \"a\"\r\nIf-Match: \"b\"\r\n\
        If-None-Match: W/\"c\"\r\nIf-Modified-Since: d\r\nIf-Unmodified-Since: e\r\nAccept-Encoding: br\r\n\
        Referer: http://r/\r\nUser-Agent: agent (x)\r\n\r\n";
    let Parsed::Complete(head) = parse(bytes, &HeadLimits::default()) else {
        panic!()
    };
    assert_eq!(head.range, Some(&b"bytes=0-1"[..]));
    assert_eq!(head.if_range, Some(&b"\"a\""[..]));
    assert_eq!(head.conditions.if_match.as_deref(), Some(&b"\"b\""[..]));
    assert_eq!(
        head.conditions.if_none_match.as_deref(),
        Some(&b"W/\"c\""[..])
    );
    assert_eq!(head.conditions.if_modified_since, Some(&b"d"[..]));
    assert_eq!(head.conditions.if_unmodified_since, Some(&b"e"[..]));
    assert_eq!(head.accept_encoding.as_deref(), Some(&b"br"[..]));
    assert_eq!(head.referer, Some(&b"http://r/"[..]));
    assert_eq!(head.user_agent, Some(&b"agent (x)"[..]));
}

#[test]
fn list_fields_are_joined_when_repeated() {
    let bytes = b"GET / HTTP/1.1\r\nHost: x\r\nIf-None-Match: \"a\"\r\nAccept-Encoding: br\r\nIf-Match: \"c\"\r\n\
        If-None-Match: \"b\"\r\nAccept-Encoding: gzip\r\nIf-Match: \"d\"\r\n\r\n";
    let Parsed::Complete(head) = parse(bytes, &HeadLimits::default()) else {
        panic!()
    };
    assert_eq!(
        head.conditions.if_none_match.as_deref(),
        Some(&b"\"a\", \"b\""[..])
    );
    assert_eq!(
        head.conditions.if_match.as_deref(),
        Some(&b"\"c\", \"d\""[..])
    );
    assert_eq!(head.accept_encoding.as_deref(), Some(&b"br, gzip"[..]));
}

#[test]
fn advisory_field_is_ignored_when_it_is_repeated() {
    for (field, value) in [
        ("Range", "bytes=0-1"),
        ("If-Range", "\"a\""),
        ("If-Modified-Since", "d"),
        ("If-Unmodified-Since", "e"),
    ] {
        let bytes = format!(
            "GET / HTTP/1.1\r\nHost: x\r\nRange: bytes=0-1\r\n{field}: {value}\r\n{field}: {value}\r\n\r\n"
        );
        let Parsed::Complete(head) = parse(bytes.as_bytes(), &HeadLimits::default()) else {
            panic!()
        };
        assert!(
            head.conditions.is_empty() && head.if_range.is_none(),
            "{field}"
        );
        assert_eq!(head.range.is_none(), field.contains("ange"), "{field}");
    }
}

/// Small limits, and headers just within and just beyond them.
#[test]
fn header_is_rejected_when_it_exceeds_a_limit() {
    let limits = HeadLimits {
        is_secure: false,
        is_http2: false,
        head_bytes_max: 100,
        target_bytes_max: 20,
        fields_max: 3,
    };
    let target =
        |bytes: usize| format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(bytes - 1));
    let sized = |bytes: usize| {
        let frame = "GET / HTTP/1.1\r\nHost: x\r\nA: \r\n\r\n".len();
        format!(
            "GET / HTTP/1.1\r\nHost: x\r\nA: {}\r\n\r\n",
            "b".repeat(bytes - frame)
        )
    };
    let fields = |count: usize| {
        format!(
            "GET / HTTP/1.1\r\nHost: x\r\n{}\r\n",
            "A: b\r\n".repeat(count - 1)
        )
    };
    for (bytes, expected) in [
        (target(20), "GET /aaaaaaaaaaaaaaaaaaa 1.1 host=x keep none"),
        (target(21), "414 target too long"),
        (target(150), "414 target too long"),
        (target(21)[..25].to_owned(), "414 target too long"),
        (target(21)[..24].to_owned(), "partial"),
        (sized(100), OK),
        (sized(101), "431 head too long"),
        (sized(500), "431 head too long"),
        (sized(101)[..100].to_owned(), "431 head too long"),
        (sized(101)[..99].to_owned(), "partial"),
        (fields(3), OK),
        (fields(4), "431 too many fields"),
        (format!("{}{}", sized(100), "x".repeat(200)), OK),
    ] {
        assert_eq!(
            described(&parse(bytes.as_bytes(), &limits)),
            expected,
            "{bytes:?}"
        );
    }
}

#[test]
fn default_limits_are_the_documented_ones() {
    let head = |target: usize, field: usize| {
        format!(
            "GET /{} HTTP/1.1\r\nHost: x\r\nA: {}\r\n\r\n",
            "a".repeat(target),
            "b".repeat(field)
        )
    };
    let status = |bytes: String| match parse(bytes.as_bytes(), &HeadLimits::default()) {
        Parsed::Reject(reject) => reject.status.code(),
        Parsed::Complete(_) => 200,
        Parsed::Partial => 0,
    };
    assert_eq!(status(head(8191, 10)), 200);
    assert_eq!(status(head(8192, 10)), 414);
    assert_eq!(status(head(10, 16_000)), 200);
    assert_eq!(status(head(10, 16_500)), 431);
    let fields = |count| {
        format!(
            "GET / HTTP/1.1\r\nHost: x\r\n{}\r\n",
            "A: b\r\n".repeat(count)
        )
    };
    assert_eq!(status(fields(99)), 200);
    assert_eq!(status(fields(100)), 431);
}

#[test]
fn scheme_of_a_target_is_that_of_the_connection() {
    let by_tls = HeadLimits {
        is_secure: true,
        is_http2: false,
        ..HeadLimits::default()
    };
    let is_misdirected = |target: &str, limits: &HeadLimits| {
        let text = format!("GET {target} HTTP/1.1\r\nHost: y\r\n\r\n");
        match parse(text.as_bytes(), limits) {
            Parsed::Complete(_) => false,
            Parsed::Reject(reject) => reject.status == headway_http::Status::MISDIRECTED_REQUEST,
            Parsed::Partial => panic!("{target}"),
        }
    };
    for (target, by_https, in_the_clear) in [
        ("https://y/a", false, true),
        ("http://y/a", true, false),
        ("/a", false, false),
    ] {
        assert_eq!(is_misdirected(target, &by_tls), by_https, "{target}");
        let plain = HeadLimits::default();
        assert_eq!(is_misdirected(target, &plain), in_the_clear, "{target}");
    }
}
