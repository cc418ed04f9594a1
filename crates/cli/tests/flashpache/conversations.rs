//! Apache answers the same with and without the module, byte for byte but for the date.
//!
//! `cases.txt` has the requests. Each is put to an Apache without the module and to one with it,
//! whose files are not in memory at first where the test may see to that (a disk image that is
//! mounted again), and then are. They go in the clear, over TLS, and as HTTP/2 where that has a
//! form for them.

use headway_test_support::disks::Disk;

use super::secure;
use super::support::{Apache, Backend, base, exchange, folder, is_root, module, skip};
use super::tree::fill;
use std::path::{Path, PathBuf};

const SITE: &str = include_str!("site.conf");
pub const CASES: &str = include_str!("cases.txt");

/// The tree, on a disk of its own where that is possible.
pub enum Tree {
    Disk(Box<Disk>),
    Folder(tempfile::TempDir),
}

impl Tree {
    pub fn new() -> Tree {
        Tree::filled(fill)
    }

    /// Creates a tree with the files that `fill` writes.
    pub fn filled(fill: impl Fn(&Path)) -> Tree {
        match Disk::new(env!("CARGO_TARGET_TMPDIR").as_ref(), 32 << 20, &fill) {
            Ok(disk) => Tree::Disk(Box::new(disk)),
            Err(_) => {
                let folder = folder();
                fill(folder.path());
                Tree::Folder(folder)
            }
        }
    }

    pub fn make_cold(&mut self) -> PathBuf {
        match self {
            Tree::Disk(disk) => {
                let mut outcome = disk.make_cold();
                // What has just ended may hold the file system for a moment longer.
                for _ in 0..500 {
                    if outcome.is_ok() {
                        break;
                    }
                    std::thread::sleep(std::time::Duration::from_millis(5));
                    outcome = disk.make_cold();
                }
                outcome.unwrap();
                disk.path().into()
            }
            Tree::Folder(folder) => folder.path().into(),
        }
    }
}

/// One line of `cases.txt`, with what the first response to `/file.txt` says filled in.
pub fn filled(line: &str, etag: &str, modified: &str) -> String {
    line.replace("@LONGEST@", &"n".repeat(5000))
        .replace("@LONG@", &"n".repeat(300))
        .replace("@DEEP@", &"d/".repeat(2500))
        .replace("@ETAG@", etag)
        .replace("@MODIFIED@", modified)
}

/// The bytes of a line's request in HTTP/1.
pub fn request(line: &str) -> Vec<u8> {
    if let Some(raw) = line.strip_prefix("RAW ") {
        return unescape(raw);
    }
    let (head, body) = line.split_once(" >> ").unwrap_or((line, ""));
    let mut parts = head.split(" | ");
    let mut text = format!("{} HTTP/1.1\r\n", parts.next().unwrap_or_default());
    let fields: Vec<&str> = parts.collect();
    for default in ["Host: site.test", "Connection: close"] {
        let name = default.split(':').next().unwrap_or_default();
        if !fields.iter().any(|field| field.starts_with(name)) {
            text += &format!("{default}\r\n");
        }
    }
    for field in fields {
        text += &format!("{field}\r\n");
    }
    let mut bytes = format!("{text}\r\n").into_bytes();
    bytes.extend(unescape(body));
    bytes
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match (c, (c == '\\').then(|| rest.next()).flatten()) {
            ('\\', Some('r')) => bytes.push(b'\r'),
            ('\\', Some('n')) => bytes.push(b'\n'),
            ('\\', Some('t')) => bytes.push(b'\t'),
            ('\\', Some('x')) => {
                let digits: String = rest.by_ref().take(2).collect();
                bytes.push(u8::from_str_radix(&digits, 16).unwrap());
            }
            (c, _) => bytes.extend(c.to_string().bytes()),
        }
    }
    bytes
}

/// A response without what differs from one Apache to the next: the date and what is counted from
/// it, the boundary of parts, which each start of Apache draws at random, and the order of allowed
/// methods, which it draws as well.
pub fn masked(response: &[u8]) -> Vec<u8> {
    let mut text: String = response.iter().map(|byte| char::from(*byte)).collect();
    let has_parts = text.find("boundary=");
    if let Some(at) = has_parts {
        let boundary: String = text[at + 9..]
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric())
            .collect();
        text = text.replace(&boundary, "BOUNDARY");
    }
    let mut kept = String::new();
    for line in text.split_inclusive("\r\n") {
        // HTTP/2 has small letters.
        let lower = line.to_ascii_lowercase();
        if lower.starts_with("allow: ") {
            let mut methods: Vec<_> = line[7..].trim_end().split(',').collect();
            methods.sort_unstable();
            kept += &format!("Allow: {}\r\n", methods.join(","));
        } else if has_parts.is_some() && lower.starts_with("content-length: ") {
            // The boundary is longer or shorter, and with it the whole. The bytes that are there
            // are compared.
        } else if lower.starts_with("cache-control: max-age=") {
            // Seconds from the date on; `Expires` beside it is compared as it is.
            kept += &line.replace(|c: char| c.is_ascii_digit(), "");
        } else if !lower.starts_with("date: ") {
            kept += line;
        }
    }
    kept.chars().map(|c| c as u8).collect()
}

