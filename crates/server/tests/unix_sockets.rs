//! Listeners on Unix sockets: their clients, their files, and reloads.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use headway_test_support::{WAIT_MAX, find_program, is_root, skip};
use rustix::process::Signal;

use crate::site::*;

/// A site with a program that shows the addresses of a request.
fn site() -> Site {
    let site = Site::new();
    let shown = "$REMOTE_ADDR,$REMOTE_PORT,$SERVER_ADDR,$SERVER_PORT";
    site.program(
        "who",
        &format!("printf 'Content-Type: text/plain\\n\\n%s' \"{shown}\""),
    );
    site
}

/// Writes settings with a TCP listener, a Unix socket and a log, and returns their file.
fn settings(site: &Site, top: &str) -> PathBuf {
    let [root, cgi, log] = ["root", "cgi", "log"].map(|name| site.path(name));
    let listen = match top.contains("listen =") {
        true => String::new(),
        false => format!(
            "listen = [\"127.0.0.1:0\", \"unix:{}\"]\n",
            socket(site).display()
        ),
    };
    let text = format!(
        "root = {root:?}\n{listen}status = \"127.0.0.1:0\"\nlog = {log:?}\nlog-format = \"{{client}} {{client-port}} {{target}}\"\n\
         workers = 2\n{top}\n[[location]]\nprefix = \"/cgi-bin/\"\ncgi = true\nroot = {cgi:?}\n"
    );
    let file = site.path("unix.toml");
    fs::write(&file, text).unwrap();
    file
}

fn socket(site: &Site) -> PathBuf {
    site.path("headway.sock")
}

fn serve(site: &Site, top: &str) -> Server {
    Server::start_from_file(program(), &settings(site, top))
}

fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream
}

fn ask(stream: &mut UnixStream, target: &str, lines: &str) -> Response {
    send(
        stream,
        format!("GET {target} HTTP/1.1\r\nHost: x\r\n{lines}\r\n"),
    );
    receive(stream).unwrap()
}

