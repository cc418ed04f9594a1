//! Preconditions: whether the client already has what it asks for, or asks about another version.
//!
//! [`evaluate`] follows the order of RFC 9110 section 13.2.2: If-Match, else If-Unmodified-Since;
//! then If-None-Match, else If-Modified-Since. Only for GET and HEAD of something that would be
//! answered with 200; an error is answered whatever the preconditions say. A date that cannot be
//! read is as good as absent. If-Range is asked separately, after these, by [`if_range_holds`].

use std::borrow::Cow;

use crate::date;
use crate::etag;
use crate::fields::trim;
use crate::head::Method;

/// The precondition fields of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions<'b> {
    /// If-Match, all of them joined.
    pub if_match: Option<Cow<'b, [u8]>>,
    /// If-Unmodified-Since, unless repeated.
    pub if_unmodified_since: Option<&'b [u8]>,
    /// If-None-Match, all of them joined.
    pub if_none_match: Option<Cow<'b, [u8]>>,
    /// If-Modified-Since, unless repeated.
    pub if_modified_since: Option<&'b [u8]>,
}

impl Conditions<'_> {
    /// Whether the request has no precondition; most have none.
    pub fn is_empty(&self) -> bool {
        self.if_match.is_none()
            && self.if_unmodified_since.is_none()
            && self.if_none_match.is_none()
            && self.if_modified_since.is_none()
    }
}

/// What identifies the version we would send.
#[derive(Clone, Copy, Debug)]
pub struct Validators<'v> {
    /// Our strong entity tag, with its quotes.
    pub etag: &'v [u8],
    /// Last modification in seconds since 1970, as Last-Modified says it.
    pub last_modified: i64,
}

/// What the preconditions ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Answer as if there were none.
    Proceed,
    /// 304, with the validators and without a body.
    NotModified,
    /// 412.
    PreconditionFailed,
}

/// Weighs the preconditions against the version we have.
pub fn evaluate(method: Method, conditions: &Conditions<'_>, ours: &Validators<'_>) -> Outcome {
    // RFC 9110 13.2.1: methods that do not select a representation ignore preconditions.
    if conditions.is_empty() || !matches!(method, Method::Get | Method::Head) {
        return Outcome::Proceed;
    }
    if !is_expected_version(conditions, ours) {
        return Outcome::PreconditionFailed;
    }
    match is_known_to_client(conditions, ours) {
        true => Outcome::NotModified,
        false => Outcome::Proceed,
    }
}

/// Steps 1 and 2: If-Match, compared strongly, and only without it If-Unmodified-Since.
fn is_expected_version(conditions: &Conditions<'_>, ours: &Validators<'_>) -> bool {
    if let Some(list) = &conditions.if_match {
        return is_any(list) || etag::tags(list).any(|tag| tag.matches_strongly(ours.etag));
    }
    match conditions.if_unmodified_since.and_then(date::parse) {
        Some(date) => ours.last_modified <= date,
        None => true,
    }
}

/// Steps 3 and 4: If-None-Match, compared weakly, and only without it If-Modified-Since.
fn is_known_to_client(conditions: &Conditions<'_>, ours: &Validators<'_>) -> bool {
    if let Some(list) = &conditions.if_none_match {
        return is_any(list) || etag::tags(list).any(|tag| tag.matches_weakly(ours.etag));
    }
    match conditions.if_modified_since.and_then(date::parse) {
        Some(date) => ours.last_modified <= date,
        None => false,
    }
}

/// `*` means any version, and stands alone.
fn is_any(list: &[u8]) -> bool {
    trim(list) == b"*"
}

/// Whether the part the client has belongs to the version we have, so that a range completes it.
///
/// A tag is compared strongly, a date exactly; anything else does not hold, and the whole is sent.
/// Not promised: a date cannot tell two versions written within one second apart; a client that
/// cares sends the tag (RFC 9110 section 13.1.5).
pub fn if_range_holds(if_range: &[u8], ours: &Validators<'_>) -> bool {
    match if_range {
        [b'"', ..] | [b'W', b'/', ..] => {
            let mut tags = etag::tags(if_range);
            tags.next()
                .is_some_and(|tag| tag.matches_strongly(ours.etag))
                && tags.next().is_none()
        }
        _ => date::parse(if_range) == Some(ours.last_modified),
    }
}
