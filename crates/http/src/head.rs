//! Parses a request header into a checked [`Head`], or into the reason to reject it.
//!
//! `httparse` splits the header. Around it stand the rules that keep two parties from reading one
//! byte stream differently (request smuggling): exactly one way to end a line, to frame a body and
//! to name a host. A header that breaks one is rejected and the connection must close, since it is
//! no longer certain where the next request starts.
//!
//! The result depends only on the bytes, not on how they were split: a prefix of a complete header
//! is [`Parsed::Partial`], and a prefix of a rejected one is partial until the offending byte
//! arrives, then rejected with the same status. Bytes after the header are never looked at.
//!
//! Rejected with 400: bare LF, bare CR, NUL and other control bytes, obs-fold, space before the
//! colon, more than one empty line before the request line, a missing (1.1), repeated or invalid
//! Host, Content-Length that is repeated, a list or not a number, Content-Length with
//! Transfer-Encoding, Transfer-Encoding in HTTP/1.0 or not ending in one `chunked`. 414 and 431:
//! too long. 417: an expectation other than 100-continue. 421: a target whose scheme is not that of the connection. 501: unknown
//! method or transfer coding. 505: another major version.
//!
//! Sources: RFC 9112 sections 2.2, 3, 5, 6, 9.3; RFC 9110 sections 2.5, 5, 7.2, 7.4, 10.1.1.

use std::borrow::Cow;
use std::mem::MaybeUninit;

use memchr::{memchr, memchr_iter};

use crate::conditional::Conditions;
use crate::fields::{CONNECTION_OPTIONS_MAX, KnownFields, Singleton};
use crate::status::Status;
use crate::target::{self, Target};

/// The most header fields that a request can have; [`HeadLimits::fields_max`] cannot exceed it.
pub const FIELDS_MAX: usize = 128;

/// Size limits of a request header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// The maximum size of a header in bytes, including the final empty line; beyond it 431.
    pub head_bytes_max: usize,
    /// The maximum size of a request target in bytes; beyond it 414, as soon as that is certain.
    pub target_bytes_max: usize,
    /// The maximum number of header fields, at most [`FIELDS_MAX`]; beyond it 431.
    pub fields_max: usize,
    /// Whether the request has come by TLS, and not in the clear: the scheme of its target must agree.
    pub is_secure: bool,
    /// Whether it is a request of HTTP/2, written as a header of HTTP/1.1 with its own version.
    pub is_http2: bool,
}

impl Default for HeadLimits {
    fn default() -> Self {
        HeadLimits {
            head_bytes_max: 16 * 1024,
            target_bytes_max: 8 * 1024,
            fields_max: 100,
            is_secure: false,
            is_http2: false,
        }
    }
}

/// The result of parsing the bytes received so far.
#[derive(Debug)]
// A head is made once per request and moved at most twice; boxing it would cost an allocation.
#[allow(clippy::large_enum_variant)]
pub enum Parsed<'b> {
    /// The start of a header; more bytes are needed.
    Partial,
    /// A valid header.
    Complete(Head<'b>),
    /// A header that must be answered with an error.
    Reject(Reject),
}

/// A request that is answered with an error before any file is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// The status to answer with.
    pub status: Status,
    /// The reason in a few words, for the log. Not for the client.
    pub reason: &'static str,
    /// The part of the request which is wrong, for counters.
    pub kind: RejectKind,
    /// Whether the connection must be closed after the answer.
    pub close: bool,
}

/// What is wrong with a rejected request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectKind {
    /// Request line, header names or values, line ends.
    Syntax,
    /// The form of the target, or its authority.
    Target,
    /// Host is absent, repeated or invalid.
    Host,
    /// Content-Length or Transfer-Encoding.
    Framing,
    /// The header, its target or a number in it exceeds a limit.
    TooLarge,
    /// Valid, but not implemented here: version, method, transfer coding, expectation, https.
    Unsupported,
}

impl Reject {
    pub(crate) fn bad(reason: &'static str) -> Reject {
        Reject::closing(Status::BAD_REQUEST, reason)
    }

    pub(crate) fn closing(status: Status, reason: &'static str) -> Reject {
        let kind = match status {
            Status::BAD_REQUEST => RejectKind::Syntax,
            Status::URI_TOO_LONG | Status::REQUEST_HEADER_FIELDS_TOO_LARGE => RejectKind::TooLarge,
            _ => RejectKind::Unsupported,
        };
        Reject {
            status,
            reason,
            kind,
            close: true,
        }
    }

