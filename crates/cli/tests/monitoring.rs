//! The alert rules and the dashboards that are shipped: their metrics exist, each alert fires when its fault
//! is planted, and a real Prometheus answers the queries about a load test.

use std::collections::BTreeSet;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::UNIX_EPOCH;

use headway_test_support::server::{exchange, get};
use headway_test_support::{find_program, skip, wait_until};
use serde_json::Value;
use tempfile::TempDir;

use crate::load::responding::{GOOD, Responding};
use crate::serving;

const RULES: &str = "packaging/prometheus/headway-alerts.yml";
const PLANTED: &str = "packaging/prometheus/headway-alerts.test.yml";
/// Each with the variable that its queries are filtered by, and a number of panels that it has at least.
const DASHBOARDS: [(&str, &str, usize); 2] = [
    ("packaging/grafana/headway.json", "$instance", 15),
    (LOAD_DASHBOARD, "$run", 10),
];
const LOAD_DASHBOARD: &str = "packaging/grafana/headway-load.json";
/// This shows queries, too.
const GUIDE: &str = "docs/src/howto/prometheus.md";

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The names of metrics in a text.
fn metrics(text: &str) -> BTreeSet<&str> {
    let is_other = |character: char| !character.is_ascii_alphanumeric() && character != '_';
    let words = text.split(is_other);
    words.filter(|word| word.starts_with("headway_")).collect()
}

#[test]
fn metrics_of_alerts_and_dashboard_are_in_the_reference() {
    let reference = read("docs/src/reference/metrics.md");
    let known = metrics(&reference);
    let dashboards = DASHBOARDS.map(|(file, ..)| file);
    for file in dashboards.into_iter().chain([RULES, PLANTED, GUIDE]) {
        let text = read(file);
        let named = metrics(&text);
        assert!(named.len() > 3, "{file}: {named:?}");
        for name in named {
            let parts = ["_bucket", "_sum", "_count"].iter();
            let family = parts.filter_map(|part| name.strip_suffix(part)).next();
            let is_known = known.contains(name) || family.is_some_and(|of| known.contains(of));
            assert!(is_known, "{file}: {name} is no metric");
        }
    }
}

#[test]
fn panels_of_the_dashboards_have_queries_of_the_chosen_source() {
    for (file, variable, panels_min) in DASHBOARDS {
        let numbers = check_panels(file, variable);
        assert!(numbers.len() >= panels_min, "{file}: {numbers:?}");
    }
}

/// Returns the numbers of the panels.
fn check_panels(file: &str, variable: &str) -> BTreeSet<Option<u64>> {
    let mut numbers = BTreeSet::new();
    let dashboard: Value = serde_json::from_str(&read(file)).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    for panel in panels {
        assert!(numbers.insert(panel["id"].as_u64()), "{panel}");
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{panel}");
        assert!(
            panel["description"]
                .as_str()
                .is_some_and(|text| text.ends_with('.')),
            "{panel}"
        );
        for target in panel["targets"].as_array().expect("queries") {
            let query = target["expr"].as_str().expect("a query");
            let (open, close) = (
                query.matches(['(', '{']).count(),
                query.matches([')', '}']).count(),
            );
            assert!(open == close && query.contains(variable), "{query}");
        }
    }
    numbers
}

/// A Prometheus server that takes metrics.
struct Prometheus {
    server: Child,
    address: String,
    _folder: TempDir,
}

impl Prometheus {
    /// Tries another port if something else has got the first one meanwhile.
    fn start(program: &Path) -> Prometheus {
        for _ in 0..5 {
            let folder = tempfile::tempdir().expect("a folder");
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let address = listener.local_addr().expect("its address").to_string();
            drop(listener);
            let file = folder.path().join("prometheus.yml");
            fs::write(&file, "").expect("a configuration");
            let mut command = Command::new(program);
            command
                .arg(format!("--config.file={}", file.display()))
                .arg(format!(
                    "--storage.tsdb.path={}",
                    folder.path().join("data").display()
                ))
                .arg(format!("--web.listen-address={address}"))
                .arg("--web.enable-remote-write-receiver")
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let mut started = Prometheus {
                server: command.spawn().expect("Prometheus"),
                address,
                _folder: folder,
            };
            let mut is_ready = false;
            wait_until("Prometheus is ready or has ended", || {
                is_ready = TcpStream::connect(&started.address).is_ok()
                    && get(&started.address, "/-/ready").0 == 200;
                is_ready || started.server.try_wait().is_ok_and(|ended| ended.is_some())
            });
            if is_ready {
                return started;
            }
        }
        panic!("Prometheus does not start");
    }

