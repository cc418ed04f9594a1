//! `headway-lab study` from end to end, without root: a tiny study of our own server on this machine as
//! it is.

use crate::common;
use common::headway_lab;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const COMMON: &str = r#"
[scale.quick]
repeats = 1
seconds = 0.3
[scale.full]
repeats = 2
seconds = 0.3
[environment.plain]
lab = false
set = "5MB"
[workload.few]
connections = 4
[workload.impatient]
connections = 4
bandwidth = "100kbit"
timeout = "20ms"
"#;

const STUDY: &str = r#"
number = 90
name = "tiny"
title = "A tiny study"
[[measure]]
name = "m"
environment = "plain"
workload = "few"
servers = ["headway", "haboob"]
points = ["200/s", "20%"]
[[table]]
title = "Rates"
draw = "dots"
columns = ["offered", "answered"]
[[table.paper]]
row = "a paper"
cells = [100, "–"]
[[table.ours]]
row = "{server}"
each = ["all"]
cells = ["offered_rps(m, {server}, 200/s)", "rate_rps(m, {server}, 200/s)"]
[[claim]]
text = "It answers"
rule = "rate_rps(m, headway, 200/s) > 20 and ready_mean(m, headway, 200/s) >= 1"
[[claim]]
text = "It answers more than it can"
rule = "rate_rps(m, headway, 20%) > 1.1 * rate_rps(m, headway, capacity)"
[[claim]]
text = "Haboob answers"
rule = "rate_rps(m, haboob, 200/s) > 0"
"#;

struct Bed(tempfile::TempDir);

impl Bed {
    fn new() -> Bed {
        let bed = Bed(tempfile::tempdir().expect("a directory"));
        fs::write(bed.path("common.toml"), COMMON).expect("room");
        fs::write(bed.path("tiny.toml"), STUDY).expect("room");
        bed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = headway_lab();
        command
            .arg("study")
            .args(arguments)
            .current_dir(self.0.path())
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("headway starts")
    }

    fn result(&self, name: &str) -> Value {
        let text = fs::read_to_string(self.path("out").join(name)).expect(name);
        serde_json::from_str(&text).expect("JSON")
    }

    /// Processes of the run that is at work, or was killed: those that live, with their words.
    fn noted(&self) -> Vec<(String, String)> {
        let text = fs::read_to_string(self.path("out/running.json")).unwrap_or_default();
        let journal: Value = serde_json::from_str(&text).unwrap_or_default();
        let processes = journal["processes"].as_array().cloned().unwrap_or_default();
        let lines = processes.iter().map(|process| {
            let pid = process["pid"].to_string();
            let line = command_line(&pid);
            (pid, line)
        });
        lines.filter(|(_, line)| !line.is_empty()).collect()
    }

    /// Keys of the measurements that are done, with the moments of their records.
    fn done(&self) -> Vec<(PathBuf, std::time::SystemTime)> {
        let entries = fs::read_dir(self.path("out/measurements"))
            .into_iter()
            .flatten()
            .flatten();
        let records = entries.map(|entry| entry.path().join("measurement.json"));
        let mut done: Vec<_> = records
            .filter(|path| {
                fs::read_to_string(path).is_ok_and(|text| text.contains("\"failed\": null"))
            })
            .filter_map(|path| Some((path.clone(), fs::metadata(&path).ok()?.modified().ok()?)))
            .collect();
        done.sort();
        done
    }
}

fn utf8(of: &[u8]) -> String {
    String::from_utf8_lossy(of).into_owned()
}

fn outcomes(result: &Value) -> Vec<&str> {
    let claims = result["claims"].as_array().expect("claims");
    claims
        .iter()
        .filter_map(|claim| claim["outcome"].as_str())
        .collect()
}

