//! CGI responses and their outcome: one table, read from top to bottom.
//!
//! Each row has the whole output of a program, and its description by [`described`]. Every row is
//! also split at each byte, and fed byte by byte, because the outcome must not depend on how the
//! bytes arrive.

use headway_gateway::cgi::{NphEvent, NphReader, ResponseReader};
use headway_gateway::{AccelRedirect, HeadLimits, ResponseAction, ResponseEvent, ResponseHead};
use proptest::prelude::*;

const LIMITS: HeadLimits = HeadLimits {
    head_bytes_max: 120,
    fields_max: 4,
};

/// `200 [Content-Type: a] body=x`, or `local /x`, or the error; after ` | ` how it ended.
fn described(pieces: &[&[u8]], head_only: bool) -> String {
    let mut reader = ResponseReader::new(&LIMITS, head_only);
    let mut head = String::new();
    let mut body = Vec::new();
    for piece in pieces {
        let mut input = *piece;
        loop {
            match reader.feed(&mut input) {
                Ok(None) => break,
                Ok(Some(ResponseEvent::Head(ResponseAction::LocalRedirect(to)))) => {
                    head = format!("local {}", to.escape_ascii());
                }
                Ok(Some(ResponseEvent::Head(ResponseAction::Response(response)))) => {
                    head = described_head(&response)
                }
                Ok(Some(ResponseEvent::Body(bytes))) => body.extend_from_slice(bytes),
                Ok(Some(event)) => panic!("{event:?}"),
                Err(refusal) => {
                    assert_eq!(reader.feed(&mut input), Err(refusal.clone()));
                    assert_eq!(reader.finish(), Err(refusal.clone()));
                    return format!("refused: {refusal}");
                }
            }
        }
    }
    if !body.is_empty() {
        head += &format!(" body={}", body.escape_ascii());
    }
    match reader.finish() {
        Ok(end) if end.excess => head + " | too much",
        Ok(_) => head,
        Err(refusal) if head.is_empty() => format!("refused: {refusal}"),
        Err(refusal) => format!("{head} | {refusal}"),
    }
}

fn described_head(response: &ResponseHead) -> String {
    let mut text = response.status.to_string();
    if !response.reason.is_empty() {
        text += &format!(" {}", response.reason.escape_ascii());
    }
    for (name, value) in response.fields.iter() {
        text += &format!(" [{}: {}]", name.escape_ascii(), value.escape_ascii());
    }
    if let Some(length) = response.length {
        text += &format!(" length={length}");
    }
    match &response.accel_redirect {
        Some(AccelRedirect::File(path)) => text += &format!(" file={}", path.escape_ascii()),
        Some(AccelRedirect::Location(path)) => text += &format!(" at={}", path.escape_ascii()),
        None => {}
    }
    text
}

const EMPTY: &str = "refused: the response is empty";
const CUT: &str = "refused: the response ended inside its head, after 1 lines";
const NOTHING: &str = "refused: the response has none of Content-Type, Location and Status";
const FRAMED: &str = "refused: the program sent Transfer-Encoding, which only the server may set";
const LONG: &str = "refused: the response's head is longer than 120 bytes";
const TOO_MANY_HEADERS: &str = "refused: the response's head has more than 4 headers";
const PLAIN: &str = "200 [Content-Type: a]";

