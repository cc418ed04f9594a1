//! The hidden sub-commands: children of `headway serve`, each with a socket as standard input.

use anyhow::{Context, bail};
use server::control::Control;
use server::master::become_child;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use super::Failure;

pub fn worker() -> Result<(), Failure> {
    become_child(c"headway-worker")?;
    Ok(server::worker::worker_main(Control::new(socket()?))?)
}

pub fn helper() -> Result<(), Failure> {
    become_child(c"headway-helper")?;
    Ok(server::helper_main(socket()?)?)
}

pub fn fork() -> Result<(), Failure> {
    become_child(c"headway-fork")?;
    Ok(server::forker::forker_main(socket()?)?)
}

pub fn log() -> Result<(), Failure> {
    become_child(c"headway-log")?;
    Ok(server::tally::log_process::log_main(Control::new(
        socket()?
    ))?)
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
