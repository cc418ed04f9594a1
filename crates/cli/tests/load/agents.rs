//! A load that several clients share, and `headway merge`.

use super::responding::{GOOD, Responding};
use super::{headway, load, read_json, serving};
use headway_latency::Run;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;

/// Runs commands at the same time, which have to succeed.
pub fn together(commands: impl IntoIterator<Item = Command>) {
    let start = |mut command: Command| {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let children: Vec<_> = commands.into_iter().map(start).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{err}");
    }
}

#[test]
fn clients_that_share_a_load_make_one_run() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let server = Responding::start(GOOD);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let at = (now.unwrap().as_secs_f64() + 5.0).to_string();
    let start = |agent: &str, run: &str| {
        let mut command = serving::headway();
        command.args(["load", &server.url, "-c", "5", "--agent", agent]);
        command.args("--rate 200 -d 3s --warmup 0".split(' '));
        command.args(["-o", &file(run), "--start-at", &at]);
        command
    };
    together([start("0/2", "a"), start("1/2", "b")]);
    let (code, out, err) = headway(&["merge", &file("b"), &file("a"), "-o", &file("all")]);
    assert_eq!(code, 0, "{err}");
    assert!(
        out.contains("Agents\n") && out.contains("headway analyze"),
        "{out}"
    );
    let begun = read_json(&directory.path().join("a/run.json"))["epoch_unix_ns"].as_f64();
    assert!(begun.unwrap() / 1e9 >= at.parse::<f64>().unwrap());
    let json = read_json(&directory.path().join("all/run.json"));
    assert_eq!(json["load"]["rate_rps"], 200.0);
    assert_eq!(json["load"]["connections"], 5);
    assert_eq!(json["agents"][0]["index"], 0);
    assert_eq!(json["agents"][1]["index"], 1);
    let rows = |run: &str| {
        let run = Run::open(file(run)).unwrap();
        run.rows()
            .unwrap()
            .map(|batch| batch.unwrap().len())
            .sum::<usize>()
    };
    assert!(rows("a") > 0 && rows("b") > 0);
    assert_eq!(rows("a") + rows("b"), rows("all"));
    assert_eq!(headway(&["analyze", &file("all")]).0, 0);
    assert_eq!(
        headway(&["report", &file("all"), "-o", &file("report.html")]).0,
        0
    );

    let (code, _, err) = headway(&["merge", &file("a"), &file("a"), "-o", &file("twice")]);
    assert_eq!(code, 1);
    assert!(
        err.contains("agent 0 too") && err.contains("nothing was merged"),
        "{err}"
    );
    let (code, out, err) = headway(&["merge", &file("a"), "-o", &file("one"), "--strict"]);
    assert_eq!(code, 1);
    assert!(err.contains("--strict"), "{err}");
    assert!(
        out.starts_with("invalid: the run of agent 1 of 2 is missing"),
        "{out}"
    );
}

/// An address of this process, and of nothing else on the machine.
pub fn meeting_address(number: u8) -> String {
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    format!("127.{}.{high}.{low}:7070", 100 + number)
}

#[test]
fn agents_that_meet_begin_together_and_their_clocks_are_put_right() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let server = Responding::start(GOOD);
    let address = meeting_address(1);
    let load = ["--rate", "300", "-d", "2s", "--warmup", "0", "-c", "6"];
    let start = |agent: &str, run: &str, skew_ms: &str| {
        let mut command = serving::headway();
        command.args(["load", &server.url]).args(load);
        command.args(["--agent", agent, "--meet", &address, "-o", &file(run)]);
        command.env("HEADWAY_CLOCK_SKEW_MS", skew_ms);
        command
    };
    // Five minutes apart, the runs would not be of the same time.
    let skews_ms = [("a", 0), ("b", 300_000), ("c", -300_000)];
    let started = skews_ms.iter().zip(["0/3", "1/3", "2/3"]);
    together(started.map(|((run, skew_ms), agent)| start(agent, run, &skew_ms.to_string())));
    for (run, skew_ms) in skews_ms {
        let clock = &read_json(&directory.path().join(run).join("run.json"))["clock"];
        let (offset_ns, error_ns) = (clock["offset_ns"].as_i64(), clock["error_ns"].as_i64());
        let wrong_ns = offset_ns.unwrap() + skew_ms * 1_000_000;
        assert!(wrong_ns.abs() <= error_ns.unwrap(), "{clock}");
    }
    let (code, out, err) = headway(&[
        "merge",
        &file("a"),
        &file("b"),
        &file("c"),
        "-o",
        &file("all"),
    ]);
    assert_eq!(code, 0, "{err}");
    assert!(
        out.contains("+300 s ±") && out.contains("−300 s ±"),
        "{out}"
    );
    let rows: Vec<_> = Run::open(file("all")).unwrap().rows().unwrap().collect();
    let rows: usize = rows.iter().map(|batch| batch.as_ref().unwrap().len()).sum();
    assert!(rows > 0);
    let json = read_json(&directory.path().join("all/run.json"));
    assert_eq!(json["load"]["rate_rps"], 300.0);
}

