//! What a program may contain besides the server: applications, and the servers of the papers.
//!
//! A program names its extensions at the entry points of the server: for the configuration and the
//! workers. The server reaches [research](crate::research) only through the functions of
//! [`Research`]. So the linker leaves that code out of a program that does not name it. The
//! configuration gets names and keys alone: [`Extensions::known`].

use headway_lookup::Reopen;
use headway_os::spawn::SpawnError;
use std::fmt;
use std::os::fd::BorrowedFd;

use headway_config::{Config, KnownExtensions, ResearchTable};
use headway_embedded::Applications;
use headway_metrics::calls::Tracer;
use headway_send::SendFiles;
use headway_spawner::wire::{ExitStatus, Launch};

use crate::worker::gateway::piped::Piped;

/// What a program contains besides the server.
///
/// ```
/// use headway_server::Extensions;
/// use headway_server::config::keys::reference;
/// use headway_server::research::RESEARCH;
///
/// let names = |extensions: Extensions| reference(extensions.known()).into_iter().map(|key| key.name);
/// let lab = Extensions { research: Some(&RESEARCH), ..Extensions::NONE };
/// assert!(names(lab).any(|name| name == "preset"));
/// assert!(!names(Extensions::NONE).any(|name| name == "preset"));
/// ```
#[derive(Clone, Copy)]
pub struct Extensions {
    /// Applications that locations name.
    pub applications: &'static Applications,
    /// The servers of the papers; `None` in a server for users.
    pub research: Option<&'static Research>,
}

impl Extensions {
    /// The server alone.
    pub const NONE: Extensions = Extensions {
        applications: &Applications::NONE,
        research: None,
    };

    /// What the configuration knows of them.
    pub const fn known(self) -> KnownExtensions {
        KnownExtensions {
            applications: self.applications,
            research: match self.research {
                Some(research) => Some(research.table),
                None => None,
            },
        }
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Extensions")
            .field("applications", &self.applications)
            .field("research", &self.research.is_some())
            .finish()
    }
}

/// Makes a process from the loop: the program, its input, its output.
pub(crate) type Fork =
    fn(&Launch, BorrowedFd<'_>, BorrowedFd<'_>, &Tracer) -> Result<Box<dyn OwnProgram>, SpawnError>;

/// A process that the worker has made itself.
pub(crate) trait OwnProgram {
    /// The response is complete: the program may continue until then.
    fn release(&mut self, until_ms: u64);

    /// Kills the program: SIGTERM now, SIGKILL later.
    fn kill(&mut self, now_ms: u64);

    /// Sends the signals that are due. Returns how the program has ended, once it is not needed any
    /// more.
    fn poll(&mut self, now_ms: u64, tracer: &Tracer) -> Option<ExitStatus>;
}

/// The functions by which the server reaches its research code. The only one is
/// [`RESEARCH`](crate::research::RESEARCH).
pub struct Research {
    /// The table `[research]`.
    pub(crate) table: &'static ResearchTable,
    /// Makes the configured way to send files.
    pub(crate) sender: fn(&Config) -> Option<Box<dyn SendFiles>>,
    /// Opens a file where lookups are made without a probe.
    pub(crate) reopen: Reopen,
    /// Makes a program's process from the worker itself.
    pub(crate) fork: Fork,
    /// Handles direct programs whose responses pass through the worker.
    pub(crate) piped: &'static Piped,
}
