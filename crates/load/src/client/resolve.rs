//! Names to addresses, once and before the run: a lookup may wait for seconds, so the loop never makes one.
//!
//! The first address that the system's resolver gives is used, as it orders them by RFC 6724; a run that
//! changed between addresses would not be one measurement.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

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

/// The address of a host. Waits for the resolver if `host` is a name.
pub fn resolve(host: &str, port: u16) -> Result<SocketAddr, ResolveError> {
    let found = (host, port).to_socket_addrs();
    let mut addresses = found.map_err(|error| ResolveError::Lookup {
        host: host.to_owned(),
        reason: reason(&error),
    })?;
    addresses.next().ok_or_else(|| ResolveError::NoAddress {
        host: host.to_owned(),
    })
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
    fn address_is_used_as_it_is_when_it_is_a_number() {
        let cases = [("127.0.0.1", "127.0.0.1:80"), ("::1", "[::1]:80")];
        for (host, expected) in cases {
            assert_eq!(resolve(host, 80).expect(host).to_string(), expected);
        }
    }

    #[test]
    fn name_and_remedy_are_given_when_a_name_does_not_exist() {
        // RFC 6761 reserves this ending for names that never exist.
        let error = resolve("nobody.invalid", 80).unwrap_err().to_string();
        assert!(error.starts_with("looking up nobody.invalid: "), "{error}");
        assert!(error.contains("as a number"), "{error}");
        assert!(!error.contains("failed to lookup"), "{error}");
    }
}
