//! Request IDs and traces: programs and upstreams get them, and the log has them.

use std::fs;
use std::io::Write;
use std::time::Duration;

use super::faults::{FakeUpstream, read_head};
use crate::http2::client::Client;
use crate::site::*;

/// How long the upstream of a test takes, at least.
const UPSTREAM_TAKES: Duration = Duration::from_millis(30);
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// A server with a program and an upstream that answer with the IDs that they get, and its log.
fn serve(site: &Site, top: &str) -> (Server, FakeUpstream) {
    site.program(
        "ids",
        "printf 'Content-Type: a/b\\n\\n%s %s' \"$HTTP_TRACEPARENT\" \"$HTTP_X_REQUEST_ID\"",
    );
    let upstream = FakeUpstream::new(|mut stream| {
        while let Some(head) = read_head(&mut stream) {
            let value = |name: &str| {
                let line = head.lines().find_map(|line| line.strip_prefix(name));
                line.unwrap_or_default().to_owned()
            };
            let body = format!("{} {}", value("traceparent: "), value("X-Request-Id: "));
            let length = body.len();
            let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
            let _ = stream.write_all(response.as_bytes());
        }
    });
    let server = site.serve_configured(&format!(
        "{top}log = {:?}\nlog-format = \"{{trace-id}} {{request-id}}\"\n\
         [[location]]\nprefix = \"/cgi-bin/\"\ncgi = true\nroot = {:?}\n\
         [[location]]\nprefix = \"/app/\"\nproxy = {:?}\n",
        site.path("log"),
        site.path("cgi"),
        upstream.address
    ));
    (server, upstream)
}

/// The trace, the span and the request ID of a text.
fn ids(text: &str) -> (String, String, String) {
    let (parent, request) = text.split_once(' ').unwrap();
    let parts: Vec<&str> = parent.split('-').collect();
    assert_eq!((parts[0], parts.len()), ("00", 4), "{text:?}");
    assert_eq!((parts[1].len(), parts[2].len()), (32, 16), "{text:?}");
    (parts[1].to_owned(), parts[2].to_owned(), request.to_owned())
}

#[test]
fn handlers_and_log_get_the_ids_of_each_request() {
    let site = Site::new();
    let (server, _upstream) = serve(&site, "trace-context = true\n");
    let mut expected = String::new();
    let mut stream = server.connect();
    let mut spans = Vec::new();
    for path in ["/cgi-bin/ids", "/app/x"] {
        for parent in ["", "traceparent: 00-", "traceparent: 0x-"] {
            let parent = match parent {
                "" => String::new(),
                start => format!("{start}{TRACE}-b7ad6b7169203331-01\r\n"),
            };
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{parent}\r\n");
            let (trace, span, id) = ids(&send_and_receive(&mut stream, request).text());
            assert_eq!(trace == TRACE, parent.contains(": 00-"), "{parent}");
            assert_eq!(span, id);
            expected += &format!("{trace} {id}\n");
            spans.push(span);
        }
    }
    let mut client = Client::connect(&server);
    let (trace, span, id) = ids(&client.get("/app/x").text());
    assert_eq!(span, id);
    expected += &format!("{trace} {id}\n");
    spans.push(span);
    drop((stream, client));
    server.stop();
    assert_eq!(fs::read_to_string(site.path("log")).unwrap(), expected);
    let count = spans.len();
    spans.sort();
    spans.dedup();
    assert_eq!(spans.len(), count, "each request has its own ID");
}

#[test]
fn fields_of_the_client_pass_as_they_are_without_trace_context() {
    let site = Site::new();
    let (server, _upstream) = serve(&site, "");
    let lines = "traceparent: anything\r\nX-Request-Id: mine\r\n";
    for path in ["/cgi-bin/ids", "/app/x"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n");
        let response = send_and_receive(&mut server.connect(), request);
        assert_eq!(response.text(), "anything mine");
    }
    server.stop();
    assert_eq!(fs::read_to_string(site.path("log")).unwrap(), "- -\n- -\n");
}

#[test]
fn json_log_has_the_upstream_and_the_time_in_each_stage() {
    let site = Site::new();
    let upstream = FakeUpstream::new(|mut stream| {
        while read_head(&mut stream).is_some() {
            std::thread::sleep(UPSTREAM_TAKES);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let server = site.serve_configured(&format!(
        "log = {:?}\nlog-format = \"json\"\n[[location]]\nprefix = \"/app/\"\nproxy = {:?}\n",
        site.path("log"),
        upstream.address
    ));
    assert_eq!(server.get("/app/x").0, 200);
    assert_eq!(server.get("/file.txt").0, 200);
    server.stop();
    let text = fs::read_to_string(site.path("log")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let [proxied, file]: [serde_json::Value; 2] = lines.collect::<Vec<_>>().try_into().unwrap();
    assert_eq!(proxied["upstream"], upstream.address.to_string());
    let upstream_us = proxied["upstream_us"].as_u64().unwrap();
    assert!(upstream_us >= UPSTREAM_TAKES.as_micros() as u64, "{text}");
    let stages = ["queue_us", "lookup_us", "upstream_us", "send_us"];
    let of = |line: &serde_json::Value| stages.map(|stage| line[stage].as_u64());
    let sum = |line| of(line).into_iter().flatten().sum::<u64>();
    // The lookup begins when the header is whole, the duration with its first byte.
    assert!(
        sum(&proxied) <= proxied["duration_us"].as_u64().unwrap(),
        "{text}"
    );
    let [queued, looked_up, in_upstream, sent] = of(&file).map(|us| us.is_some());
    assert_eq!(
        (queued, looked_up, in_upstream, sent),
        (false, true, false, true),
        "{text}"
    );
    assert_eq!(file["upstream"], serde_json::Value::Null);
}
