//! One running server, from its start to its end.
//!
//! It counts as started when it listens on its address, answers a request, and has all the
//! processes and threads its configuration asks for. Its end is a SIGTERM, and SIGKILL for what
//! does not follow; nothing that it started stays, also when the value is dropped by a panic.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use headway_load::client::ClientLimits;
use rustix::process::Signal;

use super::accept_limit::{AcceptLimit, AcceptReport};
use super::available::available;
use super::certificate::CertificateFiles;
use super::configuration::{self, Launch, Population, READY_FILE};
use super::error::ServerError;
use super::kind::{Family, Kind};
pub use super::network::Response;
use super::network::{self, listening, tables};
use super::spec::ServerSpec;
use super::tree::{self, Process, Stat, Usage, is_alive, signal, wait_for_end};

/// Apache starts 1024 processes in two seconds here; thirty are for a slow disk and a slow
/// CPU.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// For one answer while it starts. A cold disk of the lab's answers within this.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Between two looks at a server that starts.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// After SIGTERM, the second of which tells ours not to wait for requests in flight.
const TERM_TIMEOUT: Duration = Duration::from_secs(2);

/// After SIGKILL. A process that waits for the disk dies when the wait ends.
const KILL_TIMEOUT: Duration = Duration::from_secs(15);

/// Lines of a server's output that an error shows.
const LOG_LINES_SHOWN: usize = 20;

/// A server that was started here and has not been ended.
#[derive(Debug)]
pub struct Server {
    spec: ServerSpec,
    version: String,
    child: Child,
    leader: Process,
    folder: PathBuf,
    status: Option<SocketAddr>,
    accept_limit: Option<AcceptLimit>,
    ended: bool,
}

/// How a server ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Whether SIGTERM was enough.
    pub politely: bool,
    /// The end of what it wrote to standard output, standard error and its error log. Some greet
    /// and take leave there.
    pub log: String,
}

impl Server {
    /// Starts a server and waits until it answers.
    ///
    /// `prefix` makes the command that a program is started by; it may enter control groups,
    /// namespaces and CPUs first, but has to become the program (exec), so that the process
    /// stays the same. In `scratch` a folder is made for configuration, logs and output;
    /// [`Server::stop`] removes it. The limit of open files of this process is raised, since
    /// children inherit it.
    ///
    /// # Errors
    ///
    /// A [`ServerError`]; nothing of the server is left then.
    pub fn start(
        spec: &ServerSpec,
        prefix: impl Fn(&OsStr) -> Command,
        scratch: &Path,
    ) -> Result<Server, ServerError> {
        Server::start_with_leader(spec, prefix, scratch, |_| {})
    }

    /// As [`Server::start`]; reports the first process before it waits for the server, so that a
    /// caller can record which process to end should it be killed itself.
    ///
    /// # Errors
    ///
    /// As [`Server::start`].
    pub fn start_with_leader(
        spec: &ServerSpec,
        prefix: impl Fn(&OsStr) -> Command,
        scratch: &Path,
        report: impl FnOnce(Process),
    ) -> Result<Server, ServerError> {
        let kind = spec.kind;
        let installed =
            available(kind).map_err(|reason| ServerError::Unavailable { kind, reason })?;
        if !spec.address.is_ipv4() || spec.address.port() == 0 {
            return Err(ServerError::Address {
                address: spec.address,
            });
        }
        // The open-file service is a command of `headway`; the servers of the papers are in `headway-lab`.
        let own = match kind.has_service() {
            true => crate::headway,
            false => crate::headway_lab,
        };
        let own = || spec.program.clone().unwrap_or_else(own);
        let program = installed.program.unwrap_or_else(own);
        for address in [Some(spec.address), spec.tls_address()]
            .into_iter()
            .flatten()
        {
            check_free(spec.kind, address, &prefix)?;
        }
        let folder = make_folder(spec, scratch)?;
        let descriptors = ClientLimits::raise().descriptors;
        let started = configuration::prepare(spec, &folder, descriptors).and_then(|launch| {
            let limit = spec
                .accept_limit
                .map(|limit| AcceptLimit::make(limit, &folder));
            let limit = limit.transpose()?;
            let child = spawn(&prefix, &program, &launch, limit.as_ref(), &folder)?;
            Ok((child, launch, limit))
        });
        let (child, launch, accept_limit) = started.inspect_err(|_| remove(&folder))?;
        let pid = child.id() as i32;
        let mut server = Server {
            spec: spec.clone(),
            version: installed.version,
            child,
            leader: Process {
                pid,
                started: Stat::of(pid).map_or(0, |stat| stat.started),
            },
            folder,
            status: None,
            accept_limit,
            ended: false,
        };
        report(server.leader);
        // An error drops the server, which ends it.
        server.wait_until_ready(launch.population)?;
        if let Some(limit) = &server.accept_limit {
            limit.expect_effect(&program, &server.pids())?;
        }
        Ok(server)
    }

