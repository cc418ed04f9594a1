//! The structure of the page: its sections for each kind of run, the messages about missing data,
//! and the escaping of text from outside. `HEADWAY_UPDATE_GOLDEN=1` rewrites the outlines.

use crate::support;
use headway_latency::row::Outcome;
use headway_latency::run::{
    ClientBound, Kind, LoadInfo, Mode, ProfileInfo, RunDescription, Summary, Verdict, Window,
};
use headway_report::Report;
use std::fs;
use std::path::{Path, PathBuf};
use support::outline::{assert_nested, assert_outline};
use support::{Behaviour, Example, write_description, write_rows};
use tempfile::TempDir;

/// Runs of a test, in a directory that goes with it.
struct Runs {
    scratch: TempDir,
    paths: Vec<PathBuf>,
}

impl Runs {
    fn new() -> Runs {
        Runs {
            scratch: tempfile::tempdir().expect("a directory for the test"),
            paths: Vec::new(),
        }
    }

    /// The next run's directory, in which `write` writes.
    fn with(mut self, name: &str, write: impl FnOnce(&Path)) -> Runs {
        let path = self.scratch.path().join(name);
        write(&path);
        self.paths.push(path);
        self
    }

    fn html(&self) -> String {
        let html = Report::read(&self.paths)
            .expect("run directories that can be opened")
            .html();
        assert_nested(&html);
        html
    }
}

fn example(label: &str, behaviour: Behaviour) -> Example {
    Example::new(label, behaviour, 900.0).seconds(4.0)
}

fn three_profiles() -> Runs {
    let loads = [0.2, 0.6, 0.95];
    Runs::new()
        .with("a", |path| {
            example("steady", Behaviour::Steady).write_profile(path, &loads, 1)
        })
        .with("b", |path| {
            example("blocking", Behaviour::Blocking).write_profile(path, &loads, 2)
        })
        .with("c", |path| {
            example("stalling", Behaviour::Stalling)
                .seconds(12.0)
                .write_profile(path, &loads, 1)
        })
}

#[test]
fn every_figure_is_there_when_profiles_are_compared() {
    let html = three_profiles().html();
    assert_outline("three-profiles", &html);
    assert!(html.len() < 1_000_000, "{} bytes", html.len());
    assert!(
        !html.contains("NaN") && !html.contains("inf "),
        "a number that is none"
    );
}

#[test]
fn page_fits_one_run_when_it_is_no_profile() {
    let runs = Runs::new().with("one", |path| {
        example("alone", Behaviour::Steady).write_load(path, 400.0)
    });
    assert_outline("one-run", &runs.html());
}

#[test]
fn nothing_is_loaded_and_nothing_runs_when_the_page_is_opened() {
    let html = three_profiles().html();
    for refused in [
        "<script",
        "<link",
        "<img",
        "<iframe",
        "<object",
        "@import",
        "url(",
        "src=",
        " onload",
        "javascript:",
    ] {
        assert!(!html.contains(refused), "{refused}");
    }
    assert!(
        html.split("href=\"")
            .skip(1)
            .all(|rest| rest.starts_with('#'))
    );
    assert!(html.contains("http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'"));
}

#[test]
fn every_anchor_of_the_contents_exists() {
    let html = three_profiles().html();
    let anchors: Vec<&str> = html
        .split("href=\"#")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    assert!(anchors.len() >= 8, "{anchors:?}");
    for anchor in anchors {
        assert!(
            html.contains(&format!("<section id=\"{anchor}\"")),
            "{anchor}"
        );
    }
}

#[test]
fn every_drawing_has_a_name_a_description_and_numbers_for_screen_readers() {
    let html = three_profiles().html();
    for svg in html.split("<svg ").skip(1) {
        let svg = svg.split("</svg>").next().expect("a part before");
        let hidden = svg.contains("aria-hidden=\"true\"");
        let named = svg.contains("role=\"img\" aria-label=\"")
            && svg.contains("<title>")
            && svg.contains("<desc>");
        assert!(hidden || named, "{svg}");
        assert!(
            !svg.contains("aria-label=\"\"") && !svg.contains("<desc></desc>"),
            "{svg}"
        );
    }
    let with_numbers = html.matches("<summary>The numbers</summary>").count();
    assert!(with_numbers >= 7, "{with_numbers}");
}

