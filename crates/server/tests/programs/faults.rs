//! Faults of programs, their files and their clients. The server must continue as if nothing had
//! happened.

use std::io::Read;
use std::time::{Duration, Instant};

use headway_test_support::server::kill;
use headway_test_support::{is_running, tiny_client, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use super::direct::{lacks, serve_as};
use crate::site::*;

/// Programs, by name, whose response is invalid.
const INVALID: &[(&str, &str)] = &[
    ("silent", "exit 0"),
    ("fails", "exit 3"),
    ("dies", "kill -9 $$"),
    ("no-head", "echo just text; echo and more"),
    ("cut-head", "printf 'Content-Type: a/b\\nX-A'"),
    ("no-field", "printf 'X-A: b\\n\\nbody'"),
    ("bad-status", "printf 'Status: abc\\n\\n'"),
    ("low-status", "printf 'Status: 99\\n\\n'"),
    ("interim", "printf 'Status: 100\\n\\n'"),
    (
        "split",
        "printf 'Content-Type: a/b\\nX-A: b\\rSet-Cookie: c\\n\\n'",
    ),
    ("nul", "printf 'Content-Type: a/b\\nX-A: b\\000c\\n\\n'"),
    ("folded", "printf 'Content-Type: a/b\\n X-A: b\\n\\n'"),
    (
        "framed",
        "printf 'Content-Type: a/b\\nTransfer-Encoding: chunked\\n\\n'",
    ),
    (
        "two-lengths",
        "printf 'Content-Type: a/b\\nContent-Length: 1\\nContent-Length: 2\\n\\nxx'",
    ),
    ("long-head", "head -c 100000 /dev/zero | tr '\\000' x"),
];

#[test]
fn invalid_program_response_is_502() {
    let site = Site::new();
    for (name, script) in INVALID {
        site.program(name, script);
    }
    let server = site.serve("");
    let mut stream = server.connect();
    for (name, _) in INVALID {
        send(
            &mut stream,
            format!("GET /cgi-bin/{name} HTTP/1.1\r\nHost: x\r\n\r\n"),
        );
        let response = receive(&mut stream).unwrap();
        assert_eq!(response.status, 502, "{name}");
    }
    assert_eq!(
        counter(&server, "handler_invalid_responses"),
        INVALID.len() as u64
    );
    is_well(&server);
    let log = server.stop();
    for part in [
        "cgi/silent: the response is empty",
        "fails",
        "exited with code 3",
        "killed by signal 9",
        "cgi/cut-head: the response ended inside its head",
        "none of Content-Type, Location and Status",
    ] {
        assert!(log.contains(part), "{part}\n{log}");
    }
}

#[test]
fn truncated_program_response_is_visible_to_the_client() {
    let site = Site::new();
    site.program(
        "short",
        "printf 'Content-Type: a/b\\nContent-Length: 10\\n\\nhello'; sleep 0.2",
    );
    site.program(
        "long",
        "printf 'Content-Type: a/b\\nContent-Length: 5\\n\\nhello, and more'",
    );
    let server = site.serve("");
    let mut stream = server.connect();
    send(
        &mut stream,
        "GET /cgi-bin/short HTTP/1.1\r\nHost: x\r\n\r\n",
    );
    assert!(receive(&mut stream).is_err(), "five of ten bytes");
    let mut stream = server.connect();
    for _ in 0..2 {
        send(&mut stream, "GET /cgi-bin/long HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(receive(&mut stream).unwrap().text(), "hello");
    }
    is_well(&server);
}

/// Reads a response of which the end is still in the server's socket while the program of `path` sends
/// half of the next one, and dies behind a third request.
fn check_response_before_one_that_is_cut_off(site: &Site, server: &Server, path: &str) {
    const BEFORE: usize = 100_000;
    std::fs::write(site.path("root/before"), contents(BEFORE)).unwrap();
    let mut stream = tiny_client(&server.address);
    send(
        &mut stream,
        format!("GET /before HTTP/1.1\r\nHost: x\r\n\r\nGET {path} HTTP/1.1\r\nHost: x\r\n\r\n"),
    );
    wait_until("the program has answered", || site.note("started").exists());
    send(&mut stream, "GET /file.txt HTTP/1.1\r\nHost: x\r\n\r\n");
    std::fs::write(site.note("go"), "").unwrap();
    server.wait_for("the abort", |server| {
        counter(server, "responses_aborted") == 1
    });
    assert!(receive(&mut stream).unwrap().body == contents(BEFORE));
    assert!(receive(&mut stream).is_err(), "five of ten bytes");
    is_well(server);
}

#[test]
fn earlier_response_is_whole_when_the_next_one_is_cut_off() {
    let site = Site::new();
    site.program(
        "short",
        "printf 'Content-Type: a/b\\nContent-Length: 10\\n\\nhello'
        echo >{notes}/started; while [ ! -e {notes}/go ]; do sleep 0.02; done",
    );
    let server = site.serve("");
    check_response_before_one_that_is_cut_off(&site, &server, "/cgi-bin/short");
}

#[test]
fn client_is_not_reset_when_its_body_comes_after_an_internal_redirect() {
    let site = Site::new();
    site.program("elsewhere", "printf 'Location: /file.txt\\n\\n'");
    let server = site.serve("request-buffering = false");
    let mut stream = server.connect();
    let head = "POST /cgi-bin/elsewhere HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n";
    send(&mut stream, format!("{head}hello"));
    assert_eq!(receive(&mut stream).unwrap().text(), "a file\n");
    send(&mut stream, "later");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"");
    let error = stream.take_error().unwrap();
    assert!(error.is_none(), "{error:?}");
    is_well(&server);
}

#[test]
fn program_start_failure_has_a_matching_status() {
    let site = Site::new();
    site.file("cgi/not-executable", "#!/bin/sh\necho\n", 0o644);
    site.file("cgi/no-interpreter", "#!/nowhere/interpreter\n", 0o755);
    site.file("cgi/no-program", "\x01\x02\x03", 0o755);
    let server = site.serve("");
    for (name, status) in [
        ("not-executable", 403),
        ("no-interpreter", 502),
        ("no-program", 502),
    ] {
        assert_eq!(
            get(&server, &format!("/cgi-bin/{name}")).status,
            status,
            "{name}"
        );
    }
    assert_eq!(counter(&server, "handler_process_spawn_failures"), 3);
    assert_eq!(counter(&server, "cgi_processes"), 0);
    is_well(&server);
    let log = server.stop();
    assert!(
        log.contains("no-interpreter: execve: No such file"),
        "{log}"
    );
}

#[test]
fn process_group_is_killed_when_a_program_times_out() {
    let site = Site::new();
    site.program(
        "hangs",
        "sleep 1000 & echo $$ $! >{notes}/pids; exec sleep 1000",
    );
    site.program(
        "refuses",
        "trap '' TERM; echo $$ >{notes}/stubborn; while :; do sleep 1; done",
    );
    site.program(
        "dribbles",
        "echo Content-Type: a/b; echo; while :; do echo x; sleep 0.05; done",
    );
    let server = site.serve("timeout = \"300ms\"\nrequest-timeout = \"900ms\"");
    assert_eq!(get(&server, "/cgi-bin/hangs").status, 504);
    assert_eq!(get(&server, "/cgi-bin/refuses").status, 504);
    let mut stream = server.connect();
    send(
        &mut stream,
        "GET /cgi-bin/dribbles HTTP/1.1\r\nHost: x\r\n\r\n",
    );
    assert!(
        receive(&mut stream).is_err(),
        "it says something all the time, and too long"
    );
    server.wait_for("the end of all of them", |server| {
        counter(server, "cgi_processes") == 0
    });
    let pids = [numbers(&site.note("pids")), numbers(&site.note("stubborn"))].concat();
    assert_eq!(pids.len(), 3);
    for pid in pids {
        server.wait_for("the end of the group", |_| !is_running(pid));
    }
    assert_eq!(counter(&server, "handler_timeouts"), 3);
    assert_eq!(counter(&server, "handler_processes_killed"), 3);
    is_well(&server);
}

#[test]
fn fork_bomb_is_killed_completely() {
    let site = Site::new();
    // A harmless fork bomb: each process starts two, five generations.
    let bomb = "echo $$ >>{notes}/pids\nif [ ${1:-0} -lt 5 ]; then $0 $((${1:-0} + 1)) & $0 $((${1:-0} + 1)) & fi\n\
        trap '' TERM; while :; do sleep 1; done";
    site.program("bomb", bomb);
    let server = site.serve("timeout = \"1s\"");
    assert_eq!(get(&server, "/cgi-bin/bomb").status, 504);
    server.wait_for("the end of the first", |server| {
        counter(server, "cgi_processes") == 0
    });
    let pids = numbers(&site.note("pids"));
    assert!(pids.len() > 10, "{pids:?}");
    for pid in pids {
        server.wait_for("the end of the group", |_| !is_running(pid));
    }
    is_well(&server);
}

#[test]
fn endless_response_is_cut_off_and_its_program_killed() {
    let site = Site::new();
    site.program(
        "endless",
        "echo $$ >{notes}/pid; echo Content-Type: a/b; echo; exec yes",
    );
    site.program(
        "announces",
        "printf 'Content-Type: a/b\\nContent-Length: 1000000\\n\\n'; exec yes",
    );
    let server = site.serve("output-max = \"64KiB\"");
    let mut stream = server.connect();
    send(
        &mut stream,
        "GET /cgi-bin/endless HTTP/1.1\r\nHost: x\r\n\r\n",
    );
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received);
    // An error page if the first read found too much already, otherwise the allowed part.
    assert!(received.len() < 80_000, "{} bytes", received.len());
    assert!(!received.ends_with(b"0\r\n\r\n"), "it is not whole");
    assert_eq!(get(&server, "/cgi-bin/announces").status, 502);
    let pid = numbers(&site.note("pid"))[0];
    server.wait_for("the program's end", |_| !is_running(pid));
    is_well(&server);
}

