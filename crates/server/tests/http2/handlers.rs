//! Programs and upstreams: they see HTTP/1.1, and bodies pass in both directions.

use std::io::{Read, Write};

use super::client::*;
use crate::site::*;
use crate::tls::rules::Badge;
use crate::tls::tools::Secured;
use crate::upstreams::faults::{FakeUpstream, read_head};

const ECHO: &str = "printf 'Content-Type: a/b\\nX-Length: %s\\n\\n' \"$CONTENT_LENGTH\"; cat";

#[test]
fn bodies_reach_a_program_and_come_back() {
    for (streams, buffers) in [("socket", true), ("pipe", true), ("socket", false)] {
        let site = Site::new();
        site.program("echo", ECHO);
        let server = site.serve(&format!(
            "max-body-size = \"64MiB\"\nstreams = {streams:?}\nrequest-buffering = {buffers}"
        ));
        let mut client = Client::connect(&server);
        for size in [0, 1, 5_000, 1 << 20, 3 << 20] {
            let body = contents(size);
            for has_length in [true, false] {
                let mut request = client.request("POST", "/cgi-bin/echo");
                if has_length {
                    request = request.header("content-length", size);
                }
                let at = client.begin(request, Some(&body));
                let seen = client.finish(at);
                assert_eq!(
                    (seen.status, seen.end),
                    (200, Some(Ok(()))),
                    "{streams} {buffers} {size} {has_length}"
                );
                assert!(seen.received == body, "{size} {has_length}");
                assert_eq!(seen.header("transfer-encoding"), "");
                if has_length {
                    assert_eq!(seen.header("x-length"), size.to_string());
                }
            }
        }
        assert_eq!(counter(&server, "connections_accepted"), 1);
        wait_until_all_have_ended(&server);
        // A pipe has a lock, for which a reader may wait while the program writes.
        if streams == "socket" {
            is_well(&server);
        }
    }
}

#[test]
fn uploads_at_the_same_time_do_not_mix() {
    let site = Site::new();
    site.program("echo", ECHO);
    let server = site.serve("max-body-size = \"64MiB\"");
    let mut client = Client::connect(&server);
    let body = |number: usize| -> Vec<u8> {
        let bytes = contents(300_000 + number);
        bytes.into_iter().map(|byte| byte ^ number as u8).collect()
    };
    let begun: Vec<usize> = (0..10)
        .map(|number| {
            let request = client.request("POST", "/cgi-bin/echo");
            client.begin(request, Some(&body(number)))
        })
        .collect();
    for (number, at) in begun.into_iter().enumerate() {
        assert!(client.finish(at).received == body(number), "{number}");
    }
    wait_until_all_have_ended(&server);
    is_well(&server);
}

#[test]
fn program_sees_the_request_as_one_of_http_2() {
    let site = Site::new();
    site.program(
        "env",
        "printf 'Content-Type: text/plain\\n\\n'; echo \"$SERVER_PROTOCOL|$REQUEST_METHOD|$HTTP_HOST|$QUERY_STRING|$HTTP_COOKIE|$HTTP_TE|$HTTP_X_OWN|$HTTPS|$HTTP_TRANSFER_ENCODING\"",
    );
    let server = site.serve("");
    let mut client = Client::connect(&server);
    let request = client
        .request("GET", "/cgi-bin/env?q=1")
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .header("te", "trailers")
        .header("x-own", "yes");
    let at = client.begin(request, None);
    let text = client.finish(at).text();
    let (protocol, rest) = text.split_once('|').unwrap();
    assert_eq!(protocol, "HTTP/2.0");
    assert_eq!(rest, "GET|test|q=1|a=1; b=2||yes||\n");
    is_well(&server);
}

