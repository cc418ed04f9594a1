//! Whether a document root can be served. Its file system may not answer, so a thread asks.
//!
//! A thread that is not waited for any more ends when the file system answers, or with the process.

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use headway_os::exec::BlockedSignals;

use super::hosts::lasting_path;

/// Each root gets this time, also after others have used up all of it.
const WAIT_MIN: Duration = Duration::from_millis(250);

/// How long file systems may take to answer.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    until: Option<Instant>,
}

/// What a root is.
pub(super) enum Found {
    /// A directory that can be read, as it is kept.
    Directory(PathBuf),
    /// Why it is none; continues a sentence.
    Unusable(String),
    /// Its file system has not answered. The path is absolute.
    Silent(PathBuf),
}

impl Patience {
    pub(super) fn new(wait: Option<Duration>) -> Patience {
        Patience {
            until: wait.map(|wait| Instant::now() + wait),
        }
    }

    /// Looks at a root.
    pub(super) fn look(self, written: &Path) -> Found {
        let Some(until) = self.until else {
            return look(written);
        };
        let (sender, found) = channel();
        let path = written.to_path_buf();
        // Signals are for the main thread.
        let blocked = BlockedSignals::all();
        let thread = thread::Builder::new().name("root".into());
        let started = thread.spawn(move || {
            // Perhaps it is not waited for any more.
            let _ = sender.send(look(&path));
        });
        drop(blocked);
        if started.is_err() {
            return look(written);
        }
        let left = until.saturating_duration_since(Instant::now());
        found.recv_timeout(left.max(WAIT_MIN)).unwrap_or_else(|_| {
            let absolute = std::path::absolute(written);
            Found::Silent(absolute.unwrap_or_else(|_| written.into()))
        })
    }
}

fn look(written: &Path) -> Found {
    let path = match lasting_path(written) {
        Ok(path) => path,
        Err(error) => return Found::Unusable(format!(": {error}")),
    };
    let rights = rustix::fs::Access::READ_OK | rustix::fs::Access::EXEC_OK;
    if !path.is_dir() {
        return Found::Unusable(" is not a directory".into());
    }
    match rustix::fs::access(&path, rights) {
        Ok(()) => Found::Directory(path),
        Err(error) => Found::Unusable(format!(" is not readable: {error}")),
    }
}