#[test]
fn merge_says_what_is_missing_when_the_disk_of_an_agent_is_full() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let server = Responding::start(GOOD);
    // A limit of the length of files is like a full disk: the write of a row fails.
    let line = "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\"";
    let start = |agent: &str, run: &str, is_full: bool| {
        let mut command = serving::headway();
        if is_full {
            command = Command::new("sh");
            command.args(["-c", line, env!("CARGO_BIN_EXE_headway")]);
        }
        command.args([
            "load",
            &server.url,
            "--rate",
            "800",
            "-d",
            "4",
            "--warmup",
            "0",
        ]);
        command.args(["--agent", agent, "-o", &file(run)]);
        let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let agents = [start("0/2", "whole", false), start("1/2", "full", true)];
    let [whole, full] = agents.map(|agent| agent.wait_with_output().unwrap());
    let said = String::from_utf8_lossy(&full.stderr);
    assert!(whole.status.success());
    assert_eq!(full.status.code(), Some(1), "{said}");
    for part in ["writing the run: ", &file("full"), "File too large"] {
        assert!(said.contains(part), "{said}");
    }
    let (code, out, err) = headway(&["merge", &file("whole"), &file("full"), "-o", &file("all")]);
    assert_eq!(code, 0, "{err}");
    assert!(out.starts_with("invalid: "), "{out}");
    assert!(out.contains("did not finish: its "), "{out}");
    let requests = |run: &str| read_json(Path::new(&file(run)))["summary"]["requests"].clone();
    assert_eq!(requests("all/run.json"), requests("whole/run.json"));
}

#[test]
fn agents_divide_the_files_of_a_set() {
    let directory = tempfile::tempdir().unwrap();
    let set = directory.path().join("set").to_str().unwrap().to_owned();
    let options = ["--profile", "uniform", "--count", "30", "--file-size", "5"];
    let (code, _, err) = headway(&[&["fileset", "create", &set], &options[..]].concat());
    assert_eq!(code, 0, "{err}");
    let mut asked = Vec::new();
    for agent in ["0/3", "1/3", "2/3"] {
        let server = Responding::start(GOOD);
        let url = server.url.trim_end_matches('/');
        let part = ["--fileset", &set, "--agent", agent, "-n", "1500", "-c", "6"];
        let (code, _, err) = load(&[&[url], &part[..]].concat());
        assert_eq!(code, 0, "{err}");
        let paths = server.paths();
        assert_eq!(paths.len(), 10, "{agent}: {paths:?}");
        asked.extend(paths);
    }
    asked.sort();
    asked.dedup();
    assert_eq!(asked.len(), 30);
    let part = ["--fileset", &set, "--agent", "0/31"];
    let (code, _, err) = load(&[&["http://127.0.0.1:1"], &part[..]].concat());
    assert_eq!(code, 2, "{err}");
    assert!(
        err.contains("--agent 0/31: there are fewer files than agents"),
        "{err}"
    );
}

#[test]
fn agent_is_a_usage_error_when_there_is_no_such_part() {
    for (arguments, part) in [
        (&["--agent", "2/2"][..], "the last is 1/2"),
        (&["--agent", "0/0"], "INDEX/COUNT"),
        (&["--agent", "1"], "INDEX/COUNT"),
        (&["--start-at", "7"], "within the next day"),
        (&["--meet", "127.0.0.1:1"], "--agent"),
        (&["--agent", "1/2", "--meet", "host-0"], "is not HOST:PORT"),
        (&["--agent", "1/2", "--meet", ":7"], "is not HOST:PORT"),
        (&["--agent", "1/2", "--meet", "h:70700"], "is not HOST:PORT"),
        (
            &["--agent", "1/3", "-c", "1"],
            "fewer connections than agents",
        ),
    ] {
        let (code, _, err) = load(&[&["http://127.0.0.1:1/"], arguments].concat());
        assert_eq!(code, 2, "{err}");
        assert!(err.contains(part), "{err}");
    }
}
