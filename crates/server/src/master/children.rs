//! How the master starts its children: the same binary, exec'd, with a socket as standard input.
//!
//! A child gets nothing on its command line but whether it is confined, and inherits no other file
//! descriptor. What it needs comes through its socket, and the child ends when that is closed. Each child is a session of its
//! own, so that Ctrl-C in the terminal reaches only the master, which then drains, and no child can
//! type into the terminal.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use headway_config::{Config, Sandbox};
use headway_os::privileges::CapabilitySet;
use headway_os::spawn::in_new_session;
use headway_os::user::Identity;
use headway_sandbox::Demand;

use crate::confinement;

/// When the log process and the store process are started again after a death.
pub(super) const RESTART_DELAY: Duration = Duration::from_secs(1);

/// The command of each kind of child.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The binary.
    pub program: PathBuf,
    /// Arguments that make the binary a worker.
    pub worker: Vec<OsString>,
    /// Arguments that make the binary a helper.
    pub helper: Vec<OsString>,
    /// Arguments that make the binary the log process.
    pub log: Vec<OsString>,
    /// Arguments that make the binary the store process.
    pub store: Vec<OsString>,
    /// Arguments that make the binary a spawner.
    pub spawner: Vec<OsString>,
    /// Arguments that make the binary a handshake process.
    pub handshakes: Vec<OsString>,
    /// Arguments that make the binary the ACME process.
    pub acme: Vec<OsString>,
    /// Arguments that make the binary the span process.
    pub spans: Vec<OsString>,
    /// The user that they are; `None` is that of the master.
    pub(super) user: Option<Identity>,
    /// Whether a spawner is root in spite of it: it starts programs as another user.
    pub(super) spawner_is_root: bool,
    /// How they are confined; `None` is not at all.
    pub(super) sandbox: Option<Demand>,
    /// Whether that includes workers and helpers.
    pub(super) workers_are_confined: bool,
    /// Whether they may be confined: not under a program such as valgrind, which makes calls of its own.
    pub(super) may_be_confined: bool,
}

/// The kinds of children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Worker,
    Helper,
    Log,
    Store,
    Spawner,
    Handshakes,
    Acme,
    Spans,
}

impl Role {
    /// What a child that is not root may do besides, until it has opened what needs it.
    fn capabilities(self) -> CapabilitySet {
        match self {
            Role::Worker => CapabilitySet::IPC_LOCK | CapabilitySet::PERFMON | CapabilitySet::BPF,
            Role::Store => CapabilitySet::IPC_LOCK,
            Role::Helper
            | Role::Log
            | Role::Spawner
            | Role::Handshakes
            | Role::Acme
            | Role::Spans => CapabilitySet::empty(),
        }
    }
}

impl Programs {
    /// The running binary with its hidden subcommands.
    ///
    /// It is executed as `/proc/self/exe`, so that children have the same version even after an
    /// upgrade has replaced the file.
    pub fn this_binary() -> Programs {
        Programs {
            program: "/proc/self/exe".into(),
            worker: vec!["serve-worker".into()],
            helper: vec!["serve-helper".into()],
            log: vec!["serve-log".into()],
            store: vec!["serve-store".into()],
            spawner: vec!["serve-spawner".into()],
            handshakes: vec!["serve-handshakes".into()],
            acme: vec!["serve-acme".into()],
            spans: vec!["serve-spans".into()],
            user: None,
            spawner_is_root: false,
            sandbox: None,
            workers_are_confined: false,
            may_be_confined: true,
        }
    }

    /// The binary at this path. Under a program such as valgrind, `/proc/self/exe` is that program.
    pub fn of_binary(program: &Path) -> Programs {
        Programs {
            program: program.to_path_buf(),
            may_be_confined: false,
            ..Programs::this_binary()
        }
    }

    /// Has the children be the users of this configuration, and confined as it says.
    pub(super) fn use_accounts(&mut self, config: &Config) -> io::Result<()> {
        self.spawner_is_root = config.program_user.is_some();
        self.sandbox = match config.sandbox {
            Sandbox::On => Some(Demand::Possible),
            Sandbox::Required => Some(Demand::Required),
            Sandbox::Off => None,
        };
        self.sandbox = self.sandbox.filter(|_| self.may_be_confined);
        self.workers_are_confined = confinement::workers_need_more(config).is_none();
        self.user = match &config.user {
            Some(account) => account.identity()?,
            None => None,
        };
        Ok(())
    }

    /// How a child is confined.
    pub(super) fn sandbox_of(&self, role: Role) -> Option<Demand> {
        self.sandbox.filter(|_| match role {
            Role::Worker | Role::Helper => self.workers_are_confined,
            Role::Log
            | Role::Store
            | Role::Spawner
            | Role::Handshakes
            | Role::Acme
            | Role::Spans => true,
        })
    }

    pub(super) fn spawn(&self, role: Role, socket: OwnedFd) -> io::Result<Child> {
        let arguments = match role {
            Role::Worker => &self.worker,
            Role::Helper => &self.helper,
            Role::Log => &self.log,
            Role::Store => &self.store,
            Role::Spawner => &self.spawner,
            Role::Handshakes => &self.handshakes,
            Role::Acme => &self.acme,
            Role::Spans => &self.spans,
        };
        // The log process alone may be asked to write to standard output, as /dev/stdout.
        let stdout = match role {
            Role::Log => Stdio::inherit(),
            _ => Stdio::null(),
        };
        let mut command = Command::new(&self.program);
        command
            .arg0("headway")
            .args(arguments)
            .env_remove(super::inherited::VARIABLE)
            .args(self.sandbox_of(role).map(Demand::word))
            .stdin(socket)
            .stdout(stdout);
        in_new_session(&mut command);
        match &self.user {
            Some(user) if !(role == Role::Spawner && self.spawner_is_root) => user
                .clone()
                .start(&mut command, role.capabilities())
                .spawn(),
            _ => command.spawn(),
        }
    }
}

/// How a child ended.
pub(super) fn ended(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown exit status".into(),
    }
}
