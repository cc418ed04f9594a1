//! Whether a profile has measured the capacity of the server or of the client, and what follows.
//!
//! The tests set the threshold from which the client counts as the bottleneck, because they cannot
//! know how busy their client is.

use crate::support;
use std::path::Path;
use std::time::Duration;

use headway_latency::run::{Point, ProfileInfo, Verdict};
use headway_latency::{Run, RunDescription};
use headway_load::engine::{Address, Arrivals};
use headway_load::profile::{Knee, Limit, Listener, ProfileError, ProfileSettings, render};
use headway_load::session::{Demand, Finished, RunContext, Settings, WorkSource};
use support::{Server, response, send};

/// Keeps what is said.
#[derive(Default)]
struct RecordedProgress {
    runs: Vec<String>,
    remarks: Vec<String>,
}

impl Listener for RecordedProgress {
    fn planned(&mut self, _: usize, _: Duration) {}

    fn begins(&mut self, name: &str) {
        self.runs.push(name.to_owned());
    }

    fn ended(&mut self, _: &Point, _: &Finished) {}

    fn resumes(&mut self, _: usize, _: usize) {}

    fn remarks(&mut self, text: &str) {
        self.remarks.push(text.to_owned());
    }
}

fn settings(server: &Server, busy: f64, waited: f64) -> ProfileSettings {
    let Address::Inet(address) = &server.address else {
        unreachable!("it listens on loopback")
    };
    let url = format!("http://{address}/");
    let session = Settings {
        urls: vec![url.parse().expect("an address")],
        work: WorkSource::Addresses,
        method: headway_load::engine::Method::Get,
        headers: Vec::new(),
        body: Vec::new(),
        host: None,
        unix_socket: None,
        tls: Default::default(),
        protocol: Default::default(),
        proxy_version: None,
        directories: None,
        demand: Demand::Closed,
        connections: Some(2),
        requests_per_connection: None,
        timeout: None,
        first_pause: Duration::ZERO,
        think: Duration::ZERO,
        bandwidth_bits_per_s: None,
        warmup: Some(Duration::ZERO),
        cooldown: Duration::ZERO,
        duration: Some(Duration::from_millis(100)),
        requests: None,
        seed: 1,
        sources: Vec::new(),
        verify: false,
        cookies: false,
        agent: None,
        label: None,
        threads: Some(1),
        cpus: Vec::new(),
        command: Vec::new(),
    };
    ProfileSettings {
        session,
        arrivals: Arrivals::Poisson,
        capacity_rps: None,
        knee: None,
        loads: vec![0.5],
        repeats: 1,
        before_point: None,
        after_point: None,
        strict: false,
        client_limit: Limit { busy, waited },
    }
}

fn server() -> Server {
    Server::start(|_| send(response("hello")))
}

fn profile(settings: &ProfileSettings, path: &Path) -> (RunDescription, RecordedProgress) {
    let mut progress = RecordedProgress::default();
    let done = settings.run(path, &RunContext::default(), &mut progress);
    (done.expect("a profile"), progress)
}

fn info(description: &RunDescription) -> &ProfileInfo {
    description.profile.as_ref().expect("points")
}

/// Whether a row of the table is of a share of the capacity: `50 %` first.
fn is_share(row: &str) -> bool {
    let mut cells = row.split_whitespace();
    cells
        .next()
        .is_some_and(|word| word.parse::<f64>().is_ok() && cells.next() == Some("%"))
}

/// The highest rate of the search with a valid run and no invalid run below it, according to the
/// directories.
fn highest_valid(info: &ProfileInfo, path: &Path) -> Option<f64> {
    let verdict = |point: &Point| {
        let run = Run::open(path.join(&point.directory)).expect("a run");
        run.description().client.clone().expect("a client").verdict
    };
    let tried: Vec<&Point> = info.points.iter().filter(|point| point.of_client).collect();
    let bad = tried
        .iter()
        .filter(|point| verdict(point) != Verdict::Valid)
        .map(|point| point.rate_rps)
        .fold(f64::INFINITY, f64::min);
    let good = tried
        .iter()
        .filter(|point| verdict(point) == Verdict::Valid);
    good.map(|point| point.rate_rps)
        .filter(|rate| *rate < bad)
        .reduce(f64::max)
}

