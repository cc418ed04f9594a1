//! A request header that owns its bytes, so that it can be kept while something is awaited.
//!
//! [`Head`] borrows from the input buffer. [`OwnedHead`] copies the bytes of one header and keeps
//! where each part stands in them, so that [`OwnedHead::head`] costs no second parse. The path is
//! brought into its normal form once. The buffer is reused by [`OwnedHead::copy_from`]: a server
//! that recycles these values allocates nothing for an ordinary GET.

use std::borrow::Cow;
use std::ops::Range;

use crate::conditional::Conditions;
use crate::head::{Framing, Head, Method, Version};
use crate::path::{Path, PathError, normalise};
use crate::target::Target;

/// Where a part stands in the bytes of the header.
type Span = Range<u32>;

/// A part that is contained in the bytes of the header, or had to be built.
#[derive(Clone, Debug)]
enum Part {
    Span(Span),
    Built(Box<[u8]>),
}

impl Part {
    #[expect(clippy::ptr_arg, reason = "whether it is borrowed decides")]
    fn new(value: &Cow<'_, [u8]>, received: &[u8]) -> Part {
        match value {
            Cow::Borrowed(value) => Part::Span(span(value, received)),
            Cow::Owned(value) => Part::Built(value.as_slice().into()),
        }
    }
}

/// The form of the target.
#[derive(Clone, Debug)]
enum TargetSpan {
    Path(Span),
    Asterisk,
    Authority(Span),
}

/// The path in its normal form.
#[derive(Clone, Debug)]
struct PathParts {
    bytes: Part,
    hidden: bool,
    query: Option<Span>,
}

/// A valid request header and its bytes.
///
/// ```
/// use headway_http::{HeadLimits, OwnedHead, Parsed, parse};
/// let mut kept = OwnedHead::default();
/// {
///     let received = b"GET /a/../b HTTP/1.1\r\nHost: x\r\n\r\nGET /next".to_vec();
///     let Parsed::Complete(head) = parse(&received, &HeadLimits::default()) else { panic!() };
///     kept.copy_from(&head, &received);
/// }
/// assert_eq!(kept.head().host, Some(&b"x"[..]));
/// assert_eq!(&*kept.path().unwrap().unwrap().bytes, b"b");
/// ```
#[derive(Clone, Debug)]
pub struct OwnedHead {
    bytes: Vec<u8>,
    request_line: Span,
    method: Method,
    target: TargetSpan,
    version: Version,
    host: Option<Span>,
    keep_alive: bool,
    expect_continue: bool,
    framing: Framing,
    if_match: Option<Part>,
    if_unmodified_since: Option<Span>,
    if_none_match: Option<Part>,
    if_modified_since: Option<Span>,
    range: Option<Span>,
    if_range: Option<Span>,
    accept_encoding: Option<Part>,
    referer: Option<Span>,
    user_agent: Option<Span>,
    path: Option<Result<PathParts, PathError>>,
}

impl Default for OwnedHead {
    /// A header without bytes: a `GET` whose target is `*`, to be filled by
    /// [`copy_from`](Self::copy_from).
    fn default() -> OwnedHead {
        OwnedHead {
            bytes: Vec::new(),
            request_line: 0..0,
            method: Method::Get,
            target: TargetSpan::Asterisk,
            version: Version::Http11,
            host: None,
            keep_alive: false,
            expect_continue: false,
            framing: Framing::None,
            if_match: None,
            if_unmodified_since: None,
            if_none_match: None,
            if_modified_since: None,
            range: None,
            if_range: None,
            accept_encoding: None,
            referer: None,
            user_agent: None,
            path: None,
        }
    }
}

impl OwnedHead {
    /// Replaces this header by `head`, which was parsed from the start of `received`.
    pub fn copy_from(&mut self, head: &Head<'_>, received: &[u8]) {
        self.bytes.clear();
        self.bytes.extend_from_slice(&received[..head.length]);
        let span_of = |part: &[u8]| span(part, received);
        let part =
            |value: &Option<Cow<'_, [u8]>>| value.as_ref().map(|value| Part::new(value, received));
        self.target = match head.target {
            Target::Path(path) => TargetSpan::Path(span_of(path)),
            Target::Asterisk => TargetSpan::Asterisk,
            Target::Authority(authority) => TargetSpan::Authority(span_of(authority)),
        };
        self.path = path_of(head, received);
        self.request_line = span_of(head.request_line);
        (self.method, self.version) = (head.method, head.version);
        self.host = head.host.map(span_of);
        (self.keep_alive, self.expect_continue) = (head.keep_alive, head.expect_continue);
        self.framing = head.framing;
        self.if_match = part(&head.conditions.if_match);
        self.if_unmodified_since = head.conditions.if_unmodified_since.map(span_of);
        self.if_none_match = part(&head.conditions.if_none_match);
        self.if_modified_since = head.conditions.if_modified_since.map(span_of);
        (self.range, self.if_range) = (head.range.map(span_of), head.if_range.map(span_of));
        self.accept_encoding = part(&head.accept_encoding);
        (self.referer, self.user_agent) = (head.referer.map(span_of), head.user_agent.map(span_of));
    }

    /// The bytes of the header, including its empty lines.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The request line as received, without its line end.
    pub fn request_line(&self) -> &[u8] {
        self.slice(&self.request_line)
    }

    /// The method.
    pub fn method(&self) -> Method {
        self.method
    }

    /// The protocol version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Accept-Encoding, with repeated fields joined.
    pub fn accept_encoding(&self) -> Option<&[u8]> {
        self.accept_encoding.as_ref().map(|part| self.part(part))
    }

