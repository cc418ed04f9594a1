//! The servers under test: each started from a committed configuration, and ended with all it has
//! started.
//!
//! [`Kind`] is the table of them: presets of `headway-lab serve`, and today's servers. [`available`]
//! says whether one can be started here and in which version. [`Server::start`] starts it through a
//! command of the caller's, which enters the lab's control groups, network and CPUs, and
//! waits until it answers with all its processes.
//!
//! ```no_run
//! use headway_lab::servers::{Kind, Server, ServerSpec};
//! use std::process::Command;
//!
//! let spec = ServerSpec::new(Kind::Nginx, "/srv/files", "127.0.0.1:8080".parse()?);
//! let server = Server::start(&spec, |program| Command::new(program), "/tmp".as_ref())?;
//! println!("{} has used {} ms", server.version(), server.usage().cpu_ms);
//! server.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Refused: installing a server, using a service of the machine's, signalling a process that was
//! not started here.

mod accept_limit;
mod available;
mod certificate;
mod configuration;
mod error;
mod kind;
mod network;
mod server;
mod spec;
pub(crate) mod tree;

pub use accept_limit::AcceptReport;
pub use available::{Installed, Reason, available};
pub use error::ServerError;
pub use kind::{Family, Kind, KindRow, TABLE, UnknownKind};
pub use server::{Ended, Response, Server};
pub use spec::{ServerSpec, Sizes};
pub use tree::{Process, Usage, descendants};
