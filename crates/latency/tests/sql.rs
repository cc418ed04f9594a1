//! The queries of `sql/` in DuckDB, DataFusion and Spark against our own figures, to the last digit.

use crate::readers::{python, root, script_output};
use crate::support::{description, finished, rows};
use headway_latency::run::merge::merge;
use headway_latency::{Analysis, Analyzer, Outcome, Row, Run, RunWriter};
use headway_test_support::skip;
use serde_json::{Map, Value, json};
use std::fs;

/// The deadlines of `sql/goodput.sql`.
const DEADLINES_MS: [f64; 3] = [1.0, 10.0, 100.0];

fn analysis(rows: &[Row]) -> Analysis {
    let mut analyzer = Analyzer::new(&description());
    for deadline in DEADLINES_MS {
        analyzer = analyzer.with_deadline_ms(deadline);
    }
    rows.iter().for_each(|row| analyzer.push(row));
    analyzer.finish()
}

/// Our figures as the tables of the queries.
fn expected(rows: &[Row]) -> Value {
    let found = serde_json::to_value(analysis(rows)).expect("JSON");
    let withheld = found["withheld"] == true;
    let distribution = |name: &str, key: &str| {
        let of = found[key].as_object()?;
        let mut table = Map::from_iter([("of_what".to_owned(), json!(name))]);
        let figures = of
            .iter()
            .filter(|(figure, _)| !["cdf", "intervals"].contains(&&***figure));
        table.extend(figures.map(|(figure, value)| (figure.clone(), value.clone())));
        Some(Value::Object(table))
    };
    let percentiles: Vec<Value> = [
        ("complete", "complete"),
        ("first byte", "first_byte"),
        ("handshake", "handshake"),
        ("response", "response"),
        ("service", "service"),
    ]
    .iter()
    .filter_map(|(name, key)| distribution(name, key))
    .collect();
    let list = |key: &str| found[key].as_array().expect("a list").clone();
    let by_size = list("by_size").into_iter().map(|group| {
        let mut group = group.as_object().expect("a group").clone();
        let latency = group.remove("latency").expect("figures");
        group.extend(latency.as_object().expect("figures").clone());
        Value::Object(group)
    });
    let deciles = list("deciles").into_iter().zip(1..).map(|(series, decile)| {
        json!({ "decile": decile, "series_1": series[0], "series_2": series[1], "series_3": series[2],
                "series_4": series[3] })
    });
    let inversion = &found["inversion"];
    let goodput = list("goodput").into_iter().map(|one| {
        json!({ "deadline_ms": one["deadline_ms"], "requests": one["requests"], "share": one["share"] })
    });
    json!({
        "percentiles": percentiles,
        "latency-by-size": by_size.collect::<Vec<_>>(),
        "deciles": if withheld { Vec::new() } else { deciles.collect() },
        "goodput": goodput.collect::<Vec<_>>(),
        "inversion": if inversion.is_null() { json!([]) } else {
            json!([{ "inversion": inversion["value"], "reversed": inversion["reversed"],
                     "of_reversed": inversion["of_reversed"], "requests": inversion["requests"],
                     "sizes": inversion["sizes"] }])
        },
    })
}

/// Requests of nine sizes in four classes; of many sizes; some without a latency; and one that found no
/// connection, so that there are no percentiles.
fn cases() -> [Vec<Row>; 5] {
    let plain = rows(10_000);
    let mut sized = rows(3_000);
    for (row, size) in sized.iter_mut().zip((0..).map(|i: u64| i * i % 70_001)) {
        row.size_bytes = size;
    }
    let mut untimed = rows(20_000);
    for row in untimed.iter_mut().skip(5_000).step_by(4_000) {
        row.error = Outcome::Abandoned;
    }
    for row in untimed.iter_mut().skip(6_000).step_by(500) {
        row.error = Outcome::Refused;
        row.connection = Row::NO_CONNECTION;
    }
    let mut withheld = rows(2_000);
    withheld[900].error = Outcome::NoConnection;
    let few = rows(12);
    [plain, sized, untimed, withheld, few]
}

fn compare(test: &str, engine: &str, how: &str) {
    let Some(python) = python(engine) else {
        return skip(test, &format!("no {engine} for Python; run {how}"));
    };
    let queries = fs::canonicalize(root().join("sql")).expect("queries");
    let queries = queries.to_str().expect("a plain path");
    for (number, rows) in cases().iter().enumerate() {
        let directory = tempfile::tempdir().expect("a directory");
        finished(directory.path(), rows);
        let found = script_output(&python, "sql_figures.py", engine, directory.path(), queries);
        // Through text, as the other side.
        let expected = expected(rows).to_string();
        let expected: Value = serde_json::from_str(&expected).expect("JSON");
        for (query, table) in expected.as_object().expect("tables") {
            let found = &found[query];
            assert_eq!(found, table, "{query}, case {number}");
        }
    }
}

/// Needs: DuckDB for Python, where the package index cannot be reached: scripts/setup duckdb
#[test]
fn duckdb_gives_our_figures_to_the_last_digit() {
    let name = "duckdb_gives_our_figures_to_the_last_digit";
    compare(name, "duckdb", "scripts/setup duckdb");
}

/// Needs: DuckDB for Python, where the package index cannot be reached: scripts/setup duckdb
#[test]
fn notebook_gives_the_figures_of_a_merged_run() {
    let Some(python) = python("duckdb") else {
        return skip(
            "notebook_gives_the_figures_of_a_merged_run",
            "no duckdb for Python; run scripts/setup duckdb",
        );
    };
    let directory = tempfile::tempdir().expect("a directory");
    let runs = [1, 2].map(|seed| {
        let mut description = description();
        description.load.seed = seed;
        let path = directory.path().join(seed.to_string());
        let mut writer = RunWriter::create(&path, &description).expect("a new directory");
        writer.append(&rows(5_000 * seed)).expect("room");
        writer.finish(&description).expect("room");
        path
    });
    merge(&runs, &directory.path().join("all"), &[]).expect("runs that fit");
    let all = Run::open(directory.path().join("all")).expect("a run");
    let all: Vec<Row> = all.rows().expect("rows").flat_map(Result::unwrap).collect();
    let queries = fs::canonicalize(root().join("sql")).expect("queries");
    let queries = queries.to_str().expect("a plain path");
    let found = script_output(
        &python,
        "notebook_runs.py",
        "all",
        directory.path(),
        queries,
    );
    let expected: Value = serde_json::from_str(&expected(&all).to_string()).expect("JSON");
    assert_eq!(found["tables"], expected);
    let has_ended = |row: &&Row| !row.warmup && row.error != Outcome::Abandoned;
    assert_eq!(found["requests"], all.iter().filter(has_ended).count());
}

/// Needs: DataFusion for Python: scripts/setup sql
#[test]
fn datafusion_gives_our_figures_to_the_last_digit() {
    let name = "datafusion_gives_our_figures_to_the_last_digit";
    compare(name, "datafusion", "scripts/setup sql");
}

/// Needs: Spark for Python and Java 17: scripts/setup spark
#[test]
fn spark_gives_our_figures_to_the_last_digit() {
    let name = "spark_gives_our_figures_to_the_last_digit";
    compare(name, "pyspark", "scripts/setup spark");
}
