//! The configuration of the preload library, from environment variables.
//!
//! | variable | meaning |
//! |---|---|
//! | `HEADWAY_TRACE_DIR` | an absolute path; without it nothing is recorded |
//! | `HEADWAY_TRACE_KEEP` | which records are kept one by one, see [`headway_debox::policy::Filter`]; `slept` if not set, empty for none |
//! | `HEADWAY_TRACE_REACT` | rules `conditions:reaction`, separated by `;`, see [`headway_debox::policy::ReactionRule`] |
//! | `HEADWAY_TRACE_STACKS` | `1`: kept records have the program's stack |
//! | `HEADWAY_TRACE_WAKEUP` | `1`: measure after each sleep how long the thread then waited for a CPU |
//! | `HEADWAY_TRACE_LOG_BYTES` | space for kept records, 16 MiB if not set |
//! | `HEADWAY_TRACE_THREADS` | threads at a time that are recorded separately, 256 if not set |
//! | `HEADWAY_TRACE_FOLLOW` | `1`: put the library back into the environment of a program that is started without it |
//!
//! The variables are read once, when the library is loaded, since the program may change its
//! environment. Errors in them are not printed on the program's streams: they are in the file, as
//! the text of the policy.

use std::ffi::{CString, c_char};
use std::os::unix::ffi::OsStringExt;

use headway_debox::Limits;
use headway_debox::collect::write::Layout;
use headway_debox::policy::{Filter, ReactionRule};
use headway_os::published::Published;

/// The variables a program that is started needs, to be traced too.
pub const VARIABLES: [&str; 8] = [
    "HEADWAY_TRACE_DIR",
    "HEADWAY_TRACE_KEEP",
    "HEADWAY_TRACE_REACT",
    "HEADWAY_TRACE_STACKS",
    "HEADWAY_TRACE_WAKEUP",
    "HEADWAY_TRACE_LOG_BYTES",
    "HEADWAY_TRACE_THREADS",
    "HEADWAY_TRACE_FOLLOW",
];

/// The settings from the environment.
pub struct Config {
    pub directory: Vec<u8>,
    pub keep: Option<Filter>,
    pub orders: Vec<ReactionRule>,
    pub policy: String,
    pub stacks: bool,
    pub limits: Limits,
    pub layout: Layout,
    /// `NAME=value` of every variable to put back, if following was requested.
    pub follow: Vec<CString>,
}

/// The configuration; `None` if nothing is recorded.
pub fn config() -> Option<&'static Config> {
    static CONFIG: Published<Option<Config>> = Published::new();
    if let Some(config) = CONFIG.get() {
        return config.as_ref();
    }
    if !has_environment() {
        return None;
    }
    CONFIG.get_or_publish(read).as_ref()
}

/// Whether libc has its environment, even an empty one. A sanitizer's runtime makes calls before that.
fn has_environment() -> bool {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: libc's own, which nothing else writes while the program is loaded.
    unsafe { !environ.is_null() }
}

fn read() -> Option<Config> {
    let directory = std::env::var_os("HEADWAY_TRACE_DIR")?.into_vec();
    if !directory.starts_with(b"/") {
        return None;
    }
    let text = |name| std::env::var(name).unwrap_or_default();
    let flag = |name| text(name) == "1";
    let keep_text = std::env::var("HEADWAY_TRACE_KEEP").unwrap_or_else(|_| "slept".to_owned());
    let mut policy = keep_text.clone();
    let keep = match keep_text.trim() {
        "" => None,
        text => text
            .parse()
            .map_err(|error| policy = format!("none kept: {error}"))
            .ok(),
    };
    let mut orders = Vec::new();
    for order in text("HEADWAY_TRACE_REACT")
        .split(';')
        .filter(|order| !order.trim().is_empty())
    {
        match order.parse() {
            Ok(order) => orders.push(order),
            Err(error) => policy = format!("{policy}; no reaction: {error}"),
        }
    }
    let by_label = |filter: &Filter| !filter.labels.is_empty();
    let resolve = keep.as_ref().is_some_and(by_label)
        || orders
            .iter()
            .any(|order: &ReactionRule| order.needs_labels());
    let log_bytes = text("HEADWAY_TRACE_LOG_BYTES").parse().ok();
    let threads = text("HEADWAY_TRACE_THREADS").parse().ok();
    let default = Layout::default();
    Some(Config {
        directory,
        keep,
        orders,
        policy,
        stacks: flag("HEADWAY_TRACE_STACKS"),
        limits: Limits {
            sleeps_max: 8,
            trace_max: 0,
            resolve,
            wakeup: flag("HEADWAY_TRACE_WAKEUP"),
            // Compilers meet thousands of pages for each call.
            own_faults: false,
        },
        layout: Layout {
            log_words: log_bytes.map_or(default.log_words, |bytes: usize| bytes / 8),
            lanes_max: threads.map_or(default.lanes_max, |threads: usize| threads.clamp(1, 65536)),
        },
        follow: if flag("HEADWAY_TRACE_FOLLOW") {
            variables()
        } else {
            Vec::new()
        },
    })
}

fn variables() -> Vec<CString> {
    VARIABLES
        .iter()
        .chain(&["LD_PRELOAD"])
        .filter_map(|name| {
            let mut entry = name.as_bytes().to_vec();
            entry.push(b'=');
            entry.extend(std::env::var_os(name)?.into_vec());
            CString::new(entry).ok()
        })
        .collect()
}
