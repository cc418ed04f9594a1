//! Apache answers the same with and without the module, byte for byte but for the date.
//!
//! `cases.txt` has the requests. Each is put to an Apache without the module and to one with it, whose files are not in
//! memory at first where the test may see to that (a disk image that is mounted anew), and then are.

use super::disks::Disk;
use super::support::{Apache, Backend, base, exchange, folder, is_root, module, skip};
use super::tree::fill;
use std::path::{Path, PathBuf};

const SITE: &str = include_str!("site.conf");
const CASES: &str = include_str!("cases.txt");

/// The tree, on a disk of its own where that is possible.
enum Tree {
    Disk(Box<Disk>),
    Folder(tempfile::TempDir),
}

impl Tree {
    fn new() -> Tree {
        match Disk::new(32 << 20, fill) {
            Ok(disk) => Tree::Disk(Box::new(disk)),
            Err(_) => {
                let folder = folder();
                fill(folder.path());
                Tree::Folder(folder)
            }
        }
    }

    fn make_cold(&mut self) -> PathBuf {
        match self {
            Tree::Disk(disk) => {
                disk.make_cold().unwrap();
                disk.path().into()
            }
            Tree::Folder(folder) => folder.path().into(),
        }
    }
}

/// One line of `cases.txt`, with what the first reply to `/file.txt` says filled in.
fn request(line: &str, etag: &str, modified: &str) -> Vec<u8> {
    let line = line
        .replace("@LONGEST@", &"n".repeat(5000))
        .replace("@LONG@", &"n".repeat(300))
        .replace("@DEEP@", &"d/".repeat(2500))
        .replace("@ETAG@", etag)
        .replace("@MODIFIED@", modified);
    if let Some(raw) = line.strip_prefix("RAW ") {
        return unescape(raw);
    }
    let (head, body) = line.split_once(" >> ").unwrap_or((&line, ""));
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

/// A reply without what differs from one Apache to the next: the date and what is counted from it, the boundary of
/// parts, which each start of Apache draws at random, and the order of allowed methods, which it draws as well.
fn masked(reply: &[u8]) -> Vec<u8> {
    let mut text: String = reply.iter().map(|byte| char::from(*byte)).collect();
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
        if let Some(methods) = line.strip_prefix("Allow: ") {
            let mut methods: Vec<_> = methods.trim_end().split(',').collect();
            methods.sort_unstable();
            kept += &format!("Allow: {}\r\n", methods.join(","));
        } else if has_parts.is_some() && line.starts_with("Content-Length: ") {
            // The boundary is longer or shorter, and with it the whole. The bytes that are there are compared.
        } else if !line.starts_with("Date: ") && !line.starts_with("Cache-Control: max-age=") {
            kept += line;
        }
    }
    kept.chars().map(|c| c as u8).collect()
}

fn field(reply: &[u8], name: &str) -> String {
    let text = String::from_utf8_lossy(reply).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {text}"))
        .trim()
        .to_owned()
}

/// Every case, and its reply.
fn converse(apache: &Apache) -> Vec<(String, Vec<u8>)> {
    let plain = b"GET /file.txt HTTP/1.1\r\nHost: off.test\r\nConnection: close\r\n\r\n";
    let first = exchange(&apache.address, plain);
    let (etag, modified) = (field(&first, "ETag: "), field(&first, "Last-Modified: "));
    let lines = CASES
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let reply = exchange(&apache.address, &request(line, &etag, &modified));
            (line.to_owned(), masked(&reply))
        })
        .collect()
}

fn configuration(root: &Path, more: &str) -> String {
    base() + more + &SITE.replace("@ROOT@", root.to_str().unwrap())
}

fn agree(mpm: &str) {
    let test = format!("replies_are_the_same_when_the_module_is_there_in_{mpm}");
    let module = match module() {
        Ok(module) => module,
        Err(why) => return skip(&test, &why),
    };
    let mut tree = Tree::new();
    let root = tree.make_cold();
    let stock = Apache::start(mpm, &configuration(&root, ""));
    let expected = converse(&stock);
    let logged = stock.end("access.log");
    assert!(expected.len() >= 150);
    spread(&expected);

    let root = tree.make_cold();
    let sockets = folder();
    let backend = Backend::start(&root, &sockets.path().join("socket"));
    let more = format!(
        "LoadModule headway_module {}\nHeadwayBackend {}\nHeadwayEnable On\n",
        module.display(),
        backend.socket.display()
    );
    let apache = Apache::start(mpm, &configuration(&root, &more));
    for state in ["cold", "warm"] {
        let actual = converse(&apache);
        for ((case, expected), (_, actual)) in expected.iter().zip(&actual) {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            assert_eq!(text(expected), text(actual), "{mpm}, {state}: {case}");
            assert_eq!(expected, actual, "{mpm}, {state}: {case}");
        }
        if state == "cold" {
            // The child that writes a line may do so after the client has its reply.
            let differ = || difference(&logged, &apache.log("access.log"));
            for _ in 0..1000 {
                if differ().is_empty() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            assert_eq!(differ(), Vec::<String>::new(), "{mpm}: the logs differ");
        }
    }
    // It was the module that did it, and the service that helped.
    assert!(apache.counter("Opened") > 200);
    assert_eq!(apache.counter("Fallbacks"), 0);
    if is_root() {
        assert!(apache.counter("AskedNames") > 50, "the disk was warm");
        assert!(backend.counter("files_total") > 20);
    }
    drop(apache);
    drop(backend);
}

/// The suite is about something: its replies are of many kinds.
fn spread(replies: &[(String, Vec<u8>)]) {
    for status in [
        "200", "206", "301", "302", "304", "400", "401", "403", "404", "405", "406", "410", "412",
        "416", "500",
    ] {
        let start = format!("HTTP/1.1 {status}");
        let found = replies
            .iter()
            .any(|(_, reply)| reply.starts_with(start.as_bytes()));
        assert!(found, "no reply with {status}");
    }
}

/// The lines that one log has and the other has not, in whichever order they stand. The probe of whoever waited for the
/// port has no request.
fn difference(first: &str, second: &str) -> Vec<String> {
    let mut counts = std::collections::BTreeMap::new();
    for (log, step) in [(first, 1), (second, -1)] {
        for line in log.lines().filter(|line| !line.starts_with("- ")) {
            *counts.entry(line).or_insert(0) += step;
        }
    }
    let differ = counts.into_iter().filter(|(_, count)| *count != 0);
    differ
        .map(|(line, count)| format!("{count:+} {line}"))
        .collect()
}

#[test]
fn replies_are_the_same_when_the_module_is_there_in_prefork() {
    agree("prefork");
}

#[test]
fn replies_are_the_same_when_the_module_is_there_in_worker() {
    agree("worker");
}

#[test]
fn replies_are_the_same_when_the_module_is_there_in_event() {
    agree("event");
}
