//! The notation of bytes in a case file.
//!
//! A line means its text and CR LF; a line that ends in one backslash means its text alone. `\n`,
//! `\r`, `\t`, `\0`, `\xHH` and `\\` are bytes. Sent texts may contain `{N*TEXT}`, which repeats
//! TEXT N times. Both sides know `{etag:NAME}`, the expected tag of the file with `etag = "inode"`,
//! and `{etag:NAME:CODING}`, that of a precompressed file which is sent as a coding. Received text is
//! written with `{date}` for a date of this minute, `{boundary}` for the announced multipart
//! boundary, `{file:NAME:START-END}` for long parts of a file, the end not included, and
//! `{upstream}` for the address of the case's upstream. Received bytes have exactly one notation, so two conversations are equal when their texts are.

use std::time::{SystemTime, UNIX_EPOCH};

use memchr::memmem;

use super::tree::Tree;

/// The minimum length of a part of a file to be written as such.
const STRETCH_BYTES_MIN: usize = 512;

/// How many seconds a `Date` may differ from now: the machine may be busy, and the date is that of
/// the response's start.
const DATE_SLACK_SECONDS: u64 = 60;

/// The names that a text may refer to.
pub struct Names {
    files: Vec<(String, Vec<u8>, String)>,
    upstream: Option<String>,
}

impl Names {
    pub fn of(tree: &Tree, upstream: Option<String>) -> Names {
        Names {
            files: tree.files().collect(),
            upstream,
        }
    }

    /// Converts the notation to bytes.
    pub fn parse(&self, text: &str) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        for line in text.lines() {
            let backslashes = line.bytes().rev().take_while(|&byte| byte == b'\\').count();
            match line.strip_suffix('\\') {
                Some(line) if backslashes % 2 == 1 => self.parse_line(line, &mut bytes)?,
                _ => {
                    self.parse_line(line, &mut bytes)?;
                    bytes.extend_from_slice(b"\r\n");
                }
            }
        }
        Ok(bytes)
    }

    fn parse_line(&self, line: &str, bytes: &mut Vec<u8>) -> Result<(), String> {
        let mut rest = line;
        while let Some(first) = rest.chars().next() {
            let after = &rest[first.len_utf8()..];
            rest = match first {
                '\\' => parse_escape(after, bytes)?,
                '{' => match after.split_once('}') {
                    Some((name, after)) if self.parse_name(name, bytes)? => after,
                    _ => {
                        bytes.push(b'{');
                        after
                    }
                },
                _ => {
                    bytes.extend_from_slice(&rest.as_bytes()[..first.len_utf8()]);
                    after
                }
            };
        }
        Ok(())
    }

    /// Returns `false` if the brace is an ordinary character.
    fn parse_name(&self, name: &str, bytes: &mut Vec<u8>) -> Result<bool, String> {
        if let Some(file) = name.strip_prefix("etag:") {
            let (file, coding) = file.split_once(':').unwrap_or((file, ""));
            let known = self.files.iter().find(|(name, ..)| name == file);
            let (_, _, tag) = known.ok_or_else(|| format!("the tree has no file {file}"))?;
            bytes.extend_from_slice(coded(tag, coding).as_bytes());
            return Ok(true);
        }
        let Some((count, text)) = name.split_once('*') else {
            return Ok(false);
        };
        let Ok(count) = count.parse() else {
            return Ok(false);
        };
        let mut repeated = Vec::new();
        self.parse_line(text, &mut repeated)?;
        bytes.extend_from_slice(&repeated.repeat(count));
        Ok(true)
    }

    /// Converts bytes to their notation.
    pub fn render(&self, bytes: &[u8]) -> String {
        let boundary = boundary(bytes);
        let mut text = String::new();
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            if rest.starts_with(b"\r\n") {
                text.push('\n');
                at += 2;
            } else if let Some((written, length)) = self.render_name(bytes, at, boundary) {
                text.push_str(&written);
                at += length;
            } else {
                render_byte(rest[0], &mut text);
                at += 1;
            }
        }
        if !text.is_empty() && !text.ends_with('\n') {
            text.push_str("\\\n");
        }
        match &self.upstream {
            Some(address) => text.replace(address, "{upstream}"),
            None => text,
        }
    }

    fn render_name(
        &self,
        bytes: &[u8],
        at: usize,
        boundary: Option<&[u8]>,
    ) -> Option<(String, usize)> {
        let rest = &bytes[at..];
        if rest[0] == b'"' {
            let known = self.files.iter().flat_map(|(name, _, tag)| {
                ["", "br", "zstd", "gzip"].map(|coding| (name, coding, coded(tag, coding)))
            });
            let tagged = known
                .into_iter()
                .find(|(_, _, tag)| rest.starts_with(tag.as_bytes()));
            if let Some((name, coding, tag)) = tagged {
                let colon = if coding.is_empty() { "" } else { ":" };
                return Some((format!("{{etag:{name}{colon}{coding}}}"), tag.len()));
            }
        }
        let is_header = |line: &[u8]| bytes[..at].ends_with(line);
        let is_date = is_header(b"\r\nDate: ") || is_header(b"\r\nLast-Modified: ");
        if is_date && rest.len() >= 29 && is_now(&rest[..29]) {
            return Some(("{date}".into(), 29));
        }
        if let Some(boundary) = boundary.filter(|boundary| rest.starts_with(boundary)) {
            return Some(("{boundary}".into(), boundary.len()));
        }
        self.render_stretch(rest)
    }

    fn render_stretch(&self, rest: &[u8]) -> Option<(String, usize)> {
        let start_of_it = rest.get(..STRETCH_BYTES_MIN)?;
        let stretches = self.files.iter().filter_map(|(name, content, _)| {
            let start = memmem::find(content, start_of_it)?;
            let pairs = rest.iter().zip(&content[start..]);
            let length = pairs.take_while(|(one, other)| one == other).count();
            Some((length, content.len(), name, start))
        });
        // Numbered files begin alike, so choose the one that matches longest.
        let best = stretches.max_by_key(|&(length, size, ..)| (length, std::cmp::Reverse(size)));
        let (length, _, name, start) = best?;
        Some((
            format!("{{file:{name}:{start}-{}}}", start + length),
            length,
        ))
    }
}

