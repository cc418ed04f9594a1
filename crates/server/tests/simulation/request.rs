//! The requests of the clients, drawn from the seed, with all that the model needs to know of them.

use headway_base::random::{Draw, SplitMix64};

use crate::clock;
use crate::model::Model;
use crate::site::{DIRECTORIES, ROOTS, Site};

/// What a request is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Subject {
    /// The file of this path, which may not exist at the moment.
    File(String),
    /// A directory without its slash.
    Redirect(String),
    /// A response with this status, whose content says nothing.
    Status(u16),
}

/// A range of a `Range` header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Range {
    FromTo(usize, usize),
    From(usize),
    Last(usize),
}

/// The validator of a precondition: of a version that the client has seen, or of none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Validator {
    pub version: Option<usize>,
    text: String,
}

/// A request, as the model sees it.
#[derive(Clone, Debug)]
pub struct Planned {
    pub bytes: Vec<u8>,
    pub subject: Subject,
    /// The document root of its host.
    pub root: &'static str,
    pub is_head: bool,
    pub accepts_gzip: bool,
    pub ranges: Vec<Range>,
    pub if_match: Option<Validator>,
    pub if_none_match: Option<Validator>,
    pub if_range: Option<Validator>,
    /// The date of `If-Range`, in seconds since 1970.
    pub if_range_date: Option<i64>,
    /// Seconds since 1970.
    pub if_modified_since: Option<i64>,
    pub if_unmodified_since: Option<i64>,
    /// The path is that of the directory, whose index file it is.
    pub names_directory: bool,
    /// The server closes after its response, whatever else happens.
    pub is_last: bool,
    /// When the client has begun to send it.
    pub begun_ns: u64,
}

impl Planned {
    /// Whether the answer is an error after which the server closes without waiting for anything.
    pub fn is_rejected(&self) -> bool {
        matches!(self.subject, Subject::Status(400 | 501))
    }
}

/// A random request.
pub fn plan(site: &Site, model: &Model, random: &mut SplitMix64) -> Planned {
    let mut planned = Planned {
        bytes: Vec::new(),
        subject: Subject::Status(0),
        root: ROOTS[0],
        is_head: false,
        accepts_gzip: false,
        ranges: Vec::new(),
        if_match: None,
        if_none_match: None,
        if_range: None,
        if_range_date: None,
        if_modified_since: None,
        if_unmodified_since: None,
        names_directory: false,
        is_last: false,
        begun_ns: clock::now_ns(),
    };
    match random.below(20) {
        0 => odd(&mut planned, random),
        1 => directory(&mut planned, model, random),
        2 => missing(&mut planned, random),
        _ => file(&mut planned, site, model, random),
    }
    planned
}

fn file(planned: &mut Planned, site: &Site, model: &Model, random: &mut SplitMix64) {
    let paths: Vec<&String> = site.paths().collect();
    let path = paths[random.index(paths.len())].clone();
    planned.is_head = random.below(8) == 0;
    let mut lines = String::new();
    match random.below(8) {
        0..=2 => ranges(planned, &mut lines, random),
        3 => {
            planned.accepts_gzip = true;
            lines.push_str("Accept-Encoding: gzip\r\n");
        }
        _ => {}
    }
    if !planned.accepts_gzip && random.below(4) == 0 {
        precondition(planned, &path, model, &mut lines, random);
    }
    let (root, name) = path.split_once('/').expect("a root and a name");
    planned.root = ROOTS[usize::from(root == ROOTS[1])];
    let target = match path.as_str() {
        "root/with/index.html" if random.below(2) == 0 => {
            planned.names_directory = true;
            "with/".to_owned()
        }
        _ => spelled(name, random),
    };
    planned.subject = Subject::File(path);
    let method = match planned.is_head {
        true => "HEAD",
        false => "GET",
    };
    finish(planned, method, &target, &lines, random);
}

/// Other spellings of one path.
fn spelled(path: &str, random: &mut SplitMix64) -> String {
    match random.below(12) {
        0 => path.replace('.', "%2e"),
        1 => format!("./{path}"),
        2 => format!("with/../{path}"),
        3 => format!("{path}?query={}", random.below(100)),
        _ => path.to_owned(),
    }
}

fn ranges(planned: &mut Planned, lines: &mut String, random: &mut SplitMix64) {
    let most = 1 << random.below(21);
    let first = random.below(most) as usize;
    let length = 1 + random.below(most) as usize;
    let mut all = vec![match random.below(3) {
        0 => Range::From(first),
        1 => Range::Last(length),
        _ => Range::FromTo(first, first + length - 1),
    }];
    if let (Range::FromTo(_, last), 0) = (all[0], random.below(3)) {
        // Far from the first, since ranges that meet may be merged.
        let next = last + 2 + random.below(most) as usize;
        all.push(Range::FromTo(next, next + random.below(most) as usize));
    }
    let text: Vec<String> = all
        .iter()
        .map(|range| match range {
            Range::FromTo(first, last) => format!("{first}-{last}"),
            Range::From(first) => format!("{first}-"),
            Range::Last(length) => format!("-{length}"),
        })
        .collect();
    lines.push_str(&format!("Range: bytes={}\r\n", text.join(",")));
    planned.ranges = all;
}

