//! Small files are pinned in the page cache for all workers, by a process that may be killed.

use std::fs::{self, File};
use std::path::Path;

use headway_os::residency::mincore;
use headway_test_support::server::Server;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::clients::*;

const BYTES: usize = 10_000;

/// Whether pages are in memory after the kernel dropped all that it may.
fn stays(path: &Path) -> bool {
    make_cold(path);
    mincore(File::open(path).unwrap(), 0, BYTES as u64).unwrap() > 0
}

fn pinned(status: &Value) -> u64 {
    status["master"]["pinned"]["files"].as_u64().unwrap_or(0)
}

/// Asks for a file that no memory holds, until it is pinned.
fn ask_until_pinned(server: &Server, path: &Path, number: usize) {
    let name = path.file_name().unwrap().to_str().unwrap();
    server.wait_for(&format!("{name} pinned"), |server| {
        make_cold(path);
        let response = get(&server.address, &format!("/{name}"));
        assert!(response == (200, contents(number, BYTES)), "{name}");
        stays(path)
    });
}

#[test]
fn small_file_stays_in_the_page_cache_for_all_workers_until_its_pinner_is_killed() {
    const NAME: &str =
        "small_file_stays_in_the_page_cache_for_all_workers_until_its_pinner_is_killed";
    let root = root();
    let path = |name: &str| root.path().join(name);
    for (number, name) in ["one", "other", "unasked"].into_iter().enumerate() {
        fs::write(path(name), contents(number, BYTES)).unwrap();
    }
    if stays(&path("unasked")) {
        return skip(NAME, "files do not leave memory here");
    }
    if headway_files::pinnable_bytes(1 << 20) < 1 << 20 {
        return skip(NAME, "too little may be locked (RLIMIT_MEMLOCK)");
    }
    // Nothing in the workers' own memory, so that each request reads the file.
    let options = [
        "--workers",
        "2",
        "--pin-max",
        "1MiB",
        "--response-cache-max",
        "0",
        "--content-store-max",
        "0",
    ];
    let server = Server::start(program(), root.path(), &options);
    let pinners = server.children("serve-store");
    assert_eq!(pinners.len(), 1);
    ask_until_pinned(&server, &path("one"), 0);
    assert!(!stays(&path("unasked")));
    server.wait_for("the page to say so", |server| pinned(&server.status()) == 1);
    let page = headway_test_support::server::get(&server.status, "/status").2;
    assert!(page.contains("Page-cache pinning"));

    let pinner = Pid::from_raw(pinners[0]).unwrap();
    kill_process(pinner, Signal::KILL).unwrap();
    server.wait_for("another pinner", |server| {
        let now = server.children("serve-store");
        now.len() == 1 && now != pinners
    });
    let status = server.status();
    assert_eq!(status["master"]["store_deaths"], 1);
    assert!(!stays(&path("one")), "what it pinned went with it");
    // Workers need no notice of the new process.
    ask_until_pinned(&server, &path("other"), 1);
    server.stop();
}

#[test]
fn nothing_is_pinned_by_default_without_a_memory_limit() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    let server = Server::start(program(), root.path(), &["--workers", "2"]);
    assert_eq!(get(&server.address, "/a"), (200, b"hello".into()));
    let status = server.status();
    // The tests themselves may run in a group with a limit.
    let limited = headway_server::config::Environment::detect().memory.limited;
    assert_eq!(status["master"]["pinned"].is_null(), !limited);
    server.stop();
}