    /// Whether the request is for the whole resource, whatever its version: no precondition, no
    /// range.
    pub fn is_unconditional(&self) -> bool {
        self.if_match.is_none()
            && self.if_unmodified_since.is_none()
            && self.if_none_match.is_none()
            && self.if_modified_since.is_none()
            && self.range.is_none()
    }

    /// How the end of the body is found.
    pub fn framing(&self) -> Framing {
        self.framing
    }

    /// Whether the client wants to keep the connection open.
    pub fn keeps_alive(&self) -> bool {
        self.keep_alive
    }

    /// Whether the client waits for `100 Continue` before it sends the body.
    pub fn expects_continue(&self) -> bool {
        self.expect_continue
    }

    /// The path in its normal form, or why it has none. `None` if the target is not a path.
    pub fn path(&self) -> Option<Result<Path<'_>, PathError>> {
        let found = self.path.as_ref()?;
        Some(match found {
            Ok(path) => Ok(Path {
                bytes: self.cow(&path.bytes),
                hidden: path.hidden,
                query: path.query.as_ref().map(|query| self.slice(query)),
            }),
            Err(error) => Err(*error),
        })
    }

    /// The bytes of the path in its normal form; empty if there is none.
    pub fn path_bytes(&self) -> &[u8] {
        match &self.path {
            Some(Ok(path)) => self.part(&path.bytes),
            _ => &[],
        }
    }

    /// The header.
    pub fn head(&self) -> Head<'_> {
        let slice = |span: &Option<Span>| span.as_ref().map(|span| self.slice(span));
        Head {
            length: self.bytes.len(),
            request_line: self.slice(&self.request_line),
            method: self.method,
            target: match &self.target {
                TargetSpan::Path(path) => Target::Path(self.slice(path)),
                TargetSpan::Asterisk => Target::Asterisk,
                TargetSpan::Authority(authority) => Target::Authority(self.slice(authority)),
            },
            version: self.version,
            host: slice(&self.host),
            keep_alive: self.keep_alive,
            expect_continue: self.expect_continue,
            framing: self.framing,
            conditions: Conditions {
                if_match: self.optional(&self.if_match),
                if_unmodified_since: slice(&self.if_unmodified_since),
                if_none_match: self.optional(&self.if_none_match),
                if_modified_since: slice(&self.if_modified_since),
            },
            range: slice(&self.range),
            if_range: slice(&self.if_range),
            accept_encoding: self.optional(&self.accept_encoding),
            referer: slice(&self.referer),
            user_agent: slice(&self.user_agent),
        }
    }

    fn slice(&self, span: &Span) -> &[u8] {
        &self.bytes[span.start as usize..span.end as usize]
    }

    fn optional<'h>(&'h self, part: &'h Option<Part>) -> Option<Cow<'h, [u8]>> {
        part.as_ref().map(|part| self.cow(part))
    }

    fn cow<'h>(&'h self, part: &'h Part) -> Cow<'h, [u8]> {
        Cow::Borrowed(self.part(part))
    }

    fn part<'h>(&'h self, part: &'h Part) -> &'h [u8] {
        match part {
            Part::Span(span) => self.slice(span),
            Part::Built(bytes) => bytes,
        }
    }
}

/// The normal form of the path, if the target has one.
fn path_of(head: &Head<'_>, received: &[u8]) -> Option<Result<PathParts, PathError>> {
    let Target::Path(target) = head.target else {
        return None;
    };
    Some(normalise(target).map(|path| PathParts {
        bytes: Part::new(&path.bytes, received),
        hidden: path.hidden,
        query: path.query.map(|query| span(query, received)),
    }))
}

/// Where `part` stands in `whole`. An empty part may stand anywhere.
fn span(part: &[u8], whole: &[u8]) -> Span {
    if part.is_empty() {
        return 0..0;
    }
    // Headers are at most some KiB, so both ends fit.
    let start = (part.as_ptr() as usize - whole.as_ptr() as usize) as u32;
    start..start + part.len() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::{HeadLimits, Parsed, parse};

    /// Compares through the debug text: `Head` has no equality.
    fn assert_is_kept(kept: &mut OwnedHead, received: &[u8]) {
        let Parsed::Complete(head) = parse(received, &HeadLimits::default()) else {
            panic!("{}", received.escape_ascii());
        };
        kept.copy_from(&head, received);
        assert_eq!(format!("{:?}", kept.head()), format!("{head:?}"));
        assert_eq!(kept.bytes(), &received[..head.length]);
        match head.target {
            Target::Path(target) => assert_eq!(kept.path(), Some(normalise(target))),
            _ => assert_eq!(kept.path(), None),
        }
    }

    #[test]
    fn every_part_of_a_header_is_kept_when_the_buffer_is_reused() {
        let mut kept = OwnedHead::default();
        for received in [
            "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "\r\nHEAD http://y:80/a%20b/../c/?q=1 HTTP/1.1\r\nHost: x\r\nRange: bytes=0-1\r\nIf-Range: \"a\"\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: x\r\nAccept-Encoding: br\r\nAccept-Encoding: gzip\r\nReferer: r\r\n\
             User-Agent: u\r\nIf-None-Match: \"1\"\r\nIf-None-Match: \"2\"\r\nIf-Match: *\r\n\r\nGET /b",
            "OPTIONS * HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            "POST /x?y HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\
             If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\nIf-Unmodified-Since: a\r\n\r\nabc",
            "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
            "GET /%2e%2e/x HTTP/1.1\r\nHost: x\r\nAccept-Encoding:\r\n\r\n",
            "GET /? HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            assert_is_kept(&mut kept, received.as_bytes());
        }
    }
}
