//! The request fields Headway understands, gathered in one pass over the head.
//!
//! Each known field is found by its length and one comparison without letter case; all others cost
//! the length test only. What is gathered here has not been checked against other fields yet; that
//! is `head`'s part, since framing depends on several of them together.
//!
//! A list field that comes several times is the same as its values joined by commas (RFC 9110
//! section 5.3), and is joined, the only allocation in the crate's request path; the size is
//! bounded by the head. A singleton field that comes several times is remembered as repeated, and
//! whoever asks decides what that means: a rejection where framing or routing depends on it,
//! absence where the field is only advice.

use std::borrow::Cow;

use crate::head::Reject;
use crate::status::Status;

/// A field that may come once.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) enum Once<'b> {
    #[default]
    Absent,
    One(&'b [u8]),
    Repeated,
}

impl<'b> Once<'b> {
    fn add(&mut self, value: &'b [u8]) {
        *self = match self {
            Once::Absent => Once::One(value),
            Once::One(_) | Once::Repeated => Once::Repeated,
        };
    }

    /// The value, if there is exactly one.
    pub(crate) fn only(self) -> Option<&'b [u8]> {
        match self {
            Once::One(value) => Some(value),
            Once::Absent | Once::Repeated => None,
        }
    }

    pub(crate) fn is_repeated(self) -> bool {
        matches!(self, Once::Repeated)
    }
}

/// The raw values of the known fields.
#[derive(Default)]
pub(crate) struct Fields<'b> {
    pub(crate) host: Once<'b>,
    pub(crate) content_length: Once<'b>,
    pub(crate) transfer_encoding: Option<Cow<'b, [u8]>>,
    pub(crate) close: bool,
    pub(crate) keep_alive: bool,
    pub(crate) expect_continue: bool,
    pub(crate) expect_unknown: bool,
    pub(crate) range: Once<'b>,
    pub(crate) if_range: Once<'b>,
    pub(crate) if_match: Option<Cow<'b, [u8]>>,
    pub(crate) if_none_match: Option<Cow<'b, [u8]>>,
    pub(crate) if_modified_since: Once<'b>,
    pub(crate) if_unmodified_since: Once<'b>,
    pub(crate) accept_encoding: Option<Cow<'b, [u8]>>,
    pub(crate) referer: Once<'b>,
    pub(crate) user_agent: Once<'b>,
}

impl<'b> Fields<'b> {
    /// Takes note of one field; unknown ones are passed over.
    #[inline]
    pub(crate) fn take(&mut self, name: &'b [u8], value: &'b [u8]) {
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
        for option in elements(value) {
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
    /// `5, 5` and a repeated field could be merged, and a `+5` could be read; two parties that do
    /// so differently disagree where the next request starts, so all of them are refused.
    pub(crate) fn body_bytes(&self) -> Result<Option<u64>, Reject> {
        let digits = match self.content_length {
            Once::Absent => return Ok(None),
            Once::Repeated => return Err(Reject::bad("repeated Content-Length")),
            Once::One(value) => value,
        };
        decimal(digits)
            .map(Some)
            .ok_or(Reject::bad("Content-Length is not a number"))
    }

    /// Refuses every Transfer-Encoding but exactly `chunked` (RFC 9112 section 6.1).
    pub(crate) fn check_chunked(list: &[u8]) -> Result<(), Reject> {
        let is_chunked = |coding: &&[u8]| coding.eq_ignore_ascii_case(b"chunked");
        let codings = elements(list).count();
        let chunked = elements(list).filter(is_chunked).count();
        let last_is_chunked = elements(list).last().as_ref().is_some_and(is_chunked);
        match (codings, chunked, last_is_chunked) {
            (1, 1, true) => Ok(()),
            // The length is known, but the coding underneath is one we do not have.
            (_, 1, true) => Err(Reject::closing(
                Status::NOT_IMPLEMENTED,
                "unknown transfer coding",
            )),
            // Without a final chunked the length of the body cannot be known (6.3, case 4).
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

/// The elements of a comma-separated list without quoted strings; empty ones are passed over, as
/// RFC 9110 section 5.6.1.2 tells recipients to.
pub fn elements(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| *byte == b',')
        .map(trim)
        .filter(|element| !element.is_empty())
}

/// Without spaces and tabs around.
pub(crate) fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// The number these bytes are: digits only, no sign, at least one, within 64 bits.
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
