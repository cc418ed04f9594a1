//! Descriptors run out, and the disk of the log is full.

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};

use headway_test_support::disks::Mount;
use headway_test_support::server::Server;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::clients::*;

/// Lets a process open `room` more descriptors and no more; gives the limit it had.
pub fn leave_room(pid: i32, room: usize) -> Rlimit {
    let open = descriptors(pid);
    // New descriptors get the lowest free numbers, and the limit is one on numbers.
    let free = (0..).filter(|number| !open.contains(number));
    let limit = free.take(room).last().map_or(0, |last| last + 1);
    set_limit(pid, Some(limit))
}

/// The numbers of a process's descriptors.
fn descriptors(pid: i32) -> Vec<u64> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    open.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

fn set_limit(pid: i32, current: Option<u64>) -> Rlimit {
    let pid = Pid::from_raw(pid);
    let read = rustix::process::getrlimit(Resource::Nofile);
    let limit = Rlimit {
        current,
        maximum: read.maximum,
    };
    prlimit(pid, Resource::Nofile, limit).unwrap()
}

#[test]
fn all_clients_are_served_in_the_end_when_descriptors_run_out() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    fs::write(root.path().join("b"), contents(1, 200_000)).unwrap();
    for events in ["select", "poll", "epoll", "epoll-edge"] {
        // Names are asked for again at each request, which takes a descriptor for a moment.
        let arguments = ["--workers", "1", "--revalidate", "0ms", "--events", events];
        let server = Server::start(program(), root.path(), &arguments);
        for path in ["/a", "/b"] {
            assert_eq!(get(&server.address, path).0, 200);
        }
        server.wait_for("a helper", |server| {
            counter(&server.status(), "helpers") == 1
                && counter(&server.status(), "connections_open") == 0
        });
        let worker = server.children("serve-worker")[0];
        leave_room(worker, 20);
        let mut clients: Vec<TcpStream> = (0..60)
            .map(|_| TcpStream::connect(&server.address).unwrap())
            .collect();
        // Both at once: an idle connection may close for one that waits.
        for client in &mut clients {
            send_get(client, "/a");
            send_get(client, "/b");
        }
        server.wait_for("the pause", |server| {
            counter(&server.status(), "accept_pauses") > 0
        });
        for mut client in clients {
            assert_eq!(
                read_response(&mut client),
                (200, b"hello".into()),
                "{events}"
            );
            assert!(read_response(&mut client) == (200, contents(1, 200_000)));
        }
        server.wait_for("room again", |server| {
            counter(&server.status(), "connections_open") == 0
        });
        assert_eq!(get(&server.address, "/a").0, 200);
        let status = server.status();
        assert_eq!(counter(&status, "connections_reset"), 0);
        let said = server.stop();
        assert!(said.contains("accepting paused"), "{said}");
    }
}

#[test]
fn upload_gets_503_when_no_descriptor_is_left_to_read_it_back() {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let root = root();
    let config = root.path().join("server.toml");
    let proxy = upstream.local_addr().unwrap();
    let location = format!(
        "[[location]]\nprefix = \"/p/\"\nproxy = \"{proxy}\"\nconcurrency = 1\n\
         keepalive-unsafe-methods = true\n"
    );
    fs::write(&config, location).unwrap();
    let arguments = ["--workers", "1", "--config", config.to_str().unwrap()];
    let server = Server::start(program(), root.path(), &arguments);
    // It occupies the upstream, so the upload waits with its whole body.
    let mut first = server.connect();
    send_get(&mut first, "/p/first");
    let (mut connection, _) = upstream.accept().unwrap();
    let mut upload = server.connect();
    let head = b"POST /p/ HTTP/1.1\r\nHost: x\r\nContent-Length: 600000\r\n\r\n";
    upload.write_all(head).unwrap();
    upload.write_all(&contents(1, 600_000)).unwrap();
    server.wait_for("the whole body", |server| {
        counter(&server.status(), "handler_queue_length") == 1
    });
    leave_room(server.children("serve-worker")[0], 0);
    let response = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    connection.write_all(response).unwrap();
    assert_eq!(read_response(&mut first).0, 200);
    assert_eq!(read_response(&mut upload).0, 503);
}