#[test]
fn study_run_prints_tables_and_claims() {
    let bed = Bed::new();
    let ran = bed.run(&["run", "tiny.toml", "-o", "out"]);
    let (out, said) = (utf8(&ran.stdout), utf8(&ran.stderr));
    assert!(ran.status.success(), "{said}");
    assert!(
        out.contains("paper: a paper") && out.contains("here: Headway"),
        "{out}"
    );
    // A server that cannot run keeps its row, with the reason.
    assert!(
        out.contains("here: Haboob") && out.contains("2001"),
        "{out}"
    );
    let result = bed.result("tiny.json");
    assert_eq!(result["format"]["name"], "headway-study");
    // A client that was disturbed decides nothing, and says so; it never decides the contrary.
    let outcomes = outcomes(&result);
    assert!(
        ["confirmed", "inconclusive"].contains(&outcomes[0]),
        "{result:#}"
    );
    assert!(
        ["not-confirmed", "inconclusive"].contains(&outcomes[1]),
        "{result:#}"
    );
    assert_eq!(outcomes[2], "untestable");
    let cell = &result["tables"][0]["ours"][0]["cells"][1];
    assert!(
        cell["value"].as_f64().is_some_and(|rate| rate > 20.0),
        "{cell}"
    );
    assert_eq!(bed.done().len(), 3, "capacity and two points");

    let shown = bed.run(&["show", "out", "tiny"]);
    assert_eq!(utf8(&shown.stdout), out);
    assert!(bed.run(&["report", "out"]).status.success());
    let page = fs::read_to_string(bed.path("out/tiny.html")).expect("a page");
    assert!(page.contains("A tiny study"));
    assert!(
        bed.run(&["report", "out", "--table", "90.1", "--svg", "rates.svg"])
            .status
            .success()
    );
    let picture = fs::read_to_string(bed.path("rates.svg")).expect("a picture");
    assert!(
        picture.starts_with("<svg xmlns=") && picture.contains(">Headway</text>"),
        "{picture}"
    );
    let absent = bed.run(&["report", "out", "--table", "90.2", "--svg", "-"]);
    assert_eq!(absent.status.code(), Some(1));
    assert!(
        utf8(&absent.stderr).contains("study 90 has 1 table"),
        "{}",
        utf8(&absent.stderr)
    );
    let wrong = bed.run(&["report", "out", "--table", "90", "--svg", "-"]);
    assert_eq!(wrong.status.code(), Some(2));
    let kept = bed.run(&["summary", "out", "kept"]);
    assert!(kept.status.success(), "{}", utf8(&kept.stderr));
    for name in ["tiny.json", "tiny.txt", "tiny.html", "measurements.jsonl"] {
        assert!(bed.path("kept").join(name).exists(), "{name}");
    }
    assert_eq!(bed.run(&["summary", "out", "kept"]).status.code(), Some(1));
}

