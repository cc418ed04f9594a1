//! Direct programs: normal use and faults.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use headway_test_support::is_running;
use headway_test_support::server::kill;

use crate::site::*;

use headway_test_support::skip;

pub fn clients() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients");
    path.canonicalize().unwrap()
}

/// A Python program on a site, and its server.
fn serve(site: &Site, script: &str, more: &str) -> Server {
    serve_as(site, "direct", script, more)
}

/// A Python program on a site, in a `direct` or `pipe` location, and its server.
/// The settings of a server of the papers that has a direct location return its responses.
fn research(kind: &str) -> &'static str {
    match kind {
        "pipe" => "research.pipe = \"/d/\"",
        _ => "",
    }
}

pub fn serve_as(site: &Site, kind: &str, script: &str, more: &str) -> Server {
    let text = format!("#!/usr/bin/env python3\n{script}\n");
    site.file("cgi/direct", &text, 0o755);
    let text = format!(
        "{}\n[[location]]\nprefix = \"/d/\"\ndirect = [\"cgi/direct\", \"an argument\"]\n\
         variables = {{ PYTHONPATH = {:?}, NOTES = {:?}, PYTHONDONTWRITEBYTECODE = \"1\" }}\n{more}\n",
        research(kind),
        clients(),
        site.path("notes")
    );
    site.serve_configured(&text)
}

/// Whether a program that the test needs is missing.
pub fn lacks(program: &str, test: &str) -> bool {
    let found = Command::new(program).arg("--version").output();
    let lacks = found.is_err();
    if lacks {
        skip(test, &format!("no {program}"));
    }
    lacks
}

pub const ECHO: &str = "
import headway_direct
def answer(request):
    v = request.variables
    body = request.read(1000) + request.read()
    fields = [('X-Length', v.get('CONTENT_LENGTH', '')), ('X-Path', v['SCRIPT_NAME'] + '|' + v['PATH_INFO'])]
    if v['QUERY_STRING'] == 'pieces':
        request.begin(200, fields)
        for at in range(0, len(body), 7000):
            request.write(body[at:at + 7000])
    else:
        request.response(200, fields, body)
headway_direct.serve(answer)";

/// Has [`ECHO`] return bodies of many sizes, whole and in pieces, with a file between any two, all
/// on one connection. `check` sees each response, and whether it was written in pieces. Returns
/// their number.
pub fn echoes(stream: &mut TcpStream, check: impl Fn(&Response, bool)) -> u64 {
    let mut count = 0;
    for size in [0, 5, 40_000, 300_000, 3_000_000] {
        for query in ["", "?pieces"] {
            let body = contents(size);
            let request = post(&format!("/d/a%20b{query}"), &body);
            let response = send_and_receive(stream, request);
            assert_eq!(
                (response.status, response.field("X-Path")),
                (200, Some("/d|/a b"))
            );
            assert_eq!(response.field("X-Length"), Some(size.to_string().as_str()));
            check(&response, !query.is_empty());
            assert!(
                response.body == body,
                "{size}{query}: {} bytes",
                response.body.len()
            );
            send(stream, "GET /file.txt HTTP/1.1\r\nHost: x\r\n\r\n");
            assert_eq!(receive(stream).unwrap().text(), "a file\n");
            count += 1;
        }
    }
    count
}

/// Needs: the program python3: scripts/setup
#[test]
fn direct_program_writes_responses_to_the_client_socket() {
    if lacks(
        "python3",
        "direct_program_writes_responses_to_the_client_socket",
    ) {
        return;
    }
    let site = Site::new();
    let server = serve(&site, ECHO, "concurrency = 1\nmax-body-size = \"8MiB\"");
    let mut stream = server.connect();
    let count = echoes(&mut stream, |response, in_pieces| {
        assert_eq!(response.field("Transfer-Encoding").is_some(), in_pieces);
    });
    send(&mut stream, "HEAD /d/x HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(
        receive_head(&mut stream).unwrap().field("Content-Length"),
        Some("0")
    );
    assert_eq!(
        counter(&server, "connections_accepted"),
        1,
        "the connection came back each time"
    );
    assert_eq!(counter(&server, "direct_requests_handed_off"), count + 1);
    assert_eq!(
        (
            counter(&server, "direct_processes"),
            counter(&server, "direct_processes_ended")
        ),
        (1, 0)
    );
    is_well(&server);
}