    /// The series of a query in a time, and their values in each second.
    fn range(&self, query: &str, from_s: u64, to_s: u64) -> Vec<Vec<f64>> {
        let escaped: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let path = format!("/api/v1/query_range?query={escaped}&start={from_s}&end={to_s}&step=1");
        // By HTTP/1.0, so that a long answer is not in chunks.
        let (status, _, body) = exchange(&self.address, &format!("GET {path} HTTP/1.0\r\n\r\n"));
        assert_eq!(status, 200, "{query}: {body}");
        let answer: Value = serde_json::from_str(&body).expect("JSON");
        let series = answer["data"]["result"].as_array().expect("series");
        let values = series.iter().map(|one| {
            let points = one["values"].as_array().expect("points").iter();
            let value = |point: &Value| point[1].as_str().expect("a value").parse::<f64>();
            points
                .map(|point| value(point).expect("a number"))
                .collect()
        });
        values.collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Needs: the program prometheus: scripts/setup
#[test]
fn queries_of_the_load_dashboard_find_a_load_test_in_prometheus() {
    const NAME: &str = "queries_of_the_load_dashboard_find_a_load_test_in_prometheus";
    let Some(program) = find_program("prometheus") else {
        return skip(NAME, "no prometheus on this machine");
    };
    let prometheus = Prometheus::start(&program);
    let server = Responding::start(GOOD);
    let out = format!("prometheus=http://{}/api/v1/write", prometheus.address);
    let now_s = || UNIX_EPOCH.elapsed().expect("a clock").as_secs();
    let from_s = now_s();
    let mut load = serving::headway();
    load.args([
        "load",
        &server.url,
        "--rate",
        "300",
        "--warmup",
        "1",
        "-d",
        "5",
    ]);
    load.args(["--label", "planted", "--json", "--out", &out]);
    let output = load.output().expect("a run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
    let run: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let to_s = now_s() + 10;
    let range = |query: &str| prometheus.range(query, from_s, to_s);
    let largest = |query: &str| {
        let all = range(query).into_iter().flatten();
        all.fold(f64::NEG_INFINITY, f64::max)
    };
    let requests = run["summary"]["requests"].as_f64().expect("a number");
    for total in [
        "sum(headway_load_requests_total{run=\"planted\"})",
        "headway_load_response_seconds_count{job=\"headway-load\",agent=\"0\"}",
        "headway_load_response_seconds_bucket{le=\"+Inf\"}",
    ] {
        assert_eq!(largest(total), requests, "{total}");
    }
    let max_us = run["analysis"]["response"]["max_us"]
        .as_f64()
        .expect("a maximum");
    let found = largest("headway_load_response_percentile_seconds{percent=\"100\"}") * 1e6;
    assert!((found / max_us - 1.0).abs() < 0.001, "{found} {max_us}");
    let dashboard: Value = serde_json::from_str(&read(LOAD_DASHBOARD)).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let targets = panels
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    let queries: Vec<&str> = targets.filter_map(|one| one["expr"].as_str()).collect();
    assert!(queries.len() > 10, "{queries:?}");
    for query in queries {
        assert!(
            !range(&query.replace("$run", "planted|other")).is_empty(),
            "{query}"
        );
        assert!(range(&query.replace("$run", "other")).is_empty(), "{query}");
    }
    // The series have ended with the run, although Prometheus shows a value for five minutes else.
    let connections = range("headway_load_connections");
    let seconds = connections[0].len() as u64;
    assert!(seconds + 5 <= to_s - from_s, "{connections:?}");
}

/// Needs: the program promtool: scripts/setup
#[test]
fn each_alert_fires_when_its_fault_is_planted() {
    const NAME: &str = "each_alert_fires_when_its_fault_is_planted";
    let (rules, planted) = (read(RULES), read(PLANTED));
    let alerts = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let alerts: Vec<&str> = alerts.collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    for alert in &alerts {
        let fires = format!("- alertname: {alert}\n");
        let test = planted.split_once(&fires).expect(alert).1;
        let next = test.lines().nth(2).expect("an alert");
        assert!(next.contains("exp_labels"), "{alert}: {next}");
    }
    // Its directory has the rules, too.
    let tested = Command::new("promtool")
        .args(["test", "rules"])
        .arg(path(PLANTED))
        .output();
    let Ok(tested) = tested else {
        return skip(NAME, "no promtool on this machine");
    };
    let said = [tested.stdout, tested.stderr].concat();
    assert!(
        tested.status.success(),
        "{}",
        String::from_utf8_lossy(&said)
    );
}