#[test]
fn loads_are_shares_of_what_the_client_offers_when_the_closed_loop_was_its_limit() {
    let directory = tempfile::tempdir().expect("a directory");
    let (description, progress) = profile(&settings(&server(), 0.0, 2.0), directory.path());
    let info = info(&description);
    let bound = info.client_bound.as_ref().expect("the client is the limit");
    assert_eq!(bound.closed_rps, info.points[0].rate_rps);
    assert_eq!(bound.valid_rps, highest_valid(info, directory.path()));
    let base = bound.valid_rps.unwrap_or(bound.closed_rps);
    assert_eq!(info.capacity_rps, Some(base));
    let share = info.points.last().expect("a point");
    assert_eq!((share.relative, share.rate_rps), (0.5, base * 0.5));
    assert_eq!(info.points[1].directory, "points/client-1");
    assert_eq!(info.points[1].rate_rps, bound.closed_rps * 0.9);

    let remarks = progress.remarks.join("\n");
    assert!(
        remarks.contains("the client was the bottleneck"),
        "{remarks}"
    );
    let table = render(&Run::open(directory.path()).expect("a profile")).expect("points");
    assert!(table.starts_with("capacity is at least "), "{table}");
    assert!(table.contains(": the client is the bottleneck"), "{table}");
    // The search is no load of the server: the table has the closed loop and the one share,
    // whatever their verdicts.
    let mut rows = table.lines().map(str::trim_start);
    assert!(rows.any(|row| row.starts_with("closed ")), "{table}");
    let shares: Vec<&str> = rows.filter(|row| is_share(row)).collect();
    assert!(
        matches!(shares[..], [row] if row.starts_with("50 %")),
        "{table}"
    );
}

#[test]
fn capacity_is_the_servers_when_the_client_had_time_left() {
    let directory = tempfile::tempdir().expect("a directory");
    let (description, progress) = profile(&settings(&server(), 1.1, 2.0), directory.path());
    let info = info(&description);
    assert_eq!(info.client_bound, None);
    assert_eq!(info.capacity_rps, Some(info.points[0].rate_rps));
    assert_eq!(info.points.len(), 2);
    assert_eq!(progress.remarks, Vec::<String>::new());
}

#[test]
fn rate_search_is_skipped_when_the_client_shared_its_cpu() {
    let directory = tempfile::tempdir().expect("a directory");
    let (description, progress) = profile(&settings(&server(), 1.1, 0.0), directory.path());
    let info = info(&description);
    let bound = info.client_bound.as_ref().expect("the client is the limit");
    assert_eq!(bound.valid_rps, None);
    assert_eq!(info.capacity_rps, Some(bound.closed_rps));
    assert_eq!(info.points.len(), 2, "the closed loop and the share");
    assert!(
        progress.remarks[0].starts_with("capacity is at least"),
        "{:?}",
        progress.remarks
    );
}

#[test]
fn rate_search_is_skipped_when_a_client_limit_is_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let strict = ProfileSettings {
        strict: true,
        ..settings(&server(), 0.0, 2.0)
    };
    let mut progress = RecordedProgress::default();
    let error = strict
        .run(directory.path(), &RunContext::default(), &mut progress)
        .expect_err("a capacity of the client's");
    assert!(matches!(error, ProfileError::ClientBound(_)), "{error}");
    assert!(error.to_string().contains("--capacity"), "{error}");
    assert_eq!(progress.runs.len(), 1, "{:?}", progress.runs);
}

