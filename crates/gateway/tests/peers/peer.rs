//! Starting another program, talking to it, and ending it.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gateway::{Answer, End, Event, Exchange, Fault, Reply, Request};
use http::{HeadLimits, Parsed};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A program that listens on a socket in a directory of its own.
pub struct Peer {
    child: Child,
    directory: TempDir,
}

impl Peer {
    /// Starts the first of these programs that is installed, or says that the test does not run.
    /// `arrange` puts files into the directory and gives the arguments; the socket is `socket` in it.
    pub fn start(
        test: &str,
        programs: &[&str],
        arrange: impl Fn(&Path) -> Vec<String>,
    ) -> Option<Peer> {
        let Some(program) = programs.iter().find_map(|name| installed(name)) else {
            skip(
                test,
                &format!(
                    "the program {} is not installed: scripts/setup",
                    programs[0]
                ),
            );
            return None;
        };
        // Not beside the build: the path of a socket has at most 108 bytes.
        let directory = tempfile::tempdir().unwrap();
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let child = Command::new(program)
            .args(arrange(directory.path()))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut peer = Peer { child, directory };
        peer.wait_until_it_listens();
        Some(peer)
    }

    /// A new connection.
    pub fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.directory.path().join("socket")).unwrap();
        let patience = Some(Duration::from_secs(30));
        stream.set_read_timeout(patience).unwrap();
        stream.set_write_timeout(patience).unwrap();
        stream
    }

    fn wait_until_it_listens(&mut self) {
        let socket = self.directory.path().join("socket");
        let deadline = Instant::now() + Duration::from_secs(30);
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

impl Drop for Peer {
    /// Asked to end, it takes its children with it.
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

/// The programs that the tests of dynamic content share.
pub fn programs(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../cli/tests/dynamic")
        .join(folder)
        .canonicalize()
        .unwrap()
}

fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

fn skip(test: &str, reason: &str) {
    println!("SKIP: {reason}");
    if let Some(path) = std::env::var_os("HEADWAY_SKIP_LOG") {
        let mut log = fs::File::options()
            .append(true)
            .create(true)
            .open(path)
            .unwrap();
        writeln!(log, "{test}: {reason}").unwrap();
    }
}

/// Parses a request for whatever is made of it.
pub fn with_request<T>(bytes: &[u8], make: impl FnOnce(&Request<'_>) -> T) -> T {
    let Parsed::Complete(head) = http::parse(bytes, &HeadLimits::default()) else {
        panic!("{}", bytes.escape_ascii());
    };
    make(&Request::new(&head, bytes))
}

/// What came back.
#[derive(Debug)]
pub struct Outcome {
    pub answer: Option<Answer>,
    pub body: Vec<u8>,
    pub stderr: String,
    pub end: Result<End, Fault>,
}

impl Outcome {
    pub fn reply(&self) -> &Reply {
        match &self.answer {
            Some(Answer::Reply(reply)) => reply,
            _ => panic!("{self:?}"),
        }
    }

    pub fn field(&self, name: &str) -> &str {
        let value = self.reply().fields.get(name.as_bytes());
        std::str::from_utf8(value.unwrap_or_default()).unwrap()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn has_line(&self, line: &str) -> bool {
        self.text().lines().any(|found| found == line)
    }
}

/// Sends all of a request, then reads all of its reply. The peers read a request before they answer it.
pub fn converse(exchange: &mut dyn Exchange, stream: &mut UnixStream, body: &[u8]) -> Outcome {
    let mut bytes = Vec::new();
    let mut outcome = converse_into(exchange, stream, body, &mut |piece| {
        bytes.extend_from_slice(piece)
    });
    outcome.body = bytes;
    outcome
}

/// The same for a body that is too large to be kept.
pub fn converse_into(
    exchange: &mut dyn Exchange,
    stream: &mut UnixStream,
    mut body: &[u8],
    sink: &mut dyn FnMut(&[u8]),
) -> Outcome {
    let mut outcome = Outcome {
        answer: None,
        body: Vec::new(),
        stderr: String::new(),
        end: Err(Fault::Closed),
    };
    loop {
        body = &body[exchange.push_body(body)..];
        if body.is_empty() {
            exchange.end_body();
        }
        if exchange.unsent().is_empty() {
            break;
        }
        let written = stream.write(exchange.unsent()).unwrap();
        exchange.sent(written);
    }
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let bytes = match stream.read(&mut buffer) {
            Ok(bytes) => bytes,
            // A program that is killed leaves bytes of the request unread.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
            Err(error) => panic!("{error}"),
        };
        let mut input = &buffer[..bytes];
        if bytes == 0 {
            outcome.end = exchange.finish();
            return outcome;
        }
        loop {
            match exchange.feed(&mut input) {
                Ok(None) => break,
                Ok(Some(Event::Head(answer))) => outcome.answer = Some(answer),
                Ok(Some(Event::Body(piece))) => sink(piece),
                Ok(Some(Event::Stderr(words))) => {
                    outcome.stderr += &String::from_utf8_lossy(words);
                }
                Ok(Some(Event::End(end))) => {
                    outcome.end = Ok(end);
                    return outcome;
                }
                Err(fault) => {
                    outcome.end = Err(fault);
                    return outcome;
                }
            }
        }
    }
}
