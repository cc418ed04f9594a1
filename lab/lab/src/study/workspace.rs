//! Where a server runs while it is measured: a lab, or this machine as it is.
//!
//! Documents are below `www/`: the file set in `set/`, the files of a probe in `hot0/`, and one
//! small file by which a server is known to be ready. What the server writes goes to a scratch
//! directory outside of the modelled disk, and so does the copy of the set's manifest that the
//! client reads, or reading it would wait for the disk under test.

use std::ffi::OsStr;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use tempfile::TempDir;

use super::client::{self, RunningClient, Stopped};
use super::journal::{self, Journal};
use super::spec::{Environment, Probe};
use crate::disk::{DiskSpec, DiskStatistics, Filesystem, Order};
use crate::writers::DIRTY_FILE_BYTES_MAX;
use crate::{Lab, LabError, LabSpec, LinkSpec, MemoryStatus, Side};

/// The file by which a server is known to be ready.
pub(super) const READY_PATH: &str = "/ready.txt";

/// Room beside the set for the file system's own tables.
const SPARE_BYTES: u64 = 96 << 20;
/// A file has whole blocks of its file system.
const BLOCK_BYTES: u64 = 4096;
/// The file system is made with an inode for each of these bytes.
const BYTES_PER_INODE: u64 = 8192;

/// An environment that is up.
pub(super) struct Workspace<'a> {
    journal: &'a Journal,
    lab: Option<Lab>,
    root: PathBuf,
    scratch: TempDir,
}

/// Why an environment could not be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum WorkspaceError {
    #[error(transparent)]
    Lab(#[from] LabError),
    #[error("{0}")]
    Files(String),
    #[error("interrupted")]
    Interrupted,
}

impl From<Stopped> for WorkspaceError {
    fn from(stopped: Stopped) -> WorkspaceError {
        match stopped {
            Stopped::Interrupted => WorkspaceError::Interrupted,
            Stopped::Failed(why) => WorkspaceError::Files(why),
        }
    }
}

