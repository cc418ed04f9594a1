//! Reads an access log in the common or combined format and finds which files of a site were asked
//! for, how often, and how large they are.
//!
//! Only a GET answered 200 or 304 tells of a file: 200 gives a size, the largest seen counts (a
//! client that left early leaves a smaller one behind), 304 tells of popularity alone. Everything
//! else is counted and left out, as is a path that cannot safely become a file. A line may be of
//! any length and content; memory is bounded by the number of different paths.
//!
//! Sources: the Apache HTTP Server's documentation of mod_log_config (common and combined formats,
//! escapes).

use std::collections::BTreeMap;
use std::io::{self, BufRead};

use super::shape::FILES_MAX;
use super::site::{SiteFiles, Unsafe, safe_path};

/// A line may have this many bytes; the rest of a longer one is skipped.
const LINE_BYTES_MAX: usize = 64 << 10;

/// No site serves a file of more; a line that says so is damaged, and one such line must not make
/// the whole set too large for any disk.
const SIZE_BYTES_MAX: u64 = 1 << 40;

/// What a log consisted of. All but `lines` count lines that are in no other number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// All lines that are not empty.
    pub lines: u64,
    /// Requests for files of the site.
    pub used: u64,
    /// Requests whose method is not GET.
    pub other_methods: u64,
    /// A GET answered with something else than 200 or 304.
    pub other_statuses: u64,
    /// Neither common nor combined format.
    pub not_understood: u64,
    /// Paths that lead upwards, or hold control characters.
    pub hostile: u64,
    /// Paths with a name that begins with a dot: servers refuse them.
    pub hidden: u64,
    /// Names or paths too long for a file system.
    pub long: u64,
    /// Files only ever answered 304, so that their size is not known.
    pub unknown_size: u64,
    /// Requests for a file with the name of a directory of the site, whose `index.html` is a
    /// directory as well.
    pub conflicting: u64,
    /// Requests for files beyond the number a set may have.
    pub beyond: u64,
    /// Files, not lines: those that became the `index.html` of a directory of the same name.
    pub moved: u64,
}

/// A log that gives no file set.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The log is compressed.
    #[error(
        "the log is compressed by {by}; give it uncompressed: {unpack} LOG | headway fileset create DIR --log -"
    )]
    Compressed {
        /// The format.
        by: &'static str,
        /// The command that prints it.
        unpack: &'static str,
    },
    /// No line tells of a file.
    #[error(
        "none of its {lines} lines is a GET answered 200 with a size ({not_understood} are in neither common nor combined format)"
    )]
    Nothing {
        /// All lines.
        lines: u64,
        /// Lines in another format.
        not_understood: u64,
    },
    /// The log cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Size if one was seen, and requests, of each path.
type Paths = BTreeMap<String, (Option<u64>, u64)>;

/// Reads a whole log.
pub fn read(log: &mut dyn BufRead) -> Result<(SiteFiles, Seen), LogError> {
    check_not_compressed(log.fill_buf()?)?;
    let mut seen = Seen::default();
    let mut paths = Paths::new();
    let mut line = Vec::new();
    while read_line(log, &mut line)? {
        if !line.trim_ascii().is_empty() {
            seen.lines += 1;
            count_line(&line, &mut paths, &mut seen);
        }
    }
    let mut sized = BTreeMap::new();
    for (path, (size, requests)) in paths {
        match size {
            Some(size) => drop(sized.insert(path, (size, requests))),
            None => seen.unknown_size += requests,
        }
    }
    let (site, conflicts) = SiteFiles::new(sized);
    seen.moved = conflicts.moved;
    seen.conflicting = conflicts.requests_left_out;
    seen.used = site.files().iter().map(|file| file.requests).sum();
    if site.files().is_empty() {
        return Err(LogError::Nothing {
            lines: seen.lines,
            not_understood: seen.not_understood,
        });
    }
    Ok((site, seen))
}

/// A compressed log has no lines; saying so is better than counting its pieces.
fn check_not_compressed(head: &[u8]) -> Result<(), LogError> {
    let formats: [(&[u8], _, _); 4] = [
        (b"\x1f\x8b", "gzip", "zcat"),
        (b"BZh", "bzip2", "bzcat"),
        (b"\xfd7zXZ", "xz", "xzcat"),
        (b"\x28\xb5\x2f\xfd", "zstd", "zstdcat"),
    ];
    match formats.iter().find(|(magic, _, _)| head.starts_with(magic)) {
        Some(&(_, by, unpack)) => Err(LogError::Compressed { by, unpack }),
        None => Ok(()),
    }
}

