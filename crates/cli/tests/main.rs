//! All suites of the command but those which change the limits of their process.

#[path = "common/executable.rs"]
mod executable;
#[allow(dead_code, reason = "each test program uses its part")]
mod serving;

mod analyze;
mod cli;
mod dependencies;
mod fileset;
mod flashpache;
mod guide;
mod install;
mod links;
mod load;
mod output;
mod programs;
mod reference;
mod report;
mod status;
mod trace;
mod upstreams;
