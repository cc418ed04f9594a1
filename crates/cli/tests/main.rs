//! All suites of the command. Those of the server are in crates/server.

mod acme;
mod analyze;
mod cli;
mod dependencies;
mod explain;
mod fileset;
mod flashpache;
mod guide;
mod install;
mod kubernetes;
mod links;
mod load;
mod monitoring;
mod output;
mod package;
mod reference;
mod reload;
mod report;
mod serving;
mod trace;