/// The next line without its end, cut at the bound; `false` at the end of the log.
fn read_line(log: &mut dyn BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut any = false;
    loop {
        let bytes = match log.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        if bytes.is_empty() {
            return Ok(any);
        }
        any = true;
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let length = end.unwrap_or(bytes.len());
        let room = LINE_BYTES_MAX - line.len();
        line.extend_from_slice(&bytes[..length.min(room)]);
        log.consume(length + usize::from(end.is_some()));
        if end.is_some() {
            return Ok(true);
        }
    }
}

/// Counts one line, and remembers its path when it tells of a file.
fn count_line(line: &[u8], paths: &mut Paths, seen: &mut Seen) {
    let Some(entry) = parse(line) else {
        seen.not_understood += 1;
        return;
    };
    let counter = if entry.method != b"GET" {
        &mut seen.other_methods
    } else if entry.status != 200 && entry.status != 304 {
        &mut seen.other_statuses
    } else {
        match safe_path(&unescaped(entry.target)) {
            Ok(path) => {
                remember(path, entry, paths, seen);
                return;
            }
            Err(Unsafe::Hostile) => &mut seen.hostile,
            Err(Unsafe::Hidden) => &mut seen.hidden,
            Err(Unsafe::Long) => &mut seen.long,
        }
    };
    *counter += 1;
}

fn remember(path: String, entry: Entry<'_>, paths: &mut Paths, seen: &mut Seen) {
    if paths.len() >= FILES_MAX as usize && !paths.contains_key(&path) {
        seen.beyond += 1;
        return;
    }
    let (size, requests) = paths.entry(path).or_default();
    *requests += 1;
    if entry.status == 200 {
        *size = (*size).max(entry.size_bytes);
    }
}

/// The part of a line that counts.
struct Entry<'a> {
    method: &'a [u8],
    target: &'a [u8],
    status: u16,
    /// `None` where the log has a dash.
    size_bytes: Option<u64>,
}

/// `… [time] "METHOD target version" status size …`. What stands before the time is not looked at,
/// so a virtual host in front does no harm; the first quotation mark opens the request in both
/// formats.
fn parse(line: &[u8]) -> Option<Entry<'_>> {
    let open = memchr::memchr(b'"', line)?;
    let rest = &line[open + 1..];
    let close = closing_quote(rest)?;
    let mut request = rest[..close].split(|&byte| byte == b' ');
    let (method, target) = (request.next()?, request.next()?);
    let mut after = rest[close + 1..]
        .split(|&byte| byte == b' ')
        .filter(|word| !word.is_empty());
    let status = number(after.next()?)?;
    let size = after.next()?.trim_ascii_end();
    let size_bytes = if size == b"-" {
        None
    } else {
        Some(number(size).filter(|&bytes| bytes <= SIZE_BYTES_MAX)?)
    };
    Some(Entry {
        method,
        target,
        status: u16::try_from(status).ok()?,
        size_bytes,
    })
}

/// The first quotation mark that no backslash precedes.
fn closing_quote(text: &[u8]) -> Option<usize> {
    let mut escaped = false;
    text.iter().position(|&byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    })
}

fn number(digits: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(digits).ok()?;
    // `parse` would take a sign as well.
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then_some(())?;
    text.parse().ok()
}