    /// The same; what is malformed about it is of this kind.
    fn about(self, kind: RejectKind) -> Reject {
        match self.kind {
            RejectKind::Syntax => Reject { kind, ..self },
            _ => self,
        }
    }
}

/// The request method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET
    Get,
    /// HEAD
    Head,
    /// OPTIONS
    Options,
    /// A known method that a file server does not allow, to be answered with 405 and Allow: POST,
    /// PUT, DELETE, PATCH, TRACE or CONNECT. Unknown methods are rejected with 501.
    Other(&'static str),
}

impl Method {
    /// The method as written in the request line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Options => "OPTIONS",
            Method::Other(name) => name,
        }
    }

    fn from_token(token: &str) -> Option<Method> {
        Some(match token {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "OPTIONS" => Method::Options,
            "POST" => Method::Other("POST"),
            "PUT" => Method::Other("PUT"),
            "DELETE" => Method::Other("DELETE"),
            "PATCH" => Method::Other("PATCH"),
            "TRACE" => Method::Other("TRACE"),
            "CONNECT" => Method::Other("CONNECT"),
            _ => return None,
        })
    }
}

/// The protocol version of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    Http11,
    /// HTTP/2, whose requests come here as headers of HTTP/1.1.
    Http2,
}

impl Version {
    /// The version as written on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2.0",
        }
    }
}

/// How the end of the request body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is no body; also `Content-Length: 0`.
    None,
    /// A body of this many bytes, at least one. For [`crate::chunked::LengthDrain`].
    Length(u64),
    /// A chunked body. For [`crate::chunked::ChunkedDrain`].
    Chunked,
}

/// A valid request header, borrowed from the bytes it was read from.
#[derive(Debug)]
pub struct Head<'b> {
    /// The length of the header in bytes, including an empty line before it; the body or the next
    /// header follows.
    pub length: usize,
    /// The request line as received, without its line end; for the log.
    pub request_line: &'b [u8],
    /// The method.
    pub method: Method,
    /// The request target.
    pub target: Target<'b>,
    /// The protocol version.
    pub version: Version,
    /// `host[:port]`: from an absolute-form target, else from the Host field (RFC 9112 section
    /// 3.2.2). `None` if HTTP/1.0 sent none or the field is empty. Valid by
    /// [`target::is_authority`].
    pub host: Option<&'b [u8]>,
    /// Whether the client wants to keep the connection open (RFC 9112 section 9.3).
    pub keep_alive: bool,
    /// Whether the client waits for `100 Continue` before it sends the body; false without a body.
    pub expect_continue: bool,
    /// How the end of the body is found.
    pub framing: Framing,
    /// The preconditions, for [`crate::conditional::evaluate`].
    pub conditions: Conditions<'b>,
    /// Range; `None` if it or If-Range was repeated (ignoring Range is always allowed).
    pub range: Option<&'b [u8]>,
    /// The If-Range field.
    pub if_range: Option<&'b [u8]>,
    /// Accept-Encoding, with repeated fields joined. An empty value differs from `None`.
    pub accept_encoding: Option<Cow<'b, [u8]>>,
    /// Referer; for the log.
    pub referer: Option<&'b [u8]>,
    /// User-Agent; for the log.
    pub user_agent: Option<&'b [u8]>,
}

/// Reads a request header from the start of `bytes`.
///
/// The function keeps no state: after [`Parsed::Partial`], call it again with more bytes, when
/// [`may_be_decided`] says that it can have another result.
///
/// ```
/// use headway_http::{HeadLimits, Method, Parsed, Target, parse};
/// let bytes = b"GET /a.html HTTP/1.1\r\nHost: x\r\n\r\n";
/// let Parsed::Complete(head) = parse(bytes, &HeadLimits::default()) else { panic!() };
/// assert_eq!(head.method, Method::Get);
/// assert_eq!(head.target, Target::Path(b"/a.html"));
/// assert_eq!(head.length, bytes.len());
/// ```
pub fn parse<'b>(bytes: &'b [u8], limits: &HeadLimits) -> Parsed<'b> {
    match read(bytes, limits) {
        Ok(Some(head)) => Parsed::Complete(head),
        Ok(None) => Parsed::Partial,
        Err(reject) => Parsed::Reject(reject),
    }
}

