//! Access logs of hosts: which requests are in which file, and rotation.

use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;

use crate::site::*;

/// A server of the hosts `test`, `a.example` and `b.example` with these settings.
fn serve(site: &Site, top: &str, of_a: &str) -> Server {
    let [root, b] = ["root", "b.log"].map(|name| site.path(name));
    let text = format!(
        "root = {root:?}\nlisten = \"127.0.0.1:0\"\nstatus = \"127.0.0.1:0\"\nworkers = 1\n{top}\n\
         [[host]]\nnames = \"a.example\"\nroot = {root:?}\n{of_a}\n\
         [[host]]\nnames = \"b.example\"\nroot = {root:?}\nlog = {b:?}\nlog-format = \"b {{target}}\"\n"
    );
    let file = site.path("logs.toml");
    fs::write(&file, text).unwrap();
    Server::start_from_file(program(), &file)
}

/// Sends each host a request for this path, and one that is malformed.
fn visit(server: &Server, path: &str) {
    for host in ["test", "a.example", "b.example", "other"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(exchange(server, request).status, 200);
    }
    assert_eq!(exchange(server, "BAD\r\n\r\n").status, 400);
}

fn read(path: PathBuf) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn requests_of_a_host_are_in_its_own_log_also_after_rotation() {
    let site = Site::new();
    let top = format!(
        "log = {:?}\nlog-format = \"{{host}} {{target}}\"",
        site.path("top.log")
    );
    let server = serve(&site, &top, "log-format = \"a {target}\"");
    visit(&server, "/file.txt?1");
    server.wait_for("the lines", |_| read(site.path("b.log")).ends_with('\n'));
    fs::rename(site.path("b.log"), site.path("b.log.1")).unwrap();
    server.signal(Signal::USR1);
    server.wait_for("the new file", |_| site.path("b.log").exists());
    visit(&server, "/file.txt?2");
    let sleeps = server.status()["total"]["trace"]["sleeps"].clone();
    assert_eq!(sleeps.as_array().map(Vec::len), Some(0), "{sleeps}");
    server.stop();
    assert_eq!(read(site.path("b.log.1")), "b /file.txt?1\n");
    assert_eq!(read(site.path("b.log")), "b /file.txt?2\n");
    let top = read(site.path("top.log"));
    let lines = |begin: &str| top.lines().filter(|line| line.starts_with(begin)).count();
    // The host has another format in the same file.
    let counts = ["test /", "other /", "a /", "- BAD", "b "].map(lines);
    assert_eq!(counts, [2, 2, 2, 2, 0], "{top}");
}

#[test]
fn hosts_have_logs_when_the_top_level_has_none() {
    let site = Site::new();
    let server = serve(&site, "", &format!("log = {:?}", site.path("a.log")));
    visit(&server, "/file.txt");
    server.stop();
    assert_eq!(read(site.path("b.log")), "b /file.txt\n");
    let a = read(site.path("a.log"));
    // That of the first log has the request which names no host.
    assert_eq!(
        (a.matches("/file.txt").count(), a.matches("BAD").count()),
        (1, 1),
        "{a}"
    );
}
