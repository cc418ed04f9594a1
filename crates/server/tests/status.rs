//! The status server: the proof is there, the metrics parse, strangers are refused.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use headway_metrics::NetworkDrops;
use headway_test_support::server::{Server, exchange, get, write};
use rustix::process::{Pid, Signal};

use crate::site::{Site, program};
use crate::tls::tools::{Certified, Secured};

/// Checks the Prometheus text format and returns name with labels → value.
fn parse_metrics(text: &str) -> Result<BTreeMap<String, f64>, String> {
    let (mut kinds, mut values) = (BTreeMap::new(), BTreeMap::new());
    let mut finished: BTreeSet<&str> = BTreeSet::new();
    let mut current = "";
    for line in text.lines() {
        let fail = |why: &str| Err(format!("{why}: {line}"));
        if let Some(rest) = line.strip_prefix("# ") {
            let mut parts = rest.splitn(3, ' ');
            let (what, name, more) = (parts.next(), parts.next().unwrap_or(""), parts.next());
            match (what, more) {
                (Some("HELP"), Some(_)) if finished.insert(name) => current = name,
                (Some("TYPE"), Some(kind)) if name == current => {
                    kinds.insert(name, kind);
                }
                _ => return fail("comment out of place"),
            }
            continue;
        }
        let Some((series, value)) = line.rsplit_once(' ') else {
            return fail("no value");
        };
        let name = series.split('{').next().unwrap_or("");
        let kind = kinds.get(current).copied().unwrap_or("");
        let suffixes: &[&str] = if kind == "histogram" {
            &["_bucket", "_sum", "_count"]
        } else {
            &[""]
        };
        if !suffixes
            .iter()
            .any(|suffix| name.strip_suffix(suffix) == Some(current))
        {
            return fail("a sample outside its family");
        }
        if kind == "counter" && !name.ends_with("_total")
            || !(name.starts_with("headway_") || name == "process_start_time_seconds")
        {
            return fail("a name against the rules");
        }
        if series.contains('{') && !labels_are_good(&series[name.len()..]) {
            return fail("labels");
        }
        let Ok(value) = value.parse() else {
            return fail("not a number");
        };
        if values.insert(series.to_owned(), value).is_some() {
            return fail("a series twice");
        }
    }
    Ok(values)
}

fn labels_are_good(labels: &str) -> bool {
    let inner = labels
        .strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'));
    inner.is_some_and(|inner| {
        inner.split("\",").all(|label| {
            label
                .split_once("=\"")
                .is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        })
    })
}

/// The metrics of this moment.
pub fn scrape(server: &Server) -> BTreeMap<String, f64> {
    parse_metrics(&get(&server.status, "/metrics").2).unwrap()
}

#[test]
fn health_is_ok_while_a_worker_answers_and_503_when_none_does() {
    let server = Server::start_hello(program(), &["--worker-timeout", "0"]);
    let probes = || ["/healthz", "/readyz"].map(|path| get(&server.status, path).0);
    assert_eq!(probes(), [200, 200]);
    let workers = server.children("serve-worker");
    let signal = |signal| {
        for worker in workers.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            rustix::process::kill_process(worker, signal).unwrap();
        }
    };
    signal(Signal::STOP);
    assert_eq!(probes(), [503, 503]);
    signal(Signal::CONT);
    assert_eq!(probes(), [200, 200]);
}

#[test]
fn metrics_follow_the_format_when_scraped() {
    let server = Server::start_hello(program(), &["--workers", "2"]);
    server.get("/");
    server.get("/none");
    let (status, head, body) = get(&server.status, "/metrics");
    assert_eq!(status, 200);
    assert!(
        head.contains("Content-Type: text/plain; version=0.0.4"),
        "{head}"
    );
    let metrics = parse_metrics(&body).unwrap();
    let value = |series: &str| {
        *metrics
            .get(series)
            .unwrap_or_else(|| panic!("{series}\n{body}"))
    };
    assert_eq!(
        value("headway_http_requests_total{code=\"200\",method=\"GET\"}"),
        1.0
    );
    assert_eq!(
        value("headway_http_requests_total{code=\"404\",method=\"GET\"}"),
        1.0
    );
    assert_eq!(value("headway_connections_accepted_total"), 2.0);
    assert_eq!(
        value("headway_loop_blocked_total{call=\"\",resource=\"\",site=\"\"}"),
        0.0
    );
    assert!(metrics.contains_key("headway_helper_queue_length"));
    assert!(
        metrics
            .contains_key("headway_loop_blocked_seconds_total{call=\"\",resource=\"\",site=\"\"}")
    );
    let wakeups = value("headway_loop_ready_events_count");
    assert_eq!(
        value("headway_loop_ready_events_bucket{le=\"+Inf\"}"),
        wakeups
    );
    assert!(wakeups > 0.0);
    for worker in ["0", "1"] {
        let of = |name: &str| value(&format!("headway_loop_{name}_count{{worker=\"{worker}\"}}"));
        assert!(of("turn_seconds") > 0.0, "{worker}\n{body}");
        // Perhaps nothing waited, but the series is there.
        of("lag_seconds");
    }
    let longest = value("headway_loop_stage_longest_seconds{stage=\"client\"}");
    assert!(longest < 60.0, "{longest} is not in seconds");
    let stages = metrics
        .keys()
        .filter(|name| name.starts_with("headway_loop_longest_turn_seconds{worker=\"0\""));
    let turn: f64 = stages.map(|name| value(name)).sum();
    assert!(turn > 0.0 && turn < 60.0, "{turn}");
}

