//! Writes a response header into the caller's buffer.
//!
//! A field whose name is not a token or whose value contains CR, LF or NUL is left out. Writing it
//! would allow response splitting: the author of the value could add fields or a whole response.
//! Debug builds also panic, because such a value should be rejected where it comes from. This
//! module does not decide which fields a response needs.
//!
//! Source: RFC 9112 section 4, RFC 9110 section 5.5.

use crate::head::Version;
use crate::range::Range;
use crate::status::Status;

/// The interim response that asks for the body (RFC 9110 section 15.2.1).
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Writes one response head.
///
/// ```
/// use headway_http::{Status, Version, response::HeadWriter};
///
/// let mut out = Vec::new();
/// HeadWriter::new(&mut out, Version::Http11, Status::OK)
///     .field("Content-Type", "text/plain")
///     .field_u64("Content-Length", 5)
///     .end();
/// assert_eq!(out, b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\n");
/// ```
#[must_use = "the head is complete only after end()"]
pub struct HeadWriter<'o> {
    out: &'o mut Vec<u8>,
    /// Where the status line begins.
    start: usize,
}

impl<'o> HeadWriter<'o> {
    /// Starts with the status line, after the current content of `out`.
    ///
    /// RFC 9110 section 2.5 wants HTTP/1.1 also towards a client of HTTP/1.0: the version states
    /// what the sender supports, not what the message uses.
    pub fn new(out: &'o mut Vec<u8>, version: Version, status: Status) -> HeadWriter<'o> {
        let start = out.len();
        out.extend_from_slice(version.as_str().as_bytes());
        out.extend_from_slice(status.line().as_bytes());
        HeadWriter { out, start }
    }

    /// Continues a header whose status line, and perhaps some fields, are in `out` already, and
    /// nothing before them: for statuses that this crate does not define.
    pub fn resume(out: &'o mut Vec<u8>) -> HeadWriter<'o> {
        HeadWriter { out, start: 0 }
    }

    /// The status; 0 if the status line is not one of HTTP/1.
    pub fn status(&self) -> u16 {
        let code = self.out[self.start..].get(9..12).and_then(crate::decimal);
        code.map_or(0, |code| code as u16)
    }

    /// The value of a field that has been written; the first if there are several.
    pub fn value(&self, name: &str) -> Option<&[u8]> {
        let mut lines = &self.out[self.start..];
        while let Some(length) = line_length(lines) {
            let (line, rest) = lines.split_at(length);
            if let Some(value) = value_in(line, name) {
                return Some(value);
            }
            lines = rest;
        }
        None
    }

    /// Removes all lines of a field that have been written.
    pub fn remove(self, name: &str) -> Self {
        let mut at = self.start;
        while let Some(length) = line_length(&self.out[at..]) {
            match value_in(&self.out[at..at + length], name) {
                Some(_) => drop(self.out.drain(at..at + length)),
                None => at += length,
            }
        }
        self
    }

    /// Adds a field, or leaves it out if it cannot be written safely.
    pub fn field(self, name: &str, value: impl AsRef<[u8]>) -> Self {
        let value = value.as_ref();
        let safe = is_field_name(name.as_bytes()) && is_field_value(value);
        debug_assert!(safe, "unsafe response field {name:?}");
        if safe {
            self.out.extend_from_slice(name.as_bytes());
            self.out.extend_from_slice(b": ");
            self.out.extend_from_slice(value);
            self.out.extend_from_slice(b"\r\n");
        }
        self
    }

    /// Adds a field with a number.
    pub fn field_u64(self, name: &str, value: u64) -> Self {
        self.field(name, itoa::Buffer::new().format(value))
    }

    /// Adds the field if there is a value.
    pub fn field_if_some(self, name: &str, value: Option<impl AsRef<[u8]>>) -> Self {
        match value {
            Some(value) => self.field(name, value),
            None => self,
        }
    }

    /// Content-Range of a 206 with one range.
    pub fn content_range(self, range: Range, size_bytes: u64) -> Self {
        self.out.extend_from_slice(b"Content-Range: ");
        write_content_range(self.out, range, size_bytes);
        self.out.extend_from_slice(b"\r\n");
        self
    }

    /// Content-Range of a 416: `bytes */size`.
    pub fn content_range_unsatisfiable(self, size_bytes: u64) -> Self {
        self.out.extend_from_slice(b"Content-Range: bytes */");
        write_u64(self.out, size_bytes);
        self.out.extend_from_slice(b"\r\n");
        self
    }

    /// Adds ready-made field lines from [`field_lines`].
    ///
    /// Use it for fields that stay the same for a second (Date, Server) or for the lifetime of a
    /// file.
    pub fn lines(self, lines: &FieldLines) -> Self {
        self.out.extend_from_slice(&lines.0);
        self
    }

    /// Ends the header with the empty line.
    pub fn end(self) {
        self.out.extend_from_slice(b"\r\n");
    }
}

/// Field lines that are validated once and written often.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldLines(Vec<u8>);

impl FieldLines {
    /// The length of the lines in bytes.
    pub fn length(&self) -> usize {
        self.0.len()
    }
}

/// Validates and joins fields for [`HeadWriter::lines`]; unsafe fields are left out, as `field`
/// does.
///
/// ```
/// use headway_http::response::{HeadWriter, field_lines};
/// use headway_http::{Status, Version};
/// let shared = field_lines([("Server", "Headway")]);
/// let mut out = Vec::new();
/// HeadWriter::new(&mut out, Version::Http11, Status::OK).lines(&shared).end();
/// assert_eq!(out, b"HTTP/1.1 200 OK\r\nServer: Headway\r\n\r\n");
/// ```
pub fn field_lines<N: AsRef<str>, V: AsRef<[u8]>>(
    fields: impl IntoIterator<Item = (N, V)>,
) -> FieldLines {
    let mut out = Vec::new();
    let mut writer = HeadWriter {
        out: &mut out,
        start: 0,
    };
    for (name, value) in fields {
        writer = writer.field(name.as_ref(), value);
    }
    FieldLines(out)
}

/// The length of the first line with its end.
fn line_length(bytes: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, b"\r\n").map(|at| at + 2)
}

/// The value in a line as [`HeadWriter::field`] writes it, if it is of this field.
fn value_in<'l>(line: &'l [u8], name: &str) -> Option<&'l [u8]> {
    let (own, rest) = line.split_at_checked(name.len())?;
    let value = rest.strip_prefix(b": ")?.strip_suffix(b"\r\n")?;
    own.eq_ignore_ascii_case(name.as_bytes()).then_some(value)
}

