//! Holds the direction of dependencies between the crates.
//!
//! Dependencies point downwards only, as ARCHITECTURE.md draws them. The stages of the server do not
//! depend on one another; the server composes them through `request`. Cargo accepts any edge, so a
//! test has to refuse one that is not meant.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// What each crate may build on. A crate that is not here may not exist: it needs its line and its
/// reason.
const ALLOWED: &[(&str, &[&str])] = &[
    (
        "headway",
        &[
            "cli-support",
            "server",
            // The simulation, for an example.
            "admission",
            "files",
            "debox",
            "debox-bpf",
            "load",
            "latency",
            "report",
            "trace",
            "explain",
            "log-reader",
            // Runs go to storage, and come from it.
            "object-storage",
            "os",
        ],
    ),
    (
        "lab-cli",
        &[
            "cli-support",
            "lab",
            "counters",
            "specweb",
            "specweb-client",
            "specweb-handler",
            "load",
            "latency",
            "report",
            // What `serve` contains besides the server.
            "server",
            // For headway-specweb99, which speaks to servers.
            "gateway",
            "http",
            "os",
        ],
    ),
    // The subcommand `serve`, the options of a measurement, and the text of a score.
    ("cli-support", &["server", "os", "load", "latency"]),
    (
        "server",
        &[
            // The stages, and what they share.
            "accept",
            "connection",
            "lookup",
            "respond",
            "send",
            "request",
            "embedded",
            "access-log",
            "control",
            "config",
            "metrics",
            "sandbox",
            "spawner",
            "admission",
            "files",
            "gateway",
            "http",
            "http2",
            "tls",
            "acme",
            "otlp",
            "event",
            "debox",
            "os",
        ],
    ),
    ("metrics", &["config", "debox", "files", "http"]),
    // The stages of the server. None of them may depend on another.
    ("accept", &["admission", "config", "event", "metrics", "os"]),
    ("lookup", &["config", "files", "http", "metrics", "request"]),
    (
        "respond",
        &["config", "files", "gateway", "http", "request", "spawner"],
    ),
    (
        "send",
        &[
            "config", "files", "http2", "metrics", "os", "request", "tls",
        ],
    ),
    (
        "connection",
        &[
            "embedded", "event", "files", "gateway", "http", "http2", "metrics", "request", "tls",
        ],
    ),
    // What a connection speaks besides HTTP/1.1 in the clear; without sockets of clients.
    ("tls", &["os"]),
    // Certificates for it, from an authority.
    ("acme", &["config", "control", "http", "http-client", "tls"]),
    // Spans for a collector.
    ("otlp", &["access-log", "config", "control", "http-client"]),
    // Requests of processes that may wait.
    ("http-client", &[]),
    // Directories in storage that speaks S3.
    ("object-storage", &["http", "http-client"]),
    ("http2", &["http"]),
    // What the stages share.
    ("request", &["files", "gateway", "http", "metrics"]),
    (
        "embedded",
        &["config", "files", "gateway", "http", "metrics", "request"],
    ),
    ("access-log", &["config", "control"]),
    ("control", &["config", "metrics"]),
    // What the kernel lets a process do.
    ("sandbox", &["os"]),
    ("spawner", &["config", "os"]),
    ("config", &["event", "gateway", "os"]),
    ("admission", &[]),
    ("gateway", &["http"]),
    ("files", &["event", "os"]),
    (
        "load",
        &[
            "event",
            "http",
            "http2",
            // Metrics go to a server while a run goes on.
            "http-client",
            "latency",
            "os",
            "specweb-files",
        ],
    ),
    ("specweb-files", &[]),
    ("specweb", &["specweb-files"]),
    ("specweb-client", &["latency", "load", "specweb"]),
    ("specweb-handler", &["embedded", "specweb"]),
    ("lab", &["debox-bpf", "load", "latency", "os"]),
    ("report", &["latency"]),
    ("counters", &["lab", "latency", "load", "os"]),
    ("trace", &["debox", "debox-bpf"]),
    // Service inversion.
    ("explain", &["debox", "debox-bpf", "latency", "os"]),
    ("log-reader", &["latency"]),
    ("debox", &["os"]),
    ("debox-c", &["debox", "debox-hook"]),
    ("debox-hook", &[]),
    ("debox-so", &["debox-c", "debox-hook"]),
    ("debox-preload", &["debox", "debox-hook", "os"]),
    ("debox-bpf", &["debox"]),
    ("event", &["os"]),
    ("http", &[]),
    (BASE, &[]),
    (TEST_SUPPORT, &[]),
    ("latency", &[]),
    ("os", &[]),
];

/// Pure, and without a dependency, so that any crate may use it.
const BASE: &str = "base";

/// A dev-dependency of any crate, and nothing else: not even another test helper may build on it.
const TEST_SUPPORT: &str = "test-support";

type Edges = BTreeMap<String, BTreeSet<String>>;

