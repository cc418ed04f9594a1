//! Any bytes as a request head, then every stage that reads what the head holds.
#![no_main]

use headway_http::conditional::{Validators, evaluate, if_range_matches};
use headway_http::encoding::{CodingSet, negotiate};
use headway_http::etag::Tag;
use headway_http::range::{Ranges, ranges};
use headway_http::target::{host_name, is_authority};
use headway_http::{Head, HeadLimits, Parsed, Target, parse, path};
use libfuzzer_sys::fuzz_target;

/// Small, so that the limits are met often.
const LIMITS: HeadLimits = HeadLimits {
    is_secure: false,
    is_http2: false,
    head_bytes_max: 512,
    target_bytes_max: 64,
    fields_max: 8,
};

fuzz_target!(|bytes: &[u8]| {
    let whole = parse(bytes, &LIMITS);
    if let Parsed::Complete(head) = &whole {
        check_bytes(&bytes[..head.length]);
        check_stages(head);
    }
    for cut in 0..bytes.len() {
        match (parse(&bytes[..cut], &LIMITS), &whole) {
            (Parsed::Partial, Parsed::Complete(head)) => assert!(cut < head.length),
            (Parsed::Partial, _) => {}
            (Parsed::Complete(part), Parsed::Complete(head)) => {
                assert_eq!(part.length, head.length)
            }
            (Parsed::Reject(part), Parsed::Reject(whole)) => assert_eq!(part.status, whole.status),
            (part, whole) => panic!("cut at {cut}: {part:?}, whole: {whole:?}"),
        }
    }
});

/// No control byte but tabs, and CR and LF only together.
fn check_bytes(head: &[u8]) {
    assert!(head.len() <= LIMITS.head_bytes_max);
    for (at, byte) in head.iter().enumerate() {
        match byte {
            b'\r' => assert_eq!(head[at + 1], b'\n'),
            b'\n' => assert_eq!(head[at - 1], b'\r'),
            b'\t' | b' '..=b'~' | 0x80.. => {}
            _ => panic!("byte {byte:#x} at {at}"),
        }
    }
}

fn check_stages(head: &Head<'_>) {
    let ours = Validators {
        etag: Tag {
            weak: false,
            opaque: b"\"a\"",
        },
        last_modified: 784_111_777,
        is_date_strong: true,
    };
    evaluate(head.method, &head.conditions, &ours);
    head.if_range.map(|field| if_range_matches(field, &ours));
    head.accept_encoding
        .as_deref()
        .map(|field| negotiate(field, CodingSet::ALL));
    if let Some(Ranges::Satisfiable(set)) = head.range.map(|field| ranges(field, 1000)) {
        assert!(set.iter().map(|range| range.length()).sum::<u64>() <= 1000);
    }
    if let Some(host) = head.host {
        assert!(is_authority(host) && !host_name(host).is_empty());
    }
    if let Target::Path(target) = head.target {
        path::normalise(target).ok();
    }
}
