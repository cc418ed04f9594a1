//! The request head: from bytes to a checked description, or to the reason why not.
//!
//! The first thing that happens to a client's bytes. `httparse` splits the head; around it stand
//! the rules that keep two parties from reading one byte stream differently (request smuggling):
//! exactly one way to end a line, to frame a body, to name a host. A head that breaks one is
//! refused and its connection closed, since the place where the next request starts is no longer
//! certain.
//!
//! The answer depends on the bytes only, not on how they were cut: a prefix of a complete head is
//! [`Parsed::Partial`], and a prefix of a refused one is partial until the offending byte arrived,
//! then refused with the same status. Bytes after the head are never looked at.
//!
//! Refused with 400: bare LF, bare CR, NUL and other control bytes, obs-fold, space before the
//! colon, more than one empty line before the request line, a missing (1.1), repeated or invalid
//! Host, Content-Length that is repeated, a list or no number, Content-Length with
//! Transfer-Encoding, Transfer-Encoding in HTTP/1.0 or not ending in one `chunked`. 414 and 431:
//! too long. 417: an expectation other than 100-continue. 501: unknown method or transfer coding.
//! 505: other versions.
//!
//! Sources: RFC 9112 sections 2.2, 3, 5, 6, 9.3; RFC 9110 sections 5, 7.2, 10.1.1.

use std::borrow::Cow;
use std::mem::MaybeUninit;

use memchr::{memchr, memchr_iter};

use crate::conditional::Conditions;
use crate::fields::{Fields, Once};
use crate::status::Status;
use crate::target::{self, Target};

/// Most fields a head may ever have; [`HeadLimits::fields_max`] is cut to it.
pub const FIELDS_CEILING: usize = 128;

/// How large a head may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Longest head in bytes, final empty line included; beyond it 431.
    pub head_bytes_max: usize,
    /// Longest request target in bytes; beyond it 414, as soon as it is certain.
    pub target_bytes_max: usize,
    /// Most fields, at most [`FIELDS_CEILING`]; beyond it 431.
    pub fields_max: usize,
}

impl Default for HeadLimits {
    fn default() -> Self {
        HeadLimits {
            head_bytes_max: 16 * 1024,
            target_bytes_max: 8 * 1024,
            fields_max: 100,
        }
    }
}

/// What the bytes so far are.
#[derive(Debug)]
// A head is made once a request and moved at most twice; a box would be an allocation instead.
#[allow(clippy::large_enum_variant)]
pub enum Parsed<'b> {
    /// The start of a head; more bytes are needed.
    Partial,
    /// A sound head.
    Complete(Head<'b>),
    /// Not a head we answer normally.
    Reject(Reject),
}

/// A request that is answered with an error before anybody looked for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// What to answer.
    pub status: Status,
    /// Why, in a few words, for the log. Not for the client.
    pub reason: &'static str,
    /// Whether the connection must be closed after the answer.
    pub close: bool,
}

impl Reject {
    pub(crate) const fn bad(reason: &'static str) -> Reject {
        Reject::closing(Status::BAD_REQUEST, reason)
    }

    pub(crate) const fn closing(status: Status, reason: &'static str) -> Reject {
        Reject {
            status,
            reason,
            close: true,
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
    /// A method we know and a file server does not allow, to be answered with 405 and Allow:
    /// POST, PUT, DELETE, PATCH, TRACE or CONNECT. Unknown ones are rejected with 501 already.
    Other(&'static str),
}

impl Method {
    /// The method as it stands in the request line.
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
}

impl Version {
    /// As it stands on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
        }
    }
}

/// How the end of the request body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is no body; also `Content-Length: 0`.
    None,
    /// So many bytes, at least one. For [`crate::chunked::LengthDrain`].
    Length(u64),
    /// Chunks. For [`crate::chunked::ChunkedDrain`].
    Chunked,
}

