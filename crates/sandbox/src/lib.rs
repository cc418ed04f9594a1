//! What each kind of process may do besides its work: nothing. A mistake in a parser then opens neither
//! the files, nor the network or the other processes of the machine.
//!
//! Two layers of the kernel are used, each as far as it is there:
//!
//! - **Landlock** says beneath which directories a process may open, to which TCP ports it may connect, and
//!   that it may signal and trace only itself. It is in [`Rules`].
//! - **A filter of system calls** (seccomp) allows the calls of the kind ([`calls`]) and answers EPERM to all
//!   others. The kernel logs these. The master and the spawner start others, which inherit their filters. So these
//!   have lists of what they may not call.
//!
//! A process goes in when it has opened what its start needs, and there is no way out. A descriptor which it
//! has, or which it is sent, works as before.
//!
//! What this refuses: to decide what is configured. [`Rules`] says it in words of the kernel.
//!
//! Sources: landlock(7), seccomp(2).
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

mod calls;
mod filter;
mod landlock_rules;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use headway_os::confine::{enter_domain, has_filters, landlock_version};
use rustix::thread::set_no_new_privs;

pub use landlock_rules::own_processes_domain;

/// The first version of Landlock with rules for TCP ports.
const WITH_PORTS: u32 = 4;
/// The first version with limits of signals.
const WITH_SIGNALS: u32 = 6;

/// The kinds of processes that are confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The event loop.
    Worker,
    /// Opens and reads files for a worker.
    Helper,
    /// Writes the access log.
    Log,
    /// Keeps the content store, and pins files.
    Store,
    /// Does handshakes, with the private keys.
    Handshakes,
    /// Orders certificates.
    Acme,
    /// Sends spans to a collector.
    Spans,
    /// Starts programs. They inherit what it may do.
    Spawner,
    /// Starts all others. They inherit what it may do.
    Master,
}

/// What to do where the kernel lacks a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// As much as there is.
    Possible,
    /// All of it; otherwise the process does not start.
    Required,
}

impl Demand {
    /// The word for it on the command line of a child.
    pub fn word(self) -> &'static str {
        match self {
            Demand::Possible => "sandbox",
            Demand::Required => "sandbox-required",
        }
    }

    /// What the command line of a child says; `None` if it is not confined.
    pub fn from_word(word: &str) -> Option<Demand> {
        [Demand::Possible, Demand::Required]
            .into_iter()
            .find(|demand| demand.word() == word)
    }
}

/// A file or a directory of a rule.
#[derive(Debug)]
pub enum Place {
    /// What the path leads to when the process goes in. To find it may wait for the file system.
    Named(PathBuf),
    /// This directory, for which an `O_PATH` descriptor is enough. Its file system is not asked.
    Open(OwnedFd),
}

impl From<PathBuf> for Place {
    fn from(path: PathBuf) -> Place {
        Place::Named(path)
    }
}

/// The rules of one process.
#[derive(Debug)]
pub struct Rules {
    /// Which calls it may make.
    pub kind: Kind,
    /// Files and directories beneath which it may read; `None` does not limit reading.
    pub read: Option<Vec<Place>>,
    /// Directories in which it may create and write files.
    pub write: Vec<Place>,
    /// Where it may connect to.
    pub connect: Connect,
    /// Whether it has an io_uring.
    pub io_uring: bool,
}

/// Where a process may connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connect {
    /// To nothing: it makes no socket.
    Nowhere,
    /// To daemons of this machine, by Unix sockets of datagrams.
    Daemons,
    /// To these TCP ports, and by Unix sockets.
    Ports(Vec<u16>),
    /// To anything.
    Anywhere,
}

impl Rules {
    /// Rules for a process of this kind, which may open and connect to nothing.
    ///
    /// ```
    /// use headway_sandbox::{Kind, Rules};
    /// assert!(Rules::of(Kind::Handshakes).read.is_some_and(|places| places.is_empty()));
    /// ```
    pub fn of(kind: Kind) -> Rules {
        Rules {
            kind,
            read: Some(Vec::new()),
            write: Vec::new(),
            connect: Connect::Nowhere,
            io_uring: false,
        }
    }

    /// The store process: it reads how much memory there is.
    pub fn of_store() -> Rules {
        Rules {
            // Files of one process are made again when the kernel needs memory, so a rule for them would
            // end. Those of others stay closed: Landlock does not let it trace them.
            read: Some(["/proc", "/sys/fs/cgroup"].map(place).into()),
            ..Rules::of(Kind::Store)
        }
    }

    /// The log process: it opens its files, and others of their names after a rotation.
    pub fn of_log(files: &[PathBuf]) -> Rules {
        let mut write = Vec::new();
        for file in files {
            // A symbolic link may lead to another directory.
            let target = std::fs::canonicalize(file);
            for path in std::iter::once(file).chain(target.as_ref().ok()) {
                let parent = path.parent().unwrap_or(Path::new("/"));
                write.push(match parent.as_os_str().is_empty() {
                    true => place("."),
                    false => place(parent),
                });
            }
        }
        Rules {
            write,
            ..Rules::of(Kind::Log)
        }
    }

