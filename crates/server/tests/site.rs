//! A site with CGI programs, and its server.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use headway_test_support::{WAIT_MAX, executable};
use rustix::net::{AddressFamily, SocketType};
use serde_json::Value;
use tempfile::TempDir;

pub use headway_test_support::client::*;
pub use headway_test_support::server::Server;

/// A program which has `serve`, for tests of whole processes.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_headway-server-test");

/// Starts [`PROGRAM`].
pub fn program() -> Command {
    Command::new(PROGRAM)
}

/// A document root with a directory of programs beside it.
pub struct Site {
    directory: TempDir,
}

/// The worker itself starts the programs of [`Site::serve`].
pub const FORK_IN_SERVER: &str = "research.fork-in-server = \"/cgi-bin/\"";

impl Site {
    pub fn new() -> Site {
        let directory = tempfile::tempdir().unwrap();
        for name in ["root", "cgi", "notes"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        fs::write(directory.path().join("root/file.txt"), "a file\n").unwrap();
        Site { directory }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Lets every user into the directories, and write notes.
    pub fn open_to_all(&self) {
        for name in ["", "root", "cgi", "notes"] {
            fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o777)).unwrap();
        }
    }

    /// A file for a program's notes.
    pub fn note(&self, name: &str) -> PathBuf {
        self.path("notes").join(name)
    }

    /// Adds a shell script; `{notes}` is a directory for its notes.
    pub fn program(&self, name: &str, script: &str) {
        let script = script.replace("{notes}", &self.path("notes").display().to_string());
        self.file(
            &format!("cgi/{name}"),
            &format!("#!/bin/sh\n{script}\n"),
            0o755,
        );
    }

    pub fn file(&self, name: &str, text: &str, mode: u32) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        executable::write(&path, text, mode);
    }

    /// A server with one worker and the programs at `/cgi-bin/`; `more` is added to that location.
    pub fn serve(&self, more: &str) -> Server {
        self.serve_with("", more)
    }

    /// A server like that of [`Site::serve`], with `top` added to its settings.
    pub fn serve_with(&self, top: &str, more: &str) -> Server {
        let cgi = self.path("cgi");
        let location = format!(
            "[[location]]\nprefix = \"/cgi-bin/\"\ncgi = true\nroot = {:?}\n{more}\n",
            cgi.display()
        );
        self.serve_configured(&format!("{top}\n{location}"))
    }

    pub fn serve_configured(&self, text: &str) -> Server {
        let path = self.path("headway.toml");
        fs::write(&path, text).unwrap();
        let path = path.to_str().unwrap();
        let arguments = ["--workers", "1", "--config", path];
        Server::start(program(), &self.path("root"), &arguments)
    }
}

/// A connection from another address of this machine.
pub fn connect_from(source: Ipv4Addr, server: &Server) -> TcpStream {
    connect_between(source, &server.address)
}

/// A connection from this address of this machine.
pub fn connect_between(source: Ipv4Addr, to: &str) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrV4::new(source, 0)).unwrap();
    let to: SocketAddr = to.parse().unwrap();
    rustix::net::connect(&socket, &to).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream
}

/// The numbers that a program has noted in a file, once they are complete.
pub fn numbers(path: &Path) -> Vec<i32> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect()
}

/// Checks that the server still answers and its loop has never blocked, except for
/// `fork-in-server`, where creating a process blocks.
pub fn is_well(server: &Server) {
    is_well_except(server, |_| false);
}

/// As [`is_well`], but these sleeps may occur.
pub fn is_well_except(server: &Server, may_occur: impl Fn(&Value) -> bool) {
    let response = get(server, "/file.txt");
    assert_eq!(
        (response.status, response.text().as_str()),
        (200, "a file\n")
    );
    assert_never_blocked(server, may_occur);
    assert_eq!(server.status()["master"]["worker_deaths"], 0);
}

/// While workers share a listener, one of them may wait for its lock: when it accepts, or when it sets an option of the
/// listener because it ends.
pub fn waits_for_listener(sleep: &Value) -> bool {
    let call = sleep["call"].as_str().unwrap_or_default();
    sleep["label"] == "socket-lock" && ["accept4", "setsockopt"].contains(&call)
}

/// Checks that the loop has never blocked, except for `fork-in-server` and where it may.
pub fn assert_never_blocked(server: &Server, may_occur: impl Fn(&Value) -> bool) {
    let status = server.status();
    let sleeps = status["total"]["trace"]["sleeps"].as_array().unwrap();
    let others = sleeps
        .iter()
        .filter(|sleep| sleep["call"] != "fork (waits)" && !may_occur(sleep));
    assert_eq!(others.collect::<Vec<_>>(), Vec::<&Value>::new());
}

/// Turns of all loops.
pub fn turns(server: &Server) -> u64 {
    let status = server.status();
    let turns = &status["total"]["counters"]["loop_turn_us"]["count"];
    turns.as_u64().unwrap()
}