#[test]
fn search_continues_from_its_runs_when_interrupted() {
    let directory = tempfile::tempdir().expect("a directory");
    // The second rate cannot be tried while a file is absent.
    let go = tempfile::tempdir().expect("a directory");
    let command = format!(
        "test $HEADWAY_POINT != points/client-2 || test -e {}/go",
        go.path().display()
    );
    let server = server();
    let settings = ProfileSettings {
        before_point: Some(command),
        ..settings(&server, 0.0, 2.0)
    };
    let mut progress = RecordedProgress::default();
    let error = settings
        .run(directory.path(), &RunContext::default(), &mut progress)
        .expect_err("a command fails");
    assert!(matches!(error, ProfileError::Command(_)), "{error}");
    let first = Run::open(directory.path().join("points/client-1")).expect("the first rate");
    let begun = first.description().started.clone();

    std::fs::write(go.path().join("go"), "").expect("room");
    let (description, progress) = profile(&settings, directory.path());
    assert!(
        progress.runs[0].contains("what the client can offer"),
        "{:?}",
        progress.runs
    );
    let tried = info(&description)
        .points
        .iter()
        .filter(|point| point.of_client);
    let names: Vec<String> = tried.map(|point| point.directory.clone()).collect();
    let expected: Vec<String> = (1..=names.len())
        .map(|n| format!("points/client-{n}"))
        .collect();
    assert_eq!(names, expected);
    let first = Run::open(directory.path().join("points/client-1")).expect("the first rate");
    assert_eq!(
        first.description().started,
        begun,
        "it was not measured again"
    );
}

/// A server of one queue, which needs this time for each request.
fn queue(service: Duration) -> Server {
    let turn = std::sync::Mutex::new(());
    Server::start(move |_| {
        let _turn = turn.lock().expect("no panic");
        std::thread::sleep(service);
        send(response("hello"))
    })
}

fn knee_settings(server: &Server, mean: Duration) -> ProfileSettings {
    let mut settings = settings(server, 1.1, 2.0);
    settings.session.duration = Some(Duration::from_millis(400));
    settings.knee = Some(Knee {
        mean,
        start_rps: 20.0,
    });
    settings
}

#[test]
fn knee_is_the_highest_rate_answered_in_time_and_needs_no_closed_loop() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = queue(Duration::from_millis(5));
    let mean = Duration::from_millis(100);
    let settings = knee_settings(&server, mean);
    let (description, progress) = profile(&settings, directory.path());
    let info = info(&description);
    let knee = info.capacity_rps.expect("a knee");
    // What the directories say of the rates that were tried.
    let tried: Vec<&Point> = info.points.iter().filter(|point| point.of_knee).collect();
    let is_met = |point: &&&Point| {
        let run = Run::open(directory.path().join(&point.directory)).expect("a run");
        let summary = run.description().summary.clone().expect("figures");
        let (offered, answered) = (point.rate_rps * 0.4, summary.rate_rps * summary.duration_s);
        let is_answered = answered >= 0.97 * offered - 3.0 * offered.sqrt();
        is_answered && summary.mean_us.is_some_and(|us| us <= 100_000.0)
    };
    let met = tried.iter().filter(is_met).map(|point| point.rate_rps);
    let missed = tried
        .iter()
        .filter(|point| !is_met(point))
        .map(|point| point.rate_rps);
    assert_eq!(met.reduce(f64::max), Some(knee), "{tried:?}");
    let above = missed.fold(f64::INFINITY, f64::min);
    assert!(knee < above && above <= 1.05 * knee, "{knee} {above}");
    assert!(
        tried
            .iter()
            .all(|point| point.relative == 0.0 && point.done)
    );
    // No closed loop, and the loads are shares of the knee.
    assert_eq!(info.points.len(), tried.len() + 1);
    assert_eq!(info.points.last().expect("a load").rate_rps, 0.5 * knee);
    assert!(
        progress.remarks[0].contains("the knee"),
        "{:?}",
        progress.remarks
    );
    let run = Run::open(directory.path()).expect("a profile");
    let table = render(&run).expect("a table");
    assert!(!table.contains("closed"), "{table}");
}

#[test]
fn profile_is_an_error_when_no_rate_is_answered_in_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = queue(Duration::from_millis(2));
    let mut settings = knee_settings(&server, Duration::from_micros(1));
    settings.session.duration = Some(Duration::from_millis(50));
    let run = |settings: &ProfileSettings| {
        settings
            .run(
                directory.path(),
                &RunContext::default(),
                &mut RecordedProgress::default(),
            )
            .expect_err("no knee")
    };
    let error = run(&settings);
    assert!(matches!(error, ProfileError::NoKnee { .. }), "{error}");
    settings.capacity_rps = Some(10.0);
    assert!(run(&settings).is_use());
}