#[test]
fn program_over_tls_is_told_of_it() {
    let site = Site::new();
    site.program(
        "env",
        "printf 'Content-Type: text/plain\\n\\n'; echo \"$HTTPS\"; cat",
    );
    let location = format!(
        "[[location]]\nprefix = \"/cgi-bin/\"\ncgi = true\nroot = {:?}\nmax-body-size = \"8MiB\"",
        site.path("cgi")
    );
    let secured = Secured::start_with(site, 1, &location);
    let mut client = Client::secured(&secured);
    let body = contents(1 << 20);
    let seen = client.post("/cgi-bin/env", &body);
    assert!(seen.received == [b"on\n", &body[..]].concat());
    wait_until_all_have_ended(&secured.server);
    is_well(&secured.server);
}

#[test]
fn response_of_a_program_without_a_length_ends_with_it() {
    let site = Site::new();
    site.program(
        "slow",
        "printf 'Content-Type: a/b\\n\\n'; for n in 1 2 3; do echo $n; sleep 0.02; done",
    );
    site.program("none", "printf 'Status: 204 No Content\\n\\n'");
    site.program("fails", "exit 1");
    site.program(
        "short",
        "printf 'Content-Type: a/b\\nContent-Length: 10\\n\\nhello'",
    );
    let server = site.serve("");
    let mut client = Client::connect(&server);
    assert_eq!(client.get("/cgi-bin/slow").text(), "1\n2\n3\n");
    let none = client.get("/cgi-bin/none");
    assert_eq!((none.status, none.text().as_str()), (204, ""));
    let failed = client.get("/cgi-bin/fails");
    assert_eq!(failed.status, 502);
    assert!(failed.text().contains("502 Bad Gateway"));
    let short = client.get("/cgi-bin/short");
    // All of it may be there at once: then nothing has been sent yet, and it is an error.
    let is_cut = matches!(short.end, Some(Err(_)));
    assert!(is_cut || short.status == 502, "{:?}", short.end);
    assert_eq!(client.get("/file.txt").text(), "a file\n");
    wait_until_all_have_ended(&server);
    is_well(&server);
}

#[test]
fn body_above_the_limit_is_413_and_the_connection_stays() {
    let site = Site::new();
    site.program("echo", ECHO);
    let server = site.serve("max-body-size = \"10KiB\"");
    let mut client = Client::connect(&server);
    let body = contents(300_000);
    for has_length in [true, false] {
        let mut request = client.request("POST", "/cgi-bin/echo");
        if has_length {
            request = request.header("content-length", body.len());
        }
        let at = client.begin(request, Some(&body));
        let seen = client.finish(at);
        assert_eq!(seen.status, 413, "{has_length}");
    }
    assert_eq!(client.post("/cgi-bin/echo", b"small").text(), "small");
    assert_eq!(counter(&server, "connections_accepted"), 1);
    wait_until_all_have_ended(&server);
    is_well(&server);
}

#[test]
fn program_ends_when_its_request_is_given_up() {
    let site = Site::new();
    site.program(
        "long",
        "printf 'Content-Type: a/b\\n\\nbegun'; exec sleep 1000",
    );
    site.program("silent", "exec sleep 1000");
    let server = site.serve("");
    let mut client = Client::connect(&server);
    let begun = [
        client.begin_get("/cgi-bin/long"),
        client.begin_get("/cgi-bin/silent"),
    ];
    client.wait_for_header(begun[0]);
    server.wait_for("the programs", |server| {
        counter(server, "cgi_processes") == 2
    });
    for at in begun {
        client.cancel(at);
    }
    assert_eq!(client.get("/file.txt").text(), "a file\n");
    server.wait_for("their end", |server| counter(server, "cgi_processes") == 0);
    wait_until_all_have_ended(&server);
    is_well(&server);
}