#[test]
fn interrupted_study_keeps_its_measurements_when_resumed() {
    let bed = Bed::new();
    let mut child = bed
        .command(&["run", "tiny.toml", "-o", "out", "--quiet"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("headway starts");
    let begun = Instant::now();
    while bed.done().is_empty() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
    // SIGTERM stands for Ctrl-C.
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .arg(&pid)
            .status()
            .expect("kill")
            .success()
    );
    let status = child.wait().expect("an end");
    let first = bed.done();
    assert!(!first.is_empty());
    if first.len() < 3 {
        assert_eq!(status.code(), Some(1));
    }
    assert!(
        ours(&bed.path("out")).is_empty(),
        "a process of the run is left"
    );

    let ran = bed.run(&["run", "tiny.toml", "-o", "out"]);
    let said = utf8(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    assert!(
        said.contains(&format!("continuing: {} of", first.len())),
        "{said}"
    );
    let second = bed.done();
    assert_eq!(second.len(), 3);
    assert!(
        first.iter().all(|kept| second.contains(kept)),
        "{first:?} {second:?}"
    );
}

#[test]
fn points_are_measured_as_often_as_repeats_says() {
    let bed = Bed::new();
    let plan = |more: &[&str]| {
        let line = [&["run", "tiny.toml", "--plan"][..], more].concat();
        utf8(&bed.run(&line).stdout)
    };
    // Two points and a capacity of two servers, in each repeat.
    for (more, count) in [
        (&["--scale", "full"][..], "12 measurements"),
        (&["--scale", "full", "--repeats", "1"], "6 measurements"),
        (&["--repeats", "3"], "18 measurements"),
    ] {
        let text = plan(more);
        assert!(text.starts_with(count), "{more:?} {text}");
    }
    let run = |repeats: &str| {
        let ran = bed.run(&["run", "tiny.toml", "-o", "out", "--repeats", repeats]);
        let said = utf8(&ran.stderr);
        assert!(ran.status.success(), "{said}");
        said
    };
    run("1");
    let first = bed.done();
    assert_eq!(first.len(), 3);
    // More of them, later, leave what is measured as it is.
    let said = run("2");
    assert!(said.contains("continuing: 3 of 12"), "{said}");
    let second = bed.done();
    assert_eq!(second.len(), 6);
    assert!(
        first.iter().all(|kept| second.contains(kept)),
        "{first:?} {second:?}"
    );
}

#[test]
fn study_run_is_an_error_when_another_build_has_measured_there() {
    let bed = Bed::new();
    let ran = bed.run(&["run", "tiny.toml", "-o", "out"]);
    assert!(ran.status.success(), "{}", utf8(&ran.stderr));
    let done = bed.done();
    let (record, _) = &done[0];
    let text = fs::read_to_string(record).expect("a record");
    let mut value: Value = serde_json::from_str(&text).expect("JSON");
    let build = value["build"].as_str().expect("a build").to_owned();
    assert!(build.contains('+'), "version and checksum: {build}");

    for (there, named) in [
        (
            json!("0.1.0+0123456789abcdef"),
            "headway 0.1.0+0123456789abcdef",
        ),
        (Value::Null, "not noted"),
    ] {
        value["build"] = there;
        fs::write(record, value.to_string()).expect("room");
        let refused = bed.run(&["run", "tiny.toml", "-o", "out"]);
        let said = utf8(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        for expected in [named, build.as_str(), "--other-build"] {
            assert!(said.contains(expected), "{expected}: {said}");
        }
    }

    for (there, named) in [
        (json!("0.1.0+0123456789abcdef"), "0123456789abcdef"),
        (Value::Null, "not noted"),
    ] {
        value["build"] = there;
        fs::write(record, value.to_string()).expect("room");
        let ran = bed.run(&["run", "tiny.toml", "-o", "out", "--other-build"]);
        assert!(ran.status.success(), "{}", utf8(&ran.stderr));
        let notes = bed.result("tiny.json")["notes"].to_string();
        assert!(
            notes.contains("2 builds") && notes.contains(named),
            "{named}: {notes}"
        );
    }
}

#[test]
fn claim_is_decided_again_when_another_build_has_measured_everything() {
    let bed = Bed::new();
    let of_headway = STUDY.replace(
        "servers = [\"headway\", \"haboob\"]",
        "servers = [\"headway\"]",
    );
    let (studied, _) = of_headway.split_once("[[claim]]").expect("claims");
    let claimed = |rule: &str| format!("{studied}[[claim]]\ntext = \"c\"\nrule = \"{rule}\"\n");
    fs::write(
        bed.path("tiny.toml"),
        claimed("rate_rps(m, headway, 200/s) > 20"),
    )
    .expect("room");
    assert!(bed.run(&["run", "tiny.toml", "-o", "out"]).status.success());
    for (record, _) in bed.done() {
        let text = fs::read_to_string(&record).expect("a record");
        let mut value: Value = serde_json::from_str(&text).expect("JSON");
        value["build"] = json!("0.1.0+0123456789abcdef");
        fs::write(&record, value.to_string()).expect("room");
    }
    fs::write(
        bed.path("tiny.toml"),
        claimed("rate_rps(m, headway, 200/s) > 100000"),
    )
    .expect("room");
    let again = bed.run(&["run", "tiny.toml", "-o", "out"]);
    assert!(again.status.success(), "{}", utf8(&again.stderr));
    let said = utf8(&again.stdout);
    // One repeat decides nothing, but the rule is the new one.
    assert!(said.contains("100000") && !said.contains("> 20"), "{said}");
}

#[test]
fn server_is_restarted_after_it_failed_its_clients() {
    for (workload, anew) in [("few", false), ("impatient", true)] {
        let bed = Bed::new();
        let study = format!(
            "number = 91\nname = 'two'\ntitle = 'Two points'\n[[measure]]\nname = 'm'\nenvironment = 'plain'\n\
             workload = '{workload}'\nservers = ['headway']\npoints = ['100/s', '120/s']\n"
        );
        fs::write(bed.path("two.toml"), study).expect("room");
        let ran = bed.run(&["run", "two.toml", "-o", "out"]);
        assert!(ran.status.success(), "{}", utf8(&ran.stderr));
        let mut done = bed.done();
        done.sort_by_key(|(_, at)| *at);
        assert_eq!(done.len(), 2);
        // The server says how long it has been there, before and after each point.
        let lives = |at: usize, when: &str| {
            let status = done[at].0.with_file_name("run/server.json");
            let text = fs::read_to_string(&status).expect("counters of our server");
            let status: Value = serde_json::from_str(&text).expect("JSON");
            status[when]["total"]["uptime_ms"].as_u64().expect("a time")
        };
        assert_eq!(lives(1, "before") < lives(0, "after"), anew, "{workload}");
    }
}

#[test]
fn points_with_less_load_are_measured_first() {
    let bed = Bed::new();
    let study = "number = 91\nname = 'two'\ntitle = 'Two points'\n[[measure]]\nname = 'm'\nenvironment = 'plain'\n\
                 workload = 'few'\nservers = ['headway']\npoints = ['130/s', '90/s']\n";
    fs::write(bed.path("two.toml"), study).expect("room");
    let ran = bed.run(&["run", "two.toml", "-o", "out"]);
    let said = utf8(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    let at = |point: &str| said.find(point).expect("a line for each point");
    assert!(at("headway 90/s") < at("headway 130/s"), "{said}");
}

#[test]
fn knee_is_searched_once_and_points_are_shares_of_it() {
    let bed = Bed::new();
    let study = "number = 92\nname = 'knees'\ntitle = 'Knees'\n[[measure]]\nname = 'm'\nenvironment = 'plain'\n\
                 workload = 'few'\nservers = ['headway']\npoints = ['knee', '50% of worst knee']\nknee-mean = '20ms'\n\
                 [[table]]\ntitle = 'Knees'\ncolumns = ['knee', 'half']\n[[table.ours]]\nrow = '{server}'\neach = ['all']\n\
                 cells = ['offered_rps(m, {server}, knee)', 'offered_rps(m, {server}, 50% of worst knee)']\n";
    fs::write(bed.path("knees.toml"), study).expect("room");
    let run = || {
        let ran = bed.run(&["run", "knees.toml", "-o", "out"]);
        let said = utf8(&ran.stderr);
        assert!(ran.status.success(), "{said}");
        said
    };
    run();
    let knee = |bed: &Bed| {
        let mut records = bed.done().into_iter().map(|(path, _)| {
            let text = fs::read_to_string(&path).expect("a record");
            let value: Value = serde_json::from_str(&text).expect("JSON");
            (path, value)
        });
        records
            .find(|(_, record)| record["spec"]["point"]["knee"]["mean_ms"] == 20.0)
            .expect("the search")
    };
    let (record, found) = knee(&bed);
    let rate = found["rate_rps"].as_f64().expect("a rate");
    let result = bed.result("knees.json");
    let cells = &result["tables"][0]["ours"][0]["cells"];
    // Arrivals are drawn by chance: some more or less than the rate.
    for (at, expected) in [(0, rate), (1, rate / 2.0)] {
        let offered = cells[at]["value"].as_f64().expect("measured");
        let chance = 6.0 * (expected * 0.3).sqrt() / 0.3;
        assert!(
            (offered - expected).abs() <= chance,
            "{offered} of {expected}"
        );
    }
    let notes = result["notes"].to_string();
    assert!(
        notes.contains("mean at most 20") && notes.contains("Headway "),
        "{notes}"
    );
    // A search that was interrupted takes its probes as they are.
    let before = bed.done();
    fs::remove_file(&record).expect("it is there");
    let said = run();
    assert!(said.contains("headway knee: "), "{said}");
    assert_eq!(knee(&bed).1["rate_rps"], found["rate_rps"]);
    let kept = |done: &[(PathBuf, std::time::SystemTime)]| {
        let others = done.iter().filter(|(path, _)| *path != record);
        others.cloned().collect::<Vec<_>>()
    };
    assert_eq!(kept(&bed.done()), kept(&before));
}

#[test]
fn leftovers_of_a_killed_run_are_removed_when_it_is_resumed() {
    let bed = Bed::new();
    let run_arguments = ["run", "tiny.toml", "-o", "out"];
    let mut command = bed.command(&run_arguments);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = child.expect("headway starts");
    let begun = Instant::now();
    // A server runs and something is measured.
    let mut serving = Vec::new();
    while bed.done().is_empty() || serving.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no server");
        std::thread::sleep(Duration::from_millis(2));
        serving = bed.noted();
        serving.retain(|(_, line)| line.contains("\0serve\0"));
    }
    child.kill().expect("our child");
    child.wait().expect("an end");
    let first = bed.done();
    let there: Vec<_> = bed.noted();
    assert!(
        serving.iter().any(|server| there.contains(server)),
        "the server outlives a kill: {there:?}"
    );
    let scratch = bed.result("running.json")["scratch"].clone();
    let scratch = PathBuf::from(scratch.as_str().expect("a scratch directory"));
    assert!(scratch.exists());

    let ran = bed.run(&run_arguments);
    let said = utf8(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    assert!(said.contains("cleared what a killed run left: "), "{said}");
    assert!(
        said.contains(&format!("continuing: {} of", first.len())),
        "{said}"
    );
    assert!(!scratch.exists());
    for (pid, line) in there {
        assert_ne!(command_line(&pid), line, "process {pid} is left");
    }
    let second = bed.done();
    assert_eq!(second.len(), 3);
    assert!(
        first.iter().all(|kept| second.contains(kept)),
        "{first:?} {second:?}"
    );
    assert!(!bed.path("out/running.json").exists());
}

fn command_line(pid: &str) -> String {
    utf8(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default())
}

/// Processes whose words name a path below this one.
fn ours(path: &Path) -> Vec<String> {
    let path = path.to_string_lossy().into_owned();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines
        .map(|line| utf8(&line))
        .filter(|line| line.contains(&path))
        .collect()
}

#[test]
fn measurement_is_shared_by_studies_that_need_it() {
    let bed = Bed::new();
    let other = STUDY
        .replace("number = 90", "number = 91")
        .replace("\"tiny\"", "\"other\"");
    fs::write(bed.path("other.toml"), other).expect("room");
    let plan = bed.run(&["run", "tiny.toml", "other.toml", "--plan"]);
    let text = utf8(&plan.stdout);
    // Two points and a capacity of two servers, and none of them twice.
    assert!(
        text.starts_with("6 measurements (4 more are shared)"),
        "{text}"
    );
}

#[test]
fn usage_error_is_reported_for_wrong_arguments() {
    let bed = Bed::new();
    fs::write(
        bed.path("bad.toml"),
        "number = 1\nname = \"x\"\nnonsense = 1\n",
    )
    .expect("room");
    for (line, why) in [
        (&["run", "nothing", "-o", "out"][..], "no study \"nothing\""),
        (
            &["run", "bad.toml", "-o", "out"],
            "bad.toml:3: there is no key `nonsense`",
        ),
        (
            &["run", "tiny.toml", "--only", "iis"],
            "they have haboob, headway",
        ),
        (&["run", "tiny.toml", "--repeats", "0"], "--repeats"),
        (&["check", "bad.toml"], "bad.toml:3"),
    ] {
        let ran = bed.run(line);
        let said = utf8(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{line:?} {said}");
        assert!(said.contains(why), "{said}");
    }
    fs::create_dir(bed.path("foreign")).expect("room");
    fs::write(bed.path("foreign/letter"), "dear").expect("room");
    for line in [
        &["run", "tiny.toml", "-o", "foreign"][..],
        &["show", "foreign"],
    ] {
        let ran = bed.run(line);
        assert_eq!(ran.status.code(), Some(1), "{line:?}");
        assert!(
            utf8(&ran.stderr).contains("foreign"),
            "{}",
            utf8(&ran.stderr)
        );
    }
}

#[test]
fn study_list_has_the_studies_of_the_papers() {
    let bed = Bed::new();
    let list = utf8(&bed.run(&["list"]).stdout);
    assert!(list.contains("inversion"), "{list}");
    assert!(bed.run(&["check"]).status.success());
}
