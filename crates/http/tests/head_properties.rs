//! Properties of every request header, valid or not.

use headway_http::{HeadLimits, Parsed, parse};
use proptest::prelude::*;

const LIMITS: HeadLimits = HeadLimits {
    is_secure: false,
    is_http2: false,
    head_bytes_max: 300,
    target_bytes_max: 40,
    fields_max: 6,
};

/// Fragments that combine to nearly valid headers.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => Just(b"GET ".to_vec()),
        1 => Just(b"OPTIONS * ".to_vec()),
        3 => Just(b"/a/b".to_vec()),
        3 => Just(b" HTTP/1.1\r\n".to_vec()),
        1 => Just(b" HTTP/2.0\r\n".to_vec()),
        4 => Just(b"Host: x\r\n".to_vec()),
        2 => Just(b"Content-Length: 5\r\n".to_vec()),
        2 => Just(b"Transfer-Encoding: chunked\r\n".to_vec()),
        2 => Just(b"If-None-Match: \"a\"\r\n".to_vec()),
        3 => Just(b"\r\n".to_vec()),
        1 => Just(b"\n".to_vec()),
        1 => Just(b"\r".to_vec()),
        1 => Just(b" ".to_vec()),
        1 => Just(b"http://h".to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..4),
        1 => Just(vec![b'a'; 50]),
    ];
    let head = Just(b"GET /a HTTP/1.1\r\nHost: x\r\n".to_vec());
    let any = prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat());
    (prop::option::of(head), any).prop_map(|(head, rest)| [head.unwrap_or_default(), rest].concat())
}

/// The result for a prefix may only be less certain than the result for the whole.
fn check_every_cut(bytes: &[u8]) -> Result<(), TestCaseError> {
    let whole = parse(bytes, &LIMITS);
    for cut in 0..=bytes.len() {
        match (parse(&bytes[..cut], &LIMITS), &whole) {
            (Parsed::Partial, Parsed::Complete(head)) => prop_assert!(cut < head.length),
            (Parsed::Partial, _) => {
                prop_assert!(cut < bytes.len() || matches!(whole, Parsed::Partial))
            }
            (Parsed::Complete(part), Parsed::Complete(head)) => {
                prop_assert_eq!(format!("{part:?}"), format!("{head:?}"));
            }
            (Parsed::Reject(part), Parsed::Reject(whole)) => {
                prop_assert_eq!(part.status, whole.status)
            }
            (part, _) => prop_assert!(false, "cut at {}: {:?}, whole: {:?}", cut, part, whole),
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn nearly_valid_headers_give_the_same_result_when_split_anywhere(bytes in pieces()) {
        check_every_cut(&bytes)?;
    }

    #[test]
    fn random_bytes_give_the_same_result_when_split_anywhere(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        check_every_cut(&bytes)?;
    }

    #[test]
    fn header_is_complete_when_only_harmless_fields_vary(
        name in "[A-Za-z][A-Za-z0-9-]{0,20}x",
        value in "[ -~]{0,60}",
        path in "/[a-zA-Z0-9/._%-]{0,30}",
        rest in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{name}: {value}\r\n\r\n");
        let bytes = [head.as_bytes(), &rest].concat();
        match parse(&bytes, &LIMITS) {
            Parsed::Complete(found) => prop_assert_eq!(found.length, head.len()),
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn header_with_a_forbidden_byte_is_never_complete(
        at in 0usize..40,
        byte in prop::sample::select(&b"\0\x01\x08\x0b\x0c\x1f\x7f"[..]),
    ) {
        let mut bytes = b"GET /abc HTTP/1.1\r\nHost: x\r\nA: bcdef\r\n\r\n".to_vec();
        bytes.insert(at.min(bytes.len() - 2), byte);
        let refused = matches!(parse(&bytes, &LIMITS), Parsed::Reject(_));
        prop_assert!(refused);
    }
}
