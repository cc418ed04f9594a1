//! Parses the address of an upstream, as the configuration writes it.
//!
//! `unix:/run/php.sock`, `127.0.0.1:9000`, `[::1]:9000`; HTTP upstreams may have `http://` before
//! the latter two. Host names are resolved before: that waits for another machine.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Longest path of a socket in bytes (`sun_path` of unix(7), without the final NUL).
const PATH_BYTES_MAX: usize = 107;

/// The address of an upstream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port.
    Tcp(SocketAddr),
}

/// Why a text is not the address of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not a path, too long, or with NUL.
    #[error("a Unix socket needs an absolute path of at most {PATH_BYTES_MAX} bytes")]
    Path,
    /// A host name, or no port.
    #[error(
        "a TCP upstream needs an address and a port, such as 127.0.0.1:9000, [::1]:9000 or app:9000"
    )]
    Numbers,
    /// The address demands TLS, which is not supported.
    #[error("TLS to upstreams is not supported; use http://")]
    Tls,
    /// Text after the address.
    #[error("an HTTP upstream must not have a path; the path of the request is used")]
    Trailing,
    /// `http://` before an upstream that does not speak HTTP.
    #[error("http:// is only allowed for HTTP upstreams")]
    Scheme,
}

impl Address {
    /// Parses the address of a FastCGI or SCGI upstream.
    ///
    /// ```
    /// use headway_gateway::upstream::Address;
    ///
    /// assert!(matches!(Address::parse("unix:/run/php.sock"), Ok(Address::Unix(_))));
    /// assert!(Address::parse("localhost:9000").is_err());
    /// ```
    pub fn parse(text: &str) -> Result<Address, AddressError> {
        if text.starts_with("http://") || text.starts_with("https://") {
            return Err(AddressError::Scheme);
        }
        match text.strip_prefix("unix:") {
            Some(path) => unix(path),
            None => tcp(text),
        }
    }

    /// Parses the address of an HTTP upstream, optionally with `http://` in front and one slash
    /// behind.
    pub fn parse_http(text: &str) -> Result<Address, AddressError> {
        if text.starts_with("https://") {
            return Err(AddressError::Tls);
        }
        let Some(rest) = text.strip_prefix("http://") else {
            return Address::parse(text);
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        match rest.contains('/') {
            true => Err(AddressError::Trailing),
            false => tcp(rest),
        }
    }

    /// The value of Host if the upstream is addressed by its own name. A Unix socket has none and
    /// becomes `localhost`.
    pub fn authority(&self) -> String {
        match self {
            Address::Unix(_) => "localhost".to_owned(),
            Address::Tcp(address) => address.to_string(),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(address) => write!(f, "{address}"),
        }
    }
}

fn unix(path: &str) -> Result<Address, AddressError> {
    let fits = path.len() <= PATH_BYTES_MAX && !path.contains('\0');
    match fits && Path::new(path).is_absolute() {
        true => Ok(Address::Unix(path.into())),
        false => Err(AddressError::Path),
    }
}

/// Port 0 is for binding only.
fn tcp(text: &str) -> Result<Address, AddressError> {
    match text.parse::<SocketAddr>() {
        Ok(address) if address.port() != 0 => Ok(Address::Tcp(address)),
        _ => Err(AddressError::Numbers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_address_reads_back_as_written() {
        for text in ["unix:/run/php.sock", "127.0.0.1:9000", "[::1]:9000"] {
            assert_eq!(Address::parse(text).unwrap().to_string(), text);
            assert_eq!(Address::parse_http(text).unwrap().to_string(), text);
        }
        for text in ["http://127.0.0.1:80", "http://127.0.0.1:80/"] {
            assert_eq!(
                Address::parse_http(text).unwrap().authority(),
                "127.0.0.1:80"
            );
        }
        let socket = Address::parse_http("unix:/a").unwrap();
        assert_eq!(socket.authority(), "localhost");
    }

    #[test]
    fn invalid_address_is_rejected_with_a_reason() {
        let long = format!("unix:/{}", "a".repeat(107));
        for (text, expected) in [
            ("unix:run/php.sock", AddressError::Path),
            ("unix:", AddressError::Path),
            ("unix:/a\0", AddressError::Path),
            (long.as_str(), AddressError::Path),
            ("localhost:9000", AddressError::Numbers),
            ("127.0.0.1", AddressError::Numbers),
            ("127.0.0.1:0", AddressError::Numbers),
            ("", AddressError::Numbers),
            ("http://127.0.0.1:80", AddressError::Scheme),
        ] {
            assert_eq!(Address::parse(text), Err(expected), "{text}");
        }
        for (text, expected) in [
            ("https://127.0.0.1:443", AddressError::Tls),
            ("http://127.0.0.1:80/a", AddressError::Trailing),
            ("http://127.0.0.1:80//", AddressError::Trailing),
            ("http://unix:", AddressError::Numbers),
            ("http://localhost:80", AddressError::Numbers),
        ] {
            assert_eq!(Address::parse_http(text), Err(expected), "{text}");
        }
    }
}
