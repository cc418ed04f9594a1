//! A server in processes of its own, on ephemeral ports, for tests of a program which has `serve`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::WAIT_MAX;

/// Arguments of setpriv(1) for a command that may not load programs into the kernel.
const WITHOUT_BPF: &str = "--bounding-set=-bpf,-sys_admin";

/// Wraps the command so that it first enters a control group, given by its list of processes.
pub fn in_group(command: Command, procs: &Path) -> Command {
    let mut shell = Command::new("sh");
    // The shell writes its own number, and then becomes the command.
    shell.args(["-c", "echo 0 >\"$0\" && exec \"$@\""]);
    shell.arg(procs).arg(command.get_program());
    shell.args(command.get_args());
    shell
}

/// Wraps the command so that it lacks the right to load programs into the kernel, by setpriv(1).
pub fn without_bpf(command: Command) -> Command {
    let mut wrapped = Command::new("setpriv");
    wrapped.arg(WITHOUT_BPF).arg(command.get_program());
    wrapped.args(command.get_args());
    wrapped
}

/// A running server; killed with all its processes when dropped.
#[derive(Debug)]
pub struct Server {
    /// Its first listener.
    pub address: String,
    /// All its listeners; those that speak TLS are the last ones.
    pub listeners: Vec<String>,
    /// The listener of its status page.
    pub status: String,
    child: Child,
    /// Processes of the master, by number and start, so that none is left behind.
    seen: Mutex<BTreeSet<(i32, u64)>>,
    _directory: TempDir,
}

impl Server {
    /// Serves a directory that the test has made, by a program which has `serve`: with two workers,
    /// unless the arguments say otherwise.
    pub fn start(program: Command, root: &Path, arguments: &[&str]) -> Server {
        Server::start_with(program, tempfile::tempdir().unwrap(), root, arguments)
    }

    /// Serves with the settings of a file and no others, so that a reload may change them. The file has a
    /// root, and addresses for clients and the status page.
    pub fn start_from_file(mut program: Command, file: &Path) -> Server {
        program.arg("serve").arg("--config").arg(file);
        Server::start_command(program, tempfile::tempdir().unwrap())
    }

    /// Like [`Server::start`], with a root of one file that says `hello`.
    pub fn start_hello(program: Command, arguments: &[&str]) -> Server {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(root.join("index.html"), "hello").unwrap();
        Server::start_with(program, directory, &root, arguments)
    }

    fn start_with(
        mut command: Command,
        directory: TempDir,
        root: &Path,
        arguments: &[&str],
    ) -> Server {
        command.arg("serve").arg(root);
        command.args(["--listen", "127.0.0.1:0", "--status", "127.0.0.1:0"]);
        if !arguments.contains(&"--workers") {
            command.args(["--workers", "2"]);
        }
        command.args(arguments);
        Server::start_command(command, directory)
    }

    fn start_command(mut command: Command, directory: TempDir) -> Server {
        let ready = directory.path().join("ready");
        let child = command
            .arg("--ready-file")
            .arg(&ready)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Made before the wait, so that the process is ended also when it does not become ready.
        let mut server = Server {
            address: String::new(),
            listeners: Vec::new(),
            status: String::new(),
            child,
            seen: Mutex::default(),
            _directory: directory,
        };
        server.wait_until_ready(&ready);
        server
    }

    fn wait_until_ready(&mut self, ready: &Path) {
        let begun = Instant::now();
        while !ready.exists() {
            assert!(
                self.child.try_wait().unwrap().is_none(),
                "the server ended at its start"
            );
            assert!(
                begun.elapsed() < WAIT_MAX,
                "the server does not become ready"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        let ready: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(ready).unwrap()).unwrap();
        assert_eq!(ready["master_pid"], self.child.id());
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let listeners = ready["listen"].as_array().unwrap();
        self.listeners = listeners.iter().map(text).collect();
        self.address = self.listeners[0].clone();
        self.status = text(&ready["status"]);
    }

    /// The processes of one kind (`serve-worker`, `serve-helper`, `serve-log`; `serve-` for all)
    /// that the master has now.
    pub fn children(&self, kind: &str) -> Vec<i32> {
        let found = children(self.child.id(), kind);
        let mut seen = self.seen.lock().unwrap();
        seen.extend(
            found
                .iter()
                .filter_map(|pid| Some((*pid, stat(*pid)?.started))),
        );
        found
    }

    /// The process ID of the master.
    pub fn master(&self) -> i32 {
        Pid::from_child(&self.child).as_raw_nonzero().get()
    }

    /// The number of one of the master's threads, by its name.
    pub fn thread(&self, name: &str) -> i32 {
        let threads = format!("/proc/{}/task", self.child.id());
        let named = std::fs::read_dir(threads).unwrap().flatten().find(|entry| {
            let comm = std::fs::read_to_string(entry.path().join("comm"));
            comm.is_ok_and(|comm| comm.trim() == name)
        });
        let number = named.expect("a thread of that name").file_name();
        number.to_str().unwrap().parse().unwrap()
    }

    /// Opens a connection.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream
    }

