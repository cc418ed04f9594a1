//! Responses of CGI programs, and how they reach clients.

use crate::site::*;

/// A program's whole environment, one variable per line.
const ENVIRONMENT: &str = "echo Content-Type: text/plain; echo; env";

fn variable<'e>(environment: &'e str, name: &str) -> Option<&'e str> {
    environment
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
}

#[test]
fn cgi_variables_describe_a_get_request() {
    let site = Site::new();
    site.program("env", ENVIRONMENT);
    let server = site.serve("variables = { GREETING = \"hello\", REQUEST_METHOD = \"forged\" }");
    let request = "GET /cgi-bin/env/a%20b?x=1&y HTTP/1.1\r\nHost: a.example:80\r\nX-One: 1\r\n\
        Cookie: c=1\r\nProxy: http://evil/\r\nAuthorization: Basic eDp5\r\nX_One: forged\r\n\r\n";
    let response = exchange(&server, request);
    assert_eq!(response.status, 200);
    assert_eq!(response.field("Content-Type"), Some("text/plain"));
    assert_eq!(response.field("Server"), Some("Headway"));
    assert!(response.field("Date").is_some());
    let environment = response.text();
    let root = site
        .path("root")
        .canonicalize()
        .unwrap()
        .display()
        .to_string();
    let file = site
        .path("cgi/env")
        .canonicalize()
        .unwrap()
        .display()
        .to_string();
    for (name, value) in [
        ("GATEWAY_INTERFACE", "CGI/1.1"),
        ("SERVER_PROTOCOL", "HTTP/1.1"),
        ("REQUEST_METHOD", "GET"),
        ("SCRIPT_NAME", "/cgi-bin/env"),
        ("PATH_INFO", "/a b"),
        ("QUERY_STRING", "x=1&y"),
        ("REQUEST_URI", "/cgi-bin/env/a%20b?x=1&y"),
        ("SCRIPT_FILENAME", &file),
        ("DOCUMENT_ROOT", &root),
        ("PATH_TRANSLATED", &format!("{root}/a b")),
        ("SERVER_NAME", "a.example"),
        ("REMOTE_ADDR", "127.0.0.1"),
        ("SERVER_ADDR", "127.0.0.1"),
        ("SERVER_PORT", server.address.rsplit(':').next().unwrap()),
        ("HTTP_X_ONE", "1"),
        ("HTTP_COOKIE", "c=1"),
        ("GREETING", "hello"),
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
    ] {
        assert_eq!(
            variable(&environment, name),
            Some(value),
            "{name} in\n{environment}"
        );
    }
    for name in [
        "HTTP_PROXY",
        "HTTP_AUTHORIZATION",
        "CONTENT_LENGTH",
        "HOME",
        "CARGO",
    ] {
        assert_eq!(variable(&environment, name), None, "{name}");
    }
    let directory = site.path("cgi").canonicalize().unwrap();
    assert_eq!(
        variable(&environment, "PWD"),
        directory.to_str(),
        "it starts there"
    );
    is_well(&server);
}

#[test]
fn authorization_is_passed_on_when_configured() {
    let site = Site::new();
    site.program("env", ENVIRONMENT);
    let server = site.serve("authorization = true");
    let request = "GET /cgi-bin/env HTTP/1.1\r\nHost: x\r\nAuthorization: Basic eDp5\r\n\r\n";
    let environment = exchange(&server, request).text();
    assert_eq!(
        variable(&environment, "HTTP_AUTHORIZATION"),
        Some("Basic eDp5")
    );
}

#[test]
fn program_sets_status_and_client_redirect() {
    let site = Site::new();
    site.program("status", "printf 'Status: 418 Teapot\\r\\nX-A: 1\\r\\nX-A: 2\\r\\nContent-Type: a/b\\r\\n\\r\\nshort'");
    site.program("away", "printf 'Location: http://b.example/x\\n\\n'");
    site.program("moved", "printf 'Status: 301\\nLocation: /elsewhere\\n\\n'");
    site.program("nothing", "printf 'Status: 204\\n\\n'");
    let server = site.serve("");
    let teapot = get(&server, "/cgi-bin/status");
    assert_eq!((teapot.status, teapot.text().as_str()), (418, "short"));
    assert!(
        teapot.head.starts_with("HTTP/1.1 418 Teapot\r\n"),
        "{}",
        teapot.head
    );
    assert!(
        teapot.head.contains("X-A: 1\r\nX-A: 2\r\n"),
        "{}",
        teapot.head
    );
    let away = get(&server, "/cgi-bin/away");
    assert_eq!(
        (away.status, away.field("Location")),
        (302, Some("http://b.example/x"))
    );
    let moved = get(&server, "/cgi-bin/moved");
    assert_eq!(
        (moved.status, moved.field("Location")),
        (301, Some("/elsewhere"))
    );
    let nothing = get(&server, "/cgi-bin/nothing");
    assert_eq!(
        (nothing.status, nothing.field("Content-Length")),
        (204, None)
    );
    is_well(&server);
}

