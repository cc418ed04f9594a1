//! A checked request head together with all of its fields.
//!
//! [`headway_http::Head`] keeps the fields the server acts on. Whoever passes a request on needs the others
//! as well; they are read again from the bytes the head was parsed from, which `http` has found
//! sound, so nothing is judged a second time here.

use memchr::{memchr, memchr_iter};

/// A request to be passed on.
#[derive(Clone, Copy, Debug)]
pub struct Request<'r> {
    /// What `http` made of it.
    pub head: &'r headway_http::Head<'r>,
    /// The field lines, each with its CR LF.
    lines: &'r [u8],
}

impl<'r> Request<'r> {
    /// A head and the buffer it was parsed from; what follows the head is not looked at.
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
        Request {
            head,
            lines: bytes[first_line..]
                .strip_suffix(b"\r\n")
                .unwrap_or_default(),
        }
    }

    /// Name and value of every field, in the order received, without white space around values.
    pub fn fields(&self) -> impl Iterator<Item = (&'r [u8], &'r [u8])> + use<'r> {
        let lines = self.lines;
        let starts = std::iter::once(0).chain(memchr_iter(b'\n', lines).map(|lf| lf + 1));
        starts
            .zip(memchr_iter(b'\n', lines))
            .filter_map(move |(start, lf)| {
                let line = &lines[start..lf];
                let colon = memchr(b':', line)?;
                Some((&line[..colon], line[colon + 1..].trim_ascii()))
            })
    }

    /// What a field means: the host is the target's, if that names one, whatever `Host` says (RFC
    /// 9112, 3.2.2).
    pub fn meant(&self, name: &[u8], value: &'r [u8]) -> &'r [u8] {
        match self.head.host {
            Some(host) if name.eq_ignore_ascii_case(b"host") => host,
            _ => value,
        }
    }

    /// The values of every field with this name, whatever its letter case.
    pub fn values<'n>(&self, name: &'n [u8]) -> impl Iterator<Item = &'r [u8]> + use<'r, 'n> {
        self.fields()
            .filter(move |(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }
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
    fn every_field_is_found_when_the_head_stands_among_other_bytes() {
        let found = fields(
            b"\r\nGET /a:b HTTP/1.1\r\nHost: x:80\r\nE:\r\nA: \t b c\t \r\n\r\nGET /next: x\r\n",
        );
        let expected = [("Host", "x:80"), ("E", ""), ("A", "b c")];
        assert_eq!(found, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }

    #[test]
    fn nothing_is_found_when_there_are_no_fields() {
        assert!(fields(b"GET / HTTP/1.0\r\n\r\nA: b\r\n").is_empty());
    }
}
