//! The life of a server: its master and its workers, its access log, and the signals to stop.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;

use headway_test_support::server::{Server, exchange, kill, read, write};

use crate::site::program;

#[test]
fn aborted_download_is_logged_with_the_bytes_sent() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let large = std::fs::File::create(root.join("large")).unwrap();
    large.set_len(100 << 20).unwrap();
    let log = directory.path().join("access.log");
    let server = Server::start(program(), &root, &["--log", log.to_str().unwrap()]);
    let mut client = server.connect();
    write(&mut client, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
    client.read_exact(&mut [0; 1000]).unwrap();
    drop(client);
    server.wait_for("the line", |_| {
        let text = std::fs::read_to_string(&log).unwrap();
        let bytes = text.split("\"GET /large HTTP/1.1\" 200 ").nth(1);
        let bytes = bytes.and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        bytes.is_some_and(|bytes| (1..100 << 20).contains(&bytes))
    });
}

#[test]
fn request_in_flight_completes_after_a_stop_signal() {
    let mut server = Server::start_hello(program(), &["--header-timeout", "60s"]);
    let mut slow = server.connect();
    write(&mut slow, "GET / HTTP/1.1\r\nHost: x\r\n");
    // A second request on the same worker or another shows that the first was received.
    server.get("/");
    server.signal(rustix::process::Signal::TERM);
    write(&mut slow, "\r\n");
    let answer = read(&mut slow);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(server.wait().success());
}

#[test]
fn second_stop_signal_ends_the_server_at_once() {
    let mut server = Server::start_hello(
        program(),
        &["--drain-timeout", "10m", "--header-timeout", "10m"],
    );
    let mut slow = server.connect();
    write(&mut slow, "GET / HTTP/1.1\r\n");
    server.signal(rustix::process::Signal::INT);
    server.wait_for("the listener to close", |server| !server.accepts());
    server.signal(rustix::process::Signal::INT);
    assert!(server.wait().success());
}

#[test]
fn a_worker_is_replaced_when_it_is_killed() {
    let server = Server::start_hello(program(), &["--workers", "1"]);
    server.get("/");
    let before = server.status();
    let pid = before["workers"][0]["pid"].as_i64().unwrap();
    kill(pid as i32);
    server.wait_for("a new worker", |server| {
        let status = server.status();
        status["workers"][0]["pid"]
            .as_i64()
            .is_some_and(|new| new != pid)
    });
    assert_eq!(server.get("/").0, 200);
    let after = server.status();
    assert_eq!(after["master"]["worker_deaths"], 1);
    let requests =
        |status: &serde_json::Value| status["total"]["counters"]["requests_received"].as_u64();
    assert!(
        requests(&after) > requests(&before),
        "the total outlives the worker"
    );
}

#[test]
fn stopped_worker_is_replaced_and_an_idle_one_is_not() {
    let server = Server::start_hello(program(), &["--worker-timeout", "1s"]);
    let before = server.children("serve-worker");
    let [stopped, idle] = before[..] else {
        panic!("two workers: {before:?}")
    };
    let id = rustix::process::Pid::from_raw(stopped).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::STOP).unwrap();
    server.wait_for("a new worker", |server| {
        let now = server.children("serve-worker");
        now.len() == 2 && !now.contains(&stopped)
    });
    server.wait_for("an answer of both", |server| {
        server.status()["workers"].as_array().unwrap().len() == 2
    });
    let master = &server.status()["master"];
    assert_eq!(
        (&master["workers_stuck"], &master["worker_deaths"]),
        (&1.into(), &1.into())
    );
    assert!(server.children("serve-worker").contains(&idle));
    assert_eq!(server.get("/").0, 200);
    let metrics = headway_test_support::server::get(&server.status, "/metrics").2;
    assert!(
        metrics.contains("\nheadway_stuck_workers_replaced_total 1\n"),
        "{metrics}"
    );
    let said = server.stop();
    let line = format!("(process {stopped}, stopped) has made no progress for 1000 ms");
    assert!(said.contains(&line) && said.contains("signal 6"), "{said}");
}

#[test]
fn connections_of_one_address_count_across_workers() {
    // Workers accept in turn from one queue, so both have some.
    count_across_workers("shared", 6);
}

