//! Whether a document root can be served. Its file system may not answer, so a thread asks.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use headway_os::answer::Answer;

use super::hosts::lasting_path;

/// The message for a file whose file system has not answered.
pub(super) const SILENT: &str = "its file system does not answer";
/// Each question gets this time, also after others have used up all of it.
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
        let path = written.to_path_buf();
        self.ask(move || look(&path)).unwrap_or_else(|| {
            let absolute = std::path::absolute(written);
            Found::Silent(absolute.unwrap_or_else(|_| written.into()))
        })
    }

    /// What a call of a file system returns. `None` if it does not return in time.
    pub(super) fn ask<T: Send + 'static>(
        self,
        call: impl FnOnce() -> T + Clone + Send + 'static,
    ) -> Option<T> {
        let Some(until) = self.until else {
            return Some(call());
        };
        // Without another thread nothing else can be done.
        let Ok(answer) = Answer::of("file", call.clone()) else {
            return Some(call());
        };
        let left = until.saturating_duration_since(Instant::now());
        answer.within(left.max(WAIT_MIN))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn never() -> u8 {
        loop {
            std::thread::park();
        }
    }

    #[test]
    fn call_that_does_not_return_is_given_up() {
        assert_eq!(Patience::new(Some(Duration::ZERO)).ask(never), None);
        let patience = Patience::new(Some(Duration::from_secs(60)));
        assert_eq!(patience.ask(|| 7), Some(7));
        assert!(matches!(patience.look(Path::new("/")), Found::Directory(_)));
        assert_eq!(Patience::new(None).ask(|| 7), Some(7));
    }
}
