//! The layer below: opening, starting, stopping and reading one counter.
//!
//! A trait, so that grouping and scaling can be tested against a stand-in that has as many counters
//! as a test says.

use std::io;

use headway_os::perf::counter::{Counter, CounterScope, EventWords, Reading};
use rustix::io::Errno;

/// What a session needs of the kernel.
pub trait Perf {
    /// An open counter.
    type Handle;

    /// Opens a counter that does not count yet, in the group of `leader` if there is one.
    ///
    /// # Errors
    /// [`OpenError`].
    fn open(
        &self,
        event: &EventWords,
        counter_scope: CounterScope,
        leader: Option<&Self::Handle>,
    ) -> Result<Self::Handle, OpenError>;

    /// Starts it, and the group that it leads.
    ///
    /// # Errors
    /// Of the system.
    fn start(&self, handle: &Self::Handle) -> io::Result<()>;

    /// Stops it, and the group that it leads.
    ///
    /// # Errors
    /// Of the system.
    fn stop(&self, handle: &Self::Handle) -> io::Result<()>;

    /// What a counter has counted.
    ///
    /// # Errors
    /// Of the system.
    fn read(&self, handle: &Self::Handle) -> io::Result<Reading>;
}

/// Why a counter cannot be had, by what can be done about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The machine has no such event, as guests of hypervisors that pass only some on.
    #[error("this machine does not count it")]
    Absent,
    /// The caller may not.
    #[error("not permitted")]
    NotPermitted,
    /// The group would be larger than the hardware: a counter fewer than thought, or words that
    /// mean nothing.
    #[error("it does not fit beside the others")]
    DoesNotFit,
    /// The thread has ended.
    #[error("the thread has ended")]
    Gone,
    /// The number of open descriptors.
    #[error(
        "too many open descriptors (ulimit -n); count CPUs instead of processes, or fewer events"
    )]
    Descriptors,
    /// Something else.
    #[error("{0}")]
    Other(String),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> OpenError {
        match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::NODEV | Errno::NXIO | Errno::NOSYS) => {
                OpenError::Absent
            }
            Some(Errno::ACCESS | Errno::PERM) => OpenError::NotPermitted,
            Some(Errno::INVAL | Errno::NOSPC) => OpenError::DoesNotFit,
            Some(Errno::SRCH) => OpenError::Gone,
            Some(Errno::MFILE | Errno::NFILE) => OpenError::Descriptors,
            _ => OpenError::Other(error.to_string()),
        }
    }
}

/// The kernel of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelPerf;

impl Perf for KernelPerf {
    type Handle = Counter;

    fn open(
        &self,
        event: &EventWords,
        counter_scope: CounterScope,
        leader: Option<&Counter>,
    ) -> Result<Counter, OpenError> {
        Ok(Counter::open(event, counter_scope, leader)?)
    }

    fn start(&self, handle: &Counter) -> io::Result<()> {
        handle.start()
    }

    fn stop(&self, handle: &Counter) -> io::Result<()> {
        handle.stop()
    }

    fn read(&self, handle: &Counter) -> io::Result<Reading> {
        handle.read()
    }
}
