//! System-call records of processes that cannot record their own: static and Go programs, and those
//! that already run.
//!
//! The records are those of [`debox`], made out of band by small programs in the kernel (BPF,
//! `bpf/attach.bpf.c`) at the entry and exit of system calls, at sleeps and at wake-ups. What only
//! an observer of the whole system can tell comes with them: how many other tasks sleep on the same
//! lock, futex, file or place. For processes that record their own calls [`Beside`] counts just
//! that (`bpf/waiters.bpf.c`). [`RunQueue`] looks at an instant: how many tasks of some processes
//! are runnable.
//!
//! It refuses to copy arguments or data of the traced processes, to react inside them (that takes
//! the in-band tracer), and to hide what it missed: see [`Lost`]. The server does not use it. It is
//! a crate of its own since it needs a BPF loader, which the traced processes must not carry.
//!
//! Sources: Ruan's dissertation (2005), section 2.3.2; bpf(2).
#![forbid(unsafe_code)]

mod attach;
mod beside;
mod error;
mod kept;
mod layout;
mod load;
mod lost;
mod mappings;
mod maps;
mod object;
mod run_queue;
mod target;
mod totals;
mod waiters;

pub use attach::Attach;
pub use beside::{Beside, SeenSleep};
pub use error::AttachError;
pub use kept::KeptCall;
pub use load::{Limits, Sight};
pub use lost::Lost;
pub use mappings::{Mappings, Place};
pub use run_queue::{Look, RunQueue};
pub use target::Pids;
pub use totals::{Resource, SiteTotals, SleepTotals, WaiterTotals};
pub use waiters::Waiters;
