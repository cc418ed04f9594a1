//! PHP programs behind Debian's php-fpm.

use std::os::unix::net::UnixStream;

use headway_gateway::cgi::{Context, Variables};
use headway_gateway::fastcgi::{FastCgiCodec, GetValues};
use headway_gateway::{AccelRedirect, CodecError, HeadLimits, InvalidResponse};
use headway_test_support::upstream::{php, scripts};

use super::transaction::{Response, converse, converse_into, with_request};

/// The codec for `METHOD /script.php…` with these field lines.
fn codec(request_line: &str, lines: &str, body_bytes: Option<u64>, keep: bool) -> FastCgiCodec {
    let bytes = format!("{request_line} HTTP/1.1\r\nHost: example.org:8080\r\n{lines}\r\n");
    let path = request_line.split(' ').nth(1).unwrap();
    let path = path.split('?').next().unwrap().as_bytes();
    let split = headway_gateway::cgi::split_at_suffix(path, b".php").unwrap();
    let root = scripts("php").display().to_string();
    let script_filename = [root.as_bytes(), split.script_name].concat();
    let context = Context {
        script_name: split.script_name,
        path_info: split.path_info,
        script_filename: &script_filename,
        document_root: root.as_bytes(),
        remote: "192.0.2.7:50000".parse().unwrap(),
        local: "192.0.2.1:8080".parse().unwrap(),
        server_name: b"fallback",
        server_software: b"headway",
        https: false,
        tls: None,
        body_bytes,
        user: None,
        authorization: true,
    };
    let variables = with_request(bytes.as_bytes(), |request| {
        Variables::new(request, &context)
    });
    let head_only = request_line.starts_with("HEAD ");
    FastCgiCodec::new(&variables, keep, &HeadLimits::default(), head_only)
}

fn get(stream: &mut UnixStream, target: &str) -> Response {
    converse(
        &mut codec(&format!("GET {target}"), "", None, true),
        stream,
        b"",
    )
}

/// Needs: the program php-fpm: scripts/setup
#[test]
fn php_sees_request_variables_over_fastcgi() {
    let Some(upstream) = php("php_sees_request_variables_over_fastcgi") else {
        return;
    };
    let lines = "Content-Type: text/x-own\r\nContent-Length: 5\r\nProxy: evil\r\nX_A: evil\r\nX-A: b\r\nX-A: c\r\n";
    let mut codec = codec("PUT /environment.php/in/fo?a=b%20c", lines, Some(5), false);
    let outcome = converse(&mut codec, &mut upstream.connect(), b"hello");
    for line in [
        "REQUEST_METHOD=PUT",
        "QUERY_STRING=a=b%20c",
        "REQUEST_URI=/environment.php/in/fo?a=b%20c",
        "SCRIPT_NAME=/environment.php",
        "PATH_INFO=/in/fo",
        "CONTENT_TYPE=text/x-own",
        "CONTENT_LENGTH=5",
        "SERVER_NAME=example.org",
        "SERVER_PORT=8080",
        "SERVER_PROTOCOL=HTTP/1.1",
        "REMOTE_ADDR=192.0.2.7",
        "HTTP_HOST=example.org:8080",
        "HTTP_X_A=b, c",
    ] {
        assert!(
            outcome.has_line(line),
            "{line} is not in\n{}",
            outcome.text()
        );
    }
    assert!(!outcome.text().contains("evil") && outcome.text().ends_with("\n\nhello"));
    let end = outcome.end.unwrap();
    assert_eq!((end.reusable, end.exit_status), (false, 0));
}