fn logged(site: &Site, server: Server) -> Vec<String> {
    server.stop();
    let text = fs::read_to_string(site.path("log")).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// Changes the settings and waits until they are in use.
fn reload(site: &Site, server: &Server, top: &str) {
    let reloads = || server.status()["master"]["reloads"].as_u64().unwrap();
    let before = reloads();
    settings(site, top);
    server.signal(Signal::HUP);
    server.wait_for("the reload", |_| reloads() > before);
}

fn is_well(server: &Server) {
    is_well_except(server, waits_for_listener);
}

#[test]
fn client_of_a_unix_socket_is_served_without_an_address_and_without_limits_of_one() {
    let site = site();
    site.file("root/large.bin", &"x".repeat(300_000), 0o644);
    let server = serve(
        &site,
        "max-connections-per-address = 1\nlisten-mode = \"600\"",
    );
    let mode = fs::metadata(socket(&site)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut all: Vec<_> = (0..4).map(|_| connect(&socket(&site))).collect();
    for stream in &mut all {
        assert_eq!(ask(stream, "/file.txt", "").text(), "a file\n");
        assert_eq!(ask(stream, "/large.bin", "").body.len(), 300_000);
        let who = ask(stream, "/cgi-bin/who", "X-Forwarded-For: 192.0.2.7\r\n");
        assert_eq!(who.text(), "unix:,,unix:,80");
    }
    drop(all);
    is_well(&server);
    let lines = logged(&site, server);
    let of_unix = lines.iter().filter(|line| line.starts_with("unix: - /"));
    assert_eq!((of_unix.count(), lines.len()), (12, 13), "{lines:?}");
    assert!(!socket(&site).exists(), "the file is removed at the end");
}

/// Needs: the program curl: scripts/setup
#[test]
fn curl_is_served_over_a_unix_socket() {
    let Some(curl) = find_program("curl") else {
        return skip("curl_is_served_over_a_unix_socket", "curl is not installed");
    };
    let site = site();
    let server = serve(&site, "");
    let mut command = Command::new(curl);
    command.args(["-sS", "--fail", "--noproxy", "*", "--max-time", "60"]);
    command.arg("--unix-socket").arg(socket(&site));
    let output = command
        .arg("http://site.example/file.txt")
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "a file\n",
        "{output:?}"
    );
    server.stop();
}

#[test]
fn proxy_on_a_unix_socket_names_the_client_only_when_it_is_trusted() {
    const NAMED: &str = "X-Forwarded-For: 198.51.100.1, 192.0.2.7\r\n";
    for (top, preface, status, who) in [
        ("trusted-proxies = \"unix\"", "", 200, "192.0.2.7,,"),
        ("trusted-proxies = \"private\"", "", 200, "192.0.2.7,,"),
        ("trusted-proxies = \"127.0.0.1\"", "", 200, "unix:,,"),
        ("allow = \"unix\"", "", 200, "unix:,,"),
        ("allow = \"192.0.2.0/24\"", "", 403, ""),
        ("deny = \"unix\"", "", 403, ""),
        (
            "trusted-proxies = \"unix\"\nallow = \"192.0.2.0/24\"",
            "",
            200,
            "192.0.2.7,,",
        ),
        (
            "trusted-proxies = \"unix\"\nproxy-protocol = true",
            "PROXY TCP4 203.0.113.9 192.0.2.1 50000 80\r\n",
            200,
            "203.0.113.9,50000,",
        ),
        (
            "trusted-proxies = \"unix\"\nproxy-protocol = true",
            "PROXY UNKNOWN\r\n",
            200,
            "192.0.2.7,,",
        ),
        (
            "trusted-proxies = \"unix\"\nproxy-protocol = true",
            "",
            400,
            "",
        ),
    ] {
        let site = site();
        let server = serve(&site, &format!("{top}\n"));
        let mut stream = connect(&socket(&site));
        send(&mut stream, preface);
        let response = ask(&mut stream, "/cgi-bin/who", NAMED);
        assert_eq!(response.status, status, "{top}");
        let text = response.text();
        assert!(status != 200 || text.starts_with(who), "{top}: {text}");
        server.stop();
    }
}

#[test]
fn socket_of_a_killed_server_is_replaced_and_that_of_a_live_one_is_an_error() {
    let site = site();
    let mut first = serve(&site, "");
    let file = settings(&site, "");
    let mut second = program();
    second.args(["serve", "--quiet", "--config"]).arg(&file);
    let output = second.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let expected = format!("listen: bind(unix:{}): EADDRINUSE", socket(&site).display());
    assert!(
        !output.status.success() && said.contains(&expected),
        "{said}"
    );
    assert_eq!(
        ask(&mut connect(&socket(&site)), "/file.txt", "").status,
        200
    );
    let workers = first.children("serve-worker");
    first.signal(Signal::KILL);
    first.wait();
    first.wait_for("the end of the workers", |_| {
        let is_there = |pid: &i32| fs::exists(format!("/proc/{pid}")).unwrap();
        !workers.iter().any(is_there)
    });
    assert!(socket(&site).exists());
    let third = serve(&site, "");
    assert_eq!(
        ask(&mut connect(&socket(&site)), "/file.txt", "").status,
        200
    );
    third.stop();
    assert!(!socket(&site).exists());
    // What is no socket stays.
    fs::write(socket(&site), "").unwrap();
    let mut fourth = program();
    fourth.args(["serve", "--quiet", "--config"]).arg(&file);
    let said = String::from_utf8_lossy(&fourth.output().unwrap().stderr).into_owned();
    assert!(
        said.contains("EEXIST: there is a file which is no socket"),
        "{said}"
    );
    assert!(socket(&site).exists());
}

/// Needs: root, to give a file to another user
#[test]
fn unix_socket_belongs_to_the_user_and_the_group_of_its_setting() {
    const NAME: &str = "unix_socket_belongs_to_the_user_and_the_group_of_its_setting";
    if !is_root() {
        return skip(NAME, "root, to give a file to another user");
    }
    let site = site();
    let rights = || {
        let meta = fs::metadata(socket(&site)).unwrap();
        (meta.uid(), meta.gid(), meta.mode() & 0o777)
    };
    let server = serve(&site, "listen-owner = \"4711:4712\"");
    assert_eq!(rights(), (4711, 4712, 0o660));
    reload(&site, &server, "listen-owner = \"4713:4714\"");
    assert_eq!(rights(), (4713, 4714, 0o660));
    let response = ask(&mut connect(&socket(&site)), "/file.txt", "");
    assert_eq!(response.status, 200);
    server.stop();
    assert!(!socket(&site).exists(), "it is removed at the end as well");
}

#[test]
fn unix_socket_stays_in_a_reload_and_is_removed_with_its_setting() {
    let site = site();
    let server = serve(&site, "");
    let reload = |top: &str| reload(&site, &server, top);
    let inode = fs::metadata(socket(&site)).unwrap().ino();
    let mut kept = connect(&socket(&site));
    assert_eq!(ask(&mut kept, "/file.txt", "").status, 200);
    reload("listen-mode = \"666\"");
    assert_eq!(ask(&mut kept, "/file.txt", "").status, 200);
    let now = fs::metadata(socket(&site)).unwrap();
    assert_eq!(
        (now.ino(), now.permissions().mode() & 0o777),
        (inode, 0o666)
    );
    assert_eq!(
        ask(&mut connect(&socket(&site)), "/file.txt", "").status,
        200
    );
    let other = site.path("other.sock");
    // A failed reload removes nothing, and leaves nothing.
    let live = site.path("live.sock");
    let _live = UnixListener::bind(&live).unwrap();
    let failures = server.status()["master"]["reload_failures"]
        .as_u64()
        .unwrap();
    settings(
        &site,
        &format!(
            "listen = [\"127.0.0.1:0\", \"unix:{}\", \"unix:{}\"]",
            other.display(),
            live.display()
        ),
    );
    server.signal(Signal::HUP);
    server.wait_for("the refusal", |server| {
        server.status()["master"]["reload_failures"]
            .as_u64()
            .unwrap()
            > failures
    });
    assert!(socket(&site).exists() && !other.exists());
    reload(&format!(
        "listen = [\"127.0.0.1:0\", \"unix:{}\"]",
        other.display()
    ));
    assert_eq!(ask(&mut connect(&other), "/file.txt", "").status, 200);
    assert!(!socket(&site).exists());
    is_well(&server);
    server.stop();
    assert!(!other.exists() && live.exists());
}
