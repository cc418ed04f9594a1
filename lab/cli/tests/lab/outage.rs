//! Headway while a file server does not answer, and after it has come back.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use headway_test_support::client::{Response, counter, exchange, get, receive, send};
use headway_test_support::server::Server;
use headway_test_support::{tiny_client, wait_until};
use rustix::process::Signal;

use crate::common;

use super::remote::{lab_with_files, order};
use super::support::{Lab, can};

/// More than the kernel buffers for one connection.
const LARGE_BYTES: usize = 24 << 20;

/// Adds 60 small files in directories of their own, and a large one.
fn add_files(lab: &Lab) {
    let script = format!(
        "for n in $(seq 60); do mkdir $n; echo $n >$n/file; done; head -c {LARGE_BYTES} /dev/urandom >large"
    );
    order(lab, &["fill", &lab.name, "--", "sh", "-c", &script]);
}

/// Serves a directory of this machine, and the files of the lab as the host `remote`.
fn serve(lab: &Lab, local: &Path, send_timeout: &str) -> Server {
    serve_remote(&mount_point(lab), local, send_timeout)
}

fn serve_remote(remote: &Path, local: &Path, send_timeout: &str) -> Server {
    let config = local.with_extension("toml");
    let text = format!("[[host]]\nnames = [\"remote\"]\nroot = {remote:?}\n");
    std::fs::write(&config, text).expect("room");
    let mut command = std::process::Command::new(common::headway());
    command.env("HEADWAY_RELOAD_TIMEOUT_MS", "1000");
    let config = config.to_str().expect("plain");
    let arguments = [
        "--config",
        config,
        "--workers",
        "1",
        "--listing",
        "--send-timeout",
        send_timeout,
        "--drain-timeout",
        "100ms",
    ];
    Server::start(command, local, &arguments)
}

/// A root that is not on the file server, with a directory in it. The folder around it is removed in the end.
pub(super) fn local_root() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("room");
    let local = folder.path().join("local");
    std::fs::create_dir_all(local.join("directory")).expect("room");
    (folder, local)
}

fn request(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: remote\r\nConnection: close\r\n\r\n")
}

fn begin(server: &Server, path: &str) -> TcpStream {
    let mut client = server.connect();
    send(&mut client, request("GET", path));
    client
}

/// The large file is open, and its bytes are not in memory.
fn open_large_file(server: &Server, lab: &Lab) {
    let mut client = server.connect();
    send(&mut client, request("HEAD", "/large"));
    let mut head = String::new();
    client.read_to_string(&mut head).expect("a response");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let file = std::fs::File::open(mount_point(lab).join("large")).expect("there");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("a regular file");
}

pub(super) fn mount_point(lab: &Lab) -> PathBuf {
    let status = lab.status();
    status["disk"]["mount_point"]
        .as_str()
        .expect("a path")
        .into()
}

/// A look at the path has to ask the file server.
pub(super) fn wait_until_forgotten(path: &Path) {
    wait_until("the kernel has forgotten the name", || {
        let known = rustix::fs::openat2(
            rustix::fs::CWD,
            path,
            rustix::fs::OFlags::PATH,
            rustix::fs::Mode::empty(),
            rustix::fs::ResolveFlags::CACHED,
        );
        known.is_err()
    });
}

fn assert_unavailable(response: &Response) {
    assert_eq!(response.status, 503, "{}", response.head);
    assert!(response.field("Retry-After").is_some(), "{}", response.head);
}

/// Needs: root: makes a lab (FUSE)
#[test]
fn cold_requests_get_503_and_other_file_systems_are_served_when_a_file_server_is_gone() {
    let test = "cold_requests_get_503_and_other_file_systems_are_served_when_a_file_server_is_gone";
    let Some(lab) = lab_with_files(test) else {
        return;
    };
    add_files(&lab);
    let (_folder, local) = local_root();
    let mut server = serve(&lab, &local, "5s");
    let mut begun = tiny_client(&*server.address);
    send(&mut begun, request("GET", "/large"));
    begun.read_exact(&mut [0; 100]).expect("its beginning");
    open_large_file(&server, &lab);
    order(&lab, &["disk", "--name", &lab.name, "stall", "120s"]);
    let mut waiting = vec![begin(&server, "/large")];
    waiting.extend((1..=60).map(|number| begin(&server, &format!("/{number}/file"))));
    server.wait_for("helpers that wait for the file server", |server| {
        counter(server, "helpers_busy") >= 16
    });
    // A helper reads a directory.
    assert_eq!(get(&server, "/directory/").status, 200);
    for mut client in waiting {
        assert_unavailable(&receive(&mut client).expect("a response"));
    }
    let mut rest = Vec::new();
    let end = begun.read_to_end(&mut rest);
    assert!(rest.len() < LARGE_BYTES, "{end:?}");
    let busy = counter(&server, "helpers_busy");
    assert!(busy <= 18, "{busy} helpers wait for one file system");
    assert_eq!(get(&server, "/directory/").status, 200);
    assert_unavailable(&exchange(&server, request("GET", "/1/file")));
    server.signal(Signal::HUP);
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    order(&lab, &["disk", "--name", &lab.name, "model"]);
}

