//! Spans for OpenTelemetry: what a collector gets, which requests are sampled, and a collector that is away, slow or
//! refuses.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use headway_test_support::WAIT_MAX;
use serde_json::Value;

use crate::site::*;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// A collector which answers each request with this status, and passes on what it has got.
pub struct Collector {
    pub address: String,
    received: Receiver<(String, Value)>,
}

impl Collector {
    pub fn start(status: u16) -> Collector {
        Collector::on(TcpListener::bind("127.0.0.1:0").unwrap(), status)
    }

    fn on(listener: TcpListener, status: u16) -> Collector {
        let address = listener.local_addr().unwrap().to_string();
        let (sender, received) = channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                collect(stream.unwrap(), status, &sender);
            }
        });
        Collector { address, received }
    }

    /// Drops the requests that have come.
    pub fn forget(&self) {
        while self.received.try_recv().is_ok() {}
    }

    /// The header and the spans of the next request, whose resource is checked.
    pub fn spans(&self) -> (String, Vec<Value>) {
        let (head, body) = self.received.recv_timeout(WAIT_MAX).expect("spans");
        let of_resource = &body["resourceSpans"][0];
        let attributes = of_resource["resource"]["attributes"].clone();
        assert_eq!(attribute(&attributes, "service.name"), "shop");
        let spans = of_resource["scopeSpans"][0]["spans"].as_array().unwrap();
        (head, spans.clone())
    }
}

fn collect(mut stream: TcpStream, status: u16, sender: &Sender<(String, Value)>) {
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let mut received = Vec::new();
    let (head, begin, length) = loop {
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece).unwrap();
        received.extend_from_slice(&piece[..count]);
        let end = received.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(end) = end {
            let head = String::from_utf8(received[..end].to_vec()).unwrap();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("Content-Length: "));
            break (
                head.clone(),
                end + 4,
                length.unwrap().parse::<usize>().unwrap(),
            );
        }
        assert!(count > 0, "the request ends in its header");
    };
    let mut body = received.split_off(begin);
    let have = body.len();
    body.resize(length, 0);
    stream.read_exact(&mut body[have..]).unwrap();
    let body = serde_json::from_slice(&body).expect("JSON");
    // The test may have ended.
    let _ = sender.send((head, body));
    let _ = write!(
        stream,
        "HTTP/1.1 {status} x\r\nContent-Length: 2\r\n\r\n{{}}"
    );
}

pub fn attribute<'v>(attributes: &'v Value, key: &str) -> &'v str {
    let all = attributes.as_array().unwrap();
    let found = all.iter().find(|one| one["key"] == key);
    let value = found.map(|one| one["value"].as_object().unwrap().values().next().unwrap());
    value.and_then(Value::as_str).unwrap_or("")
}

fn serve(address: &str, more: &str) -> (Site, Server) {
    let site = Site::new();
    let top = format!("otlp-endpoint = \"http://{address}\"\notlp-service-name = \"shop\"\n{more}");
    let server = site.serve_with(&top, "");
    (site, server)
}

fn traced(server: &Server, path: &str, flags: &str) -> u16 {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: a.example:80\r\nUser-Agent: test\r\n\
         traceparent: 00-{TRACE}-{PARENT}-{flags}\r\n\r\n"
    );
    exchange(server, request).status
}

fn master(server: &Server, name: &str) -> u64 {
    server.status()["master"][name].as_u64().unwrap()
}

#[test]
fn collector_gets_the_spans_of_sampled_requests() {
    let collector = Collector::start(200);
    let headers = "otlp-headers = { Authorization = \"Bearer secret\" }\notlp-sampling = \"0%\"";
    let (_site, server) = serve(&collector.address, headers);
    // Not sampled: by the client, and by the server.
    assert_eq!(traced(&server, "/file.txt", "00"), 200);
    assert_eq!(get(&server, "/file.txt").status, 200);
    assert_eq!(traced(&server, "/missing?secret", "01"), 404);
    let (head, spans) = collector.spans();
    assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
    assert!(
        head.to_ascii_lowercase()
            .contains("\r\nauthorization: bearer secret"),
        "{head}"
    );
    let [span] = &spans[..] else {
        panic!("{spans:?}")
    };
    assert_eq!(
        (&span["traceId"], &span["parentSpanId"]),
        (&TRACE.into(), &PARENT.into())
    );
    assert_eq!((&span["name"], &span["kind"]), (&"GET".into(), &2.into()));
    for (key, expected) in [
        ("http.request.method", "GET"),
        ("http.response.status_code", "404"),
        ("url.path", "/missing"),
        ("url.scheme", "http"),
        ("server.address", "a.example"),
        ("server.port", "80"),
        ("client.address", "127.0.0.1"),
        ("user_agent.original", "test"),
        ("network.protocol.version", "1.1"),
        ("headway.handler", "files"),
    ] {
        assert_eq!(attribute(&span["attributes"], key), expected, "{key}");
    }
    let time = |key: &str| span[key].as_str().unwrap().parse::<u64>().unwrap();
    assert!(time("startTimeUnixNano") < time("endTimeUnixNano"));
    assert_ne!(attribute(&span["attributes"], "headway.stage.send_us"), "");
    server.wait_for("the count", |server| master(server, "spans_exported") == 1);
    is_well(&server);
    server.stop();
}