#[test]
fn local_redirect_serves_a_file_or_another_program() {
    let site = Site::new();
    site.program(
        "to-file",
        "cat >/dev/null; printf 'Location: /file.txt\\n\\n'",
    );
    site.program(
        "to-program",
        "printf 'Location: /cgi-bin/env?from=there\\n\\n'",
    );
    site.program("env", ENVIRONMENT);
    site.program("circle", "printf 'Location: /cgi-bin/circle\\n\\n'");
    site.program("nowhere", "printf 'Location: /nowhere\\n\\n'");
    let server = site.serve("");
    let mut stream = server.connect();
    for _ in 0..3 {
        send(&mut stream, post("/cgi-bin/to-file", b"a body"));
        let response = receive(&mut stream).unwrap();
        assert_eq!(
            (response.status, response.text().as_str()),
            (200, "a file\n")
        );
    }
    let environment = get(&server, "/cgi-bin/to-program").text();
    assert_eq!(variable(&environment, "QUERY_STRING"), Some("from=there"));
    assert_eq!(get(&server, "/cgi-bin/circle").status, 502);
    assert_eq!(get(&server, "/cgi-bin/nowhere").status, 404);
    is_well(&server);
}

#[test]
fn connection_stays_alive_when_the_response_is_framed() {
    let site = Site::new();
    site.program(
        "known",
        "printf 'Content-Type: a/b\\nContent-Length: 5\\n\\nhello'",
    );
    // Two writes with a pause, so that the length is not known when the head is sent.
    site.program(
        "unknown",
        "printf 'Content-Type: a/b\\n\\nhel'; sleep 0.2; printf lo",
    );
    let server = site.serve("");
    let mut stream = server.connect();
    let mut framed = Vec::new();
    for path in ["known", "unknown", "known", "unknown"] {
        send(
            &mut stream,
            format!("GET /cgi-bin/{path} HTTP/1.1\r\nHost: x\r\n\r\n"),
        );
        let response = receive(&mut stream).unwrap();
        assert_eq!(
            (response.status, response.text().as_str()),
            (200, "hello"),
            "{path}"
        );
        framed.push((path, response.field("Transfer-Encoding") == Some("chunked")));
    }
    let expected = [
        ("known", false),
        ("unknown", true),
        ("known", false),
        ("unknown", true),
    ];
    assert_eq!(framed, expected);
    assert_eq!(counter(&server, "connections_accepted"), 1);
}