#[test]
fn crates_point_downwards_when_they_depend_on_each_other() {
    let violations = crate_violations(&workspace_edges());
    assert!(violations.is_empty(), "\n{}", violations.join("\n"));
}

#[test]
fn product_does_not_depend_on_the_lab() {
    let metadata = metadata();
    let in_lab: BTreeSet<String> = list(&metadata["packages"])
        .iter()
        .filter(|package| is_below(package, "lab"))
        .map(short_name)
        .collect();
    assert!(in_lab.contains("lab-cli"), "{in_lab:?}");
    let edges = edges(&metadata);
    let into: BTreeSet<(&str, &str)> = edges
        .iter()
        .filter(|(from, _)| !in_lab.contains(*from))
        .flat_map(|(from, to)| to.iter().map(move |to| (from.as_str(), to.as_str())))
        .filter(|(_, to)| in_lab.contains(*to))
        .collect();
    assert_eq!(into, BTreeSet::new());
}

/// Crates that may depend on the cryptographic libraries: `tls` for the server, the others as clients.
const WITH_TLS: &[&str] = &[
    "tls",
    "acme",
    "http-client",
    "load",
    // Signatures of requests.
    "object-storage",
    TEST_SUPPORT,
];

#[test]
fn only_tls_and_clients_depend_on_cryptographic_libraries() {
    let found: BTreeSet<String> = list(&metadata()["packages"])
        .iter()
        .filter(|package| {
            list(&package["dependencies"]).iter().any(|found| {
                let name = short_name(found);
                let is_of_it = name.starts_with("rustls") || name.starts_with("aws-lc");
                is_of_it && found["kind"] != "dev"
            })
        })
        .map(short_name)
        .collect();
    assert_eq!(found, WITH_TLS.iter().map(|&name| name.into()).collect());
}

#[test]
fn no_cycle_exists_when_every_allowed_edge_is_used() {
    let edges = ALLOWED
        .iter()
        .map(|(from, to)| ((*from).into(), to.iter().map(|&name| name.into()).collect()))
        .collect();
    assert_eq!(cycle(&edges), None);
    assert_eq!(cycle(&workspace_edges()), None);
}

#[test]
fn upward_or_unknown_dependency_is_an_error() {
    let edges = |from: &str, to: &str| Edges::from([(from.into(), BTreeSet::from([to.into()]))]);
    assert!(crate_violations(&edges("files", "os")).is_empty());
    assert_eq!(crate_violations(&edges("os", "files")).len(), 1);
    assert_eq!(crate_violations(&edges("novelty", "os")).len(), 1);
    let mut circle = edges("a", "b");
    circle.extend(edges("b", "a"));
    assert!(cycle(&circle).is_some());
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the workspace")
}

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--no-deps",
            "--format-version",
            "1",
            "--offline",
            "--manifest-path",
        ])
        .arg(root().join("Cargo.toml"))
        .output()
        .expect("cargo runs, since it runs this test");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON")
}

/// The edges between crates of the workspace, build and test dependencies included, without the
/// common prefix. What any crate may use is no edge: `base`, and `test-support` in tests.
fn workspace_edges() -> Edges {
    edges(&metadata())
}

fn edges(metadata: &Value) -> Edges {
    list(&metadata["packages"])
        .iter()
        .map(|package| {
            let inside = list(&package["dependencies"])
                .into_iter()
                .filter(|found| found["path"].is_string())
                .filter(|found| found["kind"] != "dev" || short_name(found) != TEST_SUPPORT)
                .filter(|found| short_name(found) != BASE);
            (
                short_name(package),
                inside.map(|found| short_name(&found)).collect(),
            )
        })
        .collect()
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// Whether a package is in that folder of the workspace.
fn is_below(package: &Value, folder: &str) -> bool {
    let manifest = package["manifest_path"].as_str().unwrap_or_default();
    Path::new(manifest).starts_with(root().join(folder))
}

fn short_name(package: &Value) -> String {
    let name = package["name"].as_str().expect("a package has a name");
    name.strip_prefix("headway-").unwrap_or(name).into()
}

fn crate_violations(edges: &Edges) -> Vec<String> {
    let mut violations = Vec::new();
    for (from, targets) in edges {
        let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| name == from) else {
            violations.push(format!(
                "crate {from}: not in the direction of dependencies of ARCHITECTURE.md"
            ));
            continue;
        };
        for to in targets.iter().filter(|to| !allowed.contains(&to.as_str())) {
            violations.push(format!(
                "crate {from} depends on {to}; it may depend on {allowed:?} only"
            ));
        }
    }
    violations
}

/// A crate that reaches itself. The graph is small, so every node is searched afresh.
fn cycle(edges: &Edges) -> Option<String> {
    edges
        .keys()
        .find(|start| {
            let mut seen = BTreeSet::new();
            let mut open: Vec<&String> = edges[*start].iter().collect();
            while let Some(node) = open.pop() {
                if seen.insert(node) {
                    open.extend(edges.get(node).into_iter().flatten());
                }
            }
            seen.contains(start)
        })
        .cloned()
}
