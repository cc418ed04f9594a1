//! Headway on remote files: requests for busy ones do not wait for the file server.

use std::time::Duration;

use headway_test_support::client::{counter, exchange, get};
use headway_test_support::server::Server;

use crate::common;

use super::support::{Lab, can, headway_lab, text, wait_until};

/// A round trip of 20 ms, and files `a` and `b` of one letter.
pub(super) fn lab_with_files(test: &str) -> Option<Lab> {
    if !can(test, &["disk"]) {
        return None;
    }
    let lab = Lab::up(&["--disk", "network-20ms", "--filesystem", "remote"]);
    let script = "printf a >a; printf b >b";
    order(&lab, &["fill", &lab.name, "--", "sh", "-c", script]);
    Some(lab)
}

pub(super) fn order(lab: &Lab, arguments: &[&str]) {
    let output = headway_lab(arguments).output().expect("started");
    let error = text(&output.stderr);
    assert!(output.status.success(), "{}: {error}", lab.name);
}

fn serve(lab: &Lab) -> Server {
    let status = lab.status();
    let root = status["disk"]["mount_point"].as_str().expect("a path");
    let command = std::process::Command::new(common::headway());
    Server::start(command, root.as_ref(), &["--workers", "1"])
}

/// Makes the file busy: it is requested again within `revalidate`.
fn request_twice(server: &Server, path: &str) {
    for _ in 0..2 {
        assert_eq!(get(server, path).status, 200);
    }
}

/// Requests a file ten times per second, for longer than the kernel believes a name (3 s).
fn request_often(server: &Server, path: &str, status: u16, body: &str) {
    for _ in 0..45 {
        let response = get(server, path);
        assert_eq!((response.status, &*response.text()), (status, body));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Needs: root: makes a lab (FUSE)
#[test]
fn busy_file_is_served_while_the_file_server_stalls() {
    let test = "busy_file_is_served_while_the_file_server_stalls";
    let Some(lab) = lab_with_files(test) else {
        return;
    };
    let server = serve(&lab);
    request_twice(&server, "/a");
    // Longer than the client waits for a response.
    order(&lab, &["disk", "--name", &lab.name, "stall", "60s"]);
    request_often(&server, "/a", 200, "a");
    order(&lab, &["disk", "--name", &lab.name, "model"]);
    assert!(counter(&server, "file_cache_stale_hits") > 0);
    assert_eq!(get(&server, "/b").status, 200);
    drop(server);
}

/// Needs: root: makes a lab (FUSE)
#[test]
fn busy_file_is_served_while_the_file_server_fails_and_after_it_is_replaced() {
    let test = "busy_file_is_served_while_the_file_server_fails_and_after_it_is_replaced";
    let Some(lab) = lab_with_files(test) else {
        return;
    };
    let server = serve(&lab);
    request_twice(&server, "/a");
    order(&lab, &["disk", "--name", &lab.name, "fail", "0", "1"]);
    request_often(&server, "/a", 200, "a");
    assert_eq!(get(&server, "/b").status, 500);
    order(&lab, &["disk", "--name", &lab.name, "model"]);
    order(&lab, &["disk", "--name", &lab.name, "restart"]);
    request_often(&server, "/a", 200, "a");
    assert_eq!(get(&server, "/b").text(), "b");
    drop(server);
}

/// Needs: root: makes a lab (FUSE)
#[test]
fn files_are_reached_by_servers_of_other_users() {
    let test = "files_are_reached_by_servers_of_other_users";
    let Some(lab) = lab_with_files(test) else {
        return;
    };
    let status = lab.status();
    let mount = status["disk"]["mount_point"].as_str().expect("a path");
    let read = std::process::Command::new("setpriv")
        .args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "cat",
        ])
        .arg(format!("{mount}/a"))
        .output()
        .expect("util-linux");
    assert_eq!(text(&read.stdout), "a", "{}", text(&read.stderr));
}

/// Needs: root: makes a lab (FUSE)
#[test]
fn first_request_of_a_remote_file_waits_for_four_round_trips_and_a_later_one_gets_it_compressed() {
    let test = "first_request_of_a_remote_file_waits_for_four_round_trips_and_a_later_one_gets_it_compressed";
    let Some(lab) = lab_with_files(test) else {
        return;
    };
    let script = "printf page >page.html; printf compressed >page.html.gz";
    order(&lab, &["fill", &lab.name, "--", "sh", "-c", script]);
    let server = serve(&lab);
    let trips = || {
        let status = lab.status();
        let trips = status["disk"]["totals"]["reads"].as_u64();
        trips.unwrap_or_else(|| panic!("no reads in {status}"))
    };
    let request = "GET /page.html HTTP/1.1\r\nHost: test\r\nAccept-Encoding: gzip\r\n\r\n";
    let before = trips();
    assert_eq!(exchange(&server, request).text(), "page");
    // Attributes of the top directory, the name, the open, the content.
    let made = trips() - before;
    assert!((1..=4).contains(&made), "{made} round trips");
    wait_until("the compressed file is found", || {
        exchange(&server, request).text() == "compressed"
    });
    drop(server);
}
