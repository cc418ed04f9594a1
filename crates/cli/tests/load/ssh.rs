//! The script that loads a service from several machines over SSH. A shell is in the place of SSH: it joins its words as
//! SSH does, and runs them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use headway_latency::Run;

use super::agents::meeting_address;
use super::responding::{GOOD, Responding};
use super::{finished, read_json};

const SCRIPT: &str = "packaging/ssh/headway-load-ssh";

/// A command like ssh, for which one host cannot be reached.
const SHELL: &str =
    "#!/bin/sh\nhost=$1\nshift\n[ \"$host\" != broken ] || exit 255\nexec sh -c \"$*\"\n";

/// The script with these hosts; exit code, standard output and error.
fn load(directory: &Path, hosts: &str, port: &str, options: &[&str]) -> (i32, String, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let shell = directory.join("ssh");
    fs::write(&shell, SHELL).unwrap();
    fs::set_permissions(&shell, fs::Permissions::from_mode(0o755)).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_headway")).parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut command = Command::new("bash");
    command
        .arg(root.join(SCRIPT))
        .args([hosts, directory.join("runs").to_str().unwrap()])
        .args(options)
        .env("SSH", &shell)
        .env("MEET_PORT", port)
        .env("PATH", format!("{}:{path}", program.display()));
    finished(&mut command)
}

#[test]
fn script_loads_from_several_hosts_and_merges_their_runs() {
    let directory = tempfile::tempdir().unwrap();
    let server = Responding::start(GOOD);
    let address = meeting_address(3);
    let (host, port) = address.split_once(':').unwrap();
    let options = [
        "-H",
        "X-Words: a 'b' $c",
        "--rate",
        "300",
        "-d",
        "1s",
        "--warmup",
        "0",
    ];
    let options = [&[server.url.as_str()], &options[..]].concat();
    let (code, out, err) = load(directory.path(), &format!("{host} {host}"), port, &options);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("Agents\n"), "{out}");
    let all = directory.path().join("runs/all");
    let description = read_json(&all.join("run.json"));
    assert_eq!(description["agents"].as_array().unwrap().len(), 2);
    assert_eq!(description["load"]["rate_rps"], 300.0);
    assert_eq!(description["load"]["headers"][0], "X-Words: a 'b' $c");
    assert!(Run::open(all).unwrap().analysis().unwrap().counts.complete > 0);
}

#[test]
fn script_fails_when_a_host_cannot_be_reached() {
    let directory = tempfile::tempdir().unwrap();
    let server = Responding::start(GOOD);
    let address = meeting_address(4);
    let (host, port) = address.split_once(':').unwrap();
    let options = [
        server.url.as_str(),
        "--rate",
        "300",
        "-d",
        "1s",
        "--meet-timeout",
        "1s",
    ];
    let (code, _, err) = load(directory.path(), &format!("{host} broken"), port, &options);
    assert_ne!(code, 0, "{err}");
    assert!(!directory.path().join("runs/all").exists(), "{err}");
}
