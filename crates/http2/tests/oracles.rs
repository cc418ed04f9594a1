//! Other implementations of HTTP/2 judge ours: the same bytes must have the same outcome.
//!
//! The oracles are nghttp2 (`oracles/nghttp2.c`) and Python's h2 (`oracles/h2.py`). Each is one process that gets all
//! cases. `HEADWAY_ORACLE_SEED` is the first seed, `HEADWAY_ORACLE_CASES` the number of cases.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::Command;

use headway_test_support::skip;

mod differences;
mod generate;
mod ours;
mod outcome;

use differences::{H2, Intended, NGHTTP2, compare};
use outcome::{Outcome, Step, encode, parse};

fn number(variable: &str, default: u64) -> u64 {
    let set = std::env::var(variable).ok();
    set.map_or(default, |text| text.parse().expect("a number"))
}

fn cases(count: u64) -> Vec<(u64, Vec<Step>)> {
    let first = number("HEADWAY_ORACLE_SEED", 0);
    let seeds = first..first + number("HEADWAY_ORACLE_CASES", count);
    let both = |seed| {
        [
            (seed, generate::case(seed)),
            (seed, generate::changed_case(seed)),
        ]
    };
    seeds.flat_map(both).collect()
}

/// Runs an oracle on cases.
fn ask(oracle: &mut Command, cases: &[(u64, Vec<Step>)], folder: &Path) -> Vec<Vec<Outcome>> {
    let path = folder.join("cases");
    let bytes: Vec<u8> = cases.iter().flat_map(|(_, steps)| encode(steps)).collect();
    std::fs::write(&path, bytes).unwrap();
    let output = oracle.stdin(File::open(&path).unwrap()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let outcomes = parse(std::str::from_utf8(&output.stdout).unwrap());
    assert_eq!(outcomes.len(), cases.len());
    outcomes
}

/// Needs: libnghttp2-dev: scripts/setup
#[test]
fn outcomes_are_those_of_nghttp2() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("nghttp2");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracles/nghttp2.c");
    if !Path::new("/usr/include/nghttp2/nghttp2.h").exists() {
        return skip(
            "outcomes_are_those_of_nghttp2",
            "libnghttp2-dev is not installed",
        );
    }
    let mut build = Command::new("cc");
    build.args(["-O1", "-Wall", "-Wextra", "-Werror", "-DORACLE_MAIN", "-o"]);
    let built = build
        .arg(&program)
        .args([source, "-lnghttp2"])
        .output()
        .unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    judge(&NGHTTP2, &mut Command::new(program), 1000, folder.path());
}

/// Needs: python3-h2: scripts/setup
#[test]
fn outcomes_are_those_of_h2_in_python() {
    let python = "/usr/bin/python3";
    let has_it = Command::new(python).args(["-c", "import h2"]).output();
    if !has_it.is_ok_and(|output| output.status.success()) {
        return skip(
            "outcomes_are_those_of_h2_in_python",
            "python3-h2 is not installed",
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let mut oracle = Command::new(python);
    judge(
        &H2,
        oracle.args(["-c", include_str!("oracles/h2.py")]),
        150,
        folder.path(),
    );
}

fn judge(intended: &Intended, oracle: &mut Command, count: u64, folder: &Path) {
    let cases = cases(count);
    let mut met = BTreeMap::<_, usize>::new();
    let mut failures = Vec::new();
    for ((seed, steps), theirs) in cases.iter().zip(ask(oracle, &cases, folder)) {
        match compare(intended, steps, &ours::run(steps), &theirs) {
            Ok(name) => *met.entry(name.unwrap_or("none")).or_default() += 1,
            Err(text) => failures.push(format!("seed {seed}:\n{text}")),
        }
    }
    println!("differences: {met:#?}");
    let shown = failures
        .len()
        .min(number("HEADWAY_ORACLE_SHOWN", 5) as usize);
    assert!(
        failures.is_empty(),
        "{} failures\n{}",
        failures.len(),
        failures[..shown].join("\n\n")
    );
}
