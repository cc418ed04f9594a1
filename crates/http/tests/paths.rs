//! Tests of path normalisation, with a table, limits and properties.

use std::borrow::Cow;

use headway_http::path::{PathError, escaped, normalise, slash_readings};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use proptest::prelude::*;

/// The path, then `?` and the query if there is one, with `!` in front if it is hidden; or the
/// error.
fn described(target: &[u8]) -> String {
    match normalise(target) {
        Ok(path) => {
            let hidden = if path.hidden { "!" } else { "" };
            let query = path
                .query
                .map_or(String::new(), |query| format!("?{}", query.escape_ascii()));
            format!("{hidden}{}{query}", path.bytes.escape_ascii())
        }
        Err(error) => format!("{error:?}"),
    }
}

#[rustfmt::skip]
const ROWS: &[(&str, &str)] = &[
    // Unchanged.
    ("/", ""), ("", ""), ("/a", "a"), ("/a/", "a/"), ("/a/b.html", "a/b.html"), ("/a.b/c..d/e.", "a.b/c..d/e."),
    ("/a~b!$&'()*+,;=:@", "a~b!$&\\'()*+,;=:@"), ("/a\\b", r"a\\b"), ("/...", "!..."),
    // Queries.
    ("?q", "?q"), ("/?", "?"), ("/a?b=/../c%00", "a?b=/../c%00"), ("/a?b?c", "a?b?c"), ("/a%3fb", "a?b"),
    // Escapes, decoded once.
    ("/a%20b", "a b"), ("/%41%5a%7e", "AZ~"), ("/%e2%82%ac", r"\xe2\x82\xac"), ("/%E2%82%AC", r"\xe2\x82\xac"),
    ("/%2541", "%41"), ("/%252e%252e/a", "%2e%2e/a"), ("/%25", "%"), ("/%23", "#"), ("/a%5c..%5cb", r"a\\..\\b"),
    ("/%", "BadEscape"), ("/%4", "BadEscape"), ("/a%4/b", "BadEscape"), ("/%zz", "BadEscape"), ("/%4g", "BadEscape"),
    ("/%+1", "BadEscape"), ("/%%", "BadEscape"), ("/%u0041", "BadEscape"),
    ("/%00", "Nul"), ("/a%00.html", "Nul"), ("/%0a", "Control"), ("/%0d%0aX:y", "Control"), ("/%1f", "Control"), ("/%7f", "Control"),
    ("/a\u{1}", "Control"), ("/a\u{7f}", "Control"), ("/a\0b", "Nul"),
    ("/%2f", "EncodedSlash"), ("/a%2Fb", "EncodedSlash"), ("/..%2fetc", "EncodedSlash"), ("/%2e%2e%2fetc", "EncodedSlash"),
    // Dots and empty segments.
    ("//", ""), ("//a", "a"), ("/a//b", "a/b"), ("/a///", "a/"), ("///a///b///", "a/b/"),
    ("/.", ""), ("/./", ""), ("/./a", "a"), ("/a/.", "a/"), ("/a/./b", "a/b"), ("/%2e/a", "a"),
    ("/a/..", ""), ("/a/../", ""), ("/a/../b", "b"), ("/a/b/..", "a/"), ("/a/b/../", "a/"), ("/a/b/../c", "a/c"),
    ("/a/b/../../c", "c"), ("/a//../b", "b"), ("/a/%2e%2e/b", "b"), ("/a/.%2e/b", "b"), ("/a/%2E./b", "b"),
    ("/..", "Escapes"), ("/../", "Escapes"), ("/../a", "Escapes"), ("/a/../..", "Escapes"), ("/a/../../b", "Escapes"),
    ("/%2e%2e", "Escapes"), ("/%2e%2e/etc/passwd", "Escapes"), ("/.%2e/a", "Escapes"), ("//..//a", "Escapes"), ("/./../a", "Escapes"),
    ("..", "Escapes"), ("/a/../../a", "Escapes"),
    // Hidden.
    ("/.git/config", "!.git/config"), ("/a/.b", "!a/.b"), ("/a/.b/c", "!a/.b/c"), ("/%2egit/config", "!.git/config"),
    ("/.well-known/acme", ".well-known/acme"), ("/.well-known", ".well-known"), ("/.well-known/.x", "!.well-known/.x"),
    ("/a/.well-known/b", "!a/.well-known/b"), ("/.well-knownx", "!.well-knownx"), ("/.git/../a", "a"), ("/.well-known/../.git", "!.git"),
];

#[test]
fn path_is_normalised_as_in_the_table() {
    for (target, expected) in ROWS {
        assert_eq!(described(target.as_bytes()), *expected, "{target:?}");
    }
}

#[test]
fn path_is_borrowed_when_it_needs_no_change() {
    for (target, borrowed) in [
        ("/a/b.html?q", true),
        ("/", true),
        ("/a/", true),
        ("/é", true),
        ("/a%20b", false),
        ("/a//b", false),
        ("/.a", false),
    ] {
        let path = normalise(target.as_bytes()).unwrap();
        assert_eq!(matches!(path.bytes, Cow::Borrowed(_)), borrowed, "{target}");
    }
}

