//! Children of `headway serve` and `headway backend`, each with a socket as standard input.
//!
//! They are hidden subcommands, recognised before the command line is parsed: there may be many
//! helpers, and the description of the whole command line would take about
//! 450 kB in each of them.

use anyhow::{Context, bail};
use headway_os::privileges::{CapabilitySet, drop_capabilities};
use headway_server::become_child;
use headway_server::control::Control;
use headway_server::embedded::Applications;
use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use crate::Failure;

/// Runs the child with this subcommand to its end. `None` if there is no such child.
pub fn run(name: &OsStr, applications: Applications) -> Option<Result<(), Failure>> {
    Some(match name.to_str()? {
        "serve-worker" => worker(applications),
        "serve-helper" => helper(applications),
        "serve-spawner" => spawner(),
        "serve-log" => log(),
        "serve-pinner" => pinner(),
        _ => return None,
    })
}

fn worker(applications: Applications) -> Result<(), Failure> {
    become_child(c"headway-worker")?;
    Ok(headway_server::worker_main(
        Control::new(socket()?),
        applications,
    )?)
}

fn helper(applications: Applications) -> Result<(), Failure> {
    become_child_with(c"headway-helper", CapabilitySet::empty())?;
    Ok(headway_server::helper_main(socket()?, applications)?)
}

fn spawner() -> Result<(), Failure> {
    become_child(c"headway-spawner")?;
    Ok(headway_server::spawner_main(socket()?)?)
}

fn log() -> Result<(), Failure> {
    become_child_with(c"headway-log", CapabilitySet::empty())?;
    Ok(headway_server::log_main(Control::new(socket()?))?)
}

fn pinner() -> Result<(), Failure> {
    become_child_with(c"headway-pinner", CapabilitySet::IPC_LOCK)?;
    Ok(headway_files::pinner_main(
        socket()?,
        headway_server::config::available_now,
    )?)
}

/// Becomes a child like [`become_child`], with no other capabilities than these.
fn become_child_with(name: &CStr, capabilities: CapabilitySet) -> anyhow::Result<()> {
    become_child(name)?;
    drop_capabilities(capabilities).context("giving up capabilities")
}

/// Standard input as an owned file descriptor. It is a duplicate of the open socket; both are
/// closed when the process exits.
fn socket() -> anyhow::Result<OwnedFd> {
    let input = std::io::stdin();
    let input = input
        .as_fd()
        .try_clone_to_owned()
        .context("standard input")?;
    // Any kind of Unix socket has a local address, and nothing else has.
    let socket = UnixDatagram::from(input);
    if socket.local_addr().is_err() {
        bail!("this subcommand is started by `headway serve`, not by hand");
    }
    Ok(socket.into())
}
