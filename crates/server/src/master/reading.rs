//! The configuration is read in a thread: a file system that it names may not answer, and the master goes on
//! meanwhile.
//!
//! A thread that waits for a dead file system is not waited for. It ends with the process, or when that file system
//! answers, and then its result is dropped.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use headway_config::Config;
use headway_os::exec::BlockedSignals;

use super::directories::OpenDirectories;
use super::signals;

/// Reads the configuration again, for a reload. The error is what to tell the administrator.
pub type ReadConfig = Arc<dyn Fn() -> Result<Config, String> + Send + Sync>;

/// Time for reading it.
const TIME_MAX: Duration = Duration::from_secs(30);
/// Another time for it in milliseconds, for tests.
const TIME_VARIABLE: &str = "HEADWAY_RELOAD_TIMEOUT_MS";
/// The most threads that read, with those that wait for a dead file system.
const THREADS_MAX: usize = 8;

/// Reads configurations.
pub(super) struct Reader {
    read: ReadConfig,
    /// One more reference than there are threads.
    threads: Arc<()>,
    time_max: Duration,
}

/// A configuration that is being read.
pub(super) struct Reading {
    /// Readable when it has been read.
    pub(super) wake: UnixStream,
    result: Receiver<Result<Config, String>>,
    pub(super) deadline: Instant,
}

impl Reader {
    pub(super) fn new(read: ReadConfig) -> Reader {
        let time = std::env::var(TIME_VARIABLE).ok();
        let time = time.and_then(|text| text.parse().ok());
        Reader {
            read,
            threads: Arc::new(()),
            time_max: time.map_or(TIME_MAX, Duration::from_millis),
        }
    }

    pub(super) fn start(&self) -> io::Result<Reading> {
        if Arc::strong_count(&self.threads) > THREADS_MAX {
            return Err(io::Error::other(format!(
                "{THREADS_MAX} earlier attempts still wait for a file system"
            )));
        }
        let (wake, mut waker) = signals::pair()?;
        let (sender, result) = channel();
        let (read, counted) = (self.read.clone(), self.threads.clone());
        // Signals are for the main thread, which blocks them while the program is replaced.
        let _blocked = BlockedSignals::all();
        std::thread::Builder::new()
            .name("reload".into())
            .spawn(move || {
                // The master may have given up.
                let _ = sender.send(read());
                drop(counted);
                let _ = waker.write(&[0]);
            })?;
        Ok(Reading {
            wake,
            result,
            deadline: Instant::now() + self.time_max,
        })
    }

    /// Why it has not been read in time. The directories of the configuration before are looked at.
    pub(super) fn why_late(&self, before: &Config) -> String {
        let seconds = self.time_max.as_secs_f64();
        let silent = silent_paths(before);
        format!(
            "the configuration cannot be read within {seconds} s: a file system does not answer{silent}"
        )
    }
}

impl Reading {
    /// The configuration, or why it cannot be used. `None` if it is still read.
    pub(super) fn take(&self) -> Option<Result<Config, String>> {
        self.result.try_recv().ok()
    }
}

/// The directories whose file system may be the one that does not answer, in parentheses.
pub(super) fn silent_paths(config: &Config) -> String {
    let silent = OpenDirectories::silent(config);
    let paths: Vec<_> = silent
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    match paths.is_empty() {
        true => String::new(),
        false => format!(" (perhaps {})", paths.join(", ")),
    }
}
