//! Preconditions: whether the client already has the current version, or expects another one.
//!
//! [`evaluate`] follows the order of RFC 9110 section 13.2.2: If-Match, else If-Unmodified-Since;
//! then If-None-Match, else If-Modified-Since. It applies to GET and HEAD of a resource that would
//! be answered with 200; errors ignore preconditions. A malformed date counts as absent. If-Range
//! is evaluated separately, after these, by [`if_range_matches`].

use std::borrow::Cow;

use crate::date;
use crate::etag::{self, Tag};
use crate::fields::trim;
use crate::head::Method;

/// The precondition fields of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions<'b> {
    /// If-Match, with repeated fields joined.
    pub if_match: Option<Cow<'b, [u8]>>,
    /// If-Unmodified-Since, unless repeated.
    pub if_unmodified_since: Option<&'b [u8]>,
    /// If-None-Match, with repeated fields joined.
    pub if_none_match: Option<Cow<'b, [u8]>>,
    /// If-Modified-Since, unless repeated.
    pub if_modified_since: Option<&'b [u8]>,
}

impl Conditions<'_> {
    /// Whether the request has no precondition, which is the common case.
    pub fn is_empty(&self) -> bool {
        self.if_match.is_none()
            && self.if_unmodified_since.is_none()
            && self.if_none_match.is_none()
            && self.if_modified_since.is_none()
    }
}

/// The validators of the current version.
#[derive(Clone, Copy, Debug)]
pub struct Validators<'v> {
    /// The entity tag.
    pub etag: Tag<'v>,
    /// The last modification in seconds since 1970.
    pub last_modified: i64,
    /// Whether that second was over when the version was last checked. Until then the date stands for
    /// any version that is written in the same second (RFC 9110 section 8.8.2.2).
    pub is_date_strong: bool,
}

/// The result of evaluating preconditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreconditionResult {
    /// Answer as if there were no preconditions.
    Proceed,
    /// Answer with 304, with the validators and without a body.
    NotModified,
    /// Answer with 412.
    PreconditionFailed,
}

/// Evaluates preconditions against the current version.
///
/// ```
/// use headway_http::conditional::{PreconditionResult, Validators, evaluate};
/// use headway_http::{HeadLimits, Parsed, parse};
/// let request = b"GET / HTTP/1.1\r\nHost: x\r\nIf-None-Match: \"v1\"\r\n\r\n";
/// let Parsed::Complete(head) = parse(request, &HeadLimits::default()) else { panic!() };
/// let etag = headway_http::etag::tags(b"\"v1\"").next().unwrap();
/// let current = Validators { etag, last_modified: 0, is_date_strong: true };
/// let result = evaluate(head.method, &head.conditions, &current);
/// assert_eq!(result, PreconditionResult::NotModified);
/// ```
pub fn evaluate(
    method: Method,
    conditions: &Conditions<'_>,
    ours: &Validators<'_>,
) -> PreconditionResult {
    // Methods that do not select a representation ignore preconditions (RFC 9110 section 13.2.1).
    if conditions.is_empty() || !matches!(method, Method::Get | Method::Head) {
        return PreconditionResult::Proceed;
    }
    if !is_expected_version(conditions, ours) {
        return PreconditionResult::PreconditionFailed;
    }
    match is_known_to_client(conditions, ours) {
        true => PreconditionResult::NotModified,
        false => PreconditionResult::Proceed,
    }
}

/// Evaluates preconditions for what exists but has neither tag nor date: no tag of a client is its
/// own, and conditions by date are ignored (RFC 9110 sections 13.1.3 and 13.1.4).
///
/// ```
/// use headway_http::conditional::{PreconditionResult, evaluate_without_validators};
/// use headway_http::{HeadLimits, Parsed, parse};
/// let request = b"GET / HTTP/1.1\r\nHost: x\r\nIf-Match: \"v1\"\r\n\r\n";
/// let Parsed::Complete(head) = parse(request, &HeadLimits::default()) else { panic!() };
/// let result = evaluate_without_validators(head.method, &head.conditions);
/// assert_eq!(result, PreconditionResult::PreconditionFailed);
/// ```
pub fn evaluate_without_validators(
    method: Method,
    conditions: &Conditions<'_>,
) -> PreconditionResult {
    let (expected, known) = (&conditions.if_match, &conditions.if_none_match);
    if !matches!(method, Method::Get | Method::Head) {
        PreconditionResult::Proceed
    } else if expected.as_ref().is_some_and(|list| !is_any(list)) {
        PreconditionResult::PreconditionFailed
    } else if known.as_ref().is_some_and(|list| is_any(list)) {
        PreconditionResult::NotModified
    } else {
        PreconditionResult::Proceed
    }
}

/// Steps 1 and 2: If-Match with strong comparison; If-Unmodified-Since only without it.
fn is_expected_version(conditions: &Conditions<'_>, ours: &Validators<'_>) -> bool {
    if let Some(list) = &conditions.if_match {
        return is_any(list) || etag::tags(list).any(|tag| tag.matches_strongly(&ours.etag));
    }
    match conditions.if_unmodified_since.and_then(date::parse) {
        Some(date) => ours.last_modified <= date,
        None => true,
    }
}

/// Steps 3 and 4: If-None-Match with weak comparison; If-Modified-Since only without it.
fn is_known_to_client(conditions: &Conditions<'_>, ours: &Validators<'_>) -> bool {
    if let Some(list) = &conditions.if_none_match {
        return is_any(list) || etag::tags(list).any(|tag| tag.matches_weakly(&ours.etag));
    }
    match conditions.if_modified_since.and_then(date::parse) {
        Some(date) => ours.last_modified <= date,
        None => false,
    }
}

/// Whether the list is `*`, which means any version and must stand alone.
fn is_any(list: &[u8]) -> bool {
    trim(list) == b"*"
}

/// Whether If-Range matches the current version, so that a range completes what the client has.
///
/// A tag is compared strongly and a date exactly; anything else does not match, and the whole file
/// is sent. So does a date that is no strong validator (RFC 9110 section 13.1.5).
///
/// ```
/// use headway_http::conditional::{Validators, if_range_matches};
/// let etag = headway_http::etag::tags(b"\"v1\"").next().unwrap();
/// let current = Validators { etag, last_modified: 784_111_777, is_date_strong: true };
/// assert!(if_range_matches(b"\"v1\"", &current));
/// assert!(if_range_matches(b"Sun, 06 Nov 1994 08:49:37 GMT", &current));
/// assert!(!if_range_matches(b"W/\"v1\"", &current));
/// ```
pub fn if_range_matches(if_range: &[u8], ours: &Validators<'_>) -> bool {
    match if_range {
        [b'"', ..] | [b'W', b'/', ..] => {
            let mut tags = etag::tags(if_range);
            tags.next()
                .is_some_and(|tag| tag.matches_strongly(&ours.etag))
                && tags.next().is_none()
        }
        _ => ours.is_date_strong && date::parse(if_range) == Some(ours.last_modified),
    }
}
