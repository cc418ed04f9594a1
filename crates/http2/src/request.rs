//! Translates an HTTP/2 request to an HTTP/1.1 header (RFC 9113, 8.3.1).
//!
//! The version in the header is HTTP/2.0, for logs and programs. No value can end its line: a request with control
//! characters in names, values or its path is malformed. The headers that frame a message in HTTP/1.1 are never copied
//! from the client. They are written here, and follow from the HTTP/2 frames.

use std::ops::Range;

use crate::hpack::ENTRY_BYTES;
use crate::priority::Priority;
use crate::websocket;

/// A list which is longer than this many times its limit is not decoded to its end.
const REFUSED_TIMES: usize = 4;
/// The most capacity that a buffer keeps for the next list.
const IDLE_BYTES_MAX: usize = 4 << 10;

/// A request as a header of HTTP/1.1.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Translated {
    pub(crate) head: Vec<u8>,
    pub(crate) upload: Upload,
    /// The client's `Content-Length`.
    pub(crate) length: Option<u64>,
    pub(crate) is_head: bool,
    pub(crate) priority: Priority,
    /// If this opens a WebSocket: the `Sec-WebSocket-Accept` that an upstream must answer.
    pub(crate) websocket_answer: Option<String>,
}

/// How the body is framed in HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upload {
    /// There is none.
    None,
    /// By its length.
    Length,
    /// In chunks.
    Chunked,
    /// It is not a body. It becomes a WebSocket if the upstream agrees.
    Raw,
}

/// The decoded headers of a request, or its trailers. The buffers are reused for the next list.
#[derive(Debug, Default)]
pub(crate) struct HeaderList {
    /// The size of the list, as RFC 9113, 6.5.2 counts it.
    bytes: usize,
    bytes_max: usize,
    is_malformed: bool,
    are_trailers: bool,
    /// The list has a header that is not a pseudo-header.
    has_regular: bool,
    /// Pseudo-headers and the host.
    text: Vec<u8>,
    method: Option<Range<usize>>,
    scheme: Option<Range<usize>>,
    authority: Option<Range<usize>>,
    path: Option<Range<usize>>,
    protocol: Option<Range<usize>>,
    host: Option<Range<usize>>,
    /// The other headers, as lines of HTTP/1.1.
    lines: Vec<u8>,
    cookies: Vec<u8>,
    length: Option<u64>,
    takes_trailers: bool,
    priority: Option<Priority>,
}

impl HeaderList {
    /// Begins a list with this limit.
    pub(crate) fn begin(&mut self, bytes_max: u32, are_trailers: bool) {
        let clear = |buffer: &mut Vec<u8>| {
            let mut buffer = std::mem::take(buffer);
            if buffer.capacity() > IDLE_BYTES_MAX {
                buffer = Vec::new();
            }
            buffer.clear();
            buffer
        };
        *self = HeaderList {
            bytes_max: bytes_max as usize,
            are_trailers,
            text: clear(&mut self.text),
            lines: clear(&mut self.lines),
            cookies: clear(&mut self.cookies),
            ..HeaderList::default()
        };
    }

    /// Adds a header. Returns whether to continue: `false` if the list is much too long.
    pub(crate) fn take(&mut self, name: &[u8], value: &[u8]) -> bool {
        self.bytes += name.len() + value.len() + ENTRY_BYTES;
        if !self.is_too_long() && !self.is_malformed {
            self.is_malformed = self.add(name, value).is_none();
        }
        self.bytes <= REFUSED_TIMES * self.bytes_max
    }

    /// Whether the list exceeds its limit.
    pub(crate) fn is_too_long(&self) -> bool {
        self.bytes > self.bytes_max
    }

    /// Whether a header is not allowed in a request, or in trailers.
    pub(crate) fn is_malformed(&self) -> bool {
        self.is_malformed
    }

    /// The lines of trailers.
    pub(crate) fn lines(&self) -> &[u8] {
        &self.lines
    }