/// [`ECHO`] in C. It must reject invalid headers, and reports how many of four were rejected.
const ECHO_IN_C: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "headway_direct.h"
static const char *const wrong[] = {"X-A: b\r\n\r\nbody", "X-A: b\nX-C: d\r\n", "X-A: b", "\r\nX-A: b\r\n"};
int main(void) {
    static char part[7000];
    struct headway_direct *server = headway_direct_open(0);
    while (server && headway_direct_next(server) > 0) {
        const char *query = headway_direct_variable(server, "QUERY_STRING");
        char fields[1000];
        ssize_t size;
        if (!strcmp(query, "fields")) {
            int refused = 0;
            for (int i = 0; i < 4; i++) {
                refused += headway_direct_response(server, 200, wrong[i], "", 0) < 0 && errno == EINVAL;
            }
            headway_direct_response(server, 200, "", part, (size_t)sprintf(part, "%d", refused));
            continue;
        }
        if (!strcmp(query, "none")) continue;
        snprintf(fields, sizeof fields, "X-Length: %s\r\nX-Path: %s|%s\r\n", headway_direct_variable(server, "CONTENT_LENGTH"),
                 headway_direct_variable(server, "SCRIPT_NAME"), headway_direct_variable(server, "PATH_INFO"));
        headway_direct_begin(server, 200, fields, !strcmp(query, "pieces") ? UINT64_MAX : headway_direct_body_bytes(server));
        while ((size = headway_direct_read(server, part, sizeof part)) > 0) headway_direct_write(server, part, (size_t)size);
    }
    headway_direct_close(server);
    return 0;
}
"#;

/// Compiles a program with the C library.
fn compiled(site: &Site, text: &str) -> PathBuf {
    site.file("cgi/program.c", text, 0o644);
    let (source, program) = (site.path("cgi/program.c"), site.path("cgi/program"));
    let made = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(clients())
        .arg("-o")
        .arg(&program)
        .arg(source)
        .arg(clients().join("headway_direct.c"))
        .output()
        .unwrap();
    let expected_text = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{expected_text}");
    program
}

/// Needs: the program cc: scripts/setup
#[test]
fn direct_program_in_c_answers_requests() {
    if lacks("cc", "direct_program_in_c_answers_requests") {
        return;
    }
    for kind in ["direct", "pipe"] {
        let site = Site::new();
        let program = compiled(&site, ECHO_IN_C);
        let server = site.serve_configured(&format!(
            "{}\n[[location]]\nprefix = \"/d/\"\ndirect = [{program:?}]\nconcurrency = 1\nmax-body-size = \"8MiB\"\n",
            research(kind)
        ));
        let mut stream = server.connect();
        echoes(&mut stream, |_, _| {});
        send(&mut stream, "HEAD /d/x HTTP/1.1\r\nHost: x\r\n\r\n");
        let head = receive_head(&mut stream).unwrap();
        assert_eq!(
            (head.status, head.field("Content-Length")),
            (200, Some("0"))
        );
        assert_eq!(get(&server, "/d/?fields").text(), "4", "{kind}");
        assert_eq!(get(&server, "/d/?none").status, 500, "{kind}");
        send(
            &mut stream,
            "POST /d/x?pieces HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello",
        );
        assert_eq!(receive(&mut stream).unwrap().text(), "hello", "{kind}");
        assert_eq!(counter(&server, "direct_processes_ended"), 0, "{kind}");
        is_well(&server);
    }
}

/// Needs: the program python3: scripts/setup
#[test]
fn python_library_rejects_headers_with_line_ends() {
    const NAME: &str = "python_library_rejects_headers_with_line_ends";
    if lacks("python3", NAME) {
        return;
    }
    let script = r"
import headway_direct
def answer(request):
    refused = 0
    for name, value in [('X-A', 'b\r\n\r\nbody'), ('X-A', 'b\nX-C: d'), ('X-A\r\nX-C', 'd'), ('X-A', 'b\0')]:
        try: request.response(200, [(name, value)], b'')
        except ValueError: refused += 1
    request.response(200, [], b'%d' % refused)
headway_direct.serve(answer)";
    for kind in ["direct", "pipe"] {
        let site = Site::new();
        let server = serve_as(&site, kind, script, "concurrency = 1");
        assert_eq!(get(&server, "/d/").text(), "4", "{kind}");
        is_well(&server);
    }
}

