//! What tests of several crates need: skips that are seen, patience, cold files, other processes,
//! servers and their clients.
//!
//! It is a dev-dependency only, of any crate. It knows none of them, so that the lowest may use it.
//! Everything here panics on an error, since a test has no better answer.

#![forbid(unsafe_code)]

use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

pub mod client;
pub mod disks;
pub mod exchange;
pub mod executable;
pub mod groups;
pub mod http2;
pub mod made_kernel;
pub mod server;
pub mod trust;
pub mod upstream;

/// How long a test waits for something that must happen. It is no measurement: only a test which
/// fails waits for so long.
pub const WAIT_MAX: Duration = Duration::from_secs(30);

/// Reports that a test did not run, and why: to the reader, and to the file that
/// `HEADWAY_SKIP_LOG` names, which `scripts/test` compares with `tests/expected-skips`.
pub fn skip(test: &str, reason: &str) {
    println!("SKIP: {test}: {reason}");
    if let Some(path) = std::env::var_os("HEADWAY_SKIP_LOG") {
        let log = File::options().create(true).append(true).open(path);
        // One write per line, since parallel tests append to one file.
        log.expect("the skip log can be appended to")
            .write_all(format!("{test}: {reason}\n").as_bytes())
            .expect("the skip log can be written");
    }
}

/// Whether the test runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The place of an installed program, also in the directories of administrators' programs.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

/// Builds a package of Go in a folder, without cgo and without the network. `None` if there is no Go.
pub fn build_go(folder: &Path, package: &str, program: &Path) -> Option<Output> {
    let of_go = || Some(PathBuf::from("/usr/local/go/bin/go")).filter(|go| go.exists());
    let go = find_program("go").or_else(of_go)?;
    let mut command = Command::new(go);
    command.args(["build", "-o"]).arg(program).arg(package);
    command.current_dir(folder).envs([
        ("CGO_ENABLED", "0"),
        ("GOPROXY", "off"),
        ("GOTOOLCHAIN", "local"),
        ("GOFLAGS", ""),
    ]);
    Some(command.output().expect("go runs"))
}

/// The same as [`find_program`], or where `go install` puts it.
pub fn find_go_program(name: &str) -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let of_go = home.map(|home| home.join("go/bin").join(name));
    find_program(name).or(of_go.filter(|path| path.exists()))
}

/// Waits for something that must happen.
///
/// # Panics
/// When it has not happened after [`WAIT_MAX`]; the message says what.
pub fn wait_until(what: &str, mut met: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !met() {
        assert!(begun.elapsed() < WAIT_MAX, "did not happen: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a process runs: it exists and is no zombie.
pub fn is_running(pid: impl Display) -> bool {
    // The name before the state may hold anything, a parenthesis included.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Evicts a file's pages, so that the next reader must wait for the disk. A file system in memory
/// keeps them.
pub fn make_cold(path: &Path) {
    let file = File::open(path).expect("a file to make cold");
    file.sync_all().expect("only clean pages can be dropped");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("fadvise");
}

/// A local address that refuses connections. It stays so while this process lives: its socket is
/// bound and never listens, so no other test gets the port.
pub fn unused_address() -> SocketAddr {
    let socket = tcp_socket();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    rustix::net::bind(&socket, &any).expect("a free port");
    let bound = rustix::net::getsockname(&socket).expect("the address of a socket");
    std::mem::forget(socket);
    bound.try_into().expect("an internet address")
}

/// Programs that tests start meanwhile must not inherit it.
fn tcp_socket() -> OwnedFd {
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).expect("a socket")
}

/// A client with the smallest receive buffer: what it does not read stays at the server. It waits
/// for data as long as [`WAIT_MAX`].
pub fn tiny_client(server: impl ToSocketAddrs) -> TcpStream {
    let mut addresses = server.to_socket_addrs().expect("an address");
    let server = addresses.next().expect("an address");
    let socket = tcp_socket();
    sockopt::set_socket_recv_buffer_size(&socket, 4096).expect("SO_RCVBUF");
    rustix::net::connect(&socket, &server).expect("a connection");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(WAIT_MAX)).expect("a timeout");
    stream
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_runs_until_it_has_ended() {
        let mut child = Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("cat starts");
        assert!(is_running(child.id()) && is_running(std::process::id()));
        drop(child.stdin.take());
        // Nothing has reaped it, so it is a zombie meanwhile.
        wait_until("cat ends", || !is_running(child.id()));
        child.wait().expect("cat was reaped");
        assert!(!is_running(u32::MAX));
    }

    #[test]
    fn nothing_listens_at_an_unused_address() {
        let refused = TcpStream::connect(unused_address()).expect_err("nothing listens");
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    }
}
