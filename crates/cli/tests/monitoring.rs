//! The alert rules and the dashboard that are shipped: their metrics exist, and each alert fires when its
//! fault is planted.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use headway_test_support::skip;

const RULES: &str = "packaging/prometheus/headway-alerts.yml";
const PLANTED: &str = "packaging/prometheus/headway-alerts.test.yml";
const DASHBOARD: &str = "packaging/grafana/headway.json";
/// These show queries, too.
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
    for file in [RULES, PLANTED, DASHBOARD, GUIDE] {
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
fn panels_of_the_dashboard_have_queries_of_the_chosen_source() {
    let dashboard: serde_json::Value = serde_json::from_str(&read(DASHBOARD)).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut numbers = BTreeSet::new();
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
            assert!(open == close && query.contains("$instance"), "{query}");
        }
    }
    assert!(numbers.len() > 15, "{numbers:?}");
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