#[test]
fn waiting_program_costs_no_turns_of_the_loop() {
    let site = Site::new();
    site.program("waits", "cat >/dev/null; until [ -e {notes}/go ]; do sleep 0.01; done; printf 'Content-Type: a/b\\n\\ndone'");
    let server = site.serve("");
    let mut client = Client::connect(&server);
    let mut begun = Vec::new();
    for has_length in [true, false] {
        let mut request = client.request("POST", "/cgi-bin/waits");
        if has_length {
            request = request.header("content-length", 5_000);
        }
        begun.push(client.begin(request, Some(&contents(5_000))));
    }
    client.wait_for("the programs", |_| counter(&server, "cgi_processes") == 2);
    client.pass();
    let before = turns(&server);
    client.pass();
    // A loop that turns without work would do so thousands of times.
    let count = turns(&server) - before;
    assert!(count < 200, "{count} turns");
    std::fs::write(site.note("go"), "").unwrap();
    for at in begun {
        assert_eq!(client.finish(at).text(), "done");
    }
    is_well(&server);
}

#[test]
fn upstream_is_asked_by_http_1() {
    const LENGTH: usize = 1 << 20;
    let upstream = FakeUpstream::new(|mut stream| {
        while let Some(head) = read_head(&mut stream) {
            let length = head.lines().find_map(|line| {
                line.to_ascii_lowercase()
                    .strip_prefix("content-length: ")
                    .map(|text| text.parse::<usize>().unwrap())
            });
            let mut body = vec![0; length.unwrap_or(0)];
            stream.read_exact(&mut body).unwrap();
            assert!(!head.contains("transfer-encoding"), "{head}");
            assert!(head.contains("\r\nVia: 2.0 headway\r\n"), "{head}");
            let line = head.lines().next().unwrap();
            let first = format!(
                "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nX-Line: {line}\r\nKeep-Alive: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            );
            let mut response = first.into_bytes();
            for chunk in body.chunks(10_000).filter(|chunk| !chunk.is_empty()) {
                response.extend(format!("{:x}\r\n", chunk.len()).as_bytes());
                response.extend(chunk);
                response.extend(b"\r\n");
            }
            response.extend(b"0\r\n\r\n");
            if stream.write_all(&response).is_err() {
                return;
            }
        }
    });
    let site = Site::new();
    let server = site.serve_configured(&format!(
        "[[location]]\nprefix = \"/app/\"\nproxy = {:?}\nmax-body-size = \"8MiB\"",
        upstream.address
    ));
    let mut client = Client::connect(&server);
    let body = contents(LENGTH);
    for _ in 0..3 {
        let request = client
            .request("POST", "/app/x")
            .header("content-length", LENGTH);
        let at = client.begin(request, Some(&body));
        let seen = client.finish(at);
        assert_eq!((seen.status, seen.end), (200, Some(Ok(()))));
        assert_eq!(seen.header("x-line"), "POST /app/x HTTP/1.1");
        assert!(!seen.headers.contains_key("keep-alive") && !seen.headers.contains_key("link"));
        assert!(seen.received == body);
    }
    assert_eq!(client.get("/app/").text(), "");
    wait_until_all_have_ended(&server);
    is_well(&server);
}

#[test]
fn programs_get_the_tls_version_and_the_clients_certificate() {
    let (site, badge) = (Site::new(), Badge::new());
    badge.write(&site.path("clients.pem"));
    site.program(
        "show",
        "printf 'Content-Type: text/plain\\n\\n'; echo $SSL_PROTOCOL $SSL_CLIENT_VERIFY $SSL_CLIENT_S_DN",
    );
    let (cgi, authority) = (site.path("cgi"), site.path("clients.pem"));
    let settings = format!(
        "tls-client-ca = {authority:?}\n[[location]]\nprefix = \"/cgi-bin/\"\ncgi = true\nroot = {cgi:?}\n"
    );
    let secured = Secured::start_with(site, 1, &settings);
    let config = (*badge.client(&secured.certified)).clone();
    let mut client = Client::secured_as(&secured, config);
    let shown = client.get("/cgi-bin/show");
    assert_eq!(
        String::from_utf8_lossy(&shown.received),
        "TLSv1.3 SUCCESS CN=rcgen self signed cert\n"
    );
}