/// A sound request head, borrowed from the bytes it was read from.
#[derive(Debug)]
pub struct Head<'b> {
    /// Bytes the head takes, including an empty line before it; the body or the next head follows.
    pub length: usize,
    /// The request line as received, without its line end; for the log.
    pub request_line: &'b [u8],
    /// The method.
    pub method: Method,
    /// What the request is about.
    pub target: Target<'b>,
    /// The protocol version.
    pub version: Version,
    /// `host[:port]`, from an absolute-form target before the Host field (RFC 9112 section 3.2.2);
    /// none when HTTP/1.0 sent none or the field is empty. Valid by [`target::is_authority`].
    pub host: Option<&'b [u8]>,
    /// Whether the client wants the connection kept (RFC 9112 section 9.3).
    pub keep_alive: bool,
    /// Whether the client waits for `100 Continue` before it sends the body; false without a body.
    pub expect_continue: bool,
    /// How the end of the body is found.
    pub framing: Framing,
    /// The preconditions, for [`crate::conditional::evaluate`].
    pub conditions: Conditions<'b>,
    /// Range; none when it was repeated, or If-Range was (ignoring it is always allowed).
    pub range: Option<&'b [u8]>,
    /// If-Range.
    pub if_range: Option<&'b [u8]>,
    /// Accept-Encoding, all of them joined. An empty one differs from none.
    pub accept_encoding: Option<Cow<'b, [u8]>>,
    /// Referer; for the log.
    pub referer: Option<&'b [u8]>,
    /// User-Agent; for the log.
    pub user_agent: Option<&'b [u8]>,
}

/// Reads a request head from the start of `bytes`.
///
/// Call it again with more bytes after [`Parsed::Partial`]; it keeps no state. A client that sends
/// single bytes makes it look at a growing prefix each time, which `head_bytes_max` bounds.
///
/// ```
/// use headway_http::{HeadLimits, Method, Parsed, Target, parse};
///
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

fn read<'b>(bytes: &'b [u8], limits: &HeadLimits) -> Result<Option<Head<'b>>, Reject> {
    let skip = empty_line(bytes)?;
    // Nothing beyond the limit is looked at, so that the answer cannot depend on how much of a
    // head that is too long has arrived.
    let visible = &bytes[skip..bytes.len().min(limits.head_bytes_max).max(skip)];
    if is_target_too_long(visible, limits.target_bytes_max) {
        return Err(Reject::closing(Status::URI_TOO_LONG, "target too long"));
    }
    let extent = Extent::of(visible);
    let mut slots = [const { MaybeUninit::uninit() }; FIELDS_CEILING];
    let slots = &mut slots[..limits.fields_max.min(FIELDS_CEILING)];
    let mut request = httparse::Request::new(&mut []);
    // Only the bytes up to the first bare LF are parsed: an error before it is found first, in
    // whatever pieces the bytes arrive.
    match request.parse_with_uninit_headers(extent.parsable(visible), slots) {
        Ok(httparse::Status::Complete(length)) => {
            let request_line = &visible[..memchr(b'\r', visible).unwrap_or(0)];
            return understand(&request, request_line, skip + length).map(Some);
        }
        Ok(httparse::Status::Partial) => {}
        Err(httparse::Error::Version) if is_other_version(extent.parsable(visible))? => {
            return Err(Reject::closing(
                Status::HTTP_VERSION_NOT_SUPPORTED,
                "version not supported",
            ));
        }
        Err(httparse::Error::Version) => {}
        Err(httparse::Error::TooManyHeaders) => return Err(too_large("too many fields")),
        Err(error) => return Err(Reject::bad(syntax(error))),
    }
    match extent {
        Extent::BareLf(_) => Err(Reject::bad("bare LF")),
        _ if bytes.len() >= limits.head_bytes_max => Err(too_large("head too long")),
        _ => Ok(None),
    }
}

fn too_large(reason: &'static str) -> Reject {
    Reject::closing(Status::REQUEST_HEADER_FIELDS_TOO_LARGE, reason)
}

fn syntax(error: httparse::Error) -> &'static str {
    match error {
        httparse::Error::HeaderName => "invalid field name or folded line",
        httparse::Error::HeaderValue => "invalid byte in a field value",
        httparse::Error::NewLine => "invalid line end",
        httparse::Error::Token => "invalid byte in the request line",
        _ => "malformed request line",
    }
}

/// The length of one tolerated empty line at the start (RFC 9112 section 2.2: some old clients send
/// one after a body). A second one is refused; otherwise a client could feed us empty lines
/// forever.
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

/// Where the head ends, judged by line ends only.
enum Extent {
    /// With an empty line at this length.
    Complete(usize),
    /// It cannot: a bare LF stands here.
    BareLf(usize),
    /// Not yet.
    Open,
}

impl Extent {
    /// httparse takes a bare LF for a line end, as RFC 9112 section 2.2 allows. We do not: a proxy
    /// that does not either would see other fields than we do.
    fn of(bytes: &[u8]) -> Extent {
        let mut line_start = 0;
        for lf in memchr_iter(b'\n', bytes) {
            if lf == line_start || bytes[lf - 1] != b'\r' {
                return Extent::BareLf(lf);
            }
            if lf == line_start + 1 {
                return Extent::Complete(lf + 1);
            }
            line_start = lf + 1;
        }
        Extent::Open
    }

