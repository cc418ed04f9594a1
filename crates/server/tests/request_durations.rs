//! The durations of requests: as many as a client has counted itself, and from the first byte on.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use crate::http2::client::Client;
use crate::site::*;
use crate::status::scrape;

const FAMILY: &str = "headway_http_request_duration_seconds";

/// Number of responses by host, handler and class.
type Tally = BTreeMap<(String, String, String), u64>;

fn count(tally: &mut Tally, host: &str, handler: &str, class: &str) {
    let key = (host.to_owned(), handler.to_owned(), class.to_owned());
    *tally.entry(key).or_default() += 1;
}

/// What the server has counted. Each histogram is checked on the way: its buckets grow, and the last is
/// the count.
fn counted(server: &Server) -> Tally {
    let metrics = scrape(server);
    let mut tally = Tally::new();
    let mut requests = 0.0;
    for (series, value) in &metrics {
        if series.starts_with("headway_http_requests_total{") {
            requests += value;
        }
        let Some(labels) = series.strip_prefix(&format!("{FAMILY}_count{{")) else {
            continue;
        };
        let labels = labels.trim_end_matches('}');
        let bounds = format!("{FAMILY}_bucket{{{labels},le=\"");
        let mut buckets: Vec<(f64, f64)> = metrics
            .iter()
            .filter_map(|(name, value)| {
                let bound = name.strip_prefix(&bounds)?.trim_end_matches("\"}");
                Some((bound.replace("+Inf", "inf").parse().unwrap(), *value))
            })
            .collect();
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1));
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, *value)), "{series}");
        assert_eq!(buckets.len(), 17);
        let value_of = |name: &str| {
            let label = labels.split(',').find_map(|label| label.strip_prefix(name));
            label.unwrap().trim_matches(['=', '"']).to_owned()
        };
        let key = (value_of("host"), value_of("handler"), value_of("class"));
        tally.insert(key, *value as u64);
    }
    assert_eq!(tally.values().sum::<u64>() as f64, requests);
    tally
}

fn site() -> (Site, Server) {
    let site = Site::new();
    fs::create_dir(site.path("other")).unwrap();
    fs::write(site.path("other/file.txt"), "of another host").unwrap();
    site.program("hello", "printf 'Content-Type: a/b\\n\\nhello'");
    let server = site.serve_configured(&format!(
        "clean-urls = true\n[[location]]\nprefix = \"/cgi-bin/\"\ncgi = true\nroot = {:?}\n\
         [[location]]\nprefix = \"/old/\"\nredirect = \"/file.txt\"\n\
         [[host]]\nnames = [\"a.example\", \"b.example\"]\nroot = {:?}\n",
        site.path("cgi"),
        site.path("other")
    ));
    (site, server)
}

#[test]
fn durations_are_as_many_as_the_responses_of_each_host_handler_and_class() {
    let (_site, server) = site();
    let mut expected = Tally::new();
    let mut stream = server.connect();
    for number in 0..40 {
        // Names that no host has belong to the default host, so that clients make no series.
        let (name, host) = match number % 4 {
            0 => ("b.example".to_owned(), "a.example"),
            _ => (format!("unknown-{number}"), "default"),
        };
        for (path, handler, class) in [
            ("/file.txt", "files", "2xx"),
            ("/none", "files", "4xx"),
            ("/old/x", "redirect", "3xx"),
            ("/page.html", "redirect", "3xx"),
            ("/cgi-bin/hello", "cgi", "2xx"),
        ] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: {name}\r\n\r\n");
            let response = send_and_receive(&mut stream, request);
            assert_eq!(format!("{}xx", response.status / 100), class, "{path}");
            count(&mut expected, host, handler, class);
        }
    }
    // Several in one packet.
    let one = "GET /file.txt HTTP/1.1\r\nHost: a.example\r\n\r\n";
    send(&mut stream, one.repeat(100));
    for _ in 0..100 {
        receive(&mut stream).unwrap();
        count(&mut expected, "a.example", "files", "2xx");
    }
    let response = send_and_receive(&mut stream, "GET / HTTP/1.1\r\n\r\n");
    assert_eq!(response.status, 400);
    count(&mut expected, "default", "none", "4xx");
    let mut client = Client::connect(&server);
    for _ in 0..30 {
        assert_eq!(client.get("/file.txt").status, 200);
        count(&mut expected, "default", "files", "2xx");
        assert_eq!(client.get("/none").status, 404);
        count(&mut expected, "default", "files", "4xx");
    }
    server.wait_for("the end of all requests", |server| {
        counted(server).values().sum::<u64>() == expected.values().sum::<u64>()
    });
    assert_eq!(counted(&server), expected);
}

#[test]
fn duration_begins_with_the_first_byte_of_a_request() {
    let (_site, server) = site();
    let within = |server: &Server| {
        let labels = "host=\"default\",handler=\"files\",class=\"2xx\"";
        let metrics = scrape(server);
        let all = metrics.get(&format!("{FAMILY}_count{{{labels}}}"));
        let short = metrics.get(&format!("{FAMILY}_bucket{{{labels},le=\"0.1\"}}"));
        (all.copied(), short.copied())
    };
    let mut stream = server.connect();
    let (first, rest) = ("GET /file.txt HTTP/1.1\r\nHo", "st: x\r\n\r\n");
    send(&mut stream, first);
    server.wait_for("the arrival of the first part", |server| {
        counter(server, "received_bytes") == first.len() as u64
    });
    std::thread::sleep(Duration::from_millis(101));
    send(&mut stream, rest);
    assert_eq!(receive(&mut stream).unwrap().status, 200);
    assert_eq!(within(&server), (Some(1.0), Some(0.0)));
}
