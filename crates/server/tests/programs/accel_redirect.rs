//! `X-Accel-Redirect` and `X-Sendfile` from CGI programs and pipe programs.

use std::fs;

use super::direct::{clients, lacks};
use crate::site::*;

const TEXT: &str = "what is kept\n";

/// Responses with the headers that its query names, and a body that must not be sent.
const STAYS: &str = "#!/usr/bin/env python3
import os, headway_direct
def answer(request):
    name, value = request.variables['QUERY_STRING'].split(':', 1)
    request.read()
    request.response(200, [(name, value.replace('{root}', os.environ['ROOT'])), ('Content-Type', 'text/x-own'), ('Set-Cookie', 'a=1')], b'never')
headway_direct.serve(answer)
";
const STARTED: &str = "value=\"${QUERY_STRING#*:}\"; case $value in '{root}'*) value=$DOCUMENT_ROOT${value#'{root}'};; esac\n\
    printf '%s: %s\\nContent-Type: text/x-own\\nSet-Cookie: a=1\\n\\nnever' \"${QUERY_STRING%%:*}\" \"$value\"";

/// Programs of each kind, and a file that only they can have sent.
fn serve(site: &Site, handoff: &str) -> Server {
    fs::create_dir(site.path("root/kept")).unwrap();
    fs::write(site.path("root/kept/a.txt"), TEXT).unwrap();
    fs::write(site.path("outside.txt"), "nobody's business\n").unwrap();
    site.program("started", STARTED);
    let spaced = "printf 'X-Accel-Redirect: /kept/a b.txt\\nContent-Type: a/b\\n\\nnever'";
    site.program("spaced", spaced);
    site.file("cgi/stays", STAYS, 0o755);
    let (cgi, root) = (site.path("cgi"), site.path("root").canonicalize().unwrap());
    site.serve_configured(&format!(
        "research.pipe = \"/pipe/\"\nresearch.fork-in-server = \"/forked/\"\n\
         [[location]]\nprefix = \"/cgi-bin/\"\ncgi = true\nroot = {cgi:?}\n{handoff}\n\
         [[location]]\nprefix = \"/forked/\"\ncgi = true\nroot = {cgi:?}\n{handoff}\n\
         [[location]]\nprefix = \"/pipe/\"\ndirect = [{:?}]\nconcurrency = 1\n{handoff}\n\
         variables = {{ PYTHONPATH = {:?}, ROOT = {root:?}, PYTHONDONTWRITEBYTECODE = \"1\" }}\n\
         [[location]]\nprefix = \"/kept\"\nfiles = true\ninternal = true\n",
        cgi.join("stays"),
        clients(),
    ))
}

/// The paths at which the same program runs with each handler.
fn ways(test: &str) -> Vec<&'static str> {
    let mut ways = vec!["/cgi-bin/started", "/forked/started"];
    if !lacks("python3", test) {
        ways.push("/pipe/");
    }
    ways
}

#[test]
fn x_sendfile_sends_the_file_with_the_programs_headers() {
    let site = Site::new();
    let server = serve(&site, "accel-redirect = true");
    for way in ways("x_sendfile_sends_the_file_with_the_programs_headers") {
        let mut stream = server.connect();
        for query in [
            "X-Accel-Redirect:/kept/a.txt",
            "X-Sendfile:{root}/kept/a.txt",
        ] {
            let request = format!("{way}?{query} HTTP/1.1\r\nHost: x\r\n");
            send(&mut stream, format!("GET {request}\r\n"));
            let response = receive(&mut stream).unwrap();
            assert_eq!(
                (response.status, response.text().as_str()),
                (200, TEXT),
                "{request}"
            );
            for (name, expected) in [
                ("Content-Type", Some("text/x-own")),
                ("Set-Cookie", Some("a=1")),
                ("Accept-Ranges", Some("bytes")),
                ("X-Accel-Redirect", None),
                ("X-Sendfile", None),
            ] {
                assert_eq!(response.field(name), expected, "{request}: {name}");
            }
            send(
                &mut stream,
                format!("GET {request}Range: bytes=5-6\r\n\r\n"),
            );
            let part = receive(&mut stream).unwrap();
            assert_eq!(
                (part.status, part.text().as_str()),
                (206, "is"),
                "{request}"
            );
            send(
                &mut stream,
                format!("POST {request}Content-Length: 2\r\n\r\nhi"),
            );
            let whole = receive(&mut stream).unwrap();
            assert_eq!(
                (whole.status, whole.text().as_str()),
                (200, TEXT),
                "{request}"
            );
            stream = server.connect();
        }
    }
    assert_eq!(get(&server, "/kept/a.txt").status, 404);
    is_well(&server);
}

