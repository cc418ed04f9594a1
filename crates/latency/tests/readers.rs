//! Our Parquet files in the hands of others: DuckDB, and the lines that the guide gives to readers
//! of it, pandas and polars.
//!
//! `scripts/setup duckdb` and `scripts/setup readers` install these below target/; without one its
//! test is skipped.

use crate::support;
use headway_latency::{Outcome, Row};
use headway_test_support::skip;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::{finished, rows};

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A Python that has these modules.
pub fn python(modules: &str) -> Option<PathBuf> {
    let python = std::env::var_os("HEADWAY_DUCKDB_PYTHON")
        .map_or_else(|| root().join("target/duckdb/bin/python"), Into::into);
    let line = format!("import {modules}");
    let probe = Command::new(&python).args(["-c", &line]).output();
    probe
        .is_ok_and(|output| output.status.success())
        .then_some(python)
}

/// What a script beside this file prints in a directory, given a word and a text.
pub fn script_output(
    python: &Path,
    script: &str,
    word: &str,
    directory: &Path,
    text: &str,
) -> Value {
    let script = root().join("crates/latency/tests/support").join(script);
    let mut child = Command::new(python)
        .arg(fs::canonicalize(script).expect("a file"))
        .arg(word)
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("python runs");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(text.as_bytes()).expect("a reader");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Needs: DuckDB for Python, where the package index cannot be reached: scripts/setup duckdb
#[test]
fn duckdb_reads_columns_and_figures_when_a_run_is_finished() {
    let Some(python) = python("duckdb") else {
        return skip(
            "duckdb_reads_columns_and_figures_when_a_run_is_finished",
            "no DuckDB; run scripts/setup duckdb",
        );
    };
    let directory = tempfile::tempdir().expect("a directory");
    let rows = rows(10_000);
    finished(directory.path(), &rows);
    let found = script_output(&python, "duckdb_reads.py", ".", directory.path(), "");
    let total = |value: fn(&Row) -> u64| rows.iter().map(value).sum::<u64>();
    let expected = json!({
        "types": ["BIGINT", "BIGINT", "BIGINT", "BIGINT", "BIGINT", "BIGINT", "USMALLINT", "VARCHAR", "UINTEGER", "UINTEGER",
            "UTINYINT", "UTINYINT", "BOOLEAN", "BIGINT"],
        "rows": rows.len(),
        "response_ns": total(Row::response_ns),
        "bytes": total(|row| row.bytes),
        "connections": total(|row| row.connection.into()),
        "timed_out": total(|row| (row.status == 0).into()),
        "first_bytes": total(|row| (row.first_byte_ns > 0).into()),
        "classes": total(|row| (row.class != Row::NO_CLASS).into()),
        "warmup": total(|row| row.warmup.into()),
        "cell_requests": total(|row| (!row.warmup).into()),
    });
    assert_eq!(found, expected);
}

/// The blocks of a language on the guide's page about other tools, one after the other.
fn lines_of_the_guide(language: &str) -> String {
    let page = root().join("docs/src/howto/pandas-polars-duckdb.md");
    let page = fs::read_to_string(page).expect("a page");
    let blocks = page.split("\n```").skip(1).step_by(2);
    let lines = blocks.filter_map(|block| {
        let (fence, lines) = block.split_once('\n')?;
        (fence.split_whitespace().next() == Some(language)).then_some(lines)
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The directories that the guide's lines name. Some requests were abandoned, which have no
/// latency.
fn guide_directory() -> (tempfile::TempDir, Vec<Row>) {
    let directory = tempfile::tempdir().expect("a directory");
    let mut rows = rows(5_000);
    for row in rows.iter_mut().skip(4_900).step_by(7) {
        row.error = Outcome::Abandoned;
    }
    fs::create_dir(directory.path().join("runs")).expect("room");
    for name in ["runs/nginx", "a", "b", "c"] {
        finished(&directory.path().join(name), &rows);
    }
    (directory, rows)
}

/// Number and 99th percentile of the response times in ms, between two ranks where it lies there.
fn expected(rows: &[Row]) -> (usize, f64) {
    let counted = |row: &&Row| !row.warmup && row.error.has_latency();
    let mut times: Vec<u64> = rows.iter().filter(counted).map(Row::response_ns).collect();
    times.sort_unstable();
    let at = (times.len() - 1) as f64 * 0.99;
    let (low, high) = (times[at as usize], times[at as usize + 1]);
    let ns = low as f64 + (high - low) as f64 * at.fract();
    (times.len(), ns / 1e6)
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

/// Needs: DuckDB for Python, where the package index cannot be reached: scripts/setup duckdb
#[test]
fn queries_of_the_guide_give_the_figures_when_duckdb_runs_them() {
    let name = "queries_of_the_guide_give_the_figures_when_duckdb_runs_them";
    let Some(python) = python("duckdb") else {
        return skip(name, "no DuckDB; run scripts/setup duckdb");
    };
    let (directory, rows) = guide_directory();
    let lines = lines_of_the_guide("sql");
    let found = script_output(&python, "guide_lines.py", "sql", directory.path(), &lines);
    let table = |query: usize| found[query].as_array().expect("rows of a result");
    let (count, p99_ms) = expected(&rows);
    assert_eq!(table(0)[0][0], count);
    assert!((number(&table(0)[0][1]) - p99_ms).abs() < 1e-6, "{found}");
    let failed = rows.iter().filter(|row| row.error != Outcome::Ok).count();
    let second = |query: usize, column: usize| -> f64 {
        table(query).iter().map(|row| number(&row[column])).sum()
    };
    assert_eq!(second(1, 2), failed as f64);
    assert_eq!(second(2, 3), 3.0 * count as f64);
}

/// Needs: DuckDB for Python, where the package index cannot be reached: scripts/setup duckdb
#[test]
fn runs_of_agents_are_one_data_set_partitioned_by_agent() {
    let name = "runs_of_agents_are_one_data_set_partitioned_by_agent";
    let Some(python) = python("duckdb") else {
        return skip(name, "no DuckDB; run scripts/setup duckdb");
    };
    let directory = tempfile::tempdir().expect("a directory");
    for agent in [0, 1] {
        let path = directory.path().join(format!("agent={agent}"));
        finished(&path, &rows(1_000 * (agent + 1)));
    }
    let query = "SELECT agent, count(*) FROM read_parquet('*/requests.parquet') GROUP BY agent ORDER BY agent";
    let found = script_output(&python, "guide_lines.py", "sql", directory.path(), query);
    assert_eq!(found[0], json!([[0, 1_000], [1, 2_000]]));
}

/// Needs: pandas, pyarrow and polars: scripts/setup readers
#[test]
fn lines_of_the_guide_give_the_figures_when_pandas_and_polars_run_them() {
    let name = "lines_of_the_guide_give_the_figures_when_pandas_and_polars_run_them";
    let Some(python) = python("pandas, pyarrow, polars") else {
        return skip(name, "no pandas and polars; run scripts/setup readers");
    };
    let (directory, rows) = guide_directory();
    let lines = lines_of_the_guide("python");
    let found = script_output(
        &python,
        "guide_lines.py",
        "python",
        directory.path(),
        &lines,
    );
    let (count, p99_ms) = expected(&rows);
    assert_eq!(number(&found[0]["count"]), count as f64);
    assert!((number(&found[0]["99%"]) - p99_ms).abs() < 1e-6, "{found}");
    let good = rows
        .iter()
        .filter(|row| !row.warmup && row.error == Outcome::Ok);
    let sizes: BTreeSet<u64> = good.map(|row| row.size_bytes).collect();
    let groups = found[1].as_array().expect("a row a size");
    let seen = groups
        .iter()
        .filter_map(|group| group["size_bytes"].as_u64());
    assert_eq!(seen.collect::<BTreeSet<u64>>(), sizes);
}
