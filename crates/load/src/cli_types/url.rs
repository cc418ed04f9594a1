//! Where requests go: `http://host:port/path`, `https://host:port/path` or `unix:/path/of/socket`.
//!
//! Looks nothing up; `client::resolve` does. User names and passwords are refused, since they would
//! end in the run directory. Source: RFC 3986, RFC 9110 section 4.2.

use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;

/// The address of a server and of one thing on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Where the server listens.
    pub endpoint: Endpoint,
    /// The path and query to ask for, `/` when the address had none.
    pub path: String,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A name or an address, and a port.
    Inet {
        /// The host as it was written, without the brackets of an IPv6 address. It may end in `%ZONE`.
        host: String,
        /// 80 when none was written, or 443 with TLS.
        port: u16,
        /// Whether it is `https`.
        tls: bool,
    },
    /// A socket in the filesystem.
    Unix(PathBuf),
}

/// `sun_path` has room for this many bytes and a zero, unix(7).
const SOCKET_PATH_BYTES_MAX: usize = 107;

impl Endpoint {
    /// The `Host` field for this endpoint: `localhost` for a socket, no port when it is the scheme's, and no zone, which
    /// is this machine's business (RFC 6874, section 4).
    pub(crate) fn host_header(&self) -> String {
        self.authority(|host| without_zone(host).to_owned())
    }

    fn authority(&self, shown: impl Fn(&str) -> String) -> String {
        match self {
            Endpoint::Unix(_) => "localhost".to_owned(),
            Endpoint::Inet { host, port, tls } => {
                let host = match host.contains(':') {
                    true => format!("[{}]", shown(host)),
                    false => host.clone(),
                };
                match *port == default_port(*tls) {
                    true => host,
                    false => format!("{host}:{port}"),
                }
            }
        }
    }
}

impl std::fmt::Display for Url {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.endpoint {
            Endpoint::Unix(socket) if self.path == "/" => write!(out, "unix:{}", socket.display()),
            Endpoint::Unix(socket) => write!(out, "unix:{}:{}", socket.display(), self.path),
            Endpoint::Inet { tls, .. } => {
                let scheme = if *tls { "https" } else { "http" };
                let host = self.endpoint.authority(|host| host.replace('%', "%25"));
                write!(out, "{scheme}://{host}{}", self.path)
            }
        }
    }
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Url, String> {
        if let Some(rest) = text.strip_prefix("unix:") {
            return unix(text, rest);
        }
        let (tls, rest) = match text.split_once("://") {
            None => (false, text),
            // A scheme may be written in any case, RFC 3986 section 3.1.
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some((scheme, _)) => {
                return Err(format!(
                    "{text}: cannot speak {scheme}; write http://host:port/path, https:// or unix:/path/of/socket"
                ));
            }
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.contains('@') {
            return Err("no user name in an address; use --user NAME:PASSWORD".to_owned());
        }
        let (host, port) = host_and_port(text, authority)?;
        let port = port.unwrap_or(default_port(tls));
        Ok(Url {
            endpoint: Endpoint::Inet { host, port, tls },
            path: request_path(text, path)?,
        })
    }
}

/// `unix:SOCKET` or `unix:SOCKET:/path`, as nginx writes it.
fn unix(text: &str, rest: &str) -> Result<Url, String> {
    let (socket, path) = match rest.rfind(":/") {
        Some(colon) => (&rest[..colon], &rest[colon + 1..]),
        None => (rest, "/"),
    };
    if socket.is_empty() {
        return Err(format!("{text}: write the path of a socket behind unix:"));
    }
    if socket.len() > SOCKET_PATH_BYTES_MAX {
        return Err(format!(
            "{text}: the path of a socket has at most {SOCKET_PATH_BYTES_MAX} bytes"
        ));
    }
    Ok(Url {
        endpoint: Endpoint::Unix(socket.into()),
        path: request_path(text, path)?,
    })
}

fn default_port(tls: bool) -> u16 {
    if tls { 443 } else { 80 }
}

/// An address without the interface that leads to it.
pub(crate) fn without_zone(host: &str) -> &str {
    host.split_once('%').map_or(host, |(address, _)| address)
}

/// `fe80::1%25eth0` of a URL (RFC 6874), or `fe80::1%eth0`, as getaddrinfo(3) wants it.
fn ipv6(address: &str) -> Option<String> {
    let Some((number, zone)) = address.split_once('%') else {
        return address.parse::<Ipv6Addr>().ok().map(|_| address.to_owned());
    };
    let zone = zone.strip_prefix("25").unwrap_or(zone);
    number.parse::<Ipv6Addr>().ok()?;
    (!zone.is_empty()).then(|| format!("{number}%{zone}"))
}

