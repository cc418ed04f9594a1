//! Every process but the master: the hidden subcommands with which the master starts them, each with
//! a socket as standard input.
//!
//! A program recognises them before it parses its command line: there may be many helpers, and the
//! description of the whole command line would take about 450 kB in each of them.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use headway_access_log::process::{LogError, log_main_with};
use headway_acme::process::{AcmeError, acme_main_with};
use headway_config::{AcmeConfig, LogConfig, OtlpConfig};
use headway_control::{Control, ControlError, ToHelper};
use headway_os::privileges::{CapabilitySet, drop_capabilities};
use headway_os::process::lets_others_first;
use headway_otlp::process::{SpanError, spans_main_with};
use headway_sandbox::{
    Connect, Demand, Kind, Rules, SandboxError, confine, confine_in, own_processes_domain,
};
use headway_spawner::spawner_main_with;
use rustix::process::DumpableBehavior;

use crate::confinement::HelperRules;
use crate::extensions::Extensions;
use crate::run_helper;
use crate::worker::{WorkerError, run_worker};

/// Why a child ended before its work was done.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// A person has started it.
    #[error("this subcommand is started by `headway serve`, not by hand")]
    ByHand,
    /// Standard input is closed.
    #[error("standard input: {0}")]
    StandardInput(io::Error),
    /// The child may not work with more rights than it needs.
    #[error("giving up capabilities: {0}")]
    Capabilities(io::Error),
    /// The child could not be confined.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The rules of Landlock for programs.
    #[error("sandbox: Landlock: {0}")]
    ProgramsDomain(String),
    /// The channel to the master failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The worker cannot serve.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The log process cannot write.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The ACME process cannot write, or has lost the master.
    #[error(transparent)]
    Acme(#[from] AcmeError),
    /// The span process cannot work, or has lost the master.
    #[error(transparent)]
    Spans(#[from] SpanError),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Runs the child with this subcommand to its end. `None` if there is no such child.
pub fn child_main(name: &OsStr, extensions: Extensions) -> Option<Result<(), ChildError>> {
    Some(match name.to_str()? {
        "serve-worker" => worker(extensions),
        "serve-helper" => helper(extensions),
        "serve-spawner" => spawner(),
        "serve-handshakes" => handshakes(),
        "serve-log" => log(),
        "serve-store" => store(),
        "serve-acme" => acme(),
        "serve-spans" => spans(),
        _ => return None,
    })
}

fn worker(extensions: Extensions) -> Result<(), ChildError> {
    become_child(c"headway-worker")?;
    Ok(run_worker(Control::new(socket()?), extensions, demand())?)
}

fn helper(extensions: Extensions) -> Result<(), ChildError> {
    become_child_with(c"headway-helper", CapabilitySet::empty())?;
    let socket = socket()?;
    let Some(demand) = demand() else {
        return Ok(run_helper(socket, extensions, None)?);
    };
    let control = Control::new(socket);
    // Nothing comes if the master has ended.
    let Some((order, mut received)) = control.receive::<ToHelper>()? else {
        return Ok(());
    };
    let given = received.pop();
    let HelperRules { rules, known } = HelperRules::new(order, given.is_some());
    let ruleset = match given {
        Some(given) => Some(given),
        None => headway_sandbox::ruleset(&rules)?,
    };
    confine_in(ruleset.as_ref().map(AsFd::as_fd), &rules, demand)?;
    let socket = control.into_inner();
    // Without Landlock all directories are open to it.
    let known = known.filter(|_| ruleset.is_some());
    Ok(run_helper(socket, extensions, known.as_deref())?)
}

fn spawner() -> Result<(), ChildError> {
    become_child(c"headway-spawner")?;
    let domain = match demand() {
        Some(demand) => {
            let domain = own_processes_domain().map_err(ChildError::ProgramsDomain)?;
            confine(&Rules::of(Kind::Spawner), demand)?;
            domain
        }
        None => None,
    };
    Ok(spawner_main_with(socket()?, domain)?)
}

fn handshakes() -> Result<(), ChildError> {
    become_child_with(c"headway-tls", CapabilitySet::empty())?;
    hide_memory()?;
    // A signature takes longer than a turn of the worker's loop, and may run on the same CPU. If this call fails,
    // handshakes still work.
    let _ = lets_others_first();
    enter(&Rules::of(Kind::Handshakes))?;
    Ok(headway_tls::process::handshake_main(socket()?)?)
}

fn log() -> Result<(), ChildError> {
    become_child_with(c"headway-log", CapabilitySet::empty())?;
    let prepare = |log: &LogConfig| {
        let (daemons, files): (Vec<_>, Vec<_>) = log
            .files()
            .into_iter()
            .partition(|file| file.daemon().is_some());
        let files: Vec<_> = files.into_iter().map(|file| file.path).collect();
        let mut rules = Rules::of_log(&files);
        if !daemons.is_empty() {
            rules.connect = Connect::Daemons;
        }
        enter(&rules).map_err(|error| error.to_string())
    };
    Ok(log_main_with(Control::new(socket()?), prepare)?)
}

fn acme() -> Result<(), ChildError> {
    become_child_with(c"headway-acme", CapabilitySet::empty())?;
    hide_memory()?;
    let prepare = |acme: &AcmeConfig| {
        let rules = Rules::of_acme(acme.authority.as_deref());
        enter(&rules).map_err(|error| error.to_string())
    };
    Ok(acme_main_with(Control::new(socket()?), prepare)?)
}

fn spans() -> Result<(), ChildError> {
    become_child_with(c"headway-spans", CapabilitySet::empty())?;
    let prepare = |otlp: &OtlpConfig| {
        let rules = Rules::of_spans(otlp.authorities.as_deref());
        enter(&rules).map_err(|error| error.to_string())
    };
    Ok(spans_main_with(Control::new(socket()?), prepare)?)
}

fn store() -> Result<(), ChildError> {
    become_child_with(c"headway-store", CapabilitySet::IPC_LOCK)?;
    enter(&Rules::of_store())?;
    Ok(headway_files::store_main(
        socket()?,
        headway_config::available_now,
    )?)
}

/// How this child is confined, which is the only thing on its command line beside its kind.
fn demand() -> Option<Demand> {
    let word = std::env::args_os().nth(2)?;
    Demand::from_word(word.to_str()?)
}

/// Confines this child, if it is to be.
fn enter(rules: &Rules) -> Result<(), SandboxError> {
    match demand() {
        Some(demand) => confine(rules, demand),
        None => Ok(()),
    }
}

/// No other process of the same user may read the keys, by ptrace(2) or in a core dump.
fn hide_memory() -> io::Result<()> {
    let behavior = DumpableBehavior::NotDumpable;
    Ok(rustix::process::set_dumpable_behavior(behavior)?)
}

/// The same as [`become_child`], for a child that needs no other capabilities than these.
fn become_child_with(name: &CStr, capabilities: CapabilitySet) -> Result<(), ChildError> {
    become_child(name)?;
    drop_capabilities(capabilities).map_err(|error| ChildError::Capabilities(error.into()))
}

/// Prepares a child: sets the name that `ps` and `top` show (at most 15 bytes), and leaves the signals
/// for the server to the master.
///
/// A service manager signals every process of the service at once. If that ended the children,
/// requests in flight would be aborted that the master is about to let finish. The master ends its
/// children by closing their sockets.
fn become_child(name: &CStr) -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
    // Executing /proc/self/exe would leave the name "exe".
    rustix::thread::set_name(name)?;
    // A handler that only sets a flag: unlike an ignored signal, it is not inherited by exec.
    let seen = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2] {
        signal_hook::flag::register(signal, seen.clone())?;
    }
    Ok(())
}

/// Standard input as an owned file descriptor. It is a duplicate of the open socket; both are
/// closed when the process exits.
fn socket() -> Result<OwnedFd, ChildError> {
    let input = io::stdin();
    let input = input.as_fd().try_clone_to_owned();
    // Any kind of Unix socket has a local address, and nothing else has.
    let socket = UnixDatagram::from(input.map_err(ChildError::StandardInput)?);
    if socket.local_addr().is_err() {
        return Err(ChildError::ByHand);
    }
    Ok(socket.into())
}