/// A field's value; `name` is in small letters, with colon and space.
pub fn field(response: &[u8], name: &str) -> Option<String> {
    let text = String::from_utf8_lossy(response).into_owned();
    let line = text
        .lines()
        .find(|line| line.to_ascii_lowercase().starts_with(name))?;
    Some(line[name.len()..].trim().to_owned())
}

/// How the requests come to Apache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// HTTP/1 in the clear.
    Plain,
    /// HTTP/1 over TLS (mod_ssl).
    Tls,
    /// HTTP/2 over TLS (mod_http2, mod_ssl).
    Http2,
}

impl Way {
    /// The responses to lines of `cases.txt`, and those of the lines that can be put in this way.
    fn responses(self, address: &str, lines: &[String]) -> Vec<(String, Vec<u8>)> {
        let requests = || lines.iter().map(|line| request(line));
        let responses = match self {
            Way::Plain => requests().map(|bytes| exchange(address, &bytes)).collect(),
            Way::Tls => secure::exchange(address, requests()),
            Way::Http2 => return secure::fetch_http2(address, lines),
        };
        lines.iter().cloned().zip(responses).collect()
    }

    /// What Apache's configuration says of it.
    fn configuration(self) -> String {
        let protocols = match self {
            Way::Plain => return String::new(),
            // These clients do not say that they have nothing more to ask.
            Way::Tls => "KeepAliveTimeout 1\n",
            Way::Http2 => {
                "LoadModule http2_module /usr/lib/apache2/modules/mod_http2.so\nProtocols h2 http/1.1\n"
            }
        };
        format!("{}Listen 127.0.0.1:@STATUS@\n{protocols}", secure::MODULE)
    }
}

/// Every case, and its response.
fn converse(apache: &Apache, way: Way) -> Vec<(String, Vec<u8>)> {
    let plain = "GET /file.txt | Host: off.test".to_owned();
    let first = &way.responses(&apache.address, &[plain])[0].1;
    let etag = field(first, "etag: ").unwrap();
    let modified = field(first, "last-modified: ").unwrap();
    let lines: Vec<String> = CASES
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| filled(line, &etag, &modified))
        .collect();
    let responses = way.responses(&apache.address, &lines);
    responses
        .into_iter()
        .map(|(line, response)| (line, masked(&response)))
        .collect()
}

fn configuration(root: &Path, way: Way, more: &str) -> String {
    let mut site = SITE.replace("@ROOT@", root.to_str().unwrap());
    if way != Way::Plain {
        // The main server stays in the clear, for its status page.
        let host = "<VirtualHost 127.0.0.1:@PORT@>\n";
        site = site.replace(host, &format!("{host}{}", secure::host()));
    }
    base() + more + &way.configuration() + &site
}

/// Asserts that both servers gave the same responses, byte by byte.
fn assert_same(expected: &[(String, Vec<u8>)], actual: &[(String, Vec<u8>)], context: &str) {
    for ((case, expected), (_, actual)) in expected.iter().zip(actual) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(text(expected), text(actual), "{context}: {case}");
        assert_eq!(expected, actual, "{context}: {case}");
    }
}