    /// A full accept queue is not a closed listener: only a refused connection means that no
    /// process listens.
    pub fn accepts(&self) -> bool {
        let address = self.address.parse().unwrap();
        let refused = std::io::ErrorKind::ConnectionRefused;
        TcpStream::connect_timeout(&address, Duration::from_secs(1))
            .map_or_else(|error| error.kind() != refused, |_| true)
    }

    /// The status and the body of a response, on a connection of its own.
    pub fn get(&self, path: &str) -> (u16, String) {
        let (status, _, body) = get(&self.address, path);
        (status, body)
    }

    /// What the status page says.
    pub fn status(&self) -> serde_json::Value {
        serde_json::from_str(&get(&self.status, "/status.json").2).unwrap()
    }

    /// Waits for something that must happen to the server.
    pub fn wait_for(&self, what: &str, condition: impl Fn(&Server) -> bool) {
        let begun = Instant::now();
        while !condition(self) {
            assert!(begun.elapsed() < WAIT_MAX, "{what} did not happen");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends a signal to the master.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end of the master.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// What the server has written to standard error, as far as it was not read. Does not wait, because
    /// children may hold the pipe open.
    fn said_so_far(&mut self) -> String {
        let Some(stderr) = &mut self.child.stderr else {
            return String::new();
        };
        let _ = rustix::fs::fcntl_setfl(&*stderr, rustix::fs::OFlags::NONBLOCK);
        let mut said = Vec::new();
        let _ = stderr.read_to_end(&mut said);
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Stops the server and returns what it said.
    pub fn stop(mut self) -> String {
        self.signal(Signal::TERM);
        assert!(self.wait().success());
        let mut said = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        said
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.children("serve-");
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the server said:\n{}", self.said_so_far());
        }
        // They end when their master does; a test that fails because they did not must not leave
        // them. Those seen earlier count, too: after the master's death they are not its children
        // any more.
        let begun = Instant::now();
        let seen = std::mem::take(self.seen.get_mut().unwrap_or_else(PoisonError::into_inner));
        for (pid, started) in seen {
            // The same number with another start is a stranger.
            while stat(pid).is_some_and(|now| now.started == started && now.is_running()) {
                if begun.elapsed() > Duration::from_secs(3) {
                    let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

fn children(master: u32, kind: &str) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|pid: &i32| {
            let of_master = stat(*pid).filter(|process| process.parent == master);
            of_master.is_some_and(|process| command_line(*pid, process.started).contains(kind))
        })
        .collect()
}

/// The command line of a child. It is read once: the kernel locks the memory of the process meanwhile, and a worker
/// that maps memory then waits.
fn command_line(pid: i32, started: u64) -> String {
    static KNOWN: Mutex<BTreeMap<(i32, u64), String>> = Mutex::new(BTreeMap::new());
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = known().get(&(pid, started)) {
        return found.clone();
    }
    let text = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    // A process that was just made still has the command line of its parent.
    if text.contains("serve-") {
        known().insert((pid, started), text.clone());
    }
    text
}

/// What proc_pid_stat(5) says of a process.
struct Process {
    state: char,
    parent: u32,
    /// When the process started, in clock ticks since the machine did.
    started: u64,
}

impl Process {
    /// A process that has ended may wait for its parent to notice.
    fn is_running(&self) -> bool {
        self.state != 'Z' && self.state != 'X'
    }
}

fn stat(pid: i32) -> Option<Process> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before the last parenthesis may hold anything; the state, field 3, follows it.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some(Process {
        state: fields.next()?.chars().next()?,
        parent: fields.next()?.parse().ok()?,
        started: fields.nth(17)?.parse().ok()?,
    })
}

/// Kills a process.
pub fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

/// Sends a text.
pub fn write(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).unwrap();
}

/// Reads until the other side closes.
pub fn read(stream: &mut TcpStream) -> String {
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return String::from_utf8_lossy(&text).into_owned(),
            Ok(bytes) => text.extend_from_slice(&buffer[..bytes]),
        }
    }
}

/// A whole exchange on a connection of its own: status, head, body.
pub fn get(address: &str, path: &str) -> (u16, String, String) {
    exchange(
        address,
        &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"),
    )
}

/// The same for any request; the status is 0 without one.
pub fn exchange(address: &str, request: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    write(&mut stream, request);
    let text = read(&mut stream);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .unwrap_or(0);
    (status, head.into(), body.into())
}
