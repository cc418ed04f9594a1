//! The fields that tell an upstream about the client and earlier hops.
//!
//! Both forms are written, because some programs read only one: `Forwarded` (RFC 7239) and the
//! three older `X-Forwarded-` fields. What the request already contains is kept only if the client
//! is trusted. Of a trusted proxy the client that it names is kept, and the protocol of that client. `Via` is always kept: it serves to detect loops, and a forged one gains nothing.

use std::net::IpAddr;

use crate::client_address::UNIX_CLIENT;
use crate::fields::write_field;
use crate::proxy::request::Forwarding;
use crate::request::Request;

/// Writes Via, Forwarded and the `X-Forwarded-` fields.
pub(super) fn write(out: &mut Vec<u8>, request: &Request<'_>, forwarding: &Forwarding<'_>) {
    let earlier = |name: &[u8]| joined(request, name);
    let believed = |name: &[u8]| earlier(name).filter(|_| forwarding.trusts_client);
    let address = forwarding.remote.ip().to_canonical();
    let protocol = if forwarding.https { "https" } else { "http" };
    let version = request.head.version.as_str().trim_start_matches("HTTP/");
    let via = [version.as_bytes(), b" ", forwarding.via].concat();
    write_field(out, b"Via", &appended(earlier(b"via"), &via));
    let behind = forwarding.client.filter(|client| *client != address);
    let element = element(address, request.head.host, protocol);
    let named = behind.map(|client| for_parameter(client).into_bytes());
    let hops = appended(believed(b"forwarded").or(named), &element);
    write_field(out, b"Forwarded", &hops);
    let named = behind.map(|client| client.to_string().into_bytes());
    let sender = match address {
        UNIX_CLIENT => "unknown".to_owned(),
        address => address.to_string(),
    };
    let clients = appended(believed(b"x-forwarded-for").or(named), sender.as_bytes());
    write_field(out, b"X-Forwarded-For", &clients);
    // These two describe the first hop, so a trusted earlier value is kept.
    let is_believed = forwarding.trusts_client || forwarding.client.is_some();
    let named = earlier(b"x-forwarded-proto").filter(|_| is_believed);
    let protocol = named.unwrap_or(protocol.into());
    write_field(out, b"X-Forwarded-Proto", &protocol);
    if let Some(host) = believed(b"x-forwarded-host").or(request.head.host.map(Into::into)) {
        write_field(out, b"X-Forwarded-Host", &host);
    }
    if !forwarding.strip.is_empty() {
        write_prefix(out, believed(b"x-forwarded-prefix"), forwarding.strip);
    }
}

/// Where the upstream's root is for the client, so that it can make links: behind the prefix of a
/// proxy in front.
fn write_prefix(out: &mut Vec<u8>, earlier: Option<Vec<u8>>, own: &[u8]) {
    let mut prefix = earlier.unwrap_or_default();
    while prefix.ends_with(b"/") {
        prefix.pop();
    }
    prefix.extend_from_slice(own);
    write_field(out, b"X-Forwarded-Prefix", &prefix);
}

/// All values of a field as one list.
fn joined(request: &Request<'_>, name: &[u8]) -> Option<Vec<u8>> {
    let values: Vec<&[u8]> = request
        .values(name)
        .filter(|value| !value.is_empty())
        .collect();
    (!values.is_empty()).then(|| values.join(&b", "[..]))
}

fn appended(list: Option<Vec<u8>>, element: &[u8]) -> Vec<u8> {
    match list {
        Some(list) => [&list[..], b", ", element].concat(),
        None => element.to_vec(),
    }
}

/// `for=192.0.2.7;host=example.org;proto=http`. A value that is not a token is quoted: an IPv6
/// address in its brackets (RFC 7239 section 6), a host with a port. A valid host contains no quote
/// and no backslash.
fn element(address: IpAddr, host: Option<&[u8]>, protocol: &str) -> Vec<u8> {
    let mut element = for_parameter(address).into_bytes();
    if let Some(host) = host {
        let is_token = headway_http::response::is_field_name(host);
        let quote: &[u8] = if is_token { b"" } else { b"\"" };
        for part in [&b";host="[..], quote, host, quote] {
            element.extend_from_slice(part);
        }
    }
    element.extend_from_slice(b";proto=");
    element.extend_from_slice(protocol.as_bytes());
    element
}

fn for_parameter(address: IpAddr) -> String {
    match address {
        // RFC 7239 section 6.2.
        UNIX_CLIENT => "for=unknown".to_owned(),
        IpAddr::V4(address) => format!("for={address}"),
        IpAddr::V6(address) => format!("for=\"[{address}]\""),
    }
}
