//! Names to addresses, once and before the run: a lookup may wait for seconds, so the loop never
//! makes one.
//!
//! One address is used for the whole run, because a run that changed between addresses would be two
//! measurements. If a name has several, the first one that accepts a connection is used, in the
//! order of RFC 6724: `localhost` is `::1` before 127.0.0.1 on most machines, and most servers
//! listen on the second (RFC 8305 does the same).

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// For a connection to each of several addresses.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The name could not be turned into an address.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The resolver knows no such name, or could not be asked.
    #[error("looking up {host}: {reason}; check the spelling, or write the address as a number")]
    Lookup {
        /// What was looked up.
        host: String,
        /// What the resolver said.
        reason: String,
    },
    /// The name exists and has no address.
    #[error("looking up {host}: the name has no address; write the address as a number")]
    NoAddress {
        /// What was looked up.
        host: String,
    },
}

/// The address of a host. Waits for the resolver if `host` is a name, and connects where it has
/// several.
pub fn resolve(host: &str, port: u16) -> Result<SocketAddr, ResolveError> {
    let found = (host, port).to_socket_addrs();
    let addresses = found.map_err(|error| ResolveError::Lookup {
        host: host.to_owned(),
        reason: reason(&error),
    })?;
    choose(&addresses.collect::<Vec<_>>()).ok_or_else(|| ResolveError::NoAddress {
        host: host.to_owned(),
    })
}

/// The first that takes a connection; where none does, the first, so that the error speaks of it.
fn choose(addresses: &[SocketAddr]) -> Option<SocketAddr> {
    let (first, others) = addresses.split_first()?;
    if others.is_empty() {
        return Some(*first);
    }
    let takes =
        |address: &&SocketAddr| TcpStream::connect_timeout(address, CONNECT_TIMEOUT).is_ok();
    addresses.iter().find(takes).or(Some(first)).copied()
}

/// The resolver's own words; the standard library puts a preamble before them.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once("failed to lookup address information: ") {
        Some((_, rest)) => rest.to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numeric_address_is_used_without_a_lookup() {
        let cases = [("127.0.0.1", "127.0.0.1:80"), ("::1", "[::1]:80")];
        for (host, expected) in cases {
            assert_eq!(resolve(host, 80).expect(host).to_string(), expected);
        }
    }

    #[test]
    fn first_reachable_address_is_used_when_a_name_has_several() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let there = listener.local_addr().expect("an address");
        // No server listens on these, with or without IPv6.
        let closed = |host: &str| SocketAddr::new(host.parse().expect("an address"), there.port());
        let (before, after) = (closed("::1"), closed("127.0.0.9"));
        assert_eq!(choose(&[before, there, after]), Some(there));
        assert_eq!(choose(&[after, before]), Some(after));
        assert_eq!(choose(&[before]), Some(before));
        assert_eq!(choose(&[]), None);
    }

    #[test]
    fn error_has_name_and_remedy_when_a_name_does_not_exist() {
        // RFC 6761 reserves this ending for names that never exist.
        let error = resolve("nobody.invalid", 80).unwrap_err().to_string();
        assert!(error.starts_with("looking up nobody.invalid: "), "{error}");
        assert!(error.contains("as a number"), "{error}");
        assert!(!error.contains("failed to lookup"), "{error}");
    }
}
