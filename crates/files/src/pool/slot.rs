//! One attached helper: its socket and what it is doing.

use super::HelperSlot;
use crate::protocol::{Request, VERSION, encode_request};
use crate::root::{AskedRoot, RootId, Roots};
use headway_os::fd_passing::{
    ReceiveError, Received, Wait, receive_with_descriptors, send_with_descriptors,
};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::IoSlice;
use rustix::net::Shutdown;
use std::borrow::Cow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

/// A reply's file and its siblings.
const REPLY_DESCRIPTORS_MAX: usize = 4;

/// What a busy helper is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// The job of this number.
    Job(u64),
    /// The job of this number, which could not be sent.
    Unsent(u64),
    /// Closing descriptors.
    DeferClose,
    /// Looking up the path of a root.
    OpenRoot(AskedRoot),
}

#[derive(Clone, Copy, Debug)]
enum HelperState {
    /// How many handshake messages have been sent.
    Greeting(usize),
    /// Since when; `None` until the next flush provides the time.
    Idle(Option<u64>),
    Busy(Work, Instant),
    Dead,
}

/// Whether a message was sent. A helper that accepts none is shut down, so that its death is
/// detected like any other: on its socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sent {
    Sent,
    Failed,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) id: HelperSlot,
    pub(super) socket: OwnedFd,
    pub(super) pid: u32,
    state: HelperState,
    /// The version of each root that the helper knows.
    versions: Vec<u32>,
}

impl Slot {
    pub(super) fn new(id: HelperSlot, socket: OwnedFd, pid: u32) -> Slot {
        Slot {
            id,
            socket,
            pid,
            state: HelperState::Greeting(0),
            versions: Vec::new(),
        }
    }

    /// Whether part of the greeting is still to be sent.
    pub(super) fn is_in_handshake(&self) -> bool {
        matches!(self.state, HelperState::Greeting(_))
    }

    /// Send what is missing of the greeting: Hello, then a message for each root.
    pub(super) fn handshake(&mut self, roots: &Roots) {
        let HelperState::Greeting(mut sent) = self.state else {
            return;
        };
        while sent <= roots.len() {
            let put = match sent.checked_sub(1) {
                None => self.put_hello(roots.len()),
                Some(number) => self.send_root(roots, RootId(number as u32)),
            };
            match put {
                Ok(true) => sent += 1,
                // With very many roots the socket fills up; the next flush continues.
                Ok(false) => break,
                Err(()) => return,
            }
        }
        self.state = if sent > roots.len() {
            HelperState::Idle(None)
        } else {
            HelperState::Greeting(sent)
        };
    }

    fn put_hello(&self, roots: usize) -> Result<bool, ()> {
        let message = Request::Hello {
            version: VERSION,
            roots: roots as u32,
        };
        let mut bytes = Vec::new();
        encode_request(&message, &mut bytes);
        self.put(&bytes, &[])
    }

    /// Sends a root as it is now.
    fn send_root(&mut self, roots: &Roots, id: RootId) -> Result<bool, ()> {
        let Some(root) = roots.get(id) else {
            return Ok(false);
        };
        let names = root.rules.index.iter();
        let paths = root.rules.paths.iter();
        let message = Request::Root {
            root: id,
            siblings: root.rules.siblings,
            dotfiles: root.rules.dotfiles,
            symlinks: root.rules.symlinks,
            index: names.map(|name| Cow::Borrowed(name.as_str())).collect(),
            rules: paths
                .map(|rule| (rule.kind, Cow::Borrowed(rule.text.as_str())))
                .collect(),
        };
        let mut bytes = Vec::new();
        encode_request(&message, &mut bytes);
        let sent = self.put(&bytes, &[root.as_fd()])?;
        if sent {
            let (version, at) = (roots.version(id), id.0 as usize);
            match self.versions.get_mut(at) {
                Some(known) => *known = version,
                None => self.versions.push(version),
            }
        }
        Ok(sent)
    }

    /// Whether it knows the directories of all roots.
    pub(super) fn knows_all(&self, roots: &Roots) -> bool {
        let known = (0..).zip(&self.versions);
        known
            .into_iter()
            .all(|(root, version)| *version == roots.version(RootId(root)))
    }

