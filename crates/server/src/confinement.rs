//! From a configuration to what the processes that serve it may do.
//!
//! The kernel holds a process to it (`headway-sandbox`). A worker learns it from its configuration. A helper
//! obeys its worker, so it learns it from the master.
//!
//! A worker opens its directories when it starts, and the master keeps these descriptors for the rules of
//! helpers, and for the worker that replaces this one. So neither asks a file system: one of them may not answer.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use headway_config::{Config, HandlerConfig, Opening, Upstreams};
use headway_control::{Control, ControlError, DIRECTORIES_MAX, FromWorker, ToHelper};
use headway_event::Mechanism;
use headway_files::{RootConfig, RootId, Roots, Symlinks};
use headway_gateway::upstream::Address;
use headway_lookup::VirtualHosts;
use headway_os::open::{NameLookup, Status, find_directory};
use headway_respond::handlers::Routes;
use headway_sandbox::{Connect, Kind, Place, Rules};
use rustix::fs::{Access, access};

/// The directories of which rules are made.
pub(crate) struct Directories {
    /// Those of all roots, each once.
    pub(crate) read: Vec<PathBuf>,
    /// Not where symbolic links may lead anywhere.
    pub(crate) limits_reading: bool,
    /// Those for temporary files.
    pub(crate) write: Vec<PathBuf>,
}

impl Directories {
    pub(crate) fn of(config: &Config) -> Directories {
        let buffers = handlers(config)
            .any(|handler| !matches!(handler, HandlerConfig::Files | HandlerConfig::Redirect(_)));
        let spools = buffers && config.buffer_disk_max_bytes > 0;
        let temporary = spools.then(|| config.temp_directory.clone());
        Directories {
            read: directories_of_roots(config),
            limits_reading: limits_reading(config),
            write: temporary.into_iter().collect(),
        }
    }

    /// All, in the order in which the worker numbers them for the master.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Path> {
        self.read.iter().chain(&self.write).map(PathBuf::as_path)
    }

    /// The order to a helper. With a ruleset that allows the directories `known`; without one it looks up the
    /// paths itself, and may wait for their file systems.
    pub(crate) fn order(self, known: Vec<(u64, u64)>) -> ToHelper {
        ToHelper::Start {
            read: self.limits_reading.then_some(self.read),
            write: self.write,
            known,
        }
    }
}

/// All roots, in the order of their numbers.
pub(crate) fn roots(config: &Config) -> Vec<RootConfig> {
    [VirtualHosts::roots(&config.hosts), Routes::roots(config)].concat()
}

/// Why workers and their helpers cannot be confined, if they cannot: research stages wait, map, fork and
/// open files in the worker, and applications may do anything.
pub(crate) fn workers_need_more(config: &Config) -> Option<&'static str> {
    let research = &config.research;
    let has_stages = research.opening != Opening::Probe
        || research.send_method.is_some()
        || !research.pipe.is_empty()
        || !research.fork_in_server.is_empty();
    if has_stages {
        return Some("a server of [research] does what they may not");
    }
    let mut handlers = handlers(config);
    let has_application = handlers.any(|one| matches!(one, HandlerConfig::Application(_)));
    has_application.then_some("an application may do what they may not")
}

/// The rules of a worker: it reads its roots, which are open, and connects to its upstreams.
pub(crate) fn of_worker(config: &Config, open: &Roots) -> io::Result<Rules> {
    let upstreams: Vec<&Upstreams> = handlers(config)
        .filter_map(|handler| match handler {
            HandlerConfig::Upstreams(upstreams) => Some(upstreams),
            _ => None,
        })
        .collect();
    let ports = upstreams.iter().flat_map(|one| one.addresses());
    let ports = ports.filter_map(|address| match address {
        Address::Tcp(address) => Some(address.port()),
        Address::Unix(_) => None,
    });
    let paths = directories_of_roots(config);
    let read = limits_reading(config).then(|| {
        let opened = opened_roots(config, open, &paths).flatten();
        opened.map(|one| one.map(Place::Open)).collect()
    });
    Ok(Rules {
        read: read.transpose()?,
        connect: match upstreams.is_empty() {
            true => Connect::Nowhere,
            false => Connect::Ports(ports.collect()),
        },
        io_uring: uses_io_uring(config),
        ..Rules::of(Kind::Worker)
    })
}

/// Gives the master the directories of a worker, for the rules of helpers and for the next worker. It takes them
/// only before the worker serves.
pub(crate) fn send_directories(
    config: &Config,
    open: &Roots,
    master: &Control,
) -> Result<(), ControlError> {
    let Directories { read, write, .. } = Directories::of(config);
    let read = opened_roots(config, open, &read).map(|one| one?.ok());
    let write = write.iter().map(|path| {
        let found = find_directory(path, NameLookup::MayBlock);
        found.ok().flatten().map(|(directory, _)| directory)
    });
    let all: Vec<_> = (0..).zip(read.chain(write)).collect();
    let opened: Vec<(u32, &OwnedFd)> = all
        .iter()
        .filter_map(|(number, directory)| Some((*number, directory.as_ref()?)))
        .collect();
    for some in opened.chunks(DIRECTORIES_MAX) {
        let message = FromWorker::Directories {
            numbers: some.iter().map(|(number, _)| *number).collect(),
        };
        let descriptors: Vec<BorrowedFd<'_>> = some.iter().map(|(_, one)| one.as_fd()).collect();
        master.send(&message, &descriptors)?;
    }
    Ok(())
}

