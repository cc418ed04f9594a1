//! Body drains: where a body ends, however it arrives, and what is no body.

use headway_http::chunked::{ChunkedDrain, DrainLimits, LengthDrain, Progress};
use proptest::prelude::*;

const LIMITS: DrainLimits = DrainLimits {
    body_bytes_max: 1000,
    extension_bytes_max: 20,
    trailer_bytes_max: 30,
};

fn drained(bytes: &[u8]) -> Progress {
    ChunkedDrain::new(LIMITS).feed(bytes)
}

/// Feeds pieces until the drain is done or failed; the count is from the start of all pieces.
fn drained_in_pieces(pieces: &[&[u8]]) -> Progress {
    let mut drain = ChunkedDrain::new(LIMITS);
    let mut before = 0;
    for piece in pieces {
        match drain.feed(piece) {
            Progress::More => before += piece.len(),
            Progress::Done(consumed) => return Progress::Done(before + consumed),
            failed => return failed,
        }
    }
    Progress::More
}

#[rustfmt::skip]
const ROWS: &[(&str, Progress)] = &[
    ("0\r\n\r\n", Progress::Done(5)),
    ("0\r\n\r\nGET /", Progress::Done(5)),
    ("000\r\n\r\n", Progress::Done(7)),
    ("5\r\nhello\r\n0\r\n\r\n", Progress::Done(15)),
    ("A\r\n0123456789\r\n1\r\nx\r\n0\r\n\r\n", Progress::Done(26)),
    ("a\r\n\r\n\0\n\r\r\n\r\n\n\r\n0\r\n\r\n", Progress::Done(20)),
    ("5;a=b\r\nhello\r\n0;c\r\n\r\n", Progress::Done(21)),
    ("5 ;a=\"b c\"\r\nhello\r\n0\r\n\r\n", Progress::Done(24)),
    ("0\r\nA: b\r\nC:d\r\n\r\n", Progress::Done(16)),
    ("", Progress::More),
    ("5", Progress::More),
    ("5\r\nhel", Progress::More),
    ("5\r\nhello\r\n0\r\n", Progress::More),
    ("0\r\nA: b\r\n", Progress::More),
    // Sizes that are none.
    ("\r\n", Progress::Bad),
    ("x\r\n", Progress::Bad),
    ("+5\r\n", Progress::Bad),
    ("-1\r\n", Progress::Bad),
    ("0x5\r\n", Progress::Bad),
    (" 5\r\n", Progress::Bad),
    ("5 \r\n", Progress::Bad),
    ("5 5\r\n", Progress::Bad),
    ("5_0\r\n", Progress::Bad),
    (";a\r\n", Progress::Bad),
    ("00000000000000000\r\n", Progress::Bad),
    ("10000000000000005\r\n", Progress::Bad),
    // Line ends.
    ("5\nhello\r\n", Progress::Bad),
    ("5\r\r\n", Progress::Bad),
    ("5\rhello", Progress::Bad),
    ("5\r\nhello\n", Progress::Bad),
    ("5\r\nhelloo\r\n", Progress::Bad),
    ("5\r\nhello0\r\n\r\n", Progress::Bad),
    ("5\r\nhello\r0", Progress::Bad),
    ("0\r\n\n", Progress::Bad),
    ("0\r\n\rx", Progress::Bad),
    ("5;a\nhello", Progress::Bad),
    ("5;a\rb\r\n", Progress::Bad),
    ("5;a\0\r\n", Progress::Bad),
    // Trailers that are no fields.
    ("0\r\n a: b\r\n\r\n", Progress::Bad),
    ("0\r\na b: c\r\n\r\n", Progress::Bad),
    ("0\r\na\r\n\r\n", Progress::Bad),
    ("0\r\n: a\r\n\r\n", Progress::Bad),
    ("0\r\na: b\n\r\n", Progress::Bad),
    ("0\r\na: \0\r\n\r\n", Progress::Bad),
    ("0\r\na: b\r\n c\r\n\r\n", Progress::Bad),
    // Beyond the limits.
    ("3e9\r\n", Progress::TooLarge),
    ("ffffffffffffffff\r\n", Progress::TooLarge),
    ("5;aaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n", Progress::TooLarge),
    ("0\r\na: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\r\n\r\n", Progress::TooLarge),
];

