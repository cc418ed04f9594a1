//! Lists of header fields that may be sent, and the hop-by-hop fields.
//!
//! A [`FieldList`] contains nothing that could end a field line early: the caller has validated
//! each field, and the list checks again.
//!
//! Sources: RFC 9110 sections 5.1 (names), 5.5 (values), 7.6.1 (hop-by-hop fields).

use std::collections::BTreeSet;
use std::fmt;

use headway_http::elements;
use headway_http::response::{is_field_name, is_field_value};

use crate::pairs::Pairs;

/// Header fields in the order received, including repeated ones, all valid in a head.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct FieldList(Pairs);

impl FieldList {
    /// Adds a field. A field that would split the head (an invalid name; CR, LF or NUL in the
    /// value) is left out. That is a bug of the caller, and debug builds panic.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        let safe = is_field_name(name) && is_field_value(value);
        debug_assert!(safe, "unsafe field {}", name.escape_ascii());
        if safe {
            self.0.push(name, value);
        }
    }

    /// Iterates over names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.iter()
    }

    /// The value of the first field with this name, ignoring case.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter()
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// Number of fields.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes the fields with this name, ignoring case, for fields that the server sets itself.
    pub fn remove(&mut self, name: &[u8]) {
        if self.get(name).is_some() {
            self.0.retain(|found, _| !found.eq_ignore_ascii_case(name));
        }
    }

    /// Removes the fields that `Connection` names.
    pub(crate) fn remove_named(&mut self, named: &NamedFields) {
        if self.iter().any(|(name, _)| named.contains(name)) {
            self.0.retain(|name, _| !named.contains(name));
        }
    }

    /// Writes all field lines, without the empty line that ends a head.
    pub fn write(&self, out: &mut Vec<u8>) {
        for (name, value) in self.iter() {
            write_field(out, name, value);
        }
    }
}

impl fmt::Debug for FieldList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(
                self.iter().map(|(name, value)| {
                    format!("{}: {}", name.escape_ascii(), value.escape_ascii())
                }),
            )
            .finish()
    }
}

/// The fields that `Connection` names, so that they end here (RFC 9110 section 7.6.1). Looking for one
/// costs about the same however many there are: a list of thousands must not be searched for each
/// field.
#[derive(Debug, Default)]
pub(crate) struct NamedFields(BTreeSet<Vec<u8>>);

impl NamedFields {
    /// Adds the options of a `Connection` field. `close` and `keep-alive` name no field.
    pub(crate) fn add(&mut self, connection: &[u8]) {
        let is = |option: &[u8], known: &[u8]| option.eq_ignore_ascii_case(known);
        let names = elements(connection)
            .filter(|option| !is(option, b"close") && !is(option, b"keep-alive"));
        self.0.extend(names.map(<[u8]>::to_ascii_lowercase));
    }

    pub(crate) fn contains(&self, name: &[u8]) -> bool {
        !self.0.is_empty() && self.0.contains(&name.to_ascii_lowercase())
    }
}

/// Writes one field line, which the caller has validated.
pub(crate) fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Whether a field applies to one connection only and must not be passed on.
///
/// RFC 9110 section 7.6.1, plus what clients send to proxies (`Proxy-Connection`) and what proxies
/// ask of clients (`Proxy-Authenticate`, `Proxy-Authorization`): a gateway is neither.
pub fn is_hop_by_hop(name: &[u8]) -> bool {
    const NAMES: &[&[u8]] = &[
        b"te",
        b"trailer",
        b"upgrade",
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"transfer-encoding",
        b"proxy-authenticate",
        b"proxy-authorization",
    ];
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Whether a name is that of a known field, given in lower case. Upstreams that treat `_` like `-` must
/// not get what is removed.
pub(crate) fn is_same_field(known: &[u8], name: &[u8]) -> bool {
    known.len() == name.len()
        && known.iter().zip(name).all(|(known, byte)| match byte {
            b'_' => *known == b'-',
            _ => *known == byte.to_ascii_lowercase(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(fields: &[(&str, &str)]) -> FieldList {
        let mut list = FieldList::default();
        for (name, value) in fields {
            list.push(name.as_bytes(), value.as_bytes());
        }
        list
    }

    #[test]
    fn field_list_keeps_order_and_repetition() {
        let mut list = list(&[
            ("A", "1"),
            ("Set-Cookie", "x"),
            ("a", ""),
            ("set-cookie", "y"),
        ]);
        assert_eq!(list.get(b"SET-COOKIE"), Some(&b"x"[..]));
        list.remove(b"A");
        let mut out = b"before\r\n".to_vec();
        list.write(&mut out);
        assert_eq!(out, b"before\r\nSet-Cookie: x\r\nset-cookie: y\r\n");
        assert_eq!(list.len(), 2);
    }

    #[test]
    fn field_that_would_split_the_head_is_dropped() {
        for (name, value) in [
            ("A", "b\r\nC: d"),
            ("A", "b\nc"),
            ("A\r\nB", "c"),
            ("", "a"),
            ("A", "\0"),
        ] {
            let mut list = FieldList::default();
            let pushed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                list.push(name.as_bytes(), value.as_bytes());
            }));
            assert_eq!(
                pushed.is_err(),
                cfg!(debug_assertions),
                "{name:?}: {value:?}"
            );
            assert!(list.is_empty(), "{name:?}: {value:?}");
        }
    }
}
