//! The client, where a proxy in front of the server names it: in a header of the request, or in a PROXY
//! header before the first request. The caller decides which proxies are believed.
//!
//! Sources: RFC 7239 (`Forwarded`); the PROXY protocol, versions 1 and 2
//! (<https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use proxy_header::{Error, ParseConfig, Protocol, ProxyHeader};

use crate::Request;

/// What the address of a client of a Unix socket is. No client of TCP has it, and no proxy can name it.
pub const UNIX_CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Longest header of version 1, its end of line included.
const V1_BYTES_MAX: usize = 107;

/// The start of a connection that should be a PROXY header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyPreface {
    /// More bytes are needed.
    Partial,
    /// It is no PROXY header.
    Invalid,
    /// The header is complete.
    Complete {
        /// The bytes of the header.
        length: usize,
        /// The client. `None` if the proxy speaks for itself, as in a health check, or does not know.
        client: Option<SocketAddr>,
    },
}

/// Reads a PROXY header of version 1 or 2.
///
/// ```
/// use headway_gateway::client_address::{ProxyPreface, read_proxy_header};
///
/// let read = read_proxy_header(b"PROXY TCP4 192.0.2.7 192.0.2.1 50000 80\r\nGET / HTTP/1.1\r\n");
/// let client = Some("192.0.2.7:50000".parse().unwrap());
/// assert_eq!(read, ProxyPreface::Complete { length: 41, client });
/// ```
pub fn read_proxy_header(input: &[u8]) -> ProxyPreface {
    // The parser looks at the first word only when it has a whole line.
    if !may_begin_proxy_header(input) {
        return ProxyPreface::Invalid;
    }
    let config = ParseConfig {
        include_tlvs: false,
        ..ParseConfig::default()
    };
    match ProxyHeader::parse(input, config) {
        Ok((_, length)) if input[0] == b'P' && length > V1_BYTES_MAX => ProxyPreface::Invalid,
        Ok((header, length)) => {
            let stream = header.proxied_address();
            let stream = stream.filter(|addresses| addresses.protocol == Protocol::Stream);
            let client = stream.map(|addresses| {
                SocketAddr::new(
                    addresses.source.ip().to_canonical(),
                    addresses.source.port(),
                )
            });
            match client {
                Some(client) if client.ip() == UNIX_CLIENT => ProxyPreface::Invalid,
                client => ProxyPreface::Complete { length, client },
            }
        }
        Err(Error::BufferTooShort) if !is_whole(input) => ProxyPreface::Partial,
        Err(_) => ProxyPreface::Invalid,
    }
}

/// Whether a header of version 2 has all bytes that it announces: then they are too few for its addresses.
fn is_whole(input: &[u8]) -> bool {
    let announced = match input {
        [b'\r', ..] => input.get(14..16),
        _ => None,
    };
    announced.is_some_and(|length| {
        let length = length
            .iter()
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        input.len() >= 16 + length
    })
}

/// Whether the bytes begin as a PROXY header does.
fn may_begin_proxy_header(input: &[u8]) -> bool {
    [&b"PROXY "[..], b"\r\n\r\n\0\r\nQUIT\n"]
        .iter()
        .any(|start| {
            let common = start.len().min(input.len());
            input[..common] == start[..common]
        })
}

/// The client of a request that came from the trusted `peer`, by the header of this name: the last
/// address in it that is not a trusted one, since each proxy appends the address that it sees. If all are
/// trusted, it is the first one. What is not an address ends the search.
pub fn client_of(
    request: &Request<'_>,
    header: &str,
    peer: IpAddr,
    is_trusted: impl Fn(IpAddr) -> bool,
) -> IpAddr {
    let is_forwarded = header.eq_ignore_ascii_case("forwarded");
    let values: Vec<&[u8]> = request.values(header.as_bytes()).collect();
    let mut client = peer;
    for value in values.iter().rev() {
        for element in value.rsplit(|byte| *byte == b',') {
            let named = match is_forwarded {
                true => for_parameter(element),
                false => Some(element),
            };
            let Some(address) = named.and_then(address) else {
                return client;
            };
            client = address;
            if !is_trusted(address) {
                return client;
            }
        }
    }
    client
}

