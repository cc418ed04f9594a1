//! Children of `headway serve` and `headway backend`, each with a socket as standard input.
//!
//! They are sub-commands that no help names, and that are known before the words of all the others
//! are: there may be many helpers, and the description of the whole command line would take some
//! 450 kB in each of them.

use anyhow::{Context, bail};
use headway_server::control::Control;
use headway_server::master::become_child;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use super::Failure;

/// The child of this name.
pub fn named(word: &OsStr) -> Option<fn() -> Result<(), Failure>> {
    match word.to_str()? {
        "serve-worker" => Some(worker),
        "serve-helper" => Some(helper),
        "serve-fork" => Some(fork),
        "serve-log" => Some(log),
        "serve-keeper" => Some(keeper),
        _ => None,
    }
}

fn worker() -> Result<(), Failure> {
    become_child(c"headway-worker")?;
    Ok(headway_server::worker::worker_main(
        Control::new(socket()?),
    )?)
}

fn helper() -> Result<(), Failure> {
    become_child(c"headway-helper")?;
    Ok(headway_server::helper_main(socket()?)?)
}

fn fork() -> Result<(), Failure> {
    become_child(c"headway-fork")?;
    Ok(headway_server::spawner::spawner_main(socket()?)?)
}

fn log() -> Result<(), Failure> {
    become_child(c"headway-log")?;
    Ok(headway_server::tally::log_process::log_main(Control::new(
        socket()?,
    ))?)
}

fn keeper() -> Result<(), Failure> {
    become_child(c"headway-keeper")?;
    Ok(headway_files::keeper_main(
        socket()?,
        headway_server::config::available_now,
    )?)
}

/// Standard input, as a descriptor that can be owned. The duplicate shares the open socket; both go
/// when the process ends.
fn socket() -> anyhow::Result<OwnedFd> {
    let input = std::io::stdin();
    let input = input
        .as_fd()
        .try_clone_to_owned()
        .context("standard input")?;
    // Any kind of Unix socket has a local address, and nothing else has.
    let socket = UnixDatagram::from(input);
    if socket.local_addr().is_err() {
        bail!("this sub-command is started by `headway serve`, not by hand");
    }
    Ok(socket.into())
}
