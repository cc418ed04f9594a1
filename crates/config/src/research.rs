//! What a research server may change: the effective values, with those of Headway as their default,
//! and the defaults of other keys that depend on them.
//!
//! - `settings`: the keys of the table `[research]`;
//! - `presets`: the named servers, each a set of values;
//! - `check`: the effective values, and contradictions.
//!
//! A program has the table if it names [`RESEARCH_TABLE`], as `headway-lab` does and `headway` does
//! not.

use std::num::NonZeroU32;

use headway_event::Mechanism;
use serde::{Deserialize, Serialize};

use crate::extensions::ResearchTable;
use crate::keys::{Setting, Table};
use crate::strategy::{Opening, named_values};
use crate::units::{AcceptBatch, OneOrMany};

mod check;
mod presets;
mod settings;

pub use presets::Preset;
pub use settings::ResearchSettings;

/// The table `[research]`.
pub static RESEARCH_TABLE: ResearchTable = ResearchTable {
    keys: ResearchSettings::keys,
    read: ResearchSettings::read_table,
    set_option: ResearchSettings::set_option,
    overlay: settings::overlay,
    check: check::check,
};

named_values! {
    /// How the servers of the papers find bytes resident and send them, in place of `send`.
    SendVariant, "method of sending" {
        /// All files by `sendfile`, each chunk after a residency check.
        #[default]
        SendfileResident = "sendfile-resident",
        /// As sendfile-resident, and the header leaves in a packet of its own.
        SendfilePlain = "sendfile-plain",
        /// All files by `sendfile`, each chunk if it was used lately. The guess may be wrong, and
        /// then the event loop blocks.
        SendfileRecent = "sendfile-recent",
        /// All files by `sendfile`, each chunk when `mincore` reports its mapping resident.
        SendfileMapped = "sendfile-mapped",
        /// All files from mappings, each chunk when `mincore` reports it resident, with the header
        /// in one `writev`.
        Mmap = "mmap",
    }
}

named_values! {
    /// Which of the connections that can send long responses sends first.
    SendOrder, "order of sending" {
        /// The one that became ready first.
        #[default]
        Ready = "ready",
        /// The one with the fewest bytes left (SRPT; Harchol-Balter and others).
        Shortest = "shortest",
    }
}

/// The effective values of `[research]`. The default is Headway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ResearchConfig {
    /// How a file that is not cached is opened.
    pub opening: Opening,
    /// How files are sent; `None` leaves it to `send`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_method: Option<SendVariant>,
    /// Bytes of files mapped, or assumed resident because they were used lately, per worker. Only
    /// some send methods use it.
    #[serde(rename = "mapped-max")]
    pub mapped_max_bytes: u64,
    /// Whether a file is closed once it is mapped.
    #[serde(default)]
    pub close_mapped: bool,
    /// Whether to read from a new connection at once.
    pub eager_read: bool,
    /// Whether to write a response at once, without asking whether the socket is writable.
    pub eager_write: bool,
    /// Which of the connections that can send long responses sends first.
    #[serde(default)]
    pub send_order: SendOrder,
    /// Whether to accept connections also whenever one has closed.
    pub accept_on_close: bool,
    /// Whether an accept batch without a limit lasts as long as connections arrive, and no silent
    /// connection closes for a new one.
    #[serde(default)]
    pub original_limits: bool,
    /// Whether to read from a connection until no data is left.
    pub full_read: bool,
    /// Whether paths, open files and small responses are cached between requests.
    pub caching: bool,
    /// Whether every worker wakes for a connection to a shared socket.
    pub thundering_herd: bool,
    /// The event loop sleeps for a millisecond at one of this many requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_every: Option<NonZeroU32>,
    /// Prefixes of the locations with [`HandlerConfig::Pipe`](crate::HandlerConfig::Pipe).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pipe: Vec<String>,
    /// Prefixes of the locations with [`Cgi::fork_in_server`](crate::Cgi::fork_in_server).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fork_in_server: Vec<String>,
}

impl Default for ResearchConfig {
    fn default() -> ResearchConfig {
        ResearchConfig {
            opening: Opening::Probe,
            send_method: None,
            mapped_max_bytes: 0,
            close_mapped: false,
            eager_read: true,
            eager_write: true,
            send_order: SendOrder::Ready,
            accept_on_close: false,
            original_limits: false,
            full_read: false,
            caching: true,
            thundering_herd: false,
            stall_every: None,
            pipe: Vec::new(),
            fork_in_server: Vec::new(),
        }
    }
}

/// The prefixes in a key that names locations.
pub(crate) fn prefixes(item: &Setting<OneOrMany<String>>) -> &[String] {
    item.as_ref().map_or(&[], |item| &item.get_ref().0)
}

/// Defaults of other keys. Those of Headway hold unless `[research]` changes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Defaults {
    pub accept_batch: AcceptBatch,
    pub backlog: u32,
    pub defer_accept: bool,
    pub events: Mechanism,
    /// The eighths of the usable descriptors that connections get; cached files get the others.
    pub connection_eighths: u64,
    pub revalidate_ms: u64,
    /// Whether small files are cached.
    pub caches_small_files: bool,
    /// What to remove to have `accept-batch = "auto"`, where the default is a fixed batch.
    pub fixed_batch: Option<&'static str>,
}

impl Default for Defaults {
    fn default() -> Defaults {
        Defaults {
            accept_batch: AcceptBatch::Auto,
            backlog: 1024,
            defer_accept: true,
            events: Mechanism::Epoll,
            connection_eighths: 6,
            // Another check costs a probe one system call.
            revalidate_ms: 1000,
            caches_small_files: true,
            fixed_batch: None,
        }
    }
}
