//! `headway-lab schedule` as its users see it: what it prints and writes, what it leaves alone, and its
//! exit codes.

use crate::common;
use common::headway_lab;
use headway_test_support::skip;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

const PAIR: &str = "program,gzip,mcf\ngzip,,1.25\nmcf,1.75,\n";

fn run(arguments: &[&str], directory: &Path) -> (i32, String, String) {
    let output = headway_lab()
        .arg("schedule")
        .args(arguments)
        .current_dir(directory)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// A directory with a matrix of nine programs.
fn with_matrix() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let drawn = run(
        &["draw", "--programs", "9", "-o", "matrix.csv"],
        directory.path(),
    );
    assert_eq!(drawn, (0, String::new(), String::new()));
    directory
}

#[test]
fn unwritable_output_is_an_error_before_the_analysis_starts() {
    let directory = with_matrix();
    let arguments = ["matrix.csv", "--cdf", "one", "--svg", "one"];
    let (code, _, error) = run(&arguments, directory.path());
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("name the same file"), "{error}");
    for arguments in [
        &["matrix.csv", "--svg", "nowhere/cdf.svg"][..],
        &[
            "measure",
            "--cpus",
            "0,1",
            "-o",
            "nowhere/m.csv",
            "--",
            "touch began",
            "touch began",
        ],
    ] {
        let (code, out, error) = run(arguments, directory.path());
        assert_ne!(code, 0, "{out}");
        assert!(
            out.is_empty() && !directory.path().join("began").exists(),
            "{out}"
        );
        assert!(!error.contains("are different cores"), "{error}");
    }
    assert!(!directory.path().join("one").exists());
}

/// Two CPUs as `--cpus` wants them; none, with the reason, where there is only one.
fn two_cpus(test: &str) -> Option<String> {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let cpus: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .collect();
    if let [first, second, ..] = cpus[..] {
        return Some(format!("{first},{second}"));
    }
    skip(test, "pairs need two CPUs");
    None
}

#[test]
fn tables_are_as_documented_when_there_is_only_one_pairing() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("m.csv"), PAIR).unwrap();
    let (code, out, err) = run(
        &["m.csv", "--trials", "1000", "--rounds", "2"],
        directory.path(),
    );
    assert_eq!((code, err.as_str()), (0, ""));
    let expected = "\
2 programs in 1 pair; 1,000 random schedules, seed 1

  schedules                  speed-up
  worst (exact)               33.33 %
  random: minimum             33.33 %
  random: 1 % have at most    33.33 %
  random: 5 % have at most    33.33 %
  random: 25 % have at most   33.33 %
  random: 50 % have at most   33.33 %
  random: 75 % have at most   33.33 %
  random: 95 % have at most   33.33 %
  random: 99 % have at most   33.33 %
  random: maximum             33.33 %
  random: mean                33.33 %
  best (exact)                33.33 %

An ideal scheduler gains 0.00 percentage points of speed-up over the mean of random ones.

Best schedule
  program  slow-down  beside  slow-down
  gzip         1.250     mcf      1.750

Worst schedule
  program  slow-down  beside  slow-down
  gzip         1.250     mcf      1.750

A new random pairing each round: speed-ups of schedulers
  rounds  minimum      5 %     mean     95 %  maximum
  1       33.33 %  33.33 %  33.33 %  33.33 %  33.33 %
  2       33.33 %  33.33 %  33.33 %  33.33 %  33.33 %
";
    assert_eq!(out, expected);
}

#[test]
fn json_is_the_same_when_threads_differ_and_another_when_the_seed_does() {
    let directory = with_matrix();
    let json = |arguments: &[&str]| {
        let arguments = [
            &["matrix.csv", "--json", "--trials", "150000"][..],
            arguments,
        ]
        .concat();
        let (code, out, err) = run(&arguments, directory.path());
        assert_eq!((code, err.as_str()), (0, ""));
        out
    };
    let one = json(&["--threads", "1"]);
    assert_eq!(one, json(&["--threads", "5"]));
    assert_ne!(one, json(&["--seed", "2"]));
    let found: serde_json::Value = serde_json::from_str(&one).unwrap();
    assert_eq!(
        (&found["programs"], &found["random"]["trials"]),
        (&9.into(), &150_000.into())
    );
    assert_eq!(found["best"]["pairs"].as_array().unwrap().len(), 4);
    assert!(found["best"]["alone"].is_string());
    let number = |path: &str| found.pointer(path).unwrap().as_f64().unwrap();
    let ascending = [
        "/worst/speed_up",
        "/random/min",
        "/random/mean",
        "/random/max",
        "/best/speed_up",
    ]
    .map(number);
    // The exact ones are sums in another order.
    assert!(
        ascending.windows(2).all(|pair| pair[0] <= pair[1] + 1e-12),
        "{ascending:?}"
    );
    assert_eq!(number("/rounds/6/rounds"), 64.0);
}