#[rustfmt::skip]
const RESPONSES: &[(&str, &str)] = &[
    // Documents.
    ("Content-Type: a\n\n", PLAIN),
    ("Content-Type: a\r\n\r\n", PLAIN),
    ("Content-Type: a\r\n\n", PLAIN),
    ("Content-Type:a\n\r\n", PLAIN),
    ("Content-Type: \t a \t \n\n", PLAIN),
    ("Content-Type: a\n\nbody\n\nb", r"200 [Content-Type: a] body=body\n\nb"),
    ("content-type: a\n\n\0\r\n", r"200 [content-type: a] body=\x00\r\n"),
    ("Content-Type: a\nX: 1\nx: 2\nX-E:\n\n", "200 [Content-Type: a] [X: 1] [x: 2] [X-E: ]"),
    ("Set-Cookie: a=b; c\nSet-Cookie: d\nStatus: 200\n\n", "200 [Set-Cookie: a=b; c] [Set-Cookie: d]"),
    // Status.
    ("Status: 404 Not Here\nContent-Type: a\n\nno", "404 Not Here [Content-Type: a] body=no"),
    ("Status: 404\n\n", "404"),
    ("status:  299  x \n\n", "299 x"),
    ("Status: 204 No Content\n\nbody", "204 No Content"),
    ("Status: 304\nETag: \"a\"\n\n", r#"304 [ETag: \"a\"]"#),
    ("Status: 304\nContent-Length: 5\n\n", "304 length=5"),
    ("Status: 200\u{df}\n\n", r#"refused: the response's header Status is invalid: "200\xc3\x9f""#),
    ("Status: 100 Continue\n\n", r#"refused: the response's header Status is invalid: "100 Continue""#),
    ("Status: 101\n\n", r#"refused: the response's header Status is invalid: "101""#),
    ("Status: 600\n\n", r#"refused: the response's header Status is invalid: "600""#),
    ("Status: 20\n\n", r#"refused: the response's header Status is invalid: "20""#),
    ("Status: 2000\n\n", r#"refused: the response's header Status is invalid: "2000""#),
    ("Status: +20\n\n", r#"refused: the response's header Status is invalid: "+20""#),
    ("Status: 200OK\n\n", r#"refused: the response's header Status is invalid: "200OK""#),
    ("Status: OK\n\n", r#"refused: the response's header Status is invalid: "OK""#),
    ("Status:\n\n", r#"refused: the response's header Status is invalid: """#),
    ("Status: 200\nStatus: 200\n\n", "refused: the response's header Status is repeated"),
    // Redirects.
    ("Location: /a?b\n\n", "local /a?b"),
    ("Location: /a\nContent-Type: t\nX: y\n\nbody", "local /a"),
    ("Location: http://x/\n\n", "302 [Location: http://x/]"),
    ("Location: //x/\n\n", "302 [Location: //x/]"),
    ("Location: a/b\n\n", "302 [Location: a/b]"),
    ("Location: /a#b\n\n", "302 [Location: /a#b]"),
    ("Location: /a b\n\n", "302 [Location: /a b]"),
    ("Location: /a\nStatus: 302 Found\n\n", "302 Found [Location: /a]"),
    ("Status: 302\nLocation: /a\nContent-Type: t\n\nx", "302 [Content-Type: t] [Location: /a] body=x"),
    ("Status: 201\nLocation: /a\n\n", "201 [Location: /a]"),
    ("Location:\n\n", r#"refused: the response's header Location is invalid: """#),
    ("Location: /a\nLocation: /b\n\n", "refused: the response's header Location is repeated"),
    // Lengths.
    ("Content-Type: a\nContent-Length: 3\n\nabc", "200 [Content-Type: a] length=3 body=abc"),
    ("Content-Type: a\nContent-Length: 3\n\nabcd", "200 [Content-Type: a] length=3 body=abc | too much"),
    ("Content-Type: a\nContent-Length: 3\n\nab", "200 [Content-Type: a] length=3 body=ab | the response ended after 2 of 3 declared bytes"),
    ("Content-Type: a\nContent-Length: 0\n\n", "200 [Content-Type: a] length=0"),
    ("Content-Type: a\nContent-Length: +3\n\n", r#"refused: the response's header Content-Length is invalid: "+3""#),
    ("Content-Type: a\nContent-Length: 3, 3\n\n", r#"refused: the response's header Content-Length is invalid: "3, 3""#),
    ("Content-Type: a\nContent-Length:\n\n", r#"refused: the response's header Content-Length is invalid: """#),
    ("Content-Length: 18446744073709551616\n\n", r#"refused: the response's header Content-Length is invalid: "18446744073709551616""#),
    ("Content-Length: 3\nContent-Length: 3\n\n", "refused: the response's header Content-Length is repeated"),
    // Connection fields belong to the server.
    ("Content-Type: a\nConnection: close\nKeep-Alive: 5\nTrailer: X\n\n", PLAIN),
    ("Content-Type: a\nUpgrade: x\nTE: y\nProxy-Connection: z\n\n", PLAIN),
    ("Content-Type: a\nTransfer-Encoding: chunked\n\n0\r\n\r\n", FRAMED),
    ("transfer-encoding:\n\n", FRAMED),
    // Files to be sent by the server.
    ("X-Sendfile: /a/b\n\nbody", "200 file=/a/b"),
    ("X-Accel-Redirect: /p/a\nContent-Type: t\nContent-Length: 9\n\n", "200 [Content-Type: t] length=9 at=/p/a"),
    ("X-Sendfile:\n\n", r#"refused: the response's header X-Sendfile is invalid: """#),
    ("X-Sendfile: a\nX-Accel-Redirect: /b\n\n", "refused: the response's header X-Accel-Redirect is repeated"),
    // Invalid heads.
    ("", EMPTY),
    ("\n", NOTHING),
    ("\nContent-Type: a\n\n", NOTHING),
    ("X: y\n\nbody", NOTHING),
    ("Content-Type: a", "refused: the response ended inside its head, after 0 lines"),
    ("Content-Type: a\n", CUT),
    ("Content-Type: a\r\n\r", CUT),
    ("hello\n", r#"refused: line 1 of the response's head is not a header: "hello""#),
    ("<b>Warning</b>:  x\n\n", r#"refused: line 1 of the response's head is not a header: "<b>Warning</b>:  x""#),
    ("HTTP/1.1 200 OK\nContent-Type: a\n\n", r#"refused: line 1 of the response's head is not a header: "HTTP/1.1 200 OK""#),
    ("Content-Type: a\n: b\n\n", r#"refused: line 2 of the response's head is not a header: ": b""#),
    ("Content-Type : a\n\n", r#"refused: line 1 of the response's head is not a header: "Content-Type : a""#),
    ("Content-Type: a\nX Y: b\n\n", r#"refused: line 2 of the response's head is not a header: "X Y: b""#),
    ("Content-Type: a\nContent-Type: a\n\n", "refused: the response's header Content-Type is repeated"),
    // Injection.
    ("Content-Type: a\nX: b\rSet-Cookie: c\n\n", "refused: line 2 of the response's head contains the control byte 0x0d"),
    ("Content-Type: a\r\r\n\n", "refused: line 1 of the response's head contains the control byte 0x0d"),
    ("Content-Type: a\0b\n\n", "refused: line 1 of the response's head contains the control byte 0x00"),
    ("Content-Type: a\x1bb\n\n", "refused: line 1 of the response's head contains the control byte 0x1b"),
    ("Content-Type: a\x7f\n\n", "refused: line 1 of the response's head contains the control byte 0x7f"),
    ("Con\0tent-Type: a\n\n", "refused: line 1 of the response's head contains the control byte 0x00"),
    ("Status: 200 a\0\n\n", "refused: line 1 of the response's head contains the control byte 0x00"),
    ("Content-Type: a\n b\n\n", "refused: line 2 of the response's head starts with white space"),
    ("Content-Type: a\n\tb\n\n", "refused: line 2 of the response's head starts with white space"),
    // Limits.
    ("Status: 200\nA: 1\nB: 2\nC: 3\n\n", "200 [A: 1] [B: 2] [C: 3]"),
    ("Status: 200\nA: 1\nB: 2\nC: 3\nD: 4\n\n", TOO_MANY_HEADERS),
];

fn check_every_cut(bytes: &[u8], expected: &str) {
    for cut in 0..=bytes.len() {
        let (front, back) = bytes.split_at(cut);
        assert_eq!(
            described(&[front, back], false),
            expected,
            "{} at {cut}",
            bytes.escape_ascii()
        );
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(
        described(&single, false),
        expected,
        "{} byte by byte",
        bytes.escape_ascii()
    );
}

#[test]
fn cgi_responses_are_parsed_as_in_the_table_when_split_anywhere() {
    for (bytes, expected) in RESPONSES {
        check_every_cut(bytes.as_bytes(), expected);
    }
}

#[test]
fn response_header_is_rejected_one_byte_above_its_limit() {
    let head = |value_bytes: usize| format!("Content-Type: {}\n\nabc", "x".repeat(value_bytes));
    let fits = head(104);
    let expected = format!("200 [{}] body=abc", fits.trim_end_matches("\n\nabc"));
    check_every_cut(fits.as_bytes(), &expected);
    check_every_cut(head(105).as_bytes(), LONG);
}

#[test]
fn body_is_dropped_for_a_head_request() {
    let response = b"Content-Type: a\nContent-Length: 9\n\nabc";
    assert_eq!(
        described(&[response], true),
        "200 [Content-Type: a] length=9"
    );
}

#[test]
fn nph_head_passes_unchanged_with_a_status_line() {
    for (bytes, expected) in [
        ("HTTP/1.1 200 OK\r\nA: b\r\n\r\nx", Ok(200)),
        ("HTTP/1.0 404\n\n", Ok(404)),
        ("HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", Ok(103)),
        ("HTTP/1.1 200OK\r\n", Err(())),
        ("HTTP/1.1 99\r\n", Err(())),
        ("HTTP/1.1 600 x\r\n", Err(())),
        ("HTTP/1.1 200 a\rb\n", Err(())),
        ("HTTP/2 200\r\n", Err(())),
        ("Content-Type: a\n\n", Err(())),
        ("\n", Err(())),
        ("HTTP/1.1 200", Err(())),
        ("", Err(())),
    ] {
        for cut in 0..=bytes.len() {
            let (front, back) = bytes.as_bytes().split_at(cut);
            assert_eq!(
                passed(&[front, back]).map(|(status, _)| status),
                expected,
                "{bytes:?} at {cut}"
            );
            if let Ok((_, raw)) = passed(&[front, back]) {
                assert_eq!(raw, bytes.as_bytes());
            }
        }
    }
    assert_eq!(passed(&[b"HTTP/1.1 200 ", &[b'a'; 2000], b"\n"]), Err(()));
}

fn passed(pieces: &[&[u8]]) -> Result<(u16, Vec<u8>), ()> {
    let mut reader = NphReader::default();
    let mut out = (0, Vec::new());
    for piece in pieces {
        let mut input = *piece;
        while let Some(event) = reader.feed(&mut input).map_err(drop)? {
            match event {
                NphEvent::Begin { status, line } => out = (status, line),
                NphEvent::Raw(bytes) => out.1.extend_from_slice(bytes),
            }
        }
    }
    reader.finish().map_err(drop).map(|()| out)
}

/// Fragments from which almost valid heads are built in every wrong order.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        3 => Just(b"Content-Type: a\n".to_vec()),
        2 => Just(b"Status: 404 x\r\n".to_vec()),
        2 => Just(b"Content-Length: 4\n".to_vec()),
        1 => Just(b"Location: /a\n".to_vec()),
        1 => Just(b"X-Sendfile: /a\n".to_vec()),
        3 => Just(b"\n".to_vec()),
        1 => Just(b"\r\n".to_vec()),
        1 => Just(b"\r".to_vec()),
        2 => prop::collection::vec(any::<u8>(), 0..6),
        1 => Just(vec![b'a'; 50]),
    ];
    prop::collection::vec(piece, 0..10).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn nearly_valid_responses_give_the_same_result_when_split_anywhere(bytes in pieces()) {
        check_every_cut(&bytes, &described(&[&bytes], false));
    }

    #[test]
    fn accepted_response_writes_a_valid_head(bytes in pieces()) {
        let mut reader = ResponseReader::new(&LIMITS, false);
        if let Ok(Some(ResponseEvent::Head(ResponseAction::Response(response)))) = reader.feed(&mut &bytes[..]) {
            let mut out = Vec::new();
            response.write_head(&mut out);
            let lines: Vec<&[u8]> = out.split(|byte| *byte == b'\n').collect();
            prop_assert_eq!(lines.len(), response.fields.len() + 2);
            prop_assert!(lines[..lines.len() - 1].iter().all(|line| line.ends_with(b"\r")));
            prop_assert!(!out.contains(&0));
        }
    }
}
