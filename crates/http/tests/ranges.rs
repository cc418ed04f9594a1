//! Tests of byte ranges: the examples of RFC 9110 sections 14.1.2 and 14.2, abuse, and a naive
//! model.

use headway_http::range::{RANGES_MAX, Ranges, ranges};
use proptest::prelude::*;

/// `whole`, `416`, or the ranges as `first-last` with both included.
fn described(found: &Ranges) -> String {
    match found {
        Ranges::Whole => "whole".to_owned(),
        Ranges::Unsatisfiable => "416".to_owned(),
        Ranges::Satisfiable(set) => {
            let parts: Vec<_> = set
                .iter()
                .map(|range| format!("{}-{}", range.start, range.end_exclusive - 1))
                .collect();
            parts.join(",")
        }
    }
}

#[rustfmt::skip]
const ROWS: &[(&str, u64, &str)] = &[
    // RFC 9110 section 14.1.2, a representation of 10000 bytes.
    ("bytes=0-499", 10_000, "0-499"),
    ("bytes=500-999", 10_000, "500-999"),
    ("bytes=-500", 10_000, "9500-9999"),
    ("bytes=9500-", 10_000, "9500-9999"),
    ("bytes=0-0,-1", 10_000, "0-0,9999-9999"),
    ("bytes= 0-999, 4500-5499, -1000", 10_000, "0-999,4500-5499,9000-9999"),
    ("bytes=500-600,601-999", 10_000, "500-600,601-999"),
    ("bytes=500-700,601-999", 10_000, "500-999"),
    ("bytes=601-999,500-600", 10_000, "601-999,500-600"),
    // Clamped to the size.
    ("bytes=0-", 10_000, "0-9999"),
    ("bytes=0-9999", 10_000, "0-9999"),
    ("bytes=0-10000", 10_000, "0-9999"),
    ("bytes=9999-20000", 10_000, "9999-9999"),
    ("bytes=-10001", 10_000, "0-9999"),
    ("bytes=0-18446744073709551615", 10_000, "0-9999"),
    ("bytes=0-99999999999999999999999", 10_000, "0-9999"),
    ("bytes=-99999999999999999999999", 10_000, "0-9999"),
    ("bytes=0-18446744073709551614", u64::MAX, "0-18446744073709551614"),
    // Unsatisfiable.
    ("bytes=10000-", 10_000, "416"),
    ("bytes=10000-10001", 10_000, "416"),
    ("bytes=99999999999999999999999-", 10_000, "416"),
    ("bytes=-0", 10_000, "416"),
    ("bytes=10000-,20000-", 10_000, "416"),
    ("bytes=10000-,5-6", 10_000, "5-6"),
    ("bytes=-0,5-6", 10_000, "5-6"),
    // An empty file.
    ("bytes=0-", 0, "416"),
    ("bytes=0-0", 0, "416"),
    ("bytes=-0", 0, "416"),
    ("bytes=-5", 0, "whole"),
    ("bytes=0-,-5", 0, "whole"),
    // Malformed: ignored.
    ("", 10_000, "whole"),
    ("bytes", 10_000, "whole"),
    ("bytes=", 10_000, "whole"),
    ("bytes=,", 10_000, "whole"),
    ("bytes=-", 10_000, "whole"),
    ("bytes=5", 10_000, "whole"),
    ("bytes=5-4", 10_000, "whole"),
    ("bytes=5-4,0-1", 10_000, "whole"),
    ("bytes=0-1,5-4", 10_000, "whole"),
    ("bytes=0-1,x", 10_000, "whole"),
    ("bytes=a-b", 10_000, "whole"),
    ("bytes=+1-2", 10_000, "whole"),
    ("bytes=1-2-3", 10_000, "whole"),
    ("bytes=--1", 10_000, "whole"),
    ("bytes=0x1-2", 10_000, "whole"),
    ("bytes 0-1", 10_000, "whole"),
    ("bytes =0-1", 10_000, "whole"),
    ("bytes=0 -1", 10_000, "whole"),
    ("items=0-1", 10_000, "whole"),
    ("lines=0-1,bytes=0-1", 10_000, "whole"),
    // Letter case, white space, empty elements.
    ("Bytes=0-1", 10_000, "0-1"),
    ("bytes=\t0-1 ,\t, 3-4,", 10_000, "0-1,3-4"),
    // Order is kept; one overlapping pair is merged; more are abuse.
    ("bytes=5-6,0-1", 10_000, "5-6,0-1"),
    ("bytes=5-9,0-5", 10_000, "0-9"),
    ("bytes=0-9,3-4", 10_000, "0-9"),
    ("bytes=0-9,20-29,5-15", 10_000, "0-15,20-29"),
    ("bytes=0-,0-,0-", 10_000, "whole"),
    ("bytes=0-9,5-14,10-19", 10_000, "whole"),
    ("bytes=0-9,20-29,5-25", 10_000, "whole"),
    ("bytes=0-1,1-2,10-11,11-12", 10_000, "whole"),
];