#[test]
fn x_sendfile_works_when_the_body_was_not_read() {
    let site = Site::new();
    let server = serve(&site, "accel-redirect = true\nmax-body-size = \"64MiB\"");
    for way in ways("x_sendfile_works_when_the_body_was_not_read") {
        let mut stream = server.connect();
        let mut sender = stream.try_clone().unwrap();
        let request = post(
            &format!("{way}?X-Accel-Redirect:/kept/a.txt"),
            &contents(8 << 20),
        );
        // The server may close before it has read all of it.
        let sending = std::thread::spawn(move || {
            let _ = std::io::Write::write_all(&mut sender, &request);
        });
        let response = receive(&mut stream).unwrap();
        assert_eq!(
            (response.status, response.text().as_str()),
            (200, TEXT),
            "{way}"
        );
        drop(stream);
        sending.join().unwrap();
    }
    is_well(&server);
}

#[test]
fn x_sendfile_outside_the_document_root_is_rejected() {
    let site = Site::new();
    let server = serve(&site, "accel-redirect = true");
    for way in ways("x_sendfile_outside_the_document_root_is_rejected") {
        for (query, status) in [
            ("X-Sendfile:/etc/passwd", 502),
            ("X-Sendfile:outside.txt", 502),
            ("X-Sendfile:{root}-and-more/a.txt", 502),
            ("X-Sendfile:{root}/../outside.txt", 502),
            ("X-Accel-Redirect:http://other.example/file.txt", 502),
            ("X-Accel-Redirect://other.example/file.txt", 502),
            ("X-Accel-Redirect:file.txt", 502),
            ("X-Accel-Redirect:/../outside.txt", 502),
            ("X-Accel-Redirect:/%2e%2e/outside.txt", 502),
            ("X-Accel-Redirect:/kept/%zz", 502),
            ("X-Accel-Redirect:/kept/%00", 502),
            ("X-Accel-Redirect:", 502),
            ("X-Accel-Redirect:/kept/none", 404),
        ] {
            let response = get(&server, &format!("{way}?{query}"));
            assert_eq!(response.status, status, "{way}?{query}");
            assert!(!response.text().contains("never"), "{way}?{query}");
        }
        // Such a target could not come from a client.
        assert_eq!(get(&server, "/cgi-bin/spaced").status, 502);
        // A redirect to itself.
        let circle = get(
            &server,
            &format!("{way}?X-Accel-Redirect:{way}?X-Accel-Redirect:{way}"),
        );
        assert!(
            matches!(circle.status, 500 | 502),
            "{way}: {}",
            circle.status
        );
        let good = get(&server, &format!("{way}?X-Accel-Redirect:/file.txt"));
        assert_eq!(good.text(), "a file\n", "{way}");
    }
    is_well(&server);
}

#[test]
fn x_sendfile_is_502_when_not_configured() {
    let site = Site::new();
    let server = serve(&site, "");
    let test = "x_sendfile_is_502_when_not_configured";
    for way in ways(test) {
        for query in ["X-Accel-Redirect:/file.txt", "X-Sendfile:{root}/file.txt"] {
            let response = get(&server, &format!("{way}?{query}"));
            assert_eq!(response.status, 502, "{way}?{query}");
        }
    }
    is_well(&server);
}
