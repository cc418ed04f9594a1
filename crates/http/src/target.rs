//! Classifies request targets: which of the four forms a target has, and the host in it.
//!
//! Rejects fragments, user information, schemes other than http and https, `*` for any method but OPTIONS, and
//! authorities that are not `uri-host [":" port]`. It does not decode or normalise the path;
//! [`crate::path`] does that after the header has been checked.
//!
//! A target with a scheme other than that of the connection is answered with 421 (RFC 9110 section
//! 7.4): https must have come by TLS, http in the clear.
//!
//! Bytes above 0x7f are accepted although RFC 3986 has none: clients send raw UTF-8 paths, and
//! these bytes have no special meaning in the following steps.
//!
//! Sources: RFC 9112 section 3.2, RFC 3986 section 3.2, RFC 9110 sections 4.2.4 (user information)
//! and 7.4.

use memchr::{memchr, memchr2, memrchr};

use crate::head::{Method, Reject};
use crate::status::Status;

/// The target of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'b> {
    /// Path and query, from origin-form or absolute-form: starts with `/`, or, when it comes from
    /// an absolute-form without a path, is empty or starts with `?`. For
    /// [`crate::path::normalise`].
    Path(&'b [u8]),
    /// `*`, the server as a whole; only with OPTIONS.
    Asterisk,
    /// `host:port`; only with CONNECT, which a file server answers with 405.
    Authority(&'b [u8]),
}

/// Determines the form of a target; the second value is the authority of an absolute-form.
pub(crate) fn classify<'b>(
    method: Method,
    raw: &'b [u8],
    is_secure: bool,
) -> Result<(Target<'b>, Option<&'b [u8]>), Reject> {
    if memchr(b'#', raw).is_some() {
        return Err(Reject::bad("fragment in the target"));
    }
    if method == Method::Other("CONNECT") {
        return match is_authority(raw) && has_valid_port(raw) {
            true => Ok((Target::Authority(raw), None)),
            false => Err(Reject::bad("CONNECT without host and port")),
        };
    }
    match raw {
        [b'/', ..] => Ok((Target::Path(raw), None)),
        b"*" if method == Method::Options => Ok((Target::Asterisk, None)),
        b"*" => Err(Reject::bad(
            "asterisk-form with a method other than OPTIONS",
        )),
        _ => absolute(method, raw, is_secure),
    }
}

fn absolute<'b>(
    method: Method,
    raw: &'b [u8],
    is_secure: bool,
) -> Result<(Target<'b>, Option<&'b [u8]>), Reject> {
    let secured = strip_prefix(raw, b"https://");
    let rest = secured
        .or_else(|| strip_prefix(raw, b"http://"))
        .ok_or(Reject::bad("target is neither a path nor an http URI"))?;
    let (authority, path) = match memchr2(b'/', b'?', rest) {
        Some(at) => rest.split_at(at),
        None => (rest, &rest[rest.len()..]),
    };
    if authority.is_empty() || !is_authority(authority) {
        return Err(Reject::bad("invalid authority in the target"));
    }
    if secured.is_some() != is_secure {
        let reason = match is_secure {
            true => "http target over TLS",
            false => "https target without TLS",
        };
        return Err(Reject::closing(Status::MISDIRECTED_REQUEST, reason));
    }
    // OPTIONS with an absolute-form without a path means `*` (RFC 9112 section 3.2.4).
    let target = match path.is_empty() && method == Method::Options {
        true => Target::Asterisk,
        false => Target::Path(path),
    };
    Ok((target, Some(authority)))
}

/// Without a prefix, whose letter case does not matter.
fn strip_prefix<'b>(raw: &'b [u8], prefix: &[u8]) -> Option<&'b [u8]> {
    let (start, rest) = raw.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// Whether the bytes are `uri-host [":" port]` with a non-empty host and no user information.
///
/// ```
/// use headway_http::target::is_authority;
/// assert!(is_authority(b"example.org:8080"));
/// assert!(!is_authority(b"user@example.org"));
/// ```
pub fn is_authority(authority: &[u8]) -> bool {
    let (host_ok, port) = match authority {
        [b'[', rest @ ..] => match memchr(b']', rest) {
            Some(end) => (is_ip_literal(&rest[..end]), &rest[end + 1..]),
            None => return false,
        },
        _ => {
            let end = memchr(b':', authority).unwrap_or(authority.len());
            (is_registered_name(&authority[..end]), &authority[end..])
        }
    };
    host_ok && is_port(port)
}

/// The host of a valid authority without its port: the key of a virtual host.
///
/// Letter case is kept; compare names case-insensitively. A final dot (the DNS root) is dropped.
///
/// ```
/// use headway_http::target::host_name;
/// assert_eq!(host_name(b"example.org.:8080"), b"example.org");
/// assert_eq!(host_name(b"[::1]:80"), b"[::1]");
/// ```
pub fn host_name(authority: &[u8]) -> &[u8] {
    let end = match authority.first() {
        Some(b'[') => memchr(b']', authority).map_or(authority.len(), |at| at + 1),
        _ => memchr(b':', authority).unwrap_or(authority.len()),
    };
    let host = &authority[..end];
    host.strip_suffix(b".").unwrap_or(host)
}

/// Accepts colons, hexadecimal digits and dots, which keeps anything strange out of logs and
/// lookups.
fn is_ip_literal(inside: &[u8]) -> bool {
    inside.len() >= 2
        && inside
            .iter()
            .all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.'))
}

fn is_registered_name(name: &[u8]) -> bool {
    let mut at = 0;
    while let Some(&byte) = name.get(at) {
        if IS_REGISTERED_NAME[usize::from(byte)] {
            at += 1;
        } else if byte == b'%'
            && name[at + 1..]
                .iter()
                .take(2)
                .filter(|b| b.is_ascii_hexdigit())
                .count()
                == 2
        {
            at += 3;
        } else {
            return false;
        }
    }
    !name.is_empty()
}

/// Whether an authority has a port to connect to (RFC 9110 section 9.3.6).
fn has_valid_port(authority: &[u8]) -> bool {
    let port = memrchr(b':', authority).map(|at| &authority[at + 1..]);
    matches!(port.and_then(crate::fields::decimal), Some(1..=65_535))
}

/// Whether the bytes are empty or a port with its colon. An empty port is legal: `example.org:`
/// (RFC 3986 section 3.2.3).
fn is_port(port: &[u8]) -> bool {
    match port {
        [] => true,
        [b':', digits @ ..] => digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

/// The bytes of a registered name: `unreserved` and `sub-delims` of RFC 3986.
const IS_REGISTERED_NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = matches!(
            byte as u8,
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~'
            | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'='
        );
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authority_is_accepted_or_rejected_as_in_rfc_3986() {
        for good in [
            "a",
            "example.org",
            "example.org:80",
            "a:",
            "1.2.3.4:8080",
            "[::1]",
            "[::1]:80",
            "a%20b",
            "x_y",
        ] {
            assert!(is_authority(good.as_bytes()), "{good}");
        }
        for bad in [
            "", ":80", "a b", "user@a", "a:b", "a:80:80", "a:999999", "[::1", "[::1]x", "[]",
            "[g::]", "a/b", "a%2", "a%zz", "a,b@c", "é", "a\"b", "a\\b",
        ] {
            assert!(!is_authority(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn host_name_excludes_the_port_and_the_final_dot() {
        assert_eq!(host_name(b"Example.org:80"), b"Example.org");
        assert_eq!(host_name(b"example.org."), b"example.org");
        assert_eq!(host_name(b"[::1]:80"), b"[::1]");
        assert_eq!(host_name(b""), b"");
    }
}
