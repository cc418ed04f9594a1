//! Which paths belong to programs, and what happens to the others.

use std::fs;
use std::process::Stdio;

use crate::site::*;

const NAMES: &str =
    "printf 'Content-Type: a/b\\n\\n%s|%s|%s' \"$SCRIPT_NAME\" \"$PATH_INFO\" \"$REQUEST_METHOD\"";

#[test]
fn program_is_found_when_path_info_follows() {
    let site = Site::new();
    site.program("a", NAMES);
    site.program("d/e/f", NAMES);
    let server = site.serve("");
    for (path, said) in [
        ("/cgi-bin/a", "/cgi-bin/a||GET"),
        ("/cgi-bin/a/", "/cgi-bin/a|/|GET"),
        ("/cgi-bin/a/b/c", "/cgi-bin/a|/b/c|GET"),
        ("/cgi-bin/./x/../a?q", "/cgi-bin/a||GET"),
        ("/cgi-bin/d/e/f/g", "/cgi-bin/d/e/f|/g|GET"),
    ] {
        let response = get(&server, path);
        assert_eq!(
            (response.status, response.text().as_str()),
            (200, said),
            "{path}"
        );
    }
    for (path, status) in [
        ("/cgi-bin/none", 404),
        ("/cgi-bin/none/a", 404),
        ("/cgi-bin/d/none", 404),
        ("/cgi-bin/", 403),
        ("/cgi-bin/d/", 403),
        ("/cgi-bin/d", 301),
        ("/cgi-bin/.hidden", 404),
        ("/cgi-bin/..%2f", 404),
        ("/cgi-bin/%2e%2e/%2e%2e/etc/passwd", 403),
    ] {
        assert_eq!(get(&server, path).status, status, "{path}");
    }
    assert_eq!(
        get(&server, "/cgi-bin/d").field("Location"),
        Some("/cgi-bin/d/")
    );
    assert_eq!(
        exchange(&server, post("/cgi-bin/none", b"body")).status,
        404
    );
    is_well(&server);
}

#[test]
fn program_behind_a_symlink_out_of_the_root_is_rejected() {
    let site = Site::new();
    site.file(
        "outside",
        "#!/bin/sh\necho Content-Type: a/b; echo; echo escaped",
        0o755,
    );
    std::os::unix::fs::symlink(site.path("outside"), site.path("cgi/link")).unwrap();
    let server = site.serve("");
    assert_eq!(get(&server, "/cgi-bin/link").status, 403);
}

#[test]
fn suffix_location_and_index_file_run_programs() {
    let site = Site::new();
    let program = format!("#!/bin/sh\n{NAMES}\n");
    site.file("root/index.cgi", &program, 0o755);
    site.file("root/app/x.cgi", &program, 0o755);
    site.file("root/app/index.html", "a page", 0o644);
    site.file("root/app/x.cgi.txt", "a text", 0o644);
    site.file("root/plain/y.cgi", "not run", 0o644);
    let server = site.serve_configured(
        "index = [\"index.html\", \"index.cgi\"]\n[[location]]\nsuffix = \".cgi\"\ncgi = true\n\
         [[location]]\nprefix = \"/plain/\"\nfiles = true\n",
    );
    for (path, said) in [
        ("/", "/index.cgi||GET"),
        ("/?q", "/index.cgi||GET"),
        ("/index.cgi", "/index.cgi||GET"),
        ("/app/x.cgi/rest", "/app/x.cgi|/rest|GET"),
        ("/app/", "a page"),
        ("/app/x.cgi.txt", "a text"),
        ("/plain/y.cgi", "not run"),
        ("/file.txt", "a file\n"),
    ] {
        let response = get(&server, path);
        assert_eq!(
            (response.status, response.text().as_str()),
            (200, said),
            "{path}"
        );
    }
    assert_eq!(
        exchange(&server, post("/", b"x")).text(),
        "/index.cgi||POST"
    );
    assert_eq!(
        exchange(&server, post("/app/", b"x")).status,
        405,
        "a page is a file"
    );
    assert_eq!(exchange(&server, post("/file.txt", b"x")).status, 405);
    is_well(&server);
}