/// The descriptors of roots with these paths; `None` for one that is not found yet.
fn opened_roots(
    config: &Config,
    open: &Roots,
    paths: &[PathBuf],
) -> impl Iterator<Item = Option<io::Result<OwnedFd>>> {
    let roots = roots(config);
    paths.iter().map(move |path| {
        let at = roots.iter().position(|root| root.directory == *path);
        let root = RootId(at.unwrap_or_default() as u32);
        (!open.is_silent(root)).then(|| open.directory(root))
    })
}

fn uses_io_uring(config: &Config) -> bool {
    let events = config.events.parse::<Mechanism>();
    config.helper_backend == headway_config::HelperBackend::IoUring
        || events.is_ok_and(|events| events == Mechanism::IoUring)
}

/// What a helper with an order, which came with a ruleset or not, may do.
pub(crate) struct HelperRules {
    /// For the filter, and for Landlock where there is no ruleset.
    pub(crate) rules: Rules,
    /// Device and inode of each directory in them; `None` if reading is not limited.
    pub(crate) known: Option<Vec<(u64, u64)>>,
}

impl HelperRules {
    pub(crate) fn new(order: ToHelper, has_ruleset: bool) -> HelperRules {
        let ToHelper::Start { read, write, known } = order;
        if has_ruleset {
            return HelperRules {
                rules: Rules::of(Kind::Helper),
                known: read.map(|_| known),
            };
        }
        let read = read.map(|paths| paths.iter().filter_map(|path| find(path)).collect());
        let read: Option<Vec<_>> = read;
        let known = read.as_ref();
        let known = known.map(|found| found.iter().map(|(_, status)| identity(status)).collect());
        let open = |found: Vec<(OwnedFd, Status)>| -> Vec<Place> {
            let directories = found.into_iter().map(|(directory, _)| directory);
            directories.map(Place::Open).collect()
        };
        let write = write.iter().filter_map(|path| find(path)).collect();
        HelperRules {
            rules: Rules {
                read: read.map(open),
                write: open(write),
                ..Rules::of(Kind::Helper)
            },
            known,
        }
    }
}

fn find(path: &Path) -> Option<(OwnedFd, Status)> {
    find_directory(path, NameLookup::MayBlock).ok().flatten()
}

/// What tells a directory from all others.
pub(crate) fn identity(status: &Status) -> (u64, u64) {
    (status.device, status.inode)
}

/// The directories of all roots, each once.
fn directories_of_roots(config: &Config) -> Vec<PathBuf> {
    let roots = roots(config).into_iter();
    let mut paths: Vec<_> = roots.map(|root| root.directory).collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// Whether symbolic links lead to directories of roots only.
fn limits_reading(config: &Config) -> bool {
    let leaves = |root: &RootConfig| matches!(root.symlinks, Symlinks::Owner | Symlinks::Any);
    !roots(config).iter().any(leaves)
}

/// Directories that the master has given a worker.
#[derive(Default)]
pub(crate) struct GivenDirectories(Vec<(u32, OwnedFd)>);

impl GivenDirectories {
    pub(crate) fn add(&mut self, numbers: Vec<u32>, directories: Vec<OwnedFd>) {
        self.0.extend(numbers.into_iter().zip(directories));
    }

    /// Opens the roots. Those that were given are not looked up.
    pub(crate) fn open_roots(self, config: &Config) -> io::Result<Roots> {
        let paths = directories_of_roots(config);
        let given: BTreeMap<&Path, OwnedFd> = self
            .0
            .into_iter()
            .filter_map(|(number, directory)| Some((&**paths.get(number as usize)?, directory)))
            .collect();
        check_roots(config, &given)?;
        let duplicate = |path: &Path| given.get(path)?.try_clone().ok();
        let is_silent = |path: &Path| is_silent(config, path);
        Roots::open_with(&roots(config), &duplicate, &is_silent).map_err(io::Error::other)
    }
}

/// Whether the file system of a root did not answer when the server started.
pub(crate) fn is_silent(config: &Config, root: &Path) -> bool {
    config.silent_roots.iter().any(|silent| silent == root)
}

/// The master has checked them, but a worker may be another user.
fn check_roots(config: &Config, given: &BTreeMap<&Path, OwnedFd>) -> io::Result<()> {
    let rights = Access::READ_OK | Access::EXEC_OK;
    let roots = config.hosts.iter().map(|host| &*host.root);
    let is_unknown = |root: &&Path| !given.contains_key(root) && !is_silent(config, root);
    for root in roots.filter(is_unknown) {
        let failed = |error| io::Error::other(format!("cannot read {}: {error}", root.display()));
        access(root, rights).map_err(failed)?;
    }
    Ok(())
}

fn handlers(config: &Config) -> impl Iterator<Item = &HandlerConfig> {
    let locations = config.hosts.iter().flat_map(|host| &host.locations);
    locations.map(|location| &location.handler)
}
