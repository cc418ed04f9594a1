//! Programs that leave their process group, and programs that create processes without end.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use headway_test_support::is_running;
use headway_test_support::server::kill;
use headway_test_support::skip;
use rustix::process::getuid;

use crate::site::*;

/// Starts a process that leaves its group, session and parent, notes its PID, and then does what
/// the query says.
const LEAVES: &str = "(setsid sh -c \"trap '' TERM; echo \\$\\$ >{notes}/left-$QUERY_STRING; while :; do sleep 1; done\" &)\n\
    while [ ! -s {notes}/left-$QUERY_STRING ]; do sleep 0.01; done\n\
    case $QUERY_STRING in\n\
    hangs*) exec sleep 1000;;\n\
    begins) printf 'Content-Type: a/b\\n\\nx'; exec sleep 1000;;\n\
    ends) exit 0;;\n\
    answers) printf 'Content-Type: a/b\\n\\ndone'; exec >&- 2>&-;;\n\
    esac";

fn left(site: &Site, server: &Server, query: &str) -> i32 {
    let note = site.note(&format!("left-{query}"));
    server.wait_for("its start", |_| !numbers(&note).is_empty());
    numbers(&note)[0]
}

#[test]
fn orphan_is_killed_when_the_request_fails() {
    let site = Site::new();
    site.program("leaves", LEAVES);
    let server = site.serve("timeout = \"500ms\"");
    // The program times out; exits and leaves the response to the orphan; has started a response.
    for (query, status) in [("hangs", Some(504)), ("ends", Some(504)), ("begins", None)] {
        let mut stream = server.connect();
        send(
            &mut stream,
            format!("GET /cgi-bin/leaves?{query} HTTP/1.1\r\nHost: x\r\n\r\n"),
        );
        let response = receive(&mut stream);
        assert_eq!(
            response.ok().map(|response| response.status),
            status,
            "{query}"
        );
        let pid = left(&site, &server, query);
        server.wait_for("its end", |_| !is_running(pid));
    }
    is_well(&server);
}

#[test]
fn orphan_is_killed_when_the_client_disconnects() {
    let site = Site::new();
    site.program("leaves", LEAVES);
    let server = site.serve("");
    let mut stream = server.connect();
    send(
        &mut stream,
        "GET /cgi-bin/leaves?hangs HTTP/1.1\r\nHost: x\r\n\r\n",
    );
    let pid = left(&site, &server, "hangs");
    assert!(is_running(pid));
    drop(stream);
    server.wait_for("its end", |_| !is_running(pid));
    is_well(&server);
}

#[test]
fn orphan_survives_an_answered_request() {
    let site = Site::new();
    // The orphan keeps nothing of its request open: otherwise the response would never end.
    let quiet = LEAVES.replace(" &)\n", " </dev/null >/dev/null 2>&1 &)\n");
    site.program("leaves", &quiet);
    let server = site.serve("");
    assert_eq!(get(&server, "/cgi-bin/leaves?answers").text(), "done");
    let pid = left(&site, &server, "answers");
    server.wait_for("the program's end", |server| {
        counter(server, "cgi_processes") == 0
    });
    // It is independent of the end of other programs.
    let mut stream = server.connect();
    send(
        &mut stream,
        "GET /cgi-bin/leaves?hangs HTTP/1.1\r\nHost: x\r\n\r\n",
    );
    let other = left(&site, &server, "hangs");
    drop(stream);
    server.wait_for("the other's end", |_| !is_running(other));
    assert!(is_running(pid), "it is on its own");
    kill(pid);
    is_well(&server);
}

#[test]
fn orphan_is_killed_after_the_spawner_is_killed() {
    let site = Site::new();
    site.program("leaves", LEAVES);
    let server = site.serve("");
    let mut streams = Vec::new();
    for query in ["hangs-1", "hangs-2"] {
        let mut stream = server.connect();
        send(
            &mut stream,
            format!("GET /cgi-bin/leaves?{query} HTTP/1.1\r\nHost: x\r\n\r\n"),
        );
        streams.push((stream, left(&site, &server, query)));
    }
    kill(server.children("serve-spawner")[0]);
    for (mut stream, pid) in streams {
        assert_eq!(receive(&mut stream).unwrap().status, 502);
        server.wait_for("its end, by the next spawner", |_| !is_running(pid));
    }
    is_well(&server);
}

/// Number of processes of a user.
fn running(user: u32) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let own = entries.filter(|entry| entry.metadata().is_ok_and(|owner| owner.uid() == user));
    let pids = own.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &i32| is_running(*pid)).count()
}

/// Needs: root: makes processes as another user
#[test]
fn program_cannot_exceed_processes_max() {
    let name = "program_cannot_exceed_processes_max";
    // The limit has no effect for root, and another user's processes are counted together with its
    // others.
    if !getuid().is_root() {
        return skip(name, "needs root, to be a user without other processes");
    }
    let site = Site::new();
    // Without end, each in a session of its own; then no process is left to write a response.
    site.program(
        "bomb",
        "(while :; do setsid sleep 1000 & done) 2>/dev/null; while :; do :; done",
    );
    site.open_to_all();
    let server = site.serve_with(
        "program-user = \"64977:64977\"",
        "timeout = \"2s\"\nprocesses-max = 40",
    );
    let response = std::thread::scope(|scope| {
        let request = scope.spawn(|| get(&server, "/cgi-bin/bomb"));
        let mut most = 0;
        while !request.is_finished() {
            most = most.max(running(64_977));
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!((3..=41).contains(&most), "{most} processes");
        request.join().unwrap()
    });
    assert!(matches!(response.status, 502 | 504), "{}", response.status);
    // The spawner is this user, too.
    server.wait_for("the end of all", |_| running(64_977) == 1);
    is_well(&server);
}