/// Undoes what servers do to a target in a log: `\xHH` for bytes that are not printable, and a
/// backslash before a quotation mark or a backslash.
fn unescaped(target: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(target.len());
    let mut rest = target;
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'\\' {
            plain.push(first);
            continue;
        }
        match after {
            [b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or(0) as u8;
                plain.push(digit(*high) << 4 | digit(*low));
                rest = &after[3..];
            }
            [quoted @ (b'"' | b'\\'), ..] => {
                plain.push(*quoted);
                rest = &after[1..];
            }
            _ => plain.push(b'\\'),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(request: &str, status: u16, size: &str) -> String {
        format!("10.0.0.1 - - [10/Oct/2000:13:55:36 -0700] \"{request}\" {status} {size}\n")
    }

    fn read_text(text: impl AsRef<[u8]>) -> Result<(SiteFiles, Seen), LogError> {
        read(&mut text.as_ref())
    }

    fn files(site: &SiteFiles) -> Vec<(&str, u64, u64)> {
        site.files()
            .iter()
            .map(|file| (file.path.as_str(), file.size_bytes, file.requests))
            .collect()
    }

    #[test]
    fn sizes_and_popularity_are_found_when_the_log_is_common_or_combined() {
        let mut log = line("GET /a.html HTTP/1.1", 200, "100");
        log += &line("GET /a.html?query HTTP/1.1", 200, "700");
        log += &line("GET /a.html HTTP/1.1", 304, "-");
        log += &line("GET / HTTP/1.0", 200, "5").replace('\n', " \"-\" \"Mozilla \\\"5\\\"\"\n");
        log += &line("GET /old", 200, "9").replace("10.0.0.1", "www.example.org:80 10.0.0.1");
        log += "\r\n\n";
        log += &line("GET /x%20y HTTP/1.1", 200, "0").replace('\n', "\r\n");
        log += &line("GET /caf\\xc3\\xa9\\\"\\\\ HTTP/1.1", 200, "1");
        let (site, seen) = read_text(&log).unwrap();
        assert_eq!(
            files(&site),
            [
                ("/a.html", 700, 3),
                ("/caf%C3%A9%22%5C", 1, 1),
                ("/index.html", 5, 1),
                ("/old", 9, 1),
                ("/x%20y", 0, 1),
            ]
        );
        assert_eq!((seen.lines, seen.used), (7, 7));
    }

    #[test]
    fn each_skipped_line_is_counted_once() {
        let mut log = line("GET /good HTTP/1.1", 200, "10");
        log += &line("POST /good HTTP/1.1", 200, "10");
        log += &line("GET /bad HTTP/1.1", 404, "10");
        log += &line("GET /part HTTP/1.1", 206, "10");
        log += &line("GET /../../etc/passwd HTTP/1.1", 200, "10");
        log += &line("GET /.env HTTP/1.1", 200, "10");
        log += &line(&format!("GET /{} HTTP/1.1", "x".repeat(300)), 200, "10");
        log += &line("GET /cached HTTP/1.1", 304, "-");
        log += &line("GET /negative HTTP/1.1", 200, "-5");
        log += &line("GET /absurd HTTP/1.1", 200, "9223372036854775807");
        log += &line("\\x16\\x03\\x01", 400, "0");
        log += "{\"json\": true}\n";
        log += &"y".repeat(200_000);
        let (site, seen) = read_text(&log).unwrap();
        assert_eq!(files(&site), [("/good", 10, 1)]);
        let expected = Seen {
            lines: 13,
            used: 1,
            other_methods: 1,
            other_statuses: 2,
            hostile: 1,
            hidden: 1,
            long: 1,
            unknown_size: 1,
            not_understood: 5,
            ..Seen::default()
        };
        assert_eq!(seen, expected);
    }

    #[test]
    fn log_error_has_advice_when_it_is_compressed_or_empty() {
        let text = |log: &[u8]| read_text(log).unwrap_err().to_string();
        assert!(text(b"\x1f\x8b\x08rest").contains("zcat"));
        assert!(text(b"\x28\xb5\x2f\xfd").contains("zstdcat"));
        assert!(text(b"").contains("none of its 0 lines"));
        assert!(text(b"what?\nthis\n").contains("2 are in neither"));
    }

    proptest! {
        #[test]
        fn every_line_is_counted_when_a_log_is_arbitrary_bytes(
            lines in proptest::collection::vec("[ -~]{0,40}(\"(GET|PUT) /[a-z./%\\\\]{0,9} H\" (200|304|404) [0-9-]{1,3})?", 0..20)
        ) {
            let mut log = lines.join("\n");
            log += "\n";
            log += &line("GET /one HTTP/1.1", 200, "1");
            let (_, seen) = read_text(&log).unwrap();
            let sum = seen.used + seen.other_methods + seen.other_statuses + seen.not_understood
                + seen.hostile + seen.hidden + seen.long + seen.unknown_size + seen.conflicting + seen.beyond;
            prop_assert_eq!(sum, seen.lines);
        }
    }
}
