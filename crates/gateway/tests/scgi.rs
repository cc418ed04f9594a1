//! Conversations with an SCGI program, as bytes.

use crate::common;
use common::{seen_however_cut, sent};
use headway_gateway::cgi::Variables;
use headway_gateway::scgi::ScgiCodec;
use headway_gateway::{Codec, HeadLimits};

fn codec(body_bytes: u64) -> ScgiCodec {
    let mut variables = Variables::default();
    for (name, value) in [
        ("REQUEST_METHOD", "POST"),
        ("CONTENT_LENGTH", "27"),
        ("SCGI", "x"),
        ("REQUEST_URI", "/deepthought"),
    ] {
        assert!(variables.add(name.as_bytes(), value.as_bytes()));
    }
    ScgiCodec::new(&variables, body_bytes, &HeadLimits::default(), false)
}

#[test]
fn scgi_request_is_a_netstring_and_a_body() {
    let mut codec = codec(27);
    assert_eq!(codec.push_body(b"What is the answer to life?!"), 27);
    assert_eq!(codec.push_body(b"more"), 0);
    let expected = "70:CONTENT_LENGTH\x0027\0SCGI\x001\0REQUEST_METHOD\0POST\0REQUEST_URI\0/deepthought\0,What is the answer to life?";
    assert_eq!(
        sent(&mut codec, 9).escape_ascii().to_string(),
        expected.as_bytes().escape_ascii().to_string()
    );
}

#[test]
fn scgi_sends_nothing_after_a_body_that_ended_early() {
    let mut codec = codec(27);
    assert_eq!(codec.push_body(b"What"), 4);
    codec.end_body(&headway_gateway::FieldList::default());
    assert_eq!(codec.push_body(b" is"), 0);
    assert!(sent(&mut codec, 100).ends_with(b",What"));
}

#[test]
fn scgi_response_has_cgi_format() {
    for (bytes, expected) in [
        (
            "Status: 200 OK\r\nContent-Type: text/plain\r\n\r\n42",
            "200 OK [Content-Type: text/plain] body=42 | closed",
        ),
        (
            "Status: 200\nContent-Length: 3\n\n42",
            "200 length=3 body=42 | the response ended after 2 of 3 declared bytes",
        ),
        (
            "Status: 200\nContent-Length: 1\n\n42",
            "200 length=1 body=4 | closed too much",
        ),
        ("", "| the response is empty"),
        (
            "Status: 200",
            "| the response ended inside its head, after 0 lines",
        ),
    ] {
        let found = seen_however_cut(bytes.as_bytes(), || codec(0));
        assert_eq!(
            (found.text.as_str(), found.reusable),
            (expected, false),
            "{bytes:?}"
        );
    }
}
