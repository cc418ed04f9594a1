//! `headway profile`: points, commands between them, going on.

use super::responding::{GOOD, LATE, Manner, Responding};
use super::{headway, read_json, serving};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::Stdio;

/// A profile of short points.
fn profile(server: &Responding, run: &Path, arguments: &[&str]) -> (i32, String, String) {
    let short = ["-d", "200ms", "--warmup", "0", "-c", "2", "-o"];
    let run = run.to_str().unwrap();
    headway(
        &[
            &["profile", &server.url],
            short.as_slice(),
            &[run],
            arguments,
        ]
        .concat(),
    )
}

#[test]
fn points_are_percentages_of_the_measured_capacity() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("profile");
    let server = Responding::start(LATE);
    let (code, out, err) = profile(&server, &run, &["--loads", "20,50", "--repeats", "2"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.starts_with("capacity "), "{out}");
    assert!(out.contains("mean ±"), "{out}");
    assert!(err.contains("run 6 of 6: 50 % of "), "{err}");
    let description = read_json(&run.join("run.json"));
    assert_eq!(description["kind"], "profile");
    assert_eq!(description["complete"], true);
    let capacity = description["profile"]["capacity_rps"].as_f64().unwrap();
    let points = description["profile"]["points"].as_array().unwrap();
    let directories: Vec<&str> = points
        .iter()
        .map(|one| one["directory"].as_str().unwrap())
        .collect();
    let expected = [
        "capacity-1",
        "capacity-2",
        "0.20-1",
        "0.50-1",
        "0.20-2",
        "0.50-2",
    ];
    assert_eq!(directories, expected.map(|name| format!("points/{name}")));
    assert_eq!(points[3]["rate_rps"].as_f64().unwrap(), capacity * 0.5);
    for point in points {
        assert_eq!(point["done"], true);
        let inner = read_json(
            &run.join(point["directory"].as_str().unwrap())
                .join("run.json"),
        );
        assert_eq!(
            (&inner["kind"], &inner["complete"]),
            (&"load".into(), &true.into())
        );
    }
}

#[test]
fn capacity_is_not_measured_when_given() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("profile");
    let server = Responding::start(GOOD);
    let log = directory.path().join("log");
    let after = format!("echo \"$HEADWAY_POINT $HEADWAY_RATE\" >>{}", log.display());
    let arguments = [
        "--capacity",
        "400",
        "--loads",
        "50,150",
        "--json",
        "--quiet",
    ];
    let after = ["--after-point", after.as_str()];
    let (code, out, err) = profile(&server, &run, &[&arguments[..], &after].concat());
    assert_eq!((code, err.as_str()), (0, ""));
    let done = std::fs::read_to_string(&log).unwrap();
    assert_eq!(done, "points/0.50-1 200\npoints/1.50-1 600\n");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["capacity_rps"], 400.0);
    let points = json["points"].as_array().unwrap();
    assert_eq!(points.len(), 2);
    assert_eq!(points[1]["rate_rps"], 600.0);
    assert!(points[1]["summary"]["requests"].as_u64().unwrap() > 0);
}

