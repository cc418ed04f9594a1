//! Writes the request head for an upstream.
//!
//! Left out of the client's fields: those about its connection (the fixed ones, and all that
//! `Connection` names), those that this server writes itself, and any that a CGI-style upstream
//! could mistake for one of those (`X_Forwarded_For`). Transfer codings and lengths are never
//! copied but derived from the parsed body.
//!
//! CONNECT and TRACE are rejected: they address proxies, and would show a client fields that were
//! added on the way.

use std::borrow::Cow;

use headway_http::{Framing, Method, Target, Version, elements, path};

use crate::fields::{NamedFields, is_hop_by_hop, is_same_field, write_field};
use crate::proxy::forwarded;
use crate::request::Request;
use crate::tls_client::{self, ClientCertificate};

/// How often `Via` may name this server. Its name is that of other servers of the kind, too, which may
/// stand behind each other.
const PASSES_MAX: usize = 8;

/// What the server knows in addition to the request.
#[derive(Clone, Copy, Debug)]
pub struct Forwarding<'c> {
    /// The address of the sender of the request: the client, or a proxy.
    pub remote: std::net::SocketAddr,
    /// The client that the sender names, if that is a trusted proxy; otherwise none.
    pub client: Option<std::net::IpAddr>,
    /// Whether the client uses TLS.
    pub https: bool,
    /// The client's certificate, if it has shown one to this server.
    pub certificate: Option<ClientCertificate<'c>>,
    /// Whether the request's information about earlier hops is trusted and extended. Otherwise it
    /// is replaced, because any client can send `X-Forwarded-For: 127.0.0.1`.
    pub trusts_client: bool,
    /// The upstream's `host[:port]`.
    pub authority: &'c [u8],
    /// Whether the upstream gets the client's Host (to build links) instead of its own name (to
    /// choose among its virtual hosts).
    pub keeps_host: bool,
    /// The server's name in Via, a token.
    pub via: &'c [u8],
    /// What the path begins with and the upstream does not get, such as `/app`; empty for nothing.
    pub strip: &'c [u8],
    /// Whether the connection should be kept alive.
    pub keep: bool,
    /// Whether a WebSocket may be opened.
    pub upgrades: bool,
}

/// Framing of the request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// The request has no body.
    None,
    /// A body of this many bytes.
    Length(u64),
    /// Chunks, framed again.
    Chunked,
}

impl From<Framing> for Body {
    fn from(framing: Framing) -> Body {
        match framing {
            Framing::None => Body::None,
            Framing::Length(bytes) => Body::Length(bytes),
            Framing::Chunked => Body::Chunked,
        }
    }
}

/// Why a request is not passed on. The server answers it itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unforwardable {
    /// CONNECT or TRACE: 405.
    #[error("this method is not forwarded")]
    Method,
    /// OPTIONS with Max-Forwards 0 (RFC 9110 section 7.6.2): to be answered as the last recipient.
    #[error("Max-Forwards is 0")]
    MaxForwards,
    /// The request has passed this server too often, so it goes in a circle (RFC 9110 section 7.6).
    #[error("the request goes in a circle")]
    Loop,
    /// The path has no normal form, or does not begin with what is to be stripped.
    #[error("the path is not one for the upstream")]
    Target,
}

/// Appends the head of the request for the upstream.
///
/// # Errors
/// Nothing has been written then.
pub fn write_request(
    out: &mut Vec<u8>,
    request: &Request<'_>,
    forwarding: &Forwarding<'_>,
    body: Body,
) -> Result<(), Unforwardable> {
    let head = request.head;
    if matches!(head.method, Method::Other("CONNECT" | "TRACE")) {
        return Err(Unforwardable::Method);
    }
    let forwards_left = max_forwards(request)?;
    if goes_in_a_circle(request, forwarding.via) {
        return Err(Unforwardable::Loop);
    }
    let target = target(request, forwarding)?;
    out.extend_from_slice(head.method.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(&target);
    out.extend_from_slice(b" HTTP/1.1\r\n");
    let host = head.host.filter(|_| forwarding.keeps_host);
    write_field(out, b"Host", host.unwrap_or(forwarding.authority));
    write_passed(out, request, forwarding);
    if let Some(left) = forwards_left {
        write_field(
            out,
            b"Max-Forwards",
            itoa::Buffer::new().format(left).as_bytes(),
        );
    }
    forwarded::write(out, request, forwarding);
    if let Some(certificate) = &forwarding.certificate {
        tls_client::write(out, certificate);
    }
    write_framing(out, head.method, body);
    if wants_trailers(request) {
        write_field(out, b"TE", b"trailers");
    }
    write_connection(out, request, forwarding, body);
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// The request target, in origin-form except for `*`. The path is in its normal form, because the
/// server has chosen this upstream by that.
fn target<'t>(
    request: &Request<'t>,
    forwarding: &Forwarding<'t>,
) -> Result<Cow<'t, [u8]>, Unforwardable> {
    match request.head.target {
        Target::Path(received) => {
            let target = path::escaped(received).map_err(|_| Unforwardable::Target)?;
            match forwarding.strip {
                b"" => Ok(target),
                prefix => stripped(&target, prefix).ok_or(Unforwardable::Target),
            }
        }
        Target::Asterisk => Ok(b"*"[..].into()),
        Target::Authority(_) => Err(Unforwardable::Method),
    }
}

/// The target without a prefix of its path.
fn stripped(target: &[u8], prefix: &[u8]) -> Option<Cow<'static, [u8]>> {
    let rest = target.strip_prefix(prefix)?;
    match rest.first() {
        Some(b'/') => Some(rest.to_vec().into()),
        None | Some(b'?') => Some([b"/", rest].concat().into()),
        Some(_) => None,
    }
}