fn precondition(
    planned: &mut Planned,
    path: &str,
    model: &Model,
    lines: &mut String,
    random: &mut SplitMix64,
) {
    let validator = validator(path, model, random);
    let date = model.any_date(path, random);
    let written = headway_http::date::format(date);
    let written = std::str::from_utf8(&written).expect("a date is text");
    match random.below(6) {
        0 => {
            lines.push_str(&format!("If-Match: {}\r\n", validator.text));
            planned.if_match = Some(validator);
        }
        1 => {
            lines.push_str(&format!("If-Modified-Since: {written}\r\n"));
            planned.if_modified_since = Some(date);
        }
        2 => {
            lines.push_str(&format!("If-Unmodified-Since: {written}\r\n"));
            planned.if_unmodified_since = Some(date);
        }
        4 => {
            lines.push_str(&format!("If-Range: {written}\r\n"));
            planned.if_range_date = Some(date);
        }
        3 => {
            lines.push_str(&format!("If-Range: {}\r\n", validator.text));
            planned.if_range = Some(validator);
        }
        _ => {
            lines.push_str(&format!("If-None-Match: {}\r\n", validator.text));
            planned.if_none_match = Some(validator);
        }
    }
}

fn validator(path: &str, model: &Model, random: &mut SplitMix64) -> Validator {
    match model.any_tag(path, random) {
        Some((version, tag)) => Validator {
            version: Some(version),
            text: tag,
        },
        None => Validator {
            version: None,
            text: "\"unknown\"".to_owned(),
        },
    }
}

fn directory(planned: &mut Planned, model: &Model, random: &mut SplitMix64) {
    let name = DIRECTORIES[random.index(DIRECTORIES.len())];
    let target = match random.below(2) {
        0 => {
            planned.subject = Subject::Redirect(name.to_owned());
            name.to_owned()
        }
        _ => {
            // The one with an index file is a file to the model.
            planned.subject = Subject::Status(model.directory_status);
            "without/".to_owned()
        }
    };
    finish(planned, "GET", &target, "", random);
}

fn missing(planned: &mut Planned, random: &mut SplitMix64) {
    planned.subject = Subject::Status(404);
    planned.root = ROOTS[random.index(2)];
    let target = match random.below(5) {
        0 => format!("missing{}", random.below(3)),
        1 => "missing/deeper".to_owned(),
        // Only for internal redirects.
        2 => "internal/file.txt".to_owned(),
        3 => "with/../%69nternal/file.txt".to_owned(),
        _ => ".hidden".to_owned(),
    };
    finish(planned, "GET", &target, "", random);
}

/// What is no request for a file.
fn odd(planned: &mut Planned, random: &mut SplitMix64) {
    match random.below(5) {
        0 => {
            planned.subject = Subject::Status(405);
            let body = "x".repeat(random.below(3000) as usize);
            let lines = format!("Content-Length: {}\r\n", body.len());
            finish(planned, "POST", "file0.txt", &lines, random);
            planned.bytes.extend_from_slice(body.as_bytes());
        }
        1 => {
            planned.subject = Subject::Status(405);
            // HTTP/1.0 has no chunks.
            planned.bytes =
                b"PUT /file0.txt HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
                    .to_vec();
            for _ in 0..random.below(4) {
                let chunk = "y".repeat(1 + random.below(900) as usize);
                let chunk = format!("{:x}\r\n{chunk}\r\n", chunk.len());
                planned.bytes.extend_from_slice(chunk.as_bytes());
            }
            planned.bytes.extend_from_slice(b"0\r\n\r\n");
        }
        2 => {
            planned.subject = Subject::Status(200);
            finish(planned, "OPTIONS", "file0.txt", "", random);
        }
        3 => {
            planned.subject = Subject::Status(501);
            planned.is_last = true;
            finish(planned, "FROBNICATE", "file0.txt", "", random);
        }
        _ => {
            planned.subject = Subject::Status(400);
            planned.is_last = true;
            planned.bytes = b"GET /file0.txt HTTP/1.1\r\nBad Header: x\r\n\r\n".to_vec();
        }
    }
}

fn finish(planned: &mut Planned, method: &str, target: &str, lines: &str, random: &mut SplitMix64) {
    let (version, connection) = match random.below(24) {
        0 => ("1.1", "Connection: close\r\n"),
        1 => ("1.0", ""),
        2 => ("1.0", "Connection: keep-alive\r\n"),
        _ => ("1.1", ""),
    };
    planned.is_last |= matches!(
        (version, connection),
        ("1.1", "Connection: close\r\n") | ("1.0", "")
    );
    let host = match planned.root {
        "other" => ["other.test", "Other.Test:8080"][random.index(2)],
        _ => ["test", "third.test"][random.index(2)],
    };
    planned.bytes =
        format!("{method} /{target} HTTP/{version}\r\nHost: {host}\r\n{connection}{lines}\r\n")
            .into_bytes();
}
