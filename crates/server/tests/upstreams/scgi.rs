//! A Python program behind uWSGI, by SCGI.

use std::io::{Read, Write};

use headway_test_support::upstream;

use super::faults::{FakeUpstream, is_cut_off, refused_address};
use crate::site::*;

/// Needs: the program uwsgi_python3: scripts/setup
#[test]
fn scgi_python_application_owns_a_prefix() {
    let Some(upstream) = upstream::uwsgi("scgi_python_application_owns_a_prefix") else {
        return;
    };
    let site = Site::new();
    let server = site.serve_configured(&format!(
        "[[location]]\nprefix = \"/app\"\nscgi = \"unix:{}\"\nmax-body-size = \"8MiB\"\n",
        upstream.socket().display()
    ));
    let known = get(&server, "/app/environment?a=b");
    for line in [
        "SCRIPT_NAME=/app",
        "PATH_INFO=/environment",
        "QUERY_STRING=a=b",
    ] {
        assert!(
            known.text().lines().any(|found| found == line),
            "{line} is not in\n{}",
            known.text()
        );
    }
    let body = contents(2_000_000);
    assert!(exchange(&server, post("/app/echo", &body)).body == body);
    let chunked = "POST /app/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    assert_eq!(exchange(&server, chunked).text(), "abcde");
    assert_eq!(
        get(&server, "/app/parts").text(),
        "part 0\npart 1\npart 2\npart 3\npart 4\n"
    );
    assert_eq!(
        get(&server, "/app/redirect").field("Location"),
        Some("/elsewhere")
    );
    assert_eq!(get(&server, "/app/none").status, 204);
    assert_eq!(get(&server, "/app/absent").status, 404);
    assert_eq!(get(&server, "/apple").status, 404);
    is_well(&server);
}

#[test]
fn scgi_failures_become_error_responses() {
    let site = Site::new();
    let serve = |addresses: &[&str], more: &str| {
        site.serve_configured(&format!(
            "[[location]]\nprefix = \"/app/\"\nscgi = {addresses:?}\n{more}\n"
        ))
    };
    let sending = |raw: &'static str| {
        FakeUpstream::new(move |mut stream| {
            let _ = stream.read(&mut [0; 5000]);
            let _ = stream.write_all(raw.as_bytes());
        })
    };
    for (raw, expected) in [
        ("", 502),
        ("Status: 200", 502),
        ("SCGI\r\n\r\n", 502),
        ("Content-Type: a/b\r\nStatus: 99\r\n\r\n", 502),
        ("Status: 404 No\r\n\r\nnothing", 404),
        ("Content-Type: a/b\r\n\r\ngood", 200),
    ] {
        let program = sending(raw);
        let server = serve(&[&program.address], "");
        assert_eq!(get(&server, "/app/x").status, expected, "{raw:?}");
        is_well(&server);
    }
    let short = sending("Content-Type: a/b\r\nContent-Length: 9\r\n\r\ngood");
    let server = serve(&[&short.address], "");
    let mut stream = server.connect();
    send(&mut stream, "GET /app/x HTTP/1.1\r\nHost: x\r\n\r\n");
    match receive(&mut stream) {
        Ok(response) => assert_eq!(response.status, 502),
        Err(error) => assert!(is_cut_off(&error), "{error}"),
    }
    let silent = FakeUpstream::new(|mut stream| drop(stream.read_to_end(&mut Vec::new())));
    let server = serve(&[&silent.address], "timeout = \"300ms\"");
    assert_eq!(get(&server, "/app/x").status, 504);
    let server = serve(&[&refused_address()], "");
    assert_eq!(get(&server, "/app/x").status, 502);
    let good = sending("Content-Type: a/b\r\n\r\ngood");
    let server = serve(&[&refused_address(), &good.address], "");
    for _ in 0..4 {
        assert_eq!(get(&server, "/app/x").text(), "good");
    }
    is_well(&server);
}