/// Whether [`parse`] may have another result for `bytes` than [`Parsed::Partial`], which it had for
/// the first `parsed` of them.
///
/// A client may send single bytes. Parsing all of them each time would take work that grows with the
/// square of the header's size; so only the end of a line, a limit, or twice the size is worth it. An
/// invalid byte is found no later than then.
///
/// ```
/// use headway_http::{HeadLimits, may_be_decided};
/// let limits = HeadLimits::default();
/// assert!(!may_be_decided(b"GET / HTT", 8, &limits));
/// assert!(may_be_decided(b"GET / HTTP/1.0\r\n\r\n", 17, &limits));
/// ```
pub fn may_be_decided(bytes: &[u8], parsed: usize, limits: &HeadLimits) -> bool {
    let (before, new) = bytes.split_at(parsed.min(bytes.len()));
    // A target becomes too long within a few bytes of its limit: those of an empty line and a method.
    let target_may_end = limits.target_bytes_max..=limits.target_bytes_max.saturating_add(16);
    let crosses_target_limit = bytes.len() >= *target_may_end.start()
        && parsed <= *target_may_end.end()
        && before.iter().skip(2).all(|byte| *byte != b'\n');
    new.contains(&b'\n')
        || bytes.len() >= parsed.saturating_mul(2)
        || bytes.len() >= limits.head_bytes_max
        || crosses_target_limit
}

fn read<'b>(bytes: &'b [u8], limits: &HeadLimits) -> Result<Option<Head<'b>>, Reject> {
    let skip = empty_line(bytes)?;
    // Bytes beyond the limit are not looked at, so that the result does not depend on how much of
    // an oversized header has arrived.
    let visible = &bytes[skip..bytes.len().min(limits.head_bytes_max).max(skip)];
    if is_target_too_long(visible, limits.target_bytes_max) {
        return Err(Reject::closing(Status::URI_TOO_LONG, "target too long"));
    }
    let extent = HeadExtent::of(visible);
    // Only the bytes up to the first bare LF are parsed: an earlier error is found first, however
    // the bytes are split.
    if let Some(head) = read_parsable(extent.parsable(visible), limits, skip)? {
        return Ok(Some(head));
    }
    match extent {
        HeadExtent::BareLf(_) => Err(Reject::bad("bare LF")),
        _ if bytes.len() < limits.head_bytes_max => Ok(None),
        // All of it is a method, which is longer than any (RFC 9112 section 3).
        _ if memchr(b' ', visible).is_none() => Err(unknown_method()),
        _ => Err(too_large("head too long")),
    }
}

/// Reads a header without a bare LF. `skipped`: the bytes before it.
fn read_parsable<'b>(
    bytes: &'b [u8],
    limits: &HeadLimits,
    skipped: usize,
) -> Result<Option<Head<'b>>, Reject> {
    let mut slots = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let slots = &mut slots[..limits.fields_max.min(FIELDS_MAX)];
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(bytes, slots) {
        Ok(httparse::Status::Complete(length)) => {
            let head = SplitHead {
                method: request.method.unwrap_or_default(),
                target: request.path.unwrap_or_default(),
                version: match request.version {
                    Some(0) => Version::Http10,
                    _ => Version::Http11,
                },
                fields: request.headers,
                length,
                is_secure: limits.is_secure,
            };
            interpret(&head, request_line(bytes), skipped).map(Some)
        }
        Ok(httparse::Status::Partial) => Ok(None),
        Err(httparse::Error::Version) => match other_version(bytes)? {
            None => Ok(None),
            Some(b'1') => read_other(Version::Http11, &request, bytes, limits, skipped),
            Some(b'2') if limits.is_http2 => {
                read_other(Version::Http2, &request, bytes, limits, skipped)
            }
            Some(_) => Err(Reject::closing(
                Status::HTTP_VERSION_NOT_SUPPORTED,
                "version not supported",
            )),
        },
        Err(error) => Err(syntax(error)),
    }
}

