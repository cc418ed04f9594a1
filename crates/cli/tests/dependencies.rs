//! Holds the direction of dependencies: between the crates, and between the stages of the server.
//!
//! Dependencies point downwards only, as ARCHITECTURE.md draws them. Inside the server no stage
//! names another stage; `worker.rs` composes them through `request.rs`. The compiler accepts either
//! mistake, so a test has to refuse it. It reads `cargo metadata` and the sources, and judges paths
//! as they are written: it sees `crate::lookup` and `super::super::lookup`, not a name that a macro
//! would make.

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
            "admission",
            "config",
            "access-log",
            "control",
            "metrics",
            "spawner",
            "files",
            "gateway",
            "http",
            "event",
            "debox",
            "os",
        ],
    ),
    ("metrics", &["config", "debox", "files", "http"]),
    ("access-log", &["config", "control"]),
    ("control", &["config", "metrics"]),
    ("spawner", &["config", "os"]),
    ("config", &["event", "gateway", "os"]),
    ("admission", &[]),
    ("gateway", &["http"]),
    ("files", &["event", "os"]),
    ("load", &["event", "http", "latency", "os", "specweb-files"]),
    ("specweb-files", &[]),
    ("specweb", &["specweb-files"]),
    ("specweb-client", &["latency", "load", "specweb"]),
    ("specweb-handler", &["server", "specweb"]),
    ("lab", &["debox-bpf", "load", "latency", "os"]),
    ("report", &["latency"]),
    ("counters", &["lab", "latency", "load", "os"]),
    ("trace", &["debox", "debox-bpf"]),
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

const STAGES: &[&str] = &["accept", "connection", "lookup", "respond", "send"];

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
fn stages_do_not_name_one_another_when_the_server_is_read() {
    let source = root().join("crates/server/src");
    let mut violations = Vec::new();
    for stage in STAGES {
        for file in rust_files(&source, stage) {
            let text = std::fs::read_to_string(&file).expect("a source file that was just listed");
            let inside = file
                .strip_prefix(&source)
                .expect("a file below the source folder");
            violations.extend(stage_violations(stage, inside, &text));
        }
    }
    assert!(violations.is_empty(), "\n{}", violations.join("\n"));
}

#[test]
fn a_violation_names_file_and_line_when_a_stage_reaches_across() {
    let cases = [
        ("use crate::lookup::Names;", true),
        (
            "use crate::request::Response;\nuse crate::{\n    request::Response,\n    lookup::{Names, send},\n};",
            true,
        ),
        ("fn f() { crate::lookup::find() }", true),
        ("use super::super::lookup::Names;", true),
        (
            "use crate::{request::{lookup, Response}, send::Turn};",
            false,
        ),
        ("use super::lookup::Names;", false),
        (
            "// crate::lookup does that\nuse crate::request::lookup;",
            false,
        ),
        ("use headway_files::lookup::Names;", false),
    ];
    for (text, refused) in cases {
        let found = stage_violations("send", Path::new("send/turn.rs"), text);
        assert_eq!(!found.is_empty(), refused, "{text}: {found:?}");
    }
    let found = stage_violations(
        "send",
        Path::new("send/turn.rs"),
        "\n\nuse crate::respond::Response;",
    );
    let expected = "crates/server/src/send/turn.rs:3: the stage send names the stage respond; go through request.rs";
    assert_eq!(found, [expected]);
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

/// `STAGE.rs` and everything below the folder `STAGE`.
fn rust_files(source: &Path, stage: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let single = source.join(stage).with_extension("rs");
    if single.exists() {
        files.push(single);
    }
    let mut folders = vec![source.join(stage)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    assert!(!files.is_empty(), "the stage {stage} has no source");
    files.sort();
    files
}

fn stage_violations(stage: &str, file: &Path, text: &str) -> Vec<String> {
    let text = without_comments(text);
    names_at_the_root(&text, supers_to_the_root(file))
        .into_iter()
        .filter(|(name, _)| *name != stage && STAGES.contains(name))
        .map(|(name, position)| {
            let line = text[..position].matches('\n').count() + 1;
            let file = file.display();
            format!("crates/server/src/{file}:{line}: the stage {stage} names the stage {name}; go through request.rs")
        })
        .collect()
}

/// How many `super::` lead from a file to the crate's root: one from `send.rs` and `send/mod.rs`,
/// two from `send/turn.rs`.
fn supers_to_the_root(file: &Path) -> usize {
    let depth = file.components().count();
    if file.file_name().is_some_and(|name| name == "mod.rs") {
        depth - 1
    } else {
        depth
    }
}

/// Blanks line comments and keeps their line ends. A `//` in a string is blanked too, which hides
/// no path.
fn without_comments(text: &str) -> String {
    text.split('\n')
        .map(|line| line.split("//").next().unwrap_or(""))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The first name of every path that begins at the crate's root, groups in braces included, with
/// its position.
fn names_at_the_root(text: &str, supers: usize) -> Vec<(&str, usize)> {
    let prefixes = ["crate::".to_owned(), "super::".repeat(supers)];
    let mut names = Vec::new();
    for prefix in prefixes {
        for (position, _) in text.match_indices(&prefix) {
            let start = position + prefix.len();
            if text[start..].starts_with('{') {
                names.extend(group_names(text, start + 1));
            } else {
                names.push((identifier(&text[start..]), start));
            }
        }
    }
    names
}

/// The names that begin the parts of a group, whose inner groups belong to those names.
fn group_names(text: &str, start: usize) -> Vec<(&str, usize)> {
    let mut names = Vec::new();
    let mut depth = 1;
    let mut expected = true;
    for (offset, character) in text[start..].char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 1 => break,
            '}' => depth -= 1,
            ',' if depth == 1 => expected = true,
            _ if expected && !character.is_whitespace() => {
                names.push((identifier(&text[start + offset..]), start + offset));
                expected = false;
            }
            _ => {}
        }
    }
    names
}

fn identifier(text: &str) -> &str {
    let end = text.find(|character: char| !character.is_alphanumeric() && character != '_');
    &text[..end.unwrap_or(text.len())]
}