/// Needs: the program python3: scripts/setup
#[test]
fn direct_program_serves_http_1_0_and_pipelining_clients() {
    if lacks(
        "python3",
        "direct_program_serves_http_1_0_and_pipelining_clients",
    ) {
        return;
    }
    let site = Site::new();
    let server = serve(&site, ECHO, "concurrency = 2");
    let mut stream = server.connect();
    send(
        &mut stream,
        "POST /d/x?pieces HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello",
    );
    let response = receive(&mut stream).unwrap();
    assert_eq!(
        (response.field("Connection"), response.text().as_str()),
        (Some("close"), "hello")
    );
    let mut stream = server.connect();
    let mut requests = Vec::new();
    for number in 0..5 {
        requests.extend(post("/d/x", format!("body {number}").as_bytes()));
        requests.extend_from_slice(b"GET /file.txt HTTP/1.1\r\nHost: x\r\n\r\n");
    }
    send(&mut stream, requests);
    for number in 0..5 {
        assert_eq!(
            receive(&mut stream).unwrap().text(),
            format!("body {number}")
        );
        assert_eq!(receive(&mut stream).unwrap().text(), "a file\n");
    }
    is_well(&server);
}

/// Behaves well or badly, as the request asks.
const NAUGHTY: &str = "
import os, sys, struct, time, socket, headway_direct
kept = []
def note(name):
    with open(os.environ['NOTES'] + '/' + name, 'a') as file: file.write('%d\\n' % os.getpid())
def answer(request):
    what = request.variables['QUERY_STRING']
    client = request._client
    if what == 'die': os._exit(3)
    if what == 'die-late':
        client.send(b'HTTP/1.1 200 OK\\r\\nContent-Length: 10\\r\\n\\r\\nhello')
        os._exit(3)
    if what == 'hang':
        note('hang')
        time.sleep(1000)
    if what == 'garbage':
        socket.socket(fileno=os.dup(0)).send(b'what is this?')
        time.sleep(1000)
    if what == 'other':
        socket.socket(fileno=os.dup(0)).send(headway_direct.DONE.pack(1, 130, 1, request._id + 1, 200, 0))
        time.sleep(1000)
    if what == 'endless':
        socket.socket(fileno=os.dup(0)).send(headway_direct.DONE.pack(1, 130, 1, request._id, 200, 1 << 63))
        time.sleep(1000)
    if what == 'linger':
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 1000))
        try:
            while True: client.send(b'x' * 65536, socket.MSG_DONTWAIT)
        except BlockingIOError: pass
        client.close()
        socket.socket(fileno=os.dup(0)).send(headway_direct.DONE.pack(1, 130, 0, request._id, 200, 0))
        os._exit(0)
    if what == 'foreign': request.response(200, [('X-Name', chr(26085))], b'unsaid')
    if what == 'keep': kept.append(client.dup())
    if what == 'block': client.setblocking(True)
    if what == 'raise': raise RuntimeError('on purpose')
    if what == 'late':
        for one in kept:
            try: one.send(b'garbage')
            except OSError: pass
    if what == 'nothing': return
    request.response(200, [], b'fine')
note('started')
headway_direct.serve(answer)";