#[test]
fn profile_continues_with_the_same_arguments() {
    let directory = tempfile::tempdir().unwrap();
    let (run, log, go) = (
        directory.path().join("profile"),
        directory.path().join("log"),
        directory.path().join("go"),
    );
    // Fails at the second point until the file `go` exists.
    let command = format!(
        "echo \"$HEADWAY_POINT\" >>{0}; test -e {1} || test \"$(wc -l <{0})\" -lt 2",
        log.display(),
        go.display()
    );
    let arguments = [
        "--capacity",
        "100",
        "--loads",
        "50,80",
        "--before-point",
        &command,
    ];
    let server = Responding::start(GOOD);
    let (code, _, err) = profile(&server, &run, &arguments);
    assert_eq!(code, 1);
    assert!(
        err.contains("--before-point") && err.contains("exit status: 1"),
        "{err}"
    );
    assert_eq!(read_json(&run.join("run.json"))["complete"], false);

    let paths = directory.path().join("paths");
    std::fs::write(&paths, "/a\n").unwrap();
    for (other, what) in [
        (["--timeout", "9s"], "a timeout in ms of 3000, not 9000"),
        (
            ["--source", "127.0.0.9"],
            "--source of the default, not 127.0.0.9",
        ),
        (["--cpu", "0"], "--cpu of the default, not 0"),
        (
            ["--paths", paths.to_str().unwrap()],
            "the paths of the addresses, not 1 with",
        ),
    ] {
        let (code, _, err) = profile(&server, &run, &[arguments.as_slice(), &other].concat());
        assert_eq!(code, 1);
        let expected = format!("a profile was begun here with {what}");
        assert!(err.contains(&expected), "{err}");
    }

    std::fs::write(&go, "").unwrap();
    let (code, out, err) = profile(&server, &run, &arguments);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("continuing: 1 of 2 runs are done"), "{err}");
    assert!(out.contains("50 %") && out.contains("80 %"), "{out}");
    let points = std::fs::read_to_string(&log).unwrap();
    let points: Vec<&str> = points.lines().collect();
    assert_eq!(points, ["points/0.50-1", "points/0.80-1", "points/0.80-1"]);

    let (code, _, err) = profile(&server, &run, &arguments);
    assert_eq!(code, 1);
    assert!(err.contains("finished"), "{err}");
}

#[test]
fn interrupted_profile_can_be_resumed() {
    let directory = tempfile::tempdir().unwrap();
    let (run, once) = (
        directory.path().join("profile"),
        directory.path().join("once"),
    );
    let command = format!(
        "test -e {0} || {{ touch {0}; kill -INT $PPID; }}",
        once.display()
    );
    let arguments = [
        "--capacity",
        "100",
        "--loads",
        "50",
        "--before-point",
        &command,
    ];
    let server = Responding::start(GOOD);
    let (code, out, err) = profile(&server, &run, &arguments);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(
        err.contains("interrupted") && err.contains("continue with the same command"),
        "{err}"
    );
    let (code, _, err) = profile(&server, &run, &arguments);
    assert_eq!(code, 0, "{err}");
}

#[test]
fn point_is_incomplete_when_it_is_interrupted() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("profile");
    let server = Responding::start(GOOD);
    let child = serving::headway()
        .args(["profile", &server.url, "--capacity", "400", "--loads", "50"])
        .args(["-d", "1h", "--warmup", "0", "-o", run.to_str().unwrap()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    server.wait_for(10);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(err.contains("continue with the same command"), "{err}");
    let point = read_json(&run.join("points/0.50-1/run.json"));
    assert_eq!(point["complete"], false);
    let profile = read_json(&run.join("run.json"));
    assert_eq!(profile["profile"]["points"][0]["done"], false);
}

#[test]
fn there_is_no_capacity_when_no_response_is_good() {
    let directory = tempfile::tempdir().unwrap();
    let missing = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
    let server = Responding::start(Manner::Responses(missing));
    let (code, _, err) = profile(&server, &directory.path().join("profile"), &[]);
    assert_eq!(code, 1);
    assert!(err.contains("no good response in the closed loop"), "{err}");
}

#[test]
fn profile_fails_when_no_response_is_good_and_the_capacity_was_given() {
    let directory = tempfile::tempdir().unwrap();
    let missing = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
    let server = Responding::start(Manner::Responses(missing));
    let run = directory.path().join("profile");
    let (code, out, err) = profile(&server, &run, &["--capacity", "100", "--loads", "50"]);
    assert_eq!(code, 1, "{out}");
    assert!(out.contains("50 %"), "the table is printed: {out}");
    assert!(
        err.contains("no request of any point got a good response"),
        "{err}"
    );
}

#[test]
fn single_run_is_not_overwritten_by_a_profile() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let server = Responding::start(GOOD);
    let arguments = [
        "load",
        &server.url,
        "-n",
        "10",
        "-c",
        "1",
        "-o",
        run.to_str().unwrap(),
    ];
    assert_eq!(headway(&arguments).0, 0);
    let (code, _, err) = profile(&server, &run, &[]);
    assert_eq!(code, 1);
    assert!(err.contains("nothing was changed"), "{err}");
}
