//! Collects the known request header fields in one pass.
//!
//! Each known field is found by its length and one case-insensitive comparison; other fields cost
//! the length test only. The values are not checked against each other here: `head` does that,
//! since framing depends on several fields together.
//!
//! A repeated list field equals its values joined by commas (RFC 9110 section 5.3) and is joined.
//! This is the crate's only allocation for a request; its size is limited by the header. A repeated
//! singleton field is recorded as repeated. Its user decides what that means: a rejection where
//! framing or routing depends on it, absence where the field is only advice.

use std::borrow::Cow;

use crate::head::Reject;
use crate::status::Status;

/// The most options that all `Connection` fields together can have. Real requests have three. Each
/// option names a field which a proxy must look for, so the work grows with their number.
pub const CONNECTION_OPTIONS_MAX: usize = 64;

/// A field that may occur once.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) enum Singleton<'b> {
    #[default]
    Absent,
    One(&'b [u8]),
    Repeated,
}

impl<'b> Singleton<'b> {
    fn add(&mut self, value: &'b [u8]) {
        *self = match self {
            Singleton::Absent => Singleton::One(value),
            Singleton::One(_) | Singleton::Repeated => Singleton::Repeated,
        };
    }

    /// The value, if the field occurs exactly once.
    pub(crate) fn single(self) -> Option<&'b [u8]> {
        match self {
            Singleton::One(value) => Some(value),
            Singleton::Absent | Singleton::Repeated => None,
        }
    }

    pub(crate) fn is_repeated(self) -> bool {
        matches!(self, Singleton::Repeated)
    }
}

/// The raw values of the known fields.
#[derive(Default)]
pub(crate) struct KnownFields<'b> {
    pub(crate) host: Singleton<'b>,
    pub(crate) content_length: Singleton<'b>,
    pub(crate) transfer_encoding: Option<Cow<'b, [u8]>>,
    pub(crate) connection_options: usize,
    pub(crate) close: bool,
    pub(crate) keep_alive: bool,
    pub(crate) expect_continue: bool,
    pub(crate) expect_unknown: bool,
    pub(crate) range: Singleton<'b>,
    pub(crate) if_range: Singleton<'b>,
    pub(crate) if_match: Option<Cow<'b, [u8]>>,
    pub(crate) if_none_match: Option<Cow<'b, [u8]>>,
    pub(crate) if_modified_since: Singleton<'b>,
    pub(crate) if_unmodified_since: Singleton<'b>,
    pub(crate) accept_encoding: Option<Cow<'b, [u8]>>,
    pub(crate) referer: Singleton<'b>,
    pub(crate) user_agent: Singleton<'b>,
}

impl<'b> KnownFields<'b> {
    /// Records one field; unknown fields are ignored.
    #[inline]
    pub(crate) fn add(&mut self, name: &'b [u8], value: &'b [u8]) {
        let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
        match name.len() {
            4 if is(b"host") => self.host.add(value),
            5 if is(b"range") => self.range.add(value),
            6 if is(b"expect") => self.expect(value),
            7 if is(b"referer") => self.referer.add(value),
            8 if is(b"if-match") => join(&mut self.if_match, value),
            8 if is(b"if-range") => self.if_range.add(value),
            10 if is(b"connection") => self.connection(value),
            10 if is(b"user-agent") => self.user_agent.add(value),
            13 if is(b"if-none-match") => join(&mut self.if_none_match, value),
            14 if is(b"content-length") => self.content_length.add(value),
            15 if is(b"accept-encoding") => join(&mut self.accept_encoding, value),
            17 if is(b"if-modified-since") => self.if_modified_since.add(value),
            17 if is(b"transfer-encoding") => join(&mut self.transfer_encoding, value),
            19 if is(b"if-unmodified-since") => self.if_unmodified_since.add(value),
            _ => {}
        }
    }

    fn connection(&mut self, value: &[u8]) {
        // One more than there may be is enough to reject them.
        for option in elements(value).take(CONNECTION_OPTIONS_MAX + 1) {
            self.connection_options += 1;
            self.close |= option.eq_ignore_ascii_case(b"close");
            self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }

    fn expect(&mut self, value: &[u8]) {
        for expectation in elements(value) {
            match expectation.eq_ignore_ascii_case(b"100-continue") {
                true => self.expect_continue = true,
                false => self.expect_unknown = true,
            }
        }
    }

    /// Content-Length as a number (RFC 9112 section 6.3).
    ///
    /// `5, 5` and a repeated field could be merged, and `+5` could be accepted. But parties that
    /// treat these differently disagree about where the next request starts, so all of them are
    /// rejected.
    pub(crate) fn body_bytes(&self) -> Result<Option<u64>, Reject> {
        let digits = match self.content_length {
            Singleton::Absent => return Ok(None),
            Singleton::Repeated => return Err(Reject::bad("repeated Content-Length")),
            Singleton::One(value) => value,
        };
        decimal(digits)
            .map(Some)
            .ok_or(Reject::bad("Content-Length is not a number"))
    }

    /// Rejects every Transfer-Encoding except `chunked` (RFC 9112 section 6.1).
    pub(crate) fn check_chunked(list: &[u8]) -> Result<(), Reject> {
        let is_chunked = |coding: &&[u8]| coding.eq_ignore_ascii_case(b"chunked");
        let codings = elements(list).count();
        let chunked = elements(list).filter(is_chunked).count();
        let last_is_chunked = elements(list).last().as_ref().is_some_and(is_chunked);
        match (codings, chunked, last_is_chunked) {
            (1, 1, true) => Ok(()),
            // The length is known, but the inner coding is not implemented.
            (_, 1, true) => Err(Reject::closing(
                Status::NOT_IMPLEMENTED,
                "unknown transfer coding",
            )),
            // Without a final `chunked` the length of the body is unknown (section 6.3, case 4).
            _ => Err(Reject::bad("Transfer-Encoding does not end in one chunked")),
        }
    }
}

fn join<'b>(list: &mut Option<Cow<'b, [u8]>>, value: &'b [u8]) {
    match list {
        None => *list = Some(Cow::Borrowed(value)),
        Some(earlier) => {
            let joined = earlier.to_mut();
            joined.extend_from_slice(b", ");
            joined.extend_from_slice(value);
        }
    }
}

/// The elements of a comma-separated list without quoted strings. Empty elements are skipped (RFC
/// 9110 section 5.6.1.2).
///
/// ```
/// let elements: Vec<&[u8]> = headway_http::elements(b"keep-alive, ,Upgrade").collect();
/// assert_eq!(elements, [&b"keep-alive"[..], b"Upgrade"]);
/// ```
pub fn elements(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| *byte == b',')
        .map(trim)
        .filter(|element| !element.is_empty())
}

/// Removes spaces and tabs at both ends.
pub(crate) fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// Parses a decimal number: digits only, no sign, at least one digit, at most 64 bits.
///
/// ```
/// assert_eq!(headway_http::decimal(b"512"), Some(512));
/// assert_eq!(headway_http::decimal(b"+512"), None);
/// ```
pub fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, byte| {
        let digit = byte.wrapping_sub(b'0');
        match digit < 10 {
            true => number.checked_mul(10)?.checked_add(u64::from(digit)),
            false => None,
        }
    })
}