/// Needs: the program python3: scripts/setup
#[test]
fn faulty_direct_program_affects_only_its_client() {
    if lacks("python3", "faulty_direct_program_affects_only_its_client") {
        return;
    }
    let site = Site::new();
    let server = serve(&site, NAUGHTY, "concurrency = 1\ntimeout = \"2s\"");
    let good = || assert_eq!(get(&server, "/d/").text(), "fine");
    good();
    for (what, status) in [
        ("die", 502),
        ("garbage", 502),
        ("other", 502),
        ("hang", 504),
        ("endless", 502),
        ("raise", 500),
        ("foreign", 500),
        ("nothing", 500),
    ] {
        assert_eq!(
            get(&server, &format!("/d/?{what}")).status,
            status,
            "{what}"
        );
        good();
    }
    let hung = numbers(&site.note("hang"))[0];
    server.wait_for("its end", |_| !is_running(hung));
    let mut stream = server.connect();
    send(&mut stream, "GET /d/?die-late HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(receive(&mut stream).is_err(), "half of a response");
    good();
    // The program keeps a copy of the socket and blocks on it: the connection is served, and closes
    // for its client when the server closes it.
    let mut stream = server.connect();
    for what in ["keep", "block"] {
        send(
            &mut stream,
            format!("GET /d/?{what} HTTP/1.1\r\nHost: x\r\n\r\n"),
        );
        assert_eq!(receive(&mut stream).unwrap().text(), "fine");
    }
    good();
    send(
        &mut stream,
        "GET /file.txt HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    );
    assert_eq!(receive(&mut stream).unwrap().text(), "a file\n");
    assert_eq!(
        std::io::Read::read(&mut stream, &mut [0; 10]).unwrap(),
        0,
        "the end"
    );
    assert_eq!(
        get(&server, "/d/?late").status,
        200,
        "what it sends now reaches no client"
    );
    // It sets SO_LINGER, so that closing waits for a client that reads nothing.
    let ended = counter(&server, "direct_processes_ended");
    let mut stream = server.connect();
    send(&mut stream, "GET /d/?linger HTTP/1.1\r\nHost: x\r\n\r\n");
    server.wait_for("the end of the program", |server| {
        counter(server, "direct_processes_ended") > ended
    });
    good();
    assert_eq!(numbers(&site.note("started")).len(), 8);
    is_well(&server);
}

/// Fails after it has completed a response.
const GOES_WRONG_LATER: &str = "
import os, time, headway_direct
def answer(request):
    what = request.variables['QUERY_STRING']
    if not what: return request.response(200, [], request.read())
    while not os.path.exists(os.environ['NOTES'] + '/go'): time.sleep(0.01)
    request.response(200, [], b'done')
    done = request._finish()
    request._server.send(done)
    if what.startswith('later-'): time.sleep(0.3)
    if what.endswith('garbage'): request._server.send(b'what is this?')
    if what.endswith('twice'): request._server.send(done)
    if not what.endswith('end'): time.sleep(1000)
    os._exit(0)
headway_direct.serve(answer)";

/// The next client is served whatever the process does after a response, even if the next request
/// has been sent to it already.
fn check_next_client_is_served(kind: &str) {
    for (what, size) in [
        ("end", 1_000),
        ("garbage", 100_000),
        ("twice", 300_000),
        // In the message, in a memfd, and in a file on disk.
        ("later-end", 1_000),
        ("later-garbage", 100_000),
        ("later-twice", 300_000),
    ] {
        let site = Site::new();
        let more = "concurrency = 1\nmax-body-size = \"8MiB\"";
        let server = serve_as(&site, kind, GOES_WRONG_LATER, more);
        let body = contents(size);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| get(&server, &format!("/d/?{what}")).text());
            server.wait_for("the first", |server| {
                counter(server, "direct_processes_busy") == 1
            });
            let second = scope.spawn(|| exchange(&server, post("/d/", &body)));
            server.wait_for("the second", |server| {
                counter(server, "handler_queue_length") == 1
            });
            std::fs::write(site.note("go"), "").unwrap();
            assert_eq!(first.join().unwrap(), "done", "{kind}, {what}");
            let second = second.join().unwrap();
            assert_eq!(second.status, 200, "{kind}, {what}");
            assert!(second.body == body, "{kind}, {what}");
        });
        assert_eq!(
            counter(&server, "direct_processes_ended"),
            1,
            "{kind}, {what}"
        );
        is_well(&server);
    }
}

/// Needs: the program python3: scripts/setup
#[test]
fn next_client_is_served_after_a_direct_program_failed() {
    if lacks(
        "python3",
        "next_client_is_served_after_a_direct_program_failed",
    ) {
        return;
    }
    check_next_client_is_served("direct");
    check_next_client_is_served("pipe");
}