    /// Adds a header. `None` if it makes the list malformed.
    fn add(&mut self, name: &[u8], value: &[u8]) -> Option<()> {
        if let [b':', name @ ..] = name {
            return self.add_pseudo(name, value);
        }
        self.has_regular = true;
        if !is_name(name) || !is_value(value) || is_padded(value) {
            return None;
        }
        let is_websocket = self.is_websocket();
        match name {
            // RFC 9113, 8.2.2.
            b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding"
            | b"upgrade" => return None,
            b"te" if value != b"trailers" => return None,
            _ if self.are_trailers => push(&mut self.lines, name, value),
            b"te" => self.takes_trailers = true,
            b"expect" => {}
            // RFC 9113, 8.3.1.
            b"host" if value.is_empty() => return None,
            b"host" => keep(&mut self.text, &mut self.host, value)?,
            b"content-length" => {
                let length = headway_http::decimal(value)?;
                if self.length.replace(length).is_some() {
                    return None;
                }
            }
            // A client may send each part of a cookie as a separate header (RFC 9113, 8.2.3).
            b"cookie" => {
                self.cookies.extend_from_slice(if self.cookies.is_empty() {
                    b"Cookie: "
                } else {
                    b"; "
                });
                self.cookies.extend_from_slice(value);
            }
            b"sec-websocket-key" | b"sec-websocket-accept" if is_websocket => {}
            _ => {
                if name == b"priority" {
                    self.priority.get_or_insert_with(|| Priority::read(value));
                }
                push(&mut self.lines, name, value);
            }
        }
        Some(())
    }

    fn add_pseudo(&mut self, name: &[u8], value: &[u8]) -> Option<()> {
        if self.has_regular || self.are_trailers {
            return None;
        }
        let (kept, is_valid) = match name {
            b"method" => (&mut self.method, is_token(value)),
            b"scheme" => (&mut self.scheme, is_scheme(value)),
            b"authority" => (&mut self.authority, is_authority(value)),
            b"path" => (&mut self.path, is_path(value)),
            b"protocol" => (&mut self.protocol, is_token(value)),
            _ => return None,
        };
        if !is_valid {
            return None;
        }
        keep(&mut self.text, kept, value)
    }

    fn part(&self, part: &Option<Range<usize>>) -> Option<&[u8]> {
        Some(&self.text[part.clone()?])
    }

    fn is_websocket(&self) -> bool {
        self.part(&self.protocol) == Some(b"websocket")
    }

    /// The host, from `:authority` or else from the `Host` header. The outer `None` is an error: the two differ.
    fn host(&self) -> Option<Option<&[u8]>> {
        match (self.part(&self.authority), self.part(&self.host)) {
            (Some(authority), Some(host)) if !authority.eq_ignore_ascii_case(host) => None,
            (Some(authority), _) => Some(Some(authority)),
            (None, host) => Some(host),
        }
    }

    /// Writes the HTTP/1.1 header. `None` if the request contradicts itself. If its scheme is not `scheme`, its target
    /// has the scheme. So it is answered like such a request of HTTP/1.1 (RFC 9110, 7.4).
    pub(crate) fn translate(&self, has_body: bool, scheme: Option<&str>) -> Option<Translated> {
        if self.is_malformed {
            return None;
        }
        let method = self.part(&self.method)?;
        let host = self.host()?;
        let is_websocket = self.is_websocket();
        let upload = match (&self.protocol, self.length, has_body) {
            (Some(_), ..) => Upload::Raw,
            (None, None | Some(0), false) => Upload::None,
            (None, Some(_), false) => return None,
            (None, Some(_), true) => Upload::Length,
            (None, None, true) => Upload::Chunked,
        };
        let mut head =
            Vec::with_capacity(self.text.len() + self.lines.len() + self.cookies.len() + 192);
        head.extend_from_slice(if is_websocket { b"GET" } else { method });
        head.push(b' ');
        self.push_target(&mut head, method == b"CONNECT", scheme)?;
        head.extend_from_slice(b" HTTP/2.0\r\n");
        if let Some(host) = host {
            push(&mut head, b"Host", host);
        }
        head.extend_from_slice(&self.lines);
        if !self.cookies.is_empty() {
            head.extend_from_slice(&self.cookies);
            head.extend_from_slice(b"\r\n");
        }
        if self.takes_trailers {
            push(&mut head, b"TE", b"trailers");
        }
        let key = is_websocket.then(websocket::key);
        if let Some(key) = &key {
            push(&mut head, b"Connection", b"Upgrade");
            push(&mut head, b"Upgrade", b"websocket");
            push(&mut head, b"Sec-WebSocket-Key", key.as_bytes());
        }
        match (upload, self.length) {
            (Upload::Length, Some(length)) => {
                push(&mut head, b"Content-Length", length.to_string().as_bytes());
            }
            (Upload::Chunked, _) => push(&mut head, b"Transfer-Encoding", b"chunked"),
            _ => {}
        }
        head.extend_from_slice(b"\r\n");
        Some(Translated {
            head,
            upload,
            length: self.length.filter(|_| upload == Upload::Length),
            is_head: method == b"HEAD",
            priority: self.priority.unwrap_or_default(),
            websocket_answer: key.map(|key| websocket::answer(&key)),
        })
    }