#[test]
fn connections_of_one_address_count_across_workers_with_their_own_listeners() {
    // The kernel distributes them by their ports: one worker has none in one of 2^39 cases.
    count_across_workers("reuseport", 40);
}

fn count_across_workers(listeners: &str, limit: usize) {
    let most = limit.to_string();
    let limited = ["--max-connections-per-address", &most];
    let server = Server::start_hello(
        program(),
        &[&limited[..], &["--listeners", listeners]].concat(),
    );
    let request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let status = |client: &mut std::net::TcpStream| {
        write(client, request);
        let mut head = [0; 12];
        client.read_exact(&mut head).unwrap();
        String::from_utf8(head.to_vec()).unwrap()
    };
    let enter = || {
        let mut client = server.connect();
        let head = status(&mut client);
        (client, head)
    };
    let open = |server: &Server| -> Vec<u64> {
        let status = server.status();
        let workers = status["workers"].as_array().unwrap().iter();
        workers
            .map(|worker| worker["counters"]["connections_open"].as_u64().unwrap())
            .collect()
    };
    let mut inside = Vec::new();
    for _ in 0..limit {
        let (client, head) = enter();
        assert_eq!(head, "HTTP/1.1 200");
        inside.push(client);
        // Every worker has answered this, and waits again.
        open(&server);
    }
    let of_workers = open(&server);
    assert!(of_workers.iter().all(|open| *open > 0), "{of_workers:?}");
    for _ in 0..4 {
        assert_eq!(enter().1, "HTTP/1.1 503");
    }
    // What a worker has counted is released when it dies.
    let pid = server.status()["workers"][0]["pid"].as_i64().unwrap();
    kill(pid as i32);
    server.wait_for("a new worker", |server| open(server) == [0, of_workers[1]]);
    for _ in 0..of_workers[0] {
        let (client, head) = enter();
        assert_eq!(head, "HTTP/1.1 200");
        inside.push(client);
    }
    assert_eq!(enter().1, "HTTP/1.1 503");
}

#[test]
fn json_log_has_the_host_and_the_milliseconds_of_each_request() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let log = log.to_str().unwrap();
    let server = Server::start_hello(program(), &["--log", log, "--log-format", "json"]);
    let address = server.connect().peer_addr().unwrap().to_string();
    for _ in 0..20 {
        exchange(
            &address,
            "GET / HTTP/1.1\r\nHost: a.example:80\r\nConnection: close\r\n\r\n",
        );
        // So that they do not all fall into the first millisecond of a second.
        std::thread::sleep(std::time::Duration::from_millis(7));
    }
    let lines = || std::fs::read_to_string(log).unwrap_or_default();
    server.wait_for("the lines", |_| lines().lines().count() == 20);
    let text = lines();
    assert_eq!(
        text.matches(",\"host\":\"a.example:80\",").count(),
        20,
        "{text}"
    );
    assert!(
        text.matches(".000Z\",").count() < 20,
        "whole seconds: {text}"
    );
}

#[test]
fn log_is_reopened_on_sigusr1_after_it_was_renamed() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let server = Server::start_hello(
        program(),
        &["--log", log.to_str().unwrap(), "--log-format", "common"],
    );
    server.get("/old");
    let holds = |path: &std::path::Path, word: &str| {
        std::fs::read_to_string(path).is_ok_and(|text| text.contains(word))
    };
    server.wait_for("the first line", |_| holds(&log, "GET /old "));
    assert_eq!(
        std::fs::metadata(&log).unwrap().permissions().mode() & 0o007,
        0
    );
    let old = directory.path().join("access.log.1");
    std::fs::rename(&log, &old).unwrap();
    server.signal(rustix::process::Signal::USR1);
    server.wait_for("the new file", |_| log.exists());
    server.get("/new");
    server.wait_for("the second line", |_| holds(&log, "GET /new "));
    assert!(!holds(&old, "GET /new "));
}

