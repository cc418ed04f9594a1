//! The whole lab: made, found again by name, used, removed.
//!
//! A lab outlives the process that made it. Its things are made in an order in which each can be
//! undone alone, and removed in the reverse one: control groups, name space and link, disk.
//! Removing never relies on what making has recorded: it tries everything that a lab of that name
//! could have (`sweep`).

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use crate::disk::{Disk, DiskSpec, Order, SUB_COMMAND};
use crate::error::LabError;
use crate::groups::{self, ControlGroup};
use crate::network::{self, Addresses, LinkSpec};
use crate::siblings::headway_lab;
use crate::state::{LabDirectory, LabState};
use crate::{cpu, memory, requirements, status, sweep};

/// A lab to be made. What is `None` is left as it is on the machine.
///
/// ```
/// let spec = headway_lab::LabSpec {
///     memory_bytes: Some(512 << 20),
///     ..headway_lab::LabSpec::new("quick")
/// };
/// assert!(spec.check().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabSpec {
    /// 1 to 32 of a-z, 0-9 and hyphen; part of the name of everything the lab makes.
    pub name: String,
    /// A slow disk.
    #[serde(default)]
    pub disk: Option<DiskSpec>,
    /// Limit of what the server and the kernel keep in memory for it, 8 MiB at least.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Quota of the server in CPUs, an emulated slower one: 0.25 is a quarter of one.
    #[serde(default)]
    pub cpu_share: Option<f64>,
    /// CPUs of the server and its helpers; empty: any.
    #[serde(default)]
    pub server_cpus: Vec<usize>,
    /// CPUs of the client and of the disk's process; empty: any.
    #[serde(default)]
    pub client_cpus: Vec<usize>,
    /// A narrow link between the two; without one they meet on the loopback interface.
    #[serde(default)]
    pub link: Option<LinkSpec>,
}

/// The role of a program in the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Under test: the server's CPUs, memory, quota and end of the link.
    Server,
    /// Measures: the client's CPUs, and the machine's memory and network.
    Client,
}

/// A lab that is up.
#[derive(Debug)]
pub struct Lab {
    directory: LabDirectory,
    state: LabState,
    disk: Option<Disk>,
}

impl LabSpec {
    /// A lab with nothing but a name.
    pub fn new(name: &str) -> LabSpec {
        LabSpec {
            name: name.to_owned(),
            disk: None,
            memory_bytes: None,
            cpu_share: None,
            server_cpus: Vec::new(),
            client_cpus: Vec::new(),
            link: None,
        }
    }

    /// Whether the values make sense, whatever this machine offers.
    pub fn check(&self) -> Result<(), LabError> {
        crate::state::check_name(&self.name)?;
        if self
            .memory_bytes
            .is_some_and(|bytes| bytes < memory::BYTES_MIN)
        {
            let why = "a memory limit must be 8 MiB at least, or not even a shell starts in it";
            return Err(LabError::Value(why.into()));
        }
        self.cpu_share.map_or(Ok(()), cpu::check)?;
        if let Some(disk) = &self.disk {
            disk.check().map_err(LabError::Value)?;
        }
        self.link.as_ref().map_or(Ok(()), network::check)
    }
}

impl Lab {
    /// Creates a lab. Its disk, if it has one, is fast at first: put files on it, order
    /// [`Order::Model`], then [`Lab::drop_caches`].
    ///
    /// # Errors
    /// `Missing` lists every part that cannot be made here; nothing is made then. On any error what
    /// was made is removed again.
    pub fn up(spec: &LabSpec) -> Result<Lab, LabError> {
        Lab::up_cancellable(spec, &AtomicBool::new(false))
    }

    /// Creates the lab as [`Lab::up`] does; stops and removes it when the flag becomes true, which
    /// a signal handler may do.
    pub fn up_cancellable(spec: &LabSpec, interrupted: &AtomicBool) -> Result<Lab, LabError> {
        spec.check()?;
        let missing = requirements::missing(spec);
        if !missing.is_empty() {
            return Err(LabError::Missing(missing));
        }
        let directory = LabDirectory::of(&spec.name)?;
        let _lock = directory.create()?;
        match make(spec, &directory, interrupted) {
            Ok(lab) => Ok(lab),
            Err(error) => {
                let left = sweep::everything(&directory);
                Err(match left.is_empty() {
                    true => error,
                    false => LabError::HalfMade {
                        name: spec.name.clone(),
                        why: error.reason(),
                        left,
                    },
                })
            }
        }
    }

    /// A lab that another process has made.
    ///
    /// # Errors
    /// `Unknown`, or `Unfinished` when its maker is still at it or died.
    pub fn open(name: &str) -> Result<Lab, LabError> {
        let directory = LabDirectory::of(name)?;
        let state = directory.read()?;
        if !state.complete {
            return Err(LabError::Unfinished(name.to_owned()));
        }
        let disk = match state.spec.disk {
            Some(_) => Some(Disk::open(&directory.path)?),
            None => None,
        };
        Ok(Lab {
            directory,
            state,
            disk,
        })
    }

