//! Merged runs of several clients.

use crate::support;
use headway_latency::run::merge::{MergeError, Merged, merge};
use headway_latency::run::{AgentInfo, ClientInfo, Verdict, Window};
use headway_latency::{Analyzer, Histogram, Outcome, Row, Run, RunDescription, RunWriter};
use std::path::{Path, PathBuf};

const SECOND: u64 = 1_000_000_000;

/// The description of one client, which began so much later than the first.
fn described(index: u32, count: u32, later_ns: u64) -> RunDescription {
    let mut description = support::description();
    description.epoch_unix_ns = 1_700_000_000 * SECOND + later_ns;
    description.environment.host = format!("host-{index}");
    description.environment.headway_version = "1".into();
    description.agent = Some(AgentInfo { index, count });
    description.load.seed = 100 + u64::from(index);
    description.load.rate_rps = Some(1_000.0);
    description.load.connections = Some(10);
    description.load.measured = Some(Window {
        start_ns: SECOND / 10,
        end_ns: SECOND,
    });
    description.client = Some(ClientInfo {
        busy_share: Some(0.1 * f64::from(index + 1)),
        connections_opened: Some(7),
        ..ClientInfo::default()
    });
    description
}

/// A second of requests, different for each client, of which the first tenth is warm-up.
fn rows_of(index: u32) -> Vec<Row> {
    let mut rows = support::rows(1_000);
    for (at, row) in (0..).zip(&mut rows) {
        row.end_ns += u64::from(index) * 30_000 + at * 7 % 11_000;
    }
    rows.sort_by_key(|row| row.end_ns);
    rows
}

fn write(path: &Path, description: &RunDescription, rows: &[Row]) {
    let mut writer = RunWriter::create(path, description).expect("a new directory");
    writer.append(rows).expect("room on the disk");
    writer.finish(description).expect("room on the disk");
}

/// Writes the runs of clients, each with a change, and merges them.
fn merged(
    directory: &Path,
    count: u32,
    change: impl Fn(&mut RunDescription),
) -> Result<Merged, MergeError> {
    let path = |index: u32| directory.join(index.to_string());
    for index in 0..count {
        let mut description = described(index, count, u64::from(index) * 2_000_000);
        change(&mut description);
        write(&path(index), &description, &rows_of(index));
    }
    let paths: Vec<PathBuf> = (0..count).map(path).collect();
    merge(&paths, &directory.join("all"), &[])
}

#[test]
fn merged_figures_are_those_of_all_rows() {
    let directory = tempfile::tempdir().expect("a directory");
    let found = merged(directory.path(), 3, |_| {}).expect("they belong together");
    let (mut all, mut response) = (Analyzer::new(&found.description), Histogram::new());
    let mut latencies = Vec::new();
    for index in 0..3 {
        let later_ns = u64::from(index) * 2_000_000;
        for mut row in rows_of(index) {
            row.intended_ns += later_ns;
            row.start_ns += later_ns;
            row.end_ns += later_ns;
            row.first_byte_ns += if row.first_byte_ns > 0 { later_ns } else { 0 };
            all.push(&row);
            if !row.warmup {
                response.record_ns(row.response_ns());
                latencies.push(row.response_ns());
            }
        }
    }
    let expected = all.finish();
    assert_eq!(found.analysis, expected);
    assert_eq!(
        (expected.counts.requests, expected.counts.warmup),
        (2_700, 300)
    );
    latencies.sort_unstable();
    let distribution = found.analysis.response.as_ref().expect("responses");
    for (percent, us) in [(50, distribution.p50_us), (99, distribution.p99_us)] {
        let exact = latencies[latencies.len() * percent / 100 - 1] as f64 / 1e3;
        assert!(
            (us / exact - 1.0).abs() < 0.001,
            "p{percent}: {us} and {exact}"
        );
    }
    assert_eq!(distribution.mean_us, response.mean_ns() / 1e3);
    // From the directory it is the same.
    let run = Run::open(directory.path().join("all")).expect("a run");
    assert!(run.description().complete);
    assert_eq!(run.analysis().expect("its rows"), expected);
    assert_eq!(
        run.cells().expect("its cells").sorted(),
        all.cells().sorted()
    );
}

