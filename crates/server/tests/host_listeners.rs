//! Hosts that are served at some addresses only: which host answers where, and reloads with other addresses.

use std::fs;

use rustix::process::Signal;

use crate::site::*;

/// Hosts at two addresses; each says its own name.
fn write(site: &Site, listen: &str, hosts: &[(&str, &str)]) {
    let mut text = format!("listen = {listen}\nstatus = \"127.0.0.1:0\"\nworkers = 2\n");
    for (name, settings) in hosts {
        let root = site.path(name);
        fs::create_dir_all(&root).unwrap();
        fs::write(root.join("index.html"), name).unwrap();
        text += &format!("[[host]]\nroot = {root:?}\n{settings}\n");
    }
    fs::write(site.path("hosts.toml"), text).unwrap();
}

fn start(site: &Site) -> Server {
    Server::start_from_file(program(), &site.path("hosts.toml"))
}

/// The body of the page of a host at an address.
fn page(address: &str, host: &str) -> String {
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let mut stream = match address.strip_prefix("unix:") {
        Some(path) => return unix_page(path, &request),
        None => std::net::TcpStream::connect(address).unwrap(),
    };
    send_and_receive(&mut stream, request).text()
}

fn unix_page(path: &str, request: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(path).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

const BOTH: &str = "[\"127.0.0.1:0\", \"127.0.0.2:0\"]";

#[test]
fn host_is_served_only_at_its_addresses() {
    let site = Site::new();
    write(
        &site,
        BOTH,
        &[
            ("public", "names = \"a.example\"\nlisten = \"127.0.0.1:0\""),
            ("internal", "listen = \"127.0.0.2:0\""),
            ("same", "names = \"a.example\"\nlisten = \"127.0.0.2:0\""),
            ("all", "names = \"all.example\""),
        ],
    );
    let server = start(&site);
    let [first, second] = [0, 1].map(|at| server.listeners[at].clone());
    // Several times, so that both workers answer.
    for _ in 0..8 {
        for (host, expected) in [
            ("a.example", ["public", "same"]),
            ("all.example", ["all", "all"]),
            ("other", ["public", "internal"]),
        ] {
            let found = [&first, &second].map(|address| page(address, host));
            assert_eq!(found, expected, "{host}");
        }
    }
    server.stop();
}

#[test]
fn reload_adds_and_removes_addresses_of_hosts() {
    let site = Site::new();
    let socket = format!("unix:{}", site.path("socket").display());
    let one = ("one", "names = \"one\"\nlisten = \"127.0.0.1:0\"");
    write(&site, "\"127.0.0.1:0\"", &[one]);
    let server = start(&site);
    let address = server.address.clone();
    assert_eq!(page(&address, "two"), "one");
    let reloaded = |count: u64| {
        server.signal(Signal::HUP);
        server.wait_for("the reload", |server| {
            server.status()["master"]["reloads"] == count
        });
    };
    let two = format!("names = \"two\"\nlisten = {socket:?}");
    // The number of the address changes, too.
    write(
        &site,
        &format!("[{socket:?}, \"127.0.0.1:0\"]"),
        &[("two", &two), one],
    );
    reloaded(1);
    assert_eq!(page(&socket, "one"), "two");
    // For a moment the workers before may accept.
    server.wait_for("new workers", |_| page(&address, "two") == "one");
    let both = format!("names = \"two\"\nlisten = [{socket:?}, \"127.0.0.1:0\"]");
    write(
        &site,
        &format!("[{socket:?}, \"127.0.0.1:0\"]"),
        &[("two", &both), one],
    );
    reloaded(2);
    server.wait_for("new workers", |_| page(&address, "two") == "two");
    assert_eq!(page(&socket, "two"), "two");
    // A host may not keep an address which is removed.
    write(&site, "\"127.0.0.1:0\"", &[("two", &both), one]);
    server.signal(Signal::HUP);
    server.wait_for("the refusal", |server| {
        server.status()["master"]["reload_failures"] == 1
    });
    assert_eq!(page(&socket, "two"), "two");
    write(&site, "\"127.0.0.1:0\"", &[one]);
    reloaded(3);
    server.wait_for("new workers", |_| page(&address, "two") == "one");
    server.wait_for("the end of the socket", |_| !site.path("socket").exists());
    server.stop();
}