/// Reads a header whose version httparse has rejected, after method and target, as one of this version: a later
/// minor version adds only what a recipient may ignore (RFC 9110 section 2.5).
fn read_other<'b>(
    version: Version,
    request: &httparse::Request<'_, 'b>,
    bytes: &'b [u8],
    limits: &HeadLimits,
    skipped: usize,
) -> Result<Option<Head<'b>>, Reject> {
    let line = request_line(bytes);
    let fields = match &bytes[line.len()..] {
        [b'\r', b'\n', fields @ ..] => fields,
        [b'\r'] => return Ok(None),
        _ => return Err(syntax(httparse::Error::NewLine)),
    };
    let mut slots = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let slots = &mut slots[..limits.fields_max.min(FIELDS_MAX)];
    match httparse::parse_headers(fields, slots).map_err(syntax)? {
        httparse::Status::Complete((length, fields)) => {
            let head = SplitHead {
                method: request.method.unwrap_or_default(),
                target: request.path.unwrap_or_default(),
                version,
                fields,
                length: line.len() + 2 + length,
                is_secure: limits.is_secure,
            };
            interpret(&head, line, skipped).map(Some)
        }
        httparse::Status::Partial => Ok(None),
    }
}

fn request_line(bytes: &[u8]) -> &[u8] {
    &bytes[..memchr(b'\r', bytes).unwrap_or(0)]
}

/// A header in its parts, as httparse finds them.
struct SplitHead<'h, 'b> {
    method: &'b str,
    target: &'b str,
    version: Version,
    fields: &'h [httparse::Header<'b>],
    length: usize,
    is_secure: bool,
}

fn unknown_method() -> Reject {
    Reject::closing(Status::NOT_IMPLEMENTED, "unknown method")
}

fn too_large(reason: &'static str) -> Reject {
    Reject::closing(Status::REQUEST_HEADER_FIELDS_TOO_LARGE, reason)
}

fn syntax(error: httparse::Error) -> Reject {
    Reject::bad(match error {
        httparse::Error::TooManyHeaders => return too_large("too many fields"),
        httparse::Error::HeaderName => "invalid field name or folded line",
        httparse::Error::HeaderValue => "invalid byte in a field value",
        httparse::Error::NewLine => "invalid line end",
        httparse::Error::Token => "invalid byte in the request line",
        _ => "malformed request line",
    })
}

/// The length of one tolerated empty line at the start (RFC 9112 section 2.2: some old clients send
/// one after a body). A second one is rejected; otherwise a client could send empty lines forever.
fn empty_line(bytes: &[u8]) -> Result<usize, Reject> {
    match bytes {
        [b'\n', ..] => Err(Reject::bad("bare LF")),
        [b'\r', b'\n', b'\r' | b'\n', ..] => {
            Err(Reject::bad("more than one empty line before the request"))
        }
        [b'\r', b'\n', ..] => Ok(2),
        [b'\r', _, ..] => Err(Reject::bad("bare CR")),
        // A lone CR: httparse waits for its LF.
        _ => Ok(0),
    }
}

/// Where the header ends, judged by line ends only.
enum HeadExtent {
    /// The header ends with an empty line at this length.
    Complete(usize),
    /// The header is invalid: there is a bare LF at this offset.
    BareLf(usize),
    /// The end of the header has not arrived yet.
    Open,
}

impl HeadExtent {
    /// Finds the end of the header. httparse accepts a bare LF as a line end, as RFC 9112 section
    /// 2.2 allows. This server does not: a proxy that does not either would see other fields than
    /// the server.
    fn of(bytes: &[u8]) -> HeadExtent {
        let mut line_start = 0;
        for lf in memchr_iter(b'\n', bytes) {
            if lf == line_start || bytes[lf - 1] != b'\r' {
                return HeadExtent::BareLf(lf);
            }
            if lf == line_start + 1 {
                return HeadExtent::Complete(lf + 1);
            }
            line_start = lf + 1;
        }
        HeadExtent::Open
    }

    fn parsable<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        match *self {
            HeadExtent::Complete(end) | HeadExtent::BareLf(end) => &bytes[..end],
            HeadExtent::Open => bytes,
        }
    }
}

/// Whether the target is certainly too long, even if its end has not arrived.
fn is_target_too_long(bytes: &[u8], target_bytes_max: usize) -> bool {
    // Nearly every call ends here, because the header is shorter than the limit.
    if bytes.len() <= target_bytes_max {
        return false;
    }
    let is_token = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    let method_bytes = bytes.iter().take_while(|b| is_token(b)).count();
    if method_bytes == 0 || bytes.get(method_bytes) != Some(&b' ') {
        return false;
    }
    let target = &bytes[method_bytes + 1..];
    target
        .iter()
        .take_while(|b| matches!(b, b'!'..=b'~' | 0x80..))
        .take(target_bytes_max + 1)
        .count()
        > target_bytes_max
}