#[test]
fn requests_without_a_connection_have_none_in_the_merged_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    for index in 0..2 {
        let mut rows = rows_of(index);
        rows[5].connection = Row::NO_CONNECTION;
        rows[5].error = Outcome::ConnectTimedOut;
        rows[6].connection = 3;
        write(&path(&index.to_string()), &described(index, 2, 0), &rows);
    }
    merge(&[path("0"), path("1")], &path("all"), &[]).expect("they belong together");
    let run = Run::open(path("all")).expect("a run");
    let rows: Vec<Row> = run
        .rows()
        .expect("its rows")
        .flat_map(Result::unwrap)
        .collect();
    let count = |connection| {
        rows.iter()
            .filter(|row| row.connection == connection)
            .count()
    };
    assert_eq!(count(Row::NO_CONNECTION), 2);
    assert!(count(6) > 0 && count(7) > 0);
}

#[test]
fn merged_description_has_every_client_and_the_whole_load() {
    let directory = tempfile::tempdir().expect("a directory");
    let found = merged(directory.path(), 3, |_| {}).expect("they belong together");
    let description = &found.description;
    assert_eq!(description.load.rate_rps, Some(3_000.0));
    assert_eq!(description.load.connections, Some(30));
    let window = Window {
        start_ns: SECOND / 10,
        end_ns: SECOND + 4_000_000,
    };
    assert_eq!(description.load.measured, Some(window));
    assert_eq!(description.environment.host, "host-0, host-1, host-2");
    let client = description.client.clone().expect("a verdict");
    assert_eq!(
        (client.verdict, client.connections_opened),
        (Verdict::Valid, Some(21))
    );
    assert!(
        client
            .busy_share
            .is_some_and(|share| (share - 0.3).abs() < 1e-9)
    );
    let delays: Vec<f64> = description
        .agents
        .iter()
        .map(|agent| agent.start_delay_ms)
        .collect();
    assert_eq!(delays, [0.0, 2.0, 4.0]);
    let requests: Vec<u64> = description
        .agents
        .iter()
        .map(|agent| agent.requests)
        .collect();
    assert_eq!(requests, [900; 3]);
    // A connection says whose it is.
    let run = Run::open(directory.path().join("all")).expect("a run");
    let rows = run
        .rows()
        .expect("rows")
        .flat_map(|batch| batch.expect("rows"));
    let of_second = rows.filter(|row| row.connection % 3 == 1).count();
    assert_eq!(of_second, 1_000);
}

#[test]
fn rows_are_in_the_order_in_which_requests_ended() {
    let directory = tempfile::tempdir().expect("a directory");
    merged(directory.path(), 3, |_| {}).expect("they belong together");
    let run = Run::open(directory.path().join("all")).expect("a run");
    let rows = run
        .rows()
        .expect("rows")
        .flat_map(|batch| batch.expect("rows"));
    assert!(rows.map(|row| row.end_ns).is_sorted());
}

#[test]
fn runs_that_do_not_belong_together_are_an_error_and_nothing_is_written() {
    type Change = fn(&mut RunDescription);
    let of_second = |description: &RunDescription| description.load.seed == 101;
    assert!(of_second(&described(1, 2, 0)));
    let cases: [(&str, Change); 8] = [
        ("the targets", |one| one.targets = vec!["http://b/".into()]),
        ("the offered rate", |one| one.load.rate_rps = Some(7.0)),
        ("the length", |one| one.load.warmup_s = 7.0),
        ("the headers", |one| one.load.headers = vec!["A: b".into()]),
        ("the version of headway", |one| {
            one.environment.headway_version = "2".into();
        }),
        ("agent 0 too", |one| {
            one.agent = Some(AgentInfo { index: 0, count: 2 });
        }),
        ("the number of agents", |one| one.agent = None),
        ("at the same time", |one| one.epoch_unix_ns += 60 * SECOND),
    ];
    for (part, change) in cases {
        let directory = tempfile::tempdir().expect("a directory");
        let second_only = |description: &mut RunDescription| {
            if of_second(description) {
                change(description);
            }
        };
        let error = merged(directory.path(), 2, second_only).expect_err(part);
        let text = error.to_string();
        assert!(
            text.contains(part) && text.contains("nothing was merged"),
            "{text}"
        );
        assert!(!directory.path().join("all").exists(), "{part}");
    }
}