    /// Sends a root if the helper knows an earlier directory of it. Returns `false` if the helper takes no
    /// message.
    pub(super) fn put_root(&mut self, roots: &Roots, root: RootId) -> bool {
        let known = self.versions.get(root.0 as usize);
        // A root that does not exist has no directory.
        match known.is_none_or(|known| *known == roots.version(root)) {
            true => true,
            false => matches!(self.send_root(roots, root), Ok(true)),
        }
    }

    /// Has the helper look up the path of a root. If sending fails, its socket is shut down, and the root is
    /// looked up again when it is due.
    pub(super) fn send_open_root(&mut self, asked: AskedRoot, path: &Path) {
        let mut bytes = Vec::new();
        let path = path.as_os_str().as_bytes();
        encode_request(&Request::OpenRoot { job: 0, path }, &mut bytes);
        if !matches!(self.put(&bytes, &[]), Ok(true)) {
            self.shut();
        }
        self.state = HelperState::Busy(Work::OpenRoot(asked), Instant::now());
    }

    /// Remember since when the helper is idle.
    pub(super) fn settle(&mut self, now_ms: u64) {
        if let HelperState::Idle(None) = self.state {
            self.state = HelperState::Idle(Some(now_ms));
        }
    }

    /// Sends a job. In any case the helper is busy with it: if sending fails, its socket is shut
    /// down, the helper is found dead, and the job is retried.
    pub(super) fn send(&mut self, bytes: &[u8], files: &[BorrowedFd<'_>], job: u64) {
        match self.put(bytes, files) {
            Ok(true) => self.state = HelperState::Busy(Work::Job(job), Instant::now()),
            _ => self.fail(job),
        }
    }

    /// The helper takes no message: its socket is shut down.
    pub(super) fn fail(&mut self, job: u64) {
        self.shut();
        self.state = HelperState::Busy(Work::Unsent(job), Instant::now());
    }

    /// Send descriptors that the helper shall close later, when released.
    pub(super) fn send_deferred_closes(&mut self, files: &[BorrowedFd<'_>]) -> Sent {
        let mut bytes = Vec::new();
        encode_request(&Request::DeferClose { job: 0 }, &mut bytes);
        if matches!(self.put(&bytes, files), Ok(true)) {
            self.state = HelperState::Busy(Work::DeferClose, Instant::now());
            Sent::Sent
        } else {
            self.shut();
            self.state = HelperState::Busy(Work::DeferClose, Instant::now());
            Sent::Failed
        }
    }

    /// Have the helper close the files: our copies are closed.
    pub(super) fn release(&mut self) {
        let mut bytes = Vec::new();
        encode_request(&Request::Release { job: 0 }, &mut bytes);
        if !matches!(self.put(&bytes, &[]), Ok(true)) {
            self.shut();
        }
    }

    pub(super) fn receive(&self, buffer: &mut [u8]) -> Result<Option<Received>, ReceiveError> {
        receive_with_descriptors(&self.socket, buffer, REPLY_DESCRIPTORS_MAX, Wait::Never)
    }

    pub(super) fn set_idle(&mut self, now_ms: u64) {
        self.state = HelperState::Idle(Some(now_ms));
    }

    pub(super) fn die(&mut self) {
        self.state = HelperState::Dead;
    }

    pub(super) fn is_dead(&self) -> bool {
        matches!(self.state, HelperState::Dead)
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, HelperState::Idle(_))
    }

    pub(super) fn idle_since_ms(&self) -> Option<u64> {
        match self.state {
            HelperState::Idle(since) => since,
            _ => None,
        }
    }

    /// What the helper is doing, and since when.
    pub(super) fn work(&self) -> Option<(Work, Instant)> {
        match self.state {
            HelperState::Busy(work, since) => Some((work, since)),
            _ => None,
        }
    }

    /// `Ok(false)` when the socket is full.
    fn put(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Result<bool, ()> {
        match send_with_descriptors(&self.socket, &[IoSlice::new(bytes)], files, Wait::Never) {
            Ok(sent) => Ok(sent.is_some()),
            Err(_) => {
                self.shut();
                Err(())
            }
        }
    }

    /// Makes the socket readable with its end, which is how the pool learns of a death.
    fn shut(&self) {
        // It fails only if the other end has gone already, and then it is readable anyway.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}
