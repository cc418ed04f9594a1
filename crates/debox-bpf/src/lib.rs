//! System-call records of processes that cannot record their own: static programs, Go programs, and
//! processes that are already running.
//!
//! The records are those of [`headway_debox`]. Small programs in the kernel (BPF,
//! `bpf/attach.bpf.c`) make them out of band, at the entry and exit of system calls, at sleeps and
//! at wakeups. They also have what only an observer of the whole system can know: how many other
//! tasks sleep on the same lock, futex or file. For processes that record their own calls,
//! [`WaiterObserver`] counts only that (`bpf/waiters.bpf.c`). [`RunQueue`] samples how many tasks
//! of some processes are runnable. [`RequestObserver`] times the requests of a server that was not
//! made for it (`bpf/requests.bpf.c`).
//!
//! The crate refuses to copy data of the traced processes, and arguments except the paths of files
//! at which a server waits. It refuses to react inside them (that takes the in-band tracer), and to
//! hide what it missed: see [`Lost`]. The server does not use it. The observer is a crate of its
//! own because it needs a BPF loader, which traced processes must not carry.
//!
//! Sources: Ruan's dissertation (2005), section 2.3.2; bpf(2).
#![forbid(unsafe_code)]

mod attach;
mod waiter_observer;
mod error;
mod kept;
mod layout;
mod load;
mod lost;
mod mappings;
mod maps;
mod object;
mod requests;
mod run_queue;
mod target;
mod totals;
mod waiters;

pub use attach::{Attach, SeenProgram};
pub use error::AttachError;
pub use kept::KeptRecord;
pub use load::{Limits, Visibility};
pub use lost::Lost;
pub use mappings::{CodeLocation, Mappings};
pub use requests::{
    FailedCall, OffCpu, OpenResponse, READY_BUCKETS, RequestLimits, RequestObserver, SeenHead,
    SeenRequest, SeenResponse, SeenStatus, ServerEvent, ServerPort, SleepFile, TURN_BUCKETS,
    Thread, Waker, Within,
};
pub use run_queue::{RunQueue, RunQueueSample};
pub use target::Pids;
pub use totals::{Resource, SiteTotals, SleepTotals, WaiterTotals};
pub use waiter_observer::{ObservedSleep, WaiterObserver};
pub use waiters::Waiters;