/// Needs: the program python3: scripts/setup
#[test]
fn direct_requests_queue_for_an_idle_process_and_processes_end_with_the_server() {
    if lacks(
        "python3",
        "direct_requests_queue_for_an_idle_process_and_processes_end_with_the_server",
    ) {
        return;
    }
    let site = Site::new();
    let script = "
import os, time, headway_direct
with open(os.environ['NOTES'] + '/pids', 'a') as file: file.write('%d\\n' % os.getpid())
def answer(request):
    time.sleep(0.05)
    request.response(200, [], b'fine')
headway_direct.serve(answer)";
    let server = serve(&site, script, "concurrency = 3\nqueue = 100");
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                for _ in 0..3 {
                    assert_eq!(get(&server, "/d/").text(), "fine");
                }
            });
        }
    });
    let pids = numbers(&site.note("pids"));
    assert_eq!(pids.len(), 3, "one process each, and no more than may be");
    kill(pids[0]);
    server.wait_for("its end", |server| counter(server, "direct_processes") == 2);
    assert_eq!(get(&server, "/d/").text(), "fine");
    is_well(&server);
    server.stop();
    let begun = std::time::Instant::now();
    while pids.iter().any(|pid| is_running(*pid)) {
        assert!(begun.elapsed().as_secs() < 20, "they outlive their server");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Needs: the program python3: scripts/setup
#[test]
fn error_is_immediate_when_a_direct_program_exits_before_its_first_response() {
    const NAME: &str = "error_is_immediate_when_a_direct_program_exits_before_its_first_response";
    if lacks("python3", NAME) {
        return;
    }
    let script = "import socket\nsocket.socket(fileno=0).send(bytes([1, 129]))";
    for kind in ["direct", "pipe"] {
        let site = Site::new();
        let server = serve_as(&site, kind, script, "concurrency = 1\ntimeout = \"60s\"");
        // The failure is detected while or after sending the request, never by the timeout.
        let status = get(&server, "/d/").status;
        assert!([502, 503].contains(&status), "{kind}: {status}");
        is_well(&server);
    }
}

#[test]
fn clients_get_an_error_when_the_program_does_not_become_ready() {
    let site = Site::new();
    site.file("cgi/never", "#!/bin/sh\nexec sleep 1000\n", 0o755);
    site.file("cgi/ends", "#!/bin/sh\nexit 3\n", 0o755);
    let location = |name: &str| {
        format!(
            "[[location]]\nprefix = \"/{name}/\"\ndirect = [\"cgi/{name}\"]\ntimeout = \"500ms\"\n"
        )
    };
    let server = site.serve_configured(&(location("never") + &location("ends")));
    assert_eq!(get(&server, "/never/").status, 503);
    assert_eq!(get(&server, "/ends/").status, 503);
    is_well(&server);
    assert!(server.stop().contains("cgi/ends"), "and the log says why");
}

/// Needs: the programs python3, cc and make: scripts/setup
#[test]
fn example_programs_work_when_built_as_documented() {
    const NAME: &str = "example_programs_work_when_built_as_documented";
    if lacks("cc", NAME) || lacks("make", NAME) || lacks("python3", NAME) {
        return;
    }
    let site = Site::new();
    let build = site.path("build");
    let made = Command::new("make")
        .arg("-C")
        .arg(clients())
        .args([format!("OUT={}", build.display()), "CFLAGS=-Werror".into()])
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let python = clients().join("examples/direct_hello.py");
    let hello = build.join("direct_hello");
    let text = format!(
        "research.pipe = [\"/piped/c/\", \"/piped/python/\"]\n\
         [[location]]\nprefix = \"/c/\"\ndirect = [{hello:?}]\n[[location]]\nprefix = \"/python/\"\ndirect = [{python:?}]\n\
         variables = {{ PYTHONDONTWRITEBYTECODE = \"1\" }}\n\
         [[location]]\nprefix = \"/piped/c/\"\ndirect = [{hello:?}]\n[[location]]\nprefix = \"/piped/python/\"\ndirect = [{python:?}]\n\
         variables = {{ PYTHONDONTWRITEBYTECODE = \"1\" }}\n",
    );
    let server = site.serve_configured(&text);
    let mut stream = server.connect();
    for prefix in ["c", "python", "piped/c", "piped/python", "c", "python"] {
        for size in [0, 10, 200_000] {
            let request = post(&format!("/{prefix}/x?y"), &contents(size));
            let response = send_and_receive(&mut stream, request);
            let expected_text = format!("POST /{prefix}/x?y with {size} bytes\n");
            assert_eq!((response.status, response.text()), (200, expected_text));
        }
    }
    assert_eq!(counter(&server, "connections_accepted"), 1);
    is_well(&server);
}