#[test]
fn program_that_becomes_the_index_while_a_body_arrives_is_not_sent_as_a_file() {
    let site = Site::new();
    site.file("root/app/index.html", "a page", 0o644);
    let server = site.serve_configured(
        "research.caching = false\nindex = [\"index.cgi\", \"index.html\"]\n[[location]]\n\
         suffix = \".cgi\"\ncgi = true\n",
    );
    let mut stream = server.connect();
    send(
        &mut stream,
        "GET /app/ HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
    );
    // The body is awaited from here on.
    assert_eq!(receive_head(&mut stream).unwrap().status, 100);
    site.file("root/app/index.cgi", "#!/bin/sh\necho secret\n", 0o755);
    send(&mut stream, "hello");
    let response = receive(&mut stream).unwrap();
    assert_eq!(response.status, 503, "{}", response.text());
    is_well(&server);
}

#[test]
fn programs_are_found_with_every_lookup_method_without_a_cache() {
    let site = Site::new();
    site.program("d/e/f", NAMES);
    for top in [
        "research.caching = false",
        "research.preset = \"flash\"",
        "research.preset = \"fd-pass\"",
        "research.preset = \"accept25\"",
        "revalidate = \"0s\"",
        "events = \"select\"",
        "events = \"poll\"",
    ] {
        let server = site.serve_with(top, "");
        for _ in 0..3 {
            let response = get(&server, "/cgi-bin/d/e/f/g");
            assert_eq!(response.text(), "/cgi-bin/d/e/f|/g|GET", "{top}");
        }
        assert_eq!(get(&server, "/cgi-bin/d/none").status, 404, "{top}");
    }
}

#[test]
fn all_methods_but_trace_and_connect_reach_the_program() {
    let site = Site::new();
    site.program("a", NAMES);
    let server = site.serve("");
    for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        let response = exchange(
            &server,
            format!("{method} /cgi-bin/a HTTP/1.1\r\nHost: x\r\n\r\n"),
        );
        assert_eq!(response.text(), format!("/cgi-bin/a||{method}"));
    }
    let response = exchange(&server, "TRACE /cgi-bin/a HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(response.status, 405);
}