    /// The specification that the lab was made from.
    pub fn spec(&self) -> &LabSpec {
        &self.state.spec
    }

    /// A program inside the lab. It runs through `headway-lab exec`, which joins the lab and then
    /// becomes the program: the process that is spawned is the program's own, and so is its exit
    /// code.
    pub fn command(&self, side: Side, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(headway_lab());
        let side = match side {
            Side::Server => "server",
            Side::Client => "client",
        };
        command.args(["exec", "--side", side, &self.directory.name, "--"]);
        command.arg(program);
        command
    }

    /// Moves the calling process into the lab's memory, on the CPUs of the client: it competes with
    /// the server for memory and the disk, and not for CPUs.
    ///
    /// # Errors
    /// `NoPart` where the machine has no memory controller.
    pub fn join_memory(&self) -> Result<(), LabError> {
        let group = self.memory_group().ok_or_else(|| LabError::NoPart {
            name: self.directory.name.clone(),
            part: "memory group",
        })?;
        group.join()?;
        cpu::pin(&self.state.spec.client_cpus)
    }

    /// Moves the calling process into the lab; with threads, only the calling one changes its
    /// network and CPUs.
    pub fn join(&self, side: Side) -> Result<(), LabError> {
        join(&self.directory.name, &self.state, side)
    }

    /// Where a client reaches a server of the lab: the server's end of the link, or 127.0.0.1.
    pub fn server_ip(&self) -> std::net::IpAddr {
        let loopback = std::net::Ipv4Addr::LOCALHOST;
        self.state
            .addresses
            .map_or(loopback, |ends| ends.server)
            .into()
    }

    /// Where clients may ask from; none without a link.
    pub fn client_ips(&self) -> Vec<std::net::IpAddr> {
        let ends = self.state.addresses.iter();
        ends.flat_map(|ends| ends.clients())
            .map(Into::into)
            .collect()
    }

    /// The disk.
    pub fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    /// The lab's directory; files of its servers may be put below `scratch/` in it.
    pub fn directory(&self) -> &Path {
        &self.directory.path
    }

    /// Drops all caches: the disk's file system is unmounted and mounted again, read-only, so
    /// its pages, inodes and dentries are in no cache, and the memory group evicts what else it
    /// can.
    ///
    /// # Errors
    /// The disk's, if a process still has a file of it open; everything is as it was then.
    pub fn drop_caches(&self) -> Result<(), LabError> {
        let _lock = self.directory.lock()?;
        self.cool_parts()
    }

    fn cool_parts(&self) -> Result<(), LabError> {
        if let Some(disk) = &self.disk {
            disk.drop_caches()?;
        }
        self.memory_group()
            .map_or(Ok(()), |group| memory::empty(&group))
    }

    /// Puts files on the disk quickly: without delays, written through, and cold again afterwards
    /// with the model's delays on.
    pub fn load<T, E: From<LabError>>(
        &self,
        put: impl FnOnce(&Path) -> Result<T, E>,
    ) -> Result<T, E> {
        let disk = self.disk.as_ref().ok_or_else(|| LabError::NoPart {
            name: self.directory.name.clone(),
            part: "disk",
        })?;
        // No other command may remove the disk while it is unmounted and mounted.
        let _lock = self.directory.lock()?;
        // First what fails when a server still has files of it open: a disk in use keeps its
        // delays.
        disk.make_writable().map_err(LabError::from)?;
        disk.order(Order::Fast).map_err(LabError::from)?;
        let done = put(disk.mount_point());
        let given = disk.give_away().map_err(LabError::from);
        // Cold while it is fast: unmounting writes back what is dirty.
        let cooled = self.cool_parts();
        disk.order(Order::Model).map_err(LabError::from)?;
        let done = done?;
        given?;
        cooled?;
        Ok(done)
    }

    /// What every part does at this moment.
    pub fn status(&self) -> Result<status::Status, LabError> {
        status::of(&self.directory.name, &self.state, self.disk.as_ref())
    }

    /// Removes the lab: ends the processes in it, then undoes its parts.
    ///
    /// # Errors
    /// `Left` says what could not be removed; [`down`] again when that is free.
    pub fn down(self) -> Result<(), LabError> {
        drop(self.disk);
        down(&self.directory.name)
    }

    /// Raises the server's CPU quota to one core, or restores it: for work that is to be done
    /// before something is measured.
    ///
    /// # Errors
    /// The group is gone.
    pub fn lend_cpu(&self, yes: bool) -> Result<(), LabError> {
        let Some(share) = self.state.spec.cpu_share else {
            return Ok(());
        };
        let share = if yes { share.max(1.0) } else { share };
        let groups = groups_of(&self.directory.name);
        let mut slowed = groups.iter().filter(|group| cpu::status(group).is_some());
        slowed.try_for_each(|group| cpu::limit(group, share))
    }

    /// What is charged to the server's side; `None` without a memory controller.
    pub fn memory(&self) -> Option<memory::MemoryStatus> {
        memory::status(&self.memory_group()?)
    }

