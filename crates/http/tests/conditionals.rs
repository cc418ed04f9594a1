//! Tests of preconditions in the order of RFC 9110 section 13.2.2: each row is the fields of a
//! request and the result for one fixed version.

use headway_http::conditional::{PreconditionResult, Validators, evaluate, if_range_matches};
use headway_http::etag::Tag;
use headway_http::{Head, HeadLimits, Parsed, parse};

use PreconditionResult::{NotModified, PreconditionFailed, Proceed};

/// The current version: tag "a", modified at `SAME`.
const OURS: Validators<'_> = Validators {
    etag: Tag {
        weak: false,
        opaque: b"\"a\"",
    },
    last_modified: 784_111_777,
    is_date_strong: true,
};
const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
const SAME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

fn with_head<T>(method: &str, fields: &[(&str, &str)], judge: impl FnOnce(&Head<'_>) -> T) -> T {
    let lines: String = fields
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let bytes = format!("{method} / HTTP/1.1\r\nHost: x\r\n{lines}\r\n");
    let Parsed::Complete(head) = parse(bytes.as_bytes(), &HeadLimits::default()) else {
        panic!("not a head: {bytes}");
    };
    judge(&head)
}

fn outcome(method: &str, fields: &[(&str, &str)]) -> PreconditionResult {
    with_head(method, fields, |head| {
        evaluate(head.method, &head.conditions, &OURS)
    })
}

const IM: &str = "If-Match";
const IUS: &str = "If-Unmodified-Since";
const INM: &str = "If-None-Match";
const IMS: &str = "If-Modified-Since";

#[rustfmt::skip]
const ROWS: &[(&[(&str, &str)], PreconditionResult)] = &[
    (&[], Proceed),
    // Step 1: If-Match, strongly.
    (&[(IM, "\"a\"")], Proceed),
    (&[(IM, "\"b\"")], PreconditionFailed),
    (&[(IM, "\"b\", \"a\"")], Proceed),
    (&[(IM, "\"b\""), (IM, "\"a\"")], Proceed),
    (&[(IM, "\"b\""), (IM, "\"c\"")], PreconditionFailed),
    (&[(IM, "W/\"a\"")], PreconditionFailed),
    (&[(IM, "W/\"a\", \"a\"")], Proceed),
    (&[(IM, "*")], Proceed),
    (&[(IM, "a")], PreconditionFailed),
    (&[(IM, "")], PreconditionFailed),
    (&[(IM, "\"A\"")], PreconditionFailed),
    // Step 2: If-Unmodified-Since, only without If-Match.
    (&[(IUS, SAME)], Proceed),
    (&[(IUS, AFTER)], Proceed),
    (&[(IUS, BEFORE)], PreconditionFailed),
    (&[(IUS, "yesterday")], Proceed),
    (&[(IUS, BEFORE), (IUS, BEFORE)], Proceed),
    (&[(IM, "\"a\""), (IUS, BEFORE)], Proceed),
    (&[(IM, "\"b\""), (IUS, AFTER)], PreconditionFailed),
    // Step 3: If-None-Match, weakly.
    (&[(INM, "\"a\"")], NotModified),
    (&[(INM, "W/\"a\"")], NotModified),
    (&[(INM, "\"b\"")], Proceed),
    (&[(INM, "\"b\", W/\"c\", \"a\"")], NotModified),
    (&[(INM, "\"b\""), (INM, "\"a\"")], NotModified),
    (&[(INM, "*")], NotModified),
    (&[(INM, " * ")], NotModified),
    (&[(INM, "\"b\", *")], Proceed),
    (&[(INM, "a")], Proceed),
    (&[(INM, "\"a")], Proceed),
    (&[(INM, "\"x,\"a\"")], Proceed),
    (&[(INM, "")], Proceed),
    // Step 4: If-Modified-Since, only without If-None-Match.
    (&[(IMS, SAME)], NotModified),
    (&[(IMS, AFTER)], NotModified),
    (&[(IMS, BEFORE)], Proceed),
    (&[(IMS, "Sunday, 06-Nov-94 08:49:37 GMT")], NotModified),
    (&[(IMS, "Sun Nov  6 08:49:37 1994")], NotModified),
    (&[(IMS, "0")], Proceed),
    (&[(IMS, "")], Proceed),
    (&[(IMS, SAME), (IMS, SAME)], Proceed),
    (&[(INM, "\"b\""), (IMS, AFTER)], Proceed),
    (&[(INM, "\"a\""), (IMS, BEFORE)], NotModified),
    (&[(INM, "rubbish"), (IMS, AFTER)], Proceed),
    // Steps 1 and 2 come before 3 and 4.
    (&[(IM, "\"b\""), (INM, "\"a\"")], PreconditionFailed),
    (&[(IM, "\"a\""), (INM, "\"a\"")], NotModified),
    (&[(IM, "\"a\""), (INM, "\"b\"")], Proceed),
    (&[(IUS, BEFORE), (INM, "\"a\"")], PreconditionFailed),
    (&[(IUS, SAME), (INM, "\"a\"")], NotModified),
    (&[(IUS, BEFORE), (IMS, AFTER)], PreconditionFailed),
    (&[(IM, "*"), (IUS, BEFORE), (INM, "\"b\""), (IMS, AFTER)], Proceed),
];

#[test]
fn preconditions_are_evaluated_in_the_order_of_rfc_9110() {
    for (fields, expected) in ROWS {
        for method in ["GET", "HEAD"] {
            assert_eq!(outcome(method, fields), *expected, "{method} {fields:?}");
        }
    }
}

#[test]
fn preconditions_are_ignored_when_the_method_selects_nothing() {
    for method in ["OPTIONS", "POST", "TRACE"] {
        assert_eq!(
            outcome(method, &[(IM, "\"b\""), (INM, "\"a\"")]),
            Proceed,
            "{method}"
        );
    }
}

#[test]
fn if_range_matches_only_the_same_strong_validator() {
    for (field, expected) in [
        ("\"a\"", true),
        ("\"b\"", false),
        ("W/\"a\"", false),
        ("\"a\", \"b\"", false),
        ("\"b\", \"a\"", false),
        ("\"a", false),
        ("a", false),
        ("*", false),
        ("", false),
        (SAME, true),
        (BEFORE, false),
        (AFTER, false),
        ("Sun Nov  6 08:49:37 1994", true),
    ] {
        assert_eq!(
            if_range_matches(field.as_bytes(), &OURS),
            expected,
            "{field}"
        );
    }
}

#[test]
fn if_range_matches_neither_a_weak_tag_nor_a_weak_date() {
    let ours = Validators {
        etag: Tag {
            weak: true,
            ..OURS.etag
        },
        is_date_strong: false,
        ..OURS
    };
    for field in ["\"a\"", "W/\"a\"", SAME] {
        assert!(!if_range_matches(field.as_bytes(), &ours), "{field}");
    }
}