/// The decremented Max-Forwards of an OPTIONS request; `None` if it is missing or invalid.
fn max_forwards(request: &Request<'_>) -> Result<Option<u64>, Unforwardable> {
    if request.head.method != Method::Options {
        return Ok(None);
    }
    match request
        .values(b"max-forwards")
        .next()
        .and_then(headway_http::decimal)
    {
        Some(0) => Err(Unforwardable::MaxForwards),
        forwards => Ok(forwards.map(|number| number - 1)),
    }
}

/// Whether `Via` names this server more often than a chain of servers with one name explains.
fn goes_in_a_circle(request: &Request<'_>, via: &[u8]) -> bool {
    let passes = request.values(b"via").flat_map(elements).filter(|element| {
        let mut words = element.split(|byte| matches!(byte, b' ' | b'\t'));
        words
            .nth(1)
            .is_some_and(|name| name.eq_ignore_ascii_case(via))
    });
    passes.count() >= PASSES_MAX
}

/// Writes the client's fields that are passed on, in the order received.
fn write_passed(out: &mut Vec<u8>, request: &Request<'_>, forwarding: &Forwarding<'_>) {
    // Otherwise it may tell of a proxy in front.
    let strips = !forwarding.strip.is_empty();
    // What a trusted proxy in front says of the client's certificate is kept, unless there is another one.
    let is_believed = forwarding.trusts_client || forwarding.client.is_some();
    let is_forged = !is_believed || forwarding.certificate.is_some();
    let is_replaced = |name: &[u8]| {
        strips && is_same_field(b"x-forwarded-prefix", name)
            || is_forged && tls_client::is_about_certificate(name)
    };
    let mut named = NamedFields::default();
    request
        .values(b"connection")
        .for_each(|value| named.add(value));
    for (name, value) in request.fields() {
        let is_left_out = is_hop_by_hop(name) || is_ours(request, name) || is_replaced(name);
        if !is_left_out && !named.contains(name) {
            write_field(out, name, value);
        }
    }
}

/// Whether this server writes the field itself, or it must not be passed on. `Expect` has been
/// answered by the time the body comes; `Proxy` would become a program's proxy setting ("httpoxy").
fn is_ours(request: &Request<'_>, name: &[u8]) -> bool {
    const NAMES: &[&[u8]] = &[
        b"host",
        b"content-length",
        b"expect",
        b"proxy",
        b"via",
        b"forwarded",
        b"x-forwarded-for",
        b"x-forwarded-proto",
        b"x-forwarded-host",
    ];
    let same = |known: &[u8]| is_same_field(known, name);
    let is_disguised = name.contains(&b'_')
        && [&b"transfer-encoding"[..], b"proxy-authorization"]
            .into_iter()
            .any(same);
    let is_counted = request.head.method == Method::Options && same(b"max-forwards");
    is_disguised || is_counted || NAMES.iter().copied().any(same)
}

/// Exactly one of the two fields, or none; a request without either has no body (RFC 9112 section
/// 6.3).
fn write_framing(out: &mut Vec<u8>, method: Method, body: Body) {
    let mut write_length = |bytes: u64| {
        write_field(
            out,
            b"Content-Length",
            itoa::Buffer::new().format(bytes).as_bytes(),
        );
    };
    match body {
        Body::Length(bytes) => write_length(bytes),
        // RFC 9110 section 8.6: where a body is usual, its absence is stated.
        Body::None if matches!(method, Method::Other("POST" | "PUT" | "PATCH")) => write_length(0),
        Body::None => {}
        Body::Chunked => write_field(out, b"Transfer-Encoding", b"chunked"),
    }
}

fn write_connection(
    out: &mut Vec<u8>,
    request: &Request<'_>,
    forwarding: &Forwarding<'_>,
    body: Body,
) {
    let upgrades = upgrades(request, forwarding, body);
    let options = [
        (wants_trailers(request), "TE"),
        (upgrades, "Upgrade"),
        (!upgrades && !forwarding.keep, "close"),
    ];
    let options: Vec<&str> = options
        .into_iter()
        .filter_map(|(is_set, option)| is_set.then_some(option))
        .collect();
    if !options.is_empty() {
        write_field(out, b"Connection", options.join(", ").as_bytes());
    }
    if upgrades {
        write_field(out, b"Upgrade", b"websocket");
    }
}

/// Whether the client accepts trailer fields (RFC 9110 section 10.1.4).
pub(super) fn wants_trailers(request: &Request<'_>) -> bool {
    request
        .values(b"te")
        .flat_map(elements)
        .any(|coding| coding.eq_ignore_ascii_case(b"trailers"))
}

/// Whether the upstream is asked for an upgrade.
pub(super) fn upgrades(request: &Request<'_>, forwarding: &Forwarding<'_>, body: Body) -> bool {
    forwarding.upgrades && body == Body::None && is_websocket(request)
}

/// Whether the request opens a WebSocket (RFC 6455 section 4.1): HTTP/1.1, GET, no body, `Upgrade`
/// naming exactly that protocol, and `Connection` naming the field. With an expectation the protocol
/// stays, because a 100 would have to come before the 101 (RFC 9110 section 7.8).
pub fn is_websocket(request: &Request<'_>) -> bool {
    let head = request.head;
    let mut protocols = request.values(b"upgrade").flat_map(elements);
    let is_alone = protocols
        .next()
        .is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket"))
        && protocols.next().is_none();
    head.version >= Version::Http11
        && head.method == Method::Get
        && head.framing == Framing::None
        && is_alone
        && request.values(b"expect").next().is_none()
        && request
            .values(b"connection")
            .flat_map(elements)
            .any(|option| option.eq_ignore_ascii_case(b"upgrade"))
}
