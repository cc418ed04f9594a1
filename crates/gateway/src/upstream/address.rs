//! Where a back end is, as a configuration says it.
//!
//! `unix:/run/php.sock`, `127.0.0.1:9000`, `[::1]:9000`; for HTTP back ends `http://` before the
//! latter two as well. Names are refused: looking one up waits for another machine, and what it
//! answers can change while the server runs.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Longest path of a socket in bytes (`sun_path` of unix(7), without the final NUL).
const PATH_BYTES_MAX: usize = 107;

/// Where to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port.
    Tcp(SocketAddr),
}

/// Why a text is no address of a back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not a path, too long, or with NUL.
    #[error("a Unix socket needs an absolute path of at most {PATH_BYTES_MAX} bytes")]
    Path,
    /// A name, or no port.
    #[error(
        "a TCP back end needs a numeric address and a port, such as 127.0.0.1:9000 or [::1]:9000"
    )]
    Numbers,
    /// TLS.
    #[error("back ends are spoken to without TLS; use http://")]
    Tls,
    /// Something behind the address.
    #[error("an HTTP back end is given without a path; the request's own is sent")]
    Trailing,
    /// `http://` before a back end that does not speak HTTP.
    #[error("http:// stands only before HTTP back ends")]
    Scheme,
}

impl Address {
    /// Reads the address of a FastCGI or SCGI back end.
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

    /// Reads the address of an HTTP back end, where `http://` may stand in front and one slash
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

    /// What stands in Host if the back end is to be called by its own name. A socket in the file
    /// system has none, and is this machine.
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
    fn address_reads_back_as_written_when_it_is_one() {
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
    fn reason_is_given_when_it_is_none() {
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