#[test]
fn metrics_format_check_finds_mistakes() {
    let family = "# HELP headway_a_total a\n# TYPE headway_a_total counter\n";
    assert!(parse_metrics(&format!("{family}headway_a_total 1\n")).is_ok());
    for bad in [
        "headway_b_total 1",
        "headway_a_total x",
        "headway_a_total{A=\"x\"} 1",
        "headway_a_total",
    ] {
        assert!(parse_metrics(&format!("{family}{bad}\n")).is_err(), "{bad}");
    }
    let twice = format!("{family}headway_a_total 1\nheadway_a_total 1\n");
    assert!(parse_metrics(&twice).is_err());
}

#[test]
fn status_page_for_browsers_begins_with_the_blocking_record() {
    let server = Server::start_hello(program(), &[]);
    server.get("/");
    let (status, head, body) = get(&server.status, "/status");
    assert_eq!(status, 200);
    assert!(head.contains("Content-Type: text/html"), "{head}");
    let title = body
        .split("<h1>")
        .nth(1)
        .unwrap()
        .split("</h1>")
        .next()
        .unwrap();
    let level = &server.status()["total"]["trace"]["level"]["sees"];
    match level.as_str() {
        Some("off") => assert_eq!(title, "The event loops are not traced"),
        _ => assert!(title.starts_with("The event loops blocked "), "{title}"),
    }
    for foreign in ["<script", "<link", "src=", "@import", "url("] {
        assert!(!body.contains(foreign), "{foreign}");
    }
    assert!(body.contains("200 OK"));
}

#[test]
fn status_page_claims_no_blocking_record_without_tracing() {
    let server = Server::start_hello(program(), &["--trace=off"]);
    assert!(
        get(&server.status, "/status")
            .2
            .contains("<h1>The event loops are not traced</h1>")
    );
    assert!(server.stop().contains("trace: off (trace = false)"));
}

#[test]
fn status_page_rejects_foreign_hosts_and_malformed_requests() {
    let server = Server::start_hello(program(), &[]);
    let status = |request: &str| exchange(&server.status, request).0;
    assert_eq!(
        status("GET /status HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
        403
    );
    assert_eq!(
        status("GET /status HTTP/1.1\r\nHost: localhost:9090\r\n\r\n"),
        200
    );
    assert_eq!(
        status("POST /status HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        405
    );
    assert_eq!(
        status("GET /etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        404
    );
    assert_eq!(status("GET /status\r\n\r\n"), 400);
    let long = format!(
        "GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "x".repeat(5000)
    );
    assert_eq!(status(&long), 414);
    let refused = exchange(&server.status, "PUT / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(refused.1.contains("Allow: GET, HEAD"), "{}", refused.1);
    let head = exchange(
        &server.status,
        "HEAD /status HTTP/1.1\r\nHost: localhost\r\n\r\n",
    );
    assert_eq!((head.0, head.2.as_str()), (200, ""));
    for answer in [&head, &refused] {
        let date = answer
            .1
            .lines()
            .find_map(|line| line.strip_prefix("Date: "));
        let date = date.and_then(|date| headway_http::date::parse(date.as_bytes()));
        assert!(date.is_some(), "RFC 9110, 6.6.1: {}", answer.1);
    }
}

#[test]
fn silent_clients_do_not_block_the_status_page() {
    let server = Server::start_hello(program(), &[]);
    // One after the other they would take more than a minute.
    let silent = |number: usize| {
        let mut client = std::net::TcpStream::connect(&server.status).unwrap();
        write(&mut client, &"GET /status"[..number % 5]);
        client
    };
    let _silent: Vec<_> = (0..50).map(silent).collect();
    assert_eq!(get(&server.status, "/status.json").0, 200);
}

#[test]
fn certificate_expiry_is_a_metric_and_tls_is_shown_where_it_is_on() {
    let secured = Secured::start_as(Certified::expired(), Site::new(), 1, "");
    let expiry = "headway_tls_certificate_expiry_seconds{host=\"localhost\"}";
    // 2021-01-01
    assert_eq!(scrape(&secured.server)[expiry], 1_609_459_200.0);
    let page = |server: &Server| get(&server.status, "/status").2;
    let secured = page(&secured.server);
    assert!(secured.contains("<h2>TLS</h2>"), "{secured}");
    assert!(
        secured.contains("<th>localhost</th><td>expired</td>"),
        "{secured}"
    );
    let plain = page(&Server::start_hello(program(), &[]));
    assert!(!plain.contains("<h2>TLS</h2>"), "{plain}");
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert!(
        plain.contains(&format!("<title>{} · Headway</title>", name.trim())),
        "{plain}"
    );
}

#[test]
fn drops_of_the_machine_are_those_since_the_start() {
    let drops = || NetworkDrops::read().unwrap().listen_overflows;
    // One is there before, so that the sum of the kernel is another number.
    let full = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&full, 1).unwrap();
    let (address, wait) = (full.local_addr().unwrap(), Duration::from_millis(50));
    let clients = (0..4).map(|_| std::net::TcpStream::connect_timeout(&address, wait));
    let _clients: Vec<_> = clients.collect();
    let before = drops();
    assert!(before > 0);
    let server = Server::start_hello(program(), &[]);
    let shown = scrape(&server)["headway_network_listen_overflows_total"];
    assert!(shown <= (drops() - before) as f64, "{shown} of {}", drops());
}

#[test]
fn curves_of_the_status_page_begin_soon() {
    let server = Server::start_hello(program(), &[]);
    server.wait_for("the first point of a curve", |server| {
        server.get("/");
        let page = get(&server.status, "/status").2;
        let tiles = page.split("<div class=\"tiles\">").nth(1).unwrap();
        let requests = tiles.split("<section").nth(1).unwrap();
        assert!(requests.contains("<h2>Requests</h2>"), "{requests}");
        requests.contains("class=\"curve\" d=\"M") && requests.contains("at most")
    });
}