    /// Writes the target, which has the scheme of the request if this is not `scheme`.
    fn push_target(&self, head: &mut Vec<u8>, connects: bool, scheme: Option<&str>) -> Option<()> {
        let (own, path) = (self.part(&self.scheme), self.part(&self.path));
        match (connects, &self.protocol) {
            // A tunnel (RFC 9113, 8.5).
            (true, None) => {
                let is_one = own.is_none() && path.is_none();
                head.extend_from_slice(self.part(&self.authority).filter(|_| is_one)?);
                return Some(());
            }
            (false, Some(_)) => return None,
            _ => {}
        }
        let (own, path) = (own?, path?);
        if connects && !self.is_websocket() {
            // HTTP/1.1 has no form for the other protocols of an extended CONNECT.
            head.extend_from_slice(self.host()??);
            return Some(());
        }
        let is_other = scheme.is_some_and(|scheme| !own.eq_ignore_ascii_case(scheme.as_bytes()));
        if let (true, Some(authority)) = (is_other, self.part(&self.authority)) {
            head.extend_from_slice(own);
            head.extend_from_slice(b"://");
            head.extend_from_slice(authority);
        }
        // A fragment is not a part of a target.
        match path.split(|byte| *byte == b'#').next() {
            None | Some([]) => head.push(b'/'),
            Some(path @ [b'/', ..]) => head.extend_from_slice(path),
            // For the whole server (RFC 9113, 8.3.1). An absolute target has no path then (RFC 9112, 3.2.4).
            Some(b"*") if self.part(&self.method) == Some(b"OPTIONS") => {
                let is_absolute = is_other && self.authority.is_some();
                head.extend_from_slice(if is_absolute { b"" } else { b"*" });
            }
            // Another form of target, for example an absolute one.
            Some(_) => return None,
        }
        Some(())
    }
}

/// Stores a value. `None` if there is one already.
fn keep(text: &mut Vec<u8>, kept: &mut Option<Range<usize>>, value: &[u8]) -> Option<()> {
    let from = text.len();
    text.extend_from_slice(value);
    match kept.replace(from..text.len()) {
        None => Some(()),
        Some(_) => None,
    }
}

fn push(head: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    head.extend_from_slice(name);
    head.extend_from_slice(b": ");
    head.extend_from_slice(value);
    head.extend_from_slice(b"\r\n");
}

/// For each byte: whether it may be in a token, and in a header name.
const TOKEN: u8 = 1;
const NAME: u8 = 2;
static PARTS: [u8; 256] = parts();

const fn parts() -> [u8; 256] {
    let others = b"!#$%&'*+-.^_`|~";
    let mut parts = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let of = byte as u8;
        let mut is_other = false;
        let mut at = 0;
        while at < others.len() {
            is_other |= others[at] == of;
            at += 1;
        }
        if is_other || of.is_ascii_alphanumeric() {
            parts[byte] |= TOKEN;
            if !of.is_ascii_uppercase() {
                parts[byte] |= NAME;
            }
        }
        byte += 1;
    }
    parts
}

/// Whether all bytes are of this kind. It has no branch per byte, because nearly always all are.
fn all_are(text: &[u8], kind: u8) -> bool {
    let common = text
        .iter()
        .fold(kind, |common, byte| common & PARTS[usize::from(*byte)]);
    common != 0
}

/// RFC 9110, 5.6.2.
pub(crate) fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && all_are(text, TOKEN)
}

/// A token in lower case (RFC 9113, 8.2.1).
fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && all_are(name, NAME)
}

/// Whether a value has no control characters, except tabs (RFC 9110, 5.5).
pub(crate) fn is_value(value: &[u8]) -> bool {
    // Without a table, so that the compiler can compare many bytes at a time.
    let is_wrong = |byte: u8| (byte < b' ' && byte != b'\t') || byte == 0x7f;
    !value.iter().fold(false, |any, byte| any | is_wrong(*byte))
}

/// Whether a value begins or ends with a space or a tab, which HTTP/2 forbids (RFC 9113, 8.2.1).
fn is_padded(value: &[u8]) -> bool {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    is_space(value.first()) || is_space(value.last())
}

/// RFC 3986, 3.1.
fn is_scheme(scheme: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    scheme.first().is_some_and(u8::is_ascii_alphabetic) && scheme.iter().all(is_part)
}

