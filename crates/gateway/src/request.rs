//! A validated request head together with all of its fields.
//!
//! [`headway_http::Head`] keeps only the fields that the server acts on. A request that is passed
//! on needs the others as well; they are read again from the bytes that the head was parsed from,
//! without validating them a second time.

use memchr::memchr;

use crate::trace_context::TraceContext;

/// A request to be passed on.
#[derive(Clone, Copy, Debug)]
pub struct Request<'r> {
    /// The parsed head.
    pub head: &'r headway_http::Head<'r>,
    /// The field lines, each with its CR LF.
    lines: &'r [u8],
    /// A bit of each name: most names that are looked up are absent, and their bits too.
    names: u64,
    /// The trace that the request belongs to.
    trace: Option<&'r TraceContext>,
}

impl<'r> Request<'r> {
    /// Combines a head with the buffer it was parsed from; bytes after the head are ignored.
    ///
    /// ```
    /// use headway_http::{HeadLimits, Parsed};
    ///
    /// let bytes = b"GET / HTTP/1.1\r\nHost: x\r\nA:  b \r\n\r\n";
    /// let Parsed::Complete(head) = headway_http::parse(bytes, &HeadLimits::default()) else { panic!() };
    /// let request = headway_gateway::Request::new(&head, bytes);
    /// assert_eq!(request.fields().last(), Some((&b"A"[..], &b"b"[..])));
    /// ```
    pub fn new(head: &'r headway_http::Head<'r>, bytes: &'r [u8]) -> Request<'r> {
        let bytes = &bytes[..head.length.min(bytes.len())];
        let start = bytes.len() - bytes.strip_prefix(b"\r\n").unwrap_or(bytes).len();
        let first_line = memchr(b'\n', &bytes[start..]).map_or(bytes.len(), |at| start + at + 1);
        let lines = bytes[first_line..].strip_suffix(b"\r\n");
        let mut request = Request {
            head,
            lines: lines.unwrap_or_default(),
            names: 0,
            trace: None,
        };
        let names = request.raw_fields().map(|(name, _)| bit_of(name));
        request.names = names.fold(0, |all, bit| all | bit);
        request
    }

    /// Has the fields of a trace take the place of the client's.
    pub fn with_trace(self, trace: Option<&'r TraceContext>) -> Request<'r> {
        Request { trace, ..self }
    }

    /// Name and value of every field in the order received, without white space around values. Those of
    /// the trace come last.
    pub fn fields(&self) -> impl Iterator<Item = (&'r [u8], &'r [u8])> + use<'r> {
        let trace = self.trace;
        self.raw_fields()
            .filter(move |(name, _)| trace.is_none_or(|trace| !trace.replaces(name)))
            .map(|(name, value)| (name, value.trim_ascii()))
            .chain(trace.into_iter().flat_map(TraceContext::fields))
    }

    /// The fields with the white space around their values, of which there may be kilobytes.
    fn raw_fields(&self) -> impl Iterator<Item = (&'r [u8], &'r [u8])> + use<'r> {
        let mut rest = self.lines;
        let lines = std::iter::from_fn(move || {
            let (line, after) = rest.split_at(memchr(b'\n', rest)?);
            rest = &after[1..];
            Some(line)
        });
        lines.filter_map(|line| {
            let (name, value) = line.split_at(memchr(b':', line)?);
            Some((name, &value[1..]))
        })
    }

    /// The effective value of a field: a host in the request target replaces the `Host` field (RFC
    /// 9112, 3.2.2).
    pub fn effective_value(&self, name: &[u8], value: &'r [u8]) -> &'r [u8] {
        match self.head.host {
            Some(host) if name.eq_ignore_ascii_case(b"host") => host,
            _ => value,
        }
    }

    /// The values of every field with this name, ignoring case.
    pub fn values<'n>(&self, name: &'n [u8]) -> impl Iterator<Item = &'r [u8]> + use<'r, 'n> {
        let may_be_there = self.names & bit_of(name) != 0;
        let fields = may_be_there.then(|| self.raw_fields()).into_iter();
        fields
            .flatten()
            .filter(move |(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim_ascii())
    }
}

/// A bit that names share if they are equal but for case, and few others.
fn bit_of(name: &[u8]) -> u64 {
    let first = name.first().map_or(0, |byte| u64::from(*byte | 0x20));
    1 << ((first ^ (name.len() as u64 * 7)) % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_http::{HeadLimits, Parsed};

    fn fields(bytes: &[u8]) -> Vec<(String, String)> {
        let Parsed::Complete(head) = headway_http::parse(bytes, &HeadLimits::default()) else {
            panic!("{}", bytes.escape_ascii());
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Request::new(&head, bytes)
            .fields()
            .map(|(name, value)| (text(name), text(value)))
            .collect()
    }

    #[test]
    fn fields_are_found_when_other_bytes_follow_the_head() {
        let found = fields(
            b"\r\nGET /a:b HTTP/1.1\r\nHost: x:80\r\nE:\r\nA: \t b c\t \r\n\r\nGET /next: x\r\n",
        );
        let expected = [("Host", "x:80"), ("E", ""), ("A", "b c")];
        assert_eq!(found, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }

    #[test]
    fn values_are_found_in_any_case_of_their_name() {
        let bytes = b"GET / HTTP/1.1\r\nHost: x\r\nX-A: 1\r\nx-a:2 \r\nX-B: 3\r\n: 4\r\n\r\n";
        let head = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        let Parsed::Complete(head) = headway_http::parse(head, &HeadLimits::default()) else {
            panic!("not a header");
        };
        let head = headway_http::Head {
            length: bytes.len(),
            ..head
        };
        let request = Request::new(&head, bytes);
        let values = |name: &[u8]| request.values(name).collect::<Vec<_>>();
        assert_eq!(values(b"x-A"), [b"1", b"2"]);
        assert_eq!(values(b"HOST"), [b"x"]);
        assert_eq!(values(b""), [b"4"]);
        assert!(values(b"X-C").is_empty() && values(b"te").is_empty());
    }

    #[test]
    fn request_without_fields_has_none() {
        assert!(fields(b"GET / HTTP/1.0\r\n\r\nA: b\r\n").is_empty());
    }
}
