//! Tests of the body drains: where a body ends, however it is split, and which bodies are invalid.

use headway_http::chunked::{ChunkedDrain, DrainLimits, DrainProgress, LengthDrain};
use proptest::prelude::*;

const LIMITS: DrainLimits = DrainLimits {
    body_bytes_max: 1000,
    extension_bytes_max: 20,
    trailer_bytes_max: 30,
};

fn drained(bytes: &[u8]) -> DrainProgress {
    ChunkedDrain::new(LIMITS).feed(bytes)
}

/// Feeds pieces until the drain has finished or failed; the count starts at the first piece.
fn drained_in_pieces(pieces: &[&[u8]]) -> DrainProgress {
    let mut drain = ChunkedDrain::new(LIMITS);
    let mut before = 0;
    for piece in pieces {
        match drain.feed(piece) {
            DrainProgress::More => before += piece.len(),
            DrainProgress::Done(consumed) => return DrainProgress::Done(before + consumed),
            failed => return failed,
        }
    }
    DrainProgress::More
}

#[rustfmt::skip]
const ROWS: &[(&str, DrainProgress)] = &[
    ("0\r\n\r\n", DrainProgress::Done(5)),
    ("0\r\n\r\nGET /", DrainProgress::Done(5)),
    ("000\r\n\r\n", DrainProgress::Done(7)),
    ("5\r\nhello\r\n0\r\n\r\n", DrainProgress::Done(15)),
    ("A\r\n0123456789\r\n1\r\nx\r\n0\r\n\r\n", DrainProgress::Done(26)),
    ("a\r\n\r\n\0\n\r\r\n\r\n\n\r\n0\r\n\r\n", DrainProgress::Done(20)),
    ("5;a=b\r\nhello\r\n0;c\r\n\r\n", DrainProgress::Done(21)),
    ("5 ;a=\"b c\"\r\nhello\r\n0\r\n\r\n", DrainProgress::Done(24)),
    ("0\r\nA: b\r\nC:d\r\n\r\n", DrainProgress::Done(16)),
    ("5 ; a = \"\\\";\"\r\nhello\r\n0\r\n\r\n", DrainProgress::Done(27)),
    ("", DrainProgress::More),
    ("5", DrainProgress::More),
    ("5\r\nhel", DrainProgress::More),
    ("5\r\nhello\r\n0\r\n", DrainProgress::More),
    ("0\r\nA: b\r\n", DrainProgress::More),
    // Invalid sizes.
    ("\r\n", DrainProgress::Bad),
    ("x\r\n", DrainProgress::Bad),
    ("+5\r\n", DrainProgress::Bad),
    ("-1\r\n", DrainProgress::Bad),
    ("0x5\r\n", DrainProgress::Bad),
    (" 5\r\n", DrainProgress::Bad),
    ("5 \r\n", DrainProgress::Bad),
    ("5 5\r\n", DrainProgress::Bad),
    ("5_0\r\n", DrainProgress::Bad),
    (";a\r\n", DrainProgress::Bad),
    ("00000000000000000\r\n", DrainProgress::Bad),
    ("10000000000000005\r\n", DrainProgress::Bad),
    // Line ends.
    ("5\nhello\r\n", DrainProgress::Bad),
    ("5\r\r\n", DrainProgress::Bad),
    ("5\rhello", DrainProgress::Bad),
    ("5\r\nhello\n", DrainProgress::Bad),
    ("5\r\nhelloo\r\n", DrainProgress::Bad),
    ("5\r\nhello0\r\n\r\n", DrainProgress::Bad),
    ("5\r\nhello\r0", DrainProgress::Bad),
    ("0\r\n\n", DrainProgress::Bad),
    ("0\r\n\rx", DrainProgress::Bad),
    ("5;a\nhello", DrainProgress::Bad),
    ("5;a\rb\r\n", DrainProgress::Bad),
    ("5;a\0\r\n", DrainProgress::Bad),
    // Invalid extensions.
    ("5;\r\n", DrainProgress::Bad),
    ("5;;a\r\n", DrainProgress::Bad),
    ("5;a=\r\n", DrainProgress::Bad),
    ("5;a[\r\n", DrainProgress::Bad),
    ("5;a \r\n", DrainProgress::Bad),
    ("5;a b\r\n", DrainProgress::Bad),
    ("5;a=b=c\r\n", DrainProgress::Bad),
    ("5;a=b \r\n", DrainProgress::Bad),
    ("5;a=\"b\r\n", DrainProgress::Bad),
    ("5;a=\"b\"c\r\n", DrainProgress::Bad),
    ("5;a=\"b\\\r\n", DrainProgress::Bad),
    // Invalid trailers.
    ("0\r\n a: b\r\n\r\n", DrainProgress::Bad),
    ("0\r\na b: c\r\n\r\n", DrainProgress::Bad),
    ("0\r\na\r\n\r\n", DrainProgress::Bad),
    ("0\r\n: a\r\n\r\n", DrainProgress::Bad),
    ("0\r\na: b\n\r\n", DrainProgress::Bad),
    ("0\r\na: \0\r\n\r\n", DrainProgress::Bad),
    ("0\r\na: b\r\n c\r\n\r\n", DrainProgress::Bad),
    // Beyond the limits.
    ("3e9\r\n", DrainProgress::TooLarge),
    ("ffffffffffffffff\r\n", DrainProgress::TooLarge),
    ("5;aaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n", DrainProgress::TooLarge),
    ("0\r\na: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\r\n\r\n", DrainProgress::TooLarge),
];

