//! The fields that tell an upstream about the client and earlier hops.
//!
//! Both forms are written, because some programs read only one: `Forwarded` (RFC 7239) and the
//! three older `X-Forwarded-` fields. What the request already contains is kept only if the client
//! is trusted. Of a trusted proxy the client that it names is kept, and the protocol of that client. `Via` is always kept: it serves to detect loops, and a forged one gains nothing.

use std::io::Write;
use std::net::IpAddr;

use crate::client_address::UNIX_CLIENT;
use crate::fields::write_field;
use crate::proxy::request::Forwarding;
use crate::request::Request;

/// Writes Via, Forwarded and the `X-Forwarded-` fields.
pub(super) fn write(out: &mut Vec<u8>, request: &Request<'_>, forwarding: &Forwarding<'_>) {
    let address = forwarding.remote.ip().to_canonical();
    let protocol = if forwarding.https { "https" } else { "http" };
    let behind = forwarding.client.filter(|client| *client != address);
    let host = request.head.host;
    let version = request.head.version.as_str().trim_start_matches("HTTP/");
    write_list(out, "Via", |out| {
        write_earlier(out, request, b"via");
        next_element(out);
        for part in [version.as_bytes(), b" ", forwarding.via] {
            out.extend_from_slice(part);
        }
    });
    // What the sender says of earlier hops, otherwise the client that it names.
    let write_hops = |out: &mut Vec<u8>, name: &[u8], client: fn(&mut Vec<u8>, IpAddr)| {
        let is_believed = forwarding.trusts_client && write_earlier(out, request, name);
        if let Some(behind) = behind.filter(|_| !is_believed) {
            client(out, behind);
        }
        next_element(out);
    };
    write_list(out, "Forwarded", |out| {
        write_hops(out, b"forwarded", write_for);
        write_element(out, address, host, protocol);
    });
    write_list(out, "X-Forwarded-For", |out| {
        write_hops(out, b"x-forwarded-for", write_address);
        write_address(out, address);
    });
    // These two describe the first hop, so a trusted earlier value is kept.
    let is_believed = forwarding.trusts_client || forwarding.client.is_some();
    write_list(out, "X-Forwarded-Proto", |out| {
        if !(is_believed && write_earlier(out, request, b"x-forwarded-proto")) {
            out.extend_from_slice(protocol.as_bytes());
        }
    });
    if forwarding.trusts_client && has(request, b"x-forwarded-host") {
        write_list(out, "X-Forwarded-Host", |out| {
            write_earlier(out, request, b"x-forwarded-host");
        });
    } else if let Some(host) = host {
        write_field(out, b"X-Forwarded-Host", host);
    }
    if !forwarding.strip.is_empty() {
        write_prefix(out, request, forwarding);
    }
}

/// Where the upstream's root is for the client, so that it can make links: behind the prefix of a
/// proxy in front.
fn write_prefix(out: &mut Vec<u8>, request: &Request<'_>, forwarding: &Forwarding<'_>) {
    write_list(out, "X-Forwarded-Prefix", |out| {
        if forwarding.trusts_client && write_earlier(out, request, b"x-forwarded-prefix") {
            while out.ends_with(b"/") {
                out.pop();
            }
        }
        out.extend_from_slice(forwarding.strip);
    });
}

/// Writes a field whose value `write` appends.
fn write_list(out: &mut Vec<u8>, name: &str, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(BEFORE_VALUE);
    write(out);
    out.extend_from_slice(b"\r\n");
}

/// What stands between the name and the value.
const BEFORE_VALUE: &[u8] = b": ";

/// Another element of a list follows, if there is one before.
fn next_element(out: &mut Vec<u8>) {
    if !out.ends_with(BEFORE_VALUE) {
        out.extend_from_slice(b", ");
    }
}

/// The values of a field that the request has.
fn earlier<'r>(request: &Request<'r>, name: &[u8]) -> impl Iterator<Item = &'r [u8]> {
    request.values(name).filter(|value| !value.is_empty())
}

fn has(request: &Request<'_>, name: &[u8]) -> bool {
    earlier(request, name).next().is_some()
}

/// Writes all values of a field as one list, and returns whether there are any.
fn write_earlier(out: &mut Vec<u8>, request: &Request<'_>, name: &[u8]) -> bool {
    let mut has_some = false;
    for value in earlier(request, name) {
        if std::mem::replace(&mut has_some, true) {
            out.extend_from_slice(b", ");
        }
        out.extend_from_slice(value);
    }
    has_some
}

/// `for=192.0.2.7;host=example.org;proto=http`. A value that is not a token is quoted: an IPv6
/// address in its brackets (RFC 7239 section 6), a host with a port. A valid host contains no quote
/// and no backslash.
fn write_element(out: &mut Vec<u8>, address: IpAddr, host: Option<&[u8]>, protocol: &str) {
    write_for(out, address);
    if let Some(host) = host {
        let is_token = headway_http::response::is_field_name(host);
        let quote: &[u8] = if is_token { b"" } else { b"\"" };
        for part in [&b";host="[..], quote, host, quote] {
            out.extend_from_slice(part);
        }
    }
    out.extend_from_slice(b";proto=");
    out.extend_from_slice(protocol.as_bytes());
}

fn write_for(out: &mut Vec<u8>, address: IpAddr) {
    // Writing to a Vec cannot fail.
    let _ = match address {
        // RFC 7239 section 6.2.
        UNIX_CLIENT => write!(out, "for=unknown"),
        IpAddr::V4(address) => write!(out, "for={address}"),
        IpAddr::V6(address) => write!(out, "for=\"[{address}]\""),
    };
}

fn write_address(out: &mut Vec<u8>, address: IpAddr) {
    let _ = match address {
        UNIX_CLIENT => write!(out, "unknown"),
        address => write!(out, "{address}"),
    };
}