#[test]
fn idle_connections_close_when_descriptors_run_out() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    for events in ["select", "poll", "epoll", "epoll-edge"] {
        let arguments = [
            "--workers",
            "1",
            "--idle-timeout",
            "10m",
            "--events",
            events,
        ];
        let server = Server::start(program(), root.path(), &arguments);
        assert_eq!(get(&server.address, "/a").0, 200);
        server.wait_for("a helper", |server| {
            counter(&server.status(), "helpers") == 1
                && counter(&server.status(), "connections_open") == 0
        });
        let mut busy = server.connect();
        busy.write_all(b"GET /a HTTP/1.1\r\n").unwrap();
        let mut idle: Vec<TcpStream> = (0..40).map(|_| server.connect()).collect();
        for client in &mut idle {
            send_get(client, "/a");
            assert_eq!(read_response(client).0, 200);
        }
        let worker = server.children("serve-worker")[0];
        let numbers = descriptors(worker);
        set_limit(worker, numbers.into_iter().max().map(|last| last + 1));
        // The first of them get the numbers that are free.
        let ask = |_| {
            let mut client = server.connect();
            send_get(&mut client, "/a");
            client
        };
        let mut others: Vec<TcpStream> = (0..60).map(ask).collect();
        for client in &mut others {
            assert_eq!(read_response(client), (200, b"hello".into()), "{events}");
        }
        busy.write_all(b"Host: x\r\n\r\n").unwrap();
        assert_eq!(read_response(&mut busy).0, 200, "{events}");
        let status = server.status();
        let evicted = counter(&status, "connections_evicted_descriptors");
        assert!(evicted > 0, "{events}");
        assert_eq!(counter(&status, "connections_evicted_limit"), 0);
        assert_eq!(
            read_to_close(&mut idle[0]),
            b"",
            "{events}: the longest idle"
        );
    }
}

#[test]
fn cached_files_are_closed_when_they_hold_every_descriptor() {
    let root = root();
    for number in 0..300 {
        fs::write(root.path().join(number.to_string()), "hello").unwrap();
    }
    for events in ["select", "poll", "epoll", "epoll-edge"] {
        let arguments = ["--workers", "1", "--precompressed=off", "--events", events];
        let server = Server::start(program(), root.path(), &arguments);
        // The numbers of descriptors that are free again are given out first, and the limit is one
        // on numbers: the last connection has a high one, all low ones are files.
        let mut first = server.connect();
        for number in 0..299 {
            send_get(&mut first, &format!("/{number}"));
            assert_eq!(read_response(&mut first).0, 200);
        }
        let mut second = server.connect();
        send_get(&mut second, "/0");
        assert_eq!(read_response(&mut second).0, 200);
        drop(first);
        server.wait_for("the end of the first", |server| {
            counter(&server.status(), "connections_open") == 1
        });
        send_get(&mut second, "/299");
        assert_eq!(read_response(&mut second).0, 200);
        drop(second);
        server.wait_for("idleness", |server| {
            let status = server.status();
            counter(&status, "connections_open") == 0
                && counter(&status, "file_cache_descriptors") == 300
        });
        let worker = server.children("serve-worker")[0];
        set_limit(worker, Some(200));
        assert_eq!(
            get(&server.address, "/7"),
            (200, b"hello".into()),
            "{events}"
        );
        let status = server.status();
        assert!(counter(&status, "accept_pauses") > 0, "{events}");
        assert!(counter(&status, "file_cache_descriptors") < 300, "{events}");
        // A helper has closed them: the loop does not.
        assert!(counter(&status, "deferred_closes") >= 32, "{events}");
    }
}