#[test]
fn every_request_has_a_span_by_default_and_programs_get_its_id() {
    let collector = Collector::start(200);
    let (site, server) = serve(&collector.address, "");
    site.program(
        "trace",
        "printf 'Content-Type: a/b\\n\\n%s' \"$HTTP_TRACEPARENT\"",
    );
    let traceparent = get(&server, "/cgi-bin/trace").text();
    (0..700).for_each(|_| assert_eq!(get(&server, "/file.txt").status, 200));
    let mut all = Vec::new();
    while all.len() < 701 {
        all.extend(collector.spans().1);
    }
    assert_eq!(all.len(), 701);
    let of_program = all
        .iter()
        .find(|span| attribute(&span["attributes"], "headway.handler") == "cgi");
    let [trace, span] = ["traceId", "spanId"].map(|key| of_program.unwrap()[key].as_str().unwrap());
    assert_eq!(traceparent, format!("00-{trace}-{span}-01"));
    server.wait_for("the count", |server| {
        master(server, "spans_exported") == 701
    });
    assert_eq!(master(&server, "spans_dropped"), 0);
    is_well(&server);
    server.stop();
}

#[test]
fn spans_that_the_collector_refuses_are_dropped_and_counted() {
    let collector = Collector::start(400);
    let (_site, server) = serve(&collector.address, "");
    (0..3).for_each(|_| assert_eq!(get(&server, "/file.txt").status, 200));
    server.wait_for("the count", |server| master(server, "spans_dropped") >= 3);
    let status = server.status();
    let why = status["master"]["span_error"].as_str().unwrap();
    assert!(why.ends_with("/v1/traces answered 400"), "{why}");
    let (_, _, metrics) = headway_test_support::server::get(&server.status, "/metrics");
    assert!(metrics.contains("headway_spans_dropped_total{stage=\"export\"} 3\n"));
    assert!(metrics.contains("headway_spans_exported_total 0\n"));
    let said = server.stop();
    assert_eq!(said.matches("OTLP: ").count(), 1, "{said}");
}

#[test]
fn collector_that_was_away_gets_the_spans_of_before() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let (_site, server) = serve(&address.to_string(), "");
    assert_eq!(get(&server, "/file.txt").status, 200);
    // The first try has failed by then, or is about to.
    thread::sleep(Duration::from_millis(1500));
    let collector = Collector::on(TcpListener::bind(address).unwrap(), 200);
    assert_eq!(collector.spans().1.len(), 1);
    server.wait_for("the count", |server| master(server, "spans_exported") == 1);
    server.stop();
}

#[test]
fn clients_do_not_wait_for_a_collector_that_answers_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (site, server) = serve(&listener.local_addr().unwrap().to_string(), "");
    let mut stream = server.connect();
    for _ in 0..200 {
        send(
            &mut stream,
            "GET /file.txt HTTP/1.1\r\nHost: x\r\n\r\n".repeat(100),
        );
        for _ in 0..100 {
            assert_eq!(receive(&mut stream).unwrap().status, 200);
        }
    }
    // The queue of the process is full.
    server.wait_for("dropped spans", |server| {
        master(server, "spans_dropped") > 0
    });
    is_well(&server);
    // A process that dies is replaced, and the workers find the new one.
    let before = server.children("serve-spans");
    let pid = rustix::process::Pid::from_raw(before[0]).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    server.wait_for("another process", |server| {
        let now = server.children("serve-spans");
        !now.is_empty() && now != before
    });
    assert_eq!(master(&server, "span_deaths"), 1);
    drop((site, server));
}

#[test]
fn reload_changes_the_collector() {
    let [first, second] = [Collector::start(200), Collector::start(200)];
    let (site, server) = serve(&first.address, "");
    get(&server, "/file.txt");
    assert_eq!(first.spans().1.len(), 1);
    let file = site.path("headway.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace(&first.address, &second.address)).unwrap();
    server.signal(rustix::process::Signal::HUP);
    server.wait_for("the reload", |server| master(server, "reloads") == 1);
    server.wait_for("the end of the worker before", |server| {
        server.children("serve-worker").len() == 1 && server.children("serve-spans").len() == 1
    });
    get(&server, "/file.txt");
    assert_eq!(second.spans().1.len(), 1);
    server.stop();
}