#[test]
fn location_mistakes_are_reported_with_their_line() {
    let site = Site::new();
    let path = site.path("headway.toml");
    for (location, said) in [
        (
            "prefix = \"/a/\"",
            "headway.toml:2: location: a location needs a handler",
        ),
        (
            "prefix = \"/a/\"\ncgi = true\nfiles = true",
            "this one has cgi and files; keep one",
        ),
        ("cgi = true", "a location needs its paths"),
        (
            "prefix = \"/a/\"\nsuffix = \".b\"\ncgi = true",
            "a location needs its paths",
        ),
        (
            "prefix = \"a/\"\ncgi = true",
            "headway.toml:3: location: `a/` is not a path",
        ),
        (
            "prefix = \"/a/\"\ncgi = true\nconcurrency = 0",
            "headway.toml:5: location.concurrency: 0 is not within",
        ),
        (
            "suffix = \".x\"\ncgi = true\nroot = \"/proc\"",
            "a root needs a prefix",
        ),
        (
            "prefix = \"/a/\"\ncgi = true\nroot = \"nowhere\"",
            "the programs' directory",
        ),
        (
            "prefix = \"/a/\"\ncgi = true\ntime-out = \"1s\"",
            "did you mean `timeout`?",
        ),
        (
            "prefix = \"/a/\"\ncgi = true\ntimeout = \"2m\"\nrequest-timeout = \"1m\"",
            "it would never expire",
        ),
        (
            "prefix = \"/a/\"\ncgi = true\nvariables = { \"A=B\" = \"\" }",
            "is not a variable",
        ),
        (
            "prefix = \"/a/\"\ncgi = true\n[[location]]\nprefix = \"/a/\"\ncgi = true",
            "is a location already",
        ),
    ] {
        fs::write(
            &path,
            format!("listen = \"127.0.0.1:0\"\n[[location]]\n{location}\n"),
        )
        .unwrap();
        let checked = program()
            .args(["serve", "--check", "--config"])
            .arg(&path)
            .current_dir(site.path("root"))
            .stdout(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8(checked.stderr).unwrap();
        assert!(text.contains(said), "{location}\n{text}");
        assert!(!checked.status.success(), "{location}");
    }
}

#[test]
fn printed_location_configuration_reads_back_unchanged() {
    let site = Site::new();
    let path = site.path("headway.toml");
    // Sizes whose defaults depend on the available memory are set explicitly.
    let text = format!(
        "root = \"root\"\nfallback = [\"$path.html\", \"/index.html\"]\ntrusted-proxies = [\"10.0.0.0/8\", \"private\"]\n\
         client-address-header = \"Forwarded\"\nproxy-protocol = true\nresponse-cache-max = \"8MiB\"\nchunk-cache-max = \"4MiB\"\nresearch.mapped-max = \"64MiB\"\nhelpers-max = 4\n\
         research.fork-in-server = \"/x/\"\nresearch.pipe = [\"/d/\"]\n\
         [[location]]\nprefix = \"/d/\"\ndirect = \"/bin/true\"\n\
         [[location]]\nprefix = \"/cgi-bin/\"\ncgi = true\nroot = \"cgi\"\nstreams = \"pipe\"\n\
         request-timeout = \"0\"\nmemory-max = \"64MiB\"\nvariables = {{ \"A.b\" = \"x\\\"y\" }}\n[[location]]\nsuffix = \".f\"\n\
         files = true\n[[host]]\nnames = [\"a.example\"]\nroot = {:?}\n[[host.location]]\nprefix = \"/x/\"\ncgi = true\n\
         half-close = true\n",
        site.path("root").display()
    );
    fs::write(&path, text).unwrap();
    let check = |json: bool| {
        let mut command = program();
        command.args(["serve", "--check", "--config"]).arg(&path);
        if json {
            command.arg("--json");
        }
        let checked = command.output().unwrap();
        assert!(
            checked.status.success(),
            "{}",
            String::from_utf8_lossy(&checked.stderr)
        );
        String::from_utf8(checked.stdout).unwrap()
    };
    let (printed, meant) = (check(false), check(true));
    fs::write(&path, printed).unwrap();
    assert_eq!(check(true), meant);
}

/// What a program prints of the request that it got.
const SHOW_REQUEST: &str = "printf 'Content-Type: text/plain\\n\\n%s' \"$REQUEST_METHOD $REQUEST_URI $SCRIPT_NAME$PATH_INFO $QUERY_STRING $(cat)\"";

#[test]
fn program_as_a_fallback_gets_requests_for_what_does_not_exist_as_they_came() {
    let site = Site::new();
    site.program("front", SHOW_REQUEST);
    site.file(
        "root/front.sh",
        &format!("#!/bin/sh\n{SHOW_REQUEST}\n"),
        0o755,
    );
    let by_suffix = "[[location]]\nsuffix = \".sh\"\ncgi = true\n";
    for (fallback, location, name) in [
        ("[\"/none.html\", \"/cgi-bin/front\"]", "", "/cgi-bin/front"),
        ("\"/front.sh\"", by_suffix, "/front.sh"),
    ] {
        let server = site.serve_with(
            &format!("fallback = {fallback}\n"),
            &format!("\n{location}"),
        );
        assert_eq!(get(&server, "/file.txt").text(), "a file\n");
        for _ in 0..2 {
            let shown = get(&server, "/2026/11/post/?x=1").text();
            assert_eq!(shown, format!("GET /2026/11/post/?x=1 {name} x=1 "));
            let shown = get(&server, "/a/b?x=1").text();
            assert_eq!(shown, format!("GET /a/b?x=1 {name} x=1 "));
            let shown = exchange(&server, post("/wp-json/posts", b"hello")).text();
            assert_eq!(shown, format!("POST /wp-json/posts {name}  hello"));
        }
        // Never its source.
        let shown = get(&server, name).text();
        assert!(shown.starts_with("GET "), "{shown}");
        assert_eq!(get(&server, "/.env").status, 404);
        is_well(&server);
    }
}