/// `bytes 0-499/1234`
pub(crate) fn write_content_range(out: &mut Vec<u8>, range: Range, size_bytes: u64) {
    out.extend_from_slice(b"bytes ");
    write_u64(out, range.start);
    out.push(b'-');
    write_u64(out, range.end_exclusive.saturating_sub(1));
    out.push(b'/');
    write_u64(out, size_bytes);
}

pub(crate) fn write_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Whether the bytes can be a field value: no CR, LF or NUL, which some recipients treat as its end
/// (RFC 9110 section 5.5).
///
/// ```
/// use headway_http::response::is_field_value;
///
/// assert!(is_field_value(b"max-age=60") && !is_field_value(b"a\r\nSet-Cookie: b"));
/// ```
pub fn is_field_value(value: &[u8]) -> bool {
    memchr::memchr3(b'\r', b'\n', 0, value).is_none()
}

/// Whether the bytes are a token, which a field name must be (RFC 9110 section 5.6.2).
///
/// ```
/// use headway_http::response::is_field_name;
///
/// assert!(is_field_name(b"X-Id") && !is_field_name(b"X Id") && !is_field_name(b""));
/// ```
pub fn is_field_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|byte| IS_TOKEN[usize::from(*byte)])
}

/// `tchar` of RFC 9110 section 5.6.2.
pub(crate) const IS_TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = matches!(
            byte as u8,
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'!' | b'#' | b'$' | b'%' | b'&' | b'\''
            | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        );
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_header_is_written_as_in_rfc_9112_with_every_kind_of_field() {
        let mut out = b"before".to_vec();
        let shared = field_lines([("Server", "headway"), ("X-A", "b")]);
        HeadWriter::new(&mut out, Version::Http10, Status::PARTIAL_CONTENT)
            .lines(&shared)
            .field_if_some("ETag", None::<&str>)
            .field_if_some("Vary", Some("Accept-Encoding"))
            .content_range(
                Range {
                    start: 5,
                    end_exclusive: 10,
                },
                100,
            )
            .content_range_unsatisfiable(100)
            .field_u64("Content-Length", u64::MAX)
            .end();
        let expected = "beforeHTTP/1.0 206 Partial Content\r\nServer: headway\r\nX-A: b\r\nVary: Accept-Encoding\r\n\
            Content-Range: bytes 5-9/100\r\nContent-Range: bytes */100\r\nContent-Length: 18446744073709551615\r\n\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn field_is_left_out_when_it_would_split_the_response() {
        for (name, value) in [
            ("X", "a\r\nSet-Cookie: b"),
            ("X", "a\nb"),
            ("X", "a\rb"),
            ("X", "a\0b"),
            ("X\r\nY", "a"),
            ("", "a"),
            ("X Y", "a"),
            ("X:", "a"),
        ] {
            let mut out = Vec::new();
            let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                HeadWriter::new(&mut out, Version::Http11, Status::OK)
                    .field(name, value)
                    .end();
            }));
            assert_eq!(
                written.is_err(),
                cfg!(debug_assertions),
                "{name:?}: {value:?}"
            );
            let rest = out.strip_prefix(b"HTTP/1.1 200 OK\r\n").unwrap();
            assert!(
                matches!(rest, b"" | b"\r\n"),
                "{name:?}: {value:?} wrote {rest:?}"
            );
        }
    }

    #[test]
    fn header_writer_continues_when_the_status_line_is_already_written() {
        let mut out = b"HTTP/1.1 299 Fine\r\nA: b\r\n".to_vec();
        HeadWriter::resume(&mut out).field("C", "d").end();
        assert_eq!(out, b"HTTP/1.1 299 Fine\r\nA: b\r\nC: d\r\n\r\n");
    }

    #[test]
    fn written_fields_are_found_and_removed() {
        let mut out = b"Cookie: of an earlier response\r\n".to_vec();
        let writer = HeadWriter::new(&mut out, Version::Http11, Status::NOT_FOUND)
            .field("Cookie", "a")
            .field("Cookies", "b")
            .field("cookie", "c: d");
        assert_eq!(writer.status(), 404);
        assert_eq!(writer.value("COOKIE"), Some(&b"a"[..]));
        assert_eq!(writer.value("HTTP/1.1 404 Not Found"), None);
        let writer = writer.remove("cookie");
        assert_eq!(writer.value("Cookie"), None);
        writer.remove("Cookie").field("X", "y").end();
        let expected = "Cookie: of an earlier response\r\nHTTP/1.1 404 Not Found\r\nCookies: b\r\nX: y\r\n\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn status_of_a_resumed_header_is_that_of_its_line() {
        let mut out = b"HTTP/1.1 299 Fine\r\nA: b\r\n".to_vec();
        assert_eq!(HeadWriter::resume(&mut out).status(), 299);
        assert_eq!(HeadWriter::resume(&mut Vec::new()).status(), 0);
    }

    #[test]
    fn continue_response_has_the_form_of_a_written_header() {
        let mut out = Vec::new();
        HeadWriter::new(&mut out, Version::Http11, Status::CONTINUE).end();
        assert_eq!(out, CONTINUE);
    }
}