#[test]
fn cdf_and_svg_are_written_and_the_matrix_is_not_overwritten() {
    let directory = with_matrix();
    let matrix = fs::read(directory.path().join("matrix.csv")).unwrap();
    let arguments = [
        "matrix.csv",
        "--trials",
        "2000",
        "--cdf",
        "cdf.csv",
        "--svg",
        "cdf.svg",
    ];
    for _ in 0..2 {
        assert_eq!(
            run(&arguments, directory.path()).0,
            0,
            "again over its own files"
        );
    }
    let cdf = fs::read_to_string(directory.path().join("cdf.csv")).unwrap();
    assert!(
        cdf.starts_with("speed_up_percent,share\n") && cdf.ends_with(",1\n"),
        "{cdf}"
    );
    let svg = fs::read_to_string(directory.path().join("cdf.svg")).unwrap();
    assert!(svg.starts_with("<svg xmlns=") && svg.contains("share of 2,000 random schedules"));
    for option in ["--cdf", "--svg"] {
        let (code, out, err) = run(&["matrix.csv", option, "matrix.csv"], directory.path());
        assert_eq!((code, out.as_str()), (1, ""));
        assert!(err.contains("matrix.csv: does not begin with"), "{err}");
    }
    assert_eq!(
        fs::read(directory.path().join("matrix.csv")).unwrap(),
        matrix
    );
    let (code, _, err) = run(&["matrix.csv", "--cdf", "/dev/null"], directory.path());
    assert!(code == 1 && err.contains("no regular file"), "{err}");
    assert_eq!(
        fs::read_dir(directory.path()).unwrap().count(),
        3,
        "nothing else is left"
    );
}