/// The tag of a file that is sent as a coding.
fn coded(tag: &str, coding: &str) -> String {
    match coding {
        "" => tag.to_owned(),
        coding => format!("{}-{coding}\"", tag.trim_end_matches('"')),
    }
}

fn parse_escape<'t>(after: &'t str, bytes: &mut Vec<u8>) -> Result<&'t str, String> {
    let wrong = || format!("`\\{after}` begins with no escape");
    let escape = after.bytes().next().ok_or_else(wrong)?;
    let mut length = 1;
    bytes.push(match escape {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'0' => 0,
        b'\\' => b'\\',
        b'x' => {
            length = 3;
            let digits = after.get(1..3).ok_or_else(wrong)?;
            u8::from_str_radix(digits, 16).map_err(|_| wrong())?
        }
        _ => return Err(wrong()),
    });
    Ok(&after[length..])
}

fn render_byte(byte: u8, text: &mut String) {
    match byte {
        // A line break in the notation that is not in the bytes.
        b'\n' => text.push_str("\\n\\\n"),
        b'\r' => text.push_str("\\r"),
        b'\t' => text.push_str("\\t"),
        0 => text.push_str("\\0"),
        b'\\' => text.push_str("\\\\"),
        b' '..=b'~' => text.push(char::from(byte)),
        _ => text.push_str(&format!("\\x{byte:02x}")),
    }
}

fn boundary(bytes: &[u8]) -> Option<&[u8]> {
    let announced = b"multipart/byteranges; boundary=";
    let start = memmem::find(bytes, announced)? + announced.len();
    let length = bytes[start..]
        .iter()
        .take_while(|byte| byte.is_ascii_alphanumeric())
        .count();
    (length > 0).then(|| &bytes[start..start + length])
}

fn is_now(date: &[u8]) -> bool {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    headway_http::date::parse(date).is_some_and(|seconds| {
        let seconds = seconds as u64;
        headway_http::date::format(seconds as i64) == *date
            && seconds.abs_diff(now) <= DATE_SLACK_SECONDS
    })
}