#[test]
fn chunked_body_ends_or_fails_as_in_the_table() {
    for (bytes, expected) in ROWS {
        assert_eq!(drained(bytes.as_bytes()), *expected, "{bytes:?}");
    }
}

#[test]
fn chunked_limits_apply_in_total_when_chunks_are_many() {
    let chunks = |count: usize, chunk: &str| chunk.repeat(count);
    let hundred = format!("64\r\n{}\r\n", "x".repeat(100));
    assert_eq!(
        drained(chunks(10, &hundred).as_bytes()),
        DrainProgress::More
    );
    assert_eq!(
        drained(chunks(11, &hundred).as_bytes()),
        DrainProgress::TooLarge
    );
    assert_eq!(
        drained(chunks(10, "1;a\r\nx\r\n").as_bytes()),
        DrainProgress::More
    );
    assert_eq!(
        drained(chunks(11, "1;a\r\nx\r\n").as_bytes()),
        DrainProgress::TooLarge
    );
    assert_eq!(
        drained(format!("0\r\n{}", chunks(10, "a:b\r\n")).as_bytes()),
        DrainProgress::More
    );
    assert_eq!(
        drained(format!("0\r\n{}", chunks(11, "a:b\r\n")).as_bytes()),
        DrainProgress::TooLarge
    );
}

#[test]
fn drain_repeats_its_failure_when_more_is_fed() {
    let mut drain = ChunkedDrain::new(LIMITS);
    assert_eq!(drain.feed(b"x"), DrainProgress::Bad);
    assert_eq!(drain.feed(b"0\r\n\r\n"), DrainProgress::Bad);
    let mut drain = ChunkedDrain::new(LIMITS);
    assert_eq!(drain.feed(b"0\r\n\r\n"), DrainProgress::Done(5));
    assert_eq!(drain.feed(b"more"), DrainProgress::Done(0));
}

#[test]
fn length_drain_ends_at_the_length_when_a_piece_crosses_it() {
    let mut drain = LengthDrain::new(10);
    assert_eq!(drain.feed(b""), DrainProgress::More);
    assert_eq!(drain.feed(b"012345678"), DrainProgress::More);
    assert_eq!(drain.feed(b"9GET"), DrainProgress::Done(1));
    assert_eq!(LengthDrain::new(3).feed(b"abc"), DrainProgress::Done(3));
    assert_eq!(LengthDrain::new(u64::MAX).feed(b"abc"), DrainProgress::More);
}

proptest! {
    #[test]
    fn chunked_body_ends_at_the_same_byte_when_split_anywhere(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..6),
        rest in prop::collection::vec(any::<u8>(), 0..10),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
    ) {
        let mut bytes = Vec::new();
        for chunk in &chunks {
            bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\nT: v\r\n\r\n");
        let length = bytes.len();
        bytes.extend_from_slice(&rest);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).chain([0, bytes.len()]).collect();
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
        prop_assert_eq!(drained_in_pieces(&pieces), DrainProgress::Done(length));
        prop_assert_eq!(drained(&bytes), DrainProgress::Done(length));
    }

    #[test]
    fn random_chunked_input_gives_the_same_result_byte_by_byte(bytes in "[0-2a:; x\r\n]{0,30}") {
        let pieces: Vec<&[u8]> = bytes.as_bytes().chunks(1).collect();
        prop_assert_eq!(drained_in_pieces(&pieces), drained(bytes.as_bytes()));
    }
}

#[test]
fn chunked_content_is_passed_on_without_framing_when_it_is_split_anywhere() {
    let sent = b"5;a=b\r\nhello\r\n2\r\n, \r\n5\r\nworld\r\n0\r\nA: b\r\n\r\nnext";
    for length in 1..sent.len() {
        let mut drain = ChunkedDrain::new(LIMITS);
        let mut body = Vec::new();
        for piece in sent.chunks(length) {
            match drain.feed_body(piece, |bytes| body.extend_from_slice(bytes)) {
                DrainProgress::More => {}
                other => {
                    assert!(
                        matches!(other, DrainProgress::Done(_)),
                        "{length}: {other:?}"
                    );
                    break;
                }
            }
        }
        assert_eq!(body, b"hello, world", "in pieces of {length}");
    }
}