#[test]
fn ranges_are_parsed_as_in_the_table() {
    for (field, size_bytes, expected) in ROWS {
        assert_eq!(
            described(&ranges(field.as_bytes(), *size_bytes)),
            *expected,
            "{field} of {size_bytes}"
        );
    }
}

#[test]
fn whole_file_is_sent_when_too_many_ranges_are_requested() {
    let field = |count: usize| {
        let specs: Vec<_> = (0..count)
            .map(|at| format!("{}-{}", at * 10, at * 10 + 1))
            .collect();
        format!("bytes={}", specs.join(","))
    };
    let Ranges::Satisfiable(set) = ranges(field(RANGES_MAX).as_bytes(), 10_000) else {
        panic!()
    };
    assert_eq!(set.len(), RANGES_MAX);
    assert_eq!(
        ranges(field(RANGES_MAX + 1).as_bytes(), 10_000),
        Ranges::Whole
    );
    // Also if most of them are beyond the end.
    assert_eq!(ranges(field(RANGES_MAX + 1).as_bytes(), 5), Ranges::Whole);
}

/// One range of the request in the model.
#[derive(Clone, Copy, Debug)]
enum Spec {
    Closed(u64, u64),
    Open(u64),
    Suffix(u64),
}

fn spec() -> impl Strategy<Value = Spec> {
    prop_oneof![
        (0u64..40, 0u64..40).prop_map(|(first, length)| Spec::Closed(first, first + length)),
        (0u64..40).prop_map(Spec::Open),
        (0u64..40).prop_map(Spec::Suffix),
    ]
}

/// Whether the range includes this byte.
fn selects(spec: Spec, at: u64, size: u64) -> bool {
    match spec {
        Spec::Closed(first, last) => at >= first && at <= last,
        Spec::Open(first) => at >= first,
        Spec::Suffix(length) => at + length >= size,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn ranges_select_the_same_bytes_as_a_naive_model(
        specs in prop::collection::vec(spec(), 1..5),
        size in 1u64..50,
    ) {
        let text: Vec<_> = specs.iter().map(|spec| match spec {
            Spec::Closed(first, last) => format!("{first}-{last}"),
            Spec::Open(first) => format!("{first}-"),
            Spec::Suffix(length) => format!("-{length}"),
        }).collect();
        let wanted: Vec<u64> = (0..size).filter(|at| specs.iter().any(|spec| selects(*spec, *at, size))).collect();
        match ranges(format!("bytes={}", text.join(",")).as_bytes(), size) {
            Ranges::Satisfiable(set) => {
                let mut sent: Vec<u64> = set.iter().flat_map(|range| range.start..range.end_exclusive).collect();
                // No byte is sent twice, so the response is never longer than the file.
                sent.sort_unstable();
                prop_assert_eq!(sent, wanted);
                prop_assert!(set.iter().all(|range| range.length() > 0));
            }
            Ranges::Unsatisfiable => prop_assert!(wanted.is_empty()),
            Ranges::Whole => {
                let requested: usize = specs.iter()
                    .map(|spec| (0..size).filter(|at| selects(*spec, *at, size)).count()).sum();
                prop_assert!(requested > wanted.len() && specs.len() > 2, "ignored without an overlap too many");
            }
        }
    }

    #[test]
    fn range_parser_accepts_any_text_without_panic(field in "(bytes=)?[-0-9, a]{0,40}", size in any::<u64>()) {
        if let Ranges::Satisfiable(set) = ranges(field.as_bytes(), size) {
            prop_assert!(set.iter().all(|range| range.start < range.end_exclusive && range.end_exclusive <= size));
        }
    }
}