#[test]
fn path_is_a_directory_when_it_ends_in_a_slash_or_is_empty() {
    for (target, directory) in [
        ("/", true),
        ("/a/", true),
        ("/a", false),
        ("/a/..", true),
        ("/a/b/.", true),
        ("", true),
    ] {
        assert_eq!(
            normalise(target.as_bytes()).unwrap().is_directory(),
            directory,
            "{target}"
        );
    }
}

#[test]
fn path_is_rejected_when_it_exceeds_kernel_limits() {
    let name = |bytes: usize| format!("/d/{}", "a".repeat(bytes));
    assert!(normalise(name(255).as_bytes()).is_ok());
    assert_eq!(normalise(name(256).as_bytes()), Err(PathError::NameTooLong));
    assert_eq!(
        normalise(format!("{}/b", name(256)).as_bytes()),
        Err(PathError::NameTooLong)
    );
    // The decoded length counts.
    assert!(normalise(format!("/{}", "%41".repeat(255)).as_bytes()).is_ok());
    assert_eq!(
        normalise(format!("/{}", "%41".repeat(256)).as_bytes()),
        Err(PathError::NameTooLong)
    );
    let long = |bytes: usize| {
        format!(
            "/{}{}",
            "a/".repeat((bytes - 1) / 2),
            "b".repeat(2 - bytes % 2)
        )
    };
    assert!(normalise(long(4095).as_bytes()).is_ok());
    assert_eq!(normalise(long(4096).as_bytes()), Err(PathError::TooLong));
    assert!(normalise(format!("/{}a", "./".repeat(3000)).as_bytes()).is_ok());
}

#[test]
fn path_error_has_the_documented_status() {
    for (error, code) in [
        (PathError::BadEscape, 400),
        (PathError::Nul, 400),
        (PathError::Control, 400),
        (PathError::Escapes, 403),
        (PathError::EncodedSlash, 404),
        (PathError::NameTooLong, 404),
        (PathError::TooLong, 414),
    ] {
        assert_eq!(error.status().code(), code);
    }
}

/// The bytes to escape so that a path is parsed back unchanged.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%').add(b'?').add(b'#').add(b' ');

/// Dangerous segments.
fn targets() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => Just(b"/".to_vec()), 2 => Just(b".".to_vec()), 2 => Just(b"..".to_vec()), 2 => Just(b"%2e".to_vec()),
        1 => Just(b"%2f".to_vec()), 1 => Just(b"%25".to_vec()), 1 => Just(b"%00".to_vec()), 1 => Just(b"?".to_vec()),
        3 => Just(b"a".to_vec()), 2 => Just(b"b%41".to_vec()), 1 => Just(b"\\".to_vec()), 1 => Just(b".well-known".to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..3),
    ];
    prop::collection::vec(piece, 0..14).prop_map(|pieces| [b"/".to_vec(), pieces.concat()].concat())
}

/// A model of normalisation: split, decode with the percent-encoding crate, walk with a stack.
fn model(target: &[u8]) -> Option<Vec<u8>> {
    let path = target
        .split(|byte| *byte == b'?')
        .next()
        .unwrap_or_default();
    let mut stack: Vec<Vec<u8>> = Vec::new();
    let mut directory = true;
    for segment in path.split(|byte| *byte == b'/') {
        let name: Vec<u8> = percent_encoding::percent_decode(segment).collect();
        directory = matches!(&name[..], b"" | b"." | b"..");
        match &name[..] {
            b"" | b"." => {}
            b".." => drop(stack.pop()?),
            _ => stack.push(name),
        }
    }
    let mut joined = stack.join(&b'/');
    if directory && !joined.is_empty() {
        joined.push(b'/');
    }
    Some(joined)
}

/// An upstream which decodes and resolves what it gets must find the path which was looked up.
fn assert_escaped_form_is_equivalent(target: &[u8]) {
    match (normalise(target), escaped(target)) {
        (Ok(path), Ok(form)) => {
            assert_eq!(
                normalise(&form).as_ref(),
                Ok(&path),
                "{}",
                target.escape_ascii()
            );
            assert_eq!(*escaped(&form).unwrap(), *form, "stays as it is");
            let end = form
                .iter()
                .position(|byte| *byte == b'?')
                .unwrap_or(form.len());
            let mut segments = form[..end].split(|byte| *byte == b'/').skip(1).peekable();
            while let Some(segment) = segments.next() {
                let dots = matches!(segment, b"." | b".." | b"%2e" | b"%2E");
                assert!(!dots && (!segment.is_empty() || segments.peek().is_none()));
            }
        }
        // Which of them an upstream may get is another question.
        (Err(PathError::TooLong | PathError::EncodedSlash), _) => {}
        (Err(error), form) => assert_eq!(form, Err(error)),
        (path, form) => panic!("{path:?} {form:?}"),
    }
}