impl<'a> Workspace<'a> {
    /// Creates the environment with its files, with cold caches.
    pub fn up(
        environment: &Environment,
        probes: &[Probe],
        interrupted: &AtomicBool,
        journal: &'a Journal,
    ) -> Result<Workspace<'a>, WorkspaceError> {
        let noted = |error: std::io::Error| {
            WorkspaceError::Files(format!("noting what is begun in the directory: {error}"))
        };
        let scratch = tempfile::Builder::new().prefix(journal::SCRATCH).tempdir();
        let scratch = scratch
            .map_err(|error| WorkspaceError::Files(format!("a scratch directory: {error}")))?;
        journal.scratch(scratch.path()).map_err(noted)?;
        // Peers give up root's rights and still have to find their configuration.
        open_to_all(scratch.path())?;
        let mut workspace = Workspace {
            journal,
            lab: None,
            root: scratch.path().join("www"),
            scratch,
        };
        if environment.lab {
            let spec = lab_spec(environment)?;
            journal.lab(&spec.name).map_err(noted)?;
            workspace.lab = Some(Lab::up_cancellable(&spec, interrupted)?);
        }
        let made = workspace
            .bound_queues(environment)
            .and_then(|()| workspace.fill_disk(environment, probes, interrupted));
        match made {
            Ok(root) => {
                workspace.root = root;
                Ok(workspace)
            }
            Err(error) => {
                // A lab that stays is in the way of the next environment's, which has the same
                // name; that counts more.
                workspace.down()?;
                Err(error)
            }
        }
    }

    /// Accept queues are as long as the environment says also for servers that ask for as much as
    /// the kernel allows (h2o): the bound of the server's own name space, where it has one.
    fn bound_queues(&self, environment: &Environment) -> Result<(), WorkspaceError> {
        let (Some(lab), Some(_), Some(queue)) =
            (&self.lab, environment.link_bits, environment.listen_queue)
        else {
            return Ok(());
        };
        let bound = format!("echo {queue} >/proc/sys/net/core/somaxconn");
        let done = lab
            .command(Side::Server, "sh")
            .args(["-c", &bound])
            .output();
        match done {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(WorkspaceError::Files(format!(
                "{bound}: {}; accept queues are not bounded for servers that ask for all that the kernel allows: make /proc/sys/net writable, or leave \
                 out the environment's listen-queue",
                String::from_utf8_lossy(&output.stderr).trim()
            ))),
            Err(error) => Err(WorkspaceError::Files(format!("{bound}: {error}"))),
        }
    }

    fn fill_disk(
        &self,
        environment: &Environment,
        probes: &[Probe],
        interrupted: &AtomicBool,
    ) -> Result<PathBuf, WorkspaceError> {
        let put = |folder: &Path| -> Result<PathBuf, WorkspaceError> {
            let root = folder.join("www");
            self.create_files(&root, environment, probes, interrupted)?;
            Ok(root)
        };
        match &self.lab {
            Some(lab) if lab.disk().is_some() => lab.load(put),
            _ => put(self.scratch.path()),
        }
    }

    fn create_files(
        &self,
        root: &Path,
        environment: &Environment,
        probes: &[Probe],
        interrupted: &AtomicBool,
    ) -> Result<(), WorkspaceError> {
        let files =
            |error: std::io::Error| WorkspaceError::Files(format!("{}: {error}", root.display()));
        fs::create_dir_all(root).map_err(files)?;
        fs::write(root.join(READY_PATH.trim_start_matches('/')), "ready\n").map_err(files)?;
        match environment.files {
            Some(files) => {
                let count = files.count.to_string();
                let size = files.file_bytes.map(|bytes| bytes.to_string());
                let options = match &size {
                    Some(size) => ["--count", &count, "--file-size", size],
                    None => ["--count", &count, "--profile", "many-files"],
                };
                self.create_set(root, "set", &options, interrupted)?;
            }
            None => {
                let size = environment.set_bytes.to_string();
                let options = ["--profile", &environment.profile, "--size", &size];
                self.create_set(root, "set", &options, interrupted)?;
            }
        }
        for (at, probe) in probes.iter().enumerate() {
            let (count, size) = (probe.count.to_string(), probe.file_bytes.to_string());
            let options = ["--file-size", &size, "--count", &count];
            self.create_set(root, &probe_folder(at), &options, interrupted)?;
        }
        Ok(())
    }

    fn create_set(
        &self,
        root: &Path,
        name: &str,
        options: &[&str],
        interrupted: &AtomicBool,
    ) -> Result<(), WorkspaceError> {
        let folder = root.join(name);
        let mut command = self.command(Side::Client, crate::headway());
        command
            .args(["fileset", "create", "--quiet"])
            .args(options)
            .arg(&folder);
        client::finish(&mut command, interrupted, self.journal)?;
        let manifest = self.manifest(name);
        let copied = fs::create_dir_all(&manifest).and_then(|()| {
            let name = headway_load::fileset::MANIFEST_NAME;
            fs::copy(folder.join(name), manifest.join(name))
        });
        copied.map(drop).map_err(|error| {
            WorkspaceError::Files(format!(
                "copying the manifest of {}: {error}",
                folder.display()
            ))
        })
    }

    /// The copy of a set's manifest.
    pub fn manifest(&self, name: &str) -> PathBuf {
        self.scratch.path().join("manifests").join(name)
    }

    /// Where processes are noted.
    pub fn journal(&self) -> &Journal {
        self.journal
    }

    /// The document root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where servers may write.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// A program on one side.
    pub fn command(&self, side: Side, program: impl AsRef<OsStr>) -> Command {
        match &self.lab {
            Some(lab) => lab.command(side, program),
            None => Command::new(program),
        }
    }

    /// Where the clients ask from, if that has to be said.
    pub fn clients(&self) -> Vec<IpAddr> {
        self.lab.as_ref().map_or_else(Vec::new, Lab::client_ips)
    }

    /// An address that a server may listen on.
    pub fn address(&self) -> Result<SocketAddr, WorkspaceError> {
        let ip = self
            .lab
            .as_ref()
            .map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), Lab::server_ip);
        // The network of a lab is its own; a port that is free here is free there.
        let free =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
        let free = free.map_err(|error| WorkspaceError::Files(format!("a free port: {error}")))?;
        Ok(SocketAddr::new(ip, free.port()))
    }

    /// Starts what writes beside the server, if the environment has it; it ends with the returned
    /// value. The disk can only be mounted again without it.
    pub fn start_writers(
        &self,
        environment: &Environment,
    ) -> Result<Option<RunningClient>, Stopped> {
        let (Some(lab), Some(writers)) = (&self.lab, environment.writers) else {
            return Ok(None);
        };
        let mut command = Command::new(crate::headway_lab());
        command.args(["write", &lab.spec().name, "--set", "www/set"]);
        command.args(["--publish", &writers.publish_per_s.to_string()]);
        command.args(["--append", &writers.append_per_s.to_string()]);
        command.args(["--dirty", &writers.dirty_bytes_per_s.to_string()]);
        RunningClient::start(&mut command, "headway-lab write", self.journal).map(Some)
    }

    /// Empties the caches, if there is a lab.
    pub fn drop_caches(&self) -> Result<(), WorkspaceError> {
        Ok(self.lab.as_ref().map_or(Ok(()), Lab::drop_caches)?)
    }

    /// Sends an order to the disk, if there is one.
    pub fn order(&self, order: Order) -> Result<(), WorkspaceError> {
        match self.lab.as_ref().and_then(Lab::disk) {
            Some(disk) => Ok(disk.order(order).map_err(LabError::from)?),
            None => Err(WorkspaceError::Files(
                "there is no disk to tell this".to_owned(),
            )),
        }
    }

    /// While caches are filled nothing is slow: the disk answers at once, and the CPU is a
    /// whole one. Afterwards both are as the environment says.
    pub fn remove_delays(&self, yes: bool) -> Result<(), WorkspaceError> {
        let Some(lab) = &self.lab else { return Ok(()) };
        lab.lend_cpu(yes)?;
        let order = if yes { Order::Fast } else { Order::Model };
        let ordered = lab.disk().map_or(Ok(()), |disk| disk.order(order));
        Ok(ordered.map_err(LabError::from)?)
    }

    /// The counters of the disk.
    pub fn disk(&self) -> Option<DiskStatistics> {
        let disk = self.lab.as_ref().and_then(Lab::disk)?;
        disk.statistics().ok()
    }

    /// What the server and its caches take of their memory, if that is limited.
    pub fn memory(&self) -> Option<MemoryStatus> {
        self.lab.as_ref()?.memory()
    }

    /// Removes everything.
    pub fn down(self) -> Result<(), WorkspaceError> {
        Ok(self.lab.map_or(Ok(()), Lab::down)?)
    }
}