#[test]
fn one_run_twice_is_an_error_without_numbers_too() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut description = described(0, 1, 0);
    description.agent = None;
    let path = directory.path().join("run");
    write(&path, &description, &rows_of(0));
    let error = merge(&[path.clone(), path], &directory.path().join("all"), &[]);
    let text = error
        .expect_err("its requests would count twice")
        .to_string();
    assert!(text.contains("the same run"), "{text}");
}

#[test]
fn client_that_died_is_left_out_and_the_verdict_says_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |index: u32| directory.path().join(index.to_string());
    for index in 0..2 {
        write(&path(index), &described(index, 4, 0), &rows_of(index));
    }
    // Number 2 dies in the middle, number 3 before it begins.
    let mut writer = RunWriter::create(&path(2), &described(2, 4, 0)).expect("a new directory");
    writer.append(&rows_of(2)[..500]).expect("room on the disk");
    drop(writer);
    let paths: Vec<PathBuf> = (0..3).map(path).collect();
    let found = merge(&paths, &directory.path().join("all"), &[]).expect("two are whole");
    assert_eq!(found.analysis.counts.requests, 1_800);
    let client = found.description.client.expect("a verdict");
    assert_eq!(client.verdict, Verdict::Invalid);
    let reasons = client.reasons.join("\n");
    assert!(
        reasons.contains("the run of agent 3 of 4 is missing"),
        "{reasons}"
    );
    assert!(
        reasons.contains("agent 2 (") && reasons.contains("did not finish: its 500 requests until"),
        "{reasons}"
    );
    let run = Run::open(path(2)).expect("it is still there");
    assert!(!run.description().complete);
}

#[test]
fn merged_run_may_not_replace_one_of_its_parts() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("0");
    let writer = RunWriter::create(&path, &described(0, 2, 0)).expect("a new directory");
    drop(writer);
    let whole = directory.path().join("1");
    write(&whole, &described(1, 2, 0), &rows_of(1));
    let error = merge(&[path.clone(), whole], &path, &[]).expect_err("it would be lost");
    assert!(error.to_string().contains("is the output too"), "{error}");
    assert!(path.join("requests.spool").exists());
}

#[test]
fn verdict_is_the_worst_with_the_name_of_its_client() {
    let directory = tempfile::tempdir().expect("a directory");
    let found = merged(directory.path(), 3, |description| {
        if description.load.seed == 101 {
            let client = description.client.get_or_insert_default();
            client.verdict = Verdict::Suspect;
            client.reasons = vec!["its clock was slow".into()];
        }
    });
    let found = found.expect("they belong together").description;
    assert_eq!(found.agents[1].verdict, Verdict::Suspect);
    let client = found.client.expect("a verdict");
    assert_eq!(client.verdict, Verdict::Suspect);
    assert!(
        client.reasons[0].starts_with("agent 1 (") && client.reasons[0].ends_with("clock was slow"),
        "{:?}",
        client.reasons
    );
}

#[test]
fn runs_with_one_seed_or_at_different_times_are_suspect() {
    let reasons = |change: fn(&mut RunDescription)| {
        let directory = tempfile::tempdir().expect("a directory");
        let found = merged(directory.path(), 2, change).expect("they belong together");
        let client = found.description.client.expect("a verdict");
        assert_eq!(client.verdict, Verdict::Suspect);
        client.reasons.join("\n")
    };
    let twins = reasons(|description| description.load.seed = 1);
    assert!(twins.contains("has the seed of another run"), "{twins}");
    let apart = reasons(|description| {
        description.epoch_unix_ns += SECOND / 2 * u64::from(description.load.seed == 101);
    });
    assert!(apart.contains("together for only 28"), "{apart}");
}

#[test]
fn failed_requests_of_each_client_are_counted() {
    let directory = tempfile::tempdir().expect("a directory");
    let found = merged(directory.path(), 2, |_| {}).expect("they belong together");
    let failed = |index| {
        let rows = rows_of(index);
        let failed = rows
            .iter()
            .filter(|row| !row.warmup && row.error != Outcome::Ok);
        failed.count() as u64
    };
    let errors: Vec<u64> = found
        .description
        .agents
        .iter()
        .map(|agent| agent.errors)
        .collect();
    assert_eq!(errors, [failed(0), failed(1)]);
    assert_eq!(found.analysis.counts.errors, failed(0) + failed(1));
}