#[test]
fn hostile_text_is_escaped() {
    let evil = "</title></svg><script>alert(1)</script><img src=x onerror=y>\"'&\u{202e}";
    let mut hostile = example(evil, Behaviour::Steady).verdict(Verdict::Suspect, evil);
    hostile.seconds = 3.0;
    let runs = Runs::new().with("evil", |path| {
        let mut description = hostile.description(300.0);
        description.command = vec![evil.into()];
        description.targets = vec![evil.into()];
        description.started = evil.into();
        description.server = Some(headway_latency::run::ServerInfo {
            field: evil.into(),
            ..Default::default()
        });
        description.environment.host = evil.into();
        description
            .environment
            .extra
            .insert(evil.into(), evil.into());
        description
            .fileset
            .as_mut()
            .expect("an example has a set")
            .profile = evil.into();
        write_rows(path, &description, &hostile.rows(300.0));
    });
    let html = runs.html();
    assert!(!html.contains("<script") && !html.contains("<img") && !html.contains('\u{202e}'));
    assert!(html.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
}

#[test]
fn page_stays_small_when_every_text_of_a_run_is_long() {
    let huge = "x&".repeat(500_000);
    let runs = ["one", "two"].into_iter().fold(Runs::new(), |runs, name| {
        runs.with(name, |path| {
            example("huge", Behaviour::Steady).write_profile(path, &[0.2, 0.95], 1);
            let point = path.join("points/0.95-1");
            for directory in [path, point.as_path()] {
                let mut description = headway_latency::Run::open(directory)
                    .expect("a run")
                    .description()
                    .clone();
                description.label = Some(huge.clone());
                description.started = huge.clone();
                description.command = vec![huge.clone(); 20];
                description.targets = vec![huge.clone(); 20];
                description.environment.host = huge.clone();
                description.environment.extra = (0..200)
                    .map(|n| (format!("{n}{huge}"), huge.clone()))
                    .take(3)
                    .collect();
                let server = description.server.get_or_insert_default();
                server.field = huge.clone();
                server.name = Some(huge.clone());
                let set = description.fileset.get_or_insert_default();
                set.path = huge.clone();
                set.profile = huge.clone();
                let client = description.client.get_or_insert_default();
                client.verdict = Verdict::Suspect;
                client.reasons = vec![huge.clone(); 3];
                if let Some(profile) = &mut description.profile {
                    for repeat in 0..500 {
                        let mut point = profile.points[0].clone();
                        point.done = false;
                        point.repeat = repeat;
                        profile.points.push(point);
                    }
                    profile.points.push(headway_latency::run::Point {
                        directory: format!("../{huge}"),
                        ..profile.points[0].clone()
                    });
                }
                write_description(directory, &description);
            }
        })
    });
    let html = runs.html();
    assert!(html.len() < 1_500_000, "{} bytes", html.len());
    assert!(
        html.contains("… and 451 more"),
        "missing points are counted"
    );
}

#[test]
fn no_warning_is_shown_when_all_runs_are_valid() {
    let html = three_profiles().html();
    assert!(!html.contains("class=\"alarm"));
    assert_eq!(html.matches("<span class=\"word\">valid</span>").count(), 3);
}

#[test]
fn warning_names_run_and_reason_when_a_client_was_the_bottleneck() {
    let suspect = example("slow client", Behaviour::Steady)
        .verdict(Verdict::Suspect, "The client's loop was 97 % busy.");
    let invalid = example("no ports", Behaviour::Steady)
        .verdict(Verdict::Invalid, "The client ran out of local ports.");
    let html = Runs::new()
        .with("a", |path| suspect.write_load(path, 200.0))
        .with("b", |path| invalid.write_load(path, 200.0))
        .html();
    assert!(html.contains("class=\"alarm invalid\" role=\"alert\""));
    assert!(html.contains("no ports is invalid. slow client is suspect."));
    assert!(html.contains("The client ran out of local ports.") && html.contains("97 % busy"));
    assert!(html.find("class=\"alarm").unwrap() < html.find("Headline figures</h2>").unwrap());
}

#[test]
fn page_says_incomplete_when_the_run_was_killed() {
    let mut killed = example("killed", Behaviour::Steady);
    killed.complete = false;
    let html = Runs::new()
        .with("killed", |path| killed.write_load(path, 300.0))
        .html();
    assert!(html.contains("class=\"alarm suspect\"") && html.contains("killed is incomplete."));
    assert!(html.contains("The run was stopped before its end."));
    assert!(
        html.contains("id=\"figure-cdf\""),
        "what was measured is shown"
    );
}

#[test]
fn run_without_request_rows_stays_on_the_page() {
    let runs = Runs::new()
        .with("whole", |path| {
            example("whole", Behaviour::Steady).write_load(path, 300.0)
        })
        .with("gone", |path| {
            let mut description = example("gone", Behaviour::Steady).description(300.0);
            description.summary = Some(Summary {
                requests: 4321,
                p99_us: Some(1234.0),
                ..Summary::default()
            });
            write_description(path, &description);
        });
    let html = runs.html();
    assert!(html.contains("gone is unreadable."), "{html}");
    assert!(
        html.contains("4,321") && html.contains("1.23\u{202f}ms"),
        "the summary stands for the rows"
    );
    assert!(html.contains("id=\"figure-cdf\""));
}

#[test]
fn page_says_so_when_every_request_failed() {
    let html = Runs::new()
        .with("refused", |path| {
            example("down", Behaviour::Refusing).write_load(path, 300.0)
        })
        .html();
    assert!(html.contains("<td class=\"warning\">100\u{202f}%"));
    assert!(html.contains(Outcome::Refused.name()));
    assert!(
        !html.contains("id=\"figure-deciles\""),
        "there is no complete response to order"
    );
}

#[test]
fn page_is_valid_with_one_request_or_none() {
    let one = example("one", Behaviour::Steady);
    for count in [0, 1, 2] {
        let html = Runs::new()
            .with("few", |path| {
                let rows = one.rows(300.0);
                let measured: Vec<_> = rows
                    .into_iter()
                    .filter(|row| !row.warmup)
                    .take(count)
                    .collect();
                write_rows(path, &one.description(300.0), &measured);
            })
            .html();
        assert!(
            html.contains("<h2>Headline figures</h2>") && html.contains("<h2>Environment"),
            "{count}"
        );
        assert!(!html.contains("NaN"), "{count}");
        assert_eq!(html.contains("id=\"figure-cdf\""), count > 0);
    }
}

#[test]
fn page_is_valid_when_run_json_is_nearly_empty() {
    let html = Runs::new()
        .with("bare", |path| {
            write_rows(
                path,
                &RunDescription {
                    complete: true,
                    ..RunDescription::default()
                },
                &[],
            )
        })
        .html();
    assert!(
        html.contains("<h1>bare</h1>"),
        "the directory names the run"
    );
    assert!(html.contains("not judged"));
}

#[test]
fn page_lists_missing_points_of_an_interrupted_profile() {
    let runs = Runs::new().with("half", |path| {
        example("half", Behaviour::Steady).write_profile(path, &[0.2, 0.6, 0.95], 1);
        let mut description = headway_latency::Run::open(path)
            .expect("a profile")
            .description()
            .clone();
        description.complete = false;
        let points = &mut description.profile.as_mut().expect("points").points;
        points[2].done = false;
        points[1].directory = "../elsewhere".into();
        write_description(path, &description);
    });
    let html = runs.html();
    assert!(html.contains("Load 0.95, repetition 1: not measured."));
    assert!(html.contains("is not below the profile"));
    assert!(html.contains("profile, 1 of 3 measurements") && html.contains("half is incomplete."));
}

#[test]
fn page_shows_no_capacity_when_the_rate_was_given() {
    let runs = Runs::new()
        .with("found", |path| {
            example("found", Behaviour::Steady).write_profile(path, &[0.2, 0.95], 1);
            let mut description = headway_latency::Run::open(path)
                .expect("a profile")
                .description()
                .clone();
            // A closed loop among the points is where a capacity comes from.
            let profile = description.profile.as_mut().expect("points");
            profile.points.push(headway_latency::run::Point::default());
            write_description(path, &description);
        })
        .with("given", |path| {
            example("given", Behaviour::Steady).write_profile(path, &[0.2, 0.95], 1);
        });
    let html = runs.html();
    for expected in [
        "1.0 = 900/s, given",
        "The rate of load 1 was given for given, not measured",
        "900<br><small>given, not measured</small>",
    ] {
        assert!(html.contains(expected), "{expected}");
    }
    assert!(!html.contains("capacity of that server"));
}

#[test]
fn page_names_the_client_when_it_was_the_bottleneck() {
    let runs = Runs::new()
        .with("own", |path| {
            example("own", Behaviour::Steady).write_profile(path, &[0.2, 0.95], 1);
        })
        .with("quick", |path| {
            example("quick", Behaviour::Steady).write_profile(path, &[0.2, 0.95], 1);
            let mut description = headway_latency::Run::open(path)
                .expect("a profile")
                .description()
                .clone();
            let profile = description.profile.as_mut().expect("points");
            profile.client_bound = Some(ClientBound {
                closed_rps: 990.0,
                busy_share: 0.974,
                waited_share: 0.0,
                valid_rps: profile.capacity_rps,
            });
            write_description(path, &description);
        });
    let html = runs.html();
    for expected in [
        "Capacity is at least 990/s: the client is the bottleneck (busy 97.4\u{202f}% of the closed loop). Loads are shares of 900/s",
        "≥ 990<br><small>the client is the bottleneck; load 1 is 900/s</small>",
        "1.0 = 900/s, the client&#39;s limit",
        "The client was the bottleneck for quick: load 1 is the rate that the client can offer",
    ] {
        assert!(html.contains(expected), "{expected}");
    }
    assert!(!html.contains("of own, quick") && !html.contains("class=\"alarm"));
}

#[test]
fn profile_without_a_point_is_reported_when_nothing_was_measured() {
    let empty = RunDescription {
        kind: Kind::Profile,
        complete: true,
        label: Some("empty".into()),
        profile: Some(ProfileInfo::default()),
        ..RunDescription::default()
    };
    let html = Runs::new()
        .with("empty", |path| write_description(path, &empty))
        .html();
    assert!(html.contains("No measurement of this profile can be read."));
}

#[test]
fn runs_of_one_label_get_different_names_and_one_curve_when_their_rates_differ() {
    let one = example("nginx", Behaviour::Blocking);
    let html = Runs::new()
        .with("a", |path| one.write_load(path, 200.0))
        .with("b", |path| one.write_load(path, 400.0))
        .with("c", |path| one.write_load(path, 400.0))
        .html();
    for name in ["nginx at 200/s", "nginx at 400/s", "nginx at 400/s #2"] {
        assert!(html.contains(&format!("<h3>{name}</h3>")), "{name}");
    }
    assert!(html.contains("id=\"figure-overload\""));
}

#[test]
fn closed_loop_is_reported_without_an_offered_rate_when_there_was_none() {
    let one = example("closed", Behaviour::Steady);
    let html = Runs::new()
        .with("closed", |path| {
            let mut description = one.description(0.0);
            description.load = LoadInfo {
                mode: Mode::Closed,
                connections: Some(64),
                ..LoadInfo::default()
            };
            write_rows(path, &description, &one.rows(300.0));
        })
        .html();
    assert!(html.contains("closed, 64 connections") && html.contains("as answered"));
    assert!(
        !html.contains("id=\"figure-apart\""),
        "a closed loop has no intended start of its own"
    );
}

#[test]
fn path_is_an_error_when_it_is_not_a_run() {
    let scratch = tempfile::tempdir().expect("a directory");
    let error = Report::read(&[scratch.path().into()])
        .err()
        .expect("no run is there");
    assert!(error.to_string().contains("not a run directory"), "{error}");
}

#[test]
fn blocked_calls_are_shown_beside_slow_requests() {
    let runs = Runs::new().with("run", |directory| {
        let example = example("traced", Behaviour::Blocking);
        example.write_load(directory, 200.0);
        let description = example.description(200.0);
        let rows = example.rows(200.0);
        let slowest = rows.iter().filter(|row| !row.warmup).max_by_key(|row| row.response_ns());
        let slowest = slowest.expect("a request");
        // The trace has a clock of its own; only the wall clock is common.
        let kept = serde_json::json!({
            "thread": 1, "call": "<read>", "location": 0, "start_ns": 5_000 + slowest.intended_ns, "wall_ns": slowest.response_ns(),
            "sleeps": [{ "label": "page-io", "total_ns": slowest.response_ns() }],
        });
        let trace = serde_json::json!({
            "schema": 1, "started_ns": 5_000, "started_unix_ns": description.epoch_unix_ns, "kept": [kept],
            "locations": [{ "module": "/sbin/server", "offset": 64, "function": "serve_file", "file": null, "line": null }],
        });
        fs::write(directory.join("trace.json"), trace.to_string()).expect("written");
    });
    let html = runs.html();
    let (_, section) = html
        .split_once("<section id=\"blocked\">")
        .expect("the section");
    let (section, _) = section.split_once("</section>").expect("its end");
    assert!(
        html.contains("<section id=\"breakdown\">")
            && html.contains("tenth 10, own wait for the file system")
    );
    for text in [
        "1 blocked call in the trace",
        "page-io",
        "&lt;read&gt;",
        "serve_file (server)",
    ] {
        assert!(section.contains(text), "{text}: {section}");
    }
    let untraced = Runs::new().with("run", |directory| {
        example("plain", Behaviour::Blocking).write_load(directory, 200.0);
    });
    assert!(!untraced.html().contains("id=\"blocked\""));
}

#[test]
fn chart_over_time_is_drawn_when_a_request_was_due_long_after_the_run() {
    let one = example("one", Behaviour::Steady);
    let mut rows = one.rows(300.0);
    let last = rows.last_mut().expect("requests");
    last.intended_ns = u64::MAX;
    last.warmup = false;
    let mut description = one.description(300.0);
    description.load.measured = Some(Window {
        start_ns: 0,
        end_ns: 30_000_000_000,
    });
    let runs = Runs::new().with("far", |path| write_rows(path, &description, &rows));
    let report = Report::read(&runs.paths).expect("a run");
    let svg = report.over_time_svg(None).expect("its requests");
    assert!(svg.trim_end().ends_with("</svg>"));
}