    /// The server's kind.
    pub fn kind(&self) -> Kind {
        self.spec.kind
    }

    /// The version that the server prints.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.spec.address
    }

    /// The certificate of a server with TLS, which is also its authority; in [`Server::folder`].
    pub fn certificate(&self) -> Option<PathBuf> {
        let files = CertificateFiles::of(&self.folder);
        self.spec.tls_port.map(|_| files.certificate)
    }

    /// Where the server speaks TLS.
    pub fn tls_address(&self) -> Option<SocketAddr> {
        self.spec.tls_address()
    }

    /// Where our server's status page is; `None` for others.
    pub fn status_address(&self) -> Option<SocketAddr> {
        self.status
    }

    /// The folder of configuration, logs and output, until the server is stopped.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The first process.
    pub fn pid(&self) -> i32 {
        self.leader.pid
    }

    /// All its processes, the first one first.
    pub fn pids(&self) -> Vec<i32> {
        pids(&tree::tree(self.leader))
    }

    /// The processes that serve clients: not a master that only watches, nor our helpers and log.
    /// What such a process waits for, clients wait for.
    pub fn workers(&self) -> Vec<i32> {
        workers(self.leader, &self.spec)
    }

    /// A function that lists [`Server::workers`], for
    /// [`Sampler::start`](crate::runnable::Sampler::start).
    pub fn members(&self) -> impl Fn() -> Vec<i32> + Send + use<> {
        let (leader, spec) = (self.leader, self.spec.clone());
        move || workers(leader, &spec)
    }

    /// What the accept limit has counted; `None` without one.
    ///
    /// # Errors
    ///
    /// The counters cannot be read.
    pub fn accept_report(&self) -> Result<Option<AcceptReport>, ServerError> {
        self.accept_limit
            .as_ref()
            .map(AcceptLimit::report)
            .transpose()
    }

    /// CPU time and memory of all its processes, now.
    pub fn usage(&self) -> Usage {
        tree::usage(&tree::tree(self.leader))
    }

    /// Requests a path in the server's network.
    ///
    /// # Errors
    ///
    /// No connection, or no answer in HTTP within five seconds.
    pub fn get(&self, path: &str) -> Result<Response, ServerError> {
        self.get_from(self.spec.address, path)
    }

    /// The status of a Headway server (`/status.json`); `None` for others.
    ///
    /// # Errors
    ///
    /// The status page does not answer, or not in JSON.
    pub fn status(&self) -> Result<Option<serde_json::Value>, ServerError> {
        let Some(address) = self.status else {
            return Ok(None);
        };
        let path = "/status.json";
        let response = self.get_from(address, path)?;
        let value = serde_json::from_slice(&response.body).map_err(|error| ServerError::Ask {
            kind: self.kind(),
            path: path.into(),
            error: error.into(),
        })?;
        Ok(Some(value))
    }

    /// Ends it: SIGTERM, and SIGKILL for what does not follow. Its folder is removed.
    ///
    /// # Errors
    ///
    /// [`ServerError::Remains`]: a process does not even follow SIGKILL.
    pub fn stop(mut self) -> Result<Ended, ServerError> {
        self.end()
    }

    fn get_from(&self, address: SocketAddr, path: &str) -> Result<Response, ServerError> {
        network::get(self.leader, address, path, ANSWER_TIMEOUT).map_err(|error| ServerError::Ask {
            kind: self.kind(),
            path: path.into(),
            error,
        })
    }

    fn wait_until_ready(&mut self, population: Population) -> Result<(), ServerError> {
        let begun = Instant::now();
        loop {
            let lacks = match self.missing_for_start(population)? {
                None => return Ok(()),
                Some(lacks) => lacks,
            };
            if begun.elapsed() >= START_TIMEOUT {
                return Err(ServerError::NotReady {
                    kind: self.kind(),
                    address: self.spec.address,
                    after_s: START_TIMEOUT.as_secs(),
                    lacks,
                    log: log_tail(&self.folder),
                });
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// What the server still lacks to be ready; `None` when it is.
    fn missing_for_start(&mut self, population: Population) -> Result<Option<String>, ServerError> {
        // Not by waiting for it: that would give its number, which is its group's, back to the
        // system.
        if !is_alive(self.leader) {
            return Err(self.died());
        }
        // The command that comes before the server may still be on its way into another network,
        // where the same address is another server's. So it is asked only when it listens itself.
        if !self.listens()? {
            return Ok(Some("it does not listen".into()));
        }
        let tls = |address| listening(&tables(self.leader.pid), address).is_empty();
        if self.spec.tls_address().is_some_and(tls) {
            return Ok(Some("it does not listen for TLS".into()));
        }
        if let Some(lacks) = self.unanswered()? {
            return Ok(Some(lacks));
        }
        let usage = tree::tree(self.leader);
        let tasks = usage.iter().filter_map(|process| Stat::of(process.pid));
        let (processes, tasks) = (usage.len(), tasks.map(|stat| stat.tasks).sum::<usize>());
        if processes < population.processes || tasks < population.tasks {
            return Ok(Some(format!(
                "it has {processes} processes and {tasks} threads instead of {} and {}",
                population.processes, population.tasks
            )));
        }
        if self.kind().is_ours() {
            self.status = read_status_address(&self.folder.join(READY_FILE));
            if self.status.is_none() {
                return Ok(Some("it has not said where its status page is".into()));
            }
        }
        Ok(None)
    }

    fn died(&mut self) -> ServerError {
        let log = log_tail(&self.folder);
        if let Err(remains) = self.end() {
            return remains;
        }
        let status = match self.child.wait() {
            Ok(status) if status.signal() == Some(Signal::KILL.as_raw()) => {
                format!("{status}: the kernel does that when a memory limit is too small")
            }
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        ServerError::Died {
            kind: self.kind(),
            status,
            log,
        }
    }

    /// Whether the server listens on its address. Another process that does so too (`SO_REUSEPORT`)
    /// is an error: each would be given a share of the clients.
    fn listens(&self) -> Result<bool, ServerError> {
        let inodes = listening(&tables(self.leader.pid), self.spec.address);
        if inodes.is_empty() {
            return Ok(false);
        }
        let processes = tree::tree(self.leader);
        match network::owned(&inodes, processes.iter().map(|process| process.pid)) {
            Some(owned) if owned.is_empty() => Ok(false),
            Some(owned) if owned.len() < inodes.len() => {
                let foreign = inodes.difference(&owned).copied().collect();
                Err(ServerError::Taken {
                    kind: self.kind(),
                    address: self.spec.address,
                    holder: network::holder(&foreign),
                })
            }
            _ => Ok(true),
        }
    }

    fn unanswered(&self) -> Result<Option<String>, ServerError> {
        let path = self.spec.probe.as_deref().unwrap_or("/");
        let address = self.spec.address;
        match network::get(self.leader, address, path, ANSWER_TIMEOUT) {
            Ok(response) if response.status == 200 || self.spec.probe.is_none() => Ok(None),
            Ok(response) => Err(ServerError::Refused {
                kind: self.kind(),
                path: path.into(),
                answer: response.status,
                root: self.spec.root.clone(),
                log: log_tail(&self.folder),
            }),
            Err(error) => Ok(Some(format!("it does not answer ({error})"))),
        }
    }

    fn end(&mut self) -> Result<Ended, ServerError> {
        self.ended = true;
        let mut all = BTreeSet::from_iter(tree::tree(self.leader));
        let first = BTreeSet::from([self.leader]);
        let mut politely = false;
        for _ in 0..2 {
            signal(&first, Signal::TERM);
            if wait_for_end(&all, TERM_TIMEOUT) {
                politely = true;
                break;
            }
        }
        // What it has started since the first look, too.
        all.extend(tree::tree(self.leader));
        if all.iter().any(|process| is_alive(*process)) {
            politely = false;
            signal(&all, Signal::KILL);
            wait_for_end(&all, KILL_TIMEOUT);
        }
        all.retain(|process| is_alive(*process));
        if all.is_empty() {
            // It has ended, so this only takes it off the process table.
            let _ = self.child.wait();
        }
        let log = log_tail(&self.folder);
        remove(&self.folder);
        match all.is_empty() {
            true => Ok(Ended { politely, log }),
            false => Err(ServerError::Remains {
                kind: self.kind(),
                pids: pids(&Vec::from_iter(all)),
            }),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.ended {
            // An error cannot be reported from here; what can be ended is.
            let _ = self.end();
        }
    }
}

fn pids(processes: &[Process]) -> Vec<i32> {
    processes.iter().map(|process| process.pid).collect()
}

fn workers(leader: Process, spec: &ServerSpec) -> Vec<i32> {
    let is_ours = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut arguments = line.split(|byte| *byte == 0);
        arguments.any(|argument| argument == b"serve-worker")
    };
    let others = || {
        let all = tree::tree(leader).into_iter().map(|process| process.pid);
        all.filter(move |pid| *pid != leader.pid)
    };
    match spec.kind.family() {
        Family::Headway => others().filter(is_ours).collect(),
        // The service is the leader; Apache's first process and the helpers are its children.
        Family::Apache { service: true, .. } => {
            let is_worker =
                |pid: &i32| Stat::of(*pid).is_some_and(|stat| stat.parent != leader.pid);
            others().filter(is_worker).collect()
        }
        Family::Apache { .. } | Family::Nginx { .. } => others().collect(),
        Family::Lighttpd if spec.sizes.workers > 1 => others().collect(),
        _ => vec![leader.pid],
    }
}

/// Searches for a listener before the server is started, in the network it will be in: the tables
/// are printed by a command that the caller's prefix starts there.
fn check_free(
    kind: Kind,
    address: SocketAddr,
    prefix: &impl Fn(&OsStr) -> Command,
) -> Result<(), ServerError> {
    let output = prefix(OsStr::new("cat"))
        .args(["/proc/self/net/tcp", "/proc/self/net/tcp6"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| ServerError::Spawn {
            program: "cat in the server's environment".into(),
            error,
        })?;
    let tables = String::from_utf8_lossy(&output.stdout);
    // Without IPv6 the second file is missing, which makes `cat` fail and nothing worse. Without
    // the first the environment cannot be entered.
    if tables.is_empty() {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(ServerError::Spawn {
            program: "cat in the server's environment".into(),
            error: std::io::Error::other(stderr),
        });
    }
    let inodes = listening(&tables, address);
    match inodes.is_empty() {
        true => Ok(()),
        false => Err(ServerError::Taken {
            kind,
            address,
            holder: network::holder(&inodes),
        }),
    }
}

/// A folder for this server, where others may write: peers give up root's rights, some before they
/// open their logs.
fn make_folder(spec: &ServerSpec, scratch: &Path) -> Result<PathBuf, ServerError> {
    let folder = scratch.join(format!("{}-{}", spec.kind, spec.address.port()));
    // Left by a run that was killed.
    remove(&folder);
    fs::create_dir_all(&folder)
        .and_then(|()| fs::set_permissions(&folder, Permissions::from_mode(0o1777)))
        .map_err(|error| ServerError::prepare("make", &folder, error))?;
    Ok(folder)
}

fn remove(folder: &Path) {
    // A folder that stays is untidy, and named after the server; a measurement must not fail of it.
    let _ = fs::remove_dir_all(folder);
}

fn spawn(
    prefix: &impl Fn(&OsStr) -> Command,
    program: &Path,
    launch: &Launch,
    limit: Option<&AcceptLimit>,
    folder: &Path,
) -> Result<Child, ServerError> {
    let output = folder.join("output");
    let failed = |error| ServerError::prepare("write", &output, error);
    let file = File::create(&output).map_err(failed)?;
    let twin = file.try_clone().map_err(failed)?;
    prefix(program.as_os_str())
        .args(&launch.arguments)
        .env("LC_ALL", "C")
        .envs(limit.into_iter().flat_map(AcceptLimit::variables))
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(twin)
        // Ctrl-C in a terminal is for the caller, which ends the server in order.
        .process_group(0)
        .spawn()
        .map_err(|error| ServerError::Spawn {
            program: program.display().to_string(),
            error,
        })
}

/// The last lines of the output and of error logs.
fn log_tail(folder: &Path) -> String {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    let is_log = |file: &&PathBuf| {
        file.ends_with("output")
            || file
                .extension()
                .is_some_and(|extension| extension == "error")
    };
    let texts = files
        .iter()
        .filter(is_log)
        .filter_map(|file| fs::read(file).ok());
    let text = texts
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .collect::<String>();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
}

fn read_status_address(ready: &Path) -> Option<SocketAddr> {
    let value: serde_json::Value = serde_json::from_slice(&fs::read(ready).ok()?).ok()?;
    value["status"].as_str()?.parse().ok()
}