/// Needs: the program php-fpm: scripts/setup
#[test]
fn php_form_upload_is_intact() {
    let Some(upstream) = php("php_form_upload_is_intact") else {
        return;
    };
    let file: Vec<u8> = (0..3_000_001u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let body = [
        &b"--bound\r\nContent-Disposition: form-data; name=\"title\"\r\n\r\na title\r\n--bound\r\n\
        Content-Disposition: form-data; name=\"file\"; filename=\"a b.bin\"\r\nContent-Type: image/x-own\r\n\r\n"[..],
        &file,
        b"\r\n--bound--\r\n",
    ]
    .concat();
    let length = body.len() as u64;
    let lines = format!(
        "Content-Type: multipart/form-data; boundary=bound\r\nContent-Length: {length}\r\n"
    );
    let mut upload = codec("POST /form.php", &lines, Some(length), true);
    let mut stream = upstream.connect();
    let outcome = converse(&mut upload, &mut stream, &body);
    assert_eq!(
        outcome.response().length,
        Some(file.len() as u64),
        "{}",
        outcome.stderr
    );
    let fields = ["X-Title", "X-File-Name", "X-File-Type"].map(|name| outcome.field(name));
    assert_eq!(fields, ["a%20title", "a%20b.bin", "image/x-own"]);
    assert!(outcome.body == file, "the file has changed");
    // And an ordinary form on the same connection.
    let lines = "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 12\r\n";
    let mut form = codec("POST /form.php", lines, Some(12), true);
    assert!(outcome.end.unwrap().reusable);
    assert_eq!(
        converse(&mut form, &mut stream, b"a=1&b=%C3%9F").text(),
        "a=1\nb=ß\n"
    );
}

/// Needs: the program php-fpm: scripts/setup
#[test]
fn php_connection_serves_many_requests_with_keepalive() {
    let Some(upstream) = php("php_connection_serves_many_requests_with_keepalive") else {
        return;
    };
    let mut stream = upstream.connect();
    for parts in [3, 0, 200] {
        let outcome = get(&mut stream, &format!("/parts.php?parts={parts}"));
        let expected: String = (0..parts).map(|part| format!("part {part}\n")).collect();
        assert_eq!(outcome.text(), expected);
        assert_eq!(outcome.response().length, None);
        assert!(outcome.end.unwrap().reusable);
    }
    let mut head = codec("HEAD /download.php", "", None, true);
    let outcome = converse(&mut head, &mut stream, b"");
    assert_eq!(
        (outcome.response().length, outcome.body.len()),
        (Some(104_857_600), 0)
    );
}

/// Needs: the program php-fpm: scripts/setup
#[test]
fn php_download_of_100_mib_is_intact_over_fastcgi() {
    let Some(upstream) = php("php_download_of_100_mib_is_intact_over_fastcgi") else {
        return;
    };
    let mut download = codec("GET /download.php", "", None, true);
    let (mut block, mut number, mut expected) = (Vec::new(), 0, Vec::new());
    let mut check = |piece: &[u8]| {
        block.extend_from_slice(piece);
        while block.len() >= 65_536 {
            expected.clear();
            expected.extend(format!("{number:08}").bytes().cycle().take(65_536));
            assert!(block[..65_536] == expected, "block {number}");
            block.drain(..65_536);
            number += 1;
        }
    };
    let outcome = converse_into(&mut download, &mut upstream.connect(), b"", &mut check);
    assert_eq!((number, block.len()), (1600, 0));
    assert_eq!(
        outcome.field("content-disposition"),
        "attachment; filename=\"large.bin\""
    );
    assert!(outcome.end.unwrap().reusable);
}

/// Needs: the program php-fpm: scripts/setup
#[test]
fn php_accel_redirect_is_parsed() {
    let Some(upstream) = php("php_accel_redirect_is_parsed") else {
        return;
    };
    let mut stream = upstream.connect();
    for (query, expected) in [
        ("file=/a/b", AccelRedirect::File((*b"/a/b").into())),
        ("location=/c?d", AccelRedirect::Location((*b"/c?d").into())),
    ] {
        let outcome = get(&mut stream, &format!("/accel_redirect.php?{query}"));
        assert_eq!(outcome.response().accel_redirect, Some(expected));
        assert_eq!(outcome.text(), "");
        assert!(
            outcome
                .field("Content-Type")
                .starts_with("text/x-handed-off")
        );
        assert!(
            outcome
                .response()
                .fields
                .iter()
                .all(|(name, _)| !name.starts_with(b"X-Sendfile") && !name.starts_with(b"X-Accel"))
        );
    }
    let redirect = get(&mut stream, "/redirect.php?to=/there");
    assert_eq!(
        (redirect.response().status, redirect.field("Location")),
        (302, "/there")
    );
}

/// Needs: the program php-fpm: scripts/setup
#[test]
fn php_error_is_reported() {
    let Some(upstream) = php("php_error_is_reported") else {
        return;
    };
    let how = |how: &str| {
        get(
            &mut upstream.connect(),
            &format!("/misbehave.php?how={how}"),
        )
    };
    let fatal = how("fatal");
    assert_eq!(fatal.response().status, 500);
    assert!(
        fatal.stderr.contains("undefined_function"),
        "{}",
        fatal.stderr
    );
    let late = how("fatal-late");
    assert_eq!((late.response().status, late.body.len()), (200, 100_000));
    let cut = InvalidResponse::BodyCut {
        body_bytes: 9,
        declared_bytes: 1000,
    };
    assert_eq!(how("short").end, Err(cut.into()));
    let long = how("long");
    assert!(long.text() == "this" && long.end.unwrap().excess);
    assert_eq!(
        how("chunked").end,
        Err(InvalidResponse::TransferEncoding.into())
    );
    let log = how("log");
    assert!(
        log.stderr.contains("another word for the log"),
        "{}",
        log.stderr
    );
    assert_eq!(
        get(&mut upstream.connect(), "/absent.php")
            .response()
            .status,
        404
    );
    assert_eq!(
        how("die").end,
        Err(CodecError::Response(InvalidResponse::Empty))
    );
    // The next request is answered all the same.
    assert_eq!(
        get(&mut upstream.connect(), "/parts.php?parts=1").text(),
        "part 0\n"
    );
}

/// Needs: the program php-fpm: scripts/setup
#[test]
fn php_answers_get_values() {
    use std::io::{Read, Write};
    let Some(upstream) = php("php_answers_get_values") else {
        return;
    };
    let mut question = Vec::new();
    GetValues::write(&mut question);
    let mut stream = upstream.connect();
    stream.write_all(&question).unwrap();
    let mut inquiry = GetValues::default();
    let mut buffer = [0; 1024];
    let abilities = loop {
        let bytes = stream.read(&mut buffer).unwrap();
        assert!(bytes > 0, "closed without an answer");
        if let Some(abilities) = inquiry.feed(&mut &buffer[..bytes]).unwrap() {
            break abilities;
        }
    };
    assert_eq!(abilities.multiplexes, Some(false));
}
