//! Pipe programs: what the server forwards, and faults.

use std::io::{Read, Write};

use headway_test_support::is_running;

use super::direct::{ECHO, echoes, lacks, serve_as};
use crate::site::*;

fn serve(site: &Site, script: &str, more: &str) -> Server {
    serve_as(site, "pipe", script, more)
}

/// Needs: the program python3: scripts/setup
#[test]
fn pipe_program_responses_through_the_server() {
    if lacks("python3", "pipe_program_responses_through_the_server") {
        return;
    }
    let site = Site::new();
    let server = serve(&site, ECHO, "concurrency = 1\nmax-body-size = \"8MiB\"");
    let mut stream = server.connect();
    let count = echoes(&mut stream, |response, _| {
        assert_eq!(response.field("Server"), Some("Headway"));
    });
    send(&mut stream, "HEAD /d/x HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(receive_head(&mut stream).unwrap().status, 200);
    send(
        &mut stream,
        "POST /d/x?pieces HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello",
    );
    assert_eq!(receive(&mut stream).unwrap().text(), "hello");
    assert_eq!(counter(&server, "connections_accepted"), 1);
    assert_eq!(counter(&server, "pipe_requests_dispatched"), count + 2);
    assert_eq!(
        [
            counter(&server, "direct_requests_handed_off"),
            counter(&server, "direct_processes"),
            counter(&server, "direct_processes_ended"),
        ],
        [0, 1, 0]
    );
    is_well(&server);
}

/// Behaves well or badly, as the request asks.
const NAUGHTY: &str = "
import os, time, headway_direct
def note(name):
    with open(os.environ['NOTES'] + '/' + name, 'a') as file: file.write('%d\\n' % os.getpid())
def answer(request):
    what = request.variables['QUERY_STRING']
    if what == 'die': os._exit(3)
    if what == 'die-late':
        request.begin(200, [], 10)
        request.write(b'hello')
        os._exit(3)
    if what == 'hang':
        note('hang')
        time.sleep(1000)
    if what == 'garbage':
        request._server.send(b'what is this?')
        time.sleep(1000)
    if what == 'other':
        request._server.send(headway_direct.OUTPUT.pack(1, 131, request._id + 1) + b'Status: 200\\n\\n')
        time.sleep(1000)
    if what == 'no-head':
        request._send(b'nothing like a head\\n\\n')
        request._status, request._left = 200, 0
        return
    if what == 'short':
        request.begin(200, [], 10)
        request.write(b'hello')
        return
    if what == 'raise': raise RuntimeError('on purpose')
    if what == 'nothing': return
    if what in ('long', 'endless'):
        request.begin(200, [])
        while what == 'endless' or request._written < 30000000:
            request.write(b'x' * 100000)
        note('finished')
        return
    request.response(200, [], b'fine')
note('started')
headway_direct.serve(answer)";

/// Needs: the program python3: scripts/setup
#[test]
fn faulty_pipe_program_affects_only_its_client() {
    if lacks("python3", "faulty_pipe_program_affects_only_its_client") {
        return;
    }
    let site = Site::new();
    let server = serve(&site, NAUGHTY, "concurrency = 1\ntimeout = \"2s\"");
    let good = || assert_eq!(get(&server, "/d/").text(), "fine");
    good();
    for (what, status, started) in [
        ("no-head", 502, 1),
        ("raise", 500, 1),
        ("nothing", 500, 1),
        ("die", 502, 2),
        ("garbage", 502, 3),
        ("other", 502, 4),
        ("hang", 504, 5),
    ] {
        let response = get(&server, &format!("/d/?{what}"));
        assert_eq!(response.status, status, "{what}");
        good();
        let processes = numbers(&site.note("started")).len();
        assert_eq!(processes, started, "{what}: processes without a fault stay");
    }
    let hung = numbers(&site.note("hang"))[0];
    server.wait_for("its end", |_| !is_running(hung));
    for what in ["die-late", "short"] {
        let mut stream = server.connect();
        send(
            &mut stream,
            format!("GET /d/?{what} HTTP/1.1\r\nHost: x\r\n\r\n"),
        );
        let response = receive(&mut stream);
        let refused = |response: &Response| response.status == 502;
        assert!(
            response.as_ref().map_or(true, refused),
            "{what}: {response:?}"
        );
        good();
    }
    is_well(&server);
}

/// Needs: the program python3: scripts/setup
#[test]
fn pipe_process_waits_for_a_slow_client_and_continues_after_a_disconnect() {
    if lacks(
        "python3",
        "pipe_process_waits_for_a_slow_client_and_continues_after_a_disconnect",
    ) {
        return;
    }
    let site = Site::new();
    let more = "concurrency = 1\ntimeout = \"2s\"\noutput-max = \"0\"\ntemp-file-max = \"0\"";
    let server = serve(&site, NAUGHTY, more);
    let long = "GET /d/?long HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut slow = server.connect();
    send(&mut slow, long);
    let mut first = [0; 1000];
    slow.read_exact(&mut first).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(!site.note("finished").exists(), "it is held back");
    let (mut rest, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    while !rest.ends_with(b"x\r\n0\r\n\r\n") {
        let count = slow.read(&mut buffer).unwrap();
        assert!(count > 0, "cut off");
        rest.extend_from_slice(&buffer[..count]);
    }
    assert!(rest.len() > 29_000_000);
    // The client disconnects in the middle: the process finishes, and answers the next request.
    let mut leaving = server.connect();
    send(&mut leaving, long);
    leaving.read_exact(&mut first).unwrap();
    drop(leaving);
    assert_eq!(get(&server, "/d/").text(), "fine");
    assert_eq!(numbers(&site.note("finished")).len(), 2);
    assert_eq!(numbers(&site.note("started")).len(), 1);
    // A process that never finishes is replaced.
    let mut leaving = server.connect();
    leaving
        .write_all(b"GET /d/?endless HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    leaving.read_exact(&mut first).unwrap();
    drop(leaving);
    server.wait_for("its end", |server| {
        counter(server, "direct_processes_ended") == 1
    });
    assert_eq!(get(&server, "/d/").text(), "fine");
    assert_eq!(numbers(&site.note("started")).len(), 2);
    is_well(&server);
}
