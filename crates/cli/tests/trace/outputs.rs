//! The files a trace becomes: each is read back.

use std::path::Path;

use headway_latency::breakdown::TracedCalls;
use serde_json::Value;

use super::support::{run, traced};

const SCRIPT: &str = "for i in 1 2 3 4 5; do sleep 0.01 | cat; done";

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

#[test]
fn chrome_events_parse_and_are_in_order_of_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("out.json");
    let (_, ran) = traced(&["--chrome", text(&file)], &["sh", "-c", SCRIPT]);
    assert_eq!(ran.code, Some(0), "{}", ran.error);
    let document: Value =
        serde_json::from_slice(&std::fs::read(&file).expect("written")).expect("JSON");
    let events = document["traceEvents"].as_array().expect("a list");
    let times: Vec<f64> = events
        .iter()
        .filter_map(|event| event["ts"].as_f64())
        .collect();
    assert!(times.len() > 5 && times.is_sorted(), "{times:?}");
    assert!(
        events
            .iter()
            .all(|event| event["pid"].is_u64() && event["ph"].is_string())
    );
    let complete = events.iter().filter(|event| event["ph"] == "X");
    assert!(complete.clone().count() > 5 && complete.clone().all(|event| event["dur"].is_f64()));
}

#[test]
fn folded_stacks_are_frames_and_a_number_when_they_are_written() {
    let folder = tempfile::tempdir().expect("a folder");
    for options in [&[][..], &["--stacks"][..]] {
        let file = folder.path().join("out.folded");
        let mut all = vec!["--folded", text(&file)];
        all.extend(options);
        let (_, ran) = traced(&all, &["sh", "-c", SCRIPT]);
        assert_eq!(ran.code, Some(0), "{}", ran.error);
        let lines = std::fs::read_to_string(&file).expect("written");
        assert!(lines.lines().count() > 0);
        for line in lines.lines() {
            let (stack, us) = line.rsplit_once(' ').expect("a stack and a number");
            assert!(us.parse::<u64>().is_ok(), "{line}");
            assert!(
                !stack.contains(' ') && stack.split(';').count() >= 3,
                "{line}"
            );
            assert!(stack.split(';').all(|frame| !frame.is_empty()), "{line}");
        }
    }
}

#[test]
fn history_counts_each_call_when_it_is_a_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("history.csv");
    let (trace, ran) = traced(&["--history", text(&file)], &["sh", "-c", SCRIPT]);
    assert_eq!(ran.code, Some(0), "{}", ran.error);
    let table = std::fs::read_to_string(&file).expect("written");
    let mut lines = table.lines();
    assert!(
        lines
            .next()
            .expect("a heading")
            .starts_with("call,invocation,pid,thread,start_ns,wall_ns")
    );
    let calls: u64 = trace["sites"]
        .as_array()
        .expect("sites")
        .iter()
        .filter_map(|site| site["count"].as_u64())
        .sum();
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    assert!(
        rows.len() as u64 <= calls && rows.len() > 20,
        "{} of {calls}",
        rows.len()
    );
    let mut reads = rows.iter().filter(|row| row[0] == "read").map(|row| row[1]);
    assert_eq!((reads.next(), reads.next()), (Some("1"), Some("2")));
}

#[test]
fn figure_is_well_formed_when_it_is_drawn() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("history.svg");
    let (_, ran) = traced(&["--history", text(&file)], &["sh", "-c", SCRIPT]);
    assert_eq!(ran.code, Some(0), "{}", ran.error);
    let figure = std::fs::read_to_string(&file).expect("written");
    assert!(figure.starts_with("<svg xmlns=") && figure.contains("in-band call time"));
    assert_well_formed(&figure);
}

/// Elements are closed in the order they were opened, and attributes are quoted.
fn assert_well_formed(text: &str) {
    let mut open: Vec<&str> = Vec::new();
    for piece in text.split('<').skip(1) {
        let (tag, after) = piece.split_once('>').expect("a tag ends");
        assert!(
            !after.contains('>') && tag.matches('"').count() % 2 == 0,
            "{piece}"
        );
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "{text}");
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().expect("a name"));
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn trace_report_shows_the_same_summary() {
    let folder = tempfile::tempdir().expect("a folder");
    let ran = run(&[
        "--keep",
        text(folder.path()),
        "-o",
        "-",
        "--",
        "sh",
        "-c",
        "sleep 0.01",
    ]);
    assert_eq!(ran.code, Some(0), "{}", ran.error);
    let again = run(&["report", text(folder.path())]);
    assert_eq!((again.code, &again.out), (Some(0), &ran.out));
    let whole = run(&["report", text(&folder.path().join("trace.json"))]);
    assert_eq!(whole.out, ran.out);
    assert!(again.out.contains("What it waited for"), "{}", again.out);
}