#[test]
fn log_goes_to_standard_output_when_that_is_a_socket() {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("access.log");
    std::os::unix::fs::symlink("/dev/stdout", &link).unwrap();
    for log in ["-", "/dev/stdout", link.to_str().unwrap()] {
        // As under systemd: a socket cannot be opened by its name.
        let (output, mut reader) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut program = program();
        program.stdout(std::os::fd::OwnedFd::from(output));
        let server = Server::start_hello(program, &["--log", log]);
        server.get("/asked");
        server.stop();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert!(
            text.contains("\"GET /asked HTTP/1.1\" 404"),
            "{log}: {text}"
        );
        assert!(!std::path::Path::new("-").exists());
    }
}

#[test]
fn malformed_requests_are_logged_with_their_line_and_counted_by_reason() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let server = Server::start_hello(program(), &["--log", log.to_str().unwrap()]);
    let chunked = "Transfer-Encoding: chunked\r\n\r\nz\r\n";
    let cases = [
        (
            "GET /\u{1b}[31m HTTP/1.1\r\n\r\n",
            r#"GET /\x1b[31m HTTP/1.1" 400"#,
            "syntax",
        ),
        (
            "GET /a HTTP/1.1\r\nA: b\r\n\r\n",
            r#"GET /a HTTP/1.1" 400"#,
            "host",
        ),
        (
            "GET a HTTP/1.1\r\nHost: x\r\n\r\n",
            r#"GET a HTTP/1.1" 400"#,
            "target",
        ),
        (
            "GET / HTTP/3.0\r\nHost: x\r\n\r\n",
            r#"GET / HTTP/3.0" 505"#,
            "unsupported",
        ),
        (
            &format!("GET /{} HTTP/1.1\r\n", "x".repeat(9000)),
            r#"x..." 414"#,
            "too_large",
        ),
        (
            "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\n",
            r#"GET / HTTP/1.1" 400"#,
            "framing",
        ),
        (
            &format!("GET /c HTTP/1.1\r\nHost: x\r\n{chunked}"),
            r#"GET /c HTTP/1.1" 400"#,
            "body",
        ),
    ];
    for (request, ..) in cases {
        let mut client = server.connect();
        write(&mut client, request);
        read(&mut client);
    }
    for (_, line, kind) in cases {
        server.wait_for(line, |_| {
            std::fs::read_to_string(&log).is_ok_and(|text| text.contains(line))
        });
        let name = format!("requests_rejected_{kind}");
        assert_eq!(server.status()["total"]["counters"][&name], 1, "{name}");
    }
    let text = std::fs::read_to_string(&log).unwrap();
    let line = r#""GET /a HTTP/1.1" 400 115 "-" "-""#;
    assert!(text.lines().any(|one| one.ends_with(line)), "{text}");
}

#[test]
fn log_is_complete_when_the_server_stops_with_a_slow_log() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &log, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    // Open for both, so that neither side waits for the other; a pipe holds 64 KiB.
    let holder = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&log)
        .unwrap();
    let mut reader = std::fs::File::open(&log).unwrap();
    let mut server = Server::start_hello(program(), &["--log", log.to_str().unwrap()]);
    let path = format!("/?{}", "x".repeat(1000));
    for _ in 0..150 {
        assert_eq!(server.get(&path).0, 200);
    }
    server.signal(rustix::process::Signal::TERM);
    server.wait_for("the listener to close", |server| !server.accepts());
    drop(holder);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text.lines().count(), 150);
    assert!(server.wait().success());
}

/// CPU time a process has used so far, in clock ticks.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit(") ").next().unwrap();
    let fields: Vec<&str> = after_name.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Without `--status`, no process holds the other end of the pipe that wakes the master.
#[test]
fn the_master_sleeps_when_nothing_happens() {
    let directory = tempfile::tempdir().unwrap();
    let ready = directory.path().join("ready");
    let mut child = program()
        .arg("serve")
        .arg(directory.path())
        .args([
            "--listen",
            "127.0.0.1:0",
            "--workers",
            "1",
            "--quiet",
            "--ready-file",
        ])
        .arg(&ready)
        .spawn()
        .unwrap();
    while !ready.exists() {
        assert!(
            child.try_wait().unwrap().is_none(),
            "the server ended at its start"
        );
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let before = ticks(child.id());
    std::thread::sleep(std::time::Duration::from_millis(600));
    let used = ticks(child.id()) - before;
    kill(child.id() as i32);
    child.wait().unwrap();
    assert!(used < 20, "an idle master used {used} of 60 ticks");
}
