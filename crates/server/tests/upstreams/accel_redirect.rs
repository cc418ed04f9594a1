//! `X-Accel-Redirect` and `X-Sendfile` from upstreams: headers, ranges, conditions, and internal
//! locations.

use std::fs::{self, File};
use std::time::SystemTime;

use super::faults::FakeUpstream;
use crate::site::*;

const HANDS_OVER: &str = "HTTP/1.1 200 OK\r\nX-Accel-Redirect: /kept/a.txt\r\nContent-Type: text/x-own\r\n\
    Content-Disposition: attachment; filename=\"b.txt\"\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n\
    Cache-Control: private\r\nETag: \"theirs\"\r\nX-Accel-Buffering: no\r\nContent-Length: 5\r\n\r\nnever";

const TEXT: &str = "what is kept\n";

/// An upstream at `/app/` with this response, and files that only it can have sent.
fn serve(site: &Site, raw: &'static str) -> Server {
    let upstream = FakeUpstream::sending(raw);
    fs::create_dir_all(site.path("root/kept")).unwrap();
    fs::write(site.path("root/kept/a.txt"), TEXT).unwrap();
    // Not in this second, in which its tag would be weak.
    let file = File::options()
        .write(true)
        .open(site.path("root/kept/a.txt"));
    file.unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    site.program("away", "printf 'Location: /kept/a.txt\\n\\n'");
    site.serve_configured(&format!(
        "[[location]]\nprefix = \"/app/\"\nproxy = {:?}\naccel-redirect = true\n\
         [[location]]\nprefix = \"/kept\"\nfiles = true\ninternal = true\n\
         [[location]]\nprefix = \"/cgi-bin/\"\ncgi = true\nroot = {:?}\n",
        upstream.address,
        site.path("cgi").display()
    ))
}

fn cookies(response: &Response) -> usize {
    response.head.matches("\r\nSet-Cookie: ").count()
}

#[test]
fn accel_redirect_keeps_upstream_headers() {
    let site = Site::new();
    let server = serve(&site, HANDS_OVER);
    let mut stream = server.connect();
    let mut tag = String::new();
    // Twice: the second time the file is in memory.
    for _ in 0..2 {
        send(&mut stream, "GET /app/x HTTP/1.1\r\nHost: x\r\n\r\n");
        let response = receive(&mut stream).unwrap();
        assert_eq!((response.status, response.text().as_str()), (200, TEXT));
        for (name, expected) in [
            ("Content-Type", Some("text/x-own")),
            (
                "Content-Disposition",
                Some("attachment; filename=\"b.txt\""),
            ),
            ("Cache-Control", Some("private")),
            ("Accept-Ranges", Some("bytes")),
            ("X-Accel-Buffering", None),
            ("X-Accel-Redirect", None),
        ] {
            assert_eq!(response.field(name), expected, "{name}");
        }
        assert_eq!(cookies(&response), 2);
        tag = response.field("ETag").unwrap().to_owned();
        assert_ne!(tag, "\"theirs\"");
    }
    send(&mut stream, "HEAD /app/x HTTP/1.1\r\nHost: x\r\n\r\n");
    let head = receive_head(&mut stream).unwrap();
    assert_eq!(head.field("Content-Length"), Some("13"));
    assert_eq!(
        (head.field("Content-Type"), cookies(&head)),
        (Some("text/x-own"), 2)
    );
    send(
        &mut stream,
        format!("GET /app/x HTTP/1.1\r\nHost: x\r\nRange: bytes=5-6\r\nIf-Range: {tag}\r\n\r\n"),
    );
    let part = receive(&mut stream).unwrap();
    assert_eq!((part.status, part.text().as_str()), (206, "is"));
    assert_eq!(part.field("Content-Range"), Some("bytes 5-6/13"));
    // The client has the headers about the content (RFC 9110, 15.3.7).
    assert_eq!((part.field("Content-Type"), cookies(&part)), (None, 2));
    send(
        &mut stream,
        format!("GET /app/x HTTP/1.1\r\nHost: x\r\nIf-None-Match: {tag}\r\n\r\n"),
    );
    let same = receive(&mut stream).unwrap();
    assert_eq!(
        (same.status, same.field("Content-Disposition")),
        (304, None)
    );
    assert_eq!(
        (same.field("Cache-Control"), cookies(&same)),
        (Some("private"), 2)
    );
    let request = format!(
        "POST /app/x HTTP/1.1\r\nHost: x\r\nRange: bytes=0-1\r\nIf-None-Match: {tag}\r\nContent-Length: 2\r\n\r\nhi"
    );
    send(&mut stream, request);
    let whole = receive(&mut stream).unwrap();
    assert_eq!((whole.status, whole.text().as_str()), (200, TEXT));
    is_well(&server);
}

#[test]
fn accel_redirect_drops_upstream_headers_when_the_file_is_missing() {
    let site = Site::new();
    let raw = "HTTP/1.1 200 OK\r\nX-Accel-Redirect: /kept/none\r\nSet-Cookie: a=1\r\nContent-Length: 0\r\n\r\n";
    let server = serve(&site, raw);
    let mut stream = server.connect();
    send(&mut stream, "GET /app/x HTTP/1.1\r\nHost: x\r\n\r\n");
    let response = receive(&mut stream).unwrap();
    assert_eq!((response.status, cookies(&response)), (404, 0));
    send(&mut stream, "GET /file.txt HTTP/1.1\r\nHost: x\r\n\r\n");
    let response = receive(&mut stream).unwrap();
    assert_eq!(
        (response.text().as_str(), cookies(&response)),
        ("a file\n", 0)
    );
    is_well(&server);
}

#[test]
fn internal_location_is_reachable_by_internal_redirect_only() {
    let site = Site::new();
    let server = serve(&site, HANDS_OVER);
    let mut stream = server.connect();
    for path in ["/app/x", "/cgi-bin/away"] {
        send(
            &mut stream,
            format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"),
        );
        let response = receive(&mut stream).unwrap();
        assert_eq!(
            (response.status, response.text().as_str()),
            (200, TEXT),
            "{path}"
        );
        let type_expected = if path == "/app/x" {
            "text/x-own"
        } else {
            "text/plain"
        };
        let found = response.field("Content-Type").unwrap();
        assert!(found.starts_with(type_expected), "{path}: {found}");
        for direct in [
            "/kept/a.txt",
            "/kept",
            "/kept/",
            "//kept//a.txt",
            "/x/../kept/a.txt",
            "/%6bept/a.txt",
            "http://x/kept/a.txt",
        ] {
            send(
                &mut stream,
                format!("GET {direct} HTTP/1.1\r\nHost: x\r\n\r\n"),
            );
            assert_eq!(receive(&mut stream).unwrap().status, 404, "{direct}");
        }
    }
    let refused = exchange(&server, post("/kept/a.txt", b"x"));
    assert_eq!(refused.status, 404);
    is_well(&server);
}
