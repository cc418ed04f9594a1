//! A Python program behind uWSGI's SCGI.

use headway_gateway::HeadLimits;
use headway_gateway::cgi::{Context, Variables};
use headway_gateway::scgi::ScgiCodec;
use headway_test_support::upstream::{TestServer, uwsgi};

use super::transaction::{Response, converse, with_request};

fn exchange(upstream: &TestServer, request_line: &str, body: &[u8]) -> Response {
    let length = body.len() as u64;
    let bytes =
        format!("{request_line} HTTP/1.1\r\nHost: x\r\nX-A: b\r\nContent-Length: {length}\r\n\r\n");
    let path = request_line.split([' ', '?']).nth(1).unwrap().as_bytes();
    let context = Context {
        script_name: b"",
        path_info: path,
        script_filename: b"",
        document_root: b"/srv",
        remote: "192.0.2.7:50000".parse().unwrap(),
        local: "192.0.2.1:8080".parse().unwrap(),
        server_name: b"fallback",
        server_software: b"headway",
        https: false,
        tls: None,
        body_bytes: Some(length),
        user: None,
        authorization: true,
    };
    let variables = with_request(bytes.as_bytes(), |request| {
        Variables::new(request, &context)
    });
    let head_only = request_line.starts_with("HEAD ");
    let mut codec = ScgiCodec::new(&variables, length, &HeadLimits::default(), head_only);
    converse(&mut codec, &mut upstream.connect(), body)
}

/// Needs: the program uwsgi_python3: scripts/setup
#[test]
fn python_answers_over_scgi() {
    let Some(upstream) = uwsgi("python_answers_over_scgi") else {
        return;
    };
    let known = exchange(&upstream, "POST /environment?a=b", b"hello");
    for line in [
        "REQUEST_METHOD=POST",
        "QUERY_STRING=a=b",
        "PATH_INFO=/environment",
        "HTTP_X_A=b",
        "REMOTE_ADDR=192.0.2.7",
    ] {
        assert!(known.has_line(line), "{line} is not in\n{}", known.text());
    }
    assert!(known.text().ends_with("\n\nhello"));
    let body: Vec<u8> = (0..2_000_000u32).map(|at| (at % 253) as u8).collect();
    let echo = exchange(&upstream, "POST /echo", &body);
    assert!(echo.body == body && echo.response().length == Some(2_000_000));
    let parts = exchange(&upstream, "GET /parts", b"");
    assert_eq!(parts.text(), "part 0\npart 1\npart 2\npart 3\npart 4\n");
    let redirect = exchange(&upstream, "GET /redirect", b"");
    assert_eq!(
        (redirect.response().status, redirect.field("Location")),
        (302, "/elsewhere")
    );
    assert_eq!(exchange(&upstream, "GET /none", b"").response().status, 204);
    assert_eq!(
        exchange(&upstream, "GET /absent", b"").response().status,
        404
    );
    for outcome in [known, echo, parts] {
        assert_eq!(outcome.end.map(|end| end.reusable), Ok(false));
    }
}