#[test]
fn matrix_is_read_from_standard_input_with_a_dash() {
    let mut child = headway_lab()
        .args(["schedule", "-", "--trials", "10", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(PAIR.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["best"]["run_time"], 1.5);
}

#[test]
fn exit_code_is_1_and_the_line_is_named_when_the_matrix_is_invalid() {
    let directory = tempfile::tempdir().unwrap();
    let cases = [
        ("", "it is empty"),
        (
            "x,a,b\na,1,2\n",
            "it has 1 row under 2 names; the matrix must be square",
        ),
        (
            "x,a,b\na,1,2\nb,1\n",
            "line 3: the row of \"b\" has 1 entry",
        ),
        ("x,a,b\na,1,-2\nb,1,1\n", "of \"a\" beside \"b\" is \"-2\""),
        ("x,a,b\na,1,nan\nb,1,1\n", "is \"nan\""),
        ("x,a,a\na,1,2\na,1,1\n", "two programs are named \"a\""),
    ];
    for (text, reason) in cases {
        fs::write(directory.path().join("m.csv"), text).unwrap();
        let (code, out, err) = run(&["m.csv"], directory.path());
        assert_eq!((code, out.as_str()), (1, ""), "{text}");
        assert!(
            err.starts_with("headway-lab: m.csv: no matrix of slow-downs: ")
                && err.contains(reason),
            "{err}"
        );
    }
    fs::write(directory.path().join("m.csv"), b"x,\xff").unwrap();
    assert_eq!(run(&["m.csv"], directory.path()).0, 1);
    let (code, _, err) = run(&["missing.csv"], directory.path());
    assert!(code == 1 && err.contains("missing.csv"), "{err}");
    assert_eq!(run(&["."], directory.path()).0, 1);
}

#[test]
fn exit_code_is_2_for_a_usage_error() {
    let directory = tempfile::tempdir().unwrap();
    for (arguments, wanted) in [
        (&[][..], "Usage"),
        (&["--json"], "name a matrix"),
        (&["m.csv", "--trials", "0"], "--trials"),
        (&["m.csv", "--rounds", "x"], "--rounds"),
        (&["draw", "--programs", "1"], "--programs"),
        (&["draw", "--speed-up", "26..12"], "must ascend"),
        (&["draw", "--speed-up=-100..12"], "must ascend"),
        (&["draw", "--speed-up", "12"], "as in 12..26"),
        (&["measure", "--", "true", "false"], "--cpus"),
        (
            &["measure", "--cpus", "0", "--", "true", "false"],
            "as in 0,1",
        ),
        (&["measure", "--cpus", "0,1", "--", "true"], "PROGRAM"),
        (
            &["measure", "--cpus", "0,0", "--", "true", "false"],
            "--cpus: CPU 0 is named twice",
        ),
        (
            &["measure", "--cpus", "0,99999", "--", "true", "false"],
            "CPU 99999 is not one that this process may use",
        ),
        (
            &["measure", "--cpus", "0,1", "--", "true", "true"],
            "two programs are named \"true\"",
        ),
        (
            &[
                "measure", "--cpus", "0,1", "--name", "x", "--", "true", "false",
            ],
            "--name is given 1 times for 2",
        ),
        (
            &[
                "measure",
                "--cpus",
                "0,1",
                "--time-limit",
                "0",
                "--",
                "true",
                "false",
            ],
            "--time-limit",
        ),
    ] {
        let (code, out, err) = run(arguments, directory.path());
        assert_eq!((code, out.as_str()), (2, ""), "{arguments:?}: {err}");
        assert!(err.contains(wanted), "{arguments:?}: {err}");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// Needs: two CPUs
#[test]
fn a_measured_matrix_can_be_analysed() {
    let Some(cpus) = two_cpus("a_measured_matrix_can_be_analysed") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let arguments = [
        "measure", "--cpus", &cpus, "--runs", "1", "-o", "m.csv", "--",
    ];
    let programs = ["true", "echo seen", ": a, b"];
    let (code, out, err) = run(&[&arguments[..], &programs].concat(), directory.path());
    assert_eq!((code, out.as_str()), (0, ""), "{err}");
    for line in [
        "alone 1 of 3: true",
        "pair 3 of 3: echo seen beside : a, b",
        "give it more work",
    ] {
        assert!(err.contains(line), "{line}: {err}");
    }
    let cores = [
        "are threads of one core",
        "are different cores",
        "does not say",
    ];
    assert!(cores.iter().any(|line| err.contains(line)), "{err}");
    let text = fs::read_to_string(directory.path().join("m.csv")).unwrap();
    assert!(
        text.starts_with("program,true,echo seen,\": a, b\"\ntrue,,"),
        "{text}"
    );
    let (code, out, err) = run(&["m.csv", "--trials", "100"], directory.path());
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(
        out.starts_with("3 programs in 1 pair and one alone;"),
        "{out}"
    );
}

/// Needs: two CPUs
#[test]
fn nothing_is_written_when_a_program_fails() {
    let Some(cpus) = two_cpus("nothing_is_written_when_a_program_fails") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let arguments = [
        "measure", "--cpus", &cpus, "--quiet", "-o", "m.csv", "--name", "good", "--name", "bad",
        "--",
    ];
    let (code, out, err) = run(
        &[&arguments[..], &["true", "exit 7"]].concat(),
        directory.path(),
    );
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(
        err.starts_with("headway-lab: \"bad\" failed on CPU") && err.contains("exit status: 7"),
        "{err}"
    );
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// Needs: two CPUs
#[test]
fn interrupted_measurement_ends_its_programs_and_writes_nothing() {
    let name = "interrupted_measurement_ends_its_programs_and_writes_nothing";
    let Some(cpus) = two_cpus(name) else { return };
    let directory = tempfile::tempdir().unwrap();
    let child = headway_lab()
        .args(["schedule", "measure", "--cpus", &cpus, "-o", "m.csv", "--"])
        .args(["echo $$ >pid; exec sleep 1000", "true"])
        .current_dir(directory.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (begun, timeout) = (Instant::now(), Duration::from_secs(30));
    let mut pid = String::new();
    while !pid.ends_with('\n') && begun.elapsed() < timeout {
        std::thread::sleep(Duration::from_millis(5));
        pid = fs::read_to_string(directory.path().join("pid")).unwrap_or_default();
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(
        err.ends_with(
            "headway-lab: interrupted; all programs were ended, and nothing was written\n"
        ),
        "{err}"
    );
    // It was waited for before the command ended.
    assert!(!Path::new("/proc").join(pid.trim()).exists());
    assert!(!directory.path().join("m.csv").exists());
}

#[test]
fn standard_output_may_be_closed_early_and_must_not_be_full() {
    let directory = with_matrix();
    for arguments in [&["matrix.csv", "--trials", "100"][..], &["draw"]] {
        let printing_to = |out: Stdio| {
            let mut command = headway_lab();
            command.arg("schedule").args(arguments).stdout(out);
            let output = command.current_dir(directory.path()).output().unwrap();
            let err = String::from_utf8(output.stderr).unwrap();
            (output.status.code(), err)
        };
        // The reading end is closed before the program starts.
        let (_, closed) = std::io::pipe().unwrap();
        assert_eq!(printing_to(closed.into()), (Some(0), String::new()));
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let (code, err) = printing_to(full.into());
        assert_eq!(code, Some(1), "{arguments:?}: {err}");
        assert!(
            err.contains("No space left on device"),
            "{arguments:?}: {err}"
        );
    }
}
