//! All suites of this crate, and the machine and the server whose configurations they check.

mod accept_settings;
mod config;

use headway_config::research::RESEARCH_TABLE;
use headway_config::{Environment, KnownExtensions, Memory};

/// A server which has the papers' switches.
const RESEARCH_SERVER: KnownExtensions = KnownExtensions {
    research: Some(&RESEARCH_TABLE),
    ..KnownExtensions::NONE
};

/// A small machine.
const HERE: Environment = Environment {
    cpus: 2,
    nofile: 20_000,
    somaxconn: 4096,
    memory: Memory {
        bytes: 8 << 30,
        limited: false,
    },
    process_memory_bytes: 4 << 30,
    extensions: RESEARCH_SERVER,
    files_wait: None,
};
