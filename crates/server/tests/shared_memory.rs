//! What workers share: memory that a connection writes to, and a request does not.
//!
//! A cache line that each request writes would go from one processor to the next, and many workers would
//! wait for it (README of `bench/runs/*-scaling`).

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::site::*;

/// The writable memory of a worker that other processes have, too. The kernel's records of its calls are
/// its own.
fn shared_memory(pid: i32) -> Vec<(String, Vec<u8>)> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut parts = Vec::new();
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = words.get(5).copied().unwrap_or_default();
        if words[1] != "rw-s" || name.starts_with("anon_inode:") {
            continue;
        }
        let (from, to) = words[0].split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        let mut part = vec![0; (number(to) - number(from)) as usize];
        memory.read_exact_at(&mut part, number(from)).unwrap();
        parts.push((name.to_owned(), part));
    }
    parts
}

fn of_workers(server: &Server) -> Vec<(String, Vec<u8>)> {
    let workers = server.children("serve-worker");
    assert_eq!(workers.len(), 2);
    workers.into_iter().flat_map(shared_memory).collect()
}

#[test]
fn connections_write_to_memory_that_workers_share_and_requests_do_not() {
    let site = Site::new();
    for (name, bytes) in [("small", 500), ("large", 60_000)] {
        fs::write(site.path("root").join(name), vec![b'x'; bytes]).unwrap();
    }
    let (root, log) = (site.path("root"), site.path("log"));
    let file = site.path("shared.toml");
    let text = format!(
        "root = {root:?}\nlisten = \"127.0.0.1:0\"\nstatus = \"127.0.0.1:0\"\nlog = {log:?}\nworkers = 2\nlisteners = \"shared\"\n"
    );
    fs::write(&file, text).unwrap();
    let server = Server::start_from_file(program(), &file);

    let mut stream = server.connect();
    let mut ask = |times: usize| {
        for name in (0..times).flat_map(|_| ["small", "large"]) {
            send(
                &mut stream,
                format!("GET /{name} HTTP/1.1\r\nHost: x\r\n\r\n"),
            );
            assert_eq!(receive(&mut stream).unwrap().status, 200);
        }
    };
    ask(50);
    let before = of_workers(&server);
    assert!(!before.is_empty(), "no shared memory was found");
    ask(500);
    let after = of_workers(&server);
    let written = before
        .iter()
        .zip(&after)
        .filter(|(one, other)| one != other);
    let names: Vec<&str> = written.map(|((name, _), _)| name.as_str()).collect();
    assert_eq!((before.len(), names), (after.len(), vec![]));

    // So what is looked at is the right memory.
    let _another = server.get("/small");
    let _open = server.connect();
    server.wait_for("the number of connections is published", |server| {
        of_workers(server) != after
    });
}