/// The value of `for` in an element of `Forwarded`. A quoted string with a comma or a semicolon is no
/// address, so it may be cut.
fn for_parameter(element: &[u8]) -> Option<&[u8]> {
    element.split(|byte| *byte == b';').find_map(|pair| {
        let pair = pair.trim_ascii();
        let (name, value) = pair.split_at_checked(4)?;
        name.eq_ignore_ascii_case(b"for=").then_some(value)
    })
}

/// `192.0.2.7`, `192.0.2.7:80`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:80`, perhaps in quotes.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text.trim_ascii()).ok()?;
    let unquoted = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'));
    let text = unquoted.unwrap_or(text);
    let bracketed = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let address = match bracketed {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().ok()?.into(),
        None => text
            .parse()
            .or_else(|_| text.parse::<SocketAddr>().map(|socket| socket.ip()))
            .ok()?,
    };
    Some(address.to_canonical()).filter(|address| *address != UNIX_CLIENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_http::{HeadLimits, Parsed};

    fn client(header: &str, lines: &str) -> String {
        let bytes = format!("GET / HTTP/1.1\r\nHost: x\r\n{lines}\r\n");
        let Parsed::Complete(head) = headway_http::parse(bytes.as_bytes(), &HeadLimits::default())
        else {
            panic!("{bytes}");
        };
        let request = Request::new(&head, bytes.as_bytes());
        let peer = "10.0.0.1".parse().unwrap();
        let is_trusted = |address: IpAddr| address.to_string().starts_with("10.");
        client_of(&request, header, peer, is_trusted).to_string()
    }

    #[test]
    fn client_is_the_last_address_that_is_not_trusted() {
        for (lines, expected) in [
            ("", "10.0.0.1"),
            ("X-Forwarded-For: 192.0.2.7\r\n", "192.0.2.7"),
            ("x-forwarded-for: 198.51.100.1, 192.0.2.7\r\n", "192.0.2.7"),
            (
                "X-Forwarded-For: 198.51.100.1,192.0.2.7 , 10.0.0.2\r\n",
                "192.0.2.7",
            ),
            (
                "X-Forwarded-For: 198.51.100.1\r\nX-Forwarded-For: 192.0.2.7, 10.0.0.2\r\n",
                "192.0.2.7",
            ),
            ("X-Forwarded-For: 10.0.0.3, 10.0.0.2\r\n", "10.0.0.3"),
            (
                "X-Forwarded-For: 192.0.2.7, unknown, 10.0.0.2\r\n",
                "10.0.0.2",
            ),
            ("X-Forwarded-For: 192.0.2.7, unknown\r\n", "10.0.0.1"),
            ("X-Forwarded-For: 192.0.2.7,\r\n", "10.0.0.1"),
            ("X-Forwarded-For: 192.0.2.7:4711\r\n", "192.0.2.7"),
            ("X-Forwarded-For: 2001:db8::1\r\n", "2001:db8::1"),
            ("X-Forwarded-For: [2001:db8::1]:4711\r\n", "2001:db8::1"),
            ("X-Forwarded-For: ::ffff:192.0.2.7\r\n", "192.0.2.7"),
            ("X-Forwarded-For: 192.0.2.7.evil\r\n", "10.0.0.1"),
            ("X-Forwarded-For: \u{ff}\r\n", "10.0.0.1"),
            // It would be that of a client of a Unix socket.
            ("X-Forwarded-For: 0.0.0.0\r\n", "10.0.0.1"),
            ("X-Forwarded-For: ::ffff:0.0.0.0\r\n", "10.0.0.1"),
            ("X-Forwarded-For: unix:\r\n", "10.0.0.1"),
        ] {
            assert_eq!(client("X-Forwarded-For", lines), expected, "{lines}");
        }
    }

    #[test]
    fn forwarded_names_the_client_in_its_for_parameter() {
        for (lines, expected) in [
            ("Forwarded: for=192.0.2.7\r\n", "192.0.2.7"),
            (
                "Forwarded: For=\"[2001:db8::1]:47\";proto=https, for=10.0.0.2\r\n",
                "2001:db8::1",
            ),
            (
                "Forwarded: proto=http; host=x; for=192.0.2.7;by=10.0.0.9\r\n",
                "192.0.2.7",
            ),
            ("Forwarded: for=192.0.2.7, for=_hidden\r\n", "10.0.0.1"),
            ("Forwarded: for=192.0.2.7, proto=http\r\n", "10.0.0.1"),
            ("X-Forwarded-For: 192.0.2.7\r\n", "10.0.0.1"),
        ] {
            assert_eq!(client("Forwarded", lines), expected, "{lines}");
        }
    }

    #[test]
    fn long_chain_of_trusted_addresses_ends_at_its_first_one() {
        let chain = vec!["10.0.0.2"; 1000].join(",");
        let lines = format!("X-Forwarded-For: 10.9.9.9,{chain}\r\n");
        assert_eq!(client("X-Forwarded-For", &lines), "10.9.9.9");
    }

    /// Version 2: signature, command, family, length, addresses and ports, and what follows.
    fn version_2(command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
        let length = (addresses.len() as u16).to_be_bytes();
        [
            &b"\r\n\r\n\0\r\nQUIT\n"[..],
            &[command, family],
            &length,
            addresses,
        ]
        .concat()
    }

    #[test]
    fn proxy_header_is_read_when_it_is_cut_at_every_byte() {
        let four = [192, 0, 2, 7, 192, 0, 2, 1, 0xc3, 0x50, 0, 80];
        let mut six = [0; 36];
        six[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
        (six[15], six[32], six[33]) = (1, 0xc3, 0x50);
        let mut mapped = six;
        mapped[..16].copy_from_slice(
            &"::ffff:192.0.2.7"
                .parse::<std::net::Ipv6Addr>()
                .unwrap()
                .octets(),
        );
        let with_more = [&four[..], &[0x03, 0, 4, 1, 2, 3, 4]].concat();
        let v4 = Some("192.0.2.7:50000");
        for (header, client) in [
            (b"PROXY TCP4 192.0.2.7 192.0.2.1 50000 80\r\n".to_vec(), v4),
            (
                b"PROXY TCP6 2001:db8::1 2001:db8::2 50000 80\r\n".to_vec(),
                Some("[2001:db8::1]:50000"),
            ),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (version_2(0x21, 0x11, &four), v4),
            (version_2(0x21, 0x11, &with_more), v4),
            (version_2(0x21, 0x21, &six), Some("[2001:db8::1]:50000")),
            (version_2(0x21, 0x21, &mapped), v4),
            (version_2(0x20, 0x00, &[]), None),
            (version_2(0x20, 0x11, &four), None),
            (version_2(0x21, 0x31, &[0; 216]), None),
            // A datagram is no connection.
            (version_2(0x21, 0x12, &four), None),
        ] {
            let length = header.len();
            let client = client.map(|text| text.parse().unwrap());
            for cut in 0..length {
                assert_eq!(
                    read_proxy_header(&header[..cut]),
                    ProxyPreface::Partial,
                    "{cut}"
                );
            }
            let whole = [&header[..], b"GET / HTTP/1.1\r\n\r\n"].concat();
            let expected = ProxyPreface::Complete { length, client };
            assert_eq!(
                read_proxy_header(&whole),
                expected,
                "{}",
                header.escape_ascii()
            );
        }
    }

    #[test]
    fn other_bytes_are_no_proxy_header() {
        let long = format!("PROXY TCP4 {}", "1".repeat(200));
        let unknown = format!("PROXY UNKNOWN {}\r\n", "1".repeat(200));
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"POST / H",
            b"PRI * HTTP/2.0",
            b"PROXYTCP4 192.0.2.7 192.0.2.1 50000 80\r\n",
            b"PROXY\tTCP4 192.0.2.7 192.0.2.1 50000 80\r\n",
            b"PROXY TCP4 192.0.2.7 192.0.2.1 50000 99999\r\n",
            b"PROXY TCP4 192.0.2.300 192.0.2.1 50000 80\r\n",
            b"PROXY TCP4 2001:db8::1 2001:db8::2 50000 80\r\n",
            b"PROXY TCP4 0.0.0.0 192.0.2.1 50000 80\r\n",
            b"PROXY UDP4 192.0.2.7 192.0.2.1 50000 80\r\n",
            b"\x16\x03\x01\x02\x00\x01",
            b"\r\nGET",
            long.as_bytes(),
            unknown.as_bytes(),
            &version_2(0x31, 0x11, &[0; 12]),
            &version_2(0x21, 0x11, &[0; 11]),
            &version_2(0x22, 0x11, &[0; 12]),
            &version_2(0x21, 0x11, &[0; 12]),
        ] {
            let read = read_proxy_header(bytes);
            assert_eq!(read, ProxyPreface::Invalid, "{}", bytes.escape_ascii());
        }
    }
}
