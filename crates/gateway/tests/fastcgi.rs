//! Conversations with a FastCGI application, as bytes.

use crate::common;
use common::{seen, seen_however_cut, sent};
use headway_gateway::cgi::Variables;
use headway_gateway::fastcgi::{
    Capabilities, FastCgiCodec, GetValues, InvalidRecord, RecordKind, RecordReader, write_record,
};
use headway_gateway::{Codec, HeadLimits};
use proptest::prelude::*;

const LIMITS: HeadLimits = HeadLimits {
    head_bytes_max: 100,
    fields_max: 4,
};

fn variables(pairs: &[(&str, &str)]) -> Variables {
    let mut variables = Variables::default();
    for (name, value) in pairs {
        assert!(variables.add(name.as_bytes(), value.as_bytes()));
    }
    variables
}

/// A codec whose request has been sent completely.
fn codec_for(keep: bool, head_only: bool) -> FastCgiCodec {
    let mut codec = FastCgiCodec::new(&variables(&[("A", "b")]), keep, &LIMITS, head_only);
    codec.end_body(&headway_gateway::FieldList::default());
    sent(&mut codec, usize::MAX);
    codec
}

/// Records of request 1.
fn records(list: &[(RecordKind, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, content) in list {
        write_record(&mut bytes, *kind, 1, content.as_bytes());
    }
    bytes
}

const OUT: RecordKind = RecordKind::STDOUT;
const ERR: RecordKind = RecordKind::STDERR;
const END: RecordKind = RecordKind::END_REQUEST;
const DONE: &str = "\0\0\0\0\0\0\0\0";
const HEAD: &str = "Content-Type: a\n\n";

#[rustfmt::skip]
const RESPONSES: &[(&[(RecordKind, &str)], &str)] = &[
    (&[(OUT, HEAD), (OUT, ""), (END, DONE)], "200 [Content-Type: a] | end 0"),
    (&[(OUT, "Content-Type: a\n\nhello"), (OUT, " world"), (OUT, ""), (END, DONE)], "200 [Content-Type: a] body=hello world | end 0"),
    (&[(OUT, "Content-"), (OUT, "Type: a\n"), (OUT, "\nx"), (END, DONE)], "200 [Content-Type: a] body=x | end 0"),
    (&[(OUT, HEAD), (END, "\0\0\x01\x02\0\0\0\0")], "200 [Content-Type: a] | end 258"),
    (&[(ERR, "oops"), (OUT, HEAD), (ERR, "!"), (ERR, ""), (OUT, "x"), (END, DONE)], "200 [Content-Type: a] body=x err=oops! | end 0"),
    (&[(OUT, "Content-Type: a\nContent-Length: 2\n\nxyz"), (OUT, ""), (END, DONE)], "200 [Content-Type: a] length=2 body=xy | end 0 too much"),
    (&[(OUT, "Content-Type: a\nContent-Length: 2\n\nx"), (OUT, ""), (END, DONE)], "200 [Content-Type: a] length=2 body=x | the response ended after 1 of 2 declared bytes"),
    (&[(OUT, "Location: /b\n\nx"), (END, DONE)], "local /b | end 0"),
    (&[(OUT, "X-Accel-Redirect: /p/é\n\nx"), (END, DONE)], r"200 Location([47, 112, 47, 195, 169]) | end 0"),
    // No response.
    (&[], "the response is empty"),
    (&[(END, DONE)], "the response is empty"),
    (&[(ERR, "died")], "err=died | the response is empty"),
    (&[(OUT, ""), (END, DONE)], "the response is empty"),
    (&[(OUT, "Content-Type: a\n"), (END, DONE)], "the response ended inside its head, after 1 lines"),
    (&[(OUT, "Fatal error\n")], r#"line 1 of the response's head is not a header: "Fatal error""#),
    (&[(OUT, "")], "the response is empty"),
    // Management records and rejections instead of a response.
    (&[(END, "\0\0\0\0\x01\0\0\0")], "the upstream rejected a second request on its connection"),
    (&[(END, "\0\0\0\0\x02\0\0\0")], "the upstream is overloaded"),
    (&[(END, "\0\0\0\0\x03\0\0\0")], "the upstream does not support the responder role"),
    (&[(OUT, HEAD), (END, "\0\0\0\0\x09\0\0\0")], "200 [Content-Type: a] | not FastCGI: the request ended with the unknown protocol status 9"),
    // Closed in the middle.
    (&[(OUT, HEAD)], "200 [Content-Type: a] | the upstream closed the connection before its response was complete"),
    (&[(OUT, HEAD), (OUT, "x")], "200 [Content-Type: a] body=x | the upstream closed the connection before its response was complete"),
    (&[(OUT, HEAD), (OUT, "")], "200 [Content-Type: a] | closed"),
    (&[(OUT, "Status: 204\nContent-Length: 9\n\n")], "204 length=9 | closed"),
    (&[(OUT, "Status: 200\nContent-Length: 1\n\nx")], "200 length=1 body=x | closed"),
    // Protocol violations.
    (&[(OUT, HEAD), (OUT, ""), (OUT, "x")], "200 [Content-Type: a] | not FastCGI: an unexpected record of type 6"),
    (&[(OUT, HEAD), (END, "\0\0\0\0")], "200 [Content-Type: a] | not FastCGI: a record of type 3 with 4 bytes"),
    (&[(END, "")], "not FastCGI: a record of type 3 with 0 bytes"),
    (&[(RecordKind::BEGIN_REQUEST, DONE)], "not FastCGI: an unexpected record of type 1"),
    (&[(RecordKind::STDIN, "x")], "not FastCGI: an unexpected record of type 5"),
    (&[(RecordKind::GET_VALUES_RESULT, "")], "not FastCGI: an unexpected record of type 10"),
    (&[(RecordKind(0), "")], "not FastCGI: an unexpected record of type 0"),
    (&[(RecordKind(200), "x")], "not FastCGI: an unexpected record of type 200"),
];

#[test]
fn fastcgi_conversations_end_as_listed_however_they_are_split() {
    for (list, expected) in RESPONSES {
        let found = seen_however_cut(&records(list), || codec_for(true, false));
        let bare = found.text.strip_prefix("| ").unwrap_or(&found.text);
        assert_eq!(bare, *expected);
    }
}

#[test]
fn connection_is_reusable_after_an_aborted_request_ended() {
    let aborted = |already: &[(RecordKind, &str)]| {
        let mut codec = codec_for(true, false);
        let bytes = records(already);
        let mut input = &bytes[..];
        while codec.feed(&mut input).unwrap().is_some() {}
        let mut aborted = Box::new(codec).abort().unwrap();
        assert_eq!(
            aborted.unsent(),
            records(&[(RecordKind::ABORT_REQUEST, "")])
        );
        aborted.sent(aborted.unsent().len());
        aborted
    };
    for already in [&[][..], &[(OUT, HEAD)], &[(OUT, "Content-Type: a\n")]] {
        let rest = records(&[(OUT, "more"), (ERR, "oops"), (OUT, ""), (END, DONE)]);
        for at in 1..rest.len() {
            let mut aborted = aborted(already);
            assert_eq!(aborted.feed(&rest[..at]), Ok(None), "{at}");
            assert_eq!(aborted.feed(&rest[at..]), Ok(Some(true)), "{at}");
        }
        let too_much = [&rest[..], b"x"].concat();
        assert_eq!(aborted(already).feed(&too_much), Ok(Some(false)));
    }
    let mut foreign = aborted(&[]);
    assert!(foreign.feed(&records(&[(RecordKind::STDIN, "")])).is_err());
    assert!(
        Box::new(codec_for(false, false)).abort().is_none(),
        "not kept"
    );
}

#[test]
fn bytes_that_are_not_fastcgi_are_rejected() {
    let http = b"HTTP/1.1 400 Bad Request\r\n\r\n";
    let found = seen_however_cut(http, || codec_for(false, false));
    let expected =
        "| not FastCGI: a record of version 72 instead of 1 (is this a FastCGI upstream?)";
    assert_eq!(found.text, expected);
    for id in [0u16, 2, 256] {
        let mut bytes = Vec::new();
        write_record(&mut bytes, OUT, id, HEAD.as_bytes());
        let found = seen_however_cut(&bytes, || codec_for(false, false));
        let expected = format!("| not FastCGI: a record for request {id} instead of 1");
        assert_eq!(found.text, expected);
    }
}

#[test]
fn body_is_dropped_for_a_head_request() {
    let bytes = records(&[
        (OUT, "Content-Type: a\nContent-Length: 5\n\nhello"),
        (END, DONE),
    ]);
    let found = seen_however_cut(&bytes, || codec_for(true, true));
    assert_eq!(found.text, "200 [Content-Type: a] length=5 | end 0");
}

#[test]
fn fastcgi_connection_is_reusable_when_no_bytes_remain() {
    let response = records(&[(OUT, HEAD), (END, DONE)]);
    assert!(seen(&mut codec_for(true, false), &[&response]).reusable);
    assert!(!seen(&mut codec_for(false, false), &[&response]).reusable);
    let more = [&response[..], b"\x01"].concat();
    assert!(!seen(&mut codec_for(true, false), &[&more]).reusable);
    let mut body_open = FastCgiCodec::new(&variables(&[]), true, &LIMITS, false);
    sent(&mut body_open, usize::MAX);
    assert!(!seen(&mut body_open, &[&response]).reusable);
    let mut unsent = FastCgiCodec::new(&variables(&[]), true, &LIMITS, false);
    unsent.end_body(&headway_gateway::FieldList::default());
    assert!(!seen(&mut unsent, &[&response]).reusable);
    // Padding after the last record belongs to it.
    let mut padded = response.clone();
    let at = padded.len() - 16;
    padded[at + 6] = 3;
    padded.extend_from_slice(b"abc");
    assert!(seen(&mut codec_for(true, false), &[&padded]).reusable);
    assert!(!seen(&mut codec_for(true, false), &[&padded[..padded.len() - 1]]).reusable);
}

#[test]
fn request_records_follow_the_specification() {
    let long = "v".repeat(130);
    let variables = variables(&[("A", "bc"), ("LONG", &long)]);
    let mut codec = FastCgiCodec::new(&variables, true, &LIMITS, false);
    assert_eq!(codec.push_body(b"hello"), 5);
    codec.end_body(&headway_gateway::FieldList::default());
    assert_eq!(codec.push_body(b"late"), 0);
    codec.end_body(&headway_gateway::FieldList::default());
    // 5 bytes of A, 5 + 4 + 130 of LONG.
    let expected = [
        &b"\x01\x01\0\x01\0\x08\0\0\0\x01\x01\0\0\0\0\0"[..],
        b"\x01\x04\0\x01\0\x90\0\0",
        b"\x01\x02Abc\x04\x80\0\0\x82LONG",
        long.as_bytes(),
        b"\x01\x04\0\x01\0\0\0\0",
        b"\x01\x05\0\x01\0\x05\x03\0hello\0\0\0",
        b"\x01\x05\0\x01\0\0\0\0",
    ]
    .concat();
    assert_eq!(
        sent(&mut codec, 7).escape_ascii().to_string(),
        expected.escape_ascii().to_string()
    );
}

/// The joined content of the records of one type, and their number.
fn stream(bytes: &[u8], kind: RecordKind) -> (Vec<u8>, usize) {
    let (mut reader, mut input) = (RecordReader::default(), bytes);
    let (mut content, mut fragments) = (Vec::new(), 0);
    while let Some(fragment) = reader.next(&mut input).unwrap() {
        if fragment.kind == kind {
            content.extend_from_slice(fragment.content);
            fragments += 1;
        }
        let bytes = fragment.content.len();
        if bytes > 0 {
            reader.take(&mut input, bytes);
        }
    }
    assert!(reader.is_between(&mut input) && input.is_empty());
    (content, fragments)
}

#[test]
fn long_variables_span_several_records() {
    let long = "v".repeat(150_000);
    let mut codec = FastCgiCodec::new(&variables(&[("LONG", &long)]), false, &LIMITS, false);
    let (content, fragments) = stream(&sent(&mut codec, usize::MAX), RecordKind::PARAMS);
    assert_eq!(content.len(), 5 + 4 + long.len());
    assert_eq!(fragments, 4);
}

#[test]
fn request_body_waits_when_the_application_does_not_read() {
    let body: Vec<u8> = (0..1_000_000u32).map(|at| (at % 251) as u8).collect();
    let mut codec = FastCgiCodec::new(&variables(&[]), false, &LIMITS, false);
    let (mut out, mut pushed, mut most) = (Vec::new(), 0, 0);
    while pushed < body.len() || !codec.unsent().is_empty() {
        pushed += codec.push_body(&body[pushed..]);
        most = most.max(codec.unsent().len());
        if pushed == body.len() {
            codec.end_body(&headway_gateway::FieldList::default());
        }
        let taken = codec.unsent().len().min(10_000);
        out.extend_from_slice(&codec.unsent()[..taken]);
        codec.sent(taken);
    }
    assert!(most < 100 * 1024, "{most} bytes waited");
    assert!(stream(&out, RecordKind::STDIN).0 == body);
}

#[test]
fn get_values_names_the_three_variables_of_the_specification() {
    let mut query = Vec::new();
    GetValues::write(&mut query);
    let (names, _) = stream(&query, RecordKind::GET_VALUES);
    assert_eq!(
        names,
        b"\x0e\0FCGI_MAX_CONNS\x0d\0FCGI_MAX_REQS\x0f\0FCGI_MPXS_CONNS"
    );
}

fn get_values_in_two_parts(
    bytes: &[u8],
    cut: usize,
) -> Result<Option<Capabilities>, InvalidRecord> {
    let mut query = GetValues::default();
    let (mut front, mut back) = bytes.split_at(cut);
    match query.feed(&mut front) {
        Ok(None) => query.feed(&mut back),
        found => found,
    }
}

#[test]
fn get_values_result_is_parsed() {
    const RESULT: RecordKind = RecordKind::GET_VALUES_RESULT;
    const UNKNOWN: RecordKind = RecordKind::UNKNOWN_TYPE;
    let pairs = b"\x0e\x02FCGI_MAX_CONNS16\x0f\x01FCGI_MPXS_CONNS0\x01\x01XY\x0d\x01FCGI_MAX_REQSx";
    let known = Capabilities {
        connections_max: Some(16),
        requests_max: None,
        multiplexes: Some(false),
    };
    type Row<'r> = (
        RecordKind,
        u16,
        &'r [u8],
        Result<Capabilities, InvalidRecord>,
    );
    let rows: &[Row<'_>] = &[
        (RESULT, 0, pairs, Ok(known)),
        (RESULT, 0, b"", Ok(Capabilities::default())),
        (
            UNKNOWN,
            0,
            b"\x09\0\0\0\0\0\0\0",
            Ok(Capabilities::default()),
        ),
        (RESULT, 0, b"\x05\x01abc", Err(InvalidRecord::Pair)),
        (
            RESULT,
            1,
            b"",
            Err(InvalidRecord::Request {
                found: 1,
                expected: 0,
            }),
        ),
        (
            RESULT,
            0,
            &[0; 1025],
            Err(InvalidRecord::Length {
                kind: 10,
                bytes: 1025,
            }),
        ),
        (
            UNKNOWN,
            0,
            b"\x09",
            Err(InvalidRecord::Length { kind: 11, bytes: 1 }),
        ),
        (
            RecordKind::STDOUT,
            0,
            b"x",
            Err(InvalidRecord::Kind { kind: 6 }),
        ),
    ];
    for (kind, id, content, expected) in rows {
        let mut bytes = Vec::new();
        write_record(&mut bytes, *kind, *id, content);
        for cut in 0..=bytes.len() {
            assert_eq!(
                get_values_in_two_parts(&bytes, cut),
                expected.map(Some),
                "{kind:?} {} at {cut}",
                content.escape_ascii()
            );
        }
    }
}

/// Almost valid records in every wrong order, with any padding.
fn conversation() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![6 => Just(OUT), 2 => Just(ERR), 2 => Just(END), 1 => any::<u8>().prop_map(RecordKind)];
    let content = prop_oneof![
        3 => Just(HEAD.as_bytes().to_vec()),
        2 => Just(DONE.as_bytes().to_vec()),
        2 => Just(Vec::new()),
        3 => prop::collection::vec(any::<u8>(), 0..20),
    ];
    let record = (
        kind,
        prop_oneof![9 => Just(1u16), 1 => any::<u16>()],
        content,
        0u8..9,
    )
        .prop_map(|(kind, id, content, padding)| {
            let mut bytes = Vec::new();
            write_record(&mut bytes, kind, id, &content);
            bytes.truncate(8 + content.len());
            bytes[6] = padding;
            bytes.resize(bytes.len() + usize::from(padding), 0xaa);
            bytes
        });
    let tail = prop::collection::vec(any::<u8>(), 0..4);
    (prop::collection::vec(record, 0..6), tail)
        .prop_map(|(records, tail)| [records.concat(), tail].concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn fastcgi_outcome_is_independent_of_splitting(bytes in conversation()) {
        seen_however_cut(&bytes, || codec_for(true, false));
    }
}
