//! `headway load --threads`: several loops, one result.

use super::https::Https;
use super::responding::{GOOD, Responding};
use super::{headway, load, measured, read_json, serving};
use headway_latency::{Analyzer, Row, Run};
use std::collections::BTreeMap;
use std::path::Path;

/// The rows of a run directory.
fn rows(run: &Path) -> Vec<Row> {
    let run = Run::open(run).unwrap();
    run.rows().unwrap().flat_map(Result::unwrap).collect()
}

#[test]
fn load_of_several_threads_is_that_of_one() {
    let directory = tempfile::tempdir().unwrap();
    let server = Responding::start(GOOD);
    let paths = directory.path().join("paths");
    std::fs::write(&paths, "/a\n/b\n/c\n").unwrap();
    let run = |threads: &str, arrivals: &str| {
        let run = directory.path().join(format!("{arrivals}-{threads}"));
        let options = [
            "--rate",
            "500",
            "--arrivals",
            arrivals,
            "-n",
            "301",
            "-c",
            "7",
        ];
        let output = [
            "--paths",
            paths.to_str().unwrap(),
            "-o",
            run.to_str().unwrap(),
        ];
        let arguments = ["load", &server.url, "--threads", threads, "--seed", "9"];
        let (code, _, err) = headway(&[&arguments[..], &options, &output].concat());
        assert_eq!(code, 0, "{err}");
        rows(&run)
    };
    for arrivals in ["poisson", "constant"] {
        let intended = |rows: &[Row]| {
            let mut all: Vec<u64> = rows.iter().map(|row| row.intended_ns).collect();
            all.sort_unstable();
            all
        };
        let one = intended(&run("1", arrivals));
        assert_eq!(one.len(), 301);
        for threads in ["2", "3"] {
            let all = intended(&run(threads, arrivals));
            // Each thread draws Poisson arrivals of its own; constant gaps are those of one loop.
            match arrivals {
                "constant" => assert_eq!(all, one, "{threads} threads"),
                _ => assert_eq!(all.len(), one.len(), "{threads} threads"),
            }
        }
    }
}

#[test]
fn figures_of_several_threads_are_those_of_all_rows() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let server = Responding::start(GOOD);
    let arguments = [
        "load",
        &server.url,
        "--threads",
        "3",
        "-c",
        "8",
        "-n",
        "1000",
    ];
    let output = ["-o", path.to_str().unwrap(), "--json=full"];
    let (code, out, err) = headway(&[&arguments[..], &output].concat());
    assert_eq!(code, 0, "{err}");
    let rows = rows(&path);
    assert_eq!(rows.len(), 1000);
    assert!(rows.is_sorted_by_key(|row| row.end_ns));
    // Each connection is one loop's, and its requests are numbered.
    let mut connections: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for row in &rows {
        connections
            .entry(row.connection)
            .or_default()
            .push(row.ordinal);
    }
    assert_eq!(connections.len(), 8);
    for ordinals in connections.values() {
        assert_eq!(*ordinals, (0..ordinals.len() as u32).collect::<Vec<_>>());
    }
    let description = read_json(&path.join("run.json"));
    assert_eq!(description["load"]["threads"], 3);
    assert_eq!(description["load"]["connections"], 8);
    assert_eq!(description["client"]["connections_opened"], 8);
    // The percentiles are those of one histogram of all rows.
    let mut analyzer = Analyzer::new(Run::open(&path).unwrap().description());
    rows.iter().for_each(|row| analyzer.push(row));
    // Through text, as the other side.
    let expected = serde_json::to_string(&analyzer.finish()).unwrap();
    let expected: serde_json::Value = serde_json::from_str(&expected).unwrap();
    let found: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(found["analysis"]["response"], expected["response"]);
    assert_eq!(found["analysis"]["counts"], expected["counts"]);
    let (_, out, err) = load(&[&server.url, "--threads", "2", "-n", "10"]);
    assert!(out.contains("2 threads, busy at most"), "{out}{err}");
}

#[test]
fn threads_share_https_http2_conditions_and_the_part_of_an_agent() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let https = Https::start();
    let certificate = https.path("cert.pem");
    let trusted = [
        https.url.as_str(),
        "--cacert",
        &certificate,
        "--threads",
        "2",
    ];
    let found = measured(&[&trusted[..], &["-c", "4", "-n", "200"]].concat());
    assert_eq!(found["summary"]["requests"], 200);
    assert_eq!(found["client"]["tls"]["handshakes"], 4);
    let streams = ["--http2", "--streams", "5", "-c", "5", "-n", "300"];
    let agent = [
        "--agent",
        "1/2",
        "-o",
        &file("run"),
        "--out",
        &format!("hdr={}", file("log")),
    ];
    let found = measured(&[&trusted[..], &streams, &agent].concat());
    assert_eq!(found["summary"]["requests"], 150);
    assert_eq!(found["summary"]["errors"], 0);
    let base = file("base");
    let rate = [
        "--rate",
        "200",
        "-d",
        "1s",
        "--warmup",
        "0",
        "--baseline",
        &file("base"),
    ];
    let kept = [&trusted[..], &rate[..6], &["-o", &base]].concat();
    assert_eq!(load(&kept).0, 0);
    let failing = [&trusted[..], &rate, &["--fail-if", "errors < 1"]].concat();
    let (code, out, err) = load(&failing);
    assert_eq!(code, 3, "{err}");
    assert!(out.contains("Against "), "{out}");
    https.server.stop();
}

#[test]
fn number_of_threads_is_chosen_and_the_result_says_why() {
    let server = Responding::start(GOOD);
    let (code, out, err) = load(&[&server.url, "-n", "10", "-c", "2"]);
    assert_eq!(code, 0, "{err}");
    assert!(
        out.contains("  1 thread (enough for this load), busy "),
        "{out}"
    );
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    let mut allowed = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
    let first = allowed.next().unwrap().to_string();
    let why = match allowed.next() {
        Some(_) => format!("the server may use CPU {first}"),
        None => "the server may use all CPUs".to_owned(),
    };
    let mut command = std::process::Command::new("taskset");
    command.args(["-c", &first, env!("CARGO_BIN_EXE_headway")]);
    let pinned = serving::Server::start_hello(command, &[]);
    let url = format!("http://{}/", pinned.address);
    let found = measured(&[&url, "-c", "64", "-n", "500"]);
    assert_eq!(found["load"]["threads_why"], why.as_str());
    let found = measured(&[&url, "-c", "64", "-n", "500", "--threads", "1"]);
    assert_eq!(found["load"]["threads_why"], serde_json::Value::Null);
    pinned.stop();
}

#[test]
fn failure_of_one_thread_fails_the_run() {
    let server = Responding::start(GOOD);
    let arguments = [&server.url, "--threads", "2", "--cpu", "0,4000", "-n", "10"];
    let (code, out, err) = load(&arguments);
    assert_eq!(code, 1, "{err}");
    assert!(
        err.starts_with("headway: thread 2 of 2: binding the loop to CPU [4000]"),
        "{err}"
    );
    assert!(err.contains("the run was ended") && out.is_empty(), "{err}");
    let few = [
        (&["-c", "2"][..], "only 2 connections"),
        (&["-n", "2"], "only 2 requests"),
        (&["--cpu", "0"], "only 1 CPUs in --cpu"),
    ];
    for (options, part) in few {
        let (code, _, err) = load(&[&[&server.url, "--threads", "3"], options].concat());
        assert_eq!(code, 2, "{err}");
        assert!(err.contains("--threads 3") && err.contains(part), "{err}");
    }
}
