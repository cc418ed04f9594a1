//! Where a study runs: the set of files in memory, the servers' folder, their CPUs.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use headway_lab::groups::{ControlGroup, Version};
use headway_lab::servers::{Server, ServerError, ServerSpec};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::client::Running;
use super::plan::Workload;
use super::run::RunError;
use crate::smt::CpuState;
use crate::smt::configuration::listed;

/// What is asked for first; a server that answers it serves the set.
pub(super) const READY_PATH: &str = "/ready.txt";

/// The control group of servers, directly below its hierarchy's root, and that of servers with a
/// share of a CPU.
const GROUP_NAME: &str = "headway-counters";
const GROUP_NAME_WITH_SHARE: &str = "headway-counters-share";

/// Room in memory that a set must leave.
const SPARE_BYTES: u64 = 1 << 30;

/// Folders that go when the study ends.
pub(super) struct Workspace {
    scratch: tempfile::TempDir,
}

impl Workspace {
    /// Creates the file set. Peers give up root's rights, so it is where all users may read.
    pub fn new(
        workload: &Workload,
        state: &mut CpuState,
        interrupted: &AtomicBool,
    ) -> Result<Workspace, RunError> {
        check_memory(workload.set_bytes)?;
        let scratch = tempfile::Builder::new()
            .prefix("headway-counters-")
            .tempdir();
        let scratch = scratch.map_err(failed("make", Path::new("a scratch directory")))?;
        let workspace = Workspace { scratch };
        state.has_made_folder(workspace.scratch.path())?;
        // The last one is where servers write, which have become other users.
        for (folder, mode) in [
            (workspace.scratch.path(), 0o755),
            (&workspace.servers(), 0o1777),
        ] {
            fs::create_dir_all(folder)
                .and_then(|()| fs::set_permissions(folder, fs::Permissions::from_mode(mode)))
                .map_err(failed("make", folder))?;
        }
        let set = workspace.set();
        fs::create_dir_all(workspace.root()).map_err(failed("make", &workspace.root()))?;
        let mut command = Command::new(headway_lab::headway());
        command
            .args([
                "fileset",
                "create",
                "--quiet",
                "--profile",
                &workload.profile,
            ])
            .args(["--size", &workload.set_bytes.to_string()])
            .arg(&set);
        // Half a gigabyte takes seconds; only an interruption ends this early.
        Running::start(&mut command)?
            .finish(Instant::now() + Duration::from_secs(3600), interrupted)?;
        let ready = workspace.root().join(READY_PATH.trim_start_matches('/'));
        fs::write(&ready, "ready\n").map_err(failed("write", &ready))?;
        Ok(workspace)
    }

    /// The document root.
    pub fn root(&self) -> PathBuf {
        self.scratch.path().join("www")
    }

    /// The set.
    pub fn set(&self) -> PathBuf {
        self.root().join("set")
    }

    /// Where servers may write.
    pub fn servers(&self) -> PathBuf {
        self.scratch.path().join("servers")
    }

    /// Reads all of the set, so that no measurement waits for a disk.
    pub fn warm(&self, interrupted: &AtomicBool) -> Result<(), RunError> {
        let mut folders = vec![self.set()];
        let mut bytes = vec![0; 1 << 20];
        while let Some(folder) = folders.pop() {
            if interrupted.load(Ordering::Relaxed) {
                return Err(RunError::Interrupted);
            }
            for entry in fs::read_dir(&folder)
                .map_err(failed("read", &folder))?
                .flatten()
            {
                let path = entry.path();
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => folders.push(path),
                    _ => {
                        let mut file = fs::File::open(&path).map_err(failed("open", &path))?;
                        while file.read(&mut bytes).map_err(failed("read", &path))? > 0 {}
                    }
                }
            }
        }
        Ok(())
    }

    /// A port that is free now.
    pub fn address() -> Result<SocketAddr, RunError> {
        let free =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
        free.map_err(failed("find", Path::new("a free port")))
    }
}

/// A set that does not fit would be read from a disk, which is another experiment.
fn check_memory(set_bytes: u64) -> Result<(), RunError> {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let available = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    match available.map(|kilobytes| kilobytes << 10) {
        Some(available) if available < set_bytes + SPARE_BYTES => Err(RunError::Failed(format!(
            "a set of {} MB does not stay in memory: {} MB are available, and 1 GB has to be left; choose a smaller --set",
            set_bytes / 1_000_000,
            available / 1_000_000
        ))),
        _ => Ok(()),
    }
}

/// Where servers run: their CPUs by affinity, and by a cpuset where the kernel has one, which
/// they cannot leave.
pub(super) struct Confined {
    cpus: Vec<usize>,
    /// The control groups: one for all controllers, or one for each.
    groups: Vec<ControlGroup>,
    /// Why there is no cpuset.
    pub remark: Option<String>,
}