#[test]
fn http_1_0_client_gets_an_unchunked_response() {
    let site = Site::new();
    site.program(
        "known",
        "printf 'Content-Type: a/b\\nContent-Length: 5\\n\\nhello'",
    );
    site.program(
        "unknown",
        "printf 'Content-Type: a/b\\n\\nhel'; sleep 0.2; printf lo",
    );
    let server = site.serve("");
    let mut stream = server.connect();
    send(
        &mut stream,
        "GET /cgi-bin/known HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    );
    let response = receive(&mut stream).unwrap();
    assert_eq!(response.field("Connection"), Some("keep-alive"));
    send(
        &mut stream,
        "GET /cgi-bin/unknown HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    );
    let response = receive(&mut stream).unwrap();
    assert_eq!(
        (response.field("Connection"), response.text().as_str()),
        (Some("close"), "hello")
    );
    assert_eq!(response.field("Transfer-Encoding"), None);
}

#[test]
fn head_request_gets_no_body() {
    let site = Site::new();
    site.program(
        "method",
        "printf 'Content-Type: a/b\\nX-Method: %s\\n\\nbody' $REQUEST_METHOD",
    );
    let server = site.serve("");
    let mut stream = server.connect();
    for _ in 0..2 {
        send(
            &mut stream,
            "HEAD /cgi-bin/method HTTP/1.1\r\nHost: x\r\n\r\n",
        );
        let response = receive_head(&mut stream).unwrap();
        assert_eq!(
            (response.status, response.field("X-Method")),
            (200, Some("HEAD"))
        );
    }
    send(
        &mut stream,
        "GET /cgi-bin/method HTTP/1.1\r\nHost: x\r\n\r\n",
    );
    assert_eq!(receive(&mut stream).unwrap().text(), "body");
}

#[test]
fn nph_response_is_forwarded_unchanged() {
    let site = Site::new();
    site.program(
        "nph-own",
        "printf 'HTTP/1.0 299 Own\\r\\nX-Own: yes\\r\\n\\r\\nraw'",
    );
    site.program("nph-none", "echo no HTTP at all");
    let server = site.serve("");
    let mut stream = server.connect();
    send(
        &mut stream,
        "GET /cgi-bin/nph-own HTTP/1.1\r\nHost: x\r\n\r\n",
    );
    let response = receive(&mut stream).unwrap();
    assert_eq!(response.head, "HTTP/1.0 299 Own\r\nX-Own: yes\r\n\r\n");
    assert_eq!(response.text(), "raw");
    assert_eq!(get(&server, "/cgi-bin/nph-none").status, 502);
    is_well(&server);
}

#[test]
fn pipelined_requests_to_programs_are_answered_in_order() {
    let site = Site::new();
    site.program("slow", "sleep 0.1; printf 'Content-Type: a/b\\n\\nslow'");
    site.program("echo", "printf 'Content-Type: a/b\\n\\n'; cat");
    let server = site.serve("");
    let mut stream = server.connect();
    let mut requests = Vec::new();
    for _ in 0..3 {
        requests.extend_from_slice(b"GET /cgi-bin/slow HTTP/1.1\r\nHost: x\r\n\r\n");
        requests.extend_from_slice(&post("/cgi-bin/echo", b"posted"));
        requests.extend_from_slice(b"GET /file.txt HTTP/1.1\r\nHost: x\r\n\r\n");
    }
    send(&mut stream, requests);
    for _ in 0..3 {
        for expected in ["slow", "posted", "a file\n"] {
            assert_eq!(receive(&mut stream).unwrap().text(), expected);
        }
    }
}

#[test]
fn response_is_complete_when_the_client_pipelines_meanwhile() {
    let site = Site::new();
    site.program(
        "nph-large",
        "printf 'HTTP/1.0 200 OK\\r\\n\\r\\n'; cat {notes}/large",
    );
    let expected = contents(6 << 20);
    std::fs::write(site.note("large"), &expected).unwrap();
    let server = site.serve("");
    let mut stream = server.connect();
    let request = "GET /cgi-bin/nph-large HTTP/1.1\r\nHost: x\r\n\r\n";
    send(&mut stream, request);
    server.wait_for("a first part", |server| {
        counter(server, "handler_response_bytes") > 0
    });
    send(&mut stream, request);
    let (mut response, mut piece) = (Vec::new(), vec![0; 32 * 1024]);
    loop {
        let count = std::io::Read::read(&mut stream, &mut piece).expect("no reset");
        response.extend_from_slice(&piece[..count]);
        if count == 0 {
            break;
        }
        // Slower than the server, so that much of the response is in transit when the connection
        // ends.
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    assert!(response.ends_with(&expected), "{} bytes", response.len());
    is_well(&server);
}

#[test]
fn large_response_reaches_a_slow_client_intact() {
    let site = Site::new();
    site.program("large", "echo Content-Type: a/b; echo; cat {notes}/large");
    let expected = contents(24 << 20);
    std::fs::write(site.note("large"), &expected).unwrap();
    for streams in ["socket", "pipe"] {
        let server = site.serve(&format!(
            "streams = \"{streams}\"\ntemp-file-max = \"1MiB\""
        ));
        let mut stream = server.connect();
        send(
            &mut stream,
            "GET /cgi-bin/large HTTP/1.1\r\nHost: x\r\n\r\n",
        );
        // The program waits for its client, and the server buffers no more than its limit.
        server.wait_for("a first part", |server| {
            counter(server, "handler_response_bytes") > 0
        });
        std::thread::sleep(std::time::Duration::from_millis(200));
        let early = counter(&server, "handler_response_bytes");
        assert!(
            early < expected.len() as u64,
            "{early} bytes are buffered, which is the whole response"
        );
        let response = receive(&mut stream).unwrap();
        assert!(
            response.body == expected,
            "{streams}: {} bytes",
            response.body.len()
        );
        is_well(&server);
    }
}

#[test]
fn fork_in_server_forks_in_the_worker() {
    let site = Site::new();
    site.program("env", ENVIRONMENT);
    site.program("echo", "printf 'Content-Type: a/b\\n\\n'; cat");
    site.program("parent", "printf 'Content-Type: a/b\\n\\n'; echo $PPID");
    let server = site.serve_with(FORK_IN_SERVER, "");
    assert!(server.children("serve-spawner").is_empty());
    let environment = get(&server, "/cgi-bin/env?q").text();
    assert_eq!(variable(&environment, "QUERY_STRING"), Some("q"));
    let body = contents(1 << 19);
    assert!(exchange(&server, post("/cgi-bin/echo", &body)).body == body);
    let parent: i32 = get(&server, "/cgi-bin/parent")
        .text()
        .trim()
        .parse()
        .unwrap();
    assert_eq!(server.children("serve-worker"), [parent]);
    server.wait_for("the last program's end", |server| {
        counter(server, "cgi_processes") == 0
    });
    assert_eq!(
        (
            counter(&server, "handler_processes_started"),
            counter(&server, "handler_processes_failed")
        ),
        (3, 0)
    );
}