/// Whether it has only characters of a host and a port, so no user. The host must be checked where it is used.
fn is_authority(authority: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:[]%".contains(byte);
    !authority.is_empty() && authority.iter().all(is_part)
}

/// Whether a path has no spaces and no control characters, and is UTF-8.
fn is_path(path: &[u8]) -> bool {
    let is_part = |byte: &u8| *byte > b' ' && *byte != 0x7f;
    !path.is_empty() && path.iter().all(is_part) && std::str::from_utf8(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: [(&str, &str); 4] = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "a.example:81"),
        (":path", "/x?y=1"),
    ];

    fn translated(headers: &[(&str, &str)], has_body: bool) -> Option<Translated> {
        let mut list = HeaderList::default();
        list.begin(16 << 10, false);
        for (name, value) in headers {
            assert!(list.take(name.as_bytes(), value.as_bytes()));
        }
        list.translate(has_body, Some("https"))
    }

    fn head(others: &[(&str, &str)], has_body: bool) -> Option<String> {
        let translated = translated(&[&GET[..], others].concat(), has_body)?;
        Some(String::from_utf8(translated.head).unwrap())
    }

    #[test]
    fn request_is_translated_to_an_equal_http_1_header() {
        let others = [
            ("cookie", "a=1"),
            ("accept", "*/*"),
            ("cookie", "b=2"),
            ("te", "trailers"),
        ];
        assert_eq!(
            head(&others, false).unwrap(),
            "GET /x?y=1 HTTP/2.0\r\nHost: a.example:81\r\naccept: */*\r\nCookie: a=1; b=2\r\n\
             TE: trailers\r\n\r\n"
        );
    }

    #[test]
    fn extended_connect_for_a_websocket_becomes_an_upgrade() {
        let connect = |protocol: &str| {
            let mut headers = [&GET[..], &[(":protocol", protocol)]].concat();
            headers[0].1 = "CONNECT";
            headers.push(("sec-websocket-key", "theirs"));
            headers.push(("sec-websocket-version", "13"));
            let translated = translated(&headers, true).unwrap();
            assert_eq!(translated.upload, Upload::Raw);
            (
                String::from_utf8(translated.head).unwrap(),
                translated.websocket_answer,
            )
        };
        let (head, answer) = connect("websocket");
        let (rest, key) = head.split_once("Sec-WebSocket-Key: ").unwrap();
        assert_eq!(
            rest,
            "GET /x?y=1 HTTP/2.0\r\nHost: a.example:81\r\nsec-websocket-version: 13\r\n\
             Connection: Upgrade\r\nUpgrade: websocket\r\n"
        );
        assert_eq!(answer.unwrap(), websocket::answer(key.trim_ascii_end()));
        let (head, answer) = connect("connect-udp");
        assert!(
            head.starts_with("CONNECT a.example:81 HTTP/2.0\r\n"),
            "{head}"
        );
        assert!(answer.is_none() && !head.contains("Upgrade"));
    }

    #[test]
    fn body_is_framed_by_its_length_or_in_chunks() {
        let sized = head(&[("content-length", "3")], true).unwrap();
        assert!(sized.ends_with("\r\nContent-Length: 3\r\n\r\n"), "{sized}");
        let unsized_ = head(&[], true).unwrap();
        assert!(
            unsized_.ends_with("\r\nTransfer-Encoding: chunked\r\n\r\n"),
            "{unsized_}"
        );
    }

    #[test]
    fn request_that_contradicts_itself_is_none() {
        assert_eq!(head(&[("host", "b.example")], false), None);
        assert_eq!(head(&[("content-length", "3")], false), None);
        assert_eq!(head(&[("content-length", "x")], true), None);
        let twice = [("content-length", "3"), ("content-length", "4")];
        assert_eq!(head(&twice, true), None);
        assert!(head(&[("host", "A.example:81")], false).is_some());
        let mut late = GET.to_vec();
        late.insert(2, ("x", "y"));
        assert!(translated(&late, false).is_none());
    }

    #[test]
    fn list_is_too_long_above_its_limit_and_stops_at_four_times_its_limit() {
        let mut list = HeaderList::default();
        list.begin(100, false);
        assert!(list.take(b"a", &[b'b'; 67]) && !list.is_too_long());
        assert!(list.take(b"a", b"") && list.is_too_long());
        assert!(list.take(b"a", &[b'b'; 234]));
        assert!(!list.take(b"a", b""));
    }
}