#[test]
fn program_is_killed_when_the_client_disconnects() {
    let site = Site::new();
    site.program("waits", "echo $$ >{notes}/$QUERY_STRING; exec sleep 1000");
    site.program(
        "writes",
        "echo $$ >{notes}/$QUERY_STRING; echo Content-Type: a/b; echo; exec yes",
    );
    let server = site.serve("");
    for (number, path) in ["waits", "writes"].into_iter().enumerate() {
        let mut stream = server.connect();
        send(
            &mut stream,
            format!("GET /cgi-bin/{path}?{number} HTTP/1.1\r\nHost: x\r\n\r\n"),
        );
        let note = site.note(&number.to_string());
        server.wait_for("the program's start", |_| !numbers(&note).is_empty());
        drop(stream);
        let pid = numbers(&note)[0];
        server.wait_for("the program's end", |_| !is_running(pid));
    }
    server.wait_for("the count", |server| counter(server, "cgi_processes") == 0);
    assert_eq!(counter(&server, "handler_abandoned"), 2);
    is_well(&server);
}

#[test]
fn half_closed_client_is_answered_when_configured() {
    let site = Site::new();
    site.program("slow", "sleep 0.3; printf 'Content-Type: a/b\\n\\nhello'");
    for (more, answered) in [("half-close = true", true), ("", false)] {
        let server = site.serve(more);
        let mut stream = server.connect();
        send(&mut stream, "GET /cgi-bin/slow HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let response = receive(&mut stream);
        assert_eq!(
            response.is_ok_and(|response| response.text() == "hello"),
            answered,
            "{more}"
        );
        is_well(&server);
    }
}

#[test]
fn server_continues_when_standard_error_is_not_read() {
    let site = Site::new();
    // Standard error of the server is a pipe that the test does not read; it is full after the
    // first line.
    site.program("loud", "yes 'a long line of complaint' | head -c 3000000 >&2; printf 'Content-Type: a/b\\n\\nsaid'");
    site.program(
        "quiet",
        "echo one >&2; printf 'Content-Type: a/b\\n\\nsaid'",
    );
    let server = site.serve("");
    for _ in 0..3 {
        assert_eq!(get(&server, "/cgi-bin/loud").text(), "said");
    }
    assert_eq!(get(&server, "/cgi-bin/quiet").text(), "said");
    is_well(&server);
    let other = site.serve("");
    assert_eq!(get(&other, "/cgi-bin/quiet").text(), "said");
    other.wait_for("the program's end", |server| {
        counter(server, "cgi_processes") == 0
    });
    let log = other.stop();
    assert!(
        log.contains("cgi/quiet[") && log.contains("]: one\n"),
        "{log}"
    );
}

#[test]
fn requests_in_progress_get_502_when_the_spawner_is_killed() {
    let site = Site::new();
    site.program("hangs", "echo $$ >{notes}/$QUERY_STRING; exec sleep 1000");
    site.program(
        "begins",
        "echo $$ >{notes}/$QUERY_STRING; echo Content-Type: a/b; echo; echo x; exec sleep 1000",
    );
    site.program("works", "printf 'Content-Type: a/b\\n\\nhello'");
    let server = site.serve("");
    let mut streams = Vec::new();
    for (note, path) in [("1", "hangs"), ("2", "begins")] {
        let mut stream = server.connect();
        send(
            &mut stream,
            format!("GET /cgi-bin/{path}?{note} HTTP/1.1\r\nHost: x\r\n\r\n"),
        );
        let note = site.note(note);
        server.wait_for("the program's start", |_| !numbers(&note).is_empty());
        streams.push((stream, numbers(&note)[0]));
    }
    // The second response has started.
    assert_eq!(streams[1].0.peek(&mut [0]).unwrap(), 1);
    // The worker gets all events at once, as on a machine that delays it.
    let worker = Pid::from_raw(server.children("serve-worker")[0]).unwrap();
    kill_process(worker, Signal::STOP).unwrap();
    kill(server.children("serve-spawner")[0]);
    let gone = Instant::now() + Duration::from_secs(30);
    while streams.iter().any(|(_, pid)| is_running(*pid)) {
        assert!(Instant::now() < gone, "the programs live on");
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(worker, Signal::CONT).unwrap();
    assert_eq!(receive(&mut streams[0].0).unwrap().status, 502);
    assert!(
        receive(&mut streams[1].0).is_err(),
        "some of it had been sent"
    );
    // The next request waits for the next spawner.
    assert_eq!(get(&server, "/cgi-bin/works").text(), "hello");
    assert_eq!(server.status()["master"]["spawner_deaths"], 1);
    server.wait_for("the end of the last one", |server| {
        counter(server, "cgi_processes") == 0
    });
    is_well(&server);
}

#[test]
fn programs_are_killed_with_their_worker_or_the_server() {
    let site = Site::new();
    site.program(
        "hangs",
        "trap '' TERM; echo $$ >{notes}/$QUERY_STRING; while :; do sleep 1; done",
    );
    site.program("works", "printf 'Content-Type: a/b\\n\\nhello'");
    let server = site.serve_with("drain-timeout = \"300ms\"", "");
    let hang = |name: &str| {
        let mut stream = server.connect();
        send(
            &mut stream,
            format!("GET /cgi-bin/hangs?{name} HTTP/1.1\r\nHost: x\r\n\r\n"),
        );
        let note = site.note(name);
        server.wait_for("the program's start", |_| !numbers(&note).is_empty());
        (stream, numbers(&note)[0])
    };
    let (_first, pid) = hang("first");
    let helper = server.children("serve-spawner")[0];
    kill(server.children("serve-worker")[0]);
    server.wait_for("the program's end", |_| {
        !is_running(pid) && !is_running(helper)
    });
    assert_eq!(get(&server, "/cgi-bin/works").text(), "hello");
    let (_second, pid) = hang("second");
    server.stop();
    let begun = Instant::now();
    while is_running(pid) {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "it outlives its server"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends half of a response, and dies when it may.
const DIRECT_HALF: &str = "
import headway_direct, os, time
def answer(request):
    notes = os.environ['NOTES']
    request._client.send(b'HTTP/1.1 200 OK\\r\\nContent-Length: 10\\r\\n\\r\\nhello')
    open(notes + '/started', 'w').close()
    while not os.path.exists(notes + '/go'): time.sleep(.02)
    os._exit(3)
headway_direct.serve(answer)";

/// Needs: the program python3: scripts/setup
#[test]
fn earlier_response_is_whole_when_a_direct_program_dies_in_the_next_one() {
    let test = "earlier_response_is_whole_when_a_direct_program_dies_in_the_next_one";
    if lacks("python3", test) {
        return;
    }
    let site = Site::new();
    let server = serve_as(&site, "direct", DIRECT_HALF, "concurrency = 1");
    check_response_before_one_that_is_cut_off(&site, &server, "/d/");
}
