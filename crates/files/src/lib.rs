//! Find and open files without blocking the event loop.
//!
//! In the order in which a request uses it:
//!
//! 1. [`FileCache`] caches lookup results, including failures.
//! 2. [`LoopResolver`] asks the kernel's own name cache and never blocks.
//! 3. If that says [`Probe::WouldBlock`], [`Pool`] sends the path to a helper process
//!    ([`helper_main`]), which opens the cold file (`helper/open.rs`) and passes the descriptor
//!    back.
//! 4. [`Residency`] tells whether a chunk of an open file is in memory; if not, a helper reads it
//!    into memory.
//! 5. [`DeferredCloses`] has descriptors closed in helpers too.
//! 6. [`store_main`] is a process that keeps files in memory for all workers: copies in memfds, and
//!    small files by pinning them in the page cache.
//!
//! What it refuses: to block anywhere but in `helper_main`, `store_main`, [`resolve_blocking`] and
//! [`LoopResolver::resolve_on_loop`]; to leave a document root (the kernel confines every walk, see
//! `headway_os::open`); to spawn processes (the master does); to know about HTTP.
//!
//! Sources: the Flash papers' helpers and pathname cache, New-Flash's descriptor passing (2006
//! paper §3), openat2(2), cachestat, unix(7).

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

mod answer;
mod file;
mod filesystem;
mod helper;
mod pinner;
mod store;
mod listing;
mod file_cache;
mod pool;
pub mod protocol;
mod residency;
mod resolve;
mod deferred_close;
mod revalidate;
mod root;
mod root_versions;
mod sent_prefix;
pub mod service;

pub use answer::{Answer, Failure, FoundFile, KnownFile, Probe};
pub use deferred_close::DeferredCloses;
pub use file::{Meta, OpenFile, Version};
pub use file_cache::{CachedContents, Entry, FileCache, FileCacheLimits};
pub use helper::{
    COPY_BYTES_MAX, CustomTask, Tasks, enlarge_send_buffer, helper_main, helper_main_with,
    probe_memfd, resolve_blocking,
};
pub use listing::{Directory, DirectoryEntry, ENTRIES_MAX, EntryKind};
pub use pinner::{PinLimits, PinStatistics, pinnable_bytes};
pub use pool::{
    CustomJob, Done, Full, HelperSlot, Log2Histogram, Outcome, Pool, PoolLimits, PoolStatistics,
    SlotState, SpoolPiece, Waiter,
};
pub use residency::{CHUNK_BYTES, PREFETCH_BYTES, ProbeKind, Residency, chunk_of, read_nowait};
pub use resolve::{LoopResolver, RawAnswer, RawFile};
pub use revalidate::{AbsentSiblings, Revalidation};
pub use root::{PathRule, RootConfig, RootError, RootId, Roots, RuleKind, Symlinks};
pub use root_versions::RootVersions;
pub use sent_prefix::{ContentChecksum, SentPrefix, Truncated};
pub use store::{
    FileKey, FromStore, FromStoreSocket, NUMBERS_MAX, StoreLimits, StoreSocket, StoreStatistics,
    ToStore, join_store, receive_store_statistics, store_main, stored_body,
};