/// Needs: root: makes a lab (FUSE)
#[test]
fn reload_fails_in_time_and_a_dead_worker_is_replaced_when_a_file_server_is_gone() {
    let test = "reload_fails_in_time_and_a_dead_worker_is_replaced_when_a_file_server_is_gone";
    let Some(lab) = lab_with_files(test) else {
        return;
    };
    add_files(&lab);
    let (_folder, local) = local_root();
    let remote = mount_point(&lab).join("1");
    let server = serve_remote(&remote, &local, "2s");
    let master = |name: &str| server.status()["master"][name].clone();
    assert_eq!(exchange(&server, request("GET", "/file")).status, 200);
    order(&lab, &["disk", "--name", &lab.name, "stall", "120s"]);
    wait_until_forgotten(&remote);
    server.signal(Signal::HUP);
    server.wait_for("the failure", |_| master("reload_failures") == 1);
    let why = master("reload_error")
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert!(why.contains("a file system does not answer"), "{why}");
    assert!(why.contains(&remote.display().to_string()), "{why}");
    assert_eq!(get(&server, "/directory/").status, 200);
    let [worker] = server.children("serve-worker")[..] else {
        panic!("one worker");
    };
    headway_test_support::server::kill(worker);
    server.wait_for("another worker", |server| {
        !server.children("serve-worker").contains(&worker)
    });
    // Its helper reads a directory.
    assert_eq!(get(&server, "/directory/").status, 200);
    assert_unavailable(&exchange(&server, request("GET", "/file")));
    order(&lab, &["disk", "--name", &lab.name, "model"]);
    assert_eq!(exchange(&server, request("GET", "/file")).status, 200);
    server.signal(Signal::HUP);
    server.wait_for("the reload", |_| master("reloads") == 1);
    assert_eq!(exchange(&server, request("GET", "/file")).status, 200);
}

/// Needs: root: makes a lab (FUSE)
#[test]
fn server_starts_and_answers_503_for_a_root_on_a_file_server_that_is_gone() {
    let test = "server_starts_and_answers_503_for_a_root_on_a_file_server_that_is_gone";
    let Some(lab) = lab_with_files(test) else {
        return;
    };
    add_files(&lab);
    let (_folder, local) = local_root();
    std::fs::write(local.join("file"), "local").expect("room");
    let remote = mount_point(&lab).join("1");
    order(&lab, &["disk", "--name", &lab.name, "stall", "120s"]);
    wait_until_forgotten(&remote);
    let server = serve_remote(&remote, &local, "2s");
    assert_eq!(get(&server, "/file").text(), "local");
    assert_unavailable(&exchange(&server, request("GET", "/file")));
    assert_eq!(get(&server, "/directory/").status, 200);
    let [worker] = server.children("serve-worker")[..] else {
        panic!("one worker");
    };
    headway_test_support::server::kill(worker);
    server.wait_for("another worker", |server| {
        !server.children("serve-worker").contains(&worker)
    });
    assert_eq!(get(&server, "/file").text(), "local");
    assert_unavailable(&exchange(&server, request("GET", "/file")));
    order(&lab, &["disk", "--name", &lab.name, "model"]);
    server.wait_for("the files", |server| {
        exchange(server, request("GET", "/file")).text() == "1\n"
    });
    assert_eq!(get(&server, "/file").text(), "local");
    drop(server);
}

/// Needs: root: makes a lab (FUSE)
#[test]
fn large_file_is_sent_whole_after_the_file_server_came_back_with_other_numbers() {
    let test = "large_file_is_sent_whole_after_the_file_server_came_back_with_other_numbers";
    let Some(lab) = lab_with_files(test) else {
        return;
    };
    add_files(&lab);
    let (_folder, local) = local_root();
    let server = serve(&lab, &local, "20s");
    open_large_file(&server, &lab);
    order(&lab, &["disk", "--name", &lab.name, "restart"]);
    let response = exchange(&server, request("GET", "/large"));
    assert_eq!(response.status, 200, "{}", response.head);
    let content = std::fs::read(mount_point(&lab).join("large")).expect("there");
    assert!(response.body == content);
    drop(server);
}

/// A body of lines, all of which are the number of its version.
fn version(number: usize, lines: usize) -> Vec<u8> {
    format!("{number:07}\n").repeat(lines).into_bytes()
}

/// Needs: root: makes a lab (FUSE)
#[test]
fn every_response_is_one_whole_version_when_remote_files_are_replaced_all_the_time() {
    let test = "every_response_is_one_whole_version_when_remote_files_are_replaced_all_the_time";
    if !can(test, &["disk"]) {
        return;
    }
    let lab = Lab::up(&["--disk", "network-2ms", "--filesystem", "remote"]);
    let files = [("small", 100), ("large", 400_000)];
    let top = mount_point(&lab);
    let remounted = std::process::Command::new("mount")
        .args(["-o", "remount,rw"])
        .arg(&top)
        .status();
    assert!(remounted.expect("mount").success());
    let replace = |number| {
        for (name, lines) in files {
            std::fs::write(top.join("new"), version(number, lines)).expect("room");
            std::fs::rename(top.join("new"), top.join(name)).expect("both are there");
        }
    };
    replace(0);
    let (_folder, local) = local_root();
    let server = serve(&lab, &local, "20s");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients = files.map(|(name, lines)| {
            let (server, is_over) = (&server, &is_over);
            scope.spawn(move || {
                let mut seen = BTreeSet::new();
                while !is_over.load(Ordering::Relaxed) {
                    let response = exchange(server, request("GET", &format!("/{name}")));
                    assert_eq!(response.status, 200, "{}", response.head);
                    let number = String::from_utf8_lossy(&response.body[..7]).parse();
                    let number = number.expect("a number");
                    assert!(response.body == version(number, lines), "{name}");
                    seen.insert(number);
                }
                assert!(seen.len() > 1, "{name}: only version {seen:?}");
            })
        });
        for number in 1..=200 {
            replace(number);
            if clients.iter().any(|client| client.is_finished()) {
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    drop(server);
}