/// The major version of a well-formed request line whose version httparse rejected. `None`: not
/// complete enough to say. An error: malformed (400).
///
/// An HTTP/2 client with prior knowledge sends `PRI * HTTP/2.0`, and gets a meaningful answer.
fn other_version(bytes: &[u8]) -> Result<Option<u8>, Reject> {
    let malformed = Reject::bad("malformed version");
    let mut parts = bytes.splitn(3, |byte| *byte == b' ');
    let version = parts.nth(2).ok_or(malformed)?;
    let matches = |(byte, shape): (&u8, &u8)| match shape {
        b'0' => byte.is_ascii_digit(),
        _ => byte == shape,
    };
    let shape = b"HTTP/0.0\r";
    match version.iter().zip(shape).all(matches) {
        true if version.len() < shape.len() => Ok(None),
        true => Ok(Some(version[5])),
        false => Err(malformed),
    }
}

/// Checks a well-formed header and builds its [`Head`].
///
/// `skipped`: the bytes before the request line.
fn interpret<'b>(
    head: &SplitHead<'_, 'b>,
    request_line: &'b [u8],
    skipped: usize,
) -> Result<Head<'b>, Reject> {
    let method = Method::from_token(head.method).ok_or_else(unknown_method)?;
    let version = head.version;
    let (target, authority) = target::classify(method, head.target.as_bytes(), head.is_secure)
        .map_err(|reject| reject.about(RejectKind::Target))?;
    let mut fields = KnownFields::default();
    for field in head.fields {
        fields.add(field.name.as_bytes(), field.value);
    }
    if fields.connection_options > CONNECTION_OPTIONS_MAX {
        return Err(too_large("too many connection options"));
    }
    let framing = framing(&fields, version).map_err(|reject| reject.about(RejectKind::Framing))?;
    let host = host(&fields, version).map_err(|reject| reject.about(RejectKind::Host))?;
    if fields.expect_unknown && version >= Version::Http11 {
        return Err(Reject::closing(
            Status::EXPECTATION_FAILED,
            "unknown expectation",
        ));
    }
    let range_is_certain = !fields.if_range.is_repeated();
    Ok(Head {
        length: skipped + head.length,
        request_line,
        method,
        target,
        version,
        host: authority.or(host),
        keep_alive: !fields.close && (version >= Version::Http11 || fields.keep_alive),
        // HTTP/1.0 has no expectations (RFC 9110 section 10.1.1).
        expect_continue: fields.expect_continue
            && version >= Version::Http11
            && framing != Framing::None,
        framing,
        conditions: Conditions {
            if_match: fields.if_match,
            if_unmodified_since: fields.if_unmodified_since.single(),
            if_none_match: fields.if_none_match,
            if_modified_since: fields.if_modified_since.single(),
        },
        range: fields.range.single().filter(|_| range_is_certain),
        if_range: fields.if_range.single(),
        accept_encoding: fields.accept_encoding,
        referer: fields.referer.single(),
        user_agent: fields.user_agent.single(),
    })
}

/// The framing of the body (RFC 9112 section 6.3); every doubtful case is rejected.
fn framing(fields: &KnownFields<'_>, version: Version) -> Result<Framing, Reject> {
    let length = fields.body_bytes()?;
    if let Some(codings) = &fields.transfer_encoding {
        if length.is_some() {
            return Err(Reject::bad("Content-Length with Transfer-Encoding"));
        }
        if version == Version::Http10 {
            return Err(Reject::bad("Transfer-Encoding in HTTP/1.0"));
        }
        KnownFields::check_chunked(codings)?;
        return Ok(Framing::Chunked);
    }
    Ok(match length {
        None | Some(0) => Framing::None,
        Some(bytes) => Framing::Length(bytes),
    })
}

/// The host: required in HTTP/1.1 even with absolute-form, and never ambiguous (RFC 9112 section
/// 3.2).
fn host<'b>(fields: &KnownFields<'b>, version: Version) -> Result<Option<&'b [u8]>, Reject> {
    match fields.host {
        Singleton::Absent if version >= Version::Http11 => Err(Reject::bad("no Host")),
        Singleton::Absent => Ok(None),
        Singleton::Repeated => Err(Reject::bad("repeated Host")),
        // An empty Host is legal and means the server's default name.
        Singleton::One(b"") => Ok(None),
        Singleton::One(value) if target::is_authority(value) => Ok(Some(value)),
        Singleton::One(_) => Err(Reject::bad("invalid Host")),
    }
}