/// Asserts that the access log has the same lines.
fn assert_same_log(apache: &Apache, logged: &str, mpm: &str) {
    // The child that writes a line may do so after the client has its response.
    let differ = || difference(logged, &apache.log("access.log"));
    for _ in 0..1000 {
        if differ().is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert_eq!(differ(), Vec::<String>::new(), "{mpm}: the logs differ");
}

fn agree(test: &str, mpm: &str, way: Way) {
    let module = match module() {
        Ok(module) => module,
        Err(why) => return skip(test, &why),
    };
    if way != Way::Plain
        && let Err(why) = secure::available()
    {
        return skip(test, &why);
    }
    let mut tree = Tree::new();
    let root = tree.make_cold();
    let stock = Apache::start(mpm, &configuration(&root, way, ""));
    let expected = converse(&stock, way);
    let logged = stock.end("access.log");
    assert!(expected.len() >= 150);
    spread(way, &expected);

    let root = tree.make_cold();
    let sockets = folder();
    let socket = sockets.path().join("socket");
    let backend = Backend::start(&root, &socket);
    let more = format!(
        "LoadModule headway_module {}\nHeadwayBackend {}\nHeadwayEnable On\n",
        module.display(),
        socket.display()
    );
    let apache = Apache::start(mpm, &configuration(&root, way, &more));
    let plain: Vec<_> = expected.iter().filter(is_plain).collect();
    assert!(plain.len() >= 30, "{}", plain.len());
    for state in ["cold", "warm"] {
        let before = apache.counter("Sent");
        let actual = converse(&apache, way);
        let sent = (apache.counter("Sent") - before) as usize;
        assert!(
            (plain.len()..expected.len()).contains(&sent),
            "{mpm}, {way:?}, {state}: {sent} by the module, of {} plain cases",
            plain.len()
        );
        assert_same(&expected, &actual, &format!("{mpm}, {way:?}, {state}"));
        if state == "cold" {
            assert_same_log(&apache, &logged, mpm);
        }
    }
    if way == Way::Plain {
        sends_each(&apache, &plain);
    }
    // It was the module that did it, and the service that helped.
    assert!(apache.counter("Opened") > 200);
    assert_eq!(apache.counter("Fallbacks"), 0);
    if is_root() {
        assert!(apache.counter("NameRequests") > 50, "the disk was warm");
        assert!(backend.counter(r#"answers_total{result="done"}"#) > 20);
    }
    drop(apache);
    drop(backend);
}

/// A response that the module's handler is there for: a file of the first host by its own name,
/// without a rule of its own, and not refused for what the request says.
fn is_plain((line, response): &&(String, Vec<u8>)) -> bool {
    let mut parts = line.split(' ');
    let is_read = matches!(parts.next(), Some("GET" | "HEAD"));
    let target = parts.next().unwrap_or_default();
    let path = target.split(['?', '#']).next().unwrap_or_default();
    let is_file = [
        "/file.txt",
        "/big.bin",
        "/empty.txt",
        "/exact8k.bin",
        "/noext",
    ]
    .contains(&path);
    is_read && is_file && !line.contains("Host: ") && field(response, "etag: ").is_some()
}

/// Checks that the module has sent each of these responses, and no response of Apache's own.
fn sends_each(apache: &Apache, plain: &[&(String, Vec<u8>)]) {
    let sent = |line: &str| {
        let before = apache.counter("Sent");
        exchange(&apache.address, &request(line));
        apache.counter("Sent") - before
    };
    for (line, _) in plain {
        assert_eq!(sent(line), 1, "{line}");
    }
    for line in [
        "GET /off/file.txt",
        "GET /none",
        "GET /denied/file.txt",
        "POST /file.txt",
    ] {
        assert_eq!(sent(line), 0, "{line}");
    }
}

/// The suite is about something: its responses are of many kinds.
fn spread(way: Way, responses: &[(String, Vec<u8>)]) {
    let version = if way == Way::Http2 { "2" } else { "1.1" };
    for status in [
        "200", "206", "301", "302", "304", "400", "401", "403", "404", "405", "406", "410", "412",
        "416", "500",
    ] {
        let start = format!("HTTP/{version} {status}");
        let found = responses
            .iter()
            .any(|(_, response)| response.starts_with(start.as_bytes()));
        assert!(found, "no response with {status}");
    }
}

/// The lines that one log has and the other has not, in any order. The probe of the port made no
/// request, and only one of the two servers is asked for its counters.
fn difference(first: &str, second: &str) -> Vec<String> {
    let mut counts = std::collections::BTreeMap::new();
    for (log, step) in [(first, 1), (second, -1)] {
        let is_case = |line: &&str| !line.starts_with("- ") && !line.contains("/server-status");
        for line in log.lines().filter(is_case) {
            *counts.entry(line).or_insert(0) += step;
        }
    }
    let differ = counts.into_iter().filter(|(_, count)| *count != 0);
    differ
        .map(|(line, count)| format!("{count:+} {line}"))
        .collect()
}

/// Needs: the programs apache2 and apxs: scripts/setup
#[test]
fn responses_are_the_same_when_the_module_is_there_in_prefork() {
    let name = "responses_are_the_same_when_the_module_is_there_in_prefork";
    agree(name, "prefork", Way::Plain);
}

/// Needs: the programs apache2 and apxs: scripts/setup
#[test]
fn responses_are_the_same_when_the_module_is_there_in_worker() {
    let name = "responses_are_the_same_when_the_module_is_there_in_worker";
    agree(name, "worker", Way::Plain);
}

/// Needs: the programs apache2 and apxs: scripts/setup
#[test]
fn responses_are_the_same_when_the_module_is_there_in_event() {
    let name = "responses_are_the_same_when_the_module_is_there_in_event";
    agree(name, "event", Way::Plain);
}

/// Needs: the programs apache2 and apxs: scripts/setup, and openssl, curl and python3
#[test]
fn responses_are_the_same_over_tls_when_the_module_is_there_in_prefork() {
    let name = "responses_are_the_same_over_tls_when_the_module_is_there_in_prefork";
    agree(name, "prefork", Way::Tls);
}

/// Needs: the programs apache2 and apxs: scripts/setup, and openssl, curl and python3
#[test]
fn responses_are_the_same_over_http_2_when_the_module_is_there_in_event() {
    let name = "responses_are_the_same_over_http_2_when_the_module_is_there_in_event";
    agree(name, "event", Way::Http2);
}