#[test]
fn body_ends_or_fails_as_listed_when_it_is_in_the_table() {
    for (bytes, expected) in ROWS {
        assert_eq!(drained(bytes.as_bytes()), *expected, "{bytes:?}");
    }
}

#[test]
fn limits_count_in_total_when_chunks_are_many() {
    let chunks = |count: usize, chunk: &str| chunk.repeat(count);
    let hundred = format!("64\r\n{}\r\n", "x".repeat(100));
    assert_eq!(drained(chunks(10, &hundred).as_bytes()), Progress::More);
    assert_eq!(drained(chunks(11, &hundred).as_bytes()), Progress::TooLarge);
    assert_eq!(
        drained(chunks(10, "1;a\r\nx\r\n").as_bytes()),
        Progress::More
    );
    assert_eq!(
        drained(chunks(11, "1;a\r\nx\r\n").as_bytes()),
        Progress::TooLarge
    );
    assert_eq!(
        drained(format!("0\r\n{}", chunks(10, "a:b\r\n")).as_bytes()),
        Progress::More
    );
    assert_eq!(
        drained(format!("0\r\n{}", chunks(11, "a:b\r\n")).as_bytes()),
        Progress::TooLarge
    );
}

#[test]
fn failure_is_repeated_when_more_is_fed() {
    let mut drain = ChunkedDrain::new(LIMITS);
    assert_eq!(drain.feed(b"x"), Progress::Bad);
    assert_eq!(drain.feed(b"0\r\n\r\n"), Progress::Bad);
    let mut drain = ChunkedDrain::new(LIMITS);
    assert_eq!(drain.feed(b"0\r\n\r\n"), Progress::Done(5));
    assert_eq!(drain.feed(b"more"), Progress::Done(0));
}

#[test]
fn length_drain_ends_at_the_length_when_pieces_cross_it() {
    let mut drain = LengthDrain::new(10);
    assert_eq!(drain.feed(b""), Progress::More);
    assert_eq!(drain.feed(b"012345678"), Progress::More);
    assert_eq!(drain.feed(b"9GET"), Progress::Done(1));
    assert_eq!(LengthDrain::new(3).feed(b"abc"), Progress::Done(3));
    assert_eq!(LengthDrain::new(u64::MAX).feed(b"abc"), Progress::More);
}

proptest! {
    #[test]
    fn body_ends_at_the_same_byte_when_it_is_cut_anywhere(
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
        prop_assert_eq!(drained_in_pieces(&pieces), Progress::Done(length));
        prop_assert_eq!(drained(&bytes), Progress::Done(length));
    }

    #[test]
    fn answer_is_the_same_when_any_bytes_come_one_by_one(bytes in "[0-2a:; x\r\n]{0,30}") {
        let pieces: Vec<&[u8]> = bytes.as_bytes().chunks(1).collect();
        prop_assert_eq!(drained_in_pieces(&pieces), drained(bytes.as_bytes()));
    }
}

#[test]
fn body_is_shown_without_its_framing_when_it_arrives_in_any_pieces() {
    let sent = b"5;a=b\r\nhello\r\n2\r\n, \r\n5\r\nworld\r\n0\r\nA: b\r\n\r\nnext";
    for length in 1..sent.len() {
        let mut drain = ChunkedDrain::new(LIMITS);
        let mut body = Vec::new();
        for piece in sent.chunks(length) {
            match drain.feed_body(piece, |bytes| body.extend_from_slice(bytes)) {
                Progress::More => {}
                other => {
                    assert!(matches!(other, Progress::Done(_)), "{length}: {other:?}");
                    break;
                }
            }
        }
        assert_eq!(body, b"hello, world", "in pieces of {length}");
    }
}