#[test]
fn requests_get_503_while_a_helper_has_no_descriptors() {
    let directory = match tempfile::tempdir_in("/dev/shm") {
        Ok(directory) => directory,
        Err(_) => root(),
    };
    let root = directory.path();
    fs::create_dir(root.join("d")).unwrap();
    // No page of a hole in tmpfs is ever resident, so a helper has to copy it.
    for (name, size) in [("small", 10_000), ("large", 1_000_000)] {
        let file = fs::File::create(root.join(name)).unwrap();
        file.set_len(size).unwrap();
    }
    fs::write(root.join("a"), "hello").unwrap();
    // Names are remembered, contents are not.
    let mut arguments = vec!["--workers", "1", "--helpers-max", "1", "--listing"];
    arguments.extend(["--precompressed=off", "--response-cache-max", "0"]);
    let server = Server::start(program(), root, &arguments);
    for path in ["/a", "/d/", "/small", "/large"] {
        assert_eq!(get(&server.address, path).0, 200);
    }
    server.wait_for("a helper", |server| {
        counter(&server.status(), "helpers") == 1
    });
    // One descriptor: enough to be given a file, not for its copy.
    for room in [1, 0] {
        let before = leave_room(helper(&server), room);
        for path in ["/d/", "/small", "/large", "/d/"] {
            let (status, body) = get(&server.address, path);
            let whole = match path {
                "/small" => body == [0; 10_000],
                "/large" => body == vec![0; 1_000_000],
                _ => body.starts_with(b"<!"),
            };
            assert!(
                status == 503 || (status == 200 && whole),
                "{room} {path}: {status}"
            );
            assert_eq!(
                get(&server.address, "/a"),
                (200, b"hello".into()),
                "{room}: a request that needs no helper is served"
            );
        }
        set_limit(helper(&server), before.current);
    }
    for (path, length) in [("/small", 10_000), ("/large", 1_000_000)] {
        assert_eq!(get(&server.address, path), (200, vec![0; length]));
    }
    assert_eq!(get(&server.address, "/d/").0, 200);
    assert_eq!(
        counter(&server.status(), "io_errors"),
        0,
        "no disk is to blame"
    );
}

/// The process ID of the only helper: a shortage may have ended the first.
fn helper(server: &Server) -> i32 {
    let mut found = Vec::new();
    while found.is_empty() {
        found = server.children("serve-helper");
    }
    found[0]
}

#[test]
fn log_lines_are_dropped_and_counted_when_every_write_fails() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    let server = Server::start(program(), root.path(), &["--log", "/dev/full"]);
    for _ in 0..50 {
        assert_eq!(get(&server.address, "/a"), (200, b"hello".into()));
    }
    server.wait_for("all lines to be counted", |server| {
        server.status()["master"]["log_lines_lost"] == 50
    });
    let said = server.stop();
    assert!(
        said.contains("ENOSPC") || said.contains("No space"),
        "{said}"
    );
}

/// Needs: root: mounts a small file system in memory
#[test]
fn log_continues_with_whole_lines_when_a_full_disk_has_space_again() {
    let mount = match Mount::memory("64k") {
        Ok(mount) => mount,
        Err(why) => {
            return skip(
                "log_continues_with_whole_lines_when_a_full_disk_has_space_again",
                &why,
            );
        }
    };
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    let filler = mount.path().join("filler");
    let log = mount.path().join("access.log");
    let arguments = ["--log", log.to_str().unwrap(), "--log-format", "common"];
    let server = Server::start(program(), root.path(), &arguments);
    // The log has begun a page, so that the first write that does not fit is torn.
    server.wait_for("the first line", |server| {
        assert_eq!(get(&server.address, "/a?first"), (200, b"hello".into()));
        fs::read_to_string(&log).is_ok_and(|text| text.contains("/a?first"))
    });
    // It ends with an error when nothing more fits, which is what it is for.
    let _ = fs::write(&filler, vec![0; 128 << 10]);
    let lost = |server: &Server| {
        server.status()["master"]["log_lines_lost"]
            .as_u64()
            .unwrap()
    };
    server.wait_for("lines to be lost", |server| {
        assert_eq!(get(&server.address, "/a?full"), (200, b"hello".into()));
        lost(server) > 0
    });
    fs::remove_file(&filler).unwrap();
    server.wait_for("new lines in the log", |server| {
        assert_eq!(get(&server.address, "/a?room"), (200, b"hello".into()));
        fs::read_to_string(&log).is_ok_and(|text| text.contains("/a?room"))
    });
    drop(server);
    let text = fs::read_to_string(&log).unwrap();
    let ended = |line: &&str| line.ends_with("HTTP/1.1\" 200 5");
    // The write that met the end of the disk may have left the beginning of a line. It must stand
    // alone: a whole line behind it on the same line would be lost to every reader of the log.
    for line in text.lines().filter(ended) {
        let begins = line.matches("127.0.0.1 - - [").count();
        assert!(line.starts_with("127.0.0.1 - - [") && begins == 1, "{line}");
    }
    let torn = text.lines().filter(|line| !ended(line)).count();
    assert!(torn <= 1, "{text}");
    assert!(text.lines().last().is_some_and(|line| ended(&line)));
}