    fn memory_group(&self) -> Option<ControlGroup> {
        groups_of(&self.directory.name)
            .into_iter()
            .find(|group| memory::status(group).is_some())
    }
}

/// Names of the labs there are, also of unfinished ones.
pub fn list() -> Vec<String> {
    crate::state::recorded()
}

/// Removes a lab by name, also one that was never finished or whose record is gone.
///
/// # Errors
/// `Unknown` if there is nothing of that name; `Busy` while another process makes or removes it;
/// `Left`.
pub fn down(name: &str) -> Result<(), LabError> {
    let directory = LabDirectory::of(name)?;
    let _lock = match directory.path.is_dir() {
        true => Some(directory.lock()?),
        false if sweep::found().iter().any(|found| found == name) => None,
        false => {
            return Err(LabError::Unknown {
                name: name.to_owned(),
                base: crate::state::base(),
            });
        }
    };
    let left = sweep::everything(&directory);
    match left.is_empty() {
        true => Ok(()),
        false => Err(LabError::Left {
            name: name.to_owned(),
            left,
        }),
    }
}

/// Removes every lab whose name begins with `prefix` (the empty one: all), also what a crash left
/// of one. Each with its outcome.
pub fn down_all(prefix: &str) -> Vec<(String, Result<(), LabError>)> {
    let mut names = sweep::found();
    names.retain(|name| name.starts_with(prefix));
    names
        .into_iter()
        .map(|name| {
            let done = down(&name);
            (name, done)
        })
        .collect()
}

/// Moves the calling process into a lab.
///
/// This asks nothing of the disk, which may be stalled at that moment.
pub fn join_by_name(name: &str, side: Side) -> Result<(), LabError> {
    let state = LabDirectory::of(name)?.read()?;
    match state.complete {
        true => join(name, &state, side),
        false => Err(LabError::Unfinished(name.to_owned())),
    }
}

fn join(name: &str, state: &LabState, side: Side) -> Result<(), LabError> {
    if side == Side::Client {
        return cpu::pin(&state.spec.client_cpus);
    }
    for group in groups_of(name) {
        group.join()?;
    }
    if state.spec.link.is_some() {
        network::enter(&network::names(name))?;
    }
    cpu::pin(&state.spec.server_cpus)
}

/// The groups of exactly this lab: on version 1 up to two, on version 2 one.
pub(crate) fn groups_of(name: &str) -> Vec<ControlGroup> {
    let wanted = format!("{}{name}", crate::PREFIX);
    let mut groups = groups::existing(&wanted);
    groups.retain(|group| group.path.file_name() == Some(OsStr::new(&wanted)));
    groups
}

/// Creates the parts in order; each is recorded first.
fn make(
    spec: &LabSpec,
    directory: &LabDirectory,
    interrupted: &AtomicBool,
) -> Result<Lab, LabError> {
    let mut state = LabState::new(spec);
    directory.write(&state)?;
    let group = format!("{}{}", crate::PREFIX, spec.name);
    let names = network::names(&spec.name);
    let begin = |what: &str, state: &mut LabState| {
        if interrupted.load(Ordering::Relaxed) {
            return Err(LabError::Interrupted(spec.name.clone()));
        }
        state.begun.push(what.to_owned());
        directory.write(state)
    };
    begin("memory group", &mut state)?;
    match memory::make(&group, spec.memory_bytes) {
        // Without a limit the group only makes the status better, and the lab can do without.
        Err(_) if spec.memory_bytes.is_none() => {}
        made => drop(made?),
    }
    if let Some(share) = spec.cpu_share {
        begin("CPU group", &mut state)?;
        cpu::make(&group, share)?;
    }
    if let Some(link) = &spec.link {
        begin("network name space", &mut state)?;
        network::make_space(&names)?;
        begin("link", &mut state)?;
        state.addresses = Some(make_link(directory, &state, &names, link)?);
    }
    let mut disk = None;
    if let Some(wanted) = &spec.disk {
        begin("disk", &mut state)?;
        // Its process runs where the client does: it stands for hardware that takes no time of the
        // server's CPU.
        disk = Some(cpu::pinned(&spec.client_cpus, || {
            let mut process = Command::new(headway_lab());
            process.arg(SUB_COMMAND);
            Ok(Disk::start_by(wanted, &directory.path, process)?)
        })?);
    }
    begin("the rest", &mut state)?;
    state.complete = true;
    directory.write(&state)?;
    Ok(Lab {
        directory: directory.clone(),
        state,
        disk,
    })
}

/// Labs that are made at the same time must not find the same network free.
fn make_link(
    directory: &LabDirectory,
    state: &LabState,
    names: &network::Names,
    link: &LinkSpec,
) -> Result<Addresses, LabError> {
    let base = crate::state::base();
    let lock = std::fs::File::open(&base).map_err(LabError::file("opening", &base))?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)
        .map_err(|error| LabError::file("locking", &base)(error.into()))?;
    let addresses = network::free_addresses()?;
    directory.write(&LabState {
        addresses: Some(addresses),
        ..state.clone()
    })?;
    network::make_link(names, link, addresses)?;
    Ok(addresses)
}
