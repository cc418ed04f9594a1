//! The header of the PROXY protocol: what a proxy in front of the server would say of the client.
//!
//! It is the first that a new connection sends, before TLS. The addresses are those of the
//! connection itself, so servers see the client as without a proxy. A Unix socket has none.
//!
//! Source: W. Tarreau, *The PROXY protocol, versions 1 & 2*, `proxy-protocol.txt` of HAProxy.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use rustix::net;

use super::plan::Address;

/// The version of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyVersion {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// The first bytes of version 2.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// The header of a connection to `peer`. Its local address is known once `connect` was called.
pub(super) fn of_socket(version: ProxyVersion, socket: impl AsFd, peer: &Address) -> Vec<u8> {
    let Address::Inet(peer) = peer else {
        return header(version, None);
    };
    let local = net::getsockname(&socket).ok();
    let local = local.and_then(|address| SocketAddr::try_from(address).ok());
    header(version, local.map(|local| (local, *peer)))
}

/// The header for a client and a server; without addresses it says that they are not known.
pub(crate) fn header(
    version: ProxyVersion,
    addresses: Option<(SocketAddr, SocketAddr)>,
) -> Vec<u8> {
    match version {
        ProxyVersion::V1 => text(addresses).into_bytes(),
        ProxyVersion::V2 => binary(addresses),
    }
}

fn text(addresses: Option<(SocketAddr, SocketAddr)>) -> String {
    let Some((from, to)) = addresses else {
        return "PROXY UNKNOWN\r\n".to_owned();
    };
    let family = if from.is_ipv4() { "TCP4" } else { "TCP6" };
    let mut text = format!("PROXY {family} {} {}", from.ip(), to.ip());
    let _ = write!(text, " {} {}\r\n", from.port(), to.port());
    text
}

fn binary(addresses: Option<(SocketAddr, SocketAddr)>) -> Vec<u8> {
    let mut bytes = SIGNATURE.to_vec();
    let Some((from, to)) = addresses else {
        // Version 2, LOCAL, of no family, and nothing more.
        bytes.extend([0x20, 0, 0, 0]);
        return bytes;
    };
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mut body = [octets(from.ip()), octets(to.ip())].concat();
    body.extend(from.port().to_be_bytes());
    body.extend(to.port().to_be_bytes());
    // Version 2, PROXY; TCP over IPv4 or IPv6.
    bytes.extend([0x21, if from.is_ipv4() { 0x11 } else { 0x21 }]);
    bytes.extend((body.len() as u16).to_be_bytes());
    bytes.extend(body);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(from: &str, to: &str) -> Option<(SocketAddr, SocketAddr)> {
        Some((from.parse().ok()?, to.parse().ok()?))
    }

    #[test]
    fn text_is_a_line_with_both_addresses() {
        let of = |from, to| text(addresses(from, to));
        assert_eq!(
            of("192.168.0.1:56324", "192.168.0.11:443"),
            "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n"
        );
        assert_eq!(of("[::1]:7", "[::2]:80"), "PROXY TCP6 ::1 ::2 7 80\r\n");
        assert_eq!(text(None), "PROXY UNKNOWN\r\n");
    }

    #[test]
    fn binary_has_family_length_and_both_addresses() {
        let found = binary(addresses("1.2.3.4:258", "5.6.7.8:80"));
        let (start, rest) = found.split_at(SIGNATURE.len());
        assert_eq!(start, SIGNATURE);
        assert_eq!(
            rest,
            [0x21, 0x11, 0, 12, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 0, 80]
        );
        let found = binary(addresses("[::1]:7", "[::2]:80"));
        assert_eq!(found[12..16], [0x21, 0x21, 0, 36]);
        assert_eq!(found.len(), 16 + 36);
        assert_eq!(binary(None)[12..], [0x20, 0, 0, 0]);
    }
}
