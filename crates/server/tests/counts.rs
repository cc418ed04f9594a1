//! Metrics and status page against a count of the client: hosts, handlers, methods and statuses.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::site::*;

/// Requests of each kind.
const EACH: u64 = 150;

/// A kind of request: its method, host and path, and the labels that it is to count for.
type Kind = (&'static str, &'static str, &'static str, [&'static str; 3]);

const KINDS: &[Kind] = &[
    (
        "GET",
        "a.example",
        "/file.txt",
        ["a.example", "files", "200"],
    ),
    (
        "HEAD",
        "a.example",
        "/file.txt",
        ["a.example", "files", "200"],
    ),
    (
        "GET",
        "a.example",
        "/missing",
        ["a.example", "files", "404"],
    ),
    (
        "GET",
        "b.example",
        "/file.txt",
        ["b.example", "files", "200"],
    ),
    (
        "GET",
        "b.example",
        "/old/x",
        ["b.example", "redirect", "301"],
    ),
    (
        "POST",
        "b.example",
        "/file.txt",
        ["b.example", "files", "405"],
    ),
    ("GET", "other", "/app/x", ["default", "proxy", "502"]),
    ("GET", "other", "/file.txt", ["default", "files", "200"]),
    ("GET", "other", "/a b", ["default", "none", "400"]),
];

fn serve() -> (Site, Server) {
    let site = Site::new();
    let root = site.path("root");
    let text = format!(
        "root = {root:?}\nlisten = \"127.0.0.1:0\"\nstatus = \"127.0.0.1:0\"\nworkers = 2\n\
         [[host]]\nnames = \"a.example\"\nroot = {root:?}\n\
         [[host]]\nnames = \"b.example\"\nroot = {root:?}\n\
         [[location]]\nprefix = \"/app/\"\nproxy = \"unix:{}\"\n\
         [[location]]\nprefix = \"/old/\"\nredirect = \"/new\"\nredirect-status = 301\n",
        site.path("missing").display()
    );
    let file = site.path("counts.toml");
    fs::write(&file, text).unwrap();
    let server = Server::start_from_file(program(), &file);
    (site, server)
}

/// The samples of a family, with their labels but those that are left out, summed.
fn samples(metrics: &str, family: &str, kept: &[&str]) -> BTreeMap<Vec<String>, u64> {
    let mut sums = BTreeMap::new();
    for line in metrics
        .lines()
        .filter(|line| line.starts_with(&format!("{family}{{")))
    {
        let (labels, value) = line[family.len() + 1..].split_once("} ").unwrap();
        let label = |name: &&str| {
            let begin = labels.find(&format!("{name}=\"")).unwrap() + name.len() + 2;
            labels[begin..].split('"').next().unwrap().to_owned()
        };
        let key: Vec<String> = kept.iter().map(label).collect();
        *sums.entry(key).or_insert(0) += value.parse::<u64>().unwrap();
    }
    sums
}

fn add(to: &mut BTreeMap<Vec<String>, u64>, key: [&str; 3]) {
    let key: Vec<String> = key
        .iter()
        .filter(|part| !part.is_empty())
        .map(|part| part.to_string())
        .collect();
    *to.entry(key).or_insert(0) += 1;
}

#[test]
fn metrics_agree_with_what_the_client_has_counted() {
    let (_site, server) = serve();
    let (mut by_status, mut by_handler) = (BTreeMap::new(), BTreeMap::new());
    let mut total = 0;
    std::thread::scope(|scope| {
        let counted = KINDS.iter().map(|kind| {
            let server = &server;
            scope.spawn(move || {
                let (method, host, path, [name, handler, expected]) = *kind;
                let request = format!(
                    "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n"
                );
                let mut stream = server.connect();
                let mut statuses = Vec::new();
                for _ in 0..EACH {
                    send(&mut stream, &request);
                    // A response to HEAD has no body.
                    let head = receive_head(&mut stream).unwrap();
                    let has_body = method != "HEAD";
                    let length = head
                        .field("content-length")
                        .unwrap()
                        .parse::<usize>()
                        .unwrap();
                    let mut body = vec![0; if has_body { length } else { 0 }];
                    std::io::Read::read_exact(&mut stream, &mut body).unwrap();
                    assert_eq!(head.status.to_string(), expected, "{method} {host}{path}");
                    statuses.push((method, name, handler, head.status.to_string()));
                    if head.field("connection") == Some("close") {
                        stream = server.connect();
                    }
                }
                statuses
            })
        });
        let counted: Vec<_> = counted.collect();
        for (method, name, handler, status) in
            counted.into_iter().flat_map(|one| one.join().unwrap())
        {
            total += 1;
            add(&mut by_status, [&status, method, ""]);
            add(
                &mut by_handler,
                [name, handler, &format!("{}xx", &status[..1])],
            );
        }
    });
    assert_eq!(total, EACH * KINDS.len() as u64);
    // The last log lines and counters of a request come after its last byte.
    let requests = |status: &Value| -> u64 {
        let stages = &status["total"]["counters"]["request_stages"][3]["buckets"];
        stages
            .as_array()
            .unwrap()
            .iter()
            .map(|count| count.as_u64().unwrap())
            .sum()
    };
    server.wait_for("the counters", |server| requests(&server.status()) >= total);
    let (_, _, metrics) = headway_test_support::server::get(&server.status, "/metrics");
    let found = samples(&metrics, "headway_http_requests_total", &["code", "method"]);
    assert_eq!(found, by_status);
    let family = "headway_http_request_duration_seconds_count";
    let found = samples(&metrics, family, &["host", "handler", "class"]);
    assert_eq!(found, by_handler);
    let sent = samples(
        &metrics,
        "headway_http_request_stage_seconds_count",
        &["stage"],
    );
    assert_eq!(sent[&vec!["send".to_owned()]], total);
    // The status page has the same numbers.
    let status = server.status();
    let of_status = status["total"]["counters"]["http_requests"]
        .as_object()
        .unwrap();
    let sums = of_status.iter().map(|(code, methods)| {
        let counts = methods.as_object().unwrap().values();
        (
            code.clone(),
            counts.map(|count| count.as_u64().unwrap()).sum::<u64>(),
        )
    });
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    for (key, count) in &by_status {
        *expected.entry(key[0].clone()).or_insert(0) += count;
    }
    assert_eq!(sums.collect::<BTreeMap<_, _>>(), expected);
    server.stop();
}
