//! Helpers are killed, or hang as they do on a broken disk.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use headway_test_support::server::Server;
use rustix::process::{Pid, Signal, kill_process};

use crate::clients::*;

const FILES: usize = 8;

fn size_of(number: usize) -> usize {
    [900, 50_000, 400_000, 3_000_000][number % 4]
}

/// Fetches the files again and again, cold each time, until told to stop.
fn fetch(address: &str, root: &Path, stop: &AtomicBool, responses: &AtomicUsize) {
    while !stop.load(Ordering::Relaxed) {
        for number in 0..FILES {
            make_cold(&root.join(number.to_string()));
            let (status, body) = get(address, &format!("/{number}"));
            assert_eq!(status, 200, "{number}");
            assert!(body == contents(number, size_of(number)), "{number}");
            responses.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn responses_are_correct_when_helpers_are_killed_under_load() {
    let root = root();
    for number in 0..FILES {
        let path = root.path().join(number.to_string());
        fs::write(path, contents(number, size_of(number))).unwrap();
    }
    let arguments = ["--response-cache-max", "64KiB", "--revalidate", "0ms"];
    let server = Server::start(program(), root.path(), &arguments);
    let (stop, responses) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for _ in 0..4 {
            scope.spawn(|| fetch(&server.address, root.path(), &stop, &responses));
        }
        let mut kills = 0;
        while kills < 20 {
            let before = responses.load(Ordering::Relaxed);
            for pid in server.children("serve-helper") {
                // It may have ended by itself since it was found.
                let killed = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
                kills += usize::from(killed.is_ok());
            }
            server.wait_for("service after the kill", |_| {
                responses.load(Ordering::Relaxed) > before + 1
            });
        }
    });
    let status = server.status();
    assert!(counter(&status, "helper_deaths") >= 10, "{status}");
    assert_eq!(counter(&status, "responses_aborted"), 0);
    assert_eq!(counter(&status, "io_errors"), 0);
}

#[test]
fn warm_files_are_served_when_every_helper_hangs() {
    let root = root();
    fs::create_dir(root.path().join("d")).unwrap();
    fs::write(root.path().join("a"), "hello").unwrap();
    let arguments = ["--workers", "1", "--helpers-max", "1", "--listing"];
    let server = Server::start(program(), root.path(), &arguments);
    assert_eq!(get(&server.address, "/a").0, 200);
    server.wait_for("a helper", |server| {
        counter(&server.status(), "helpers") == 1
    });
    let stopped = Stopped::stop(server.children("serve-helper"));
    let mut waiting = TcpStream::connect(&server.address).unwrap();
    send_get(&mut waiting, "/d/");
    for _ in 0..20 {
        assert_eq!(get(&server.address, "/a"), (200, b"hello".into()));
    }
    drop(stopped);
    assert_eq!(read_response(&mut waiting).0, 200);
}

#[test]
fn one_hanging_helper_loses_only_its_own_job() {
    let root = root();
    for name in ["hung", "d", "e"] {
        fs::create_dir(root.path().join(name)).unwrap();
    }
    let arguments = [
        "--workers",
        "1",
        "--helpers-max",
        "2",
        "--listing",
        "--send-timeout",
        "500ms",
    ];
    let server = Server::start(program(), root.path(), &arguments);
    server.wait_for("a helper", |server| {
        counter(&server.status(), "helpers") == 1
    });
    let stopped = Stopped::stop(server.children("serve-helper"));
    // As on a file system whose server is gone: no signal ends this helper, and its job never ends.
    for _ in 0..3 {
        assert_eq!(
            get(&server.address, "/hung/").0,
            503,
            "given up in time, again and again"
        );
        for path in ["/d/", "/e/"] {
            assert_eq!(get(&server.address, path).0, 200, "another helper does it");
        }
    }
    let status = server.status();
    assert_eq!(
        (
            counter(&status, "helpers"),
            counter(&status, "helpers_busy")
        ),
        (2, 1)
    );
    drop(stopped);
    server.wait_for("the last answer", |server| {
        counter(&server.status(), "helpers_busy") == 0
    });
    assert_eq!(get(&server.address, "/hung/").0, 200);
}

#[test]
fn other_directories_are_read_when_one_directory_holds_every_helper() {
    let root = root();
    for number in 0..12 {
        fs::create_dir_all(root.path().join(format!("slow/{number}"))).unwrap();
    }
    fs::create_dir(root.path().join("fast")).unwrap();
    let arguments = [
        "--workers",
        "1",
        "--helpers",
        "8",
        "--listing",
        "--send-timeout",
        "2s",
    ];
    let server = Server::start(program(), root.path(), &arguments);
    server.wait_for("helpers", |server| {
        counter(&server.status(), "helpers") == 8
    });
    let stopped = Stopped::stop(server.children("serve-helper"));
    let begin = |number| {
        let mut client = TcpStream::connect(&server.address).unwrap();
        send_get(&mut client, &format!("/slow/{number}/"));
        client
    };
    let waiting: Vec<TcpStream> = (0..12).map(begin).collect();
    server.wait_for("busy helpers", |server| {
        counter(&server.status(), "helpers_busy") == 8
    });
    assert_eq!(get(&server.address, "/fast/").0, 200);
    for mut client in waiting {
        assert_eq!(read_response(&mut client).0, 503);
    }
    assert_eq!(get(&server.address, "/fast/").0, 200);
    assert_eq!(counter(&server.status(), "helpers"), 9);
    drop(stopped);
    server.wait_for("the last answer", |server| {
        counter(&server.status(), "helpers_busy") == 0
    });
    assert_eq!(get(&server.address, "/slow/0/").0, 200);
}
