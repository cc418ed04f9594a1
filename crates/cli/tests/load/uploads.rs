//! Runs in storage that speaks S3: sent by `load` and `upload`, and merged from there.

use std::process::Command;
use std::time::SystemTime;

use headway_latency::Run;
use headway_test_support::skip;

use super::agents::together;
use super::responding::{GOOD, Responding};
use super::{finished, read_json, serving};
use storage_server::{Fault, Proxy, Server};

#[allow(dead_code, reason = "the tests of the crate use all of it")]
#[path = "../../../object-storage/tests/support.rs"]
mod storage_server;

/// `headway` with the keys of this storage.
fn headway(storage: &Server, url: &str) -> Command {
    let settings = storage.settings(url);
    let mut command = serving::headway();
    command
        .env("AWS_ACCESS_KEY_ID", settings.access_key)
        .env("AWS_SECRET_ACCESS_KEY", settings.secret_key)
        .env("AWS_ENDPOINT_URL", url);
    command
}

/// Needs: moto for Python: scripts/setup services
#[test]
fn runs_of_agents_are_merged_out_of_storage() {
    let Some(mut storage) = Server::start() else {
        return skip(
            "runs_of_agents_are_merged_out_of_storage",
            "no moto for Python; run scripts/setup services",
        );
    };
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let server = Responding::start(GOOD);
    let proxy = Proxy::start(
        &storage.url,
        "PUT /runs/monday/agent%3D1/requests",
        Fault::Request,
        1,
    );
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let at = (now.unwrap().as_secs_f64() + 5.0).to_string();
    let start = |agent: &str, run: &str| {
        let mut command = headway(&storage, &proxy.url);
        command.args(["load", &server.url, "--agent", agent, "--start-at", &at]);
        command.args("--rate 200 -d 2s --warmup 0".split(' '));
        command.args(["-o", &file(run), "--upload", "s3://runs/monday"]);
        command
    };
    together([start("0/2", "a"), start("1/2", "b")]);
    assert_eq!(proxy.left(), 0, "a connection was cut");
    let mut merge = headway(&storage, &storage.url);
    let (code, out, err) = finished(
        merge
            .args(["merge", "s3://runs/monday", "-o", &file("all")])
            .args(["--upload", "s3://runs/monday"]),
    );
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("Agents\n"), "{out}");
    let rows = |run: &str| -> usize {
        let run = Run::open(file(run)).unwrap();
        run.rows().unwrap().map(|batch| batch.unwrap().len()).sum()
    };
    assert!(rows("a") > 0 && rows("b") > 0);
    assert_eq!(rows("a") + rows("b"), rows("all"));
    let merged = read_json(&directory.path().join("all/run.json"));
    assert_eq!(merged["agents"].as_array().unwrap().len(), 2);
    // The merged run is beside the others, and not one of them.
    let (objects, _) = storage.content();
    let is_merged = |(name, _): &&(String, String)| name.starts_with("monday/merged/");
    assert!(objects.iter().filter(is_merged).count() >= 3, "{objects:?}");
    let mut merge = headway(&storage, &storage.url);
    let (code, _, err) = finished(merge.args(["merge", "s3://runs/monday", "-o", &file("twice")]));
    assert_eq!(code, 0, "{err}");
    let left: Vec<String> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with('.'))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    let mut again = headway(&storage, &storage.url);
    let (code, out, err) = finished(again.args(["upload", &file("a"), "s3://runs/monday"]));
    assert_eq!(
        (code, &*out),
        (0, "everything was sent already to s3://runs/monday\n"),
        "{err}"
    );
}

/// Needs: moto for Python: scripts/setup services
#[test]
fn nothing_is_measured_when_the_storage_refuses() {
    let Some(storage) = Server::start() else {
        return skip(
            "nothing_is_measured_when_the_storage_refuses",
            "no moto for Python; run scripts/setup services",
        );
    };
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let server = Responding::start(GOOD);
    let load = |command: &mut Command| {
        command.args([
            "load",
            &server.url,
            "-n",
            "20",
            "--upload",
            "s3://none/a",
            "-o",
        ]);
        finished(command.arg(&run))
    };
    let (code, out, err) = load(&mut headway(&storage, &storage.url));
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(
        err.contains("NoSuchBucket") && err.contains("nothing was done"),
        "{err}"
    );
    let mut without_keys = headway(&storage, &storage.url);
    let (code, _, err) = load(without_keys.env_remove("AWS_SECRET_ACCESS_KEY"));
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("AWS_SECRET_ACCESS_KEY is not set"), "{err}");
    assert!(!run.exists());
}