fn host_and_port(text: &str, authority: &str) -> Result<(String, Option<u16>), String> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest
                .split_once(']')
                .ok_or_else(|| format!("{text}: the bracket of the address is not closed"))?;
            let address =
                ipv6(address).ok_or_else(|| format!("{text}: {address} is not an IPv6 address"))?;
            match port.is_empty() {
                true => (address, None),
                false => (address, Some(port.strip_prefix(':').unwrap_or("?"))),
            }
        }
        None => match authority.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err(format!(
                    "{text}: put brackets around an IPv6 address: http://[::1]:8080/"
                ));
            }
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (authority.to_owned(), None),
        },
    };
    let has_brackets = authority.starts_with('[');
    let odd = |c: char| {
        let is_plain = c.is_ascii_alphanumeric() || "-._~:".contains(c);
        !(is_plain || has_brackets && c == '%')
    };
    if host.is_empty() || host.contains(odd) {
        return Err(format!(
            "{text}: no host in it; write http://host:port/path, https:// or unix:/path/of/socket"
        ));
    }
    let port = match port {
        None | Some("") => None,
        Some(port) => match port.parse() {
            Ok(number) if number > 0 && port.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(number)
            }
            _ => {
                return Err(format!(
                    "{text}: {port} is not a port; ports are 1 to 65535"
                ));
            }
        },
    };
    Ok((host, port))
}

/// The path and query as they go into the request line; a fragment never leaves the client.
fn request_path(text: &str, path: &str) -> Result<String, String> {
    let path = path.split('#').next().unwrap_or("");
    if let Some(odd) = path.chars().find(|c| !c.is_ascii_graphic()) {
        return Err(format!(
            "{text}: {odd:?} in the path has to be written as %XX"
        ));
    }
    match path.starts_with('/') {
        true => Ok(path.to_owned()),
        false => Ok(format!("/{path}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inet(host: &str, port: u16, path: &str) -> Url {
        let (host, tls) = (host.to_owned(), false);
        Url {
            endpoint: Endpoint::Inet { host, port, tls },
            path: path.to_owned(),
        }
    }

    #[test]
    fn host_port_and_path_are_found_when_an_address_is_parsed() {
        let cases = [
            (
                "http://localhost:8080/a?b=c#d",
                inet("localhost", 8080, "/a?b=c"),
            ),
            ("http://example.org", inet("example.org", 80, "/")),
            ("http://example.org?x", inet("example.org", 80, "/?x")),
            ("127.0.0.1:8080", inet("127.0.0.1", 8080, "/")),
            ("http://[::1]:81/x", inet("::1", 81, "/x")),
            ("http://[::1]", inet("::1", 80, "/")),
            ("http://[fe80::1%25eth0]:81/", inet("fe80::1%eth0", 81, "/")),
            ("http://[fe80::1%eth0]", inet("fe80::1%eth0", 80, "/")),
            ("HTTP://a:81/x", inet("a", 81, "/x")),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn port_is_443_when_the_scheme_is_https() {
        for text in ["https://a.b", "HTTPS://a.b:443/", "https://a.b:/"] {
            let endpoint = Endpoint::Inet {
                host: "a.b".to_owned(),
                port: 443,
                tls: true,
            };
            let path = "/".to_owned();
            assert_eq!(text.parse(), Ok(Url { endpoint, path }), "{text}");
        }
    }

    #[test]
    fn socket_and_path_are_found_when_a_unix_address_is_parsed() {
        let socket = |path: &str| Url {
            endpoint: Endpoint::Unix("/run/web.sock".into()),
            path: path.to_owned(),
        };
        assert_eq!("unix:/run/web.sock".parse(), Ok(socket("/")));
        assert_eq!("unix:/run/web.sock:/a/b".parse(), Ok(socket("/a/b")));
        assert!("unix:".parse::<Url>().is_err());
        assert!(format!("unix:/{}", "x".repeat(107)).parse::<Url>().is_err());
    }

    #[test]
    fn address_prints_as_it_parses_when_it_is_complete() {
        for text in [
            "http://[::1]:81/x",
            "http://[fe80::1%25eth0]:81/x",
            "http://a.b/",
            "http://a.b:443/",
            "https://a.b/",
            "https://a.b:80/x",
            "unix:/run/s",
            "unix:/run/s:/x",
        ] {
            assert_eq!(text.parse::<Url>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn zone_of_an_address_is_not_in_the_header() {
        let url: Url = "http://[fe80::1%25eth0]:81/".parse().expect("an address");
        assert_eq!(url.endpoint.host_header(), "[fe80::1]:81");
    }

    #[test]
    fn reason_is_given_when_an_address_is_wrong() {
        let cases = [
            ("ftp://example.org/", "cannot speak ftp"),
            ("http://", "no host"),
            ("/index.html", "no host"),
            ("http://a b/", "no host"),
            ("http://a:0/", "not a port"),
            ("http://a:+80/", "not a port"),
            ("http://a:65536/", "not a port"),
            ("http://a:b/", "not a port"),
            ("http://::1/", "brackets"),
            ("http://[::1/", "not closed"),
            ("http://[zz]/", "not an IPv6"),
            ("http://[::1%25]/", "not an IPv6"),
            ("http://a%25b/", "no host"),
            ("http://u:p@a/", "user name"),
            ("http://a/b c", "%XX"),
            ("http://a/\u{e9}", "%XX"),
        ];
        for (text, part) in cases {
            let error = text.parse::<Url>().expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
