//! What the main process has when it starts: sockets of the service manager, or the state of the program
//! before, which it replaces.
//!
//! The descriptors that the program before has left stay open here until the new workers serve, and
//! none of its children is reaped before. So there is a way back: the program before is executed again
//! with the same state. If it fails too, the workers before go on serving, and it is tried again later.
//!
//! Sources: sd_listen_fds(3), execve(2).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use headway_control::Handover;
use headway_os::exec::{
    BlockedSignals, keep_on_exec, take_inherited, unblock_signals, wait_for_signal,
};
use headway_os::privileges::close_on_exec_from;
use rustix::fs::{Mode, OFlags};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};

use super::activation::{self, GivenSocket};
use super::predecessors::Predecessors;
use super::{MasterError, log_error, system};

/// The process, the number of the memfd, the number of attempts that have failed, and why the last one has.
pub(super) const VARIABLE: &str = "HEADWAY_UPGRADE";

/// The longest pause between attempts.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// What the main process has inherited.
#[derive(Debug, Default)]
pub struct Inherited {
    predecessor: Option<Predecessor>,
    /// From the service manager.
    pub(super) sockets: Vec<GivenSocket>,
}

/// The program before.
#[derive(Debug)]
pub(super) struct Predecessor {
    pub(super) state: Handover,
    memory: OwnedFd,
    descriptors: BTreeMap<RawFd, OwnedFd>,
    /// Attempts to replace it that have failed.
    attempt: u32,
    /// Why the last attempt failed.
    pub(super) why: Option<String>,
}

impl Inherited {
    /// Takes what there is. All descriptors of the process are close-on-exec then, except the standard
    /// ones: what a shell or a service manager has open is not for children.
    ///
    /// # Errors
    /// If a descriptor that is announced is not there, or the state cannot be read.
    pub fn take() -> Result<Inherited, MasterError> {
        let failed = system("state of the program before");
        let predecessor = match std::env::var(VARIABLE) {
            Ok(text) => Predecessor::take(&text).map_err(&failed)?,
            Err(_) => None,
        };
        let sockets = match predecessor {
            Some(_) => Vec::new(),
            None => activation::take()?,
        };
        close_on_exec_from(3).map_err(|error| system("close_range")(error.into()))?;
        Ok(Inherited {
            predecessor,
            sockets,
        })
    }

    pub(super) fn predecessor(&self) -> Option<&Predecessor> {
        self.predecessor.as_ref()
    }

    /// Ends the way back.
    pub(super) fn forget(&mut self) -> Option<Predecessor> {
        self.predecessor.take()
    }

    /// Reports that this program cannot serve. If it was to replace another one, it goes back to that, and
    /// returns only if it is to stop.
    pub fn fail(self, why: impl Display) {
        if let Some(predecessor) = self.predecessor {
            predecessor.go_back(why.to_string());
        }
    }
}

impl Predecessor {
    /// `None` if the text is for another process.
    fn take(text: &str) -> io::Result<Option<Predecessor>> {
        let mut parts = text.splitn(4, ',');
        let mut number = || parts.next()?.parse::<i64>().ok();
        let (Some(pid), Some(memory), Some(attempt)) = (number(), number(), number()) else {
            return Ok(None);
        };
        if i64::from(std::process::id()) != pid {
            return Ok(None);
        }
        let memory = take_inherited(memory as RawFd)?;
        let state = Handover::from_memory(memory.as_fd()).map_err(io::Error::other)?;
        let descriptors = state.descriptors().into_iter();
        let descriptors = descriptors.map(|number| Ok((number, take_inherited(number)?)));
        Ok(Some(Predecessor {
            descriptors: descriptors.collect::<io::Result<_>>()?,
            state,
            memory,
            attempt: u32::try_from(attempt).unwrap_or(u32::MAX),
            why: parts
                .next()
                .filter(|why| !why.is_empty())
                .map(str::to_owned),
        }))
    }

