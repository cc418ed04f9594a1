//! Sockets of the service manager: a shell passes them as systemd does.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use headway_test_support::{WAIT_MAX, wait_until};
use rustix::process::Signal;

use crate::site::*;
use crate::upgrade::master;

/// The server with one or two sockets, which the shell has as standard input and output.
fn activated(sockets: Vec<TcpListener>, names: &str) -> Command {
    let count = sockets.len();
    let script = format!(
        "exec 3<&0 4<&1 0</dev/null 1>/dev/null; [ {count} = 2 ] || exec 4<&-\n\
         export LISTEN_PID=$$ LISTEN_FDS={count} LISTEN_FDNAMES={names}; exec \"$0\" \"$@\""
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script, PROGRAM]);
    let mut sockets = sockets.into_iter().map(OwnedFd::from);
    command.stdin(sockets.next().unwrap());
    command.stdout(sockets.next().map_or_else(Stdio::null, Stdio::from));
    command
}

fn socket() -> (TcpListener, String) {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    (socket, address)
}

fn settings(site: &Site, settings: &str) -> PathBuf {
    let file = site.path("activated.toml");
    let root = site.path("root");
    let text = format!("root = {root:?}\nstatus = \"127.0.0.1:0\"\nworkers = 2\n{settings}\n");
    fs::write(&file, text).unwrap();
    file
}

#[test]
fn sockets_of_the_service_manager_are_used_and_survive_reloads_and_upgrades() {
    let site = Site::new();
    let ((one, first), (two, second)) = (socket(), socket());
    // The first one by its address, the second one by its name.
    let file = settings(&site, &format!("listen = [\"127.0.0.1:1\", \"{first}\"]"));
    let server = Server::start_from_file(activated(vec![one, two], "any:http"), &file);
    assert_eq!(server.listeners, [second.clone(), first.clone()]);
    let answers = |address: &str| {
        let (status, _, body) = headway_test_support::server::get(address, "/file.txt");
        assert_eq!((status, body.as_str()), (200, "a file\n"));
    };
    (0..8).for_each(|_| {
        [&first, &second]
            .into_iter()
            .for_each(|address| answers(address))
    });
    server.signal(Signal::HUP);
    wait_until("the reload", || {
        master(&server, "reloads").as_u64() == Some(1)
    });
    [&first, &second]
        .into_iter()
        .for_each(|address| answers(address));
    server.signal(Signal::USR2);
    wait_until("the upgrade", || {
        let error = master(&server, "upgrade_error");
        assert!(error.is_null(), "{error}");
        master(&server, "upgrades").as_u64() == Some(1)
    });
    (0..8).for_each(|_| {
        [&first, &second]
            .into_iter()
            .for_each(|address| answers(address))
    });
    server.stop();
}

/// Starts a server that must not start, and returns what it says.
fn refusal(mut command: Command, file: &PathBuf) -> String {
    command.arg("serve").arg("--config").arg(file);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    let ended = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if begun.elapsed() > WAIT_MAX => break None,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    if ended.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    let mut text = String::new();
    child.stderr.unwrap().read_to_string(&mut text).unwrap();
    let status = ended.unwrap_or_else(|| panic!("it started: {text}"));
    assert!(!status.success(), "{text}");
    text
}

#[test]
fn socket_that_belongs_to_no_address_is_an_error_that_names_it() {
    let site = Site::new();
    let ((one, first), (two, second)) = (socket(), socket());
    let file = settings(&site, &format!("listen = \"{first}\""));
    let text = refusal(activated(vec![one, two], "a:surplus"), &file);
    assert!(text.contains(&format!("{second} (surplus)")), "{text}");
    assert!(!text.contains(&first), "{text}");
    let (three, _) = socket();
    let text = refusal(activated(vec![three], "https"), &file);
    assert!(text.contains("(https): no address"), "{text}");
}

#[test]
fn descriptor_that_is_no_listener_is_an_error() {
    let site = Site::new();
    let file = settings(&site, "listen = \"127.0.0.1:0\"");
    let mut command = activated(vec![socket().0], "web");
    command.stdin(Stdio::null());
    let text = refusal(command, &file);
    assert!(
        text.contains("descriptor 3 (web): it is not a TCP socket"),
        "{text}"
    );
}

#[test]
fn sockets_for_another_process_are_ignored() {
    let site = Site::new();
    let file = settings(&site, "listen = \"127.0.0.1:0\"");
    let mut command = program();
    command.env("LISTEN_PID", "1").env("LISTEN_FDS", "1");
    let server = Server::start_from_file(command, &file);
    is_well(&server);
}
