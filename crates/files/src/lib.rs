//! Find and open files without blocking the event loop.
//!
//! What it does, in the order a request meets it:
//!
//! 1. [`Names`] remembers answers, the failed ones too;
//! 2. [`resolve_cached`] asks the kernel's own name cache and never waits;
//! 3. where that says [`Probe::WouldBlock`], [`Pool`] asks a helper process ([`helper_main`]),
//!    which may wait, and which passes the open file back;
//! 4. [`Residency`] tells whether a window of an open file is in memory; where not, a helper reads
//!    it in;
//! 5. [`RetireList`] sees to it that descriptors are closed by helpers too;
//! 6. [`keeper_main`] is a process that keeps small files in the page cache for all who read them.
//!
//! What it refuses: to wait, anywhere but in `helper_main`, `keeper_main`, [`resolve_blocking`] and
//! [`resolve_here`]; to leave a document root (the kernel confines every walk, see `headway_os::open`); to
//! spawn processes (the master does); to know about HTTP.
//!
//! Sources: the Flash papers' helpers and name cache, New-Flash's descriptor passing (2006 paper
//! §3), openat2(2), cachestat, unix(7).

#![forbid(unsafe_code)]

mod answer;
mod file;
mod filesystem;
mod helper;
mod keep;
mod listing;
mod names;
mod pool;
pub mod protocol;
mod residency;
mod resolve;
mod retire;
mod revalidate;
mod root;
pub mod service;

pub use answer::{Answer, Failure, FoundFile, KnownFile, Probe};
pub use file::{Meta, OpenFile};
pub use helper::{ErrandTask, Tasks, helper_main, helper_main_with, make_room_for_answers};
pub use keep::{
    KeepLimits, KeepStatistics, KeeperSocket, keepable_bytes, keeper_main, told_by_keeper,
};
pub use listing::{Directory, DirectoryEntry, ENTRIES_MAX, EntryKind};
pub use names::{Entry, Holdings, Names, NamesBounds};
pub use pool::{
    Done, Errand, Full, HelperSlot, Outcome, Pool, PoolLimits, PoolStatistics, Powers, SlotState,
    Waiter,
};
pub use residency::{ProbeKind, READ_IN_BYTES, Residency, WINDOW_BYTES, read_nowait, window_of};
pub use resolve::{RawAnswer, RawFile, resolve_blocking, resolve_cached, resolve_here};
pub use retire::RetireList;
pub use revalidate::{Absent, Revalidation, revalidate_cached};
pub use root::{RootConfig, RootError, RootId, Roots};