#[test]
fn escaped_form_is_equivalent_to_the_normal_form() {
    for (target, _) in ROWS {
        assert_escaped_form_is_equivalent(target.as_bytes());
    }
    assert!(matches!(escaped(b"/a/b?c"), Ok(Cow::Borrowed(_))));
}

/// Both readings, or the error.
fn readings(target: &[u8]) -> String {
    match slash_readings(target) {
        Ok(readings) => format!(
            "{} | {}",
            readings.separating.bytes.escape_ascii(),
            readings.joining.escape_ascii()
        ),
        Err(error) => format!("{error:?}"),
    }
}

#[test]
fn escaped_slash_has_two_readings() {
    for (target, expected) in [
        ("/a%2Fb", "a/b | a%2Fb"),
        ("/a%2fb/c?d%2Fe", "a/b/c | a%2fb/c"),
        ("/x/..//a%2Fb", "a/b | a%2Fb"),
        ("/x%2Fy/../b%2F", "b/ | b%2F"),
        ("/https:%2F%2Fa%20b", "https:/a b | https:%2F%2Fa b"),
        ("/a%252Fb%2Fc", "a%2Fb/c | a%2Fb%2Fc"),
        ("/%2F", " | %2F"),
        ("/%2e%2Fa", "EncodedSlash"),
        ("/a%2F..", "EncodedSlash"),
        ("/a%2F.%2e%2Fb", "EncodedSlash"),
        ("/a/..%2Fb", "EncodedSlash"),
        ("/a%2F../b", "EncodedSlash"),
        ("/%2F/../..", "Escapes"),
        ("/a%2Fb%00", "Nul"),
        ("/a%2Fb%2", "BadEscape"),
    ] {
        assert_eq!(readings(target.as_bytes()), expected, "{target}");
    }
    let long = |bytes| "a".repeat(bytes);
    let one = format!("/a%2F{}", long(5000));
    assert!(slash_readings(one.as_bytes()).is_ok());
}

/// An upstream finds one of the two readings, whatever it decodes before it resolves dots.
fn assert_readings_are_what_upstreams_find(target: &[u8]) {
    let (Ok(readings), Ok(form)) = (slash_readings(target), escaped(target)) else {
        return;
    };
    let path = form.split(|byte| *byte == b'?').next().unwrap_or_default();
    let decoded = with_slashes(path, b"/");
    let separating = normalise(&decoded).unwrap();
    assert_eq!(separating.bytes, readings.separating.bytes);
    for segment in decoded.split(|byte| *byte == b'/') {
        assert!(
            !matches!(segment, b"." | b".."),
            "{}",
            decoded.escape_ascii()
        );
    }
    // With the slashes as letters of their segments, nothing is left to resolve.
    let letters = with_slashes(path, b"%252F");
    let joining = normalise(&letters).unwrap().bytes;
    assert!(joining.eq_ignore_ascii_case(&readings.joining));
}

/// The path with another byte in place of each escaped slash.
fn with_slashes(path: &[u8], other: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), path);
    while let [first, tail @ ..] = rest {
        (out, rest) = match rest {
            [b'%', b'2', b'f' | b'F', after @ ..] => ([&out, other].concat(), after),
            _ => ([&out[..], &[*first]].concat(), tail),
        };
    }
    out
}

proptest! {
    #[test]
    fn readings_are_what_upstreams_find(target in targets()) {
        assert_readings_are_what_upstreams_find(&target);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn accepted_path_has_only_plain_components(target in targets()) {
        let Ok(path) = normalise(&target) else { return Ok(()) };
        let without_slash = path.bytes.strip_suffix(b"/").unwrap_or(&path.bytes);
        prop_assert!(!path.bytes.contains(&0));
        if !path.bytes.is_empty() {
            for component in without_slash.split(|byte| *byte == b'/') {
                prop_assert!(!matches!(component, b"" | b"." | b".."), "{:?}", path);
            }
        }
    }

    #[test]
    fn escaped_path_normalises_to_the_same_path(target in targets()) {
        let Ok(path) = normalise(&target) else { return Ok(()) };
        let again = format!("/{}", percent_encode(&path.bytes, ESCAPED));
        let second = normalise(again.as_bytes()).unwrap();
        prop_assert_eq!(&second.bytes, &path.bytes);
        prop_assert_eq!(second.hidden, path.hidden);
    }

    #[test]
    fn accepted_path_agrees_with_a_model(target in targets()) {
        match normalise(&target) {
            Ok(path) => prop_assert_eq!(Some(path.bytes.into_owned()), model(&target)),
            Err(PathError::Escapes) => prop_assert_eq!(None, model(&target)),
            Err(_) => {}
        }
    }
}

proptest! {
    #[test]
    fn escaped_form_is_equivalent_for_odd_paths(
        target in "(/|//|\\.|%2e|%2F|%41|%3b|%|[a-c]|%C3%A9|\\?){0,24}",
    ) {
        assert_escaped_form_is_equivalent(target.as_bytes());
    }
}