/// The folder of a probe's files.
pub(super) fn probe_folder(at: usize) -> String {
    format!("hot{at}")
}

fn open_to_all(path: &Path) -> Result<(), WorkspaceError> {
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(path, mode)
        .map_err(|error| WorkspaceError::Files(format!("{}: {error}", path.display())))
}

/// What the files of an environment take on a disk, with what a file system needs for itself.
fn disk_bytes(environment: &Environment) -> u64 {
    // Each file has whole blocks, and an inode, of which there is one per `BYTES_PER_INODE`.
    let count = environment.files.map_or(0, |files| files.count);
    let blocks = count.saturating_mul(BLOCK_BYTES);
    let set = environment.set_bytes.saturating_add(blocks);
    let inodes = count.saturating_mul(BYTES_PER_INODE);
    let files = set.max(inodes);
    let dirty = environment
        .writers
        .map_or(0, |writers| match writers.dirty_bytes_per_s {
            0 => 0,
            _ => environment
                .memory_bytes
                .unwrap_or(u64::MAX)
                .min(DIRTY_FILE_BYTES_MAX),
        });
    let files = files.saturating_add(dirty);
    files.saturating_add(files / 8).saturating_add(SPARE_BYTES)
}

pub(super) fn lab_spec(environment: &Environment) -> Result<LabSpec, WorkspaceError> {
    let own = journal::own_process();
    let name = format!("study-{}-{}", own.pid, own.started);
    let (server_cpus, client_cpus) = crate::usual_split();
    let disk = match &environment.disk {
        None => None,
        Some(model) => {
            let model = model.parse().map_err(WorkspaceError::Files)?;
            let room = disk_bytes(environment);
            let mut disk = DiskSpec::new(model, room);
            disk.filesystem = environment
                .filesystem
                .parse()
                .map_err(WorkspaceError::Files)?;
            disk.writable = environment.writers.is_some();
            disk.overlay = match &environment.overlay {
                Some(upper) => Some(upper.parse().map_err(WorkspaceError::Files)?),
                None => None,
            };
            if disk.filesystem == Filesystem::Xfs {
                disk.size_bytes = room.max(320 << 20);
            }
            Some(disk)
        }
    };
    Ok(LabSpec {
        disk,
        memory_bytes: environment.memory_bytes,
        cpu_share: environment.cpu,
        server_cpus,
        client_cpus,
        link: environment.link_bits.map(|bits_per_second| LinkSpec {
            bits_per_second,
            client_bits_per_second: environment.client_link_bits,
        }),
        ..LabSpec::new(&name)
    })
}
