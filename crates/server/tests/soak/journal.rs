//! Which faults were injected, when, and which failures of a request each of them explains.
//!
//! The table [`Kind::allows`] is the promise which the run checks. What it does not list is lost,
//! even while another fault was active. Wrong bytes are never allowed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Route {
    /// Files: fixed, replaced by rename, appended to, of the current release.
    Files,
    /// A file which is cut and grows again in place.
    Mutable,
    /// A directory which is moved away at times.
    Moved,
    /// Files on the disk which breaks at times.
    Disk,
    Cgi,
    Scgi,
    Proxy,
}

/// How a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection could be made.
    Refused,
    /// The connection ended before any byte of the response.
    NoReply,
    /// The connection ended within the response.
    Cut,
    /// Nothing came for longer than every timeout of the server.
    Hung,
    /// Another status than the expected one.
    Status(u16),
    /// What came is not what the file or the handler has.
    Wrong(String),
}

/// The faults, and the changes of files which go on all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    StopWorker,
    /// Longer than `worker-timeout`: the master replaces the worker.
    HangWorker,
    StopHelper,
    StopSpawner,
    StopLog,
    StopStore,
    StopProgram,
    StopMaster,
    KillWorker,
    KillHelper,
    KillSpawner,
    KillLog,
    KillStore,
    KillProgram,
    Hangup,
    Memory,
    /// The master ended, as by the kernel when memory is out, and was started again.
    Restart,
    FullBodies,
    FullLog,
    StopUpstream,
    KillUpstream,
    KillUpstreams,
    Partition,
    HalfOpen,
    Descriptors,
    Processes,
    MoveDirectory,
    Truncate,
    BreakDisk,
}

impl Kind {
    pub const ALL: [Kind; 28] = [
        Kind::StopWorker,
        Kind::HangWorker,
        Kind::StopHelper,
        Kind::StopSpawner,
        Kind::StopLog,
        Kind::StopStore,
        Kind::StopProgram,
        Kind::StopMaster,
        Kind::KillWorker,
        Kind::KillHelper,
        Kind::KillSpawner,
        Kind::KillLog,
        Kind::KillStore,
        Kind::KillProgram,
        Kind::Hangup,
        Kind::Memory,
        Kind::FullBodies,
        Kind::FullLog,
        Kind::StopUpstream,
        Kind::KillUpstream,
        Kind::KillUpstreams,
        Kind::Partition,
        Kind::HalfOpen,
        Kind::Descriptors,
        Kind::Processes,
        Kind::MoveDirectory,
        Kind::Truncate,
        Kind::BreakDisk,
    ];

    /// Whether this fault explains the failure. `is_upload` is a request which may not be sent
    /// twice.
    fn allows(self, route: Route, failure: &Failure, is_upload: bool) -> bool {
        use Failure::{Cut, NoReply, Refused, Status};
        let is_upstream = matches!(route, Route::Scgi | Route::Proxy);
        let is_gone = matches!(failure, NoReply | Cut);
        match self {
            // A pause is no reason to fail, and these processes are replaced unseen.
            Kind::StopWorker
            | Kind::StopHelper
            | Kind::StopSpawner
            | Kind::StopLog
            | Kind::StopStore
            | Kind::StopProgram
            | Kind::StopMaster
            | Kind::StopUpstream
            | Kind::KillHelper
            | Kind::KillLog
            | Kind::KillStore
            | Kind::Hangup
            | Kind::FullLog => false,
            Kind::KillWorker | Kind::HangWorker => is_gone,
            Kind::KillSpawner | Kind::KillProgram => {
                route == Route::Cgi && (is_gone || matches!(failure, Status(502 | 503)))
            }
            Kind::Memory => is_gone || matches!(failure, Status(500 | 502 | 503 | 504)),
            Kind::Restart => is_gone || *failure == Refused,
            Kind::FullBodies => is_upload && (is_gone || matches!(failure, Status(503))),
            // The other upstream answers what may be sent twice.
            Kind::KillUpstream => {
                let is_alone = is_upload || route == Route::Scgi;
                let is_bad = is_alone && matches!(failure, Status(502..=504));
                is_upstream && (*failure == Cut || is_bad)
            }
            Kind::KillUpstreams | Kind::Partition | Kind::HalfOpen => {
                is_upstream && (*failure == Cut || matches!(failure, Status(502..=504)))
            }
            // A helper's copy of the next bytes comes with a descriptor.
            Kind::Descriptors => is_gone || matches!(failure, Status(502 | 503)),
            Kind::Processes => route == Route::Cgi && matches!(failure, Status(502 | 503)),
            Kind::MoveDirectory => route == Route::Moved && matches!(failure, Status(404)),
            Kind::Truncate => route == Route::Mutable && *failure == Cut,
            Kind::BreakDisk => {
                route == Route::Disk && (*failure == Cut || matches!(failure, Status(500 | 503)))
            }
        }
    }