    /// The ACME process: it looks up names and connects to an authority which it trusts by `certificates`.
    /// The C library reads its settings and loads its modules as it needs them.
    pub fn of_acme(certificates: Option<&Path>) -> Rules {
        let system = [
            "/etc",
            "/usr",
            "/lib",
            "/lib64",
            "/run",
            "/var/lib/ca-certificates",
        ];
        let named = ["SSL_CERT_FILE", "SSL_CERT_DIR"].map(std::env::var_os);
        let named = named.into_iter().flatten().map(PathBuf::from);
        let read = system.iter().map(PathBuf::from).chain(named);
        let read = read.chain(certificates.map(Path::to_owned));
        Rules {
            read: Some(read.map(Place::Named).collect()),
            connect: Connect::Anywhere,
            ..Rules::of(Kind::Acme)
        }
    }

    /// The span process: it connects to a collector as the ACME process does to an authority.
    pub fn of_spans(certificates: Option<&Path>) -> Rules {
        Rules {
            kind: Kind::Spans,
            ..Rules::of_acme(certificates)
        }
    }
}

/// Why a process could not be confined.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The kernel lacks a layer, and all are required.
    #[error("sandbox: {0}")]
    Lacking(String),
    /// Landlock refused the rules.
    #[error("sandbox: Landlock: {0}")]
    Landlock(String),
    /// The kernel refused the filter.
    #[error("sandbox: seccomp: {0}")]
    Filter(io::Error),
}

/// What the kernel offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Support {
    /// The version of Landlock; 0 without it.
    pub landlock: u32,
    /// Whether system calls can be filtered.
    pub filters: bool,
}

impl Support {
    /// Asks the kernel.
    pub fn probe() -> Support {
        Support {
            landlock: landlock_version().unwrap_or(0),
            filters: has_filters(),
        }
    }

    /// What is not confined for want of a layer, in plain words. Empty if nothing is missing.
    ///
    /// ```
    /// use headway_sandbox::Support;
    /// let none = Support { landlock: 0, filters: false };
    /// assert_eq!(none.lacks().len(), 2);
    /// assert!(Support { landlock: 6, filters: true }.lacks().is_empty());
    /// ```
    pub fn lacks(self) -> Vec<String> {
        let mut lacks = Vec::new();
        match self.landlock {
            0 => lacks.push("no Landlock: processes may open all files that their user may open".to_owned()),
            version if version < WITH_PORTS => lacks.push(format!(
                "Landlock has version {version}: TCP ports (version 4) and signals (version 6) are not limited"
            )),
            version if version < WITH_SIGNALS => lacks.push(format!(
                "Landlock has version {version}: signals (version 6) are not limited"
            )),
            _ => {}
        }
        if !self.filters {
            lacks.push("no seccomp: processes may make all system calls".to_owned());
        }
        lacks
    }

    /// An error if a layer is missing.
    ///
    /// # Errors
    /// [`SandboxError::Lacking`].
    pub fn require_all(self) -> Result<(), SandboxError> {
        let lacks = self.lacks();
        match lacks.is_empty() {
            true => Ok(()),
            false => Err(SandboxError::Lacking(lacks.join("; "))),
        }
    }
}

/// The Landlock part of some rules, for a process that gets it as a descriptor ([`confine_in`]); `None` without
/// Landlock.
///
/// # Errors
/// [`SandboxError::Landlock`].
pub fn ruleset(rules: &Rules) -> Result<Option<OwnedFd>, SandboxError> {
    match Support::probe().landlock {
        0 => Ok(None),
        _ => landlock_rules::make(rules),
    }
}

/// Confines this process, which has no other thread, and all that it starts later.
///
/// # Errors
/// [`SandboxError`]. The process should end.
pub fn confine(rules: &Rules, demand: Demand) -> Result<(), SandboxError> {
    let ruleset = match rules.kind {
        // It ends what a spawner before it has started, and programs, which inherit this, need the files and the
        // network. They get a domain of their own.
        Kind::Spawner => None,
        // Rules for files and ports would be those of programs, too.
        Kind::Master => own_processes_domain().map_err(SandboxError::Landlock)?,
        _ => ruleset(rules)?,
    };
    confine_in(ruleset.as_ref().map(AsFd::as_fd), rules, demand)
}

/// The same with a ruleset, which replaces the files and ports in these rules.
///
/// # Errors
/// [`SandboxError`]. The process should end.
pub fn confine_in(
    ruleset: Option<BorrowedFd<'_>>,
    rules: &Rules,
    demand: Demand,
) -> Result<(), SandboxError> {
    let support = Support::probe();
    if demand == Demand::Required {
        support.require_all()?;
    }
    // The rules first: to make them is not among the calls of any kind.
    if let Some(ruleset) = ruleset {
        let entered = set_no_new_privs(true).and_then(|()| enter_domain(ruleset));
        entered.map_err(|errno| SandboxError::Landlock(errno.to_string()))?;
    }
    if support.filters {
        filter::install(rules).map_err(SandboxError::Filter)?;
    }
    Ok(())
}

fn place(path: impl Into<PathBuf>) -> Place {
    Place::Named(path.into())
}
