//! What this machine cannot do: a name without an address, too few descriptors or ports, a disk
//! that takes nothing.

use super::responding::{GOOD, Responding};
use super::{finished, headway, load, skip};
use std::process::Command;

/// Fails with exit code 1 and every part in its message.
fn fails(arguments: &[&str], parts: &[&str]) {
    let (code, _, err) = headway(&[&["load"], arguments].concat());
    assert_eq!(code, 1, "{arguments:?}: {err}");
    for part in parts {
        assert!(err.contains(part), "{arguments:?}: {err}");
    }
}

#[test]
fn error_names_the_host_when_it_has_no_address() {
    let (code, _, err) = load(&["http://nobody.invalid/"]);
    assert_eq!(code, 1);
    assert!(
        err.starts_with("headway: looking up nobody.invalid: "),
        "{err}"
    );
    assert!(err.contains("check the spelling"), "{err}");
    assert_eq!(
        err.matches("nobody.invalid").count(),
        1,
        "said twice: {err}"
    );
}

#[test]
fn source_is_an_error_when_the_address_is_not_local() {
    let server = Responding::start(GOOD);
    // From the block for documentation (RFC 5737), which no interface has.
    fails(
        &[&server.url, "--source", "192.0.2.77"],
        &[
            "--source 192.0.2.77",
            "Cannot assign requested address",
            "ip address",
        ],
    );
}

#[test]
fn error_names_limit_and_remedy_when_descriptors_are_short() {
    let server = Responding::start(GOOD);
    let line = "ulimit -n 64 && exec \"$0\" load \"$1\" -c 100 -n 1";
    let mut shell = Command::new("sh");
    shell.args(["-c", line, env!("CARGO_BIN_EXE_headway"), &server.url]);
    let (code, _, err) = finished(&mut shell);
    assert_eq!(code, 1, "{err}");
    assert!(
        err.contains("100 connections need 132 descriptors"),
        "{err}"
    );
    assert!(
        err.contains("may open 64") && err.contains("ulimit -Hn"),
        "{err}"
    );
}

#[test]
fn default_number_of_connections_shrinks_when_descriptors_are_short() {
    let server = Responding::start(GOOD);
    let line = "ulimit -n 64 && exec \"$0\" load \"$1\" --json -n 100";
    let mut shell = Command::new("sh");
    shell.args(["-c", line, env!("CARGO_BIN_EXE_headway"), &server.url]);
    let (code, out, err) = finished(&mut shell);
    assert_eq!(code, 0, "{err}");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["load"]["connections"], 32);
    assert_eq!(json["client"]["descriptors_limit"], 64);
}

/// Needs: a hard limit of descriptors above the number of local ports
#[test]
fn error_names_limit_and_remedy_when_ports_are_short() {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let ends: Vec<u64> = range
        .split_whitespace()
        .map(|end| end.parse().unwrap())
        .collect();
    let connections = ends[1] - ends[0] + 2;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    if limit.is_some_and(|limit| limit < connections + 100) {
        skip(
            "error_names_limit_and_remedy_when_ports_are_short",
            "fewer descriptors than ports are allowed here",
        );
        return;
    }
    let connections = connections.to_string();
    // The check precedes the first connection, so no server is needed.
    fails(
        &[
            "http://127.0.0.1:1/",
            "--source",
            "127.0.0.1",
            "-c",
            &connections,
        ],
        &[
            "local ports",
            "ip_local_port_range",
            "--source",
            &connections,
        ],
    );
}

#[test]
fn error_lists_the_allowed_cpus() {
    let server = Responding::start(GOOD);
    fails(
        &[&server.url, "--cpu", "4000", "-n", "1"],
        &["CPU [4000]", "may use"],
    );
}

#[test]
fn directory_is_not_overwritten_when_it_is_not_a_run() {
    let directory = tempfile::tempdir().unwrap();
    let precious = directory.path().join("precious");
    std::fs::write(&precious, "mine").unwrap();
    let server = Responding::start(GOOD);
    let path = directory.path().to_str().unwrap();
    fails(&[&server.url, "-n", "1", "-o", path], &[path, "not a run"]);
    assert_eq!(std::fs::read_to_string(precious).unwrap(), "mine");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    for command in [["profile", &server.url], ["load", &server.url]] {
        let (code, _, err) = headway(&[command.as_slice(), &["-o", path]].concat());
        assert_eq!(code, 1, "{err}");
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn error_names_the_path_when_the_output_cannot_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let below = file.join("run");
    let server = Responding::start(GOOD);
    for path in [below.to_str().unwrap(), "/proc/headway-run"] {
        fails(&[&server.url, "-n", "1", "-o", path], &[path]);
        let (code, _, err) = headway(&["profile", &server.url, "-o", path]);
        assert_eq!(code, 1, "{err}");
        assert!(err.contains(path), "{err}");
    }
}

#[test]
fn error_names_the_file_when_it_has_no_paths() {
    let directory = tempfile::tempdir().unwrap();
    let list = directory.path().join("paths");
    let list_path = list.to_str().unwrap();
    fails(
        &["http://127.0.0.1:1/", "--paths", list_path],
        &["No such file", list_path],
    );
    std::fs::write(&list, "/good\nbad\n").unwrap();
    fails(
        &["http://127.0.0.1:1/", "--paths", list_path],
        &["line 2", list_path],
    );
    let directory = directory.path().to_str().unwrap();
    fails(
        &["http://127.0.0.1:1/", "--fileset", directory],
        &["holds no file set", "headway fileset create"],
    );
}