#[test]
fn files_of_traced_processes_are_shown_when_they_were_not_collected() {
    let folder = tempfile::tempdir().expect("a folder");
    let status = std::process::Command::new("sh")
        .args(["-c", "sleep 0.01"])
        .env("LD_PRELOAD", super::support::library())
        .env("HEADWAY_TRACE_DIR", folder.path())
        .status()
        .expect("a shell");
    assert!(status.success());
    let ran = run(&["report", text(folder.path()), "--show", "programs"]);
    assert_eq!(ran.code, Some(0), "{}", ran.error);
    assert!(ran.out.contains("sleep 0.01"), "{}", ran.out);
}

#[test]
fn only_calls_that_meet_the_policy_are_kept() {
    let (trace, _) = traced(&["--call", "read", "--every-call"], &["sh", "-c", SCRIPT]);
    let kept = trace["kept"].as_array().expect("kept calls");
    assert!(
        !kept.is_empty() && kept.iter().all(|kept| kept["call"] == "read"),
        "{kept:?}"
    );
    let (trace, _) = traced(&["--slower-than", "5ms"], &["sh", "-c", SCRIPT]);
    let kept = trace["kept"].as_array().expect("kept calls");
    let slow = kept
        .iter()
        .all(|kept| kept["wall_ns"].as_u64().is_some_and(|ns| ns > 5_000_000));
    assert!(!kept.is_empty() && slow, "{kept:?}");
}

#[test]
fn hook_runs_when_a_call_is_slow() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("hooked");
    let hook = format!("hook=echo $HEADWAY_CALL >> {}", text(&file));
    let (_, ran) = traced(
        &["--react", &hook, "--when", "slower-than=5ms"],
        &["sleep", "0.02"],
    );
    assert_eq!(ran.code, Some(0), "{}", ran.error);
    let calls = std::fs::read_to_string(&file).expect("the hook ran");
    assert!(calls.contains("nanosleep"), "{calls}");
}

#[test]
fn columns_align_when_the_summary_is_a_table() {
    let ran = run(&["-o", "-", "--width", "200", "--", "sh", "-c", SCRIPT]);
    let lines: Vec<&str> = ran.out.lines().collect();
    let start = lines
        .iter()
        .position(|line| *line == "Call sites")
        .expect("the table");
    let heading = lines[start + 1];
    let column = heading.find("CALL  ").expect("a column");
    for line in lines[start + 2..]
        .iter()
        .take_while(|line| !line.is_empty() && !line.starts_with('…'))
    {
        let before: String = line.chars().take(column).collect();
        assert!(
            before.ends_with("  ") && line.chars().nth(column).is_some_and(|letter| letter != ' '),
            "{line}"
        );
    }
}

#[test]
fn calls_of_one_call_site_are_kept_when_it_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = "#include <unistd.h>\n__attribute__((noinline)) void one(void) { getppid(); }\n\
                  __attribute__((noinline)) void other(void) { getppid(); }\n\
                  int main(void) { for (int i = 0; i < 3; i++) one(); other(); return 0; }";
    let program = super::support::compile(folder.path(), source, &["-O1"]);
    for (name, count) in [
        ("one", 3),
        ("program.c:3", 1),
        ("one,other", 4),
        ("none", 0),
    ] {
        let (trace, ran) = traced(&["--site", name], &[text(&program)]);
        assert_eq!(ran.code, Some(0), "{}", ran.error);
        let kept = trace["kept"].as_array().expect("a list").len();
        assert_eq!(kept, count, "{name}: {}", trace["kept"]);
    }
}

/// The report and the studies read the file by its field names, without the type that writes it.
#[test]
fn each_call_that_slept_is_read_from_a_trace_for_a_report() {
    let (trace, ran) = traced(&[], &["sh", "-c", SCRIPT]);
    assert_eq!(ran.code, Some(0), "{}", ran.error);
    let began = trace["started_unix_ns"].as_u64().expect("a time");
    let calls = TracedCalls::from_json(&trace, began).expect("a trace");
    let kept = trace["kept"].as_array().expect("kept calls");
    let slept = kept.iter().filter(|call| {
        call["sleeps"]
            .as_array()
            .is_some_and(|list| !list.is_empty())
    });
    assert_eq!(calls.calls().len(), slept.count());
    let first = calls.calls().first().expect("a call that slept");
    assert!(
        first.start_ns >= 0 && first.asleep_ns <= first.wall_ns,
        "{first:?}"
    );
    assert!(!first.site.is_empty(), "{first:?}");
}