    /// A duplicate of a descriptor.
    pub(super) fn duplicate(&self, number: RawFd) -> io::Result<OwnedFd> {
        match self.descriptors.get(&number) {
            Some(found) => found.try_clone(),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Executes the program before. Returns when the server is to stop.
    fn go_back(mut self, mut why: String) {
        let _blocked = BlockedSignals::all();
        let version = self.state.version.clone();
        loop {
            match self.attempt {
                0 => log_error(format_args!(
                    "upgrade failed: {why}; going back to version {version}"
                )),
                _ if self.is_stopped(&why) => return self.stop(),
                _ => {}
            }
            self.attempt = self.attempt.saturating_add(1);
            // The first failure is that of the upgrade.
            let why_first = self.why.get_or_insert_with(|| why.clone()).clone();
            why = match self.execute(&why_first) {
                Ok(never) => match never {},
                Err(error) => format!("execute version {version} again: {error}"),
            };
        }
    }

    /// Waits until the next attempt, while the workers before go on serving. Returns whether the server is to
    /// stop.
    fn is_stopped(&self, why: &str) -> bool {
        let pause = PAUSE_MAX.min(Duration::from_secs(1 << self.attempt.min(4)) / 2);
        log_error(format_args!(
            "{why}; the workers before go on serving; trying again in {} s or after SIGHUP",
            pause.as_secs()
        ));
        let signals = [SIGTERM, SIGINT, SIGHUP, SIGUSR2];
        let got = wait_for_signal(&signals, pause);
        matches!(got, Ok(Some(SIGTERM | SIGINT)))
    }

    fn execute(&self, why: &str) -> io::Result<std::convert::Infallible> {
        let program = format!("/proc/self/fd/{}", self.state.program);
        let memory = std::os::fd::AsRawFd::as_raw_fd(&self.memory);
        let kept = self.descriptors.values().map(AsFd::as_fd);
        let kept: Vec<BorrowedFd<'_>> = kept.chain([self.memory.as_fd()]).collect();
        execute(Path::new(&program), (memory, self.attempt, why), &kept)
    }

    /// Lets the workers before finish their requests.
    fn stop(self) {
        match Predecessors::new(&self) {
            Ok(before) => before.stop_and_wait(Duration::from_millis(self.state.drain_timeout_ms)),
            Err(error) => log_error(format_args!("stop the workers before: {error}")),
        }
    }
}

/// Executes a program in place of this one, with the same arguments and the state in a memfd. Returns only if
/// that fails; then everything is as before.
pub(super) fn execute(
    program: &Path,
    (memory, attempt, why): (RawFd, u32, &str),
    kept: &[BorrowedFd<'_>],
) -> io::Result<std::convert::Infallible> {
    let set_all = |is_kept| {
        let mut set = kept.iter().map(|one| keep_on_exec(one, is_kept));
        set.try_for_each(|done| done)
    };
    let why = why.replace('\0', " ");
    let mut arguments = std::env::args_os();
    let mut command = Command::new(program);
    command
        .arg0(arguments.next().unwrap_or_else(|| "headway".into()))
        .args(arguments)
        .env(
            VARIABLE,
            format!("{},{memory},{attempt},{why}", std::process::id()),
        );
    let kept = set_all(true).map_err(io::Error::from);
    let error = kept.map_or_else(|error| error, |()| command.exec());
    set_all(false)?;
    Err(error)
}

/// Lets signals that have come during the exchange of programs reach the handlers. The name of a process that
/// was executed by a descriptor is a number.
pub(super) fn begin() {
    unblock_signals();
    let name = std::env::args_os().next();
    let name = name.as_deref().and_then(|path| Path::new(path).file_name());
    let bytes = name.map(|name| name.to_string_lossy().into_owned());
    if let Ok(name) = std::ffi::CString::new(bytes.unwrap_or_default()) {
        // Only ps(1) shows it.
        let _ = rustix::thread::set_name(&name);
    }
}

/// The program as a descriptor that outlives a replacement of the file.
pub(super) fn open_program(program: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::open(program, flags, Mode::empty())?)
}

/// The path with which the server was started, at which an upgrade looks for the new program. A symbolic link
/// is kept, since it may lead to another version later.
pub(super) fn path_of_program(program: &Path) -> PathBuf {
    use std::os::unix::fs::MetadataExt;
    if program != Path::new("/proc/self/exe") {
        return program.to_path_buf();
    }
    let own = std::fs::metadata(program)
        .map(|meta| (meta.dev(), meta.ino()))
        .ok();
    let is_own = |path: &PathBuf| {
        let found = std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
        found.ok() == own && own.is_some()
    };
    let name = PathBuf::from(std::env::args_os().next().unwrap_or_default());
    let directories: Vec<PathBuf> = match name.components().count() {
        1 if !name.as_os_str().to_string_lossy().contains('/') => {
            let path: OsString = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).collect()
        }
        _ => vec![std::env::current_dir().unwrap_or_default()],
    };
    let mut found = directories.iter().map(|directory| directory.join(&name));
    found
        .find(is_own)
        .unwrap_or_else(|| std::env::current_exe().unwrap_or(name))
}
