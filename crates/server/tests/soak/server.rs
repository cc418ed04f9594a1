//! The server of the run, started as a service manager would, and what its processes hold.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use headway_test_support::WAIT_MAX;
use headway_test_support::server::in_group;

use crate::journal::{Journal, Kind};
use crate::machine::{self, processes, reap_orphans};
use crate::site::Site;
use crate::upstream::HOST;

/// Where a run is.
pub struct Paths {
    pub directory: PathBuf,
    pub bodies: PathBuf,
    pub logs: PathBuf,
    pub memory: PathBuf,
    pub pids: PathBuf,
}

impl Paths {
    /// Makes the small file systems.
    pub fn create(directory: &Path) -> Paths {
        let group = |name| PathBuf::from(std::env::var_os(name).unwrap_or_default());
        let paths = Paths {
            directory: directory.to_owned(),
            bodies: directory.join("bodies"),
            logs: directory.join("logs"),
            memory: group("HEADWAY_SOAK_MEMORY"),
            pids: group("HEADWAY_SOAK_PIDS"),
        };
        for (path, size) in [(&paths.bodies, "48m"), (&paths.logs, "32m")] {
            fs::create_dir(path).expect("a directory");
            let mount = format!("-t tmpfs -o size={size} none {}", path.display());
            machine::run("mount", &mount).expect("a small file system");
        }
        paths
    }
}

/// The server, which is started again when its master has ended.
pub struct Server {
    child: Mutex<Child>,
    /// The number of the master.
    pub master: AtomicI32,
    pub restarts: AtomicU64,
    command: Box<dyn Fn() -> Command + Send + Sync>,
}

impl Server {
    pub fn start(paths: &Paths, site: &Site, disk: Option<&Path>) -> Server {
        let config = paths.directory.join("server.toml");
        fs::write(&config, configuration(paths, site, disk)).expect("a configuration");
        let program = std::env::var_os("HEADWAY_SOAK_PROGRAM")
            .unwrap_or_else(|| env!("CARGO_BIN_EXE_headway-server-test").into());
        let messages = paths.directory.join("server.err");
        let groups = [paths.memory.clone(), paths.pids.clone()];
        let command = move || {
            let mut command = Command::new(&program);
            command.args(["serve", "--config"]).arg(&config);
            for group in groups.iter().filter(|group| !group.as_os_str().is_empty()) {
                command = in_group(command, &group.join("cgroup.procs"));
            }
            let messages = File::options().create(true).append(true).open(&messages);
            command
                .stdin(Stdio::null())
                .stderr(messages.expect("a file"));
            command
        };
        let child = command().spawn().expect("the server");
        let server = Server {
            master: AtomicI32::new(child.id() as i32),
            child: Mutex::new(child),
            restarts: AtomicU64::new(0),
            command: Box::new(command),
        };
        server.wait_until_ready();
        server
    }