    fn parsable<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        match *self {
            Extent::Complete(end) | Extent::BareLf(end) => &bytes[..end],
            Extent::Open => bytes,
        }
    }
}

/// Whether the target is certainly longer than allowed, even if its end has not been seen.
fn is_target_too_long(bytes: &[u8], target_bytes_max: usize) -> bool {
    // Nearly every call ends here: there are fewer bytes than a target may have.
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

/// After httparse did not like the version: whether the request line is well formed with another
/// version (true, 505), not complete enough to say (false), or malformed (400).
///
/// A client of HTTP/2 that was not told better sends `PRI * HTTP/2.0`; it deserves the right
/// answer.
fn is_other_version(bytes: &[u8]) -> Result<bool, Reject> {
    let malformed = Reject::bad("malformed version");
    let mut parts = bytes.splitn(3, |byte| *byte == b' ');
    let version = parts.nth(2).ok_or(malformed)?;
    let matches = |(byte, shape): (&u8, &u8)| match shape {
        b'0' => byte.is_ascii_digit(),
        _ => byte == shape,
    };
    let shape = b"HTTP/0.0\r";
    match version.iter().zip(shape).all(matches) {
        true => Ok(version.len() >= shape.len()),
        false => Err(malformed),
    }
}

/// From a head that is well formed to one that makes sense.
fn understand<'b>(
    request: &httparse::Request<'_, 'b>,
    request_line: &'b [u8],
    length: usize,
) -> Result<Head<'b>, Reject> {
    let method = Method::from_token(request.method.unwrap_or_default())
        .ok_or(Reject::closing(Status::NOT_IMPLEMENTED, "unknown method"))?;
    let version = match request.version {
        Some(0) => Version::Http10,
        _ => Version::Http11,
    };
    let raw_target = request.path.unwrap_or_default().as_bytes();
    let (target, authority) = target::classify(method, raw_target).map_err(Reject::bad)?;
    let mut fields = Fields::default();
    for field in request.headers.iter() {
        fields.take(field.name.as_bytes(), field.value);
    }
    let framing = framing(&fields, version)?;
    let host = host(&fields, version)?;
    if fields.expect_unknown && version == Version::Http11 {
        return Err(Reject::closing(
            Status::EXPECTATION_FAILED,
            "unknown expectation",
        ));
    }
    let range_is_certain = !fields.if_range.is_repeated();
    Ok(Head {
        length,
        request_line,
        method,
        target,
        version,
        host: authority.or(host),
        keep_alive: !fields.close && (version == Version::Http11 || fields.keep_alive),
        // RFC 9110 10.1.1: to be ignored in HTTP/1.0.
        expect_continue: fields.expect_continue
            && version == Version::Http11
            && framing != Framing::None,
        framing,
        conditions: Conditions {
            if_match: fields.if_match,
            if_unmodified_since: fields.if_unmodified_since.only(),
            if_none_match: fields.if_none_match,
            if_modified_since: fields.if_modified_since.only(),
        },
        range: fields.range.only().filter(|_| range_is_certain),
        if_range: fields.if_range.only(),
        accept_encoding: fields.accept_encoding,
        referer: fields.referer.only(),
        user_agent: fields.user_agent.only(),
    })
}

/// RFC 9112 section 6.3, with every doubtful case refused.
fn framing(fields: &Fields<'_>, version: Version) -> Result<Framing, Reject> {
    let length = fields.body_bytes()?;
    if let Some(codings) = &fields.transfer_encoding {
        if length.is_some() {
            return Err(Reject::bad("Content-Length with Transfer-Encoding"));
        }
        if version == Version::Http10 {
            return Err(Reject::bad("Transfer-Encoding in HTTP/1.0"));
        }
        Fields::check_chunked(codings)?;
        return Ok(Framing::Chunked);
    }
    Ok(match length {
        None | Some(0) => Framing::None,
        Some(bytes) => Framing::Length(bytes),
    })
}

/// RFC 9112 section 3.2: required in HTTP/1.1 even with absolute-form, and never ambiguous.
fn host<'b>(fields: &Fields<'b>, version: Version) -> Result<Option<&'b [u8]>, Reject> {
    match fields.host {
        Once::Absent if version == Version::Http11 => Err(Reject::bad("no Host")),
        Once::Absent => Ok(None),
        Once::Repeated => Err(Reject::bad("repeated Host")),
        // An empty one is legal, and stands for the server's default name.
        Once::One(b"") => Ok(None),
        Once::One(value) if target::is_authority(value) => Ok(Some(value)),
        Once::One(_) => Err(Reject::bad("invalid Host")),
    }
}