impl Confined {
    pub fn to(cpus: &[usize], state: &mut CpuState) -> Result<Confined, RunError> {
        Confined::in_group(GROUP_NAME, cpus, state)
    }

    /// Confines to a share of each of the CPUs.
    pub fn with_share(
        cpus: &[usize],
        share: f64,
        state: &mut CpuState,
    ) -> Result<Confined, RunError> {
        let mut confined = Confined::in_group(GROUP_NAME_WITH_SHARE, cpus, state)?;
        let group = made(GROUP_NAME_WITH_SHARE, "cpu", state)?.map_err(RunError::Failed)?;
        headway_lab::cpu::limit(&group, share * cpus.len() as f64)
            .map_err(|error| RunError::Failed(error.to_string()))?;
        if !confined.groups.contains(&group) {
            confined.groups.push(group);
        }
        Ok(confined)
    }

    fn in_group(name: &str, cpus: &[usize], state: &mut CpuState) -> Result<Confined, RunError> {
        let made = made(name, "cpuset", state)?;
        let (groups, remark) = match made.and_then(|group| fill(&group, cpus).map(|()| group)) {
            Ok(group) => (vec![group], None),
            Err(why) => (
                Vec::new(),
                Some(format!("servers are bound by affinity alone: {why}")),
            ),
        };
        Ok(Confined {
            cpus: cpus.to_vec(),
            groups,
            remark,
        })
    }

    /// Starts a server there. `before` stands in front of its program, such as valgrind with its
    /// options.
    pub fn start(
        &self,
        spec: &ServerSpec,
        scratch: &Path,
        before: &[String],
    ) -> Result<Server, RunError> {
        let prefix = |program: &OsStr| {
            let mut command_line: Vec<&OsStr> = before.iter().map(OsStr::new).collect();
            command_line.push(program);
            let mut command = match self.groups.is_empty() {
                true => Command::new(command_line.remove(0)),
                false => {
                    let mut command = Command::new("/bin/sh");
                    // The shell moves itself, and becomes the program.
                    let moves = "while [ \"$1\" != -- ]; do echo $$ >\"$1\" || exit; shift; done; shift; exec \"$@\"";
                    command.args(["-c", moves, "sh"]);
                    command.args(self.groups.iter().map(|group| group.file("cgroup.procs")));
                    command.arg("--");
                    command
                }
            };
            command.args(command_line);
            command
        };
        let started = bound(&self.cpus, || Server::start(spec, prefix, scratch))?;
        started.map_err(|error: ServerError| RunError::Failed(error.to_string()))
    }
}

/// A group with a controller, whose removal is noted first; why there is none.
fn made(
    name: &str,
    controller: &str,
    state: &mut CpuState,
) -> Result<Result<ControlGroup, String>, RunError> {
    let Some(hierarchy) = headway_lab::groups::find(controller) else {
        return Ok(Err(format!(
            "no mounted control group hierarchy has the {controller} controller"
        )));
    };
    state.will_make_group(&hierarchy.root.join(name))?;
    Ok(hierarchy
        .make(name, controller)
        .map_err(|error| error.to_string()))
}

fn fill(group: &ControlGroup, cpus: &[usize]) -> Result<(), String> {
    let message = |error: headway_lab::LabError| error.to_string();
    if group.version == Version::V1 {
        // A new group of version 1 has no memory either.
        let parent = group
            .path
            .parent()
            .unwrap_or(&group.path)
            .join("cpuset.mems");
        let memory = fs::read_to_string(&parent)
            .map_err(|error| format!("{}: {error}", parent.display()))?;
        group.set("cpuset.mems", memory.trim()).map_err(message)?;
    }
    group.set("cpuset.cpus", &listed(cpus)).map_err(message)
}

/// Does something while the calling thread, and so what it starts, is bound to CPUs.
pub(super) fn bound<T>(cpus: &[usize], work: impl FnOnce() -> T) -> Result<T, RunError> {
    let before = sched_getaffinity(None)
        .map_err(|error| RunError::Failed(format!("reading the affinity: {error}")))?;
    let mut set = CpuSet::new();
    cpus.iter()
        .filter(|cpu| **cpu < CpuSet::MAX_CPU)
        .for_each(|cpu| set.set(*cpu));
    let failed = |error| RunError::Failed(format!("running on CPUs {}: {error}", listed(cpus)));
    sched_setaffinity(None, &set).map_err(failed)?;
    let done = work();
    sched_setaffinity(None, &before).map_err(failed)?;
    Ok(done)
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> RunError {
    let path = path.display().to_string();
    move |error| RunError::Failed(format!("cannot {what} {path}: {error}"))
}
