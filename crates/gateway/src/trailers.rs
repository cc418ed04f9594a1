//! Trailer fields that are passed on, in either direction.
//!
//! A recipient may merge trailers into the header. So a field that would change there what the message is, where
//! it goes or on whose behalf is left out. The same goes for a field that this server removes or replaces as a
//! header.
//!
//! Source: RFC 9110 section 6.5.

use headway_http::response::{is_field_name, is_field_value};
use memchr::{memchr, memchr_iter};

use crate::fields::{FieldList, is_hop_by_hop, is_same_field};

/// Fields that are no trailers: of framing, routing, conditions, authentication, control of the response and
/// of how its content is to be read (RFC 9110 section 6.5.1).
const FORBIDDEN: &[&[u8]] = &[
    b"age",
    b"authorization",
    b"cache-control",
    b"content-encoding",
    b"content-length",
    b"content-range",
    b"content-type",
    b"cookie",
    b"date",
    b"expect",
    b"expires",
    b"forwarded",
    b"host",
    b"if-match",
    b"if-modified-since",
    b"if-none-match",
    b"if-range",
    b"if-unmodified-since",
    b"location",
    b"max-forwards",
    b"pragma",
    b"proxy",
    b"range",
    b"retry-after",
    b"server",
    b"set-cookie",
    b"te",
    b"transfer-encoding",
    b"vary",
    b"via",
    b"www-authenticate",
    b"x-real-ip",
    b"x-sendfile",
];
const FORBIDDEN_PREFIXES: &[&[u8]] = &[b"x-accel-", b"x-forwarded-", b"proxy-"];

/// The fields of a trailer section that are passed on. Each of `lines` ends with CR LF.
///
/// ```
/// let passed = headway_gateway::trailers::passed(b"Grpc-Status: 0\r\nHost: b\r\n");
/// assert_eq!(passed.iter().collect::<Vec<_>>(), [(&b"Grpc-Status"[..], &b"0"[..])]);
/// ```
pub fn passed(lines: &[u8]) -> FieldList {
    let mut fields = FieldList::default();
    let mut start = 0;
    for end in memchr_iter(b'\n', lines) {
        let line = &lines[start..end];
        start = end + 1;
        let Some(colon) = memchr(b':', line) else {
            continue;
        };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if is_field_name(name) && is_field_value(value) && may_be_passed(name) {
            fields.push(name, value);
        }
    }
    fields
}

fn may_be_passed(name: &[u8]) -> bool {
    let begins = |prefix: &[u8]| {
        name.get(..prefix.len())
            .is_some_and(|begin| is_same_field(prefix, begin))
    };
    !is_hop_by_hop(name)
        && !FORBIDDEN.iter().any(|known| is_same_field(known, name))
        && !FORBIDDEN_PREFIXES.iter().any(|prefix| begins(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_that_would_change_the_message_are_left_out() {
        let text = b"Grpc-Message: \ta b \r\nTE: x\r\nContent_Length: 3\r\nETag: \"a\"\r\n\
            X_Forwarded_For: 1\r\nX-Accel-Redirect: /a\r\nproxy-x: 1\r\nX-Own:\r\nConnection: x\r\n\
            Server-Timing: a\r\nAuthorization: b\r\nno field\r\nA b: c\r\ncut: of";
        let names: Vec<String> = passed(text)
            .iter()
            .map(|(name, _)| String::from_utf8(name.to_vec()).unwrap())
            .collect();
        assert_eq!(names, ["Grpc-Message", "ETag", "X-Own", "Server-Timing"]);
        assert_eq!(passed(text).get(b"grpc-message"), Some(&b"a b"[..]));
    }
}
