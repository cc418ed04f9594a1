//! The error log: levels, the requests that messages are about, JSON, and a reload that changes the level.

use std::fs;

use rustix::process::Signal;
use serde_json::Value;

use crate::site::*;

/// A site whose path `/app/` leads to an upstream that is not there.
fn write(site: &Site, top: &str) {
    let root = site.path("root");
    let text = format!(
        "root = {root:?}\nlisten = \"127.0.0.1:0\"\nstatus = \"127.0.0.1:0\"\nworkers = 1\n{top}\n\
         [[location]]\nprefix = \"/app/\"\nproxy = \"unix:{}\"\n",
        site.path("missing").display()
    );
    fs::write(site.path("log.toml"), text).unwrap();
}

fn start(site: &Site) -> Server {
    Server::start_from_file(program(), &site.path("log.toml"))
}

fn visit(server: &Server) {
    assert_eq!(get(server, "/app/x?y").status, 502);
    assert_eq!(get(server, "/file.txt").status, 200);
    assert_eq!(exchange(server, "BAD\r\n\r\n").status, 400);
}

#[test]
fn messages_about_a_request_have_its_id_and_those_below_the_level_are_left_out() {
    let site = Site::new();
    let log = site.path("access.log");
    let settings =
        "error-log-level = \"warn\"\ntrace-context = true\nlog-format = \"{request-id} {target}\"";
    write(&site, &format!("{settings}\nlog = {log:?}"));
    let server = start(&site);
    let worker = server.children("serve-worker")[0];
    visit(&server);
    let said = server.stop();
    let access = fs::read_to_string(log).unwrap();
    let id = access
        .lines()
        .find_map(|line| line.strip_suffix(" /app/x?y"))
        .unwrap();
    let about = format!("host: test, request: \"GET /app/x?y\", request-id: {id}");
    let lines: Vec<&str> = said.lines().filter(|line| line.contains(&about)).collect();
    let [upstream, answer] = lines[..] else {
        panic!("{said}");
    };
    assert!(
        upstream.contains(&format!(" [error] worker 0[{worker}]: upstream unix:")),
        "{said}"
    );
    assert!(
        answer.contains(" [warn] ") && answer.contains(": answered with 502 after "),
        "{said}"
    );
    assert!(answer.contains(" by proxy; client: 127.0.0.1:"), "{said}");
    // `2026-11-29T10:00:00.000Z`
    assert!(
        lines
            .iter()
            .all(|line| line.as_bytes()[..24].ends_with(b"Z") && line.is_char_boundary(24))
    );
    assert!(
        !said.contains("[info]") && !said.contains("[debug]"),
        "{said}"
    );
}

#[test]
fn reload_changes_the_level_and_the_form() {
    let site = Site::new();
    write(&site, "error-log-level = \"error\"");
    let server = start(&site);
    assert_eq!(exchange(&server, "BAD\r\n\r\n").status, 400);
    write(
        &site,
        "error-log-level = \"debug\"\nerror-log-format = \"json\"",
    );
    server.signal(Signal::HUP);
    server.wait_for("the reload", |server| {
        server.status()["master"]["reloads"] == 1
    });
    server.wait_for("the end of the worker before", |server| {
        server.children("serve-worker").len() == 1
    });
    visit(&server);
    let said = server.stop();
    let before = said.lines().take_while(|line| !line.starts_with('{'));
    assert!(
        !before.clone().any(|line| line.contains("answered with")),
        "{said}"
    );
    let lines = said.lines().filter(|line| line.starts_with('{'));
    let lines: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |level: &str, part: &str| {
        let found = |line: &&Value| {
            line["level"] == level && line["message"].as_str().unwrap().contains(part)
        };
        lines
            .iter()
            .find(found)
            .unwrap_or_else(|| panic!("{level} {part}: {said}"))
            .clone()
    };
    assert_eq!(of("info", "configuration reloaded")["process"], "master");
    let debug = of("debug", "answered with 200");
    assert_eq!(
        (&debug["request"], &debug["host"]),
        (&"GET /file.txt".into(), &"test".into())
    );
    assert_eq!(
        debug["request_id"],
        Value::Null,
        "there is no trace-context"
    );
    let malformed = of("info", "answered with 400");
    assert_eq!(malformed["request"], "BAD");
    assert_eq!(malformed["process"], "worker 0");
    of("error", "upstream unix:");
}