    fn wait_until_ready(&self) {
        let begun = Instant::now();
        while metrics().is_none() {
            assert!(
                begun.elapsed() < WAIT_MAX,
                "the server does not become ready"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts the server again when it has ended, until the run ends.
    pub fn keep_running(&self, journal: &Journal, has_ended: &AtomicBool) {
        let (mut looked, mut ended_children) = (Instant::now(), Vec::new());
        while !has_ended.load(Ordering::SeqCst) {
            if looked.elapsed() > Duration::from_secs(1) {
                looked = Instant::now();
                let master = self.master.load(Ordering::SeqCst);
                ended_children = reap_orphans(&ended_children, master);
            }
            if let Some(status) = self.ended() {
                let number = journal.begin(Kind::Restart, &format!("{status}"));
                let child = (self.command)().spawn().expect("the server");
                self.master.store(child.id() as i32, Ordering::SeqCst);
                *self.child.lock().expect("child") = child;
                self.restarts.fetch_add(1, Ordering::SeqCst);
                self.wait_until_ready();
                journal.end(number);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// How the master has ended, if it has.
    fn ended(&self) -> Option<ExitStatus> {
        let mut child = self.child.lock().expect("child");
        child.try_wait().expect("a child")
    }

    /// Stops the server; whether it ended well.
    pub fn stop(&self) -> Result<(), String> {
        machine::signal(
            self.master.load(Ordering::SeqCst),
            rustix::process::Signal::TERM,
        );
        let begun = Instant::now();
        while begun.elapsed() < WAIT_MAX {
            match self.ended() {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("the master ended with {status}")),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        Err("the master does not end".into())
    }
}

fn configuration(paths: &Paths, site: &Site, disk: Option<&Path>) -> String {
    let limits = "timeout = \"10s\"\nconcurrency = 64";
    let upstream = "connect-timeout = \"1s\"";
    let disk = disk.map(|disk| format!("[[host]]\nnames = \"disk\"\nroot = {disk:?}\n"));
    format!(
        "root = {root:?}\nlisten = \"127.0.0.1:8080\"\nstatus = \"127.0.0.1:9090\"\nworkers = 2\n\
         log = {log:?}\ntemp-directory = {bodies:?}\nworker-timeout = \"5s\"\n\
         send-timeout = \"10s\"\nbody-timeout = \"10s\"\nbuffer-memory-max = \"8MiB\"\n\
         max-body-size = \"4MiB\"\nhelpers = \"1-4\"\n\
         response-cache-max = \"2MiB\"\nchunk-cache-max = \"8MiB\"\npin-max = \"8MiB\"\n\
         [[location]]\nprefix = \"/cgi/\"\ncgi = true\nroot = {cgi:?}\n{limits}\n\
         [[location]]\nprefix = \"/scgi/\"\nscgi = \"{HOST}:7003\"\n{limits}\n{upstream}\n\
         [[location]]\nprefix = \"/proxy/\"\nproxy = [\"{HOST}:7001\", \"{HOST}:7002\"]\n\
         {limits}\n{upstream}\n\
         [[host]]\nnames = \"release\"\nroot = {current:?}\n{disk}",
        root = site.path("root"),
        log = paths.logs.join("access.log"),
        bodies = paths.bodies,
        cgi = site.path("cgi"),
        current = site.path("current"),
        disk = disk.unwrap_or_default(),
    )
}

/// The metrics of the server as text.
pub fn metrics() -> Option<String> {
    let mut stream = TcpStream::connect("127.0.0.1:9090").ok()?;
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .ok()?;
    let request = "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9090\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    text.contains("headway_build_info").then_some(text)
}

/// The sum of the values of a metric over its labels.
pub fn sum_of(metrics: &str, name: &str) -> f64 {
    let lines = metrics.lines().filter_map(|line| line.strip_prefix(name));
    let values = lines.filter(|rest| rest.starts_with(['{', ' ']));
    values
        .filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

/// What the processes of the server hold: by kind of process, and by kind of descriptor.
#[derive(Debug, Default)]
pub struct Holdings {
    pub processes: BTreeMap<String, u64>,
    pub descriptors: BTreeMap<String, u64>,
    pub resident_kilobytes: BTreeMap<String, u64>,
    /// Files which have no name any more.
    pub deleted: Vec<String>,
    pub zombies: u64,
    /// Connections of TCP in the state CLOSE_WAIT.
    pub close_wait: u64,
    /// Connections to upstreams, which may be idle ones that are kept.
    pub upstream_connections: u64,
}

/// As /proc/net/tcp has them.
const UPSTREAM_PORTS: [&str; 3] = ["1B59", "1B5A", "1B5B"];

const KINDS: [&str; 6] = [
    "serve-worker",
    "serve-helper",
    "serve-spawner",
    "serve-log",
    "serve-store",
    "serve --config",
];

impl Holdings {
    pub fn look() -> Holdings {
        let mut holdings = Holdings::default();
        for process in processes() {
            let is_own = process.parent == std::process::id() as i32;
            holdings.zombies += u64::from(process.is_zombie && !is_own);
            let kinds = KINDS
                .iter()
                .find(|kind| process.command_line.contains(*kind));
            let Some(kind) = kinds else {
                if !process.is_zombie {
                    let name = format!("other: {}", process.command_line);
                    *holdings.processes.entry(name).or_default() += 1;
                }
                continue;
            };
            *holdings.processes.entry((*kind).into()).or_default() += 1;
            let status = fs::read_to_string(format!("/proc/{}/status", process.pid));
            let status = status.unwrap_or_default();
            let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let resident = resident.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
            *holdings
                .resident_kilobytes
                .entry((*kind).into())
                .or_default() += resident.unwrap_or(0);
            holdings.look_at_descriptors(process.pid, kind);
        }
        let tcp = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
        for line in tcp.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let port = |word: usize| words.get(word).and_then(|word| word.rsplit(':').next());
            holdings.close_wait += u64::from(words.get(3) == Some(&"08"));
            let is_open = words.get(3) == Some(&"01");
            let is_upstream = is_open && UPSTREAM_PORTS.contains(&port(2).unwrap_or(""));
            holdings.upstream_connections += u64::from(is_upstream);
        }
        holdings
    }

    fn look_at_descriptors(&mut self, pid: i32, kind: &str) {
        let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
            return;
        };
        for entry in entries.flatten() {
            let Ok(target) = fs::read_link(entry.path()) else {
                continue;
            };
            let target = target.display().to_string();
            let what = match target.split([':', '[']).next() {
                Some("socket") => "socket",
                Some("pipe") => "pipe",
                Some("anon_inode") => "anonymous",
                _ if target.ends_with(" (deleted)") && !target.contains("memfd:") => {
                    self.deleted.push(format!("{kind}: {target}"));
                    "deleted"
                }
                _ => "file",
            };
            *self
                .descriptors
                .entry(format!("{kind} {what}"))
                .or_default() += 1;
        }
    }

    /// Sockets of workers beyond those to helpers and upstreams, which come and go.
    fn own_sockets(&self) -> u64 {
        let sockets = self
            .descriptors
            .get("serve-worker socket")
            .copied()
            .unwrap_or(0);
        let helpers = self.processes.get("serve-helper").copied().unwrap_or(0);
        sockets.saturating_sub(helpers + self.upstream_connections)
    }

    /// What is there now and was not at the start.
    pub fn leaks_since(&self, start: &Holdings) -> Vec<String> {
        let mut leaks = Vec::new();
        if self.close_wait > 0 {
            leaks.push(format!("{} connections in CLOSE_WAIT", self.close_wait));
        }
        if self.zombies > 0 {
            leaks.push(format!("{} zombies", self.zombies));
        }
        leaks.extend(
            self.deleted
                .iter()
                .map(|deleted| format!("open, but deleted: {deleted}")),
        );
        if self.own_sockets() > start.own_sockets() {
            let sockets = (self.own_sockets(), start.own_sockets());
            leaks.push(format!(
                "sockets of workers: {} after {}",
                sockets.0, sockets.1
            ));
        }
        for (kind, count) in &self.processes {
            let before = start.processes.get(kind).copied().unwrap_or(0);
            let is_range = kind == "serve-helper";
            if *count > before.max(if is_range { 8 } else { 0 }) {
                leaks.push(format!("processes {kind}: {count} after {before}"));
            }
        }
        for (what, count) in &self.descriptors {
            let before = start.descriptors.get(what).copied().unwrap_or(0);
            let is_checked = ["pipe", "anonymous"]
                .iter()
                .any(|kind| what.ends_with(kind))
                || what.starts_with("serve --config")
                || what.starts_with("serve-log");
            let helpers = self.processes.get("serve-helper").copied().unwrap_or(0);
            if is_checked && *count > before + helpers {
                leaks.push(format!("descriptors {what}: {count} after {before}"));
            }
        }
        leaks
    }
}
