//! Servers of other projects behind a Unix socket: php-fpm, uWSGI, nginx.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{WAIT_MAX, find_program, skip};

mod installed;

pub use installed::{TEXT, nginx, php, uwsgi};

/// A server that listens on a socket in a directory of its own.
#[derive(Debug)]
pub struct TestServer {
    child: Child,
    directory: TempDir,
}

impl TestServer {
    /// Starts the first of these programs that is installed, or skips the test. `arrange` puts
    /// files into the directory and returns the arguments; the socket is `socket` in it.
    pub fn start(
        test: &str,
        programs: &[&str],
        arrange: impl Fn(&Path) -> Vec<String>,
    ) -> Option<TestServer> {
        let Some(program) = programs.iter().find_map(|name| find_program(name)) else {
            skip(
                test,
                &format!(
                    "the program {} is not installed: scripts/setup",
                    programs[0]
                ),
            );
            return None;
        };
        // Not in the build directory: the path of a socket has at most 108 bytes.
        let directory = tempfile::tempdir().unwrap();
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let child = Command::new(program)
            .args(arrange(directory.path()))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut upstream = TestServer { child, directory };
        upstream.wait_until_it_listens();
        Some(upstream)
    }

    /// Opens a connection.
    pub fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).unwrap();
        let timeout = Some(WAIT_MAX);
        stream.set_read_timeout(timeout).unwrap();
        stream.set_write_timeout(timeout).unwrap();
        stream
    }

    /// The path of the server's socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn wait_until_it_listens(&mut self) {
        let socket = self.socket();
        let deadline = Instant::now() + WAIT_MAX;
        while UnixStream::connect(&socket).is_err() {
            let ended = self.child.try_wait().unwrap();
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(self.directory.path().join("log")).unwrap();
                panic!("the program does not listen ({ended:?}):\n{log}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for TestServer {
    /// After SIGTERM the server stops its children as well.
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.child);
        let _ = kill_process(pid, Signal::TERM);
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The scripts for a kind of upstream: `php` or `scgi`.
pub fn scripts(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("handlers")
        .join(kind)
        .canonicalize()
        .unwrap()
}