    /// How long after its end a fault still has consequences.
    fn grace(self) -> Duration {
        Duration::from_millis(match self {
            // An upstream which failed is not asked again at once, and lost segments are sent again
            // after a growing pause.
            Kind::KillUpstream | Kind::KillUpstreams | Kind::Partition | Kind::HalfOpen => 12_000,
            // Clients which waited for room get 503 after `body-timeout`.
            Kind::FullBodies => 12_000,
            _ => 2_000,
        })
    }
}

struct Window {
    kind: Kind,
    to: Option<Instant>,
}

/// The faults of a run.
pub struct Journal {
    pub begun: Instant,
    windows: Mutex<Vec<Window>>,
    excused: Mutex<BTreeMap<(Kind, Route, String), u64>>,
    file: Mutex<File>,
}

impl Journal {
    pub fn new(path: &Path) -> Journal {
        Journal {
            begun: Instant::now(),
            windows: Mutex::default(),
            excused: Mutex::default(),
            file: Mutex::new(File::create(path).expect("a journal of faults")),
        }
    }

    pub fn begin(&self, kind: Kind, what: &str) -> usize {
        let mut windows = self.windows.lock().expect("windows");
        let to = None;
        windows.push(Window { kind, to });
        self.say(&format!("begin {kind:?} {what}"));
        windows.len() - 1
    }

    pub fn end(&self, number: usize) {
        let mut windows = self.windows.lock().expect("windows");
        windows[number].to = Some(Instant::now());
        self.say(&format!("end {:?}", windows[number].kind));
    }

    /// Adds a line with the seconds since the beginning.
    pub fn say(&self, text: &str) {
        let seconds = self.begun.elapsed().as_secs_f64();
        let mut file = self.file.lock().expect("file");
        let _ = writeln!(file, "{seconds:.3} {text}");
    }

    /// The fault which explains a failure between two times, which is counted.
    pub fn excuse(
        &self,
        route: Route,
        failure: &Failure,
        is_upload: bool,
        from: Instant,
    ) -> Option<Kind> {
        let windows = self.windows.lock().expect("windows");
        let recent = windows.iter().rev().take(400);
        let found = recent
            .filter(|window| window.to.is_none_or(|to| to + window.kind.grace() >= from))
            .find(|window| window.kind.allows(route, failure, is_upload))?;
        let key = (found.kind, route, format!("{failure:?}"));
        *self
            .excused
            .lock()
            .expect("excused")
            .entry(key)
            .or_default() += 1;
        Some(found.kind)
    }

    /// How often each kind was injected.
    pub fn by_kind(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for window in self.windows.lock().expect("windows").iter() {
            *counts.entry(format!("{:?}", window.kind)).or_default() += 1;
        }
        counts
    }

    /// How often each kind explained which failure of which route.
    pub fn excused(&self) -> BTreeMap<String, u64> {
        let excused = self.excused.lock().expect("excused");
        let named = excused.iter();
        named
            .map(|((kind, route, failure), count)| {
                (format!("{kind:?} {route:?} {failure}"), *count)
            })
            .collect()
    }
}
